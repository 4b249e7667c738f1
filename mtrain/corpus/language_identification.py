"""Identify the language of texts by frequent words or scripts.

Most sentences of six words or more have a frequent word of their language, such as an article or a
preposition.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from mtrain.config.languages import FREQUENT, frequent_words
from mtrain.corpus.writing_systems import script_of, scripts_of

SAMPLE = 10_000  # pairs, about, that show whether sides are swapped
SIDE_SAMPLE = 2000  # texts, about, that show which language a side is in
MIN_TEXTS = 100  # to judge the language of a whole side
MIN_SWAPPED = 5  # pairs with swapped sides in that sample; fewer do not count
# Fractions of pairs with swapped sides, above which there is a warning and an error. If the
# languages are hard to distinguish, there is no warning.
MAX_SWAPPED, MOST_SWAPPED = 0.01, 0.5
LONG = 6  # words of a text, or letters of Chinese, among which a frequent word is expected
MUCH_MORE = 3  # a language is indicated by this many times as many frequent words as the other
# A side is in another language if this fraction of its texts have frequent words of that language
# alone, and this many such words of two letters or more are in several texts. Sound text has up to
# 4: one word may be a key, a name or a word that both languages have.
MIN_WITH_WORDS, MIN_DIFFERENT = 0.1, 6
USUAL = 0.1  # a word in more than this fraction of a side's texts is usual there
# A side lacks the frequent words of its language if it has this many texts, frequent words are
# this fraction of the other side's words, and less than `MAX_LEFT` times that of its own (sound
# text: at least 0.17 times).
MIN_LACKING, MIN_FREQUENT, MAX_LEFT = 400, 0.05, 0.12
MIN_WORDS = 3  # frequent words of a third language that indicate it

_WORD = re.compile(r"[^\W\d_]+")
_ACCENT = re.compile("[\u0300-\u036f]")
# Not all accents of a letter: normalization takes quadratic time in their number.
_LETTER_WITH_ACCENTS = re.compile("\\w[\u0300-\u036f]{1,4}")


def words_of(text: str) -> set[str]:
    """Return the different words of a text in lower case, without digits and punctuation, and with
    accents that are separate characters joined to their letters.
    """
    if _ACCENT.search(text):
        text = _LETTER_WITH_ACCENTS.sub(lambda match: normalize("NFC", match[0]), text)
    return set(_WORD.findall(text.lower()))


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Return the number of texts with each word, as `words_of` finds them."""
    return Counter(chain.from_iterable(map(words_of, texts)))


class ThirdLanguage:
    """Finds texts of a side that are in the language of neither side, by frequent words.

    `usual` are texts of the side, of which most are in its language.
    """

    def __init__(self, usual: Sequence[str], language: str, other: str) -> None:
        sample = usual[:: max(1, len(usual) // SIDE_SAMPLE)]
        counts = count_words(sample)
        least = USUAL * len(sample)
        known = frequent_words(language)
        self.own = known | {word for word, count in counts.items() if count > least}
        self.other = frequent_words(other)
        self.candidates = dict[str, set[str]]()
        if known:
            for code, words in FREQUENT.items():
                if not _are_distinct(language, code):
                    self.candidates[code] = {word for word in words if len(word) > 1}
        self.frequent = set().union(self.own, self.other, *self.candidates.values())

    def language_of(self, text: str) -> str:
        """Return the third language that a text is in; empty if it is in none, or not clearly."""
        if not self.candidates:
            return ""
        words = words_of(text) & self.frequent
        if len(words - self.own) < MIN_WORDS:
            return ""
        most, result = MIN_WORDS - 1, ""
        for code, candidate in self.candidates.items():
            shared, rest = words & candidate, words - candidate
            count = len(shared - self.own)
            is_own = MUCH_MORE * len(rest & self.own) > count
            if count > most and not is_own and len(shared) > len(words & self.other):
                most = count
                result = code
        return result


def other_language(texts: Sequence[str], language: str) -> str:
    """Return the language of most texts if it is not `language`, but has the same script; an empty
    text if that is not clear, or if the frequent words of `language` are not known.
    """
    own = frequent_words(language)
    texts = texts[:: max(1, len(texts) // SIDE_SAMPLE)]
    if not own or len(texts) < MIN_TEXTS:
        return ""
    lines = list(map(words_of, texts))
    counts = np.array([[len(line & words) for words in FREQUENT.values()] for line in lines])
    is_best = (counts == counts.max(1, keepdims=True)) & (counts > 0)
    # a text counts in equal parts for the languages that match it best
    parts = is_best / is_best.sum(1, keepdims=True).clip(1)
    best = list(FREQUENT)[parts.sum(0).argmax()]
    if _are_distinct(language, best):
        return ""
    only_best, only_own = FREQUENT[best] - own, own - FREQUENT[best]
    found = Counter(word for line in lines for word in line & only_best if len(word) > 1)
    if sum(count > 1 for count in found.values()) < MIN_DIFFERENT:
        return ""
    larger = _larger_side([[len(line & only_best), len(line & only_own)] for line in lines])
    in_best, in_own = int((larger > 0).sum()), int((larger < 0).sum())
    return best if in_best > max(MIN_WITH_WORDS * len(texts), MUCH_MORE * in_own) else ""


def lacks_frequent_words(
    texts: Sequence[str], others: Sequence[str], language: str, other: str
) -> bool:
    """Whether texts have hardly any frequent words of their language, although the other sides of
    the pairs have those of theirs: the texts may have been read in a wrong encoding.
    """
    if len(texts) < MIN_LACKING or not frequent_words(language):
        return False
    step = max(1, len(texts) // SIDE_SAMPLE)
    own = _frequent_fraction(texts[::step], frequent_words(language))
    usual = _frequent_fraction(others[::step], frequent_words(other))
    return usual >= MIN_FREQUENT and own < MAX_LEFT * usual


def _frequent_fraction(texts: Sequence[str], frequent: set[str]) -> float:
    """Return the fraction of the texts' words that are frequent, each counted once per text."""
    lines = list(map(words_of, texts))
    return sum(len(line & frequent) for line in lines) / max(1, sum(map(len, lines)))


def swapped_fraction(
    sources: Sequence[str], targets: Sequence[str], src_lang: str, tgt_lang: str
) -> float:
    """Estimate the fraction of pairs whose sides are swapped, from the pairs whose sides look like
    these two languages; 0 if it is so small that it may be an error of this function.
    """
    step = max(1, len(sources) // SAMPLE)
    sources, targets = sources[::step], targets[::step]
    src, tgt = (_language_of_each(texts, src_lang, tgt_lang) for texts in (sources, targets))
    right = int(((src > 0) & (tgt < 0)).sum())
    swapped = int(((src < 0) & (tgt > 0)).sum())
    if swapped < MIN_SWAPPED:
        return 0.0
    fraction = swapped / (right + swapped)
    differ_in_script = _are_distinct(src_lang, tgt_lang) or _extra_scripts(src_lang, tgt_lang)
    # frequent words of one language alone, such as English "is", may be words of the other, too
    is_sure = differ_in_script or (frequent_words(src_lang) and frequent_words(tgt_lang))
    most = MAX_SWAPPED if is_sure else MOST_SWAPPED
    return fraction if fraction > most else 0.0


def _are_distinct(language: str, other: str) -> bool:
    """Whether two languages are written in different scripts."""
    scripts, other_scripts = scripts_of(language), scripts_of(other)
    return bool(scripts and other_scripts and scripts.isdisjoint(other_scripts))


def _extra_scripts(language: str, other: str) -> set[str]:
    """Return the scripts that one of two languages has in addition to all those of the other: Kana
    for Japanese and Chinese; an empty set for other languages.
    """
    scripts, other_scripts = scripts_of(language), scripts_of(other)
    is_part = scripts < other_scripts or other_scripts < scripts
    return scripts ^ other_scripts if scripts and other_scripts and is_part else set()


def _language_of_each(texts: Sequence[str], language: str, other: str) -> NDArray[np.int64]:
    """Return for each text 1 if it looks like the language, -1 if it looks like the other, else 0:
    by the scripts of its letters or, if the languages share a script, by frequent words.
    """
    if _are_distinct(language, other):
        return _larger_side(_count_letters(texts, language, other), 1)
    if extra := _extra_scripts(language, other):
        sign = 1 if extra <= scripts_of(language) else -1
        return sign * _larger_side(_count_extra(texts, scripts_of(language) | extra, extra))
    return _larger_side(_count_words(texts, language, other))


def _larger_side(counts: list[list[int]], much_more: int = MUCH_MORE) -> NDArray[np.int64]:
    """Return for each pair of counts 1 if the first is more than `much_more` times the second, -1
    if the second is more than that times the first, else 0.
    """
    first, second = np.array(counts, np.int64).reshape(len(counts), 2).T
    is_first = (first > much_more * second).astype(np.int64)
    return is_first - (second > much_more * first)


def _count_letters(texts: Sequence[str], *languages: str) -> list[list[int]]:
    """Count the letters of each text in the scripts of each language."""
    scripts = [scripts_of(language) for language in languages]
    letters = (Counter(map(script_of, text)) for text in texts)
    return [[sum(count[name] for name in names) for names in scripts] for count in letters]


def _count_extra(texts: Sequence[str], scripts: set[str], extra: set[str]) -> list[list[int]]:
    """Count the letters of each text in the `extra` scripts of one language. A long text in the
    other scripts alone counts as one letter of the other language.
    """
    result = []
    for text in texts:
        letters = Counter(map(script_of, filter(str.isalpha, text)))
        own = sum(letters[script] for script in extra)
        other = int(not own and sum(letters[script] for script in scripts) >= LONG)
        result.append([own, other])
    return result


def _count_words(texts: Sequence[str], language: str, other: str) -> list[list[int]]:
    """Count the frequent words in each text that only one of the languages has. If those of one
    language are unknown, a long text without the other's counts as one word of it.
    """
    known = frequent_words(language), frequent_words(other)
    groups = known[0] - known[1], known[1] - known[0]
    lines = list(map(words_of, texts))
    counts = [[len(group & line) for group in groups] for line in lines]
    for side in (0, 1):
        if known[1 - side] and not known[side]:
            for line, count in zip(lines, counts, strict=True):
                count[side] = int(len(line) >= LONG and not count[1 - side])
    return counts
