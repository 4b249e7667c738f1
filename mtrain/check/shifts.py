"""Stretches of a corpus where the sides are out of step, found as its pairs go by."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mtrain.check.associations import Associations
from mtrain.check.chunks import Chunk
from mtrain.check.findings import Findings

MAX_NATS_PER_PAIR = 4.0  # most nats of one pair, for or against
MIN_EVIDENCE = 15.0  # nats against a stretch that is reported
DROP = 10.0  # nats for later pairs that end a stretch
MAX_SHIFT = 5  # lines apart that are tried
MARGIN = 10.0  # nats by which another distance must do better
MIN_PAIRS = 100  # of a stretch that goes together at no distance that is tried
MIN_GAIN = 2.0  # nats a pair by which lists of rare names or terms do better at their own place


@dataclass
class Stretch:
    """Pairs `start` to `end` whose words do not belong together; `better` is the evidence for each
    distance if one side is moved by it.
    """

    start: int
    end: int = 0
    worst: float = 0.0
    better: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2 * MAX_SHIFT + 1))


class Shifts:
    """Sums the evidence against pairs until enough speaks for them again."""

    def __init__(self, associations: Associations, findings: Findings) -> None:
        self.associations, self.findings = associations, findings
        self.sum = 0.0
        self.pairs = 0  # of the stretches that were reported
        self.open: Stretch | None = None

    def feed(self, chunk: Chunk, evidence: NDArray[np.float64]) -> None:
        """Add the next pairs; `evidence` is that of their words, in nats."""
        against = np.clip(-evidence, -MAX_NATS_PER_PAIR, MAX_NATS_PER_PAIR)
        start = stop = 0  # rows of the open stretch up to its worst
        for row, worth in enumerate(against.tolist()):
            if self.open is None:
                if worth <= 0:
                    continue
                self.open, self.sum, start = Stretch(chunk.numbers[row]), 0.0, row
            self.sum += worth
            if self.sum > self.open.worst:
                self.open.worst, self.open.end, stop = self.sum, chunk.numbers[row], row + 1
            if self.sum <= 0 or self.sum < self.open.worst - DROP:
                self._measure(chunk, start, stop)
                self.finish()
                stop = 0
        self._measure(chunk, start, stop)

    def _measure(self, chunk: Chunk, start: int, stop: int) -> None:
        """Try how the rows of the open stretch go together at other distances."""
        if self.open is None or self.open.worst < MIN_EVIDENCE or stop <= start:
            return
        first, last = max(0, start - MAX_SHIFT), min(len(chunk), stop + MAX_SHIFT)
        src, tgt = (words.part(first, last) for words in chunk.words)
        inner = slice(start - first, max(start - first + 1, last - first - MAX_SHIFT))
        for number in range(2 * MAX_SHIFT + 1):
            evidence = self.associations.evidence(src, tgt.shifted(MAX_SHIFT - number))
            self.open.better[number] += float(evidence[inner].sum())

    def finish(self) -> None:
        """Report the open stretch if its sides go together at another distance, or, if it is long,
        as little at their own as at others.
        """
        stretch, self.open = self.open, None
        if stretch is None or stretch.worst < MIN_EVIDENCE:
            return
        best, more = int(np.argmax(stretch.better)), {"end": stretch.end}
        own, others = stretch.better[MAX_SHIFT], np.delete(stretch.better, MAX_SHIFT)
        pairs = stretch.end - stretch.start + 1
        if stretch.better[best] >= max(0, own + MARGIN):
            more["distance"] = distance = best - MAX_SHIFT
            side = "behind" if distance > 0 else "before"
            place = f"about {abs(distance)} {self.findings.unit}(s) {side} their sources"
            text = f"targets stand {place}"
        elif pairs >= MIN_PAIRS and own - np.median(others) < MIN_GAIN * pairs:
            text = "no better together than with neighbouring lines"
        else:
            return
        example = self.findings.example(stretch.start, f"to {stretch.end}: {text}", **more)
        self.findings.add("slip", 1, [example])
        self.pairs += pairs
