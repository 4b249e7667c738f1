"""Sealed directories: complete or not there, whatever crashes, links and other processes do."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mtrain.runs import manifest
from mtrain.runtime.errors import RefusedError, UserError


class Crash(BaseException):
    """The process dies here."""


def fill(text: str) -> Callable[[Path], None]:
    """Fill a directory with a file of this text and a directory."""

    def write(directory: Path) -> None:
        (directory / "text").write_text(text)
        (directory / "trainer").mkdir()

    return write


def write(path: Path, text: str) -> None:
    manifest.write_directory(path, fill(text))


def files(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


def crash_after(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """Let the process die at the n-th change of a name on disk, or before the n-th sync."""
    left = [calls]

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Crash
            return function(*arguments, **options)

        return call

    for module, name in ((os, "replace"), (os, "fsync"), (shutil, "rmtree"), (os, "unlink")):
        monkeypatch.setattr(module, name, dying(getattr(module, name)))


@pytest.mark.parametrize("replaces", [False, True])
def test_a_crash_at_any_point_leaves_whole_directories(tmp_path: Path, replaces: bool) -> None:
    found, finished, calls = set(), False, 0
    while not finished:
        path = tmp_path / str(calls) / "sealed"
        path.parent.mkdir()
        if replaces:
            write(path, "old")
        with pytest.MonkeyPatch.context() as patch:
            crash_after(patch, calls)
            try:
                write(path, "new")
                finished = True
            except Crash:
                calls += 1
        if path.exists():
            manifest.verify(path, "text")
        found.add((path / "text").read_text() if path.exists() else None)
        manifest.clean(path.parent)
        assert [item.name for item in path.parent.iterdir()] == ["sealed"] * path.exists()
    assert calls > 5
    assert found == ({"old", None, "new"} if replaces else {None, "new"})


def test_a_parent_that_vanished_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "run" / "sealed", "text")
    assert list(tmp_path.iterdir()) == []


def test_what_no_crash_leaves_is_not_cleaned_up(tmp_path: Path) -> None:
    for name in ("mine.partial", "mine.removed", ".partial files"):
        (tmp_path / name).mkdir()
    manifest.clean(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_directory_that_another_process_fills_meanwhile_is_left_alone(tmp_path: Path) -> None:
    cache, other = tmp_path / "cache", tmp_path / "cache" / ".item.partial" / "of another"

    def fill_while_it_is_removed(directory: Path) -> None:
        (directory / "text").write_text("whole")
        shutil.rmtree(cache)
        other.parent.mkdir(parents=True)
        other.write_text("half")

    cache.mkdir()
    with pytest.raises(UserError, match="was removed while it was written; run the same command"):
        manifest.write_directory(cache / "item", fill_while_it_is_removed)
    assert files(cache) == [".item.partial/manifest.json", ".item.partial/of another"]
    assert not (cache / "item").exists()


def test_a_file_that_is_removed_while_it_is_read_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "sealed", "text")
    monkeypatch.setattr(manifest, "_is_regular", lambda path: True)
    (tmp_path / "sealed" / "text").unlink()
    with pytest.raises(manifest.MissingError, match="text: missing"):
        manifest.verify(tmp_path / "sealed")
    (tmp_path / "sealed" / manifest.NAME).unlink()
    with pytest.raises(manifest.MissingError, match=r"manifest\.json: missing"):
        manifest.verify(tmp_path / "sealed")
    assert not manifest.is_complete(tmp_path / "sealed")


@pytest.mark.parametrize("name", ["text", manifest.NAME])
def test_what_cannot_be_read_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As behind a mount that fails for a while: nothing may be removed, or passed over."""

    def fail(*_: object) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    write(tmp_path / "sealed", "whole")
    readers = {"text": (manifest, "hash_file"), manifest.NAME: (manifest.files, "read_whole")}
    monkeypatch.setattr(*readers[name], fail)
    for function in (manifest.verify, manifest.is_complete)[: 1 + (name == manifest.NAME)]:
        with pytest.raises(
            UserError, match=f"{name}: cannot be read: Input/output error"
        ) as caught:
            function(tmp_path / "sealed")
        assert not isinstance(caught.value, manifest.DamagedError)


@pytest.mark.parametrize("name", [".sealed.partial", ".sealed.removed", "sealed"])
@pytest.mark.parametrize("is_file", [False, True])
def test_no_link_is_followed_where_a_directory_is_written(
    tmp_path: Path, name: str, is_file: bool
) -> None:
    """Nor where what crashes left is removed."""
    elsewhere, directory = tmp_path / "elsewhere", tmp_path / "checkpoints"
    directory.mkdir()
    write(elsewhere, "precious")
    (elsewhere / ".mine.partial").mkdir()
    before = files(elsewhere)
    (directory / name).symlink_to(elsewhere / "text" if is_file else elsewhere)
    manifest.clean(directory)
    assert (directory / name).is_symlink() == (not name.startswith("."))
    (directory / name).unlink(missing_ok=True)
    (directory / name).symlink_to(elsewhere / "text" if is_file else elsewhere)
    for text in ("old", "new"):
        write(directory / "sealed", text)
    assert [p.name for p in directory.iterdir() if p.is_symlink()] == []
    manifest.remove_directory(directory / "sealed")
    assert files(elsewhere) == before
    assert (elsewhere / ".mine.partial").is_dir()


def test_a_link_to_nothing_makes_room(tmp_path: Path) -> None:
    (tmp_path / "sealed").symlink_to(tmp_path / "absent")
    write(tmp_path / "sealed", "new")
    manifest.remove_directory(tmp_path / "sealed")
    assert list(tmp_path.iterdir()) == []


# --- new directories --------------------------------------------------------------------------


def test_of_several_writers_one_writes_a_new_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock is of a descriptor, so threads compete for it as processes do."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)

    def attempt(path: Path, name: str) -> str:
        try:
            manifest.write_new_directory(path, lambda aside: (aside / name).touch())
        except RefusedError:
            return ""
        return name

    with ThreadPoolExecutor(3) as pool:
        for number in range(50):
            path = tmp_path / str(number)
            if number % 2:  # left by a crash
                plant(tmp_path / f".{number}.partial", "directory", path)
            (written,) = filter(None, pool.map(partial(attempt, path), "abc"))
            manifest.verify(path, written)
            assert files(path) == [written, "manifest.json"]
    assert len(list(tmp_path.iterdir())) == 50


def plant(path: Path, kind: str, target: Path) -> None:
    if kind == "directory":
        path.mkdir()
        (path / "old").touch()
    elif kind == "file":
        path.touch()
    elif kind == "link":
        path.symlink_to(target)


@pytest.mark.parametrize("kind", ["directory", "file", "link", "late"])
def test_what_is_there_is_never_replaced_by_a_new_directory(tmp_path: Path, kind: str) -> None:
    plant(tmp_path / "new", kind, tmp_path / "nowhere")
    with pytest.raises(RefusedError, match="new: exists already; remove it, or choose another"):
        manifest.write_new_directory(tmp_path / "new", lambda _: (tmp_path / "new").mkdir())
    assert [item.name for item in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("kind", ["directory", "file", "link"])
def test_a_leftover_of_a_new_directory_is_cleared(tmp_path: Path, kind: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    plant(tmp_path / ".new.partial", kind, elsewhere)
    with pytest.raises(UserError, match="no"):
        manifest.write_new_directory(tmp_path / "new", fail)
    assert files(tmp_path) == ["elsewhere/precious"]


def fail(directory: Path) -> None:
    (directory / "a").touch()
    raise UserError("no")
