"""Checkpoints of a run: what training stores in them, and how a stopped run resumes from one.

checkpoint/           model weights; with train.ema_decay, their moving average
checkpoint/trainer/   optimizer moments; with train.ema_decay, the latest weights too; progress
"""

from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mtrain.config.changes import MACHINE_KEYS
from mtrain.config.schema import Config, dump_config
from mtrain.data.prepare import Prepared
from mtrain.data.tokenizer import Tokenizer
from mtrain.data.vocabulary import init_checkpoint
from mtrain.model.building import check_weights
from mtrain.model.transformer import VOCABULARY_MATRICES, Transformer
from mtrain.runs import checkpoint, compatibility, layout, manifest
from mtrain.runs.checkpoint import Snapshot, TrainerState
from mtrain.runs.directory import RunDirectory
from mtrain.runs.manifest import DamagedError
from mtrain.runs.records import Fingerprints, Loop
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.log import logger
from mtrain.runtime.stop import Stop
from mtrain.scoring.external import ExternalMetric
from mtrain.training.gradients import Blocks
from mtrain.training.learner import Learner, MachineSettings
from mtrain.training.optimizer import copy_values

# Suffix of a weight's name: its latest value, where the checkpoint's model is a moving average.
LATEST = ".latest"


@dataclass(frozen=True)
class Session:
    """One start of a run on one rank, shared by trainer, checkpoints and validation."""

    config: Config
    prepared: Prepared
    run: RunDirectory
    stop: Stop
    ranks: Ranks
    blocks: Blocks  # the micro-batches that each rank computes in a step
    metric: ExternalMetric | None = None  # of `train.metric: command`


@dataclass
class Progress:
    """Steps done, the next micro-batch, and sums since the last record."""

    sums: Tensor  # (2,) or (3,): loss, NLL and, with train.consistency, divergence
    step: int = 0
    epoch: int = 0
    pool: int = 0
    batch: int = 0
    sum_tokens: int = 0

    def __str__(self) -> str:
        return f"epoch {self.epoch + 1}, part {self.pool + 1}, micro-batch {self.batch}"


class Checkpoints:
    """Saves and restores a learner's state and the loop's progress. Rank 0 reads and writes."""

    def __init__(self, session: Session, learner: Learner) -> None:
        self.config = session.config
        self.run = session.run
        self.ranks = session.ranks
        self.vocabulary = session.prepared.tokenizer.proto
        self.settings = dump_config(session.config)  # made once for all checkpoints
        self.learner = learner
        self.optimizer = learner.optimizer
        self.average = learner.average
        self.init_fingerprint: Fingerprints = {}  # of the model of `train.init_from`, at step 0
        self._damaged: list[Path] = []  # newer checkpoints than the one that was resumed

    def save(self, progress: Progress, best: set[str]) -> None:
        """Save a checkpoint of this step on rank 0, then `prune`."""
        self.run.check_held()
        path = self.run.checkpoints / layout.step_name(progress.step)
        moments = self.optimizer.moments()
        if self.average is not None:
            moments |= {name + LATEST: weight for name, weight in self.optimizer.weights.items()}
        machine = asdict(self.learner.machine)
        loop = Loop(**vars(progress) | {"sums": progress.sums.tolist(), "machine": machine})
        self.run.metrics.sync()
        checkpoint.save(path, self.snapshot(), TrainerState(moments, loop))
        for damaged in self._damaged:  # only now: their models may be intact
            if damaged != path:
                manifest.remove_directory(damaged)
        self._damaged = []
        self.prune(best)
        self.run.set_status("running", progress.step)

    def snapshot(self, weights: dict[str, Tensor] | None = None) -> Snapshot:
        """Return the model as a checkpoint stores it, with these weights or the current ones."""
        return Snapshot(weights or self.learner.weights, self.settings, self.vocabulary)

    def prune(self, best: set[str]) -> None:
        """Remove checkpoints that are no longer needed, on rank 0; keep the `best`."""
        if self.ranks.is_rank_0:
            self.run.check_held()
            checkpoint.prune(self.run.checkpoints, self.config.train, best)

    def restore(self, pools: int) -> Progress:
        """Restore all ranks from the newest intact checkpoint and return its progress. A run
        without checkpoints starts at step 0, from `train.init_from` if it is set. An epoch has
        `pools` pools.
        """
        loop = self.ranks.from_rank_0(partial(self._load, pools), Loop | None)
        tensors = list(self.optimizer.weights.values())
        if self.average is not None:
            tensors += self.average.values.values()
        if loop is not None:
            tensors += self.optimizer.moments().values()
        self.ranks.broadcast(*tensors)
        self.optimizer.copy_to_model()
        if loop is None:
            return Progress(torch.zeros_like(self.optimizer.losses))
        sums = self.optimizer.losses.new_tensor(loop.sums)
        return Progress(sums, loop.step, loop.epoch, loop.pool, loop.batch, loop.sum_tokens)

    def _load(self, pools: int) -> Loop | None:
        """Load the newest intact checkpoint, if there is one."""
        self.run.check_held()
        manifest.clean(self.run.checkpoints)
        newest = self.find_newest()
        if newest is None:
            self._load_initial()
            return None
        path, snapshot, trainer = newest
        inner = path / layout.TRAINER
        weights = snapshot.weights
        moments = dict(trainer.moments)
        if snapshot.tokenizer != self.vocabulary:
            raise UserError(
                f"{path}: has a different vocabulary from this run; restore the run's own"
            )
        advice = f"restore it, or remove {path} to resume from the checkpoint before it"
        if trainer.loop.pool >= pools:
            text = "damaged: its position is beyond an epoch of this text"
            raise UserError(f"{inner}: {text}; {advice}")
        if len(trainer.loop.sums) != len(self.optimizer.losses):
            raise UserError(f"{inner}: damaged: its sums belong to another loss; {advice}")
        # numbers of steps and squares of gradients may be large, and weights of a run that diverged
        check = partial(check_weights, largest=torch.finfo(torch.float32).max, advice=advice)
        check(self.optimizer.weights, weights, path)
        if self.average is not None:
            copy_values(self.average.values, weights)
            weights = {n: moments.pop(n + LATEST) for n in weights if n + LATEST in moments}
            check(self.optimizer.weights, weights, inner)
        check(self.optimizer.moments(), moments, inner)
        copy_values(self.optimizer.weights, weights)
        copy_values(self.optimizer.moments(), moments)
        return trainer.loop

    def _load_initial(self) -> None:
        """Load the weights of `train.init_from`, if it is set; raises `UserError` if they do not
        fit the model.
        """
        if self.config.train.init_from is None:
            return
        directory = init_checkpoint(self.config.train.init_from)
        snapshot = checkpoint.load_or_name_intact(directory)
        weights = snapshot.weights
        if self.config.train.init_vocabulary == "own":
            weights = self._with_own_vocabulary(snapshot, directory)
        elif snapshot.tokenizer != self.vocabulary:
            raise RefusedError(
                f"train.init_from: {directory} has a different vocabulary from "
                f"{self.run.tokenizer}; "
                "remove that file, or set train.init_vocabulary: own"
            )
        check_weights(self.optimizer.weights, weights, directory)
        self.init_fingerprint = {"init_from": manifest.hash_file(directory / layout.MODEL)}
        compatibility.check_data(self.run, self.init_fingerprint)
        copy_values(self.optimizer.weights, weights)
        if self.average is not None:
            copy_values(self.average.values, weights)
        logger.info("starting from the weights of %s", directory)

    def _with_own_vocabulary(self, snapshot: Snapshot, directory: Path) -> dict[str, Tensor]:
        """Return the weights with rows for this run's vocabulary: a piece of both vocabularies
        keeps its row; a new piece starts as the mean of the old pieces that spell it.
        """
        old, new = Tokenizer(snapshot.tokenizer), Tokenizer(self.vocabulary)
        with torch.device("meta"):
            shape = replace(self.learner.model.shape, vocab_size=old.vocab_size)
            check_weights(dict(Transformer(shape).named_parameters()), snapshot.weights, directory)
        old_ids = old.map_vocabulary(new)
        ids = torch.tensor(list(chain.from_iterable(old_ids)))
        starts = torch.tensor(list(accumulate(map(len, old_ids[:-1]), initial=0)))
        shared = len({*old.all_pieces} & {*new.all_pieces})
        logger.info(
            "train.init_vocabulary: %s of %s pieces are in both vocabularies, %s start as means",
            *(f"{count:,}" for count in (shared, new.vocab_size, new.vocab_size - shared)),
        )
        return {
            # (V_old, D) -> (V, D)
            name: F.embedding_bag(ids, weight, starts) if name in VOCABULARY_MATRICES else weight
            for name, weight in snapshot.weights.items()
        }

    def find_newest(self) -> tuple[Path, Snapshot, TrainerState] | None:
        """Load the newest intact checkpoint, if there is one, and warn of damaged newer ones.
        Refuse a checkpoint that this machine cannot continue.
        """
        damaged: list[Path] = []
        for path in reversed(layout.named_checkpoints(self.run.checkpoints)):
            try:
                trainer = checkpoint.load_trainer(path)
                snapshot = checkpoint.load(path)
            except DamagedError as error:
                damaged.append(path)
                if len(damaged) <= 2:  # older ones are not damaged, but have no trainer/
                    logger.warning("%s; going back to an earlier checkpoint", error)
                continue
            check_machine(self.learner.machine, trainer.loop.machine, self.config)
            logger.info("resuming at step %s from %s", f"{trainer.loop.step:,}", path)
            self._damaged = damaged
            return path, snapshot, trainer
        if damaged:
            raise UserError(
                f"{self.run.checkpoints}: no checkpoint that can be resumed from is intact; "
                "choose another run_dir to start again"
            )
        return None


def check_machine(machine: MachineSettings, before: dict[str, Any], config: Config) -> None:
    """Refuse to resume if a setting resolves to another value than in `before`. `precision` and
    `compile` may be changed by setting them in the config. The number of threads may change on a
    GPU, or if the number of threads per operation stays the same.
    """
    same_openmp = before.get("openmp", machine.openmp) == machine.openmp
    for key in MACHINE_KEYS:
        now = getattr(machine, key)
        was = before.get(key, False if key == "packing" else now)  # missing in early runs
        if was == now or (key == "threads" and (same_openmp or machine.device != "cpu")):
            continue
        old, new = str(was).lower(), str(now).lower()  # as in a config
        if key not in ("precision", "compile") or getattr(config.train, key) == "auto":
            raise RefusedError(
                f"train.{key}: this run was trained with {old}, and here it resolves to {new}; "
                f"to continue, set train.{key}: {old}"
            )
        text = "train.%s: from here on %s, not %s; weights equal bit for bit are no longer promised"
        logger.warning(text, key, new, old)
