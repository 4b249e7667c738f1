"""Readers of a run's text files for commands that only read it. The run may come from somebody
else: no link is followed, no pipe is waited for, and files larger than a run writes are refused.
"""

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from mtrain.config.loading import parse_stored_config
from mtrain.config.schema import Config
from mtrain.config.yaml_reader import read_text
from mtrain.corpus.lines import LONGEST_LINE, bounded_lines, read_lines
from mtrain.runs import layout
from mtrain.runtime import files
from mtrain.runtime.errors import UserError

LARGEST_VOCABULARY, LARGEST_TEXT = 64 << 20, 256 << 20  # bytes
MOST_LINES = 10_000_000  # translations
MUCH_TEXT, MUCH_LONGER = 4 << 20, 50  # bytes that may be scored, or times the references
END_OF_LOG, LONGEST_MESSAGE = 64 << 20, 4096  # bytes
LINK = "a link, where mtrain keeps a file or directory of its own"


@dataclass(frozen=True)
class Translations:
    """The translations of a validation or test set by one checkpoint."""

    path: Path
    data: bytes

    def __len__(self) -> int:
        return self.data.count(b"\n") + (self.data[-1:] not in (b"", b"\n"))

    def texts_for(self, references: list[str]) -> list[str]:
        """Return all lines for scoring; raises `UserError` if their number differs from the
        references', or if they are so long that scoring would take minutes.
        """
        if len(self) != len(references):
            raise UserError(f"{self.path}: {len(self):,} lines, but {len(references):,} references")
        most = max(MUCH_TEXT, MUCH_LONGER * sum(map(len, references)))
        if len(self.data) > most:
            raise UserError(
                f"{self.path}: {len(self.data):,} bytes, more than {MUCH_LONGER} times the "
                "references; restore the run's own file"
            )
        return list(self.texts())

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines; raises `UserError` for a line longer than a model writes."""
        for number, line in enumerate(read_lines(bounded_lines(io.BytesIO(self.data))), 1):
            if len(line) > LONGEST_LINE:
                raise UserError(
                    f"{self.path}:{number}: longer than {LONGEST_LINE:,} bytes, which no "
                    "translation is; restore the run's own file"
                )
            yield line

    def texts(self) -> Iterator[str]:
        """Yield the lines as text; raises `UserError` for invalid UTF-8."""
        for number, line in enumerate(self, 1):
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError:
                text = f"{self.path}:{number}: invalid UTF-8; fix or remove the line"
                raise UserError(text) from None


def read_translations(run_dir: Path, name: str) -> Translations | None:
    """Read a file of `validation/`; None where it is missing. Raises `UserError`."""
    path = layout.translations(run_dir, name)
    refuse_link(path.parent)
    data = _read(path, LARGEST_TEXT)
    if data is None:
        return None
    found = Translations(path, data)
    if len(found) > MOST_LINES:
        raise UserError(
            f"{path}: {len(found):,} lines, more than any set has; restore the run's own file"
        )
    return found


def read_settings(run_dir: Path) -> tuple[str, Config]:
    """Read a run's `config.yaml`, as text and checked; raises `UserError`."""
    path = run_dir / layout.CONFIG
    text = read_text(path, partial(files.read, path))
    return text, parse_stored_config(text, str(path))


def read_vocabulary(run_dir: Path) -> bytes | None:
    """Read the model file of a run's vocabulary; None where it is missing. Raises `UserError`."""
    return _read(run_dir / layout.TOKENIZER, LARGEST_VOCABULARY)


def end_of_log(run_dir: Path) -> Iterator[str]:
    """Yield the last lines of `train.log`, each cut to the length of a message; raises
    `UserError`.
    """
    try:
        with files.read(run_dir / layout.LOG) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - END_OF_LOG))
            yield from _cut_lines(stream)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _failure(run_dir / layout.LOG, error) from None


def _cut_lines(stream: IO[bytes]) -> Iterator[str]:
    left = END_OF_LOG  # a run in progress may write faster than this reads
    is_start = True
    while left > 0 and (part := stream.readline(LONGEST_MESSAGE)):
        left -= len(part)
        if is_start:
            yield part.rstrip(b"\r\n").decode("utf-8", "replace")
        is_start = part.endswith(b"\n")


def links(run_dir: Path) -> list[Path]:
    """List the links under names of a run's own files; raises `UserError`."""
    try:
        return layout.links(run_dir)
    except OSError as error:
        raise _failure(Path(error.filename or run_dir), error) from None


def refuse_link(path: Path) -> None:
    """Raise `UserError` if a name of a run's own files is a link."""
    if path.is_symlink():
        raise UserError(f"{path}: is {LINK}; it is not followed")


def _read(path: Path, most: int) -> bytes | None:
    try:
        with files.read(path) as stream:
            is_large = os.fstat(stream.fileno()).st_size > most
            data = b"" if is_large else stream.read(most)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _failure(path, error) from None
    if is_large:
        raise UserError(
            f"{path}: larger than {most >> 20} MiB, which no run writes; restore the run's own file"
        )
    return data


def _failure(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be read: {error.strerror or error}")
