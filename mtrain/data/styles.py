"""Find text that was prepared differently from the other training text: tokenized, lower-cased,
in another script, in quotes, numbered or without final punctuation among plain text, or the other
way round.

A scored set is compared with all training text of its language. In the training text itself, a
part is found: consecutive texts, perhaps of several corpora, that differ from all others.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import regex
from numpy.typing import NDArray

from mtrain.corpus.markup import is_quoted

COMMON, RARE = 0.5, 0.05  # fractions of texts
MIN_STYLED, MAX_STYLED = 50, 2000  # texts of a language to compare; about as many are looked at
MIN_PART = 200  # texts of a part; messages of one program may have fewer capital letters
MIN_ROWS = 20  # of a corpus in a part; fewer at its ends may fit by chance
MIN_WORDS = 4  # of a text that should have a capital letter
# Chinese characters of a text that should have spaces between words if others have, and how many of
# them a word may have: subtitles have spaces in place of commas.
MIN_HAN, MAX_HAN_WORD = 8, 4
# What a text adds to the score of a part if it has the style of the part, or not: the logarithm of
# how much likelier that is at the fraction 1 - RARE than at COMMON.
FITS, DIFFERS = math.log((1 - RARE) / COMMON), math.log(RARE / COMMON)
# Not the commas and periods of Arabic and of the scripts of India: many writers put spaces before
# these in plain text. A word may end in an accent or a vowel sign.
SPACE_BEFORE_MARK = regex.compile(r" [,.\u3001\u3002\uff0c](?!\S)(?<=[\w\p{M}]..)")
MARK = regex.compile(r"[,.\u3001\u3002\uff0c](?!\S)(?<=[\w\p{M}] ?.)")
# Georgian letters count as lower case, but sentences do not begin with their capital letters.
_SENTENCE_END = regex.compile(
    r"(?!\p{Georgian})[\p{Lu}\p{Ll}]\p{M}*\s?\p{Sentence_Terminal}[\p{P}\s]*\Z"
)
# Also an ellipsis, and marks of Greek, Tibetan and Sinhala that lack the property. Searched from
# the end.
_FINAL_MARK = regex.compile(r"(?r)[\p{Sentence_Terminal}\u2026;\u037e\u0f0d\u0df4][\p{P}\s]*\Z")
_MAX_END = 20  # last characters of a text, in which the end of a sentence is looked for
_SPACE_IN_HAN = regex.compile(r"\p{Han} (?=\p{Han})")
_HAN = regex.compile(r"\p{Han}")
_NUMBER = re.compile(r"\s{0,9}\d")
_WIDE = "\uff10-\uff19\uff21-\uff3a\uff41-\uff5a"
_FULL_WIDTH, _LATIN_OR_DIGIT = re.compile(f"[{_WIDE}]"), re.compile(f"[0-9A-Za-z{_WIDE}]")
# Not letters that several scripts use, such as the apostrophe of Uzbek.
_OTHER_THAN_LATIN = regex.compile(r"(?V1)[\p{L}--[\p{Latin}\p{Common}]]")

Languages = tuple[str, str]  # of source and target
Sides = tuple[Sequence[str], Sequence[str]]  # texts of both sides
Text = tuple[str, str]  # with the text of the other side
Owner = TypeVar("Owner")  # a corpus
Row = tuple[tuple[Owner, int], int, Text]  # corpus and side, number, text
Flags = NDArray[np.bool_]


class Style(NamedTuple):
    """A feature that most texts of a language have, or nearly none. Parts are compared by their
    relevant texts alone, which have the feature if their part does; scored sets, too, if there is
    a `condition`, which describes the relevant texts in a message.
    """

    has: Callable[[str], object]
    is_relevant: Callable[[str, str], object]  # given the text of the other side, too
    condition: str = ""
    advice: str = "best as plain text"


class OddPart(NamedTuple, Generic[Owner]):
    """Rows `first` to `last` of a corpus, whose texts on a side are prepared differently."""

    owner: Owner
    side: int
    first: int
    last: int
    message: str


def _is_sentence(text: str, other: str) -> bool:
    """Whether a text ends as a sentence, in a script that has capital letters."""
    return text.count(" ") >= MIN_WORDS - 1 and bool(_SENTENCE_END.search(text[-_MAX_END:]))


def _has_only_capitals(text: str) -> bool:
    """Whether a text of three words or more has capital letters and no others."""
    return text.count(" ") > 1 and text == text.upper() != text.lower()


def _has_spaces_in_han(text: str) -> bool:
    """Whether a text has spaces between its Chinese words, as if it were tokenized."""
    spaces = len(_SPACE_IN_HAN.findall(text))
    return spaces > 0 and MAX_HAN_WORD * spaces >= len(_HAN.findall(text))


@cache
def _han_form(character: str) -> int:
    """Return 1 for a character of traditional Chinese text that simplified text lacks, -1 for one
    of simplified text alone, else 0, by the legacy encodings of both.
    """
    traditional, simplified = (len(character.encode(code, "ignore")) for code in ("big5", "gb2312"))
    return int(traditional > 0) - int(simplified > 0)


def _han_forms(text: str) -> int:
    """Return how many more characters of a text are traditional than simplified."""
    return sum(map(_han_form, _HAN.findall(text)))


def _has_final_mark(text: str) -> bool:
    return _FINAL_MARK.search(text[-_MAX_END:]) is not None


STYLES = {
    "spaces before commas or periods": Style(
        SPACE_BEFORE_MARK.search, lambda text, other: MARK.search(text)
    ),
    "spaces between Chinese characters": Style(
        _has_spaces_in_han, lambda text, other: len(_HAN.findall(text)) >= MIN_HAN
    ),
    "traditional Chinese characters": Style(
        lambda text: _han_forms(text) > 0,
        lambda text, other: _han_forms(text) != 0,
        advice="in one script",
    ),
    "full-width letters or digits": Style(
        _FULL_WIDTH.search,
        lambda text, other: _LATIN_OR_DIGIT.search(text),
        condition=" with Latin letters or digits",
    ),
    # in parts, names and commands may be in Latin letters
    "letters that are not Latin": Style(
        _OTHER_THAN_LATIN.search, lambda text, other: False, advice="in one script"
    ),
    "capital letters": Style(lambda text: text != text.lower(), _is_sentence),
    "capital letters only": Style(_has_only_capitals, _is_sentence),
    "double quotes around them": Style(is_quoted, lambda text, other: True),
    "a number at the beginning": Style(_NUMBER.match, lambda text, other: True),
    "such a mark": Style(
        _has_final_mark,
        lambda text, other: _has_final_mark(other),
        condition=" whose other side ends in a mark such as . ! ?",
        advice="with these marks",
    ),
}


def _group(languages: Languages, side: int) -> tuple[str, int]:
    """Return what the texts of a side are compared with: all texts of the language; if both sides
    have the same language, as in text to restore capital letters, those of the same side.
    """
    return languages[side], side * (languages[0] == languages[1])


def grouped_texts(parts: Iterable[tuple[Languages, Sides]]) -> dict[tuple[str, int], list[Text]]:
    """Return the texts of all parts that are to be prepared alike, by language and side."""
    result = defaultdict[tuple[str, int], list[Text]](list)
    for languages, sides in parts:
        for side in (0, 1):
            result[_group(languages, side)] += _texts_of(sides, side)
    return result


def _texts_of(sides: Sides, side: int) -> Iterator[Text]:
    """Return the texts of a side, each with that of the other side."""
    return zip(sides[side], sides[1 - side], strict=True)


def style_differences(
    training: Mapping[tuple[str, int], Sequence[Text]], languages: Languages, sides: Sides
) -> Iterator[str]:
    """Yield a message for each side of a scored set that is prepared differently from the
    training texts of its language; `training` is what `grouped_texts` returns.
    """
    for side, name in enumerate(("sources", "targets")):
        texts = list(_texts_of(sides, side))
        known = training.get(_group(languages, side), ())
        for name_of_style, style in STYLES.items():
            here, there = _fraction(texts, style), _fraction(known, style)
            if min(here, there) <= RARE and max(here, there) >= COMMON:
                yield (
                    f"{here:.0%} of the {name}{style.condition} have {name_of_style}, "
                    f"against {there:.0%} of the training texts in {languages[side]}; "
                    f"prepare both alike, {style.advice}"
                )


def _fraction(texts: Sequence[Text], style: Style) -> float:
    """Return the fraction of texts that have a style, from evenly spaced ones; NaN if there are
    too few.
    """
    if style.condition:
        texts = [each for each in texts if style.is_relevant(*each)]
    looked_at = texts[:: max(1, len(texts) // MAX_STYLED)]
    if len(looked_at) < MIN_STYLED:
        return math.nan
    return sum(bool(style.has(text)) for text, _ in looked_at) / len(looked_at)


def odd_parts(
    corpora: Iterable[tuple[Owner, Languages, Sequence[int], Sides]],
) -> Iterator[OddPart[Owner]]:
    """Yield the parts of the training text that are prepared differently from the other training
    texts of their language, which are at least as many. Each corpus has the numbers of its rows.
    """
    groups = defaultdict[tuple[str, int], list[Row[Owner]]](list)
    for owner, languages, numbers, sides in corpora:
        for side in (0, 1):
            rows = zip(numbers, _texts_of(sides, side), strict=True)
            group = groups[_group(languages, side)]
            group += [((owner, side), number, text) for number, text in rows]
    for (language, _), all_rows in groups.items():
        for name, style, relevant in _by_style(all_rows):
            has_style = np.array([bool(style.has(text)) for _, _, (text, _) in relevant], bool)
            for part, rest in _parts_of(has_style):
                here = has_style[part].mean()
                for (owner, side), own_rows in groupby(relevant[part], itemgetter(0)):
                    numbers = [number for _, number, _ in own_rows]
                    if len(numbers) < MIN_ROWS:
                        continue
                    message = (
                        f"{here:.0%} of the {('sources', 'targets')[side]}{style.condition} have "
                        f"{name}, against {rest:.0%} of the other training texts in {language}; "
                        f"prepare them alike, {style.advice}"
                    )
                    yield OddPart(owner, side, numbers[0], numbers[-1], message)


def _by_style(rows: list[Row[Owner]]) -> Iterator[tuple[str, Style, list[Row[Owner]]]]:
    """Yield the name of each style, the style, and the rows whose texts are relevant for it."""
    for is_relevant, styles in groupby(STYLES.items(), lambda item: item[1].is_relevant):
        relevant = [row for row in rows if is_relevant(*row[2])]
        for name, style in styles:
            yield name, style, relevant


def _parts_of(has_style: Flags) -> list[tuple[slice, float]]:
    """Return the parts of consecutive texts, at most half of all, of which nearly none has a style
    that is common elsewhere, or nearly all have one that is rare; and its fraction elsewhere.
    """
    for is_usual in (True, False):
        parts = _consistent_parts(has_style != is_usual)
        is_rest = np.ones(len(has_style), bool)
        for part in parts:
            is_rest[part] = False
        if parts and 2 * is_rest.sum() >= len(has_style):
            fraction = float(has_style[is_rest].mean())
            is_clear = fraction >= COMMON if is_usual else fraction <= RARE
            if is_clear:
                return [(part, fraction) for part in parts]
    return []


def _consistent_parts(fits: Flags) -> list[slice]:
    """Return the parts of at least `MIN_PART` consecutive texts of which nearly all fit, the
    clearest first.
    """
    parts = list[slice]()
    scores: NDArray[np.float64] = np.where(fits, FITS, DIFFERS)
    while True:
        sums = np.append(0, scores.cumsum())
        end = int((sums - np.minimum.accumulate(sums)).argmax())
        start = int(sums[: end + 1].argmin())
        if end - start < MIN_PART:
            return parts
        if fits[start:end].mean() >= 1 - RARE:
            parts.append(slice(start, end))
        scores[start:end] = DIFFERS
