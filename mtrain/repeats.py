"""Pairs that the training text holds more than once, by hashes of 64 bits, in bounded memory.

The hash of each pair goes to one of many files by its last bits. Equal pairs meet in one file,
which is sorted by itself.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, compress, islice, pairwise, repeat
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from mtrain import manifest
from mtrain.corpus import Pair

FORMAT = 1
CHUNK = 100_000  # pairs that are hashed before they are shared out
AT_ONCE = 1 << 22  # pairs that are sorted at a time
RECORD = np.dtype([("hash", "<u8"), ("number", "<u8")])
BLOCK = 1 << 13  # bytes of the result that are read at a time, each for eight pairs


def write_repeats(
    path: Path, corpora: Iterable[Iterable[Pair]], about: int, progress: Callable[[int], None]
) -> None:
    """Find which pairs of `corpora`, `about` so many in all, were there before, in the same corpus
    or in one before it; `progress` is told of those read. Raises `OSError` where the disk does not
    take it.
    """

    def fill(directory: Path) -> None:
        buckets = 1 << (about // AT_ONCE).bit_length()
        hashes, starts = [directory / f"{number}.hashes" for number in range(buckets)], [0]
        with ExitStack() as stack:
            files = [stack.enter_context(file.open("wb")) for file in hashes]
            for pairs in corpora:
                end = _share_out(pairs, starts[-1], files, progress)
                starts.append(-(-end // 8) * 8)  # so that its bits begin with a byte
        is_repeat = np.zeros(starts[-1] // 8, np.uint8)
        for file in hashes:
            numbers = _later_ones(np.fromfile(file, RECORD))
            np.bitwise_or.at(is_repeat, numbers >> 3, (128 >> (numbers & 7)).astype(np.uint8))
            file.unlink()
        for number, (start, stop) in enumerate(pairwise(starts)):
            bits = is_repeat[start // 8 : stop // 8]
            np.save(directory / f"{number:05d}.npy", bits, allow_pickle=False)

    manifest.write_directory(path, fill)


class Duplicates:
    """Equal hashes among many that come one after the other, kept in files of `directory`."""

    def __init__(self, directory: Path, about: int) -> None:
        buckets = 1 << (about // AT_ONCE).bit_length()
        self.paths = [directory / f"{number}.hashes" for number in range(buckets)]
        for path in self.paths:
            path.touch()

    def add(self, hashes: NDArray[np.uint64], numbers: NDArray[np.uint64]) -> None:
        """Take hashes, each with a number larger than those before."""
        records = np.zeros(len(hashes), RECORD)
        records["hash"], records["number"] = hashes, numbers
        place = records["hash"] % np.uint64(len(self.paths))
        for number in np.unique(place).tolist():
            with self.paths[number].open("ab") as file:
                file.write(records[place == number].tobytes())

    def groups(self) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
        """Yield the numbers whose hash was there before, and for each of them the first with it."""
        for path in self.paths:
            records = np.fromfile(path, RECORD)
            records = records[np.argsort(records["hash"], kind="stable")]
            again = np.diff(records["hash"], prepend=~records["hash"][:1]) == 0
            first = np.maximum.accumulate(np.where(again, 0, np.arange(len(records))))
            yield records["number"][again], records["number"][first[again]]


def open_repeats(path: Path) -> list[NDArray[np.uint8]] | None:
    """Open what `write_repeats` found, of each corpus a bit for each pair; None where there is
    nothing whole.
    """
    try:
        manifest.verify(path)
    except manifest.DamagedError:
        return None
    return [np.load(file, "r", allow_pickle=False) for file in sorted(path.glob("*.npy"))]


def without_repeats(pairs: Iterable[Pair], is_repeat: NDArray[np.uint8]) -> Iterator[Pair]:
    """Leave the pairs of a corpus out that are repeats."""
    blocks = (is_repeat[start : start + BLOCK] for start in range(0, len(is_repeat), BLOCK))
    bits = chain.from_iterable(np.unpackbits(~block).tolist() for block in blocks)
    return compress(pairs, chain(bits, repeat(1)))  # read to their end, whatever it is


def _share_out(
    pairs: Iterable[Pair], total: int, files: Sequence[IO[bytes]], progress: Callable[[int], None]
) -> int:
    """Write the hash and the number of each pair, from `total` on, to the file for such hashes;
    returns the number after the last.
    """
    iterator = iter(pairs)
    while chunk := list(islice(iterator, CHUNK)):
        records = np.zeros(len(chunk), RECORD)
        records["hash"] = np.frombuffer(b"".join(map(_hash, chunk)), "<u8")
        records["number"] = np.arange(total, total + len(chunk))
        place = records["hash"] % np.uint64(len(files))
        for number in np.unique(place).tolist():
            files[number].write(records[place == number].tobytes())
        total += len(chunk)
        progress(len(chunk))
    return total


def _hash(pair: Pair) -> bytes:
    source, target = (text.encode("utf-8", "surrogatepass") for text in pair)
    start = len(source).to_bytes(8, "little")
    return hashlib.blake2b(start + source + target, digest_size=8).digest()


def _later_ones(records: NDArray[np.void]) -> NDArray[np.int64]:
    """Numbers of the pairs whose hash a pair before them has."""
    order = np.argsort(records["hash"], kind="stable")
    hashes = records["hash"][order]
    numbers: NDArray[np.int64] = records["number"].astype(np.int64)
    later: NDArray[np.int64] = numbers[order[1:][hashes[1:] == hashes[:-1]]]
    return later
