"""An external metric: a program that reads translations and prints one number.

It is named on the command line alone. A config can ask for one and never name it, since a config
may be somebody else's.
"""

import math
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress

from mtrain.runtime.errors import RefusedError, UserError

OPTION = "--metric-command"
WAIT = 0.2  # seconds between looks at a request to stop
MOST_SHOWN = 200  # characters of what a program printed
# Set by mtrain and torchrun for their own processes; programs that use torch would obey them.
HIDDEN = {"PYTHONSAFEPATH", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
HIDDEN |= {"MASTER_ADDR", "MASTER_PORT"}
_AS_SPACES = str.maketrans("\t\n\r", "   ")


class ExternalMetric:
    """A command, split as a shell does but run without one. Raises `RefusedError` if it names no
    program.
    """

    def __init__(self, command: str, timeout: float) -> None:
        self.command, self.timeout = command, timeout
        try:
            self.words = shlex.split(command)
        except ValueError as error:
            raise RefusedError(f"{OPTION} {command}: {error}; write it as for a shell") from None
        if not self.words or shutil.which(self.words[0]) is None:
            raise RefusedError(f"{OPTION} {command}: no such program; install it, or give its path")

    def score(self, rows: Iterable[tuple[str, str, str]], check: Callable[[], None]) -> float:
        """Return the number that the program prints for sources, hypotheses and references, which
        it reads as `source<TAB>hypothesis<TAB>reference` lines; larger is better. `check` may raise
        a request to stop. Raises `UserError` if the program fails.
        """
        lines = ("\t".join(text.translate(_AS_SPACES) for text in row) + "\n" for row in rows)
        printed, errors, code = self._run("".join(lines).encode(), check)
        if code:
            last = (errors.strip().splitlines() or ["it printed no error"])[-1]
            raise self._failure(f"ended with exit code {code}: {last[-MOST_SHOWN:]}")
        with suppress(ValueError):
            if math.isfinite(value := float(printed)):
                return value
        raise self._failure(f"printed {printed[:MOST_SHOWN]!r}, not one number")

    def _run(self, text: bytes, check: Callable[[], None]) -> tuple[str, str, int]:
        """Return what the program prints to stdout and stderr, and its exit code."""
        end = time.monotonic() + self.timeout
        environment = {name: each for name, each in os.environ.items() if name not in HIDDEN}
        try:
            process = subprocess.Popen(
                self.words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # a signal reaches it through `check`, with its children
            )
        except OSError as error:
            raise self._failure(f"cannot be started: {error.strerror}") from None
        with process, ExitStack() as unfinished:
            unfinished.callback(_kill, process)
            given: bytes | None = text
            while True:
                try:
                    printed, errors = process.communicate(given, WAIT)
                    break
                except subprocess.TimeoutExpired:
                    given = None  # it goes on with the rest of the text
                    check()
                    if time.monotonic() > end:
                        late = f"took longer than --metric-timeout {self.timeout:g}"
                        raise self._failure(late) from None
            unfinished.pop_all()
        shown, failed = (each.decode("utf-8", "replace").strip() for each in (printed, errors))
        return shown, failed, process.returncode

    def _failure(self, text: str) -> UserError:
        return UserError(
            f"{OPTION} {self.command}: {text}; the checkpoint is saved: mend the program and run "
            "the same command again"
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and the processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
