"""Learn from a sample what is normal on the two sides of a corpus: scripts, words, lengths."""

import math
from collections import Counter
from collections.abc import Collection, Iterable
from functools import cached_property
from heapq import nlargest
from itertools import chain, groupby, islice, product, takewhile
from operator import attrgetter

import numpy as np
import regex
from numpy.typing import NDArray

from mtrain.check.associations import UNRELATED_SHIFT, Associations
from mtrain.check.chunks import CONTEXT, Chunk
from mtrain.check.words import Words
from mtrain.corpus.additions import additions
from mtrain.corpus.language_identification import (
    ThirdLanguage,
    count_words,
    lacks_frequent_words,
    other_language,
    words_of,
)
from mtrain.corpus.letters import look_alikes, lost_accents, misread_texts
from mtrain.corpus.lines import is_blank, shorten_text
from mtrain.corpus.misalignment import UNRELATED, unrelated_windows, windows_of
from mtrain.corpus.writing_systems import script_name, scripts_of, tag_of
from mtrain.data.mix_ups import mix_ups_of

BITS = 18  # of the hashes of words in tables
ROUNDS = 4  # of counting words and finding swapped pairs
MIN_COUNT = 4  # occurrences of a word that indicates a side
MAX_WORD_NATS = 3.0  # evidence that one word may contribute for a side
SHARED_WEIGHT = 0.1  # of pairs with a word on both sides: of names, or copied from the other side
# Different words in lower case that both texts begin or end with, and evidence, also per word, that
# they are of the other side's language.
MIN_COPIED, MIN_COPIED_NATS, MIN_COPIED_NATS_PER_WORD = 4, 8.0, 1.5
MISFIT_QUANTILE = 0.01  # fraction of a sample that may be translated freely or wrongly
# Evidence in nats against a pair that is reported: a multiple of this quantile, within bounds.
MISFIT_FACTOR, MIN_MISFIT, MAX_MISFIT = 3.3, 6.0, 12.0
MIN_SAMPLE = 200  # pairs to learn words from
MIN_EVIDENCE = 0.5  # mean in nats, from which words are informative
CLEAR_EVIDENCE = 5.0  # median in nats, by which pairs match better than neighbouring lines
MAX_WRONG = 0.05  # fraction of pairs that match no better than unrelated lines
WRONG = "about {:.0%} of the pairs do not look like translations: are they aligned?"
MIN_RELATED = 1000  # pairs, from which every parallel corpus has associated words
# Pairs of which each side has a word that may have associates: only these tell how many are wrong.
MIN_KNOWN = 100
NO_WORDS = "hardly any words of the sides match: are they aligned line for line?"
MIN_DEVIATION = 0.1  # standard deviation of the logarithm of a ratio of lengths
MIN_PAIRS = 20  # pairs to learn scripts from
MIN_LOST_ACCENTS = 0.01  # fraction of texts
# Texts that lack the final period (or similar mark) of the other side: smallest number and
# fraction, smallest number of words of the other side, and smallest loss of length, as a difference
# of the logarithm of the ratio of lengths.
MIN_UNFINISHED, MIN_UNFINISHED_FRACTION, MIN_SENTENCE, MIN_LOSS = 20, 0.05, 5, 0.4
_PERIOD = regex.compile(r"(?r)[\p{Sentence_Terminal}…][\p{P}\s]*$")  # searches from the end: fast
_QUOTATION = regex.compile('["“”„«»‹›「」『』]')
_WORD_END = regex.compile(r"[\p{L}\p{M}\p{N}]\s*$")
# Smallest number of texts of the greatest length, also as a multiple of the number of texts of each
# of the lengths just below it.
MIN_CUT, CUT_FACTOR, CUT_LENGTHS = 5, 4, 10
# Fraction of texts that may have the same number of words, if some were cut off at a length: a cut
# leaves shorter texts, but all names, entries of a dictionary or templates may be alike.
MAX_CUT = 0.95
MAX_ADDITIONS, MAX_SHOWN = 3, 40  # additions reported for a side; characters shown of each
MAX_HAN = 0.99  # fraction of the Japanese letters of a side
MIN_LETTERS = 0.1  # fraction of the characters of a side
MAX_READ = 1000  # texts whose letters show whether a side was read in a wrong encoding
USUAL_FRACTION = 0.05  # of a side's letters, from which a script is usual there

Evidence = NDArray[np.float64]  # (pairs,), in nats, that the sides are translations


class SideClassifier:
    """Judges by its words which side a line belongs to, in any languages.

    Pairs that look swapped are counted again with their sides exchanged, for several rounds, so
    that nearly half of the pairs may be swapped.
    """

    def __init__(self, src: Words, tgt: Words) -> None:
        is_swapped = np.zeros(len(src), bool)
        for _ in range(ROUNDS):
            self.nats = _side_nats(src, tgt, is_swapped)
            is_swapped = self.evidence(src) < self.evidence(tgt)

    def evidence(self, words: Words) -> NDArray[np.float64]:
        """Return the evidence, in nats, that each line belongs to the source side; below 0, to the
        target side.
        """
        nats = self.nats[_buckets(words)]
        return np.bincount(words.lines, nats, len(words)).astype(np.float64)


def _buckets(words: Words) -> NDArray[np.int64]:
    return (words.hashes >> np.uint64(64 - BITS)).astype(np.int64)


def _side_nats(src: Words, tgt: Words, is_swapped: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the evidence of each bucket of words for the source side."""
    counts = np.zeros((2, 1 << BITS))
    for side, words in enumerate((src, tgt)):
        buckets, is_of_swapped = _buckets(words), is_swapped[words.lines]
        counts[side] += np.bincount(buckets[~is_of_swapped], minlength=1 << BITS)
        counts[1 - side] += np.bincount(buckets[is_of_swapped], minlength=1 << BITS)
    fractions = (counts + 0.5) / (counts.sum(1, keepdims=True) + 1)
    table = np.clip(np.log(fractions[0] / fractions[1]), -MAX_WORD_NATS, MAX_WORD_NATS)
    return np.where(counts.sum(0) >= MIN_COUNT, table, 0.0)


class LengthRatio:
    """The normal log ratio of the lengths of the sides, and its standard deviation, which is
    inversely proportional to the square root of the length (Gale and Church, 1993).
    """

    def __init__(self, lengths: NDArray[np.int64]) -> None:
        lengths = lengths[lengths.min(1) > 0]
        self.normal, self.unit = 0.0, 1.0  # standard deviation at length 1
        if len(lengths):
            self.normal = float(np.median(_ratios(lengths)))
            distance = np.abs(_ratios(lengths) - self.normal)
            # 1.4826 median distances are a standard deviation
            self.unit = 1.4826 * float(np.median(distance * np.sqrt(lengths.mean(1))))

    def distance(
        self, lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the distance of each pair's log ratio from the normal one, also in standard
        deviations.
        """
        distance = np.abs(_ratios(lengths) - self.normal)
        return distance, distance / (self.unit / np.sqrt(lengths.mean(1) + 1)).clip(MIN_DEVIATION)


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
        mean = float(evidence.mean()) if self.pairs else 0.0
        lowest = float(np.quantile(evidence, MISFIT_QUANTILE)) if self.pairs else 0.0
        self.misfit_nats = min(MAX_MISFIT, max(MIN_MISFIT, -MISFIT_FACTOR * lowest))
        # with many wrong pairs, `lowest` is the evidence of a wrong pair
        known = self.associations.have_known(src, tgt)
        if self._fraction_wrong(evidence, known, src, tgt) > MAX_WRONG:
            self.misfit_nats = MIN_MISFIT
        self.side_classifier = SideClassifier(src, tgt)
        self.ratio = LengthRatio(np.concatenate([np.zeros((0, 2), np.int64), *lengths]))
        self.letters = Counter[str](), Counter[str]()  # of the sides, by script
        for side, part in product((0, 1), sample):
            for script, counts in part.letters[side].items():
                self.letters[side][script] += int(counts.sum())
        self.scripts = [
            {script for script in letters if letters[script] >= USUAL_FRACTION * letters.total()}
            for letters in self.letters
        ]
        self.has_scripts, self.has_words = self.pairs >= MIN_PAIRS, self.pairs >= MIN_SAMPLE
        self.has_associations = self.has_words and mean >= MIN_EVIDENCE

    @cached_property
    def word_counts(self) -> list[Counter[str]]:
        """The number of source texts, and of target texts, with each word in lower case."""
        return [
            count_words(text for part in self.sample for text in part.texts[side])
            for side in (0, 1)
        ]

    @cached_property
    def shared_counts(self) -> Counter[str]:
        """The number of pairs that have each word, in lower case, on both sides."""
        pairs = chain.from_iterable(zip(*part.texts, strict=True) for part in self.sample)
        return Counter(chain.from_iterable(words_of(src) & words_of(tgt) for src, tgt in pairs))

    def copied_nats(self, source: str, target: str) -> float:
        """Return the evidence, in nats, that words with which both texts begin or end are of the
        source's language; below 0, of the target's; 0 if there are no such words.
        """
        if source[:6] != target[:6] and source[-6:] != target[-6:]:  # as in most pairs
            return 0.0
        src, tgt = source.split(), target.split()
        for step in (1, -1):
            both = takewhile(
                lambda pair: pair[0] == pair[1], zip(src[::step], tgt[::step], strict=False)
            )
            shared = [token for token, _ in both]
            plain = [token.rstrip(".!?") for token in shared]
            words = [word for word in plain if word.isalpha() and word == word.lower()]
            is_sentence = len(set(words)) >= MIN_COPIED and 3 * len(words) >= 2 * len(shared)
            is_part = len(shared) < min(len(src), len(tgt))
            if is_sentence and is_part and not _QUOTATION.search(" ".join(shared)):
                nats = sum(map(self._side_nats, words))
                if abs(nats) >= max(MIN_COPIED_NATS, MIN_COPIED_NATS_PER_WORD * len(words)):
                    return nats
        return 0.0

    def _side_nats(self, word: str) -> float:
        """Return the evidence, in nats, that a word in lower case is of the source side. Words that
        pairs often have on both sides, such as names, are evidence of neither.
        """
        src, tgt = (counts[word] for counts in self.word_counts)
        if max(src, tgt) < MIN_COUNT:
            return 0.0
        once = 0.5 - (1 - SHARED_WEIGHT) * self.shared_counts[word]
        return min(MAX_WORD_NATS, max(-MAX_WORD_NATS, math.log((src + once) / (tgt + once))))

    @cached_property
    def third_languages(self) -> dict[tuple[str, str], list[ThirdLanguage]]:
        """The detectors of third languages for both sides, by the languages of a corpus."""
        result = {}
        for languages in dict.fromkeys(part.findings.languages for part in self.sample):
            parts = [part.texts for part in self.sample if part.findings.languages == languages]
            result[languages] = [
                ThirdLanguage([text for texts in parts for text in texts[side]], own, other)
                for side, (own, other) in enumerate((languages, languages[::-1]))
            ]
        return result

    def _are_clearly_pairs(self, evidence: Evidence, src: Words, tgt: Words) -> bool:
        """Whether pairs, given their evidence, match far better than neighbouring lines, which may
        have the same subject. The lengths of such pairs may be uncorrelated, if all sentences
        follow a few patterns.
        """
        after, before = (self.associations.evidence(src, tgt.shifted(n)) for n in (1, -1))
        return bool(np.median(evidence - np.maximum(after, before)) >= CLEAR_EVIDENCE)

    def _fraction_wrong(
        self, evidence: Evidence, known: NDArray[np.bool_], src: Words, tgt: Words
    ) -> float:
        """Estimate the fraction of pairs that are not translations, given their evidence. Half of
        such pairs, but hardly any translations, have less evidence than the median unrelated pair.
        Pairs with a side of rare words only, as in a dictionary, show nothing and are left out:
        `known` (2, pairs) is what `Associations.have_known` returns.
        """
        has_src, has_tgt = known
        is_known, is_unrelated = has_src & has_tgt, has_src & np.roll(has_tgt, UNRELATED_SHIFT)
        if len(src) < MIN_SAMPLE or min(is_known.sum(), is_unrelated.sum()) < MIN_KNOWN:
            return 0.0
        unrelated = self.associations.evidence(src, tgt.shifted(UNRELATED_SHIFT))[is_unrelated]
        return 2 * float(np.mean(evidence[is_known] < np.median(unrelated)))

    def usual_scripts(self, side: int, language: str) -> set[str]:
        """Return the scripts of the language, and Latin if it is common on the side; if most
        letters are in other scripts, return all common ones.
        """
        own, letters, common = scripts_of(language), self.letters[side], self.scripts[side]
        if sum(letters[script] for script in own) < 0.5 * max(1, letters.total()):
            return common
        return own | (common & {"LATIN"})

    def report_corpora(self, allow_swapped: bool) -> None:
        """Report corpora of the sample, which have the same languages, with unrelated or swapped
        sides, or in other languages.
        """
        for corpus, group in groupby(self.sample, attrgetter("findings")):
            rows = Chunk.join(corpus, list(group))
            self._find_unrelated(rows)
            report_whole_text(rows, allow_swapped)
            if not corpus.has("turned"):
                for side in (0, 1):
                    if text := _language_fault(rows, side):
                        corpus.add_message("language", text)
        if not any(part.findings.has("turned") for part in self.sample):
            self._find_wrong_scripts()

    def _find_wrong_scripts(self) -> None:
        """Report sides of the sample with hardly any letters, or of which most are in no script of
        their language, or, in Japanese, nearly all are Han.
        """
        corpus = self.sample[0].findings
        for side, language in enumerate(corpus.languages):
            own, letters = scripts_of(language), self.letters[side]
            own_letters = sum(letters[script] for script in own)
            key, text = ("src", "tgt")[side], ("source", "target")[side]
            question = "is this the right file?"
            characters = sum(int(part.lengths[:, side].sum()) for part in self.sample)
            if self.has_words and letters.total() < MIN_LETTERS * characters:
                fault = f"the {text} has hardly any letters, as if it were token ids"
            elif own and own_letters < 0.5 * letters.total():
                [(main, count)] = letters.most_common(1)
                fraction, only = count / letters.total(), "only " if main in own else ""
                fault = f"{only}{fraction:.0%} of the {text}'s letters are {script_name(main)}"
                if main == "LATIN" and self._has_mostly_accents(side):
                    question = "was it read in a wrong encoding? Convert the original file to UTF-8"
                elif tag := tag_of(language, main):
                    question += f" If {language} is meant, write {tag}"
            elif {"CJK", "HIRAGANA"} <= own and letters["CJK"] > MAX_HAN * own_letters:
                fault = f"the {text} has hardly any Hiragana or Katakana"
            else:
                continue
            corpus.add_message(
                "language",
                f"data.{key}_lang is {language}, but {fault}: {question}",
            )

    def _has_mostly_accents(self, side: int) -> bool:
        """Whether most letters of a side are not ASCII, as where letters of another script were
        read as Latin ones.
        """
        texts = islice(chain.from_iterable(part.texts[side] for part in self.sample), MAX_READ)
        letters = "".join(filter(str.isalpha, chain.from_iterable(texts)))
        return 2 * len(letters.encode("ascii", "ignore")) < len(letters)

    def _find_unrelated(self, rows: Chunk) -> None:
        """Report a corpus whose lengths do not correlate, or whose words do not match."""
        evidence = self.associations.evidence(*rows.words)
        known = self.associations.have_known(*rows.words)
        known_evidence = evidence[known.all(0)]
        low, windows = len(unrelated_windows(rows.lengths)), len(windows_of(len(rows)))
        if low > windows / 2 and not self._are_clearly_pairs(evidence, *rows.words):
            rows.findings.add_message("unrelated", UNRELATED)
        elif (wrong := self._fraction_wrong(evidence, known, *rows.words)) > MAX_WRONG:
            rows.findings.add_message("unrelated", WRONG.format(wrong))
        elif (
            (low or len(rows) >= MIN_RELATED)
            # very few different words cannot tell pairs apart, nor can words that are all rare
            and len(known_evidence) >= MIN_KNOWN
            and known_evidence.mean() < MIN_EVIDENCE
        ):
            rows.findings.add_message("unrelated", NO_WORDS)


def _language_fault(rows: Chunk, side: int) -> str:
    """Return a message if the texts of a side are not in its language; else an empty text."""
    texts, others = rows.texts[side], rows.texts[1 - side]
    name, languages = ("sources", "targets")[side], rows.findings.languages
    language = languages[side]
    if found := other_language(texts, language):
        return f"the language of the {name} is given as {language}, but they look like {found}"
    if lacks_frequent_words(texts, others, language, languages[1 - side]):
        advice = "were they read in a wrong encoding, or are they in another language?"
        return f"the {name} have hardly any frequent words of {language}; {advice}"
    return ""


def report_whole_text(rows: Chunk, allow_swapped: bool) -> None:
    """Report faults of a whole corpus: mix-ups, except for those that are found line by line; lost
    or misread accents; texts that are cut off; text that was added.
    """
    languages = rows.findings.languages
    found = mix_ups_of(languages, rows.texts, rows.numbers, allow_swapped)
    for kind, message, is_allowed in found:
        if kind not in ("swapped", "subwords"):
            rows.findings.add_message(kind, message, is_allowed=is_allowed)
    for side, name in enumerate(("sources", "targets")):
        fraction, example = lost_accents(rows.texts[side], languages[side])
        if fraction >= MIN_LOST_ACCENTS:
            text = f"about {fraction:.0%} of the {name} lack their accents, such as {example}"
            rows.findings.add_message("accents", text)
        changed = (find(rows.texts[side], languages[side]) for find in (misread_texts, look_alikes))
        for misread in filter(None, changed):
            fraction = len(misread.indices) / len(rows)
            edge = len(misread.indices) // 20
            first, last = (rows.numbers[misread.indices[at]] for at in (edge, -1 - edge))
            rows.findings.add_message(
                "accents",
                f"about {fraction:.0%} of the {name}, nearly all of them from "
                f"{rows.findings.name_row(first, side)} to {last}, have letters such as "
                f"{misread.letter} for {misread.right}: {misread.cause}",
            )
        if text := _cut_at_a_length(rows.texts[side], name) or _unfinished(rows, side):
            rows.findings.add_message("cut", text)
        added = additions(rows.texts[side], rows.texts[1 - side])
        for addition in nlargest(MAX_ADDITIONS, added, attrgetter("fraction")):
            place = rows.findings.name_row(rows.numbers[addition.indices[0]], side)
            rows.findings.add_message(
                "added",
                f"about {addition.fraction:.1%} of the {name} {addition.place} with "
                f'"{shorten_text(addition.text, MAX_SHOWN)}", for instance {place}, but nothing on '
                "the other side corresponds to it; remove it, unless it is a tag",
            )


def _cut_at_a_length(texts: Iterable[str], name: str) -> str:
    """Return a message if texts of a side seem to be cut off at a length; else an empty text."""
    by_unit = _lengths({text for text in texts if not is_blank(text)})
    counts = np.bincount(by_unit["words"], minlength=1)  # of texts, by number of words
    most = MAX_CUT * counts.sum()
    for unit, lengths in by_unit.items():
        cut = _cut_texts(lengths)
        # in scripts without spaces, most texts are one word
        if cut and (counts.max() <= most or (counts.argmax() == 1 and cut <= most)):
            return f"{cut:,} of the {name} have {lengths.max():,} {unit}, and none has more"
    return ""


def _unfinished(rows: Chunk, side: int) -> str:
    """Return a message if some texts of a side end in a word although the other side ends in a
    period or similar mark, and these texts are far shorter than the rest; else an empty text.
    """
    counts = Counter(rows.texts[side])  # a text that is repeated, such as NULL, is no part of one
    finished = [
        row
        for row in np.flatnonzero(rows.words[1 - side].counts >= MIN_SENTENCE).tolist()
        if _PERIOD.search(rows.texts[1 - side][row][-CONTEXT:])
        and counts[rows.texts[side][row]] == 1
    ]
    texts = [rows.texts[side][row][-CONTEXT:] for row in finished]
    is_cut = np.array([_WORD_END.search(text) is not None for text in texts], bool)
    enough = max(MIN_UNFINISHED, MIN_UNFINISHED_FRACTION * len(finished))
    if min(is_cut.sum(), (~is_cut).sum()) < enough:
        return ""
    logs = np.log1p(rows.lengths[finished])
    ratios = logs[:, side] - logs[:, 1 - side]
    loss = float(np.median(ratios[~is_cut]) - np.median(ratios[is_cut]))
    if loss < MIN_LOSS:
        return ""
    shortest = finished[int(np.where(is_cut, ratios, np.inf).argmin())]
    name, other = ("source", "target")[side], ("source", "target")[1 - side]
    return (
        f"about {is_cut.mean():.0%} of the {name}s stop in a sentence that the {other} completes, "
        f"and compared with their {other}s they are {1 - math.exp(-loss):.0%} shorter than the "
        f"rest, such as {rows.findings.name_row(rows.numbers[shortest], side)}"
    )


def _lengths(texts: Collection[str]) -> dict[str, NDArray[np.int64]]:
    """Return the lengths of texts by unit."""
    measures = {
        "characters": len,
        "bytes": lambda text: len(text.encode("utf-8", "surrogatepass")),
        "words": lambda text: len(text.split()),
    }
    return {unit: np.array([*map(length, texts)], np.int64) for unit, length in measures.items()}


def _cut_texts(lengths: NDArray[np.int64]) -> int:
    """Return the number of texts of the greatest length, if it is far above those of the lengths
    just below it; else 0.
    """
    if not len(lengths):
        return 0
    *below, count = np.bincount(lengths)[-CUT_LENGTHS - 1 :].tolist()
    return count if count >= max(MIN_CUT, CUT_FACTOR * max(below, default=0)) else 0
