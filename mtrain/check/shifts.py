"""Stretches of a corpus where the sides are out of step, found as its pairs go by."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mtrain.check.associations import Associations
from mtrain.check.chunks import Chunk
from mtrain.check.findings import Example, Findings

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
        self.associations, self.misfit, self.found = associations, misfit, found
        self.sum = 0.0
        self.last: Stretch | None = None
        self.open: Stretch | None = None

    def feed(self, chunk: Chunk, evidence: NDArray[np.float64]) -> None:
        """Add the next pairs; `evidence` (2, pairs) is that of words and that of lengths."""
        words, lengths = evidence
        against = np.clip(-words, -MOST_OF_A_PAIR, MOST_OF_A_PAIR) - lengths
        longer = np.maximum(*(side.counts for side in chunk.words))
        misfits = (words <= -self.misfit) & (words <= -MISFIT_A_WORD * longer)
        start = stop = 0  # rows of the open stretch up to its worst
        for row, (worth, is_misfit) in enumerate(
            zip(against.tolist(), misfits.tolist(), strict=True)
        ):
            number = chunk.numbers[row]
            if self.open is None:
                if worth <= 0:
                    continue
                self.open, self.sum, start = Stretch(number, number), 0.0, row
            self.sum += worth
            if is_misfit:  # reported if the stretch around it is aligned
                self.open.misfits += 1
                if len(self.open.examples) < self.found.most:
                    self.open.examples.append(chunk.example(row, rank=float(words[row])))
            if self.sum > self.open.worst:
                self.open.worst, self.open.end, stop = self.sum, number, row + 1
            if self.sum <= 0 or self.sum < self.open.worst - DROP:
                self._measure(chunk, start, stop)
                self._close()
                stop = 0
        self._measure(chunk, start, stop)

    def finish(self) -> None:
        """Report what is open at the end."""
        self._close()
        self._report()

    def _measure(self, chunk: Chunk, start: int, stop: int) -> None:
        """Try how the rows of the open stretch go together at other distances."""
        if self.open is None or self.open.worst < LEAST or stop <= start:
            return
        first, last = max(0, start - FARTHEST), min(len(chunk), stop + FARTHEST)
        src, tgt = (words.part(first, last) for words in chunk.words)
        inner = slice(start - first, max(start - first + 1, last - first - FARTHEST))
        for number in range(2 * FARTHEST + 1):
            evidence = self.associations.evidence(src, tgt.shifted(FARTHEST - number))
            self.open.better[number] += float(evidence[inner].sum())

    def _close(self) -> None:
        """Judge the open stretch; one that goes on where the last one ended belongs to that."""
        stretch, self.open = self.open, None
        if stretch is None:
            return
        if not stretch.is_sure:
            if stretch.misfits:
                self.found.add("misfit", stretch.misfits, stretch.examples)
            return
        last = self.last
        if last and last.distance == stretch.distance and stretch.start - last.end <= SAME:
            last.end = stretch.end
        else:
            self._report()
            self.last = stretch

    def _report(self) -> None:
        stretch, self.last = self.last, None
        if stretch is None:
            return
        text, distance = "the words of the sides do not go together", stretch.distance
        if distance:
            side = "behind" if distance > 0 else "before"
            text = f"targets stand about {abs(distance)} {self.found.unit}(s) {side} their sources"
        example = self.found.example(
            stretch.start, text, rank=stretch.start, end=stretch.end, distance=distance
        )
        shown = f"{example.shown} to {stretch.end}"
        self.found.add("slip", 1, [replace(example, shown=shown)])
