"""The run directory: what it holds, who may use it, and whether a config still belongs to it."""

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
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

import mtrain
from mtrain import files, layout, lock
from mtrain.config import (
    FREE_KEYS,
    MACHINE_KEYS,
    Config,
    changed_keys,
    dump_config,
    is_among,
    load_config,
)
from mtrain.errors import RefusedError, UserError
from mtrain.json_reader import Content, read_json_file
from mtrain.log import Board, MetricsFile, logger
from mtrain.tokenizer import Tokenizer

OBJECT = TypeAdapter(dict[str, Any])

GIT_SECONDS = 10


@dataclass(frozen=True)
class RunDirectory:
    """Paths and small files of one run."""

    path: Path
    board: Board | None = None  # what gets the run's records besides `metrics.jsonl`

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
        return MetricsFile(self.path / "metrics.jsonl", self.board)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other processes out; raises `RefusedError` where one is in, `UserError` where
        nothing can be written.
        """
        try:
            with lock.exclusive(self.path / ".lock"):
                yield
        except OSError as error:
            raise self.failure(error) from None

    def failure(self, error: OSError) -> UserError:
        """Turn a system's error into one for people."""
        place = error.filename or self.path
        return UserError(f"{place}: cannot use the run directory: {error.strerror or error}")

    def check_settings(self, config: Config, ranks: int) -> None:
        """Refuse a config that differs from the run's in more than its free keys, or so many ranks
        that a step would learn from something else; log what changed.
        """
        file = self.path / "config.yaml"
        if not file.exists():
            if layout.named_steps(self.checkpoints):
                raise RefusedError(
                    f"{self.path}: holds checkpoints but no config.yaml; use another run_dir"
                )
            return
        before = load_config(file)
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
        """Refuse another number of micro-batches a step than the run was begun with."""
        begun = self.read("run.json", OBJECT) or {}
        was_ranks = begun.get("ranks", 1)
        was_accum = begun.get("accum_steps", before.train.accum_steps)
        was = was_accum * was_ranks
        if was == config.train.accum_steps * ranks:
            return
        advice = "use another number of processes, by which it can be divided"
        if was % ranks == 0:
            advice = f"to go on, set train.accum_steps: {was // ranks}"
        raise RefusedError(
            f"{self.path}: train.accum_steps: a step of this run is made of {was} micro-batches "
            f"(train.accum_steps {was_accum}, processes {was_ranks}), and here of "
            f"{config.train.accum_steps * ranks} ({config.train.accum_steps} each, processes "
            f"{ranks}); {advice}"
        )

    def check_data(self, fingerprints: dict[str, Any]) -> None:
        """Refuse corpora or a tokenizer of other content than the run began with."""
        before = self.read("run.json", OBJECT)
        if before is None:
            if layout.named_steps(self.checkpoints):
                raise RefusedError(
                    f"{self.path}: holds checkpoints but no run.json; use another run_dir"
                )
            return
        weights = before.get("weights", [1.0] * len(fingerprints["weights"]))
        if weights != fingerprints["weights"]:
            raise RefusedError(
                f"{self.path}: data.train: the weights were {weights} when this run began, and are "
                f"{fingerprints['weights']}; go back to them or choose another run_dir"
            )
        for key in ("train", "valid", "tokenizer"):
            if before.get(key) != fingerprints[key]:
                name = key if key == "tokenizer" else f"data.{key}"
                raise RefusedError(
                    f"{self.path}: the content of {name} is not what this run began with; "
                    "bring it back or choose another run_dir"
                )

    def check_beginning(self, sha256: str) -> None:
        """Refuse another model to begin with than the one that the run began with, if it began."""
        if (self.read("run.json", OBJECT) or {}).get("init_from", sha256) != sha256:
            raise RefusedError(
                f"{self.path}: train.init_from: the model there is not the one that this run began "
                "with; bring that one back, or choose another run_dir"
            )

    def keep_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Write the run's vocabulary, as a model and as text."""
        files.write_text(self.path / "tokenizer.vocab", tokenizer.vocabulary)
        files.write_bytes(self.tokenizer, tokenizer.proto)

    def describe(
        self, config: Config, fingerprints: dict[str, Any], ranks: int, beginning: str | None
    ) -> None:
        """Write what the run is made of: config, hashes, versions, command; `beginning` is the hash
        of another run's weights, where they are what it begins with.
        """
        before = self.read("run.json", OBJECT) or {}
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
                "mtrain": commit_of(Path(mtrain.__file__)),
                "directory": commit_of(Path()),
            },
            "host": socket.gethostname(),
            "created": before.get("created", time.strftime("%Y-%m-%dT%H:%M:%S%z")),
        }
        if beginning := beginning or before.get("init_from"):
            content["init_from"] = beginning
        self.write("run.json", content)
        files.write_text(self.path / "config.yaml", settings)

    def set_status(
        self, state: str, step: int, reason: str = "", exit_code: int | None = None
    ) -> None:
        """Tell scripts how the run stands."""
        content = {"state": state, "exit_code": exit_code, "reason": reason, "step": step}
        self.write("status.json", {**content, "pid": os.getpid(), "host": socket.gethostname()})

    def read(self, name: str, form: TypeAdapter[Content]) -> Content | None:
        """Read one of the small JSON files; None if it is not there. Raises `UserError` if it is
        damaged.
        """
        try:
            return read_json_file(self.path / name, form)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self.path / name}: damaged: {error}; bring it back, or choose another run_dir"
            ) from None

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Replace one of the small JSON files."""
        files.write_text(self.path / name, json.dumps(content, indent=1) + "\n")


def commit_of(place: Path) -> str | None:
    """The git commit that a file, or a directory, is of, with `-dirty` where tracked files differ
    from it; None where git does not keep it, or is not there.
    """
    directory = place if place.is_dir() else place.parent
    if place != directory and _git(directory, "ls-files", "--error-unmatch", place.name) is None:
        return None  # a package installed below somebody's checkout is no part of it
    return _git(directory, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")


def _git(directory: Path, *arguments: str) -> str | None:
    # a hook or an alias of git has set GIT_DIR, which is another checkout's
    environment = {name: value for name, value in os.environ.items() if name[:4] != "GIT_"}
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            timeout=GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
