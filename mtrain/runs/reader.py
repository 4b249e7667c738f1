"""Readers of a run's files for commands that only read it. The run may come from somebody else: no
link is followed, no pipe is waited for, and files larger than a run writes are refused.
"""

import io
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from mtrain.config.loading import parse_stored_config
from mtrain.config.schema import Config
from mtrain.config.yaml_reader import read_text
from mtrain.corpus.lines import LONGEST_LINE, bounded_lines, read_lines
from mtrain.runs import layout, records
from mtrain.runs.history import History
from mtrain.runs.records import BEST, LARGEST_TEXT, PROVENANCE, STATUS, Best, Provenance, Status
from mtrain.runtime import files
from mtrain.runtime.errors import UserError
from mtrain.runtime.json_reader import Content
from mtrain.runtime.lock import is_alive

LARGEST_VOCABULARY = 64 << 20  # bytes
MOST_LINES = 10_000_000  # translations
MUCH_TEXT, MUCH_LONGER = 4 << 20, 50  # bytes that may be scored, or times the references
END_OF_LOG, LONGEST_MESSAGE = 64 << 20, 4096  # bytes
LINK = "a link, where mtrain keeps a file or directory of its own"


@dataclass(frozen=True)
class Run:
    """A run directory and its small files. One that is missing or damaged is None, and the error is
    in `errors` by the name of the file.
    """

    path: Path
    text: str  # of config.yaml
    config: Config | None
    status: Status | None
    begun: Provenance | None
    best: Best | None
    errors: dict[str, UserError]

    @property
    def history(self) -> History | None:
        """The validations in `best.json`."""
        return History.of(self.best.metric, self.best) if self.best else None

    @property
    def state(self) -> str:
        """State of the run by its status."""
        return self.status.state if self.status else "unknown"

    @property
    def is_running(self) -> bool:
        """Whether a process of this machine trains the run, by its status."""
        status = self.status
        if status is None or status.state not in ("running", "preparing"):
            return False
        is_here = status.host == socket.gethostname()
        return is_here and status.pid is not None and is_alive(status.pid)


def read_run(path: Path) -> Run:
    """Read the small files of a run directory."""
    errors: dict[str, UserError] = {}

    def read(name: str, form: TypeAdapter[Content]) -> Content | None:
        try:
            return records.read_record(path / name, form)
        except UserError as error:
            errors[name] = error
            return None

    text, config = "", None
    try:
        text, config = read_settings(path)
    except UserError as error:
        errors[layout.CONFIG] = error
    status, begun = read(layout.STATUS, STATUS), read(layout.RUN, PROVENANCE)
    return Run(path, text, config, status, begun, read(layout.BEST, BEST), errors)


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
        if len(self.data) > max(MUCH_TEXT, MUCH_LONGER * sum(map(len, references))):
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
    data = records.read_bytes(path, LARGEST_TEXT)
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
    text = read_text(path, is_stored=True)
    return text, parse_stored_config(text, str(path))


def read_vocabulary(run_dir: Path) -> bytes | None:
    """Read the model file of a run's vocabulary; None where it is missing. Raises `UserError`."""
    return records.read_bytes(run_dir / layout.TOKENIZER, LARGEST_VOCABULARY)


def end_of_log(run_dir: Path) -> Iterator[str]:
    """Yield the last lines of `train.log`, each cut to the length of a message; raises
    `UserError`.
    """
    path = run_dir / layout.LOG
    try:
        with files.read(path) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - END_OF_LOG))
            yield from _cut_lines(stream)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


def _cut_lines(stream: IO[bytes]) -> Iterator[str]:
    left = END_OF_LOG  # a run in progress may write faster than this reads
    is_start = True
    while left > 0 and (part := stream.readline(LONGEST_MESSAGE)):
        left -= len(part)
        if is_start:
            yield part.rstrip(b"\r\n").decode("utf-8", "replace")
        is_start = part.endswith(b"\n")


def links(run_dir: Path) -> list[Path]:
    """List links under the names of a run's files and directories, and inside these directories:
    writing through one would change files elsewhere. Raises `UserError`.
    """
    own = [run_dir / name for name in (*layout.FILES, *layout.DIRECTORIES)]
    for name in layout.DIRECTORIES:
        directory = run_dir / name
        if directory.is_dir() and not directory.is_symlink():
            try:
                own += directory.iterdir()
            except OSError as error:
                raise UserError(f"{directory}: cannot be read: {error.strerror}") from None
    return [path for path in own if path.is_symlink()]


def refuse_link(path: Path) -> None:
    """Raise `UserError` if a name of a run's own files is a link."""
    if path.is_symlink():
        raise UserError(f"{path}: is {LINK}; it is not followed")
