"""Requests to stop: which signals ask for it, what a second one does, and time limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from mtrain.runtime import stop
from mtrain.runtime.errors import (
    EXIT_HUNG_UP,
    EXIT_INTERRUPTED,
    EXIT_STOPPED,
    EXIT_TERMINATED,
    RefusedError,
    StoppedError,
)
from mtrain.runtime.stop import Stop, format_duration, parse_duration

# Installs the handlers in a process that ignores a signal, as under nohup, gets it, and shows the
# request to stop, and at its end the signals that are ignored.
IGNORING = """
import atexit, signal, sys
from mtrain.runtime.stop import EXIT_CODES, Stop
number = signal.Signals[sys.argv[1]]
signal.signal(number, signal.SIG_IGN)
ignored = lambda: [n.name for n in EXIT_CODES if signal.getsignal(n) == signal.SIG_IGN]
atexit.register(lambda: print(*ignored()))
stop = Stop()
stop.install()
signal.raise_signal(number)
print(stop.request and stop.request[0], *ignored())
"""


@pytest.mark.parametrize(
    ("name", "shown"),
    [("SIGHUP", "None SIGHUP"), ("SIGINT", "SIGINT"), ("SIGTERM", "SIGTERM")],
    ids=["nohup", "a background job", "SIGTERM"],
)
def test_only_an_ignored_hangup_stays_ignored_until_the_process_ends(name: str, shown: str) -> None:
    command = [sys.executable, "-c", IGNORING, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [shown, "SIGHUP SIGTERM SIGINT SIGUSR1"]


def test_the_first_signal_is_the_reason() -> None:
    for name, code in (
        ("SIGHUP", EXIT_HUNG_UP),
        ("SIGTERM", EXIT_TERMINATED),
        ("SIGINT", EXIT_INTERRUPTED),
        ("SIGUSR1", EXIT_STOPPED),
    ):
        asked = Stop(time_limit=1.0)  # it has passed
        for number in (signal.Signals[name], *stop.EXIT_CODES):
            asked._on_signal(number, None)
        assert asked.request == (name, code)
        with pytest.raises(
            StoppedError, match=f"stopped by {name}; run the same command again$"
        ) as caught:
            asked.check()
        assert caught.value.exit_code == code


def test_a_signal_raises_at_once_only_where_nothing_can_be_left_unfinished() -> None:
    asked = Stop()
    with asked.at_once():
        pass
    asked._on_signal(signal.SIGTERM, None)
    with pytest.raises(StoppedError), asked.at_once():
        pytest.fail("goes on")
    asked = Stop()
    with pytest.raises(StoppedError, match="stopped by SIGINT"), asked.at_once():
        asked._on_signal(signal.SIGINT, None)
    assert not asked.is_at_once
    asked = Stop()
    with pytest.raises(StoppedError, match="stopped by SIGTERM"), asked.at_once():
        asked.received = signal.SIGTERM  # as in a callback, where Python ignores the error


def test_a_signal_without_a_terminal_to_announce_the_wait_on_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(file: int, data: bytes) -> int:
        raise OSError(5, "Input/output error")

    asked = Stop(step_seconds=60)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", gone)
        asked._on_signal(signal.SIGHUP, None)
    assert asked.request == ("SIGHUP", EXIT_HUNG_UP)


def test_a_second_signal_ends_the_process_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals that request no stop do not count."""

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(stop, "SAME_REQUEST", -1)
    reader, writer = os.pipe()
    os.write(writer, bytes([signal.SIGALRM, signal.SIGTERM, signal.SIGALRM, signal.SIGINT, 0]))
    os.close(writer)
    with pytest.raises(SystemExit) as caught:
        stop._end_on_second(reader)
    assert caught.value.code == EXIT_INTERRUPTED
    assert os.read(reader, 9) == b"\0"
    os.close(reader)


def test_a_signal_soon_after_the_first_is_the_same_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not one of many that each come soon after another."""

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    clock = iter([10.0, 10.08, 10.16])
    monkeypatch.setattr(stop, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    reader, writer = os.pipe()
    os.write(writer, bytes([signal.SIGTERM, signal.SIGTERM, signal.SIGINT]))
    with pytest.raises(SystemExit) as caught:
        stop._end_on_second(reader)
    assert caught.value.code == EXIT_INTERRUPTED
    os.close(reader)
    os.close(writer)


def test_a_time_limit_is_counted_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Stop(time_limit=60.0, started=1000.0)
    for now, request in ((1059.9, None), (1060.0, ("time limit", EXIT_STOPPED))):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        assert asked.request == request
    advice = "run the same command again, with a longer --time-limit if that happens again"
    with pytest.raises(StoppedError, match=f"stopped by time limit; {advice}"):
        asked.check()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("45s", 45),
        ("30m", 1800),
        ("3h30m", 12_600),
        ("1d12h", 129_600),
        ("1d1s", 86_401),
    ],
)
def test_durations_by_hand(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "0h0m", "soon", "h", "-5m", "1.5h", "5 m", "30m5", "5m\n", "5w", "9" * 10]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="expected a duration such as 45s, 30m, 3h30m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.9, "0s"), (59.9, "59s"), (60, "1m"), (646, "10m46s"), (3600, "1h")),
        *((3605, "1h"), (12_660, "3h31m"), (86_399, "23h59m"), (129_600, "1d12h")),
        (400 * 86_400 + 61, "400d"),
    ],
)
def test_durations_are_shown_with_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_what_is_shown_can_be_given_as_a_time_limit() -> None:
    for seconds in (1, 646, 3660, 129_600):
        assert parse_duration(format_duration(seconds)) == seconds
