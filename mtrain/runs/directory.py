"""The run directory: its files, the lock on it, and whether a config still belongs to it."""

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

from pydantic import TypeAdapter

import mtrain
from mtrain.config.changes import changed_keys, fixed_changes
from mtrain.config.loading import load_stored_config
from mtrain.config.schema import Config, dump_config
from mtrain.runs import layout, manifest, reader
from mtrain.runs.history import BEST
from mtrain.runs.records import (
    PACKAGES,
    PROVENANCE,
    TIME,
    Launch,
    MetricsFile,
    State,
    Status,
    read_record,
)
from mtrain.runs.tensorboard import TensorBoard
from mtrain.runtime import files, lock
from mtrain.runtime.errors import RefusedError, UserError, printable
from mtrain.runtime.json_reader import Content
from mtrain.runtime.log import logger

# Contents that may not change within a run, by their keys in `run.json`.
FIXED = {
    "train": "the content of data.train is",
    "weights": "the list of weights of data.train is",
    "valid": "the content of data.valid is",
    "tokenizer": "the content of tokenizer is",
    "pairs": "the number of pairs of each corpus that pass the filters is",
    "init_from": "the model of train.init_from is",
    "metric_command": "--metric-command is",
}

# Files of job scripts and desktops that a new run directory may hold, next to the config itself.
HARMLESS = ("*.out", "*.err", "slurm-*", ".*")


@dataclass
class RunDirectory:
    """Paths and small files of one run."""

    path: Path
    board: TensorBoard | None = None  # receives the records of `metrics.jsonl`, too
    launch: Launch | None = None  # is kept with the status
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
        """Lock the directory; raises `RefusedError` if another process holds it or a link would
        lead out of it, `UserError` if it cannot be written.
        """
        try:
            if found := reader.links(self.path):
                raise RefusedError(
                    f"{found[0]}: is a link, and mtrain writes through none inside a run "
                    "directory; remove it, or choose another run_dir (which may be a link itself)"
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

    def check_place(self, config_file: Path | None) -> None:
        """Refuse a directory that holds files of others, and one whose `config.yaml` is the user's
        own, since every start replaces that file.
        """
        if config_file and config_file.name == layout.CONFIG:
            _refuse_moved(config_file, self.path)
        if not self.path.is_dir():
            return
        settings = self.path / layout.CONFIG
        if _is_same(config_file, settings) and not self._has_written_config():
            raise RefusedError(
                f"{config_file}: mtrain replaces this file by its own {settings.name}; "
                f"keep your config outside of {self.path}, or under another name"
            )
        if (self.path / layout.RUN).exists():
            return
        # a start that ended early leaves a lock and other files of mtrain's
        was_started = (self.path / layout.LOCK).exists()
        own = (*layout.FILES, *layout.DIRECTORIES) if was_started else ()
        for item in sorted(self.path.iterdir()):
            is_harmless = any(fnmatch(item.name, pattern) for pattern in (*HARMLESS, *own))
            if not is_harmless and not _is_same(config_file, item):
                raise RefusedError(
                    f"{self.path}: holds {item.name}, but no run of mtrain; choose another run_dir"
                )

    def _has_written_config(self) -> bool:
        """Whether the text of `config.yaml` was written by mtrain."""
        provenance = self.read(layout.RUN, PROVENANCE)
        if provenance is None:
            return False
        text, config = reader.read_settings(self.path)
        # a kill between writing `run.json` and `config.yaml` leaves a hash of the newer text
        return provenance.config == manifest.hash_text(text) or dump_config(config) == text

    def check_not_lost(self, status: Status | None, save_every: int) -> None:
        """Refuse to start at step 0 if the status or `best.json` record steps whose checkpoints are
        missing.
        """
        if layout.named_steps(self.checkpoints):
            return
        last, history = 0, self.read(layout.BEST, BEST)
        if status is not None:
            # a first save that failed, as on a full disk, leaves the directory empty
            first = save_every + self.checkpoints.is_dir()
            has_saved = status.state in ("complete", "stopped", "running") or status.step >= first
            last = status.step if has_saved else 0
        if last := max(history.steps if history else [], default=last):
            raise RefusedError(
                f"{self.checkpoints}: the checkpoints of this run are gone; it had reached step "
                f"{last}; bring them back, or choose another run_dir to train anew"
            )

    def failure(self, error: OSError) -> UserError:
        """Turn a system error into a `UserError`."""
        place = error.filename or self.path
        return UserError(f"{place}: cannot use the run directory: {error.strerror or error}")

    def check_settings(self, config: Config, ranks: int) -> None:
        """Refuse a config that changes keys that are fixed within a run, or the number of
        micro-batches per step; log other changes.
        """
        if not self._has(layout.CONFIG):
            self._check_step(None, config, ranks)
            return
        before = load_stored_config(self.path / layout.CONFIG)
        self._check_step(before, config, ranks)
        if refused := fixed_changes(before, config):
            raise RefusedError(
                f"{self.path}: this run was made with other settings; go back to them (mtrain "
                f"train {shlex.quote(str(self.path / layout.CONFIG))}) or choose another run_dir",
                *(f"  {key}: {old!r} in the run, {new!r} now" for key, old, new in refused),
            )
        for key, old, new in changed_keys(before, config):
            logger.info("changed setting %s: %r -> %r", key, old, new)

    def _has(self, name: str) -> bool:
        """Whether the run has begun and has this file; refuse checkpoints without it."""
        if (self.path / name).exists():
            return True
        if layout.named_steps(self.checkpoints):
            raise RefusedError(f"{self.path}: holds checkpoints but no {name}; use another run_dir")
        return False

    def step_batches(self, config: Config, ranks: int) -> int:
        """Return the number of micro-batches per step: that of the run, once it has begun."""
        provenance = self.read(layout.RUN, PROVENANCE)
        if provenance is None:
            return config.train.micro_batches(ranks)
        before = provenance.accum_steps
        if before is None:
            before = load_stored_config(self.path / layout.CONFIG).train.accum_steps
        return provenance.step_batches or provenance.ranks * before

    def _check_step(self, before: Config | None, config: Config, ranks: int) -> None:
        """Refuse keys that name another number of micro-batches per step than the run's, or, at
        its first start, than each other.
        """
        train, was = config.train, self.step_batches(config, ranks)
        accum, old = train.accum_steps, before.train.accum_steps if before else 1
        named = [train.step_batches] if train.step_batches else []
        # an unchanged accum_steps may belong to another number of processes
        if accum != old and not (train.step_batches and accum == 1):
            named.append(accum * ranks)
        for now in named:
            if now != was:
                raise RefusedError(
                    f"{self.path}: train.step_batches: a step of this run has {was} micro-batches, "
                    f"not {now} (train.accum_steps {accum}, processes {ranks}); set "
                    f"train.step_batches: {was} and remove train.accum_steps"
                )

    def check_data(self, fingerprints: dict[str, Any]) -> None:
        """Refuse text, a vocabulary or initial weights that differ from those in `run.json`."""
        provenance = self.read(layout.RUN, PROVENANCE) if self._has(layout.RUN) else None
        for key in (key for key in FIXED if provenance and key in fingerprints):
            was, now = getattr(provenance, key), fingerprints[key]
            if key == "weights":
                was = was or [1.0] * len(now)
            if was not in (None, now):
                is_short = key in ("weights", "pairs", "metric_command")
                detail = f" (it was {was!r}, and is {now!r})" if is_short else ""
                raise RefusedError(
                    f"{self.path}: {FIXED[key]} not the same as when this run began{detail}; "
                    "restore it, or choose another run_dir"
                )

    def keep_tokenizer(self, model: bytes, pieces: str) -> None:
        """Write the run's vocabulary, as a model and as text."""
        self.check_held()
        files.write_text(self.path / layout.VOCABULARY, pieces)
        files.write_bytes(self.tokenizer, model)

    def describe(
        self, config: Config, fingerprints: dict[str, Any], ranks: int, beginning: str | None
    ) -> None:
        """Write `config.yaml` and `run.json`: config, hashes, versions, command; `beginning` is the
        hash of the weights of `train.init_from`.
        """
        before = self.read(layout.RUN, PROVENANCE)
        settings = dump_config(config)
        own = {"mtrain": mtrain.__version__, "python": platform.python_version()}
        content = {
            **fingerprints,
            "config": manifest.hash_text(settings),
            "seed": config.seed,
            "ranks": ranks,
            "accum_steps": config.train.accum_steps,
            "step_batches": self.step_batches(config, ranks),
            "command": printable(shlex.join(sys.argv)),  # names that are not UTF-8 are no JSON
            "versions": {**own, **{name: version(name) for name in PACKAGES}},
            "host": socket.gethostname(),
            "created": before.created if before else time.strftime(TIME),
        }
        if beginning := beginning or (before.init_from if before else None):
            content["init_from"] = beginning
        self.write(layout.RUN, content)
        files.write_text(self.path / layout.CONFIG, settings)

    def set_status(
        self, state: str, step: int, reason: str = "", exit_code: int | None = None
    ) -> None:
        """Write `status.json`."""
        content = {"state": state, "exit_code": exit_code, "reason": reason, "step": step}
        own = {"pid": os.getpid(), "host": socket.gethostname(), "launch": self.launch}
        self.write(layout.STATUS, {**content, **own})

    def keep_start(self, status: Status, state: State, failure: UserError) -> None:
        """Restore the status from before a failed start, whose end becomes its `last_start`."""
        end = {"state": state, "exit_code": failure.exit_code, "reason": str(failure)}
        last = {**end, "time": time.strftime(TIME), "launch": self.launch}
        self.write(layout.STATUS, {**status.model_dump(), "last_start": last})

    def read(self, name: str, form: TypeAdapter[Content]) -> Content | None:
        """Read a small JSON file; None if it is missing. Raises `UserError` if it is damaged."""
        return read_record(self.path / name, form, "bring it back, or choose another run_dir")

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Replace one of the small JSON files."""
        self.check_held()
        files.write_text(self.path / name, json.dumps(content, indent=1, default=dict) + "\n")


def _is_same(path: Path | None, other: Path) -> bool:
    """Whether two names are of one file."""
    return path is not None and path.exists() and other.exists() and path.samefile(other)


def _refuse_moved(settings: Path, run_dir: Path) -> None:
    """Refuse the config of a run that was moved or copied, unless another directory is named: the
    run would begin anew where it was, or the other one would go on.
    """
    place = settings.parent
    if not (place / layout.RUN).exists() or _is_same(place, run_dir):
        return
    if (named := load_stored_config(settings).run_dir) == str(run_dir):
        raise RefusedError(
            f"{settings}: is the config of the run in {place}, but its run_dir is {named}; add "
            f"--set run_dir={shlex.quote(str(place))} to go on with that run"
        )
