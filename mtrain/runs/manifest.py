"""Sealed directories, which exist completely or not at all: they are written under a temporary
name, synced, sealed with a manifest and renamed.

`manifest.json` is written last. It lists every file with its size and SHA-256 and has a SHA-256 of
itself, so that a flipped bit, a truncated or a missing file is found before anything is parsed.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from mtrain.runtime import files, lock
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.json_reader import read_json

NAME = "manifest.json"
_MAX_BYTES = 1 << 24  # of a manifest


class DamagedError(UserError):
    """A sealed directory is incomplete or was changed; the message names the file."""


class MissingError(DamagedError):
    """A file that a manifest lists is missing."""


class FileEntry(BaseModel):
    """Size in bytes and SHA-256 of a file."""

    size: int
    sha256: str


class Manifest(BaseModel):
    """`manifest.json`: the files of its directory, and the SHA-256 of this list."""

    files: dict[Annotated[str, Field(pattern=r"^[^/]+\z")], FileEntry]
    sha256: str


def remove_directory(path: Path) -> None:
    """Remove a directory, or a link but not its target. A crash halfway leaves no part of it under
    its name.
    """
    if not os.path.lexists(path):
        return
    gone = path.with_name(f".{path.name}.removed")
    _clear(gone)
    os.replace(path, gone)
    _clear(gone)


def write_directory(
    path: Path, fill: Callable[[Path], None], make_room: Callable[[Path], None] = remove_directory
) -> None:
    """Let `fill` write files into a temporary directory, seal it, and rename it to `path`, after
    `make_room` has removed an old `path`.

    A crash at any point leaves the old `path`, or none, or the complete new one.
    """
    partial = path.with_name(files.PARTIAL.format(path.name))
    remove_directory(partial)
    # without parents: a run directory that vanished must not come back empty
    partial.mkdir()
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        fill(partial)
        seal(partial)
        # if its parent was removed, another process may be filling a directory of this name
        if not files.is_at(descriptor, partial):
            raise UserError(f"{path}: was removed while it was written; run the same command again")
        make_room(path)
        os.replace(partial, path)
    finally:
        if files.is_at(descriptor, partial):
            _clear(partial)  # free the space: the disk may be full
        os.close(descriptor)
    files.sync(path.parent)


def write_new_directory(path: Path, fill: Callable[[Path], None]) -> None:
    """Write a directory like `write_directory`, but only if `path` does not exist; raises
    `RefusedError` if it does, or if another process is writing it.
    """

    def refuse(holder: str) -> None:
        text = f"{path}: another process is writing it ({holder})"
        raise RefusedError(f"{text}; wait for it, or choose another name")

    with lock.exclusive(path.with_name(f".{path.name}.lock"), wait=refuse) as held:
        try:
            files.check_new(path)
            write_directory(path, fill, make_room=files.check_new)
        finally:
            held.path.unlink(missing_ok=True)


def _clear(path: Path) -> None:
    """Remove a directory, file or link, but not a link's target; ignore errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def clean(directory: Path) -> None:
    """Remove the partly written and partly removed directories that crashes have left in a
    directory and in its subdirectories.
    """
    parents = [directory, *directory.iterdir()] if directory.is_dir() else []
    for parent in parents:
        if parent.is_symlink() or not parent.is_dir():
            continue
        for item in parent.iterdir():
            if item.name.startswith(".") and item.name.endswith((".partial", ".removed")):
                _clear(item)


def seal(directory: Path) -> None:
    """Sync the files of a directory (not of its subdirectories) and write its manifest. The files
    get the permissions of the directory, since libraries let only the owner read theirs.
    """
    entries = {}
    permissions = directory.stat().st_mode & 0o666
    for item in directory.iterdir():
        if not item.is_file() or item.name == NAME:
            continue
        files.set_permissions(item, permissions)
        files.sync(item)
        entries[item.name] = {"size": item.stat().st_size, "sha256": hash_file(item)}
    files.write_text(directory / NAME, _with_own_hash({"files": entries}))


def verify(directory: Path, *needed: str) -> list[str]:
    """Verify all files in a directory's manifest, which must list the `needed` ones, and return
    their names. Raises `DamagedError`, or `UserError` for a file that cannot be read, which may be
    intact.
    """
    entries = _read_manifest(directory)
    for name in needed:
        if name not in entries:
            text = f"not a checkpoint: its {NAME} does not list {name}"
            advice = "if it is an exported model, name the run that it was made from"
            raise DamagedError(f"{directory}: {text}; {advice}")
    for name, entry in entries.items():
        file = directory / name
        try:
            if not _is_regular(file):
                raise MissingError(f"{file}: missing")
            if (size := file.stat().st_size) != entry.size:
                raise DamagedError(f"{file}: {size} bytes instead of {entry.size} in the manifest")
            if hash_file(file) != entry.sha256:
                text = "its SHA-256 is not the manifest's; the file was changed or damaged"
                raise DamagedError(f"{file}: {text}")
        except FileNotFoundError:  # removed after the first line of this block
            raise MissingError(f"{file}: missing") from None
        except OSError as error:
            raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    return list(entries)


def lists(directory: Path, name: str) -> bool:
    """Whether a directory's manifest lists a file; raises `UserError`."""
    return name in _read_manifest(directory)


def is_complete(directory: Path) -> bool:
    """Whether a directory has a readable manifest; no file is hashed."""
    try:
        _read_manifest(directory)
    except DamagedError:
        return False
    return True


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_text(text: str) -> str:
    """Return the SHA-256 of a text in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _with_own_hash(content: dict[str, Any]) -> str:
    sha256 = hash_text(json.dumps(content, sort_keys=True))
    return json.dumps({**content, "sha256": sha256}, sort_keys=True, indent=1) + "\n"


def _read_manifest(directory: Path) -> dict[str, FileEntry]:
    """Read a manifest and check its form and its own hash."""
    path = directory / NAME
    try:
        if not _is_regular(path):
            raise DamagedError(f"{directory}: no {NAME}: incomplete, or not a directory of mtrain")
        data = files.read_whole(path, _MAX_BYTES)
        content = read_json(data, Manifest)
    except FileNotFoundError:  # training may remove it meanwhile
        raise MissingError(f"{path}: missing") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DamagedError(f"{path}: damaged: {error}") from None
    if _with_own_hash(content.model_dump(exclude={"sha256"})).encode() != data:
        raise DamagedError(f"{path}: damaged: it does not match its own SHA-256")
    return content.files


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
