"""Directories that exist wholly or not at all: written aside, synced, sealed by a manifest,
renamed.

`manifest.json` is written last. It lists every file with its size and SHA-256 and carries a SHA-256
of itself, so that a flipped bit, a truncated or a missing file is found before anything is parsed.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from mtrain import files
from mtrain.errors import UserError

NAME = "manifest.json"
_MAX_MANIFEST = 1 << 24
_BLOCK = 1 << 20


class DamagedError(UserError):
    """A sealed directory that is missing, incomplete or changed; the message says what and
    where.
    """


def write_directory(
    path: Path, fill: Callable[[Path], None], keep: Callable[[Path], bool] = lambda aside: False
) -> None:
    """Let `fill` write files into a directory beside `path`, seal it, and rename it to `path`.

    A crash at any point leaves the old `path`, or none, or the whole new one. What was begun is
    left for another try to go on with where `keep` says so.
    """
    aside = path.with_name(f".{path.name}.partial")
    if not keep(aside):
        remove_directory(aside)
    if not aside.exists():
        aside.mkdir()  # in a directory that is there: one that vanished must not come back empty
    try:
        fill(aside)
        seal(aside)
        if path.exists():
            remove_directory(path)
        os.replace(aside, path)
    finally:
        if not keep(aside):  # where it failed: a full disk wants the room
            shutil.rmtree(aside, ignore_errors=True)
    files.sync(path.parent)


def discard(path: Path) -> None:
    """Remove what `write_directory` kept of a try to write `path`."""
    shutil.rmtree(path.with_name(f".{path.name}.partial"), ignore_errors=True)


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
    """Raise `DamagedError` unless a directory is what its manifest says.

    The manifest must list the files `needed`.
    """
    for damage in damages(directory, *needed):
        raise damage


def damages(directory: Path, *needed: str) -> Iterator[UserError]:
    """Yield everything that makes a directory another one than its manifest says."""
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
        raise DamagedError(f"{file}: {size} bytes where the manifest says {entry['size']}")
    if hash_file(file) != entry["sha256"]:
        raise DamagedError(
            f"{file}: its SHA-256 is not the manifest's; the file was changed or damaged"
        )


def is_complete(directory: Path) -> bool:
    """Tell whether a directory has a readable manifest (a cheap check, no file is hashed)."""
    try:
        _read_manifest(directory)
    except DamagedError:
        return False
    return True


def remove_directory(path: Path) -> None:
    """Remove a directory so that a crash half-way leaves no part of it under its name."""
    if not path.exists():
        return
    gone = path.with_name(f".{path.name}.removed")
    shutil.rmtree(gone, ignore_errors=True)
    os.replace(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


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
    except OSError as error:  # not damage: what cannot be read now may be whole
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: damaged: {error}") from None
    if not isinstance(content, dict) or set(content) != {"files", "sha256"}:
        raise DamagedError(f"{path}: damaged")
    if _with_own_hash({"files": content["files"]}) != text:
        raise DamagedError(f"{path}: damaged: it does not match its own SHA-256")
    entries = content["files"]
    if not isinstance(entries, dict) or not all(
        _is_entry(name, entry) for name, entry in entries.items()
    ):
        raise DamagedError(f"{path}: lists something that is not a file of its directory")
    return entries


def _is_entry(name: str, entry: object) -> bool:
    """Tell whether a manifest's item is a plain file name with size and hash."""
    if not isinstance(entry, dict) or set(entry) != {"size", "sha256"}:
        return False
    return Path(name).name == name and name not in ("", "..") and "\0" not in name
