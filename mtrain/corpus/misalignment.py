"""Signs that the sides of a corpus do not belong together: shifted lines, the same text twice, or
each side in the language of the other.

The translation of a longer sentence is longer. Where lengths do not correlate, or correlate better
at some distance, lines were lost or shuffled on one side; line counts do not show that.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mtrain.config.languages import FREQUENT, language_code
from mtrain.corpus.writing_systems import script_of, scripts_of

WINDOW = 500  # pairs
MAX_WINDOWS = 1000  # spread over the corpus, whatever its size
MIN_PAIRS = 100  # fewer show nothing
MIN_CORRELATION = 0.25  # of the logarithms of lengths; unrelated lines have 0 +- 0.05
HIGH_CORRELATION = 0.5  # a lower one must exceed those of neighbouring lines
MAX_SHIFT = 10  # lines apart
MUCH_BETTER = 0.2  # neighbouring lines correlate, too, but less
MIN_GAIN = 0.1  # lengths that recur, as in groups of five captions, correlate at any distance
MIN_SPREAD = 0.1  # lengths that hardly vary cannot correlate
MIN_RELATIVE_SPREAD = 0.4  # of that of the whole corpus
MAX_EQUAL = 0.3  # fraction of pairs with equal sides
LOOKED_AT = 10_000  # pairs whose languages are looked at
MIN_LINES = 20  # frequent words that indicate a language, each once a line
MUCH_MORE = 3  # times as many words of the other side's language
UNRELATED = (
    "the lengths of the sides do not correlate as those of translations do: are they aligned line "
    "for line?"
)


class Sides(Protocol):
    """A corpus with random access to the lengths of its pairs."""

    def __len__(self) -> int:
        """Return the number of pairs."""

    def lengths_of(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the lengths, in any unit, of the pairs `start` to `stop` - 1, shape (pairs, 2)."""

    def equal_sides(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Whether the sides of each of these pairs are the same."""


def misalignment_warnings(corpus: Sides) -> Iterator[str]:
    """Yield messages of what looks wrong about a corpus; time and memory do not grow with it."""
    windows = list(windows_of(len(corpus)))
    low = _unrelated([corpus.lengths_of(start, stop) for start, stop in windows])
    starts = [start for (start, _), is_low in zip(windows, low, strict=True) if is_low]
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
    """Return the first pairs of the windows of lengths, shape (pairs, 2), that do not correlate."""
    windows = list(windows_of(len(lengths)))
    low = _unrelated([lengths[start:stop] for start, stop in windows])
    return [start for (start, _), is_low in zip(windows, low, strict=True) if is_low]


def windows_of(pairs: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of windows from the first pair to the last."""
    if pairs < MIN_PAIRS:
        return
    count = min(-(-pairs // WINDOW), MAX_WINDOWS)
    for start in np.linspace(0, max(0, pairs - WINDOW), count).astype(int).tolist():
        yield start, min(start + WINDOW, pairs)


def _unrelated(windows: list[NDArray[np.int64]]) -> list[bool]:
    """Whether the lengths of each window, shape (pairs, 2), vary on both sides, but do not
    correlate. In text sorted by length they vary far less than in all windows.
    """
    sides = [np.log1p(lengths) for lengths in windows]
    least = MIN_SPREAD
    if sides:
        least = np.maximum(least, MIN_RELATIVE_SPREAD * np.concatenate(sides).std(axis=0))
    return [bool((own.std(axis=0) >= least).all()) and not _is_related(own) for own in sides]


def _is_related(sides: NDArray[np.float64]) -> bool:
    """Whether logarithms of lengths correlate, and better line for line than at a distance."""
    src, tgt = ((sides - sides.mean(axis=0)) / sides.std(axis=0)).T
    correlation = np.correlate(src, tgt, "full") / len(src)  # at growing distances
    middle = len(src) - 1
    near = correlation[middle - MAX_SHIFT : middle + MAX_SHIFT + 1]
    others = float(np.delete(near, MAX_SHIFT).max())
    lowest = min(HIGH_CORRELATION, max(MIN_CORRELATION, others + MIN_GAIN))
    return bool(correlation[middle] >= max(lowest, others - MUCH_BETTER))


def seem_swapped(sources: list[str], targets: list[str], src_lang: str, tgt_lang: str) -> bool:
    """Whether most sources look like the target language, and most targets like the source
    language; false where neither scripts nor words tell these apart.
    """
    step = max(1, len(sources) // LOOKED_AT)
    is_other = _looks_like(sources[::step], tgt_lang, src_lang)
    return is_other and _looks_like(targets[::step], src_lang, tgt_lang)


def _looks_like(texts: list[str], language: str, own: str) -> bool:
    """Whether texts are of a language rather than their own: by the scripts of their letters, or,
    if the languages share one, by their words.
    """
    scripts = scripts_of(language), scripts_of(own)
    if all(scripts) and not scripts[0] & scripts[1]:
        letters = Counter(map(script_of, "".join(texts)))
        count, right = (sum(letters[script] for script in each) for each in scripts)
        return count >= MIN_LINES and count > right
    here, there = (set(FREQUENT.get(language_code(code), "").split()) for code in (language, own))
    lines = [set(text.lower().split()) for text in texts]
    count, right = (
        sum(len(line & each) for line in lines) for each in (here - there, there - here)
    )
    return count >= MIN_LINES and count > MUCH_MORE * right
