"""Check every corpus of a config.

1. scan      count the pairs, report unreadable files
2. sample    learn what is normal from a sample of the training text
3. sets      check validation and test sets, also for overlap with each other
4. train     check the training text, also for duplicates and overlap with the sets
"""

from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtrain.check.chunks import Chunk, Mask, chunks, split_rows
from mtrain.check.faults import check_pairs
from mtrain.check.findings import Findings
from mtrain.check.mixture import report_mixture
from mtrain.check.overlap import TRAIN, ScoredSet
from mtrain.check.profile import MAX_WRONG, Profile, report_whole_text
from mtrain.check.shifts import Shifts
from mtrain.check.words import Characters
from mtrain.config.schema import Config
from mtrain.corpus.lines import CARRIAGE_RETURNS, MAX_TEXT_LENGTH, NOT_UTF8, Reading, shorten_text
from mtrain.corpus.readers import Scan, UnequalError, read_rows, reading_of
from mtrain.corpus.tables import TextRow
from mtrain.data.duplicates import Duplicates, temporary_folder
from mtrain.data.filters import Selection
from mtrain.data.mix_ups import SAMPLE, is_informative, thin_rows
from mtrain.data.prepare import scan_corpus
from mtrain.data.styles import grouped_texts, odd_parts, style_differences
from mtrain.data.tokenizer import Tokenizer
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import progress_bar
from mtrain.runtime.stop import Stop
from mtrain.runtime.workers import CAN_FORK, map_tasks, worker_count

# Smallest number of texts in the same third language to report; fewer may be titles and quotations.
MIN_THIRD, MIN_THIRD_FRACTION = 5, 0.002
# Smallest number of texts with a bullet or number to report; fewer may be dates and ordinals.
MIN_MARKED, MIN_MARKED_FRACTION = 20, 0.01
# Pairs of a corpus that is checked in several processes, and the number of these: this process
# reads the text and compares it with other text, which takes about a fifth of the time.
MANY_PAIRS, MAX_PROCESSES = 20_000, 4
WORKER_DIED = (
    "a process that checks text died, perhaps for lack of memory; run the same command again, with "
    "--set data.workers=1 if it happens again"
)
ROW_BITS = 40  # low bits of a pair's number: its row; high bits: the index of its corpus


class CheckedPart(NamedTuple):
    """A chunk, whose `findings` are those of its rows alone, and what `check_pairs` returns."""

    chunk: Chunk
    evidence: NDArray[np.float64]
    mismatches: dict[str, NDArray[np.int64]]


class Checker:
    """Checks all corpora of a config and keeps at most `max_examples` examples of each kind."""

    tokenizer: Tokenizer | None  # the vocabulary that text is checked with
    profile: Profile  # of the sample, once it is read
    bar: Any  # progress, while text is checked

    def __init__(self, config: Config, stop: Stop, max_examples: int) -> None:
        self.config, self.stop = config, stop
        self.characters = Characters()
        data = config.data
        self.selection = Selection(data.max_length, config.filter)
        root = reading_of(config).root
        # do not check a corpus that lacks a side, which a model has yet to make
        self.entries = {key: entry for key, entry in data.corpora.items() if not entry.model}
        self.all_findings: list[Findings] = []  # by corpus, each checked in the forward direction
        for name, entry in self.entries.items():
            corpus = data.as_forward(entry)
            findings = Findings(name, corpus, root, max_examples, data.languages(corpus))
            findings.is_backward = corpus is not entry
            self.all_findings.append(findings)
        self.train = [findings for findings in self.all_findings if findings.is_train]
        self.scans: list[Scan] = []  # of the training text
        self.expected = dict.fromkeys(self.entries, 0)  # pairs
        self.sample: list[Chunk] = []

    def scan(self) -> None:
        """Count the pairs of all text; report unreadable files."""
        for findings in self.all_findings:
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
                if findings.is_train:
                    self.scans.append(scan)

    def check(self, tokenizer: Tokenizer | None) -> None:
        """Learn from a sample of the training text what is normal, then check everything, lengths
        in tokens by a vocabulary, or estimated without one.
        """
        self.tokenizer = tokenizer
        train_pairs = sum(self.expected[findings.name] for findings in self.train)
        all_pairs = sum(self.expected.values())
        with (
            temporary_folder() as folder,
            progress_bar(train_pairs + all_pairs, "pair", "checking") as self.bar,
        ):
            rows = thin_rows(self._informative_rows(max(1, train_pairs // SAMPLE)))
            for findings, group in groupby(rows, itemgetter(0)):
                own_rows = map(itemgetter(1), group)
                self.sample += chunks(findings, own_rows, self.characters)
            by_languages = defaultdict[tuple[str, str], list[Chunk]](list)
            for part in self.sample:
                by_languages[part.findings.languages].append(part)
            with self.stop.at_once():
                self.profile = Profile(self.sample)
                for parts in by_languages.values():
                    own_profile = self.profile if len(by_languages) == 1 else Profile(parts)
                    own_profile.report_corpora(self.config.data.allow_swapped)
                self._find_odd_parts()
            scored = self._check_sets()
            self._check_train(scored, Duplicates(folder, train_pairs))
            with self.stop.at_once():
                for parts in by_languages.values():
                    report_mixture(parts)  # once the other findings are known
        for scored_set in scored:
            scored_set.report(self.config.data.allow_overlap)

    def _find_odd_parts(self) -> None:
        """Report parts of the training text that are prepared differently from the rest."""
        sample = [
            (part.findings, part.findings.languages, part.numbers, part.texts)
            for part in self.sample
        ]
        for findings, side, first, last, message in odd_parts(sample):
            findings.add_message("style", f"{findings.name_row(first, side)} to {last}: {message}")

    def _check_sets(self) -> list[ScoredSet]:
        """Check validation and test sets, also for overlap with each other."""
        scored: list[ScoredSet] = []
        training = grouped_texts((part.findings.languages, part.texts) for part in self.sample)
        for findings in self.all_findings:
            if findings.is_train:
                continue
            rows = Chunk.join(findings, list(self._checked(findings)))
            report_whole_text(rows, self.config.data.allow_swapped)
            for message in style_differences(training, findings.languages, rows.texts):
                findings.add_message("style", message)
            if findings.has("turned"):
                findings.remove("swapped")  # repeats "turned" for each row
            for earlier in scored:
                # the same text may be scored in both directions
                if earlier.findings.is_backward == findings.is_backward:
                    earlier.search(rows, findings.name)
            scored.append(ScoredSet(rows))
        return scored

    def _rows(self, findings: Findings, reading: Reading) -> Iterator[TextRow]:
        """Yield the rows of a corpus up to the first error that concerns more than a row."""
        reading.invalid_utf8 = "error"  # `refuse` gets each invalid row
        try:
            for row in read_rows(findings.corpus, reading):
                self.stop.check()
                yield row
        except UserError as error:
            self.stop.check()
            if not findings.has("unreadable", "unequal"):
                findings.add_message("unreadable", str(error))

    def _informative_rows(self, step: int) -> Iterator[tuple[Findings, TextRow]]:
        """Yield every `step`-th training pair, but none with blank or equal sides."""
        for findings in self.train:
            # `_checked` reports rows that are refused
            reading = reading_of(self.config, keep_blank=True, refuse=lambda error: None)
            for row in islice(self._rows(findings, reading), 0, None, step):
                self.bar.update(step)
                if is_informative(row):
                    yield findings, row

    def _checked(self, findings: Findings) -> Iterator[Chunk]:
        """Check the pairs of a corpus and yield its chunks."""
        is_dropped = self.config.data.invalid_utf8 == "drop"
        refuse = partial(findings.add_error, is_dropped=is_dropped)
        reading = reading_of(self.config, keep_blank=True, refuse=refuse)
        shifts = Shifts(self.profile.associations, findings)
        mismatches = defaultdict[str, list[NDArray[np.int64]]](list)  # rows by kind and chunk
        with closing(self._checked_parts(findings, reading)) as parts:
            for part in parts:
                self.bar.update(len(part.chunk))
                findings.include(part.chunk.findings)
                shifts.feed(part.chunk, part.evidence)
                for kind, numbers in part.mismatches.items():
                    mismatches[kind].append(numbers)
                yield part.chunk
        shifts.finish()
        for kind, numbers_by_chunk in mismatches.items():
            # a stretch says more
            findings.remove_rows(kind, shifts.reported_of(np.concatenate(numbers_by_chunk)))
        _remove_explained(findings, sum(rows.pairs for rows in shifts.reported))
        for reason, count in reading.counts.items():
            if reason == CARRIAGE_RETURNS:
                findings.add_message("crlf", f"{count:,} lines")
            elif reason != NOT_UTF8:  # `refuse` has reported such rows
                findings.add_message("counted", f"{reason}: {count:,}")
        if findings.pairs == 0:
            if not findings.has("unreadable", "unequal"):
                findings.add_message("empty", f"{findings.what} holds no pairs")
        elif not findings.is_train and findings.count("blank") == findings.pairs:
            findings.add_message("empty", "all pairs are blank on a side")

    def _checked_parts(self, findings: Findings, reading: Reading) -> Generator[CheckedPart]:
        """Check the pairs of a corpus by chunks, in several processes if there are many."""
        parts = split_rows(self._rows(findings, reading))
        check = partial(self._check_part, findings)
        processes = min(worker_count(self.config.data.workers), MAX_PROCESSES)
        if processes < 2 or not CAN_FORK or self.expected[findings.name] < MANY_PAIRS:
            return (check(rows) for rows in parts)
        return map_tasks(
            check, parts, processes, WORKER_DIED, forked=True, check_stop=self.stop.check
        )

    def _check_part(self, findings: Findings, rows: list[TextRow]) -> CheckedPart:
        """Check some rows of the corpus of these findings, without adding to them."""
        part = findings.of_part()
        chunk = Chunk.of(part, rows, self.characters)
        part.pairs = len(chunk)
        evidence, mismatches = check_pairs(chunk, self.profile)
        if part.is_train:
            is_long = _find_long_pairs(chunk, self.tokenizer, self.selection.max_length)
            kept = ~chunk.blank.any(0) & ~is_long
            usable = _filter(chunk, kept, self.tokenizer, self.selection)
            part.usable = int(usable.sum())
            chunk.prepare()
        return CheckedPart(chunk, evidence, mismatches)

    def _check_train(self, scored: list[ScoredSet], duplicates: Duplicates) -> None:
        """Check the training text, also for duplicates and for rows of the scored sets."""
        for index, findings in enumerate(self.train):
            for chunk in self._checked(findings):
                for scored_set in scored:
                    scored_set.search(chunk, TRAIN)
                filled = ~chunk.blank.any(0)
                rows = np.array(chunk.numbers, np.uint64) | np.uint64(index << ROW_BITS)
                duplicates.add(chunk.pair_hashes[filled], rows[filled])
        has_usable = any(findings.usable for findings in self.train)
        if not has_usable and all(findings.pairs for findings in self.train):
            text = (
                "no pair is left to train on: all are blank on a side, over data.max_length or "
                "left out by filter; change the text or these settings"
            )
            self.train[0].add_message("empty", text)
        for later, first in duplicates.groups():
            _report_duplicates(self.train, later, first)


def _find_long_pairs(chunk: Chunk, tokenizer: Tokenizer | None, max_length: int) -> Mask:
    """Report and return the pairs that training drops for their length; `max_length` is in tokens
    with eos and tag.
    """
    tags = np.array(chunk.findings.tags)
    if tokenizer is None:
        lengths = (chunk.estimated_tokens + tags).max(1)
        limit, detail = max_length - 1, "(estimated)"
    else:
        limit, detail = max_length, f"{max_length}"
        lengths = np.zeros(len(chunk))
        sizes = np.array([[len(text.encode("utf-8")) for text in texts] for texts in chunk.texts])
        # no text has many more tokens than bytes
        rows = np.flatnonzero((sizes + tags[:, None]).max(0) >= max_length - 1)
        for texts, tag in zip(chunk.texts, tags, strict=True):
            shortened = [shorten_text(texts[row], MAX_TEXT_LENGTH) for row in rows.tolist()]
            counts = [len(ids) + tag for ids in tokenizer.encode(shortened)]
            lengths[rows] = np.maximum(lengths[rows], counts)
    is_long: Mask = lengths >= limit
    chunk.report("long", is_long, ranks=-lengths, detail=detail)
    return is_long


def _filter(chunk: Chunk, mask: Mask, tokenizer: Tokenizer | None, selection: Selection) -> Mask:
    """Return which of the rows of a mask the filters keep; report the others by reason."""
    backward = -1 if chunk.findings.is_backward else 1  # filters see the pair as it is learned
    dropped = {
        reason: np.array([*map(is_bad, zip(*chunk.texts[::backward], strict=True))], bool)
        for reason, is_bad in selection.text_checks().items()
    }
    if selection.filter.min_length or selection.filter.max_ratio:
        lengths, detail = chunk.estimated_tokens.copy(), " (estimated)"
        if tokenizer is not None:
            rows, detail = np.flatnonzero(mask), ""
            for side, texts in enumerate(chunk.texts):
                encoded = tokenizer.encode([texts[row] for row in rows.tolist()])
                lengths[rows, side] = [*map(len, encoded)]
        lengths += chunk.findings.tags
        by_length = selection.length_checks(lengths).items()
        dropped |= {reason + detail: is_bad for reason, is_bad in by_length}
    for reason, is_bad in dropped.items():
        chunk.report("filtered", mask & is_bad, detail=reason)
        mask = mask & ~is_bad
    return mask


def _remove_explained(findings: Findings, shifted: int) -> None:
    """Remove findings of a corpus that another finding explains, or that may be due to chance;
    `shifted` is the number of its pairs that are shifted or shuffled.
    """
    findings.remove("third_language", below=max(MIN_THIRD, MIN_THIRD_FRACTION * findings.pairs))
    findings.remove("marked", below=max(MIN_MARKED, MIN_MARKED_FRACTION * findings.pairs))
    if shifted > MAX_WRONG * findings.pairs:
        findings.remove("unrelated", "cut")
    if findings.has("unrelated"):
        findings.remove("cut")
    if findings.count("encoding", "dropped") > findings.pairs:
        findings.remove("language")  # most rows cannot be read; the rest may be in ASCII only


def _report_duplicates(
    train: list[Findings], later: NDArray[np.uint64], first: NDArray[np.uint64]
) -> None:
    """Report the `later` numbers of repeated pairs, each with the `first` number of its pair."""
    row_mask = np.uint64((1 << ROW_BITS) - 1)
    for corpus_index, findings in enumerate(train):
        repeats = np.flatnonzero(later >> np.uint64(ROW_BITS) == corpus_index)
        examples = []
        for index in repeats[np.argsort(later[repeats])][: findings.max_examples].tolist():
            row, first_row = int(later[index] & row_mask), int(first[index] & row_mask)
            origin = train[int(first[index]) >> ROW_BITS]
            text = f"= {origin.name_row(first_row)}"
            place = origin.row_as_json(first_row)
            examples.append(findings.example(row, text, rank=row, first=place))
        if len(repeats):
            findings.add("duplicate", len(repeats), examples)
