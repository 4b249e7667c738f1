"""The rig: a small deterministic run, `mtrain` processes to hurt, and what must come out."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from conftest import differences, write_config

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
from mtrain.train import Trainer
method = Trainer.{method}
def struck(self, *arguments):
    if self.position.step == {step}:
        {deed}
    return method(self, *arguments)
Trainer.{method} = struck
"""


def strike(step: int, deed: str, method: str = "take_step") -> str:
    """A prelude that does something to the trainer, `self`, once it has taken so many steps."""
    return STRUCK.format(step=step, deed=deed, method=method)


@dataclass(frozen=True)
class Done:
    """How a process ended; `code` is negative for a signal. Most memory in MiB."""

    code: int
    out: bytes
    err: str
    seconds: float
    memory: int

    def refuses(self, code: int, *words: str, lines: int = 3) -> str:
        """Says what is missing of a clear refusal, or nothing; the log takes some of the lines."""
        missing = [word for word in words if word not in self.err]
        tidy = "Traceback" not in self.err and not self.out and self.err.count("\n") <= lines
        if self.code == code and tidy and not missing:
            return ""
        return f"exit code {self.code}, expected {code} and {missing}\n{self.out!r}\n{self.err}"


# Loads what `mtrain` loads, then forks a process for every command that it is sent: each is as
# separate as any, without the two seconds that loading takes. A prelude of Python code says where
# in the command a fault strikes. What runs longer than its limit is killed, with its children.
SERVER = """
import json, os, signal, sys, traceback
from mtrain import cli, evaluate, job, lines
from mtrain.metrics import bleu

def end(child):
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass

while request := sys.stdin.readline():
    request = json.loads(request)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            for number, name in enumerate(("stdin", "stdout", "stderr")):
                flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                os.dup2(os.open(request[name], flags), number)
            sys.stdin, sys.stdout = open(0), open(1, "w")
            sys.stderr = open(2, "w", errors="backslashreplace")
            os.environ.update(request["environment"])
            sys.argv = ["mtrain", *request["arguments"]]
            exec(request["prelude"], {})
            cli.main()
            code = 0
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except OSError:
                    pass
            os._exit(code)
    signal.signal(signal.SIGALRM, lambda *_: end(child))
    signal.setitimer(signal.ITIMER_REAL, request["limit"])
    _, status, usage = os.wait4(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    end(child)
    print(os.waitstatus_to_exitcode(status), usage.ru_maxrss >> 10, flush=True)
"""


@dataclass
class Processes:
    """Runs `mtrain` commands in processes forked from ones that have loaded torch."""

    directory: Path
    within: list[str] = field(default_factory=list)  # a command that starts the servers
    idle: list[subprocess.Popen[str]] = field(default_factory=list)
    number: int = 0
    lock: Lock = field(default_factory=Lock)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for server in self.idle:
            assert server.stdin is not None
            server.stdin.close()
            server.wait()

    def _take(self) -> subprocess.Popen[str]:
        with self.lock:
            if self.idle:
                return self.idle.pop()
        command = [*self.within, sys.executable, "-c", SERVER]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # as many at a time as there are cores
        return subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment)

    def mtrain(
        self,
        *arguments: str | Path,
        stdin: bytes = b"",
        prelude: str = "",
        limit: float = 600,
        **environment: str,
    ) -> Done:
        """Run one command to its end, or kill it after `limit` seconds."""
        with self.lock:
            self.number += 1
            stem = self.directory / str(self.number)
        files = {name: f"{stem}.{name}" for name in ("stdin", "stdout", "stderr")}
        Path(files["stdin"]).write_bytes(stdin)
        request = {
            **files,
            "arguments": [str(argument) for argument in arguments],
            "environment": environment,
            "prelude": prelude,
            "limit": limit,
        }
        server, started = self._take(), time.monotonic()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code, memory = map(int, server.stdout.readline().split())
        seconds = time.monotonic() - started
        with self.lock:
            self.idle.append(server)
        out = Path(files["stdout"]).read_bytes()
        err = Path(files["stderr"]).read_bytes().decode(errors="backslashreplace")
        for file in files.values():
            Path(file).unlink()
        return Done(code, out, err, seconds, memory)

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
