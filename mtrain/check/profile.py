"""What is normal on the two sides of a corpus, learned from a sample: scripts, words, lengths."""

from collections import Counter
from itertools import groupby, product
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from mtrain.check.associations import APART, Associations
from mtrain.check.chunks import Chunk
from mtrain.check.findings import Findings
from mtrain.check.words import Words
from mtrain.config.schema import DataConfig
from mtrain.corpus.misalignment import UNRELATED, unrelated_windows, windows_of
from mtrain.corpus.writing_systems import name_of, scripts_of
from mtrain.data.guards import repeated, swapped

BITS = 18  # of the hash tables of words
ROUNDS = 4  # of finding pairs that are swapped and counting again
MIN_COUNT = 4  # of a word that indicates a side
MAX_LEANING = 3.0  # nats of one word
MISFIT_QUANTILE = 0.01  # fraction of a sample that may be freely translated or wrong
# Nats against a pair that does not belong together: a multiple of that quantile, bounded.
MISFIT_FACTOR, MIN_MISFIT, MAX_MISFIT = 3.3, 6.0, 12.0
MIN_SAMPLE = 200  # pairs from which words are learned
MIN_EVIDENCE = 0.5  # nats, on average, for words to be informative
CLEAR_EVIDENCE = 5.0  # nats, in the median, by which a pair is better than neighbouring lines
MAX_WRONG = 0.05  # fraction of pairs that go together no better than lines far apart
WRONG = "about {:.0%} of the pairs have words that do not go together: are they aligned?"
MIN_RELATED = 1000  # pairs of which some words go together in any translation
NO_WORDS = "hardly any words of the sides go together: are they aligned line for line?"
SOME_UNRELATED = (
    "the lengths of the sides do not correlate in {:,} of {:,} parts of a sample: are lines "
    "shifted there?"
)
MIN_SPREAD = 0.1  # of a logarithm of a ratio of lengths
MIN_PAIRS = 20  # from which scripts are learned
JAPANESE = {"HIRAGANA", "KATAKANA"}  # the scripts of no other language
USUAL_FRACTION = 0.05  # of a side's letters, for a script that is at home there


class Leaning:
    """To which side the words of a line belong, whatever the languages.

    Pairs with the words of the other sides are counted with their sides exchanged, in several
    rounds: nearly half of the pairs may be swapped.
    """

    def __init__(self, src: Words, tgt: Words) -> None:
        self.table = np.zeros(1 << BITS)
        is_swapped = np.zeros(len(src), bool)
        for _ in range(ROUNDS):
            self.table = _leanings(src, tgt, is_swapped)
            is_swapped = self.of(src) < self.of(tgt)

    def of(self, words: Words) -> NDArray[np.float64]:
        """Return the evidence for each line, in nats, that it is of the source side; below 0, of
        the target side.
        """
        worth = self.table[_buckets(words)]
        return np.bincount(words.lines, worth, len(words)).astype(np.float64)


def _buckets(words: Words) -> NDArray[np.int64]:
    return (words.hashes >> np.uint64(64 - BITS)).astype(np.int64)


def _leanings(src: Words, tgt: Words, is_swapped: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Compare how often each word comes on the two sides."""
    counts = np.zeros((2, 1 << BITS))
    for side, words in enumerate((src, tgt)):
        others = is_swapped[words.lines]
        for chosen, place in ((~others, side), (others, 1 - side)):
            counts[place] += np.bincount(_buckets(words)[chosen], minlength=1 << BITS)
    fractions = (counts + 0.5) / (counts.sum(1, keepdims=True) + 1)
    table = np.clip(np.log(fractions[0] / fractions[1]), -MAX_LEANING, MAX_LEANING)
    return np.where(counts.sum(0) >= MIN_COUNT, table, 0.0)


class LengthRatio:
    """The normal logarithm of the ratio of the sides' lengths, and its standard deviation, which
    falls with the square root of the length (Gale and Church, 1993).
    """

    def __init__(self, lengths: NDArray[np.int64]) -> None:
        lengths = lengths[lengths.min(1) > 0]
        self.normal, self.unit = 0.0, 1.0
        if len(lengths):
            self.normal = float(np.median(_ratios(lengths)))
            far = np.abs(_ratios(lengths) - self.normal)
            self.unit = 1.4826 * float(np.median(far * np.sqrt(lengths.mean(1))))

    def distance(
        self, lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return how far the ratio of each pair is from the normal one: as a logarithm, and in
        standard deviations.
        """
        far = np.abs(_ratios(lengths) - self.normal)
        return far, far / (self.unit / np.sqrt(lengths.mean(1) + 1)).clip(MIN_SPREAD)


def _ratios(lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.log((lengths[:, 1] + 1) / (lengths[:, 0] + 1))


class Profile:
    """What is normal for pairs, learned from a sample of the training text."""

    def __init__(self, sample: list[Chunk]) -> None:
        self.sample = sample
        src, tgt = (Words.join([part.words[side] for part in sample]) for side in (0, 1))
        lengths = [part.lengths for part in sample]
        self.pairs = len(src)
        self.associations = Associations(src, tgt)
        evidence = self.associations.evidence(src, tgt)
        self.mean = float(evidence.mean()) if self.pairs else 0.0
        lowest = float(np.quantile(evidence, MISFIT_QUANTILE)) if self.pairs else 0.0
        self.misfit = min(MAX_MISFIT, max(MIN_MISFIT, -MISFIT_FACTOR * lowest))
        if self._fraction_wrong(src, tgt) > MAX_WRONG:  # that quantile is of wrong pairs
            self.misfit = MIN_MISFIT
        self.leaning = Leaning(src, tgt)
        self.ratio = LengthRatio(np.concatenate([np.zeros((0, 2), np.int64), *lengths]))
        self.letters = Counter[str](), Counter[str]()  # of the sides, by script
        for side, part in product((0, 1), sample):
            self.letters[side].update(
                {name: int(n.sum()) for name, n in part.letters[side].items()}
            )
        self.scripts = [
            {script for script in letters if letters[script] >= USUAL_FRACTION * letters.total()}
            for letters in self.letters
        ]
        for scripts in self.scripts:  # Katakana may be rare in a sample of Japanese
            if JAPANESE & scripts:
                scripts |= JAPANESE
        self.has_scripts, self.has_words = self.pairs >= MIN_PAIRS, self.pairs >= MIN_SAMPLE
        # words are associated enough to judge pairs by them
        self.has_associations = self.has_words and self.mean >= MIN_EVIDENCE

    def _are_clearly_pairs(self, src: Words, tgt: Words) -> bool:
        """Whether the words of lines go together far better than those of neighbouring lines, which
        may be of the same subject. Sentences of a few patterns may have lengths that do not
        correlate.
        """
        own, after, before = (
            self.associations.evidence(src, tgt.shifted(distance)) for distance in (0, 1, -1)
        )
        return bool(np.median(own - np.maximum(after, before)) >= CLEAR_EVIDENCE)

    def _fraction_wrong(self, src: Words, tgt: Words) -> float:
        """Estimate the fraction of pairs whose sides do not belong together. Of lines far apart,
        half have less evidence than their median; of pairs, hardly any.
        """
        if len(src) < MIN_SAMPLE:
            return 0.0
        own, apart = (self.associations.evidence(src, tgt.shifted(n)) for n in (0, APART))
        return 2 * float(np.mean(own < np.median(apart)))

    def home(self, side: int, language: str) -> set[str]:
        """Return the scripts that are at home on a side: those of the language, if most letters are
        of these, with Latin if it is common there; else all that are common.
        """
        known, letters, usual = scripts_of(language), self.letters[side], self.scripts[side]
        if sum(letters[script] for script in known) < 0.5 * max(1, letters.total()):
            return usual
        return known | (usual & {"LATIN"})

    def compare(self, data: DataConfig, languages: tuple[str, str]) -> None:
        """Report corpora of the sample that are unrelated, swapped, or not in these languages."""
        for corpus, group in groupby(self.sample, attrgetter("findings")):
            parts = list(group)
            self._find_unrelated(corpus, parts)
            texts = [[text for part in parts for text in part.texts[side]] for side in (0, 1)]
            for text in repeated(*texts):
                corpus.add_message("repeated", text)
            if text := swapped(languages, *texts):
                corpus.add_message("turned", text, is_allowed=data.allow_swapped)
        first = self.sample[0].findings
        if any(part.findings.has("turned") for part in self.sample):
            return
        for side, (language, letters) in enumerate(zip(languages, self.letters, strict=True)):
            own = scripts_of(language)
            if own and letters and sum(letters[each] for each in own) < 0.5 * letters.total():
                [(main, count)] = letters.most_common(1)
                share, only = count / letters.total(), "only " if main in own else ""
                is_other = main in scripts_of(languages[1 - side])
                first.add_message(
                    "language",
                    f"data.{('src', 'tgt')[side]}_lang is {language}, but {only}{share:.0%} of the "
                    f"{('source', 'target')[side]}'s letters are {name_of(main)}"
                    + (": are the sides swapped?" if is_other else ""),
                )

    def _find_unrelated(self, corpus: Findings, parts: list[Chunk]) -> None:
        """Report a corpus whose lengths do not correlate, or whose words do not go together."""
        words = [Words.join([part.words[side] for part in parts]) for side in (0, 1)]
        lengths = np.concatenate([part.lengths for part in parts])
        low, windows = len(unrelated_windows(lengths)), len(list(windows_of(len(lengths))))
        if low > windows / 2 and not self._are_clearly_pairs(*words):
            corpus.add_message("unrelated", UNRELATED)
        elif (wrong := self._fraction_wrong(*words)) > MAX_WRONG:
            corpus.add_message("unrelated", WRONG.format(wrong))
        elif low and not self.has_associations:
            corpus.add_message("unrelated", SOME_UNRELATED.format(low, windows))
        elif len(words[0]) >= MIN_RELATED and not self.has_associations:
            corpus.add_message("unrelated", NO_WORDS)
