"""Results that many runs use, kept by what they depend on."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from stat import S_ISREG
from typing import TypeVar

from pydantic import TypeAdapter

from mtrain.runs import manifest
from mtrain.runtime import files, lock
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.json_reader import MAX_JSON_BYTES, Content, read_json
from mtrain.runtime.log import logger
from mtrain.runtime.stop import Stop

Item = TypeVar("Item")

# Increased when a kept fact changes its meaning.
FACT_VERSION = 1
# Nanoseconds. Two changes within this time may leave the same time of change, so facts about files
# that changed more recently are not kept.
YOUNG = 2 * 10**9
WAITING = "waiting for %s, which prepares the same text"


def cache_directory() -> Path:
    """Return $MTRAIN_CACHE, or mtrain/ in the user's cache directory; raises `RefusedError`."""
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


def kept(key: str, read: Callable[[Path], Item]) -> Item | None:
    """Read an item, which is a sealed directory; None if it is missing or damaged."""
    path = cache_directory() / key
    try:
        return None if path.is_symlink() else read(path)
    except (manifest.DamagedError, FileNotFoundError, ValueError):
        return None


def cached(
    key: str, read: Callable[[Path], Item], fill: Callable[[Path], None], stop: Stop
) -> Item:
    """Read an item, or let `fill` write its files and read it then; while another process makes it,
    wait. Raises `UserError` where it cannot be kept.
    """
    path, announce = cache_directory() / key, cache(partial(logger.info, WAITING))

    def wait(holder: str) -> None:
        stop.check()
        announce(holder)

    if (found := kept(key, read)) is not None:
        return found  # complete and never changed again: the lock is not needed
    try:
        with lock.exclusive(path.with_name(f".{key}.lock"), wait=wait):
            if (found := kept(key, read)) is None:
                _remove_unfinished(path.parent)
                manifest.write_directory(path, fill)
                found = kept(key, read)
    except OSError as error:
        raise UserError(
            f"{error.filename or path}: cannot keep the prepared text: {error.strerror or error}; "
            "set MTRAIN_CACHE to another directory"
        ) from None
    if found is None:
        raise UserError(f"{path}: cannot read the prepared text back; check the disk")
    return found


def _remove_unfinished(directory: Path) -> None:
    """Remove what killed processes left half-made."""
    for part in directory.glob(files.PARTIAL.format("*")):
        key = part.name.removeprefix(".").removesuffix(".partial")
        with suppress(RefusedError, OSError), lock.exclusive(directory / f".{key}.lock"):
            manifest.remove_directory(part)


def remembered(
    of: list[Path], question: object, find: Callable[[], Content], form: TypeAdapter[Content]
) -> Content:
    """Compute a fact about the content of files, or return it from the cache as long as their
    sizes, times and inodes are the same; `question` identifies the fact.
    """
    if (before := _signs(of)) is None:
        return find()
    key = cache_key("known", FACT_VERSION, before, question)
    path = cache_directory() / "known" / key[:2] / key
    with suppress(OSError, ValueError):
        head, _, body = files.read_whole(path, MAX_JSON_BYTES).partition(b"\n")
        if head == _digest(body):  # else it is damaged
            return read_json(body, form)
    found = find()
    if _signs(of) == before and max(changed for *_, changed in before) < time.time_ns() - YOUNG:
        with suppress(OSError):  # a cache that cannot be written to is only slower
            cache_directory().mkdir(parents=True, exist_ok=True)
            files.make_directory(path.parent.parent)
            files.make_directory(path.parent)
            body = form.dump_json(found)
            files.write_bytes(path, _digest(body) + b"\n" + body)
    return found


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def _signs(paths: list[Path]) -> list[tuple[str, int, int, int, int]] | None:
    """Return what changes when the files change; None if one is no regular file."""
    try:
        found = [(str(path.absolute()), path.stat()) for path in paths]
    except OSError:
        return None
    if not all(S_ISREG(file.st_mode) for _, file in found):
        return None
    return [(path, f.st_ino, f.st_size, f.st_mtime_ns, f.st_ctime_ns) for path, f in found]
