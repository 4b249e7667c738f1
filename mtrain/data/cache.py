"""Results that many runs use, kept by what they depend on."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from mtrain.runtime import files, lock
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.json_reader import LARGEST, Content, read_json
from mtrain.runtime.log import logger
from mtrain.runtime.stop import Stop

Item = TypeVar("Item")

# To be increased when the meaning of a kept fact changes.
KNOWN = 1
# A file may change twice within so many nanoseconds and show one time: what is found out about one
# that is younger is not kept.
YOUNG = 2 * 10**9


def cache_directory() -> Path:
    """Where it is kept: $MTRAIN_CACHE, or mtrain/ in the user's cache directory; raises
    `RefusedError`.
    """
    given = os.environ.get("MTRAIN_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(files.expand_path(given or os.path.join(base, "mtrain")))
    except ValueError as error:
        text = f"MTRAIN_CACHE: the directory of prepared text, {given or base}: {error}"
        raise RefusedError(text) from None


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

    def found_whole() -> Item | None:
        return None if path.is_symlink() else find(path)

    def waiting(holder: str) -> None:
        stop.check()
        if holder not in told:
            told.add(holder)
            logger.info("waiting for %s, which prepares the same text", holder)

    if (found := found_whole()) is not None:
        return found  # complete and never changed again: the lock is not needed
    try:
        with lock.exclusive(path.with_name(f".{key}.lock"), wait=waiting):
            found = found_whole()
            return make(path) if found is None else found
    except OSError as error:
        raise UserError(
            f"{error.filename or path}: cannot keep the prepared text: {error.strerror or error}; "
            "MTRAIN_CACHE names another directory for it"
        ) from None


def remembered(
    of: list[Path], question: object, find: Callable[[], Content], form: TypeAdapter[Content]
) -> Content:
    """Compute a fact about the content of files, or return it from the cache as long as their
    sizes, times and inodes are the same; `question` identifies the fact.
    """
    before = _signs(of)
    if before is None:
        return find()
    key = cache_key("known", KNOWN, before, question)
    path = cache_directory() / "known" / key[:2] / key
    with suppress(OSError, ValueError):
        return _sound(path, form)
    found = find()
    if _signs(of) == before and max(time for *_, time in before) < time.time_ns() - YOUNG:
        with suppress(OSError):  # a cache that cannot be written to is only slower
            cache_directory().mkdir(parents=True, exist_ok=True)
            files.make_directory(path.parent.parent)
            files.make_directory(path.parent)
            body = form.dump_json(found)
            files.write_bytes(path, _digest(body) + body)
    return found


def _sound(path: Path, form: TypeAdapter[Content]) -> Content:
    """Read a finding that is kept; raises `ValueError` where it is damaged."""
    data = files.read_whole(path, LARGEST)
    body = data[len(_digest(b"")) :]
    if not data.startswith(_digest(body)):
        raise ValueError("not the form that was written")
    return read_json(body, form)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode() + b"\n"


def _signs(files: list[Path]) -> list[tuple[str, int, int, int, int]] | None:
    """Return what changes when the files change; None if one is no regular file."""
    signs = []
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            return None
        if not file.is_file():
            return None
        place = (str(file.absolute()), stat.st_ino, stat.st_size)
        signs.append((*place, stat.st_mtime_ns, stat.st_ctime_ns))
    return signs
