"""CUDA graphs: the work on a micro-batch, recorded once for each shape and replayed after that.

A Transformer's step is more than a thousand small kernels. Launching them one by one can take the
host longer than running them takes the GPU; a graph is launched as one.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mtrain.data.batches import Batch, SpecialIds

# Graphs kept; each holds some megabytes of the GPU's memory that it does not share.
MOST = 512


def rounded(length: int) -> int:
    """Return the width to which rows of some length are padded: few shapes to record, little
    padding.
    """
    grain = max(4, 1 << max(0, length.bit_length() - 5))
    return -(-length // grain) * grain


def widened(table: Tensor, fill: int, longest: int) -> Tensor:
    """Pad a (B, L) table to the width that is recorded, which is at most `longest`."""
    length = table.shape[1]
    return F.pad(table, (0, max(0, min(rounded(length), longest) - length)), value=fill)


class Recorded:
    """Does `work` on a batch's src, tgt_in and tgt_out on the GPU, by replaying it.

    Recorded work must not wait for the GPU, and may change tensors only in place. Random numbers
    come from the device's generator as it is at each replay.
    """

    def __init__(
        self,
        work: Callable[[Tensor, Tensor, Tensor], None],
        device: torch.device,
        ids: SpecialIds,
        longest: int,
    ) -> None:
        self.work, self.device, self.ids, self.longest = work, device, ids, longest
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}

    def __call__(self, batch: Batch) -> None:
        """Do the work on a batch in the host's memory."""
        tables = [
            widened(table, self.ids.pad, self.longest)
            for table in (batch.src, batch.tgt_in, batch.tgt_out)
        ]
        shape = (*tables[0].shape, tables[1].shape[1])
        if shape not in self.graphs:
            self._forget()
            self.graphs[shape] = self._record(tables)
        graph, inputs = self.graphs[shape]
        for own, table in zip(inputs, tables, strict=True):
            own.copy_(table.pin_memory(), non_blocking=True)
        graph.replay()

    def warm_up(self) -> None:
        """Do the work without recording once: the first calls of libraries cannot be recorded."""
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            table = torch.full((4, 8), self.ids.eos, device=self.device)
            self.work(table, table, table)
        torch.cuda.synchronize(self.device)

    def _record(self, tables: list[Tensor]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
        inputs = [table.to(self.device) for table in tables]
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool):
                self.work(*inputs)
        except RuntimeError as error:  # the end of a broken recording fails, too, and hides why
            if isinstance(error.__context__, torch.OutOfMemoryError):
                raise error.__context__ from None
            raise
        return graph, inputs

    def _forget(self) -> None:
        """Make room by the oldest graph."""
        if len(self.graphs) == MOST:
            torch.cuda.synchronize(self.device)
            del self.graphs[next(iter(self.graphs))]
