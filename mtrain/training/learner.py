"""A model in training: micro-batches in, gradients out, the fastest way for each device.

CPU   threads compute slices of micro-batches without padding (`ThreadedGradients`)
GPU   whole micro-batches are computed one after the other (`SequentialGradients`), on CUDA by
      graphs, which mask padding (`CudaGraphs`); graphs of packed micro-batches may have compiled
      layers
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.fx.experimental._config as shapes
from torch import Tensor

from mtrain.config.schema import Config
from mtrain.data.batches import Batch, SpecialIds
from mtrain.model.building import build, rates_of, shape_of
from mtrain.model.cpu import RowTransformer, keep_freed_memory
from mtrain.model.transformer import PerToken, Transformer, set_compute_dtype
from mtrain.runtime.device import (
    can_compile,
    compute_dtype,
    out_of_memory_as,
    seed_device,
    set_up_cuda,
)
from mtrain.runtime.distributed import Ranks, device_of
from mtrain.runtime.errors import UserError, first_line
from mtrain.runtime.log import logger
from mtrain.runtime.workers import available_threads
from mtrain.training.gradients import (
    Blocks,
    Compute,
    Grads,
    SeededBatch,
    SequentialGradients,
    Sums,
    ThreadedGradients,
    max_slices,
)
from mtrain.training.graphs import CudaGraphs
from mtrain.training.loss import consistency_loss, projected_cross_entropy
from mtrain.training.optimizer import MovingAverage, Optimizer

ROW_TOKENS = 128  # tokens on each side of most packed rows
COMPILED_WIDTH = 512  # d_model; smaller models are trained too quickly for compiling to pay


@dataclass(frozen=True)
class MachineSettings:
    """The values that a config's `auto` settings resolve to on this machine."""

    device: str
    threads: int
    precision: str
    compile: bool
    openmp: int = 1  # threads of one operation on a CPU; rounding depends on it
    packing: bool = False

    @classmethod
    def of(cls, config: Config, ranks: Ranks, blocks: Blocks) -> "MachineSettings":
        """Resolve `auto`; raises `RefusedError` for a device that does not exist."""
        train = config.train
        device = device_of(train.device, ranks)
        dtype = compute_dtype(train.precision, device, training=True)
        threads = threads_of(config, ranks)
        packing = device.type == "cuda" if train.packing == "auto" else train.packing
        compiled = train.compile
        if compiled == "auto":
            is_worth_it = packing and config.model.d_model >= COMPILED_WIDTH
            compiled = device.type == "cuda" and is_worth_it and can_compile(device)
        # all slices of a step, not just this rank's: the number of ranks must not change rounding
        slices = blocks.micro_batches * max_slices(train.max_tokens)
        return cls(
            device=device.type,
            threads=threads,
            precision="bf16" if dtype == torch.bfloat16 else "fp32",
            compile=compiled,
            # a compiled model uses the random generator of the process, so it has one worker
            openmp=threads if compiled else max(1, threads // slices),
            packing=packing,
        )

    @property
    def workers(self) -> int:
        """Threads that compute slices on a CPU."""
        return self.threads // self.openmp

    def row_widths(self, config: Config) -> list[int]:
        """Return the widths of packed rows in tokens per side, ascending: `ROW_TOKENS`, and larger
        ones for longer pairs. They are few, so that few CUDA graphs are needed. Empty if rows are
        not packed.
        """
        if not self.packing:
            return []
        limit = config.data.max_length
        widths = [min(ROW_TOKENS, limit)]
        while widths[-1] < limit:
            widths.append(min(limit, widths[-1] * 3 // 2))
        return widths


def threads_of(config: Config, ranks: Ranks) -> int:
    """Return the number of threads of this rank."""
    threads = config.train.threads
    return max(1, available_threads() // ranks.local_size) if threads == "auto" else threads


@contextmanager
def _compiling() -> Iterator[None]:
    """Let torch compile, and turn its errors into a `UserError`."""
    logger.info("compiling the model, which may take a minute")
    torch.compiler.set_stance("default")
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            f"train.compile: torch cannot compile the model here: {first_line(error)}; "
            "set train.compile: false"
        ) from None


class Learner:
    """A model in training, its optimizer and its moving average on the device of a rank.
    `sum_gradients` stores the gradients and losses of this rank's micro-batches of a step in the
    optimizer's sums.
    """

    def __init__(
        self, config: Config, vocab_size: int, ids: SpecialIds, ranks: Ranks, blocks: Blocks
    ) -> None:
        self.config, self.ids = config, ids
        self.machine = MachineSettings.of(config, ranks, blocks)
        self.device = device_of(config.train.device, ranks)
        torch.set_num_threads(self.machine.threads)
        pool = None
        if self.device.type == "cuda":
            set_up_cuda(self.device)
        if self.device.type == "cpu":
            keep_freed_memory()
            openmp = (self.machine.openmp,)  # threads per operation, in each thread of the pool
            pool = ThreadPoolExecutor(self.machine.workers, "slice", torch.set_num_threads, openmp)
        torch.manual_seed(config.seed)  # weights are drawn on the CPU, whatever the device
        shape = shape_of(config, vocab_size, ids.pad)
        rates, compiled = rates_of(config), self.machine.compile
        model = build(shape, self.device, rates, compiled=compiled).to(self.device)
        set_compute_dtype(model, compute_dtype(self.machine.precision, self.device, training=True))
        self.model = model.train()
        train, decay = config.train, config.train.ema_decay
        muon = self.model.hidden_matrices if train.optimizer == "muon" else {}
        num_losses = 2 if train.consistency is None else 3
        betas, eps = train.adam_betas, train.adam_eps
        self.optimizer = Optimizer(self.model, betas, eps, muon, num_losses, pool)
        self.average = MovingAverage(self.optimizer.weights, decay) if decay else None
        self.compiled_hidden: Callable[..., Tensor] | None = None  # of `model`, on any device
        self.graphs: CudaGraphs | None = None  # on CUDA, unless the whole model is compiled
        self.gradients: ThreadedGradients | SequentialGradients = (
            SequentialGradients(self._compute_micro_batch, self.optimizer.sums, blocks.largest)
            if pool is None
            else self._threaded_gradients(pool)
        )

    def _threaded_gradients(self, pool: ThreadPoolExecutor) -> ThreadedGradients:
        """Return the threads that compute slices on a CPU, each with a generator of its own unless
        the model is compiled.
        """
        computes: list[Compute] = []
        for _ in range(self.machine.workers):
            model = self.model
            generator = torch.default_generator
            if isinstance(model, RowTransformer):
                generator = torch.Generator()
                model = model.drawing_from(generator)
            computes.append(partial(self._compute_slice, model, generator))
        return ThreadedGradients(computes, self.optimizer.sums, pool)

    def sum_gradients(self, batches: Iterable[SeededBatch], count: int) -> None:
        """Replace the optimizer's sums by those over `count` micro-batches."""
        self.gradients.sum_up(batches, count)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights to validate and save: the latest, or their moving average."""
        return self.optimizer.weights if self.average is None else self.average.values

    def warm_up(self) -> None:
        """Compile the model, or prepare CUDA graphs; raises `UserError`."""
        if self.device.type == "cuda" and (self.machine.packing or not self.machine.compile):
            self._prepare_graphs()
        elif self.machine.compile:
            self._compile()

    def _prepare_graphs(self) -> None:
        assert isinstance(self.gradients, SequentialGradients)
        work = partial(self._compute_padded, self.gradients.latest)
        packed_tokens = self.config.train.max_tokens if self.machine.packing else None
        max_length = self.config.data.max_length
        self.graphs = CudaGraphs(work, self.device, self.ids, max_length, packed_tokens)
        if self.machine.compile:
            self._compile_layers(self.graphs)
        else:
            self.graphs.warm_up()

    @_compiling()
    def _compile_layers(self, graphs: CudaGraphs) -> None:
        """Compile the layers for the shape of most packed micro-batches; the others are computed
        without compiled layers.
        """
        tokens = self.config.train.max_tokens
        width = self.machine.row_widths(self.config)[0]
        for layer in (*self.model.encoder_layers, *self.model.decoder_layers):
            layer.compile(dynamic=False, fullgraph=True)
        text = f"out of memory on a micro-batch of {tokens:,} tokens with padding; free memory and "
        text += "run the same command again, or start another run_dir with a lower train.max_tokens"
        with out_of_memory_as(text):
            graphs.warm_up(tokens // width, width)
        torch.compiler.set_stance("eager_on_recompile")

    @_compiling()
    def _compile(self) -> None:
        """Compile the whole model for all shapes on a made-up batch, so that the generated code
        does not depend on the batch that a resumed run starts with.
        """
        shapes.use_duck_shape = False  # sizes that are equal in this batch may differ in others
        torch._dynamo.config.specialize_float = True  # or torch compiles twice for dropout rates
        self.compiled_hidden = torch.compile(self.model.hidden, dynamic=True)
        limit = self.config.data.max_length  # of learned positions
        src = torch.full((4, min(9, limit)), self.ids.eos, device=self.device)
        tgt_in = torch.full((4, min(8, limit)), self.ids.bos, device=self.device)
        states = torch.cat(self._views(self.compiled_hidden, src, tgt_in))
        torch.autograd.grad(states.sum(), self.optimizer.parameters, allow_unused=True)

    def _compute_slice(
        self, model: Transformer, generator: torch.Generator, batch: Batch, seed: int, sums: Sums
    ) -> None:
        """Store the gradients and losses of a slice in `sums`, in a CPU thread."""
        generator.manual_seed(seed)
        sums.store(*self._differentiate(model, batch, generator))

    def _compute_micro_batch(self, batch: Batch, seed: int, sums: Sums) -> None:
        """Store the gradients and losses of a micro-batch in `sums`, on a GPU."""
        seed_device(self.device, seed)
        if self.graphs is None:
            sums.store(*self._differentiate(self.model, batch.to(self.device)))
        else:
            self.graphs(batch)  # stores them in the same sums

    def _differentiate(
        self, model: Transformer, batch: Batch, generator: torch.Generator | None = None
    ) -> tuple[Grads, Tensor]:
        """Return the gradients and losses of a batch, computed without its padding."""
        hidden = model.hidden
        if self.compiled_hidden is not None and len(batch.src) > 1:  # torch recompiles for one row
            hidden = self.compiled_hidden
        views = self._views(hidden, batch.src, batch.tgt_in, generator)
        return self._gradients([view[batch.positions] for view in views], batch.targets)

    def _compute_padded(self, sums: Sums, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> None:
        """Store the gradients and losses of (B, S), (B, T) and (B, T) ids in `sums`, for CUDA
        graphs: padding is masked instead of left out, so that no shape depends on values.
        """
        views = self._views(self.model.hidden, src, tgt_in)
        targets = tgt_out.flatten()
        sums.store(*self._gradients(views, targets, targets != self.ids.pad))

    def _views(
        self,
        compute: Callable[..., Tensor],
        src: Tensor,
        tgt_in: Tensor,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, ...]:
        """Return the hidden states (B * T, D) that `compute` returns for the batch; with
        `train.consistency`, those of both views, from one pass over 2B rows.
        """
        if self.config.train.consistency is None:
            return (compute(src, tgt_in, None, self._segments(src, tgt_in)).flatten(0, 1),)
        masks = self._keep_mask(src, generator), self._keep_mask(tgt_in, generator)
        src, tgt_in = src.repeat(2, 1), tgt_in.repeat(2, 1)
        states = compute(src, tgt_in, masks, self._segments(src, tgt_in))
        return states.flatten(0, 1).chunk(2)

    def _segments(self, src: Tensor, tgt_in: Tensor) -> PerToken | None:
        """Return the index of each token's sentence in its packed row, by the positions of eos and
        bos; None without packing.
        """
        if not self.machine.packing:
            return None
        ends = src == self.ids.eos
        return ends.cumsum(1) - ends.long(), (tgt_in == self.ids.bos).cumsum(1) - 1

    def _keep_mask(self, ids: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the mask (2B, L) of token embeddings: 1 in view 1, at random 0 in view 2."""
        random = torch.rand(ids.shape, device=ids.device, generator=generator)
        view2 = random >= self.config.train.cutoff
        return torch.cat((torch.ones_like(view2), view2)).float()

    def _gradients(
        self, views: Sequence[Tensor], targets: Tensor, real: Tensor | None = None
    ) -> tuple[Grads, Tensor]:
        """Return the gradients and losses from the hidden states of one or two views."""
        train = self.config.train
        matrix = self.model.output.weight
        smoothing = train.label_smoothing
        alpha = train.consistency
        losses: tuple[Tensor, ...]
        if alpha is None:
            losses = projected_cross_entropy(views[0], matrix, targets, smoothing, real)
        else:
            losses = consistency_loss((views[0], views[1]), matrix, targets, smoothing, alpha, real)
        grads = torch.autograd.grad(losses[0], self.optimizer.parameters)
        return grads, torch.stack([loss.detach() for loss in losses])
