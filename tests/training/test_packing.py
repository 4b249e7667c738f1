"""Rows packed with whole pairs: they train as pairs in rows of their own do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import write_both_ways, write_config
from ranks import trainer_of
from torch import Tensor

from mtrain.config.loading import load_config
from mtrain.model.transformer import Transformer
from mtrain.runtime.distributed import Ranks
from mtrain.training import gradients, learner
from mtrain.training.gradients import Blocks
from mtrain.training.graphs import add_rows
from mtrain.training.learner import Learner, MachineSettings
from mtrain.training.trainer import Trainer

LEARNED = "model.positions=learned model.norm=pre"


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A config whose corpus is one micro-batch, and one of both directions with tags."""
    settings: dict[str, Any] = {"pairs": 60, "train.max_tokens": 4096, "model.dropout": 0.0}
    folders = [tmp_path_factory.mktemp(name) for name in ("plain", "tags")]
    return {
        "plain": write_config(folders[0], **settings),
        "tags": write_both_ways(folders[1], **settings),
    }


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in float64; what the second view of a consistency loss lacks follows from the ids."""

    def mask(self: Learner, ids: Tensor, generator: object) -> Tensor:
        return torch.cat((torch.ones_like(ids), ids % 5 > 0)).double()

    monkeypatch.setattr(learner, "set_compute_dtype", lambda model, dtype: model.double())
    monkeypatch.setattr(Learner, "_keep_mask", mask)


def start(config: Path, run: Path, *overrides: str) -> Trainer:
    return trainer_of(load_config(config, [f"run_dir={run}", *overrides]), run)


def start_both(config: Path, directory: Path, *overrides: str) -> list[Trainer]:
    """A trainer without packing and one with it, each of which takes an epoch a step."""
    found = []
    for packing in ("false", "true"):
        settings = [*overrides, f"train.packing={packing}"]
        planned = start(config, directory / "planned", *settings).batches.plan(0, 0)
        settings.append(f"train.step_batches={len(planned)}")
        found.append(start(config, directory / packing, *settings))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("row_tokens", [128, 12])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("plain", "train.ema_decay=0.9"),
        ("plain", f"train.consistency=2 train.subword_sampling=0.3 {LEARNED}"),
        ("plain", "train.optimizer=muon train.augment.upper=0.5"),
        ("tags", f"train.consistency=2 {LEARNED} model.tie_embeddings=none"),
        ("plain", "data.temperature=3"),
    ],
)
def test_packed_steps_are_steps(
    configs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    row_tokens: int,
    name: str,
    settings: str,
) -> None:
    """Also where many pairs are longer than a row, and are batched apart."""
    monkeypatch.setattr(learner, "ROW_TOKENS", row_tokens)
    monkeypatch.setattr(gradients, "SLICE_TOKENS", 64)
    overrides = [*settings.split(), "train.threads=2"]
    if "temperature" in settings:  # of weights 1 and 1.8 or so
        data = configs[name].parent / "data"
        corpora = [
            f"{{src: {data}/{each}.src, tgt: {data}/{each}.tgt}}" for each in ("train", "test")
        ]
        overrides.append(f"data.train=[{', '.join(corpora)}]")
    trainers = start_both(configs[name], tmp_path, *overrides)
    for trainer in trainers:
        stream = trainer.micro_batches()
        # sampling may change the number of micro-batches of several widths
        for _ in range(1 if "sampling" in settings and row_tokens < 32 else 3):
            trainer.take_step(stream)
    plain, packed = trainers
    assert plain.batches.step_batches == 1
    widths = [each.batches.read(each.batches.plan(0, 0)[0]).src.shape[1] for each in trainers]
    assert packed.batches.row_widths == ([32] if row_tokens > 32 else [12, 18, 27, 32])
    assert row_tokens < 32 or widths[1] == 32
    for first, second in (
        (plain.progress.sums, packed.progress.sums),
        *zip(plain.optimizer.weights.values(), packed.optimizer.weights.values(), strict=True),
        *zip(plain.learner.weights.values(), packed.learner.weights.values(), strict=True),
    ):
        assert first.dtype == torch.float64
        torch.testing.assert_close(second, first, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("settings", ["", f"train.consistency=2 {LEARNED}"])
def test_the_plain_model_and_masked_padding_give_the_same_sums(
    configs: dict[str, Path], tmp_path: Path, settings: str
) -> None:
    """As other devices compute, and CUDA graphs."""
    overrides = [*settings.split(), "train.compile=true"]  # which begins with the warm-up
    found = []
    for trainer in start_both(configs["plain"], tmp_path, *overrides):
        assert type(trainer.learner.model) is Transformer
        pairs, sums = trainer.batches.read(trainer.batches.plan(0, 0)[0]), trainer.optimizer.sums
        sums.buffer.zero_()
        trainer.learner._compute_micro_batch(pairs, 1, sums)
        found.append(sums.buffer.clone())
        sums.buffer.zero_()
        tables = [pairs.src, pairs.tgt_in, pairs.tgt_out]
        trainer.learner._compute_padded(sums, *tables)
        found.append(sums.buffer.clone())
        trainer.learner._compute_padded(sums, *add_rows(tables, trainer.ids, 100))
        found.append(sums.buffer.clone())
    assert float(found[0].abs().max()) > 1
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("limit", [7, 8, 9])
def test_the_warm_up_is_no_longer_than_the_learned_positions(
    configs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(torch, "compile", lambda hidden, dynamic: hidden)
    overrides = [f"data.max_length={limit}", "model.positions=learned", "train.compile=true"]
    start(configs["plain"], tmp_path / "run", *overrides).learner.warm_up()


@pytest.mark.slow
def test_compiled_layers_give_the_same_sums(
    configs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the shape that they are compiled for; the layers of other shapes are not compiled."""
    monkeypatch.setattr(learner, "ROW_TOKENS", 12)
    settings = ["train.packing=true", "train.compile=true", "train.max_tokens=64"]
    trainer = start(configs["plain"], tmp_path / "run", *settings)
    batches = [trainer.batches.read(planned) for planned in trainer.batches.plan(0, 0)]
    sums, work = trainer.optimizer.sums, trainer.learner._compute_padded

    class Graphs:
        def warm_up(self, rows: int, width: int) -> None:
            assert (rows, width) == (5, 12)
            ends = torch.full((rows, width), trainer.ids.eos)
            work(sums, ends, torch.full_like(ends, trainer.ids.bos), ends)

    def found() -> list[Tensor]:
        all_sums = []
        for batch in batches:
            work(sums, *batch[:3])
            all_sums.append(sums.buffer.clone())
        return all_sums

    before, shapes = found(), [tuple(batch.src.shape) for batch in batches]
    trainer.learner._compile_layers(Graphs())  # type: ignore[arg-type]
    after = found()
    assert set(shapes) > {(5, 12)}
    for shape, first, second in zip(shapes, before, after, strict=True):
        assert shape == (5, 12) or second.equal(first)
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("device", "packing", "expected"),
    [("cuda", "auto", True), ("cpu", "auto", False), ("mps", "auto", False), ("cpu", True, True)],
)
def test_auto_packs_on_cuda(
    configs: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    packing: object,
    expected: bool,
) -> None:
    monkeypatch.setattr(learner, "device_of", lambda name, ranks: torch.device(device))
    config = load_config(configs["plain"], [f"train.packing={packing}"])
    machine = MachineSettings.of(config, Ranks(), Blocks(1))
    assert machine.packing is expected
    for max_length, widths in ((300, [128, 192, 288, 300]), (128, [128]), (50, [50])):
        longer = load_config(configs["plain"], [f"data.max_length={max_length}"])
        assert machine.row_widths(longer) == (widths if expected else [])


@pytest.mark.parametrize(
    ("device", "settings", "possible", "expected"),
    [
        ("cuda", "model.d_model=512", True, True),
        ("cuda", "model.d_model=512", False, False),
        ("cuda", "model.d_model=256", True, False),
        ("cuda", "model.d_model=256 train.compile=true", False, True),
        ("cuda", "model.d_model=512 train.compile=false", True, False),
        ("cuda", "model.d_model=512 train.packing=false", True, False),
        ("cpu", "model.d_model=512 train.packing=true", True, False),
    ],
)
def test_auto_compiles_large_layers_on_cuda(
    configs: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    settings: str,
    possible: bool,
    expected: bool,
) -> None:
    monkeypatch.setattr(learner, "device_of", lambda name, ranks: torch.device(device))
    monkeypatch.setattr(learner, "can_compile", lambda device: possible)
    config = load_config(configs["plain"], settings.split())
    assert MachineSettings.of(config, Ranks(), Blocks(1)).compile is expected
