"""Locks: files of odd content are no hindrance."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from mtrain.runtime import lock
from mtrain.runtime.errors import RefusedError


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[1]", "\x00", "[" * 4000, '{"pid": 1e999, "host": "a"}'),
        json.dumps({"pid": 2**31 - 1, "host": socket.gethostname()}),  # of an earlier process
    ],
)
def test_an_odd_lock_file_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(lock, "time", SimpleNamespace(sleep=lambda seconds: None))
    path = tmp_path / "new" / ".lock"
    path.parent.mkdir()
    path.write_text(content)
    with lock.exclusive(path):
        path.write_text(content)
        with pytest.raises(RefusedError, match="in use by another process"):
            lock.exclusive(path).__enter__()
    with lock.exclusive(path, wait=pytest.fail):
        pass


def test_who_holds_a_lock_is_named(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_text("a longer text of something else" * 9)
    with lock.exclusive(path):
        for holder in (f"{os.getpid()} on {socket.gethostname()}", "999999999 on elsewhere"):
            with pytest.raises(RefusedError, match=f"in use by process {holder}; wait for it"):
                lock.exclusive(path).__enter__()
            path.write_text('{"pid": 999999999, "host": "elsewhere"}')


@pytest.mark.parametrize(
    ("error", "is_alive"),
    [(ProcessLookupError, False), (OverflowError, False), (PermissionError, True), (None, True)],
)
def test_a_process_of_another_user_is_alive(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None, is_alive: bool
) -> None:
    def kill(pid: int, number: int) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(os, "kill", kill)
    assert lock.is_alive(7) is is_alive


def test_a_full_disk_does_not_prevent_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file names the holder for others only; what is written next reports the disk."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("mtrain.runtime.lock.os.write", full)
        with lock.exclusive(tmp_path / "lock"):
            assert (tmp_path / "lock").read_bytes() == b""
