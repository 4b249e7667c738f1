"""The rig: a small deterministic run, `mtrain` processes to hurt, and what must come out."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import processes
from conftest import differences, write_config
from processes import Done

Item, Result = TypeVar("Item"), TypeVar("Result")

# Dropout is on; records, checkpoints, validations and epochs fall on different steps.
SETTINGS = {
    "pairs": 60,
    "train.max_steps": 200,
    "train.max_tokens": 100,
    "train.warmup_steps": 20,
    "train.log_every": 15,
    "train.save_every": 10,
    "train.valid_every": 50,
    "train.keep_checkpoints": 3,
    "train.average_last": 3,
    "decode.max_len_b": 3,
}


@dataclass(frozen=True)
class Rig:
    """One run in a directory of its own, and the command that starts it; its cache is its own, too,
    unless another is shared.
    """

    config: Path
    directory: Path
    settings: tuple[str, ...] = ()
    shared_cache: Path | None = None

    @property
    def run(self) -> Path:
        return self.directory / "run"

    @property
    def arguments(self) -> list[str]:
        settings = [f"run_dir={self.run}", *self.settings]
        return ["train", "-c", str(self.config), *(f"--set={item}" for item in settings)]

    @property
    def cache(self) -> Path:
        return self.shared_cache or self.directory / "cache"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "MTRAIN_CACHE": str(self.cache)}

    def start(self, *arguments: str, start_new_session: bool = False) -> subprocess.Popen[str]:
        """Start it as a user would."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen(
            [sys.executable, "-m", "mtrain", *self.arguments, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=start_new_session,
        )

    def finish(self) -> str:
        """Run it to its end; says what went wrong, or nothing."""
        process = self.start()
        out, err = process.communicate(timeout=300)
        return self.went_wrong(process.returncode, out, err)

    def went_wrong(self, code: int, out: str | bytes, err: str) -> str:
        """Says what was wrong about the end of a process, or nothing."""
        if code != 0 or out or "Traceback" in err:
            return f"{self.run}: exit code {code}\n{out!r}\n{err}"
        return ""

    def differs_from(self, other: Rig) -> str:
        """Names what differs between two finished runs, or says nothing."""
        return ", ".join(differences(self.run, other.run))

    def finishes_as(self, other: Rig) -> str:
        """Run it to its end and compare; says what went wrong or differs, or nothing."""
        return self.finish() or self.differs_from(other)


def new_config(directory: Path, **overrides: Any) -> Path:
    """Write the rig's config and corpora."""
    directory.mkdir(parents=True, exist_ok=True)
    return write_config(directory, **{**SETTINGS, **overrides})


@functools.cache
def undisturbed(config: Path, *settings: str) -> tuple[Rig, float]:
    """A run that was left alone, and the seconds it took."""
    name = "-".join(["undisturbed", *settings]).replace("/", "_")
    rig = Rig(config, config.parent / name, settings)
    started = time.monotonic()
    trouble = rig.finish()
    assert not trouble, trouble
    return rig, time.monotonic() - started


def in_parallel(
    trial: Callable[[Item], Result], items: Iterable[Item], threads: int = 1
) -> list[Result]:
    """Call `trial` for each item, as many at a time as there are cores for runs of so many
    threads.
    """
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // threads)) as pool:
        return list(pool.map(trial, items))


STRUCK = """
import os, resource, shutil, signal, torch
from mtrain.training.trainer import Trainer
method = Trainer.{method}
def struck(self, *arguments):
    if self.progress.step == {step}:
        {deed}
    return method(self, *arguments)
Trainer.{method} = struck
"""


def strike(step: int, deed: str, method: str = "take_step") -> str:
    """A prelude that does something to the trainer, `self`, once it has taken so many steps."""
    return STRUCK.format(step=step, deed=deed, method=method)


class Processes(processes.Processes):
    """Processes that also train the rig's runs."""

    def train(self, rig: Rig, *arguments: str, prelude: str = "") -> Done:
        """Start or resume a run."""
        rig.directory.mkdir(parents=True, exist_ok=True)
        cache = str(rig.cache)
        return self.mtrain(*rig.arguments, *arguments, prelude=prelude, MTRAIN_CACHE=cache)

    def finishes_as(self, rig: Rig, other: Rig) -> str:
        """Run it to its end and compare; says what went wrong or differs, or nothing. Only for runs
        of one thread: of those that it has, a fork keeps one.
        """
        done = self.train(rig)
        return rig.went_wrong(done.code, done.out, done.err) or rig.differs_from(other)
