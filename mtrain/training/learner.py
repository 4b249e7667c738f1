"""A model in training: micro-batches in, gradients out, by the fastest way on its device."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.fx.experimental._config as shapes
import torch.nn.functional as F
from torch import Tensor

from mtrain.config.schema import Config
from mtrain.data.batches import Batch, SpecialIds
from mtrain.model.building import RATES, build, shape_of
from mtrain.model.cpu import RowTransformer, keep_freed_memory
from mtrain.model.transformer import Dropout, Sides, Transformer, set_compute_dtype
from mtrain.runtime.device import compute_dtype, seed_device, set_up_cuda
from mtrain.runtime.distributed import Ranks, device_of
from mtrain.runtime.errors import UserError, first_line
from mtrain.runtime.workers import available_threads
from mtrain.training.consistency import consistency_loss
from mtrain.training.gradients import (
    Blocks,
    Compute,
    Grads,
    Seeded,
    Sums,
    Workers,
    adding,
    most_pieces,
    most_sums,
)
from mtrain.training.loss import projected_cross_entropy
from mtrain.training.optimizer import MovingAverage, Optimizer

Work = Callable[[Tensor, Tensor, Tensor], None]

ROW_TOKENS = 128  # of a packed row
# Graphs kept. Each holds some megabytes of GPU memory of its own.
MAX_GRAPHS = 512


@dataclass(frozen=True)
class Machine:
    """The values that a config's `auto` settings resolve to on this machine."""

    device: str
    threads: int
    precision: str
    compile: bool
    openmp: int = 1  # threads of an operation on a CPU, which rounding depends on
    packing: bool = False

    @classmethod
    def of(cls, config: Config, ranks: Ranks, blocks: Blocks) -> "Machine":
        """Resolve `auto`; raises `RefusedError` for a device that does not exist."""
        train = config.train
        device = device_of(train.device, ranks)
        dtype = compute_dtype(train.precision, device, training=True)
        threads = threads_of(config, ranks)
        compiled = False if train.compile == "auto" else train.compile
        # pieces of the whole step, not of this rank: the number of ranks must not change rounding
        pieces = blocks.micro_batches * most_pieces(train.max_tokens)
        return cls(
            device=device.type,
            threads=threads,
            precision="bf16" if dtype == torch.bfloat16 else "fp32",
            compile=compiled,
            # the randomness of a compiled model is that of the process: it has one worker
            openmp=threads if compiled else max(1, threads // pieces),
            packing=train.packing is True,
        )

    @property
    def workers(self) -> int:
        """Threads that compute pieces on a CPU."""
        return self.threads // self.openmp

    def row_width(self, max_length: int) -> int:
        """Return the tokens a side of a packed row; 0: rows are not packed."""
        return min(ROW_TOKENS, max_length) if self.packing else 0


def threads_of(config: Config, ranks: Ranks) -> int:
    """Return the number of threads of this rank."""
    threads = config.train.threads
    return max(1, available_threads() // ranks.local_size) if threads == "auto" else threads


class Learner:
    """A new model, its optimizer and its moving average on the device of a rank.

    `learn` turns this rank's micro-batches of a step into gradients and losses, the optimizer's
    sums.
    """

    def __init__(
        self, config: Config, vocab_size: int, ids: SpecialIds, ranks: Ranks, blocks: Blocks
    ) -> None:
        self.config, self.ids, self.blocks = config, ids, blocks
        self.machine = Machine.of(config, ranks, blocks)
        self.device = device_of(config.train.device, ranks)
        torch.set_num_threads(self.machine.threads)
        if self.device.type == "cuda":
            set_up_cuda(self.device)
        if self.device.type == "cpu":
            keep_freed_memory()
        torch.manual_seed(config.seed)  # weights are drawn on the CPU, whatever the device
        shape = shape_of(config, vocab_size, ids.pad)
        rates = Dropout(*(getattr(config.model, name) for name in RATES))
        model = build(shape, self.device, rates, compiled=self.machine.compile).to(self.device)
        is_bf16 = self.machine.precision == "bf16"
        set_compute_dtype(model, torch.bfloat16 if is_bf16 else torch.float32)
        self.model = model.train()
        betas, eps, decay = config.train.adam_betas, config.train.adam_eps, config.train.ema_decay
        muon = self.model.hidden_matrices if config.train.optimizer == "muon" else {}
        num_losses = 2 if config.train.consistency is None else 3
        self.optimizer = Optimizer(self.model, (betas[0], betas[1]), eps, muon, num_losses)
        self.average = MovingAverage(self.optimizer.weights, decay) if decay else None
        self.hidden = self.model.hidden
        self.work: Callable[[Batch], None] = self._put_gradients
        on_cpu = self.device.type == "cpu"
        self.workers = self._start_workers() if on_cpu else None
        total, more = self.optimizer.sums, 0 if on_cpu else (blocks.largest - 1).bit_length()
        self.kept = [*(Sums(total.grads, len(total.losses)) for _ in range(more)), total]
        self.latest = self.kept.pop(0) if more else total

    def _start_workers(self) -> Workers:
        """Start threads that compute pieces and update weights."""
        computes: list[Compute] = []
        machine, largest = self.machine, self.blocks.largest
        for _ in range(machine.workers):
            model, generator = self.model, torch.default_generator
            if isinstance(model, RowTransformer):
                generator = torch.Generator()
                model = model.drawing_from(generator)
            computes.append(partial(self._compute, model, generator))
        held = most_sums(largest, self.config.train.max_tokens, machine.workers)
        workers = Workers(computes, self.optimizer.sums, held, machine.openmp)
        self.optimizer.each = workers.pool.map
        return workers

    def learn(self, batches: Iterable[Seeded], count: int) -> None:
        """Replace the optimizer's sums by those over `count` micro-batches."""
        if self.workers is not None:
            self.workers.learn(batches, count)
            return
        add = adding(self.latest, self.kept, count)
        for number, (batch, seed) in enumerate(batches):
            seed_device(self.device, seed(0))
            self.work(batch)
            add(number)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights to validate and publish: the latest, or their moving average."""
        return self.optimizer.weights if self.average is None else self.average.values

    def warm_up(self) -> None:
        """Compile the model, or prepare CUDA graphs; raises `UserError`."""
        if self.machine.compile:
            self._compile()
        elif self.device.type == "cuda":
            longest = self.config.data.max_length
            graphs = CudaGraphs(self._put_padded, self.device, self.ids, longest)
            graphs.warm_up()
            self.work = graphs

    def _compile(self) -> None:
        """Compile for all shapes on a made-up batch, so that a resumed run computes with the same
        code as an uninterrupted one, whatever batches it starts with.
        """
        shapes.use_duck_shape = False  # sizes that are equal in this batch may differ in others
        torch._dynamo.config.specialize_float = True  # or torch compiles twice for dropout rates
        self.hidden = torch.compile(self.model.hidden, dynamic=True)
        try:
            src = torch.full((4, 9), self.ids.eos, device=self.device)
            tgt_in = torch.full((4, 8), self.ids.bos, device=self.device)
            states = torch.cat(self._views(self.hidden, src, tgt_in))
            torch.autograd.grad(states.sum(), self.optimizer.parameters, allow_unused=True)
        except RuntimeError as error:
            raise UserError(
                f"train.compile: torch cannot compile the model here: {first_line(error)}; "
                "set train.compile: false"
            ) from None

    def _compute(
        self, model: Transformer, generator: torch.Generator, batch: Batch, seed: int, sums: Sums
    ) -> None:
        """Put the gradients and losses of a piece into `sums`."""
        generator.manual_seed(seed)
        sums.put(*self._differentiate(model, batch, generator))

    def _put_gradients(self, batch: Batch) -> None:
        """Put the gradients and losses of a micro-batch into the latest sums."""
        self.latest.put(*self._differentiate(self.model, batch.to(self.device)))

    def _differentiate(
        self, model: Transformer, batch: Batch, generator: torch.Generator | None = None
    ) -> tuple[Grads, Tensor]:
        """Return the gradients and losses of a batch, computed without its padding."""
        # torch would compile a graph of its own for a single row
        is_own = model is self.model and len(batch.src) > 1
        hidden = self.hidden if is_own else model.hidden
        views = self._views(hidden, batch.src, batch.tgt_in, generator)
        return self._gradients([view[batch.positions] for view in views], batch.targets)

    def _put_padded(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> None:
        """As `_put_gradients`, for CUDA graphs: padding in (B, S), (B, T), (B, T) is masked instead
        of left out, so that no shape depends on values.
        """
        views, targets = self._views(self.model.hidden, src, tgt_in), tgt_out.flatten()
        self.latest.put(*self._gradients(views, targets, targets != self.ids.pad))

    def _views(
        self,
        compute: Callable[..., Tensor],
        src: Tensor,
        tgt_in: Tensor,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, ...]:
        """Return the hidden states (B * T, D) of the batch; with `train.consistency`, of a second
        view of it, too, both from one pass over 2B rows.
        """
        if self.config.train.consistency is None:
            return (compute(src, tgt_in, None, self._segments(src, tgt_in)).flatten(0, 1),)
        kept = self._kept(src, generator), self._kept(tgt_in, generator)
        src, tgt_in = src.repeat(2, 1), tgt_in.repeat(2, 1)
        both = compute(src, tgt_in, kept, self._segments(src, tgt_in))
        return both.flatten(0, 1).chunk(2)

    def _segments(self, src: Tensor, tgt_in: Tensor) -> Sides | None:
        """Number the sentences of packed rows by their eos and bos, which no text contains."""
        if not self.machine.packing:
            return None
        ends = src == self.ids.eos
        return ends.cumsum(1) - ends.long(), (tgt_in == self.ids.bos).cumsum(1) - 1

    def _kept(self, ids: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return 1 for the token embeddings (2B, L) that stay: all of the first view."""
        random = torch.rand(ids.shape, device=ids.device, generator=generator)
        stays = random >= self.config.train.cutoff
        return torch.cat((torch.ones_like(stays), stays)).float()

    def _gradients(
        self, views: Sequence[Tensor], targets: Tensor, real: Tensor | None = None
    ) -> tuple[Grads, Tensor]:
        """Return the gradients and losses of one or two views."""
        train, matrix = self.config.train, self.model.output.weight
        smoothing, alpha = train.label_smoothing, train.consistency
        losses: tuple[Tensor, ...]
        if alpha is None:
            losses = projected_cross_entropy(views[0], matrix, targets, smoothing, real)
        else:
            losses = consistency_loss((views[0], views[1]), matrix, targets, smoothing, alpha, real)
        grads = torch.autograd.grad(losses[0], self.optimizer.parameters)
        return grads, torch.stack([loss.detach() for loss in losses])


def graph_width(length: int) -> int:
    """Return the width to which sequences of a length are padded: few shapes, little padding."""
    grain = max(4, 1 << max(0, length.bit_length() - 5))
    return -(-length // grain) * grain


def pad_to_graph(table: Tensor, pad_id: int, max_length: int) -> Tensor:
    """Pad a (B, L) table to its graph's width, at most `max_length`."""
    length = table.shape[1]
    width = min(graph_width(length), max_length)
    return F.pad(table, (0, max(0, width - length)), value=pad_id)


class CudaGraphs:
    """Calls `work` on a batch's src, tgt_in and tgt_out on the GPU, by replaying a graph recorded
    for batches of this shape: launching a thousand small kernels one by one can take the host
    longer than the GPU needs to run them.

    `work` must not wait for the GPU, and may change tensors only in place. Its random numbers come
    from the state of the device's generator at each replay.
    """

    def __init__(self, work: Work, device: torch.device, ids: SpecialIds, max_length: int) -> None:
        self.work, self.device, self.ids, self.max_length = work, device, ids, max_length
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}

    def __call__(self, batch: Batch) -> None:
        """Do the work on a batch that is in the host's memory."""
        tables = [
            pad_to_graph(table, self.ids.pad, self.max_length)
            for table in (batch.src, batch.tgt_in, batch.tgt_out)
        ]
        shape = (*tables[0].shape, tables[1].shape[1])
        if shape not in self.graphs:
            if len(self.graphs) == MAX_GRAPHS:  # the oldest makes room
                torch.cuda.synchronize(self.device)
                del self.graphs[next(iter(self.graphs))]
            self.graphs[shape] = self._record(tables)
        graph, inputs = self.graphs[shape]
        for own, table in zip(inputs, tables, strict=True):
            own.copy_(table.pin_memory(), non_blocking=True)
        graph.replay()

    def warm_up(self) -> None:
        """Do the work once unrecorded: first calls of libraries cannot be recorded."""
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            tgt_out = torch.full((4, 8), self.ids.eos, device=self.device)
            self.work(tgt_out, torch.full_like(tgt_out, self.ids.bos), tgt_out)
        torch.cuda.synchronize(self.device)

    def _record(self, tables: list[Tensor]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
        inputs = [table.to(self.device) for table in tables]
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool):
                self.work(*inputs)
        except RuntimeError as error:  # raised at the end of a broken recording, hiding the cause
            if isinstance(error.__context__, torch.OutOfMemoryError):
                raise error.__context__ from None
            raise
        return graph, inputs
