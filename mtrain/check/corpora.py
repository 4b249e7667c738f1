"""Check every corpus of a config.

1. scan      count the pairs, report what cannot be read
2. learn     read a sample of the training text: what is normal
3. sets      validation and test text: its pairs, and the overlap with each other
4. train     training text: its pairs, its duplicates, and the overlap of the sets with it
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtrain.check.chunks import Chunk, chunks
from mtrain.check.faults import check_pairs, find_long_pairs
from mtrain.check.findings import Findings
from mtrain.check.overlap import TRAIN, ScoredSet
from mtrain.check.profile import MAX_WRONG, Profile
from mtrain.check.shifts import Shifts
from mtrain.check.words import Characters
from mtrain.config.schema import Config
from mtrain.corpus.lines import CARRIAGE_RETURNS, NOT_UTF8, Reading
from mtrain.corpus.readers import Scan, read_rows, reading_of
from mtrain.corpus.tables import TextRow
from mtrain.data.duplicates import Duplicates
from mtrain.data.guards import SAMPLE, is_informative, repeated, swapped, thinned
from mtrain.data.prepare import scan_corpus
from mtrain.data.tokenizer import Tokenizer
from mtrain.runtime.errors import UnequalError, UserError
from mtrain.runtime.log import progress_bar
from mtrain.runtime.stop import Stop

ROW_BITS = 40  # of a number that names a corpus and a row

Owned = tuple[Findings, TextRow]  # a row and its corpus


class Checker:
    """Checks all corpora of a config and keeps at most `most` examples of each kind."""

    def __init__(self, config: Config, stop: Stop, most: int = 10) -> None:
        self.config, self.stop, self.characters = config, stop, Characters()
        data, root = config.data, reading_of(config).root
        self.entries = {key: each for key, each in data.corpora.items() if not each.model}
        self.sets = [
            Findings(name, corpus, root, most, data.languages(corpus))
            for name, corpus in ((name, data.forward(each)) for name, each in self.entries.items())
        ]
        # corpora that are learned from target to source
        self.turned = {
            name for name, each in self.entries.items() if data.forward(each) is not each
        }
        self.train = [findings for findings in self.sets if findings.is_train]
        self.scans: list[Scan] = []  # of the training text
        self.expected = dict.fromkeys(self.entries, 0)  # pairs
        self.sample: list[Chunk] = []
        self.tokenizer: Tokenizer | None = None

    def scan(self) -> None:
        """Count and hash all text; report what cannot be read."""
        for findings in self.sets:
            try:
                scan = scan_corpus(self.config, self.entries[findings.name], self.stop)
            except UnequalError as error:
                findings.add_message("unequal", str(error))
                self.expected[findings.name] = error.pairs
            except UserError as error:
                self.stop.check()
                findings.add_message("unreadable", str(error))
            else:
                self.expected[findings.name] = scan.pairs
                self.scans += [scan] if findings.is_train else []

    def check(self) -> None:
        """Learn from a sample of the training text what is normal, then check everything."""
        train = sum(self.expected[findings.name] for findings in self.train)
        with (
            tempfile.TemporaryDirectory(prefix="mtrain-") as folder,
            progress_bar(train + sum(self.expected.values()), "pair", "checking") as bar,
        ):
            rows = thinned(self._informative_rows(max(1, train // SAMPLE), bar))
            self.sample = [
                chunk
                for findings, own in groupby(rows, itemgetter(0))
                for chunk in chunks(findings, map(itemgetter(1), own), self.characters)
            ]
            profile = Profile(self.sample)
            for languages in dict.fromkeys(part.findings.languages for part in self.sample):
                own = [part for part in self.sample if part.findings.languages == languages]
                own_profile = profile if len(own) == len(self.sample) else Profile(own)
                own_profile.compare(self.config.data, languages)
            scored: list[ScoredSet] = []
            for findings in self.sets:
                if not findings.is_train:
                    whole = Chunk.join(findings, list(self._checked(findings, profile, bar)))
                    self._check_set(whole)
                    for before in scored:
                        if (before.findings.name in self.turned) == (findings.name in self.turned):
                            before.compare(whole, findings.name)
                    scored.append(ScoredSet(whole))
            self._check_train(profile, scored, Duplicates(Path(folder), train), bar)
        for each in scored:
            each.report(self.config.data)

    def _check_set(self, whole: Chunk) -> None:
        """Report a scored set with swapped sides, or with one text for many."""
        data, findings = self.config.data, whole.findings
        for text in repeated(*whole.texts):
            findings.add_message("repeated", text)
        if text := swapped(findings.languages, *map(list, whole.texts)):
            findings.add_message("turned", text, is_allowed=data.allow_swapped)
            findings.by_kind.pop(("swapped", ""), None)  # says the same of each row

    def _rows(self, findings: Findings, reading: Reading) -> Iterator[TextRow]:
        """Yield the rows of a corpus as far as it is readable."""
        reading.invalid_utf8 = "error"  # to `refuse` each by its number
        try:
            for row in read_rows(findings.corpus, reading):
                self.stop.check()
                yield row
        except UserError as error:
            self.stop.check()
            if not findings.has("unreadable", "unequal"):
                findings.add_message("unreadable", str(error))

    def _informative_rows(self, step: int, bar: Any) -> Iterator[Owned]:
        """Yield a fraction of the training pairs, from all over, without blank and equal sides."""
        for findings in self.train:
            reading = reading_of(self.config, keep_blank=True)
            reading.refuse = lambda error: None
            for row in islice(self._rows(findings, reading), 0, None, step):
                bar.update(step)
                if is_informative(row):
                    yield findings, row

    def _checked(self, findings: Findings, profile: Profile, bar: Any) -> Iterator[Chunk]:
        """Check the pairs of a corpus and yield them."""
        is_dropped = self.config.data.invalid_utf8 == "drop"
        reading = reading_of(self.config, keep_blank=True)
        reading.refuse = partial(findings.add_error, is_dropped=is_dropped)
        shifts = Shifts(profile.associations, findings)
        for chunk in chunks(findings, self._rows(findings, reading), self.characters):
            bar.update(len(chunk))
            findings.pairs += len(chunk)
            shifts.feed(chunk, check_pairs(chunk, profile))
            if findings.is_train:
                find_long_pairs(chunk, self.tokenizer, self.config.data.max_length)
            yield chunk
        shifts.finish()
        is_all = shifts.pairs > MAX_WRONG * findings.pairs or not findings.has("unrelated")
        for kind in ("unrelated", "misfit") if shifts.pairs and is_all else ():
            findings.by_kind.pop((kind, ""), None)  # stretches say it more exactly
        for reason, count in reading.counts.items():
            if reason == CARRIAGE_RETURNS:
                findings.add_message("crlf", f"{count:,} lines")
            elif reason != NOT_UTF8:  # each such row is a finding of its own
                findings.add_message("counted", f"{reason}: {count:,}")
        if not findings.pairs and not findings.has("unreadable", "unequal"):
            findings.add_message("empty", f"{findings.what} holds no pairs")

    def _check_train(
        self, profile: Profile, scored: list[ScoredSet], duplicates: Duplicates, bar: Any
    ) -> None:
        """Check the training text, also for rows of the scored sets in it."""
        for number, findings in enumerate(self.train):
            for chunk in self._checked(findings, profile, bar):
                for each in scored:
                    each.compare(chunk, TRAIN)
                filled = ~chunk.blank.any(0)
                rows = np.array(chunk.numbers, np.uint64) | np.uint64(number << ROW_BITS)
                hashes = chunk.hashes[0] ^ np.uint64(findings.name in self.turned)
                duplicates.add(hashes[filled], rows[filled])
        left = sum(findings.pairs - findings.count("blank", "long") for findings in self.train)
        if left <= 0 and all(findings.pairs for findings in self.train):
            text = "no pair is left to train on: all are blank on a side, or over data.max_length"
            self.train[0].add_message("empty", text)
        for later, first in duplicates.groups():
            _report_duplicates(self.train, later, first)


def _report_duplicates(
    train: list[Findings], later: NDArray[np.uint64], first: NDArray[np.uint64]
) -> None:
    """Name the first pairs that were there before, and where."""
    mask = np.uint64((1 << ROW_BITS) - 1)
    for number, findings in enumerate(train):
        mine = np.flatnonzero(later >> np.uint64(ROW_BITS) == number)
        examples = []
        for index in mine[np.argsort(later[mine])][: findings.most].tolist():
            row, before = int(later[index] & mask), int(first[index] & mask)
            origin = train[int(first[index]) >> ROW_BITS]
            text, place = f"= {origin.name_row(before)}", origin.row_as_json(before)
            examples.append(findings.example(row, text, rank=row, first=place))
        if len(mine):
            findings.add("duplicate", len(mine), examples)
