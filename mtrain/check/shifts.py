"""Find stretches of a corpus in which the lines of one side are shifted or shuffled, in one pass.

A running sum of the evidence against the pairs rises in such a stretch, and falls after it. If most
of the text is shifted, words give no evidence, and the lengths of the sides tell the distance.
"""

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from mtrain.check.associations import Associations
from mtrain.check.chunks import Chunk, Mask
from mtrain.check.findings import Findings
from mtrain.corpus.misalignment import distances_of, shift_text, shifted_throughout

MAX_NATS_PER_PAIR = 4.0  # for or against
MIN_EVIDENCE = 15.0  # nats against a stretch that is reported
END_DROP = 10.0  # nats by which the sum falls below its maximum after a stretch
MAX_SHIFT = 10  # lines
MIN_SHIFT_GAIN = 10.0  # nats by which a shifted side must match better
MIN_PAIRS = 40  # of a reported stretch that matches at no shift
# Smallest evidence against such a stretch, in nats per pair, and largest by which it may match
# better than at other shifts: sound lists of names give less evidence, or match better.
MIN_NATS_PER_PAIR, MAX_UNSHIFTED_GAIN = 1.5, 2.0
# Lengths tell the ends of a run of rows at one distance with an error of some rows. Most rows of
# a stretch whose ends words tell better, as a multiple of its run; and the smallest fraction of a
# text that is shifted throughout, as windows at its ends may be unclear.
MAX_RATIO, MIN_WHOLE = 1.5, 0.9


@dataclass
class Stretch:
    """Rows `start` to `end`, whose sides do not match. `end` is where the sum of the evidence
    against the rows, in nats, is largest: rows are added until the sum has fallen again.
    """

    start: int
    end: int = 0
    max_sum: float = 0.0
    misfits: int = 0  # pairs up to `end` that were reported one by one
    # up to the latest row that was added
    sum: float = 0.0
    added_misfits: int = 0
    # evidence for the rows with the targets -MAX_SHIFT to MAX_SHIFT lines behind their sources
    shifted: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2 * MAX_SHIFT + 1))

    def add(self, row: int, nats: float, *, is_misfit: bool) -> bool:
        """Add a row, with the evidence against it. Return whether the stretch now ends with it."""
        self.sum += nats
        self.added_misfits += int(is_misfit)
        if self.sum <= self.max_sum:
            return False
        self.end = row
        self.max_sum = self.sum
        self.misfits = self.added_misfits
        return True

    @property
    def is_over(self) -> bool:
        """Whether the rows after `end` match, so that the stretch does not go on."""
        return self.sum <= 0 or self.sum < self.max_sum - END_DROP


@dataclass
class Run:
    """Rows whose sides have one distance, by their lengths."""

    start: int
    end: int
    distance: int
    misfits_before: int  # in the rows before `start`
    misfits: int = 0
    reported: int = 0  # rows of stretches that were reported

    @property
    def pairs(self) -> int:
        """Number of rows."""
        return self.end - self.start + 1


class Shifts:
    """Sums the evidence against pairs, and ends a stretch once later pairs match again."""

    def __init__(self, associations: Associations, findings: Findings) -> None:
        self.associations, self.findings = associations, findings
        self.open: Stretch | None = None
        # of the stretches that were reported: first and last rows, pairs, and misfits
        self.stretches: list[tuple[int, int]] = []
        self.pairs = self.misfits = 0
        self.runs: list[Run] = []
        self.all_misfits = 0  # in all rows so far

    def feed(self, chunk: Chunk, evidence: NDArray[np.float64], misfit: Mask) -> None:
        """Process the next pairs, with the evidence, in nats, that each is a translation, and
        whether it was reported as a misfit.
        """
        self._add_runs(chunk, misfit)
        against = np.clip(-evidence, -MAX_NATS_PER_PAIR, MAX_NATS_PER_PAIR)
        start = stop = 0  # the part of the chunk that belongs to the open stretch
        for index, (nats, is_misfit) in enumerate(zip(against.tolist(), misfit, strict=True)):
            if self.open is None:
                if nats <= 0:
                    continue
                self.open = Stretch(chunk.numbers[index])
                start = index
            if self.open.add(chunk.numbers[index], nats, is_misfit=is_misfit):
                stop = index + 1
            if self.open.is_over:
                self._try_shifts(chunk, start, stop)
                self._close()
        self._try_shifts(chunk, start, stop)

    def _add_runs(self, chunk: Chunk, misfit: Mask) -> None:
        """Continue the runs with the next pairs."""
        misfits = self.all_misfits + np.append(0, np.cumsum(misfit))
        self.all_misfits = int(misfits[-1])
        before = self.runs[-1].distance if self.runs else 0
        for start, stop, distance in distances_of(chunk.lengths, before):
            if not self.runs or distance != self.runs[-1].distance:
                row = chunk.numbers[start]
                self.runs.append(Run(row, row, distance, int(misfits[start])))
            run = self.runs[-1]
            run.end = chunk.numbers[stop - 1]
            run.misfits = int(misfits[stop]) - run.misfits_before

    def _try_shifts(self, chunk: Chunk, start: int, stop: int) -> None:
        """Add the evidence for a part of the open stretch with the targets shifted. Rows whose
        shifted target is not in the chunk count as unshifted.
        """
        if self.open is None or self.open.max_sum < MIN_EVIDENCE or stop <= start:
            return
        first, last = max(0, start - MAX_SHIFT), min(len(chunk), stop + MAX_SHIFT)
        src, tgt = (words.part(first, last) for words in chunk.words)
        rows = np.arange(start - first, stop - first)
        unshifted = self.associations.evidence(src, tgt)[rows]
        for index in range(2 * MAX_SHIFT + 1):
            distance = MAX_SHIFT - index
            evidence = self.associations.evidence(src, tgt.shifted(distance))[rows]
            is_there = (rows >= distance) & (rows < len(src) + distance)
            self.open.shifted[index] += float(np.where(is_there, evidence, unshifted).sum())

    def _close(self) -> None:
        """Close the open stretch. Report it if its sides match at another shift, or if it is long
        and matches no better unshifted than at other shifts; but not if lengths say more of it.
        """
        stretch, self.open = self.open, None
        if stretch is None or stretch.max_sum < MIN_EVIDENCE:
            return
        best, distance = int(np.argmax(stretch.shifted)), 0
        unshifted = stretch.shifted[MAX_SHIFT]
        others = np.delete(stretch.shifted, MAX_SHIFT)
        pairs = stretch.end - stretch.start + 1
        is_long = pairs >= MIN_PAIRS and stretch.max_sum >= MIN_NATS_PER_PAIR * pairs
        if stretch.shifted[best] >= max(0, unshifted + MIN_SHIFT_GAIN):
            distance = best - MAX_SHIFT
        elif not is_long or unshifted - np.median(others) >= MAX_UNSHIFTED_GAIN * pairs:
            return
        middle = (stretch.start + stretch.end) // 2
        index = bisect_right(self.runs, middle, key=attrgetter("start")) - 1
        if index >= 0 and (run := self.runs[index]).distance and run.end >= middle:
            is_same = distance == run.distance and pairs <= MAX_RATIO * run.pairs
            if not is_same or index == 0:  # the first run may be the whole text
                return
            run.reported += pairs
        self._report(stretch.start, stretch.end, distance)
        self.misfits += stretch.misfits

    def finish(self) -> None:
        """Close the open stretch, and report the shifts that only lengths tell."""
        self._close()
        for run in self.runs:
            if run.distance and run.reported < run.pairs / 2:
                is_all = len(self.runs) == 1 and run.pairs >= MIN_WHOLE * self.findings.pairs
                self._report(run.start, run.end, run.distance, is_all=is_all)
                self.misfits += run.misfits

    def _report(self, start: int, end: int, distance: int, *, is_all: bool = False) -> None:
        """Report rows at a distance, or shuffled if it is 0."""
        unit = self.findings.unit
        text = f"to {end}: lines match no better than neighbouring ones; are they shuffled?"
        extra = {"end": end}
        if distance:
            text = f"to {end}: targets are about {shift_text(distance, unit)}"
            extra["distance"] = distance
        example = self.findings.example(start, text, **extra)
        if is_all:  # a message: longer than a line
            example = replace(example, shown="", text=shifted_throughout(distance, unit))
        self.findings.add("slip", 1, [example])
        self.stretches.append((start, end))
        self.pairs += end - start + 1
