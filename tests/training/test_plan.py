"""Forecasts of a run agree with the run."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TinyConfig, run_mtrain

from mtrain.config.loading import load_config
from mtrain.config.schema import Config
from mtrain.model.building import shape_of
from mtrain.model.transformer import Transformer
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.errors import UserError
from mtrain.training import plan
from mtrain.training.plan import Forecast, clock, describe_run, forecast, lack_of_disk

LENGTHS = np.random.default_rng(1).integers(2, 20, (500, 2))


def load(tiny_config: TinyConfig, **settings: Any) -> Config:
    return load_config(tiny_config(**settings))


def untimed(config: Config, pairs: float = 1000.0) -> Forecast:
    return forecast(config, 320, 1000, LENGTHS, pairs, timed=False)


def test_a_forecast_by_hand(tiny_config: TinyConfig) -> None:
    config = load(tiny_config, **{"train.keep_checkpoints": 1, "train.max_steps": 60})
    found = describe_run(config, Ranks(size=2), 320, 500, micro_batches=40, tokens=200.0)
    assert (found.steps_per_epoch, found.tokens_per_step, found.epochs) == (20, 400, 3.0)
    assert (found.peak_lr, found.peak_step) == (0.005, 4)
    parameters = Transformer(shape_of(config, 320, 0)).num_parameters
    assert found.parameters == parameters
    assert found.checkpoint_bytes == 4 * parameters + 500
    assert found.disk_bytes == found.checkpoint_bytes * (2 + 3) + 3 * 8 * parameters
    text = "\n".join(found.summary())
    assert "20 steps an epoch, about 400 target tokens a step; 60 steps are 3 epochs" in text


def test_an_epoch_grows_with_the_pairs(tiny_config: TinyConfig) -> None:
    config = load(tiny_config, **{"train.accum_steps": 2})
    one, ten = untimed(config), untimed(config, 10_000.0)
    assert ten.epochs == pytest.approx(one.epochs / 10)
    assert ten.steps_per_epoch == pytest.approx(10 * one.steps_per_epoch, abs=10)
    tokens = 2 * (LENGTHS[:, 1] + 1).sum()
    assert one.tokens_per_step * config.train.max_steps / one.epochs == pytest.approx(
        tokens, rel=0.01
    )


def test_pairs_that_are_too_long_do_not_count(tiny_config: TinyConfig) -> None:
    config = load(tiny_config)
    long = np.full((3, 2), config.data.max_length)
    with pytest.raises(UserError, match="no pair is left"):
        forecast(config, 320, 1000, long, 3.0, timed=False)


@pytest.mark.parametrize("settings", [{}, {"train.optimizer": "muon", "model.norm": "pre"}])
def test_steps_are_timed(tiny_config: TinyConfig, settings: dict[str, Any]) -> None:
    config = load(tiny_config, **settings)
    seconds, memory = plan._measure_steps(config, 320, 10_000, [LENGTHS[:8] + 1, LENGTHS[8:20] + 1])
    assert 0 < seconds < 5
    assert memory is not None
    assert memory > 10_000 * 16


def test_the_work_that_is_timed_is_bounded(
    tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, made_up = [], plan._made_up
    monkeypatch.setattr(plan, "_made_up", lambda n, size: rows.append(len(n)) or made_up(n, size))
    _, memory = plan._measure_steps(load(tiny_config), 320, 10**8, [LENGTHS[:50] + 1])
    assert memory is None
    assert rows == [8]


def _dying(*_: object) -> None:
    os._exit(9)


def test_why_nothing_was_timed_is_reported(
    tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_measure_steps", _dying)
    found = forecast(load(tiny_config), 320, 1000, LENGTHS, 1000.0)
    assert (found.not_measured, found.step_seconds) == (plan.DEATH, None)


def test_a_forecast_for_people_and_for_scripts(tiny_config: TinyConfig) -> None:
    found = untimed(load(tiny_config))
    assert "time: not measured: not asked for" in list(found.lines())
    timed = replace(found, step_seconds=2.0, peak_memory_bytes=5_000_000, disk_warning="no room")
    text = "\n".join(timed.lines())
    assert "at the peak of the measured steps 5.0 MB in all" in text
    assert "about 2 s a step now, 0m16s for 8 steps without validation" in text
    assert "disk: no room" in text
    content = json.loads(json.dumps(timed.as_json()))
    assert content["train_seconds"] == 16
    assert content["steps_per_epoch"] == found.steps_per_epoch


def test_a_disk_that_is_too_small(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "yet"
    assert lack_of_disk(1, directory) is None
    text = lack_of_disk(1 << 62, directory)
    assert text is not None
    assert text.startswith(f"{tmp_path}: ")


def test_clocks() -> None:
    assert [clock(s) for s in (5, 61, 3600, 90_000)] == ["0m05s", "1m01s", "1h00m", "25h00m"]


def test_check_and_a_dry_run_say_the_same(tiny_config: TinyConfig) -> None:
    config = tiny_config(pairs=400)
    dry = run_mtrain("train", "-c", config, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    looked = run_mtrain("check", "-c", config, env={**os.environ, "COLUMNS": "200"})
    assert looked.returncode == 0, looked.stderr
    for begin in ("model: ", "batches: ", "learning rate: ", "checkpoints: "):
        [told] = re.findall(rf"{begin}.*", dry.stderr)
        assert told in looked.stdout
    assert re.search(r"time: about \S+ s a step now", looked.stdout)
