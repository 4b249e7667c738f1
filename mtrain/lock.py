"""Locks between processes, released by the system however their holder ends."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from mtrain.errors import RefusedError


@contextmanager
def exclusive(path: Path, *, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock file `path`.

    If another process has it, `wait` is told which one, twice a second until the lock is free;
    without `wait` that is refused with `RefusedError`. The file stays behind: what counts is the
    system's lock on it, so a killed holder leaves nothing stale.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        while not _try(file):
            holder = _holder(path)
            if wait is None:
                raise RefusedError(f"{path.parent}: in use by {holder}; wait for it or stop it")
            wait(holder)
            time.sleep(0.5)
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        file.flush()
        yield


def _try(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(path: Path) -> str:
    """Name the process that has a lock, which it writes down just after taking it."""
    for _ in range(20):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["host"] != socket.gethostname() or is_alive(content["pid"]):
                return f"process {content['pid']} on {content['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            pass
        time.sleep(0.05)
    return "another process"


def is_alive(pid: int) -> bool:
    """Tell whether a process of this machine is there."""
    if not 0 < pid < 2**31:  # no number that a process can have
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
