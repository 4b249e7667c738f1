"""Runs that are killed, stopped or started twice are resumed by the same command, and end in the
same bytes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from functools import partial
from itertools import product
from socket import gethostname

import pytest
import torch
from conftest import status
from ranks import at_step, train_by

from faults.rig import Bench, Rig, strike, undisturbed
from mtrain.runs import checkpoint, layout
from mtrain.runtime.device import has_fast_bf16
from mtrain.runtime.errors import (
    EXIT_HUNG_UP,
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    EXIT_STOPPED,
    EXIT_TERMINATED,
)

CODES = {
    "SIGTERM": EXIT_TERMINATED,
    "SIGUSR1": EXIT_STOPPED,
    "SIGINT": EXIT_INTERRUPTED,
    "SIGHUP": EXIT_HUNG_UP,
    "time": EXIT_STOPPED,
}


def end_after(process: subprocess.Popen[str], seconds: float, number: int) -> tuple[int, str]:
    """Send a signal after some time, unless the process is done by then."""
    try:
        _, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        _, err = process.communicate(timeout=300)
    return process.returncode, err


def end_within(rig: Rig, seconds: float, how: str) -> tuple[int, str]:
    """Start a run and end it after some time by a signal or the time limit, sooner where it was
    done before.
    """
    code, err = 0, ""
    while code == 0:
        shutil.rmtree(rig.directory, ignore_errors=True)
        if how == "time":
            process = rig.start("--time-limit", f"{max(1, int(seconds))}s")
            code, err = end_after(process, 300, signal.SIGKILL)
        else:
            code, err = end_after(rig.start(), seconds, getattr(signal, how))
        seconds *= 0.8
    return code, err


# --- killed -----------------------------------------------------------------------------------

# number of cases in the quick part and in all, settings
WAYS = {
    "fp32": (1, 100, []),
    "bf16": (0, 10, ["train.precision=bf16"]),
    "compiled": (0, 10, ["train.compile=true"]),
    "two threads, two micro-batches a step": (0, 10, ["train.threads=2", "train.step_batches=2"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_killed_at_random_instants(bench: Bench, way: str) -> None:
    quick, full, settings = WAYS[way]
    if way == "bf16" and not has_fast_bf16(torch.device("cpu")):
        pytest.skip("this CPU does not compute in bf16")
    bench.quick_or_full(quick, full)
    other, seconds = undisturbed(bench.config, *settings)
    if way == "compiled":  # again, with what torch's compiler has kept of the first time
        _, seconds = undisturbed(bench.config, *settings, "train.log_every=20")

    def trial(instant: float) -> str:
        rig = bench.rig(*settings)
        end_within(rig, instant, "SIGKILL")
        if way in ("fp32", "bf16"):
            return bench.finishes(rig, *settings)
        return rig.finish().fails() or rig.differs_from(other)

    instants = [random.Random(seed).uniform(0, seconds) for seed in range(full)]
    bench.inject(trial, instants, quick=quick, threads=2 if "two" in way else 1)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_and_resumed_by_another_number_of_ranks(bench: Bench) -> None:
    bench.quick_or_full(0, 20)  # test_distributed has another case
    settings = ("train.step_batches=6", "train.subword_sampling=0.1", "train.ema_decay=0.9")
    other, _ = undisturbed(bench.config, *settings)

    def trial(seed: int) -> str:
        draw, rig = random.Random(seed), bench.rig(*settings)
        rig.directory.mkdir()
        for size, step in zip((4, 2, 1), sorted(draw.sample(range(2, 110), 3)), strict=True):
            hooks = {draw.randrange(size): partial(at_step, step, kill_self)}
            codes = train_by(size, bench.config, rig.run, *settings, hooks=hooks).codes
            if -signal.SIGKILL not in codes:
                return f"{size} ranks, killed at step {step}: {codes}"
        done = train_by(4, bench.config, rig.run, *settings)
        return rig.differs_from(other) if done.codes == [0] * 4 else str(done)

    bench.inject(trial, range(20), threads=2)


# Counts the places of one save where the disk changes or something is read back, and kills the
# process at one of them: files and directories made, opened, synced, renamed and removed, up to the
# end of pruning.
POINTS = """
import os, signal, sys
from mtrain.training.trainer import Trainer
AT = {at}
passed = None
def point():
    global passed
    if passed is not None:
        passed += 1
        if passed == AT:
            os.kill(os.getpid(), signal.SIGKILL)
EVENTS = {{"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.scandir"}}
sys.addaudithook(lambda event, arguments: point() if event in EVENTS else None)
fsync, save = os.fsync, Trainer._save
os.fsync = lambda number: (point(), fsync(number))
def saving(self):
    global passed
    if self.progress.step == 60:
        passed = 0
    save(self)
    if passed is not None:
        passed, points = None, passed
        print("points", points, file=sys.stderr, flush=True)
        os._exit(0)
Trainer._save = saving
"""

# Kills the process in the middle of a file, once it has this many bytes.
HALF_A_FILE = (
    "signal.signal(signal.SIGXFSZ, signal.SIG_DFL); "
    "resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
)


def test_killed_at_every_point_of_a_save(bench: Bench) -> None:
    bench.quick_or_full(0, 1)  # test_resume dies at some renames
    steps = "train.max_steps=80"
    words = bench.train(bench.rig(steps), prelude=POINTS.format(at=0)).err.split()
    points = int(words[words.index("points") + 1])
    assert points > 40
    sizes = [10, 1000, 5_000, 20_000, 40_000, 60_000, 80_000]
    preludes = [POINTS.format(at=at) for at in range(1, points + 1)]
    preludes += [strike(60, HALF_A_FILE.format(size=size), "_save") for size in sizes]

    def trial(prelude: str) -> str:
        rig = bench.rig(steps)
        code = bench.train(rig, prelude=prelude).code
        if code not in (-signal.SIGKILL, -signal.SIGXFSZ):
            return f"exit code {code}"
        # of two saves, the one that is whole
        newest = layout.complete_checkpoints(rig.run / "checkpoints")[-1]
        checkpoint.load(newest)
        checkpoint.load_trainer(newest)
        if layout.step_of(newest) not in (50, 60):
            return f"the newest is {newest}"
        return bench.finishes(rig, steps)

    bench.inject(trial, preludes)


# --- stopped ----------------------------------------------------------------------------------


def test_stopped_at_random_instants(bench: Bench) -> None:
    def trial(case: tuple[str, float]) -> str:
        how, fraction = case
        rig, (_, seconds) = bench.rig(), undisturbed(bench.config)
        code, err = end_within(rig, 1 + fraction * (0.9 * seconds - 1), how)
        if code != CODES[how] or "Traceback" in err:
            return f"exit code {code}\n{err}"
        if (rig.run / "status.json").exists() and status(rig.run)["exit_code"] != code:
            return f"{status(rig.run)}"
        return bench.finishes(rig)

    cases = [(how, random.Random(seed).random()) for seed in range(10) for how in CODES]
    bench.inject(trial, cases)


# Asks the process to stop while it is in one of its phases, once or twice.
ASKED = """
import os, signal, time
from mtrain.data import prepare
from mtrain.runs import checkpoint
from mtrain.training import learner, validation
owner, name = {phase}
function, calls, clock = getattr(owner, name), 0, time.monotonic
def asked(*arguments, **options):
    global calls
    calls += 1
    if calls == {call}:
        for _ in range({times}):
            if {how!r} == "time":
                time.monotonic = lambda: clock() + 3600
            else:
                os.kill(os.getpid(), getattr(signal, {how!r}))
    return function(*arguments, **options)
setattr(owner, name, asked)
"""
PHASES = {
    "loading": ("prepare.readers, 'scan'", 2),
    "a step": ("learner.Learner, 'sum_gradients'", 33),
    "validation": ("validation.Validation, 'evaluate'", 2),
    "a save": ("checkpoint, 'save'", 4),
    "averaging": ("checkpoint, 'average'", 1),
}


def test_stopped_in_every_phase(bench: Bench) -> None:
    def trial(case: tuple[str, str, int]) -> str:
        how, phase, times = case
        rig, (place, call) = bench.rig(), PHASES[phase]
        prelude = ASKED.format(phase=place, call=call, times=times, how=how)
        done = bench.train(rig, "--time-limit", "30m", prelude=prelude)
        if problem := done.fails(CODES[how]):
            return problem
        found = status(rig.run)
        saved = [
            layout.step_of(path) for path in layout.complete_checkpoints(rig.run / "checkpoints")
        ]
        if times == 1 and (found["state"], found["step"]) != ("stopped", [0, *saved][-1]):
            return f"{found}, saved {saved}"
        return bench.finishes(rig)

    cases = [case for case in product(CODES, PHASES, (1, 2)) if case[::2] != ("time", 2)]
    bench.inject(trial, cases, quick=1)


# --- started more than once ---------------------------------------------------------------------


def test_started_at_once(bench: Bench) -> None:
    def trial(number: int) -> str:
        rig = bench.rig()
        started = [rig.start() for _ in range(number)]
        ends = [(process.communicate(timeout=300)[1], process) for process in started]
        trained = [process.pid for err, process in ends if "step 15/110" in err]
        for err, process in ends:
            if process.pid in trained or "training is complete" in err:
                is_right = process.returncode == 0
            else:
                holder = f"process {trained[0]} on {gethostname()}" if trained else "process"
                is_right = process.returncode == EXIT_REFUSED and holder in err
            if not is_right or "Traceback" in err:
                return f"exit code {process.returncode}\n{err}"
        found = status(rig.run)
        if ([found["pid"]], found["host"], found["state"]) != (trained, gethostname(), "complete"):
            return f"trained by {trained}, {json.dumps(found)}"
        return bench.finishes(rig)

    bench.inject(trial, range(2, 9))
