"""An external metric: a program that reads translations and prints one number.

Only the command line names the program. A config can require one but not name it, since it may come
from somebody else and must not run programs.
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
from contextlib import suppress
from typing import IO

from mtrain.runtime.errors import RefusedError, UserError

OPTION = "--metric-command"
WAIT = 0.2  # seconds between checks for a request to stop
MAX_SHOWN = 200  # characters of what a program printed
MAX_PRINTED, MAX_READ = 1 << 28, 1 << 20  # bytes
# Environment variables of mtrain and torchrun, which a program that uses torch would obey.
HIDDEN = {"PYTHONSAFEPATH", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
HIDDEN |= {"MASTER_ADDR", "MASTER_PORT"}
_AS_SPACES = str.maketrans("\t\n\r", "   ")


class ExternalMetric:
    """A command that is split like a shell's, but run without a shell. Raises `RefusedError` if it
    names no program.
    """

    def __init__(self, command: str, timeout: float) -> None:
        self.command, self.timeout = command, timeout
        try:
            self.words = shlex.split(command)
        except ValueError as error:
            raise RefusedError(f"{OPTION} {command}: {error}; quote it as for a shell") from None
        if not self.words or shutil.which(self.words[0]) is None:
            raise RefusedError(f"{OPTION} {command}: no such program; install it, or give its path")

    def score(self, rows: Iterable[tuple[str, str, str]], check_stop: Callable[[], None]) -> float:
        """Feed the program `source<TAB>hypothesis<TAB>reference` lines and return the number that
        it prints; larger is better. `check_stop` is called while it runs, and may raise to stop it.
        Raises `UserError` if the program fails.
        """
        lines = ("\t".join(text.translate(_AS_SPACES) for text in row) + "\n" for row in rows)
        printed, errors, code = self._run("".join(lines).encode(), check_stop)
        if code:
            last = (errors.strip().splitlines() or ["it printed no error"])[-1]
            end = f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code}"
            raise self._failure(f"{end}: {last[-MAX_SHOWN:]}")
        with suppress(ValueError):
            value = float(printed)
            if math.isfinite(value):
                return value
        raise self._failure(f"printed {printed[:MAX_SHOWN]!r}, not one number")

    def _run(self, text: bytes, check_stop: Callable[[], None]) -> tuple[str, str, int]:
        """Return what the program prints to stdout and stderr, and its exit code."""
        # files, not pipes: a process that the program leaves behind would keep pipes open, and
        # after a timeout `Popen.communicate` loses the input that the program has not read
        try:
            with (
                tempfile.TemporaryFile() as given,
                tempfile.TemporaryFile() as printed,
                tempfile.TemporaryFile() as errors,
            ):
                given.write(text)
                given.seek(0)
                code = self._wait((given, printed, errors), check_stop)
                return _end_of(printed), _end_of(errors), code
        except OSError as error:
            raise UserError(
                f"{tempfile.gettempdir()}: cannot store the input of {OPTION}: {error.strerror}; "
                "make room there, or set TMPDIR to a folder on another disk, and run the same "
                "command again"
            ) from None

    def _wait(
        self, streams: tuple[IO[bytes], IO[bytes], IO[bytes]], check_stop: Callable[[], None]
    ) -> int:
        """Run the program with these standard streams and return its exit code."""
        stdin, stdout, stderr = streams
        deadline = time.monotonic() + self.timeout
        environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
        try:
            process = subprocess.Popen(
                self.words,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=environment,
                start_new_session=True,  # signals reach it and its children through `check_stop`
            )
        except OSError as error:
            raise self._failure(f"cannot be started: {error.strerror}") from None
        with process:
            try:
                while True:
                    with suppress(subprocess.TimeoutExpired):
                        return process.wait(WAIT)
                    check_stop()
                    if time.monotonic() > deadline:
                        raise self._failure(f"took longer than --metric-timeout {self.timeout:g}")
                    sizes = [os.fstat(file.fileno()).st_size for file in (stdout, stderr)]
                    if max(sizes) > MAX_PRINTED:
                        raise self._failure(f"printed more than {MAX_PRINTED:,} bytes")
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)  # its children, too

    def _failure(self, text: str) -> UserError:
        return UserError(
            f"{OPTION} {self.command}: {text}; the checkpoint is saved: fix the program and run "
            "the same command again"
        )


def _end_of(output: IO[bytes]) -> str:
    """Return the last `MAX_READ` bytes of a program's output as text."""
    output.seek(max(0, os.fstat(output.fileno()).st_size - MAX_READ))
    return output.read(MAX_READ).decode("utf-8", "replace").strip()
