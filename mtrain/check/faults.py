"""Faults of single texts, such as odd characters, and of pairs, such as swapped sides."""

import re
from collections.abc import Iterable, Iterator
from unicodedata import normalize

import numpy as np
import regex
from numpy.typing import NDArray

from mtrain.check.chunks import Chunk, Mask
from mtrain.check.findings import MISMATCHES
from mtrain.check.profile import Profile
from mtrain.config.languages import NAMES
from mtrain.corpus.letters import find_mojibake
from mtrain.corpus.markup import ESCAPED, MARKUP, SUBWORD_MARKS, is_missing
from mtrain.corpus.writing_systems import LATIN, script_name, text_direction
from mtrain.data.filters import is_identical

MIN_LETTERS = 5  # in another script
MIN_FOREIGN_LATIN = 20  # letters: text in any script has names and commands in Latin
MIN_LANGUAGE_NATS = 7.0  # evidence that a text is in the other side's language
# Smallest distance from the normal ratio of lengths: of its logarithm (1.1 is a factor of three),
# and in standard deviations.
MIN_LOG_DISTANCE, MIN_DEVIATIONS = 1.1, 5.0
MISFIT_NATS_PER_WORD = 0.6  # of the longer side: evidence against a pair, to report it
MIN_LOST = 5  # question marks that stand for letters if they are more than half of a text
MIN_HELD = 5  # words of a side that the other side contains, too
MIN_FILLED = 16  # characters of a text that no side should translate as "None"
MIN_NO_BREAK = 3  # no-break spaces between words: a few are typography
MIN_RUN = 50  # letters without a space, too many for a word
# A loop: repetitions of a phrase that are most of a text, or, on the other side, maybe intended.
MIN_REPEATS, MOST, INTENDED = 5, 0.5, 0.2
# A loop at the end: how often a phrase occurs, letters of all its occurrences, different letters of
# the phrase (laughter has fewer), and characters that are searched.
MIN_TIMES, MIN_LOOP, MIN_DIFFERENT_LETTERS, MAX_SEARCHED = 3, 24, 4, 600
MIN_CHARACTERS = 30  # of the longer side, for its length to be suspicious

# Joiners, direction marks and tags of flags: normal in emoji and in scripts that join letters or
# run from right to left, which `_USES_JOINERS` finds, and in any text of such a language.
_JOINERS = "\u061c\u200c-\u200f\u202a-\u202e\u2066-\u2069\U000e0001-\U000e007f"
_USES_JOINERS = regex.compile(
    r"(?V1)\p{Extended_Pictographic}|[\p{L}--[\p{Latin}\p{Greek}\p{Cyrillic}\p{Han}\p{Hiragana}"
    r"\p{Katakana}\p{Hangul}\p{Common}]]"
)
_IGNORABLE = r"(?V1)[\p{Default_Ignorable_Code_Point}--[\p{Variation_Selector}"
_INVISIBLE = regex.compile(_IGNORABLE + "]]")
_INVISIBLE_BUT_JOINERS = regex.compile(_IGNORABLE + _JOINERS + "]]")
# Scripts without spaces, in which a zero-width space separates words.
_USES_ZERO_WIDTH_SPACE = regex.compile(
    r"[\p{Khmer}\p{Lao}\p{Thai}\p{Myanmar}\p{Tibetan}\p{Javanese}\p{Balinese}\p{Tai_Tham}"
    r"\p{Tai_Le}\p{New_Tai_Lue}\p{Tai_Viet}\p{Cham}]"
)
_INVISIBLE_BUT_SPACES = regex.compile(_IGNORABLE + "\u200b" + _JOINERS + "]]")
_CONTROL = re.compile("[\0-\x08\n-\x1f\x7f-\x9f\u2028\u2029]")
# Not undefined characters in the blocks of emoji: newer versions of Unicode may define them.
_NO_CHARACTER = regex.compile(
    r"(?V1)[\ufffc\ufffd\p{Co}\p{Cs}\p{Noncharacter_Code_Point}[\p{Cn}--[\U0001f000-\U0010ffff]]]"
)
_NO_BREAK = regex.compile(r"(?<=[\p{L}\p{M},.])[\u00a0\u2000-\u200a\u202f\u205f](?=\p{L})")
# A letter that lower-casing by other rules than those of Turkish makes from "İ".
_DOTTED = re.compile("i\u0307(?![\u0300-\u036f])")
# Invisible and replacement characters that `str.isprintable` accepts.
_SEEMS_PRINTABLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\ufffc\ufffd]")
# Ligatures, and Arabic letters as they look at a place in a word, as in text from PDF files.
_PRESENTATION = re.compile(
    "[\ufb00-\ufb06\ufb13-\ufb17\ufb50-\ufbb1\ufbd3-\ufd3d\ufd50-\ufdc7\ufe70-\ufefc]"
)
# A letter or vowel sign and a combining accent or part, as in text from macOS: of Latin, Arabic and
# the scripts of India, Sri Lanka and Myanmar, Korean and Japanese.
_DECOMPOSED = re.compile(
    "\\S[\u0300-\u036f\u0653-\u0655\u093c\u09be\u09d7\u0b3e\u0b56\u0b57\u0bbe\u0bd7\u0c56\u0cc2\u0cd5"
    "\u0cd6\u0d3e\u0d57\u0dca\u0dcf\u0ddf\u102e\u1161-\u1175\u3099\u309a]"
)

# A question mark between letters of a word, but not one that ends a sentence.
_IN_WORD = regex.compile(r"\p{L}\?+\p{Ll}|\p{Lu}\?+\p{Lu}")
_CYRILLIC = "[\u0400-\u0481\u048a-\u052f]"
_MIXED_WORD = re.compile(f"{_CYRILLIC}(?:(?={LATIN})|(?<={LATIN}{_CYRILLIC}))")
_NUMBER = re.compile(r"\d+")
_LAST_LETTER = regex.compile(r"(?r)\p{L}")
_LETTERS_APART = regex.compile(r"(?:(?<!\S)[\p{Latin}\p{Cyrillic}\p{Greek}]\s+){8}")
_RUN_TOGETHER = regex.compile(rf"[\p{{Latin}}\p{{Cyrillic}}\p{{Greek}}]{{{MIN_RUN}}}")
# The parts of a word that was divided at the end of a line. A match starts where a word does: else
# this would take quadratic time in the length of a word, such as a Chinese text.
_DIVIDED = regex.compile(r"(?<!\p{L})(\p{L}{2,})[-\u2010] (?=(\p{Ll}{3,}))")
# A dash, a bullet, a time or a number of a list at the start of a text.
_LIST_MARK = re.compile(r"\A\s*(?:[-–—―•*·►▪●▸‣◦○■□◆]+\s|[\[(]?\d{1,2}:\d\d|[\[(]?\d{1,4}[.)\]]\s)")
# Punctuation that ends sentences; and at the start of a text, except in .txt and "...".
_FINAL_PUNCTUATION = tuple(".!?:。！？：؟।")
_LEADING_PUNCTUATION = re.compile(f"\\A\\s*[{''.join(_FINAL_PUNCTUATION)}](?![A-Za-z0-9_/.])")
# Placeholders of programs and escapes, such as %1$s, %li and \n: parts of no word.
_PLACEHOLDER = re.compile(r"%[-+#.$0-9]*[hlqzjt]*[a-zA-Z]|\\[a-zA-Z]")


def check_pairs(
    chunk: Chunk, profile: Profile
) -> tuple[NDArray[np.float64], dict[str, NDArray[np.int64]]]:
    """Report faults of texts and pairs. Return the evidence, in nats, that the sides of each pair
    are translations (0 for pairs with another finding), and the rows that were reported as each of
    the `MISMATCHES`.
    """
    _find_text_faults(chunk, profile)
    questions = np.array([[text.count("?") for text in texts] for texts in chunk.texts])
    lost = chunk.flags(_has_lost_letters)
    for side in (0, 1):
        is_more = questions[side] > questions[1 - side]
        chunk.report("lost", lost[side] & ~lost[1 - side] & is_more, side)
    is_reported = np.array(chunk.blank.any(0))
    chunk.report("blank", is_reported)
    same = np.array([is_identical(pair) for pair in zip(*chunk.texts, strict=True)], bool)
    same &= ~is_reported & (chunk.words[0].counts > 0)
    chunk.report("same", same, ranks=-chunk.lengths[:, 0].astype(float))
    is_reported |= same | _find_one_sided_faults(chunk)
    if profile.has_words:
        is_reported |= _find_other_languages(chunk, profile, is_reported)
        is_reported |= _find_third_languages(chunk, profile, is_reported)
    if profile.has_scripts:
        is_reported |= _find_other_scripts(chunk, profile, is_reported)
    distance, deviations = profile.ratio.distance(chunk.lengths)
    ratio = ~is_reported & (distance >= MIN_LOG_DISTANCE) & (deviations >= MIN_DEVIATIONS)
    ratio &= profile.has_words & (chunk.lengths.max(1) >= MIN_CHARACTERS)
    chunk.report("ratio", ratio, ranks=-deviations)
    evidence = np.zeros(len(chunk))
    if profile.has_associations:
        evidence = np.where(is_reported, 0.0, profile.associations.evidence(*chunk.words))
    longer = np.maximum(chunk.words[0].counts, chunk.words[1].counts)
    misfit = (evidence <= -profile.misfit_nats) & (evidence <= -MISFIT_NATS_PER_WORD * longer)
    chunk.report("misfit", misfit, ranks=evidence)
    digits = np.array(list(map(_have_other_digits, *chunk.texts)), bool) & (evidence > 0)
    # the numbers of short texts are easily seen
    chunk.report("digits", digits, ranks=chunk.lengths.sum(1).astype(float))
    masks = zip(MISMATCHES, (misfit, ratio, digits), strict=True)
    numbers = np.array(chunk.numbers, np.int64)
    return evidence, {kind: numbers[mask] for kind, mask in masks}


def _have_other_digits(source: str, target: str) -> bool:
    """Whether texts have equally many digits, but not the same ones. Another order, as in dates,
    and hours of a 12-hour clock do not count; nor do numbers that only one side spells out.
    """
    src, tgt = _NUMBER.findall(source), _NUMBER.findall(target)
    if src == tgt or sum(map(len, src)) != sum(map(len, tgt)):
        return False
    if _sorted_digits(src) == _sorted_digits(tgt):
        return False
    src, tgt = list(map(_on_short_clock, src)), list(map(_on_short_clock, tgt))
    return _sorted_digits(src) != _sorted_digits(tgt)


def _sorted_digits(numbers: list[str]) -> list[int]:
    return sorted(int(digit) for number in numbers for digit in number)


def _on_short_clock(number: str) -> str:
    """Return 10 for 22 and 00 for 12: 22:30 may be 10:30 p.m., and 00:30 may be 12:30 a.m. Return
    all other numbers as they are.
    """
    if len(number) == 2 and 12 <= int(number) < 24:
        return f"{int(number) % 12:02}"
    return number


def _find_one_sided_faults(chunk: Chunk) -> Mask:
    """Report faults that only one side of a pair has: a missing value, the text of both sides,
    words that run together or letters apart, repetitions, list marks and final punctuation at the
    start. Return the rows of the first two kinds.
    """
    is_reported = np.zeros(len(chunk), bool)
    has_list_mark, has_odd_spacing = chunk.flags(_LIST_MARK.match), chunk.flags(_has_odd_spacing)
    is_loop = [words.repeat(MIN_REPEATS, MOST) | words.are_doubled() for words in chunk.words]
    ends = chunk.flags(_ends_in_loop)
    missing = chunk.flags(is_missing)
    begins_wrongly = chunk.flags(_LEADING_PUNCTUATION.match)
    ends_rightly = chunk.flags(_ends_in_punctuation)
    for side in (0, 1):
        own, other = chunk.words[side].counts, chunk.words[1 - side].counts
        contains_other = np.zeros(len(chunk), bool)
        for row in np.flatnonzero((other >= MIN_HELD) & (2 * own >= 3 * other)).tolist():
            contains_other[row] = chunk.texts[1 - side][row] in chunk.texts[side][row]
        is_missing_here = missing[side] & (chunk.lengths[:, 1 - side] >= MIN_FILLED)
        chunk.report("missing", is_missing_here, side)
        is_reported |= contains_other | is_missing_here
        chunk.report("both", contains_other, side)
        chunk.report("spacing", has_odd_spacing[side] & ~has_odd_spacing[1 - side], side)
        has_end = ends[side] & ~ends[1 - side] & ~chunk.words[1 - side].repeat(1, INTENDED)
        chunk.report("loop", (is_loop[side] | has_end) & ~is_loop[1 - side], side)
        detail = f"({('source', 'target')[side]})"
        chunk.report("marked", has_list_mark[side] & ~has_list_mark[1 - side], side, detail=detail)
        is_reversed = begins_wrongly[side] & ~ends_rightly[side]
        is_reversed &= ends_rightly[1 - side] & ~begins_wrongly[1 - side]
        chunk.report("reversed", is_reversed, side)
    return is_reported


def _has_odd_spacing(text: str) -> bool:
    """Whether words run together, or all letters are apart, in a script with spaces."""
    words = text.split()
    if 3 * len(words) > len(text) and _LETTERS_APART.search(text):
        return True
    return max(map(len, words), default=0) >= MIN_RUN and _RUN_TOGETHER.search(text) is not None


def _ends_in_loop(text: str) -> bool:
    """Whether a text ends in a phrase of different letters, three times or more in a row."""
    last = _LAST_LETTER.search(text[-MAX_SEARCHED:])
    text = last.string[: last.end()].lower() if last else ""
    if text.count(text[-4:]) < 2:  # as in most texts
        return False
    for period in range(2, len(text) // 2):
        phrase = text[-period:]
        if text.endswith(phrase, 0, -period) and _weight(set(phrase)) >= MIN_DIFFERENT_LETTERS:
            times = max(MIN_TIMES, -(-MIN_LOOP // _weight(phrase)))
            first = next(index for index, char in enumerate(phrase) if char.isalpha())
            if text.endswith((phrase * times)[first:]):
                return True
    return False


def _ends_in_punctuation(text: str) -> bool:
    return text.rstrip().endswith(_FINAL_PUNCTUATION)


def _weight(characters: Iterable[str]) -> int:
    """Count letters, those of Chinese, Japanese and Korean twice."""
    return sum(1 + (char >= "\u2e80") for char in characters if char.isalpha())


def _find_other_languages(chunk: Chunk, profile: Profile, is_reported: Mask) -> Mask:
    """Report texts whose words are those of the other side; return their rows."""
    src, tgt = (profile.side_classifier.evidence(words) for words in chunk.words)
    swapped = (
        (src <= -MIN_LANGUAGE_NATS / 2)
        & (tgt >= MIN_LANGUAGE_NATS / 2)
        & (tgt - src >= 2 * MIN_LANGUAGE_NATS)
    )
    source = ~swapped & (src <= -MIN_LANGUAGE_NATS) & (tgt <= -MIN_LANGUAGE_NATS)
    target = ~swapped & (src >= MIN_LANGUAGE_NATS) & (tgt >= MIN_LANGUAGE_NATS)
    chunk.report("swapped", swapped & ~is_reported, ranks=src - tgt)
    chunk.report("other_language", source & ~is_reported, 0, ranks=src, detail="(source)")
    chunk.report("other_language", target & ~is_reported, 1, ranks=-tgt, detail="(target)")
    is_found: Mask = swapped | source | target
    nats = np.zeros(len(chunk))
    for row in np.flatnonzero(~(is_reported | is_found)).tolist():
        nats[row] = profile.copied_nats(chunk.texts[0][row], chunk.texts[1][row])
    chunk.report("other_language", nats < 0, 0, ranks=nats, detail="(part of the source)")
    chunk.report("other_language", nats > 0, 1, ranks=-nats, detail="(part of the target)")
    is_found |= nats != 0
    return is_found


def _find_third_languages(chunk: Chunk, profile: Profile, is_reported: Mask) -> Mask:
    """Report texts in the language of neither side; return their rows."""
    is_third = np.zeros(len(chunk), bool)
    for side, third in enumerate(profile.third_languages.get(chunk.findings.languages, ())):
        codes = np.array([third.language_of(text) for text in chunk.texts[side]], object)
        for code in sorted(set(codes) - {""}):
            rows = ~is_reported & (codes == code)
            detail = f"({('source', 'target')[side]}: {NAMES[code]})"
            chunk.report("third_language", rows, side, detail=detail)
            is_third |= rows
    return is_third


def _find_other_scripts(chunk: Chunk, profile: Profile, is_reported: Mask) -> Mask:
    """Report texts mostly in scripts that are not usual on their side; return their rows."""
    is_foreign = np.zeros(len(chunk), bool)
    for side, name in enumerate(("source", "target")):
        letters = chunk.letters[side]
        usual = profile.usual_scripts(side, chunk.findings.languages[side])
        foreign = [script for script in letters if script not in usual]
        if not usual or not foreign:
            continue
        counts = np.array([letters[script] for script in foreign])
        main, count = counts.argmax(0), counts.sum(0)
        is_latin = np.array([script == "LATIN" for script in foreign])[main]
        odd = ~is_reported & (count >= np.where(is_latin, MIN_FOREIGN_LATIN, MIN_LETTERS))
        odd &= 2 * count > sum(letters.values())
        for index, script in enumerate(foreign):
            detail = f"({name} texts mostly {script_name(script)})"
            ranks = -count.astype(float)
            chunk.report("script", odd & (main == index), side, ranks=ranks, detail=detail)
        is_foreign |= odd
    return is_foreign


def _find_text_faults(chunk: Chunk, profile: Profile) -> None:
    """Report faults of single texts."""
    for side, texts in enumerate(chunk.texts):
        language = chunk.findings.languages[side]
        is_rtl = text_direction(language) == "rtl"
        is_latin = profile.usual_scripts(side, language) == {"LATIN"}
        first: dict[str, NDArray[np.int64]] = {}  # position of each kind in each text, or -1
        for row, text in enumerate(texts):
            for kind, position in _faults(text, side, profile, is_rtl=is_rtl, is_latin=is_latin):
                if position is not None:
                    first.setdefault(kind, np.full(len(texts), -1))[row] = position
        for kind, positions in first.items():
            chunk.report(kind, positions >= 0, side, positions=positions)


def _faults(
    text: str, side: int, profile: Profile, *, is_rtl: bool, is_latin: bool
) -> Iterator[tuple[str, int | None]]:
    """Yield kinds of faults, and the position of the first of each in a text, or None. `is_rtl`:
    whether the language runs from right to left; `is_latin`: whether its letters are Latin only.
    """
    misread = None
    if not text.isascii():
        words = _PLACEHOLDER.sub(lambda match: " " * len(match[0]), text)
        misread = find_mojibake(text, words, is_latin=is_latin)
        yield "mojibake", misread
        yield "decomposed", _find_decomposed(text)
        yield "dotted", _find(_DOTTED, text)
        yield "presentation", _find(_PRESENTATION, text)
        yield "mixed_word", _find(_MIXED_WORD, words)
    if not text.isprintable() or _SEEMS_PRINTABLE.search(text):
        yield "control", _find(_CONTROL, text)
        yield "no_character", _find(_NO_CHARACTER, text)
        if misread is None:  # else they are letters
            yield "invisible", _find(_invisible(text, is_rtl=is_rtl), text)
            yield "no_break", _find_no_break(text)
    if any(mark in text for mark in ("\\", "=", "%", "+", "''", '""')):
        yield "escaped", _find(ESCAPED, text)
    if "- " in text or "\u2010 " in text:
        yield "divided", _find_divided_word(text, side, profile)
    if any(mark in text for mark in ("<", "&", ";", "-->", "{\\")):
        yield "markup", _find(MARKUP, text)
    yield "subwords", _find(SUBWORD_MARKS, text)


def _has_lost_letters(text: str) -> bool:
    """Whether letters seem to be replaced by question marks, as by a conversion to an encoding that
    lacks them.
    """
    count = text.count("?")
    if not count or "://" in text:
        return False
    is_most = count >= MIN_LOST and 2 * count > len("".join(text.split()))
    return is_most or _IN_WORD.search(text) is not None


def _invisible(text: str, *, is_rtl: bool) -> "regex.Pattern[str]":
    """Return the pattern of invisible characters that are odd in a text."""
    if _USES_ZERO_WIDTH_SPACE.search(text):
        return _INVISIBLE_BUT_SPACES
    return _INVISIBLE_BUT_JOINERS if is_rtl or _USES_JOINERS.search(text) else _INVISIBLE


def _find(pattern: "re.Pattern[str] | regex.Pattern[str]", text: str) -> int | None:
    match = pattern.search(text)
    return match.start() if match else None


def _find_no_break(text: str) -> int | None:
    """Find the first no-break or wide space between words that have more of these than others."""
    found = [match.start() for match in _NO_BREAK.finditer(text)]
    return found[0] if len(found) >= MIN_NO_BREAK and len(found) > text.count(" ") else None


def _find_divided_word(text: str, side: int, profile: Profile) -> int | None:
    """Find a word that is divided by a hyphen and a space. The joined word must not be rarer than
    its second part: "und" in "Vor- und Nachteile" is a word of its own.
    """
    for match in _DIVIDED.finditer(text):
        counts = profile.word_counts[side]
        joined = counts[(match[1] + match[2]).lower()]
        if joined and joined >= counts[match[2]]:
            return match.start()
    return None


def _find_decomposed(text: str) -> int | None:
    """Find a letter and its accent for which Unicode also has a single character."""
    pairs = (
        match for match in _DECOMPOSED.finditer(text) if len(normalize("NFC", match.group())) == 1
    )
    return next((match.start() for match in pairs), None)
