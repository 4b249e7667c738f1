"""The training loop: steps, records, checkpoints, validation, stopping and resuming exactly."""

import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtrain import checkpoint, metrics
from mtrain.checkpoint import Snapshot, TrainerState
from mtrain.config import NUMERIC_KEYS, Config, dump_config
from mtrain.data import Batch, SpecialIds, TokenBatches
from mtrain.device import available_threads, compute_dtype, pick_device
from mtrain.errors import EXIT_OK, RefusedError, StoppedError, UserError
from mtrain.history import Entry, History
from mtrain.log import add_log_file, logger, progress_bar
from mtrain.loss import projected_cross_entropy
from mtrain.manifest import DamagedError, write_file
from mtrain.model import Transformer, set_compute_dtype
from mtrain.optim import Optimizer, make_schedule
from mtrain.prepare import Prepared, Text, prepare
from mtrain.rundir import RunDirectory
from mtrain.stop import Stop
from mtrain.translate import (
    Translator,
    load_translator,
    load_weights,
    model_dropout,
    model_shape,
)


@dataclass(frozen=True)
class Machine:
    """What `auto` settings came to on this machine."""

    device: str
    threads: int
    precision: str
    compile: bool

    @classmethod
    def of(cls, config: Config) -> "Machine":
        """Resolve a config's `auto` settings; raises `RefusedError` for a device that is not there."""
        train = config.train
        device = pick_device(train.device)
        dtype = compute_dtype(train.precision, device, training=True)
        return cls(
            device=device.type,
            threads=available_threads() if train.threads == "auto" else train.threads,
            precision="bf16" if dtype == torch.bfloat16 else "fp32",
            compile=False if train.compile == "auto" else train.compile,
        )

    def check_against(self, config: Config, before: dict[str, Any]) -> None:
        """Refuse to go on where an `auto` setting comes to something else than it did."""
        for key, now in asdict(self).items():
            if before[key] == now:
                continue
            if f"train.{key}" in NUMERIC_KEYS and getattr(config.train, key) != "auto":
                continue
            raise RefusedError(
                f"train.{key}: this run was trained with {before[key]}, and here it comes to {now}: "
                f"set train.{key}: {str(before[key]).lower()} or use a machine like the first"
            )


@dataclass
class Position:
    """Where the loop stands: steps done, and the next micro-batch."""

    step: int = 0
    epoch: int = 0
    batch: int = 0


def micro_batch_seed(seed: int, step: int, number: int) -> int:
    """Seed of all randomness in one micro-batch of a step, whichever process or rank computes it."""
    return int(np.random.SeedSequence([seed, step, number]).generate_state(1, np.uint64)[0] >> 1)


class Trainer:
    """One run, from its first or newest checkpoint to its last."""

    def __init__(self, config: Config, prepared: Prepared, run: RunDirectory, stop: Stop) -> None:
        self.config, self.prepared, self.run_dir, self.stop = config, prepared, run, stop
        self.machine = Machine.of(config)
        self.device = pick_device(config.train.device)
        self._set_up_torch()
        self.model = self._build_model()
        betas = (config.train.adam_betas[0], config.train.adam_betas[1])
        self.optimizer = Optimizer(self.model, betas, config.train.adam_eps)
        self.hidden = self.model.hidden
        if self.machine.compile:
            # one graph for all shapes from the start: a run that resumes must build the same
            self.hidden = torch.compile(self.model.hidden, dynamic=True)
        self.rate = make_schedule(config.train, config.model.d_model)
        self.position, self.saved_step = Position(), 0
        self.history = History(config.train.metric)
        self.sums = torch.zeros(2, device=self.device)  # loss and nll since the last record
        self.sum_tokens = 0
        self.recorded_tokens, self.recorded_at = 0, time.monotonic()
        ids = SpecialIds.of(prepared.tokenizer)
        self.batches = TokenBatches(prepared.store, config.train.max_tokens, config.seed, ids)

    def _set_up_torch(self) -> None:
        torch.set_num_threads(self.machine.threads)
        torch.manual_seed(self.config.seed)
        if self.device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)

    def _build_model(self) -> Transformer:
        shape = model_shape(self.config, self.prepared.tokenizer)
        model = Transformer(shape, model_dropout(self.config)).to(self.device)
        set_compute_dtype(
            model, torch.bfloat16 if self.machine.precision == "bf16" else torch.float32
        )
        return model.train()

    def run(self) -> None:
        """Train to the end, then average and test; raises `StoppedError` once a stop is saved."""
        self._resume()
        self._begin()
        self._validate_if_due()
        if not self._is_finished():
            self._train()
        self._finish()

    # --- the loop -----------------------------------------------------------------------------------------------

    def _train(self) -> None:
        """Take steps until the last, out of patience, or asked to stop."""
        stream = self._micro_batches()
        bar = progress_bar(self.config.train.max_steps, "step", "training", self.position.step)
        self.recorded_at = time.monotonic()
        with bar:
            while not self._is_finished():
                started = time.monotonic()
                norm, rate = self._step(stream)
                self.stop.step_seconds = time.monotonic() - started
                bar.update()
                self._after_step(norm, rate, bar)

    def _step(self, stream: Iterator[Batch]) -> tuple[Tensor, float]:
        """One optimizer update over `accum_steps` micro-batches; returns the gradient's norm and the rate."""
        train, step = self.config.train, self.position.step + 1
        num_tokens = 0
        for number in range(train.accum_steps):
            torch.manual_seed(micro_batch_seed(self.config.seed, step, number))
            batch = next(stream)
            num_tokens += batch.num_tokens
            self._accumulate(batch.to(self.device))
        rate = self.rate(step)
        norm = self.optimizer.update(rate, num_tokens, train.clip_norm)
        self.position.step = step
        self.sum_tokens += num_tokens
        self.recorded_tokens += num_tokens
        return norm, rate

    def _accumulate(self, batch: Batch) -> None:
        """Add one micro-batch's gradients and losses to the step's."""
        hidden = self.hidden(batch.src, batch.tgt_in).flatten(0, 1)[batch.positions]
        smoothing = self.config.train.label_smoothing
        loss = projected_cross_entropy(hidden, self.model.output.weight, batch.targets, smoothing)
        loss.loss_sum.backward()  # type: ignore[no-untyped-call]
        self.optimizer.accumulate()
        self.sums += torch.stack((loss.loss_sum.detach(), loss.nll_sum))

    def _micro_batches(self) -> Iterator[Batch]:
        """Yield training batches for ever from the current position on, which is moved along."""
        while True:
            for batch in self.batches.epoch(self.position.epoch, self.position.batch):
                self.position.batch += 1
                yield batch
            self.position.epoch += 1
            self.position.batch = 0

    def _after_step(self, norm: Tensor, rate: float, bar: Any) -> None:
        """Record, save, validate and stop where each falls due."""
        train, step = self.config.train, self.position.step
        saves = step % train.save_every == 0 or step == train.max_steps
        if self.device.type == "cpu" or saves or step % train.log_every == 0:
            self._check_finite(norm)
        if step % train.log_every == 0:
            self._record(norm, rate, bar)
        request = self.stop.request  # once, for the time limit may pass between two looks
        if saves or request:
            self._save()
        if request:
            self.stop.check()
        self._validate_if_due()

    def _check_finite(self, norm: Tensor) -> None:
        """End the run on a gradient that is not finite; the optimizer has left the weights alone."""
        if not math.isfinite(float(norm)) or not bool(self.sums.isfinite().all()):
            p = self.position
            raise UserError(
                f"step {p.step}: the loss or its gradient is not finite (epoch {p.epoch}, micro-batches up to "
                f"{p.batch}); no weight was changed by it. Lower train.peak_lr or lr_factor, or set "
                "train.precision: fp32; the last checkpoint is good"
            )

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
        self.run_dir.metrics.append(record)
        remaining = (now - self.recorded_at) / self.config.train.log_every
        left = remaining * (self.config.train.max_steps - self.position.step)
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
            _clock(left),
            extra={"shown_on_bar": True},
        )
        self._clear_sums()

    def _clear_sums(self) -> None:
        self.sums.zero_()
        self.sum_tokens = self.recorded_tokens = 0
        self.recorded_at = time.monotonic()

    def _is_finished(self) -> bool:
        train = self.config.train
        return self.position.step >= train.max_steps or self.history.is_out_of_patience(
            train.patience
        )

    # --- saving and resuming ------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Save a checkpoint of this step and remove the ones that are no longer needed."""
        path = self.run_dir.checkpoints / checkpoint.step_name(self.position.step)
        if self.saved_step == self.position.step:
            return
        loop = {
            **asdict(self.position),
            "sums": self.sums.tolist(),
            "sum_tokens": self.sum_tokens,
            "machine": asdict(self.machine),
        }
        checkpoint.save(path, self._snapshot(), TrainerState(self.optimizer.moments(), loop))
        self.saved_step = self.position.step
        self._prune()
        self.run_dir.set_status("running", self.position.step)

    def _snapshot(self, weights: dict[str, Tensor] | None = None) -> Snapshot:
        proto = self.prepared.tokenizer.proto
        return Snapshot(weights or self.optimizer.weights(), dump_config(self.config), proto)

    def _prune(self) -> None:
        train, best = self.config.train, self.history.best
        checkpoint.prune(
            self.run_dir.checkpoints,
            is_scheduled=self._is_scheduled,
            keep=max(train.keep_checkpoints, train.average_last),
            best=best["checkpoint"] if best else None,
        )

    def _is_scheduled(self, step: int) -> bool:
        return step % self.config.train.save_every == 0 or step == self.config.train.max_steps

    def _resume(self) -> None:
        """Go on from the newest good checkpoint, if there is one."""
        checkpoint.clean(self.run_dir.checkpoints)
        found = self._newest_good()
        if found is not None:
            path, snapshot, trainer = found
            self.machine.check_against(self.config, trainer.loop["machine"])
            load_weights(Transformer(self.model.shape), snapshot.weights, path)
            self.optimizer.load_weights(snapshot.weights)
            self.optimizer.load_moments(trainer.moments)
            loop = trainer.loop
            self.position = Position(loop["step"], loop["epoch"], loop["batch"])
            self.saved_step = loop["step"]
            self.sums = torch.tensor(loop["sums"], device=self.device)
            self.sum_tokens = loop["sum_tokens"]
            logger.info("resuming at step %s from %s", f"{self.position.step:,}", path)
        step = self.position.step
        self.history = History.from_json(self.history.metric, self.run_dir.read("best.json"))
        self.history.cut(step)
        self.run_dir.metrics.cut(step)

    def _newest_good(self) -> tuple[Path, Snapshot, TrainerState] | None:
        """Load the newest checkpoint that can be resumed from; damaged ones are named and passed over."""
        for path in reversed(checkpoint.steps(self.run_dir.checkpoints)):
            if not (path / checkpoint.TRAINER).is_dir():
                break
            try:
                return path, checkpoint.load(path), checkpoint.load_trainer(path)
            except DamagedError as error:
                logger.warning("%s; going back to an earlier checkpoint", error)
        if checkpoint.steps(self.run_dir.checkpoints):
            raise UserError(
                f"{self.run_dir.checkpoints}: no checkpoint that can be resumed from is whole; "
                "choose another run_dir to start again"
            )
        return None

    # --- validation, averaging, tests ---------------------------------------------------------------------------

    def _validate_if_due(self) -> None:
        """Validate where this step asks for it and the history does not have it yet."""
        train, step = self.config.train, self.position.step
        due = step > 0 and (step % train.valid_every == 0 or step == train.max_steps)
        if not due or self.history.has(step):
            return
        entry, hypotheses = self._evaluate(self._translator(), self.prepared.valid, "valid")
        self.model.train()
        name = checkpoint.step_name(step)
        self._write_translations(name, hypotheses)
        self._put_record(entry, "valid/")
        self.history.entries.append({"step": step, "checkpoint": name, **entry})
        self.run_dir.write("best.json", self.history.as_json())
        best = self.history.best
        mark = "  best so far" if best is not None and best["step"] == step else ""
        logger.info("step %s  %s%s", f"{step:,}", _summary(entry), mark)
        self._prune()
        self.recorded_at, self.recorded_tokens = time.monotonic(), 0

    def _translator(self) -> Translator:
        """The current weights, ready to translate as `mtrain translate` would by default."""
        model = self.model
        dtype = compute_dtype("auto", self.device, training=False)
        if dtype != self.model.dtype:
            model = Transformer(self.model.shape).to(self.device)
            for name, parameter in model.named_parameters():
                parameter.data = self.optimizer.weights()[name]
            set_compute_dtype(model, dtype)
        return Translator(
            model, self.prepared.tokenizer, self.config.decode, self.config, self.stop.check
        )

    def _evaluate(self, translator: Translator, text: Text, name: str) -> tuple[Entry, list[str]]:
        """Score a model on a set: BLEU, chrF, NLL a token; and its translations."""
        with progress_bar(len(text.sources), "line", f"translating {name}") as bar:
            hypotheses = translator.best(text.sources, bar.update)
        nll, tokens = translator.nll(text.sources, text.references)
        tokenize = metrics.tokenizer_for(self.config.data.tgt_lang)
        bleu = metrics.bleu(hypotheses, [text.references], tokenize=tokenize)
        entry = {
            "bleu": bleu.score,
            "chrf": metrics.chrf(hypotheses, [text.references]).score,
            "nll": nll / tokens,
            "signature": bleu.signature,
        }
        return entry, hypotheses

    def _write_translations(self, name: str, hypotheses: list[str]) -> None:
        directory = self.run_dir.path / "validation"
        directory.mkdir(exist_ok=True)
        write_file(directory / f"{name}.txt", "".join(line + "\n" for line in hypotheses))

    def _put_record(self, entry: Entry, prefix: str) -> None:
        """Put a validation or test record of this step into metrics.jsonl, in place of an unfinished one."""
        values = {f"{prefix}{key}": value for key, value in entry.items()}
        values[f"{prefix}ppl"] = math.exp(min(entry["nll"], 700))
        record = {"step": self.position.step, "time": time.time(), **values}
        self.run_dir.metrics.replace(record, prefix)

    def _finish(self) -> None:
        """Average the last checkpoints, validate the average, and score the test sets with the best model."""
        if self.config.train.average_last > 1:
            self._average()
        best = self.history.best
        if best is None:
            return
        for name, text in self.prepared.tests.items():
            self._test(name, text, best["checkpoint"])
        self._report(best)

    def _average(self) -> None:
        last = self.config.train.average_last
        present = checkpoint.steps(self.run_dir.checkpoints)
        paths = [path for path in present if self._is_scheduled(checkpoint.step_of(path) or 0)][
            -last:
        ]
        names = [path.name for path in paths]
        before = self.history.average
        path = self.run_dir.checkpoints / checkpoint.AVERAGE
        if len(paths) < 2 or (before is not None and before["of"] == names and path.is_dir()):
            return
        self.stop.check()
        checkpoint.save(path, self._snapshot(checkpoint.average(paths)))
        entry, hypotheses = self._evaluate(self._load(path.name), self.prepared.valid, "valid")
        self._write_translations(path.name, hypotheses)
        self._put_record(entry, "average/")
        step = self.position.step
        self.history.average = {"step": step, "checkpoint": path.name, "of": names, **entry}
        self.run_dir.write("best.json", self.history.as_json())
        logger.info("average of %d  %s", len(paths), _summary(entry))

    def _test(self, name: str, text: Text, best: str) -> None:
        """Score one test set with the best model, unless it was done."""
        identity = {
            "checkpoint": best,
            "step": self.position.step,
            "sha256": text.sha256,
            "decode": self.config.decode.model_dump(),
        }
        before = self.history.tests.get(name, {})
        if {key: before.get(key) for key in identity} == identity:
            return
        self.stop.check()
        entry, hypotheses = self._evaluate(self._load(best), text, name)
        self._write_translations(f"test-{name}", hypotheses)
        self._put_record(entry, f"test/{name}/")
        self.history.tests[name] = {**identity, **entry}
        self.run_dir.write("best.json", self.history.as_json())

    def _load(self, name: str) -> Translator:
        """Load a finished checkpoint as `mtrain translate` would."""
        translator = load_translator(
            self.run_dir.checkpoints / name,
            device=str(self.device),
            **self.config.decode.model_dump(),
        )
        translator.check_stop = self.stop.check
        return translator

    # --- what is said -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Leave the run's description, and say what is trained, on what, and how."""
        if not self.run_dir.tokenizer.exists():
            self.run_dir.keep_tokenizer(self.prepared.tokenizer)
        self.run_dir.describe(self.config, self.prepared.fingerprints)
        self.run_dir.set_status("running", self.position.step)
        if self._is_finished():
            logger.info(
                "training is complete at step %s; a larger train.max_steps goes on",
                f"{self.position.step:,}",
            )
        else:
            self.announce()

    def announce(self) -> None:
        """Say what is trained, on what, and how."""
        train, store = self.config.train, self.prepared.store
        warmup = max(1, train.warmup_steps)
        batches = sum(1 for _ in self.batches.plan(0))
        logger.info(
            "model: %s parameters, vocabulary %s",
            f"{self.model.num_parameters:,}",
            f"{self.model.shape.vocab_size:,}",
        )
        logger.info(
            "device: %s, %s, %d threads%s",
            self.device,
            self.machine.precision,
            self.machine.threads,
            ", compiled" if self.machine.compile else "",
        )
        tokens = int(store.lengths[:, 1].sum()) + len(store)
        steps = max(1, batches // train.accum_steps)
        logger.info(
            "batches: %s steps an epoch, about %s target tokens a step",
            f"{steps:,}",
            f"{tokens // steps:,}",
        )
        logger.info(
            "learning rate: %s, peak %.3e at step %s",
            train.schedule,
            self.rate(warmup),
            f"{warmup:,}",
        )

    def _report(self, best: Entry) -> None:
        logger.info("best: %s  %s", best["checkpoint"], _summary(best))
        for name in self.prepared.tests:
            entry = self.history.tests[name]
            logger.info("test %s: %s  %s", name, _summary(entry), entry["signature"])


def train(config: Config, stop: Stop) -> None:
    """Start, resume or confirm a run; raises `StoppedError` once a stop is saved, `UserError` on failure."""
    run = RunDirectory(Path(config.run_dir))
    with run.hold():
        run.check_settings(config)
        add_log_file(run.path / "train.log")
        trainer = None
        try:
            prepared = prepare(config, run.tokenizer, stop)
            run.check_data(prepared.fingerprints)
            trainer = Trainer(config, prepared, run, stop)
            trainer.run()
        except RefusedError:
            raise
        except UserError as error:
            state = "stopped" if isinstance(error, StoppedError) else "failed"
            run.set_status(
                state, trainer.position.step if trainer else 0, str(error), error.exit_code
            )
            raise
        run.set_status("complete", trainer.position.step, exit_code=EXIT_OK)


def dry_run(config: Config, stop: Stop) -> None:
    """Load everything and say what training would do; nothing is written but the cache of tokenized text."""
    run = RunDirectory(Path(config.run_dir))
    run.check_settings(config)
    prepared = prepare(config, run.tokenizer, stop)
    run.check_data(prepared.fingerprints)
    Trainer(config, prepared, run, stop).announce()
    logger.info("dry run: nothing was trained")


def _summary(entry: Entry) -> str:
    return (
        f"BLEU {entry['bleu']:.2f}  chrF {entry['chrf']:.2f}  "
        f"nll {entry['nll']:.4f}  ppl {math.exp(min(entry['nll'], 700)):.2f}"
    )


def _clock(seconds: float) -> str:
    minutes, hours = int(seconds / 60) % 60, int(seconds / 3600)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{int(seconds) % 60:02d}s"
