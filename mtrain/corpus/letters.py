"""Find texts whose letters were lost or changed: accents that are lost, such as "fur", "fuer" or
"fr" for German "für"; letters that were read in a wrong encoding, such as "deðil" for Turkish
"değil", or "fÃ¼r" (mojibake); or letters that look alike, as those of Arabic do in Persian.

In sound text, hardly any word with an accent also occurs without it. If a fraction of the texts
lost their accents, the same fraction of the occurrences of each word did.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import regex

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
MIN_ALL_MISREAD = 0.1  # fraction of the texts, if none has a letter of its own code page
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

# The bytes 0x80 to 0xbf, which continue a character in UTF-8, as Windows-1252 reads them.
_BYTE_OF = {bytes([byte]).decode("cp1252", "ignore") or chr(byte): byte for byte in range(128, 192)}
_MOJIBAKE = re.compile(rf"(?:[\u00c2-\u00f4][\x80-\x9f{re.escape(''.join(_BYTE_OF))}]{{1,3}})+")
# Cyrillic UTF-8 that was read as Windows-1251, and signs in words that are letters in DOS.
_WINDOWS_1251 = re.compile(
    r"(?<=[\u0400-\u0491])[¤¦§©¬®](?=[¤¦§©¬®«\xad]*[\u0400-\u0491])|"
    r"(?:[РС][\u0402-\u040f\u0452-\u045f\u0490\u0491\u00a0-\u00bb\u2013-\u203a№]){3,}"
)
# Encodings of other scripts in which UTF-8 may be read without errors, such as "鏂囦欢" for "文件".
_LEGACY_ENCODINGS = ["gbk", "cp932", "koi8_u", "iso8859_5", "cp1253", "cp1255", "cp1256"]
_NOT_ASCII = re.compile("[^\0-\x7f\ufffd]+")
# Characters of a text that are decoded again, and different ones that must result.
MAX_READ, MIN_DIFFERENT = 100, 4
_QUOTES = set("‘’“”‹›„‚»«´¨…–—")
# Signs in a word that stand for letters if text in Latin letters was read in a wrong code page,
# such as 437, 1252 for 1250 or Mac Roman; not those of "nº" and its plural "nºs".
_SIGN_IN_WORD = regex.compile(
    r"(?V1)[[\p{Sm}\p{So}\p{Sc}\p{Sk}\p{Greek}\u00a1\u00a7\u00b3\u00b6\u00b9\u00ba\u00bc-\u00bf"
    r"\u2020\u2021\u2030\u207f]--[\x00-\x7f™®©°µ±×´\u2044\u2190-\u21ff▁\uff00-\uffef\ufffc\ufffd]]"
    r"(?<=\p{Latin}.)(?=[\p{Ll}&&\p{Latin}])(?<!\b[nN]º|º(?=s\b))"
)
# Letters of other scripts in a word of a text in Latin letters that was read in their code page,
# such as "f眉r" for "für" (GBK).
_EASTERN = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Hebrew}\p{Arabic}]"
_EASTERN_IN_WORD = regex.compile(rf"(?<=\p{{Latin}}){_EASTERN}|{_EASTERN}(?=\p{{Latin}})")


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
    own = known - western
    right = {letter: _reread(letter, page) for letter in western - known}
    letters = [set(text) for text in texts]
    counts = Counter(chain.from_iterable(each.intersection(right.values()) for each in letters))
    sound = sum(not own.isdisjoint(each) for each in letters)
    usual = {
        letter
        for letter, read in right.items()
        if read in known and counts[read] >= USUAL_LETTER * sound
    }
    misread = [
        index
        for index, each in enumerate(letters)
        if own.isdisjoint(each) and (found := each & right.keys()) and found <= usual
    ]
    # text without any letters of its own may have lost its accents, or be in another script
    least = MIN_MISREAD_FRACTION if sound else MIN_ALL_MISREAD
    if len(misread) < max(MIN_MISREAD, least * len(texts)):
        return None
    letter = next(char for char in texts[misread[0]] if char in usual)
    cause = f"they were read as Windows-1252 or Latin-1; convert the original file from {page}"
    return Misread(misread, letter, right[letter], cause)


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


def find_mojibake(text: str, words: str, *, is_latin: bool) -> int | None:
    """Find UTF-8 that was read as Windows-1252, Latin-1 or Windows-1251, and signs in `words`, the
    text without placeholders; in text in Latin letters also letters of other scripts in a word.
    """
    runs = filter(_is_mojibake, _MOJIBAKE.finditer(text))
    matches: list[Any] = [next(runs, None), _WINDOWS_1251.search(text), _SIGN_IN_WORD.search(words)]
    if is_latin:
        matches.append(_EASTERN_IN_WORD.search(words))
    found = min((match.start() for match in matches if match), default=None)
    return _find_misread_utf8(text) if found is None else found


@cache
def _legacy_encodings(character: str) -> list[str]:
    """Return the encodings in which a character begins with a byte that begins one in UTF-8."""
    first = {encoding: character.encode(encoding, "ignore")[:1] for encoding in _LEGACY_ENCODINGS}
    return [encoding for encoding, byte in first.items() if b"\xc2" <= byte <= b"\xf4"]


def _find_misread_utf8(text: str) -> int | None:
    """Find the first character that is not ASCII, if nearly all such characters are UTF-8 that was
    read in an encoding of another script.
    """
    odd = "".join(_NOT_ASCII.findall(text))[:MAX_READ]
    if len(odd) < MIN_DIFFERENT:
        return None
    for encoding in _legacy_encodings(odd[0]):
        try:
            data = odd.encode(encoding)
        except UnicodeEncodeError:
            continue
        decoded = re.sub("[\0-\x7f]", "", data.decode("utf-8", "ignore"))
        utf8 = decoded.encode()
        is_nearly_all = 5 * len(utf8) >= 4 * len(data) and data[:2] == utf8[:2]
        # sound text may be UTF-8 by chance, but hardly in one block of Unicode, or beyond U+2000
        blocks = {ord(char) >> 8 for char in decoded if char < "\u2000"}
        if is_nearly_all and len(set(decoded)) >= MIN_DIFFERENT and len(blocks) <= 1:
            return text.index(odd[0])
    return None


def _is_mojibake(match: "re.Match[str]") -> bool:
    """Whether a match is misdecoded UTF-8, and not a letter before a closing quote."""
    run, following = match.group(), match.string[match.end() : match.end() + 1]
    data = bytes(_BYTE_OF.get(char, ord(char)) for char in run)
    decoded = data.decode("utf-8", "ignore")
    if len(decoded) != 1:
        return len(decoded) > 1
    ends_in_quote = len(run) < 4 and run[-1] in _QUOTES and not following.isalpha()
    is_usual = decoded <= "\u017f" or "\u2000" <= decoded < "\u2c00" or decoded >= "\ufffd"
    return (is_usual or decoded == "\ufeff") and not ends_in_quote
