"""Findings about a corpus: kinds, counts, and examples by file and line."""

import math
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from mtrain.config.corpora import Corpus, FileCorpus, TextCorpus
from mtrain.corpus.lines import RowError
from mtrain.corpus.readers import corpus_name
from mtrain.corpus.tables import FORMATS
from mtrain.runtime.console import cut_to_width
from mtrain.runtime.errors import printable

ERROR, WARNING, NOTE = "error", "warning", "note"
INDENT = " " * 11  # of examples, below the title of their finding

# Severity and title of every kind of finding, by its name in JSON, in the order of the report.
KINDS: dict[str, tuple[str, str]] = {
    "unreadable": (ERROR, "cannot be read"),
    "unequal": (ERROR, "unequal numbers of lines"),
    "row": (ERROR, "not two texts, or far too long"),
    "encoding": (ERROR, "invalid UTF-8"),
    "dropped": (WARNING, "invalid UTF-8, left out"),
    "empty": (ERROR, "nothing to learn from or to score"),
    "turned": (ERROR, "source and target swapped in most pairs"),  # "swapped": single pairs
    "contained": (ERROR, "nearly all pairs are in the training text"),
    "language": (WARNING, "a side is not in its language"),
    "mixture": (WARNING, "part of a side written differently from the rest"),
    "style": (WARNING, "prepared differently from other text"),
    "slip": (WARNING, "shifted or shuffled lines"),
    "unrelated": (WARNING, "sides that seem unrelated"),
    "misfit": (WARNING, "pairs that do not look like translations"),
    "digits": (WARNING, "numbers that differ between the sides"),
    "repeated": (WARNING, "one text with many different translations"),
    "quoted": (WARNING, "texts in double quotes, as in a table"),
    "numbered": (WARNING, "nearly all texts begin with a number"),
    "marked": (WARNING, "dashes, bullets, times or numbers before texts of one side"),
    "added": (WARNING, "text added to the texts of one side"),
    "tokenized": (WARNING, "spaces before commas or periods in a part of the text"),
    "swapped": (WARNING, "pairs with source and target swapped"),
    "other_language": (WARNING, "in the other side's language"),
    "third_language": (WARNING, "in a third language"),
    "script": (WARNING, "in a different script from the rest of the side"),
    "mixed_word": (WARNING, "Latin and Cyrillic letters in one word"),
    "same": (WARNING, "the same text on both sides"),
    "missing": (WARNING, "nan, NULL or an error of a table in place of a text"),
    "both": (WARNING, "the text of both sides on one side"),
    "ratio": (WARNING, "sides of very different length"),
    "counted": (WARNING, "found while reading"),
    "long": (WARNING, "over data.max_length"),
    "blank": (WARNING, "blank on a side"),
    "control": (WARNING, "control characters, other line breaks"),
    "invisible": (WARNING, "zero-width characters, soft hyphens, direction marks"),
    "no_break": (WARNING, "no-break or wide spaces in place of spaces"),
    "no_character": (WARNING, "U+FFFD, private-use or undefined characters"),
    "lost": (WARNING, "question marks in place of letters"),
    "mojibake": (WARNING, "mojibake: text read in a wrong encoding"),
    "escaped": (WARNING, "escapes in place of characters, such as \\u00fc, %20, '' or \\n"),
    "accents": (WARNING, "accents lost, or letters in place of others"),
    "spacing": (WARNING, "words run together, or letters apart"),
    "reversed": (WARNING, "final punctuation at the beginning, as if in reverse order"),
    "divided": (WARNING, "words divided by a hyphen, as at the end of a line"),
    "loop": (WARNING, "a word or phrase repeated over and over"),
    "cut": (WARNING, "texts cut off"),
    "markup": (WARNING, "tags, entities or times, as of HTML, XLIFF or subtitles"),
    "subwords": (WARNING, "subword marks or special tokens, such as @@ or <eos>"),
    "decomposed": (WARNING, "letters and accents as separate characters (not in NFC)"),
    "dotted": (WARNING, "i with a dot (U+0307), from wrong lower-casing"),
    "presentation": (WARNING, "ligatures and presentation forms, as in text from PDF files"),
    "overlap": (WARNING, "pairs (ignoring case and punctuation) also in"),
    "source_overlap": (WARNING, "sources (ignoring case and punctuation) also in"),
    "target_overlap": (WARNING, "targets (ignoring case and punctuation) also in"),
    "near_overlap": (WARNING, "pairs nearly the same as a pair in"),
    "pieces": (WARNING, "the vocabulary does not fit"),
    "filtered": (NOTE, "left out by filter:"),
    "duplicate": (NOTE, "repeats of earlier pairs"),
    "crlf": (NOTE, "Windows line ends, removed on reading"),
}
OVERLAP = "remove them from one of the two, best from training text, or scores will be too high"
# What to do about a kind of finding, unless its messages say so.
ADVICE = {
    "unequal": "restore the lines that one file lacks, or export both again",
    "row": "repair or remove these rows; if texts contain tabs, use JSON lines",
    "encoding": "convert the file to UTF-8, or set data.invalid_utf8: drop",
    "slip": "where a stretch begins, restore the line that one side lacks, or remove the extra "
    "one; if lines are shuffled or repeated, export both sides again",
    "misfit": "correct or remove them",
    "digits": "correct them: in most such pairs, a translation is wrong or out of date",
    "repeated": "look for an error in the program that made the text",
    "quoted": "export the table without quotes, or as JSON lines",
    "numbered": "export the text without these numbers",
    "marked": "remove them, or translations will have some, too",
    "tokenized": "use plain text everywhere: mtrain tokenizes it",
    "swapped": "exchange their sides, or remove them",
    "other_language": "correct or remove them",
    "third_language": "remove them, or some translations will be in this language",
    "script": "correct or remove them, or set filter.src_script or filter.tgt_script",
    "mixed_word": "replace the letters of the wrong alphabet",
    "same": "set filter.identical: true, unless names and codes should stay as they are",
    "missing": "remove these pairs, or fill them from the original table",
    "both": "remove the text of the other side",
    "ratio": "correct them, or set filter.max_ratio: 3",
    "long": "training drops such pairs: nothing needs to be done",
    "blank": "training drops such pairs; remove them from scored sets",
    "control": "remove the characters, or drop the pairs by filter.control: true",
    "invisible": "remove these characters",
    "no_break": "replace them by spaces, or set tokenizer.normalization: nfkc",
    "no_character": "restore the right characters, or drop the pairs by filter.control: true",
    "lost": "convert the original file again: these letters are lost",
    "mojibake": "convert the original file from its encoding to UTF-8",
    "escaped": "replace the escapes by their characters",
    "accents": "restore the right letters",
    "spacing": "repair them, or translations will have the same fault",
    "reversed": "store the text in the order in which it is read, not in that of its display",
    "divided": "join the words",
    "loop": "remove them, or the model may learn to repeat itself",
    "cut": "export the texts again, without a limit on their length",
    "markup": "remove tags and times, decode entities, unless translations should have them",
    "subwords": "join the subwords and remove the tokens: mtrain makes its own",
    "decomposed": "convert the text to NFC",
    "dotted": "lower-case the original text by the rules of its language, or remove U+0307",
    "presentation": "replace them by plain letters, or set tokenizer.normalization: nfkc",
    "overlap": OVERLAP,
    "source_overlap": OVERLAP,
    "target_overlap": OVERLAP,
    "near_overlap": OVERLAP,
    "duplicate": "set filter.duplicates: true to drop them",
}
MAX_EXAMPLE_LENGTH = 300  # characters
# Kinds that shifted lines cause, too, and the number of their examples that are kept while rows are
# read, since `remove_rows` may remove some.
MISMATCHES = ("misfit", "ratio", "digits")
MAX_KEPT = 1000


@dataclass(frozen=True, order=True)
class Example:
    """A row with a finding, or a message if `shown` is empty; the lowest `rank` comes first."""

    rank: float
    number: int
    shown: str = field(compare=False)  # the row for people, such as train.de:12
    text: str = field(compare=False)
    json: dict[str, Any] = field(compare=False)


@dataclass
class Finding:
    """Findings of one kind with the same `detail`: their number and the first or worst examples."""

    kind: str
    detail: str = ""  # end of the title, such as a side or the name of another corpus
    count: int = 0
    examples: list[Example] = field(default_factory=list)
    is_allowed: bool = False  # by the config: a warning, not an error

    @property
    def severity(self) -> str:
        """Error, warning or note."""
        return WARNING if self.is_allowed else KINDS[self.kind][0]

    @property
    def title(self) -> str:
        """The title of the kind, with the detail."""
        return " ".join(filter(None, (KINDS[self.kind][1], self.detail)))

    @property
    def advice(self) -> str:
        """What to do, or an empty text."""
        return ADVICE.get(self.kind, "")

    def as_json(self) -> dict[str, Any]:
        """Return the finding for scripts."""
        examples = [{**example.json, "text": example.text} for example in self.examples]
        named = {"kind": self.kind, "severity": self.severity, "title": self.title}
        about = {"about": self.detail, "advice": self.advice}
        return {**named, **about, "count": self.count, "examples": examples}


class Findings:
    """A corpus of a config and its findings, with at most `max_examples` examples of each kind."""

    def __init__(
        self,
        name: str,
        corpus: Corpus,
        root: Path,
        max_examples: int,
        languages: tuple[str, str] = ("", ""),
    ) -> None:
        self.name, self.corpus, self.languages = name, corpus, languages
        self.max_examples = max_examples
        self.what = corpus_name(corpus)
        self.is_backward = False  # whether it is learned from the target to the source
        self.pairs = 0
        self.usable = 0  # pairs that training does not drop; repeats are among them
        self.by_kind: dict[tuple[str, str], Finding] = {}
        self.unit = "row"  # of the numbers that name pairs
        self.names = [self.what]  # of the files, as in the config; two if each side has a file
        if isinstance(corpus, TextCorpus):
            self.unit = "line"
            self.names = [corpus.src, corpus.tgt]
            if corpus.swap:
                self.names.reverse()
        elif isinstance(corpus, FileCorpus):
            self.unit = FORMATS[corpus.kind].unit
        in_files = isinstance(corpus, TextCorpus | FileCorpus)
        self.files = [str(root / name) if in_files else name for name in self.names]

    @property
    def is_train(self) -> bool:
        """Whether the corpus is trained on."""
        return self.name.startswith("data.train")

    @property
    def tags(self) -> tuple[int, int]:
        """The number of tags before each side, 0 or 1: before the side that is the source when the
        corpus is learned from.
        """
        number = int(self.corpus.tag is not None)
        return (0, number) if self.is_backward else (number, 0)

    @property
    def in_order(self) -> list[Finding]:
        """The findings in the order of their kinds."""
        order = list(KINDS)
        return sorted(self.by_kind.values(), key=lambda one: (order.index(one.kind), one.detail))

    def has(self, *kinds: str) -> bool:
        """Whether there are findings of these kinds."""
        return any(kind in kinds for kind, _ in self.by_kind)

    def count(self, *kinds: str) -> int:
        """Count the rows and messages of these kinds."""
        return sum(finding.count for finding in self.by_kind.values() if finding.kind in kinds)

    def remove(self, *kinds: str, below: float = math.inf) -> None:
        """Remove the findings of these kinds that have fewer than `below` rows."""
        for key, finding in list(self.by_kind.items()):
            if finding.kind in kinds and finding.count < below:
                del self.by_kind[key]

    def remove_rows(self, kind: str, numbers: NDArray[np.int64]) -> None:
        """Once all rows are read, remove those of a kind that have these numbers."""
        if finding := self.by_kind.get((kind, "")):
            is_removed = np.isin([each.number for each in finding.examples], numbers)
            finding.examples = list(compress(finding.examples, ~is_removed))[: self.max_examples]
            finding.count -= len(numbers)
            self.remove(kind, below=1)

    def name_row(self, number: int, side: int | None = None) -> str:
        """Name a row for people: `train.de:12`, without the directory of an absolute path."""
        name = self.names[(side or 0) % len(self.names)]
        name = Path(name).name if Path(name).is_absolute() else name
        return f"{name}:{number}" if self.unit == "line" else f"{name} {self.unit} {number}"

    def row_as_json(self, number: int, side: int | None = None) -> dict[str, Any]:
        """Name a row for scripts, with the file of a side or, without a side, all files."""
        files = self.files
        if side is not None and len(files) > 1:
            files = [files[side]]
        return {"files": files, self.unit: number}

    def example(
        self, number: int, text: str, side: int | None = None, *, rank: float = 0, **extra: Any
    ) -> Example:
        """Make an example of a row; `extra` is added to its JSON."""
        json = {**self.row_as_json(number, side), **extra}
        return Example(rank, number, self.name_row(number, side), text[:MAX_EXAMPLE_LENGTH], json)

    def add(
        self, kind: str, count: int, examples: Iterable[Example] = (), detail: str = ""
    ) -> None:
        """Add to the count of a finding, and keep the examples with the lowest ranks."""
        finding = self.by_kind.setdefault((kind, detail), Finding(kind, detail))
        finding.count += count
        finding.examples = sorted([*finding.examples, *examples])[: self.max_kept(kind)]

    def of_part(self) -> "Findings":
        """Return findings about a part of the corpus: none yet."""
        part = copy(self)
        part.pairs = part.usable = 0
        part.by_kind = {}
        return part

    def include(self, part: "Findings") -> None:
        """Add the findings about a part of the corpus."""
        self.pairs += part.pairs
        self.usable += part.usable
        for finding in part.by_kind.values():
            self.add(finding.kind, finding.count, finding.examples, finding.detail)

    def max_kept(self, kind: str) -> int:
        """Return the largest number of examples of a kind to keep while rows are read."""
        return MAX_KEPT if kind in MISMATCHES else self.max_examples

    def add_message(self, kind: str, text: str, *, is_allowed: bool = False) -> None:
        """Add a finding about the whole corpus."""
        self.add(kind, 1, [Example(0, 0, "", text, {})])
        self.by_kind[kind, ""].is_allowed = is_allowed

    def add_error(self, error: RowError, *, is_dropped: bool) -> None:
        """Add a row that cannot be read, or that `data.invalid_utf8: drop` drops."""
        kind = "dropped" if is_dropped and error.kind == "encoding" else error.kind
        if kind == "long" and not self.is_train:
            kind = "row"  # only training drops such a pair
        sides = [n for n, file in enumerate(self.files) if error.place.startswith(f"{file}:")]
        side = sides[0] if sides else 0
        self.add(kind, 1, [self.example(error.number, error.reason, side)])

    def as_json(self) -> dict[str, Any]:
        """Return the corpus and its findings for scripts."""
        named = {"name": self.name, "corpus": self.what, "pairs": self.pairs}
        return {**named, "findings": [finding.as_json() for finding in self.in_order]}

    def lines(self, width: int) -> Iterator[str]:
        """Yield the lines for people, at most `width` columns wide where possible."""
        yield _with_count(f"{self.name}: {self.what}", f"{self.pairs:,} pairs", width)
        if not self.by_kind:
            yield "  nothing suspicious"
        for finding in self.in_order:
            head = f"  {finding.severity:<8} {finding.title}"
            is_message = any(not example.shown for example in finding.examples)
            count = "" if is_message else f"{finding.count:,}"
            *first, last = wrap(head, max(40, width - len(count) - 1), subsequent_indent=INDENT)
            yield from first
            yield _with_count(last, count, width) if count else last
            for example in finding.examples:
                yield from _example_lines(example, width)
            arrow = f"{INDENT}-> "
            indent = " " * len(arrow)
            yield from wrap(finding.advice, width, initial_indent=arrow, subsequent_indent=indent)


def _with_count(head: str, count: str, width: int) -> str:
    return f"{head} {count.rjust(width - cell_len(head) - 1)}"


def _example_lines(example: Example, width: int) -> list[str]:
    """Return a row cut to one line, or a message wrapped to several lines."""
    start = f"{INDENT}{example.shown}"
    if not example.shown:
        return wrap(printable(example.text), width, initial_indent=start, subsequent_indent=start)
    return [
        f"{start}  {cut_to_width(printable(example.text), width - cell_len(start) - 2)}".rstrip()
    ]
