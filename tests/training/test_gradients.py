"""The gradient of a step: slices, and the tree in which whoever computes them adds them up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from operator import add
from pathlib import Path
from queue import LifoQueue
from threading import Barrier, Event, Lock
from typing import Any

import numpy as np
import pytest
import torch
from conftest import differences, write_config
from hypothesis import given
from hypothesis import strategies as st
from ranks import trainer_of
from torch import Tensor

from mtrain.config.loading import load_config
from mtrain.data.batches import Batch, SpecialIds, collate
from mtrain.runtime.device import has_fast_bf16
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.errors import UserError
from mtrain.runtime.stop import Stop
from mtrain.training import gradients, job, learner
from mtrain.training.gradients import (
    SLICE_TOKENS,
    Blocks,
    SequentialGradients,
    Sums,
    SumTree,
    ThreadedGradients,
    max_sums,
    slices_of,
)
from mtrain.training.learner import MachineSettings

IDS = SpecialIds(pad=0, bos=2, eos=3)
needs_bf16 = pytest.mark.skipif(
    not has_fast_bf16(torch.device("cpu")), reason="this CPU does not compute in bf16"
)


def batch_of(rows: int, longest: int, seed: int = 1) -> Batch:
    """Make a batch whose longest source has `longest` tokens with eos."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, max(2, longest), (rows, 2))
    lengths[0, 0] = longest - 1
    return collate([(draw.integers(4, 99, s), draw.integers(4, 99, t)) for s, t in lengths], IDS)


def pool_of(threads: int) -> ThreadPoolExecutor:
    """Make the threads of a CPU as the learner does."""
    return ThreadPoolExecutor(threads, "slice", torch.set_num_threads, (1,))


# --- slices -----------------------------------------------------------------------------------


@given(st.integers(1, 150), st.integers(2, 64))
def test_slices_are_equal_and_together_the_batch(rows: int, longest: int) -> None:
    batch = batch_of(rows, longest)
    slices = slices_of(batch)
    width = max(batch.src.shape[1], batch.tgt_in.shape[1])
    sizes = [len(part.src) for part in slices]
    assert max(sizes) - min(sizes) <= 1
    assert len(slices) == min(rows, -(-rows * width // SLICE_TOKENS))
    for name in ("src", "tgt_in", "tgt_out", "targets"):
        assert torch.cat([getattr(part, name) for part in slices]).equal(getattr(batch, name))
    for part in slices:
        assert part.targets.equal(part.tgt_out.flatten()[part.positions])
        assert part.num_tokens == int((part.tgt_out != IDS.pad).sum())


@pytest.mark.parametrize(("rows", "longest", "number"), [(1, 3000, 1), (3, 2000, 3), (128, 32, 4)])
def test_long_rows_are_not_cut(rows: int, longest: int, number: int) -> None:
    assert len(slices_of(batch_of(rows, longest))) == number


@pytest.mark.parametrize("lengths", [(2, 31), (31, 2)])
def test_slices_have_few_tokens_on_both_sides(lengths: tuple[int, int]) -> None:
    batch = collate([tuple(np.full(length, 4) for length in lengths)] * 128, IDS)
    assert len(slices_of(batch)) == 4


# --- the tree ---------------------------------------------------------------------------------


def leaf(values: Tensor) -> Sums:
    """Sums whose buffer begins with these values."""
    sums = Sums([values], 2)
    sums.store((values,), torch.ones(2))
    return sums


def added(parts: list[Any], add: Callable[[Any, Any], Any]) -> Any:
    """The definition: neighbours, then neighbouring sums; the last one alone moves up."""
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [add(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


@given(st.integers(1, 40), st.randoms(use_true_random=False))
def test_sums_are_those_of_the_tree_in_whatever_order_parts_come(
    size: int, order: random.Random
) -> None:
    """Values of very different sizes: another order of additions gives other bits."""
    draw = torch.Generator().manual_seed(size)
    values = torch.randn(size, 64, generator=draw)
    values *= 10.0 ** torch.randint(-4, 5, (size, 64), generator=draw)
    leaves, released, whole = [leaf(each) for each in values], list[Sums](), list[Sums]()
    tree = SumTree(size, released.append, whole.append)
    for number in order.sample(range(size), size):
        assert whole == []
        tree.add(number, leaves[number])
    [found] = whole
    assert found is leaves[0]
    assert sorted(map(id, released)) == sorted(map(id, leaves[1:]))
    assert found.grads[0].equal(added(list(values), torch.add))
    assert float(found.losses[0]) == size
    exact, magnitude = values.double().sum(0), values.double().abs().sum(0)
    assert bool(((found.grads[0] - exact).abs() <= 6 * 2**-24 * magnitude).all())
    if size >= 8:
        assert not found.grads[0].equal(sum(values, torch.zeros(64)))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("sizes", [[1], [1, 1, 1, 1], [4], [3, 1, 5], [2] * 12])
def test_a_step_is_a_tree_of_micro_batches_and_of_their_slices(
    threads: int, sizes: list[int]
) -> None:
    """Slices take times of their own; no more sums are held than are announced."""
    held, most, lock = 0, 0, Lock()
    store, delays = Sums.store, np.random.default_rng(threads)

    def compute(part: Batch, seed: int, sums: Sums) -> None:
        nonlocal held, most
        with lock:
            held += 1
            most = max(most, held)
        time.sleep(delays.random() / 200)
        values = torch.randn(8, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (seed % 9)
        store(sums, (values,), torch.tensor([part.num_tokens, 1.0]))
        with lock:
            held -= 1

    total = Sums([torch.zeros(8)], 2)
    workers = ThreadedGradients([compute] * threads, total, pool_of(threads))
    batches = [batch_of(32 * size, 32, seed=size) for size in sizes]
    seeds = count()
    leaves = [[next(seeds) for _ in range(size)] for size in sizes]
    seeded = [(batch, own.__getitem__) for batch, own in zip(batches, leaves, strict=True)]
    for _ in range(2):
        workers.sum_up(seeded, len(sizes))
        free = {id(sums) for sums in workers.free.queue if sums is not None}
        assert free == {id(sums) for sums in workers.sums[1:]}
    values = [
        [
            torch.randn(8, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (seed % 9)
            for seed in own
        ]
        for own in leaves
    ]
    assert total.grads[0].equal(added([added(own, torch.add) for own in values], torch.add))
    tokens = sum(batch.num_tokens for batch in batches)
    assert total.losses.tolist() == [tokens, sum(sizes)]
    assert most <= threads
    assert len(workers.sums) == max_sums(len(sizes), max(sizes), threads)


@pytest.mark.parametrize(
    ("micro_batches", "slices", "threads", "number"),
    [(1, 1, 8, 1), (1, 4, 2, 4), (4, 1, 2, 4), (16, 1, 2, 6), (12, 8, 3, 10)],
)
def test_the_number_of_sums_by_hand(
    micro_batches: int, slices: int, threads: int, number: int
) -> None:
    assert max_sums(micro_batches, slices, threads) == number


@given(st.integers(1, 40), st.integers(0, 40))
def test_micro_batches_in_order_are_added_as_the_tree_does(largest: int, fewer: int) -> None:
    """One after another, as on a GPU, with few sums held and one that is filled anew."""
    values = torch.randn(max(1, largest - fewer), 3)
    total, sums = Sums([values[0]], 2), []
    in_order = SequentialGradients(
        lambda batch, seed, latest: latest.store((values[seed],), torch.ones(2)), total, largest
    )
    assert len({in_order.latest, *in_order.stored}) == max_sums(largest, 1, 1)
    batches = [(batch_of(1, 2), partial(add, number)) for number in range(len(values))]
    for _ in range(2):
        in_order.sum_up(batches, len(values))
        sums.append(total.buffer.clone())
    tree = SumTree(len(values), lambda _: None, lambda found: sums.append(found.buffer))
    for number, value in enumerate(values):
        tree.add(number, leaf(value))
    assert sums[0].equal(sums[2])
    assert sums[1].equal(sums[2])


def test_one_slow_slice_does_not_make_the_others_hold_more() -> None:
    """The first is done last: the others wait for room, and go on."""
    started: list[int] = []

    def compute(part: Batch, seed: int, sums: Sums) -> None:
        started.append(seed)
        if seed == 0:
            time.sleep(0.3)
            assert len(started) < 64
        sums.store((torch.full((3,), float(seed)),), torch.ones(2))

    total = Sums([torch.zeros(3)], 2)
    workers = ThreadedGradients([compute] * 2, total, pool_of(2))
    workers.sum_up([(batch_of(64 * 32, 32), int)], 1)
    assert total.losses.tolist() == [64, 64]
    assert total.grads[0].tolist() == [64 * 63 / 2] * 3


@pytest.mark.parametrize("error", [MemoryError, UserError, RuntimeError])
def test_the_error_of_a_thread_is_raised_and_the_others_end(error: type[Exception]) -> None:
    """A step after it is computed as if nothing had been."""
    computed, barrier = list[int](), Barrier(2)

    def compute(part: Batch, seed: int, sums: Sums) -> None:
        if seed < 2 and error not in seen:
            barrier.wait()
        if seed == 1 and error not in seen:
            seen.append(error)
            raise error("there is none")
        computed.append(seed)
        sums.store((torch.ones(3),), torch.ones(2))

    seen: list[type[Exception]] = []
    total = Sums([torch.zeros(3)], 2)
    workers = ThreadedGradients([compute] * 2, total, pool_of(2))
    with pytest.raises(error, match="there is none"):
        workers.sum_up([(batch_of(64 * 32, 32), int)], 1)
    assert len(computed) < 64
    workers.sum_up([(batch_of(8 * 32, 32), int)], 1)
    assert total.losses.tolist() == [8, 8]


def test_after_an_error_each_thread_completes_its_slice_and_no_other() -> None:
    computed, barrier, ended = list[int](), Barrier(2), Event()

    def compute(part: Batch, seed: int, sums: Sums) -> None:
        if seed in (1, 2):
            barrier.wait()
        if seed == 2:
            raise MemoryError
        if seed == 1:
            assert ended.wait(60)
            sum(range(1_000_000))  # so that an error raised too early would be seen
        computed.append(seed)
        sums.store((torch.ones(3),), torch.ones(2))

    workers = ThreadedGradients([compute] * 2, Sums([torch.zeros(3)], 2), pool_of(2))
    end = workers._end
    workers._end = lambda: (end(), ended.set())
    with pytest.raises(MemoryError):
        workers.sum_up([(batch_of(64 * 32, 32), int)], 1)
    assert computed == [0, 1]


def test_an_error_ends_a_thread_that_waits_for_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    is_waiting = Event()

    class Queue(LifoQueue[Sums | None]):
        def get(self, *arguments: Any) -> Sums | None:
            if self.empty():
                is_waiting.set()
            return super().get(*arguments)

    def compute(part: Batch, seed: int, sums: Sums) -> None:
        if seed == 0:
            assert is_waiting.wait(60)
            raise MemoryError
        sums.store((torch.ones(3),), torch.ones(2))

    monkeypatch.setattr(gradients, "LifoQueue", Queue)
    workers = ThreadedGradients([compute] * 2, Sums([torch.zeros(3)], 2), pool_of(2))
    with pytest.raises(MemoryError):
        workers.sum_up([(batch_of(64 * 32, 32), int)], 1)


def test_an_error_of_reading_ends_the_step() -> None:
    def unreadable() -> Any:
        yield batch_of(4, 8), int
        raise OSError("gone")

    compute = lambda part, seed, sums: sums.store((torch.ones(3),), torch.ones(2))  # noqa: E731
    workers = ThreadedGradients([compute] * 2, Sums([torch.zeros(3)], 2), pool_of(2))
    with pytest.raises(OSError, match="gone"):
        workers.sum_up(unreadable(), 2)


# --- training ---------------------------------------------------------------------------------

ALL = "model.dropout=0.2 model.attention_dropout=0.1 model.activation_dropout=0.1"
ALL += " train.subword_sampling=0.2 train.ema_decay=0.9 train.consistency=2"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"train.max_tokens": 96, "train.accum_steps": 3, "train.max_steps": 6}
    settings |= {"train.save_every": 3, "train.valid_every": 6, "decode.max_len_b": 2}
    return write_config(tmp_path_factory.mktemp("threads"), pairs=60, **settings)


def train(config: Path, run: Path, *overrides: str) -> Path:
    job.train(load_config(config, [f"run_dir={run}", *overrides]), Stop())
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ALL,
        f"{ALL} train.optimizer=muon model.norm=pre",
        f"{ALL} train.packing=true",
        pytest.param("train.precision=bf16 train.optimizer=muon", marks=needs_bf16),
        pytest.param(f"{ALL} train.precision=bf16", marks=needs_bf16),
    ],
)
def test_threads_change_nothing(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    monkeypatch.setattr(gradients, "SLICE_TOKENS", 32)  # up to 9 slices a step
    runs = [
        train(config, tmp_path / str(threads), f"train.threads={threads}", *settings.split())
        for threads in (1, 2, 3)
    ]
    for run in runs[1:]:  # the state names the threads
        assert {Path(name).name for name in differences(runs[0], run)} == {"state.json"}
    monkeypatch.setattr(gradients, "SLICE_TOKENS", 1024)  # the comparison can fail
    other = train(config, tmp_path / "other", *settings.split())
    assert "checkpoints/step-00000006/model.safetensors" in differences(runs[0], other)


@pytest.mark.slow
def test_a_run_is_resumed_with_other_threads(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "SLICE_TOKENS", 32)
    run, other = tmp_path / "run", tmp_path / "other"
    train(config, run, *ALL.split(), "train.threads=3", "train.max_steps=3")
    train(config, run, *ALL.split(), "train.threads=2")
    train(config, other, *ALL.split(), "train.threads=1")
    weights = "checkpoints/step-00000006"
    for name in ("model.safetensors", "trainer/optimizer.safetensors"):
        assert (run / weights / name).read_bytes() == (other / weights / name).read_bytes()


@pytest.mark.parametrize(
    ("micro_batches", "slices", "openmp"), [(1, 1, 8), (4, 1, 2), (2, 2, 2), (5, 1, 1), (16, 1, 1)]
)
def test_the_threads_of_an_operation_follow_from_the_whole_step(
    config: Path, micro_batches: int, slices: int, openmp: int
) -> None:
    """Rounding depends on them, and must not on the number of ranks."""
    settings = ["train.threads=8", f"train.max_tokens={slices * SLICE_TOKENS}"]
    for size in (1, 2, 4):
        blocks = Blocks(micro_batches, size)
        machine = MachineSettings.of(load_config(config, settings), Ranks(), blocks)
        assert (machine.openmp, machine.workers) == (openmp, 8 // openmp)
    settings.append("train.compile=true")
    machine = MachineSettings.of(load_config(config, settings), Ranks(), blocks)
    assert machine.workers == 1  # a compiled model draws from the process's random generator


def test_weights_are_updated_by_the_threads_that_compute_slices(config: Path) -> None:
    """With the threads of one operation, on which rounding depends, in each."""
    settings = load_config(config, ["train.threads=6"])
    own = learner.Learner(settings, 320, IDS, Ranks(), Blocks(3))
    assert (own.machine.openmp, torch.get_num_threads()) == (2, 6)
    assert set(own.optimizer.run_in_pool(lambda _: torch.get_num_threads(), range(9))) == {2}


def test_why_a_model_cannot_be_compiled_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.compiler, "set_stance", lambda stance: None)
    reason = "torch cannot compile the model here: no compiler"
    with pytest.raises(UserError) as caught, learner._compiling():
        raise RuntimeError("no compiler\nand what torch says of it")
    assert str(caught.value) == f"train.compile: {reason}; set train.compile: false"


def test_processes_of_one_machine_divide_its_threads(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner, "available_threads", lambda: 8)
    for value, expected in (("auto", [8, 4, 2, 1]), ("3", [3, 3, 3, 3])):
        own = load_config(config, [f"train.threads={value}"])
        found = [learner.threads_of(own, Ranks(local_size=size)) for size in (1, 2, 3, 9)]
        assert found == expected


def test_slices_are_one_batch(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, without randomness."""
    monkeypatch.setattr(learner, "set_compute_dtype", lambda model, dtype: model.double())
    found = []
    for tokens in (1024, 16, 1):
        monkeypatch.setattr(gradients, "SLICE_TOKENS", tokens)
        plain = load_config(config, ["model.dropout=0.0", "train.threads=2"])
        trainer = trainer_of(plain, tmp_path / str(tokens))
        trainer._sum_own_gradients(trainer.batches.plan(0, 0)[:3], 1)
        assert len(trainer.learner.gradients.sums) == {1024: 3, 16: 7, 1: 7}[tokens]
        found.append(trainer.optimizer.sums.buffer.clone())
    assert found[0].dtype == torch.float64
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found[0], found[2], rtol=1e-10, atol=1e-12)
    assert float(found[0].abs().max()) > 1


def test_each_slice_has_randomness_of_its_own(config: Path, tmp_path: Path) -> None:
    """It follows the seed alone, whichever thread draws it and whatever torch has drawn."""
    plain = load_config(config, ["model.dropout=0.5", "train.threads=2"])
    trainer = trainer_of(plain, tmp_path / "run")
    pairs = trainer.batches.read(trainer.batches.plan(0, 0)[0])
    sums = [Sums(trainer.optimizer.grads, 2) for _ in range(4)]
    state = torch.get_rng_state()
    for each, seed, compute in zip(
        sums, (1, 1, 2, 1), [*trainer.learner.gradients.computes] * 2, strict=True
    ):
        compute(pairs, seed, each)
    assert torch.get_rng_state().equal(state)
    assert sums[0].buffer.equal(sums[1].buffer)
    assert sums[0].buffer.equal(sums[3].buffer)
    assert not sums[0].losses.equal(sums[2].losses)
    assert all(p.grad is None for p in trainer.learner.model.parameters())
    assert partial(trainer.learner.model.drawing_from, torch.Generator())().output.weight is (
        trainer.learner.model.output.weight
    )


def test_where_a_thread_cannot_be_started_the_others_end() -> None:
    class Pool(ThreadPoolExecutor):
        def submit(self, *arguments: Any) -> Future[Any]:
            if futures:
                raise RuntimeError("can't start new thread")
            futures.append(super().submit(*arguments))
            return futures[0]

    futures: list[Future[Any]] = []
    compute = lambda part, seed, sums: sums.store((torch.ones(3),), torch.ones(2))  # noqa: E731
    workers = ThreadedGradients([compute] * 2, Sums([torch.zeros(3)], 2), Pool(2))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        workers.sum_up([(batch_of(64 * 32, 32), int)], 1)
    assert futures[0].done()
