"""Input and output of commands: files and standard streams."""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from mtrain.corpus.lines import PACKED, bounded_lines, open_bytes, reading_from
from mtrain.runtime import outputs
from mtrain.runtime.console import GREEN, RED, YELLOW, make_blocking, paint, writing
from mtrain.runtime.errors import RefusedError, printable

# Coloured words: a severity at the start of a line, or a verdict after a difference of scores.
_SEVERITY = re.compile(
    r"^ {0,2}(?:error|damaged|missing|changed|warning)(?= )|(?<=\.\d\d )(?:better|worse)\b"
)
_COLOURS = {"warning": YELLOW, "better": GREEN}


@contextmanager
def reading(name: str) -> Iterator[Iterator[bytes]]:
    """Open a file, or stdin for `-`, and return its lines."""
    if name != "-":
        with open_bytes(Path(name)) as stream:
            yield _lines(stream, name)
        return
    make_blocking(0)
    yield _lines(sys.stdin.buffer, "stdin")


def prompting(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of a terminal, with a prompt on stderr before each."""
    try:
        while True:
            sys.stderr.write("> ")
            sys.stderr.flush()
            yield next(lines)
    except StopIteration:
        return
    finally:  # after Ctrl-D or Ctrl-C, the cursor stands behind the prompt
        sys.stderr.write("\n")


def _lines(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield lines; raises `UserError` if they cannot be read."""
    with reading_from(name):
        yield from bounded_lines(stream, name)


def as_text(text: str) -> str:
    """Replace invalid UTF-8 in a text of the command line."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def print_text(*lines: str) -> None:
    """Write lines to stdout, with control characters escaped: names and text from files may contain
    line breaks and terminal escapes.
    """
    with writing("-", highlight=partial(_SEVERITY.sub, _in_colour)) as sink:
        sink.writelines(printable(line).encode() + b"\n" for line in lines)


def _in_colour(match: re.Match[str]) -> str:
    word = match[0]
    return paint(word, _COLOURS.get(word.strip(), RED), sys.stdout)


def print_json(content: object) -> None:
    """Write a line of JSON, in ASCII, to stdout."""
    print_text(json.dumps(content))


def print_path(path: Path) -> None:
    """Write a path to stdout: its bytes for scripts, escaped text on a terminal."""
    if os.isatty(1):
        print_text(str(path))
        return
    with writing("-") as sink:
        sink.write(os.fsencode(path) + b"\n")


def check_output(path: Path) -> None:
    """Raise `UserError`, before any work is done, if the file cannot be written, and
    `RefusedError` for stdout and for a file of a run or checkpoint.
    """
    from mtrain.runs.layout import refuse_run_files  # not needed by --help

    if str(path) == "-":  # else a file with this name would be written
        raise RefusedError("--output -: name a file, or a device such as /dev/stdout")
    refuse_run_files(path)
    if path.suffix in PACKED:
        text = "output is not compressed; choose another name, or pipe stdout to gzip or zstd"
        raise RefusedError(f"{path}: {text}")
    outputs.check_writable(path)


def check_page(path: Path | None, default: str) -> Path:
    """Return the path of a page, `default` if none is given. Raises `RefusedError` if its name does
    not end like that of a page, or if the default file exists and is not a page of mtrain; also
    raises what `check_output` does.
    """
    if path is None:
        path = Path(default)
        with suppress(FileNotFoundError), path.open("rb") as stream:
            if b'content="mtrain ' not in stream.read(4096):
                raise RefusedError(f"{path}: is not a page of mtrain; name another file with -o")
    check_output(path)
    if path.suffix not in ("", ".html", ".htm"):
        raise RefusedError(f"--output {path}: the output is HTML; give a name that ends in .html")
    return path


def write_page(path: Path, page: str) -> None:
    """Write a page, and name it in the log; raises `UserError`."""
    outputs.write_output(path, page.encode("utf-8", "replace"), is_logged=True)
