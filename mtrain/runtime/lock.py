"""Locks between processes. The system releases a lock when its process ends, however it ends."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mtrain.runtime import files
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.json_reader import adapter_of, read_json_file

POLL = 0.5  # seconds between attempts to get a lock


@dataclass(frozen=True)
class Holder:
    """Content of a lock file: the process that holds it."""

    pid: int
    host: str


class ReplacedError(UserError):
    """A directory was removed or replaced while this process held its lock."""


@dataclass(frozen=True)
class Held:
    """A lock file that this process holds."""

    path: Path
    descriptor: int

    def check(self) -> None:
        """Raise `ReplacedError` if the file, and so its directory, was removed or replaced."""
        if not files.is_at(self.descriptor, self.path):
            raise ReplacedError(
                f"{self.path.parent}: was removed or replaced while this process used it, and is "
                f"left as it is; if only {self.path.name} was removed, run the same command again; "
                "if the directory was renamed, add --set run_dir=NEW; else start again with a "
                "run_dir that nobody removes"
            )


@contextmanager
def exclusive(path: Path, *, wait: Callable[[str], None] | None = None) -> Iterator[Held]:
    """Lock the file `path`, which is created if necessary and never removed. While another process
    holds the lock, call `wait` with the name of that process; without `wait`, raise `RefusedError`.
    Raises `OSError` for a link, a pipe or a directory.
    """
    while True:
        files.make_directories(path.parent)
        held = Held(path, files.open_regular(path, os.O_RDWR | os.O_CREAT))
        try:
            while not files.try_lock(held.descriptor):
                holder = _holder(path)
                if wait is None:
                    raise RefusedError(f"{path.parent}: in use by {holder}; wait for it or stop it")
                wait(holder)
                time.sleep(POLL)
            if files.is_at(held.descriptor, path):  # a lock on a removed file protects nothing
                _write_name(held.descriptor)
                yield held
                return
        finally:
            os.close(held.descriptor)


def _write_name(descriptor: int) -> None:
    """Name this process in the lock file, unless a hard link makes it somebody's file, too."""
    if os.fstat(descriptor).st_nlink > 1:
        return
    holder = Holder(os.getpid(), socket.gethostname())
    with suppress(OSError):  # a full disk is reported by the writes that the lock protects
        os.ftruncate(descriptor, 0)
        os.write(descriptor, adapter_of(Holder).dump_json(holder))


def _holder(path: Path) -> str:
    """Name the process that holds a lock; it writes its name just after locking."""
    for _ in range(20):
        with suppress(OSError, ValueError):
            holder = read_json_file(path, Holder)
            if holder.host != socket.gethostname() or is_alive(holder.pid):
                return f"process {holder.pid} on {holder.host}"
        time.sleep(0.05)
    return "another process"


def is_alive(pid: int) -> bool:
    """Whether this machine has a process with this number."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return pid > 0  # 0 and negative numbers name groups of processes
