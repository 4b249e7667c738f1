"""CUDA graphs of a training step: recorded once for each shape of batch, then replayed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mtrain.data.batches import Batch, SpecialIds
from mtrain.runtime.device import record_graph

Work = Callable[[Tensor, Tensor, Tensor], None]

MAX_GRAPHS = 512  # in memory; each uses some megabytes of GPU memory


def graph_width(length: int) -> int:
    """Return the width to which sequences of a length are padded: a multiple of 4, or of about 1/16
    of the length, which gives few shapes and little padding.
    """
    grain = max(4, 1 << max(0, length.bit_length() - 5))
    return -(-length // grain) * grain


def pad_to_graph(table: Tensor, pad_id: int, max_length: int) -> Tensor:
    """Pad a (B, L) table to its graph's width, at most `max_length`."""
    length = table.shape[1]
    width = min(graph_width(length), max_length)
    return F.pad(table, (0, max(0, width - length)), value=pad_id)


def add_rows(tables: list[Tensor], ids: SpecialIds, max_rows: int) -> list[Tensor]:
    """Add rows to src, tgt_in and tgt_out, up to a multiple of an eighth of `max_rows`, at most
    `max_rows`. An added row has an empty sentence, so that attention has a key, and no target.
    """
    rows = len(tables[0])
    grain = math.ceil(max_rows / 8)
    missing = max(0, min(max_rows, math.ceil(rows / grain) * grain) - rows)
    src, tgt_in, tgt_out = (F.pad(table, (0, 0, 0, missing), value=ids.pad) for table in tables)
    src[rows:, 0] = ids.eos
    tgt_in[rows:, 0] = ids.bos
    return [src, tgt_in, tgt_out]


@dataclass
class CudaGraphs:
    """Calls `work` on a batch's src, tgt_in and tgt_out on the GPU, by replaying a graph recorded
    for batches of this shape: the host may need longer to launch a thousand small kernels one by
    one than the GPU needs to run them.

    `work` must not wait for the GPU, and may change tensors only in place. Its random numbers
    depend on the state of the device's generator at each replay. If batches are packed, full ones
    have `packed_tokens` tokens with padding.
    """

    work: Work
    device: torch.device
    ids: SpecialIds
    max_length: int
    packed_tokens: int | None = None

    def __post_init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[tuple[int, ...], tuple[Callable[[], None], list[Tensor]]] = {}

    def __call__(self, batch: Batch) -> None:
        """Call `work` on a batch in the host's memory."""
        tables = [
            pad_to_graph(table, self.ids.pad, self.max_length)
            for table in (batch.src, batch.tgt_in, batch.tgt_out)
        ]
        if self.packed_tokens is not None:
            width = max(table.shape[1] for table in tables)
            tables = add_rows(tables, self.ids, max(1, self.packed_tokens // width))
        shape = (*tables[0].shape, tables[1].shape[1])
        if shape not in self.graphs:
            if len(self.graphs) == MAX_GRAPHS:  # remove the oldest
                torch.cuda.synchronize(self.device)
                del self.graphs[next(iter(self.graphs))]
            inputs = [table.to(self.device) for table in tables]
            replay = record_graph(partial(self.work, *inputs), self.device, self.pool)
            self.graphs[shape] = replay, inputs
        replay, inputs = self.graphs[shape]
        for graph_input, table in zip(inputs, tables, strict=True):
            graph_input.copy_(table.pin_memory(), non_blocking=True)
        replay()

    def warm_up(self, rows: int = 4, width: int = 8) -> None:
        """Call `work` once without recording, on a made-up batch: first calls of libraries and of
        compiled functions cannot be recorded.
        """
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        width = min(width, self.max_length)
        with torch.cuda.stream(side):
            tgt_out = torch.full((rows, width), self.ids.eos, device=self.device)
            self.work(tgt_out, torch.full_like(tgt_out, self.ids.bos), tgt_out)
        torch.cuda.synchronize(self.device)
