"""The training loop: steps, records, checkpoints, validation, stopping and resuming exactly."""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from mtrain.config.schema import Config, dump_config
from mtrain.data.batches import Batch, MicroBatch, SpecialIds, TokenBatches
from mtrain.data.prepare import Prepared
from mtrain.data.subwords import SubwordSampler
from mtrain.model.transformer import Transformer, set_compute_dtype
from mtrain.runs import checkpoint, layout, manifest
from mtrain.runs.checkpoint import Loop, Snapshot, TrainerState
from mtrain.runs.directory import RunDirectory
from mtrain.runs.manifest import DamagedError
from mtrain.runtime import files
from mtrain.runtime.device import compute_dtype, seed_device, telling_lack_of_memory
from mtrain.runtime.distributed import Ranks, Request
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import logger, progress_bar
from mtrain.runtime.stop import Stop, stopped
from mtrain.training.learner import Learner
from mtrain.training.optimizer import MovingAverage, make_schedule
from mtrain.training.plan import Batching, Plan, clock, tell
from mtrain.training.validation import Validation
from mtrain.translation.translator import Translator, check_weights

# Behind the name of a weight: its value of now, where a checkpoint's model is an average.
LATEST = ".latest"
RESUMED: TypeAdapter[Loop | None] = TypeAdapter(Loop | None)


@dataclass
class Position:
    """Where the loop stands: steps done, and the next micro-batch of a pool of an epoch."""

    step: int = 0
    epoch: int = 0
    pool: int = 0
    batch: int = 0

    @property
    def name(self) -> str:
        """What has been trained on last, for people."""
        return f"epoch {self.epoch + 1}, part {self.pool + 1}, micro-batch {self.batch}"


@dataclass(frozen=True)
class Found:
    """A checkpoint to go on from."""

    path: Path
    snapshot: Snapshot
    trainer: TrainerState


def micro_batch_seed(seed: int, step: int, number: int) -> int:
    """Seed of all randomness in one micro-batch of a step, whichever process or rank computes
    it.
    """
    return int(np.random.SeedSequence([seed, step, number]).generate_state(1, np.uint64)[0] >> 1)


class Trainer:
    """One run, from its first or newest checkpoint to its last, as one of the ranks that train it:
    each learns its share of the micro-batches, the first one writes.
    """

    def __init__(
        self,
        config: Config,
        prepared: Prepared,
        run: RunDirectory,
        stop: Stop,
        ranks: Ranks | None = None,
    ) -> None:
        self.config, self.prepared, self.run_dir, self.stop = config, prepared, run, stop
        self.ranks = ranks or Ranks()
        self.ids = SpecialIds.of(prepared.tokenizer)
        self.learner = Learner(config, prepared.tokenizer.vocab_size, self.ids, self.ranks)
        self.model, self.optimizer = self.learner.model, self.learner.optimizer
        self.device, self.machine = self.learner.device, self.learner.machine
        decay = config.train.ema_decay
        self.average = MovingAverage(self.optimizer.weights(), decay) if decay else None
        self.rate = make_schedule(config.train, config.model.d_model)
        self.position, self.saved_step, self.checked_step = Position(), 0, 0
        self.beginning: str | None = None  # hash of the weights of another run, if it begins there
        self.damaged: list[Path] = []  # checkpoints newer than the one that the run goes on from
        self.validation = Validation(config, prepared, run, stop, self.ranks, self.device)
        self.request: Request | None = None  # to stop, which all ranks know of
        self.sums = torch.zeros_like(self.optimizer.losses)  # loss and nll since the last record
        self.sum_tokens = 0
        self._restart_clock()
        self.batches = TokenBatches(
            prepared.store,
            config.train.max_tokens,
            config.seed,
            self.ids,
            config.train.accum_steps * self.ranks.size,
            self._sampler(),
        )

    def _sampler(self) -> SubwordSampler | None:
        strength, longest = self.config.train.subword_sampling, self.config.data.max_length
        if strength is None:
            return None
        return SubwordSampler(self.prepared.tokenizer, strength, longest)

    def run(self) -> None:
        """Train to the end, then average and test; raises `StoppedError` once a stop is saved."""
        self._resume()
        self._begin()
        self._validate_if_due()
        if not self._is_finished():
            self._train()
        self._prune()
        step = self.position.step
        self.validation.average(self._last_scheduled(), step, self._snapshot)
        self.validation.test(step)

    def _train(self) -> None:
        """Take steps until the last, out of patience, or asked to stop."""
        self.ranks.together(self.learner.warm_up)
        stream = self.micro_batches()
        bar = progress_bar(self.config.train.max_steps, "step", "training", self.position.step)
        self._restart_clock()
        with bar:
            while not self._is_finished():
                started = time.monotonic()
                norm, rate = self.take_step(stream)
                self.stop.step_seconds = time.monotonic() - started
                bar.update()
                self._after_step(norm, rate, bar)

    def take_step(self, stream: Iterator[MicroBatch]) -> tuple[Tensor, float]:
        """One optimizer update over `accum_steps` micro-batches of each rank; returns the
        gradient's norm and the rate.
        """
        step, failure = self.position.step + 1, None
        planned = [next(stream) for _ in range(self.batches.step_batches)]
        try:
            self._learn_share(planned, step)
        except UserError as error:
            failure = error
        num_tokens, rate = sum(each.num_tokens for each in planned), self.rate(step)
        self.request = self.ranks.agree(self.stop.request, failure, num_tokens)
        self.ranks.sum_(self.optimizer.buffer)
        self.sums += self.optimizer.losses
        norm = self.optimizer.update(rate, num_tokens, self.config.train.clip_norm)
        if self.average is not None:
            self.average.update(step)
        self.position.step = step
        self.sums += norm * 0  # nothing, unless the gradient is not finite: see `_check_finite`
        self.sum_tokens += num_tokens
        self.recorded_tokens += num_tokens
        self.recorded_steps += 1
        return norm, rate

    def _learn_share(self, planned: list[MicroBatch], step: int) -> None:
        """Add up the gradients of those of a step's micro-batches that are this rank's."""
        for number in range(self.ranks.rank, len(planned), self.ranks.size):
            seed_device(self.device, micro_batch_seed(self.config.seed, step, number))
            batch = self.batches.read(planned[number])
            with telling_lack_of_memory(partial(self._too_large, batch)):
                self.learner.learn(batch)

    def _too_large(self, batch: Batch) -> str:
        """Say on which micro-batch memory ended, and what to lower."""
        (rows, longest), (_, target) = batch.src.shape, batch.tgt_in.shape
        p = self.position
        return (
            f"step {p.step + 1}: out of memory on a micro-batch of {rows} pairs, {longest} source "
            f"and {target} target tokens long ({p.name}); free memory and run the same command "
            "again, or start another run_dir with a lower train.max_tokens or data.max_length"
        )

    def micro_batches(self) -> Iterator[MicroBatch]:
        """Plan micro-batches for ever from the current position on, which is moved along."""
        p = self.position
        while True:
            while p.pool < self.batches.pools:
                for planned in self.batches.plan(p.epoch, p.pool)[p.batch :]:
                    p.batch += 1
                    yield planned
                p.pool, p.batch = p.pool + 1, 0
            p.epoch, p.pool = p.epoch + 1, 0

    def _after_step(self, norm: Tensor, rate: float, bar: Any) -> None:
        """Record, save, validate and stop where each falls due."""
        train, step = self.config.train, self.position.step
        saves = train.is_scheduled(step) or self.request is not None
        if self.device.type != "cuda" or saves or step % train.log_every == 0:
            self._check_finite()
        if step % train.log_every == 0:
            self._record(norm, rate, bar)
        if saves:
            self._save()
        if self.request:
            raise self.ranks.as_one(stopped(*self.request))
        self._validate_if_due()

    def _check_finite(self) -> None:
        """End the run on a gradient that is not finite; the optimizer has left the weights
        alone.
        """
        if not bool(self.sums.isfinite().all()):
            error = UserError(
                f"{self._place()}: the loss or its gradient is not finite; no weight was changed "
                "by it. Lower the learning rate, or set train.precision: fp32; the last checkpoint "
                "is good"
            )
            raise self.ranks.as_one(error)
        self.checked_step = self.position.step

    def _place(self) -> str:
        """Name what was trained on since the last look at the numbers."""
        p, first = self.position, self.checked_step + 1
        steps = f"step {p.step}" if first >= p.step else f"one of the steps {first} to {p.step}"
        return f"{steps} (up to {p.name})"

    def _record(self, norm: Tensor, rate: float, bar: Any) -> None:
        """Write the training record since the last one to metrics.jsonl, the log and the bar."""
        loss, nll = (self.sums / max(1, self.sum_tokens)).tolist()
        now = time.monotonic()
        speed = self.recorded_tokens / max(1e-9, now - self.recorded_at)
        record = {
            "step": self.position.step,
            "time": time.time(),
            "train/loss": loss,
            "train/nll": nll,
            "train/ppl": math.exp(min(nll, 700)),
            "lr": rate,
            "grad_norm": float(norm),
            "tokens_per_second": speed,
        }
        if self.ranks.is_first:
            self.run_dir.metrics.append(record)
        step_seconds = (now - self.recorded_at) / max(1, self.recorded_steps)
        left = step_seconds * (self.config.train.max_steps - self.position.step)
        summary = (
            f"loss {loss:.3f}  ppl {record['train/ppl']:.2f}  {speed:,.0f} tok/s  lr {rate:.2e}"
        )
        bar.set_postfix_str(summary)
        logger.info(
            "step %s/%s  epoch %d  %s  grad %.2f  left %s",
            f"{self.position.step:,}",
            f"{self.config.train.max_steps:,}",
            self.position.epoch + 1,
            summary,
            float(norm),
            clock(left),
            extra={"shown_on_bar": True},
        )
        self.sums.zero_()
        self.sum_tokens = 0
        self._restart_clock()

    def _restart_clock(self) -> None:
        """Measure speed from here on: loading and validation do not count."""
        self.recorded_tokens, self.recorded_steps, self.recorded_at = 0, 0, time.monotonic()

    def _is_finished(self) -> bool:
        train = self.config.train
        out_of_patience = self.validation.history.is_out_of_patience(train.patience)
        return self.position.step >= train.max_steps or out_of_patience

    def _save(self) -> None:
        """Save a checkpoint of this step and remove the ones that are no longer needed."""
        if self.saved_step == self.position.step:
            return
        for name, weight in self.optimizer.weights().items():
            if not bool(weight.isfinite().all()):
                text = f"{self._place()}: {name} is not finite; the last checkpoint is good"
                raise self.ranks.as_one(UserError(text))
        self.saved_step = self.position.step
        moments = self.optimizer.moments()
        if self.average is not None:
            moments |= {name + LATEST: weight for name, weight in self.optimizer.weights().items()}
        self.ranks.first(partial(self._write_checkpoint, moments))

    def _write_checkpoint(self, moments: dict[str, Tensor]) -> None:
        self.run_dir.check_held()
        path = self.run_dir.checkpoints / layout.step_name(self.position.step)
        loop = Loop(
            **asdict(self.position),
            sums=self.sums.tolist(),
            sum_tokens=self.sum_tokens,
            machine=asdict(self.machine),
        )
        checkpoint.save(path, self._snapshot(), TrainerState(moments, loop))
        for damaged in self.damaged:  # not before there is another; their steps come again
            if damaged != path:
                manifest.remove_directory(damaged)
        self.damaged = []
        self._prune()
        self.run_dir.set_status("running", self.position.step)

    def _snapshot(self, weights: dict[str, Tensor] | None = None) -> Snapshot:
        proto = self.prepared.tokenizer.proto
        return Snapshot(weights or self._weights(), dump_config(self.config), proto)

    def _weights(self) -> dict[str, Tensor]:
        """The weights that the model is known by: those of now, or their moving average."""
        return self.optimizer.weights() if self.average is None else self.average.values

    def _prune(self) -> None:
        if not self.ranks.is_first:
            return
        self.run_dir.check_held()
        train = self.config.train
        checkpoint.prune(
            self.run_dir.checkpoints,
            is_scheduled=train.is_scheduled,
            keep=max(train.keep_checkpoints, train.average_last),
            best=self.validation.history.best_step,
        )

    def _last_scheduled(self) -> list[Path]:
        """Name the checkpoints to be averaged."""
        train, directory = self.config.train, self.run_dir.checkpoints
        return checkpoint.last_scheduled(
            directory, self.position.step, train.save_every, train.average_last
        )

    def _resume(self) -> None:
        """Go on from the newest good checkpoint, if there is one, and all ranks from the same."""
        state = self.ranks.first(self._load_newest)
        loop = self.ranks.share(lambda: state.loop if state else None, RESUMED)
        self.optimizer.spread_weights()
        if self.average is not None:
            self.ranks.spread(list(self.average.values.values()))
        if loop is not None:
            self.optimizer.load_moments(state.moments if state else {})
            self.position = Position(loop.step, loop.epoch, loop.pool, loop.batch)
            self.saved_step = self.checked_step = loop.step
            self.sums = self.sums.new_tensor(loop.sums)
            self.sum_tokens = loop.sum_tokens
        self.validation.resume(self.position.step)

    def _load_newest(self) -> TrainerState | None:
        """Load the weights of the newest good checkpoint, if there is one; return the optimizer's
        moments and where the loop stood.
        """
        self.run_dir.check_held()
        checkpoint.clean(self.run_dir.checkpoints)
        found, self.damaged = self.look_back()
        if found is None:
            self._begin_with(self.config.train.init_from)
            return None
        if found.snapshot.tokenizer != self.prepared.tokenizer.proto:
            raise UserError(f"{found.path}: was made with another vocabulary than this run's")
        weights, place = found.snapshot.weights, found.path / layout.TRAINER
        if found.trainer.loop.pool >= self.batches.pools:
            raise UserError(f"{place}: damaged: its place is no part of an epoch of this text")
        check_weights(self.optimizer.weights(), weights, found.path)
        state = dict(found.trainer.moments)
        if self.average is not None:
            self.average.load(weights)
            names = {name: name + LATEST for name in weights}
            weights = {name: state.pop(key) for name, key in names.items() if key in state}
            check_weights(self.optimizer.weights(), weights, place)
        check_weights(self.optimizer.moments(), state, place)
        self.optimizer.load_weights(weights)
        return TrainerState(state, found.trainer.loop)

    def _begin_with(self, path: str | None) -> None:
        """Take the weights of another run's model, if one is named; raises `UserError` where it is
        not such a model.
        """
        if path is None:
            return
        directory = checkpoint.resolve(Path(path))
        snapshot = checkpoint.load_or_name_good(directory)
        check_weights(self.optimizer.weights(), snapshot.weights, directory)
        self.beginning = manifest.hash_file(directory / layout.MODEL)
        self.run_dir.check_beginning(self.beginning)
        self.optimizer.load_weights(snapshot.weights)
        if self.average is not None:
            self.average.load(snapshot.weights)
        logger.info("beginning with the weights of %s", directory)

    def look_back(self) -> tuple[Found | None, list[Path]]:
        """Load the newest checkpoint that can be resumed from on this machine; damaged ones are
        named, passed over and listed.
        """
        damaged: list[Path] = []
        for path in reversed(layout.named_steps(self.run_dir.checkpoints)):
            try:
                trainer = checkpoint.load_trainer(path)
                found = Found(path, checkpoint.load(path), trainer)
            except DamagedError as error:
                damaged.append(path)
                if len(damaged) <= 2:  # only the newest two keep what resuming needs
                    logger.warning("%s; going back to an earlier checkpoint", error)
                continue
            self.machine.check_against(self.config, trainer.loop.machine)
            logger.info("resuming at step %s from %s", f"{trainer.loop.step:,}", path)
            return found, damaged
        if damaged:
            raise UserError(
                f"{self.run_dir.checkpoints}: no checkpoint that can be resumed from is whole; "
                "choose another run_dir to start again"
            )
        return None, damaged

    def _validate_if_due(self) -> None:
        """Validate where this step asks for it and the history does not have it yet."""
        train, step = self.config.train, self.position.step
        if step == 0 or not train.is_validated(step) or self.validation.history.has(step):
            return
        self.validation.validate(self.translator(), step)
        self.model.train()
        self._prune()
        self._restart_clock()

    def translator(self) -> Translator:
        """The current weights, ready to translate as `mtrain translate` would by default."""
        model = self.model
        dtype = compute_dtype("auto", self.device, training=False)
        if dtype != self.model.dtype or self.average is not None:
            with torch.device("meta"):
                model = Transformer(self.model.shape)
            model.take_weights(self._weights())
            set_compute_dtype(model.to(self.device), dtype)
        return Translator(
            model, self.prepared.tokenizer, self.config.decode, self.config, self.stop.check
        )

    def _begin(self) -> None:
        """Leave the run's description, and say what is trained, on what, and how."""
        self.ranks.first(self._describe)
        self.ranks.first(self.announce)

    def _describe(self) -> None:
        tokenizer = self.prepared.tokenizer
        if not self.run_dir.tokenizer.exists():
            self.run_dir.keep_tokenizer(tokenizer.proto, tokenizer.vocabulary)
        files.make_directory(self.run_dir.checkpoints)
        self.run_dir.describe(
            self.config, self.prepared.fingerprints, self.ranks.size, self.beginning
        )
        self.run_dir.set_status("running", self.position.step)

    def announce(self) -> None:
        """Say what is to be done from here on."""
        if self._is_finished():
            key = "max_steps" if self.position.step >= self.config.train.max_steps else "patience"
            logger.info(
                "training is complete at step %s; a larger train.%s goes on",
                f"{self.position.step:,}",
                key,
            )
        else:
            self._announce_training()

    def _announce_training(self) -> None:
        """Say what is trained, on what, and how."""
        p, shape = self.position, self.model.shape
        planned = self.batches.plan(p.epoch, p.pool)  # all pools are alike
        tokens = sum(each.num_tokens for each in planned) / max(1, len(planned))
        micro_batches = len(planned) * self.batches.pools
        batching = Batching(micro_batches, tokens, self.batches.step_batches)
        plan = Plan.of(
            self.config,
            self.model.num_parameters,
            shape.vocab_size,
            len(self.prepared.tokenizer.proto),
            batching,
        )
        tell(plan, self.machine, self.device, self.run_dir.path)
