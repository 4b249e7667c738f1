"""Notes on faults of translations that may explain a low score, such as copies or loops.

The checks compare translations with their references. They work in any language, with or without
spaces between words. A property that the references have, too, is not a fault.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import NamedTuple
from unicodedata import is_normalized, normalize

import numpy as np
import regex

from mtrain.corpus.lines import is_blank
from mtrain.corpus.markup import ENTITIES, SUBWORDS
from mtrain.corpus.misalignment import unrelated_windows
from mtrain.corpus.writing_systems import script_of, scripts_of
from mtrain.runtime.console import cut_to_width

MAX_NAMED = 5  # lines that a note lists
MIN_LINES = 10  # with text, to compare lengths
MIN_LETTERS = 10  # of a source, to call its translation a copy
MIN_COPIED = 0.9  # fraction of trigrams that a copy shares with the source
MAX_SOURCES = 4  # sources that may have the same translation
MAX_EQUAL = 0.02  # fraction of lines that may share their translation with more sources
SHORT, LONG = 0.8, 1.25  # limits of the length of all translations relative to all references
MANY = 10  # a fault in one of 10 lines, or more often, is more than "a few lines"
FOREIGN = 0.1  # fraction of the references' letters below which a script is foreign
MAX_SEARCHED = 2000  # last characters of a line that are searched for loops

JAPANESE = scripts_of("ja")
UNK = re.compile(r"⁇|<unk>|\[UNK\]")
INCOMPLETE = re.compile("\ufffd")  # for bytes that are no character
SPACED = re.compile(r"\s\.\s*$")
# Letters with marks, as in Bengali, Hindi and Hebrew, that have a single character, but consist of
# separate characters in NFC as in NFD; most Bengali text contains the single characters.
APART = {
    code: normalize("NFC", chr(code))
    for code in range(0x900, 0xFB50)
    if len(normalize("NFC", chr(code))) > 1
}
HAS_APART = re.compile("|".join(APART.values()))
# More marks than a letter has: normalization takes quadratic time in their number.
MANY_MARKS = regex.compile(r"(\p{M}{20})\p{M}+")
# A phrase of 8 to 80 characters three times in a row, or of 2 to 7 characters four times.
LOOP = re.compile(r"([^\W\d_].{7,79}?)\1{2,}|([^\W\d_].{1,6}?)\2{3,}")


@dataclass(frozen=True)
class Note:
    """A fault in `lines` of `of` translations: its description, first line numbers, and advice."""

    kind: str
    what: str
    lines: int
    of: int
    first: list[int]  # line numbers, from 1
    advice: str

    def __str__(self) -> str:
        more = ", ..." if self.lines > len(self.first) else ""
        label = "line" if self.lines == 1 else "lines"
        where = f" ({label} {', '.join(map(str, self.first))}{more})" if self.first else ""
        return f"{self.what}: {self.lines:,} of {self.of:,} lines{where}; {self.advice}"


class Line(NamedTuple):
    """A translation, its references, and its source, if given."""

    text: str
    references: tuple[str, ...]
    source: str | None


def _is_copied(line: Line) -> bool:
    """Whether the translation is a copy of the source, and no reference is."""
    if line.source is None or sum(map(str.isalpha, line.source)) < MIN_LETTERS:
        return False
    return _is_copy(line.text, line.source) and not any(
        _is_copy(reference, line.source) for reference in line.references
    )


def _is_copy(text: str, source: str) -> bool:
    """Whether two texts share nearly all character trigrams (Dice), ignoring spaces and case."""
    a, b = _trigrams(text), _trigrams(source)
    return 2 * len(a & b) >= MIN_COPIED * (len(a) + len(b))


def _trigrams(text: str) -> set[str]:
    text = "".join(text.lower().split())
    return {text[i : i + 3] for i in range(len(text) - 2)}


def _has_loop(text: str) -> bool:
    """Whether a phrase is repeated over and over near the end of a text."""
    return LOOP.search(text[-MAX_SEARCHED:]) is not None


def _is_foreign(line: Line) -> bool:
    """Whether most letters are of a script that the references hardly use."""
    letters, expected = _scripts(line.text), _scripts(*line.references)
    if not letters:
        return False
    script, count = letters.most_common(1)[0]
    is_main = count > max(2, letters.total() / 2)
    return is_main and expected[script] < FOREIGN * expected.total()


def _scripts(*texts: str) -> Counter[str]:
    """Count the letters of each script; Han and Kana are one script, as Japanese mixes them."""
    scripts = map(script_of, filter(str.isalpha, "".join(texts)))
    return Counter("HAN OR KANA" if script in JAPANESE else script for script in scripts if script)


def _is_lower(text: str) -> bool:
    """Whether most letters are in lower case, and none is a capital."""
    return text == text.lower() and 2 * sum(map(str.islower, text)) > sum(map(str.isalpha, text))


def _has_other_form(line: Line) -> bool:
    """Whether accents are single characters with their letters in the translation (NFC), and
    separate ones in the references (NFD), or the other way round.
    """
    forms = zip(*map(_forms, line.references), strict=True)
    return any(
        bool(set(expected) - {""}) and form not in {"", *expected}
        for form, expected in zip(_forms(line.text), forms, strict=True)
    )


def _forms(text: str) -> tuple[str, str]:
    """Return the Unicode normalization form of a text's accents, and whether letters of `APART`
    are single characters; each is empty if the text has no such letters.
    """
    if text.isascii():
        return "", ""
    apart = text.translate(APART)  # without these letters, only accents decide
    accents = "" if is_normalized("NFD", apart) else "NFC"
    accents = accents if is_normalized("NFC", apart) else "NFD"
    if apart != text:
        return accents, "single"
    return accents, "apart" if HAS_APART.search(text) else ""


def _only(has: Callable[[str], object]) -> Callable[[Line], bool]:
    """Return a check that the translation has a property and no reference has it."""
    return lambda line: bool(has(line.text)) and not any(map(has, line.references))


TRAIN_OR_CHECK = "check the file; a model may need more training"
MORE_TRAINING = "the model may need more training"
TO_NFC = "normalize them, the references and the training text to NFC"
# Faults of lines: kind, description, advice, check, and the fraction of lines above which they are
# reported.
CHECKS: tuple[tuple[str, str, str, Callable[[Line], bool], float], ...] = (
    ("empty", "empty translations", MORE_TRAINING, _only(is_blank), 0),
    ("copied", "copies of the source", TRAIN_OR_CHECK, _is_copied, 0.02),
    ("loops", "a phrase repeated over and over", MORE_TRAINING, _only(_has_loop), 0.005),
    ("script", "text in a different script from the references", TRAIN_OR_CHECK, _is_foreign, 0.02),
    ("subword", "subword marks (@@, ▁)", "join the pieces", _only(SUBWORDS.search), 0.03),
    ("tokenized", "a space before the final period", "detokenize", _only(SPACED.search), 0.03),
    ("escapes", "HTML entities such as &quot;", "unescape them", _only(ENTITIES.search), 0.03),
    ("unknown", "unknown pieces (⁇ <unk>)", "set tokenizer.byte_fallback", _only(UNK.search), 0.03),
    ("bytes", "incomplete characters (\ufffd)", TRAIN_OR_CHECK, _only(INCOMPLETE.search), 0.03),
    ("form", "Unicode form (NFC, NFD) unlike the references", TO_NFC, _has_other_form, 0.03),
    ("case", "lower case, unlike the references", "score with --lowercase", _only(_is_lower), 0.2),
)


def find_faults(
    hypotheses: list[str], references: list[list[str]], sources: list[str], lowercase: bool = False
) -> list[Note]:
    """Return notes on the faults of translations; good translations get none.

    If many sources have the same translation, this is the only note, because it causes most others.
    """
    by_line = list(zip(*(map(_without_many_marks, texts) for texts in references), strict=True))
    hypotheses = list(map(_without_many_marks, hypotheses))
    lines = list(map(Line, hypotheses, by_line, sources or repeat(None)))
    notes = list(_same_translations(lines))
    if notes and _is_frequent(notes[0]):
        return notes
    for kind, what, advice, has_fault, fraction in CHECKS:
        if kind == "case" and lowercase:
            continue
        indices = [i for i, line in enumerate(lines) if has_fault(line)]
        if len(indices) > fraction * len(lines):
            notes.append(_note(lines, kind, what, indices, advice))
    notes += _wrong_length(lines)
    return notes if any(map(_is_frequent, notes)) else [*_unrelated_lengths(lines), *notes]


def _without_many_marks(text: str) -> str:
    return text if text.isascii() else MANY_MARKS.sub(r"\1", text)


def summary(notes: list[Note]) -> str:
    """Return a sentence that sums up the notes on the translations of a validation set."""
    if not notes:
        return "Nothing looks wrong with the translations of the validation set."
    what = "Something looks" if _is_frequent(notes[0]) else "A few lines look"
    return f"{what} wrong: {notes[0]}."


def _is_frequent(note: Note) -> bool:
    return MANY * note.lines >= note.of


def _note(lines: list[Line], kind: str, what: str, indices: list[int], advice: str) -> Note:
    """Return a note on the lines with these indices."""
    first = [index + 1 for index in indices[:MAX_NAMED]]
    return Note(kind, what, len(indices), len(lines), first, advice)


def _same_translations(lines: list[Line]) -> Iterator[Note]:
    """Find translations that many sources share, or many references if there are no sources."""
    by_text: defaultdict[str, list[int]] = defaultdict(list)
    for i, line in enumerate(lines):
        if not is_blank(line.text):
            by_text[line.text.strip()].append(i)
    repeated: dict[str, list[int]] = {}
    for text, indices in by_text.items():
        wrong = [lines[i] for i in indices if text not in map(str.strip, lines[i].references)]
        sources = {(line.source or " ".join(line.references)).strip() for line in wrong}
        if len(sources) > MAX_SOURCES:
            repeated[text] = indices
    indices = sorted(chain(*repeated.values()))
    if len(indices) > MAX_EQUAL * len(lines):
        most_common = max(repeated, key=lambda text: len(repeated[text]))
        shown = cut_to_width(most_common, 60)
        texts = "sources" if any(line.source for line in lines) else "references"
        what = f"the same translation for different {texts} (most often: {shown})"
        note = _note(lines, "same", what, indices, "the model ignores parts of the source")
        if _is_frequent(note):
            note = replace(note, advice="the model has hardly learned, or ignores the source")
        yield note


def _unrelated_lengths(lines: list[Line]) -> Iterator[Note]:
    """Find windows of lines whose lengths do not correlate with those of any reference file."""
    lengths = np.array([len(line.text) for line in lines])
    ref_lengths = np.array([list(map(len, line.references)) for line in lines]).T
    windows = [set(unrelated_windows(np.stack((lengths, ref), 1))) for ref in ref_lengths]
    unrelated = sorted(set.intersection(*windows)) if windows else []
    if unrelated:
        what = "lengths that do not correlate with the references'"
        count = len({line for window in unrelated for line in range(*window)})  # they may overlap
        first = [start + 1 for start, _ in unrelated[:MAX_NAMED]]
        advice = "check that both files have the same lines in the same order"
        yield Note("order", what, count, len(lines), first, advice)


def _wrong_length(lines: list[Line]) -> Iterator[Note]:
    """Find translations much shorter or longer than the references; skip lines without text."""
    # line index, length of the translation, length of the closest reference
    lengths = []
    for i, line in enumerate(lines):
        texts = (normalize("NFC", "".join(text.split())) for text in (line.text, *line.references))
        length, *others = map(len, texts)
        if length and any(others):
            closest = min(others, key=lambda other: abs(other - length))
            lengths.append((i, length, closest))
    ratio = sum(length for _, length, _ in lengths) / max(1, sum(ref for _, _, ref in lengths))
    if len(lengths) < MIN_LINES or SHORT <= ratio <= LONG:
        return
    if ratio < 1:
        kind, change = "short", "raise"
        indices = [i for i, length, ref in lengths if length < SHORT * ref]
    else:
        kind, change = "long", "lower"
        indices = [i for i, length, ref in lengths if length > LONG * ref]
    what = f"too {kind}, {ratio:.2f} of the references' length"
    advice = f"look at the lines; {change} decode.length_penalty of a beam search"
    yield _note(lines, kind, what, indices, advice)
