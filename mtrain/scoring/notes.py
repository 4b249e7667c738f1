"""What looks wrong about translations, given their references: why a score may be low.

These checks compare strings in any language. What is normal is learned from the references of the
same set, and no check needs spaces between words.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from typing import Any, NamedTuple

from mtrain.corpus.lines import is_blank
from mtrain.corpus.markup import ENTITIES, HYPHENS, SUBWORDS
from mtrain.corpus.writing_systems import script_of, scripts_of

MOST_NAMED = 5  # lines that a note names
FEWEST = 10  # lines or letters; with fewer, nothing counts as normal
NEARLY = 0.9  # similarity of a copy
SHARED, SAME = 4, 0.02  # sources that may have one translation, and fraction of lines
SHORT, LONG = 0.8, 1.25  # length of all translations, relative to all references
FOREIGN = 0.1  # fraction of a reference's letters below which a script is foreign
LONGEST = 2000  # characters that are searched for loops
MARKED, TIMES = 0.03, 5  # fraction of lines with a mark, and how many times that of the other side
WINDOW, FURTHEST = 50, 3  # lines in a window, and the largest shift
BETTER, ADVANTAGE = 1.5, 0.05  # similarity of shifted lines, relative to unshifted ones

JAPANESE = scripts_of("ja")
UNKNOWN = re.compile(r"⁇|<unk>|\[UNK\]|\ufffd")
# A phrase of letters three times in a row, or a short one four times.
LOOP = re.compile(r"([^\W\d_].{7,79}?)\1{2,}|([^\W\d_].{1,6}?)\2{3,}")
TOKENIZED = re.compile(
    r" [,.](?=\s|$)| [,。、，]|\w (?:n't|'(?:s|re|ve|ll|m|d))\b|[぀-ヿ㐀-鿿] [぀-ヿ㐀-鿿]"
)


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

    def as_json(self) -> dict[str, Any]:
        """Return an item of `notes` in `mtrain eval --json`."""
        return asdict(self)

    def __str__(self) -> str:
        places = ", ".join(map(str, self.first)) + (", ..." if self.lines > len(self.first) else "")
        where = f" (line {places})" if places else ""
        return f"{self.what}: {self.lines:,} of {self.of:,} lines{where}; {self.advice}"


class Line(NamedTuple):
    """A translation, its references, and its source, if known."""

    text: str
    references: tuple[str, ...]
    source: str | None


class Check(NamedTuple):
    """A fault of single lines, reported of more than `least` lines and this fraction of all."""

    kind: str
    what: str
    advice: str
    has_fault: Callable[[Line], bool]
    fraction: float = 0.02
    least: int = 1


class Mark(NamedTuple):
    """A property of text that was prepared for a model, reported where only one side has it."""

    kind: str
    what: str
    advice: str
    is_in: Callable[[str], object]


def _is_empty(line: Line) -> bool:
    return is_blank(line.text) and not all(map(is_blank, line.references))


def _lacks_reference(line: Line) -> bool:
    return not is_blank(line.text) and all(map(is_blank, line.references))


def _is_copied(line: Line) -> bool:
    """Whether the translation is the source, and no reference is."""
    if line.source is None or sum(map(str.isalpha, line.source)) < FEWEST:
        return False
    own = _grams(line.source)
    if _similarity(own, _grams(line.text)) < NEARLY:
        return False
    return all(_similarity(own, _grams(text)) < NEARLY for text in line.references)


def _loops(line: Line) -> bool:
    """Whether the end of the translation repeats itself, and that of no reference does."""
    ends = (text[-LONGEST:] for text in line.references)
    return bool(LOOP.search(line.text[-LONGEST:])) and not any(map(LOOP.search, ends))


def _is_in_other_script(line: Line) -> bool:
    """Whether most letters are of a script that the references hardly have."""
    own, theirs = _scripts(line.text), _scripts(*line.references)
    return any(
        count > max(2, own.total() / 2) and theirs[script] < FOREIGN * theirs.total()
        for script, count in own.most_common(1)
    )


def _is_lower(text: str) -> bool:
    """Whether most letters are in lower case, and none is a capital."""
    return text == text.lower() and 2 * sum(map(str.islower, text)) > sum(map(str.isalpha, text))


def _scripts(*texts: str) -> Counter[str]:
    """Count the letters of each script; Japanese mixes Han and Kana."""
    scripts = map(script_of, filter(str.isalpha, "".join(texts)))
    return Counter("HAN OR KANA" if script in JAPANESE else script for script in scripts if script)


CHECKS = (
    Check("empty", "empty translations", "does the model end at once?", _is_empty, 0.0, 0),
    Check("no reference", "empty references", "leave these lines out", _lacks_reference, 0.0, 0),
    Check(
        "copied",
        "translations copied from the source",
        "check file and language; if they are right, look for untranslated training pairs",
        _is_copied,
    ),
    Check(
        "loops",
        "a phrase repeated over and over",
        "train for longer, use a beam, or lower decode.max_len_a and max_len_b",
        _loops,
        0.005,
        0,
    ),
    Check(
        "script",
        "written in another script than the references",
        "is this the right file and language?",
        _is_in_other_script,
    ),
)
MARKS = (
    Mark("subword", "marks of subwords (@@, ▁)", "join the pieces", SUBWORDS.search),
    Mark("hyphens", "tokens such as @-@", "undo the tokenization", HYPHENS.search),
    Mark("escapes", "escapes such as &quot;", "turn them into characters", ENTITIES.search),
    Mark("tokenized", "spaces before commas and n't", "undo the tokenization", TOKENIZED.search),
    Mark("unknown", "unknown pieces (⁇, <unk>)", "train with byte_fallback: true", UNKNOWN.search),
    Mark("case", "lower case", "score with --lowercase, or bring the capitals back", _is_lower),
)


def explain(
    hypotheses: list[str], references: list[list[str]], sources: list[str], lowercase: bool = False
) -> list[Note]:
    """Return what looks wrong about translations; for those of a good system, nothing."""
    by_line = list(zip(*references, strict=True))
    lines = list(map(Line, hypotheses, by_line, sources or repeat(None)))
    notes = list(_slipped(lines))
    has_slipped = bool(notes)
    notes += _of_lines(lines, CHECKS[:-1] if has_slipped else CHECKS)
    notes += [*_same(lines), *_marks(lines, MARKS[:-1] if lowercase else MARKS)]
    if not has_slipped:
        notes += _length(lines)
    return notes


def _note(lines: list[Line], kind: str, what: str, places: list[int], advice: str) -> Note:
    """Make a note on lines, which are counted from 0."""
    first = [place + 1 for place in places[:MOST_NAMED]]
    return Note(kind, what, len(places), len(lines), first, advice)


def _of_lines(lines: list[Line], checks: Iterable[Check]) -> list[Note]:
    notes = []
    for check in checks:
        places = [i for i, line in enumerate(lines) if check.has_fault(line)]
        if len(places) > max(check.least, check.fraction * len(lines)):
            notes.append(_note(lines, check.kind, check.what, places, check.advice))
    return notes


def _same(lines: list[Line]) -> Iterator[Note]:
    """Find one translation of many sources; references stand for unknown sources."""
    by_text: defaultdict[str, list[int]] = defaultdict(list)
    for i, line in enumerate(lines):
        if not is_blank(line.text):
            by_text[line.text.strip()].append(i)
    places = []
    for text, found in by_text.items():
        wrong = [lines[i] for i in found if text not in lines[i].references]
        if len({(line.source or " ".join(line.references)).strip() for line in wrong}) > SHARED:
            places += found
    if len(places) > SAME * len(lines):
        most = max(by_text, key=lambda text: len(by_text[text]))
        what = f"the same translation of different sources (most often: {most[:60]})"
        advice = "the model has hardly learned, or ignores the source"
        yield _note(lines, "same", what, sorted(places), advice)


def _marks(lines: list[Line], marks: Iterable[Mark]) -> Iterator[Note]:
    """Find text that is prepared on one side only."""
    for kind, what, advice, is_in in marks:
        ours = [i for i, line in enumerate(lines) if is_in(line.text)]
        theirs = [i for i, line in enumerate(lines) if any(map(is_in, line.references))]
        least = max(1, MARKED * len(lines))
        if len(ours) > max(least, TIMES * len(theirs)):
            what = f"{what} in the translations, not in the references"
            yield _note(lines, kind, what, ours, advice)
        elif len(theirs) > max(least, TIMES * len(ours)):
            what = f"{what} in the references, not in the translations"
            advice = "score against references as they were written"
            yield _note(lines, kind, what, theirs, advice)


def _length(lines: list[Line]) -> Iterator[Note]:
    """Find translations much shorter or longer than the references, lines without text aside."""
    lengths = []
    for i, line in enumerate(lines):
        if not is_blank(line.text) and not all(map(is_blank, line.references)):
            own, *others = (len("".join(text.split())) for text in (line.text, *line.references))
            lengths.append((i, own, min(others, key=lambda length: abs(length - own))))
    expected = sum(length for _, _, length in lengths)
    if len(lengths) < FEWEST or not expected:
        return
    ratio = sum(length for _, length, _ in lengths) / expected
    what = f"{ratio:.2f} of the references' length"
    if ratio < SHORT:
        places = [i for i, own, of in lengths if own < SHORT * of]
        advice = "raise decode.length_penalty, and check whether lines were cut"
        yield _note(lines, "short", f"too short, {what}", places, advice)
    elif ratio > LONG:
        places = [i for i, own, of in lengths if own > LONG * of]
        advice = "lower decode.length_penalty, and look for repeated phrases"
        yield _note(lines, "long", f"too long, {what}", places, advice)


def _slipped(lines: list[Line]) -> Iterator[Note]:
    """Find translations that are more like the references some lines further up or down."""
    shifts = {}
    for start in range(0, len(lines), WINDOW):
        window = range(start, min(start + WINDOW, len(lines)))
        if len(window) >= FEWEST and (shift := _shift(lines, window)):
            shifts[window] = shift
    if shifts:
        window, shift = next(iter(shifts.items()))
        count = f"{abs(shift)} line{'s' if abs(shift) > 1 else ''}"
        where = (
            f"{count} further {'down' if shift > 0 else 'up'}, from about line {window[0] + 1} on"
        )
        what = f"the translations go with the references {where}"
        advice = "a line was lost or added on one side: compare the files from there"
        yield _note(lines, "slipped", what, list(chain(*shifts)), advice)


def _shift(lines: list[Line], window: range) -> int:
    """Return how many lines further down the references of a window's translations are."""
    near = range(max(0, window.start - FURTHEST), min(len(lines), window.stop + FURTHEST))
    theirs = {i: _grams(lines[i].references[0]) for i in near}
    ours = {i: _grams(lines[i].text) for i in window}
    similarity = {}
    for shift in range(-FURTHEST, FURTHEST + 1):
        pairs = [(ours[i], theirs[i + shift]) for i in window if i + shift in theirs]
        similarity[shift] = sum(_similarity(*pair) for pair in pairs) / max(1, len(pairs))
    best = max(similarity, key=lambda shift: similarity[shift])
    return best if similarity[best] > BETTER * similarity[0] + ADVANTAGE else 0


def _grams(text: str) -> set[str]:
    """Return all threes of characters of a text, without spaces and case."""
    joined = "".join(text.lower().split())
    return {joined[i : i + 3] for i in range(max(1, len(joined) - 2))}


def _similarity(one: set[str], other: set[str]) -> float:
    """Return the fraction of threes that two texts have in common, from 0 to 1."""
    return 2 * len(one & other) / (len(one) + len(other))
