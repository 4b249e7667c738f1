"""The gradient of a step: a binary tree over its micro-batches, and over the slices of each.

1. Blocks               gives each rank a subtree: a block of micro-batches
2. slices_of            cuts a micro-batch into slices of rows, by its size alone
3. ThreadedGradients    computes the slices in threads, on a CPU
   SequentialGradients  computes whole micro-batches one after the other, on a GPU
4. SumTree              adds the sums pairwise by their index, whichever thread computed them
5. sum_over_ranks       adds the blocks pairwise, up to the root of the same tree

So the bits of a step depend neither on the number of threads nor on the number of ranks.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from queue import LifoQueue
from threading import Lock

import torch
from torch import Tensor

from mtrain.data.batches import Batch
from mtrain.runtime.distributed import Ranks

# Maximum number of padded tokens in a slice; a longer row is a slice by itself.
SLICE_TOKENS = 1024
# Gradients start at multiples of this many values (64 bytes of fp32), for vector instructions.
ALIGNED = 16

Grads = tuple[Tensor, ...]


class Sums:
    """Gradients and losses of a slice, a micro-batch or a step, summed over its tokens. `grads` has
    the shapes of the weights, `losses` is (num_losses,); both are views of `buffer`.
    """

    def __init__(self, weights: Sequence[Tensor], num_losses: int) -> None:
        sizes = [math.ceil(weight.numel() / ALIGNED) * ALIGNED for weight in weights]
        *starts, end = accumulate(sizes, initial=0)
        self.buffer = weights[0].new_zeros(end + num_losses)
        self.losses = self.buffer[end:]
        self.grads = [
            self.buffer[start : start + weight.numel()].view_as(weight)
            for start, weight in zip(starts, weights, strict=True)
        ]

    def store(self, grads: Grads, losses: Tensor) -> None:
        """Overwrite the sums with gradients of any floating-point type, and losses."""
        torch._foreach_copy_(self.grads, grads)
        self.losses.copy_(losses)


# A micro-batch, and the function from the index of one of its slices to the seed of that slice.
SeededBatch = tuple[Batch, Callable[[int], int]]
# Computes a batch with a seed and stores its gradients and losses in the sums.
Compute = Callable[[Batch, int, Sums], None]
SumsCallback = Callable[[Sums], object]
# A slice, its seed, the sums to store its results in, and the function to pass these to.
Slice = tuple[Batch, int, Sums, SumsCallback]


@dataclass
class SumTree:
    """Adds the sums of `size` parts pairwise by their index, in whatever order they arrive.

    Five parts are added as ((0 + 1) + (2 + 3)) + 4: a part without a partner moves up a level
    unchanged. The sum of two parts is stored in the left one; `release` gets the right one, which
    is free again. `keep` returns the sums to store for a part that must wait for its partner;
    `deliver` gets the total.
    """

    size: int
    release: SumsCallback
    deliver: SumsCallback
    keep: Callable[[Sums], Sums] = lambda sums: sums

    def __post_init__(self) -> None:
        self.waiting: dict[tuple[int, int], Sums] = {}  # by level and index
        self.lock = Lock()

    def add(self, index: int, sums: Sums) -> None:
        """Add a part, and every sum on higher levels that this completes."""
        level = 0
        size = self.size
        while size > 1:
            partner = index ^ 1
            if partner < size:
                with self.lock:
                    other = self.waiting.pop((level, partner), None)
                    if other is None:
                        self.waiting[level, index] = self.keep(sums)
                        return
                left, right = (sums, other) if index < partner else (other, sums)
                left.buffer += right.buffer
                self.release(right)
                sums = left
            level, index, size = level + 1, index // 2, (size + 1) // 2
        self.deliver(sums)


@dataclass(frozen=True)
class Blocks:
    """The micro-batches of a step, divided among the ranks of a job: each rank computes a subtree
    of the step's tree. Six micro-batches on four ranks are 0-1, 2-3, 4-5 and none.
    """

    micro_batches: int
    ranks: int = 1

    @property
    def width(self) -> int:
        """Micro-batches in a full block: the smallest power of two for which the ranks suffice."""
        return 1 << (math.ceil(self.micro_batches / self.ranks) - 1).bit_length()

    @property
    def largest(self) -> int:
        """Number of micro-batches of the first block; no block has more."""
        return len(self.of(0))

    def of(self, rank: int) -> range:
        """Return the micro-batches that a rank computes."""
        start, stop = (min(self.micro_batches, n * self.width) for n in (rank, rank + 1))
        return range(start, stop)


def sum_over_ranks(total: Tensor, blocks: Blocks, ranks: Ranks, spare: Tensor) -> None:
    """Replace the sums of this rank's block by those of the step, by recursive doubling, which adds
    the blocks as the tree does. In round i, ranks r and r ^ 2^i exchange the sums of two partner
    nodes of the tree, and both ranks add them: a + b = b + a. `spare` is the receive buffer.
    """
    nodes = math.ceil(blocks.micro_batches / blocks.width)
    span = 1  # `span` ranks hold each node
    last = ranks.size - 1
    while span < ranks.size:
        node = ranks.rank // span
        partner = node ^ 1
        partner_ranks = range(partner * span, min((partner + 1) * span, ranks.size))
        # unless the number of ranks is a power of two, the last rank stands in for missing ranks
        receivers = [rank for rank in partner_ranks if min(rank ^ span, last) == ranks.rank]
        sender = min(ranks.rank ^ span, last) if partner < nodes else None
        ranks.exchange(total, receivers if node < nodes else [], spare, sender)
        if node < nodes and partner < nodes:
            total += spare
        elif partner < nodes:
            total.copy_(spare)
        nodes, span = (nodes + 1) // 2, 2 * span


def slices_of(batch: Batch) -> list[Batch]:
    """Cut a micro-batch by rows into equal slices of at most `SLICE_TOKENS` padded tokens."""
    rows = len(batch.src)
    width = max(batch.src.shape[1], batch.tgt_in.shape[1])
    count = min(rows, max_slices(rows * width))
    bounds = [rows * index // count for index in range(count + 1)]
    return [batch.part(start, stop) for start, stop in pairwise(bounds)]


def max_slices(tokens: int) -> int:
    """Return the largest number of slices of a micro-batch of `tokens` padded tokens."""
    return math.ceil(tokens / SLICE_TOKENS)


def max_sums(micro_batches: int, slices: int = 1, threads: int = 1) -> int:
    """Return the largest number of `Sums` in memory: one for each thread, and those that wait in
    the trees of a step and of a micro-batch of up to `slices` slices.
    """
    waiting = (micro_batches - 1).bit_length() + (slices - 1).bit_length()
    return min(waiting + threads, micro_batches * slices)


class SequentialGradients:
    """Computes the micro-batches of a step one after the other, each into the same sums, `latest`,
    as recorded CUDA graphs need, and adds them up.
    """

    def __init__(self, compute: Compute, total: Sums, largest: int) -> None:
        """Allocate sums for steps of up to `largest` micro-batches; `total` gets a step's sums."""
        new = [Sums(total.grads, len(total.losses)) for _ in range(max_sums(largest) - 1)]
        self.compute = compute
        self.latest = new.pop() if new else total
        self.stored = [*new, total]  # for parts that wait

    def sum_up(self, batches: Iterable[SeededBatch], count: int) -> None:
        """Replace the total by the sums over `count` micro-batches."""
        free = [*self.stored]  # the total is used first, for the leftmost part

        def release(sums: Sums) -> None:
            if sums is not self.latest:
                free.append(sums)

        def keep(sums: Sums) -> Sums:
            """Copy the latest sums, which the next micro-batch overwrites."""
            if sums is self.latest:
                sums = free.pop()
                sums.buffer.copy_(self.latest.buffer)
            return sums

        tree = SumTree(count, release, keep, keep)
        for index, (batch, seed) in enumerate(batches):
            self.compute(batch, seed(0), self.latest)
            tree.add(index, self.latest)


class ThreadedGradients:
    """Computes the slices of a step in threads, one for each `Compute`, and adds them up."""

    def __init__(self, computes: Sequence[Compute], total: Sums, pool: ThreadPoolExecutor) -> None:
        """`total` gets the sums of a step."""
        self.computes, self.pool = computes, pool
        self.sums = [total]  # from the first step on, also those of the slices
        self.lock = Lock()  # for `slices`

    def sum_up(self, batches: Iterable[SeededBatch], count: int) -> None:
        """Replace the total by the sums over `count` micro-batches; raises the error of a thread,
        once all threads have stopped.
        """
        self.free: LifoQueue[Sums | None] = LifoQueue()
        for sums in self.sums[1:]:
            self.free.put(sums)
        self.slices = self._slices(batches, count)
        self.has_ended = False
        futures: list[Future[None]] = []
        try:
            # the system may refuse to start a thread
            futures.extend(self.pool.submit(self._work, compute) for compute in self.computes)
            for future in futures:
                future.result()
        finally:
            wait(futures)

    def _slices(self, batches: Iterable[SeededBatch], count: int) -> Iterator[Slice]:
        """Yield the slices in order, each once sums for it are free; stop if a thread has failed.
        The tree of a micro-batch delivers to that of the step.
        """
        step_tree = SumTree(count, self.free.put, lambda sums: None)
        for number, (batch, seed) in enumerate(batches):
            slices = slices_of(batch)
            self._allocate(max_sums(count, len(slices), len(self.computes)))
            tree = SumTree(len(slices), self.free.put, partial(step_tree.add, number))
            for index, part in enumerate(slices):
                is_leftmost = number == 0 and index == 0  # the part that all others are added to
                sums = self.sums[0] if is_leftmost else self.free.get()
                if sums is None or self.has_ended:
                    return
                yield part, seed(index), sums, partial(tree.add, index)

    def _allocate(self, number: int) -> None:
        """Allocate sums up to `number`: with fewer, all threads might wait for free ones."""
        total = self.sums[0]
        while len(self.sums) < number:
            self.sums.append(Sums(total.grads, len(total.losses)))
            self.free.put(self.sums[-1])

    def _work(self, compute: Compute) -> None:
        """Compute slices until none is left."""
        try:
            for part, seed, sums, add in iter(self._next_slice, None):
                compute(part, seed, sums)
                add(sums)
        finally:
            self._end()

    def _next_slice(self) -> Slice | None:
        """Return the next slice, or None at the end."""
        with self.lock:
            return next(self.slices, None)

    def _end(self) -> None:
        """Stop all threads after their current slice, when no slice is left or one has failed."""
        self.has_ended = True
        self.free.put(None)  # wakes a thread that waits for sums
