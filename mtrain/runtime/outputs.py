"""Output files of commands: a file gets its name once it is complete.

    out.txt.partial     the content so far, locked by the process that writes it
    out.txt.partial.1   lines of a stopped attempt, renamed by the next attempt
    out.txt             the old file until the end, then the new one

Streams, devices, pipes, and files in a directory that accepts no new file are written directly.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO

from rich import filesize

from mtrain.runtime import files
from mtrain.runtime.console import handling_write_errors, stopped_by_signals, writing
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.log import is_on_terminal, logger

_BLOCK = 1 << 20


@dataclass(frozen=True)
class _Output:
    """An output that is written under a temporary name."""

    path: Path  # as the user named it
    target: Path  # with links resolved
    partial: Path  # the temporary file
    descriptor: int  # of the temporary file; holds its lock
    sink: IO[bytes]

    def close(self, *, keeps_lines: bool) -> None:
        """Close the file. If it was not published, keep its complete lines and log where they are
        if `keeps_lines`, or else remove it.
        """
        with suppress(OSError):  # of a full disk
            self.sink.close()
        if files.is_at(self.descriptor, self.partial):
            lines = _cut_to_lines(self.descriptor) if keeps_lines else 0
            if not lines:
                self.partial.unlink()
            if keeps_lines:
                shown = self.partial if self.path.is_symlink() else _partial_of(self.path)
                kept = f"{shown} holds the first {lines:,} line{'s' * (lines > 1)} of the output"
                text = kept if lines else "stopped before the first lines were written"
                state = "left as it was" if self.target.exists() else "not written"
                logger.warning("%s; %s was %s", text, self.path, state)
        os.close(self.descriptor)


def _partial_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


def _cut_to_lines(descriptor: int) -> int:
    """Truncate a file after its last newline; return the number of its lines."""
    lines = end = start = 0
    while block := os.pread(descriptor, _BLOCK, start):
        lines += block.count(b"\n")
        if b"\n" in block:
            end = start + block.rfind(b"\n") + 1
        start += len(block)
    os.ftruncate(descriptor, end)
    return lines


@contextmanager
def opened(
    *names: str | Path,
    is_direct: bool = False,
    keeps_lines: bool = False,
    is_new: bool = False,
    is_logged: bool = False,
) -> Iterator[list[IO[bytes]]]:
    """Open files for writing bytes; `-` is stdout. They are written under temporary names and
    renamed at the end of the block; a replaced file passes on its permissions. If the block fails
    or is stopped, no file is renamed, and if `keeps_lines`, the complete lines are kept. If
    `is_direct`, files are written without temporary names. If `is_new`, they must not exist. If
    `is_logged`, the log names them even if stderr is not a terminal. Raises `UserError`.
    """
    shown = ", ".join("stdout" if str(name) == "-" else str(name) for name in names)
    has_files = not {str(name) for name in names} <= {"-", os.devnull}
    with (
        handling_write_errors(shown),
        stopped_by_signals() if has_files and not is_direct else nullcontext(),
        ExitStack() as stack,
    ):
        outputs = list[_Output]()
        sinks = list[IO[bytes]]()
        for name in names:
            output = None if is_direct else _begin(name, keeps_lines=keeps_lines)
            if output is None:
                sinks.append(stack.enter_context(writing(_standard(name))))
                continue
            stack.callback(output.close, keeps_lines=keeps_lines)
            outputs.append(output)
            sinks.append(output.sink)
        yield sinks
        for sink in sinks:
            sink.flush()
        _publish(outputs, is_new=is_new, is_logged=is_logged or is_on_terminal())


def _publish(outputs: list[_Output], *, is_new: bool, is_logged: bool) -> None:
    """Give all files their names, or none if `is_new` and one of the names is taken."""
    for output in outputs:
        os.fsync(output.descriptor)
        if not files.is_at(output.descriptor, output.partial):
            raise UserError(f"{output.partial}: was removed or replaced; run the command again")
        if is_new:
            files.check_new(output.path)
    for output in outputs:
        os.replace(output.partial, output.target)
        with suppress(PermissionError):  # the directory may be writable, but not readable
            files.sync(output.target.parent)
        if is_logged:
            logger.info("wrote %s (%s)", output.path, describe_size(output.target))


def describe_size(path: Path) -> str:
    """Return the readable size of a file, or of all files in a directory."""
    paths = (path, *path.rglob("*"))
    return filesize.decimal(sum(item.stat().st_size for item in paths if item.is_file()))


def _begin(name: str | Path, *, keeps_lines: bool) -> _Output | None:
    """Create the temporary file for an output; None if the output is written directly. Keep the
    lines of an earlier attempt if `keeps_lines`. Raises `OSError`.
    """
    path, target = Path(name), Path(os.path.realpath(name))
    if _standard(name) in (1, 2) or str(path).startswith(("/dev/fd/", "/proc/")):
        return None
    old = None
    with suppress(FileNotFoundError):
        old = os.stat(path)
    if old is not None and not stat.S_ISREG(old.st_mode):
        return None
    if old is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
    partial = _partial_of(target)
    try:
        descriptor = _make_held(partial, keeps_lines=keeps_lines)
    except OSError as error:
        if old is not None and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return None
        raise
    if old is not None:
        files.set_permissions(descriptor, old.st_mode & 0o777)
    return _Output(path, target, partial, descriptor, os.fdopen(descriptor, "wb", closefd=False))


def _standard(name: str | Path) -> str | int:
    """Return the number of the standard stream that a name leads to, or the name."""
    if str(name) == "-":
        return 1
    with suppress(OSError):
        for number in (1, 2):
            if os.path.samestat(os.stat(name), os.fstat(number)):
                return number
    return str(name)


def _make_held(path: Path, *, keeps_lines: bool) -> int:
    """Create and lock a file. The file of an earlier attempt is removed, or renamed if
    `keeps_lines`. Raises `RefusedError` if another process is writing it, and `OSError`.
    """
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        raise RefusedError(f"{path}: is a directory; rename or remove it")
    with suppress(FileNotFoundError):
        earlier = files.open_regular(path, os.O_RDWR)
        try:
            _lock(earlier, path)
            if keeps_lines and os.fstat(earlier).st_size:
                numbered = (path.with_name(f"{path.name}.{number}") for number in count(1))
                free = next(name for name in numbered if not os.path.lexists(name))
                path.rename(free)
                logger.warning("%s: left by an earlier attempt, and kept as %s", path, free)
            else:
                path.unlink()
        finally:
            os.close(earlier)
    try:
        descriptor = files.open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        raise _refusal(path) from None
    _lock(descriptor, path)
    return descriptor


def _lock(descriptor: int, path: Path) -> None:
    """Lock an open file; raises `RefusedError` if another process has locked or replaced it."""
    try:
        is_free = files.try_lock(descriptor)
    except OSError as error:
        if error.errno not in files.NO_LOCKS:
            raise
        is_free = True  # a process that is writing it will find that its file was removed
    if not (is_free and files.is_at(descriptor, path)):
        raise _refusal(path)


def _refusal(path: Path) -> RefusedError:
    text = "another process is writing it; wait for it, or choose another name"
    return RefusedError(f"{path}: {text}")


def write_output(path: Path, data: bytes, *, is_logged: bool = False) -> None:
    """Replace a file that the user named, or write to the device or pipe of that name, as `opened`
    does; raises `UserError`.
    """
    with opened(path, is_logged=is_logged) as (sink,):
        sink.write(data)


def check_writable(path: Path) -> None:
    """Raise `UserError`, before any work is done, if the path cannot be written."""
    with handling_write_errors(str(path)):
        os.stat(os.path.join(path.parent, "."))  # also fails if it is not a directory
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        existing = path if path.exists() else path.parent
        if not os.access(existing, os.W_OK):
            is_read_only = os.statvfs(existing).f_flag & os.ST_RDONLY
            code = errno.EROFS if is_read_only else errno.EACCES
            raise OSError(code, os.strerror(code))


def refuse_overwriting(output: str | Path | None, *inputs: str | Path | None) -> None:
    """Refuse an output that would overwrite an input, or be read as one while it grows. Terminals,
    pipes and devices can be both.
    """
    if output is None:
        return
    for source in filter(None, inputs):
        name = 0 if str(source) == "-" else str(source)
        if os.path.isfile(name) and _written(str(output)) & _identities(name):
            shown = "stdout" if str(output) == "-" else output
            raise RefusedError(f"{shown}: is an input, too; write to another file")


def refuse_one_file(output: str, other: str, option: str) -> None:
    """Refuse to write two outputs to one file; `option` names the other one."""
    if os.devnull not in (output, other) and _written(output) & _written(other):
        raise RefusedError(f"{option} {other}: is the output file, too; choose another file")


def _written(output: str) -> set[object]:
    """Return the identities of the files that an output writes to."""
    if output == "-":
        return _identities(1)
    partial = str(_partial_of(Path(os.path.realpath(output))))
    return _identities(output) | _identities(partial)


def _identities(name: str | int) -> set[object]:
    """Return the identities of a path or of the number of a stream: the number, or the path with
    links resolved; and if the file exists, device and inode.
    """
    identities: set[object] = {name if isinstance(name, int) else os.path.realpath(name)}
    with suppress(OSError):
        status = os.stat(name)
        identities.add((status.st_dev, status.st_ino))
    return identities
