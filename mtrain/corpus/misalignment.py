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
MOST_WINDOWS = 1000  # spread over the corpus, whatever its size
LEAST_PAIRS = 100  # fewer show nothing
LOWEST_CORRELATION = 0.25  # of the logarithms of lengths; unrelated lines have 0 +- 0.05
HIGH_CORRELATION = 0.5  # a lower one must exceed those of neighbouring lines
MOST_SLIPPED = 10  # lines apart
MUCH_BETTER = 0.2  # neighbouring lines correlate, too, but less
LEAST_BETTER = 0.1  # lengths that recur, as in groups of five captions, correlate at any distance
LEAST_SPREAD = 0.1  # lengths that hardly vary cannot correlate
MOST_SAME = 0.3  # fraction of pairs with equal sides
LOOKED_AT = 10_000  # pairs whose languages are looked at
LEAST_LINES = 20  # frequent words that indicate a language, each once a line
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


def suspicions(corpus: Sides) -> Iterator[str]:
    """Yield messages of what looks wrong about a corpus; time and memory do not grow with it."""
    windows = list(_windows(len(corpus)))
    low = [start for start, stop in windows if _is_unrelated(corpus.lengths_of(start, stop))]
    if len(low) > len(windows) / 2:
        yield UNRELATED
    elif low:
        yield (
            f"the lengths of the sides do not correlate near pair {low[0] + 1:,} "
            f"({len(low):,} of {len(windows):,} windows): are lines shifted there?"
        )
    equal = [corpus.equal_sides(start, stop).mean() for start, stop in windows]
    if equal and (fraction := float(np.mean(equal))) > MOST_SAME:
        yield f"{fraction:.0%} of the pairs have the same text on both sides"


def are_unrelated(lengths: NDArray[np.int64]) -> bool:
    """Whether lengths, shape (pairs, 2), do not correlate in most windows."""
    low = [_is_unrelated(lengths[start:stop]) for start, stop in _windows(len(lengths))]
    return sum(low) > len(low) / 2


def _windows(pairs: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of windows from the first pair to the last."""
    if pairs < LEAST_PAIRS:
        return
    count = max(1, min(pairs // WINDOW, MOST_WINDOWS))
    for number in range(count):
        start = number * pairs // count
        yield start, min(start + WINDOW, pairs)


def _is_unrelated(lengths: NDArray[np.int64]) -> bool:
    """Whether the lengths of both sides vary, but do not correlate line for line."""
    sides = np.log1p(lengths)
    spread = sides.std(axis=0)
    if spread.min() < LEAST_SPREAD:
        return False
    src, tgt = ((sides - sides.mean(axis=0)) / spread).T
    correlation = np.correlate(src, tgt, "full") / len(src)  # at growing distances
    middle = len(src) - 1
    near = correlation[middle - MOST_SLIPPED : middle + MOST_SLIPPED + 1]
    others = float(np.delete(near, MOST_SLIPPED).max())
    lowest = min(HIGH_CORRELATION, max(LOWEST_CORRELATION, others + LEAST_BETTER))
    return bool(correlation[middle] < max(lowest, others - MUCH_BETTER))


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
        return count >= LEAST_LINES and count > right
    here, there = (set(FREQUENT.get(language_code(code), "").split()) for code in (language, own))
    lines = [set(text.lower().split()) for text in texts]
    count, right = (
        sum(len(line & each) for line in lines) for each in (here - there, there - here)
    )
    return count >= LEAST_LINES and count > MUCH_MORE * right
