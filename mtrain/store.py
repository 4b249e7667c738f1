"""Tokenized corpora on disk: flat memory-mapped ids with offsets, built once, keyed by content.

Line `2 * i` of a store is the source of pair `i`, line `2 * i + 1` its target, both without bos and
eos.
"""

import json
import multiprocessing
import signal
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from mtrain import manifest
from mtrain.cache import cache_key, remembered
from mtrain.corpus import Pair
from mtrain.errors import UserError
from mtrain.stop import EXIT_CODES
from mtrain.text import DROPPED
from mtrain.tokenizer import Tokenizer

FORMAT = 1
FILES = (manifest.NAME, "store.json", "ids.bin", "offsets.npy")
WHOLE = TypeAdapter(bool)
CHUNK = 10_000  # pairs handed to a worker at a time
INLINE_CHUNKS = 10  # starting processes takes longer than tokenizing this much in the one there is

Encoded = tuple[NDArray[np.uint32], NDArray[np.int64], int]
Encoding = Generator[Encoded, None, None]


@dataclass(frozen=True)
class Store:
    """Pairs of id sequences, memory-mapped: opening costs nothing whatever the size."""

    ids: NDArray[Any]
    offsets: NDArray[np.int64]
    counts: dict[str, int]

    def __len__(self) -> int:
        return (len(self.offsets) - 1) // 2

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Lengths without eos, shape (pairs, 2): source, target."""
        return self.lengths_of(0, len(self))

    def lengths_of(self, start: int, stop: int) -> NDArray[np.int64]:
        """Lengths without eos of the pairs `start` to `stop` - 1, shape (pairs, 2)."""
        return np.diff(self.offsets[2 * start : 2 * stop + 1]).reshape(-1, 2)

    def equal_sides(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Tell of each of these pairs whether its sides are the same."""
        lengths = self.lengths_of(start, stop)
        same: NDArray[np.bool_] = lengths[:, 0] == lengths[:, 1]
        for index in np.flatnonzero(same):  # few: ids are read of these alone
            same[index] = np.array_equal(*self.pair(start + int(index)))
        return same

    def line(self, number: int) -> NDArray[Any]:
        """Ids of one line, without copying."""
        return self.ids[self.offsets[number] : self.offsets[number + 1]]

    def pair(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Ids of a pair's source and target."""
        return self.line(2 * index), self.line(2 * index + 1)


def store_key(corpora: list[str], tokenizer: str, max_length: int | None, invalid_utf8: str) -> str:
    """Name a store by all that its content depends on."""
    return cache_key("store", FORMAT, corpora, tokenizer, max_length, invalid_utf8)


def open_store(path: Path) -> Store | None:
    """Open a store, or return None where there is no whole one."""
    try:
        remembered([path / name for name in FILES], "whole", partial(_verify, path), WHOLE)
    except manifest.DamagedError:
        return None
    meta = json.loads((path / "store.json").read_text(encoding="utf-8"))
    ids_file, dtype = path / "ids.bin", np.dtype(meta["dtype"])
    mapped = np.memmap(ids_file, dtype, "r") if meta["ids"] else np.zeros(0, dtype)
    ids = np.asarray(mapped)  # still on disk; slices of a plain array are made faster
    return Store(
        ids, np.load(path / "offsets.npy", mmap_mode="r", allow_pickle=False), meta["counts"]
    )


def _verify(path: Path) -> bool:
    manifest.verify(path, *FILES[1:])
    return True


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

    `counts` is what reading dropped; `progress` is told the number of pairs read. Raises
    `UserError`, and `OSError` where the disk does not take the store.
    """
    iterator = iter(pairs)
    chunks = iter(lambda: list(islice(iterator, CHUNK)), [])

    def fill(directory: Path) -> None:
        with closing(_encode_all(chunks, tokenizer, max_length, workers)) as encoded:
            total, too_long = _write(directory, encoded, _dtype(tokenizer), progress)
        if too_long:
            counts[f"{DROPPED}longer than {max_length} tokens"] += too_long
        meta = {"dtype": _dtype(tokenizer).name, "ids": total, "counts": dict(counts)}
        (directory / "store.json").write_text(json.dumps(meta), encoding="utf-8")

    manifest.write_directory(path, fill)
    store = open_store(path)
    if store is None:
        raise UserError(f"{path}: the tokenized corpus could not be read back; is the disk sound?")
    return store


def _dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)


def _write(
    directory: Path,
    encoded: Iterator[Encoded],
    dtype: np.dtype[Any],
    progress: Callable[[int], None],
) -> tuple[int, int]:
    """Write ids and offsets as they come; returns the number of ids and of pairs that were too
    long.
    """
    total = too_long = 0
    with (
        (directory / "ids.bin").open("wb") as ids_out,
        (directory / "lengths.tmp").open("w+b") as lengths,
    ):
        for ids, lens, dropped in encoded:
            ids_out.write(ids.astype(dtype).tobytes())
            lengths.write(lens.tobytes())
            total += len(ids)
            too_long += dropped
            progress(len(lens) // 2 + dropped)
        _write_offsets(directory / "offsets.npy", lengths)
    (directory / "lengths.tmp").unlink()
    return total, too_long


def _write_offsets(path: Path, lengths: IO[bytes]) -> None:
    """Turn a file of line lengths into a file of offsets, a block at a time."""
    header = {"descr": "<i8", "fortran_order": False, "shape": (lengths.tell() // 8 + 1,)}
    lengths.seek(0)
    last = np.zeros(1, "<i8")
    with path.open("wb") as out:  # not a mapping: on a full disk that would end the process
        np.lib.format.write_array_header_1_0(out, header)
        out.write(last.tobytes())
        while block := lengths.read(8 << 20):
            offsets = last + np.cumsum(np.frombuffer(block, "<i8"))
            out.write(offsets.tobytes())
            last = offsets[-1:]


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
