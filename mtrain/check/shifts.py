"""Find stretches of a corpus in which the lines of one side are shifted or shuffled, in one pass.

Words find a `Stretch`: the sum of the evidence against the pairs rises in it, and falls after it.
Where words match badly, the sum also falls within a stretch; once the distance of the sides is
known, it continues with the evidence for this distance against none. If most of the text is
shifted, words give no evidence, and the lengths of the sides find a `Section` at one distance.
"""

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import cache, partial
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from mtrain.check.associations import Associations
from mtrain.check.chunks import Chunk
from mtrain.check.findings import Findings
from mtrain.corpus.misalignment import distances_of, shift_text, shifted_throughout

MAX_NATS_PER_PAIR = 4.0  # for or against
MIN_EVIDENCE = 15.0  # nats against a stretch that is reported
END_DROP = 10.0  # nats by which the sum falls below its maximum after a stretch
MAX_SHIFT = 10  # lines
MIN_SHIFT_GAIN = 10.0  # nats by which a shifted side must match better
MAX_GAP = 0.5  # rows between stretches that are one, as a fraction of the shorter stretch
MIN_PAIRS = 40  # of a reported stretch that matches at no shift
# Smallest evidence against such a stretch, in nats per pair, and largest by which it may match
# better than at other shifts: sound lists of names give less evidence, or match better.
MIN_NATS_PER_PAIR, MAX_UNSHIFTED_GAIN = 1.5, 2.0
MAX_RATIO = 1.5  # rows of a stretch, as a multiple of its section's, whose ends are imprecise
MIN_WHOLE = 0.9  # fraction of a text that is shifted throughout: its ends may be unclear


@dataclass
class Rows:
    """Rows `start` to `end`. The targets are `distance` lines behind their sources, ahead of them
    if it is negative; 0 if the distance is not known.
    """

    start: int
    end: int = 0
    distance: int = 0

    @property
    def pairs(self) -> int:
        """Number of rows."""
        return self.end - self.start + 1


@dataclass
class Stretch(Rows):
    """Rows whose sides do not match, by words. `end` is where the sum of the evidence against the
    rows, in nats, is largest: rows are added until the sum has fallen again.
    """

    max_sum: float = 0.0
    sum: float = 0.0  # up to the latest row that was added
    # evidence for the rows with the targets -MAX_SHIFT to MAX_SHIFT lines behind their sources
    shifted: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2 * MAX_SHIFT + 1))

    def add(self, row: int, nats: float) -> bool:
        """Add a row, with the evidence against it. Return whether the stretch now ends with it."""
        self.sum += nats
        if self.sum <= self.max_sum:
            return False
        self.end, self.max_sum = row, self.sum
        return True

    def resume(self) -> None:
        """Continue after `end` at the best distance."""
        self.distance, self.sum = self.best_distance, self.max_sum

    @property
    def is_over(self) -> bool:
        """Whether the rows after `end` match, so that the stretch does not continue."""
        return self.sum <= 0 or self.sum < self.max_sum - END_DROP

    @property
    def best_distance(self) -> int:
        """The distance at which the rows match best; 0 if it is not certain."""
        best = int(np.argmax(self.shifted))
        is_certain = self.shifted[best] >= max(0, self.shifted[MAX_SHIFT] + MIN_SHIFT_GAIN)
        return best - MAX_SHIFT if self.max_sum >= MIN_EVIDENCE and is_certain else 0

    @property
    def is_shuffled(self) -> bool:
        """Whether the rows are many and match no better unshifted than at other distances."""
        gain = self.shifted[MAX_SHIFT] - np.median(np.delete(self.shifted, MAX_SHIFT))
        is_long = self.pairs >= MIN_PAIRS and self.max_sum >= MIN_NATS_PER_PAIR * self.pairs
        return bool(is_long and gain < MAX_UNSHIFTED_GAIN * self.pairs)

    def is_one_with(self, later: "Stretch") -> bool:
        """Whether few rows are between this stretch and a later one at the same distance."""
        gap = later.start - self.end - 1
        is_small = gap <= MAX_GAP * min(self.pairs, later.pairs)
        return self.distance == later.distance and is_small


@dataclass
class Section(Rows):
    """Consecutive rows whose sides have one distance, by their lengths."""

    stretches: list[Stretch] = field(default_factory=list)  # at this distance, by words


class Shifts:
    """Sums the evidence against pairs, and ends a stretch once later pairs match again."""

    def __init__(self, associations: Associations, findings: Findings) -> None:
        self.associations, self.findings = associations, findings
        self.open: Stretch | None = None
        self.closed: list[Stretch] = []
        self.sections: list[Section] = []
        self.reported: list[Rows] = []

    def feed(self, chunk: Chunk, evidence: NDArray[np.float64]) -> None:
        """Process the next pairs, with the evidence, in nats, that each is a translation."""
        self._add_sections(chunk)
        against = cache(partial(self._against, chunk, evidence))
        index = start = stop = 0  # from `start` to `stop`: the part that the open stretch has
        while index < len(chunk):
            row, nats = chunk.numbers[index], against(self.open.distance if self.open else 0)[index]
            if self.open is None and nats > 0:
                self.open, start = Stretch(row), index
            index += 1
            if self.open is None:
                continue
            if self.open.add(row, nats):
                stop = index
            if not self.open.is_over:
                continue
            self._try_shifts(chunk, start, stop)
            if not self.open.distance and self.open.best_distance:
                self.open.resume()
                index = stop
            else:
                self._close()
        self._try_shifts(chunk, start, stop)

    def _against(self, chunk: Chunk, evidence: NDArray[np.float64], distance: int) -> list[float]:
        """Return the evidence, in nats, that each pair is not a translation. If `distance` is not
        0, it is for the target at this distance instead of the pair's own; 0 if the chunk lacks it.
        """
        against = -evidence
        if distance:
            src, tgt = chunk.words
            rows = np.arange(len(chunk))
            is_in_chunk = (rows >= -distance) & (rows < len(chunk) - distance)
            against += self.associations.evidence(src, tgt.shifted(-distance))
            against = np.where(is_in_chunk, against, 0.0)
        clipped: list[float] = np.clip(against, -MAX_NATS_PER_PAIR, MAX_NATS_PER_PAIR).tolist()
        return clipped

    def _add_sections(self, chunk: Chunk) -> None:
        """Continue the sections with the next pairs."""
        before = self.sections[-1].distance if self.sections else 0
        for start, stop, distance in distances_of(chunk.lengths, before):
            if not self.sections or distance != self.sections[-1].distance:
                self.sections.append(Section(chunk.numbers[start], distance=distance))
            self.sections[-1].end = chunk.numbers[stop - 1]

    def _try_shifts(self, chunk: Chunk, start: int, stop: int) -> None:
        """Add the evidence for a part of the open stretch with the targets shifted. Rows whose
        shifted target is not in the chunk count as unshifted.
        """
        if self.open is None or self.open.distance or self.open.max_sum < MIN_EVIDENCE:
            return
        if stop <= start:
            return
        first, last = max(0, start - MAX_SHIFT), min(len(chunk), stop + MAX_SHIFT)
        src, tgt = (words.part(first, last) for words in chunk.words)
        rows = np.arange(start - first, stop - first)
        unshifted = self.associations.evidence(src, tgt)[rows]
        for index in range(2 * MAX_SHIFT + 1):
            distance = MAX_SHIFT - index
            evidence = self.associations.evidence(src, tgt.shifted(distance))[rows]
            is_in_chunk = (rows >= distance) & (rows < len(src) + distance)
            self.open.shifted[index] += float(np.where(is_in_chunk, evidence, unshifted).sum())

    def _close(self) -> None:
        """Close the open stretch. Keep it if its sides match at a distance, or seem shuffled."""
        stretch, self.open = self.open, None
        if stretch is None or stretch.max_sum < MIN_EVIDENCE:
            return
        stretch.distance = stretch.distance or stretch.best_distance
        if not stretch.distance and not stretch.is_shuffled:
            return
        if self.closed and self.closed[-1].is_one_with(stretch):
            stretch = replace(self.closed.pop(), end=stretch.end)  # with the rows between them
        self.closed.append(stretch)

    def finish(self) -> None:
        """Close the open stretch, and report all stretches. Where lengths tell a distance, report
        the stretches at this distance if they are most of the section, or else the section.
        """
        self._close()
        for stretch in self.closed:
            middle = (stretch.start + stretch.end) // 2
            index = bisect_right(self.sections, middle, key=attrgetter("start")) - 1
            section = self.sections[index] if index >= 0 else Section(0)
            is_same = section.distance == stretch.distance
            is_longer = is_same and stretch.pairs > MAX_RATIO * section.pairs
            if not section.distance or section.end < middle or is_longer:
                self._report(stretch)
            elif is_same:
                section.stretches.append(stretch)
        middles = [(section.start + section.end) // 2 for section in self.sections]
        known = set(self.reported_of(np.array(middles, np.int64)).tolist())  # by words
        for index, (section, middle) in enumerate(zip(self.sections, middles, strict=True)):
            # the first section may be the whole text
            if index and sum(each.pairs for each in section.stretches) >= section.pairs / 2:
                for stretch in section.stretches:
                    self._report(stretch)
            elif section.distance and middle not in known:
                self._report(section)

    def reported_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of these rows that are in reported stretches."""
        starts = np.sort([rows.start for rows in self.reported])
        ends = np.sort([rows.end for rows in self.reported])
        begun, ended = np.searchsorted(starts, numbers, "right"), np.searchsorted(ends, numbers)
        return numbers[begun > ended]

    def _report(self, rows: Rows) -> None:
        """Report rows that are shifted, or shuffled if their distance is not known."""
        unit = self.findings.unit
        text = f"to {rows.end}: lines match no better than neighbouring ones; are they shuffled?"
        extra = {"end": rows.end}
        if rows.distance:
            text = f"to {rows.end}: targets are about {shift_text(rows.distance, unit)}"
            extra["distance"] = rows.distance
        example = self.findings.example(rows.start, text, **extra)
        is_only_section = len(self.sections) == 1 and rows is self.sections[0]
        if is_only_section and rows.pairs >= MIN_WHOLE * self.findings.pairs:
            # a message: longer than a line
            example = replace(example, shown="", text=shifted_throughout(rows.distance, unit))
        self.findings.add("slip", 1, [example])
        self.reported.append(rows)
