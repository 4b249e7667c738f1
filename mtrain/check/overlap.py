"""Lines of a scored set that occur in other text, too: exactly, on one side or both, or nearly.

The set is kept as hashes of whole lines and of word bigrams; the other text streams past.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mtrain.check.associations import first_words, numbered
from mtrain.check.characters import GOLDEN, Words, spans
from mtrain.check.findings import Chunk, Example, Findings
from mtrain.data.duplicates import text_hashes

LEAST_BIGRAMS = 5  # of a line that can be nearly another
NEAR, NEAR_ONE = (
    0.6,
    0.75,
)  # fraction of bigrams in common: on average over the sides, on one of them
MOST_PLACES = 50  # lines of the set with a bigram for it to lead to them
LEAST_SHARED = 0.3  # of a line's bigrams in another line, for a closer comparison
KINDS = ("overlap", "source_overlap", "target_overlap", "near_overlap")
BITS = 22  # of the hash table of bigrams


def mixed(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash pairs of hashes."""
    both = first * GOLDEN + second
    return (both ^ (both >> np.uint64(31))) * GOLDEN


def bigrams(words: Words) -> Words:
    """Hash the pairs of neighbouring words of each line, each once."""
    inner = words.lines[1:] == words.lines[:-1]
    hashes = mixed(words.hashes[:-1], words.hashes[1:])[inner]
    counts = np.bincount(words.lines[1:][inner], minlength=len(words))
    return first_words(Words.of(hashes, counts))


@dataclass(frozen=True)
class Hashed:
    """A chunk's rows as hashes: of the sources, the targets, the pairs, all without the white space
    around them.
    """

    chunk: Chunk
    src: NDArray[np.uint64]
    tgt: NDArray[np.uint64]

    @staticmethod
    def of(chunk: Chunk) -> "Hashed":
        """Hash the rows of a chunk."""
        return Hashed(chunk, *(text_hashes(map(str.strip, texts)) for texts in chunk.texts))

    @cached_property
    def pairs(self) -> NDArray[np.uint64]:
        """Hashes of pairs, by those of both sides."""
        return mixed(self.src, self.tgt)

    @cached_property
    def is_blank(self) -> NDArray[np.bool_]:
        """Rows that are blank on a side."""
        blank = text_hashes([""])
        rows: NDArray[np.bool_] = (self.src == blank) | (self.tgt == blank)
        return rows

    @cached_property
    def bigrams(self) -> tuple[Words, Words]:
        """Bigrams of either side."""
        return bigrams(self.chunk.words[0]), bigrams(self.chunk.words[1])


@dataclass(frozen=True)
class Match:
    """A row of a set and a similar row of another chunk; `likeness` is 1 if they are equal."""

    kind: str
    row: int
    other: int
    likeness: float


class ScoredSet:
    """A set whose rows are searched for in other text."""

    def __init__(self, rows: Hashed) -> None:
        self.rows = rows
        self.near = [_Bigrams(words) for words in rows.bigrams]

    def matches(self, other: Hashed) -> Iterator[Match]:
        """Find rows that are in another chunk, too, each with its most specific kind."""
        own, told = self.rows, self.rows.is_blank.copy()
        for kind, hashes, others in (
            ("overlap", own.pairs, other.pairs),
            ("source_overlap", own.src, other.src),
            ("target_overlap", own.tgt, other.tgt),
        ):
            known, first = np.unique(others, return_index=True)
            numbers = numbered(known, hashes)
            rows = np.flatnonzero((numbers > 0) & ~told)
            for row, place in zip(rows.tolist(), first[numbers[rows] - 1].tolist(), strict=True):
                yield Match(kind, row, place, 1.0)
            told[rows] = True
        both = zip(self.near, other.bigrams, strict=True)
        guesses = set[tuple[int, int]]().union(*(near.guesses(words) for near, words in both))
        for row, place in sorted(guesses):
            likeness = [
                near.likeness(row, words, place)
                for near, words in zip(self.near, other.bigrams, strict=True)
            ]
            if not told[row] and sum(likeness) / 2 >= NEAR and max(likeness) >= NEAR_ONE:
                yield Match("near_overlap", row, place, sum(likeness) / 2)


class Tally:
    """The overlap of a scored set with `other`, which streams past: the best match of each row.
    More than `most`, as a fraction of its pairs, is an error.
    """

    def __init__(self, rows: ScoredSet, found: Findings, other: str, most: float = 1.0) -> None:
        self.set, self.found, self.other, self.most = rows, found, other, most
        self.best: dict[int, tuple[int, float, Example]] = {}

    def take(self, other: Hashed) -> None:
        """Search for the set's rows in some of the other text."""
        for match in self.set.matches(other):
            order = (KINDS.index(match.kind), -match.likeness)
            if match.row in self.best and self.best[match.row][:2] <= order:
                continue
            self.best[match.row] = (*order, self._example(match, other.chunk))

    def _example(self, match: Match, other: Chunk) -> Example:
        """Name a row and its match."""
        number, there = int(other.numbers[match.other]), other.place
        side = 1 if match.kind == "target_overlap" else 0
        own = self.set.rows.chunk
        here = self.found.example(own, match.row, side)
        like = f"{match.likeness:.0%} of " if match.likeness < 1 else "= "
        text = f"{like}{there.name(number, side)}  {own.texts[side][match.row]}"
        json = {**own.place.as_json(here.number), "other": there.as_json(number)}
        json["likeness"] = round(match.likeness, 3)
        return Example(-match.likeness, here.number, here.shown, text[:300], json)

    def tell(self) -> None:
        """Add the overlap to the set's findings."""
        for number, kind in enumerate(KINDS):
            rows = [example for order, _, example in self.best.values() if order == number]
            if rows:
                self.found.add(kind, len(rows), rows, self.other)
        same, pairs = sum(order == 0 for order, *_ in self.best.values()), self.found.pairs
        if same > self.most * pairs:
            self.found.tell("contained", f"{same:,} of {pairs:,} pairs: its score means nothing")


class _Bigrams:
    """Bigrams of the lines of a side in order, and their lines."""

    def __init__(self, words: Words) -> None:
        self.words = words
        long = words.counts[words.lines] >= LEAST_BIGRAMS
        order = np.argsort(words.hashes[long], kind="stable")
        self.hashes, self.lines = words.hashes[long][order], words.lines[long][order]
        self.table = np.zeros(1 << BITS, bool)
        self.table[self._slots(self.hashes)] = True

    def _slots(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return hashes >> np.uint64(64 - BITS)

    def guesses(self, others: Words) -> set[tuple[int, int]]:
        """Return pairs of rows that may share many bigrams."""
        known = self.table[self._slots(others.hashes)]
        shared = np.bincount(others.lines[known], minlength=len(others))
        long = others.counts >= LEAST_BIGRAMS
        hopeful = known & (long & (shared >= NEAR * others.counts))[others.lines]
        hashes, lines = others.hashes[hopeful], others.lines[hopeful]
        first = np.searchsorted(self.hashes, hashes, "left")
        times = np.searchsorted(self.hashes, hashes, "right") - first
        times[times > MOST_PLACES] = 0
        width, places = len(self.words), spans(first, times)
        keys, votes = np.unique(
            np.repeat(lines, times) * width + self.lines[places], return_counts=True
        )
        other, row = keys // max(1, width), keys % max(1, width)
        enough = votes >= LEAST_SHARED * others.counts[other]
        chosen = np.flatnonzero(enough)[np.argsort(-votes[enough], kind="stable")]
        return set(zip(row[chosen].tolist(), other[chosen].tolist(), strict=True))

    def likeness(self, row: int, others: Words, place: int) -> float:
        """Return the fraction of the bigrams of the longer of two lines that both have."""
        own = self.words.hashes[self.words.starts[row] : self.words.starts[row + 1]]
        theirs = others.hashes[others.starts[place] : others.starts[place + 1]]
        return len(np.intersect1d(own, theirs, assume_unique=True)) / max(1, len(own), len(theirs))
