"""The rig: a small deterministic run, processes to damage, and how outcomes are judged.

Each fault is a trial: it damages something, and returns what went wrong, or an empty text.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from conftest import differences, write_config
from processes import Done, Processes

Case = TypeVar("Case")

# Dropout is on; records, checkpoints, validations and epochs fall on different steps.
SETTINGS = {
    "pairs": 60,
    "train.max_steps": 110,
    "train.max_tokens": 100,
    "train.warmup_steps": 20,
    "train.log_every": 15,
    "train.save_every": 10,
    "train.valid_every": 50,
    "train.keep_checkpoints": 3,
    "train.average_last": 3,
    "decode.max_len_b": 3,
}
THREE_STEPS = {
    "train.max_steps": 3,
    "train.save_every": 1,
    "train.valid_every": 3,
    "train.average_last": 1,
    "data.test": {},
}


@dataclass(frozen=True)
class Rig:
    """One run in a directory of its own, with its own cache unless another is shared."""

    config: Path
    directory: Path
    settings: tuple[str, ...] = ()
    shared_cache: Path | None = None

    @property
    def run(self) -> Path:
        return self.directory / "run"

    @property
    def cache(self) -> Path:
        return self.shared_cache or self.directory / "cache"

    @property
    def arguments(self) -> list[str]:
        settings = [f"run_dir={self.run}", *self.settings]
        return ["train", "-c", str(self.config), *(f"--set={item}" for item in settings)]

    def start(self, *arguments: str, start_new_session: bool = False) -> subprocess.Popen[str]:
        """Start it as a user would."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen(
            [sys.executable, "-m", "mtrain", *self.arguments, *arguments],
            env={**os.environ, "MTRAIN_CACHE": str(self.cache)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=start_new_session,
        )

    def finish(self) -> Done:
        """Train to the end as a user would: a fork has only one of the threads that it needs."""
        started, process = time.monotonic(), self.start()
        out, err = process.communicate(timeout=300)
        return Done(process.returncode, out.encode(), err, time.monotonic() - started, 0)

    def differs_from(self, other: Rig) -> str:
        """Name what differs between two finished runs."""
        return ", ".join(differences(self.run, other.run))


def new_config(directory: Path, **overrides: Any) -> Path:
    """Write the rig's config and corpora."""
    directory.mkdir(parents=True, exist_ok=True)
    return write_config(directory, **{**SETTINGS, **overrides})


# Of each call of `Bench.inject`: name of the test, and numbers of faults injected and survived.
INJECTED: list[tuple[str, int, int]] = []
LEFT_ALONE: dict[tuple[object, ...], tuple[Rig, float]] = {}
LOCK = threading.Lock()


def undisturbed(config: Path, *settings: str) -> tuple[Rig, float]:
    """Return a run that was left alone, and the seconds it took."""
    with LOCK:
        if (config, *settings) not in LEFT_ALONE:
            name = "-".join(["undisturbed", *settings]).replace("/", "_")
            rig = Rig(config, config.parent / name, settings)
            done = rig.finish()
            assert not done.fails(), done.fails()
            LEFT_ALONE[config, *settings] = rig, done.seconds
        return LEFT_ALONE[config, *settings]


def in_parallel(trial: Callable[[Case], str], cases: Sequence[Case], threads: int = 1) -> list[str]:
    """Call `trial` for each case, as many at a time as there are cores for that many threads."""
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // threads)) as pool:
        return list(pool.map(trial, cases))


STRUCK = """
import os, resource, shutil, signal, torch
from mtrain.training.trainer import Trainer
method = Trainer.{method}
def struck(self, *arguments):
    if self.progress.step == {step}:
        {action}
    return method(self, *arguments)
Trainer.{method} = struck
"""


def strike(step: int, action: str, method: str = "take_step") -> str:
    """Return a prelude that does something to the trainer, `self`, after `step` steps."""
    return STRUCK.format(step=step, action=action, method=method)


@dataclass
class Bench:
    """Makes runs, damages them, and reports what was not survived."""

    config: Path
    directory: Path
    processes: Processes
    everything: bool = False  # every fault in full number, not the quick part of `make test`
    number: int = 0

    def rig(self, *settings: str, config: Path | None = None) -> Rig:
        """Return a new run; its directory does not exist yet."""
        self.number += 1
        return Rig(config or self.config, self.directory / f"run{self.number}", settings)

    def train(self, rig: Rig, *arguments: str, prelude: str = "") -> Done:
        """Start or resume a run in a fork."""
        rig.directory.mkdir(parents=True, exist_ok=True)
        cache = str(rig.cache)
        return self.processes.mtrain(
            *rig.arguments, *arguments, prelude=prelude, MTRAIN_CACHE=cache
        )

    def finishes(self, rig: Rig, *settings: str) -> str:
        """Train to the end and compare with the undisturbed run of these settings."""
        other, _ = undisturbed(rig.config, *settings)
        return self.train(rig).fails() or rig.differs_from(other)

    def quick_or_full(self, quick: int, full: int) -> int:
        """Choose between the quick part of `make test` and the full number."""
        number = full if self.everything else quick
        if not number:
            pytest.skip("make test-faults injects it")
        return number

    def inject(
        self,
        trial: Callable[[Case], str],
        cases: Sequence[Case],
        *,
        quick: int = 0,
        threads: int = 1,
    ) -> None:
        """Try each case, or a quick part of them, and fail unless all were survived."""
        count = self.quick_or_full(min(quick, len(cases)), len(cases))
        some = cases if self.everything else random.Random(1).sample(cases, count)

        def named(case: Case) -> str:
            problem = trial(case)
            return problem and f"{case}: {problem}"

        failures = [text for text in in_parallel(named, some, threads) if text]
        test = os.environ["PYTEST_CURRENT_TEST"].split("::")[1].rsplit(" ", 1)[0]
        INJECTED.append((test, len(some), len(some) - len(failures)))
        if failures:
            pytest.fail("\n\n".join(failures[:10]), pytrace=False)
