"""Requests to stop, by a signal or the time limit, which training answers at step boundaries."""

import atexit
import math
import os
import re
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Thread
from types import FrameType

from mtrain.runtime.errors import (
    EXIT_HUNG_UP,
    EXIT_INTERRUPTED,
    EXIT_STOPPED,
    EXIT_TERMINATED,
    RefusedError,
    StoppedError,
)

EXIT_CODES: dict[int, int] = {
    signal.SIGHUP: EXIT_HUNG_UP,
    signal.SIGTERM: EXIT_TERMINATED,
    signal.SIGINT: EXIT_INTERRUPTED,
    signal.SIGUSR1: EXIT_STOPPED,
}
# Seconds. Signals this soon after the first one are the same request: `timeout` sends each to the
# process and to its group, and a launcher may forward one that all processes of a job get.
SAME_REQUEST = 0.1

Request = tuple[str, int]  # reason and exit code of a stop
TIME_LIMIT = "time limit"  # a reason to stop
UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}  # of durations, in seconds


@dataclass
class Stop:
    """A request to stop, by a signal or a time limit.

    The signal handler only stores the request, since a save inside it could see an unfinished step;
    it raises the error only within `at_once`.
    At a second signal, a thread ends the process at once: a handler would run only after the
    current call into a library returns, which may take minutes.
    """

    time_limit: float | None = None  # seconds after `started`
    started: float = 0.0
    step_seconds: float = 0.0  # duration of the last step, to announce how long a stop takes
    received: signal.Signals | None = None
    is_at_once: bool = False  # whether the signal handler raises

    def install(self) -> None:
        """Install the signal handlers and start the clock."""
        self.started = time.monotonic()
        for number in EXIT_CODES:
            is_nohup = number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN
            if not is_nohup:
                signal.signal(number, self._on_signal)
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        Thread(target=_end_on_second, args=(reader,), daemon=True).start()
        atexit.register(_ignore_signals)  # signals would kill the interpreter while it shuts down

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            return
        self.received = signal.Signals(number)
        if self.step_seconds > 10:
            seconds = f"{self.step_seconds:.0f} s"
            text = f"\n{self.received.name}: saving after this step, in up to {seconds}\n"
            with suppress(OSError):
                os.write(2, text.encode())  # `sys.stderr` may be in the middle of a write
        if self.is_at_once:
            self.check()

    @property
    def request(self) -> Request | None:
        """The reason to stop and its exit code, or None."""
        if self.received is not None:
            return self.received.name, EXIT_CODES[self.received]
        if self.time_limit is not None and time.monotonic() - self.started >= self.time_limit:
            return TIME_LIMIT, EXIT_STOPPED
        return None

    def check(self) -> None:
        """Raise `StoppedError` if a stop was requested."""
        if self.request is not None:
            reason, exit_code = self.request
            advice = "run the same command again"
            if reason == TIME_LIMIT:  # since the last save, maybe in the preparation
                advice += ", with a longer --time-limit if that happens again"
            raise stop_error(reason, exit_code, advice)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal raise `StoppedError` wherever it arrives within a computation of several
        seconds; use this only around code that writes no file and holds no lock.
        """
        try:
            self.is_at_once = True
            self.check()
            yield
            self.check()  # Python ignores an exception in a callback, such as `__del__`
        finally:
            self.is_at_once = False


def stop_error(reason: str, exit_code: int, advice: str) -> StoppedError:
    """Return the error for a stop, with what to do then."""
    return StoppedError(f"stopped by {reason}; {advice}", exit_code)


def _end_on_second(reader: int) -> None:
    """Read the numbers of arriving signals from a pipe, and end the process at the second one."""
    first = math.inf
    while True:
        number = os.read(reader, 1)[0]
        now = time.monotonic()
        if number not in EXIT_CODES:
            continue
        if now > first + SAME_REQUEST:
            os._exit(EXIT_CODES[number])
        first = min(first, now)


def _ignore_signals() -> None:
    for number in EXIT_CODES:
        signal.signal(number, signal.SIG_IGN)


def parse_duration(text: str) -> float:
    """Read `90`, `45s`, `30m`, `3h30m` or `1d12h` as seconds; raises `RefusedError`."""
    units = {**UNITS, "": 1}
    parts = re.findall(r"([0-9]{1,9})([dhms]?)", text)
    seconds = sum(int(number) * units[unit] for number, unit in parts)
    if not re.fullmatch(r"[0-9]{1,9}|([0-9]{1,9}[dhms])+", text) or seconds <= 0:
        raise RefusedError(
            f"--time-limit {shlex.quote(text)}: expected a duration such as 45s, 30m, 3h30m or "
            "1d12h, or seconds"
        )
    return float(seconds)


def format_duration(seconds: float) -> str:
    """Show seconds as `parse_duration` reads them, in the two largest units, such as `10m46s` or
    `3h30m`.
    """
    parts, left = list[tuple[int, str]](), int(seconds)
    for unit, size in UNITS.items():
        number, left = divmod(left, size)
        if number or parts:
            parts.append((number, unit))
    return "".join(f"{number}{unit}" for number, unit in parts[:2] if number) or "0s"
