"""What looks wrong about translations, given their references: why a score may be low.

These checks compare strings in any language. What is normal is learned from the references of the
same set, and no check needs spaces between words.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from mtrain.corpus.lines import is_blank
from mtrain.corpus.markup import ENTITIES, SUBWORDS
from mtrain.corpus.misalignment import WINDOW, unrelated_windows
from mtrain.corpus.writing_systems import script_of, scripts_of
from mtrain.runtime.console import clipped

MAX_NAMED = 5  # lines that a note names
MIN_NORMAL = 10  # lines or letters; with fewer, nothing counts as normal
MIN_COPIED = 0.9  # similarity of a copy
MAX_SOURCES, MAX_EQUAL = 4, 0.02  # sources that may have one translation, and fraction of lines
SHORT, LONG = 0.8, 1.25  # length of all translations, relative to all references
MANY = 10  # one wrong line in this many is no longer a few
FOREIGN = 0.1  # fraction of a reference's letters below which a script is foreign
MAX_SEARCHED = 2000  # characters that are searched for loops

JAPANESE = scripts_of("ja")
UNKNOWN = re.compile(r"⁇|<unk>|\[UNK\]|\ufffd")
# A phrase of letters three times in a row, or a short one four times.
LOOP = re.compile(r"([^\W\d_].{7,79}?)\1{2,}|([^\W\d_].{1,6}?)\2{3,}")


@dataclass(frozen=True)
class Note:
    """Something that looks wrong: what, in how many of how many lines, the first of these, and what
    to do.
    """

    kind: str
    what: str
    lines: int
    of: int
    first: list[int]  # numbers of lines, from 1
    advice: str

    def __str__(self) -> str:
        places = ", ".join(map(str, self.first)) + (", ..." if self.lines > len(self.first) else "")
        where = f" (line {places})" if places else ""
        return f"{self.what}: {self.lines:,} of {self.of:,} lines{where}; {self.advice}"


class Line(NamedTuple):
    """A translation, its references, and its source, if known."""

    text: str
    references: tuple[str, ...]
    source: str | None


def _is_copied(line: Line) -> bool:
    """Whether the translation is the source, and no reference is."""
    if line.source is None or sum(map(str.isalpha, line.source)) < MIN_NORMAL:
        return False
    return _is_near(line.source, line.text) and not any(
        _is_near(line.source, text) for text in line.references
    )


def _is_near(*texts: str) -> bool:
    """Whether two texts have nearly all threes of characters in common, without spaces and case."""
    joined = ("".join(text.lower().split()) for text in texts)
    one, other = ({text[i : i + 3] for i in range(max(1, len(text) - 2))} for text in joined)
    return 2 * len(one & other) >= MIN_COPIED * (len(one) + len(other))


def _loop(text: str) -> object:
    return LOOP.search(text[-MAX_SEARCHED:])


def _is_foreign(line: Line) -> bool:
    """Whether most letters are of a script that the references hardly have."""
    own, theirs = _scripts(line.text), _scripts(*line.references)
    return any(
        count > max(2, own.total() / 2) and theirs[script] < FOREIGN * theirs.total()
        for script, count in own.most_common(1)
    )


def _scripts(*texts: str) -> Counter[str]:
    """Count the letters of each script; Japanese mixes Han and Kana."""
    scripts = map(script_of, filter(str.isalpha, "".join(texts)))
    return Counter("HAN OR KANA" if script in JAPANESE else script for script in scripts if script)


def _is_lower(text: str) -> bool:
    """Whether most letters are in lower case, and none is a capital."""
    return text == text.lower() and 2 * sum(map(str.islower, text)) > sum(map(str.isalpha, text))


def _only(has: Callable[[str], object]) -> Callable[[Line], bool]:
    """Whether the translation has a property, and no reference has it."""
    return lambda line: bool(has(line.text)) and not any(map(has, line.references))


# Faults of single lines: kind, what, what to do, and of what fraction of the lines to report them.
CHECKS: tuple[tuple[str, str, str, Callable[[Line], bool], float], ...] = (
    ("empty", "empty translations", "does the model end at once?", _only(is_blank), 0),
    ("copied", "copies of the source", "are file and language right?", _is_copied, 0.02),
    ("loops", "a phrase repeated over and over", "train for longer", _only(_loop), 0.005),
    ("script", "another script than the references'", "is it the right file?", _is_foreign, 0.02),
    ("subword", "marks of subwords (@@, ▁)", "join the pieces", _only(SUBWORDS.search), 0.03),
    ("escapes", "escapes such as &quot;", "unescape them", _only(ENTITIES.search), 0.03),
    ("unknown", "unknown pieces (⁇, <unk>)", "set byte_fallback", _only(UNKNOWN.search), 0.03),
    ("case", "lower case, unlike the references", "score with --lowercase", _only(_is_lower), 0.2),
)


def explain(
    hypotheses: list[str], references: list[list[str]], sources: list[str], lowercase: bool = False
) -> list[Note]:
    """Return what looks wrong about translations; for those of a good system, nothing. Where most
    faults may follow from it, one translation of many sources is reported alone.
    """
    by_line = list(zip(*references, strict=True))
    lines = list(map(Line, hypotheses, by_line, sources or repeat(None)))
    notes = list(_same(lines))
    if notes and _are_many(notes[0]):
        return notes
    for kind, what, advice, has_fault, fraction in CHECKS[:-1] if lowercase else CHECKS:
        places = [i for i, line in enumerate(lines) if has_fault(line)]
        if len(places) > fraction * len(lines):
            notes.append(_note(lines, kind, what, places, advice))
    notes += _length(lines)
    return notes if any(map(_are_many, notes)) else [*_order(lines), *notes]


def judge(notes: list[Note]) -> str:
    """Return a sentence on the notes about translations of a validation set."""
    if not notes:
        return "Nothing looks wrong with the translations of the validation set."
    what = "Something looks" if _are_many(notes[0]) else "A few lines look"
    text = f"{what} wrong: {notes[0]}"
    return text if text.endswith("?") else f"{text}."


def _are_many(note: Note) -> bool:
    return MANY * note.lines >= note.of


def _note(lines: list[Line], kind: str, what: str, places: list[int], advice: str) -> Note:
    """Make a note on lines, which are counted from 0."""
    first = [place + 1 for place in places[:MAX_NAMED]]
    return Note(kind, what, len(places), len(lines), first, advice)


def _same(lines: list[Line]) -> Iterator[Note]:
    """Find one translation of many sources; references stand for unknown sources."""
    by_text: defaultdict[str, list[int]] = defaultdict(list)
    for i, line in enumerate(lines):
        if not is_blank(line.text):
            by_text[line.text.strip()].append(i)
    repeated: dict[str, list[int]] = {}
    for text, found in by_text.items():
        wrong = [lines[i] for i in found if text not in lines[i].references]
        sources = {(line.source or " ".join(line.references)).strip() for line in wrong}
        if len(sources) > MAX_SOURCES:
            repeated[text] = found
    places = list(chain(*repeated.values()))
    if len(places) > MAX_EQUAL * len(lines):
        most = max(repeated, key=lambda text: len(repeated[text]))
        shown = clipped(most, 60).strip()
        what = f"the same translation of different sources (most often: {shown})"
        note = _note(lines, "same", what, sorted(places), "the model ignores parts of the source")
        hopeless = replace(note, advice="the model has hardly learned, or ignores the source")
        yield hopeless if _are_many(note) else note


def _order(lines: list[Line]) -> Iterator[Note]:
    """Find translations that are not in the order of any references, by their lengths."""
    own = np.array([len(line.text) for line in lines])
    others = np.array([list(map(len, line.references)) for line in lines]).T
    found = [set(unrelated_windows(np.stack((own, lengths), 1))) for lengths in others]
    if found and (starts := sorted(set.intersection(*found))):
        what = "lengths that do not correlate with the references'"
        count = min(len(lines), WINDOW * len(starts))
        first = [start + 1 for start in starts[:MAX_NAMED]]
        advice = "are the lines of this set, and in its order?"
        yield Note("order", what, count, len(lines), first, advice)


def _length(lines: list[Line]) -> Iterator[Note]:
    """Find translations much shorter or longer than the references, lines without text aside."""
    lengths = []
    for i, line in enumerate(lines):
        own, *others = (len("".join(text.split())) for text in (line.text, *line.references))
        if own and any(others):
            lengths.append((i, own, min(others, key=lambda length: abs(length - own))))
    ratio = sum(own for _, own, _ in lengths) / max(1, sum(length for _, _, length in lengths))
    if len(lengths) < MIN_NORMAL or SHORT <= ratio <= LONG:
        return
    places = [i for i, own, of in lengths if (own < SHORT * of if ratio < 1 else own > LONG * of)]
    kind, change = ("short", "raise") if ratio < 1 else ("long", "lower")
    what = f"too {kind}, {ratio:.2f} of the references' length"
    yield _note(lines, kind, what, places, f"{change} decode.length_penalty, and look at the lines")
