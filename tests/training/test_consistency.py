"""The consistency loss and its gradients against the formula in float64; runs that use it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import TinyConfig
from torch import Tensor

from mtrain.config.loading import load_config
from mtrain.runtime.distributed import Ranks
from mtrain.training import loss
from mtrain.training.gradients import Blocks
from mtrain.training.learner import Learner
from mtrain.training.loss import consistency_loss
from mtrain.training.plan import IDS

V, D, N = 11, 6, 9


def example(dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """Return two views, the output matrix (all leaves) and targets."""
    random = torch.Generator().manual_seed(5)
    shapes = [(N, D), (N, D), (V, D)]
    leaves = [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]
    targets = torch.randint(V, (N,), generator=random)
    return [leaf.to(dtype).requires_grad_() for leaf in leaves], targets


def naive(leaves: list[Tensor], targets: Tensor, smoothing: float, alpha: float) -> list[Tensor]:
    """Loss, NLL and divergence by torch's own functions, of the kept targets alone."""
    first, second, weight = leaves
    logits, other = first @ weight.T, second @ weight.T
    smooth = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    divergence = F.kl_div(
        other.log_softmax(-1), logits.log_softmax(-1), reduction="sum", log_target=True
    )
    return [
        smooth + alpha * divergence,
        F.cross_entropy(logits, targets, reduction="sum"),
        divergence,
    ]


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize(("smoothing", "alpha"), [(0.0, 3.0), (0.1, 0.5)])
@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_and_its_gradients_follow_the_formula(
    monkeypatch: pytest.MonkeyPatch, chunk: int, smoothing: float, alpha: float, masked: bool
) -> None:
    monkeypatch.setattr(loss, "CHUNK_VALUES", {"cpu": chunk * V + 2})
    monkeypatch.setattr(loss, "CHUNK_ROWS", 1)
    monkeypatch.setattr(loss, "ROW_MULTIPLE", 1)
    leaves, targets = example(torch.float64)
    real = torch.arange(N) % 3 != 1 if masked else torch.ones(N, dtype=torch.bool)
    found = consistency_loss(
        (leaves[0], leaves[1]), leaves[2], targets, smoothing, alpha, real if masked else None
    )
    shown = [leaves[0][real], leaves[1][real], leaves[2]]
    expected = naive(shown, targets[real], smoothing, alpha)
    torch.testing.assert_close(list(found), expected)
    assert [each.requires_grad for each in found] == [True, False, False]
    found_grads = torch.autograd.grad(found.loss_sum * 0.37, leaves)
    expected_grads = torch.autograd.grad(expected[0] * 0.37, leaves)
    torch.testing.assert_close(found_grads, expected_grads)


@pytest.mark.parametrize("count", [100, 700, 5000])
def test_chunks_have_little_padding(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    chunks, compute = [], loss._chunk

    def record(states: list[Tensor], *others: Any) -> Any:
        chunks.append(len(states[0]))
        return compute(states, *others)

    monkeypatch.setattr(loss, "_chunk", record)
    monkeypatch.setattr(loss, "CHUNK_VALUES", {"cpu": 1000 * V})
    views = (torch.zeros(count, D), torch.zeros(count, D))
    targets = torch.zeros(count, dtype=torch.int64)
    consistency_loss(views, torch.zeros(V, D), targets, 0.1, 1.0)
    assert count <= sum(chunks) < count + loss.ROW_MULTIPLE * len(chunks)
    assert max(chunks) <= 512


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_bf16_is_as_good_as_its_rounding(scale: float) -> None:
    """Also where a view is nearly sure of a token, and probabilities underflow."""
    leaves, targets = example(torch.float64)
    exact = [(leaf.detach() * scale).requires_grad_() for leaf in leaves[:2]] + leaves[2:]
    rounded = [leaf.detach().bfloat16() for leaf in exact[:2]] + [leaves[2].detach().float()]
    rounded = [leaf.requires_grad_() for leaf in rounded]
    expected = naive(exact, targets, 0.1, 3.0)
    found = consistency_loss((rounded[0], rounded[1]), rounded[2], targets, 0.1, 3.0)
    assert found.loss_sum.dtype == torch.float32
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.item() == pytest.approx(theirs.item(), rel=0.03)
    grads = torch.autograd.grad(found.loss_sum, rounded)
    for ours, theirs in zip(grads, torch.autograd.grad(expected[0], exact), strict=True):
        assert (ours.double() - theirs).norm() < 0.05 * theirs.norm()


def test_equal_views_have_no_divergence() -> None:
    leaves, targets = example(torch.float64)
    found = consistency_loss((leaves[0], leaves[0]), leaves[2], targets, 0.1, 3.0)
    assert float(found.divergence_sum) == 0


def test_the_second_view_lacks_a_fraction_of_the_embeddings(tiny_config: TinyConfig) -> None:
    settings = {"train.consistency": 2.0, "train.cutoff": 0.2, "model.dropout": 0.0}
    learner = Learner(load_config(tiny_config(**settings)), 320, IDS, Ranks(), Blocks(1))
    ids, given = torch.randint(4, 320, (40, 25)), list[Any]()

    def compute(*arguments: Any) -> Tensor:
        given.append(arguments)
        return learner.model.hidden(*arguments)

    first, second = learner._views(compute, ids, ids, torch.Generator().manual_seed(1))
    masks = given[0][2]
    for whole, cut in (mask.chunk(2) for mask in masks):
        assert whole.eq(1).all()
        assert cut.eq(0).float().mean() == pytest.approx(0.2, abs=0.05)
        assert cut.unique().tolist() == [0, 1]
    assert not masks[0].equal(masks[1])
    torch.testing.assert_close(first, learner.model.hidden(ids, ids, None, None).flatten(0, 1))
    assert not second.isclose(first).all(1).any()
