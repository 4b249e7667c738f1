"""Event files: TensorBoard's own reader finds what `metrics.jsonl` says, and nothing twice."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import TinyConfig, Train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mtrain.runs.records import MetricsFile
from mtrain.runs.tensorboard import TensorBoard
from mtrain.runtime import log
from mtrain.training.trainer import Trainer

Scalars = dict[str, list[tuple[int, float]]]


def read_back(metrics: Path) -> Scalars:
    """Read the event files next to `metrics.jsonl` as TensorBoard does."""
    return scalars_of(reader_of(metrics))


def reader_of(metrics: Path) -> EventAccumulator:
    directory = str(metrics.with_name("tensorboard"))
    reader = EventAccumulator(directory, size_guidance={"scalars": 0})
    reader.Reload()
    return reader


def scalars_of(reader: EventAccumulator) -> Scalars:
    tags = reader.Tags()["scalars"]
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in tags}


def expected(metrics: Path) -> dict[str, Any]:
    """What `metrics.jsonl` holds, by tag; event files hold fp32."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for line in metrics.read_text().splitlines():
        record = json.loads(line)
        for key, value in record.items():
            if key not in ("step", "time") and not isinstance(value, str):
                found.setdefault(key, []).append((record["step"], pytest.approx(value, rel=1e-6)))
    return found


def record(step: int, **values: Any) -> dict[str, Any]:
    return {"step": step, "time": 1000.0 + step, **values}


@pytest.fixture
def file(tmp_path: Path) -> MetricsFile:
    found = MetricsFile(tmp_path / "metrics.jsonl", TensorBoard(tmp_path / "tensorboard"))
    found.cut(0)
    return found


def test_records_are_read_back_by_tensorboard_at_once(file: MetricsFile) -> None:
    file.append(record(50, **{"train/loss": 3.5, "lr": 1e-4}))
    assert read_back(file.path) == expected(file.path)
    file.append(record(100, **{"train/loss": 2.5, "lr": 2e-4}))
    for score in (12.5, 15.0):  # the first one is of a validation that was killed
        file.cut(100, ("valid/", "average/"))
        file.append(record(100, **{"valid/bleu": score}))
        assert read_back(file.path) == expected(file.path)
    assert read_back(file.path)["valid/bleu"] == [(100, 15.0)]
    assert [e.wall_time for e in reader_of(file.path).Scalars("lr")] == [1050, 1100]
    file.append(record(101, lr=float("nan"), b=float("inf"), signature="nrefs:1", c=1))
    assert read_back(file.path)["lr"] == [(50, pytest.approx(1e-4)), (100, pytest.approx(2e-4))]
    assert "b" not in read_back(file.path)


def test_a_resume_leaves_no_step_twice_or_behind(file: MetricsFile, tmp_path: Path) -> None:
    directory = tmp_path / "tensorboard"
    (directory / "notes.txt").write_text("mine")
    threads = threading.active_count()
    for _ in range(3):
        file.cut(0)
    assert threading.active_count() == threads
    for step in (50, 100, 150, 200):
        file.append(record(step, loss=float(step)))
    looking_on = reader_of(file.path)
    again = MetricsFile(file.path, TensorBoard(directory))  # after a kill
    again.cut(100)
    again.append(record(150, loss=7.0))
    wanted = {"loss": [(50, 50.0), (100, 100.0), (150, 7.0)]}
    assert read_back(file.path) == wanted == expected(file.path)
    looking_on.Reload()
    assert scalars_of(looking_on) == wanted
    assert sorted(item.name[:6] for item in directory.iterdir()) == ["events", "events", "notes."]


def test_a_resume_tells_of_damaged_records(
    file: MetricsFile, caplog: pytest.LogCaptureFixture
) -> None:
    log.logger.propagate = True
    for step in (50, 100, 150):
        file.append(record(step))
    lines = file.path.read_text().splitlines(keepends=True)
    long = json.dumps(record(140, lr="1" * (1 << 16))) + "\n"
    damaged = (lines[0], lines[1].replace("{", "[", 1), lines[2], long, "{cut")
    file.path.write_text("".join(damaged))
    file.cut(150)
    assert caplog.messages == [f"{file.path}: damaged lines were removed: 2, 4"]
    assert file.path.read_text() == lines[0] + lines[2]


def test_an_error_of_writing_is_raised_without_a_traceback_of_the_thread(
    file: MetricsFile, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "tensorboard")
    with pytest.raises(OSError, match=r"/tensorboard'$"):
        file.append(record(50, lr=1.0))


def test_a_thread_shows_the_traceback_of_any_other_error(
    file: MetricsFile, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, is_shown in ((OSError("full"), False), (ValueError("odd"), True)):
        threading.excepthook(threading.ExceptHookArgs((type(error), error, None, None)))
        assert (str(error) in capsys.readouterr().err) == is_shown


# --- in a run ---------------------------------------------------------------------------------


def test_a_run_that_fails_and_is_resumed_has_the_curves_of_one(
    train: Train, tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(**{"train.log_every": 1})
    metrics, step = config.parent / "run" / "metrics.jsonl", Trainer.take_step

    def failing(self: Trainer, *arguments: Any) -> Any:
        if self.progress.step == 5:
            raise OSError("the power failed")
        return step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "take_step", failing)
        assert train(config) == 1
    assert not metrics.with_name("tensorboard").exists()
    assert train(config, "--set", "train.tensorboard=true") == 0  # also what came before
    found = read_back(metrics)
    assert found == expected(metrics)
    assert [s for s, _ in found["train/loss"]] == list(range(1, 9))
    assert [s for s, _ in found["valid/bleu"]] == [4, 8]
    assert found.keys() >= {"lr", "grad_norm", "tokens_per_second", "average/bleu"}
    assert "test/held_out/bleu" in found


def test_without_the_library_the_error_names_the_extra_before_anything_is_written(
    train: Train,
    tiny_config: TinyConfig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    config = tiny_config(**{"train.tensorboard": True})
    for options in ([], ["--dry-run"]):
        assert train(config, *options) == 2
        assert "pip install 'mtrain[tensorboard]'" in capsys.readouterr().err
        assert not (config.parent / "run" / "status.json").exists()
