"""Detect corpora whose sides do not belong together: shifted lines, the same text on both sides.

The translation of a longer sentence is longer. Where lengths do not correlate, or correlate better
if one side is shifted, lines were lost or shuffled on one side; line counts do not show that.
"""

import math
from collections import Counter
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
# The distance of the sides, in lines, is known if the ranks of their lengths correlate at it by
# `MIN_MATCH`, by `MIN_LEAD` more than at all others, and by this number of standard deviations
# above chance. At 30 pairs, some shuffled lines match by 0.8, and shifted translations by 0.85 to
# 0.98.
MAX_DISTANCE, MIN_DISTANCE_PAIRS = 50, 30
MIN_MATCH, MIN_LEAD, MIN_DEVIATIONS = 0.5, 0.25, 6.0
MAX_START = 20  # first lines of a text that may seem to be at another distance by chance
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
    distances = [distance_of(corpus.lengths_of(start, stop)) for start, stop in unrelated]
    if len(unrelated) > len(windows) / 2:
        [(distance, count)] = Counter(distances).most_common(1)
        yield shifted_throughout(distance) if distance and 2 * count > len(windows) else UNRELATED
    elif unrelated:
        first = distances[0]
        shift = f"targets are {shift_text(first)} there" if first else "are lines shifted there?"
        yield (
            f"the lengths of the sides do not correlate near pair {unrelated[0][0] + 1:,} "
            f"({len(unrelated):,} of {len(windows):,} windows): {shift}"
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
    starts = np.linspace(0, pairs - size, count).astype(int).tolist()
    return [(start, min(start + size, pairs)) for start in starts]


def shift_text(distance: int, unit: str = "line") -> str:
    """Describe how far the targets are behind their sources, or ahead of them if negative."""
    units = f"{unit}s" if abs(distance) > 1 else unit
    return f"{abs(distance)} {units} {'behind' if distance > 0 else 'ahead of'} their sources"


def shifted_throughout(distance: int, unit: str = "line") -> str:
    """Return the message for targets at this distance from their sources in the whole text."""
    short, long = ("targets", "sources") if distance < 0 else ("sources", "targets")
    return (
        f"targets are {shift_text(distance, unit)} throughout: look at the first {unit}s; the "
        f"{short} lack {abs(distance)} there, or the {long} have {abs(distance)} too many"
    )


def distance_of(lengths: NDArray[np.int64]) -> int | None:
    """Return how many lines the targets are behind their sources, negative if they are ahead, by
    the lengths, shape (pairs, 2), of consecutive pairs; None if that is not certain.
    """
    pairs = len(lengths)
    if pairs < MIN_DISTANCE_PAIRS or not lengths.std(axis=0).all():
        return None
    limit = min(MAX_DISTANCE, pairs // 3)
    distances = np.arange(-limit, limit + 1)
    shared = pairs - np.abs(distances)
    ranks = np.stack([_ranks(side) for side in lengths.T], 1)
    matches = _correlations(ranks)[pairs - 1 + distances] * pairs / shared
    best = int(matches.argmax())
    match, deviation = float(matches[best]), 1 / math.sqrt(shared[best] - 3)  # after Fisher
    is_certain = (
        match >= max(MIN_MATCH, np.delete(matches, best).max() + MIN_LEAD)
        and math.atanh(min(match, 0.999)) >= MIN_DEVIATIONS * deviation
    )
    return int(distances[best]) if is_certain else None


def distances_of(lengths: NDArray[np.int64], distance: int = 0) -> Iterator[tuple[int, int, int]]:
    """Yield the start, stop and distance of each part of consecutive pairs at one distance, as far
    as it is certain. `distance` is that of the pairs before them.
    """
    pairs, first = len(lengths), 0
    last_start = last_stop = 0  # of the latest window whose distance is certain
    for stop in (*range(SMALL_WINDOW, pairs, SMALL_WINDOW), pairs):
        start = max(0, stop - SMALL_WINDOW)
        found = distance_of(lengths[start:stop])
        if found is None:
            continue
        is_near = start <= last_stop + SMALL_WINDOW
        if found != distance or not is_near:
            begin = _change(lengths, (last_start, stop), (distance, found)) if is_near else start
            if not last_stop and begin <= MAX_START + abs(found):
                begin = 0  # the first lines may have no partner
            if is_near:
                last_stop = begin
            if last_stop > first:
                yield first, last_stop, distance
            first, distance = begin, found
        last_start, last_stop = start, stop
    if last_stop > first:
        yield first, last_stop, distance


def _change(lengths: NDArray[np.int64], window: tuple[int, int], distances: tuple[int, int]) -> int:
    """Return the pair of a window from which lengths match at the second distance."""
    src, tgt = np.log1p(lengths).T
    rows = np.arange(*window)
    old, new = (
        np.abs(src[rows] - tgt[np.clip(rows + distance, 0, len(tgt) - 1)]) for distance in distances
    )
    return window[0] + int(np.append(0, np.cumsum(old - new)).argmin())


def _ranks(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the rank of each value; equal values have the same."""
    _, indices, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - counts / 2)[indices]


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
    correlation, middle = _correlations(sides), len(sides) - 1
    near = correlation[middle - MAX_SHIFT : middle + MAX_SHIFT + 1]
    shifted = float(np.delete(near, MAX_SHIFT).max())
    least = min(HIGH_CORRELATION, max(MIN_CORRELATION, shifted + MIN_GAIN))
    return bool(correlation[middle] >= max(least, shifted - MUCH_BETTER))


def _correlations(sides: NDArray[np.float64]) -> NDArray[np.float64]:
    """Correlate the sides, shape (pairs, 2), with the targets shifted up by 1 - pairs to pairs - 1
    lines; lines without a partner count as average.
    """
    src, tgt = ((sides - sides.mean(axis=0)) / sides.std(axis=0)).T
    return np.correlate(tgt, src, "full") / len(src)
