"""Minimum Bayes risk decoding (Kumar and Byrne 2004): from several translations of a sentence,
choose the one most similar to the others by sentence-level chrF (Popović 2015).

Shapes: `N` texts, `G` n-grams.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MAX_ORDER = 6  # character n-grams of 1 to 6 characters
RECALL_WEIGHT = 4  # the square of beta = 2
BLOCK = 1 << 24  # largest number of elements of an n-gram matrix: 64 MB


def min_risk_index(texts: Sequence[str], scores: Sequence[float]) -> int:
    """Return the index of the text with the best mean chrF against all others. Of equally good
    texts, the one with the best score is chosen.
    """
    distinct = sorted(set(texts))
    index_of = {text: index for index, text in enumerate(distinct)}
    indices = np.array([index_of[text] for text in texts])
    chrf = pairwise_chrf(distinct)
    # a text is not its own reference
    totals = chrf @ np.bincount(indices) - chrf.diagonal()
    # the order of summation must not matter
    rounded = np.round(totals[indices], 6)
    return max(range(len(texts)), key=lambda i: (rounded[i], scores[i]))


def pairwise_chrf(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return the sentence-level chrF (N, N) of each text (row) against each text as its reference
    (column), from 0 to 100, as sacreBLEU computes it.
    """
    N = len(texts)
    precision, recall, num_orders = np.zeros((3, N, N))
    for grams, owners in _ngrams(["".join(text.split()) for text in texts]):
        counts = np.bincount(owners, minlength=N).astype(np.float64)
        matches = _matches(grams, owners, N)
        precision += matches / np.maximum(counts[:, None], 1)
        recall += matches / np.maximum(counts, 1)
        num_orders += (counts[:, None] > 0) & (counts > 0)
    precision, recall = (x / np.maximum(num_orders, 1) for x in (precision, recall))
    weighted = RECALL_WEIGHT * precision + recall
    return 100 * (1 + RECALL_WEIGHT) * precision * recall / np.where(weighted > 0, weighted, 1)


def _ngrams(texts: list[str]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield, for each order, the ids of all n-grams and the index of the text of each.

    The id of an n-gram is the rank of the pair (id of its first n-1 characters, last character).
    """
    data = "".join(texts).encode("utf-32-le", "surrogatepass")
    characters = np.frombuffer(data, np.uint32).astype(np.int64)
    lengths = np.array([len(text) for text in texts])
    owners = np.repeat(np.arange(len(texts)), lengths)
    # number of characters from each character to the end of its text
    remaining = np.repeat(lengths.cumsum(), lengths) - np.arange(len(characters))
    grams = np.zeros_like(characters)
    for order in range(1, MAX_ORDER + 1):
        starts = np.flatnonzero(remaining >= order)
        longer = grams[starts] * (1 << 21) + characters[starts + order - 1]
        grams[starts] = np.unique(longer, return_inverse=True)[1]
        yield grams[starts], owners[starts]


def _matches(grams: NDArray[np.int64], owners: NDArray[np.int64], N: int) -> NDArray[np.float64]:
    """Count the n-grams that each pair of texts shares, repeated ones by the smaller count: (N, N).

    Each occurrence of an n-gram in a text counts as a different n-gram: "aa" has (a, 0) and (a, 1),
    "a" only (a, 0). The 0/1 matrix of texts and these n-grams, times its transpose, then counts the
    matches.
    """
    pairs, counts = np.unique(grams * N + owners, return_counts=True)
    grams, owners = np.repeat(pairs // N, counts), np.repeat(pairs % N, counts)
    occurrence = np.arange(len(grams)) - np.repeat(counts.cumsum() - counts, counts)
    columns = np.unique(grams * (len(grams) + 1) + occurrence, return_inverse=True)[1]
    G = int(columns.max(initial=-1)) + 1
    matches = np.zeros((N, N))
    for start, stop in pairwise([*range(0, G, max(1, BLOCK // N)), G]):
        in_block = (columns >= start) & (columns < stop)
        table = np.zeros((N, stop - start), np.float32)
        table[owners[in_block], columns[in_block] - start] = 1
        matches += table @ table.T
    return matches
