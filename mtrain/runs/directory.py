"""The run directory: its lock, and the small files that describe the run."""

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
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mtrain
from mtrain.config.changes import changed_keys
from mtrain.config.loading import load_stored_config
from mtrain.config.schema import Config, dump_config
from mtrain.config.yaml_reader import quote_value
from mtrain.runs import layout, manifest, reader
from mtrain.runs.records import (
    TIME,
    Fingerprints,
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

PACKAGES = ("torch", "numpy", "sentencepiece", "sacrebleu", "safetensors")  # versions are recorded
# What to do if the directory cannot be written, by errno.
ADVICE = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room and run the same command again")
ADVICE[errno.EFBIG] = "raise the limit on the size of files (ulimit -f)"
ADVICE[errno.ENOTDIR] = "restore the directory, or choose another run_dir"
_CHOOSE = "allow writing there, or choose another run_dir"
ADVICE |= dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _CHOOSE)


@dataclass
class RunDirectory:
    """Paths and small files of one run."""

    path: Path
    board: TensorBoard | None = None  # receives the records of `metrics.jsonl`, too
    launch: Launch | None = None  # written into `status.json`
    held: lock.Held | None = field(default=None, init=False)

    @property
    def checkpoints(self) -> Path:
        """The directory of the checkpoints."""
        return self.path / layout.CHECKPOINTS

    @property
    def tokenizer(self) -> Path:
        """The run's vocabulary."""
        return self.path / layout.TOKENIZER

    @property
    def has_begun(self) -> bool:
        """Whether `run.json` has recorded the text and settings that the run keeps."""
        return (self.path / layout.RUN).exists()

    @property
    def last_step(self) -> int:
        """The step of the last complete checkpoint; 0 without one."""
        return layout.last_step(layout.complete_checkpoints(self.checkpoints))

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

    def failure(self, error: OSError) -> UserError:
        """Turn a system error, which may be about a file elsewhere, into a `UserError`."""
        path = Path(str(error.filename or self.path))
        if not (path.is_relative_to(self.path) or self.path.is_relative_to(path)):
            return as_user_error(error)
        advice = f"; {ADVICE[error.errno]}" if error.errno in ADVICE else ""
        reason = f"{error.strerror or error}{advice}"
        return UserError(f"{path}: cannot use the run directory: {reason}")

    def step_batches(self, config: Config, ranks: int) -> int:
        """Return the number of micro-batches per step: the run's, or the config's for a new run."""
        provenance = self.read(layout.RUN, Provenance)
        return provenance.step_batches if provenance else config.train.micro_batches(ranks)

    def keep_tokenizer(self, model: bytes, pieces: str) -> None:
        """Write the run's vocabulary, as a model and as text."""
        self.check_held()
        files.write_text(self.path / layout.VOCABULARY, pieces)
        files.write_bytes(self.tokenizer, model)

    def write_provenance(self, config: Config, fingerprints: Fingerprints, ranks: int) -> None:
        """Write `config.yaml` and `run.json`: config, hashes, versions, command."""
        log_changes(self.path, config)
        before = self.read(layout.RUN, Provenance)
        settings = dump_config(config)
        versions = {"mtrain": mtrain.__version__, "python": platform.python_version()}
        content = {
            **fingerprints,
            "init_from": fingerprints.get("init_from") or (before.init_from if before else None),
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
        self, state: State, step: int, reason: str = "", exit_code: int | None = None
    ) -> None:
        """Write `status.json`."""
        content = {"state": state, "exit_code": exit_code, "reason": reason, "step": step}
        process = {"pid": os.getpid(), "host": socket.gethostname(), "launch": self.launch}
        self.write(layout.STATUS, content | process)

    def record_failed_start(self, status: Status, state: State, failure: UserError) -> None:
        """Write the status from before a failed start, with its end as `last_start`."""
        end = {"state": state, "exit_code": failure.exit_code, "reason": str(failure)}
        last = {**end, "time": time.strftime(TIME), "launch": self.launch}
        self.write(layout.STATUS, {**status.model_dump(), "last_start": last})

    def read(self, name: str, type_: type[Content]) -> Content | None:
        """Read a small JSON file, or return None if it is missing; raises `UserError`."""
        return read_record(self.path / name, type_)

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Replace one of the small JSON files."""
        self.check_held()
        files.write_text(self.path / name, json.dumps(content, indent=1, default=dict) + "\n")


def log_changes(run_dir: Path, config: Config) -> None:
    """Log the settings that differ from those of the run's last start, if there was one; call this
    after all checks that may refuse them.
    """
    settings = run_dir / layout.CONFIG
    if settings.exists():
        changes = changed_keys(load_stored_config(settings), config)
        for key, old, new in changes:
            logger.info("changed setting %s: %s -> %s", key, quote_value(old), quote_value(new))
        if any(key.startswith("decode.") for key, *_ in changes):
            logger.info("older checkpoints keep the decode settings that they were saved with")
