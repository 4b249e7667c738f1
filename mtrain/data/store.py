"""Tokenized corpora on disk: flat memory-mapped ids with offsets, built once, keyed by content.

A store has the ids of all lines, concatenated, and the offsets at which lines start and end. Line
`2 * i` is the source of pair `i`, line `2 * i + 1` its target, both without bos and eos.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, chain, compress, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mtrain.corpus.lines import chunked
from mtrain.corpus.readers import Pair
from mtrain.data.cache import cache_key, cached_fact
from mtrain.data.filters import FILTERS, Selection
from mtrain.data.tokenizer import Tokenizer
from mtrain.runs import manifest
from mtrain.runtime import files
from mtrain.runtime.json_reader import adapter_of, read_json_file
from mtrain.runtime.workers import map_tasks

FORMAT = 4
CHUNK = 10_000  # pairs handed to a worker at a time
INLINE_CHUNKS = 10  # up to this many chunks, starting workers takes longer than tokenizing

IDS, OFFSETS, STORE = "ids", "offsets", "store.json"  # the files of a store

WORKER_DIED = (
    "a process that tokenizes the corpus was killed, perhaps for lack of memory; "
    "run the same command again, with a lower data.workers if it happens again"
)

Ids = NDArray[Any]
IdPairs = list[tuple[Ids, Ids]]  # source and target, without bos and eos
Encoded = tuple[NDArray[np.uint32], NDArray[np.int64], Counter[str]]


@dataclass(frozen=True)
class TokenizedCorpus:
    """Memory-mapped ids of a corpus's lines, their offsets, and the pairs left out, by reason."""

    ids: NDArray[Any]
    offsets: NDArray[np.int64]
    counts: dict[str, int]

    def __len__(self) -> int:
        return (len(self.offsets) - 1) // 2


@dataclass(frozen=True)
class Description:
    """Content of `store.json`: the type of the ids, and the pairs left out, by reason."""

    dtype: Literal["uint16", "uint32"]
    counts: dict[str, int]


@dataclass(frozen=True)
class CorpusRange:
    """The pairs `start` to `stop` - 1 of a store: one corpus. An epoch uses each of its pairs
    `weight` times.
    """

    start: int
    stop: int
    weight: float


class Store:
    """Tokenized pairs of weighted corpora. Opening a store takes the same time for any size."""

    def __init__(self, corpora: list[TokenizedCorpus], weights: list[float]) -> None:
        self.corpora = corpora
        self.starts = starts = list(accumulate(map(len, corpora), initial=0))
        self.ranges = list(map(CorpusRange, starts, starts[1:], weights))
        self.counts = sum((Counter(corpus.counts) for corpus in corpora), Counter[str]())

    def __len__(self) -> int:
        return self.starts[-1]

    def lengths_of(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the lengths without eos of the pairs `start` to `stop` - 1, shape (pairs, 2)."""
        parts = [np.zeros((0, 2), np.int64)]
        first = bisect_right(self.starts, start) - 1
        last = bisect_left(self.starts, stop)
        for corpus, begin in zip(self.corpora[first:last], self.starts[first:last], strict=False):
            low, high = max(start - begin, 0), min(stop - begin, len(corpus))
            parts.append(np.diff(corpus.offsets[2 * low : 2 * high + 1]).reshape(-1, 2))
        return np.concatenate(parts)

    def equal_sides(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return for each pair from `start` to `stop` - 1 whether its sides are the same."""
        lengths = self.lengths_of(start, stop)
        same: NDArray[np.bool_] = lengths[:, 0] == lengths[:, 1]
        for index in np.flatnonzero(same):  # few, so only their ids are read
            same[index] = np.array_equal(*self.pair(start + int(index)))
        return same

    def pair(self, index: int) -> tuple[Ids, Ids]:
        """Return the ids of a pair's source and target, without copying."""
        number = bisect_right(self.starts, index) - 1
        corpus = self.corpora[number]
        line = 2 * (index - self.starts[number])
        start, middle, stop = corpus.offsets[line : line + 3].tolist()
        return corpus.ids[start:middle], corpus.ids[middle:stop]


def concat_ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return consecutive numbers from each start: `concat_ranges([5, 9], [3, 2])` is 5 6 7 9 10."""
    before = lengths.cumsum() - lengths  # the lengths of earlier ranges
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def store_key(corpora: list[str], tokenizer: str, selection: Selection, invalid_utf8: str) -> str:
    """Return the cache key of a store; the hashes `corpora`, from `scan`, cover swap and tag."""
    settings = (selection.max_length, selection.filter.model_dump())
    return cache_key("store", FORMAT, FILTERS, corpora, tokenizer, *settings, invalid_utf8)


def open_tokenized(path: Path) -> TokenizedCorpus:
    """Open a tokenized corpus; raises `DamagedError`, or `ValueError` for another format."""
    paths = sorted(path.iterdir()) if path.is_dir() else []
    cached_fact(paths, "whole", partial(manifest.verify, path, STORE, IDS, OFFSETS), list[str])
    description = read_json_file(path / STORE, Description)
    dtype = description.dtype
    has_ids = (path / IDS).stat().st_size > 0
    ids = np.memmap(path / IDS, dtype, "r") if has_ids else np.zeros(0, dtype)
    offsets = np.memmap(path / OFFSETS, "<i8", "r")
    # asarray does not read the files; slicing a plain array is faster
    return TokenizedCorpus(np.asarray(ids), np.asarray(offsets), description.counts)


def write_tokenized(
    directory: Path,
    pairs: Iterable[Pair],
    tokenizer: Tokenizer,
    *,
    selection: Selection,
    counts: Counter[str],
    workers: int,
    progress: Callable[[int], None],
) -> None:
    """Tokenize `pairs` in several processes and store the pairs that pass the filter.

    `counts` has the pairs that reading dropped, by reason; `progress` gets the number of pairs of
    each chunk. Raises `UserError`, and `OSError` if the disk is full.
    """
    dtype: Literal["uint16", "uint32"] = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    end = 0
    chunks = chunked(pairs, CHUNK)
    with (
        closing(_encode_all(chunks, tokenizer, selection, workers)) as encoded,
        files.create(directory / IDS) as ids_out,
        files.create(directory / OFFSETS) as offsets_out,
    ):
        offsets_out.write(bytes(8))
        for ids, lengths, dropped in encoded:
            ids_out.write(ids.astype(dtype).tobytes())
            offsets_out.write((end + lengths.cumsum()).astype("<i8").tobytes())
            end += len(ids)
            counts.update(dropped)
            progress(len(lengths) // 2 + dropped.total())
    body = adapter_of(Description).dump_json(Description(dtype, dict(counts)))
    files.write_bytes(directory / STORE, body)


def _encode_all(
    chunks: Iterator[list[Pair]], tokenizer: Tokenizer, selection: Selection, workers: int
) -> Generator[Encoded]:
    """Encode chunks in order, in worker processes if there are many chunks."""
    first_chunks = list(islice(chunks, INLINE_CHUNKS + 1))
    chunks = chain(first_chunks, chunks)
    if len(first_chunks) <= INLINE_CHUNKS or workers == 1:
        yield from (_encode_chunk(chunk, tokenizer, selection) for chunk in chunks)
    else:
        encode = partial(_encode_in_worker, tokenizer.proto, selection)
        yield from map_tasks(encode, chunks, workers, WORKER_DIED)


_tokenizer_of = cache(Tokenizer)  # in a worker process, loaded once


def _encode_in_worker(proto: bytes, selection: Selection, chunk: list[Pair]) -> Encoded:
    return _encode_chunk(chunk, _tokenizer_of(proto), selection)


def _encode_chunk(chunk: list[Pair], tokenizer: Tokenizer, selection: Selection) -> Encoded:
    """Return the ids of the kept pairs, the lengths of their lines, and the numbers of dropped
    pairs by reason.
    """
    dropped = Counter[str]()
    pairs = selection.by_text(chunk, dropped)
    pairs = selection.by_characters(pairs, tokenizer.longest_piece, dropped)
    lines = tokenizer.encode([text for pair in pairs for text in pair])
    if tag := tokenizer.tag_ids(selection.tag):
        lines[::2] = [tag + line for line in lines[::2]]
    lengths = np.fromiter(map(len, lines), np.int64, len(lines))
    passed = np.repeat(selection.by_length(lengths.reshape(-1, 2), dropped), 2)
    kept_lines = compress(lines, passed.tolist())
    lengths = lengths[passed]
    ids = np.fromiter(chain.from_iterable(kept_lines), np.uint32, int(lengths.sum()))
    return ids, lengths, +dropped  # without counts of 0
