"""Standard streams of a command, and how it ends when writing fails or a signal stops it."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from types import FrameType
from typing import IO, Any, TextIO, cast

from rich.cells import cell_len, set_cell_size

from mtrain.runtime.errors import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, UserError
from mtrain.runtime.stop import EXIT_CODES

# Control characters: C0 except tabs and line breaks, DEL, C1.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
RED, GREEN, YELLOW = "31", "32", "33"


def paint(text: str, colour: str, stream: TextIO | None) -> str:
    """Colour text if the stream is a terminal, unless NO_COLOR or TERM=dumb forbids it."""
    is_forbidden = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if is_forbidden or stream is None or not stream.isatty():
        return text
    return f"\x1b[1;{colour}m{text}\x1b[0m"


def cut_to_width(text: str, width: int) -> str:
    """Cut a text to a number of terminal columns."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 3)).rstrip() + "..."


def exit_on_interrupt() -> None:
    """Let Ctrl-C end this process at once with its exit code, until `restore_interrupt` is called:
    while libraries are loaded, a `KeyboardInterrupt` would break them or be hidden.
    """
    if signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, signal.default_int_handler):
        signal.signal(signal.SIGINT, _exit_now)


def _exit_now(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_CODES[number])


def restore_interrupt() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again, so that a command can finish its output."""
    if signal.getsignal(signal.SIGINT) is _exit_now:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def open_closed_streams() -> None:
    """Replace closed standard streams by /dev/null, so that no other file gets their numbers."""
    # stdin is opened for writing and stdout for reading, so that using them fails
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


@contextmanager
def writing(
    name: str | int, *, highlight: Callable[[str], str] | None = None
) -> Iterator[IO[bytes]]:
    """Open a path, stdout (`-`), or a standard stream by its number, for writing bytes. A terminal
    gets escaped control characters and text as `highlight` returns it.
    """
    restore_interrupt()
    target = 1 if name == "-" else name
    shown = str(target)
    if isinstance(target, int):
        shown = ("stdin", "stdout", "stderr")[target]
        make_blocking(target)
    # not `sys.stdout`, which may write only a part of a line under PYTHONUNBUFFERED
    with (
        handling_write_errors(shown),
        open(target, "wb", closefd=not isinstance(target, int)) as sink,
    ):
        yield cast(IO[bytes], _Terminal(sink, highlight)) if sink.isatty() else sink


def make_blocking(number: int) -> None:
    """Make a standard stream blocking: another program that shares it may have changed that."""
    with suppress(OSError):
        os.set_blocking(number, True)


@contextmanager
def handling_write_errors(name: str) -> Iterator[None]:
    """Exit with the right code if Ctrl-C stops writing to `name` or its reader is gone; raises
    `UserError` if writing fails.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError as error:  # at Ctrl-C the reader may end first
        if isinstance(error.__context__, KeyboardInterrupt):
            sys.exit(EXIT_INTERRUPTED)
        sys.exit(EXIT_BROKEN_PIPE)
    except OSError as error:
        raise UserError(f"{name}: cannot write: {error.strerror or error}") from None


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt`, and SIGTERM and SIGHUP `SystemExit`, so that the block
    can keep what it has written. A second signal ends the process at once.
    """
    restore_interrupt()
    defaults: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    # leave other handlers alone: a signal may be ignored, or a job may handle it
    changed = [n for n, default in defaults.items() if signal.getsignal(n) is default]
    try:
        for number in changed:
            signal.signal(number, _stop)
        yield
    finally:
        for number in changed:
            signal.signal(number, defaults[number])


def _stop(number: int, frame: FrameType | None) -> None:
    for handled in EXIT_CODES:
        if signal.getsignal(handled) is _stop:
            signal.signal(handled, _exit_now)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(EXIT_CODES[number])


class _Terminal(BufferedIOBase):
    """A stream to a terminal that escapes control characters."""

    def __init__(self, sink: IO[bytes], highlight: Callable[[str], str] | None) -> None:
        self.sink, self.highlight = sink, highlight

    def write(self, data: Any) -> int:
        """Write bytes; bytes that are not UTF-8 are escaped, too."""
        text = bytes(data).decode("utf-8", "backslashreplace")
        shown = _CONTROL.sub(lambda c: ascii(c[0])[1:-1], text)
        if self.highlight:
            shown = self.highlight(shown)
        self.sink.write(shown.encode())
        return len(bytes(data))

    def flush(self) -> None:
        """Flush the terminal."""
        if not self.sink.closed:
            self.sink.flush()
