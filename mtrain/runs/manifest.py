"""Directories that exist wholly or not at all: written aside, synced, sealed by a manifest,
renamed.

`manifest.json` is written last. It lists every file with its size and SHA-256 and carries a SHA-256
of itself, so that a flipped bit, a truncated or a missing file is found before anything is parsed.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from mtrain.runtime import files
from mtrain.runtime.errors import RefusedError, UserError

NAME = "manifest.json"
_MAX_MANIFEST = 1 << 24
_BLOCK = 1 << 20


class DamagedError(UserError):
    """A sealed directory is missing, incomplete or changed; the message names the file."""


def write_directory(
    path: Path, fill: Callable[[Path], None], keep: Callable[[Path], bool] = lambda aside: False
) -> None:
    """Let `fill` write files into a temporary directory, seal it, and rename it to `path`.

    A crash at any point leaves the old `path`, or none, or the complete new one. The temporary
    directory stays for another attempt if `keep` returns True for it.
    """
    aside = path.with_name(files.PARTIAL.format(path.name))
    if aside.is_symlink() or not keep(aside):
        remove_directory(aside)
    if aside.is_dir():
        _keep_files(aside)
    else:
        aside.mkdir()  # without parents: a run directory that vanished must not come back empty
    try:
        fill(aside)
        seal(aside)
        remove_directory(path)
        os.replace(aside, path)
    finally:
        if not keep(aside):  # where it failed: a full disk wants the room
            _clear(aside)
    files.sync(path.parent)


def write_new_directory(path: Path, fill: Callable[[Path], None]) -> None:
    """Write a directory like `write_directory`, but only if `path` does not exist; raises
    `RefusedError` if it does, or if another process is writing it.
    """
    check_new(path)
    aside = path.with_name(files.PARTIAL.format(path.name))
    descriptor = _make_held(aside)
    try:
        check_new(path)  # another process may have written it by now
        fill(aside)
        seal(aside)
        check_new(path)  # minutes later
        os.rename(aside, path)
    finally:
        if files.is_at(descriptor, aside):  # else the name is free for another process
            _clear(aside)
        os.close(descriptor)
    files.sync(path.parent)


def check_new(path: Path) -> None:
    """Raise `RefusedError` if `path` exists."""
    if os.path.lexists(path):
        raise RefusedError(f"{path}: exists already; remove it, or choose another name")


def _make_held(path: Path) -> int:
    """Create a directory and lock it; return the descriptor that holds the lock. The lock
    distinguishes a directory in use from what a crash left, which is removed. Raises
    `RefusedError`.
    """
    while True:
        is_new = False
        with suppress(FileExistsError):
            path.mkdir()
            is_new = True
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            path.unlink(missing_ok=True)  # a link or a file of that name is no directory of ours
            continue
        is_held = files.try_lock(descriptor)
        if not is_held and not is_new:
            os.close(descriptor)
            raise RefusedError(
                f"{path}: another process is writing this directory; wait for it, or choose "
                "another name"
            )
        if is_held and files.is_at(descriptor, path):
            if is_new:
                return descriptor
            shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def discard(path: Path) -> None:
    """Remove what `write_directory` kept of an attempt to write `path`."""
    _clear(path.with_name(files.PARTIAL.format(path.name)))


def _clear(path: Path) -> None:
    """Remove a directory or file as far as possible; of a link only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def clean(directory: Path) -> None:
    """Remove partly written and partly removed directories that crashes left in a directory."""
    for item in directory.iterdir() if directory.is_dir() else ():
        if item.name.startswith(".") and item.name.endswith((".partial", ".removed")):
            _clear(item)


def _keep_files(directory: Path) -> None:
    """Remove everything but regular files from a directory that is written to: links may lead
    anywhere, and opening a pipe blocks.
    """
    for item in directory.iterdir():
        if item.is_symlink() or not item.is_file():
            _clear(item)


def seal(directory: Path) -> None:
    """Sync the files of a directory (not of its subdirectories) and write its manifest."""
    entries = {}
    for item in sorted(directory.iterdir()):
        if not item.is_file() or item.name == NAME:
            continue
        files.sync(item)
        entries[item.name] = {"size": item.stat().st_size, "sha256": hash_file(item)}
    files.write_text(directory / NAME, _with_own_hash({"files": entries}))


def verify(directory: Path, *needed: str) -> None:
    """Raise `DamagedError` unless a directory matches its manifest, which must list the files
    `needed`.
    """
    for damage in damages(directory, *needed):
        raise damage


def damages(directory: Path, *needed: str) -> Iterator[UserError]:
    """Yield every difference between a directory and its manifest."""
    try:
        entries = _read_manifest(directory)
    except UserError as error:
        yield error
        return
    for name in needed:
        if name not in entries:
            yield DamagedError(f"{directory / NAME}: does not list {name}")
    for name, entry in entries.items():
        try:
            _verify_file(directory / name, entry)
        except DamagedError as error:
            yield error
        except OSError as error:
            yield UserError(f"{directory / name}: cannot be read: {error.strerror}")


def _verify_file(file: Path, entry: dict[str, object]) -> None:
    if file.is_symlink() or not file.is_file():
        raise DamagedError(f"{file}: missing")
    size = file.stat().st_size
    if size != entry["size"]:
        raise DamagedError(f"{file}: {size} bytes instead of {entry['size']} in the manifest")
    if hash_file(file) != entry["sha256"]:
        raise DamagedError(
            f"{file}: its SHA-256 is not the manifest's; the file was changed or damaged"
        )


def is_complete(directory: Path) -> bool:
    """Whether a directory has a readable manifest; no file is hashed."""
    try:
        _read_manifest(directory)
    except DamagedError:
        return False
    return True


def remove_directory(path: Path) -> None:
    """Remove a directory so that a crash half-way leaves no part of it under its name; of a link,
    the link itself.
    """
    if path.is_symlink():
        path.unlink()
    if not path.exists():
        return
    gone = path.with_name(f".{path.name}.removed")
    _clear(gone)
    os.replace(path, gone)
    _clear(gone)


def hash_file(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _with_own_hash(content: dict[str, object]) -> str:
    body = json.dumps(content, sort_keys=True)
    own = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps({**content, "sha256": own}, sort_keys=True, indent=1) + "\n"


def _read_manifest(directory: Path) -> dict[str, dict[str, object]]:
    """Read and check a manifest against its own hash and form."""
    path = directory / NAME
    try:
        if not path.is_file() or path.is_symlink() or path.stat().st_size > _MAX_MANIFEST:
            raise DamagedError(
                f"{directory}: no {NAME}: incomplete, or not one of mtrain's directories"
            )
        text = path.read_bytes().decode("utf-8")
        content = json.loads(text)
        is_form = isinstance(content, dict) and set(content) == {"files", "sha256"}
        sealed = _with_own_hash({"files": content["files"]}) if is_form else ""
    except OSError as error:  # not damage: an unreadable file may be intact
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: damaged: {error}") from None
    if not is_form:
        raise DamagedError(f"{path}: damaged")
    if sealed != text:
        raise DamagedError(f"{path}: damaged: it does not match its own SHA-256")
    entries = content["files"]
    if not isinstance(entries, dict) or not all(
        _is_entry(name, entry) for name, entry in entries.items()
    ):
        raise DamagedError(f"{path}: lists something that is not a file of its directory")
    return entries


def _is_entry(name: str, entry: object) -> bool:
    """Whether a manifest's item is a plain file name with size and hash."""
    if not isinstance(entry, dict) or set(entry) != {"size", "sha256"}:
        return False
    return Path(name).name == name and name not in ("", "..") and "\0" not in name
