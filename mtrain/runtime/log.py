"""Where messages go: console, progress bar, `train.log`."""

import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtrain.runtime import files
from mtrain.runtime.console import RED, YELLOW, clipped, paint
from mtrain.runtime.errors import UserError, printable

if TYPE_CHECKING:
    from tqdm import tqdm

logger = logging.getLogger("mtrain")


def _spell_out(record: logging.LogRecord) -> bool:
    """Make the arguments of a message printable: names and text from outside may hold line breaks,
    which would forge a line of a log, and escapes, which a terminal would obey. Errors do that by
    themselves.
    """
    if isinstance(record.args, tuple):
        record.args = tuple(
            each if isinstance(each, UserError | int | float) else printable(str(each))
            for each in record.args
        )
    return True


logger.addFilter(_spell_out)

# Columns that the bar of a training run needs, and the format for narrower terminals.
WIDE = 120
FIGURES = "{desc}: {percentage:.0f}% {n_fmt}/{total_fmt}, {remaining} left{postfix}"
MAX_LISTED = 10  # numbers of lines that a message names
_TIME = "%Y-%m-%d %H:%M:%S"


class LogFile(logging.StreamHandler[TextIOWrapper]):
    """Writes to a run's `train.log`."""


class ConsoleHandler(logging.Handler):
    """A handler for stderr that keeps a progress bar whole; warnings and errors are coloured."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; on a terminal the bar shows training records, unless all are wanted,
        and one that `is_cut` is cut to the width.
        """
        from tqdm import tqdm  # not needed by --help

        on_bar = getattr(record, "shown_on_bar", False) and self.level >= logging.INFO
        if on_bar and sys.stderr.isatty():
            return
        label = _LABELS.get(record.levelno)
        record.label = paint(*label, sys.stderr) + " " if label else ""
        with suppress(OSError):  # a reader that went away, or a full disk, ends no run
            text = self.format(record)
            if getattr(record, "is_cut", False) and sys.stderr.isatty():
                text = clipped(text, _columns())
            tqdm.write(text, file=sys.stderr)


# The beginning of messages on the console, and its colour on a terminal.
_LABELS = {logging.WARNING: ("warning:", YELLOW), logging.ERROR: ("error:", RED)}


def set_up_console(*, times: bool = False, level: int | None = None) -> None:
    """Log to stderr from a level on, by default the present one; `times` puts the time before each
    record, unless that is a terminal.
    """
    handler = ConsoleHandler(_console_level() if level is None else level)
    stamp = "%(asctime)s " if times and not sys.stderr.isatty() else ""
    handler.setFormatter(logging.Formatter(stamp + "%(label)s%(message)s", _TIME))
    logger.handlers[:] = [handler]
    logger.setLevel(min(handler.level, logging.INFO))  # train.log has all INFO records
    logger.propagate = False
    logging.raiseExceptions = False  # report a full disk once, not for every line


def _console_level() -> int:
    levels = (each.level for each in logger.handlers if isinstance(each, ConsoleHandler))
    return next(levels, logging.INFO)


def _columns() -> int:
    """Return the width of the terminal; some do not know theirs."""
    return os.get_terminal_size(sys.stderr.fileno()).columns or WIDE


def is_on_terminal() -> bool:
    """Whether stderr is a terminal that shows all messages."""
    is_loud = logger.isEnabledFor(logging.INFO) and _console_level() <= logging.INFO
    return sys.stderr.isatty() and is_loud


def add_log_file(path: Path) -> None:
    """Write the records to a file, too, instead of an earlier one; raises `OSError`."""
    close_log_files()
    handler = LogFile(TextIOWrapper(files.append(path), encoding="utf-8"))
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", _TIME))
    logger.addHandler(handler)


def close_log_files() -> None:
    """Stop writing to files."""
    for handler in [h for h in logger.handlers if isinstance(h, LogFile)]:
        logger.removeHandler(handler)
        handler.stream.close()


def progress_bar(
    total: int | None, unit: str, description: str, initial: int = 0, *, shown: bool = True
) -> "tqdm[Any]":
    """Return a bar on stderr if that is a terminal that shows all messages, else a silent one;
    `update`, `set_postfix_str` and `close` work on both. A narrow terminal shows the figures only.
    """
    from tqdm import tqdm  # not needed by --help

    shown = shown and is_on_terminal()
    is_narrow = shown and _columns() < WIDE
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


def shorten(numbers: Iterable[int]) -> str:
    """List the first numbers: `1, 2, 3, ...`."""
    listed = list(numbers)
    more = ", ..." if len(listed) > MAX_LISTED else ""
    return ", ".join(map(str, listed[:MAX_LISTED])) + more


def warn_of_counts(counts: Counter[str]) -> None:
    """Log problems of the input, with their counts."""
    for reason, count in counts.items():
        logger.warning("%s: %s", reason, f"{count:,}")


class TruncatedLines:
    """Counts truncated lines, and keeps the first of their numbers."""

    def __init__(self) -> None:
        self.count, self.first = 0, list[int]()

    def add(self, indices: Iterable[int]) -> None:
        """Count lines by their indices, and keep the first numbers, which count from 1."""
        for index in indices:
            self.count += 1
            if len(self.first) <= MAX_LISTED:
                self.first.append(index + 1)

    def warn(self, limit: int, text: str = "") -> None:
        """Warn of the lines that were cut."""
        if self.count:
            logger.warning(
                "%slines longer than %d tokens, cut there: %s (line %s)",
                text and f"{text}: ",
                limit,
                f"{self.count:,}",
                shorten(self.first),
            )
