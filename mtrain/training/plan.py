"""A forecast of a run: parameters, steps, learning rates, disk, memory and time."""

import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
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
from mtrain.runtime.workers import map_tasks
from mtrain.training.learner import Learner, Machine
from mtrain.training.schedule import make_schedule

Lengths = NDArray[np.int64]  # (N, 2): source and target tokens of pairs
IDS = SpecialIds(pad=0, bos=2, eos=3)
MAX_OPERATIONS = 1e11  # of a timed micro-batch on a CPU: about a second
STATE_BYTES = 16  # a parameter in training: weight, gradient, two moments
DEATH = "the process that tried was killed, perhaps for lack of memory"


@dataclass(frozen=True)
class Forecast:
    """What is known of a run before its first step; `forecast` alone fills the last fields."""

    device: str
    parameters: int
    vocab_size: int
    steps_per_epoch: int
    tokens_per_step: int  # of the target, with eos
    max_steps: int
    epochs: float
    schedule: str
    peak_lr: float
    peak_step: int
    checkpoint_bytes: int
    disk_bytes: int  # of all that is kept at its fullest
    state_bytes: int  # of weights, gradients and moments in memory
    disk_warning: str | None
    not_measured: str | None = None  # why the following two are unknown
    step_seconds: float | None = None
    peak_memory_bytes: int | None = None

    @property
    def train_seconds(self) -> float | None:
        """Time of all steps, without start and validation."""
        return None if self.step_seconds is None else self.max_steps * self.step_seconds

    def summary(self) -> list[str]:
        """Return what a run logs at its start."""
        epochs = f"{self.epochs:,.0f}" if self.epochs >= 10 else f"{self.epochs:.2g}"
        return [
            f"model: {self.parameters:,} parameters, vocabulary {self.vocab_size:,}",
            f"device: {self.device}",
            f"batches: about {self.steps_per_epoch:,} steps an epoch, about "
            f"{self.tokens_per_step:,} target tokens a step; {self.max_steps:,} steps are {epochs} "
            "epochs",
            f"learning rate: {self.schedule}, peak {self.peak_lr:.3e} at step {self.peak_step:,}",
            f"checkpoints: {_megabytes(self.checkpoint_bytes)} each, up to "
            f"{_megabytes(self.disk_bytes)} in all",
        ]

    def announce(self) -> None:
        """Log the summary, and a lack of disk as a warning."""
        for line in self.summary():
            logger.info("%s", line)
        if self.disk_warning:
            logger.warning("%s", self.disk_warning)

    def lines(self) -> Iterator[str]:
        """Yield the whole forecast."""
        yield from self.summary()
        text = f"memory: {_megabytes(self.state_bytes)} of weights, gradients and moments"
        if self.peak_memory_bytes is not None:
            peak = _megabytes(self.peak_memory_bytes)
            text += f"; at the peak of the measured steps {peak} in all"
        yield text
        if self.train_seconds is None:
            yield f"time: not measured: {self.not_measured}"
        else:
            yield (
                f"time: about {self.step_seconds:.3g} s a step now, {clock(self.train_seconds)} "
                f"for {self.max_steps:,} steps without validation"
            )
        if self.disk_warning:
            yield f"disk: {self.disk_warning}"

    def as_json(self) -> dict[str, object]:
        """Return the forecast for scripts; bytes, seconds."""
        numbers = {"epochs": round(self.epochs, 3), "train_seconds": self.train_seconds}
        return {**asdict(self), **numbers}


def describe_run(
    config: Config,
    ranks: Ranks,
    vocab_size: int,
    vocabulary: int,
    *,
    micro_batches: float,
    tokens: float,
) -> Forecast:
    """Forecast a run without trying steps, from the bytes of its vocabulary's file, the number of
    micro-batches in an epoch over all ranks, and their mean number of target tokens.
    """
    train, machine = config.train, Machine.of(config, ranks)
    with torch.device("meta"):
        parameters = Transformer(shape_of(config, vocab_size, IDS.pad)).num_parameters
    has_average = train.ema_decay is not None  # stored in addition to the latest weights
    keep = max(train.keep_checkpoints, train.average_last)
    checkpoint_bytes, disk_bytes = checkpoint.disk_needed(
        parameters, vocabulary, keep, 2 + has_average
    )
    step_batches = train.accum_steps * machine.ranks
    peak_step = max(1, train.warmup_steps)
    device = f"{machine.ranks} x {machine.device}"
    if machine.ranks == 1:
        device = str(device_of(train.device, Ranks()))
    compiled = ", compiled" if machine.compile else ""
    return Forecast(
        device=f"{device}, {machine.precision}, threads: {machine.threads}{compiled}",
        parameters=parameters,
        vocab_size=vocab_size,
        steps_per_epoch=max(1, int(micro_batches // step_batches)),
        tokens_per_step=int(tokens * step_batches),
        max_steps=train.max_steps,
        epochs=train.max_steps * step_batches / max(1, micro_batches),
        schedule=train.schedule,
        peak_lr=make_schedule(train, config.model.d_model)(peak_step),
        peak_step=peak_step,
        checkpoint_bytes=checkpoint_bytes,
        disk_bytes=disk_bytes,
        state_bytes=(STATE_BYTES + 4 * has_average) * parameters,
        disk_warning=lack_of_disk(disk_bytes, Path(config.run_dir)),
    )


def lack_of_disk(disk_bytes: int, directory: Path) -> str | None:
    """Return a warning if the disk cannot hold what a run in `directory` keeps."""
    directory = directory.absolute()
    present = sum(file.lstat().st_size for file in directory.rglob("*.safetensors"))
    disk = next(path for path in (directory, *directory.parents) if path.is_dir())
    free = shutil.disk_usage(disk).free
    if disk_bytes <= free + present:
        return None
    return (
        f"{disk}: {_megabytes(free)} are free on this disk, too little for the run's checkpoints; "
        "make room, or lower train.keep_checkpoints and train.average_last"
    )


def forecast(
    config: Config,
    vocab_size: int,
    vocabulary: int,
    lengths: Lengths,
    pairs: float,
    *,
    timed: bool = True,
) -> Forecast:
    """Forecast a run over `pairs` an epoch from the lengths (N, 2), in tokens without eos, of a
    sample of them, and the bytes of the vocabulary's file; `timed` tries a few steps. Raises
    `UserError`.
    """
    lengths = lengths[(lengths.max(1) < config.data.max_length) & (lengths.min(1) > 0)] + 1
    if not len(lengths):
        raise UserError("data.train: no pair is left to train on")
    batches = [lengths[rows] for rows in batch_by_tokens(lengths, config.train.max_tokens)]
    found = describe_run(
        config,
        Ranks(),
        vocab_size,
        vocabulary,
        micro_batches=len(batches) * pairs / len(lengths),
        tokens=float(lengths[:, 1].sum()) / len(batches),
    )
    if not timed:
        return replace(found, not_measured="not asked for")
    sample = [batches[len(batches) * part // 6] for part in (3, 1, 5)]  # sorted by length
    # another process measures: it may be killed for lack of memory
    measure = partial(partial, _measure_steps, config, vocab_size, found.parameters)
    try:
        [(seconds, memory)] = map_tasks(measure, [sample], 1, DEATH)
    except UserError as error:
        return replace(found, not_measured=str(error))
    return replace(found, step_seconds=seconds, peak_memory_bytes=memory)


def _measure_steps(
    config: Config, vocab_size: int, parameters: int, sample: list[Lengths]
) -> tuple[float, int | None]:
    """Return the seconds of a step and the peak memory in bytes, on made-up micro-batches with the
    lengths of `sample`. Of large ones a CPU computes a fraction of the rows, and the memory is
    unknown. Nothing is compiled, which would take minutes.
    """
    with telling_lack_of_memory(lambda: "out of memory"):
        plain = config.train.model_copy(update={"compile": False})
        learner = Learner(config.model_copy(update={"train": plain}), vocab_size, IDS, Ranks())
        learner.warm_up()
        largest = max(int(lengths.max()) * len(lengths) for lengths in sample)
        fraction = min(1.0, MAX_OPERATIONS / (6 * parameters * largest))
        if learner.device.type == "cuda":
            fraction = 1.0
        seconds_per_token = []
        for lengths in sample:
            batch = _made_up(lengths[: max(1, int(len(lengths) * fraction))], vocab_size)
            seconds = _seconds(learner, partial(learner.learn, batch))
            seconds_per_token.append(seconds / (batch.src.numel() + batch.tgt_in.numel()))
        update = _seconds(learner, partial(learner.optimizer.update, 0.0, 1, 1.0))
    tokens = float(np.mean([lengths.max(0).sum() * len(lengths) for lengths in sample]))
    seconds = config.train.accum_steps * float(np.median(seconds_per_token)) * tokens + update
    return seconds, _peak_memory(learner.device) if fraction == 1 else None


def _seconds(learner: Learner, work: Callable[[], object]) -> float:
    """Return how long `work` takes the second time: the first allocates and records CUDA graphs."""
    for _ in range(2):
        started = time.perf_counter()
        work()
        if learner.device.type == "cuda":
            torch.cuda.synchronize(learner.device)
    return time.perf_counter() - started


def _made_up(lengths: Lengths, vocab_size: int) -> Batch:
    """Return a micro-batch of random ids with these lengths, which count eos."""
    ids = np.random.default_rng(1).integers(IDS.pad + 1, vocab_size, lengths.max())
    return collate([(ids[: src - 1], ids[: tgt - 1]) for src, tgt in lengths.tolist()], IDS)


def _peak_memory(device: torch.device) -> int:
    """Return the most bytes held so far, by the GPU or by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)  # includes that of CUDA graphs
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"


def clock(seconds: float) -> str:
    """Format a duration: `3h05m`, `12m30s`."""
    minutes, hours = int(seconds / 60) % 60, int(seconds / 3600)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{int(seconds) % 60:02d}s"
