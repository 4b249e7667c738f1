"""Output files of commands: complete under their names at the end, or not there at all.

    out.txt.partial     content so far, locked by the process that writes it
    out.txt             the old file until the end, then the new one

A stream, a device, a pipe, and a file in a directory that takes no new file are written directly.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, cast

from mtrain.runtime import files
from mtrain.runtime.console import ending, loaded, stopped_by_signals, writing
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.log import logger

_BLOCK = 1 << 20

# A file's name, the number of an open file, or its device and inode.
Named = str | int | tuple[int, int]


@dataclass(frozen=True)
class _Output:
    """An output that is written under a temporary name."""

    path: Path  # as the user named it
    place: Path  # where that leads
    descriptor: int  # of the other file

    @cached_property
    def sink(self) -> IO[bytes]:
        """The stream that is written to."""
        return os.fdopen(self.descriptor, "wb", closefd=False)

    @property
    def partial(self) -> Path:
        """The temporary name."""
        return _partial_of(self.place)

    def sync(self) -> None:
        """Write everything through to the disk."""
        self.sink.flush()
        os.fsync(self.descriptor)

    def publish(self, *, is_new: bool) -> None:
        """Rename the file to its own name, which must be free if it `is_new`."""
        if not files.is_at(self.descriptor, self.partial):
            raise UserError(f"{self.partial}: was removed or replaced while it was written")
        if is_new and os.path.lexists(self.path):
            raise RefusedError(f"{self.path}: exists already; remove it, or choose another name")
        os.replace(self.partial, self.place)
        with suppress(PermissionError):  # a directory that may be written to, but not read
            files.sync(self.place.parent)

    def take_back(self) -> None:
        """Remove the published file again."""
        if files.is_at(self.descriptor, self.place):
            self.place.unlink()

    def give_up(self, *, keeps_lines: bool) -> None:
        """Keep the complete lines and log where they are, or remove the file."""
        with suppress(OSError):  # of a full disk
            self.sink.close()
        if not files.is_at(self.descriptor, self.partial):
            return
        lines = _cut_to_lines(self.descriptor) if keeps_lines else 0
        if not lines:
            self.partial.unlink()
            return
        logger.warning(
            "%s holds the first %s of the output; %s was %s",
            self.path.with_name(self.partial.name) if not self.path.is_symlink() else self.partial,
            "line" if lines == 1 else f"{lines:,} lines",
            self.path,
            "left as it was" if self.place.exists() else "not written",
        )

    def close(self) -> None:
        """Close the file and release its lock."""
        with suppress(OSError):
            self.sink.close()
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
    loaded()
    shown = ", ".join("stdout" if str(name) == "-" else str(name) for name in names)
    is_kept = not as_it_goes and not {str(name) for name in names} <= {"-", os.devnull}
    with ending(shown), stopped_by_signals(is_kept), ExitStack() as stack:
        outputs, sinks, is_done = list[_Output](), list[IO[bytes]](), False
        try:
            for name in names:
                found = None if as_it_goes else _begin(name)
                if found is None:
                    sinks.append(stack.enter_context(writing(_standard(name))))
                    continue
                outputs.append(found)
                sinks.append(found.sink)
            yield sinks
            _publish(outputs, sinks, is_new=is_new)
            is_done = True
        finally:
            for each in outputs:
                if not is_done:
                    each.give_up(keeps_lines=keeps_lines)
                each.close()


def _publish(outputs: list[_Output], sinks: list[IO[bytes]], *, is_new: bool) -> None:
    """Rename all files to their names, or, if they are new, none."""
    for sink in sinks:
        sink.flush()
    for each in outputs:
        each.sync()
    is_done = False
    try:
        for each in outputs:
            each.publish(is_new=is_new)
        is_done = True
    finally:
        for each in outputs if is_new and not is_done else ():
            each.take_back()


def _begin(name: str | Path) -> _Output | None:
    """Create the temporary file for an output; None if the output is written directly. Raises
    `OSError`.
    """
    path, place = Path(name), Path(os.path.realpath(name))
    if _standard(name) in (1, 2) or str(path).startswith(("/dev/fd/", "/proc/")):
        return None
    old = None
    with suppress(FileNotFoundError):
        old = os.stat(path)
    if old is not None and not _is_replaceable(old, place):
        return None
    try:
        descriptor = _make_held(_partial_of(place))
    except OSError as error:
        if old is not None and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return None
        raise
    if old is not None:
        os.fchmod(descriptor, old.st_mode & 0o777)
    return _Output(path, place, descriptor)


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


def _make_held(path: Path) -> int:
    """Create and lock a file, replacing what an earlier attempt left; raises `RefusedError` if
    another process writes it.
    """
    refusal = RefusedError(
        f"{path}: another process is writing it; wait for it, or choose another name"
    )
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    while True:
        if path.is_symlink():
            path.unlink()
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileExistsError:
            with suppress(FileNotFoundError):
                descriptor = files.open_kept(path, os.O_RDONLY)
                if not files.try_lock(descriptor):
                    os.close(descriptor)
                    raise refusal from None
                if files.is_at(descriptor, path):
                    path.unlink()
                os.close(descriptor)
            continue
        if files.try_lock(descriptor) and files.is_at(descriptor, path):
            return descriptor
        os.close(descriptor)  # another process took it for a leftover


def write_output(path: Path, data: bytes) -> None:
    """Replace a file that the user named, or write to the device or pipe of that name; raises
    `UserError`.
    """
    with opened(path) as (sink,):
        sink.write(data)


def check_writable(path: Path) -> None:
    """Raise `UserError`, before any work is done, if no file of that name can be written."""
    try:
        os.stat(os.path.join(path.parent, "."))  # fails where it is no directory, too
        if path.is_dir():
            reason = errno.EISDIR
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            reason = errno.EACCES
        else:
            return
    except OSError as error:
        reason = error.errno or errno.EIO
    raise UserError(f"{path}: cannot write: {os.strerror(reason)}")


def refuse_overwriting(output: str | Path | None, *inputs: str | Path | None) -> None:
    """Refuse to write over a file that is still to be read."""
    if output is None or str(output) == "-":
        return
    written = _names_of(output) | _files_of(_names_of(output))
    for name in inputs:
        if name is None:
            continue
        read = _files_of({0 if str(name) == "-" else str(name)})
        if written & (read | {os.path.realpath(name)}):
            raise RefusedError(f"{output}: is an input, too; write to another file")


def refuse_one_file(output: str, other: str, option: str) -> None:
    """Refuse to write two outputs to one file; `option` is that of the other one."""
    if os.devnull in (output, other):
        return
    first, second = _written(output), _written(other)
    if first & second:
        raise RefusedError(f"{option} {other}: is the output file, too; choose another file")


def _written(output: str) -> set[Named]:
    names: set[Named] = {1} if output == "-" else _names_of(output)
    return names | _files_of(names, stat.S_IFMT)


def _names_of(output: str | Path) -> set[Named]:
    """Return the names that are written to for an output, as given and with links resolved."""
    place = Path(os.path.realpath(output))
    return {str(output), str(place), str(_partial_of(place))}


def _files_of(names: set[Named], is_meant: Callable[[int], int] = stat.S_ISREG) -> set[Named]:
    """Return device and inode of the existing files of these names or descriptors, of the modes
    meant.
    """
    found = set[Named]()
    for name in names:
        with suppress(OSError):
            status = os.stat(cast(str, name))
            if is_meant(status.st_mode):
                found.add((status.st_dev, status.st_ino))
    return found
