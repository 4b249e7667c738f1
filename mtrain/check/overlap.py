"""Rows of a scored set that occur in other text, too: exactly, on one side or both, or nearly.

The set is kept as hashes of whole lines and of word bigrams; the other text streams past.
"""

from collections.abc import Iterator

import numpy as np

from mtrain.check.associations import numbered
from mtrain.check.chunks import Chunk
from mtrain.check.findings import Example
from mtrain.check.words import Words, spans
from mtrain.config.schema import DataConfig
from mtrain.data.guards import contained

MIN_BIGRAMS = 5  # of a line that can be nearly another
NEAR, NEAR_ONE = 0.6, 0.75  # fraction of equal bigrams: mean of the sides, and on one of them
MAX_LINES_PER_BIGRAM = 50  # lines of the set: a bigram of more lines leads to none of them
MIN_SHARED = 0.3  # of a line's bigrams in another line, for a closer comparison
KINDS = ("overlap", "source_overlap", "target_overlap", "near_overlap")  # most specific first
BITS = 22  # of the hash table of bigrams
SHIFT = np.uint64(64 - BITS)  # from a hash to its slot
TRAIN = "data.train"

# Number of the kind, row of the set, row of the other text, fraction that is equal.
Match = tuple[int, int, int, float]


class ScoredSet:
    """A set whose rows are searched for in other text; the best match of each row counts."""

    def __init__(self, rows: Chunk) -> None:
        self.rows, self.findings = rows, rows.findings
        self.near = [_Bigrams(words) for words in rows.bigrams]
        self.best: dict[str, dict[int, tuple[int, Example]]] = {}  # by other text and row

    def compare(self, other: Chunk, name: str) -> None:
        """Search for the rows in some of the text of this name."""
        best = self.best.setdefault(name, {})
        for kind, row, place, likeness in self._matches(other):
            before = best.get(row)
            if before is None or (kind, -likeness) < (before[0], before[1].rank):
                side, there = int(KINDS[kind] == "target_overlap"), other.numbers[place]
                like = f"{likeness:.0%} of " if likeness < 1 else "= "
                text = f"{like}{other.findings.name_row(there, side)}  {self.rows.texts[side][row]}"
                more = {"other": other.findings.row_as_json(there), "likeness": round(likeness, 3)}
                number = self.rows.numbers[row]
                best[row] = kind, self.findings.example(number, text, side, rank=-likeness, **more)

    def report(self, data: DataConfig) -> None:
        """Add the overlap to the findings."""
        for name, best in self.best.items():
            for number, kind in enumerate(KINDS):
                examples = [example for order, example in best.values() if order == number]
                if examples:
                    self.findings.add(kind, len(examples), examples, name)
            same, pairs = sum(order == 0 for order, _ in best.values()), self.findings.pairs
            if name == TRAIN and (text := contained(same, pairs)):
                self.findings.add_message("contained", text, is_allowed=data.allow_overlap)

    def _matches(self, other: Chunk) -> Iterator[Match]:
        """Find rows that are in another chunk, too, each with its most specific kind."""
        known = np.array(self.rows.blank.any(0))
        for kind, (own, theirs) in enumerate(zip(self.rows.hashes, other.hashes, strict=True)):
            hashes, first = np.unique(theirs, return_index=True)
            numbers = numbered(hashes, own)
            rows = np.flatnonzero((numbers > 0) & ~known)
            for row, place in zip(rows.tolist(), first[numbers[rows] - 1].tolist(), strict=True):
                yield kind, row, place, 1.0
            known[rows] = True
        sides = list(zip(self.near, other.bigrams, strict=True))
        guesses = set[tuple[int, int]]().union(*(near.guesses(words) for near, words in sides))
        for row, place in sorted(guesses):
            if not known[row]:
                likeness = [near.likeness(row, words, place) for near, words in sides]
                if sum(likeness) / 2 >= NEAR and max(likeness) >= NEAR_ONE:
                    yield KINDS.index("near_overlap"), row, place, sum(likeness) / 2


class _Bigrams:
    """Bigrams of the lines of a side in order, and their lines."""

    def __init__(self, words: Words) -> None:
        self.words = words
        long = words.counts[words.lines] >= MIN_BIGRAMS
        order = np.argsort(words.hashes[long], kind="stable")
        self.hashes, self.lines = words.hashes[long][order], words.lines[long][order]
        self.table = np.zeros(1 << BITS, bool)
        self.table[self.hashes >> SHIFT] = True

    def guesses(self, others: Words) -> set[tuple[int, int]]:
        """Return pairs of rows that may share many bigrams."""
        known = self.table[others.hashes >> SHIFT]
        shared = np.bincount(others.lines[known], minlength=len(others))
        long = others.counts >= MIN_BIGRAMS
        hopeful = known & (long & (shared >= NEAR * others.counts))[others.lines]
        hashes, lines = others.hashes[hopeful], others.lines[hopeful]
        first = np.searchsorted(self.hashes, hashes, "left")
        times = np.searchsorted(self.hashes, hashes, "right") - first
        times[times > MAX_LINES_PER_BIGRAM] = 0
        width = max(1, len(self.words))
        keys = np.repeat(lines, times) * width + self.lines[spans(first, times)]
        keys, votes = np.unique(keys, return_counts=True)
        keys = keys[votes >= MIN_SHARED * others.counts[keys // width]]
        return set(zip((keys % width).tolist(), (keys // width).tolist(), strict=True))

    def likeness(self, row: int, others: Words, place: int) -> float:
        """Return the fraction of the bigrams of the longer of two lines that both have."""
        own = self.words.hashes[self.words.starts[row] : self.words.starts[row + 1]]
        theirs = others.hashes[others.starts[place] : others.starts[place + 1]]
        return len(np.intersect1d(own, theirs, assume_unique=True)) / max(1, len(own), len(theirs))
