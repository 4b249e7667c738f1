"""Several processes train as one: the same steps, stops and resumes, and rank 0 alone logs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import contents, differences, run_mtrain, status, write_config
from ranks import Hook, at_step, command, start, train_by

from mtrain.config.loading import load_config
from mtrain.data.prepare import prepare
from mtrain.runs import layout
from mtrain.runs.directory import RunDirectory
from mtrain.runs.history import BEST, History
from mtrain.runtime import distributed
from mtrain.runtime.distributed import BYTES, TEXT, Ranks, find_ranks, joined
from mtrain.runtime.errors import (
    EXIT_FAILED,
    EXIT_REFUSED,
    EXIT_STOPPED,
    EXIT_TERMINATED,
    RefusedError,
    StoppedError,
    UserError,
)
from mtrain.runtime.stop import Stop
from mtrain.training import gradients, learner
from mtrain.training.resume import Session
from mtrain.training.trainer import Trainer
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
    assert done.codes == [0, 0], done.told
    assert "2 x cpu" in done.told[0]
    assert done.told[1] == ""
    assert (run / "train.log").read_text().count("step 12/12") == 1
    return run


# --- the same steps -----------------------------------------------------------------------------


def losses(run: Path) -> list[float]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["train/loss"] for record in records if "train/loss" in record]


def record_in_float64(config_file: Path, output: Path, accum_steps: int, packing: str) -> None:
    """Take steps in float64 and write their losses to a file."""
    overrides = [f"train.accum_steps={accum_steps}", "model.dropout=0.2", "train.consistency=2"]
    overrides.append(f"train.packing={packing}")
    config = load_config(config_file, overrides)
    learner.set_compute_dtype = lambda model, dtype: model.double()  # type: ignore[attr-defined]
    with joined() as ranks:
        run = RunDirectory(output.parent / "run")
        trainer = Trainer(Session(config, prepare(config, Stop()), run, Stop(), ranks))
        assert trainer.optimizer.sums.buffer.dtype == torch.float64
        stream, found = trainer.micro_batches(), []
        for _ in range(8):
            before = trainer.progress.sums[0].item()
            trainer.take_step(stream)
            found.append(trainer.progress.sums[0].item() - before)
        if ranks.is_first:
            output.write_text(json.dumps(found))


@pytest.mark.parametrize("packing", ["false", "true"])
def test_two_ranks_train_like_one_with_twice_the_accumulation(
    config: Path, tmp_path: Path, packing: str
) -> None:
    found = []
    for size, accum_steps in ((2, 2), (1, 4)):
        output = tmp_path / f"{size}.json"
        done = start(
            tmp_path, [partial(record_in_float64, config, output, accum_steps, packing)] * size
        )
        assert done.codes == [0] * size, done.told
        found.append(json.loads(output.read_text()))
    assert len(found[0]) == 8
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert found[0] != pytest.approx(found[1][::-1], rel=1e-3)


@pytest.mark.parametrize("pairs", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_corpora_of_few_batches_end(tmp_path: Path, pairs: int) -> None:
    """Three ranks train on 1 and 3 batches."""
    config = write_config(tmp_path, pairs=pairs, **{"train.max_tokens": 32, "train.max_steps": 5})
    done = train_by(3, config, tmp_path / "run")
    assert done.codes == [0, 0, 0], done.told
    assert status(tmp_path / "run")["state"] == "complete"


# --- stopped, killed, resumed -------------------------------------------------------------------


def at_step_7(name: str) -> Hook:
    """Send the process a signal in the middle of step 7."""
    return partial(at_step, 7, partial(signal.raise_signal, signal.Signals[name]))


@pytest.mark.parametrize("rank", [0, 1])
def test_killed_and_resumed_is_undisturbed(
    config: Path, tmp_path: Path, undisturbed: Path, rank: int
) -> None:
    run, other = tmp_path / "run", 1 - rank
    done = train_by(2, config, run, hooks={rank: at_step_7("SIGKILL")})
    assert done.codes[rank] == -signal.SIGKILL
    assert done.codes[other] == EXIT_FAILED
    assert "another process of the job has ended" in done.told[other]
    assert "Traceback" not in done.told[other]
    assert [path.name for path in layout.steps(run / "checkpoints")] == ["step-00000004"]
    assert train_by(2, config, run).codes == [0, 0]
    assert differences(run, undisturbed) == []


def stop_in_validation() -> None:
    evaluate = Validation.evaluate

    def stopped(self: Validation, *arguments: Any) -> Any:
        self.stop.received = signal.SIGTERM
        return evaluate(self, *arguments)

    Validation.evaluate = stopped  # type: ignore[method-assign]


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
    assert done.codes == [code, code], done.told
    assert f"stopped by {name}" in done.told[0]
    assert done.told[1] == ""
    found = status(run)
    assert (found["state"], found["exit_code"], found["step"]) == ("stopped", code, step)
    assert train_by(2, config, run).codes == [0, 0]
    assert differences(run, undisturbed) == []


HOST = socket.gethostname()


def fail_for_memory() -> None:
    raise UserError("step 7: out of memory")


def spoil_gradient() -> None:
    gradients.Sums.put = lambda self, *_: self.buffer.fill_(float("nan"))  # type: ignore


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
    assert done.codes == [EXIT_FAILED] * 2, done.told
    assert message in done.told[0]
    assert done.told[1] == ""
    assert status(tmp_path / "run")["state"] == "failed"


def test_processes_with_other_settings_are_refused(config: Path, tmp_path: Path) -> None:
    """As when torchrun starts two runs as one job."""
    arguments = ["train", "-c", str(config), "--set"]
    runs = [tmp_path / name for name in "ab"]
    done = start(tmp_path, [partial(command, [*arguments, f"run_dir={r}"], None) for r in runs])
    assert done.codes == [EXIT_REFUSED] * 2
    assert "different settings" in done.told[0]
    assert done.told[1] == ""
    assert not any(run.exists() for run in runs)


# --- resumed by another number of ranks ---------------------------------------------------------


def test_another_number_of_ranks_goes_on_with_the_same_steps(
    config: Path, tmp_path: Path, undisturbed: Path
) -> None:
    run = tmp_path / "run"
    done = train_by(2, config, run, hooks={0: at_step_7("SIGTERM")})
    assert done.codes == [EXIT_TERMINATED] * 2
    refused = train_by(1, config, run)
    assert refused.codes == [EXIT_REFUSED]
    assert "set train.accum_steps: 2" in refused.told[0]
    refused = train_by(3, config, run)
    assert refused.codes == [EXIT_REFUSED] * 3
    assert "another number of processes" in refused.told[0]
    assert refused.told[1:] == ["", ""]
    alone = train_by(1, config, run, "train.accum_steps=2")
    assert alone.codes == [0], alone.told
    assert "processes: from here on 1, not 2" in alone.told[0]
    assert losses(run) == pytest.approx(losses(undisturbed), rel=1e-4)
    assert contents(run)["status"] == contents(undisturbed)["status"]


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


# --- by torchrun itself -------------------------------------------------------------------------

# Steps enough that there is time to strike.
LONG = ("train.max_steps=400", "train.log_every=10", "train.save_every=20", "train.valid_every=400")


@pytest.fixture(scope="module")
def undisturbed_long(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("long") / "run"
    done = train_by(2, config, run, *LONG)
    assert done.codes == [0, 0], done.told
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


@pytest.mark.slow
def test_torchrun_starts_again_after_a_kill(
    config: Path, tmp_path: Path, undisturbed_long: Path
) -> None:
    run = tmp_path / "run"
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    command = [sys.executable, "-m", *launcher, "-m", "mtrain", *long_run(config, run)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as job:
        wait_for_step(run, 50)
        os.kill(status(run)["pid"], signal.SIGKILL)
        _, told = job.communicate(timeout=120)
    assert job.returncode == 0, told
    assert "resuming at step" in told
    assert differences(run, undisturbed_long) == []


def wait_in_vain(output: Path) -> None:
    distributed.START = timedelta(seconds=2)
    with pytest.raises(UserError) as caught, joined():
        pass
    output.write_text(str(caught.value))


def nothing() -> None:
    """End without connecting."""


def test_processes_that_never_meet_are_reported(tmp_path: Path) -> None:
    output = tmp_path / "told"
    done = start(tmp_path, [partial(wait_in_vain, output), nothing])
    assert done.codes == [0, 0], done.told
    assert output.read_text().startswith("rank 0 of 2: the processes of the job did not meet: ")


# --- what ranks send each other -----------------------------------------------------------------


ENTRY = {"step": 0, "checkpoint": "average", "bleu": 0.1, "chrf": 1 / 3, "nll": float("nan")}
ENTRY["signature"] = ""
ERRORS = (
    UserError("no"),
    RefusedError("never"),
    StoppedError("later", EXIT_STOPPED),
    OSError(28, "No space left on device", "file"),
    MemoryError(),
)


def raise_all_kinds(output: Path) -> None:
    """Raise each kind of failure on each rank, and write what arrives to a file."""
    found: list[object] = []

    def failing(error: Exception) -> str:
        raise error

    with joined() as ranks:
        gather, share = (partial(meet, form=TEXT) for meet in (ranks.gather, ranks.share))
        meetings = (gather, share, ranks.together, ranks.first)
        for error, origin, meet in product(ERRORS, (0, 1), meetings):
            is_mine = ranks.rank == origin or meet in (share, ranks.first)
            try:
                meet(partial(failing, error) if is_mine else str)
            except UserError as caught:
                kind, told = type(caught).__name__, not caught.is_silent
                found.append([kind, str(caught), caught.exit_code, told])
        found.append(ranks.agree(None))
        found.append(ranks.agree(("SIGTERM", 143) if ranks.rank else None))
        found.append(ranks.share(lambda: b"a\nb\xff" * 100_000, BYTES).count(b"\n"))
        found.append(ranks.gather(lambda: ranks.rank * "\ud800\n", TEXT))
        history = History.begin("nll")
        history.entries = [{**ENTRY, "step": ranks.rank}]
        found.append(str(ranks.gather(lambda: history, BEST)[1].entries))
        found.append([ranks.first(lambda: "a"), ranks.together(lambda: ranks.rank)])
        total = torch.arange(3.0) + ranks.rank
        ranks.sum_(total)
        found.append(total.tolist())
        ranks.agree(None, number=5)
        with pytest.raises(UserError, match="different steps"):
            ranks.agree(None, number=ranks.rank)
        ranks.broadcast(total.add_(ranks.rank))
        found.append(total.tolist())
    (output / f"{ranks.rank}.json").write_text(json.dumps(found))


def test_what_one_rank_raises_all_raise_and_rank_0_reports(tmp_path: Path) -> None:
    done = start(tmp_path, [partial(raise_all_kinds, tmp_path)] * 2)
    assert done.codes == [0, 0], done.told
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    own, other = ("UserError", "no", EXIT_FAILED, True), f"rank 1 on {HOST}: no"
    assert first[:4] == [[*own]] * 4
    assert [item[1] for item in first[4:8]] == [other, "no", other, "no"]
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
