"""The optimizer against torch and numpy."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from conftest import random_model
from torch import Tensor, nn

from mtrain.data.batches import SpecialIds, collate
from mtrain.training import optimizer as optimizer_module
from mtrain.training.gradients import Sums
from mtrain.training.loss import projected_cross_entropy
from mtrain.training.optimizer import MovingAverage, Optimizer, grouped

BETAS, EPS = (0.9, 0.98), 1e-9
MUON = {"0.weight": 1, "2.weight": 1}


def small_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def put_gradients(model: nn.Module, step: int, scale: float = 1.0) -> None:
    """Give every parameter a gradient that depends on the step alone."""
    random = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        values = scale * torch.randn(parameter.shape, generator=random)
        parameter.grad = values.to(parameter.dtype)


def gradients(model: nn.Module) -> tuple[tuple[Tensor, ...], Tensor]:
    """Take the gradients of the parameters from them; the losses are 0."""
    grads = tuple(p.grad for p in model.parameters())
    for parameter in model.parameters():
        parameter.grad = None
    return grads, torch.zeros(2)


def take_step(
    optimizer: Optimizer, model: nn.Module, step: int, scale: float = 1.0, clip: float = 0.0
) -> Tensor:
    """Take a step on 7 tokens, at a rate that changes from step to step."""
    put_gradients(model, step, scale)
    optimizer.sums.store(*gradients(model))
    return optimizer.update(0.01 / step, 7, clip)


def values(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def make_optimizer(
    model: nn.Module, muon: dict[str, int], pool: ThreadPoolExecutor | None = None
) -> Optimizer:
    return Optimizer(model, BETAS, EPS, muon, 2, pool)


@pytest.mark.parametrize("clip", [0.0, 0.4, 100.0])
def test_updates_are_adams_with_clipping(clip: float) -> None:
    ours, theirs = small_model(), small_model()
    optimizer = make_optimizer(ours, {})
    adam = torch.optim.Adam(theirs.parameters(), lr=0.0, betas=BETAS, eps=EPS)
    for step in range(1, 6):
        norm = take_step(optimizer, ours, step, clip=clip)
        put_gradients(theirs, step, 1 / 7)
        limit = clip or math.inf
        expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit)
        adam.param_groups[0]["lr"] = 0.01 / step
        adam.step()
        torch.testing.assert_close(norm, expected)
    torch.testing.assert_close(values(ours), values(theirs), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("bad", "clip", "muon"), [(math.nan, 0.0, {}), (math.inf, 1.0, {}), (-math.inf, 1.0, MUON)]
)
def test_a_gradient_that_is_not_finite_changes_nothing(
    bad: float, clip: float, muon: dict[str, int]
) -> None:
    """Neither weights nor moments nor Adam's own count: the steps after it go on as without it."""
    model, untouched = small_model(), small_model()
    optimizer, other = (make_optimizer(m, muon) for m in (model, untouched))
    for step in (1, 2):
        take_step(optimizer, model, step, clip=clip)
        take_step(other, untouched, step, clip=clip)

    put_gradients(model, 3)
    model[2].bias.grad[1] = bad
    optimizer.sums.store(*gradients(model))
    assert not optimizer.update(0.01, 7, clip).isfinite()
    assert all(map(torch.equal, values(model), values(untouched)))

    take_step(optimizer, model, 4, clip=clip)
    take_step(other, untouched, 4, clip=clip)
    assert all(map(torch.equal, values(model), values(untouched)))
    assert all(
        torch.equal(x, y)
        for x, y in zip(optimizer.moments().values(), other.moments().values(), strict=True)
    )


def test_muons_updates_are_those_of_torch() -> None:
    """Torch's Newton-Schulz iterations are in bf16; biases are Adam's."""
    ours, theirs = small_model(), small_model()
    start = values(ours)
    optimizer = make_optimizer(ours, MUON)
    weights = [theirs[0].weight, theirs[2].weight]
    muon = torch.optim.Muon(weights, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.Adam([theirs[0].bias, theirs[2].bias], betas=BETAS, eps=EPS)
    for step in range(1, 6):
        take_step(optimizer, ours, step)
        put_gradients(theirs, step, 1 / 7)
        for torchs in (muon, adam):
            torchs.param_groups[0]["lr"] = 0.01 / step
            torchs.step()
    moved = max(float((a - b).abs().max()) for a, b in zip(values(ours), start, strict=True))
    torch.testing.assert_close(values(ours), values(theirs), rtol=0, atol=0.02 * moved)
    for name, weight in zip(MUON, weights, strict=True):  # torch's momentum is of 5% of gradients
        momentum = 0.05 * optimizer.moments()[f"{name}.momentum"]
        torch.testing.assert_close(momentum, muon.state[weight]["momentum_buffer"])


def test_each_matrix_is_updated_by_itself() -> None:
    """Whether one weight stacks them, weights of one shape are updated together, or each alone."""
    torch.manual_seed(1)
    whole = nn.Linear(4, 12, bias=False)
    whole.weight.grad = torch.randn(12, 4) * torch.arange(1, 13)[:, None]
    together, alone = (nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in "QKV"]) for _ in "ab")
    for parts in (together, alone):
        slopes = whole.weight.grad.chunk(3)
        for part, weight, slope in zip(parts, whole.weight.chunk(3), slopes, strict=True):
            part.weight.data.copy_(weight.detach())
            part.weight.grad = slope.clone()
    updated = [(whole, {"weight": 3}), (together, {f"{i}.weight": 1 for i in range(3)})]
    for model, stacked in (*updated, *((part, {"weight": 1}) for part in alone)):
        optimizer = make_optimizer(model, stacked)
        optimizer.sums.store(*gradients(model))
        optimizer.update(0.1, 1, 0.0)
    for parts in (together, alone):
        torch.testing.assert_close(whole.weight, torch.cat([part.weight for part in parts]))


def test_a_gradient_of_zero_moves_no_matrix() -> None:
    model = small_model()
    optimizer, before = make_optimizer(model, MUON), values(model)
    take_step(optimizer, model, 1, scale=0.0)
    assert all(map(torch.equal, values(model), before))


def test_muon_updates_the_layers_matrices_only() -> None:
    """Q, K and V are stacked."""
    model = random_model(positions="learned", tie_embeddings="none")
    layers = [name for name, p in model.named_parameters() if p.ndim == 2 and "coder." in name]
    counts = {name: 3 if "project_in" in name else 1 for name in layers}
    assert model.hidden_matrices == counts


def test_fp32_masters_keep_updates_that_bf16_would_round_away() -> None:
    model = small_model().bfloat16()
    optimizer = make_optimizer(model, {})
    start = optimizer.weights["0.weight"].clone()
    for _ in range(40):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.sums.store(*gradients(model))
        optimizer.update(1e-4, 1, 0.0)
    moved = start - optimizer.weights["0.weight"]
    torch.testing.assert_close(moved, torch.full_like(moved, 40e-4), rtol=0.01, atol=0)
    assert model[0].weight.dtype == torch.bfloat16
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, optimizer.weights[name].bfloat16())


def add(optimizer: Optimizer, model: nn.Module) -> None:
    """Add the model's gradients to the optimizer's sums."""
    sums = Sums(optimizer.grads, len(optimizer.losses))
    sums.store(*gradients(model))
    optimizer.sums.buffer += sums.buffer


def test_gradients_of_micro_batches_add_up_in_fp32() -> None:
    model = small_model().bfloat16()
    optimizer = make_optimizer(model, {})
    for value in (256.0, 1.0, 1.0, 1.0):  # bf16 would stay at 256
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, value)
        add(optimizer, model)
    number = sum(p.numel() for p in model.parameters())
    assert float(optimizer.update(0.0, 1, 0.0)) == pytest.approx(259 * number**0.5, rel=1e-5)


@pytest.mark.parametrize("max_values", [1, 20, 29, math.inf])
def test_groups_are_what_fits_in_the_order_given(max_values: float) -> None:
    weights = {name: torch.zeros(len(name)) for name in ("a", "b" * 9, "c" * 30, "d" * 4, "e" * 25)}
    groups = grouped(weights, max_values)
    assert [name for group in groups for name in group] == list(weights)
    sizes = [sum(map(len, group)) for group in groups]
    assert all(
        len(group) == 1 or size <= max_values for group, size in zip(groups, sizes, strict=True)
    )
    assert all(
        size + len(next(iter(b))) > max_values for size, b in zip(sizes, groups[1:], strict=False)
    )


@pytest.mark.parametrize("muon", [{}, MUON])
def test_weights_are_updated_the_same_in_groups_of_any_size(
    monkeypatch: pytest.MonkeyPatch, muon: dict[str, int]
) -> None:
    found = []
    for max_values in (1, 1 << 17):
        monkeypatch.setattr(optimizer_module, "GROUP_VALUES", max_values)
        model = small_model()
        with ThreadPoolExecutor(2) as pool:
            optimizer = make_optimizer(model, muon, pool=pool)
            assert len(optimizer.rules) == (4 if max_values == 1 else 1 + bool(muon))
            norms = [take_step(optimizer, model, step, clip=0.4) for step in range(1, 4)]
        moments = sorted(optimizer.moments().items())
        found.append([*norms, *values(model), *(moment for _, moment in moments)])
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-7)


def test_the_norm_has_the_threads_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rounding depends on their number, which must not follow that of the process."""
    threads, norm_of = list[int](), optimizer_module.norm_of
    monkeypatch.setattr(
        optimizer_module,
        "norm_of",
        lambda grads: threads.append(torch.get_num_threads()) or norm_of(grads),
    )
    model = small_model()
    torch.set_num_threads(3)
    with ThreadPoolExecutor(1, "slice", torch.set_num_threads, (2,)) as pool:
        take_step(make_optimizer(model, {}, pool=pool), model, 1)
    assert threads == [2]


def test_a_moving_average_begins_with_a_smaller_decay() -> None:
    random = torch.Generator().manual_seed(1)
    steps = [{"w": torch.randn(3, generator=random)} for _ in range(40)]
    latest = {"w": torch.zeros(3)}
    average, expected = MovingAverage(latest, 0.7), torch.zeros(3)
    for number, weights in enumerate(steps, 1):
        latest["w"].copy_(weights["w"])
        average.update(number)
        kept = min(0.7, (1 + number) / (10 + number))
        expected = kept * expected + (1 - kept) * weights["w"]
    torch.testing.assert_close(average.values, {"w": expected})


def test_micro_batches_are_one_big_batch() -> None:
    """Of different numbers of tokens and rows: the mean is over the tokens of the whole step."""
    lengths = [(3, 9), (5, 2), (4, 4), (8, 1), (2, 6)]
    random = np.random.default_rng(5)
    pairs = [(random.integers(4, 23, s), random.integers(4, 23, t)) for s, t in lengths]
    tokens = sum(t + 1 for _, t in lengths)
    results = []
    for cuts in ([0, 5], [0, 1, 3, 5]):
        model = random_model()
        optimizer = make_optimizer(model, {})
        for start, stop in pairwise(cuts):
            batch = collate(pairs[start:stop], SpecialIds(pad=0, bos=2, eos=3))
            hidden = model.hidden(batch.src, batch.tgt_in).flatten(0, 1)[batch.positions]
            loss = projected_cross_entropy(hidden, model.output.weight, batch.targets, 0.1)
            loss.loss_sum.backward()
            add(optimizer, model)
        norm = optimizer.update(1e-3, tokens, 1.0)
        first_moments = [m for name, m in optimizer.moments().items() if name.endswith("exp_avg")]
        results.append([norm, *first_moments])
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-6)
