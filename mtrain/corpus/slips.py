"""Signs that the sides of a corpus do not belong together: slipped lines, or the same text twice.

Translations of longer sentences are longer. Where that stops being so, or holds better between
lines some way apart, lines have been lost or shuffled on one side, which no count of lines shows.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

WINDOW = 500  # pairs that are looked at together
MOST_WINDOWS = 1000  # spread over the corpus, whatever its size
LEAST_PAIRS = 100  # fewer say nothing
LOWEST_CORRELATION = 0.25  # of the logarithms of lengths; unrelated lines have 0 +- 0.05
MOST_SLIPPED = 10  # lines apart
MUCH_BETTER = 0.2  # in texts of one kind, neighbours are of like length too, but less so
LEAST_SPREAD = 0.1  # lengths that hardly vary cannot go together
MOST_SAME = 0.3  # share of pairs with equal sides


class Sides(Protocol):
    """A corpus, of which any part can be looked at."""

    def __len__(self) -> int:
        """Count the pairs."""

    def lengths_of(self, start: int, stop: int) -> NDArray[np.int64]:
        """Lengths, in any unit, of the pairs `start` to `stop` - 1, shape (pairs, 2)."""

    def equal_sides(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Tell of each of these pairs whether its sides are the same."""


def suspicions(corpus: Sides) -> Iterator[str]:
    """Say what looks wrong about a corpus, in time and memory that do not grow with it."""
    yield from suspicions_of_lengths(len(corpus), corpus.lengths_of)
    equal = [corpus.equal_sides(start, stop).mean() for start, stop in _windows(len(corpus))]
    if equal and (share := float(np.mean(equal))) > MOST_SAME:
        yield f"{share:.0%} of the pairs have the same text on both sides"


def suspicions_of_lengths(
    pairs: int, lengths_of: Callable[[int, int], NDArray[np.int64]], *, is_sample: bool = False
) -> Iterator[str]:
    """Say what looks wrong about lengths; where they are of a sample, pairs have no numbers."""
    windows = list(_windows(pairs))
    low = [start for start, stop in windows if _is_unrelated(lengths_of(start, stop))]
    if len(low) > len(windows) / 2:
        yield (
            "the lengths of the sides do not go together, as those of translations do: "
            "are they aligned line for line?"
        )
    elif low and not is_sample:
        yield (
            f"the lengths of the sides do not go together near pair {low[0] + 1:,} "
            f"({len(low):,} of {len(windows):,} places looked at): have lines slipped there?"
        )


def _windows(pairs: int) -> Iterator[tuple[int, int]]:
    """Places to look at, from the first pair to the last."""
    if pairs < LEAST_PAIRS:
        return
    count = max(1, min(pairs // WINDOW, MOST_WINDOWS))
    for number in range(count):
        start = number * pairs // count
        yield start, min(start + WINDOW, pairs)


def _is_unrelated(lengths: NDArray[np.int64]) -> bool:
    """Tell whether the lengths of two sides vary, and do not vary together line for line."""
    sides = np.log1p(lengths)
    spread = sides.std(axis=0)
    if spread.min() < LEAST_SPREAD:
        return False
    src, tgt = ((sides - sides.mean(axis=0)) / spread).T
    correlation = np.correlate(src, tgt, "full") / len(src)  # of lines further and further apart
    middle = len(src) - 1
    near = correlation[middle - MOST_SLIPPED : middle + MOST_SLIPPED + 1]
    lowest = max(LOWEST_CORRELATION, near.max() - MUCH_BETTER)
    return bool(correlation[middle] < lowest)
