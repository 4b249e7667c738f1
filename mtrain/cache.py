"""What is prepared once and used by many runs: found by what it depends on, or made and kept."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mtrain import lock
from mtrain.errors import UserError
from mtrain.log import logger
from mtrain.stop import Stop

Item = TypeVar("Item")


def cache_directory() -> Path:
    """Where it is kept: $MTRAIN_CACHE, or mtrain/ in the user's cache directory."""
    if path := os.environ.get("MTRAIN_CACHE"):
        return Path(path)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "mtrain"


def cache_key(*parts: object) -> str:
    """Name an item by all that its content depends on."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def cached(
    key: str, find: Callable[[Path], Item | None], make: Callable[[Path], Item], stop: Stop
) -> Item:
    """Find an item or make it; another process that is making it is waited for. Raises `UserError`
    where it cannot be kept.
    """
    path = cache_directory() / key
    told: set[str] = set()

    def waiting(holder: str) -> None:
        stop.check()
        if holder not in told:
            told.add(holder)
            logger.info("waiting for %s, which prepares the same text", holder)

    if (found := find(path)) is not None:
        return found  # whole, and never changed again: no need for the lock
    try:
        with lock.exclusive(path.with_name(f".{key}.lock"), wait=waiting):
            found = find(path)
            return make(path) if found is None else found
    except OSError as error:
        raise UserError(
            f"{error.filename or path}: cannot keep the prepared text: {error.strerror}; "
            "MTRAIN_CACHE names another directory for it"
        ) from None
