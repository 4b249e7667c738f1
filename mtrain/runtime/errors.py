"""The errors that users see: a message without a traceback, and a fixed exit code."""

import copyreg
import errno
import os
import re
from pathlib import Path
from typing import Any

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_STOPPED = 75
EXIT_HUNG_UP = 129
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
EXIT_TERMINATED = 143

# Messages of Python and of C++ libraries if the system refuses to start a thread; these errors have
# no type of their own.
NO_THREAD = ("can't start new thread", os.strerror(errno.EAGAIN))

# The no-break spaces of French, and the space of Chinese and Japanese.
SPACES = "\u00a0\u202f\u3000"
# Characters that join or part the letters of a word, as in Persian and Hindi, and parts of emoji.
JOINERS = "\u200c\u200d"
FIRST_JOINED = "\u0590"  # Latin, Greek, Cyrillic and Armenian letters, below it, use no joiners
# The zero-width space that separates words in text without other spaces, such as Khmer, and the
# blocks from Thai to Burmese and of Khmer.
ZERO_WIDTH_SPACE = "\u200b"
UNSPACED_LETTERS = re.compile("[\u0e00-\u109f\u1780-\u17ff]")


def printable(text: str) -> str:
    """Escape the characters of a text that a terminal would not show, or would execute."""
    if text.isprintable():
        return text
    shown = list[str]()
    before = " "
    for char in text:
        is_joiner = char in JOINERS and before >= FIRST_JOINED
        is_joiner |= char == ZERO_WIDTH_SPACE and UNSPACED_LETTERS.match(before) is not None
        is_shown = char.isprintable() or char in SPACES or is_joiner
        shown.append(char if is_shown else ascii(char)[1:-1])
        before = char
    return "".join(shown)


def is_utf8(text: str) -> bool:
    """Whether a text can be encoded as UTF-8: lone surrogates cannot, which JSON may hold, and
    which Python puts in place of bytes of file names that are not UTF-8.
    """
    try:
        return text.isascii() or bool(text.encode("utf-8"))
    except UnicodeEncodeError:
        return False


class UserError(Exception):
    """The run failed for a reason that the user can fix: *where: what is wrong; what to do*.

    Each argument is a line of the message. Line breaks and terminal escapes inside a line, as in
    the name of a file, are escaped.
    """

    exit_code = EXIT_FAILED
    is_shared = False  # whether every rank of a job raises it
    is_silent = False  # whether another rank shows it

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)

    def __str__(self) -> str:
        return "\n".join(map(printable, self.args))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle an error for another process, whatever the parameters of its class are."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


def first_line(error: Exception) -> str:
    """Return the first line of a library's error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def as_user_error(error: UserError | OSError | MemoryError) -> UserError:
    """Return the error to show, also for a system error or a lack of memory."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, MemoryError):
        return UserError("out of memory")
    return UserError(f"{error.filename or 'mtrain'}: {error.strerror or error}")


def thread_limit_error(error: RuntimeError) -> UserError | None:
    """Return the error to show if the system refused to start a thread, else None."""
    if str(error) not in NO_THREAD:
        return None
    return UserError(
        "cannot start another thread; raise the limit on processes and threads (ulimit -u), or "
        "free memory"
    )


def reason_not_opened(path: Path, error: OSError) -> str:
    """Return why a file cannot be opened and, if it is missing, where a relative path starts."""
    is_lost = isinstance(error, FileNotFoundError) and not path.is_absolute()
    return f"{error.strerror or error}" + (f" (looked for in {Path.cwd()})" if is_lost else "")


def missing_library_error(error: ImportError) -> UserError | None:
    """Return the error to show if a library cannot be loaded; None for a module of mtrain."""
    if (error.name or "").startswith("mtrain"):
        return None
    advice = "install mtrain again, or raise the limit on memory (ulimit -v)"
    return UserError(f"cannot load a library: {first_line(error)}; {advice}")


class RefusedError(UserError):
    """Refused before anything was done: usage, config, or a run directory of another run."""

    exit_code = EXIT_REFUSED


class MissingExtraError(RefusedError):
    """A library is not installed; the message names the extra of mtrain that installs it."""

    def __init__(self, what: str, extra: str, cause: object) -> None:
        install = f"pip install 'mtrain[{extra}]' (in a clone: -e '.[{extra}]')"
        # the text of ModuleNotFoundError adds nothing
        detail = "" if isinstance(cause, ModuleNotFoundError) else f"; {cause}"
        super().__init__(f"{what} needs an extra: {install}{detail}")


class StoppedError(UserError):
    """A signal or a time limit stopped the work; `exit_code` depends on which."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
