"""Findings about a corpus: kinds, counts, and examples by file and line."""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtrain.check.characters import Characters, Lines, Words
from mtrain.config.schema import Corpus, FileCorpus, GeneratedCorpus, TextCorpus
from mtrain.corpus.readers import describe
from mtrain.runtime.errors import RowError, printable

ERROR, WARNING, NOTE = "error", "warning", "note"

# Every kind of finding: how bad it is, and its name for people.
KINDS: dict[str, tuple[str, str]] = {
    "unreadable": (ERROR, "cannot be read"),
    "unequal": (ERROR, "unequal numbers of lines"),
    "row": (ERROR, "not two texts"),
    "too_long": (ERROR, "longer than any line that is read"),
    "encoding": (ERROR, "invalid UTF-8"),
    "dropped": (WARNING, "invalid UTF-8, left out"),
    "empty": (ERROR, "nothing to learn from or to score"),
    "contained": (ERROR, "nearly all of it is in train"),
    "language": (WARNING, "a side is not in its language"),
    "slip": (WARNING, "sides out of step"),
    "unrelated": (WARNING, "sides that do not go together"),
    "misfit": (WARNING, "sides with no words that go together"),
    "swapped": (WARNING, "sides swapped"),
    "source_language": (WARNING, "source in the target's language"),
    "target_language": (WARNING, "target in the source's language"),
    "script": (WARNING, "in another script than the side"),
    "mixed_word": (WARNING, "Latin and Cyrillic letters in one word"),
    "same": (WARNING, "the same text on both sides"),
    "ratio": (WARNING, "lengths differ far too much"),
    "long": (WARNING, "over data.max_length"),
    "blank_source": (WARNING, "blank source"),
    "blank_target": (WARNING, "blank target"),
    "blank_both": (WARNING, "blank on both sides"),
    "nul": (WARNING, "NUL characters"),
    "carriage_return": (WARNING, "carriage returns within a line"),
    "line_break": (WARNING, "other line breaks (U+2028, form feed ...)"),
    "control": (WARNING, "control characters"),
    "invisible": (WARNING, "zero-width characters, soft hyphens, BOMs"),
    "mark": (WARNING, "joiners or direction marks"),
    "replacement": (WARNING, "U+FFFD, in place of unreadable text"),
    "private": (WARNING, "private-use characters"),
    "undefined": (WARNING, "code points that are no characters"),
    "mojibake": (WARNING, "mojibake: UTF-8 read as something else"),
    "markup": (WARNING, "HTML tags or entities"),
    "subwords": (WARNING, "marks of text cut into subwords"),
    "decomposed": (WARNING, "accents or parts apart from their letters (not in NFC)"),
    "overlap": (WARNING, "pairs that are also in"),
    "source_overlap": (WARNING, "sources that are also in"),
    "target_overlap": (WARNING, "targets that are also in"),
    "near_overlap": (WARNING, "pairs nearly the same as a pair in"),
    "pieces": (WARNING, "the vocabulary does not fit"),
    "duplicate": (NOTE, "pairs that were there before"),
    "crlf": (NOTE, "Windows line ends, removed on reading"),
}


@dataclass(frozen=True)
class Place:
    """The files of a corpus, to name its rows."""

    files: tuple[str, ...]  # one, or one of either side
    unit: str  # line, row, unit of a translation memory, or pair
    names: tuple[str, ...] = ()  # of the files, for people, as a config has them

    @staticmethod
    def of(corpus: Corpus, root: Path) -> "Place":
        """Return the files of a corpus, or another description."""
        if isinstance(corpus, TextCorpus):
            names = (corpus.src, corpus.tgt)
            return Place(tuple(str(root / name) for name in names), "line", names)
        if isinstance(corpus, FileCorpus):
            unit = {"parquet": "row", "tmx": "unit"}.get(corpus.kind, "line")
            return Place((str(root / corpus.file),), unit, (corpus.file,))
        if isinstance(corpus, GeneratedCorpus):
            return Place((f"{corpus.generated} {corpus.split}",), "pair")
        return Place((describe(corpus),), "row")

    def name(self, number: int, side: int | None = None) -> str:
        """Name a row for people, `train.de:12`, without its folder where the config has it from the
        root on.
        """
        names = self.names or self.files
        name = names[side or 0] if len(names) > 1 else names[0]
        if self.unit != "pair" and Path(name).is_absolute():
            name = Path(name).name
        return f"{name}:{number}" if self.unit == "line" else f"{name} {self.unit} {number}"

    def as_json(self, number: int, side: int | None = None) -> dict[str, Any]:
        """Name a row for scripts."""
        chosen = self.files if side is None or len(self.files) == 1 else (self.files[side],)
        return {"files": list(chosen), self.unit: number}


@dataclass(frozen=True)
class Chunk:
    """Some rows of a corpus: numbers, texts, and the characters of the texts."""

    place: Place
    numbers: Sequence[int]
    texts: tuple[Sequence[str], Sequence[str]]
    characters: Characters

    def __len__(self) -> int:
        return len(self.numbers)

    def select(self, rows: NDArray[np.int64]) -> "Chunk":
        """Return some of the rows."""
        numbers = [self.numbers[row] for row in rows.tolist()]
        src, tgt = ([texts[row] for row in rows.tolist()] for texts in self.texts)
        return Chunk(self.place, numbers, (src, tgt), self.characters)

    @cached_property
    def lines(self) -> tuple[Lines, Lines]:
        """The characters of either side."""
        return self.characters.read(self.texts[0]), self.characters.read(self.texts[1])

    @cached_property
    def words(self) -> tuple[Words, Words]:
        """The words of either side."""
        return self.characters.words(self.lines[0]), self.characters.words(self.lines[1])

    @cached_property
    def letters(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The letters of either side by script, counted over all rows."""
        src, tgt = (self.characters.letters(lines).sum(0) for lines in self.lines)
        return src, tgt

    def settle(self) -> "Chunk":
        """Count words and letters, and let go of the characters: 12 bytes for each of the text."""
        _ = self.words, self.letters
        vars(self).pop("lines", None)
        return self

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Characters of either side, shape (rows, 2)."""
        return np.array([list(map(len, texts)) for texts in self.texts], np.int64).T


@dataclass(frozen=True, order=True)
class Example:
    """A row with a finding; lower `rank` is shown first."""

    rank: float
    number: int
    shown: str = field(compare=False)
    text: str = field(compare=False)
    json: dict[str, Any] = field(compare=False)


@dataclass
class Finding:
    """Findings of one kind, `about` something: their number, and the first or worst examples."""

    kind: str
    about: str = ""
    count: int = 0
    examples: list[Example] = field(default_factory=list)

    @property
    def severity(self) -> str:
        """How bad it is: error, warning or note."""
        return KINDS[self.kind][0]

    @property
    def title(self) -> str:
        """Name it for people."""
        return " ".join(filter(None, (KINDS[self.kind][1], self.about)))

    def as_json(self) -> dict[str, Any]:
        """Describe it for scripts."""
        examples = [{**each.json, "text": each.text} for each in self.examples]
        named = {"kind": self.kind, "severity": self.severity, "title": self.title}
        return {**named, "about": self.about, "count": self.count, "examples": examples}


class Findings:
    """All that was found in a corpus, with at most `most` examples of a kind."""

    def __init__(self, name: str, what: str, place: Place, most: int) -> None:
        self.name, self.what, self.place, self.most = name, what, place, most
        self.pairs = 0
        self.found: dict[tuple[str, str], Finding] = {}

    @property
    def sorted(self) -> list[Finding]:
        """Findings in the order of their kinds."""
        order = list(KINDS)
        return sorted(self.found.values(), key=lambda each: (order.index(each.kind), each.about))

    def add(self, kind: str, count: int, examples: Iterable[Example] = (), about: str = "") -> None:
        """Count something, and keep its examples if they come before those that are kept."""
        finding = self.found.setdefault((kind, about), Finding(kind, about))
        finding.count += count
        finding.examples = sorted([*finding.examples, *examples])[: self.most]

    def tell(self, kind: str, text: str, number: int = 0, about: str = "") -> None:
        """Add a finding in words."""
        self.add(kind, 1, [Example(0, number, "", text, {})], about)

    def add_row(self, error: RowError, *, is_dropped: bool) -> None:
        """Add a row that could not be read, or is left out by request."""
        kind = ("dropped" if is_dropped else "encoding") if error.is_encoding else "row"
        if error.is_long:  # training leaves such a pair out
            kind = "long" if self.name.startswith("data.train") else "too_long"
        side = next(
            (n for n, file in enumerate(self.place.files) if error.place.startswith(f"{file}:")), 0
        )
        shown, json = self.place.name(error.number, side), self.place.as_json(error.number, side)
        self.add(kind, 1, [Example(0, error.number, shown, error.reason, json)])

    def add_rows(
        self,
        kind: str,
        chunk: Chunk,
        rows: NDArray[np.int64],
        side: int | None = None,
        *,
        ranks: NDArray[np.float64] | None = None,
        spots: dict[int, int] | None = None,
        about: str = "",
    ) -> None:
        """Add rows of a chunk, on one side or on both; the lowest of `ranks` are shown first, with
        text from `spots` on.
        """
        first = rows if ranks is None else rows[np.argsort(ranks, kind="stable")]
        order = np.zeros(len(rows)) if ranks is None else np.sort(ranks)
        examples = [
            self.example(chunk, row, side, rank, (spots or {}).get(row, 0))
            for row, rank in zip(first[: self.most].tolist(), order.tolist(), strict=False)
        ]
        if len(rows):
            self.add(kind, len(rows), examples, about)

    def example(
        self, chunk: Chunk, row: int, side: int | None, rank: float = 0.0, spot: int = 0
    ) -> Example:
        """Make an example of a row."""
        number, place = int(chunk.numbers[row]), chunk.place
        texts = [chunk.texts[0][row], chunk.texts[1][row]]
        text = " | ".join(texts) if side is None else texts[side][max(0, spot - 20) :]
        text = text if spot <= 20 or side is None else f"...{text}"
        return Example(
            rank, number, place.name(number, side), text[:300], place.as_json(number, side)
        )

    def as_json(self) -> dict[str, Any]:
        """Describe all of it for scripts."""
        named = {"name": self.name, "corpus": self.what, "pairs": self.pairs}
        return {**named, "findings": [finding.as_json() for finding in self.sorted]}

    def lines(self, width: int) -> Iterator[str]:
        """Write it for people, in lines of at most so many columns."""
        yield from _heading(self.name, self.what, f"{self.pairs:,} pairs", width)
        if not self.found:
            yield "  nothing suspicious"
        for finding in self.sorted:
            head, count = f"  {finding.severity:<8} {finding.title}", f"{finding.count:,}"
            told = not any(example.shown for example in finding.examples)
            yield head if told else f"{head} {count.rjust(width - len(head) - 1)}"
            for example in finding.examples:
                yield from _shown(example, width)


def _heading(name: str, what: str, count: str, width: int) -> Iterator[str]:
    """Put the description of a corpus next to its name if there is room."""
    if len(name) + len(what) + len(count) + 4 <= width:
        yield f"{name}: {what}".ljust(width - len(count) - 1) + f" {count}"
    else:
        yield f"{name}: {count}"
        yield f"  {what}"


def _shown(example: Example, width: int) -> Iterator[str]:
    """Show an example on a line, or words on several."""
    if example.shown:
        start = f"           {example.shown}  "
        yield (start + clipped(printable(example.text), width - len(start))).rstrip()
        return
    line = ""
    for word in printable(example.text).split(" "):
        if line and 11 + len(line) + len(word) + 1 > width:
            yield " " * 11 + line
            line = ""
        line = f"{line} {word}" if line else word
    yield " " * 11 + line


def clipped(text: str, width: int) -> str:
    """Cut a text to a number of terminal columns."""
    columns = 0
    for place, char in enumerate(text):
        if not unicodedata.combining(char):
            columns += 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if columns > width:
            return text[: max(0, place - 3)] + "..."
    return text
