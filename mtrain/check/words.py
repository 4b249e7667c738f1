"""The words and scripts of many lines at once, in numpy.

    texts -> code points -> words as 64-bit hashes, letters by script

In scripts without spaces, each Han or Hiragana character is a word, and each three consecutive
characters of Thai and similar scripts.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mtrain.corpus.readers import code_points
from mtrain.corpus.writing_systems import script_of

# How characters form words: not at all, as a run, each by itself, or each with the next two.
NONE, RUN, SINGLE, TRIPLE = range(4)
SINGLE_SCRIPTS = {"CJK", "HIRAGANA"}
TRIPLE_SCRIPTS = {"THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE", "BALINESE"}
FORMS = dict.fromkeys(SINGLE_SCRIPTS, SINGLE) | dict.fromkeys(TRIPLE_SCRIPTS, TRIPLE)  # else RUN

# Estimates, if there is no vocabulary: of a word, and of a character of these scripts.
PIECES_PER_WORD = 1.4
PIECES_PER_CHARACTER = dict.fromkeys(SINGLE_SCRIPTS, 0.8) | dict.fromkeys(TRIPLE_SCRIPTS, 0.3)

MAX_PERIOD = 4  # words of a repeated phrase
MIN_DOUBLED = 4  # words of a text that occurs twice

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio; a product with it mixes the bits
# Powers of an odd number: weights of the characters in the hash of a word.
_POWERS = np.cumprod(np.full(256, 0x100000001B3 * 2 + 1, np.uint64))


@dataclass(frozen=True)
class Words:
    """Words of lines, as hashes: those of line `i` are `hashes[starts[i] : starts[i + 1]]`."""

    hashes: NDArray[np.uint64]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of words of each line."""
        return np.diff(self.starts)

    @cached_property
    def lines(self) -> NDArray[np.int64]:
        """Line of each word."""
        return np.repeat(np.arange(len(self)), self.counts)

    def select(self, mask: NDArray[np.bool_]) -> "Words":
        """Return the words where the mask is true."""
        return Words.of(self.hashes[mask], np.bincount(self.lines[mask], minlength=len(self)))

    def distinct(self) -> "Words":
        """Return the first occurrence of each word in each line."""
        keys = (self.lines.astype(np.uint64) << np.uint64(40)) | (self.hashes >> np.uint64(24))
        is_first = np.zeros(len(keys), bool)
        is_first[np.unique(keys, return_index=True)[1]] = True
        return self.select(is_first)

    def part(self, start: int, stop: int) -> "Words":
        """Return the lines from `start` to `stop` - 1."""
        starts = self.starts[start : stop + 1]
        return Words(self.hashes[starts[0] : starts[-1]], starts - starts[0])

    def shifted(self, distance: int) -> "Words":
        """Move the lines down by a distance, and those past the end to the beginning."""
        first = -distance % max(1, len(self))
        return Words.join([self.part(first, len(self)), self.part(0, first)])

    def bigrams(self) -> "Words":
        """Return the hashes of the distinct bigrams of each line."""
        in_one_line = self.lines[1:] == self.lines[:-1]
        hashes = combined(self.hashes[:-1], self.hashes[1:])[in_one_line]
        counts = np.bincount(self.lines[1:][in_one_line], minlength=len(self))
        return Words.of(hashes, counts).distinct()

    def repeat(self, times: int, fraction: float) -> NDArray[np.bool_]:
        """Whether words that repeat the word one to four words before them are this many phrases
        and more than a fraction of each line.
        """
        result = np.zeros(len(self), bool)
        for distance in range(1, MAX_PERIOD + 1):
            lines, earlier = self.lines[distance:], self.lines[:-distance]
            is_same = (self.hashes[distance:] == self.hashes[:-distance]) & (lines == earlier)
            counts = np.bincount(lines[is_same], minlength=len(self))
            result |= (counts >= times * distance) & (counts > fraction * self.counts)
        return result

    def are_doubled(self) -> NDArray[np.bool_]:
        """Whether the second half of the words of each line is the same as the first half."""
        halves = self.counts // 2
        positions = np.arange(len(self.hashes)) - self.starts[self.lines]
        first = np.flatnonzero(positions < halves[self.lines])
        second = first + (self.counts - halves)[self.lines[first]]
        is_same = self.hashes[first] == self.hashes[second]
        counts = np.bincount(self.lines[first[is_same]], minlength=len(self))
        is_doubled: NDArray[np.bool_]
        is_doubled = (counts == halves) & (halves >= MIN_DOUBLED) & (self.counts % 2 == 0)
        return is_doubled

    @staticmethod
    def of(hashes: NDArray[np.uint64], counts: NDArray[np.int64]) -> "Words":
        """Return lines with these numbers of words."""
        return Words(hashes, np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))))

    @staticmethod
    def join(parts: Sequence["Words"]) -> "Words":
        """Concatenate lines."""
        none = Words.of(np.zeros(0, np.uint64), np.zeros(0, np.int64))
        counts = np.concatenate([part.counts for part in (none, *parts)])
        return Words.of(np.concatenate([part.hashes for part in (none, *parts)]), counts)


class Characters:
    """Tables of the properties of characters, filled when characters first occur."""

    def __init__(self) -> None:
        size = 0x110000
        self.is_known = np.zeros(size, bool)
        self.form = np.zeros(size, np.uint8)
        self.script = np.zeros(size, np.uint16)  # by number in `scripts`; 0: not a letter
        self.lower = np.arange(size, dtype=np.uint32)
        self.scripts = [""]

    def read(self, texts: Sequence[str]) -> tuple[Words, dict[str, NDArray[np.int64]]]:
        """Return the words of lines, regardless of case, and their numbers of letters by script."""
        codes = code_points(texts)
        for code in np.unique(codes[~self.is_known[codes]]).tolist():
            self._add(code)
        ends = np.flatnonzero(codes == 10)
        return self._words(codes, ends), self._letters(codes, ends)

    def _words(self, codes: NDArray[np.uint32], ends: NDArray[np.int64]) -> Words:
        forms = self.form[codes]
        values = (self.lower[codes].astype(np.uint64) + np.uint64(1)) * GOLDEN
        values ^= values >> np.uint64(29)
        values[forms == NONE] = 0
        _combine_triples(values, forms == TRIPLE)
        runs = forms == RUN
        begins = runs & ~np.roll(runs, 1)
        begins |= (forms == SINGLE) | (forms == TRIPLE)
        starts = np.flatnonzero(begins)
        if not len(starts):
            return Words(np.zeros(0, np.uint64), np.zeros(len(ends) + 1, np.int64))
        positions = np.arange(len(codes)) - starts[np.cumsum(begins) - 1]  # in the word
        hashes = np.add.reduceat(values * _POWERS[positions & 255], starts) * GOLDEN
        hashes ^= hashes >> np.uint64(32)
        return Words(hashes * GOLDEN, np.append(0, np.searchsorted(starts, ends)))

    def _letters(
        self, codes: NDArray[np.uint32], ends: NDArray[np.int64]
    ) -> dict[str, NDArray[np.int64]]:
        scripts = self.script[codes]
        numbers = np.flatnonzero(np.bincount(scripts, minlength=1)[1:]) + 1  # of these scripts
        begins = np.append(0, ends[:-1])  # of a line: the newline before it, which is no letter
        return {
            self.scripts[number]: np.add.reduceat(scripts == number, begins, dtype=np.int64)
            for number in numbers.tolist()
        }

    def _add(self, code: int) -> None:
        """Fill the tables for a character."""
        self.is_known[code] = True
        char = chr(code)
        category = unicodedata.category(char)
        if category[0] not in "LMN":
            return
        script = script_of(char)
        self.form[code] = FORMS.get(script, RUN)
        if len(char.lower()) == 1:
            self.lower[code] = ord(char.lower())
        is_counted = category[0] == "L" or script in TRIPLE_SCRIPTS
        if script and is_counted:
            if script not in self.scripts:
                self.scripts.append(script)
            self.script[code] = self.scripts.index(script)


def combined(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hash of each pair of hashes."""
    sums = left * GOLDEN + right
    return (sums ^ (sums >> np.uint64(31))) * GOLDEN


def _combine_triples(values: NDArray[np.uint64], is_triple: NDArray[np.bool_]) -> None:
    """Combine the value of each `is_triple` character with those of the next two, in place."""
    if is_triple.any():
        padded = np.append(np.where(is_triple, values, 0), np.zeros(2, np.uint64))
        next_values = padded[1:-1]
        third_values = np.where(next_values > 0, padded[2:], 0)
        triples = values + next_values * _POWERS[1] + third_values * _POWERS[2]
        values[is_triple] = triples[is_triple]
