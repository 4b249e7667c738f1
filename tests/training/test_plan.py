"""What is said of a run before it begins agrees with what the run then is."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TinyConfig, run_mtrain

from mtrain.config.loading import load_config
from mtrain.config.schema import Config
from mtrain.model.building import shape_of
from mtrain.model.transformer import Transformer
from mtrain.runtime.errors import UserError
from mtrain.training import plan as forecast
from mtrain.training.plan import Batching, Forecast, Measured, Plan, clock, lack_of_disk

LENGTHS = np.random.default_rng(1).integers(2, 20, (500, 2))


def tiny(tiny_config: TinyConfig, **settings: Any) -> Config:
    return load_config(tiny_config(**settings))


def of(config: Config, **options: Any) -> Forecast:
    return forecast.forecast(config, 320, 1000, LENGTHS, 1000.0, **options)


def test_a_plan_by_hand(tiny_config: TinyConfig) -> None:
    config = tiny(tiny_config, **{"train.keep_checkpoints": 1, "train.max_steps": 60})
    plan = Plan.of(config, 1000, 320, 500, Batching(40.0, 200.0, 2))
    assert (plan.batching.steps, plan.tokens, plan.epochs) == (20, 400, 3.0)
    assert (plan.peak_rate, plan.peak_step) == (0.005, 4)
    assert plan.checkpoint == 4 * 1000 + 500
    assert plan.disk == 4500 * (2 + 3) + 3 * 8 * 1000
    assert (
        "20 steps an epoch, about 400 target tokens a step; 60 steps are 3 epochs" in plan.batches()
    )


def test_parameters_are_those_of_the_model(tiny_config: TinyConfig) -> None:
    config = tiny(tiny_config)
    plan = of(config, timed=False).plan
    assert plan.parameters == Transformer(shape_of(config, 320, 0)).num_parameters


def test_an_epoch_grows_with_the_pairs(tiny_config: TinyConfig) -> None:
    config = tiny(tiny_config, **{"train.accum_steps": 2})
    one = of(config, timed=False).plan.batching
    ten = forecast.forecast(config, 320, 1000, LENGTHS, 10_000.0, timed=False).plan.batching
    assert ten.micro_batches == pytest.approx(10 * one.micro_batches)
    tokens = 2 * (LENGTHS[:, 1] + 1).sum()
    assert one.micro_batches * one.tokens == pytest.approx(tokens)


def test_pairs_that_are_too_long_do_not_count(tiny_config: TinyConfig) -> None:
    config = tiny(tiny_config)
    long = np.full((3, 2), config.data.max_length)
    with pytest.raises(UserError, match="no pair is left"):
        forecast.forecast(config, 320, 1000, long, 3.0, timed=False)


@pytest.mark.parametrize("settings", [{}, {"train.optimizer": "muon", "model.norm": "pre"}])
def test_steps_are_timed(tiny_config: TinyConfig, settings: dict[str, Any]) -> None:
    config = tiny(tiny_config, **settings)
    threads = torch.get_num_threads()
    sizes = [LENGTHS[:8] + 1, LENGTHS[8:20] + 1]
    measured = forecast._time(config, 320, sizes, 10_000)
    torch.set_num_threads(threads)
    assert 0 < measured.step_seconds < 5
    assert measured.share == 1
    assert measured.memory > 10_000 * 16


def test_the_work_that_is_timed_is_bounded(tiny_config: TinyConfig) -> None:
    measured = forecast._time(tiny(tiny_config), 320, [LENGTHS[:50] + 1], 10**10)
    assert measured.share < 0.1


def _lacking() -> Measured:
    raise UserError("out of memory")


def _dying() -> Measured:
    os._exit(9)


def test_what_could_not_be_timed_is_told() -> None:
    assert forecast._try(_lacking) == (None, "out of memory")
    assert forecast._try(_dying) == (None, forecast.DEATH)


def test_a_forecast_for_people_and_for_scripts(tiny_config: TinyConfig) -> None:
    plan = of(tiny(tiny_config), timed=False)
    assert "time: not measured: not asked for" in list(plan.lines())
    timed = Forecast(plan.plan, plan.machine, Measured(2.0, 5_000_000, 1.0), "", "no room")
    text = "\n".join(timed.lines())
    assert "at the peak of the measured steps 5.0 MB in all" in text
    assert "about 2 s a step now, 0m16s for 8 steps without validation" in text
    assert "disk: no room" in text
    content = json.loads(json.dumps(timed.as_json()))
    assert content["train_seconds"] == 16
    assert content["steps_per_epoch"] == plan.plan.batching.steps


def test_a_disk_that_is_too_small(tiny_config: TinyConfig, tmp_path: Path) -> None:
    plan = of(tiny(tiny_config), timed=False).plan
    assert lack_of_disk(plan, tmp_path / "not" / "yet") is None
    huge = Plan(**{**vars(plan), "disk": 1 << 62})
    text = lack_of_disk(huge, tmp_path / "not" / "yet")
    assert text is not None
    assert text.startswith(f"{tmp_path}: ")


def test_clocks() -> None:
    assert [clock(s) for s in (5, 61, 3600, 90_000)] == ["0m05s", "1m01s", "1h00m", "25h00m"]
    assert clock(float("inf")) == "for ever"


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
