"""Several processes train as one: the same steps, stops and resumes, and rank 0 alone logs."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from conftest import differences, run_mtrain, status, write_config
from ranks import Hook, at_step, command, free_port, start, train_by
from torch import Tensor
from torch.distributed import HashStore

from mtrain.config.loading import load_config
from mtrain.data.tokenizer import Tokenizer
from mtrain.runs import layout
from mtrain.runs.history import History
from mtrain.runtime import distributed
from mtrain.runtime.device import has_fast_bf16
from mtrain.runtime.distributed import (
    DisconnectedError,
    Ranks,
    _agree_on_prefix,
    connected_ranks,
    device_of,
    find_ranks,
)
from mtrain.runtime.errors import (
    EXIT_FAILED,
    EXIT_REFUSED,
    EXIT_STOPPED,
    EXIT_TERMINATED,
    RefusedError,
    StoppedError,
    UserError,
)
from mtrain.runtime.log import logger
from mtrain.training import gradients, job
from mtrain.training.gradients import Blocks
from mtrain.training.learner import MachineSettings
from mtrain.training.validation import Validation

# Dropout is on; records, checkpoints and epochs fall on different steps.
SETTINGS = {
    "pairs": 60,
    "train.max_steps": 12,
    "train.max_tokens": 64,
    "train.log_every": 1,
    "train.save_every": 4,
    "train.valid_every": 8,
    "train.keep_checkpoints": 2,
    "decode.max_len_b": 3,
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("ranks"), **SETTINGS)


@pytest.fixture(scope="module")
def undisturbed(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an uninterrupted run of two ranks."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    done = train_by(2, config, run)
    assert done.codes == [0, 0], done.stderr
    assert "2 x cpu" in done.stderr[0]
    assert done.stderr[1] == ""
    assert (run / "train.log").read_text().count("step 12/12") == 1
    return run


# --- the same steps -----------------------------------------------------------------------------


SIXTY, BF16 = "train.max_steps=60", "train.precision=bf16"
MUON = ("train.optimizer=muon", "model.norm=pre")
needs_bf16 = pytest.mark.skipif(
    not has_fast_bf16(torch.device("cpu")), reason="this CPU does not compute in bf16"
)

# All that draws random numbers, weighs or averages; a step of 5 micro-batches.
EVERYTHING = (
    "train.step_batches=5",
    "model.dropout=0.2",
    "train.consistency=2",
    "train.subword_sampling=0.2",
    "train.ema_decay=0.9",
)


def train_with_everything(size: int, config: Path, run: Path, *others: str, **hooks: Any) -> Path:
    """Train by this number of ranks, on two corpora with weights."""
    parts = [
        {"generated": "phrasebook", "split": "train", "pairs": n, "weight": w}
        for n, w in ((40, 1.5), (20, 2))
    ]
    both = f"data.train={json.dumps(parts)}"
    done = train_by(size, config, run, both, *EVERYTHING, *others, **hooks)
    assert done.codes == [0] * size, done.stderr
    return run


@pytest.mark.parametrize(
    "others",
    [
        (),
        pytest.param(("train.packing=true",), marks=pytest.mark.slow),
        pytest.param((SIXTY,), marks=pytest.mark.slow),
        pytest.param((SIXTY, *MUON), marks=pytest.mark.slow),
        pytest.param((SIXTY, BF16), marks=(pytest.mark.slow, needs_bf16)),
        pytest.param((SIXTY, BF16, *MUON), marks=(pytest.mark.slow, needs_bf16)),
    ],
    ids=["few steps", "packed", "adam", "muon", "bf16", "muon in bf16"],
)
def test_any_number_of_ranks_trains_the_same_weights(
    config: Path, tmp_path: Path, others: tuple[str, ...]
) -> None:
    alone = train_with_everything(1, config, tmp_path / "1", *others)
    for size in (2, 3, 4, 8) if others else (2, 3, 7):  # 7 leaves two of them idle
        run = train_with_everything(size, config, tmp_path / str(size), *others)
        assert differences(run, alone) == [], size


def add_up(output: Path) -> None:
    """Add numbers over ranks for several sizes of a step, and write what this rank gets."""
    found = []
    with connected_ranks() as ranks:
        for count in range(1, 12):
            blocks = Blocks(count, ranks.size)
            values = np.random.default_rng(count).normal(size=(count, 3)).astype(np.float32)
            mine = [torch.from_numpy(values[index]) for index in blocks.of(ranks.rank)]
            total = as_a_tree(mine) if mine else torch.full((3,), math.nan)
            gradients.sum_over_ranks(total, blocks, ranks, torch.empty(3))
            found.append(bool((total == as_a_tree(list(map(torch.from_numpy, values)))).all()))
    (output / f"{ranks.rank}.json").write_text(json.dumps(found))


def as_a_tree(values: list[Tensor]) -> Tensor:
    """Add values pairwise by their numbers."""
    while len(values) > 1:
        pairs = [values[number : number + 2] for number in range(0, len(values), 2)]
        values = [pair[0] + pair[1] if len(pair) == 2 else pair[0] for pair in pairs]
    return values[0].clone()


@pytest.mark.parametrize("size", [2, 3, 5, pytest.param(8, marks=pytest.mark.slow)])
def test_ranks_add_as_one_tree(tmp_path: Path, size: int) -> None:
    done = start(tmp_path, [partial(add_up, tmp_path)] * size)
    assert done.codes == [0] * size, done.stderr
    for rank in range(size):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == [True] * 11, rank


@pytest.mark.parametrize(
    ("count", "ranks", "sizes"),
    [
        (12, 2, [8, 4]),
        (12, 3, [4, 4, 4]),
        (12, 8, [2] * 6 + [0] * 2),
        (5, 3, [2, 2, 1]),
    ],
)
def test_each_rank_computes_a_subtree(count: int, ranks: int, sizes: list[int]) -> None:
    blocks = Blocks(count, ranks)
    assert [len(blocks.of(rank)) for rank in range(ranks)] == sizes
    assert [index for rank in range(ranks) for index in blocks.of(rank)] == list(range(count))
    assert all(
        blocks.of(rank).start % blocks.width == 0 for rank in range(len(sizes)) if sizes[rank]
    )
    assert blocks.largest == max(sizes)


@pytest.mark.parametrize("pairs", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_corpora_of_few_batches_end(tmp_path: Path, pairs: int) -> None:
    """Three ranks train on 1 and 3 batches."""
    config = write_config(tmp_path, pairs=pairs, **{"train.max_tokens": 32, "train.max_steps": 5})
    done = train_by(3, config, tmp_path / "run")
    assert done.codes == [0, 0, 0], done.stderr
    assert status(tmp_path / "run")["state"] == "complete"


# --- stopped, killed, resumed -------------------------------------------------------------------


def at_step_7(name: str) -> Hook:
    """Send the process a signal in the middle of step 7."""
    return partial(at_step, 7, partial(signal.raise_signal, signal.Signals[name]))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_killed_and_resumed_is_undisturbed(
    config: Path, tmp_path: Path, undisturbed: Path, rank: int
) -> None:
    run, other = tmp_path / "run", 1 - rank
    done = train_by(2, config, run, hooks={rank: at_step_7("SIGKILL")})
    assert done.codes[rank] == -signal.SIGKILL
    assert done.codes[other] == EXIT_FAILED
    assert "another process of the job has ended" in done.stderr[other]
    assert not re.search(r"pair\.cc|This is typically", done.stderr[other])
    assert "Traceback" not in done.stderr[other]
    assert [path.name for path in layout.complete_checkpoints(run / "checkpoints")] == [
        "step-00000004"
    ]
    assert train_by(2, config, run).codes == [0, 0]
    assert differences(run, undisturbed) == []


def stop_in_validation() -> None:
    evaluate = Validation.evaluate

    def stopped(self: Validation, *arguments: Any) -> Any:
        self.stop.received = signal.SIGTERM
        return evaluate(self, *arguments)

    Validation.evaluate = stopped  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "hook", "step", "reason"),
    [
        (0, at_step_7("SIGTERM"), 7, ("SIGTERM", EXIT_TERMINATED)),
        (1, at_step_7("SIGUSR1"), 7, ("SIGUSR1", EXIT_STOPPED)),
        (1, stop_in_validation, 8, ("SIGTERM", EXIT_TERMINATED)),
    ],
    ids=["SIGTERM", "SIGUSR1", "validation"],
)
def test_a_signal_to_one_stops_and_saves_all(
    config: Path, tmp_path: Path, undisturbed: Path, rank: int, hook: Any, step: int, reason: Any
) -> None:
    run, (name, code) = tmp_path / "run", reason
    done = train_by(2, config, run, hooks={rank: hook})
    assert done.codes == [code, code], done.stderr
    assert f"stopped by {name}" in done.stderr[0]
    assert done.stderr[1] == ""
    found = status(run)
    assert (found["state"], found["exit_code"], found["step"]) == ("stopped", code, step)
    assert train_by(2, config, run).codes == [0, 0]
    assert differences(run, undisturbed) == []


HOST = socket.gethostname()


def fail_for_memory() -> None:
    raise UserError("step 7: out of memory")


def spoil_gradient() -> None:
    gradients.Sums.store = lambda self, *_: self.buffer.fill_(float("nan"))  # type: ignore


@pytest.mark.parametrize(
    ("hook", "override", "message"),
    [
        (partial(at_step, 7, fail_for_memory), "seed=1", f"rank 1 on {HOST}: step 7"),
        (spoil_gradient, "seed=1", "not finite"),
        (None, "data.valid={src: /gone, tgt: gone}", "/gone"),
    ],
    ids=["memory", "gradient", "text"],
)
def test_rank_0_reports_the_failure_of_any(
    config: Path, tmp_path: Path, hook: Any, override: str, message: str
) -> None:
    done = train_by(2, config, tmp_path / "run", override, hooks={1: hook})
    assert done.codes == [EXIT_FAILED] * 2, done.stderr
    assert message in done.stderr[0]
    assert done.stderr[1] == ""
    assert status(tmp_path / "run")["state"] == "failed"


def test_processes_with_other_settings_are_refused(config: Path, tmp_path: Path) -> None:
    """As when torchrun starts two runs as one job."""
    arguments = ["train", "-c", str(config), "--set"]
    runs = [tmp_path / name for name in "ab"]
    done = start(tmp_path, [partial(command, [*arguments, f"run_dir={r}"], None) for r in runs])
    assert done.codes == [EXIT_REFUSED] * 2
    assert "different settings" in done.stderr[0]
    assert done.stderr[1] == ""
    assert not any(run.exists() for run in runs)


def read_other_text() -> None:
    Tokenizer.fingerprint = "of another vocabulary"  # type: ignore


def test_processes_that_read_other_text_are_refused(config: Path, tmp_path: Path) -> None:
    """As where a file is not the same on all machines."""
    done = train_by(2, config, tmp_path / "run", hooks={1: read_other_text})
    assert done.codes == [EXIT_REFUSED] * 2, done.stderr
    assert "the processes of this job got different text" in done.stderr[0]
    assert done.stderr[1] == ""


@pytest.mark.parametrize(
    ("change", "key", "first", "other"),
    [
        ({"precision": "fp32"}, "precision", "bf16", "fp32"),
        ({"compile": False}, "compile", "True", "False"),
        ({"threads": 9, "openmp": 3}, "threads", "8", "9"),
    ],
)
def test_machines_on_which_auto_means_something_else_are_refused(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    key: str,
    first: str,
    other: str,
) -> None:
    machine = MachineSettings("cuda", 8, "bf16", compile=True, packing=True)
    machines = [machine, machine, replace(machine, threads=9)]
    monkeypatch.setattr(Ranks, "gather", lambda *_: machines)
    settings, blocks = load_config(config), Blocks(4, 3)
    job._check_machines(settings, Ranks(0, 3), blocks)  # the threads of a process may differ
    machines[2] = replace(machine, **change)
    reason = f"train.{key}: resolves to {first} on rank 0 and to {other} on rank 2; set it to"
    for rank in range(3):
        with pytest.raises(RefusedError, match=reason) as caught:
            job._check_machines(settings, Ranks(rank, 3), blocks)
        assert (caught.value.is_shared, caught.value.is_silent) == (True, rank > 0)


# --- resumed by another number of ranks ---------------------------------------------------------


@pytest.mark.slow
def test_a_run_goes_on_with_any_number_of_ranks(
    config: Path, tmp_path: Path, undisturbed: Path
) -> None:
    run = tmp_path / "run"
    done = train_by(2, config, run, hooks={0: at_step_7("SIGTERM")})
    assert done.codes == [EXIT_TERMINATED] * 2
    assert json.loads((run / "run.json").read_text())["step_batches"] == 2
    for key in ("accum_steps", "step_batches"):
        refused = train_by(1, config, run, f"train.{key}=3")
        assert refused.codes == [EXIT_REFUSED]
        assert (
            "train.step_batches: a step of this run has 2 micro-batches, not 3" in refused.stderr[0]
        )
    three = train_by(3, config, run, hooks={2: partial(at_step, 10, kill_self)})
    assert three.codes[2] == -signal.SIGKILL
    assert "by process: 1, 1, 0\n" in three.stderr[0]
    alone = train_by(1, config, run, "train.step_batches=2")
    assert alone.codes == [0], alone.stderr
    assert differences(run, undisturbed) == []


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_keys_that_contradict_each_other_are_refused_at_the_first_start(
    config: Path, tmp_path: Path
) -> None:
    done = train_by(2, config, tmp_path / "run", "train.step_batches=8", "train.accum_steps=3")
    assert done.codes == [EXIT_REFUSED] * 2
    assert "has 8 micro-batches, not 6 (train.accum_steps 3, processes 2)" in done.stderr[0]


# --- torchrun's variables -----------------------------------------------------------------------

TASK = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_NODES": "2"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, Ranks()),
        pytest.param(TASK, Ranks(), id="a batch script"),
        ({**TASK, "SLURM_STEP_NUM_TASKS": "1"}, Ranks()),
        pytest.param({**TASK, "SLURM_STEP_NUM_TASKS": ""}, Ranks(), id="unset by hand"),
        pytest.param({"SLURM_STEP_NUM_TASKS": "8"}, Ranks(), id="no task"),
        ({**TASK, "SLURM_STEP_NUM_TASKS": "2", **TORCHRUN}, Ranks(5, 8, 1, 4)),
    ],
)
def test_torchrun_starts_several_processes_and_anything_one(
    environ: dict[str, str], expected: Ranks
) -> None:
    assert find_ranks(environ) == expected
    for name in TORCHRUN:
        with pytest.raises(RefusedError, match="torchrun's environment variables"):
            find_ranks({**TORCHRUN, name: "x"})
    for rank in ("-1", "8"):
        with pytest.raises(RefusedError, match=f"RANK is {rank}, but WORLD_SIZE 8"):
            find_ranks({**TORCHRUN, "RANK": rank})


@pytest.mark.parametrize(
    ("nodes", "options"),
    [("2", "--nnodes=2 --nproc-per-node=1"), ("", "--nnodes=1 --nproc-per-node=2")],
)
def test_two_tasks_of_slurm_are_refused(nodes: str, options: str) -> None:
    with pytest.raises(RefusedError, match=f"this command 2 times.* {options}"):
        find_ranks({**TASK, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": nodes})


def test_variables_without_an_address_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    level = logger.level
    message = r"rank 5 of 8: cannot connect .*MASTER_ADDR"
    with pytest.raises(UserError, match=message), connected_ranks():
        pass
    logger.setLevel(level)


def test_each_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "pick_device", torch.device)
    several = Ranks(5, 8, 1, 4)
    assert device_of("cuda", several) == torch.device("cuda:1")
    assert device_of("cpu", several) == torch.device("cpu")
    for name in ("cuda:1", "mps"):
        assert device_of(name, Ranks()) == torch.device(name)
        with pytest.raises(RefusedError, match=f"device {name}: one device, but this job has 8"):
            device_of(name, several)


@pytest.mark.parametrize("task", ["0", "7"])
def test_tasks_of_slurm_are_refused_and_one_says_what_to_type(
    config: Path, tmp_path: Path, task: str
) -> None:
    arguments = ["train", "-c", str(config), "--set", f"run_dir={tmp_path / 'run'}"]
    environ = {**TASK, "SLURM_PROCID": task, "SLURM_STEP_NUM_TASKS": "8", "WORLD_SIZE": "8"}
    done = run_mtrain(*arguments, env={**os.environ, **environ})
    line = "torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 "
    assert (done.returncode, done.stdout) == (EXIT_REFUSED, "")
    assert (f"{line}-m mtrain {shlex.join(arguments)}" in done.stderr) == (task == "0")
    assert (done.stderr == "") == (task != "0")
    assert not (tmp_path / "run").exists()


# --- started again by torchrun ------------------------------------------------------------------


@pytest.fixture
def restarted(config: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Start a run as torchrun does for the second time, after a start that left this launch."""
    train = ["train", "-c", str(config), "--set", f"run_dir={tmp_path / 'run'}"]
    assert run_mtrain(*train, "--set", "train.max_steps=4").returncode == 0
    env = {**os.environ, "TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_RUN_ID": "7"}
    env["TORCHELASTIC_ERROR_FILE"] = "/agent/attempt_1/0/error.json"
    own = {"job": f"7 {HOST} /agent", "restarts": 0, "began": time.time() - 3600}

    def start(
        *arguments: str, code: int = EXIT_FAILED, **launch: Any
    ) -> subprocess.CompletedProcess[str]:
        left = {**status(tmp_path / "run"), "state": "failed", "exit_code": code}
        text = json.dumps({**left, "launch": {**own, **launch}})
        (tmp_path / "run" / "status.json").write_text(text)
        return run_mtrain(*train, *arguments, env=env)

    return start


@pytest.mark.slow
def test_a_job_that_is_over_is_not_trained_again(restarted: Any, tmp_path: Path) -> None:
    done = restarted(is_over=True)
    assert done.returncode == EXIT_FAILED
    assert "not restarted: this job has ended with exit code 1" in done.stderr
    assert status(tmp_path / "run")["state"] == "failed"
    # exits that torchrun does not count: machines have joined, or another one was seen first
    assert restarted(is_over=True, restarts=1).returncode == EXIT_FAILED
    assert restarted(is_over=True, code=EXIT_TERMINATED).returncode == EXIT_TERMINATED
    for other in ({"restarts": 1, "code": EXIT_TERMINATED}, {"job": "other"}, {"is_over": False}):
        assert restarted(**{"is_over": True, **other}).returncode == 0


def test_the_time_limit_counts_from_the_first_start(restarted: Any) -> None:
    done = restarted("--time-limit", "59m")
    assert done.returncode == EXIT_STOPPED
    assert "stopped by time limit" in done.stderr
    assert restarted("--time-limit", "61m").returncode == 0


@pytest.mark.parametrize("is_complete", [True, False])
def test_ranks_of_a_new_start_do_not_meet_those_of_the_last_one(
    monkeypatch: pytest.MonkeyPatch, is_complete: bool
) -> None:
    """Their store has the prefix of the last start, which was complete, or ended before."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=60))
    store.set("mtrain/round", "old")
    if is_complete:
        store.set("mtrain/old", "rank1 rank2")
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(_agree_on_prefix, store, rank, 3) for rank in (1, 2)]
        for rank in (1, 2):
            assert store.get(f"mtrain/old/{rank}")  # they have read the old one
        prefix = _agree_on_prefix(store, 0, 3)
        assert [other.result() for other in others] == [prefix, prefix]
    assert prefix != "old"
    monkeypatch.setattr(distributed, "START_TIMEOUT", timedelta(0))
    with pytest.raises(RuntimeError, match="timed out"):
        _agree_on_prefix(store, 1, 3)


# --- by torchrun itself -------------------------------------------------------------------------

# Steps enough that there is time to strike.
LONG = ("train.max_steps=400", "train.log_every=10", "train.save_every=20", "train.valid_every=400")


@pytest.fixture(scope="module")
def undisturbed_long(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("long") / "run"
    done = train_by(2, config, run, *LONG)
    assert done.codes == [0, 0], done.stderr
    return run


def long_run(config: Path, run: Path) -> list[str]:
    """Return the arguments of `mtrain` for a long run."""
    sets = [part for override in (f"run_dir={run}", *LONG) for part in ("--set", override)]
    return ["train", "-c", str(config), *sets]


def wait_for_step(run: Path, step: int) -> None:
    """Wait until a run has taken a step."""
    end, metrics = time.monotonic() + 120, run / "metrics.jsonl"
    while not metrics.exists() or f'"step": {step},' not in metrics.read_text():
        assert time.monotonic() < end
        time.sleep(0.01)


@dataclass
class Job:
    """A job that torchrun has ended."""

    code: int
    stderr: str


@contextmanager
def torchrun(size: int, arguments: list[str], program: list[str] | None = None) -> Iterator[Any]:
    """Start a job that may be restarted three times; yield a function that waits for its end."""
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    command = [sys.executable, "-m", *launcher, "--max-restarts=3"]
    command += [*(program or ["-m", "mtrain"]), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as job:

        def end() -> Job:
            _, stderr = job.communicate(timeout=200)
            return Job(job.returncode, stderr)

        yield end


@pytest.mark.slow
def test_torchrun_starts_again_after_a_kill(
    config: Path, tmp_path: Path, undisturbed_long: Path
) -> None:
    run = tmp_path / "run"
    with torchrun(2, long_run(config, run)) as end:
        for step in (50, 150):
            wait_for_step(run, step)
            os.kill(status(run)["pid"], signal.SIGKILL)
        done = end()
    assert done.code == 0, done.stderr
    assert done.stderr.count("resuming at step") == 2
    assert differences(run, undisturbed_long) == []


@pytest.mark.slow
def test_machines_join_and_leave(config: Path, tmp_path: Path) -> None:
    """Two agents of torchrun stand for two machines."""
    run, alone, endpoint = tmp_path / "run", tmp_path / "alone", f"localhost:{free_port()}"
    settings = ["train.step_batches=2", "train.max_steps=2500", "train.valid_every=2500"]
    settings += ["train.save_every=100", "train.log_every=50"]
    assert train_by(1, config, alone, *settings).codes == [0]
    sets = [part for item in (f"run_dir={run}", *settings) for part in ("--set", item)]

    def machine(is_host: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--rdzv-id=7"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--max-restarts=3"]
        command += [f"--rdzv-conf=is_host={is_host},last_call_timeout=1"]
        command += ["-m", "mtrain", "train", "-c", str(config), *sets]
        env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)

    with machine(1) as first:
        wait_for_step(run, 50)
        with machine(0) as second:
            wait_until(lambda: json.loads((run / "run.json").read_text())["ranks"] == 2)
            joined_at = newest(run)
            wait_until(lambda: newest(run) > joined_at)
            for process in (*children(second.pid), second.pid):
                os.kill(process, signal.SIGKILL)
            second.communicate()
        _, stderr = first.communicate(timeout=300)
    assert first.returncode == 0, stderr
    assert "stopped by SIGTERM" in stderr
    assert "another process of the job has ended" in stderr
    assert differences(run, alone) == []


def children(process: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def newest(run: Path) -> int:
    return layout.last_step(layout.complete_checkpoints(run / "checkpoints"))


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 200
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


# Spoils the gradient of step 7.
SPOILING = """
import sys; sys.path.insert(0, {tests!r})
from functools import partial
from mtrain.cli import app
import ranks, training.test_distributed as own
ranks.at_step(7, own.spoil_gradient)
app.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "options", "spoiled", "ends", "code", "reason"),
    [
        (2, ["--time-limit", "12s"], False, "stopped", EXIT_STOPPED, "time limit"),
        (1, ["--time-limit", "12s"], False, "stopped", EXIT_STOPPED, "time limit"),
        (2, [], True, "failed", EXIT_FAILED, "not finite"),
        (2, ["--set", "data.valid={src: /gone, tgt: /too}"], False, "failed", EXIT_FAILED, "gone"),
    ],
    ids=["time limit", "time limit of one", "numbers", "data"],
)
def test_torchrun_does_not_restart_a_job_that_ended_by_itself(
    config: Path,
    tmp_path: Path,
    size: int,
    options: list[str],
    spoiled: bool,
    ends: str,
    code: int,
    reason: str,
) -> None:
    run, program = tmp_path / "run", None
    if spoiled:
        program = [str(tmp_path / "spoiling.py")]
        Path(program[0]).write_text(SPOILING.format(tests=str(Path(__file__).parents[1])))
    longer = ["--set", "train.max_steps=100000"]
    with torchrun(size, [*long_run(config, run), *longer, *options], program) as end:
        done = end()
    assert done.code == 1
    assert done.stderr.count("training a bpe vocabulary") <= 1, done.stderr
    assert done.stderr.count(f"not restarted: this job has ended with exit code {code}") == 3
    found = status(run)
    assert (found["state"], found["exit_code"]) == (ends, code)
    assert reason in found["reason"]
    assert found.get("last_start") is None


def wait_in_vain(output: Path) -> None:
    distributed.START_TIMEOUT = timedelta(seconds=2)
    with pytest.raises(UserError) as caught, connected_ranks():
        pass
    output.write_text(str(caught.value))


def nothing() -> None:
    """End without connecting."""


@pytest.mark.slow
def test_processes_that_never_meet_are_reported(tmp_path: Path) -> None:
    output = tmp_path / "stderr"
    done = start(tmp_path, [partial(wait_in_vain, output), nothing])
    assert done.codes == [0, 0], done.stderr
    assert output.read_text().startswith(
        "rank 0 of 2: cannot connect to the other processes of the job: "
    )


# --- what ranks send each other -----------------------------------------------------------------


ENTRY = {"step": 0, "checkpoint": "average", "bleu": 0.1, "chrf": 1 / 3, "nll": float("nan")}
ENTRY["signature"] = ""
ERRORS = (
    UserError("no"),
    RefusedError("never", "in two lines"),
    StoppedError("later", EXIT_STOPPED),
    OSError(28, "No space left on device", "file"),
    MemoryError(),
)


def raise_all_kinds(output: Path) -> None:
    """Raise each kind of failure on each rank, and write what arrives to a file."""
    found: list[object] = []

    def failing(error: Exception) -> str:
        raise error

    with connected_ranks() as ranks:
        gather, from_rank_0 = (
            partial(meet, type_=str) for meet in (ranks.gather, ranks.from_rank_0)
        )
        meetings = (gather, from_rank_0, ranks.on_all_ranks, ranks.on_rank_0)
        for error, origin, meet in product(ERRORS, (0, 1), meetings):
            is_mine = ranks.rank == origin or meet in (from_rank_0, ranks.on_rank_0)
            try:
                meet(partial(failing, error) if is_mine else str)
            except UserError as caught:
                kind, stderr = type(caught).__name__, not caught.is_silent
                found.append([kind, str(caught), caught.exit_code, stderr])
        found.append(ranks.agree(None, None, 0))
        found.append(ranks.agree(("SIGTERM", 143) if ranks.rank else None, None, 0))
        found.append(ranks.from_rank_0(lambda: b"a\nb\xff" * 100_000, bytes).count(b"\n"))
        found.append(ranks.gather(lambda: ranks.rank * "\ud800\n", str))
        history = History.begin("nll")
        history.entries = [{**ENTRY, "step": ranks.rank}]
        found.append(str(ranks.gather(lambda: history, History)[1].entries))
        found.append([ranks.on_rank_0(lambda: "a"), ranks.on_all_ranks(lambda: ranks.rank)])
        total = torch.arange(3.0) + ranks.rank
        ranks.sum_(total)
        found.append(total.tolist())
        ranks.agree(None, None, 5)
        with pytest.raises(UserError, match="different steps") as error_of_all:
            ranks.agree(None, None, ranks.rank)
        assert error_of_all.value.is_shared
        ranks.broadcast(total.add_(ranks.rank))
        found.append(total.tolist())
    (output / f"{ranks.rank}.json").write_text(json.dumps(found))


def test_an_error_of_one_rank_is_raised_on_all_and_reported_by_rank_0(tmp_path: Path) -> None:
    done = start(tmp_path, [partial(raise_all_kinds, tmp_path)] * 2)
    assert done.codes == [0, 0], done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    own, other = ("UserError", "no", EXIT_FAILED, True), f"rank 1 on {HOST}: no"
    assert first[:4] == [[*own]] * 4
    assert [item[1] for item in first[4:8]] == [other, "no", other, "no"]
    assert ["RefusedError", "never\nin two lines", EXIT_REFUSED, True] in first
    assert ["StoppedError", "later", EXIT_STOPPED, True] in first
    assert ["UserError", "file: No space left on device", EXIT_FAILED, True] in first
    assert ["UserError", f"rank 1 on {HOST}: out of memory", EXIT_FAILED, True] in first
    assert [f[:3] for f in first[:40]] == [s[:3] for s in second[:40]]
    assert not any(item[3] for item in second[:40])
    entries = str([{**ENTRY, "step": 1}])
    rest = [None, ["SIGTERM", 143], 100_000, ["", "\ud800\n"], entries]
    sums = [[1.0, 3.0, 5.0]] * 2
    assert first[40:] == [*rest, ["a", 0], *sums]
    assert second[40:] == [*rest, [None, 1], *sums]


CLOSED = "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:9. This is typically"
ONE = torch.ones(1)


@pytest.mark.parametrize(
    "meet",
    [
        lambda ranks: ranks.agree(None, None, 0),
        lambda ranks: ranks.gather(str, str),
        lambda ranks: ranks.sum_(ONE),
        lambda ranks: ranks.broadcast(ONE),
        lambda ranks: ranks.exchange(ONE, [1], ONE, None),
    ],
    ids=["agree", "gather", "sum", "broadcast", "exchange"],
)
def test_a_connection_that_breaks_is_told_wherever_it_is_used(
    monkeypatch: pytest.MonkeyPatch, meet: Callable[[Ranks], object]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(CLOSED)

    for name in ("all_reduce", "all_gather", "broadcast", "batch_isend_irecv"):
        monkeypatch.setattr(dist, name, fail)
    monkeypatch.setattr(dist, "P2POp", lambda *_: None)
    reason = r"^rank 1: another process .* reached \(Connection closed by peer \[::1\]:9\); see its"
    with pytest.raises(DisconnectedError, match=reason):
        meet(Ranks(1, 2))


def test_ranks_wait_for_days_while_rank_0_prepares_text(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(distributed, "rendezvous", lambda *_, **__: iter([(HashStore(), 0, 1)]))
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **options: given.update(options))
    distributed._connect(Ranks(0, 1))
    assert given["timeout"] > timedelta(days=1)


def leave(output: Path, fails: bool) -> None:
    """Leave a job, by an error of all ranks or at the end; rank 1 is late."""
    with suppress(UserError), connected_ranks() as ranks:
        if ranks.rank:
            sum(range(3_000_000))
            (output / "leaving").touch()
        if fails:
            raise ranks.mark_shared(UserError("all fail"))
    assert (output / "leaving").exists()


@pytest.mark.parametrize("fails", [False, True])
def test_no_rank_leaves_before_the_last_one(tmp_path: Path, fails: bool) -> None:
    done = start(tmp_path, [partial(leave, tmp_path, fails)] * 2)
    assert done.codes == [0, 0], done.stderr


def fail_alone() -> None:
    """Raise an error on rank 1 that the others do not know of."""

    def take_part() -> None:
        with connected_ranks() as ranks:
            if ranks.rank:
                raise UserError("alone")
            ranks.on_all_ranks(lambda: None)
            raise AssertionError("rank 1 has taken part")

    with pytest.raises(UserError) as caught:
        take_part()
    assert isinstance(caught.value, DisconnectedError) == (str(caught.value) != "alone")


def test_a_rank_that_fails_alone_takes_part_in_nothing_more(tmp_path: Path) -> None:
    done = start(tmp_path, [fail_alone] * 2)
    assert done.codes == [0, 0], done.stderr
