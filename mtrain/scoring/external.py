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
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import IO

from mtrain.runtime.errors import RefusedError, UserError

OPTION = "--metric-command"
WAIT = 0.2  # seconds between looks at a request to stop
MAX_SHOWN = 200  # characters of what a program printed
MAX_PRINTED, MAX_READ = 1 << 28, 1 << 20  # bytes
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
            raise self._failure(f"ended with exit code {code}: {last[-MAX_SHOWN:]}")
        with suppress(ValueError):
            if math.isfinite(value := float(printed)):
                return value
        raise self._failure(f"printed {printed[:MAX_SHOWN]!r}, not one number")

    def _run(self, text: bytes, check: Callable[[], None]) -> tuple[str, str, int]:
        """Return what the program prints to stdout and stderr, and its exit code."""
        # not pipes, which a process that the program leaves behind would keep open
        with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
            code = self._wait(text, (printed, errors), check)
            return _end_of(printed), _end_of(errors), code

    def _wait(
        self, text: bytes, outputs: tuple[IO[bytes], IO[bytes]], check: Callable[[], None]
    ) -> int:
        """Run the program and return its exit code."""
        end = time.monotonic() + self.timeout
        environment = {name: each for name, each in os.environ.items() if name not in HIDDEN}
        try:
            process = subprocess.Popen(
                self.words,
                stdin=subprocess.PIPE,
                stdout=outputs[0],
                stderr=outputs[1],
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
                    process.communicate(given, WAIT)
                    break
                except subprocess.TimeoutExpired:
                    given = None  # it goes on with the rest of the text
                    check()
                    if time.monotonic() > end:
                        late = f"took longer than --metric-timeout {self.timeout:g}"
                        raise self._failure(late) from None
                    if max(os.fstat(each.fileno()).st_size for each in outputs) > MAX_PRINTED:
                        raise self._failure(f"printed more than {MAX_PRINTED:,} bytes") from None
            unfinished.pop_all()
        return process.returncode

    def _failure(self, text: str) -> UserError:
        return UserError(
            f"{OPTION} {self.command}: {text}; the checkpoint is saved: mend the program and run "
            "the same command again"
        )


def _end_of(output: IO[bytes]) -> str:
    """Return the end of what was printed, which is all of it unless it is far too much."""
    output.seek(max(0, os.fstat(output.fileno()).st_size - MAX_READ))
    return output.read(MAX_READ).decode("utf-8", "replace").strip()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and the processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
