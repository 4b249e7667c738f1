"""Files that mtrain owns: opened without following links; replaced by a temporary file that is
synced and renamed.

A directory from somebody else may hold links, pipes or directories under the names that mtrain
uses. This module opens only new files and regular ones, and refuses links.
"""

import errno
import fcntl
import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mtrain.runtime.errors import RefusedError

PARTIAL = ".{}.partial"  # temporary name, next to the final one
# Errors of file systems without locks, such as some of Lustre and NFS.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)

VARIABLE = re.compile(r"\$(?:[A-Z_]\w*|\{[A-Z_]\w*\})", re.ASCII | re.IGNORECASE)


def check_new(path: Path, advice: str = "remove it, or choose another name") -> None:
    """Raise `RefusedError` if `path` exists."""
    if os.path.lexists(path):
        raise RefusedError(f"{path}: exists already; {advice}")


def create(path: Path) -> IO[bytes]:
    """Create a file for writing, after removing a file or link of that name; raises `OSError`."""
    path.unlink(missing_ok=True)
    return path.open("xb")  # which follows no link


def open_regular(path: Path, flags: int) -> int:
    """Open a file that is changed in place, such as a log or a lock, with the flags of `os.open`,
    and return its descriptor; raises `OSError`, also for a link, a pipe or a directory.
    """
    try:
        # without O_NONBLOCK, opening a pipe waits for its other end
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        is_not_regular = error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR)
        raise (_refusal(path) if is_not_regular else error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _refusal(path)
    return descriptor


def _refusal(path: Path, kind: str = "regular file") -> OSError:
    if path.is_symlink():
        what = "a link"
    elif path.is_dir():
        what = "a folder"
    else:
        what = f"not a {kind}"
    return OSError(errno.EINVAL, f"{what}, where mtrain needs a {kind}; move it away", str(path))


def append(path: Path) -> IO[bytes]:
    """Open a file for appending, or create it. If it has a hard link, as some backups make, replace
    it by a copy first. Raises `OSError`.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    stream = os.fdopen(open_regular(path, flags), "ab")
    if os.fstat(stream.fileno()).st_nlink < 2:
        return stream
    stream.close()
    with read(path) as source, replacing(path) as copy:
        shutil.copyfileobj(source, copy)
    return os.fdopen(open_regular(path, flags), "ab")


def read(path: Path) -> IO[bytes]:
    """Open a file that mtrain owns for reading; raises `OSError`, also for a link or a pipe."""
    return os.fdopen(open_regular(path, os.O_RDONLY), "rb")


def read_whole(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file that mtrain owns; raises `OSError`, and `ValueError` if it is
    too large.
    """
    with read(path) as stream:
        if os.fstat(stream.fileno()).st_size > max_bytes:
            raise ValueError(f"larger than {max_bytes:,} bytes")
        return stream.read(max_bytes)


def make_directory(path: Path) -> None:
    """Make a directory if it is missing; raises `OSError`, also for a link, and for a directory
    that this user may not write.
    """
    try:
        path.mkdir()
    except FileExistsError:
        if path.is_symlink() or not path.is_dir():
            raise _refusal(path, "directory") from None
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from None


def make_directories(path: Path) -> None:
    """Make a directory, and those above it, if they are missing; raises `OSError`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        taken = Path(error.filename)
        what = "is not a directory"
        if taken.is_symlink():
            what = f"is a link to {os.readlink(taken)}, which is missing"
        raise OSError(errno.ENOTDIR, f"{taken} {what}", str(taken)) from None


def write_text(path: Path, text: str) -> None:
    """Replace a text file as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file but keep its permissions. Readers, also after a crash, see the old or the new
    bytes, never a mixture. Raises `OSError` and then keeps the old file.
    """
    with replacing(path) as out:
        out.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that replaces `path` at the end of the block, as `write_bytes` does."""
    partial = path.with_name(PARTIAL.format(path.name))
    if path.is_dir():  # `os.replace` would name the temporary file
        raise _refusal(path)
    try:
        with create(partial) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        if path.exists() and not path.is_symlink():
            set_permissions(partial, path.stat().st_mode & 0o777)
        os.replace(partial, path)
        sync(path.parent)
    except OSError:
        with suppress(OSError):  # frees space on a full disk
            partial.unlink()
        raise


def set_permissions(file: Path | int, mode: int) -> None:
    """Set the permissions of a new file. FAT, exFAT and some network file systems have none."""
    with suppress(OSError):
        os.chmod(file, mode)


def sync(path: Path) -> None:
    """Flush the bytes of a file, or the entries of a directory, to the disk. Some network file
    systems cannot flush a directory, which is no error.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; False if another process holds it. NFS needs a file
    that is open for writing.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        advice = "use another one, or mount it with locks"
        text = f"its file system has no locks ({error.strerror}); {advice}"
        raise OSError(error.errno, text) from None
    return True


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still at `path`, neither removed nor replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False


def expand_path(text: str) -> str:
    """Expand `$NAME`, `${NAME}` and a leading `~` or `~user` in a path; raises `ValueError` if one
    has no value. A `$` without a name stays.
    """
    path = os.path.expanduser(os.path.expandvars(text))
    if path.startswith("~"):
        user = path.partition("/")[0]
        raise ValueError(f"{user} has no home directory here; write the path out")
    match = VARIABLE.search(path)
    if match and match[0] in text:
        raise ValueError(f"{match[0]} is not set; set it or write the path out")
    if match:  # the stored path would be expanded again
        raise ValueError(f"holds {match[0]} when it is expanded; use a path without it")
    if text and not path:
        raise ValueError(f"{text} is empty; set it or write the path out")
    return path


def quote_path(path: object) -> str:
    """Return a path as an argument of a command for a shell: quoted if it needs it, and never read
    as an option.
    """
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def expand_dataset(name: str) -> str:
    """Expand the name of a dataset that is a local folder; raises `ValueError` if the result may be
    a name on the hub, which must not be sent values of environment variables.
    """
    if not name.startswith("~") and not VARIABLE.search(name):
        return name
    path = expand_path(name)
    if not path.startswith(("/", ".")):
        raise ValueError(f"{name} is not the path of a folder; start it with ./ for a folder here")
    return path
