"""Find rows of a scored set in other text: equal pairs, equal sides, and nearly equal pairs.

Case, spaces and punctuation do not count. The set is kept as hashes of lines and of word bigrams;
the other text is read in chunks.
"""

from collections.abc import Iterator

import numpy as np

from mtrain.check.associations import lookup
from mtrain.check.chunks import Chunk
from mtrain.check.findings import Example
from mtrain.check.words import Words
from mtrain.data.mix_ups import overlap_message
from mtrain.data.store import concat_ranges

MIN_BIGRAMS = 5  # lines with fewer are compared for equality only
# Likeness of a nearly equal pair, the fraction of equal bigrams: mean of the sides, and the higher.
MIN_MEAN_LIKENESS, MIN_HIGHER_LIKENESS = 0.6, 0.75
MAX_SHOWN = 0.99  # likeness, which can be 1 although the texts differ
MAX_LINES_PER_BIGRAM = 50  # of the set: bigrams in more lines are ignored in the search
MIN_SHARED = 0.3  # fraction of a line's bigrams in another line, to compare the two
KINDS = ("overlap", "source_overlap", "target_overlap", "near_overlap")  # most specific first
BITS = 22  # of the hash table of bigrams
SHIFT = np.uint64(64 - BITS)  # from a hash to its slot
TRAIN = "data.train"


class ScoredSet:
    """A scored set whose rows are searched for in other text; reports the best match of each."""

    def __init__(self, rows: Chunk) -> None:
        self.rows, self.findings = rows, rows.findings
        self.bigrams = [_Bigrams(words) for words in rows.bigrams]
        self.best: dict[str, dict[int, tuple[int, Example]]] = {}  # by other text and row

    def search(self, other: Chunk, name: str) -> None:
        """Search a chunk of another text, called `name`, for the rows of this set."""
        best = self.best.setdefault(name, {})
        for kind, row, other_row, likeness in self._matches(other):
            previous = best.get(row)
            if previous is not None and (previous[0], previous[1].rank) <= (kind, -likeness):
                continue
            side = int(KINDS[kind] == "target_overlap")
            number, other_number = self.rows.numbers[row], other.numbers[other_row]
            is_near = KINDS[kind] == "near_overlap"
            relation = f"{min(likeness, MAX_SHOWN):.0%} equal to" if is_near else "="
            name_of_row = other.findings.name_row(other_number, side)
            text = f"{relation} {name_of_row}  {self.rows.texts[side][row]}"
            place = other.findings.row_as_json(other_number)
            extra = {"other": place, "likeness": round(likeness, 3)}
            best[row] = kind, self.findings.example(number, text, side, rank=-likeness, **extra)

    def report(self, is_allowed: bool) -> None:
        """Add the overlap to the findings; `is_allowed` by the config, if nearly all pairs are in
        the training text.
        """
        for name, best in self.best.items():
            for index, kind in enumerate(KINDS):
                examples = [example for kind_index, example in best.values() if kind_index == index]
                if examples:
                    self.findings.add(kind, len(examples), examples, name)
            same = sum(kind_index == 0 for kind_index, _ in best.values())
            text = overlap_message(same, self.findings.pairs, is_allowed=is_allowed)
            if name == TRAIN and text:
                self.findings.add_message("contained", text, is_allowed=is_allowed)

    def _matches(self, other: Chunk) -> Iterator[tuple[int, int, int, float]]:
        """Yield for each match the index of its most specific kind, the indices of the rows in the
        set and in the chunk, and their likeness.
        """
        is_done = np.array(self.rows.blank.any(0))
        both = zip(self.rows.plain_hashes, other.plain_hashes, strict=True)
        for kind, (hashes, others) in enumerate(both):
            distinct, first_rows = np.unique(others, return_index=True)
            indices = lookup(distinct, hashes)
            rows = np.flatnonzero((indices > 0) & ~is_done)
            other_rows = first_rows[indices[rows] - 1]
            for row, other_row in zip(rows.tolist(), other_rows.tolist(), strict=True):
                yield kind, row, other_row, 1.0
            is_done[rows] = True
        sides = list(zip(self.bigrams, other.bigrams, strict=True))
        candidates = set[tuple[int, int]]()
        for own, words in sides:
            candidates |= own.candidates(words)
        for row, other_row in sorted(candidates):
            if not is_done[row]:
                likeness = [own.likeness(row, words, other_row) for own, words in sides]
                mean = sum(likeness) / 2
                if mean >= MIN_MEAN_LIKENESS and max(likeness) >= MIN_HIGHER_LIKENESS:
                    yield KINDS.index("near_overlap"), row, other_row, mean


class _Bigrams:
    """Sorted bigrams of one side of a set, and the line of each."""

    def __init__(self, words: Words) -> None:
        self.words = words
        long = words.counts[words.lines] >= MIN_BIGRAMS
        order = np.argsort(words.hashes[long], kind="stable")
        self.hashes = words.hashes[long][order]
        self.lines = words.lines[long][order]
        self.table = np.zeros(1 << BITS, bool)
        self.table[self.hashes >> SHIFT] = True

    def candidates(self, others: Words) -> set[tuple[int, int]]:
        """Return the index pairs of lines that may be alike: of this set, and of `others`, given as
        bigrams.
        """
        is_known = self.table[others.hashes >> SHIFT]
        known_counts = np.bincount(others.lines[is_known], minlength=len(others))
        may_match = others.counts >= MIN_BIGRAMS
        may_match &= known_counts >= MIN_MEAN_LIKENESS * others.counts
        is_used = is_known & may_match[others.lines]
        hashes, lines = others.hashes[is_used], others.lines[is_used]
        starts = np.searchsorted(self.hashes, hashes, "left")
        counts = np.searchsorted(self.hashes, hashes, "right") - starts
        counts[counts > MAX_LINES_PER_BIGRAM] = 0
        width = max(1, len(self.words))
        keys = np.repeat(lines, counts) * width + self.lines[concat_ranges(starts, counts)]
        keys, shared = np.unique(keys, return_counts=True)
        keys = keys[shared >= MIN_SHARED * others.counts[keys // width]]
        return set(zip((keys % width).tolist(), (keys // width).tolist(), strict=True))

    def likeness(self, row: int, others: Words, other_row: int) -> float:
        """Return the shared bigrams of two lines as a fraction of those of the longer line."""
        own = self.words.hashes[self.words.starts[row] : self.words.starts[row + 1]]
        theirs = others.hashes[others.starts[other_row] : others.starts[other_row + 1]]
        return len(np.intersect1d(own, theirs, assume_unique=True)) / max(1, len(own), len(theirs))
