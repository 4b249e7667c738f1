"""What a run will take, before it starts: parameters, steps, rates, disk, memory and time."""

import math
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mtrain.config.schema import Config
from mtrain.data.batches import Batch, SpecialIds, batch_by_tokens, collate
from mtrain.model.building import shape_of
from mtrain.model.transformer import Transformer
from mtrain.runs import checkpoint
from mtrain.runtime.device import telling_lack_of_memory
from mtrain.runtime.distributed import Ranks, device_of
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import logger
from mtrain.runtime.workers import Workers
from mtrain.training.learner import Learner, Machine
from mtrain.training.schedule import make_schedule

IDS = SpecialIds(pad=0, bos=2, eos=3)
SECONDS = 5.0  # of timing micro-batches, about
MOST_WORK = 1e11  # operations of a micro-batch that is timed: a second on a CPU's cores
MOST_TIMED = 8  # micro-batches
BYTES = 16  # a parameter in training: weight, gradient, two moments
DEATH = "the process that tried was killed, perhaps for lack of memory"


@dataclass(frozen=True)
class Batching:
    """How the training text is divided into micro-batches of one process."""

    micro_batches: float  # an epoch
    tokens: float  # of the target, with eos, in a micro-batch
    step_batches: int  # to a step, over all processes

    @property
    def steps(self) -> int:
        """Steps an epoch."""
        return max(1, int(self.micro_batches // self.step_batches))


@dataclass(frozen=True)
class Plan:
    """What is known of a run before its first step."""

    parameters: int
    vocab_size: int
    batching: Batching
    max_steps: int
    schedule: str
    peak_rate: float
    peak_step: int
    checkpoint: int  # bytes
    disk: int  # bytes, of all that is kept at its fullest
    state: int  # bytes of weights, gradients and moments in memory

    @staticmethod
    def of(
        config: Config, parameters: int, vocab_size: int, vocabulary: int, batching: Batching
    ) -> "Plan":
        """Plan a run; `vocabulary` is the size of the vocabulary's file in bytes."""
        train = config.train
        peak = max(1, train.warmup_steps)
        keep = max(train.keep_checkpoints, train.average_last)
        averaged = train.ema_decay is not None  # the latest weights are stored, too
        one, most = checkpoint.disk_needed(parameters, vocabulary, keep, 2 + averaged)
        rate = make_schedule(train, config.model.d_model)(peak)
        return Plan(
            parameters,
            vocab_size,
            batching,
            train.max_steps,
            train.schedule,
            rate,
            peak,
            one,
            most,
            BYTES * parameters + 4 * parameters * averaged,
        )

    @property
    def epochs(self) -> float:
        """How often all steps see the text."""
        return self.max_steps * self.batching.step_batches / max(1, self.batching.micro_batches)

    @property
    def tokens(self) -> int:
        """Target tokens a step."""
        return int(self.batching.tokens * self.batching.step_batches)

    def model(self) -> str:
        """Describe the size of the model."""
        return f"model: {self.parameters:,} parameters, vocabulary {self.vocab_size:,}"

    def batches(self) -> str:
        """Describe epochs and steps."""
        return (
            f"batches: about {self.batching.steps:,} steps an epoch, about {self.tokens:,} target "
            f"tokens a step; {self.max_steps:,} steps are {_rounded(self.epochs)} epochs"
        )

    def rates(self) -> str:
        """Describe the peak learning rate."""
        return (
            f"learning rate: {self.schedule}, peak {self.peak_rate:.3e} at step {self.peak_step:,}"
        )

    def checkpoints(self) -> str:
        """Describe what is kept on disk."""
        return (
            f"checkpoints: {_megabytes(self.checkpoint)} each, up to {_megabytes(self.disk)} in all"
        )


def describe_machine(machine: Machine, device: torch.device) -> str:
    """Return what a run computes on."""
    name = f"{machine.ranks} x {device.type}" if machine.ranks > 1 else str(device)
    compiled = ", compiled" if machine.compile else ""
    return f"device: {name}, {machine.precision}, threads: {machine.threads}{compiled}"


def lack_of_disk(plan: Plan, directory: Path) -> str | None:
    """Return a warning if the disk cannot hold the checkpoints of a run in `directory`, else
    None.
    """
    directory = directory.absolute()
    present = sum(file.stat().st_size for file in directory.rglob("*.safetensors"))
    place = next(path for path in (directory, *directory.parents) if path.is_dir())
    free = shutil.disk_usage(place).free
    if plan.disk <= free + present:
        return None
    return (
        f"{place}: {_megabytes(free)} are free on this disk, too little for the run's checkpoints; "
        "make room, or lower train.keep_checkpoints and train.average_last"
    )


def log_plan(plan: Plan, machine: Machine, device: torch.device, directory: Path) -> None:
    """Log what is trained, on what, and how."""
    machine_line = describe_machine(machine, device)
    for line in (plan.model(), machine_line, plan.batches(), plan.rates(), plan.checkpoints()):
        logger.info("%s", line)
    if lack := lack_of_disk(plan, directory):
        logger.warning("%s", lack)


def _rounded(count: float) -> str:
    return f"{count:,.0f}" if count >= 10 else f"{count:.2g}"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"


@dataclass(frozen=True)
class Measured:
    """Result of timing a few micro-batches: seconds per step, peak bytes of the process or the GPU;
    `share` is the fraction of their rows that was used.
    """

    step_seconds: float
    memory: int
    share: float


@dataclass(frozen=True)
class Forecast:
    """The forecast of a run; `trouble` is why nothing was timed."""

    plan: Plan
    machine: str
    measured: Measured | None
    trouble: str
    lack: str | None

    @property
    def seconds(self) -> float | None:
        """Seconds of all steps, without validation and start."""
        return self.plan.max_steps * self.measured.step_seconds if self.measured else None

    def lines(self) -> Iterator[str]:
        """Yield the lines for people."""
        plan = self.plan
        yield from (plan.model(), self.machine, plan.batches(), plan.rates(), plan.checkpoints())
        state = f"memory: {_megabytes(plan.state)} of weights, gradients and moments"
        if self.measured is None:
            yield state
            yield f"time: not measured: {self.trouble}"
        else:
            peak = f"; at the peak of the measured steps {_megabytes(self.measured.memory)} in all"
            yield state + (peak if self.measured.share == 1 else "")
            whole = f"{clock(self.seconds or 0)} for {plan.max_steps:,} steps without validation"
            yield f"time: about {self.measured.step_seconds:.3g} s per step now, {whole}"
        if self.lack:
            yield f"disk: {self.lack}"

    def as_json(self) -> dict[str, object]:
        """Return the object for scripts, in bytes and seconds."""
        plan, measured = self.plan, self.measured
        return {
            "parameters": plan.parameters,
            "vocab_size": plan.vocab_size,
            "steps_per_epoch": plan.batching.steps,
            "tokens_per_step": plan.tokens,
            "max_steps": plan.max_steps,
            "epochs": round(plan.epochs, 3),
            "peak_lr": plan.peak_rate,
            "peak_step": plan.peak_step,
            "checkpoint_bytes": plan.checkpoint,
            "disk_bytes": plan.disk,
            "state_bytes": plan.state,
            "peak_memory_bytes": measured.memory if measured and measured.share == 1 else None,
            "step_seconds": measured.step_seconds if measured else None,
            "train_seconds": self.seconds,
            "not_measured": self.trouble or None,
            "disk_warning": self.lack,
        }


def forecast(
    config: Config,
    vocab_size: int,
    vocabulary: int,
    lengths: NDArray[np.int64],
    pairs: float,
    *,
    timed: bool = True,
) -> Forecast:
    """Forecast a run over `pairs` pairs per epoch, by the lengths of a sample in tokens without
    eos, (pairs, 2); `timed` times a few steps. Raises `UserError`.
    """
    lengths = lengths[(lengths.max(1) < config.data.max_length) & (lengths.min(1) > 0)] + 1
    if not len(lengths):
        raise UserError("data.train: no pair is left to train on")
    rows = batch_by_tokens(lengths, config.train.max_tokens)
    machine, device = Machine.of(config, Ranks()), device_of(config.train.device, Ranks())
    times = pairs / len(lengths)
    batching = Batching(
        len(rows) * times, float(lengths[:, 1].sum()) / len(rows), config.train.accum_steps
    )
    with torch.device("meta"):
        parameters = Transformer(shape_of(config, vocab_size, IDS.pad)).num_parameters
    plan = Plan.of(config, parameters, vocab_size, vocabulary, batching)
    measured, trouble = None, "not asked for"
    if timed:
        chosen = [rows[number] for number in _spread(len(rows))]
        work = partial(_time, config, vocab_size, [lengths[some] for some in chosen], parameters)
        measured, trouble = _try(work)
    lack = lack_of_disk(plan, Path(config.run_dir))
    return Forecast(plan, describe_machine(machine, device), measured, trouble, lack)


def _spread(count: int) -> list[int]:
    """Choose micro-batches of all lengths, the middle ones first."""
    numbers = [round((count - 1) * (n + 0.5) / MOST_TIMED) for n in range(MOST_TIMED)]
    return [numbers[(3 * n + 3) % MOST_TIMED] for n in range(MOST_TIMED)]


def _try(work: Callable[[], Measured]) -> tuple[Measured | None, str]:
    """Time steps in another process, which may be killed for lack of memory; return the result, or
    why there is none.
    """
    crew: Workers[None, Measured] = Workers([partial(_worker, work)], DEATH)
    try:
        return next(crew.map([None])), ""
    except UserError as error:
        return None, str(error)
    finally:
        crew.close()


def _worker(work: Callable[[], Measured]) -> Callable[[None], Measured]:
    return lambda task: work()


def _time(
    config: Config, vocab_size: int, sizes: list[NDArray[np.int64]], parameters: int
) -> Measured:
    """Time steps on made-up micro-batches of real lengths, without torch.compile, which would take
    minutes.
    """
    with telling_lack_of_memory(lambda: "out of memory"):
        plain = config.train.model_copy(update={"compile": False})
        ranks, config = Ranks(), config.model_copy(update={"train": plain})
        learner = Learner(config, vocab_size, IDS, ranks)
        learner.warm_up()
        largest = max(int(some.max(1).max()) * len(some) for some in sizes)
        on_gpu = learner.device.type == "cuda"
        share = 1.0 if on_gpu else min(1.0, MOST_WORK / (6 * parameters * largest))
        batches = [_made_up(some, share, vocab_size) for some in sizes]
        learner.learn(_made_up(sizes[0], share / 10, vocab_size))  # the first work takes longer
        a_place, update = _measure(learner, batches)
    places = float(np.mean([some.max(0).sum() * len(some) for some in sizes]))
    seconds = config.train.accum_steps * a_place * places + update
    return Measured(seconds, _peak(learner.device), share)


def _measure(learner: Learner, batches: list[Batch]) -> tuple[float, float]:
    """Return the seconds per position of the padded tables, as the median of some micro-batches,
    and the seconds of an update. On a GPU the first work of each shape is not counted, since it is
    recorded.
    """
    start, rates = time.perf_counter(), []
    for batch in batches:
        work = partial(learner.learn, batch)
        if learner.device.type == "cuda":
            _seconds(learner, work)
        rates.append(_seconds(learner, work) / (batch.src.numel() + batch.tgt_in.numel()))
        if time.perf_counter() - start > SECONDS:
            break
    update = partial(learner.optimizer.update, 0.0, 1, 1.0)
    _seconds(learner, update)
    return float(np.median(rates)), _seconds(learner, update)


def _seconds(learner: Learner, work: Callable[[], object]) -> float:
    """Return the seconds that some work takes."""
    started = time.perf_counter()
    work()
    if learner.device.type == "cuda":
        torch.cuda.synchronize(learner.device)
    return time.perf_counter() - started


def _made_up(lengths: NDArray[np.int64], share: float, vocab_size: int) -> Batch:
    """Fill a fraction of a micro-batch of these lengths, with eos, with random ids."""
    lengths = lengths[: max(1, int(len(lengths) * share))]
    random = np.random.default_rng(1)
    sides = [
        [random.integers(min(4, vocab_size - 1), vocab_size, length - 1) for length in column]
        for column in lengths.T.tolist()
    ]
    return collate(list(zip(*sides, strict=True)), IDS)


def _peak(device: torch.device) -> int:
    """Return the most bytes held so far, of the GPU's memory or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)  # includes recorded work
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def clock(seconds: float) -> str:
    """Format a time for people: `3h05m`, `12m30s`."""
    if not math.isfinite(seconds):
        return "for ever"
    minutes, hours = int(seconds / 60) % 60, int(seconds / 3600)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{int(seconds) % 60:02d}s"
