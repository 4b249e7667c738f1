"""Batches of tokenized pairs within a token budget.

Their order is a pure function of the seed, the epoch and the number of micro-batches in a step.
"""

import math
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mtrain.data.augment import Augmenter
from mtrain.data.bpe_dropout import SubwordSampler
from mtrain.data.store import CorpusRange, IdPairs, Ids, Store, concat_ranges
from mtrain.data.tokenizer import Tokenizer

POOL = 1 << 17  # pairs that are shuffled together and cut into batches at a time
BLOCK = 1 << 10  # consecutive pairs that stay together when pools are drawn
OPEN_ROWS = 16  # number of last rows that a pair may be packed into
SWITCH_INTERVAL = 1e-4  # seconds between switches of Python threads
CHUNK = 4000  # pairs augmented and sampled at a time; sampling depends on it


@dataclass(frozen=True)
class SpecialIds:
    """Ids of padding and of the beginning and end of sequences."""

    pad: int
    bos: int
    eos: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "SpecialIds":
        """Return the special ids of a tokenizer."""
        return cls(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)


class Batch(NamedTuple):
    """A padded micro-batch of `B` rows of one pair each, or several if packed. Sentences of `src`
    (B, S) and `tgt_out` (B, T) end in eos, sentences of `tgt_in` (B, T) start with bos.
    `positions` (N,) are the indices of the tokens that are not padding in the flattened `tgt_out`
    (B * T,), `targets` (N,) are these tokens.
    """

    src: torch.Tensor
    tgt_in: torch.Tensor
    tgt_out: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor

    @property
    def num_tokens(self) -> int:
        """Target tokens with eos, without padding."""
        return self.targets.numel()

    def part(self, start: int, stop: int) -> "Batch":
        """Return the rows from `start` to `stop` - 1 at the same padded width."""
        first, end = start * self.tgt_out.shape[1], stop * self.tgt_out.shape[1]
        inside = slice(*torch.searchsorted(self.positions, torch.tensor([first, end])).tolist())
        src, tgt_in, tgt_out = (table[start:stop] for table in self[:3])
        return Batch(src, tgt_in, tgt_out, self.positions[inside] - first, self.targets[inside])

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        if device.type != "cuda":  # wait for the copy: MPS would read a batch that is freed by then
            return Batch(*(part.to(device) for part in self))
        # a copy from pinned memory does not wait for the work that is queued on the GPU
        return Batch(*(part.pin_memory().to(device, non_blocking=True) for part in self))


class Layout(NamedTuple):
    """Where sequences are in a table: the index of the first token of each in the flattened table
    (`starts`), and the shape of the table.
    """

    starts: NDArray[np.int64]
    shape: tuple[int, int]


def pad(
    sequences: list[NDArray[Any]],
    ids: SpecialIds,
    *,
    shifted: bool = False,
    layout: Layout | None = None,
) -> torch.Tensor:
    """Write sequences with eos, or if `shifted` with bos before them, into a table (B, L) of
    padding, each into its own row unless `layout` is given. Only this pads batches;
    `training.graphs` pads them further.
    """
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    starts, shape = layout or _own_rows(lengths + 1)
    flat = np.full(math.prod(shape), ids.pad, np.int64)
    flat[concat_ranges(starts + shifted, lengths)] = np.concatenate(sequences)
    if shifted:
        flat[starts] = ids.bos
    else:
        flat[starts + lengths] = ids.eos
    return torch.from_numpy(flat.reshape(shape))


def collate(pairs: IdPairs, ids: SpecialIds, width: int = 0) -> Batch:
    """Make a batch of pairs of id sequences, packed into rows of `width` tokens if it is not 0."""
    sources, targets = [src for src, _ in pairs], [tgt for _, tgt in pairs]
    lengths = lengths_with_eos(pairs)
    src, tgt = _packed_rows(lengths, width) if width else map(_own_rows, lengths.T)
    tgt_out = pad(targets, ids, layout=tgt)
    positions = torch.from_numpy(concat_ranges(tgt.starts, lengths[:, 1]))
    return Batch(
        src=pad(sources, ids, layout=src),
        tgt_in=pad(targets, ids, shifted=True, layout=tgt),
        tgt_out=tgt_out,
        positions=positions,
        targets=tgt_out.flatten()[positions],
    )


def lengths_with_eos(pairs: Iterable[tuple[Ids, Ids]]) -> NDArray[np.int64]:
    """Return the lengths of pairs of ids, each with its eos, shape (pairs, 2)."""
    lengths = [(len(src) + 1, len(tgt) + 1) for src, tgt in pairs]
    return np.array(lengths, np.int64).reshape(-1, 2)


def _own_rows(lengths: NDArray[np.int64]) -> Layout:
    """Lay out each sequence in its own row, as wide as the longest."""
    width = int(lengths.max(initial=0))
    return Layout(np.arange(len(lengths)) * width, (len(lengths), width))


def _packed_rows(lengths: NDArray[np.int64], width: int) -> tuple[Layout, Layout]:
    """Lay out sources and targets in rows of `width` tokens, several pairs per row. A pair that
    does not fit into the current row starts the next one.
    """
    rows, columns = np.zeros(len(lengths), np.int64), np.zeros_like(lengths)
    row = src_end = tgt_end = 0
    for pair, (src, tgt) in enumerate(lengths.tolist()):
        if src_end + src > width or tgt_end + tgt > width:
            row += 1
            src_end = tgt_end = 0
        rows[pair] = row
        columns[pair] = src_end, tgt_end
        src_end += src
        tgt_end += tgt
    src, tgt = (Layout(rows * width + column, (row + 1, width)) for column in columns.T)
    return src, tgt


def _pack(lengths: NDArray[np.int64], width: int) -> list[list[int]]:
    """Put each pair into the first of the last `OPEN_ROWS` rows that has room for both its sides,
    or into a new row. Return the indices of the pairs of each row.
    """
    rows: list[list[int]] = []
    src_room: list[int] = []  # tokens that still fit into each row
    tgt_room: list[int] = []
    open_rows = range(0)
    for pair, (src, tgt) in enumerate(lengths.tolist()):  # takes a microsecond or two per pair
        for row in open_rows:
            if src_room[row] >= src and tgt_room[row] >= tgt:
                break
        else:
            row = len(rows)
            rows.append([])
            src_room.append(width)
            tgt_room.append(width)
            open_rows = range(max(0, len(rows) - OPEN_ROWS), len(rows))
        rows[row].append(pair)
        src_room[row] -= src
        tgt_room[row] -= tgt
    return rows


def batch_by_tokens(lengths: NDArray[np.int64], max_tokens: int) -> list[NDArray[np.int64]]:
    """Divide pairs into batches of similar lengths with pairs x max(S, T) <= max_tokens, and return
    the indices of each batch. A pair longer than the budget is a batch by itself.

    `lengths` (pairs, 2) counts eos. To get G * G batches, pairs are sorted by target length, cut
    into G groups, and sorted by source length within each group. Thus both source and target get
    little padding, which a single sort does not achieve.
    """
    if not len(lengths):
        return []
    longest = lengths.max(1)
    by_target = np.lexsort((lengths[:, 0], lengths[:, 1]))
    # groups have equal numbers of tokens, not of pairs, because batches do
    tokens = np.cumsum(longest[by_target])
    groups = round((tokens[-1] / max_tokens) ** 0.5)
    group = tokens * groups // (tokens[-1] + 1)
    # every second group is in descending order, so that a batch across two groups has even lengths
    direction = np.where(group % 2, -1, 1)
    order = by_target[np.lexsort((lengths[by_target, 0] * direction, group))]
    return _cut(order, longest[order], max_tokens)


def batch_by_length(lengths: NDArray[np.int64], max_tokens: int) -> list[NDArray[np.int64]]:
    """Divide sequences as `batch_by_tokens` does pairs, by their lengths (n,); shortest first."""
    order = np.argsort(lengths, kind="stable")
    return _cut(order, lengths[order], max_tokens)


def pack_by_tokens(
    lengths: NDArray[np.int64], max_tokens: int, widths: Sequence[int]
) -> list[tuple[NDArray[np.int64], int]]:
    """Pack several pairs into each row. The width of a pair's row is the smallest of `widths`
    (ascending) that holds the pair. Divide the rows into batches with rows x width <= max_tokens;
    return the indices of the pairs of each batch, and its width.

    Pairs longer than all widths come first, in batches of `batch_by_tokens`, whose width is 0;
    without widths these are all pairs. The pairs of an incomplete batch are packed into rows of the
    next width, so that only the last batch is incomplete.

    The first pair of a row does not fit into the row before it, so `collate` makes the same rows.
    """
    longest = lengths.max(1)
    unpacked = np.flatnonzero(longest > max(widths, default=0))
    batches = [(unpacked[batch], 0) for batch in batch_by_tokens(lengths[unpacked], max_tokens)]
    left_over = np.zeros(0, np.int64)
    for narrower, width in pairwise((0, *widths)):
        of_width = np.flatnonzero((narrower < longest) & (longest <= width))
        pairs = np.append(left_over, of_width)
        rows = _pack(lengths[pairs], width)
        rows_per_batch = max_tokens // width
        used = len(rows)
        if width < widths[-1]:
            used -= used % rows_per_batch
        for start in range(0, used, rows_per_batch):
            batch = list(chain(*rows[start : start + rows_per_batch]))
            batches.append((pairs[batch], width))
        left_over = pairs[list(chain(*rows[used:]))]
    return batches


def _cut(
    order: NDArray[np.int64], longest: NDArray[np.int64], max_tokens: int
) -> list[NDArray[np.int64]]:
    """Cut the indices `order` into batches, each as large as the budget allows; `longest` has the
    length of each item in this order.
    """
    batches = []
    start = 0
    while start < len(order):
        window = longest[start : start + max_tokens // int(longest[start])]
        widths = np.maximum.accumulate(window)
        fits = widths * np.arange(1, len(window) + 1) <= max_tokens
        rows = max(1, int(fits.sum()))
        batches.append(order[start : start + rows])
        start += rows
    return batches


@dataclass(frozen=True)
class MicroBatch:
    """The plan of a micro-batch: indices of its pairs, number of target tokens with eos, width of
    packed rows (0: not packed), and the pairs themselves if sampling or augmentation changed them.
    """

    indices: NDArray[np.int64]
    num_tokens: int
    width: int
    pairs: IdPairs | None = None


class TokenBatches:
    """The training stream: every pair once per epoch, in micro-batches of at most `max_tokens`
    padded tokens per side.

    An epoch is a sequence of pools. A pool consists of blocks of consecutive pairs, drawn from the
    whole corpus; it does not depend on earlier pools. Blocks of corpora with a weight above 1 occur
    several times; for a fractional weight the last occurrence has only a random fraction of the
    pairs, drawn again in each epoch.

    Each of the `step_batches` consecutive micro-batches of a step comes from a different range of
    lengths, so that a micro-batch has little padding and a step has short and long sentences
    (except at the end of a pool). Steps of equal lengths learn far more slowly.

    With an `augmenter`, which changes text, a `sampler`, which segments it anew, or `row_widths`,
    for packing pairs into rows, a thread prepares the next pool ahead of time, until `close`.
    """

    def __init__(
        self,
        store: Store,
        max_tokens: int,
        seed: int,
        ids: SpecialIds,
        step_batches: int,
        sampler: SubwordSampler | None = None,
        augmenter: Augmenter | None = None,
        row_widths: Sequence[int] = (),
    ) -> None:
        self.store, self.ids, self.seed = store, ids, seed
        self.max_tokens, self.step_batches = max_tokens, step_batches
        self.sampler, self.augmenter, self.row_widths = sampler, augmenter, row_widths
        self.executor = ThreadPoolExecutor(1)
        self.plans_ahead = bool(sampler or augmenter or row_widths)
        if self.plans_ahead:  # by default, the thread delays each call of torch elsewhere by 5 ms
            sys.setswitchinterval(SWITCH_INTERVAL)
        self.planned: dict[tuple[int, int], Future[list[MicroBatch]]] = {}
        self.is_closed = False
        self.visits = np.concatenate([_block_schedule(part) for part in store.ranges])
        pairs = ((self.visits[:, 1] - self.visits[:, 0]) * self.visits[:, 2]).sum()
        self.pools = math.ceil(float(pairs) / POOL)

    def close(self) -> None:
        """Stop the thread: Python does not exit before it ends."""
        self.is_closed = True
        self.executor.shutdown(wait=False, cancel_futures=True)

    def read(self, planned: MicroBatch) -> Batch:
        """Return a planned micro-batch as a padded batch."""
        return collate(planned.pairs or self._pairs(planned.indices), self.ids, planned.width)

    def _pairs(self, rows: NDArray[np.int64]) -> IdPairs:
        return [self.store.pair(int(row)) for row in rows]

    def plan(self, epoch: int, pool: int) -> list[MicroBatch]:
        """Return the micro-batches of a pool. Only lengths are read unless pairs are changed."""
        if not self.plans_ahead:
            return self._plan(epoch, pool)
        following = (epoch, pool + 1) if pool + 1 < self.pools else (epoch + 1, 0)
        self.planned = {
            key: self.planned.get(key) or self.executor.submit(self._plan, *key)
            for key in ((epoch, pool), following)
        }
        return self.planned[epoch, pool].result()

    def _plan(self, epoch: int, pool: int) -> list[MicroBatch]:
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.visits))
        visits = self.visits[np.array_split(order, self.pools)[pool]]
        # pool + 1, because [seed, epoch, 0] is the same seed as [seed, epoch]
        random = np.random.default_rng([self.seed, epoch, pool + 1])
        drawn = [self._visit(int(start), int(stop), part, random) for start, stop, part in visits]
        rows = np.concatenate([rows for rows, _ in drawn])
        pairs: IdPairs | None = None
        if self.augmenter or self.sampler:
            pairs = self._changed(rows, epoch, random)
            lengths = lengths_with_eos(pairs)
        else:
            lengths = np.concatenate([lengths for _, lengths in drawn]) + 1  # with eos
        shuffle = random.permutation(len(rows))
        batches = pack_by_tokens(lengths[shuffle], self.max_tokens, self.row_widths)
        planned = []
        for number in _deal(len(batches), self.step_batches, random):
            batch, width = batches[number]
            chosen = shuffle[batch]
            batch_pairs = None if pairs is None else [pairs[index] for index in chosen]
            num_tokens = int(lengths[chosen, 1].sum())
            planned.append(MicroBatch(rows[chosen], num_tokens, width, batch_pairs))
        return planned

    def _changed(self, rows: NDArray[np.int64], epoch: int, random: np.random.Generator) -> IdPairs:
        """Return the pairs with these indices, augmented and segmented anew; raises
        `CancelledError` after `close`.
        """
        if self.sampler:
            random = np.random.default_rng(int(random.integers(1 << 32)))
        changed: IdPairs = []
        for start in range(0, len(rows), CHUNK):
            if self.is_closed:
                raise CancelledError
            chunk = rows[start : start + CHUNK]
            pairs = self._pairs(chunk)
            if self.augmenter:
                pairs = self.augmenter.change(pairs, chunk, epoch)
            changed += self.sampler.draw(pairs, random) if self.sampler else pairs
        return changed

    def _visit(
        self, start: int, stop: int, fraction: float, random: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw a fraction of the pairs of a block; return their indices and lengths without eos."""
        rows = np.arange(start, stop)
        lengths = self.store.lengths_of(start, stop)
        if fraction < 1:
            is_drawn = random.random(len(rows)) < fraction
            rows, lengths = rows[is_drawn], lengths[is_drawn]
        return rows, lengths


def _block_schedule(part: CorpusRange) -> NDArray[np.float64]:
    """Return start, stop and the fraction of pairs to draw for each visit to a block of a corpus in
    an epoch: (visits, 3).
    """
    starts = np.arange(part.start, part.stop, BLOCK)
    stops = np.minimum(starts + BLOCK, part.stop)
    rest, whole = math.modf(part.weight)
    fractions = [1.0] * int(whole) + ([rest] if rest else [])
    columns = (np.tile(starts, len(fractions)), np.tile(stops, len(fractions)))
    return np.stack((*columns, np.repeat(fractions, len(starts))), 1)


def _deal(count: int, ranges: int, random: np.random.Generator) -> list[int]:
    """Cut the numbers below `count` into `ranges` ranges, shuffle each, then take a number from
    each range in turn.
    """
    shuffled = [random.permutation(part) for part in np.array_split(np.arange(count), ranges)]
    return [number for turn in zip_longest(*shuffled) for number in turn if number is not None]
