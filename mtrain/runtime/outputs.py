"""Output files of commands: complete under their names at the end, or not there at all.

    out.txt.partial     the content so far, locked by the process that writes it
    out.txt.partial.1   what an attempt that was stopped had left, if the next one began anew
    out.txt             the old file until the end, then the new one

A stream, a device, a pipe, and a file in a directory that takes no new file are written directly.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO

from mtrain.runtime import files
from mtrain.runtime.console import (
    ending,
    format_bytes,
    restore_interrupt,
    stopped_by_signals,
    writing,
)
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.log import is_on_terminal, logger

_BLOCK = 1 << 20


@dataclass(frozen=True)
class _Output:
    """An output that is written under a temporary name."""

    path: Path  # as the user named it
    place: Path  # where that leads
    partial: Path  # the temporary name
    descriptor: int  # of the temporary file; holds its lock
    sink: IO[bytes]

    def close(self, *, keeps_lines: bool) -> None:
        """Close the file. If it was not published, keep its complete lines and log where they are,
        or remove it.
        """
        with suppress(OSError):  # of a full disk
            self.sink.close()
        if files.is_at(self.descriptor, self.partial):
            state = "left as it was" if self.place.exists() else "not written"
            if lines := _cut_to_lines(self.descriptor) if keeps_lines else 0:
                logger.warning(
                    "%s holds the first %s of the output; %s was %s",
                    self.partial if self.path.is_symlink() else _partial_of(self.path),
                    "line" if lines == 1 else f"{lines:,} lines",
                    self.path,
                    state,
                )
            else:
                self.partial.unlink()
                if keeps_lines:
                    text = "stopped before the first lines were written; %s was %s"
                    logger.warning(text, self.path, state)
        os.close(self.descriptor)


def _partial_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.partial")


def _cut_to_lines(descriptor: int) -> int:
    """Truncate a file after its last newline; return the number of its lines."""
    lines = end = start = 0
    while block := os.pread(descriptor, _BLOCK, start):
        lines += block.count(b"\n")
        end = start + block.rfind(b"\n") + 1 if b"\n" in block else end
        start += len(block)
    os.ftruncate(descriptor, end)
    return lines


@contextmanager
def opened(
    *names: str | Path, as_it_goes: bool = False, keeps_lines: bool = False, is_new: bool = False
) -> Iterator[list[IO[bytes]]]:
    """Open files for bytes; `-` is stdout. At the end of the block all are renamed to their names,
    with the permissions of the files that they replace. If the block fails or is stopped, none is,
    and only complete lines are kept if `keeps_lines`. Raises `UserError`.
    """
    restore_interrupt()
    shown = ", ".join("stdout" if str(name) == "-" else str(name) for name in names)
    is_kept = not as_it_goes and not {str(name) for name in names} <= {"-", os.devnull}
    with ending(shown), stopped_by_signals(is_kept), ExitStack() as stack:
        outputs, sinks = list[_Output](), list[IO[bytes]]()
        for name in names:
            output = None if as_it_goes else _begin(name, keeps_lines=keeps_lines)
            if output is None:
                sinks.append(stack.enter_context(writing(_standard(name))))
                continue
            stack.callback(output.close, keeps_lines=keeps_lines)
            outputs.append(output)
            sinks.append(output.sink)
        yield sinks
        for sink in sinks:
            sink.flush()
        _publish(outputs, is_new=is_new)


def _publish(outputs: list[_Output], *, is_new: bool) -> None:
    """Rename all files to their names; none, if a new file's name is taken."""
    for each in outputs:
        os.fsync(each.descriptor)
        if not files.is_at(each.descriptor, each.partial):
            raise UserError(f"{each.partial}: was removed or replaced while it was written")
        if is_new and os.path.lexists(each.path):
            raise RefusedError(f"{each.path}: exists already; remove it, or choose another name")
    for each in outputs:
        os.replace(each.partial, each.place)
        with suppress(PermissionError):  # a directory that may be written to, but not read
            files.sync(each.place.parent)
        if is_on_terminal():
            logger.info("wrote %s (%s)", each.path, size_of(each.place))


def size_of(path: Path) -> str:
    """Return the size of a file, or of a directory and all in it, for people."""
    files_of = (path, *path.rglob("*"))
    return format_bytes(sum(each.stat().st_size for each in files_of if each.is_file()))


def _begin(name: str | Path, *, keeps_lines: bool) -> _Output | None:
    """Create the temporary file for an output; None if the output is written directly. Lines that
    an earlier attempt left are kept if `keeps_lines`. Raises `OSError`.
    """
    path, place = Path(name), Path(os.path.realpath(name))
    if _standard(name) in (1, 2) or str(path).startswith(("/dev/fd/", "/proc/")):
        return None
    old = None
    with suppress(FileNotFoundError):
        old = os.stat(path)
    if old is not None and not _is_replaceable(old, place):
        return None
    partial = _partial_of(place)
    try:
        descriptor = _make_held(partial, keeps_lines=keeps_lines)
    except OSError as error:
        if old is not None and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return None
        raise
    if old is not None:
        os.fchmod(descriptor, old.st_mode & 0o777)
    return _Output(path, place, partial, descriptor, os.fdopen(descriptor, "wb", closefd=False))


def _standard(name: str | Path) -> str | int:
    """Return the number of the standard stream that a name leads to, or the name."""
    if str(name) == "-":
        return 1
    with suppress(OSError):
        for number in (1, 2):
            if os.path.samestat(os.stat(name), os.fstat(number)) and str(name) != os.devnull:
                return number
    return str(name)


def _is_replaceable(old: os.stat_result, place: Path) -> bool:
    """Whether a file can be replaced by another one instead of written directly."""
    if not stat.S_ISREG(old.st_mode):
        return False
    if not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
    above = place.parent.stat()  # in a sticky directory only the owners of files may replace them
    return not above.st_mode & stat.S_ISVTX or os.geteuid() in (0, old.st_uid, above.st_uid)


def _make_held(path: Path, *, keeps_lines: bool) -> int:
    """Create and lock a file. What an earlier attempt left there is removed, or gets another name
    if `keeps_lines`. Raises `RefusedError` if another process writes it, and `OSError`.
    """
    if path.is_symlink():
        path.unlink()
    with suppress(FileNotFoundError):
        left = files.open_kept(path, os.O_RDONLY)
        try:
            if not files.try_lock(left):
                text = "another process is writing it; wait for it, or choose another name"
                raise RefusedError(f"{path}: {text}")
            if keeps_lines and os.fstat(left).st_size:
                numbered = (path.with_name(f"{path.name}.{number}") for number in count(1))
                kept = next(name for name in numbered if not os.path.lexists(name))
                path.rename(kept)
                logger.warning("%s: left by an earlier attempt, and kept as %s", path, kept)
            else:
                path.unlink()
        finally:
            os.close(left)
    descriptor = files.open_kept(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    files.try_lock(descriptor)
    return descriptor


def write_output(path: Path, data: bytes) -> None:
    """Replace a file that the user named, or write to the device or pipe of that name; raises
    `UserError`.
    """
    with opened(path) as (sink,):
        sink.write(data)


def check_writable(path: Path) -> None:
    """Raise `UserError`, before any work is done, if no file of that name can be written."""
    with ending(str(path)):
        os.stat(os.path.join(path.parent, "."))  # fails where it is no directory, too
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def refuse_overwriting(output: str | Path | None, *inputs: str | Path | None) -> None:
    """Refuse to write over a file that is still to be read."""
    if output is None or str(output) == "-":
        return
    for name in (str(each) for each in inputs if each is not None):
        if _written(str(output)) & _files_of([0 if name == "-" else name], stat.S_ISREG):
            raise RefusedError(f"{output}: is an input, too; write to another file")


def refuse_one_file(output: str, other: str, option: str) -> None:
    """Refuse to write two outputs to one file; `option` is that of the other one."""
    if os.devnull not in (output, other) and _written(output) & _written(other):
        raise RefusedError(f"{option} {other}: is the output file, too; choose another file")


def _written(output: str) -> set[object]:
    """Return what is written to for an output, its temporary file included."""
    partial = str(_partial_of(Path(os.path.realpath(output))))
    return _files_of([1] if output == "-" else [output, partial], bool)


def _files_of(names: list[str | int], is_meant: Callable[[int], bool]) -> set[object]:
    """Return what names or numbers of streams stand for: the number, the path with links resolved,
    and device and inode of a file that exists, if its mode `is_meant`.
    """
    found = set[object]()
    for name in names:
        found.add(name if isinstance(name, int) else os.path.realpath(name))
        with suppress(OSError):
            status = os.stat(name)
            found |= {(status.st_dev, status.st_ino)} if is_meant(status.st_mode) else set()
    return found
