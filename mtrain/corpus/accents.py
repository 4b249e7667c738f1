"""Find texts that lost their accents, such as "fur", "fuer" or "fr" for German "für", or have other
letters, because they were read in a wrong code page, such as "deðil" for Turkish "değil", or
because these look alike, as those of Arabic do in Persian.

In sound text, hardly any word with an accent also occurs without it. If a fraction of the texts
lost their accents, the same fraction of the occurrences of each word did.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from mtrain.config.languages import frequent_words, language_code
from mtrain.corpus.language_identification import count_words

SAMPLE = 10_000  # texts, about, that are looked at
MIN_COUNT = 10  # texts with a word
MIN_WORDS, MAX_WORDS = 10, 50  # with accents, the most frequent ones
MIN_KNOWN = 2  # this many frequent words of the language are enough if none has an accent left
# Fraction of the words, those that occur most rarely without accents, that are counted: without
# their accents, others may be different words, or other forms of a word, as in Romanian.
USUAL = 0.6

# Code pages, and languages with letters that Windows-1252 lacks.
CODE_PAGES = {"cp1250": "bs cs hr hu pl ro sk sl sr", "cp1254": "az tr", "cp1257": "lt lv"}
WESTERN = "cp1252"
MIN_MISREAD, MIN_MISREAD_FRACTION = 20, 0.01  # texts
# Letters of other languages, and those of these languages that look like them.
LOOK_ALIKES = {
    "ro": {"ş": "ș", "ţ": "ț", "Ş": "Ș", "Ţ": "Ț"},  # cedilla, comma
    "ckb fa ur": {"\u064a": "\u06cc", "\u0643": "\u06a9"},  # Arabic, Persian
    "ar": {"\u06cc": "\u064a", "\u06a9": "\u0643"},
    "bs hr vi": {"\u00d0": "\u0110", "\u00f0": "\u0111"},  # Icelandic eth, letters with stroke
    "mn": {"є": "ө", "ї": "ү", "Є": "Ө", "Ї": "Ү"},  # in fonts without letters of Mongolian
}
USUAL_LETTER = 0.05  # fraction of the texts with letters of their own that have a usual one

# Letters without a decomposition in Unicode, and how texts in ASCII often spell letters.
_LETTERS = str.maketrans({"ß": "ss", "ø": "o", "ł": "l", "đ": "d", "ı": "i", "æ": "ae", "œ": "oe"})
_DIGRAPHS = str.maketrans(
    {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "å": "aa", "ø": "oe", "æ": "ae"}
)


def lost_accents(texts: Sequence[str], language: str) -> tuple[float, str]:
    """Estimate the fraction of texts that lost their accents. Return it with an example, such as
    "fur for für"; 0 if there are few words with accents, as in English.
    """
    sample = texts[:: max(1, len(texts) // SAMPLE)]
    counts = count_words(sample)
    known = {word for word in frequent_words(language) if len(word) > 2}
    return max(_lost(counts, known, spell) for spell in SPELLINGS)


def _lost(counts: Counter[str], known: set[str], spell: Callable[[str], str]) -> tuple[float, str]:
    """Estimate the fraction of texts whose words are spelled in this way; add an example."""
    found = []
    for word in known | {word for word, count in counts.items() if count >= MIN_COUNT}:
        plain = "" if word.isascii() else spell(word)
        total = counts[word] + counts[plain]
        is_spelling = len(plain) > 1 and plain.isascii() and plain not in known
        if is_spelling and total >= MIN_COUNT:
            found.append((total, counts[plain] / total, f"{plain} for {word}"))
    found = sorted(found, reverse=True)[:MAX_WORDS]
    least = MIN_KNOWN if all(fraction == 1 for _, fraction, _ in found) else MIN_WORDS
    if len(found) < least:
        return 0.0, ""
    example = next((example for _, fraction, example in found if fraction), "")
    usual = sorted(found, key=itemgetter(1))[: math.ceil(USUAL * len(found))]
    lost = sum(total * fraction for total, fraction, _ in usual)
    return lost / sum(total for total, _, _ in usual), example


def _without_marks(word: str) -> str:
    """Return a word without its accents, but with letters such as ß and ł."""
    letters = unicodedata.normalize("NFD", word)
    return "".join(char for char in letters if not unicodedata.combining(char))


# How texts without accents may spell a word.
SPELLINGS: tuple[Callable[[str], str], ...] = (
    _without_marks,
    lambda word: _without_marks(word.translate(_LETTERS)),  # in ASCII if possible
    lambda word: word.translate(_DIGRAPHS),  # as in German and Danish
    lambda word: "".join(filter(str.isascii, word)),  # without the accented letters
)


class Misread(NamedTuple):
    """Texts with letters in place of others: their indices, a letter as it is in the first of them,
    and as it should be, and the cause with what to do.
    """

    indices: list[int]
    letter: str
    right: str
    cause: str


def misread_texts(texts: Sequence[str], language: str) -> Misread | None:
    """Find texts that have letters of Windows-1252 in place of those of their own code page, if
    there are too many to be names of other languages.
    """
    code = language_code(language)
    page = next((page for page, codes in CODE_PAGES.items() if code in codes.split()), "")
    if not page:
        return None
    western, known = _letters_of(WESTERN), _letters_of(page)
    own, foreign = known - western, western - known
    letters = [set(text) for text in texts]
    counts = Counter(chain.from_iterable(each & own for each in letters))
    least = USUAL_LETTER * sum(not own.isdisjoint(each) for each in letters)
    usual = {letter for letter in foreign if counts[_reread(letter, page)] >= least}
    misread = [
        index
        for index, each in enumerate(letters)
        if own.isdisjoint(each) and (found := each & foreign) and found <= usual
    ]
    if len(misread) < max(MIN_MISREAD, MIN_MISREAD_FRACTION * len(texts)):
        return None
    letter = next(char for char in texts[misread[0]] if char in foreign)
    cause = f"they were read as Windows-1252 or Latin-1; convert the original file from {page}"
    return Misread(misread, letter, _reread(letter, page), cause)


def look_alikes(texts: Sequence[str], language: str) -> Misread | None:
    """Find texts with letters of other languages that look like those of their own."""
    code = language_code(language)
    letters = next((letters for codes, letters in LOOK_ALIKES.items() if code in codes.split()), {})
    found = [index for index, text in enumerate(texts) if not letters.keys().isdisjoint(text)]
    if len(found) < max(MIN_MISREAD, MIN_MISREAD_FRACTION * len(texts)):
        return None
    letter = next(char for char in texts[found[0]] if char in letters)
    return Misread(found, letter, letters[letter], "they look alike; replace them")


def _letters_of(page: str) -> set[str]:
    """Return the letters of a code page that ASCII lacks."""
    text = bytes(range(0x80, 0x100)).decode(page, "ignore")
    return {char for char in text if unicodedata.category(char) in ("Ll", "Lu")}


def _reread(letter: str, page: str) -> str:
    """Return what the byte of a letter in Windows-1252 is in a code page."""
    return letter.encode(WESTERN).decode(page, "ignore")
