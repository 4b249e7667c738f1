"""Minimum Bayes risk: of several translations of a sentence, the one most like the others (Kumar
and Byrne 2004), by the chrF of sentences (Popović 2015).

Shapes: `N` texts, `G` n-grams.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

ORDERS = 6  # of n-grams, in characters
RECALL = 4  # weight of the recall: beta 2, squared
BLOCK = 1 << 24  # values of a matrix of n-grams at a time: 64 MB


def choose(texts: Sequence[str], scores: Sequence[float]) -> int:
    """Return the index of the text with the best mean chrF against all others; of equal ones, that
    with the best score.
    """
    names = sorted(set(texts))
    kinds = np.searchsorted(names, texts)
    chrf = pairwise_chrf(names)
    total = chrf @ np.bincount(kinds) - chrf.diagonal()  # a text is no reference of its own
    means = np.round(total[kinds], 6)  # sums in another order are no difference
    return max(range(len(texts)), key=lambda index: (means[index], scores[index]))


def pairwise_chrf(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return the chrF of each text (row) with each as its reference (column), from 0 to 100, as
    sacreBLEU computes it for sentences: (N, N).
    """
    N = len(texts)
    precision, recall, orders = np.zeros((3, N, N))
    for grams, owners in _ngrams(["".join(text.split()) for text in texts]):
        counts = np.bincount(owners, minlength=N).astype(np.float64)
        both = (counts[:, None] > 0) & (counts > 0)
        matches = _matches(grams, owners, N)
        precision += matches / np.maximum(counts[:, None], 1)
        recall += matches / np.maximum(counts, 1)
        orders += both
    precision, recall = (x / np.maximum(orders, 1) for x in (precision, recall))
    mean = RECALL * precision + recall
    return 100 * (1 + RECALL) * precision * recall / np.where(mean > 0, mean, 1)


def _ngrams(texts: list[str]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield, for each order, the numbers of the n-grams of all texts and the texts they are in."""
    data = "".join(texts).encode("utf-32-le", "surrogatepass")
    characters = np.frombuffer(data, np.uint32).astype(np.int64)
    lengths = np.array([len(text) for text in texts])
    owners = np.repeat(np.arange(len(texts)), lengths)
    left = np.repeat(lengths.cumsum(), lengths) - np.arange(len(characters))  # to the text's end
    grams = np.zeros_like(characters)
    for order in range(1, ORDERS + 1):
        starts = np.flatnonzero(left >= order)
        longer = grams[starts] * (1 << 21) + characters[starts + order - 1]
        grams[starts] = np.unique(longer, return_inverse=True)[1]
        yield grams[starts], owners[starts]


def _matches(grams: NDArray[np.int64], owners: NDArray[np.int64], N: int) -> NDArray[np.float64]:
    """Count the n-grams that each two texts share, as often as both have them: (N, N)."""
    both, counts = np.unique(grams * N + owners, return_counts=True)
    grams, owners = np.repeat(both // N, counts), np.repeat(both % N, counts)
    times = np.arange(len(grams)) - np.repeat(counts.cumsum() - counts, counts)
    # the second occurrence of an n-gram in a text counts as another n-gram, and so on
    columns = np.unique(grams * (len(grams) + 1) + times, return_inverse=True)[1]
    G = int(columns.max(initial=-1)) + 1
    matches = np.zeros((N, N))
    for start, stop in pairwise([*range(0, G, max(1, BLOCK // N)), G]):
        here = (columns >= start) & (columns < stop)
        table = np.zeros((N, stop - start), np.float32)
        table[owners[here], columns[here] - start] = 1
        matches += table @ table.T
    return matches
