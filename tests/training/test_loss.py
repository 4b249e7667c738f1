"""The chunked, label-smoothed loss and its gradients against torch's and by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mtrain.training import loss
from mtrain.training.loss import projected_cross_entropy

V, D = 11, 6


def example(rows: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, the output matrix (both as leaves) and targets."""
    random = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, D, generator=random, dtype=dtype)
    weight = torch.randn(V, D, generator=random, dtype=dtype)
    targets = torch.randint(V, (rows,), generator=random)
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def test_label_smoothing_by_hand() -> None:
    """Two words of probability 1/4 and 3/4, the second is right, eps 0.2: 0.8 and 0.2 / 2 each."""
    logits = torch.tensor([[0.0, 1.0986123]])
    result = projected_cross_entropy(logits, torch.eye(2), torch.tensor([1]), 0.2)
    assert float(result.nll_sum) == pytest.approx(0.2876821, abs=1e-6)
    assert float(result.loss_sum) == pytest.approx(
        0.8 * 0.2876821 + 0.1 * 1.3862944 + 0.1 * 0.2876821, abs=1e-6
    )


def test_a_probability_that_is_rounded_to_0_has_a_finite_loss_and_the_right_gradient() -> None:
    hidden = torch.tensor([[200.0, 0.0]], requires_grad=True)
    result = projected_cross_entropy(hidden, torch.eye(2), torch.tensor([1]), 0.0)
    assert float(result.nll_sum) == pytest.approx(87.3365)
    assert not result.nll_sum.requires_grad  # is for records alone
    assert torch.autograd.grad(result.loss_sum, hidden)[0].tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize("chunk", [1, 3, 4, 9, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_and_its_gradients_are_torchs(
    monkeypatch: pytest.MonkeyPatch, chunk: int, smoothing: float, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(loss, "CHUNK_VALUES", {"cpu": chunk * V + 2})
    monkeypatch.setattr(loss, "CHUNK_ROWS", 1)
    monkeypatch.setattr(loss, "ROW_MULTIPLE", 1)
    hidden, weight, targets = example(9, dtype)
    result = projected_cross_entropy(hidden, weight, targets, smoothing)
    (result.loss_sum * 0.37).backward()

    exact_hidden, exact_weight = (x.detach().double().requires_grad_() for x in (hidden, weight))
    logits = exact_hidden @ exact_weight.T
    expected = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    (expected * 0.37).backward()
    nll = F.cross_entropy(logits, targets, reduction="sum")
    for ours, theirs in (
        (result.loss_sum, expected),
        (result.nll_sum, nll),
        (hidden.grad, exact_hidden.grad),
        (weight.grad, exact_weight.grad),
    ):
        error = 1e-12 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(ours, theirs, check_dtype=False, rtol=error, atol=error)
    assert hidden.grad is not None
    assert hidden.grad.dtype == dtype


@pytest.mark.parametrize(
    ("count", "width", "device", "rows"),
    [
        (1, 8000, "cpu", 32),
        (5000, 8000, "cpu", 512),  # more than fit into 2 ** 20 values
        (5000, 320, "cpu", 2528),  # two chunks
        (5000, 320, "mps", 2528),
        (5000, 8000, "cuda", 5024),
        (70_000, 8000, "cuda", 23_360),
    ],
)
def test_the_rows_of_a_chunk_by_hand(count: int, width: int, device: str, rows: int) -> None:
    assert loss.chunk_rows(count, width, device) == rows


def test_targets_that_are_not_real_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK_VALUES", {"cpu": 4 * V})
    monkeypatch.setattr(loss, "CHUNK_ROWS", 1)
    monkeypatch.setattr(loss, "ROW_MULTIPLE", 1)
    hidden, weight, targets = example(9, torch.float64)
    real = torch.tensor([True, False, True, True, True, False, True, True, False])
    found, expected = [], []
    for kept, values in ((None, expected), (real, found)):
        chosen = (hidden[real], targets[real]) if kept is None else (hidden, targets)
        result = projected_cross_entropy(chosen[0], weight, chosen[1], 0.1, kept)
        values += [*result, *torch.autograd.grad(result.loss_sum, (hidden, weight))]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("certainty", [0.1, 0.3])
def test_bf16_sums_and_gradients_are_as_good_as_bf16(certainty: float) -> None:
    random = torch.Generator().manual_seed(1)
    weight = torch.randn(500, 32, generator=random)
    targets = torch.randint(500, (60,), generator=random)
    hidden = (weight[targets] * certainty).bfloat16()
    sides = []
    for dtype, wide in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        states = hidden.to(dtype, copy=True).requires_grad_()
        matrix = weight.to(wide, copy=True).requires_grad_()
        result = projected_cross_entropy(states, matrix, targets, 0.1)
        result.loss_sum.backward()
        assert states.grad is not None
        assert matrix.grad is not None
        found = (result.loss_sum.detach(), states.grad, matrix.grad)
        assert [values.dtype for values in found] == [wide, dtype, wide]
        sides.append([values.double() for values in found])
    for rounded, exact in zip(*sides, strict=True):
        assert (rounded - exact).norm() < 0.03 * exact.norm()
