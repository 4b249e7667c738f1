"""Work recorded for a GPU: what is replayed for which batch, and that it is the work."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recording
import torch
from conftest import TinyConfig, needs_cuda
from hypothesis import given
from hypothesis import strategies as st
from ranks import trainer_of
from torch import Tensor

from mtrain.config.loading import load_config
from mtrain.data.batches import Batch, SpecialIds, collate
from mtrain.training import graphs
from mtrain.training.graphs import CudaGraphs, graph_width
from mtrain.training.trainer import Trainer

IDS = SpecialIds(pad=0, bos=2, eos=3)


@given(st.integers(1, 5000), st.integers(1, 300))
def test_lengths_are_rounded_up_a_little_but_not_beyond_the_longest(
    length: int, longest: int
) -> None:
    width = graph_width(length)
    assert length <= width < length + max(4, length / 8)
    assert graph_width(width) == width
    assert graph_width(length + 1) >= width
    padded = graphs.pad_to_graph(torch.ones(2, length), 0, longest).shape[1]
    assert padded == max(length, min(width, longest))


def test_packed_batches_get_rows_without_targets() -> None:
    """So that the last batches of pools have one of eight shapes."""
    pairs = [(np.full(4, 7), np.full(5, 8))] * 5
    tables = list(collate(pairs, IDS, 6)[:3])
    for max_rows, expected in ((5, 5), (6, 5), (8, 5), (16, 6), (40, 5), (100, 13)):
        added = graphs.add_rows(tables, IDS, max_rows)
        assert [len(table) for table in added] == [expected] * 3
        for table, before, first in zip(added, tables, (IDS.eos, IDS.bos, IDS.pad), strict=True):
            assert table[:5].equal(before)
            assert table[5:].tolist() == [[first] + [IDS.pad] * 5] * (expected - 5)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The CPU, behind as much of CUDA's interface as is used."""
    monkeypatch.setattr(graphs, "record_graph", recording.record)
    for name in ("graph_pool_handle", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)
    return torch.device("cpu")


def batch(rows: int, src_length: int, tgt_length: int, first: int = 10) -> Batch:
    """Pairs of equal lengths, without eos and bos, each token another."""
    ids = torch.arange(first, first + rows * (src_length + tgt_length)).view(rows, -1).numpy()
    return collate([(row[:src_length], row[src_length:]) for row in ids], IDS)


def test_each_shape_is_recorded_once_and_replayed_with_the_batch_at_hand(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 2)
    seen: dict[tuple[int, ...], list[Tensor]] = {}

    def see(*inputs: Tensor) -> None:
        seen[(*inputs[0].shape, inputs[1].shape[1])] = [table.clone() for table in inputs]

    work = CudaGraphs(see, device, IDS, 64)
    for pairs in (batch(2, 4, 6), batch(2, 4, 6, 500), batch(2, 5, 7), batch(3, 4, 6)):
        work(pairs)
        tables = (pairs.src, pairs.tgt_in, pairs.tgt_out)
        for own, table in zip(seen[len(pairs.src), 8, 8], tables, strict=True):
            width = table.shape[1]
            assert own[:, :width].equal(table)
            assert (own[:, width:] == IDS.pad).all()
    assert list(work.graphs) == list(seen) == [(2, 8, 8), (3, 8, 8)]
    work(batch(4, 4, 6))  # the oldest makes room
    assert [shape[0] for shape in work.graphs] == [3, 4]

    work = CudaGraphs(see, device, IDS, 64, packed_tokens=512)
    for pairs in (batch(5, 15, 15), batch(8, 15, 15), batch(9, 15, 15), batch(31, 15, 15)):
        work(pairs)
    assert list(work.graphs) == [(12, 16, 16), (32, 16, 16)]


# --- the work itself --------------------------------------------------------------------------


@pytest.fixture
def trainer(tiny_config: TinyConfig, tmp_path: Path, request: pytest.FixtureRequest) -> Trainer:
    """A trainer in fp32, without dropout; on the CPU unless a test names another device."""
    overrides: dict[str, Any] = {"model.dropout": 0.0, "train.precision": "fp32"}
    config = load_config(tiny_config(**overrides, **getattr(request, "param", {})))
    return trainer_of(config, tmp_path / "run")


def taken(trainer: Trainer) -> list[Tensor]:
    """What was added up since the last time: losses and gradients."""
    optimizer = trainer.optimizer
    found = [optimizer.losses.clone(), *(grad.clone() for grad in optimizer.grads)]
    optimizer.sums.buffer.zero_()
    return found


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"train.packing": True},
    {"model.norm": "pre", "model.tie_embeddings": "none", "model.positions": "learned"},
    {"train.consistency": 2.0, "train.cutoff": 1e-9},
    {"train.consistency": 2.0, "train.cutoff": 1e-9, "train.packing": True},
)


@pytest.mark.parametrize("trainer", SETTINGS, indirect=True, ids=str)
def test_a_recorded_step_gives_the_same_sums(trainer: Trainer, device: torch.device) -> None:
    learner, sums = trainer.learner, trainer.optimizer.sums
    packed_tokens = trainer.config.train.max_tokens if learner.machine.packing else None
    work = partial(learner._compute_padded, sums)
    recorded = CudaGraphs(work, device, learner.ids, 32, packed_tokens)
    batches = [trainer.batches.read(planned) for planned in trainer.batches.plan(0, 0)]
    for pairs in batches * 2:
        learner._compute_micro_batch(pairs, 1, sums)
        expected = taken(trainer)
        recorded(pairs)
        torch.testing.assert_close(taken(trainer), expected, rtol=1e-4, atol=1e-5)
    assert len(recorded.graphs) <= len(batches) < 50


@needs_cuda
@pytest.mark.parametrize(
    "trainer",
    [
        {"train.device": "cuda", "train.packing": packing, "train.compile": compiled}
        for packing, compiled in ((False, False), (True, False), (True, True))
    ],
    indirect=True,
)
def test_a_gpu_replays_the_work_and_the_seed_decides_on_dropout(trainer: Trainer) -> None:
    batches = [trainer.batches.read(planned) for planned in trainer.batches.plan(0, 0)[:4]]
    expected = []
    for pairs in batches:
        trainer.learner._compute_micro_batch(pairs, 1, trainer.optimizer.sums)
        expected.append(taken(trainer))
    trainer.learner.warm_up()
    for pairs, sums in [*zip(batches, expected, strict=True)] * 2:
        trainer.learner._compute_micro_batch(pairs, 1, trainer.optimizer.sums)
        torch.testing.assert_close(taken(trainer), sums, rtol=1e-4, atol=1e-4)

    for module in trainer.learner.model.modules():
        if hasattr(module, "rate"):
            module.rate = 0.3
    trainer.learner.warm_up()
    found = []
    for seed in (1, 2, 1):
        trainer.learner._compute_micro_batch(batches[0], seed, trainer.optimizer.sums)
        found.append(taken(trainer))
    assert all(map(torch.equal, found[0], found[2]))
    assert not torch.equal(found[0][0], found[1][0])
