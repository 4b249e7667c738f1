"""A cache that runs share. Each item is named by a hash of everything that it depends on.

Large items, such as tokenized text, are sealed directories; facts about files are small JSON files.
"""

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

from mtrain.runs import manifest
from mtrain.runtime import files, lock
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.json_reader import MAX_JSON_BYTES, Content, adapter_of, read_json
from mtrain.runtime.log import logger
from mtrain.runtime.stop import Stop

Item = TypeVar("Item")

FACT_VERSION = 1  # increased when the meaning of a cached fact changes
# Two changes within this time may leave the same modification time, so facts about files that
# changed more recently are not cached.
MIN_AGE_NS = 2 * 10**9
WAITING = "waiting for %s, which prepares the same text"


def cache_directory() -> Path:
    """Return $MTRAIN_CACHE, or mtrain/ in the user's cache directory; raises `RefusedError`."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = os.environ.get("MTRAIN_CACHE") or os.path.join(base, "mtrain")
    try:
        return Path(files.expand_path(path))
    except ValueError as error:
        text = f"MTRAIN_CACHE: the directory of prepared text, {path}: {error}"
        raise RefusedError(f"{text}, as in MTRAIN_CACHE=/data/cache") from None


def cache_key(*parts: object) -> str:
    """Return the name of an item: a hash of everything that its content depends on."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def read_cached(key: str, read: Callable[[Path], Item]) -> Item | None:
    """Read the item `key`, a sealed directory, with `read`; None if it is missing or damaged."""
    path = cache_directory() / key
    try:
        return None if path.is_symlink() else read(path)
    except (manifest.DamagedError, FileNotFoundError, ValueError):
        return None


def cached(
    key: str, read: Callable[[Path], Item], fill: Callable[[Path], None], stop: Stop
) -> Item:
    """Read the item `key` with `read`. If it is missing, `fill` writes its files first, unless
    another process is doing so. Raises `UserError` if the cache cannot be written.
    """
    path = cache_directory() / key
    announce = cache(partial(logger.info, WAITING))

    def wait(holder: str) -> None:
        stop.check()
        announce(holder)

    item = read_cached(key, read)
    if item is not None:
        return item  # without the lock: a complete item never changes
    try:
        with lock.exclusive(path.with_name(f".{key}.lock"), wait=wait):
            item = read_cached(key, read)  # another process may have written it meanwhile
            if item is None:
                _remove_unfinished(path.parent)
                manifest.write_directory(path, fill)
                item = read_cached(key, read)
    except OSError as error:
        raise UserError(
            f"{error.filename or path}: cannot store the prepared text: {error.strerror or error}; "
            "set MTRAIN_CACHE to another directory, or run the same command again"
        ) from None
    if item is None:
        raise UserError(f"{path}: cannot read the prepared text back; check the disk")
    return item


def _remove_unfinished(directory: Path) -> None:
    """Remove the unfinished items of killed processes."""
    for part in directory.glob(files.PARTIAL.format("*")):
        key = part.name.removeprefix(".").removesuffix(".partial")
        with suppress(RefusedError, OSError), lock.exclusive(directory / f".{key}.lock"):
            manifest.remove_directory(part)


def cached_fact(
    paths: list[Path], fact: object, compute: Callable[[], Content], type_: type[Content]
) -> Content:
    """Return a fact about the content of files, from the cache as long as their sizes, times and
    inodes are the same, or else from `compute`; `fact` identifies it.
    """
    before = _file_states(paths)
    if before is None:
        return compute()
    key = cache_key("known", FACT_VERSION, before, fact)
    path = cache_directory() / "known" / key[:2] / key
    with suppress(OSError, ValueError):
        head, _, body = files.read_whole(path, MAX_JSON_BYTES).partition(b"\n")
        if head == _digest(body):  # else it is damaged
            return read_json(body, type_)
    result = compute()
    latest = max(change_time for *_, change_time in before)
    if _file_states(paths) == before and latest < time.time_ns() - MIN_AGE_NS:
        with suppress(OSError):  # without a writable cache, this is only slower
            files.make_directories(cache_directory())
            files.make_directory(path.parent.parent)
            files.make_directory(path.parent)
            body = adapter_of(type_).dump_json(result)
            files.write_bytes(path, _digest(body) + b"\n" + body)
    return result


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def _file_states(paths: list[Path]) -> list[tuple[str, int, int, int, int]] | None:
    """Return path, inode, size and times of files; None unless all are regular files."""
    try:
        stats = [(str(path.absolute()), path.stat()) for path in paths]
    except OSError:
        return None
    if not all(S_ISREG(stat.st_mode) for _, stat in stats):
        return None
    return [(path, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in stats]
