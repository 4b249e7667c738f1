"""Runs that are killed, stopped or started twice: they go on with the same command, and end in the
same bytes.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname

import pytest
import torch
from conftest import status

from faults.conftest import Count, Tally
from faults.rig import Processes, Rig, in_parallel, new_config, strike, undisturbed
from mtrain.runs import checkpoint, layout
from mtrain.runtime.device import has_fast_bf16
from mtrain.runtime.errors import EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_STOPPED, EXIT_TERMINATED

CODES = {"SIGTERM": EXIT_TERMINATED, "SIGUSR1": EXIT_STOPPED, "SIGINT": EXIT_INTERRUPTED}
LIMIT = ("--time-limit", "30m")


@pytest.fixture(scope="module")
def config(place: Path) -> Path:
    return new_config(place / "stops")


@pytest.fixture
def rigs(tmp_path: Path, config: Path) -> Iterator[Rig]:
    """Endless runs, each in a directory of its own."""
    return (Rig(config, tmp_path / str(number)) for number in range(1_000_000))


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

# how, in how many threads, how often in the quick share and in all
WAYS = [
    ("fp32", [], 1, 1, 100),
    ("bf16", ["train.precision=bf16"], 1, 0, 10),
    ("compiled", ["train.compile=true"], 1, 0, 10),
    ("two threads, two micro-batches a step", ["train.threads=2", "train.accum_steps=2"], 2, 0, 10),
]


@pytest.mark.parametrize(
    ("way", "settings", "threads", "quick", "full"), WAYS, ids=[way[0] for way in WAYS]
)
def test_killed_at_random_instants(
    config: Path,
    tmp_path: Path,
    processes: Processes,
    tally: Tally,
    count: Count,
    way: str,
    settings: list[str],
    threads: int,
    quick: int,
    full: int,
) -> None:
    if way == "bf16" and not has_fast_bf16(torch.device("cpu")):
        pytest.skip("this CPU does not compute in bf16")
    number = count(quick, full)
    other, seconds = undisturbed(config, *settings)
    if way == "compiled":  # again, with what torch's compiler has kept of the first time
        _, seconds = undisturbed(config, *settings, "train.log_every=20")
    finishes_as = processes.finishes_as if way in ("fp32", "bf16") else Rig.finishes_as
    instants = [random.Random(seed).uniform(0, seconds) for seed in range(number)]

    def trial(instant: float) -> str:
        rig = Rig(config, tmp_path / str(instant), tuple(settings))
        end_within(rig, instant, "SIGKILL")
        trouble = finishes_as(rig, other)
        shutil.rmtree(rig.directory)
        return trouble and f"killed after {instant:.3f} s: {trouble}"

    outcomes = in_parallel(trial, instants, threads)
    tally.check(1, f"kill -9 at a random instant: {way}", outcomes)


def test_killed_five_times(
    config: Path, tmp_path: Path, processes: Processes, tally: Tally, count: Count
) -> None:
    other, seconds = undisturbed(config)

    def trial(seed: int) -> str:
        rig, instants = Rig(config, tmp_path / str(seed)), random.Random(seed)
        for _ in range(5):
            end_after(rig.start(), instants.uniform(0.3, 1) * seconds, signal.SIGKILL)
        return processes.finishes_as(rig, other)

    tally.check(1, "kill -9 five times in a run", in_parallel(trial, range(count(0, 10))))


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

# Kills the process in the middle of a file, once it has so many bytes.
HALF_A_FILE = (
    "signal.signal(signal.SIGXFSZ, signal.SIG_DFL); "
    "resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
)


def leaves_a_good_checkpoint(rig: Rig) -> str:
    """Of two saves, the one that is whole: the newest must load."""
    newest = layout.steps(rig.run / "checkpoints")[-1]
    checkpoint.load(newest)
    checkpoint.load_trainer(newest)
    return "" if layout.step_of(newest) in (50, 60) else f"the newest is {newest}"


def test_killed_at_every_point_of_a_save(
    config: Path, tmp_path: Path, processes: Processes, tally: Tally, count: Count
) -> None:
    steps = "train.max_steps=80"
    other, _ = undisturbed(config, steps)
    counting = Rig(config, tmp_path / "counting", (steps,))
    words = processes.train(counting, prelude=POINTS.format(at=0)).err.split()
    points = int(words[words.index("points") + 1])
    assert points > 40
    sizes = [10, 1000, 5_000, 20_000, 40_000, 60_000, 80_000]
    preludes = [POINTS.format(at=at) for at in range(1, points + 1)]
    preludes += [strike(60, HALF_A_FILE.format(size=size), "_save") for size in sizes]
    some = random.Random(1).sample(preludes, count(1, len(preludes)))

    def trial(case: tuple[int, str]) -> str:
        number, prelude = case
        rig = Rig(config, tmp_path / str(number), (steps,))
        code = processes.train(rig, prelude=prelude).code
        if code not in (-signal.SIGKILL, -signal.SIGXFSZ):
            return f"exit code {code} of\n{prelude}"
        trouble = leaves_a_good_checkpoint(rig) or processes.finishes_as(rig, other)
        shutil.rmtree(rig.directory)
        return trouble and f"{trouble}\n{prelude}"

    tally.check(2, "kill -9 at every point of a save", in_parallel(trial, enumerate(some)))


# --- stopped ----------------------------------------------------------------------------------


def test_stopped_at_random_instants(
    config: Path, rigs: Iterator[Rig], processes: Processes, tally: Tally, count: Count
) -> None:
    other, seconds = undisturbed(config)
    cases = [
        (how, random.Random(seed).uniform(1.0, 0.9 * seconds))
        for seed in range(count(0, 10))
        for how in (*CODES, "time")
    ]

    def trial(case: tuple[Rig, tuple[str, float]]) -> str:
        rig, (how, instant) = case
        code, err = end_within(rig, instant, how)
        expected = CODES.get(how, EXIT_STOPPED)
        if code != expected or "Traceback" in err:
            return f"{how} after {instant:.3f} s: exit code {code}\n{err}"
        if (rig.run / "status.json").exists() and status(rig.run)["exit_code"] != code:
            return f"{how} after {instant:.3f} s: {status(rig.run)}"
        trouble = processes.finishes_as(rig, other)
        shutil.rmtree(rig.directory)
        return trouble and f"{how} after {instant:.3f} s: {trouble}"

    tally.check(
        3,
        "signal or time limit at a random instant",
        in_parallel(trial, zip(rigs, cases, strict=False)),
    )


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
    "loading": ("prepare, 'scan'", 2),
    "a step": ("learner.Learner, '_accumulate'", 33),
    "validation": ("validation.Validation, 'evaluate'", 2),
    "a save": ("checkpoint, 'save'", 4),
    "averaging": ("checkpoint, 'average'", 1),
}


def test_stopped_in_every_phase(
    config: Path, tmp_path: Path, processes: Processes, tally: Tally, count: Count
) -> None:
    steps = "train.max_steps=110"
    other, _ = undisturbed(config, steps)
    cases = [(how, phase, 1) for phase in PHASES for how in (*CODES, "time")]
    cases += [(how, phase, 2) for phase in PHASES for how in CODES]
    some = random.Random(2).sample(cases, count(1, len(cases)))

    def trial(case: tuple[str, str, int]) -> str:
        how, phase, times = case
        rig = Rig(config, tmp_path / f"{how} {phase} {times}", (steps,))
        place, call = PHASES[phase]
        prelude = ASKED.format(phase=place, call=call, times=times, how=how)
        done = processes.train(rig, *LIMIT, prelude=prelude)
        name = f"{how} x {times} in {phase}"
        if done.code != CODES.get(how, EXIT_STOPPED) or "Traceback" in done.err:
            return f"{name}: exit code {done.code}\n{done.err}"
        told = status(rig.run)
        if times == 1 and told["state"] != "stopped":
            return f"{name}: {told}"
        saved = [layout.step_of(path) for path in layout.steps(rig.run / "checkpoints")]
        if times == 1 and told["step"] != (saved[-1] if saved else 0):
            return f"{name}: {told}, saved {saved}"
        trouble = processes.finishes_as(rig, other)
        shutil.rmtree(rig.directory)
        return trouble and f"{name}: {trouble}"

    tally.check(3, "signal or time limit in a chosen phase", in_parallel(trial, some))


# What a resumed run takes up again, each forgotten once. The other runs' equality means something
# only if these are told apart.
BEFORE = "resume.Progress = lambda sums, step=0, *rest: progress(sums, step and step - 1, *rest)"
BROKEN = {
    "position of the sampler": "resume.Progress = lambda sums, step=0, *_: progress(sums, step)",
    "randomness": "trainer.micro_batch_seed = lambda seed, step, index: step",
    "moments": "optimizer.Optimizer.load_moments = lambda *_: None",
    "step": BEFORE,
}


def test_restores_that_are_broken(
    config: Path, rigs: Iterator[Rig], processes: Processes, tally: Tally, count: Count
) -> None:
    other, _ = undisturbed(config)

    def trial(case: tuple[Rig, str]) -> str:
        rig, name = case
        stopped = processes.train(rig, prelude=strike(95, "os.kill(os.getpid(), signal.SIGTERM)"))
        modules = "from mtrain.training import optimizer, resume, trainer"
        broken = f"{modules}\nprogress = resume.Progress\n{BROKEN[name]}"
        resumed = processes.train(rig, prelude=broken)
        noticed = "step-00000200/model.safetensors" in rig.differs_from(other)
        if (stopped.code, resumed.code, noticed) == (EXIT_TERMINATED, 0, True):
            return ""
        return f"a restore without its {name}: {stopped.code}, {resumed.code}\n{resumed.err}"

    some = list(BROKEN)[: count(0, len(BROKEN))]
    tally.check(
        1,
        "a restore broken on purpose, which the comparison must notice",
        in_parallel(trial, zip(rigs, some, strict=False)),
    )


# --- started more than once ---------------------------------------------------------------------


def test_started_at_once(
    config: Path, rigs: Iterator[Rig], processes: Processes, tally: Tally, count: Count
) -> None:
    other, _ = undisturbed(config)

    def trial(number: int) -> str:
        rig = next(rigs)
        started = [rig.start() for _ in range(number)]
        ends = [(process.communicate(timeout=300)[1], process) for process in started]
        trained = [process.pid for err, process in ends if "step 15/200" in err]
        for err, process in ends:
            if process.pid in trained or "training is complete" in err:
                expected = process.returncode == 0
            else:
                holder = f"process {trained[0]} on {gethostname()}" if trained else "process"
                expected = process.returncode == EXIT_REFUSED and holder in err
            if not expected or "Traceback" in err:
                return f"{number} at once: exit code {process.returncode}\n{err}"
        told = status(rig.run)
        by = [told["pid"]], told["host"], told["state"]
        if by != (trained, gethostname(), "complete"):
            return f"{number} at once: trained by {trained}, {json.dumps(told)}"
        return processes.finishes_as(rig, other)

    numbers = range(2, 2 + count(0, 7))
    tally.check(13, "two to eight starts at once", [trial(number) for number in numbers])


def test_a_lock_left_by_a_killed_run(
    config: Path, rigs: Iterator[Rig], processes: Processes, tally: Tally, count: Count
) -> None:
    other, seconds = undisturbed(config)

    def trial(rig: Rig) -> str:
        process = rig.start()
        while not (rig.run / ".lock").exists() and process.poll() is None:
            time.sleep(0.01)
        end_after(process, 0.1 * seconds, signal.SIGKILL)
        return processes.finishes_as(rig, other)

    some = [next(rigs) for _ in range(count(0, 4))]
    tally.check(13, "a lock left by a killed run", in_parallel(trial, some))
