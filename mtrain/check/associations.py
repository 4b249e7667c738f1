"""Whether the words of two sides belong together, learned from the corpus itself.

Words that occur together in pairs more often than by chance are associated. In a translation a
word's associate is present as often as in other pairs; in a shifted pair, as often as by chance.
The log-likelihood ratio of these cases, summed over words, is a pair's evidence.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtrain.check.words import GOLDEN, Words, spans

MAX_WORDS = 32  # words of a line
MAX_TYPES = 30_000  # words of a side that may have associates
MIN_SHARED_PAIRS = 3  # pairs that associates must share
MIN_RATIO, MIN_GAIN = 3.0, 8.0  # times together, relative to chance; nats of evidence
BITS = 25  # slots of the hash table: 32 MB
AT_ONCE = 1 << 22  # pairs of words in a chunk
DOUBT = 4.0  # occurrences from which a word's own rates count as much as the mean
APART = 37  # lines to shift a side by, so that no pair is a translation
MAX_FOR, MAX_AGAINST = 4.0, 3.0  # most nats of one word
COMMON = 0.125  # fraction of a side's lines from which on a word is uninformative

Types = NDArray[np.int64]  # numbers of words in a vocabulary, 0 for unknown ones
Hits = NDArray[np.bool_]  # whether the associate of a word is on the other side


class Side(NamedTuple):
    """The informative words of lines, each once a line, and their types."""

    words: Words
    types: Types


class Vocabulary:
    """The words of a side that occur in several lines, but are not common."""

    def __init__(self, words: Words) -> None:
        hashes, times = np.unique(words.first().hashes, return_counts=True)
        is_common = times > COMMON * len(words)
        self.common = hashes[is_common]
        hashes, times = hashes[~is_common], times[~is_common]
        frequent = np.argsort(-times, kind="stable")[:MAX_TYPES]
        self.known = np.sort(hashes[frequent[times[frequent] >= MIN_SHARED_PAIRS]])

    def encode(self, words: Words) -> Side:
        """Select the first words of each line that are not common, and number them."""
        words = words.first()
        words = words.select(numbered(self.common, words.hashes) == 0)
        places = np.arange(len(words.hashes)) - words.starts[words.lines]
        words = words.select(places < MAX_WORDS)
        return Side(words, numbered(self.known, words.hashes))


class Associations:
    """Associated words of the sides, and the evidence of finding them together."""

    def __init__(self, src: Words, tgt: Words) -> None:
        self.vocabularies = Vocabulary(src), Vocabulary(tgt)
        sizes = [len(each.known) + 1 for each in self.vocabularies]
        left, right = self._encode(src, tgt)
        other = self.vocabularies[1].encode(tgt.shifted(APART))
        self.table = np.zeros(1 << BITS, bool)
        self.table[_associated(left, right, sizes[1])] = True
        own, apart = self._hits(left, right), self._hits(left, other)
        self.rates = [
            _rates((left.types, own[0]), (left.types, apart[0]), sizes[0]),
            _rates((right.types, own[1]), (other.types, apart[1]), sizes[1]),
        ]

    def evidence(self, src: Words, tgt: Words) -> NDArray[np.float64]:
        """Return the evidence for each pair, in nats, that its sides belong together."""
        sides = self._encode(src, tgt)
        total = np.zeros(len(src))
        for side, hits, rates in zip(sides, self._hits(*sides), self.rates, strict=True):
            worth = rates[hits.astype(np.int64), side.types]
            total += np.bincount(side.words.lines, weights=worth, minlength=len(src))
        return total / 2  # each finding was counted from either side

    def _encode(self, src: Words, tgt: Words) -> tuple[Side, Side]:
        return self.vocabularies[0].encode(src), self.vocabularies[1].encode(tgt)

    def _hits(self, src: Side, tgt: Side) -> tuple[Hits, Hits]:
        """Whether the associate of each word, or the word itself, is on the other side."""
        hits = np.zeros(len(src.types), bool), np.zeros(len(tgt.types), bool)
        for left, right in _crossed(src.words, tgt.words):
            found = self.table[_slots(src.types[left], tgt.types[right])]
            found |= src.words.hashes[left] == tgt.words.hashes[right]
            hits[0][left[found]] = True
            hits[1][right[found]] = True
        return hits


def _associated(src: Side, tgt: Side, width: int) -> NDArray[np.uint64]:
    """Return the slots of words that occur together more often than by chance."""
    keys = [np.zeros(0, np.int64)]
    for left, right in _crossed(src.words, tgt.words):
        first, second = src.types[left], tgt.types[right]
        known = (first > 0) & (second > 0)
        keys.append(first[known] * width + second[known])
    found, together = np.unique(np.concatenate(keys), return_counts=True)
    found, together = found[together >= MIN_SHARED_PAIRS], together[together >= MIN_SHARED_PAIRS]
    first, second = found // width, found % width
    times = np.bincount(src.types)[first] * np.bincount(tgt.types)[second]
    chance = times / max(1, len(src.words))
    gain = together * np.log(together / chance) - (together - chance)
    is_kin = (together >= MIN_RATIO * chance) & (gain >= MIN_GAIN)
    return _slots(first[is_kin], second[is_kin])


def numbered(known: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the index of each hash in the sorted `known`, from 1; 0 if it is not known."""
    if not len(known):
        return np.zeros(len(hashes), np.int64)
    places = np.searchsorted(known, hashes)
    is_known = known[np.minimum(places, len(known) - 1)] == hashes
    return np.where(is_known, places + 1, 0)


def _rates(own: tuple[Types, Hits], apart: tuple[Types, Hits], size: int) -> NDArray[np.float64]:
    """Compare how often associates are present in a word's own pair and in others; return the
    evidence if one is absent, and if it is present, by type: shape (2, size).
    """
    rates = []
    for types, hits in (own, apart):
        mean = (hits.sum() + 1) / (len(hits) + 2)
        found = np.bincount(types[hits], minlength=size) + DOUBT * mean
        rates.append(np.clip(found / (np.bincount(types, minlength=size) + DOUBT), 1e-3, 0.95))
    present = np.clip(np.log(rates[0] / rates[1]), 0, MAX_FOR)
    absent = np.clip(np.log((1 - rates[0]) / (1 - rates[1])), -MAX_AGAINST, 0)
    absent[0] = 0  # unknown words, such as names, are no evidence against a pair
    return np.stack((absent, present))


def _crossed(src: Words, tgt: Words) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield, in chunks, the indices of all pairs of a source and a target word of one line."""
    work = np.cumsum(src.counts * tgt.counts)
    total = int(work[-1]) if len(work) else 0
    stops = np.searchsorted(work, np.arange(AT_ONCE, total + AT_ONCE, AT_ONCE)) + 1
    for start, stop in pairwise([0, *np.unique(np.minimum(stops, len(src))).tolist()]):
        left = np.arange(src.starts[start], src.starts[stop])
        times = tgt.counts[src.lines[left]]
        yield np.repeat(left, times), spans(tgt.starts[src.lines[left]], times)


def _slots(left: Types, right: Types) -> NDArray[np.uint64]:
    """Return the slots of pairs of words in the hash table; few pairs share one."""
    both = left.astype(np.uint64) * np.uint64(0x2545F4914F6CDD1D) + right.astype(np.uint64)
    return (both * GOLDEN) >> np.uint64(64 - BITS)
