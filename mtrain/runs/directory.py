"""The run directory: its files, the lock on it, and whether a config still belongs to it."""

import hashlib
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

import mtrain
from mtrain.config.loading import load_stored_config
from mtrain.config.schema import (
    FREE_KEYS,
    MACHINE_KEYS,
    Config,
    changed_keys,
    dump_config,
    is_among,
)
from mtrain.runs import layout
from mtrain.runs.records import BEST, PROVENANCE, Board, LastStart, MetricsFile, State, Status
from mtrain.runtime import files, lock
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.json_reader import LARGEST, Content, read_json_file
from mtrain.runtime.log import logger

GIT_SECONDS = 10


# Files of job scripts and desktops that a new run directory may hold, next to the config itself.
HARMLESS = ("*.out", "*.err", "slurm-*", ".*")


@dataclass
class RunDirectory:
    """Paths and small files of one run."""

    path: Path
    board: Board | None = None  # receives the records of `metrics.jsonl`, too
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
            if found := layout.links(self.path):
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
        """Raise `ReplacedError` where this process held the directory, but it was removed or
        replaced since: to be called before anything in it is written or removed.
        """
        if self.held is not None:
            self.held.check()

    def check_place(self, config_file: Path | None) -> None:
        """Refuse a directory that holds files of others, and one whose `config.yaml` is the user's
        own, since every start replaces that file.
        """
        if not self.path.is_dir():
            return
        own = self.path / layout.CONFIG
        if config_file is not None and _is_same(config_file, own) and not self._has_written(own):
            raise RefusedError(
                f"{config_file}: mtrain replaces this file by its own {own.name}; "
                f"keep your config outside of {self.path}, or under another name"
            )
        if any((self.path / name).exists() for name in (layout.LOCK, layout.RUN)):
            return
        for item in sorted(self.path.iterdir()):
            is_config = config_file is not None and _is_same(config_file, item)
            if not is_config and not any(fnmatch(item.name, pattern) for pattern in HARMLESS):
                raise RefusedError(
                    f"{self.path}: holds {item.name}, but no run of mtrain; choose another run_dir"
                )

    def _has_written(self, own: Path) -> bool:
        """Whether the text of `config.yaml` was written by mtrain."""
        begun = self.read(layout.RUN, PROVENANCE)
        if begun is None:
            return False
        try:
            text = files.read_whole(own, LARGEST)
        except ValueError:
            return False
        if begun.config == hashlib.sha256(text).hexdigest():
            return True
        # a kill between the two files leaves the hash of the other text
        return dump_config(load_stored_config(own)).encode("utf-8") == text

    def check_not_lost(self, status: Status | None, save_every: int) -> None:
        """Refuse to start at step 0 if the status or `best.json` record steps whose checkpoints are
        missing.
        """
        if layout.named_steps(self.checkpoints):
            return
        # a first save that failed, as on a full disk, leaves the directory empty
        first = save_every + self.checkpoints.is_dir()
        saved = status.step if status is not None and _has_saved(status, first) else 0
        history = self.read(layout.BEST, BEST)
        validated = [entry["step"] for entry in history.history] if history else []
        if last := max(validated, default=saved):
            raise RefusedError(
                f"{self.checkpoints}: the checkpoints of this run are gone, which came to step "
                f"{last}; bring them back, or choose another run_dir to train anew"
            )

    def failure(self, error: OSError) -> UserError:
        """Turn a system error into a `UserError`."""
        place = error.filename or self.path
        return UserError(f"{place}: cannot use the run directory: {error.strerror or error}")

    def check_settings(self, config: Config, ranks: int) -> None:
        """Refuse a config that differs from the run's in more than its free keys, or a number of
        ranks that changes what a step learns from; log other changes.
        """
        file = self.path / "config.yaml"
        if not file.exists():
            if layout.named_steps(self.checkpoints):
                raise RefusedError(
                    f"{self.path}: holds checkpoints but no config.yaml; use another run_dir"
                )
            return
        before = load_stored_config(file)
        self._check_step(before, config, ranks)
        changes = changed_keys(before, config)
        free = (*FREE_KEYS, *MACHINE_KEYS, "train.accum_steps")
        refused = [change for change in changes if not is_among(change[0], free)]
        if refused:
            listed = "\n".join(
                f"  {key}: {old!r} in the run, {new!r} now" for key, old, new in refused
            )
            raise RefusedError(
                f"{self.path}: this run was made with other settings; go back to them or choose "
                f"another run_dir\n{listed}"
            )
        for key, old, new in changes:
            logger.info("changed setting %s: %r -> %r", key, old, new)

    def _check_step(self, before: Config, config: Config, ranks: int) -> None:
        """Refuse a number of micro-batches per step that differs from the run's."""
        begun = self.read(layout.RUN, PROVENANCE)
        was_ranks = begun.ranks if begun else 1
        was_accum = (begun and begun.accum_steps) or before.train.accum_steps
        was = was_accum * was_ranks
        if was == config.train.accum_steps * ranks:
            return
        advice = "use another number of processes, by which it can be divided"
        if was % ranks == 0:
            advice = f"to resume, set train.accum_steps: {was // ranks}"
        raise RefusedError(
            f"{self.path}: train.accum_steps: a step of this run is made of {was} micro-batches "
            f"(train.accum_steps {was_accum}, processes {was_ranks}), and here of "
            f"{config.train.accum_steps * ranks} ({config.train.accum_steps} each, processes "
            f"{ranks}); {advice}"
        )

    def check_data(self, fingerprints: dict[str, Any]) -> None:
        """Refuse corpora or a vocabulary whose content differs from the run's; `fingerprints` may
        lack `tokenizer`.
        """
        before = self.read(layout.RUN, PROVENANCE)
        if before is None:
            if layout.named_steps(self.checkpoints):
                raise RefusedError(
                    f"{self.path}: holds checkpoints but no run.json; use another run_dir"
                )
            return
        weights = before.weights or [1.0] * len(fingerprints["weights"])
        if weights != fingerprints["weights"]:
            raise RefusedError(
                f"{self.path}: data.train: the weights were {weights} when this run began, and are "
                f"{fingerprints['weights']}; go back to them or choose another run_dir"
            )
        for key in ("train", "valid", "tokenizer"):
            if key in fingerprints and getattr(before, key) != fingerprints[key]:
                name = key if key == "tokenizer" else f"data.{key}"
                raise RefusedError(
                    f"{self.path}: the content of {name} is not what this run began with; "
                    "bring it back or choose another run_dir"
                )

    def check_beginning(self, sha256: str) -> None:
        """Refuse a model in `train.init_from` that differs from the one that the run started
        with.
        """
        begun = self.read(layout.RUN, PROVENANCE)
        if begun is not None and begun.init_from not in (None, sha256):
            raise RefusedError(
                f"{self.path}: train.init_from: the model there is not the one that this run began "
                "with; bring that one back, or choose another run_dir"
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
        packages = ("torch", "numpy", "sentencepiece", "sacrebleu", "safetensors")
        content = {
            **fingerprints,
            "config": hashlib.sha256(settings.encode("utf-8")).hexdigest(),
            "seed": config.seed,
            "ranks": ranks,
            "accum_steps": config.train.accum_steps,
            "command": shlex.join(sys.argv),
            "versions": {
                "mtrain": mtrain.__version__,
                "python": platform.python_version(),
                **{name: version(name) for name in packages},
            },
            "commit": {
                "mtrain": commit_of_package(),
                "directory": commit_of(Path()),
            },
            "host": socket.gethostname(),
            "created": before.created if before else timestamp(),
        }
        if beginning := beginning or (before.init_from if before else None):
            content["init_from"] = beginning
        self.write(layout.RUN, content)
        files.write_text(self.path / "config.yaml", settings)

    def set_status(
        self, state: str, step: int, reason: str = "", exit_code: int | None = None
    ) -> None:
        """Write `status.json`."""
        content = {"state": state, "exit_code": exit_code, "reason": reason, "step": step}
        self.write(layout.STATUS, {**content, "pid": os.getpid(), "host": socket.gethostname()})

    def keep_start(self, status: Status, state: State, failure: UserError) -> None:
        """Restore the status from before a failed start, with the end of that start as
        `last_start`.
        """
        last = LastStart(
            state=state, exit_code=failure.exit_code, reason=str(failure), time=timestamp()
        )
        self.write(layout.STATUS, status.model_copy(update={"last_start": last}).as_json())

    def read(self, name: str, form: TypeAdapter[Content]) -> Content | None:
        """Read one of the small JSON files; None if it is missing. Raises `UserError` if it is
        damaged.
        """
        try:
            return read_json_file(self.path / name, form)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UserError(
                f"{self.path / name}: damaged: {error}; bring it back, or choose another run_dir"
            ) from None

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Replace one of the small JSON files."""
        self.check_held()
        files.write_text(self.path / name, json.dumps(content, indent=1) + "\n")


def timestamp() -> str:
    """The time of now, with the zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _is_same(path: Path, other: Path) -> bool:
    """Whether two names are of one file."""
    with suppress(OSError):
        return os.path.samefile(path, other)
    return False


def commit_of_package() -> str | None:
    """The git commit of this program, if it is run from a checkout of its own."""
    root = Path(mtrain.__file__).parents[1]
    return commit_of(root) if (root / ".git").exists() else None


def commit_of(directory: Path) -> str | None:
    """Return the git commit of a directory's checkout, or None without checkout or git.

    Most git commands (`git describe --dirty` and `git status` among them) run programs that a
    repository's configuration, attributes or hooks name. This one reads a reference only: neither
    index, files nor objects, and no repository embedded in another one's files.
    """
    return _git(directory, "-c", "safe.bareRepository=explicit", "rev-parse", "--verify", "HEAD")


def _git(directory: Path, *arguments: str) -> str | None:
    # a hook or an alias of git has set GIT_DIR, which is another checkout's
    environment = {name: value for name, value in os.environ.items() if name[:4] != "GIT_"}
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _has_saved(status: Status, first: int) -> bool:
    """Whether a run had a checkpoint when it wrote this status: from step `first` on it had."""
    return status.state in ("complete", "stopped", "running") or status.step >= first
