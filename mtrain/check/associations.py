"""Whether the words of two sides belong together, learned from the corpus itself.

Words that occur together in pairs more often than by chance are associated. In a translation a
word's associate is present as often as in other pairs; in a shifted pair, as often as by chance.
The log-likelihood ratio of these cases, summed over words, is a pair's evidence.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtrain.check.characters import GOLDEN, Words, spans

MOST_WORDS = 32  # words of a line
MOST_TYPES = 30_000  # words of a side that may have associates
LEAST_TIMES = 3  # pairs that associates must share
LEAST_RATIO, LEAST_GAIN = 3.0, 8.0  # times as often as chance has it; nats that this is worth
BITS = 25  # slots of the hash table: 32 MB
AT_ONCE = 1 << 22  # pairs of words in a chunk
DOUBT = 4.0  # occurrences whose worth a word's own rates start from
APART = 37  # lines between sides that cannot be translations of each other
MOST_FOR, MOST_AGAINST = 4.0, 3.0  # most nats of one word

COMMON = 0.125  # fraction of a side's lines from which on a word is uninformative

# Types of words, and whether the associate of each was present.
Observed = tuple[NDArray[np.int64], NDArray[np.bool_]]


@dataclass(frozen=True)
class Side:
    """Informative words of lines, once per line, and their types: numbers of known types, 0 for all
    others.
    """

    words: Words
    types: NDArray[np.int64]

    def shifted(self, distance: int) -> "Side":
        """Move lines on by a distance, those at the end to the beginning."""
        starts, lines = self.words.starts, len(self.words)
        first = (-distance) % max(1, lines)
        cut, counts = starts[first], np.roll(self.words.counts, distance)
        hashes = np.roll(self.words.hashes, -cut)
        return Side(Words.of(hashes, counts), np.roll(self.types, -cut))


class Vocabulary:
    """The words of a side that come in several lines, but not in most."""

    def __init__(self, words: Words) -> None:
        hashes, times = np.unique(first_words(words).hashes, return_counts=True)
        is_common = times > COMMON * len(words)
        self.common = hashes[is_common]
        hashes, times = hashes[~is_common], times[~is_common]
        frequent = np.argsort(-times, kind="stable")[:MOST_TYPES]
        self.known = np.sort(hashes[frequent[times[frequent] >= LEAST_TIMES]])

    def __len__(self) -> int:
        return len(self.known) + 1

    def side(self, words: Words) -> Side:
        """Find the words of lines that may be telling."""
        words = first_words(words)
        words = words.select(numbered(self.common, words.hashes) == 0)
        words = words.select(words.places < MOST_WORDS)
        return Side(words, numbered(self.known, words.hashes))


@dataclass(frozen=True)
class Rates:
    """Evidence, by type of word, if its associate is present, and if it is not."""

    present: NDArray[np.float64]
    absent: NDArray[np.float64]


class Associations:
    """Associated words of the sides, and the evidence of finding them together."""

    def __init__(self, src: Words, tgt: Words) -> None:
        self.vocabularies = Vocabulary(src), Vocabulary(tgt)
        left, right = self._sides(src, tgt)
        self.table = np.zeros(1 << BITS, bool)
        self.table[_associated(left, right, len(self.vocabularies[1]))] = True
        other = right.shifted(APART)
        own, apart = self._hits(left, right), self._hits(left, other)
        self.rates = [
            _rates((left.types, own[0]), (left.types, apart[0]), len(self.vocabularies[0])),
            _rates((right.types, own[1]), (other.types, apart[1]), len(self.vocabularies[1])),
        ]

    def evidence(self, src: Words, tgt: Words, distance: int = 0) -> NDArray[np.float64]:
        """Return, for each pair, or for each source with the target at a distance, the evidence in
        nats that the sides belong together.
        """
        left, right = self._sides(src, tgt)
        right = right.shifted(-distance) if distance else right
        total = np.zeros(len(src))
        for side, rates, hits in zip(
            (left, right), self.rates, self._hits(left, right), strict=True
        ):
            worth = np.where(hits, rates.present[side.types], rates.absent[side.types])
            total += np.bincount(side.words.lines, weights=worth, minlength=len(src))
        return total / 2  # each finding was counted from either side

    def _sides(self, src: Words, tgt: Words) -> tuple[Side, Side]:
        return self.vocabularies[0].side(src), self.vocabularies[1].side(tgt)

    def _hits(self, src: Side, tgt: Side) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether the associate of each word of either side, or the word itself, is on the other
        side.
        """
        hits = np.zeros(len(src.types), bool), np.zeros(len(tgt.types), bool)
        for left, right in _crossed(src.words, tgt.words):
            found = self.table[_place(src.types[left], tgt.types[right])]
            found |= src.words.hashes[left] == tgt.words.hashes[right]
            hits[0][left[found]] = True
            hits[1][right[found]] = True
        return hits


def first_words(words: Words) -> Words:
    """Keep the first of each line's words, each once."""
    keys = (words.lines.astype(np.uint64) << np.uint64(40)) | (words.hashes >> np.uint64(24))
    kept = np.zeros(len(keys), bool)
    kept[np.unique(keys, return_index=True)[1]] = True
    return words.select(kept)


def numbered(known: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the positions of hashes among the sorted known ones, from 1; 0 for all others."""
    if not len(known):
        return np.zeros(len(hashes), np.int64)
    places = np.searchsorted(known, hashes)
    is_known = known[np.minimum(places, len(known) - 1)] == hashes
    return np.where(is_known, places + 1, 0)


def _rates(own: Observed, apart: Observed, size: int) -> Rates:
    """Compare how often associates are present in a word's own pair and in others."""
    shares = []
    for types, hits in (own, apart):
        mean = (hits.sum() + 1) / (len(hits) + 2)
        found = np.bincount(types[hits], minlength=size) + DOUBT * mean
        shares.append(np.clip(found / (np.bincount(types, minlength=size) + DOUBT), 1e-3, 0.95))
    present = np.clip(np.log(shares[0] / shares[1]), 0, MOST_FOR)
    absent = np.clip(np.log((1 - shares[0]) / (1 - shares[1])), -MOST_AGAINST, 0)
    absent[0] = 0  # a list of names that nobody knows speaks against nothing
    return Rates(present, absent)


def _crossed(src: Words, tgt: Words) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the indices of each word of a pair's source with each of its target."""
    work = np.cumsum(src.counts * tgt.counts)
    cuts = np.searchsorted(
        work, np.arange(AT_ONCE, (work[-1] if len(work) else 0) + AT_ONCE, AT_ONCE)
    )
    start = 0
    for stop in np.minimum(cuts + 1, len(src)).tolist():
        if stop <= start:
            continue
        left = np.arange(src.starts[start], src.starts[stop])
        times = tgt.counts[src.lines[left]]
        yield np.repeat(left, times), spans(tgt.starts[src.lines[left]], times)
        start = stop


def _place(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the slot of a pair of words in the hash table; few pairs share one."""
    mixed = left.astype(np.uint64) * np.uint64(0x2545F4914F6CDD1D) + right.astype(np.uint64)
    return (mixed * GOLDEN) >> np.uint64(64 - BITS)


def _associated(src: Side, tgt: Side, width: int) -> NDArray[np.uint64]:
    """Return the slots of words that occur together more often than by chance."""
    keys = [np.zeros(0, np.int64)]
    for left, right in _crossed(src.words, tgt.words):
        types = src.types[left], tgt.types[right]
        known = (types[0] > 0) & (types[1] > 0)
        keys.append(types[0][known] * width + types[1][known])
    found, together = np.unique(np.concatenate(keys), return_counts=True)
    found, together = found[together >= LEAST_TIMES], together[together >= LEAST_TIMES]
    src_type, tgt_type = found // width, found % width
    times = np.bincount(src.types), np.bincount(tgt.types)
    chance = times[0][src_type] * times[1][tgt_type] / max(1, len(src.words))
    gain = together * np.log(together / chance) - (together - chance)
    is_kin = (together >= LEAST_RATIO * chance) & (gain >= LEAST_GAIN)
    return _place(src_type[is_kin], tgt_type[is_kin])
