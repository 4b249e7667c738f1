"""What a terminal and a file show of the log, and the bar of a run on narrow terminals."""

from __future__ import annotations

import logging
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest
from tqdm import tqdm

from mtrain.runtime.console import cut_to_width
from mtrain.runtime.log import FIGURES, TruncatedLines, logger, progress_bar, set_up_console


def read_all(master: int) -> bytes:
    """Return what a terminal has shown, which is closed."""
    shown = b""
    with suppress(OSError):
        while part := os.read(master, 1000):
            shown += part
    os.close(master)
    return shown


def test_the_figures_of_a_long_run_fit_a_terminal_of_80_columns() -> None:
    postfix = "loss 3.701  ppl 14.72  121,825 tok/s"
    bar = {"prefix": "training", "bar_format": FIGURES, "postfix": postfix}
    shown = tqdm.format_meter(71_000, 100_000, 99_000, ncols=79, **bar)
    assert shown == f"training: 71% 71000/100000, 11:13:56 left, {postfix}"


@pytest.mark.parametrize(
    ("total", "shown"), [(10, b"verifying: 30% 3/10, "), (None, b"verifying: 3item [")]
)
def test_a_bar_without_a_total_shows_what_is_done_on_a_narrow_terminal_too(
    monkeypatch: pytest.MonkeyPatch, total: int | None, shown: bytes
) -> None:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    with open(slave, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        set_up_console()
        with progress_bar(total, "item", "verifying") as bar:
            bar.update(3)
            bar.refresh()
    set_up_console()
    assert shown in read_all(master)


def test_a_text_is_cut_on_the_narrowest_terminal() -> None:
    assert [cut_to_width("a b c d", width) for width in (7, 6, 5, 2)] == [
        *("a b c d", "a b...", "a...", "..."),
    ]


def test_a_terminal_that_does_not_know_its_width_shows_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master, slave = pty.openpty()  # its size is 0 x 0
    with open(slave, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        set_up_console()
        logger.info("%s", "a sample", extra={"is_cut": True})
        terminal.flush()
        assert b"a sample" in os.read(master, 100)
    set_up_console()
    os.close(master)


def test_a_text_is_cut_to_the_width_of_a_terminal_and_is_whole_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a sample of several words and more"
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 20))
    with open(slave, "w") as terminal, (tmp_path / "log").open("w") as file:
        for stream in (terminal, file):
            with monkeypatch.context() as patch:
                patch.setattr(sys, "stderr", stream)
                set_up_console()
                logger.info("%s", text, extra={"is_cut": True})
                stream.flush()
        shown = os.read(master, 100)
    set_up_console()
    os.close(master)
    assert shown.strip() == b"a sample of sever..."
    assert (tmp_path / "log").read_text() == f"{text}\n"


@pytest.mark.parametrize(("level", "shown"), [(logging.INFO, b""), (logging.DEBUG, b"step 50")])
def test_a_terminal_shows_a_step_on_the_bar_unless_details_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int, shown: bytes
) -> None:
    """A file has it with its time."""
    master, slave = pty.openpty()
    with open(slave, "w") as terminal, (tmp_path / "log").open("w") as file:
        for stream in (terminal, file):
            with monkeypatch.context() as patch:
                patch.setattr(sys, "stderr", stream)
                set_up_console(times=True, level=level)
                logger.info("%s", "step 50", extra={"shown_on_bar": True})
                logger.info("end")
                stream.flush()
    set_up_console(level=logging.INFO)
    assert read_all(master).split(b"\r\n") == [*filter(None, [shown]), b"end", b""]
    lines = (tmp_path / "log").read_text().splitlines()
    assert all(re.match(r"[0-9-]{10} [0-9:]{8} (step 50|end)$", line) for line in lines)
    assert len(lines) == 2


def test_of_many_truncated_lines_the_first_are_named(caplog: pytest.LogCaptureFixture) -> None:
    lines = TruncatedLines()
    lines.warn(5)
    for indices in ([0], range(1, 10), [10]):
        lines.add(indices)
        lines.warn(5)
    first = "lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10"
    text = "lines longer than 5 tokens, cut there:"
    ends = ["1 (line 1)", f"10 ({first})", f"11 ({first}, ...)"]
    assert caplog.messages == [f"{text} {end}" for end in ends]


# Sends a signal while tqdm makes its lock, which the first message needs.
INTERRUPTED = """
import multiprocessing, os, sys
from mtrain.runtime.console import stopped_by_signals
from mtrain.runtime.log import logger, set_up_console
make_lock = multiprocessing.RLock
def make_interrupted_lock():
    os.kill(os.getpid(), int(sys.argv[1]))
    return make_lock()
set_up_console()
multiprocessing.RLock = make_interrupted_lock
with stopped_by_signals():
    logger.info("%s", "first")
"""


@pytest.mark.parametrize(("number", "end"), [(signal.SIGINT, -2), (signal.SIGTERM, 143)])
def test_a_signal_at_the_first_message_stops_the_command(number: int, end: int) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == end
    assert "AttributeError" not in done.stderr
