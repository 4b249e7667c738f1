"""Checkpoints on disk: written atomically, and verified before anything is parsed.

    checkpoints/step-00001000/   model.safetensors config.yaml tokenizer.model manifest.json
    checkpoints/step-00001000/trainer/   optimizer.safetensors state.json manifest.json
    checkpoints/average/         the same files as a step, without trainer/

A checkpoint at a multiple of `save_every` is scheduled; any other is a resume point left by a stop.
"""

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, getrlimit

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mtrain.config.schema import TrainConfig
from mtrain.runs import layout, manifest, reader
from mtrain.runs.layout import CONFIG, MODEL, TOKENIZER, complete_checkpoints, step_of
from mtrain.runs.records import Loop
from mtrain.runtime import files
from mtrain.runtime.device import out_of_memory_as
from mtrain.runtime.errors import UserError, is_utf8
from mtrain.runtime.json_reader import MAX_JSON_BYTES, read_json_file

# What to do if a checkpoint cannot be saved, by errno; the default advice is to make room.
ADVICE = dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "allow writing there")
ADVICE |= dict.fromkeys((errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG), "choose another path")
ADVICE[errno.ENOENT] = "restore its directory, which was removed or renamed,"


@dataclass(frozen=True)
class Snapshot:
    """A model with its settings and vocabulary: the content of a checkpoint."""

    weights: dict[str, Tensor]
    config: str
    tokenizer: bytes


@dataclass(frozen=True)
class TrainerState:
    """What resuming needs in addition to the weights: optimizer moments and loop state."""

    moments: dict[str, Tensor]
    loop: Loop


def save(path: Path, snapshot: Snapshot, trainer: TrainerState | None = None) -> None:
    """Write a checkpoint directory atomically; raises `UserError` if that fails."""
    with _saving(path):
        manifest.write_directory(path, partial(_fill, snapshot, trainer))


def _fill(snapshot: Snapshot, trainer: TrainerState | None, directory: Path) -> None:
    _save_tensors(snapshot.weights, directory / MODEL)
    (directory / CONFIG).write_text(snapshot.config, encoding="utf-8")
    (directory / TOKENIZER).write_bytes(snapshot.tokenizer)
    if trainer is not None:
        inner = directory / layout.TRAINER
        inner.mkdir()
        _save_tensors(trainer.moments, inner / layout.OPTIMIZER)
        (inner / layout.STATE).write_text(json.dumps(asdict(trainer.loop)), encoding="utf-8")
        manifest.seal(inner)


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    on_cpu = {name: t.detach().to("cpu", torch.float32).contiguous() for name, t in tensors.items()}
    save_file(on_cpu, path)


@contextmanager
def _saving(path: Path) -> Iterator[None]:
    """Turn errors of saving a checkpoint into `UserError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        room = "make room"
        if getrlimit(RLIMIT_FSIZE)[0] != RLIM_INFINITY:  # a SafetensorError has no errno
            room = "raise the limit on the size of files (ulimit -f) or make room,"
        advice = ADVICE.get(getattr(error, "errno", 0), room)
        raise UserError(
            f"{path}: cannot save the checkpoint: {reason}; {advice} and run the same command again"
        ) from None


def load(path: Path) -> Snapshot:
    """Verify and read a checkpoint; raises `DamagedError`."""
    if not is_utf8(str(path)):
        raise UserError(f"{path}: its path is not UTF-8, which safetensors needs; rename it")
    manifest.verify(path, MODEL, CONFIG, TOKENIZER)
    try:
        with out_of_memory_as(f"{path}: out of memory; free some"):
            weights = load_file(path / MODEL)
        config = files.read_whole(path / CONFIG, MAX_JSON_BYTES).decode("utf-8")
        return Snapshot(weights, config, files.read_whole(path / TOKENIZER, MAX_JSON_BYTES))
    except (FileNotFoundError, RuntimeError) as error:  # training may remove it after `verify`
        # the average may have been replaced since
        if isinstance(error, RuntimeError) and (path / MODEL).exists():
            raise
        raise manifest.MissingError(f"{path}: was removed while it was read; try again") from None
    except (SafetensorError, ValueError) as error:
        raise manifest.DamagedError(f"{path}: cannot be read: {error}") from None


def load_trainer(path: Path) -> TrainerState:
    """Verify and read the `trainer/` directory of a checkpoint; raises `DamagedError`."""
    inner = path / layout.TRAINER
    if not inner.exists():
        text = "no such directory: mtrain keeps the trainer's state of the newest checkpoints only"
        raise manifest.DamagedError(f"{inner}: {text}")
    manifest.verify(inner, layout.OPTIMIZER, layout.STATE)
    try:
        loop = read_json_file(inner / layout.STATE, Loop)
        if loop.step != step_of(path):
            raise ValueError(f"{layout.STATE} is of step {loop.step}")
        return TrainerState(load_file(inner / layout.OPTIMIZER), loop)
    except (SafetensorError, ValueError) as error:
        raise manifest.DamagedError(f"{inner}: cannot be read: {error}") from None


def last_scheduled(directory: Path, last: int, train: TrainConfig, count: int) -> list[Path]:
    """Return the paths of the last `count` scheduled checkpoints that a run with the last step
    `last` should have, oldest first.
    """
    every = train.save_every
    steps = [last] if train.is_scheduled(last) else []
    steps += range((last - 1) // every * every, 0, -every)[:count]
    return [directory / layout.step_name(step) for step in steps[:count]][::-1]


def intact_suffix(paths: list[Path]) -> list[Path]:
    """Return the checkpoints after the last one that is damaged or missing."""
    return list(takewhile(reader.is_intact, reversed(paths)))[::-1]


def prune(directory: Path, train: TrainConfig, best: set[str]) -> None:
    """Remove checkpoints that are not needed. Keep the last scheduled ones, the `best`, and resume
    points newer than every scheduled one. Keep the trainer's state of the newest two, and of the
    newest scheduled one, because resume points are removed later. Damaged ones are removed once
    they are older than the last scheduled ones.
    """
    complete = complete_checkpoints(directory)
    scheduled = _scheduled(complete, train)
    newest = layout.last_step(scheduled)
    kept = scheduled[-max(train.keep_checkpoints, train.average_last) :]
    oldest = layout.last_step(kept[:1])
    kept_names = {path.name for path in kept} | best
    for path in layout.named_checkpoints(directory):
        step = step_of(path) or 0
        is_recent = step > (newest if path in complete else oldest)
        if path.name not in kept_names and not is_recent:
            manifest.remove_directory(path)
    for path in [path for path in complete if path.exists()][:-2]:
        if path not in scheduled[-1:]:
            manifest.remove_directory(path / layout.TRAINER)


def _scheduled(checkpoints: list[Path], train: TrainConfig) -> list[Path]:
    return [path for path in checkpoints if train.is_scheduled(step_of(path) or 0)]


def average(paths: list[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights of checkpoints of the same shape, summed in float64."""
    total: dict[str, Tensor] = {}
    for path in paths:
        weights = load(path).weights
        for name, weight in weights.items():
            if weight.dtype != torch.float32:
                raise UserError(
                    f"{path}: {name} is {weight.dtype}, not fp32; use other checkpoints"
                )
        total = total or {name: weight.double() * 0 for name, weight in weights.items()}
        if {n: w.shape for n, w in weights.items()} != {n: w.shape for n, w in total.items()}:
            raise UserError(
                f"{path}: its model has a different shape from {paths[0]}; average checkpoints of "
                "one run"
            )
        for name, weight in weights.items():
            total[name] += weight
    return {name: (weight / len(paths)).float() for name, weight in total.items()}


def average_run(run_dir: Path, last: int | None, output: Path, train: TrainConfig) -> list[Path]:
    """Average the newest `last` scheduled checkpoints of a run into a new checkpoint directory, and
    return their paths. If `last` is None, average up to `train.average_last`, or if that is 0,
    `train.keep_checkpoints`.
    """
    directory = reader.directory_of(run_dir)
    files.check_new(output)
    # damaged ones count, too: the average must not silently use older ones instead
    named = _scheduled(layout.named_checkpoints(directory), train)
    count = last or train.average_last or train.keep_checkpoints
    count = min(count, len(named))  # a name may claim any step
    wanted = last_scheduled(directory, layout.last_step(named), train, count)
    paths = list(takewhile(Path.exists, reversed(wanted)))[::-1]
    if not paths:
        raise UserError(f"{run_dir}: has no scheduled checkpoint yet; train it further")
    if last and len(paths) < last:
        raise UserError(
            f"{run_dir}: scheduled checkpoints to average: {len(paths)}, but --last is {last}; "
            "lower it, or train further with a larger train.keep_checkpoints"
        )
    try:
        mean = replace(load(paths[-1]), weights=average(paths))
    except manifest.DamagedError as error:
        if gone := [path for path in paths if not path.exists()]:
            text = "training has removed it meanwhile; run the same command again"
            raise UserError(f"{gone[0]}: {text}") from None
        advice = "restore it, or remove the checkpoint to average the intact ones"
        raise UserError(f"{error}; {advice}") from None
    with _saving(output):
        manifest.write_new_directory(output, partial(_fill, mean, None))
    return paths


def load_resolved(path: Path) -> tuple[Path, Snapshot]:
    """Load the checkpoint that `resolve` returns for a path. If training replaces the best one
    while it is read, load the new best one.
    """
    directory = reader.resolve(path)
    while True:
        try:
            return directory, load_or_name_intact(directory)
        except UserError:
            before = directory
            with suppress(UserError):  # the first error says more
                directory = reader.resolve(path)
            if directory == before:
                raise


def load_or_name_intact(path: Path) -> Snapshot:
    """Load a checkpoint for use; if it is damaged, the error names an intact one."""
    with reader.naming_intact(path):
        return load(path)
