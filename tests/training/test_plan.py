"""Forecasts of a run agree with the run."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MEASURE_HERE, TinyConfig, run_mtrain

from mtrain.config.loading import load_config
from mtrain.config.schema import Config
from mtrain.data.batches import pack_by_tokens
from mtrain.model.building import shape_of
from mtrain.model.transformer import Transformer
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.errors import EXIT_TERMINATED, StoppedError, UserError
from mtrain.runtime.workers import map_tasks
from mtrain.training import plan
from mtrain.training.gradients import Blocks, SequentialGradients, Sums
from mtrain.training.learner import Learner, MachineSettings
from mtrain.training.plan import (
    IDS,
    Forecast,
    Lengths,
    disk_warning,
    forecast_from_sample,
    make_forecast,
)

LENGTHS = np.random.default_rng(1).integers(2, 20, (500, 2))


def load(tiny_config: TinyConfig, **settings: Any) -> Config:
    return load_config(tiny_config(**settings))


def sample_forecast(
    config: Config,
    pairs: float = 1000.0,
    lengths: Lengths = LENGTHS,
    *,
    timed: bool = True,
    check_stop: Callable[[], object] = lambda: None,
) -> Forecast:
    return forecast_from_sample(
        config, 320, 1000, lengths, pairs, timed=timed, check_stop=check_stop
    )


def test_a_forecast_by_hand(tiny_config: TinyConfig) -> None:
    config = load(tiny_config, **{"train.keep_checkpoints": 1, "train.max_steps": 60})
    found = make_forecast(
        config, Ranks(size=2), Blocks(2, 2), 320, 500, epoch_batches=40, mean_tokens=200.0
    )
    parameters = Transformer(shape_of(config, 320, 0)).num_parameters
    one = 4 * parameters + 500
    assert found.numbers == {
        **{"device": "2 x cpu, fp32, threads: 1", "parameters": parameters, "vocab_size": 320},
        **{"steps_per_epoch": 20, "tokens_per_step": 400, "max_steps": 60, "epochs": 3.0},
        "step_batches": 2,
        **{"schedule": config.train.schedule, "peak_lr": 0.005, "peak_step": 4},
        **{"checkpoint_bytes": one, "disk_bytes": one * (2 + 3) + 3 * 8 * parameters},
        "state_bytes": 20 * parameters,
    }
    longer = load(tiny_config, **{"train.keep_checkpoints": 1, "train.max_steps": 61})
    numbers = make_forecast(longer, Ranks(), Blocks(2), 320, 500, 40, 200.0).numbers
    assert numbers["disk_bytes"] == found.numbers["disk_bytes"] + one  # the last is out of turn
    assert found.seconds == pytest.approx(6 * parameters * 200 * 60 / plan.MAX_OPERATIONS)
    text = "\n".join(found.lines)
    assert f"device: 2 x cpu, fp32, threads: 1; host: {socket.gethostname()}" in found.lines
    assert "20 steps per epoch, about 400 target tokens per step; 60 steps are 3 epochs" in text


def test_what_is_written_already_needs_no_more_room(tiny_config: TinyConfig) -> None:
    config = load(tiny_config)
    total, new = plan._disk_bytes(config, 1000, 100, 200)
    files = {"checkpoints/step-00000001/model.safetensors": 300, "synthetic/1/pairs.jsonl": 70}
    for name, size in files.items():
        path = Path(config.run_dir, name)
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(size))
    assert plan._disk_bytes(config, 1000, 100, 200) == (total + 70, new - 300)


def test_muon_has_one_moment_for_each_value_of_the_layers_matrices(
    tiny_config: TinyConfig,
) -> None:
    found = []
    for optimizer in ("adam", "muon"):
        config = load(tiny_config, **{"train.optimizer": optimizer, "train.ema_decay": 0.9})
        numbers = make_forecast(config, Ranks(), Blocks(1), 320, 500, 40, 200.0).numbers
        stored = Learner(config, 320, IDS, Ranks(), Blocks(1)).optimizer.moments().values()
        moments = sum(moment.numel() for moment in stored if moment.ndim)  # but not Adam's step
        found.append((moments, numbers["state_bytes"], numbers["disk_bytes"]))
    (adam, adam_state, adam_disk), (muon, muon_state, muon_disk) = found
    assert adam > muon
    assert adam_state - muon_state == 4 * (adam - muon)
    assert adam_disk - muon_disk == 3 * 4 * (adam - muon)


def test_a_moving_average_is_another_copy_of_the_weights(tiny_config: TinyConfig) -> None:
    """In memory, and in the three checkpoints from which a run can be resumed."""
    plain, averaged = (
        make_forecast(
            load(tiny_config, **{"train.ema_decay": decay}), Ranks(), Blocks(1), 320, 500, 40, 200.0
        ).numbers
        for decay in (None, 0.9)
    )
    weights = 4 * plain["parameters"]
    assert averaged["state_bytes"] - plain["state_bytes"] == weights
    assert averaged["disk_bytes"] - plain["disk_bytes"] == 3 * weights
    assert averaged["checkpoint_bytes"] == plain["checkpoint_bytes"]


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5, 8])
def test_the_sums_of_a_gpu_are_counted(tiny_config: TinyConfig, micro_batches: int) -> None:
    machine = MachineSettings("cuda", 8, "bf16", compile=False)
    held = SequentialGradients(lambda *_: None, Sums([torch.zeros(1)], 2), micro_batches)
    counted = plan._num_sums(machine, Blocks(micro_batches), load(tiny_config).train)
    assert counted == len({held.latest, *held.stored})


def test_packing_is_part_of_the_forecast(tiny_config: TinyConfig) -> None:
    config = load(tiny_config, **{"train.packing": True})
    found = sample_forecast(config, 500.0, timed=False).numbers
    assert found["device"] == "cpu, fp32, threads: 1, packed"
    batches = pack_by_tokens(LENGTHS + 1, 256, [32])
    assert found["tokens_per_step"] == (LENGTHS[:, 1] + 1).sum() // len(batches)


def test_an_epoch_grows_with_the_pairs(tiny_config: TinyConfig) -> None:
    config = load(tiny_config, **{"train.accum_steps": 2})
    one, ten = (sample_forecast(config, n, timed=False) for n in (1e3, 1e4))
    assert "time: not measured" in one.lines
    one, ten = one.numbers, ten.numbers
    assert ten["epochs"] == pytest.approx(one["epochs"] / 10, rel=0.01)
    assert ten["steps_per_epoch"] == pytest.approx(10 * one["steps_per_epoch"], abs=10)
    tokens = one["tokens_per_step"] * config.train.max_steps / one["epochs"]
    assert tokens == pytest.approx(2 * (LENGTHS[:, 1] + 1).sum(), rel=0.01)
    json.dumps(one)
    long = np.full((3, 2), config.data.max_length)
    with pytest.raises(UserError, match="no pair is left"):
        sample_forecast(config, 3.0, long, timed=False)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [50, 8]),
        ({"train.optimizer": "muon", "model.norm": "pre"}, [50, 8]),
        ({"train.packing": True}, [27, 5]),  # 32 tokens wide instead of 20
    ],
)
def test_a_step_is_timed_by_a_bounded_amount_of_work(
    tiny_config: TinyConfig,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    expected: list[int],
) -> None:
    rows, measured, config = list[int](), Learner.sum_gradients, load(tiny_config, **settings)
    monkeypatch.setattr(
        Learner,
        "sum_gradients",
        lambda *args: rows.append(len(args[1][0][0].src)) or measured(*args),
    )
    for parameters in (10_000, 10**8):
        seconds, memory = plan._measure_step(config, Blocks(1), 320, parameters, LENGTHS[:50] + 1)
        assert (0 < seconds < 5, memory) == (True, None)
    assert rows[::2] == rows[1::2] == expected
    monkeypatch.setattr(plan, "_seconds", lambda *_: 1.0)
    for parameters, count in zip((10_000, 10**8), expected, strict=True):  # 4 on this process
        seconds, _ = plan._measure_step(config, Blocks(8, 2), 320, parameters, LENGTHS[:50] + 1)
        assert seconds == pytest.approx(4 * expected[0] / count + 1)


@pytest.mark.parametrize(("threads", "max_tokens"), [(4, 4096), (1, 1024)])
def test_the_sums_of_a_timed_step_suffice(
    tiny_config: TinyConfig, threads: int, max_tokens: int
) -> None:
    """With more threads than micro-batches, which are summed at a time; and with a micro-batch that
    is larger than usual, as it was planned with augmented pairs.
    """
    config = load(tiny_config, **{"train.threads": threads, "train.max_tokens": max_tokens})
    lengths = np.full((200, 2), 20)
    found = list[tuple[float, int | None]]()

    def measure() -> None:
        found.append(plan._measure_step(config, Blocks(1), 320, 10_000, lengths))

    thread = Thread(target=measure, daemon=True)
    thread.start()
    thread.join(100)
    [(seconds, memory)] = found  # nothing, if the threads wait for each other
    assert (seconds > 0, memory) == (True, None)


class _OnMps(Learner):
    """A learner that takes the CPU for a GPU without CUDA."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.device = torch.device("mps")
        compute = partial(self._compute_slice, self.model, torch.default_generator)
        largest = arguments[-1].largest
        self.gradients = SequentialGradients(compute, self.optimizer.sums, largest)


def test_a_gpu_is_timed_by_one_whole_micro_batch(
    tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of threads of the CPU does not matter."""
    measured, given, sum_up = list[Any](), list[Any](), Learner.sum_gradients

    def noted(self: Learner, batches: Any, count: int) -> None:
        given.append((len(batches[0][0].src), count))
        sum_up(self, batches, count)

    monkeypatch.setattr(plan, "Learner", _OnMps)
    monkeypatch.setattr(Learner, "sum_gradients", noted)
    config = load(tiny_config, **{"train.threads": 4, "train.max_tokens": 4096})
    for size in (1, 3):
        measured.append(plan._measure_step(config, Blocks(size), 320, 10**8, LENGTHS[:50] + 1))
    assert [(seconds > 0, memory) for seconds, memory in measured] == [(True, None)] * 2
    assert given == [(50, 1)] * 4


def _dying(*_: object) -> None:
    os._exit(9)


def test_why_nothing_was_timed_is_reported(
    tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_measure_step", _dying)
    monkeypatch.setattr(plan, "map_tasks", partial(map_tasks, forked=True))  # which is quick
    found = sample_forecast(load(tiny_config))
    assert found.lines[-1] == f"time: not measured: {plan.WORKER_DIED}"
    assert found.numbers["step_seconds"] is None


def test_a_request_to_stop_ends_the_measuring(tiny_config: TinyConfig) -> None:
    def stop() -> None:
        raise StoppedError("stopped by SIGTERM", EXIT_TERMINATED)

    with pytest.raises(StoppedError, match="SIGTERM"):
        sample_forecast(load(tiny_config), check_stop=stop)


def test_a_disk_that_is_too_small(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "yet"
    assert disk_warning(1, directory) is None
    text = disk_warning(1 << 62, directory)
    assert text is not None
    assert text.startswith(f"{tmp_path}: ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"max_steps": 5000},
            "train.max_steps: 5,000 steps are 125 epochs: .*; lower it to 4,000",
        ),
        ({"peak_lr": 1.0}, "train.peak_lr: a learning rate of 1 at its peak is too high"),
        ({"peak_lr": None}, "train.lr_factor: a learning rate of 0.12 at its peak is too high"),
        ({"warmup_steps": 40, "max_steps": 40}, "train.warmup_steps: 40 is not below .* rises to"),
        ({"threads": 4096}, r"train.threads: 4,096 are more than the cores .* \(\d+\), which is"),
    ],
)
def test_likely_mistakes_are_warned_of(
    tiny_config: TinyConfig, settings: dict[str, Any], message: str
) -> None:
    for keys, expected in ((settings, True), ({"max_steps": 4000}, False)):
        config = load(tiny_config, **{f"train.{key}": each for key, each in keys.items()})
        found = make_forecast(
            config, Ranks(), Blocks(1), 320, 500, epoch_batches=40, mean_tokens=200.0
        )
        warnings = "\n".join(found.warnings())
        assert bool(re.search(message, warnings)) == expected
        assert found.numbers["peak_step"] <= config.train.max_steps
        assert bool(warnings) == expected


def test_the_threads_of_all_processes_of_a_machine_share_its_cores(
    tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "available_threads", lambda: 8)
    config = load(tiny_config, **{"train.threads": 3})
    for processes, advice in ((1, None), (2, None), (3, 2), (9, 1)):
        ranks = Ranks(size=processes, local_size=processes)
        found = make_forecast(config, ranks, Blocks(9, processes), 320, 500, 40, 200.0)
        warned = [text for text in found.warnings() if text.startswith("train.threads: ")]
        assert len(warned) == (advice is not None)
        for text in warned:
            assert text.startswith(f"train.threads: {3 * processes} are more than the cores")
            assert "may be used (8), which is slow; use a machine with more cores, or" in text
            assert text.endswith(f" train.threads: {advice} in a new run")
    on_gpu = MachineSettings("cuda", 99, "bf16", compile=False)
    assert plan._thread_warning(on_gpu, Ranks()) is None  # where they compute next to nothing


def test_a_measured_time_replaces_the_estimate(
    tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(tiny_config)
    for seconds, expected in ((1.0, 0), (2e5, 1)):  # of each of 8 steps
        monkeypatch.setattr(plan, "map_tasks", lambda *_, s=seconds, **options: [(s, None)])
        found = sample_forecast(config)
        warnings = list(found.warnings())
        assert len(warnings) == expected
        assert all("take about 19 days on this machine" in text for text in warnings)


@pytest.mark.slow
def test_check_and_a_dry_run_say_the_same(tiny_config: TinyConfig) -> None:
    config = tiny_config(**{"pairs": 400, "train.peak_lr": 0.02})
    dry = run_mtrain("train", "-c", config, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    wide = {**os.environ, "COLUMNS": "200"}
    looked = run_mtrain("check", "-c", config, env=wide, prelude=MEASURE_HERE)
    assert looked.returncode == 0, looked.stderr
    for begin in ("model: ", "batches: ", "learning rate: ", "checkpoints: ", "memory: "):
        [told] = re.findall(rf"{begin}.*", dry.stderr)
        assert told in looked.stdout
    warned = re.findall("warning: (.*)", dry.stderr)
    assert [text.split(":")[0] for text in warned] == [
        *("data.train", "data.valid", "data.test.held_out", "train.peak_lr"),
    ]
    assert re.findall("warning: (.*)", looked.stdout) == warned
    others = len(re.findall("(?m)^  warning ", looked.stdout))
    assert f"\n{others + 4} warnings" in looked.stdout
    started = run_mtrain("train", "-c", config, "--set", "train.max_steps=4")
    assert re.findall("warning: (.*)", started.stderr)[:4] == warned  # before those of the end
    resumed = run_mtrain("train", "-c", config)
    assert re.findall("warning: (.*)", resumed.stderr)[0] == warned[-1]
    for text in (looked.stdout, dry.stderr):
        assert re.search(r"time: about \S+ s per step as measured now, \ds for 8 steps", text)
