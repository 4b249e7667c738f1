"""Find stretches of a corpus in which the lines of one side are shifted or shuffled, in one pass.

A running sum of the evidence against the pairs rises in such a stretch, and falls after it.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mtrain.check.associations import Associations
from mtrain.check.chunks import Chunk, Mask
from mtrain.check.findings import Findings

MAX_NATS_PER_PAIR = 4.0  # for or against
MIN_EVIDENCE = 15.0  # nats against a stretch that is reported
END_DROP = 10.0  # nats by which the sum falls below its maximum after a stretch
MAX_SHIFT = 10  # lines
MIN_SHIFT_GAIN = 10.0  # nats by which a shifted side must match better
MIN_PAIRS = 40  # of a reported stretch that matches at no shift
# Smallest evidence against such a stretch, in nats per pair, and largest by which it may match
# better than at other shifts: sound lists of names give less evidence, or match better.
MIN_NATS_PER_PAIR, MAX_UNSHIFTED_GAIN = 1.5, 2.0


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


class Shifts:
    """Sums the evidence against pairs, and ends a stretch once later pairs match again."""

    def __init__(self, associations: Associations, findings: Findings) -> None:
        self.associations, self.findings = associations, findings
        self.open: Stretch | None = None
        # of the stretches that were reported: first and last rows, pairs, and misfits
        self.stretches: list[tuple[int, int]] = []
        self.pairs = self.misfits = 0

    def feed(self, chunk: Chunk, evidence: NDArray[np.float64], misfit: Mask) -> None:
        """Process the next pairs, with the evidence, in nats, that each is a translation, and
        whether it was reported as a misfit.
        """
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
                self.finish()
        self._try_shifts(chunk, start, stop)

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

    def finish(self) -> None:
        """Close the open stretch. Report it if its sides match at another shift, or if it is long
        and matches no better unshifted than at other shifts.
        """
        stretch, self.open = self.open, None
        if stretch is None or stretch.max_sum < MIN_EVIDENCE:
            return
        best = int(np.argmax(stretch.shifted))
        extra = {"end": stretch.end}
        unshifted = stretch.shifted[MAX_SHIFT]
        others = np.delete(stretch.shifted, MAX_SHIFT)
        pairs = stretch.end - stretch.start + 1
        is_long = pairs >= MIN_PAIRS and stretch.max_sum >= MIN_NATS_PER_PAIR * pairs
        if stretch.shifted[best] >= max(0, unshifted + MIN_SHIFT_GAIN):
            extra["distance"] = distance = best - MAX_SHIFT
            direction = "behind" if distance > 0 else "ahead of"
            units = f"{self.findings.unit}s" if abs(distance) > 1 else self.findings.unit
            text = f"targets are about {abs(distance)} {units} {direction} their sources"
        elif is_long and unshifted - np.median(others) < MAX_UNSHIFTED_GAIN * pairs:
            text = "lines match no better than neighbouring ones; are they shuffled?"
        else:
            return
        example = self.findings.example(stretch.start, f"to {stretch.end}: {text}", **extra)
        self.findings.add("slip", 1, [example])
        self.stretches.append((stretch.start, stretch.end))
        self.pairs += pairs
        self.misfits += stretch.misfits
