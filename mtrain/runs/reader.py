"""Readers of a run's files for commands that only read it. The run may come from somebody else: no
link is followed, no pipe is waited for, and files larger than a run writes are refused.
"""

import io
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import TypeAdapter

from mtrain.config.corpora import Corpus
from mtrain.config.loading import parse_stored_config
from mtrain.config.schema import Config
from mtrain.config.yaml_reader import read_text
from mtrain.corpus.lines import MAX_LINE_LENGTH, bounded_lines, read_lines
from mtrain.runs import layout, records
from mtrain.runs.history import BEST, History
from mtrain.runs.manifest import MissingError
from mtrain.runs.records import MAX_TEXT_BYTES, PROVENANCE, STATUS, Provenance, Status
from mtrain.runs.synthetic import resolve
from mtrain.runtime import files
from mtrain.runtime.errors import UserError
from mtrain.runtime.json_reader import Content
from mtrain.runtime.lock import is_alive

MAX_VOCABULARY_BYTES = 64 << 20  # bytes
MAX_LINES = 10_000_000  # translations
END_OF_LOG, MAX_MESSAGE_BYTES = 64 << 20, 4096  # bytes
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
    provenance: Provenance | None
    history: History | None
    errors: dict[str, UserError]

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

    @cached_property
    def corpora(self) -> dict[str, tuple[Corpus, str | None]]:
        """Every corpus of the config by its key, with the hash of the text that the run used, if it
        is known.
        """
        if self.config is None:
            return {}
        tests = self.history.tests.items() if self.history else ()
        known = {f"data.test.{name}": scored.get("sha256") for name, scored in tests}
        if provenance := self.provenance:
            valid = provenance.valid if isinstance(provenance.valid, list) else []
            known["data.valid"] = provenance.valid if isinstance(provenance.valid, str) else None
            for kind, hashes in (("train", provenance.train), ("valid", valid)):
                known |= {f"data.{kind}.{number}": each for number, each in enumerate(hashes)}
            known |= {f"data.test.{name}": each for name, each in provenance.test.items()}
        corpora = resolve(self.config, self.path).data.corpora
        return {  # without text that models have yet to make
            key: (corpus, known.get(key)) for key, corpus in corpora.items() if not corpus.model
        }

    @property
    def valid_keys(self) -> list[str]:
        """Keys of the validation corpora, whose translations stand in one file in this order."""
        return [key for key in self.corpora if key.startswith("data.valid")]


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
    status, provenance = read(layout.STATUS, STATUS), read(layout.RUN, PROVENANCE)
    return Run(path, text, config, status, provenance, read(layout.BEST, BEST), errors)


def read_translations(run_dir: Path, name: str) -> Iterator[str]:
    """Yield the lines of a file of `validation/`; raises `UserError` if it is missing or no
    UTF-8, or has more lines, or longer ones, than a model writes.
    """
    path = layout.translations(run_dir, name)
    refuse_link(path.parent)
    data = records.read_bytes(path, MAX_TEXT_BYTES)
    if data is None:
        raise MissingError(f"{path}: missing")
    for number, line in enumerate(read_lines(bounded_lines(io.BytesIO(data))), 1):
        if len(line) > MAX_LINE_LENGTH or number > MAX_LINES:
            raise UserError(
                f"{path}:{number}: longer than {MAX_LINE_LENGTH:,} bytes, or more lines than any "
                "set has; restore the run's own file"
            )
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{path}:{number}: invalid UTF-8; fix or remove the line") from None


def read_settings(run_dir: Path) -> tuple[str, Config]:
    """Read a run's `config.yaml`, as text and checked; raises `UserError`."""
    path = run_dir / layout.CONFIG
    text = read_text(path, is_stored=True)
    return text, parse_stored_config(text, str(path))


def read_vocabulary(run_dir: Path) -> bytes | None:
    """Read the model file of a run's vocabulary; None where it is missing. Raises `UserError`."""
    return records.read_bytes(run_dir / layout.TOKENIZER, MAX_VOCABULARY_BYTES)


def end_of_log(run_dir: Path) -> Iterator[str]:
    """Yield the last lines of `train.log`, cut to the length of a message; raises `OSError`."""
    try:
        with files.read(run_dir / layout.LOG) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - END_OF_LOG))
            data = stream.read(END_OF_LOG)
    except FileNotFoundError:
        return
    for line in io.BytesIO(data):
        yield line[:MAX_MESSAGE_BYTES].rstrip(b"\r\n").decode("utf-8", "replace")


def links(run_dir: Path) -> list[Path]:
    """List links under the names of a run's files and directories, and inside these directories:
    writing through one would change files elsewhere. Raises `OSError`.
    """
    own = [run_dir / name for name in (*layout.FILES, *layout.DIRECTORIES)]
    for name in layout.DIRECTORIES:
        directory = run_dir / name
        if directory.is_dir() and not directory.is_symlink():
            own += directory.iterdir()
    return [path for path in own if path.is_symlink()]


def refuse_link(path: Path) -> None:
    """Raise `UserError` if a name of a run's own files is a link."""
    if path.is_symlink():
        raise UserError(f"{path}: is {LINK}; it is not followed")
