"""Tokenized corpora on disk: flat memory-mapped ids with offsets, built once, keyed by content.

A store is a sequence of shards. Line `2 * i` of a shard is the source of its pair `i`, line `2 * i
+ 1` the target, both without bos and eos. A shard's note is written last.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, compress, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from mtrain.corpus.readers import Pair
from mtrain.data.cache import cache_key, remembered
from mtrain.data.filters import Selection
from mtrain.data.tokenizer import Tokenizer
from mtrain.runs import manifest
from mtrain.runtime import files
from mtrain.runtime.errors import UserError
from mtrain.runtime.json_reader import read_json_file
from mtrain.runtime.workers import map_tasks

FORMAT = 3
CHUNK = 10_000  # pairs handed to a worker at a time
SHARD_CHUNKS = 100  # in a shard; a stopped build resumes after the last whole shard
INLINE_CHUNKS = 10  # this much is tokenized sooner than processes start

IDS, OFFSETS, NOTE = "{:05d}.ids", "{:05d}.npy", "{:05d}.json"  # files of a shard, by its number

DEATH = (
    "a process that tokenizes the corpus was killed, perhaps for lack of memory: "
    "run the same command again, with a lower data.workers if it repeats"
)

Encoded = tuple[NDArray[np.uint32], NDArray[np.int64], Counter[str]]
Encoding = Generator[Encoded, None, None]


@dataclass(frozen=True)
class Shard:
    """Memory-mapped ids of consecutive lines, and their offsets."""

    ids: NDArray[Any]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return (len(self.offsets) - 1) // 2

    def line(self, number: int) -> NDArray[Any]:
        """Return the ids of one line, without copying."""
        return self.ids[self.offsets[number] : self.offsets[number + 1]]


@dataclass(frozen=True)
class Written:
    """Content of a shard: pairs read, pairs left out by reason, number of ids."""

    read: int
    dropped: dict[str, int]
    ids: int


@dataclass(frozen=True)
class Description:
    """Content of `store.json`, in addition to the shards' own notes."""

    dtype: Literal["uint16", "uint32"]
    shards: int
    counts: dict[str, int]


DESCRIPTION, WRITTEN, WHOLE = TypeAdapter(Description), TypeAdapter(Written), TypeAdapter(bool)


@dataclass(frozen=True)
class Part:
    """Pairs `start` to `stop` - 1 of a store: a corpus. An epoch sees each pair `weight` times."""

    start: int
    stop: int
    weight: float


class Store:
    """Pairs of id sequences; opening takes no longer for large stores."""

    def __init__(
        self, shards: list[Shard], counts: dict[str, int], parts: list[Part] | None = None
    ) -> None:
        self.shards, self.counts = shards, counts
        self.starts = list(accumulate(map(len, shards), initial=0))
        self.parts = parts or [Part(0, len(self), 1.0)]

    @classmethod
    def join(cls, stores: list["Store"], weights: list[float]) -> "Store":
        """Concatenate stores."""
        starts = list(accumulate(map(len, stores), initial=0))
        parts = [Part(*each) for each in zip(starts, starts[1:], weights, strict=False)]
        counts = sum((Counter(store.counts) for store in stores), Counter[str]())
        return cls([shard for store in stores for shard in store.shards], dict(counts), parts)

    def __len__(self) -> int:
        return self.starts[-1]

    def lengths_of(self, start: int, stop: int) -> NDArray[np.int64]:
        """Lengths without eos of the pairs `start` to `stop` - 1, shape (pairs, 2)."""
        parts = [np.zeros((0, 2), np.int64)]
        number = max(0, bisect_right(self.starts, start) - 1)
        while number < len(self.shards) and self.starts[number] < stop:
            shard, first = self.shards[number], self.starts[number]
            low, high = max(start - first, 0), min(stop - first, len(shard))
            parts.append(np.diff(shard.offsets[2 * low : 2 * high + 1]).reshape(-1, 2))
            number += 1
        return np.concatenate(parts)

    def equal_sides(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Whether the sides of each of these pairs are the same."""
        lengths = self.lengths_of(start, stop)
        same: NDArray[np.bool_] = lengths[:, 0] == lengths[:, 1]
        for index in np.flatnonzero(same):  # few, so only their ids are read
            same[index] = np.array_equal(*self.pair(start + int(index)))
        return same

    def pair(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Ids of a pair's source and target."""
        number = bisect_right(self.starts, index) - 1
        shard, line = self.shards[number], 2 * (index - self.starts[number])
        return shard.line(line), shard.line(line + 1)


def store_key(corpora: list[str], tokenizer: str, selection: Selection, invalid_utf8: str) -> str:
    """Name a store by all that its content depends on."""
    kept = (selection.max_length, selection.filter.model_dump())
    return cache_key("store", FORMAT, corpora, tokenizer, *kept, invalid_utf8)


def open_store(path: Path) -> Store | None:
    """Open a store; None if it is missing or damaged."""
    try:
        paths = sorted(path.iterdir()) if path.is_dir() else []
        remembered(paths, "whole", partial(_verify, path), WHOLE)
        found = read_json_file(path / "store.json", DESCRIPTION)
        shards = [_open_shard(path, number, found.dtype) for number in range(found.shards)]
    except (manifest.DamagedError, FileNotFoundError, ValueError):
        return None
    return Store(shards, found.counts)


def _verify(path: Path) -> bool:
    manifest.verify(path, "store.json")
    return True


def _open_shard(path: Path, number: int, dtype: str) -> Shard:
    file = path / IDS.format(number)
    ids = np.memmap(file, dtype, "r") if file.stat().st_size else np.zeros(0, dtype)
    offsets = np.load(path / OFFSETS.format(number), mmap_mode="r", allow_pickle=False)
    # still on disk: slices of plain arrays are made faster
    return Shard(np.asarray(ids), np.asarray(offsets))


def build_store(
    path: Path,
    pairs: Iterable[Pair],
    tokenizer: Tokenizer,
    *,
    selection: Selection,
    counts: Counter[str],
    workers: int,
    progress: Callable[[int], None],
) -> None:
    """Tokenize `pairs` with several processes and keep those that pass the filter.

    `counts` is what reading dropped; `progress` gets the number of pairs read. A stopped build of
    the same store is resumed. Raises `UserError`, and `OSError` if the disk is full.
    """
    dtype: Literal["uint16", "uint32"] = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"

    def fill(directory: Path) -> None:
        shards, iterator = _whole_shards(directory), iter(pairs)
        for number in _skip(iterator, sum(shard.read for shard in shards), path):
            progress(number)
        chunks = iter(lambda: list(islice(iterator, CHUNK)), [])
        with closing(_encode_all(chunks, tokenizer, selection, workers)) as encoded:
            while (first := next(encoded, None)) is not None:
                group = chain((first,), islice(encoded, SHARD_CHUNKS - 1))
                shards.append(_write_shard(directory, len(shards), group, dtype, progress))
        for shard in shards:
            counts.update(shard.dropped)
        description = Description(dtype, len(shards), dict(counts))
        files.write_bytes(directory / "store.json", DESCRIPTION.dump_json(description))

    manifest.write_directory(path, fill, keep=lambda aside: bool(_whole_shards(aside)))


def _whole_shards(directory: Path) -> list[Written]:
    """Return the notes of the shards that were written to their ends."""
    shards: list[Written] = []
    with suppress(FileNotFoundError, ValueError):
        while True:
            shards.append(read_json_file(directory / NOTE.format(len(shards)), WRITTEN))
    return shards


def _skip(pairs: Iterator[Pair], count: int, path: Path) -> Iterator[int]:
    """Skip pairs that are in whole shards and yield their numbers; where the text has fewer pairs,
    remove the shards and raise `UserError`.
    """
    for start in range(0, count, CHUNK):
        number = min(CHUNK, count - start)
        if next(islice(pairs, number - 1, None), None) is None:
            manifest.discard(path)
            raise UserError(
                f"{path}: a stopped build left damaged shards, which are now removed; "
                "run the same command again"
            )
        yield number


def _write_shard(
    directory: Path,
    number: int,
    encoded: Iterator[Encoded],
    dtype: str,
    progress: Callable[[int], None],
) -> Written:
    """Write ids, then offsets, then the note."""
    ids_file, offsets_file = directory / IDS.format(number), directory / OFFSETS.format(number)
    read, dropped, lengths = 0, Counter[str](), [np.zeros(1, np.int64)]
    with files.create(ids_file) as out:
        for ids, lens, left_out in encoded:
            out.write(ids.astype(dtype).tobytes())
            lengths.append(lens)
            dropped.update(left_out)
            number_read = len(lens) // 2 + left_out.total()
            progress(number_read)
            read += number_read
    offsets = np.concatenate(lengths).cumsum()
    with files.create(offsets_file) as out:
        header = {"descr": "<i8", "fortran_order": False, "shape": offsets.shape}
        np.lib.format.write_array_header_1_0(out, header)
        out.write(offsets.astype("<i8").tobytes())  # numpy's own writing hides why a disk fails
    files.sync(ids_file)
    files.sync(offsets_file)
    written = Written(read, dropped, int(offsets[-1]))
    files.write_bytes(directory / NOTE.format(number), WRITTEN.dump_json(written))
    return written


def _encode_all(
    chunks: Iterator[list[Pair]], tokenizer: Tokenizer, selection: Selection, workers: int
) -> Encoding:
    """Encode chunks in order, in worker processes if there are many."""
    first = list(islice(chunks, INLINE_CHUNKS + 1))
    chunks = chain(first, chunks)
    if len(first) <= INLINE_CHUNKS or workers == 1:
        yield from (_encode_chunk(chunk, tokenizer, selection) for chunk in chunks)
        return
    yield from map_tasks(partial(_encoder, tokenizer.proto, selection), chunks, workers, DEATH)


def _encoder(proto: bytes, selection: Selection) -> Callable[[list[Pair]], Encoded]:
    """Return the function of a worker process."""
    return partial(_encode_chunk, tokenizer=Tokenizer(proto), selection=selection)


def _encode_chunk(chunk: list[Pair], tokenizer: Tokenizer, selection: Selection) -> Encoded:
    """Return the ids of the kept pairs, the lengths of their lines, and the numbers of dropped
    pairs by reason.
    """
    dropped = Counter[str]()
    pairs = selection.by_text(chunk, dropped)
    pairs = selection.by_characters(pairs, tokenizer.longest_piece, dropped)
    lines = tokenizer.encode([text for pair in pairs for text in pair])
    lengths = np.fromiter(map(len, lines), np.int64, len(lines))
    passed = np.repeat(selection.by_length(lengths.reshape(-1, 2), dropped), 2)
    kept, lengths = compress(lines, passed.tolist()), lengths[passed]
    ids = np.fromiter(chain.from_iterable(kept), np.uint32, int(lengths.sum()))
    return ids, lengths, +dropped  # only what occurred
