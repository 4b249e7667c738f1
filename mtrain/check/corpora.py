"""Checking every corpus of a config."""

import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtrain.check.characters import Characters
from mtrain.check.findings import Chunk, Example, Findings, Place
from mtrain.check.overlap import Hashed, ScoredSet, Tally
from mtrain.check.pairs import look_at_pairs, look_for_long_lines
from mtrain.check.profile import Profile
from mtrain.check.shifts import Shifts
from mtrain.config.schema import Config, Corpus
from mtrain.corpus.lines import is_blank, windows_lines
from mtrain.corpus.readers import Scan, describe, read_rows, reading_of
from mtrain.corpus.slips import suspicions_of_lengths
from mtrain.data.duplicates import Duplicates
from mtrain.data.filters import is_identical
from mtrain.data.prepare import scan_corpus
from mtrain.data.tokenizer import Tokenizer
from mtrain.runtime.errors import RowError, UnequalError, UserError
from mtrain.runtime.log import progress_bar
from mtrain.runtime.stop import Stop

# Pairs in a chunk, and roughly its characters: each takes far more memory in numpy.
CHUNK, CHUNK_CHARACTERS = 10_000, 1 << 21
# Pairs of all training text for the profile, and the most characters of them.
SAMPLE, SAMPLE_CHARACTERS = 40_000, 1 << 25
MOST_CONTAINED = 0.9  # fraction of a scored set that may be in train
ROW_BITS = 40  # of a number that names a corpus and a row

Row = tuple[int, str, str]


@dataclass
class Set:
    """A corpus of a config: its key, and its findings."""

    name: str
    corpus: Corpus
    found: Findings
    scan: Scan | None = None
    expected: int = 0  # pairs

    @property
    def is_train(self) -> bool:
        """Whether the corpus is trained on."""
        return self.name.startswith("data.train")

    @property
    def is_broken(self) -> bool:
        """Whether the corpus could not be read to its end, which was reported."""
        return any(kind in ("unreadable", "unequal") for kind, _ in self.found.found)


@dataclass
class Sample:
    """Pairs from all over the training text, thinned out where they are long: at most so many
    characters, and none of a pair that has a hundredth of them.
    """

    rows: list[tuple[Set, Row]] = field(default_factory=list)
    step: int = 1  # of the pairs that are added, for one to be kept
    seen: int = 0
    size: int = 0  # characters

    def add(self, each: Set, row: Row) -> None:
        """Keep a pair of a corpus, or not."""
        if _size(row) > SAMPLE_CHARACTERS // 100:
            return
        if self.seen % self.step == 0:
            self.rows.append((each, row))
            self.size += _size(row)
        self.seen += 1
        while self.size > SAMPLE_CHARACTERS:
            self.rows, self.step = self.rows[::2], 2 * self.step
            self.size = sum(_size(row) for _, row in self.rows)

    def rows_of(self, each: Set) -> Iterator[Row]:
        """The pairs that are kept of a corpus."""
        return (row for owner, row in self.rows if owner is each)


@dataclass
class Checker:
    """Checks all corpora of a config and keeps at most `most` examples of each kind."""

    config: Config
    stop: Stop
    most: int = 10
    characters: Characters = field(default_factory=Characters)
    sample: list[Chunk] = field(default_factory=list)
    tokenizer: Tokenizer | None = None

    def __post_init__(self) -> None:
        data = self.config.data
        corpora = [(f"data.train[{number}]", corpus) for number, corpus in enumerate(data.train)]
        corpora.append(("data.valid", data.valid))
        corpora += [(f"data.test.{name}", corpus) for name, corpus in data.test.items()]
        self.root = reading_of(self.config).root
        self.sets = [
            Set(name, each, Findings(name, describe(each), Place.of(each, self.root), self.most))
            for name, each in corpora
        ]

    def scan(self) -> None:
        """Count and hash all text; report what cannot be read."""
        for each in self.sets:
            self._scan(each)

    def look(self) -> None:
        """Read a sample of the training text, to learn what is normal, then check everything."""
        train = sum(each.expected for each in self.sets if each.is_train)
        total = train + sum(each.expected for each in self.sets)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mtrain-")))
            bar = stack.enter_context(progress_bar(total, "pair", "checking"))
            self.sample = self._learn(max(1, train // SAMPLE), bar)
            profile = Profile(self.sample)
            profile.compare(self.config.data, self.sample, self.sets[0].found)
            tallies: list[Tally] = []
            for each in self.sets:
                if not each.is_train:
                    self._look_at_scored(each, profile, tallies, bar)
            self._look_at_train(profile, tallies, Duplicates(folder, train), bar)
        for tally in tallies:
            tally.tell()
        for each in self.sets:
            if ("slip", "") in each.found.found:  # which reports it more exactly
                each.found.found.pop(("unrelated", ""), None)

    def _scan(self, each: Set) -> None:
        """Count the pairs of a corpus and its Windows line ends; report what cannot be read."""
        try:
            each.scan = scan_corpus(self.config, each.corpus, self.stop)
            each.expected = each.scan.pairs
        except UnequalError as error:
            each.found.tell("unequal", str(error))
            each.expected = error.pairs
        except UserError as error:
            self.stop.check()
            each.found.tell("unreadable", str(error))
        if each.scan and each.found.place.unit == "line":
            _look_for_windows_lines(each, self.stop.check)

    def _rows(self, each: Set, refuse: Callable[[RowError], None]) -> Iterator[Row]:
        """Yield the rows of a corpus as far as it is readable; `refuse` gets those left out."""
        reading = reading_of(self.config, keep_blank=True)
        reading.invalid_utf8, reading.refuse = "error", refuse
        try:
            yield from read_rows(each.corpus, reading)
        except UserError as error:
            self.stop.check()
            if not each.is_broken:
                each.found.tell("unreadable", str(error))

    def _chunks(self, each: Set, rows: Iterable[Row]) -> Iterator[Chunk]:
        """Cut rows into chunks."""
        for some in _batches(rows):
            self.stop.check()
            numbers, src, tgt = zip(*some, strict=True)
            yield Chunk(each.found.place, numbers, (src, tgt), self.characters)

    def _learn(self, step: int, bar: Any) -> list[Chunk]:
        """Read a fraction of the training pairs, from all over, without uninformative ones."""
        sample = Sample()
        for each in self.sets:
            if not each.is_train:
                continue
            lengths = array("q")
            for row in islice(self._rows(each, lambda error: None), 0, None, step):
                self.stop.check()
                bar.update(step)
                if _is_telling(row):
                    lengths.extend((len(row[1]), len(row[2])))
                    sample.add(each, row)
            _look_at_lengths(each, np.array(lengths, np.int64).reshape(-1, 2), step)
        return [
            chunk.settle()
            for each in self.sets
            for chunk in self._chunks(each, sample.rows_of(each))
        ]

    def _refuse(self, each: Set) -> Callable[[RowError], None]:
        is_dropped = self.config.data.invalid_utf8 == "drop"
        return lambda error: each.found.add_row(error, is_dropped=is_dropped)

    def _look_at(self, each: Set, profile: Profile, bar: Any) -> Iterator[Chunk]:
        """Check the pairs of a corpus and yield them."""
        slips = Shifts(profile.associations, profile.misfit, each.found)
        for chunk in self._chunks(each, self._rows(each, self._refuse(each))):
            bar.update(len(chunk))
            each.found.pairs += len(chunk)
            slips.feed(chunk, look_at_pairs(chunk, profile, each.found))
            if each.is_train:
                look_for_long_lines(chunk, self.tokenizer, self.config.data.max_length, each.found)
            yield chunk
        slips.finish()
        if not each.found.pairs and not each.is_broken:
            each.found.tell("empty", f"{each.found.what} holds no pairs")

    def _look_at_scored(self, each: Set, profile: Profile, tallies: list[Tally], bar: Any) -> None:
        """Check a scored set, also for its lines in earlier sets."""
        chunks = [chunk.settle() for chunk in self._look_at(each, profile, bar)]
        rows = Hashed.of(joined(chunks, each.found.place, self.characters))
        for before in [tally for tally in tallies if tally.other == "data.train"]:
            tally = Tally(before.set, before.found, each.name)
            tally.take(rows)
            tallies.append(tally)
        tallies.append(Tally(ScoredSet(rows), each.found, "data.train", MOST_CONTAINED))

    def _look_at_train(
        self, profile: Profile, tallies: list[Tally], duplicates: Duplicates, bar: Any
    ) -> None:
        """Check the training text, also for lines of the scored sets in it."""
        train = [each for each in self.sets if each.is_train]
        any_filled = False
        for number, each in enumerate(train):
            for chunk in self._look_at(each, profile, bar):
                rows = Hashed.of(chunk)
                for tally in tallies:
                    if tally.other == "data.train":
                        tally.take(rows)
                filled = np.flatnonzero(~rows.is_blank)
                named = np.array(chunk.numbers, np.uint64) | np.uint64(number << ROW_BITS)
                duplicates.add(rows.pairs[filled], named[filled])
                any_filled |= len(filled) > 0
        if not any_filled and all(each.found.pairs for each in train):
            train[0].found.tell("empty", "no pair of data.train has text on both sides")
        for later, first in duplicates.groups():
            _tell_duplicates(train, later, first)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Group rows so that no group takes much memory; each has at least one row."""
    some, size = list[Row](), 0
    for row in rows:
        some.append(row)
        size += _size(row)
        if len(some) >= CHUNK or size >= CHUNK_CHARACTERS:
            yield some
            some, size = [], 0
    if some:
        yield some


def _size(row: Row) -> int:
    return len(row[1]) + len(row[2])


def _is_telling(row: Row) -> bool:
    """Whether both sides have text, and not the same text."""
    return not any(map(is_blank, row[1:])) and not is_identical(row[1:])


def joined(chunks: list[Chunk], place: Place, characters: Characters) -> Chunk:
    """Concatenate chunks."""
    numbers = [number for chunk in chunks for number in chunk.numbers]
    sides = ([text for chunk in chunks for text in chunk.texts[side]] for side in (0, 1))
    src, tgt = sides
    return Chunk(place, numbers, (src, tgt), characters)


def _look_at_lengths(each: Set, lengths: NDArray[np.int64], step: int) -> None:
    """Report where the lengths of the sides do not correlate."""
    for sign in suspicions_of_lengths(
        len(lengths), lambda start, stop: lengths[start:stop], is_sample=step > 1
    ):
        each.found.tell("unrelated", sign)


def _look_for_windows_lines(each: Set, check: Callable[[], None]) -> None:
    """Name the lines that end as on Windows."""
    for side, file in enumerate(each.found.place.files):
        count, total, first = windows_lines(Path(file), each.found.most, check)
        examples = [
            Example(0, n, each.found.place.name(n, side), "", each.found.place.as_json(n, side))
            for n in first
        ]
        if count:
            about = f"(all of {Path(file).name})" if count == total else ""
            each.found.add("crlf", count, examples[:1] if about else examples, about)


def _tell_duplicates(
    train: list[Set], later: NDArray[np.uint64], first: NDArray[np.uint64]
) -> None:
    """Name the first pairs that were there before, and where."""
    rows = np.uint64((1 << ROW_BITS) - 1)
    for number, each in enumerate(train):
        mine = np.flatnonzero(later >> np.uint64(ROW_BITS) == number)
        examples = []
        for index in mine[np.argsort(later[mine])][: each.found.most].tolist():
            row, before = int(later[index] & rows), int(first[index] & rows)
            origin = train[int(first[index]) >> ROW_BITS].found.place
            text, place = f"= {origin.name(before)}", each.found.place
            json = {**place.as_json(row), "first": origin.as_json(before)}
            examples.append(Example(row, row, place.name(row), text, json))
        if len(mine):
            each.found.add("duplicate", len(mine), examples)
