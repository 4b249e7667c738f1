"""Where records go: console, progress bar, `train.log`, `metrics.jsonl`."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from mtrain import files
from mtrain.errors import UserError, printable

logger = logging.getLogger("mtrain")


def _spell_out(record: logging.LogRecord) -> bool:
    """Make everything printable that a message shows: names and text from outside may hold line
    breaks, which would forge a line of a log, and escapes, which a terminal would obey. Errors do
    that by themselves.
    """
    if isinstance(record.args, tuple):
        record.args = tuple(
            each if isinstance(each, UserError | int | float) else printable(str(each))
            for each in record.args
        )
    return True


logger.addFilter(_spell_out)

# Columns that a training run's bar and its figures take, and what is shown where there are fewer.
WIDE = 120
FIGURES = "{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
MOST_LISTED = 10  # numbers of lines that a message names


class LogFile(logging.StreamHandler[TextIOWrapper]):
    """Writes to a run's `train.log`."""


class ConsoleHandler(logging.Handler):
    """Writes to stderr without tearing a progress bar apart; warnings and errors stand out."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; on a terminal the bar shows training records."""
        if getattr(record, "shown_on_bar", False) and sys.stderr.isatty():
            return
        record.label = _LABELS.get(record.levelno, lambda: "")()
        with suppress(OSError):  # a reader that went away, or a full disk, ends no run
            tqdm.write(self.format(record), file=sys.stderr)


def paint(text: str, code: str) -> str:
    """Colour text for a terminal, unless NO_COLOR asks for none."""
    if os.environ.get("NO_COLOR") or not sys.stderr.isatty():
        return text
    return f"\x1b[1;{code}m{text}\x1b[0m"


_LABELS = {
    logging.WARNING: lambda: paint("warning:", "33") + " ",
    logging.ERROR: lambda: paint("error:", "31") + " ",
}


def set_up_console(*, times: bool = False) -> None:
    """Send mtrain's records to stderr; `times` puts the time before each, for batch jobs."""
    handler = ConsoleHandler()
    stamp = "%(asctime)s " if times and not sys.stderr.isatty() else ""
    handler.setFormatter(logging.Formatter(stamp + "%(label)s%(message)s", "%Y-%m-%d %H:%M:%S"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logging.raiseExceptions = False  # a full disk is told once, not at every line of a log file


def silence() -> None:
    """Leave telling what goes on to another process of the same job; errors are told."""
    logger.setLevel(logging.ERROR)


def add_log_file(path: Path) -> None:
    """Keep the records in a file too, in place of any before; raises `OSError`."""
    close_log_files()
    handler = LogFile(TextIOWrapper(files.append(path), encoding="utf-8"))
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
    )
    logger.addHandler(handler)


def close_log_files() -> None:
    """Stop writing to files."""
    for handler in [h for h in logger.handlers if isinstance(h, LogFile)]:
        logger.removeHandler(handler)
        handler.stream.close()


def progress_bar(
    total: int | None, unit: str, description: str, initial: int = 0, *, shown: bool = True
) -> "tqdm[Any]":
    """A bar on stderr if that is a terminal, else nothing; `update`, `set_postfix_str` and `close`
    work on both. A narrow terminal has room for the figures alone.
    """
    shown = shown and sys.stderr.isatty() and logger.isEnabledFor(logging.INFO)
    is_narrow = shown and os.get_terminal_size(sys.stderr.fileno()).columns < WIDE
    return tqdm(
        total=total,
        initial=initial,
        unit=unit,
        desc=printable(description),
        disable=not shown,
        bar_format=FIGURES if is_narrow and total is not None else None,
        file=sys.stderr,
        dynamic_ncols=True,
        smoothing=0.1,
        leave=False,
    )


def shorten(numbers: Iterable[int], most: int = MOST_LISTED) -> str:
    """List the first numbers: `1, 2, 3, ...`."""
    listed = list(numbers)
    return ", ".join(map(str, listed[:most])) + (", ..." if len(listed) > most else "")


class Places:
    """A count of lines that were cut, with the numbers of the first."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[int] = []

    def add(self, numbers: Iterable[int]) -> None:
        """Count numbers and keep the first."""
        for number in numbers:
            self.count += 1
            if len(self.first) <= MOST_LISTED:
                self.first.append(number)

    def warn(self, limit: int, text: str = "") -> None:
        """Say once which lines, of which text, were cut."""
        if self.count:
            logger.warning(
                "%slines longer than %d tokens, cut there: %s (line %s)",
                text and f"{text}: ",
                limit,
                f"{self.count:,}",
                shorten(self.first),
            )


class Board(Protocol):
    """What shows the records of `metrics.jsonl` elsewhere."""

    def begin(self, records: list[dict[str, Any]]) -> None:
        """Show these records, and none that were shown before."""

    def add(self, record: dict[str, Any]) -> None:
        """Show one more."""


@dataclass
class Records:
    """What `metrics.jsonl` holds: records, numbers of lines that are none, and, if a crash has cut
    it, the last line's.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    cut: int | None = None


class MetricsFile:
    """`metrics.jsonl`: one JSON object a record, in the order of steps; a board gets the same."""

    def __init__(
        self, path: Path, board: Board | None = None, check: Callable[[], None] = lambda: None
    ) -> None:
        self.path, self.board = path, board
        self.check = check  # called before anything is written; may raise

    def append(self, record: dict[str, Any]) -> None:
        """Add a record."""
        self.check()
        with files.append(self.path) as out:
            out.write(json.dumps(record).encode() + b"\n")
        if self.board is not None:
            self.board.add(record)

    def cut(self, step: int) -> None:
        """Drop the records after a step, and what a crash left of a line: a resumed run writes them
        again.
        """
        records = [record for record in self.read() if record["step"] <= step]
        self._rewrite(records)
        if self.board is not None:
            self.board.begin(records)

    def replace(self, record: dict[str, Any], prefix: str) -> None:
        """Add a record in place of one of the same step whose keys start with `prefix`."""
        step, records = record["step"], self.read()
        kept = [r for r in records if r["step"] != step or not any(k.startswith(prefix) for k in r)]
        self._rewrite([*kept, record])
        if self.board is not None and len(kept) < len(records):
            self.board.begin([*kept, record])
        elif self.board is not None:
            self.board.add(record)

    def read(self) -> list[dict[str, Any]]:
        """Read the whole records; raises `UserError` where there is something else than a file."""
        return self.parse().records

    def parse(self) -> Records:
        """Tell the whole records from other lines; raises `UserError` as `read` does."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return Records()
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read: {error.strerror}") from None
        found = Records()
        for number, line in enumerate(lines, 1):
            record = _parse_record(line)
            if record is not None:
                found.records.append(record)
            elif number < len(lines):
                found.broken.append(number)
            elif line:  # behind the last newline
                found.cut = number
        return found

    def _rewrite(self, records: list[dict[str, Any]]) -> None:
        self.check()
        if self.path.exists() or records:
            files.write_text(self.path, "".join(json.dumps(record) + "\n" for record in records))


def _parse_record(line: bytes) -> dict[str, Any] | None:
    """Read a line that holds a step and, if a validation's, its score."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        return None
    return record if isinstance(record.get("valid/bleu", 0.0), int | float) else None
