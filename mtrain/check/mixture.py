"""Find a side of which a part is written differently, by its sequences of letters.

1. split    texts into two groups, so that each text is more probable under the letter model of
            its own group (hard expectation maximization)
2. compare  the gain of the groups on this side with their gain on the other side: two subjects
            differ on both sides, but letters in reverse order, a wrong encoding or capital letters
            on one side only
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtrain.check.chunks import Chunk
from mtrain.check.findings import Findings
from mtrain.corpus.lines import shorten_text
from mtrain.corpus.readers import code_points

MIN_LENGTH, MAX_LENGTH = 20, 200  # characters of a text: shorter are left out, longer are cut
MIN_TEXTS, MAX_TEXTS = 200, 4000
MAX_CHARACTERS = 200  # different ones; rarer ones are replaced by their range of 4,096
LINE_FEED = 10  # code point; ends each text
PRIOR = 4.0  # occurrences by the shorter context, added to those of each context
# A group starts with one of these fractions of texts, the least probable ones compared with their
# other sides, or with one end of a principal component of the characters of texts.
ODD_FRACTIONS = (0.01, 0.2)
COMPONENTS = 3
# Rounds of the split from each start, and further ones from the best.
FIRST_ROUNDS, MORE_ROUNDS = 3, 15
# Median gain of the texts of each group by their own model, in bits per character: the larger gain
# of the two groups, and the sum of both as a multiple of the sum on the other side.
MIN_GAIN, MIN_RATIO = 2.5, 5.0
MIN_GROUP, MIN_GROUP_FRACTION = 10, 0.002  # texts
# Kinds of findings that explain how a part of a side is written.
EXPLAINING_KINDS = [
    *("other_language", "third_language", "script", "mojibake", "no_character", "lost"),
    *("escaped", "spacing", "markup", "subwords", "decomposed", "presentation"),
    *("control", "invisible", "no_break"),
]
# Kinds of findings with which one side does not show what is usual on the other.
MISMATCHED_KINDS = ["unrelated", "repeated"]
MAX_SHOWN = 40  # characters of a text in a message

Bits = NDArray[np.float64]  # for each text, per character, or for each trigram
Mask = NDArray[np.bool_]  # for each text


@dataclass(frozen=True)
class Mixture:
    """A part of a side that is written differently: the indices of its texts, the most different
    first, of the most different one of the other texts, and of all texts that were compared.
    """

    side: int
    part: list[int]
    unlike: int
    compared: list[int]


class LetterModel:
    """Probabilities of each character of texts, given the two before it, in a group of the texts.
    Each context is smoothed by the next shorter one (MacKay and Peto, 1995).
    """

    def __init__(self, texts: Sequence[str]) -> None:
        codes = code_points(re.sub(r"\d", "0", text[:MAX_LENGTH]) for text in texts)
        is_end = codes == LINE_FEED
        self.rows = np.cumsum(is_end) - is_end  # the text of each character
        self.lengths = np.bincount(self.rows)
        symbols = _number_symbols(codes)
        self.num_symbols = V = int(symbols.max()) + 1
        # fractions of the symbols of each text, shape (texts, V)
        counts = np.bincount(self.rows * V + symbols, minlength=len(self.lengths) * V)
        self.frequencies = counts.reshape(-1, V) / self.lengths[:, None]
        # the two symbols before each symbol; line ends precede a text
        end = symbols[-1]
        second = np.append(end, symbols[:-1])
        first = np.where(second == end, end, np.append(end, second[:-1]))
        # U distinct trigrams, the number of the trigram that ends in each symbol, and their counts
        distinct, self.trigrams = np.unique((first * V + second) * V + symbols, return_inverse=True)
        self.counts = np.bincount(self.trigrams)
        # numbers of the n-gram that ends each trigram, and of its context, by increasing n
        contexts = np.zeros_like(distinct), distinct // V % V, distinct // V
        last = distinct % V
        self.orders = [(_numbers(each * V + last), _numbers(each)) for each in contexts]

    def bits(self, group: Mask) -> Bits:
        """Return the bits per character of each text under the model of a group of texts, and under
        the model of all other texts, shape (2, texts). No character counts its own occurrence.
        """
        U = len(self.counts)
        in_group = group[self.rows]  # for each character
        counts = np.bincount(self.trigrams[in_group], minlength=U)
        indices = self.trigrams + U * in_group  # the second U for characters of the group
        bits = []
        for model_counts, own in ((counts, (0, 1)), (self.counts - counts, (1, 0))):
            # bits of each trigram in texts outside of the group, then in texts of the group
            costs = np.concatenate([self._trigram_bits(model_counts, each) for each in own])
            bits.append(np.bincount(self.rows, costs[indices]) / self.lengths)
        return np.array(bits)

    def _trigram_bits(self, counts: NDArray[np.int64], own: int) -> Bits:
        """Return the bits of the last character of each trigram (U,) in a model with these counts,
        of which `own` occurrences are left out.
        """
        probabilities = np.full(len(counts), 1 / self.num_symbols)
        for ngrams, contexts in self.orders:
            # of a trigram that does not occur, no occurrence can be left out
            of_ngram, of_context = (
                np.maximum(np.bincount(keys, counts) - own, 0)[keys] for keys in (ngrams, contexts)
            )
            probabilities = (of_ngram + PRIOR * probabilities) / (of_context + PRIOR)
        bits: Bits = -np.log2(probabilities)
        return bits


def _number_symbols(codes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Number the different characters from 0, by increasing code. All but the `MAX_CHARACTERS` most
    frequent ones share a number with their range of 4,096; these numbers are the largest.
    """
    distinct, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    is_rare = np.argsort(np.argsort(-counts, kind="stable")) >= MAX_CHARACTERS
    is_rare &= distinct != LINE_FEED
    symbols = np.where(is_rare, 0x110000 + (distinct >> 12), distinct)
    return _numbers(symbols.astype(np.int64))[inverse]


def _numbers(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Replace values by their ranks among the distinct values."""
    return np.unique(values, return_inverse=True)[1]


def report_mixture(sample: Sequence[Chunk]) -> None:
    """Report the corpora with a part of a side that is written differently from the rest of the
    sample, if no other finding explains it. All chunks must have the same languages.
    """
    src, tgt = ([text for chunk in sample for text in chunk.texts[side]] for side in (0, 1))
    mixture = find_mixture(src, tgt)
    if mixture is None:
        return
    places = [(chunk, row) for chunk in sample for row in range(len(chunk))]  # of all texts
    compared = Counter(places[index][0].findings.name for index in mixture.compared)
    by_corpus = defaultdict[str, list[tuple[Chunk, int]]](list)
    for index in mixture.part:
        by_corpus[places[index][0].findings.name].append(places[index])
    for name, part in by_corpus.items():
        findings = part[0][0].findings
        fraction = len(part) / compared[name]
        is_explained = findings.count(*EXPLAINING_KINDS) >= fraction * findings.pairs / 2
        if not is_explained and not findings.has(*MISMATCHED_KINDS):
            text = _message(findings, part, places[mixture.unlike], mixture.side, fraction)
            findings.add_message("mixture", text)


def _message(
    findings: Findings,
    part: list[tuple[Chunk, int]],
    unlike: tuple[Chunk, int],
    side: int,
    fraction: float,
) -> str:
    """Describe a part of a corpus, given the chunks and rows of its texts, the most different text
    first, and those of a text that is not in it.
    """
    numbers = sorted(chunk.numbers[row] for chunk, row in part)
    low, high = numbers[len(numbers) // 20], numbers[-1 - len(numbers) // 20]
    odd, usual = (
        f"{chunk.findings.name_row(chunk.numbers[row], side)} "
        f"({shorten_text(chunk.texts[side][row], MAX_SHOWN)})"
        for chunk, row in (part[0], unlike)
    )
    return (
        f"about {fraction:.1%} of the {('sources', 'targets')[side]} with {MIN_LENGTH} or more "
        f"characters differ from the rest, nearly all of them from {findings.name_row(low, side)} "
        f"to {high}; compare {odd} with {usual}: is this another encoding or language, other "
        "spacing, letters in reverse order, capital letters, or no text?"
    )


def find_mixture(sources: Sequence[str], targets: Sequence[str]) -> Mixture | None:
    """Find a side of pairs of which a part, less than half, is written differently."""
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
        groups = [_split(model, start, FIRST_ROUNDS) for start in _starts(model, other)]
        best = max(groups, key=lambda group: min(_gains(model, group)))
        group = _split(model, best, MORE_ROUNDS)
        gains, other_gains = _gains(model, group), _gains(other, group)
        if max(gains) >= MIN_GAIN and sum(gains) >= MIN_RATIO * sum(other_gains):
            order = np.argsort(-_gain(model, group), kind="stable")
            part, others = ([compared[row] for row in order if own[row]] for own in (group, ~group))
            return Mixture(side, part, others[0], compared)
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
    """Return how many fewer bits each text takes under the model of its own group than under that
    of the other texts.
    """
    in_group, in_rest = model.bits(group)
    gain: Bits = np.where(group, in_rest - in_group, in_group - in_rest)
    return gain


def _gains(model: LetterModel, group: Mask) -> list[float]:
    """Return the median gains of a group and of the others; 0 for both if the group has few."""
    if group.sum() < max(MIN_GROUP, MIN_GROUP_FRACTION * len(group)):
        return [0.0, 0.0]
    gain = _gain(model, group)
    return [float(np.median(gain[part])) for part in (group, ~group)]
