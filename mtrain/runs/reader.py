"""Read the files of a run for commands that do not change it, and find the checkpoint that a path
names. The run may be from somebody else: links are not followed, pipes do not block, and files
larger than a run writes are refused.
"""

import io
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mtrain.config.corpora import Corpus
from mtrain.config.loading import parse_stored_config
from mtrain.config.schema import Config
from mtrain.config.yaml_reader import read_text
from mtrain.corpus.lines import MAX_LINE_LENGTH, bounded_lines, join_names, strip_line_ends
from mtrain.runs import layout, manifest
from mtrain.runs.history import History
from mtrain.runs.records import MAX_TEXT_BYTES, Provenance, Status, read_bytes, read_record
from mtrain.runs.synthetic import with_synthetic_text
from mtrain.runtime import files
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.json_reader import Content
from mtrain.runtime.lock import is_alive
from mtrain.runtime.log import logger

MAX_VOCABULARY_BYTES = 64 << 20
MAX_LINES = 10_000_000  # of a file of translations
MAX_LOG_BYTES = 64 << 20
MAX_MESSAGE_BYTES = 4096  # of a line of the log
LINK = "a link, where mtrain writes a file or directory"
NO_CHECKPOINT = "this run has no complete checkpoint; train it, or restore checkpoints/"
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
            return read_record(path / name, type_)
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
    data = read_bytes(path, MAX_TEXT_BYTES)
    if data is None:
        raise manifest.MissingError(f"{path}: missing")
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
    return read_bytes(run_dir / layout.TOKENIZER, MAX_VOCABULARY_BYTES)


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


def directory_of(run_dir: Path) -> Path:
    """Return the directory of a run's checkpoints; raises `RefusedError` for a single checkpoint,
    `UserError` for any other path that has none.
    """
    layout.require_model(run_dir)
    if (run_dir / manifest.NAME).exists():
        raise RefusedError(f"{run_dir}: is one checkpoint; give the run that it belongs to")
    directory = run_dir / layout.CHECKPOINTS
    if directory.is_symlink():
        raise UserError(f"{directory}: is a link, which is not followed; give its target")
    if not directory.is_dir():
        raise UserError(f"{run_dir}: {_why_no_checkpoints(run_dir)}")
    return directory


def resolve(path: Path) -> Path:
    """Return the checkpoint directory that a path names: for a run, the best one, or the newest if
    `best.json` names none.
    """
    if (path / layout.MODEL).exists() or (path / manifest.NAME).exists():
        return path
    directory = directory_of(path)
    history = read_record(path / layout.BEST, History)
    present = layout.complete_checkpoints(directory)
    if history is not None and history.stored_best is not None:
        best = directory / history.stored_best.checkpoint
        if present and not best.exists():
            now = read_record(path / layout.BEST, History)
            if now is not None and now.stored_best != history.stored_best:
                return resolve(path)  # training has replaced it
            raise UserError(f"{best}: the best checkpoint is missing; name another: {present[-1]}")
        return best
    if not present:
        raise UserError(f"{path}: {NO_CHECKPOINT}")
    if history is None:
        logger.warning("%s: no %s; the newest checkpoint is used", path, layout.BEST)
    return present[-1]


def _why_no_checkpoints(path: Path) -> str:
    """Return why a directory without checkpoints is refused, and what to do."""
    if layout.is_prepared(path):
        return NO_CHECKPOINT
    if path.name == layout.CHECKPOINTS:
        return f"holds the checkpoints of a run; name the run, {path.parent}"
    runs = sorted(directory.parent for directory in path.glob(f"*/{layout.CHECKPOINTS}"))
    if runs:
        return f"is no run itself, but holds runs; name one: {join_names(map(str, runs))}"
    return "neither a run directory nor a checkpoint directory; name one that mtrain train made"


@contextmanager
def naming_intact(path: Path) -> Iterator[None]:
    """Let the error about a damaged checkpoint name an intact one of the same run."""
    try:
        yield
    except manifest.DamagedError as error:
        for other in reversed(layout.complete_checkpoints(path.parent)):
            if other != path and is_intact(other):
                raise UserError(f"{error}; {other} is intact; use it") from None
        raise


def is_intact(path: Path) -> bool:
    """Whether a checkpoint exists and is intact."""
    try:
        manifest.verify(path)
    except manifest.DamagedError:
        return False
    return True
