"""The run directory: its files, its lock, and whether a config belongs to the run."""

import errno
import json
import os
import platform
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mtrain
from mtrain.config.changes import changed_keys, fixed_changes
from mtrain.config.loading import load_stored_config
from mtrain.config.schema import Config, dump_config
from mtrain.config.yaml_reader import quote_text, quote_value
from mtrain.runs import layout, manifest, reader
from mtrain.runs.history import History
from mtrain.runs.records import (
    PACKAGES,
    TIME,
    Launch,
    MetricsFile,
    Provenance,
    State,
    Status,
    read_record,
)
from mtrain.runs.tensorboard import TensorBoard
from mtrain.runtime import files, lock
from mtrain.runtime.errors import RefusedError, UserError, as_user_error, printable
from mtrain.runtime.json_reader import Content
from mtrain.runtime.log import logger

# What must not change within a run, by its key in `run.json`, as the subject of a message.
FIXED = {
    "train": "the content of data.train is",
    "weights": "the list of weights of data.train is",
    "valid": "the content of data.valid is",
    "tokenizer": "the vocabulary is",
    "pairs": "the number of pairs of each corpus that pass the filters is",
    "init_from": "the model of train.init_from is",
    "metric_command": "--metric-command is",
}

# What to do if the directory cannot be written, by errno.
ADVICE = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room and run the same command again")
_CHOOSE = "allow writing there, or choose another run_dir"
ADVICE |= dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _CHOOSE)

# Files of job scripts and desktops that a new run directory may hold, next to the config itself.
HARMLESS = ("*.out", "*.err", "slurm-*", ".*")


@dataclass
class RunDirectory:
    """Paths and small files of one run."""

    path: Path
    board: TensorBoard | None = None  # receives the records of `metrics.jsonl`, too
    launch: Launch | None = None  # written into `status.json`
    held: lock.Held | None = field(default=None, init=False)

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are kept."""
        return self.path / layout.CHECKPOINTS

    @property
    def tokenizer(self) -> Path:
        """The run's vocabulary."""
        return self.path / layout.TOKENIZER

    @property
    def metrics(self) -> MetricsFile:
        """The run's records."""
        return MetricsFile(self.path / layout.METRICS, self.board, self.check_held)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the directory; raises `RefusedError` if another process holds it or it contains a
        link, `UserError` if it cannot be written.
        """
        try:
            if links := reader.links(self.path):
                raise RefusedError(
                    f"{links[0]}: is a link, and mtrain follows no links inside a run directory; "
                    "remove it, or choose another run_dir (which may be a link itself)"
                )
            with lock.exclusive(self.path / layout.LOCK) as self.held:
                yield
        except OSError as error:
            raise self.failure(error) from None
        finally:
            self.held = None

    def check_held(self) -> None:
        """Raise `ReplacedError` if the directory was removed or replaced since it was locked; call
        this before writing or removing anything in it.
        """
        if self.held is not None:
            self.held.check()

    def refuse_foreign_directory(self, config_file: Path | None) -> None:
        """Refuse a directory that holds other files than a run's, or a `config.yaml` that the user
        wrote, since every start replaces that file.
        """
        if config_file and config_file.name == layout.CONFIG:
            _refuse_moved(config_file, self.path)
        if not self.path.is_dir():
            if self.path.exists():
                raise RefusedError(f"run_dir: {self.path} is a file; name a directory")
            return
        settings = self.path / layout.CONFIG
        if _is_same(config_file, settings) and not self._has_written_config():
            raise RefusedError(
                f"{config_file}: mtrain replaces this file by its own {settings.name}; "
                f"move your config out of {self.path}, or rename it"
            )
        if (self.path / layout.RUN).exists():
            return
        allowed = list(HARMLESS)
        if (self.path / layout.LOCK).exists():  # left by a start that ended early
            allowed += [*layout.FILES, *layout.DIRECTORIES]
        for item in sorted(self.path.iterdir()):
            is_allowed = any(fnmatch(item.name, pattern) for pattern in allowed)
            if not is_allowed and not _is_same(config_file, item):
                raise RefusedError(
                    f"{self.path}: holds {item.name}, but no run of mtrain; choose another run_dir"
                )

    def _has_written_config(self) -> bool:
        """Whether mtrain wrote `config.yaml`."""
        provenance = self.read(layout.RUN, Provenance)
        if provenance is None:
            return False
        text, config = reader.read_settings(self.path)
        # a kill between writing `run.json` and `config.yaml` leaves the hash of a newer text
        return provenance.config == manifest.hash_text(text) or dump_config(config) == text

    def refuse_lost_checkpoints(self, status: Status | None, save_every: int) -> None:
        """Refuse to start at step 0 if the status or `best.json` record steps whose checkpoints are
        missing.
        """
        if layout.named_steps(self.checkpoints):
            return
        history, last = self.read(layout.BEST, History), 0
        if history is not None and history.steps:
            last = max(history.steps)
        elif status is not None and _has_saved(status, save_every, self.checkpoints):
            last = status.step
        if last:
            raise RefusedError(
                f"{self.checkpoints}: the checkpoints of this run are gone; it had reached step "
                f"{last}; restore them, or choose another run_dir to start again"
            )

    def failure(self, error: OSError) -> UserError:
        """Turn a system error, which may be about a file elsewhere, into a `UserError`."""
        path = Path(str(error.filename or self.path))
        if not (path.is_relative_to(self.path) or self.path.is_relative_to(path)):
            return as_user_error(error)
        advice = f"; {ADVICE[error.errno]}" if error.errno in ADVICE else ""
        reason = f"{error.strerror or error}{advice}"
        return UserError(f"{path}: cannot use the run directory: {reason}")

    def check_settings(self, config: Config, ranks: int) -> None:
        """Refuse a config that changes keys that are fixed within a run, or the number of
        micro-batches per step.
        """
        if not self._has(layout.CONFIG):
            self._check_step(None, config, ranks)
            return
        _, stored = reader.read_settings(self.path)
        self._check_step(stored, config, ranks)
        if refused := fixed_changes(stored, config):
            path, start = str(self.path), ""
            if all(key.startswith("train.") for key, *_ in refused):
                start = f", where train.init_from: {quote_text(path)} starts from its weights"
            raise RefusedError(
                f"{path}: this run was made with other settings; go back to them (mtrain train "
                f"{shlex.quote(f'{path}/{layout.CONFIG}')}) or choose another run_dir{start}",
                *(
                    f"  {key}: {quote_value(old)} in the run, {quote_value(new)} now"
                    for key, old, new in refused
                ),
            )

    def _has(self, name: str) -> bool:
        """Whether this file exists; raises `RefusedError` if only checkpoints do."""
        if (self.path / name).exists():
            return True
        if layout.named_steps(self.checkpoints):
            copy = reader.copy_of_settings(self.path) if name == layout.CONFIG else None
            advice = f"restore it from {copy}" if copy else "use another run_dir"
            raise RefusedError(f"{self.path}: holds checkpoints but no {name}; {advice}")
        return False

    def step_batches(self, config: Config, ranks: int) -> int:
        """Return the number of micro-batches per step: the run's, or the config's for a new run."""
        provenance = self.read(layout.RUN, Provenance)
        return provenance.step_batches if provenance else config.train.micro_batches(ranks)

    def _check_step(self, stored: Config | None, config: Config, ranks: int) -> None:
        """Refuse keys that ask for another number of micro-batches per step than the run has, or,
        in a new run, that contradict each other.
        """
        train, expected = config.train, self.step_batches(config, ranks)
        accum, stored_accum = train.accum_steps, stored.train.accum_steps if stored else 1
        requested = [train.step_batches] if train.step_batches else []
        # an unchanged accum_steps may belong to another number of processes
        if accum != stored_accum and not (train.step_batches and accum == 1):
            requested.append(accum * ranks)
        for count in requested:
            if count != expected:
                raise RefusedError(
                    f"{self.path}: train.step_batches: a step of this run has {expected} "
                    f"micro-batches, not {count} (train.accum_steps {accum}, processes {ranks}); "
                    f"set train.step_batches: {expected} and remove train.accum_steps"
                )

    def check_data(self, fingerprints: dict[str, Any]) -> None:
        """Refuse text, a vocabulary or initial weights that differ from those in `run.json`."""
        provenance = self.read(layout.RUN, Provenance) if self._has(layout.RUN) else None
        if provenance is None:
            return
        for key, subject in FIXED.items():
            before = getattr(provenance, key)
            now = fingerprints.get(key, before)
            if before not in (None, now):
                is_short = key in ("weights", "pairs", "metric_command")
                detail = f" (it was {before!r}, and is {now!r})" if is_short else ""
                raise RefusedError(
                    f"{self.path}: {subject} not the same as when this run began{detail}; "
                    "restore it, or choose another run_dir"
                )

    def keep_tokenizer(self, model: bytes, pieces: str) -> None:
        """Write the run's vocabulary, as a model and as text."""
        self.check_held()
        files.write_text(self.path / layout.VOCABULARY, pieces)
        files.write_bytes(self.tokenizer, model)

    def describe(
        self, config: Config, fingerprints: dict[str, Any], ranks: int, init_hash: str | None
    ) -> None:
        """Write `config.yaml` and `run.json`: config, hashes, versions, command; `init_hash` is the
        hash of the weights of `train.init_from`.
        """
        log_changes(self.path, config)
        before = self.read(layout.RUN, Provenance)
        settings = dump_config(config)
        versions = {"mtrain": mtrain.__version__, "python": platform.python_version()}
        content = {
            **fingerprints,
            "init_from": init_hash or (before.init_from if before else None),
            "config": manifest.hash_text(settings),
            "seed": config.seed,
            "ranks": ranks,
            "accum_steps": config.train.accum_steps,
            "step_batches": self.step_batches(config, ranks),
            "command": printable(shlex.join(sys.argv)),  # JSON holds no names that are not UTF-8
            "versions": versions | {name: version(name) for name in PACKAGES},
            "host": socket.gethostname(),
            "created": before.created if before else time.strftime(TIME),
        }
        self.write(layout.RUN, content)
        files.write_text(self.path / layout.CONFIG, settings)

    def set_status(
        self, state: str, step: int, reason: str = "", exit_code: int | None = None
    ) -> None:
        """Write `status.json`."""
        content = {"state": state, "exit_code": exit_code, "reason": reason, "step": step}
        process = {"pid": os.getpid(), "host": socket.gethostname(), "launch": self.launch}
        self.write(layout.STATUS, content | process)

    def record_failed_start(self, status: Status, state: State, failure: UserError) -> None:
        """Restore the status from before a failed start, with that start's end as `last_start`."""
        end = {"state": state, "exit_code": failure.exit_code, "reason": str(failure)}
        last = {**end, "time": time.strftime(TIME), "launch": self.launch}
        self.write(layout.STATUS, {**status.model_dump(), "last_start": last})

    def read(self, name: str, form: type[Content]) -> Content | None:
        """Read a small JSON file, or return None if it is missing; raises `UserError`."""
        return read_record(self.path / name, form)

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Replace one of the small JSON files."""
        self.check_held()
        files.write_text(self.path / name, json.dumps(content, indent=1, default=dict) + "\n")


def log_changes(run_dir: Path, config: Config) -> None:
    """Log the settings that differ from those of the run's last start, if there was one; call this
    once nothing can refuse them any more.
    """
    settings = run_dir / layout.CONFIG
    if settings.exists():
        for key, old, new in changed_keys(load_stored_config(settings), config):
            logger.info("changed setting %s: %s -> %s", key, quote_value(old), quote_value(new))


def _has_saved(status: Status, save_every: int, checkpoints: Path) -> bool:
    """Whether a run that ended with this status had saved a checkpoint."""
    if status.state in ("complete", "stopped", "running"):
        return True
    if checkpoints.is_dir():  # empty if the first save failed, as on a full disk
        return status.step > save_every
    return status.step >= save_every


def _is_same(path: Path | None, other: Path) -> bool:
    """Whether two paths lead to one file."""
    return path is not None and path.exists() and other.exists() and path.samefile(other)


def _refuse_moved(settings: Path, run_dir: Path) -> None:
    """Refuse the `config.yaml` of a run that was moved or copied, unless `--set` names another
    run_dir: it would start a new run at the old path, or resume the run that is still there.
    """
    actual = settings.parent
    if not (actual / layout.RUN).exists() or _is_same(actual, run_dir):
        return
    stored = load_stored_config(settings).run_dir
    if Path(stored) == run_dir:
        option = shlex.quote(f"run_dir={quote_text(str(actual))}")
        raise RefusedError(
            f"{settings}: is the config of the run in {actual}, but its run_dir is {stored}; add "
            f"--set {option} to go on with that run"
        )
