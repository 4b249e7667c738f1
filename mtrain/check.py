"""Signs that the sides of a corpus do not belong together: slipped lines, or the same text twice.

Translations of longer sentences are longer. Where that stops being so, lines have been lost or
shuffled on one side, which no count of lines shows.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

WINDOW = 500  # pairs that are looked at together
MOST_WINDOWS = 1000  # spread over the corpus, whatever its size
LEAST_PAIRS = 100  # fewer say nothing
LOWEST_CORRELATION = 0.25  # of the logarithms of lengths; unrelated lines have 0 +- 0.05
LEAST_SPREAD = 0.1  # lengths that hardly vary cannot go together
MOST_SAME = 0.3  # share of pairs with equal sides

# Lengths (pairs, 2) and equality (pairs,) of the two sides, of pairs `start` to `stop` - 1.
Lengths = Callable[[int, int], NDArray[np.int64]]
Same = Callable[[int, int], NDArray[np.bool_]]


def suspicions(pairs: int, lengths: Lengths, same: Same) -> Iterator[str]:
    """Say what looks wrong about a corpus, in time and memory that do not grow with it."""
    windows = list(_windows(pairs))
    low = [start for start, stop in windows if _is_unrelated(lengths(start, stop))]
    if windows and len(low) > len(windows) / 2:
        yield (
            "the lengths of the sides do not go together, as those of translations do: "
            "are they aligned line for line?"
        )
    elif low:
        yield (
            f"the lengths of the sides do not go together near pair {low[0] + 1:,} "
            f"({len(low):,} of {len(windows):,} places looked at): have lines slipped there?"
        )
    equal = [same(start, stop).mean() for start, stop in windows]
    if equal and (share := float(np.mean(equal))) > MOST_SAME:
        yield f"{share:.0%} of the pairs have the same text on both sides"


def _windows(pairs: int) -> Iterator[tuple[int, int]]:
    """Places to look at, from the first pair to the last."""
    if pairs < LEAST_PAIRS:
        return
    count = max(1, min(pairs // WINDOW, MOST_WINDOWS))
    for number in range(count):
        start = number * pairs // count
        yield start, min(start + WINDOW, pairs)


def _is_unrelated(lengths: NDArray[np.int64]) -> bool:
    """Tell whether the lengths of two sides vary, and do not vary together."""
    src, tgt = np.log1p(lengths.T)
    if min(src.std(), tgt.std()) < LEAST_SPREAD:
        return False
    return bool(np.corrcoef(src, tgt)[0, 1] < LOWEST_CORRELATION)
