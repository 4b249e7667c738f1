"""The gradient of a step: a binary tree over its micro-batches, and over the pieces of each.

1. Blocks          give each rank a subtree: a block of micro-batches
2. pieces_of       cut a micro-batch by rows, by its size alone
3. Workers         compute pieces in threads, as they come free, each into sums of its own
4. Tree            add these pairwise by the numbers of the pieces, whichever thread computed them
5. sum_over_ranks  add the blocks pairwise, up to the root of the same tree

So the bits of a step depend neither on the number of threads nor on that of ranks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from queue import LifoQueue
from threading import Lock

import torch
from torch import Tensor

from mtrain.data.batches import Batch
from mtrain.runtime.distributed import Ranks

# Padded tokens of a piece, at most, where rows are not longer.
PIECE_TOKENS = 1024
# Gradients start at multiples of this many values (64 bytes of fp32), for vector instructions.
ALIGNED = 16

Grads = tuple[Tensor, ...]


class Sums:
    """Sums of a piece, a micro-batch or a step over its tokens. `buffer` holds them all: the
    gradients `grads`, one for each weight, then `losses` (num_losses,).
    """

    def __init__(self, weights: Sequence[Tensor], num_losses: int) -> None:
        starts = list(accumulate((-(-w.numel() // ALIGNED) * ALIGNED for w in weights), initial=0))
        self.buffer = weights[0].new_zeros(starts[-1] + num_losses)
        self.losses = self.buffer[starts[-1] :]
        self.grads = [
            self.buffer[start : start + weight.numel()].view_as(weight)
            for start, weight in zip(starts, weights, strict=False)
        ]

    def put(self, grads: Grads, losses: Tensor) -> None:
        """Replace the sums by gradients of any floating-point type, and losses."""
        torch._foreach_copy_(self.grads, grads)
        self.losses.copy_(losses)


# A micro-batch, and the function from the number of a piece of it to the seed of its randomness.
Seeded = tuple[Batch, Callable[[int], int]]
# Computes a piece with a seed and puts its gradients and losses into the sums.
Compute = Callable[[Batch, int, Sums], None]
Give = Callable[[Sums], object]


class Tree:
    """Adds the sums of `size` parts pairwise by their numbers, in whatever order they come: 0 + 1,
    2 + 3, then these sums, up to the whole, which `deliver` gets. Parts without a neighbour move
    up. The left one of two holds their sum, and `release` gets the right one. `keep` returns the
    sums of a part that waits for its neighbour.
    """

    def __init__(
        self,
        size: int,
        release: Give,
        deliver: Give,
        keep: Callable[[Sums], Sums] = lambda sums: sums,
    ) -> None:
        self.size, self.release, self.deliver, self.keep = size, release, deliver, keep
        self.waiting: dict[tuple[int, int], Sums] = {}  # by level and number
        self.lock = Lock()

    def add(self, number: int, sums: Sums) -> None:
        """Add the sums of a part, then those that are complete by it."""
        level, size = 0, self.size
        while size > 1:
            if number ^ 1 < size:
                with self.lock:
                    other = self.waiting.pop((level, number ^ 1), None)
                    if other is None:
                        self.waiting[level, number] = self.keep(sums)
                        return
                left, right = (other, sums) if number % 2 else (sums, other)
                left.buffer += right.buffer
                self.release(right)
                sums = left
            level, number, size = level + 1, number // 2, (size + 1) // 2
        self.deliver(sums)


@dataclass(frozen=True)
class Blocks:
    """The micro-batches of a step, divided among the ranks of a job: each rank computes a subtree
    of the step's tree. The last block may be smaller, and further ranks have none.
    """

    micro_batches: int
    ranks: int = 1

    @property
    def width(self) -> int:
        """Micro-batches of a block: the lowest power of two for which the ranks suffice."""
        return 1 << (-(-self.micro_batches // self.ranks) - 1).bit_length()

    @property
    def largest(self) -> int:
        """Micro-batches of the first block."""
        return len(self.of(0))

    def __str__(self) -> str:
        sizes = ", ".join(str(len(self.of(rank))) for rank in range(self.ranks))
        return f"{sizes}; of more than {self.micro_batches} processes, some would be idle"

    def of(self, rank: int) -> range:
        """Return the micro-batches that a rank computes."""
        start, stop = (min(self.micro_batches, n * self.width) for n in (rank, rank + 1))
        return range(start, stop)


def sum_over_ranks(total: Tensor, blocks: Blocks, ranks: Ranks, spare: Tensor) -> None:
    """Replace the sums of this rank's block by those of the step: recursive doubling, which adds
    the blocks as the tree does. In round i, ranks r and r ^ 2^i exchange the sums of neighbours;
    both add them, and a + b = b + a. `spare` receives, and is overwritten.
    """
    nodes, span = -(-blocks.micro_batches // blocks.width), 1  # `span` ranks share each node
    while span < ranks.size:
        own, other, last = ranks.rank // span, ranks.rank // span ^ 1, ranks.size - 1
        there = range(other * span, min((other + 1) * span, ranks.size))
        # without a power of two of ranks, the last one stands for those that are missing
        receivers = [rank for rank in there if min(rank ^ span, last) == ranks.rank]
        sender = min(ranks.rank ^ span, last) if other < nodes else None
        ranks.exchange(total, receivers if own < nodes else [], spare, sender)
        if own < nodes and other < nodes:
            total += spare
        elif other < nodes:
            total.copy_(spare)
        nodes, span = -(-nodes // 2), 2 * span


def pieces_of(batch: Batch) -> list[Batch]:
    """Cut a micro-batch by rows into equal pieces of at most `PIECE_TOKENS` padded tokens."""
    rows, width = len(batch.src), max(batch.src.shape[1], batch.tgt_in.shape[1])
    count = min(rows, most_pieces(rows * width))
    bounds = [rows * number // count for number in range(count + 1)]
    return [batch.part(*bounds[number : number + 2]) for number in range(count)]


def most_pieces(tokens: int) -> int:
    """Return the largest number of pieces of a micro-batch of `tokens` padded tokens."""
    return -(-tokens // PIECE_TOKENS)


def most_sums(micro_batches: int, max_tokens: int, threads: int) -> int:
    """Return how many `Sums` are held at a time: the complete ones that wait in both trees, and
    one for each thread.
    """
    pieces = most_pieces(max_tokens)
    waiting = (micro_batches - 1).bit_length() + (pieces - 1).bit_length()
    return min(waiting + threads, micro_batches * pieces)


def adding(latest: Sums, kept: Sequence[Sums], count: int) -> Callable[[int], None]:
    """Return a function that adds `latest` to the tree as the sums of a micro-batch, by its number:
    for a device that computes `count` micro-batches in order and overwrites `latest` each time. The
    last of `kept` ends as the total.
    """
    free = [*kept]

    def release(sums: Sums) -> None:
        if sums is not latest:
            free.append(sums)

    def keep(sums: Sums) -> Sums:
        if sums is latest:
            sums = free.pop()
            sums.buffer.copy_(latest.buffer)
        return sums

    tree = Tree(count, release, keep, keep)
    return lambda number: tree.add(number, latest)


class Workers:
    """Threads that compute the pieces of a step, one for each `Compute`."""

    def __init__(self, computes: Sequence[Compute], total: Sums, held: int, threads: int) -> None:
        """Hold this number of `Sums`, of which `total` gets those of a step; each thread uses
        `threads` threads of OpenMP.
        """
        self.computes = computes
        self.sums = [total, *(Sums(total.grads, len(total.losses)) for _ in range(held - 1))]
        self.pool = ThreadPoolExecutor(len(computes), "piece", torch.set_num_threads, (threads,))
        self.lock = Lock()

    def learn(self, batches: Iterable[Seeded], count: int) -> None:
        """Replace the total by the sums over `count` micro-batches; raises the error of a thread,
        once no thread computes any more.
        """
        self.free: LifoQueue[Sums | None] = LifoQueue()
        for sums in reversed(self.sums):  # the first piece gets the total, which ends as the whole
            self.free.put(sums)
        self.pieces, self.has_ended = self._pieces(batches, count), False
        futures = [self.pool.submit(self._work, compute) for compute in self.computes]
        try:
            for future in futures:
                future.result()
        finally:
            self._end()
            wait(futures)

    def _pieces(self, batches: Iterable[Seeded], count: int) -> Iterator[tuple[Batch, int, Give]]:
        """Yield the pieces in order, each with its seed and where its sums go."""
        whole = Tree(count, self.free.put, lambda sums: None)
        for index, (batch, seed) in enumerate(batches):
            pieces = pieces_of(batch)
            tree = Tree(len(pieces), self.free.put, partial(whole.add, index))
            for number, piece in enumerate(pieces):
                yield piece, seed(number), partial(tree.add, number)

    def _work(self, compute: Compute) -> None:
        """Compute pieces until none is left."""
        try:
            while taken := self._take():
                (piece, seed, give), sums = taken
                compute(piece, seed, sums)
                give(sums)
        finally:
            self._end()

    def _take(self) -> tuple[tuple[Batch, int, Give], Sums] | None:
        """Return the next piece and sums for it, once some are free, or None at the end."""
        with self.lock:
            piece = None if self.has_ended else next(self.pieces, None)
            sums = None if piece is None else self.free.get()
            return None if piece is None or sums is None else (piece, sums)

    def _end(self) -> None:
        """Let no thread take another piece: all are taken, or one failed."""
        self.has_ended = True
        self.free.put(None)  # wakes a thread that waits for sums
