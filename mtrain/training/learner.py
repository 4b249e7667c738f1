"""A model in training: the gradients of micro-batches, added up in the way that is fastest here."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.fx.experimental._config as shapes
from torch import Tensor

from mtrain.config.schema import Config
from mtrain.data.batches import Batch, SpecialIds
from mtrain.model.building import build, model_dropout, shape_of
from mtrain.model.cpu import keep_freed_memory
from mtrain.model.transformer import Transformer, set_compute_dtype
from mtrain.runtime.device import available_threads, compute_dtype, set_up_cuda
from mtrain.runtime.distributed import Ranks, device_of
from mtrain.runtime.errors import RefusedError, UserError, first_line
from mtrain.runtime.log import logger
from mtrain.training.graphs import Recorded
from mtrain.training.loss import projected_cross_entropy
from mtrain.training.optimizer import Optimizer


@dataclass(frozen=True)
class Machine:
    """What `auto` settings resolve to on this machine."""

    device: str
    threads: int
    precision: str
    compile: bool
    ranks: int = 1

    @classmethod
    def of(cls, config: Config, ranks: Ranks) -> "Machine":
        """Resolve a config's `auto` settings; raises `RefusedError` for a missing device."""
        train = config.train
        device = device_of(train.device, ranks)
        dtype = compute_dtype(train.precision, device, training=True)
        return cls(
            device=device.type,
            threads=max(1, available_threads() // ranks.local_size)
            if train.threads == "auto"
            else train.threads,
            precision="bf16" if dtype == torch.bfloat16 else "fp32",
            compile=False if train.compile == "auto" else train.compile,
            ranks=ranks.size,
        )

    def check_against(self, config: Config, before: dict[str, Any]) -> None:
        """Refuse to resume if a setting resolves differently than before; a user may change
        `precision` and `compile` by naming them.
        """
        was_ranks = before.get("ranks", 1)
        if was_ranks != self.ranks:
            logger.warning(
                "%d processes train from here on instead of %d: equal bits are no longer promised",
                self.ranks,
                was_ranks,
            )
        for key, now in asdict(self).items():
            was = before.get(key)
            if was is None or was == now or key == "ranks":
                continue
            if key == "threads" and (was_ranks != self.ranks or self.device != "cpu"):
                continue  # they change nothing but speed
            if key in ("precision", "compile") and getattr(config.train, key) != "auto":
                logger.warning(
                    "train.%s: %s from here on instead of %s: equal bits are no longer promised",
                    key,
                    now,
                    was,
                )
                continue
            raise RefusedError(
                f"train.{key}: this run was trained with {was}, but this machine resolves it to "
                f"{now}; to resume, set train.{key}: {str(was).lower()}"
            )


class Learner:
    """A new model with its optimizer, on the device of a rank. `learn` adds the gradients of a
    micro-batch and its losses to what the optimizer holds.
    """

    def __init__(self, config: Config, vocab_size: int, ids: SpecialIds, ranks: Ranks) -> None:
        self.config, self.ids = config, ids
        self.machine = Machine.of(config, ranks)
        self.device = device_of(config.train.device, ranks)
        self._set_up_torch()
        self.model = self._build_model(vocab_size)
        self.optimizer = self._build_optimizer(ranks)
        self.hidden = self.model.hidden
        self.learn: Callable[[Batch], None] = self._accumulate

    def _set_up_torch(self) -> None:
        torch.set_num_threads(self.machine.threads)
        if self.device.type == "cuda":
            set_up_cuda(self.device)
        if self.device.type == "cpu":
            keep_freed_memory()
        torch.manual_seed(self.config.seed)  # the model begins on the CPU, whatever the device

    def _build_model(self, vocab_size: int) -> Transformer:
        shape = shape_of(self.config, vocab_size, self.ids.pad)
        rates, compiled = model_dropout(self.config), self.machine.compile
        model = build(shape, self.device, rates, compiled=compiled).to(self.device)
        set_compute_dtype(
            model, torch.bfloat16 if self.machine.precision == "bf16" else torch.float32
        )
        return model.train()

    def _build_optimizer(self, ranks: Ranks) -> Optimizer:
        train = self.config.train
        betas = (train.adam_betas[0], train.adam_betas[1])
        muon = self.model.hidden_matrices if train.optimizer == "muon" else {}
        return Optimizer(self.model, betas, train.adam_eps, muon, ranks)

    def warm_up(self) -> None:
        """Make ready what makes steps fast: compiled code, or recorded work for a GPU; raises
        `UserError`.
        """
        if self.machine.compile:
            self._compile()
        elif self.device.type == "cuda":
            longest = self.config.data.max_length
            work = Recorded(self._accumulate_all, self.device, self.ids, longest)
            work.warm_up()
            self.optimizer.clear()
            self.learn = work

    def _compile(self) -> None:
        """Compile for all shapes, by a made-up batch: if the batches that a start meets first
        decided on the graphs, a resumed run would compute with others than an undisturbed one.
        """
        shapes.use_duck_shape = False  # sizes that happen to be equal once stay apart
        torch._dynamo.config.specialize_float = True  # rates of dropout are fixed: it starts twice
        self.hidden = torch.compile(self.model.hidden, dynamic=True)
        try:
            src, tgt = (torch.full((4, n), self.ids.eos, device=self.device) for n in (8, 9))
            self.hidden(src, tgt).sum().backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise UserError(
                f"train.compile: torch cannot compile the model here: {first_line(error)}; "
                "set train.compile: false"
            ) from None
        for parameter in self.model.parameters():
            parameter.grad = None

    def _accumulate(self, batch: Batch) -> None:
        """Add one micro-batch's gradients and losses to the step's."""
        batch = batch.to(self.device)
        several = len(batch.src) > 1  # torch would compile a graph of its own for a single row
        compute = self.hidden if several else self.model.hidden
        hidden = compute(batch.src, batch.tgt_in).flatten(0, 1)[batch.positions]
        self._add(hidden, batch.targets)

    def _accumulate_all(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> None:
        """The same from tables (B, S), (B, T) and (B, T), by work that depends on nothing but these
        sizes.
        """
        hidden, targets = self.model.hidden(src, tgt_in).flatten(0, 1), tgt_out.flatten()
        self._add(hidden, targets, targets != self.ids.pad)

    def _add(self, hidden: Tensor, targets: Tensor, real: Tensor | None = None) -> None:
        smoothing, matrix = self.config.train.label_smoothing, self.model.output.weight
        loss = projected_cross_entropy(hidden, matrix, targets, smoothing, real)
        loss.loss_sum.backward()  # type: ignore[no-untyped-call]
        self.optimizer.accumulate()
        self.optimizer.losses += torch.stack((loss.loss_sum.detach(), loss.nll_sum))
