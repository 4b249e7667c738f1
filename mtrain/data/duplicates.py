"""Find pairs and sides that occur more than once in a text, by 64-bit hashes in bounded memory.

The last bits of a hash choose one of many files, so that equal hashes are in the same file. Each
file is sorted separately.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, compress, islice, pairwise, repeat
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from mtrain.corpus.lines import chunked
from mtrain.corpus.readers import Pair, plain_forms
from mtrain.runs import manifest
from mtrain.runtime.errors import UserError

FORMAT = 2
CHUNK = 100_000  # pairs hashed at a time
AT_ONCE = 1 << 22  # pairs sorted at a time
MAX_FILES = 4096  # even if a corpus declares a huge number of pairs
RECORD = np.dtype([("hash", "<u8"), ("number", "<u8")])
BLOCK = 1 << 13  # bytes of the result read at a time; a byte covers eight pairs


def write_repeats(
    directory: Path, corpora: Iterable[Iterable[Pair]], size: int, progress: Callable[[int], None]
) -> None:
    """Write a bit for each pair: 1 if it occurred before, in the same corpus or an earlier one.

    `size` is the approximate number of pairs; `progress` gets the number of pairs of each chunk
    that was read. Raises `OSError` or `UserError` if the disk is full.
    """
    duplicates = Duplicates(directory, size, "MTRAIN_CACHE")
    starts = [0]
    for pairs in corpora:
        texts = map(_joined, pairs)
        end = starts[-1]
        while len(hashes := text_hashes(islice(texts, CHUNK))):
            duplicates.add(hashes, np.arange(end, end + len(hashes), dtype=np.uint64))
            end += len(hashes)
            progress(len(hashes))
        starts.append((end + 7) // 8 * 8)  # the bits of each corpus start at a whole byte
    is_repeat = np.zeros(starts[-1] // 8, np.uint8)
    for later, _ in duplicates.groups():
        numbers = later.astype(np.int64)
        np.bitwise_or.at(is_repeat, numbers // 8, (128 >> numbers % 8).astype(np.uint8))
    for number, (start, stop) in enumerate(pairwise(starts)):
        bits = is_repeat[start // 8 : stop // 8]
        np.save(directory / f"{number:05d}.npy", bits, allow_pickle=False)


def find_unshared(
    directory: Path, pairs: Iterable[Pair], size: int, check_stop: Callable[[], None]
) -> NDArray[np.bool_]:
    """Whether each pair is the first of its copies, and no side of it occurs in another pair,
    whatever its case, spaces and punctuation.

    `size` is the approximate number of pairs; the hashes are stored in `directory` meanwhile, 48
    bytes a pair. `check_stop` is called for each file of them, and may raise. Raises `UserError` if
    the disk is full.
    """
    names = ("pairs", "sources", "targets")
    copies, *sides = [Duplicates(directory / name, size) for name in names]
    end = 0
    for chunk in chunked(pairs, CHUNK):
        numbers = np.arange(end, end := end + len(chunk), dtype=np.uint64)
        copies.add(text_hashes(map(_joined, chunk)), numbers)
        for side, texts in zip(sides, zip(*chunk, strict=True), strict=True):
            side.add(text_hashes(plain_forms(texts)), numbers)
    is_new = np.ones(end, bool)
    for later, _ in copies.groups():
        check_stop()
        is_new[later] = False
    is_unshared = is_new.copy()
    for side in sides:
        for later, first in side.groups():
            check_stop()
            is_other = is_new[later]  # among copies of the first pair alone, none is new
            is_unshared[later[is_other]] = False
            is_unshared[first[is_other]] = False
    return is_unshared


def _joined(pair: Pair) -> str:
    """Return one text for a pair, different for different pairs."""
    src, tgt = pair
    return f"{len(src)} {src}{tgt}"


def text_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return the 64-bit hashes of texts, which may hold lone surrogates."""
    digests = (
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for text in texts
    )
    return np.frombuffer(b"".join(digests), "<u8")


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder in `TMPDIR` for hashes, and remove it at the end; raises `UserError` if the
    disk is full.
    """
    with _storing("TMPDIR", "TMPDIR"):
        folder = TemporaryDirectory(prefix="mtrain-")
    with folder as name:
        yield Path(name)


@contextmanager
def _storing(place: Path | str, variable: str) -> Iterator[None]:
    """Turn the `OSError` of a full disk into a `UserError` that names the place, and the
    environment variable that chooses another one.
    """
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{place}: cannot store the hashes of pairs: {error.strerror}; make room there, or "
            f"set {variable} to a folder on another disk"
        ) from None


class Duplicates:
    """Finds equal hashes in a sequence of about `size` hashes, stored in files of `directory`,
    which need not exist yet; the environment variable `variable` chooses its disk.
    """

    def __init__(self, directory: Path, size: int, variable: str = "TMPDIR") -> None:
        self.directory, self.variable = directory, variable
        num_files = min(1 << (size // AT_ONCE).bit_length(), MAX_FILES)
        self.paths = [directory / f"{number}.hashes" for number in range(num_files)]

    def add(self, hashes: NDArray[np.uint64], numbers: NDArray[np.uint64]) -> None:
        """Add hashes and the numbers of their pairs, which increase from call to call; raises
        `UserError` if the disk is full.
        """
        records = np.zeros(len(hashes), RECORD)
        records["hash"], records["number"] = hashes, numbers
        file_numbers = records["hash"] % np.uint64(len(self.paths))
        for number in np.unique(file_numbers).tolist():
            with _storing(self.directory, self.variable):
                self.directory.mkdir(exist_ok=True)
                with self.paths[number].open("ab") as file:
                    file.write(records[file_numbers == number].tobytes())

    def groups(self) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
        """Yield for each file the numbers of pairs whose hash occurred before, and the number of
        the first pair with the same hash. Files are removed once they are read.
        """
        for path in filter(Path.exists, self.paths):
            records = np.fromfile(path, RECORD)
            path.unlink()
            numbers = records["number"]
            order = np.argsort(records["hash"], kind="stable")
            hashes = records["hash"][order]
            later = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
            first = np.searchsorted(hashes, hashes[later])
            yield numbers[order[later]], numbers[order[first]]


def open_repeats(path: Path) -> list[NDArray[np.uint8]]:
    """Open the bits of each corpus that `write_repeats` wrote; raises `DamagedError`."""
    names = sorted(manifest.verify(path))
    return [np.load(path / name, "r", allow_pickle=False) for name in names]


def without_repeats(pairs: Iterable[Pair], is_repeat: NDArray[np.uint8]) -> Iterator[Pair]:
    """Leave out the pairs of a corpus that are repeats."""
    blocks = (is_repeat[start : start + BLOCK] for start in range(0, len(is_repeat), BLOCK))
    is_new = chain.from_iterable(np.unpackbits(~block).tolist() for block in blocks)
    return compress(pairs, chain(is_new, repeat(1)))  # if the text has grown, read it to the end
