"""Locks between processes, released by the system however their holder ends."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from mtrain.runtime import files
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.json_reader import read_json_file

POLL = 0.5  # seconds between two tries to get a lock


@dataclass(frozen=True)
class Holder:
    """Content of a lock file: the process that holds it."""

    pid: int
    host: str


HOLDER = TypeAdapter(Holder)


class ReplacedError(UserError):
    """A directory that was removed or replaced while this process held it."""


@dataclass(frozen=True)
class Held:
    """A lock file that this process holds."""

    path: Path
    descriptor: int

    def is_there(self) -> bool:
        """Whether the file still has its name: a lock on a removed file protects nothing."""
        return files.is_at(self.descriptor, self.path)

    def check(self) -> None:
        """Raise `ReplacedError` if the file, and with it its directory, was removed or replaced by
        another process.
        """
        if not self.is_there():
            raise ReplacedError(
                f"{self.path.parent}: was removed or replaced while this process used it; nothing "
                "more is written to it. Start again with a run_dir that nobody removes"
            )


@contextmanager
def exclusive(path: Path, *, wait: Callable[[str], None] | None = None) -> Iterator[Held]:
    """Hold the lock file `path`. While another process holds it, `wait` is called with that
    process's name twice a second; without `wait`, raise `RefusedError`.

    The file stays: only the system's lock on it counts, so a killed holder leaves nothing stale.
    Raises `OSError` if the name is that of a link or not of a regular file.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = Held(path, files.open_kept(path, os.O_RDWR | os.O_CREAT))
        try:
            while not files.try_lock(held.descriptor):
                holder = _holder(path)
                if wait is None:
                    raise RefusedError(f"{path.parent}: in use by {holder}; wait for it or stop it")
                wait(holder)
                time.sleep(POLL)
            if held.is_there():  # else it was removed meanwhile and another process has a new one
                _write_down(held.descriptor)
                yield held
                return
        finally:
            os.close(held.descriptor)


def _write_down(descriptor: int) -> None:
    """Name this process in the lock's file, unless that is another file, too (a hard link)."""
    if os.fstat(descriptor).st_nlink > 1:
        return
    os.ftruncate(descriptor, 0)
    os.write(descriptor, HOLDER.dump_json(Holder(os.getpid(), socket.gethostname())))


def _holder(path: Path) -> str:
    """Name the process that has a lock, which it writes down just after taking it."""
    for _ in range(20):
        with suppress(OSError, ValueError):
            holder = read_json_file(path, HOLDER)
            if holder.host != socket.gethostname() or is_alive(holder.pid):
                return f"process {holder.pid} on {holder.host}"
        time.sleep(0.05)
    return "another process"


def is_alive(pid: int) -> bool:
    """Whether a process of this machine has this number."""
    if not 0 < pid < 2**31:  # no number that a process can have
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
