"""The characters of many lines at once, in numpy: suspicious ones, scripts, words.

Words are represented by 64-bit hashes. In scripts without spaces a Han or Hiragana character counts
as a word, and so do three characters of Thai and similar scripts.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mtrain.corpus.writing_systems import script_of

Codes = NDArray[np.uint32]

# Kinds of suspicious characters, by their number; 0 is none.
ODD = (
    "",
    "nul",
    "carriage_return",
    "line_break",
    "control",
    "invisible",
    "mark",
    "replacement",
    "private",
    "undefined",
)
_ODD_CHARACTERS = {
    "nul": "\0",
    "carriage_return": "\r",
    "line_break": "\n\v\f\x1c\x1d\x1e\x85\u2028\u2029",
    "invisible": "\ufeff\u200b\u2060\u00ad\u180e\ufff9\ufffa\ufffb\u034f\u2061\u2062\u2063\u2064"
    "\u206a\u206b\u206c\u206d\u206e\u206f\u3164\uffa0",
    "mark": "\u200c\u200d\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    + "".join(map(chr, range(0xE0001, 0xE0080))),  # tags, of which flags are made
    "replacement": "\ufffd\ufffc",
}
_ODD_OF = {ord(c): ODD.index(name) for name, text in _ODD_CHARACTERS.items() for c in text}
_ODD_OF[ord("\t")] = 0  # the control character that text may hold
_ODD_OF_CATEGORY = {"Cc": "control", "Co": "private", "Cn": "undefined", "Cs": "undefined"}

# How characters form words: not at all, in runs, each by itself, each with the next two.
NONE, RUN, SINGLE, TRIPLE = range(4)
_SINGLE = {"CJK", "HIRAGANA"}
_TRIPLE = {"THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE", "BALINESE"}

PIECES_A_WORD = 1.4  # about, where there is no vocabulary yet

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 by the golden ratio: spreads the bits of hashes
_POWERS = np.cumprod(np.full(256, 0x100000001B3 * 2 + 1, np.uint64))


@dataclass(frozen=True)
class Words:
    """Words of lines by their hashes, in order: those of line `i` from `starts[i]` to
    `starts[i + 1]`.
    """

    hashes: NDArray[np.uint64]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Words of each line."""
        return np.diff(self.starts)

    @cached_property
    def lines(self) -> NDArray[np.int64]:
        """The line of each word."""
        return np.repeat(np.arange(len(self)), self.counts)

    @property
    def places(self) -> NDArray[np.int64]:
        """The index of each word in its line, from 0."""
        return np.arange(len(self.hashes)) - self.starts[self.lines]

    def select(self, kept: NDArray[np.bool_]) -> "Words":
        """Leave out words."""
        return Words.of(self.hashes[kept], np.bincount(self.lines[kept], minlength=len(self)))

    def part(self, start: int, stop: int) -> "Words":
        """Return the lines from `start` to `stop` - 1."""
        starts = self.starts[start : stop + 1]
        return Words(self.hashes[starts[0] : starts[-1]], starts - starts[0])

    @staticmethod
    def of(hashes: NDArray[np.uint64], counts: NDArray[np.int64]) -> "Words":
        """Cut words into lines of so many."""
        return Words(hashes, np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))))

    @staticmethod
    def join(parts: Sequence["Words"]) -> "Words":
        """Concatenate lines."""
        none = Words.of(np.zeros(0, np.uint64), np.zeros(0, np.int64))
        counts = np.concatenate([part.counts for part in (none, *parts)])
        return Words.of(np.concatenate([part.hashes for part in (none, *parts)]), counts)


@dataclass(frozen=True)
class Lines:
    """The characters of lines by code point, and the line of each."""

    codes: Codes
    lines: NDArray[np.int64]
    count: int


class Characters:
    """Tables of the properties of characters, filled when characters first occur."""

    def __init__(self) -> None:
        size = 0x110000
        self.is_known = np.zeros(size, bool)
        self.odd = np.zeros(size, np.uint8)
        self.form = np.zeros(size, np.uint8)
        self.script = np.zeros(size, np.uint8)  # by number in `scripts`; 0: not a letter
        self.lower = np.arange(size, dtype=np.uint32)
        self.scripts = ["none"]

    def read(self, texts: Sequence[str]) -> Lines:
        r"""Split lines into characters and words; a `\n` within a line, as in tables, becomes
        a `\v`.
        """
        text = "\n".join(texts)
        if text.count("\n") >= max(1, len(texts)):
            text = "\n".join([text.replace("\n", "\v") for text in texts])
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        ends = codes == 10
        lines = np.cumsum(ends)
        self._meet(codes)
        return Lines(codes[~ends], lines[~ends], len(texts))

    def words(self, text: Lines) -> Words:
        """Find the words, regardless of case."""
        forms, codes = self.form[text.codes], self.lower[text.codes].astype(np.uint64)
        same_line = np.diff(text.lines, prepend=-1) == 0
        runs = forms == RUN
        begins = runs & ~(np.roll(runs, 1) & same_line)
        values = (codes + np.uint64(1)) * GOLDEN
        values ^= values >> np.uint64(29)
        _spell_triples(values, forms, same_line)
        begins |= (forms == SINGLE) | (forms == TRIPLE)
        starts = np.flatnonzero(begins)
        if not len(starts):
            return Words(np.zeros(0, np.uint64), np.zeros(text.count + 1, np.int64))
        places = np.arange(len(codes)) - starts[np.cumsum(begins) - 1]
        values = np.where(forms == NONE, np.uint64(0), values * _POWERS[places & 255])
        hashes = np.add.reduceat(values, starts) * GOLDEN
        hashes ^= hashes >> np.uint64(32)
        counts = np.bincount(text.lines[starts], minlength=text.count)
        return Words.of(hashes * GOLDEN, counts)

    def letters(self, text: Lines) -> NDArray[np.int64]:
        """Count the letters of each line by script, shape (lines, scripts)."""
        scripts = self.script[text.codes].astype(np.int64)
        width = len(self.scripts)
        table = np.bincount(text.lines * width + scripts, minlength=text.count * width)
        table = table.reshape(text.count, width)
        table[:, 0] = 0
        return table

    def _meet(self, codes: Codes) -> None:
        """Find out about characters not seen before."""
        for code in np.unique(codes[~self.is_known[codes]]).tolist():
            char = chr(code)
            category = unicodedata.category(char)
            self.is_known[code] = True
            self.odd[code] = _ODD_OF.get(code, ODD.index(_odd_category(code, category)))
            if category[0] in "LMN":
                self._meet_letter(code, char, category)

    def _meet_letter(self, code: int, char: str, category: str) -> None:
        script = script_of(char)
        self.form[code] = SINGLE if script in _SINGLE else TRIPLE if script in _TRIPLE else RUN
        if len(char.lower()) == 1:
            self.lower[code] = ord(char.lower())
        if category[0] != "L" or not script or len(self.scripts) > 250:
            return
        if script not in self.scripts:
            self.scripts.append(script)
        self.script[code] = self.scripts.index(script)


def spans(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return consecutive numbers from each start: of 5 and 9, by lengths 3 and 2, these are 5 6 7 9
    10.
    """
    begins = np.cumsum(counts) - counts
    places: NDArray[np.int64] = np.arange(counts.sum()) + np.repeat(starts - begins, counts)
    return places


def _odd_category(code: int, category: str) -> str:
    """Characters newer than Python's tables, such as emoji, pass for characters."""
    if category == "Cn" and code >= 0x1F000 and code & 0xFFFE != 0xFFFE:
        return ""
    return _ODD_OF_CATEGORY.get(category, "")


def _spell_triples(
    values: NDArray[np.uint64], forms: NDArray[np.uint8], same_line: NDArray[np.bool_]
) -> None:
    """Let each character of a script without spaces stand for itself and the next two."""
    triples = forms == TRIPLE
    if not triples.any():
        return
    spelt = values.copy()
    goes_on = np.append((triples & same_line)[1:], False)
    for distance in (1, 2):
        following = np.append(values[distance:], np.zeros(distance, np.uint64))
        spelt += np.where(goes_on, following * _POWERS[distance], np.uint64(0))
        goes_on &= np.append(goes_on[1:], False)
    values[triples] = spelt[triples]
