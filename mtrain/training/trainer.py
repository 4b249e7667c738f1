"""The training loop.

1. micro_batches       plan the micro-batches of a step, the same on every rank
2. _sum_own_gradients  sum the gradients of this rank's micro-batches
3. _sum_gradients      add the gradients of the other ranks
4. take_step           update the weights
5. _after_step         record, save, validate and stop if it is due
"""

import gc
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtrain.data.augment import Augmenter
from mtrain.data.batches import MicroBatch, SpecialIds, TokenBatches, lengths_with_eos
from mtrain.data.bpe_dropout import SubwordSampler
from mtrain.runs import layout
from mtrain.runtime import files
from mtrain.runtime.device import out_of_memory_as
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import logger, progress_bar
from mtrain.runtime.stop import Request, format_duration, stop_error
from mtrain.training.gradients import sum_over_ranks
from mtrain.training.learner import Learner
from mtrain.training.plan import make_forecast
from mtrain.training.resume import Checkpoints, Progress, Session
from mtrain.training.schedule import make_schedule
from mtrain.training.validation import Validation, perplexity, two_decimals


def slice_seed(seed: int, step: int, index: int, slice_index: int) -> int:
    """Return the seed of all randomness in a slice of a micro-batch. It does not depend on which
    rank and thread compute the slice.
    """
    sequence = np.random.SeedSequence([seed, step, index, slice_index])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


@dataclass
class Clock:
    """Counts the work since its start, for the speed without loading and validation."""

    started: float  # in seconds of `time.monotonic`
    steps: int = 0
    tokens: int = 0


class Trainer:
    """The training loop of one rank. Each rank computes its micro-batches of a step; rank 0
    writes.
    """

    def __init__(self, session: Session) -> None:
        self.config = session.config
        self.prepared = session.prepared
        self.directory = session.run
        self.stop = session.stop
        self.ranks = session.ranks
        config, tokenizer = session.config, session.prepared.tokenizer
        self.ids = SpecialIds.of(tokenizer)
        self.blocks = session.blocks
        self.learner = Learner(config, tokenizer.vocab_size, self.ids, self.ranks, self.blocks)
        self.optimizer = self.learner.optimizer
        sums = self.optimizer.sums.buffer
        self.spare = sums.new_empty(sums.shape if self.ranks.size > 1 else 0)  # received sums
        self.checkpoints = Checkpoints(session, self.learner)
        self.validation = Validation(session, self.checkpoints)
        self.batches = self._token_batches()
        self.rate = make_schedule(config.train, config.model.d_model)
        self.progress = Progress(self.optimizer.losses.clone())
        self.request: Request | None = None  # to stop, agreed by all ranks
        self.clock = Clock(time.monotonic())

    def _token_batches(self) -> TokenBatches:
        """Return the training stream, with what changes its pairs in each epoch."""
        config = self.config
        train = config.train
        tokenizer = self.prepared.tokenizer
        sampler = augmenter = None
        if train.subword_sampling is not None:
            sampler = SubwordSampler(tokenizer, train.subword_sampling, config.data.max_length)
        if any(train.augment.model_dump().values()):
            augmenter = Augmenter(tokenizer, train.augment, config.seed, config.data.max_length)
        return TokenBatches(
            self.prepared.store,
            train.max_tokens,
            config.seed,
            self.ids,
            self.blocks.micro_batches,
            sampler,
            augmenter,
            row_widths=self.learner.machine.row_widths(config),
        )

    def run(self) -> None:
        """Train to the end, then average and test; raises `StoppedError` once a stop is saved."""
        self.progress = self.checkpoints.restore(self.batches.pools)
        self.validation.resume(self.progress.step)
        self.ranks.on_rank_0(self._write_run_files)
        with closing(self.batches):
            self.ranks.on_rank_0(self._announce)
            self._validate_if_due()
            if not self._is_finished():
                self._train()
        self.checkpoints.prune(self.validation.best_names)
        self.validation.finish(self.progress.step)

    def _write_run_files(self) -> None:
        """Write the run's settings, hashes, vocabulary and status."""
        tokenizer = self.prepared.tokenizer
        run = self.directory
        files.make_directory(run.checkpoints)
        fingerprints = self.prepared.fingerprints | self.checkpoints.init_fingerprint
        run.write_provenance(self.config, fingerprints, self.ranks.size)
        if not run.tokenizer.exists():  # after its hash, by which a changed vocabulary is refused
            run.keep_tokenizer(tokenizer.proto, tokenizer.vocabulary)
        run.set_status("running", self.progress.step)

    def preview(self) -> dict[str, Any]:
        """Log what `run` would do and return it as figures; nothing is restored or written."""
        newest = self.checkpoints.find_newest()
        if newest is not None:
            _, _, trainer = newest
            self.progress.step = trainer.loop.step
            self.validation.load_history(self.progress.step)
        with closing(self.batches):
            figures = self._announce(timed=True)
        return {"step": self.progress.step, "is_complete": self._is_finished(), **figures}

    def _announce(self, *, timed: bool = False) -> dict[str, Any]:
        """Log the forecast of the remaining steps, with their time if `timed`, and return it."""
        step, tokenizer = self.progress.step, self.prepared.tokenizer
        if self._is_finished():
            key = "max_steps" if step >= self.config.train.max_steps else "patience"
            text = "training is complete at step %s; to train longer, raise train.%s"
            logger.info(text, f"{step:,}", key)
            return {}
        planned = self.batches.plan(self.progress.epoch, self.progress.pool)  # pools are similar
        forecast = make_forecast(
            self.config,
            self.ranks,
            self.blocks,
            tokenizer.vocab_size,
            len(tokenizer.proto),
            epoch_batches=len(planned) * self.batches.pools,
            mean_tokens=sum(batch.num_tokens for batch in planned) / max(1, len(planned)),
        )
        if timed and planned:
            largest = max(planned, key=lambda batch: len(batch.indices))
            lengths = lengths_with_eos(map(self.prepared.store.pair, largest.indices.tolist()))
            remaining = self.config.train.max_steps - step
            forecast.add_time(lengths, remaining, self.stop.check)
        for line in forecast.lines:
            logger.info("%s", line)
        if step == 0 or timed:
            for warning in self.prepared.warnings(self.config):
                logger.warning("%s", warning)
        for warning in forecast.warnings():
            logger.warning("%s", warning)
        return forecast.numbers

    def _is_finished(self) -> bool:
        return self.validation.history.is_end(self.progress.step, self.config.train)

    def _train(self) -> None:
        """Take steps until the last one, the end of patience or a stop."""
        self.ranks.on_all_ranks(self.learner.warm_up)
        stream = self.micro_batches()
        self.clock = Clock(time.monotonic())
        last_step = self.config.train.max_steps
        bar = progress_bar(last_step, "step", "training", self.progress.step)
        with bar, ExitStack() as stack:
            # Python's garbage collector would examine all objects that exist now at each run, which
            # may stop all threads for 0.2 s
            gc.freeze()
            stack.callback(gc.unfreeze)
            while not self._is_finished():
                started = time.monotonic()
                norm, rate = self.take_step(stream)
                self.stop.step_seconds = time.monotonic() - started
                bar.update()
                self._after_step(norm, rate, bar)

    def take_step(self, stream: Iterator[MicroBatch]) -> tuple[Tensor, float]:
        """Take one optimizer step; return the gradient's norm and the learning rate."""
        progress = self.progress
        step = progress.step + 1
        planned = [next(stream) for _ in range(self.batches.step_batches)]
        num_tokens = sum(batch.num_tokens for batch in planned)
        rate = self.rate(step)
        self._sum_gradients(planned, step, num_tokens)
        progress.sums += self.optimizer.losses
        norm = self.optimizer.update(rate, num_tokens, self.config.train.clip_norm)
        if self.learner.average is not None:
            self.optimizer.run_in_pool(self.learner.average.update, [step])
        progress.sums += norm * 0  # NaN in the norm must reach `_check_finite`
        progress.step = step
        progress.sum_tokens += num_tokens
        self.clock.tokens += num_tokens
        self.clock.steps += 1
        return norm, rate

    def _sum_gradients(self, planned: list[MicroBatch], step: int, num_tokens: int) -> None:
        """Sum the gradients of a step over its micro-batches and ranks. The ranks also agree on
        whether to stop; all raise the failure of any.
        """
        failure = None
        try:
            self._sum_own_gradients(planned, step)
        except UserError as error:
            failure = error
        self.request = self.ranks.agree(self.stop.request, failure, num_tokens)
        sum_over_ranks(self.optimizer.sums.buffer, self.blocks, self.ranks, self.spare)

    def _sum_own_gradients(self, planned: list[MicroBatch], step: int) -> None:
        """Sum the gradients of this rank's micro-batches of a step."""
        indices = self.blocks.of(self.ranks.rank)
        seeds = [partial(slice_seed, self.config.seed, step, index) for index in indices]
        batches = map(self.batches.read, planned[indices.start : indices.stop])
        with out_of_memory_as(self._out_of_memory_message(planned)):
            self.learner.sum_gradients(zip(batches, seeds, strict=True), len(indices))

    def _out_of_memory_message(self, planned: list[MicroBatch]) -> str:
        rows = max(len(batch.indices) for batch in planned)
        tokens = self.config.train.max_tokens
        return (
            f"step {self.progress.step + 1}: out of memory on micro-batches of up to {rows} pairs, "
            f"in up to {tokens} tokens with padding ({self.progress}); free memory and "
            "run the same command again, or start another run_dir with a lower train.max_tokens or "
            "data.max_length"
        )

    def micro_batches(self) -> Iterator[MicroBatch]:
        """Yield micro-batches from the current position, which advances, without end."""
        progress = self.progress
        while True:
            while progress.pool < self.batches.pools:
                for planned in self.batches.plan(progress.epoch, progress.pool)[progress.batch :]:
                    progress.batch += 1
                    yield planned
                progress.pool, progress.batch = progress.pool + 1, 0
            progress.epoch, progress.pool = progress.epoch + 1, 0

    def _after_step(self, norm: Tensor, rate: float, bar: Any) -> None:
        """Record, save, validate and stop if it is due."""
        train, step = self.config.train, self.progress.step
        is_saved = train.is_scheduled(step) or self.request is not None
        is_recorded = step % train.log_every == 0
        # rarely on a GPU, because this waits for it
        if self.learner.device.type != "cuda" or is_saved or is_recorded:
            self._check_finite()
        if is_recorded:
            self._record(norm, rate, bar)
        if is_saved:
            self._save()
        if self.request:
            error = stop_error(*self.request, "run the same command again to resume")
            raise self.ranks.mark_shared(error)
        self._validate_if_due()

    def _check_finite(self) -> None:
        """End the run if the loss or gradient is not finite; the optimizer skipped that update."""
        if not bool(self.progress.sums.isfinite().all()):
            advice = "start another run_dir with a lower learning rate"
            if self.progress.step == 1:  # a rate matters only from the next step on
                advice = "check train.init_from and model.dropout"
            if self.learner.machine.precision != "fp32":
                advice = f"set train.precision: fp32 and run the same command again, or {advice}"
            text = f"the loss or its gradient is not finite; no weight was changed; {advice}"
            raise self._not_finite(text)

    def _not_finite(self, text: str) -> UserError:
        text = f"step {self.progress.step} (up to {self.progress}): {text}"
        if layout.complete_checkpoints(self.directory.checkpoints):
            text += "; the last checkpoint is intact"
        return self.ranks.mark_shared(UserError(text))

    def _record(self, norm: Tensor, rate: float, bar: Any) -> None:
        """Write a record of the steps since the last one to metrics.jsonl, the log and the bar."""
        progress = self.progress
        last_step = self.config.train.max_steps
        loss, nll, *divergence = (progress.sums / progress.sum_tokens).tolist()
        ppl = perplexity(nll)
        seconds = max(1e-9, time.monotonic() - self.clock.started)
        record = {
            "step": progress.step,
            "time": time.time(),
            "train/loss": loss,
            "train/nll": nll,
            "train/ppl": ppl,
            **({"train/consistency": divergence[0]} if divergence else {}),
            "lr": rate,
            "grad_norm": float(norm),
            "tokens_per_second": self.clock.tokens / seconds,
        }
        if self.ranks.is_rank_0:
            self.directory.metrics.append(record)
        summary = (
            f"loss {loss:.3f}  ppl {two_decimals(ppl)}  {record['tokens_per_second']:,.0f} tok/s"
        )
        bar.set_postfix_str(summary)
        remaining = seconds / self.clock.steps * (last_step - progress.step)
        text = f"step {progress.step:,}/{last_step:,}  epoch {progress.epoch + 1}  {summary}"
        text += f"  lr {rate:.2e}  grad {two_decimals(float(norm))}"
        text += f"  left {format_duration(remaining)}"
        logger.info("%s", text, extra={"shown_on_bar": True})
        progress.sums.zero_()
        progress.sum_tokens = 0
        self.clock = Clock(time.monotonic())

    def _save(self) -> None:
        """Save a checkpoint of this step."""
        weights = self.optimizer.weights
        finite = torch.stack([weight.isfinite().all() for weight in weights.values()]).tolist()
        for name, is_finite in zip(weights, finite, strict=True):
            if not is_finite:
                raise self._not_finite(f"{name} is not finite")
        best = self.validation.best_names
        self.ranks.on_rank_0(partial(self.checkpoints.save, self.progress, best))

    def _validate_if_due(self) -> None:
        """Validate if it is due at this step and has not been done."""
        train, step = self.config.train, self.progress.step
        if step == 0 or not train.is_validated(step) or step in self.validation.history.steps:
            return
        self.validation.validate(step)
        self.checkpoints.prune(self.validation.best_names)
        self.clock = Clock(time.monotonic())
