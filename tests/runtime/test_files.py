"""File systems that lack something: locks, permissions, directories that can be flushed."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtrain.runs import manifest
from mtrain.runs.directory import RunDirectory
from mtrain.runtime import files, lock, outputs
from mtrain.runtime.errors import UserError

NO_LOCKS = [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP]


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.fixture(params=NO_LOCKS)
def no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(request.param))


@pytest.mark.usefixtures("no_locks")
def test_a_run_needs_a_file_system_with_locks(tmp_path: Path) -> None:
    text = "run: cannot use the run directory: its file system has no locks .*; use another one"
    with pytest.raises(UserError, match=text), RunDirectory(tmp_path / "run").hold():
        pass


@pytest.mark.usefixtures("no_locks")
def test_an_output_needs_no_locks(tmp_path: Path) -> None:
    (tmp_path / "out.partial").write_text("left")
    outputs.write_output(tmp_path / "out", b"new")
    assert (tmp_path / "out").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_locks_of_nfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused for a file that is open only for reading."""
    flock = fcntl.flock

    def lock_writable(descriptor: int, operation: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_writable)
    (tmp_path / "out.partial").write_text("left")
    outputs.write_output(tmp_path / "out", b"new")
    with lock.exclusive(tmp_path / ".lock"):
        pass


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EINVAL])
def test_a_file_that_cannot_be_written_leaves_the_old_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (path := tmp_path / "a").write_text("old")
    monkeypatch.setattr(os, "fsync", failing(code))
    with pytest.raises(OSError, match=os.strerror(code)):
        files.write_text(path, "new")
    with pytest.raises(OSError, match=os.strerror(code)):
        files.sync(path)
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["a"])


def test_directories_that_cannot_be_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, fsync = errno.EINVAL, os.fsync

    def sync(descriptor: int) -> None:
        if os.path.isdir(descriptor):
            failing(code)()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    manifest.write_directory(tmp_path / "new", lambda path: files.write_text(path / "a", "1"))
    outputs.write_output(tmp_path / "out", b"1")
    code = errno.EIO
    with pytest.raises(OSError, match=os.strerror(code)):
        files.write_text(tmp_path / "out", "2")


@pytest.mark.parametrize(
    "write",
    [
        lambda path: files.write_text(path, "1"),
        lambda path: outputs.write_output(path, b"1"),
        lambda path: manifest.write_directory(path, lambda new: (new / "a").write_text("1")),
    ],
    ids=["file", "output", "directory"],
)
def test_what_gets_its_name_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    """Else a power failure could leave the name without the content."""
    flushed, fsync, replace = dict[int, object](), os.fsync, os.replace

    def content(path: Path) -> object:
        return sorted(os.listdir(path)) if path.is_dir() else path.read_bytes()

    def noting_fsync(descriptor: int) -> None:
        fsync(descriptor)
        for path in (tmp_path, *tmp_path.rglob("*")):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                flushed[path.stat().st_ino] = content(path)

    def checked_replace(source: Path, target: Path) -> None:
        for path in (source, *source.rglob("*")):
            assert flushed[path.stat().st_ino] == content(path)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", checked_replace)
    opened = os.listdir("/dev/fd")
    write(tmp_path / "new")
    assert os.listdir("/dev/fd") == opened
    assert flushed[tmp_path.stat().st_ino] == content(tmp_path) == ["new"]


def test_file_systems_without_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("chmod", "fchmod"):
        monkeypatch.setattr(os, name, failing(errno.EPERM))
    for text in ("1", "2"):
        manifest.write_directory(tmp_path / "new", lambda path: files.write_text(path / "a", "1"))
        files.write_text(tmp_path / "a", text)
        outputs.write_output(tmp_path / "out", text.encode())


def test_an_open_file_is_not_where_a_file_replaced_its_directory(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with (tmp_path / "folder" / "a").open("w") as file:
        assert files.is_at(file.fileno(), tmp_path / "folder" / "a")
        (tmp_path / "folder").rename(tmp_path / "moved")
        (tmp_path / "folder").touch()
        assert not files.is_at(file.fileno(), tmp_path / "folder" / "a")


def test_a_directory_behind_a_link_to_nowhere(tmp_path: Path) -> None:
    """As where a scratch disk was emptied, or is not mounted."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    advice = r"is a link to .*/gone, which is missing; restore the directory, or choose another"
    for path in (link, link / "below"):
        with pytest.raises(UserError, match=advice), RunDirectory(path).hold():
            pass
    (tmp_path / "gone").mkdir()
    with pytest.raises(OSError, match="a link, where mtrain needs a directory; move it away"):
        files.make_directory(link)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"file is not a directory"):
        files.make_directories(tmp_path / "file")


def test_a_directory_that_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found when a run starts, not at its first save."""
    files.make_directory(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may always write
    with pytest.raises(PermissionError):
        files.make_directory(tmp_path)


def test_a_path_in_a_suggested_command_is_one_argument_and_no_option() -> None:
    texts = ["runs/a", "a b", "-x", "-x y", "./-x", "it's"]
    words = [shlex.split(files.quote_path(Path(text))) for text in texts]
    assert words == [["runs/a"], ["a b"], ["./-x"], ["./-x y"], ["./-x"], ["it's"]]
