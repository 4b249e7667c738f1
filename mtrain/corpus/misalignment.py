"""Tests for corpora whose sides do not belong together: shifted lines, the same text on both sides,
or swapped sides.

The translation of a longer sentence is longer. Where lengths do not correlate, or correlate better
if the sides are shifted, lines were lost or shuffled on one side; line counts do not show that.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mtrain.config.languages import FREQUENT, language_code
from mtrain.corpus.writing_systems import script_of, scripts_of

WINDOW = 500  # pairs
# Windows of smaller texts, such as scored sets, of which a short stretch is a larger part.
SMALL_TEXT, SMALL_WINDOW = 5000, 150  # pairs
MAX_WINDOWS = 1000  # spread over the corpus, whatever its size
MIN_PAIRS = 100  # fewer are not tested
MIN_CORRELATION = 0.25  # of the logarithms of lengths; unrelated lines have 0 +- 0.05
HIGH_CORRELATION = 0.5  # need not exceed that of shifted lines; neighbouring lines correlate, too
MAX_SHIFT = 10  # lines
MUCH_BETTER = 0.2  # shifted lines that correlate better by more than this mean a shift
MIN_GAIN = 0.1  # over shifted lines: lengths that recur, as in groups of captions, correlate anyway
MIN_SPREAD = 0.1  # standard deviation; lengths that hardly vary cannot correlate
MIN_RELATIVE_SPREAD = 0.4  # fraction of the standard deviation of the whole corpus
MAX_EQUAL = 0.3  # fraction of pairs with equal sides
LANGUAGE_SAMPLE = 10_000  # pairs, about, that show whether sides are swapped
MIN_SWAPPED = 5  # pairs with swapped sides in that sample; fewer do not count
# Fractions of pairs with swapped sides, above which there is a warning and an error.
MAX_SWAPPED, MOST_SWAPPED = 0.01, 0.5
LONG = 6  # words of a text that would have a frequent word of its language
MUCH_MORE = 3  # times as many frequent words of a language indicate it
MIN_WITH_WORDS = 0.3  # fraction of the texts of a side that have frequent words of its language
UNRELATED = (
    "the lengths of the sides do not correlate as those of translations do: are they aligned line "
    "for line?"
)


class IndexedPairs(Protocol):
    """A corpus with random access to the lengths of its pairs."""

    def __len__(self) -> int:
        """Return the number of pairs."""

    def lengths_of(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the lengths, in any unit, of the pairs `start` to `stop` - 1, shape (pairs, 2)."""

    def equal_sides(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Whether the sides of each of these pairs are the same."""


def misalignment_warnings(corpus: IndexedPairs) -> Iterator[str]:
    """Yield warnings about a corpus; time and memory do not grow with its size."""
    windows = list(windows_of(len(corpus)))
    starts = _unrelated(windows, [corpus.lengths_of(start, stop) for start, stop in windows])
    if len(starts) > len(windows) / 2:
        yield UNRELATED
    elif starts:
        yield (
            f"the lengths of the sides do not correlate near pair {starts[0] + 1:,} "
            f"({len(starts):,} of {len(windows):,} windows): are lines shifted there?"
        )
    equal = [corpus.equal_sides(start, stop).mean() for start, stop in windows]
    if equal and (fraction := float(np.mean(equal))) > MAX_EQUAL:
        yield f"{fraction:.0%} of the pairs have the same text on both sides"


def unrelated_windows(lengths: NDArray[np.int64]) -> list[int]:
    """Return the starts of the windows in which the lengths, shape (pairs, 2), do not correlate."""
    windows = list(windows_of(len(lengths)))
    return _unrelated(windows, [lengths[start:stop] for start, stop in windows])


def windows_of(pairs: int) -> Iterator[tuple[int, int]]:
    """Yield the start and stop of windows, evenly spaced from the first pair to the last."""
    if pairs < MIN_PAIRS:
        return
    size = SMALL_WINDOW if pairs <= SMALL_TEXT else WINDOW
    count = min(math.ceil(pairs / size), MAX_WINDOWS)
    for start in np.linspace(0, max(0, pairs - size), count).astype(int).tolist():
        yield start, min(start + size, pairs)


def _unrelated(windows: list[tuple[int, int]], lengths: list[NDArray[np.int64]]) -> list[int]:
    """Return the starts of the windows whose lengths, each of shape (pairs, 2), vary on both sides
    but do not correlate. In text sorted by length, a window varies far less than the corpus.
    """
    if not windows:
        return []
    logs = [np.log1p(window) for window in lengths]
    least = np.maximum(MIN_SPREAD, MIN_RELATIVE_SPREAD * np.concatenate(logs).std(axis=0))
    return [
        start
        for (start, _), sides in zip(windows, logs, strict=True)
        if (sides.std(axis=0) >= least).all() and not _is_related(sides)
    ]


def _is_related(sides: NDArray[np.float64]) -> bool:
    """Whether logarithms of lengths correlate, and line for line better than if lines shift."""
    src, tgt = ((sides - sides.mean(axis=0)) / sides.std(axis=0)).T
    correlation = np.correlate(src, tgt, "full") / len(src)  # at every shift
    middle = len(src) - 1
    near = correlation[middle - MAX_SHIFT : middle + MAX_SHIFT + 1]
    shifted = float(np.delete(near, MAX_SHIFT).max())
    least = min(HIGH_CORRELATION, max(MIN_CORRELATION, shifted + MIN_GAIN))
    return bool(correlation[middle] >= max(least, shifted - MUCH_BETTER))


def swapped_fraction(
    sources: Sequence[str], targets: Sequence[str], src_lang: str, tgt_lang: str
) -> float:
    """Estimate the fraction of pairs whose sides are swapped, from the pairs whose sides look like
    these two languages; 0 if there are few such pairs, or if nothing distinguishes the languages.
    """
    step = max(1, len(sources) // LANGUAGE_SAMPLE)
    sources, targets = sources[::step], targets[::step]
    first, second = (_languages(texts, src_lang, tgt_lang) for texts in (sources, targets))
    right = int(((first > 0) & (second < 0)).sum())
    swapped = int(((first < 0) & (second > 0)).sum())
    fraction = swapped / max(1, right + swapped)
    # frequent words of one language alone, such as English "is", may be words of the other, too
    is_sure = _are_distinct(src_lang, tgt_lang) or (_words(src_lang) and _words(tgt_lang))
    is_enough = fraction > (MAX_SWAPPED if is_sure else MOST_SWAPPED)
    return fraction if swapped >= MIN_SWAPPED and is_enough else 0.0


def other_language(texts: Sequence[str], language: str) -> str:
    """Return the language that texts are in by their frequent words, if it is another one in the
    same script as `language`; an empty text if that is not clear, or if the frequent words of
    `language` are not known.
    """
    lines = [set(text.lower().split()) for text in texts]
    frequent = {code: _words(code) for code in FREQUENT}
    counts = {
        code: sum(not words.isdisjoint(line) for line in lines) for code, words in frequent.items()
    }
    own, best = counts.get(language_code(language)), max(counts, key=counts.__getitem__)
    if own is None or len(texts) < MIN_PAIRS or _are_distinct(language, best):
        return ""
    return best if counts[best] > max(MUCH_MORE * own, MIN_WITH_WORDS * len(texts)) else ""


def _are_distinct(language: str, other: str) -> bool:
    """Whether two languages are written in different scripts."""
    scripts, other_scripts = scripts_of(language), scripts_of(other)
    return bool(scripts and other_scripts and scripts.isdisjoint(other_scripts))


def _words(language: str) -> set[str]:
    """Return frequent words of a language; none if they are not known."""
    return set(FREQUENT.get(language_code(language), "").split())


def _languages(texts: Sequence[str], language: str, other: str) -> NDArray[np.int64]:
    """Return for each text 1 if it looks like the language, -1 if it looks like the other, else 0:
    by the scripts of its letters or, if the languages share a script, by frequent words.
    """
    if _are_distinct(language, other):
        counts, much_more = _count_letters(texts, language, other), 1
    else:
        counts, much_more = _count_words(texts, language, other), MUCH_MORE
    first, second = np.array(counts, np.int64).reshape(len(texts), 2).T
    return np.where(first > much_more * second, 1, np.where(second > much_more * first, -1, 0))


def _count_letters(texts: Sequence[str], *languages: str) -> list[list[int]]:
    """Count the letters of each text in the scripts of each language."""
    scripts = [scripts_of(language) for language in languages]
    letters = (Counter(map(script_of, text)) for text in texts)
    return [[sum(count[name] for name in names) for names in scripts] for count in letters]


def _count_words(texts: Sequence[str], language: str, other: str) -> list[list[int]]:
    """Count the frequent words in each text that only one of the languages has. If those of one
    language are unknown, a long text without the other's counts as one word of it.
    """
    known = _words(language), _words(other)
    groups = known[0] - known[1], known[1] - known[0]
    lines = [text.lower().split() for text in texts]
    counts = [[len(group.intersection(line)) for group in groups] for line in lines]
    for side in (0, 1):
        if known[1 - side] and not known[side]:
            for line, count in zip(lines, counts, strict=True):
                count[side] = int(len(line) >= LONG and not count[1 - side])
    return counts
