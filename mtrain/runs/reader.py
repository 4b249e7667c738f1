"""Read the files of a run for commands that do not change it. The run may be from somebody else:
links are not followed, pipes do not block, and files larger than a run writes are refused.
"""

import io
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mtrain.config.corpora import Corpus
from mtrain.config.loading import parse_stored_config
from mtrain.config.schema import Config
from mtrain.config.yaml_reader import read_text
from mtrain.corpus.lines import MAX_LINE_LENGTH, bounded_lines, strip_line_ends
from mtrain.runs import layout, records
from mtrain.runs.history import History
from mtrain.runs.manifest import MissingError
from mtrain.runs.records import MAX_TEXT_BYTES, Provenance, Status
from mtrain.runs.synthetic import with_synthetic_text
from mtrain.runtime import files
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.json_reader import Content
from mtrain.runtime.lock import is_alive

MAX_VOCABULARY_BYTES = 64 << 20
MAX_LINES = 10_000_000  # of a file of translations
MAX_LOG_BYTES = 64 << 20
MAX_MESSAGE_BYTES = 4096  # of a line of the log
LINK = "a link, where mtrain writes a file or directory"
COPIES = "each checkpoint of the run has a copy of this file"


@dataclass(frozen=True)
class Run:
    """A run directory and its small files. A missing or damaged file is None; `errors` has the
    errors of damaged ones by file name.
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
        """State of the run by `status.json`."""
        return self.status.state if self.status else "unknown"

    @property
    def is_running(self) -> bool:
        """Whether a process of this machine trains the run, by `status.json`."""
        status = self.status
        if status is None or status.pid is None or status.state not in ("running", "preparing"):
            return False
        return status.host == socket.gethostname() and is_alive(status.pid)

    @cached_property
    def corpora(self) -> dict[str, tuple[Corpus, str | None]]:
        """Every corpus of the config by its key, with the SHA-256 of the text that the run used, or
        None if that is unknown.
        """
        if self.config is None:
            return {}
        hashes = self._text_hashes()
        corpora = with_synthetic_text(self.config, self.path).data.corpora
        return {  # without synthetic text that is not made yet
            key: (corpus, hashes.get(key)) for key, corpus in corpora.items() if not corpus.model
        }

    def _text_hashes(self) -> dict[str, str | None]:
        """Return the recorded SHA-256 of each corpus by its key in the config."""
        tests = self.history.tests.items() if self.history else ()
        hashes = {f"data.test.{name}": scored.get("sha256") for name, scored in tests}
        provenance = self.provenance
        if provenance is None:
            return hashes
        if isinstance(provenance.valid, str):
            hashes["data.valid"] = provenance.valid
        else:
            hashes |= {f"data.valid.{n}": sha256 for n, sha256 in enumerate(provenance.valid)}
        hashes |= {f"data.train.{n}": sha256 for n, sha256 in enumerate(provenance.train)}
        return hashes | {f"data.test.{name}": sha256 for name, sha256 in provenance.test.items()}


def read_run(path: Path) -> Run:
    """Read the small files of a run directory."""
    errors: dict[str, UserError] = {}

    def read(name: str, type_: type[Content]) -> Content | None:
        try:
            return records.read_record(path / name, type_)
        except UserError as error:
            errors[name] = error
            return None

    text, config = "", None
    try:
        text, config = read_settings(path)
    except UserError as error:
        errors[layout.CONFIG] = error
    status = read(layout.STATUS, Status)
    provenance = read(layout.RUN, Provenance)
    return Run(path, text, config, status, provenance, read(layout.BEST, History), errors)


def read_translations(run_dir: Path, name: str) -> Iterator[str]:
    """Yield the lines of a file of `validation/`; raises `UserError` if it is missing, not UTF-8,
    or has more or longer lines than a model writes.
    """
    path = layout.translations_file(run_dir, name)
    refuse_link(path.parent)
    data = records.read_bytes(path, MAX_TEXT_BYTES)
    if data is None:
        raise MissingError(f"{path}: missing")
    for number, line in enumerate(strip_line_ends(bounded_lines(io.BytesIO(data))), 1):
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
    """Return the text and the settings of a run's `config.yaml`; raises `RefusedError`."""
    path = run_dir / layout.CONFIG
    try:
        text = read_text(path, is_stored=True)
        return text, parse_stored_config(text, str(path))
    except RefusedError as error:
        if not layout.named_checkpoints(run_dir / layout.CHECKPOINTS):
            raise
        *lines, last = error.args
        raise RefusedError(*lines, f"{last}; {COPIES}") from None


def read_vocabulary(run_dir: Path) -> bytes | None:
    """Read the model file of a run's vocabulary; None if it is missing. Raises `UserError`."""
    return records.read_bytes(run_dir / layout.TOKENIZER, MAX_VOCABULARY_BYTES)


def end_of_log(run_dir: Path) -> Iterator[str]:
    """Yield the last lines of `train.log`, each cut to `MAX_MESSAGE_BYTES`; raises `OSError`."""
    try:
        with files.read(run_dir / layout.LOG) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - MAX_LOG_BYTES))
            data = stream.read(MAX_LOG_BYTES)
    except FileNotFoundError:
        return
    for line in io.BytesIO(data):
        yield line[:MAX_MESSAGE_BYTES].rstrip(b"\r\n").decode("utf-8", "replace")


def links(run_dir: Path) -> list[Path]:
    """List the links among a run's files and directories, and inside these directories: writing
    through one would change files elsewhere. Raises `OSError`.
    """
    paths = [run_dir / name for name in (*layout.FILES, *layout.DIRECTORIES)]
    for name in layout.DIRECTORIES:
        directory = run_dir / name
        if directory.is_dir() and not directory.is_symlink():
            paths += directory.iterdir()
    return [path for path in paths if path.is_symlink()]


def refuse_link(path: Path) -> None:
    """Raise `UserError` if a path of a run is a link."""
    if path.is_symlink():
        raise UserError(f"{path}: is {LINK}; links are not followed")
