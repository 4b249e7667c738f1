"""Locks between processes, released by the system however their holder ends."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mtrain.errors import RefusedError


@contextmanager
def exclusive(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock file `path`; if another process has it, wait, or raise `RefusedError` naming
    that process.

    The file stays behind: what counts is the system's lock on it, so a killed holder leaves nothing
    stale.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise RefusedError(
                f"{path.parent}: in use by {_holder(path)}; wait for it or stop it"
            ) from None
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        file.flush()
        yield


def _holder(path: Path) -> str:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return f"process {content['pid']} on {content['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
