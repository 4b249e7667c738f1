"""Standard streams: what a command writes there, and how it ends when that fails or is stopped."""

import os
import re
import signal
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from types import FrameType
from typing import IO, Any, TextIO, cast

from mtrain.runtime.errors import (
    EXIT_BROKEN_PIPE,
    EXIT_HUNG_UP,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    UserError,
)

# Exit codes of signals that end a process, besides Ctrl-C.
_ENDS = {signal.SIGTERM: EXIT_TERMINATED, signal.SIGHUP: EXIT_HUNG_UP}
# Control characters of terminals: C0 except tabs and line breaks, DEL, C1.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
RED, GREEN, YELLOW = "31", "32", "33"
# Words of severity that begin a line, and those behind a difference of scores, with their colours.
_SEVERITY = re.compile(
    r"^ {0,2}(?:error|damaged|missing|changed|warning)(?= )|(?<=\.\d\d )(?:better|worse)\b"
)
_COLOURS = {"warning": YELLOW, "better": GREEN}


def paint(text: str, colour: str, stream: TextIO | None) -> str:
    """Colour text for a stream that is a terminal, unless NO_COLOR or TERM=dumb asks for none."""
    wants_none = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if wants_none or stream is None or not stream.isatty():
        return text
    return f"\x1b[1;{colour}m{text}\x1b[0m"


def clipped(text: str, width: int) -> str:
    """Cut a text to a number of terminal columns."""
    columns = end = 0  # `end`: characters that leave room for "..."
    for place, char in enumerate(text):
        if not unicodedata.combining(char):
            columns += 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if columns <= width - 3:
            end = place + 1
        if columns > width:
            return text[:end] + "..."
    return text


def format_bytes(count: float) -> str:
    """Return a number of bytes for people, such as 4,766 kB."""
    if count < 1e4:
        return "1 byte" if count == 1 else f"{count:,.0f} bytes"
    unit, size = ("kB", 1e3) if count < 1e7 else ("MB", 1e6) if count < 1e10 else ("GB", 1e9)
    return f"{count / size:,.0f} {unit}"


def exit_on_interrupt() -> None:
    """Let Ctrl-C end this process at once, until `restore_interrupt` is called."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it may be ignored
        signal.signal(signal.SIGINT, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once: libraries that are being loaded break at a `KeyboardInterrupt`, or hide it."""
    os._exit(_ENDS.get(signal.Signals(number), EXIT_INTERRUPTED))


def restore_interrupt() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` from here on: a command can finish its output."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def open_closed_streams() -> None:
    """Replace closed standard streams by /dev/null, so that no other file gets their numbers."""
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


@contextmanager
def writing(name: str | int, *, has_severities: bool = False) -> Iterator[IO[bytes]]:
    """Open a file, stdout (`-`), or the standard stream of a number, for bytes; a terminal gets
    control characters spelled out, and words of severity in colour if the text has them.
    """
    restore_interrupt()
    place = 1 if name == "-" else name
    shown = ("stdin", "stdout", "stderr")[place] if isinstance(place, int) else place
    # not `sys.stdout`, which may write only a part of a line under PYTHONUNBUFFERED
    with ending(shown), open(place, "wb", closefd=not isinstance(place, int)) as sink:
        yield cast(IO[bytes], _Screen(sink, has_severities)) if sink.isatty() else sink


@contextmanager
def ending(name: str) -> Iterator[None]:
    """End the command where writing to `name` is stopped, quietly if its reader is gone; raises
    `UserError` where writing fails.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError as error:  # at Ctrl-C the reader may end first
        interrupted = isinstance(error.__context__, KeyboardInterrupt)
        sys.exit(EXIT_INTERRUPTED if interrupted else EXIT_BROKEN_PIPE)
    except OSError as error:
        raise UserError(f"{name}: cannot write: {error.strerror or error}") from None


@contextmanager
def stopped_by_signals(is_kept: bool = True) -> Iterator[None]:
    """Raise an exception on SIGTERM, SIGHUP and Ctrl-C, if `is_kept`, so that what was written can
    be kept; a second signal ends the process at once.
    """
    defaults = dict.fromkeys(_ENDS, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    before = {number: signal.getsignal(number) for number in defaults}
    changed = [n for n, default in defaults.items() if is_kept and before[n] is default]
    try:
        for number in changed:  # others are ignored, or a job's own
            signal.signal(number, _stop)
        yield
    finally:
        for number in changed:
            signal.signal(number, before[number])


def _stop(number: int, frame: FrameType | None) -> None:
    for each in (*_ENDS, signal.SIGINT):
        if signal.getsignal(each) is _stop:
            signal.signal(each, _leave)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(_ENDS[signal.Signals(number)])


def _coloured(line: str) -> str:
    return _SEVERITY.sub(
        lambda word: paint(word[0], _COLOURS.get(word[0].strip(), RED), sys.stdout), line
    )


class _Screen(BufferedIOBase):
    """A stream to a terminal, with control characters spelled out."""

    def __init__(self, sink: IO[bytes], has_severities: bool) -> None:
        self.sink, self.has_severities = sink, has_severities

    def write(self, data: Any) -> int:
        """Write bytes; those that are not UTF-8 are spelled out, too."""
        text = bytes(data).decode("utf-8", "backslashreplace")
        shown = _CONTROL.sub(lambda c: ascii(c[0])[1:-1], text)
        self.sink.write((_coloured(shown) if self.has_severities else shown).encode())
        return len(bytes(data))

    def flush(self) -> None:
        """Flush the terminal."""
        if not self.sink.closed:
            self.sink.flush()
