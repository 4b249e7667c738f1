"""Logging to the console, a progress bar and `train.log`."""

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
from mtrain.runtime.console import RED, YELLOW, cut_to_width, paint
from mtrain.runtime.errors import UserError, printable

if TYPE_CHECKING:
    from tqdm import tqdm

logger = logging.getLogger("mtrain")


def _escape_arguments(record: logging.LogRecord) -> bool:
    """Make the arguments of a message printable: names and text from outside may contain line
    breaks, which would forge a line of a log, and escapes, which a terminal would execute. A
    `UserError` is printable already.
    """
    if isinstance(record.args, tuple):
        record.args = tuple(
            value if isinstance(value, UserError | int | float) else printable(str(value))
            for value in record.args
        )
    return True


logger.addFilter(_escape_arguments)

# Columns that the progress bar of a training run needs, and its format on narrower terminals.
WIDE = 120
FIGURES = "{desc}: {percentage:.0f}% {n_fmt}/{total_fmt}, {remaining} left{postfix}"
MAX_LISTED = 10  # line numbers in a message
_TIME = "%Y-%m-%d %H:%M:%S"


class LogFile(logging.StreamHandler[TextIOWrapper]):
    """The handler of a run's `train.log`."""


class ConsoleHandler(logging.Handler):
    """A handler for stderr that writes above a progress bar, with coloured warnings and errors."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. On a terminal, leave out a record that is `shown_on_bar`, unless DEBUG
        records are wanted, and cut a record that `is_cut` to the width.
        """
        from tqdm import tqdm  # not needed by --help

        on_bar = getattr(record, "shown_on_bar", False) and self.level >= logging.INFO
        if on_bar and sys.stderr.isatty():
            return
        label = _LABELS.get(record.levelno)
        record.label = paint(*label, sys.stderr) + " " if label else ""
        with suppress(OSError):  # a closed pipe or a full disk must not end a run
            text = self.format(record)
            if getattr(record, "is_cut", False) and sys.stderr.isatty():
                text = cut_to_width(text, _columns())
            # while `write` makes its lock, a signal would end in another error
            tqdm.get_lock()  # type: ignore[no-untyped-call]
            tqdm.write(text, file=sys.stderr)


# Labels of messages on the console, and their colours on a terminal.
_LABELS = {logging.WARNING: ("warning:", YELLOW), logging.ERROR: ("error:", RED)}


def set_up_console(*, times: bool = False, level: int | None = None) -> None:
    """Log to stderr from a level on, by default the current one. If `times`, begin each record with
    the time, unless stderr is a terminal.
    """
    handler = ConsoleHandler(_console_level() if level is None else level)
    stamp = "%(asctime)s " if times and not sys.stderr.isatty() else ""
    handler.setFormatter(logging.Formatter(stamp + "%(label)s%(message)s", _TIME))
    logger.handlers[:] = [handler]
    logger.setLevel(min(handler.level, logging.INFO))  # train.log has all INFO records
    logger.propagate = False
    logging.raiseExceptions = False  # report a full disk once, not for every line


def _console_level() -> int:
    levels = (handler.level for handler in logger.handlers if isinstance(handler, ConsoleHandler))
    return next(levels, logging.INFO)


def _columns() -> int:
    """Return the width of the terminal, or `WIDE` if it reports none."""
    return os.get_terminal_size(sys.stderr.fileno()).columns or WIDE


def is_on_terminal() -> bool:
    """Whether stderr is a terminal that shows all messages."""
    is_loud = logger.isEnabledFor(logging.INFO) and _console_level() <= logging.INFO
    return sys.stderr.isatty() and is_loud


def add_log_file(path: Path) -> None:
    """Also log to this file, instead of an earlier one; raises `OSError`."""
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
    """Return a progress bar on stderr if that is a terminal that shows all messages, or else a
    silent one with the same methods. A narrow terminal shows the figures without a bar.
    """
    from tqdm import tqdm  # not needed by --help

    tqdm.monitor_interval = 0  # no thread, which the system may refuse to start
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


def first_numbers(numbers: Iterable[int]) -> str:
    """List the first numbers: `1, 2, 3, ...`."""
    texts = list(map(str, numbers))
    if len(texts) > MAX_LISTED:
        texts = [*texts[:MAX_LISTED], "..."]
    return ", ".join(texts)


def warn_of_counts(counts: Counter[str]) -> None:
    """Warn of problems of the input, with the number of lines of each."""
    for reason, count in counts.items():
        logger.warning("%s: %s", reason, f"{count:,}")


class CountedLines:
    """The number of lines to warn of, and the line numbers of the first ones."""

    def __init__(self, indices: Iterable[int] = ()) -> None:
        self.count = 0
        self.first = list[int]()
        self.add(indices)

    def add(self, indices: Iterable[int]) -> None:
        """Count lines, given by indices from 0."""
        for index in indices:
            self.count += 1
            if len(self.first) <= MAX_LISTED:
                self.first.append(index + 1)

    def warn_of(self, what: str, advice: str = "") -> None:
        """Warn of the lines, if there are any."""
        if self.count:
            lines = "line" if self.count == 1 else "lines"
            where = f"({lines} {first_numbers(self.first)})"
            logger.warning("%s: %s %s%s", what, f"{self.count:,}", where, advice)


class TruncatedLines(CountedLines):
    """Lines that were truncated."""

    def warn(self, limit: int, text: str = "") -> None:
        """Warn of the truncated lines of a text, if there are any."""
        where = f"{text}: " if text else ""
        self.warn_of(f"{where}lines longer than {limit} tokens, cut there")
