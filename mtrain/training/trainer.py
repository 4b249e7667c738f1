"""The training loop: steps, records, validations, stops."""

import math
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtrain.config.schema import Config
from mtrain.data.batches import Batch, MicroBatch, SpecialIds, TokenBatches
from mtrain.data.prepare import Prepared
from mtrain.data.subwords import SubwordSampler
from mtrain.model.building import build
from mtrain.model.transformer import set_compute_dtype
from mtrain.runs.directory import RunDirectory
from mtrain.runtime import files
from mtrain.runtime.device import compute_dtype, seed_device, telling_lack_of_memory
from mtrain.runtime.distributed import Ranks, Request
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import logger, progress_bar
from mtrain.runtime.stop import Stop, stopped
from mtrain.training.finish import Finish
from mtrain.training.learner import Learner
from mtrain.training.plan import Batching, Plan, clock, log_plan
from mtrain.training.resume import Checkpoints, Position
from mtrain.training.schedule import make_schedule
from mtrain.training.validation import Validation
from mtrain.translation.loading import LoadedModel


def micro_batch_seed(seed: int, step: int, number: int) -> int:
    """Return the seed of all randomness in one micro-batch of a step, on whichever rank."""
    return int(np.random.SeedSequence([seed, step, number]).generate_state(1, np.uint64)[0] >> 1)


class Trainer:
    """One rank of a run, from its first or newest checkpoint to its last step. Each rank computes
    its part of a step's micro-batches; rank 0 writes.
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
        self.checkpoints = Checkpoints(config, prepared, run, self.learner, self.ranks)
        self.average = self.checkpoints.average
        self.rate = make_schedule(config.train, config.model.d_model)
        self.position, self.saved_step, self.checked_step = Position(), 0, 0
        self.validation = Validation(config, prepared, run, stop, self.ranks, self.device)
        self.request: Request | None = None  # to stop; all ranks agree on it
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
        self._restore()
        self.ranks.first(self._describe)
        self.ranks.first(self.announce)
        self._validate_if_due()
        if not self._is_finished():
            self._train()
        self.checkpoints.prune(self.validation.history.best_step)
        step, finish = self.position.step, Finish(self.validation)
        finish.average(self.checkpoints.last_scheduled(step), step, self.checkpoints.snapshot)
        finish.test(step)

    def _restore(self) -> None:
        """Continue from the newest intact checkpoint, if there is one."""
        loop = self.checkpoints.restore(self.batches.pools)
        if loop is not None:
            self.position = Position(loop.step, loop.epoch, loop.pool, loop.batch)
            self.saved_step = self.checked_step = loop.step
            self.sums = self.sums.new_tensor(loop.sums)
            self.sum_tokens = loop.sum_tokens
        self.validation.resume(self.position.step)

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
                f"{self._steps()}: the loss or its gradient is not finite; no weight was changed "
                "by it. Lower the learning rate, or set train.precision: fp32; the last checkpoint "
                "is intact"
            )
            raise self.ranks.as_one(error)
        self.checked_step = self.position.step

    def _steps(self) -> str:
        """Name the steps since the last check for finite numbers."""
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
        """Save a checkpoint of this step, unless there is one."""
        if self.saved_step == self.position.step:
            return
        for name, weight in self.optimizer.weights().items():
            if not bool(weight.isfinite().all()):
                text = f"{self._steps()}: {name} is not finite; the last checkpoint is intact"
                raise self.ranks.as_one(UserError(text))
        self.saved_step = self.position.step
        best = self.validation.history.best_step
        self.checkpoints.save(self.position, self.sums.tolist(), self.sum_tokens, best)

    def _validate_if_due(self) -> None:
        """Validate if this step asks for it and the history does not have it yet."""
        train, step = self.config.train, self.position.step
        if step == 0 or not train.is_validated(step) or self.validation.history.has(step):
            return
        self.validation.validate(self.current_model(), step)
        self.model.train()
        self.checkpoints.prune(self.validation.history.best_step)
        self._restart_clock()

    def current_model(self) -> LoadedModel:
        """Return the current model, ready to translate as `mtrain translate` would by default."""
        model = self.model
        dtype = compute_dtype("auto", self.device, training=False)
        if dtype != self.model.dtype or self.average is not None:
            with torch.device("meta"):
                model = build(self.model.shape, self.device)
            model.take_weights(self.checkpoints.weights())
            set_compute_dtype(model.to(self.device), dtype)
        tokenizer, config, check = self.prepared.tokenizer, self.config, self.stop.check
        return LoadedModel(model, tokenizer, config.decode, config, check_stop=check)

    def _describe(self) -> None:
        """Write the run's vocabulary, `run.json` and status."""
        run, tokenizer = self.run_dir, self.prepared.tokenizer
        if not run.tokenizer.exists():
            run.keep_tokenizer(tokenizer.proto, tokenizer.vocabulary)
        files.make_directory(run.checkpoints)
        beginning = self.checkpoints.beginning
        run.describe(self.config, self.prepared.fingerprints, self.ranks.size, beginning)
        run.set_status("running", self.position.step)

    def announce(self) -> None:
        """Log what will be trained, or that training is complete."""
        p = self.position
        if self._is_finished():
            key = "max_steps" if p.step >= self.config.train.max_steps else "patience"
            logger.info(
                "training is complete at step %s; a larger train.%s continues it",
                f"{p.step:,}",
                key,
            )
            return
        planned = self.batches.plan(p.epoch, p.pool)  # all pools are alike
        tokens = sum(each.num_tokens for each in planned) / max(1, len(planned))
        batching = Batching(len(planned) * self.batches.pools, tokens, self.batches.step_batches)
        plan = Plan.of(
            self.config,
            self.model.num_parameters,
            self.model.shape.vocab_size,
            len(self.prepared.tokenizer.proto),
            batching,
        )
        log_plan(plan, self.machine, self.device, self.run_dir.path)
