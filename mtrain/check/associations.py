"""Judge whether two sides are translations, by word associations learned from the corpus itself.

A source and a target word are associated if they occur in the same pairs more often than by chance.
In a correct pair, a word has an associate on the other side as often as in the whole corpus; in a
shifted pair, only as often as by chance. The evidence for a pair is the log-likelihood ratio of the
two cases, summed over its words.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtrain.check.words import GOLDEN, Words
from mtrain.data.store import concat_ranges

MAX_LINE_WORDS = 32  # words of a line that are used
MAX_VOCABULARY = 30_000  # words of a side that may have associates
MIN_SHARED_PAIRS = 3  # pairs that contain both of two associated words
# Associated words: pairs that contain both, as a multiple of chance, and their evidence in nats.
MIN_RATIO, MIN_GAIN = 3.0, 8.0
TABLE_BITS = 25  # the hash table has 2^25 slots: 32 MB
CHUNK = 1 << 17  # word pairs in a chunk: their arrays fit into the cache
PRIOR_COUNT = 4.0  # occurrences at the mean rate, added to those of each word
UNRELATED_SHIFT = 37  # lines; after this shift of a side, no pair is a translation
MAX_FOR, MAX_AGAINST = 4.0, 3.0  # nats that one word may contribute for and against a pair
MAX_LINE_FRACTION = 0.125  # of a side's lines; words in more lines are uninformative

Ids = NDArray[np.int64]  # of words in a vocabulary, from 1; 0: unknown
Hits = NDArray[np.bool_]  # for each word: whether the other side has an associate of it


class Side(NamedTuple):
    """The distinct informative words of lines, and their ids."""

    words: Words
    ids: Ids


class Vocabulary:
    """The words of a side that are neither rare nor common."""

    def __init__(self, words: Words) -> None:
        hashes, line_counts = np.unique(words.distinct().hashes, return_counts=True)
        is_common = line_counts > MAX_LINE_FRACTION * len(words)
        self.common = hashes[is_common]
        hashes, line_counts = hashes[~is_common], line_counts[~is_common]
        frequent = np.argsort(-line_counts, kind="stable")[:MAX_VOCABULARY]
        self.hashes = np.sort(hashes[frequent[line_counts[frequent] >= MIN_SHARED_PAIRS]])

    def encode(self, words: Words) -> Side:
        """Return the first distinct words of each line, without common ones, and their ids."""
        words = words.distinct()
        words = words.select(lookup(self.common, words.hashes) == 0)
        positions = np.arange(len(words.hashes)) - words.starts[words.lines]
        words = words.select(positions < MAX_LINE_WORDS)
        return Side(words, lookup(self.hashes, words.hashes))


class Associations:
    """Associated words of the two sides, and how strongly they indicate a translation."""

    def __init__(self, src: Words, tgt: Words) -> None:
        self.vocabularies = Vocabulary(src), Vocabulary(tgt)
        src_size, tgt_size = (len(vocabulary.hashes) + 1 for vocabulary in self.vocabularies)
        src_side, tgt_side = self._encode(src, tgt)
        shifted = self.vocabularies[1].encode(tgt.shifted(UNRELATED_SHIFT))
        self.table = np.zeros(1 << TABLE_BITS, bool)
        self.table[_associated(src_side, tgt_side, tgt_size)] = True
        src_hits, tgt_hits = self._hits(src_side, tgt_side)
        unrelated_src_hits, unrelated_tgt_hits = self._hits(src_side, shifted)
        self.nats = [
            _nats((src_side.ids, src_hits), (src_side.ids, unrelated_src_hits), src_size),
            _nats((tgt_side.ids, tgt_hits), (shifted.ids, unrelated_tgt_hits), tgt_size),
        ]

    def evidence(self, src: Words, tgt: Words) -> NDArray[np.float64]:
        """Return the evidence, in nats, that the sides of each pair are translations."""
        sides = self._encode(src, tgt)
        total = np.zeros(len(src))
        for side, hits, nats in zip(sides, self._hits(*sides), self.nats, strict=True):
            word_nats = nats[hits.astype(np.int64), side.ids]
            total += np.bincount(side.words.lines, weights=word_nats, minlength=len(src))
        return total / 2  # each association was counted from both sides

    def have_known(self, src: Words, tgt: Words) -> NDArray[np.bool_]:
        """Whether each side has a word of its vocabulary, shape (2, lines)."""
        sides = self._encode(src, tgt)
        known = [np.bincount(side.words.lines[side.ids > 0], minlength=len(src)) for side in sides]
        return np.array(known) > 0

    def _encode(self, src: Words, tgt: Words) -> tuple[Side, Side]:
        return self.vocabularies[0].encode(src), self.vocabularies[1].encode(tgt)

    def _hits(self, src: Side, tgt: Side) -> tuple[Hits, Hits]:
        """Return for each word of both sides whether the other side has an associate of it, or the
        word itself.
        """
        src_hits, tgt_hits = np.zeros(len(src.ids), bool), np.zeros(len(tgt.ids), bool)
        for left, right in _word_pairs(src.words, tgt.words):
            is_hit = self.table[_slots(src.ids[left], tgt.ids[right])]
            is_hit |= src.words.hashes[left] == tgt.words.hashes[right]
            src_hits[left[is_hit]] = True
            tgt_hits[right[is_hit]] = True
        return src_hits, tgt_hits


def _associated(src: Side, tgt: Side, tgt_size: int) -> NDArray[np.uint64]:
    """Return the slots of the word pairs that occur together more often than by chance."""
    keys = [np.zeros(0, np.int64)]  # of pairs of ids
    for left, right in _word_pairs(src.words, tgt.words):
        src_ids, tgt_ids = src.ids[left], tgt.ids[right]
        is_known = (src_ids > 0) & (tgt_ids > 0)
        keys.append(src_ids[is_known] * tgt_size + tgt_ids[is_known])
    distinct, together = np.unique(np.concatenate(keys), return_counts=True)
    is_frequent = together >= MIN_SHARED_PAIRS
    distinct, together = distinct[is_frequent], together[is_frequent]
    src_ids, tgt_ids = distinct // tgt_size, distinct % tgt_size
    products = np.bincount(src.ids)[src_ids] * np.bincount(tgt.ids)[tgt_ids]
    chance = products / max(1, len(src.words))
    gain = together * np.log(together / chance) - (together - chance)
    is_associated = (together >= MIN_RATIO * chance) & (gain >= MIN_GAIN)
    return _slots(src_ids[is_associated], tgt_ids[is_associated])


def lookup(table: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the index of each hash in a sorted table, from 1; 0 if it is not there."""
    if not len(table):
        return np.zeros(len(hashes), np.int64)
    indices = np.searchsorted(table, hashes)
    is_known = table[np.minimum(indices, len(table) - 1)] == hashes
    return np.where(is_known, indices + 1, 0)


def _nats(actual: tuple[Ids, Hits], unrelated: tuple[Ids, Hits], size: int) -> NDArray[np.float64]:
    """Return, by word id, the evidence if its associate is absent and if it is present, shape
    (2, size): the log ratio of the rates in actual and in unrelated pairs.
    """
    rates = []
    for ids, hits in (actual, unrelated):
        mean = (hits.sum() + 1) / (len(hits) + 2)
        hit_counts = np.bincount(ids[hits], minlength=size) + PRIOR_COUNT * mean
        counts = np.bincount(ids, minlength=size) + PRIOR_COUNT
        rates.append(np.clip(hit_counts / counts, 1e-3, 0.95))
    present = np.clip(np.log(rates[0] / rates[1]), 0, MAX_FOR)
    absent = np.clip(np.log((1 - rates[0]) / (1 - rates[1])), -MAX_AGAINST, 0)
    absent[0] = 0  # unknown words, such as names, give no evidence against a pair
    return np.stack((absent, present))


def _word_pairs(src: Words, tgt: Words) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield, in chunks, the indices of each source word with each target word of its line."""
    ends = np.cumsum(src.counts * tgt.counts)  # word pairs up to the end of each line
    total = int(ends[-1]) if len(ends) else 0
    stops = np.searchsorted(ends, np.arange(CHUNK, total + CHUNK, CHUNK)) + 1
    for start, stop in pairwise([0, *np.unique(np.minimum(stops, len(src))).tolist()]):
        left = np.arange(src.starts[start], src.starts[stop])
        counts = tgt.counts[src.lines[left]]
        yield np.repeat(left, counts), concat_ranges(tgt.starts[src.lines[left]], counts)


def _slots(src_ids: Ids, tgt_ids: Ids) -> NDArray[np.uint64]:
    """Return the slots of word pairs in the hash table; few pairs share a slot."""
    keys = src_ids.astype(np.uint64) * np.uint64(0x2545F4914F6CDD1D) + tgt_ids.astype(np.uint64)
    return (keys * GOLDEN) >> np.uint64(64 - TABLE_BITS)
