"""Where a command reads and writes: standard streams and files, their ends and their errors."""

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from mtrain import files
from mtrain.errors import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, RefusedError, UserError
from mtrain.text import bounded_lines, open_bytes, reading_from


def leave_at_once() -> None:
    """Have Ctrl-C end this process at once, until it is `loaded`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored
        signal.signal(signal.SIGINT, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once: libraries swallow Python's `KeyboardInterrupt` while they load, or break."""
    os._exit(EXIT_INTERRUPTED)


def loaded() -> None:
    """From here on Ctrl-C lets a command end what it has begun to write."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def open_closed_streams() -> None:
    """Put something in the place of closed standard streams, whose numbers a file opened later
    would get: nothing to read, nowhere to put results, nobody to tell.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


@contextmanager
def reading(name: str) -> Iterator[Iterator[bytes]]:
    """Open a file or stdin for lines of bytes."""
    if name == "-":
        yield _guarded(sys.stdin.buffer, "stdin")
        return
    with open_bytes(Path(name)) as stream:
        yield _guarded(stream, name)


def _guarded(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """Read lines; raises `UserError`, for an error of the input is not one of the output."""
    with reading_from(name):
        yield from bounded_lines(stream)


def refuse_overwriting(output: str | Path | None, *inputs: str | Path | None) -> None:
    """Refuse to write over a file that is still to be read."""
    if output in (None, "-") or not os.path.exists(output):
        return
    for name in inputs:
        source: str | int = 0 if name == "-" else str(name)
        readable = name == "-" or (name is not None and os.path.exists(name))
        if readable and os.path.samestat(os.stat(output), os.stat(source)):
            raise RefusedError(f"{output}: is read from; write to another file")


def check_output(path: Path) -> None:
    """Raise `UserError`, before any work is done, where no file of that name can be written."""
    try:
        os.stat(os.path.join(path.parent, "."))  # fails where it is no directory, too
        if path.is_dir():
            reason = errno.EISDIR
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            reason = errno.EACCES
        else:
            return
    except OSError as error:
        reason = error.errno or errno.EIO
    raise UserError(f"{path}: cannot write: {os.strerror(reason)}")


def write_output(path: Path, data: bytes) -> None:
    """Replace a file that the user named, or write to what else has that name: a device, a pipe;
    raises `UserError`.
    """
    place = Path(os.path.realpath(path))  # where a link leads, not in its place
    try:
        if path.exists() and os.path.samestat(path.stat(), os.fstat(1)):
            with writing("-") as sink:  # of which more may follow
                sink.write(data)
            return
        is_plain = path.is_file() or not os.path.lexists(path)
        if is_plain and os.access(place.parent, os.W_OK):
            files.write_bytes(place, data)
        else:
            path.write_bytes(data)
    except OSError as error:
        raise UserError(f"{path}: cannot write: {error.strerror or error}") from None


@contextmanager
def writing(name: str) -> Iterator[IO[bytes]]:
    """Open a file or stdout for bytes; a reader of stdout that went away ends the command
    quietly.
    """
    loaded()
    place: str | int = 1 if name == "-" else name
    try:  # a stream of its own, for PYTHONUNBUFFERED makes stdout's write only a part of a line
        with open(place, "wb", closefd=place != 1) as sink:
            yield sink
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError as error:  # at Ctrl-C the reader may have gone first
        interrupted = isinstance(error.__context__, KeyboardInterrupt)
        sys.exit(EXIT_INTERRUPTED if interrupted else EXIT_BROKEN_PIPE)
    except OSError as error:
        shown = "stdout" if place == 1 else name
        raise UserError(f"{shown}: cannot write: {error.strerror or error}") from None
