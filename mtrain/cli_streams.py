"""What commands read from and print to: files and standard streams."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from mtrain.errors import printable
from mtrain.terminal import writing
from mtrain.text import bounded_lines, open_bytes, reading_from


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


def print_lines(sink: IO[bytes], lines: Iterable[str]) -> None:
    """Write lines for people, each made printable: names and text from outside may hold line breaks
    and terminal escapes.
    """
    sink.writelines(printable(line).encode() + b"\n" for line in lines)
    sink.flush()  # the next ones may take minutes


def print_path(path: Path) -> None:
    """Write a path to stdout: its bytes, for scripts, but printable on a terminal."""
    with writing("-") as sink:
        if os.isatty(1):
            print_lines(sink, [str(path)])
        else:
            sink.write(os.fsencode(path) + b"\n")
