"""Stretches of a corpus where the sides are out of step, found as its pairs go by."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mtrain.check.associations import Associations
from mtrain.check.findings import Chunk, Example, Findings, Place

MOST_OF_A_PAIR = 4.0  # most nats of one pair, for or against
LEAST = 15.0  # nats against a stretch that is reported
# The same where no distance is found by which it slipped, in all and of each pair: lists of rare
# names or terms have little that goes together, too.
MUCH, MUCH_EACH = 20.0, 5.0
DROP = 10.0  # nats for later pairs that end a stretch
FARTHEST = 5  # lines apart that are tried
MISFIT_A_WORD = 0.6  # nats against a pair for each word of its longer side, to report it
SAME = 50  # lines between two stretches that are reported as one
MARGIN = 10.0  # nats by which another distance must do better


@dataclass
class Stretch:
    """Pairs `start` to `end` whose words do not belong together; `better` is the evidence for each
    distance if one side is moved by it.
    """

    start: int
    end: int
    worst: float = 0.0
    better: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2 * FARTHEST + 1))
    misfits: int = 0
    examples: list[Example] = field(default_factory=list)

    @property
    def distance(self) -> int:
        """Distance in lines of the targets from their sources; 0 if it is unclear."""
        best = int(np.argmax(self.better))
        gain = self.better[best] - self.better[FARTHEST]
        is_clear = self.worst >= LEAST and gain >= MARGIN and self.better[best] > 0
        return best - FARTHEST if is_clear else 0

    def goes_on_in(self, other: "Stretch") -> bool:
        """Whether a later stretch, not far away, is shifted by the same distance."""
        return other.distance == self.distance and other.start - self.end <= SAME

    @property
    def is_sure(self) -> bool:
        """Whether enough evidence is against it."""
        if self.worst < LEAST or self.distance:
            return self.worst >= LEAST
        each = self.better[FARTHEST] / (self.end - self.start + 1)
        return self.worst >= MUCH and float(each) <= -MUCH_EACH


class Shifts:
    """Sums the evidence against pairs until enough speaks for them again. Pairs with more than
    `misfit` nats against them are reported alone if their neighbours are aligned.
    """

    def __init__(self, associations: Associations, misfit: float, found: Findings) -> None:
        self.associations, self.misfit, self.findings = associations, misfit, found
        self.sum = 0.0
        self.last: Stretch | None = None
        self.open: Stretch | None = None
        self.row = 0  # of the open stretch's start in the present chunk

    def feed(self, chunk: Chunk, evidence: NDArray[np.float64]) -> None:
        """Add the next pairs; `evidence` (2, pairs) is that of words and that of lengths."""
        words, lengths = evidence
        against = np.clip(-words, -MOST_OF_A_PAIR, MOST_OF_A_PAIR) - lengths
        self.row, last = 0, 0
        for row, worth in enumerate(against.tolist()):
            if self.open is None:
                if worth <= 0:
                    continue
                number = int(chunk.numbers[row])
                self.open, self.sum, self.row = Stretch(number, number), 0.0, row
            self.sum += worth
            if words[row] <= -self.misfit:
                self._hold(chunk, row, float(words[row]))
            if self.sum > self.open.worst:
                self.open.worst, self.open.end = self.sum, int(chunk.numbers[row])
                last = row + 1
            if self.sum <= 0 or self.sum < self.open.worst - DROP:
                self._measure(chunk, last)
                self._close()
                last = 0
        self._measure(chunk, last)

    def finish(self) -> None:
        """Report an open stretch at the end."""
        self._close()
        self._tell()

    def _hold(self, chunk: Chunk, row: int, evidence: float) -> None:
        """Keep a pair that does not belong together until the stretch around it is known."""
        words = max(int(words.counts[row]) for words in chunk.words)
        if self.open is not None and evidence <= -MISFIT_A_WORD * words:
            self.open.misfits += 1
            if len(self.open.examples) < self.findings.most:
                self.open.examples.append(self.findings.example(chunk, row, None, evidence))

    def _measure(self, chunk: Chunk, stop: int) -> None:
        """Try how the open stretch's pairs in this chunk go together at other distances."""
        if self.open is None or self.open.worst < LEAST or stop <= self.row:
            return
        start, stop = max(0, self.row - FARTHEST), min(len(chunk), stop + FARTHEST)
        src, tgt = (words.part(start, stop) for words in chunk.words)
        inner = slice(self.row - start, max(self.row - start + 1, stop - start - FARTHEST))
        for number in range(2 * FARTHEST + 1):
            evidence = self.associations.evidence(src, tgt, number - FARTHEST)
            self.open.better[number] += float(evidence[inner].sum())
        self.row = stop

    def _close(self) -> None:
        stretch, self.open = self.open, None
        if stretch is None:
            return
        if not stretch.is_sure:
            if stretch.misfits:
                self.findings.add("misfit", stretch.misfits, stretch.examples)
        elif self.last is not None and self.last.goes_on_in(stretch):
            self.last.end = stretch.end
        else:
            self._tell()
            self.last = stretch

    def _tell(self) -> None:
        stretch, self.last = self.last, None
        if stretch is not None:
            self.findings.add("slip", 1, [_example(self.findings.place, stretch)])


def _example(place: Place, stretch: Stretch) -> Example:
    """Report where the sides are out of step."""
    text = "the words of the sides do not go together"
    if distance := stretch.distance:
        side = "behind" if distance > 0 else "before"
        text = f"targets stand about {abs(distance)} {place.unit}(s) {side} their sources"
    shown = f"{place.name(stretch.start)} to {stretch.end}"
    json = {**place.as_json(stretch.start), "end": stretch.end, "distance": stretch.distance}
    return Example(stretch.start, stretch.start, shown, text, json)
