"""Tokenized corpora on disk: flat memory-mapped ids with offsets, built once, keyed by content.

A store is a row of shards, each of as many pairs as were read for it, less those left out. Line
`2 * i` of a shard is the source of its pair `i`, line `2 * i + 1` the target, both without bos and
eos.
"""

import multiprocessing
import signal
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from mtrain import manifest
from mtrain.cache import cache_key, remembered
from mtrain.corpus import Pair
from mtrain.errors import UserError
from mtrain.json_reader import read_json_file
from mtrain.stop import EXIT_CODES
from mtrain.text import DROPPED
from mtrain.tokenizer import Tokenizer

FORMAT = 2
CHUNK = 10_000  # pairs handed to a worker at a time
SHARD_CHUNKS = 100  # to a shard; a build that was stopped goes on behind the last whole one
INLINE_CHUNKS = 10  # starting processes takes longer than tokenizing this much in the one there is

Encoded = tuple[NDArray[np.uint32], NDArray[np.int64], int]
Encoding = Generator[Encoded, None, None]


@dataclass(frozen=True)
class Shard:
    """Ids of lines one after the other, and where each begins; memory-mapped."""

    ids: NDArray[Any]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return (len(self.offsets) - 1) // 2

    def line(self, number: int) -> NDArray[Any]:
        """Ids of one line, without copying."""
        return self.ids[self.offsets[number] : self.offsets[number + 1]]


@dataclass(frozen=True)
class Written:
    """What a shard was made of: pairs read, and too long to be kept; ids; tokens of the targets."""

    read: int = 0
    too_long: int = 0
    ids: int = 0
    tgt_tokens: int = 0


@dataclass(frozen=True)
class Description:
    """What `store.json` tells, besides the shards' own notes."""

    dtype: Literal["uint16", "uint32"]
    shards: int
    counts: dict[str, int]


DESCRIPTION, WRITTEN, WHOLE = TypeAdapter(Description), TypeAdapter(Written), TypeAdapter(bool)


class Store:
    """Pairs of id sequences: opening costs nothing whatever the size."""

    def __init__(self, shards: list[Shard], tgt_tokens: int, counts: dict[str, int]) -> None:
        """`tgt_tokens` is the sum of all targets' lengths, without eos."""
        self.shards, self.tgt_tokens, self.counts = shards, tgt_tokens, counts
        self.starts = list(accumulate(map(len, shards), initial=0))

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
        """Tell of each of these pairs whether its sides are the same."""
        lengths = self.lengths_of(start, stop)
        same: NDArray[np.bool_] = lengths[:, 0] == lengths[:, 1]
        for index in np.flatnonzero(same):  # few: ids are read of these alone
            same[index] = np.array_equal(*self.pair(start + int(index)))
        return same

    def pair(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Ids of a pair's source and target."""
        number = bisect_right(self.starts, index) - 1
        shard, line = self.shards[number], 2 * (index - self.starts[number])
        return shard.line(line), shard.line(line + 1)


def store_key(corpora: list[str], tokenizer: str, max_length: int | None, invalid_utf8: str) -> str:
    """Name a store by all that its content depends on."""
    return cache_key("store", FORMAT, corpora, tokenizer, max_length, invalid_utf8)


def open_store(path: Path) -> Store | None:
    """Open a store, or return None where there is no whole one."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else []
        remembered(files, "whole", partial(_verify, path), WHOLE)
        found, notes = read_json_file(path / "store.json", DESCRIPTION), _whole_shards(path)
        shards = [
            _open_shard(path, number, found.dtype if note.ids else None)
            for number, note in enumerate(notes)
        ]
    except (manifest.DamagedError, FileNotFoundError, ValueError):
        return None
    if len(shards) != found.shards:
        return None
    return Store(shards, sum(note.tgt_tokens for note in notes), found.counts)


def _verify(path: Path) -> bool:
    manifest.verify(path, "store.json")
    return True


def _open_shard(path: Path, number: int, dtype: str | None) -> Shard:
    """Map a shard's files; no `dtype` is for one without ids, of which there is no mapping."""
    ids = np.zeros(0) if dtype is None else np.memmap(path / _ids_name(number), dtype, "r")
    offsets = np.load(path / _offsets_name(number), mmap_mode="r", allow_pickle=False)
    # still on disk; slices of plain arrays are made faster
    return Shard(np.asarray(ids), np.asarray(offsets))


def _ids_name(number: int) -> str:
    return f"{number:05d}.ids"


def _offsets_name(number: int) -> str:
    return f"{number:05d}.npy"


def _note_name(number: int) -> str:
    """The last of a shard's files to be written tells that it is whole."""
    return f"{number:05d}.json"


def build_store(
    path: Path,
    pairs: Iterable[Pair],
    tokenizer: Tokenizer,
    *,
    max_length: int | None,
    counts: Counter[str],
    workers: int,
    progress: Callable[[int], None],
) -> Store:
    """Tokenize `pairs` with several processes and keep what fits in `max_length` tokens (with eos).

    `counts` is what reading dropped; `progress` is told the number of pairs read. What a stopped
    build of the same store had written is taken up. Raises `UserError`, and `OSError` where the
    disk does not take the store.
    """
    dtype: Literal["uint16", "uint32"] = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"

    def fill(directory: Path) -> None:
        shards = _whole_shards(directory)
        iterator = iter(pairs)
        _skip(iterator, sum(shard.read for shard in shards), progress)
        chunks = iter(lambda: list(islice(iterator, CHUNK)), [])
        with closing(_encode_all(chunks, tokenizer, max_length, workers)) as encoded:
            while (first := next(encoded, None)) is not None:
                group = chain((first,), islice(encoded, SHARD_CHUNKS - 1))
                shards.append(_write_shard(directory, len(shards), group, dtype, progress))
        if too_long := sum(shard.too_long for shard in shards):
            counts[f"{DROPPED}longer than {max_length} tokens"] += too_long
        description = Description(dtype, len(shards), dict(counts))
        (directory / "store.json").write_bytes(DESCRIPTION.dump_json(description))

    manifest.write_directory(path, fill, keep=lambda aside: bool(_whole_shards(aside)))
    store = open_store(path)
    if store is None:
        raise UserError(f"{path}: the tokenized corpus could not be read back; is the disk sound?")
    return store


def _whole_shards(directory: Path) -> list[Written]:
    """Read what a build noted of the shards that it finished."""
    shards: list[Written] = []
    with suppress(FileNotFoundError, ValueError):
        while True:
            shards.append(read_json_file(directory / _note_name(len(shards)), WRITTEN))
    return shards


def _skip(pairs: Iterator[Pair], count: int, progress: Callable[[int], None]) -> None:
    """Read over pairs that are in whole shards already."""
    for start in range(0, count, CHUNK):
        number = min(CHUNK, count - start)
        deque(islice(pairs, number), maxlen=0)
        progress(number)


def _write_shard(
    directory: Path,
    number: int,
    encoded: Iterator[Encoded],
    dtype: str,
    progress: Callable[[int], None],
) -> Written:
    """Write ids as they come, then where each line begins, then that the shard is whole."""
    written, lengths = Written(), [np.zeros(1, np.int64)]
    with (directory / _ids_name(number)).open("wb") as out:
        for ids, lens, too_long in encoded:
            out.write(ids.astype(dtype).tobytes())
            lengths.append(lens)
            read = len(lens) // 2 + too_long
            written = Written(
                written.read + read,
                written.too_long + too_long,
                written.ids + len(ids),
                written.tgt_tokens + int(lens[1::2].sum()),
            )
            progress(read)
    with (directory / _offsets_name(number)).open("wb") as out:
        offsets = np.concatenate(lengths).cumsum()
        header = {"descr": "<i8", "fortran_order": False, "shape": offsets.shape}
        np.lib.format.write_array_header_1_0(out, header)
        out.write(offsets.astype("<i8").tobytes())  # numpy's own writing hides why a disk fails
    manifest.sync(directory / _ids_name(number))
    manifest.sync(directory / _offsets_name(number))
    manifest.write_bytes(directory / _note_name(number), WRITTEN.dump_json(written))
    return written


def _encode_all(
    chunks: Iterator[list[Pair]], tokenizer: Tokenizer, max_length: int | None, workers: int
) -> Encoding:
    """Encode chunks in order, in other processes if there are many."""
    first = list(islice(chunks, INLINE_CHUNKS + 1))
    chunks = chain(first, chunks)
    if len(first) > INLINE_CHUNKS and workers > 1:
        return _encode_in_processes(chunks, tokenizer, max_length, workers)
    return (_encode_chunk(chunk, tokenizer, max_length) for chunk in chunks)


def _encode_in_processes(
    chunks: Iterator[list[Pair]], tokenizer: Tokenizer, max_length: int | None, workers: int
) -> Encoding:
    """Encode chunks by processes that take turns. They share nothing, no queue and no lock: the
    death of one is an end of its pipe, and nobody waits for ever.
    """
    crew = [_start_worker(tokenizer, max_length) for _ in range(workers)]
    idle, busy = deque(pipe for _, pipe in crew), deque[Connection]()
    try:
        for chunk in chunks:
            if not idle:
                yield busy[0].recv()
                idle.append(busy.popleft())
            idle[0].send(chunk)
            busy.append(idle.popleft())
        for pipe in busy:
            yield pipe.recv()
    except (EOFError, OSError):  # between two messages, within one
        raise UserError(
            "a process that tokenizes the corpus was killed, perhaps for lack of memory: "
            "run the same command again, with a lower data.workers if it repeats"
        ) from None
    finally:
        for process, _ in crew:
            process.kill()
            process.join()


def _start_worker(tokenizer: Tokenizer, max_length: int | None) -> tuple[BaseProcess, Connection]:
    """Start a process that encodes what it is sent. Signals that ask a job to stop are blocked in
    it from its first moment on, for stopping is this process's to decide.
    """
    context = multiprocessing.get_context("spawn")  # forking a process with threads can deadlock
    resource_tracker.ensure_running()  # it would unblock signals when the first process starts
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(there, tokenizer.proto, max_length), daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, EXIT_CODES)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    there.close()  # else the worker's death would not be seen here
    return process, here


def _work(pipe: Connection, proto: bytes, max_length: int | None) -> None:
    tokenizer = Tokenizer(proto)
    with suppress(EOFError, OSError):  # nobody is left who wants more
        while True:
            pipe.send(_encode_chunk(pipe.recv(), tokenizer, max_length))


def _encode_chunk(chunk: list[Pair], tokenizer: Tokenizer, max_length: int | None) -> Encoded:
    """Return the ids of the pairs that fit, one after the other, the lengths of their lines, and
    how many did not.
    """
    lines = tokenizer.encode([text for pair in chunk for text in pair])
    if max_length is not None:
        fitting = [
            i for i in range(0, len(lines), 2) if max(len(lines[i]), len(lines[i + 1])) < max_length
        ]
        kept = [lines[j] for i in fitting for j in (i, i + 1)]
    else:
        kept = lines
    lengths = np.fromiter(map(len, kept), np.int64, len(kept))
    ids = np.fromiter(chain.from_iterable(kept), np.uint32, int(lengths.sum()))
    return ids, lengths, (len(lines) - len(kept)) // 2
