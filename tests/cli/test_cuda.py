"""Whole commands on a CUDA device, as `fake_cuda` offers it: no operation mixes devices, and what
the device computes is what a CPU computes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TinyConfig, Train, made_up_pairs, run_here
from fake_cuda import fake_cuda

from mtrain.training import learner
from mtrain.training.trainer import Trainer


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"train.packing": False, "train.optimizer": "muon"},
        {"train.consistency": 2.0, "train.step_batches": 2, "model.positions": "learned"},
    ],
    ids=str,
)
def test_steps_do_not_wait_for_the_gpu(
    settings: dict[str, Any],
    tiny_config: TinyConfig,
    train: Train,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited = []
    take_step = Trainer.take_step

    def noted(trainer: Trainer, stream: Any) -> Any:
        assert trainer.learner.graphs is not None
        before, shapes = len(waits), len(trainer.learner.graphs.graphs)
        taken = take_step(trainer, stream)
        if len(trainer.learner.graphs.graphs) == shapes:  # recording waits
            waited.append(waits[before:])
        return taken

    monkeypatch.setattr(Trainer, "take_step", noted)
    schedule = {"train.max_steps": 4, "train.log_every": 3, "train.average_last": 0}
    one_shape = {"train.max_tokens": 4096}
    config = tiny_config(**{"train.device": "cuda"} | one_shape | schedule | settings)
    devices = list[torch.device]()
    with fake_cuda() as waits, monkeypatch.context() as patch:
        patch.setattr(learner, "set_up_cuda", devices.append)
        assert train(config) == 0
    assert devices == [torch.device("cuda", 0)]
    assert len(waited) >= 2
    assert not any(waited), waited


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "--beam-size 1",
        "--beam-size 4 --alignments {out}.alignments",
        "--beam-size 3 --no-repeat-ngram 2 --target-prefix {prefixes}",
        "--sample --top-k 5 --top-p 0.9",
        "--mbr 3 --batch-tokens 64",
    ],
)
def test_translations_equal_those_on_a_cpu(
    options: str, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, targets = zip(*made_up_pairs(40, 9), strict=True)
    text, prefixes = tmp_path / "in.txt", tmp_path / "prefixes.txt"
    text.write_text("\n".join(sources) + "\n")
    prefixes.write_text("\n".join(target.split()[0] for target in targets) + "\n")

    def translated(device: str) -> list[str]:
        out = tmp_path / device
        arguments = options.format(out=out, prefixes=prefixes).split()
        shared = ["-m", trained_run, "-i", text, "-o", out, "--device", device]
        assert run_here(monkeypatch, "translate", *shared, "--precision", "fp32", *arguments) == 0
        return [file.read_text() for file in sorted(tmp_path.glob(f"{device}*"))]

    with fake_cuda():
        found = translated("cuda")
    assert found == translated("cpu")
