"""Forecast a run: parameters, steps, learning rates, disk, memory and time."""

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich import filesize

from mtrain.config.schema import Config, TrainConfig
from mtrain.data.batches import SpecialIds, collate, pack_by_tokens
from mtrain.model.building import shape_of
from mtrain.model.transformer import Transformer
from mtrain.runs import layout
from mtrain.runtime.device import out_of_memory_as
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.errors import StoppedError, UserError
from mtrain.runtime.stop import format_duration
from mtrain.runtime.workers import available_threads, map_tasks
from mtrain.training.gradients import Blocks, max_slices, max_sums
from mtrain.training.learner import Learner, MachineSettings
from mtrain.training.schedule import make_schedule

Lengths = NDArray[np.int64]  # (N, 2): source and target tokens of pairs
IDS = SpecialIds(pad=0, bos=2, eos=3)
MAX_OPERATIONS = 1e11  # of a timed micro-batch on a CPU: about a second
# A run gets a warning if it is above one of these.
MAX_EPOCHS = 100
MAX_RATE = 0.01
MAX_DAYS = 14
WORKER_DIED = "the measuring process was killed, perhaps for lack of memory"


@dataclass(frozen=True)
class Figures:
    """Size and settings of a run; field names and order are those of the JSON output."""

    device: str
    parameters: int
    vocab_size: int
    steps_per_epoch: int
    tokens_per_step: int  # of the target, with eos
    step_batches: int
    max_steps: int
    epochs: float
    schedule: str
    peak_lr: float
    peak_step: int
    checkpoint_bytes: int
    disk_bytes: int  # at most, during the run
    state_bytes: int  # weights, moments and sums of gradients in memory

    def lines(self) -> list[str]:
        """Return the lines for people."""
        size = filesize.decimal
        return [
            f"model: {self.parameters:,} parameters, vocabulary {self.vocab_size:,}",
            f"device: {self.device}; host: {socket.gethostname()}",
            f"batches: about {self.steps_per_epoch:,} steps per epoch, about "
            f"{self.tokens_per_step:,} target tokens per step; {self.max_steps:,} steps are "
            f"{_epochs(self.epochs)}",
            f"learning rate: {self.schedule}, peak {self.peak_lr:.3e} at step {self.peak_step:,}",
            f"checkpoints: {size(self.checkpoint_bytes)} each, {size(self.disk_bytes)} at most",
            f"memory: {size(self.state_bytes)} for weights, optimizer state and gradients",
        ]


@dataclass
class Forecast:
    """Size, cost and settings of a run before its first step."""

    config: Config
    blocks: Blocks
    figures: Figures
    lines: list[str]  # for people
    machine_warnings: list[str]
    seconds: float | None  # of all steps: a rough estimate until `add_time` measures it
    measured: dict[str, float | None] = field(default_factory=dict)  # by `add_time`

    @property
    def numbers(self) -> dict[str, Any]:
        """The forecast for programs."""
        return asdict(self.figures) | self.measured

    def warnings(self) -> Iterator[str]:
        """Yield warnings of likely mistakes."""
        train = self.config.train
        steps = self.figures.max_steps
        epochs = self.figures.epochs
        rate = self.figures.peak_lr
        plan = f"train.max_steps: {steps:,} steps"
        if epochs > MAX_EPOCHS:
            enough = max(1, int(steps * MAX_EPOCHS / epochs))
            text = f"{plan} are {epochs:,.0f} epochs: the model will overfit"
            yield f"{text}; lower it to {enough:,} for {MAX_EPOCHS} epochs"
        if rate > MAX_RATE:
            key = "lr_factor" if train.peak_lr is None else "peak_lr"
            advice = f"at its peak is too high for most models; keep it below {MAX_RATE}"
            yield f"train.{key}: a learning rate of {rate:.2g} {advice}"
        if train.warmup_steps >= steps:
            text = (
                f"train.warmup_steps: {train.warmup_steps:,} is not below train.max_steps {steps:,}"
            )
            yield f"{text}, so that the learning rate rises to the end; lower it"
        days = (self.seconds or 0) / 86_400
        if days > MAX_DAYS:
            advice = "on this machine; choose a smaller model, fewer steps or a GPU"
            yield f"{plan} of this model take about {days:,.0f} days {advice}"
        yield from self.machine_warnings

    def add_time(
        self, lengths: Lengths | None, steps: int, check_stop: Callable[[], object]
    ) -> None:
        """Add the time that `steps` take, measured on a micro-batch of pairs with these lengths,
        eos included; without lengths nothing is measured.
        """
        seconds, memory, reason = None, None, ""
        if lengths is not None:
            sizes = self.figures.vocab_size, self.figures.parameters
            measure = partial(_measure_step, self.config, self.blocks, *sizes)
            try:  # in another process, which may be killed for lack of memory
                [(seconds, memory)] = map_tasks(
                    measure, [lengths], 1, WORKER_DIED, check_stop=check_stop
                )
            except StoppedError:
                raise
            except UserError as error:
                reason = f": {error}"
        self.measured = {"step_seconds": seconds, "peak_memory_bytes": memory}
        if memory is not None:
            self.lines.append(f"peak memory of the GPU in a step: {filesize.decimal(memory)}")
        if seconds is None:
            self.lines.append(f"time: not measured{reason}")
            return
        self.seconds = self.measured["train_seconds"] = steps * seconds
        total = format_duration(self.seconds)
        self.lines.append(
            f"time: about {seconds:.3g} s per step as measured now, {total} for {steps:,} steps "
            "without validation"
        )


def make_forecast(
    config: Config,
    ranks: Ranks,
    blocks: Blocks,
    vocab_size: int,
    vocabulary_bytes: int,
    epoch_batches: float,
    mean_tokens: float,
) -> Forecast:
    """Forecast a run without measuring steps, from the number of micro-batches of all ranks in an
    epoch and their mean number of target tokens.
    """
    train = config.train
    machine = MachineSettings.of(config, ranks, blocks)
    with torch.device("meta"):
        model = Transformer(shape_of(config, vocab_size, IDS.pad))
    parameters = model.num_parameters
    moments = _num_moments(model, train)
    checkpoint_bytes = 4 * parameters + vocabulary_bytes
    disk_bytes, new_bytes = _disk_bytes(config, checkpoint_bytes, parameters, moments)
    copies = 1 + _num_sums(machine, blocks, train)
    copies += int(ranks.size > 1)  # for the sums that another rank sends
    copies += int(train.ema_decay is not None)  # for the moving average
    step_batches = blocks.micro_batches
    peak_step = max(1, min(train.warmup_steps, train.max_steps))
    figures = Figures(
        device=(f"{ranks.size} x " if ranks.size > 1 else "") + _settings_of(machine),
        parameters=parameters,
        vocab_size=vocab_size,
        steps_per_epoch=max(1, int(epoch_batches // step_batches)),
        tokens_per_step=int(mean_tokens * step_batches),
        step_batches=step_batches,
        max_steps=train.max_steps,
        epochs=train.max_steps * step_batches / max(1, epoch_batches),
        schedule=train.schedule,
        peak_lr=make_schedule(train, config.model.d_model)(peak_step),
        peak_step=peak_step,
        checkpoint_bytes=checkpoint_bytes,
        disk_bytes=disk_bytes,
        state_bytes=4 * (copies * parameters + moments),
    )
    work = 6.0 * parameters * figures.tokens_per_step * train.max_steps / ranks.size
    seconds = work / (MAX_OPERATIONS * machine.threads) if machine.device == "cpu" else None
    found = disk_warning(new_bytes, Path(config.run_dir)), _thread_warning(machine, ranks)
    lines = figures.lines()
    if ranks.size > 1:
        sizes = ", ".join(str(len(blocks.of(rank))) for rank in range(ranks.size))
        lines.append(f"micro-batches of a step by process: {sizes}")
    return Forecast(config, blocks, figures, lines, list(filter(None, found)), seconds)


def _epochs(count: float) -> str:
    shown = f"{count:{',.0f' if count >= 10 else '.2g'}}"
    return f"{shown} epoch" if shown == "1" else f"{shown} epochs"


def _settings_of(machine: MachineSettings) -> str:
    text = f"{machine.device}, {machine.precision}, threads: {machine.threads}"
    text += ", compiled" if machine.compile else ""
    return text + (", packed" if machine.packing else "")


def _thread_warning(machine: MachineSettings, ranks: Ranks) -> str | None:
    """Return a warning if the threads of all ranks on a CPU must share cores."""
    cores = available_threads()
    used = machine.threads * ranks.local_size
    if machine.device != "cpu" or used <= cores:
        return None
    fewer = max(1, cores // ranks.local_size)
    return (
        f"train.threads: {used:,} are more than the cores that may be used ({cores}), which is "
        f"slow; use a machine with more cores, or train.threads: {fewer} in a new run"
    )


def _num_sums(machine: MachineSettings, blocks: Blocks, train: TrainConfig) -> int:
    """Return the number of sums of gradients in memory, each as large as the weights."""
    if machine.device == "cpu":
        return max_sums(blocks.largest, max_slices(train.max_tokens), machine.workers)
    return max_sums(blocks.largest)


def _num_moments(model: Transformer, train: TrainConfig) -> int:
    """Return the number of values of the optimizer's state: two for each parameter with Adam, one
    with Muon.
    """
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    muon = model.hidden_matrices if train.optimizer == "muon" else ()
    return 2 * sum(sizes.values()) - sum(sizes[name] for name in muon)


def _disk_bytes(
    config: Config, checkpoint_bytes: int, parameters: int, moments: int
) -> tuple[int, int]:
    """Return the largest number of bytes that a run stores, and how many of these are not written
    yet; its synthetic text already is.
    """
    train = config.train
    run_dir = Path(config.run_dir)
    # in addition: the best, the average and the checkpoint being written
    checkpoints = max(train.keep_checkpoints, train.average_last) + 3
    if train.max_steps % train.valid_every:
        checkpoints += 1  # see `History.best_names`
    latest = 0 if train.ema_decay is None else parameters  # the weights that are averaged
    states = 3 * 4 * (moments + latest)  # three checkpoints have the trainer's state
    tensor_bytes = checkpoint_bytes * checkpoints + states
    present = sum(file.lstat().st_size for file in run_dir.rglob("*.safetensors"))
    synthetic = sum(file.lstat().st_size for file in run_dir.glob(f"{layout.SYNTHETIC}/*/*"))
    return tensor_bytes + synthetic, tensor_bytes - present


def disk_warning(new_bytes: int, directory: Path) -> str | None:
    """Return a warning if the disk of `directory` has no room for `new_bytes` more."""
    directory = directory.absolute()
    disk = next(path for path in (directory, *directory.parents) if path.is_dir())
    free = shutil.disk_usage(disk).free
    if new_bytes <= free:
        return None
    return (
        f"{disk}: only {filesize.decimal(free)} are free, too little for the run's checkpoints; "
        "make room, or lower train.keep_checkpoints and train.average_last"
    )


def forecast_from_sample(
    config: Config,
    vocab_size: int,
    vocabulary_bytes: int,
    lengths: Lengths,
    pairs: float,
    *,
    timed: bool,
    check_stop: Callable[[], object],
) -> Forecast:
    """Forecast a run with `pairs` pairs per epoch from a sample of them, whose lengths (N, 2) are
    in tokens without eos. If `timed`, measure a step. Raises `UserError`, and what `check_stop`
    raises.
    """
    lengths = lengths[(lengths.max(1) < config.data.max_length) & (lengths.min(1) > 0)] + 1
    if not len(lengths) or not pairs:
        raise UserError("data.train: no pair is left to train on")
    blocks = Blocks(config.train.micro_batches(1))
    widths = MachineSettings.of(config, Ranks(), blocks).row_widths(config)
    batches = [
        lengths[rows] for rows, _ in pack_by_tokens(lengths, config.train.max_tokens, widths)
    ]
    result = make_forecast(
        config,
        Ranks(),
        blocks,
        vocab_size,
        vocabulary_bytes,
        epoch_batches=len(batches) * pairs / len(lengths),
        mean_tokens=float(lengths[:, 1].sum()) / len(batches),
    )
    largest = max(batches, key=lambda lengths: int(lengths.max()) * len(lengths))
    result.add_time(largest if timed else None, config.train.max_steps, check_stop)
    return result


def _measure_step(
    config: Config, blocks: Blocks, vocab_size: int, parameters: int, lengths: Lengths
) -> tuple[float, int | None]:
    """Return the seconds of a step and a GPU's peak memory in bytes, measured on a micro-batch of
    random tokens with these lengths, eos included. A CPU computes only some rows of a large
    micro-batch. Nothing is compiled, which would take minutes.
    """
    with out_of_memory_as("out of memory"):
        plain = config.train.model_copy(update={"compile": False})
        config = config.model_copy(update={"train": plain})
        learner = Learner(config, vocab_size, IDS, Ranks(), Blocks(blocks.largest))
        learner.warm_up()
        is_cpu = learner.device.type == "cpu"
        ids = np.random.default_rng(1).integers(IDS.eos + 1, vocab_size, lengths.max())
        pairs = [(ids[: src - 1], ids[: tgt - 1]) for src, tgt in lengths.tolist()]
        widths = learner.machine.row_widths(config)
        batch = collate(pairs, IDS, next((w for w in widths if w >= lengths.max()), 0))
        rows = len(batch.src)
        width = max(batch.src.shape[1], batch.tgt_in.shape[1])
        max_rows = max(1, int(MAX_OPERATIONS / (6 * parameters * width))) if is_cpu else rows
        batch = batch.part(0, min(rows, max_rows))
        copies = learner.machine.workers if is_cpu else 1  # one for each thread
        seeded = [(batch, lambda index: index)] * copies  # with any seeds
        seconds = _seconds(learner, partial(learner.sum_gradients, seeded, copies))
        seconds *= rows / len(batch.src) / copies
        update = _seconds(learner, partial(learner.optimizer.update, 0.0, 1, 1.0))
    memory = None
    if learner.device.type == "cuda":  # includes the memory of CUDA graphs
        memory = torch.cuda.max_memory_reserved(learner.device)
    return blocks.largest * seconds + update, memory


def _seconds(learner: Learner, work: Callable[[], object]) -> float:
    """Return the seconds of the second call of `work`: the first allocates memory and records CUDA
    graphs.
    """
    for _ in range(2):
        started = time.perf_counter()
        work()
        learner.optimizer.losses.tolist()  # waits for a GPU
    return time.perf_counter() - started
