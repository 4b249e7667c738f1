"""Saving a run in training and continuing it exactly.

A checkpoint holds the model (`model.safetensors`), the optimizer's moments and the state of the
loop (`trainer/`). What is stored is decided here and in `runs/checkpoint`.
"""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter
from torch import Tensor

from mtrain.config.schema import Config, dump_config
from mtrain.data.prepare import Prepared
from mtrain.model.building import check_weights
from mtrain.runs import checkpoint, layout, manifest
from mtrain.runs.checkpoint import Loop, Snapshot, TrainerState
from mtrain.runs.directory import RunDirectory
from mtrain.runs.manifest import DamagedError
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import logger
from mtrain.training.learner import Learner
from mtrain.training.optimizer import MovingAverage

# Suffix of the current weights in the optimizer's state, if the model is their moving average.
LATEST = ".latest"
RESUMED: TypeAdapter[Loop | None] = TypeAdapter(Loop | None)


@dataclass
class Position:
    """Position of the training loop: steps done, and the next micro-batch of a pool of an epoch."""

    step: int = 0
    epoch: int = 0
    pool: int = 0
    batch: int = 0

    @property
    def name(self) -> str:
        """Name the last micro-batch for a message."""
        return f"epoch {self.epoch + 1}, part {self.pool + 1}, micro-batch {self.batch}"


@dataclass(frozen=True)
class Found:
    """A checkpoint to resume from."""

    path: Path
    snapshot: Snapshot
    trainer: TrainerState


class Checkpoints:
    """The checkpoints of one run: rank 0 writes and reads them, and broadcasts what it has read."""

    def __init__(
        self, config: Config, prepared: Prepared, run: RunDirectory, learner: Learner, ranks: Ranks
    ) -> None:
        self.config, self.prepared, self.run, self.ranks = config, prepared, run, ranks
        self.optimizer, self.machine = learner.optimizer, learner.machine
        decay = config.train.ema_decay
        self.average = MovingAverage(self.optimizer.weights(), decay) if decay else None
        self.beginning: str | None = None  # SHA-256 of the weights that train.init_from named
        self.damaged: list[Path] = []  # newer than the checkpoint that the run resumes from

    def weights(self) -> dict[str, Tensor]:
        """Return the model's fp32 weights: the current ones, or their moving average."""
        return self.optimizer.weights() if self.average is None else self.average.values

    def snapshot(self, weights: dict[str, Tensor] | None = None) -> Snapshot:
        """Return a model with this run's settings and vocabulary."""
        proto = self.prepared.tokenizer.proto
        return Snapshot(weights or self.weights(), dump_config(self.config), proto)

    def save(
        self, position: Position, sums: list[float], sum_tokens: int, best: str | None
    ) -> None:
        """Save this step and remove checkpoints no longer needed, except `best`; the sums are
        those since the last record.
        """
        moments = self.optimizer.moments()
        if self.average is not None:
            moments |= {name + LATEST: weight for name, weight in self.optimizer.weights().items()}
        machine = asdict(self.machine)
        loop = Loop(**asdict(position), sums=sums, sum_tokens=sum_tokens, machine=machine)
        self.ranks.first(partial(self._write, TrainerState(moments, loop), best))

    def _write(self, state: TrainerState, best: str | None) -> None:
        self.run.check_held()
        path = self.run.checkpoints / layout.step_name(state.loop.step)
        checkpoint.save(path, self.snapshot(), state)
        for damaged in self.damaged:  # removed only now that there is a newer intact one
            if damaged != path:
                manifest.remove_directory(damaged)
        self.damaged = []
        self.prune(best)
        self.run.set_status("running", state.loop.step)

    def prune(self, best: str | None) -> None:
        """Remove the checkpoints that are no longer needed; `best` is one to keep."""
        if not self.ranks.is_first:
            return
        self.run.check_held()
        train = self.config.train
        checkpoint.prune(
            self.run.checkpoints,
            is_scheduled=train.is_scheduled,
            keep=max(train.keep_checkpoints, train.average_last),
            best=best,
        )

    def last_scheduled(self, step: int) -> list[Path]:
        """Return the checkpoints to average at the end."""
        train = self.config.train
        return checkpoint.last_scheduled(
            self.run.checkpoints, step, train.save_every, train.average_last
        )

    def restore(self, pools: int) -> Loop | None:
        """Load the newest intact checkpoint into the optimizer of every rank; return the state of
        the loop, or None where the run starts. An epoch of this text has `pools` pools.
        """
        state = self.ranks.first(partial(self._load_newest, pools))
        loop = self.ranks.share(lambda: state.loop if state else None, RESUMED)
        self.optimizer.spread_weights()
        if self.average is not None:
            self.ranks.spread(list(self.average.values.values()))
        if loop is not None:
            self.optimizer.load_moments(state.moments if state else {})
        return loop

    def _load_newest(self, pools: int) -> TrainerState | None:
        """Load the weights; return the optimizer's moments and the state of the loop."""
        self.run.check_held()
        checkpoint.clean(self.run.checkpoints)
        found, self.damaged = self.find_newest()
        if found is None:
            self._start_from(self.config.train.init_from)
            return None
        if found.snapshot.tokenizer != self.prepared.tokenizer.proto:
            raise UserError(f"{found.path}: was made with another vocabulary than this run's")
        weights, path = found.snapshot.weights, found.path / layout.TRAINER
        if found.trainer.loop.pool >= pools:
            raise UserError(f"{path}: damaged: its position is beyond the epoch of this text")
        check_weights(self.optimizer.weights(), weights, found.path)
        moments = dict(found.trainer.moments)
        if self.average is not None:
            self.average.load(weights)
            names = {name: name + LATEST for name in weights}
            weights = {name: moments.pop(key) for name, key in names.items() if key in moments}
            check_weights(self.optimizer.weights(), weights, path)
        check_weights(self.optimizer.moments(), moments, path)
        self.optimizer.load_weights(weights)
        return TrainerState(moments, found.trainer.loop)

    def find_newest(self) -> tuple[Found | None, list[Path]]:
        """Load the newest checkpoint that this machine can resume from; damaged ones are logged,
        skipped and returned.
        """
        damaged: list[Path] = []
        for path in reversed(layout.named_steps(self.run.checkpoints)):
            try:
                trainer = checkpoint.load_trainer(path)
                found = Found(path, checkpoint.load(path), trainer)
            except DamagedError as error:
                damaged.append(path)
                if len(damaged) <= 2:  # older ones have no optimizer state, so none is expected
                    logger.warning("%s; going back to an earlier checkpoint", error)
                continue
            self.machine.check_against(self.config, trainer.loop.machine)
            logger.info("resuming at step %s from %s", f"{trainer.loop.step:,}", path)
            return found, damaged
        if damaged:
            raise UserError(
                f"{self.run.checkpoints}: no checkpoint that can be resumed from is intact; "
                "choose another run_dir to start again"
            )
        return None, damaged

    def _start_from(self, path: str | None) -> None:
        """Load the weights of another run's model, if `path` names one; raises `UserError`."""
        if path is None:
            return
        directory = checkpoint.resolve(Path(path))
        snapshot = checkpoint.load_or_name_good(directory)
        check_weights(self.optimizer.weights(), snapshot.weights, directory)
        self.beginning = manifest.hash_file(directory / layout.MODEL)
        self.run.check_beginning(self.beginning)
        self.optimizer.load_weights(snapshot.weights)
        if self.average is not None:
            self.average.load(snapshot.weights)
        logger.info("starting with the weights of %s", directory)
