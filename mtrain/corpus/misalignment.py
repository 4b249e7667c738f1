"""Detect corpora whose sides do not belong together: shifted lines, the same text on both sides.

The translation of a longer sentence is longer. Where lengths do not correlate, or correlate better
if one side is shifted, lines were lost or shuffled on one side; line counts do not show that.
"""

import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

WINDOW = 500  # pairs
# Smaller windows for smaller texts, such as scored sets, in which a short stretch matters more.
SMALL_TEXT, SMALL_WINDOW = 5000, 150  # pairs
MAX_WINDOWS = 1000  # spread over the corpus, whatever its size
MIN_PAIRS = 100  # fewer are not tested
MIN_CORRELATION = 0.25  # of the logarithms of lengths; unrelated lines have 0 +- 0.05
HIGH_CORRELATION = 0.5  # enough, even if shifted lines correlate as well: neighbouring lines may
MAX_SHIFT = 10  # lines
MUCH_BETTER = 0.2  # if shifted lines correlate better by more than this, lines are shifted
MIN_GAIN = 0.1  # over shifted lines, which may correlate by chance, as in groups of captions
MIN_SPREAD = 0.1  # standard deviation; lengths that hardly vary cannot correlate
MIN_RELATIVE_SPREAD = 0.4  # fraction of the standard deviation of the whole corpus
MAX_EQUAL = 0.3  # fraction of pairs with equal sides
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
    windows = windows_of(len(corpus))
    unrelated = _unrelated(windows, [corpus.lengths_of(start, stop) for start, stop in windows])
    if len(unrelated) > len(windows) / 2:
        yield UNRELATED
    elif unrelated:
        yield (
            f"the lengths of the sides do not correlate near pair {unrelated[0][0] + 1:,} "
            f"({len(unrelated):,} of {len(windows):,} windows): are lines shifted there?"
        )
    equal = [corpus.equal_sides(start, stop).mean() for start, stop in windows]
    if equal and (fraction := float(np.mean(equal))) > MAX_EQUAL:
        yield f"{fraction:.0%} of the pairs have the same text on both sides"


def unrelated_windows(lengths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the start and stop of each window in which the lengths, shape (pairs, 2), do not
    correlate.
    """
    windows = windows_of(len(lengths))
    return _unrelated(windows, [lengths[start:stop] for start, stop in windows])


def windows_of(pairs: int) -> list[tuple[int, int]]:
    """Return the start and stop of windows, evenly spaced from the first pair to the last."""
    if pairs < MIN_PAIRS:
        return []
    size = SMALL_WINDOW if pairs <= SMALL_TEXT else WINDOW
    count = min(math.ceil(pairs / size), MAX_WINDOWS)
    starts = np.linspace(0, max(0, pairs - size), count).astype(int).tolist()
    return [(start, min(start + size, pairs)) for start in starts]


def _unrelated(
    windows: list[tuple[int, int]], lengths: list[NDArray[np.int64]]
) -> list[tuple[int, int]]:
    """Return the windows whose lengths, each of shape (pairs, 2), vary on both sides but do not
    correlate. In text sorted by length, a window varies far less than the corpus.
    """
    if not windows:
        return []
    logs = [np.log1p(window) for window in lengths]
    least = np.maximum(MIN_SPREAD, MIN_RELATIVE_SPREAD * np.concatenate(logs).std(axis=0))
    return [
        window
        for window, sides in zip(windows, logs, strict=True)
        if (sides.std(axis=0) >= least).all() and not _is_related(sides)
    ]


def _is_related(sides: NDArray[np.float64]) -> bool:
    """Whether logarithms of lengths correlate, and better line by line than if shifted."""
    src, tgt = ((sides - sides.mean(axis=0)) / sides.std(axis=0)).T
    correlation = np.correlate(src, tgt, "full") / len(src)  # at every shift
    middle = len(src) - 1
    near = correlation[middle - MAX_SHIFT : middle + MAX_SHIFT + 1]
    shifted = float(np.delete(near, MAX_SHIFT).max())
    least = min(HIGH_CORRELATION, max(MIN_CORRELATION, shifted + MIN_GAIN))
    return bool(correlation[middle] >= max(least, shifted - MUCH_BETTER))
