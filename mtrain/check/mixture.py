"""Find a side of which a part is written differently, by its sequences of letters.

1. split    texts into two groups, so that each text is more probable under the letter model of
            its own group (hard expectation maximization)
2. compare  the gain of the groups on this side with their gain on the other side: two subjects
            differ on both sides, but letters in reverse order, a wrong encoding or capital letters
            on one side only
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtrain.check.chunks import Chunk
from mtrain.check.findings import Findings
from mtrain.check.words import GOLDEN
from mtrain.corpus.lines import shorten_text
from mtrain.corpus.readers import code_points

MIN_LENGTH, MAX_LENGTH = 20, 200  # characters of a text: shorter are left out, longer are cut
MIN_TEXTS, MAX_TEXTS = 200, 4000
MAX_CHARACTERS = 200  # different ones; rarer ones are replaced by their range of 4,096
PRIOR = 4.0  # occurrences by the shorter context, added to those of each context
# A group starts with one of these fractions of texts, the least probable ones compared with their
# other sides, or with one end of a principal component of the characters of texts.
ODD_FRACTIONS, COMPONENTS = (0.01, 0.2), 3
# Rounds of the split from each start, and further ones from the best.
FIRST_ROUNDS, MORE_ROUNDS = 3, 15
# Median gain of the texts of each group by their own model, in bits per character: the larger gain
# of the two groups, and the sum of both as a multiple of the sum on the other side.
MIN_GAIN, MIN_RATIO = 2.5, 5.0
MIN_GROUP, MIN_GROUP_FRACTION = 10, 0.002  # texts
# Kinds of findings that explain how a part of a side is written.
EXPLAINING_KINDS = [
    "other_language",
    "third_language",
    "script",
    "mojibake",
    "no_character",
    "lost",
    "escaped",
    "spacing",
    "markup",
    "subwords",
    "decomposed",
    "presentation",
    "control",
    "invisible",
]
MAX_SHOWN = 40  # characters of a text in a message

Bits = NDArray[np.float64]  # for each text, per character
Mask = NDArray[np.bool_]  # for each text


@dataclass(frozen=True)
class Mixture:
    """A part of a side that is written differently: the indices of its texts, the most different
    first, and of all texts that were compared.
    """

    side: int
    part: list[int]
    compared: list[int]


class LetterModel:
    """Probabilities of each character of texts, given the two before it, in a group of the texts.
    Each context is smoothed by the next shorter one (MacKay and Peto, 1995).
    """

    def __init__(self, texts: Sequence[str]) -> None:
        codes = code_points(re.sub(r"\d", "0", text[:MAX_LENGTH]) for text in texts)
        self.rows = np.cumsum(codes == 10) - (codes == 10)  # the text of each character
        self.lengths = np.bincount(self.rows)
        distinct, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
        is_rare = np.argsort(np.argsort(-counts, kind="stable")) >= MAX_CHARACTERS
        symbols = np.where(is_rare & (distinct != 10), 0x110000 + (distinct >> 12), distinct)
        # each character of all texts and the two before it; line ends precede a text
        third = symbols[inverse].astype(np.uint64)
        second = np.append(np.uint64(10), third[:-1])
        first = np.where(second == 10, second, np.append(second[:1], second[:-1]))
        numbers = np.unique(symbols, return_inverse=True)[1]
        self.num_symbols = int(numbers.max()) + 1
        # fractions of the characters of each text, shape (texts, symbols)
        cells = self.rows * self.num_symbols + numbers[inverse]
        counts = np.bincount(cells, minlength=len(self.lengths) * self.num_symbols)
        self.frequencies = counts.reshape(len(self.lengths), -1) / self.lengths[:, None]
        no_context = np.zeros(len(third), np.uint64)
        # by increasing length: the n-grams and their contexts, and how often each occurs elsewhere
        self.orders = []
        for context in ((no_context,), (second,), (first, second)):
            keys = _numbers(*context, third), _numbers(*context)
            self.orders.append((keys, [np.bincount(key)[key] - 1 for key in keys]))

    def bits(self, group: Mask) -> Bits:
        """Return the bits per character of each text under the model of a group of texts, and under
        the model of all other texts, shape (2, texts). No character counts its own occurrence.
        """
        own = group[self.rows].astype(float)
        probabilities = np.full((2, len(own)), 1 / self.num_symbols)
        for keys, elsewhere in self.orders:
            in_group = [np.bincount(key, own)[key] - own for key in keys]
            in_rest = [total - count for total, count in zip(elsewhere, in_group, strict=True)]
            for model, (ngrams, contexts) in enumerate((in_group, in_rest)):
                probabilities[model] = (ngrams + PRIOR * probabilities[model]) / (contexts + PRIOR)
        bits = [np.bincount(self.rows, costs) for costs in -np.log2(probabilities)]
        return np.array(bits) / self.lengths


def _numbers(*symbols: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Number the different sequences of symbols."""
    values = np.zeros(len(symbols[0]), np.uint64)
    for symbol in symbols:
        values = (values + symbol) * GOLDEN
        values ^= values >> np.uint64(29)
    return np.unique(values, return_inverse=True)[1]


def report_mixture(sample: Sequence[Chunk], check_stop: Callable[[], None]) -> None:
    """Report the corpora with a part of a side that is written differently from the rest of the
    sample, if no other finding explains it. All chunks must have the same languages.
    """
    src, tgt = ([text for part in sample for text in part.texts[side]] for side in (0, 1))
    mixture = find_mixture(src, tgt, check_stop)
    if mixture is None:
        return
    rows = [(part, row) for part in sample for row in range(len(part))]
    compared = Counter(rows[index][0].findings.name for index in mixture.compared)
    by_corpus = defaultdict[str, list[tuple[Chunk, int]]](list)
    for index in mixture.part:
        by_corpus[rows[index][0].findings.name].append(rows[index])
    for name, found in by_corpus.items():
        findings, fraction = found[0][0].findings, len(found) / compared[name]
        if findings.count(*EXPLAINING_KINDS) < fraction * findings.pairs / 2:
            findings.add_message("mixture", _message(findings, found, mixture.side, fraction))


def _message(findings: Findings, found: list[tuple[Chunk, int]], side: int, fraction: float) -> str:
    """Describe the texts of a part, the most different first, by their chunks and rows."""
    numbers = sorted(chunk.numbers[row] for chunk, row in found)
    low, high = numbers[len(numbers) // 20], numbers[-1 - len(numbers) // 20]
    chunk, row = found[0]
    return (
        f"about {fraction:.1%} of the {('sources', 'targets')[side]} of {MIN_LENGTH} characters "
        f"and more, nearly all of them from {findings.name_row(low, side)} to {high}, such as "
        f"{findings.name_row(chunk.numbers[row], side)} "
        f"({shorten_text(chunk.texts[side][row], MAX_SHOWN)}): another encoding or "
        "language, letters in reverse order, capital letters, or no text?"
    )


def find_mixture(
    sources: Sequence[str],
    targets: Sequence[str],
    check_stop: Callable[[], None] = lambda: None,
) -> Mixture | None:
    """Find a side of pairs of which a part, less than half, is written differently. `check_stop` is
    called regularly, and may raise.
    """
    compared = [
        index
        for index, pair in enumerate(zip(sources, targets, strict=True))
        if min(map(len, pair)) >= MIN_LENGTH and pair[0] != pair[1]
    ]
    if len(compared) < MIN_TEXTS:
        return None
    compared = compared[:: -(-len(compared) // MAX_TEXTS)]
    models = [LetterModel([texts[index] for index in compared]) for texts in (sources, targets)]
    for side in (0, 1):
        model, other = models[side], models[1 - side]
        groups = list[Mask]()
        for start in _starts(model, other):
            check_stop()
            groups.append(_split(model, start, FIRST_ROUNDS))
        group = _split(model, max(groups, key=lambda group: min(_gains(model, group))), MORE_ROUNDS)
        if _is_of_one_side(_gains(model, group), _gains(other, group)):
            order = np.argsort(-_gain(model, group), kind="stable")
            return Mixture(side, [compared[row] for row in order if group[row]], compared)
    return None


def _starts(model: LetterModel, other: LetterModel) -> Iterator[Mask]:
    """Yield groups of texts to start from."""
    everything = np.ones(len(model.lengths), bool)
    oddness = model.bits(everything)[0] - other.bits(everything)[0]
    for fraction in ODD_FRACTIONS:
        yield oddness >= np.quantile(oddness, 1 - fraction)
    frequencies = np.sqrt(model.frequencies)
    centered = frequencies - frequencies.mean(0)
    for direction in np.linalg.eigh(centered.T @ centered)[1].T[-COMPONENTS:]:
        scores = centered @ direction
        yield scores >= np.quantile(scores, (0.005, 0.995)).mean()


def _split(model: LetterModel, group: Mask, rounds: int) -> Mask:
    """Move each text, for some rounds, to the group under whose model it takes fewer bits. Return
    the smaller group.
    """
    for _ in range(rounds):
        in_group, in_rest = model.bits(group)
        previous, group = group, in_group < in_rest
        if (group == previous).all():
            break
    return group if 2 * group.sum() <= len(group) else ~group


def _gain(model: LetterModel, group: Mask) -> Bits:
    """Return how many fewer bits each text takes under the model of its own group."""
    in_group, in_rest = model.bits(group)
    gain: Bits = np.where(group, in_rest - in_group, in_group - in_rest)
    return gain


def _gains(model: LetterModel, group: Mask) -> list[float]:
    """Return the median gains of a group and of the other one; 0 for a group of few texts."""
    if group.sum() < max(MIN_GROUP, MIN_GROUP_FRACTION * len(group)):
        return [0.0, 0.0]
    gain = _gain(model, group)
    return [float(np.median(gain[part])) for part in (group, ~group)]


def _is_of_one_side(gains: list[float], others: list[float]) -> bool:
    """Whether the groups differ far more on the one side than on the other."""
    return max(gains) >= MIN_GAIN and sum(gains) >= MIN_RATIO * sum(others)
