"""Curves of a run's records as drawings: scales, ticks, paths, for the template that writes SVG."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from mtrain.corpus.lines import spaced

Point = tuple[int, float]

WIDTH, HEIGHT = 420, 250  # pixels, with the margins
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 36
MAX_VALUE = 1e300  # differences of larger values overflow
MIN_VALUE = 1e-300  # fractions of smaller values are 0
FLAT = 1e-9  # a curve whose values differ by less, relative to them, is flat
BUCKETS = 180  # parts of a long curve, each of which shows its lowest and its highest value
MAX_ROWS = 60  # of a curve's table
# Key of a chart, its title, and the values of the records that it shows.
CHARTS = (
    ("loss", "Training loss per token, with label smoothing", ["train/loss"]),
    ("nll", "NLL per token (in training with dropout)", ["train/nll", "valid/nll", "average/nll"]),
    ("bleu", "BLEU on the validation set", ["valid/bleu", "average/bleu"]),
    ("lr", "Learning rate", ["lr"]),
    ("grad", "Norm of the gradient, before clipping", ["grad_norm"]),
    ("speed", "Target tokens per second, without padding", ["tokens_per_second"]),
)


@dataclass(frozen=True)
class Series:
    """Values by step."""

    name: str
    points: list[Point]

    @property
    def summary(self) -> str:
        """Describe the curve in words."""
        (first, begin), (last, end) = self.points[0], self.points[-1]
        values = [value for _, value in self.points]
        return (
            f"{self.name}: from {begin:.4g} at step {first:,} to {end:.4g} at step {last:,}, "
            f"lowest {min(values):.4g}, highest {max(values):.4g}"
        )


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high`, drawn from `start` to `end` in pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the position of a value in pixels."""
        fraction = (value - self.low) / (self.high - self.low)
        return round(self.start + fraction * (self.end - self.start), 1)

    def ticks(self, least: float = 0.0) -> list[tuple[float, str]]:
        """Return position and text of round values that are at least `least` apart."""
        every = max(least, tick_distance(self.low, self.high))
        first, last = math.ceil(self.low / every - 1e-9), math.floor(self.high / every + 1e-9)
        values = [count * every for count in range(first, last + 1)]
        form = ".2e" if 0 < self.high < 0.001 else ",.6g"
        return [(self(value), format(value, form).replace("e-0", "e-")) for value in values]


@dataclass(frozen=True)
class Chart:
    """Curves over steps with one measure."""

    key: str
    title: str
    series: list[Series]
    last: int  # step that the axis goes to

    @property
    def summary(self) -> str:
        """Describe each curve in words."""
        return "; ".join(series.summary for series in self.series)

    @property
    def x(self) -> Axis:
        """The axis of steps."""
        return Axis(0, max(1, self.last), LEFT, WIDTH - RIGHT)

    @property
    def y(self) -> Axis:
        """The axis of values, which ends at round ones."""
        values = [value for series in self.series for _, value in series.points]
        low, high = min(values), max(values)
        for _ in range(2):  # between wider ends, ticks may be farther apart
            every = tick_distance(low, high)
            low, high = math.floor(low / every) * every, math.ceil(high / every) * every
        return Axis(low, high if high > low else low + every, HEIGHT - BOTTOM, TOP)

    def places(self, series: Series) -> list[tuple[float, float]]:
        """Return the points of a curve in pixels."""
        x, y = self.x, self.y
        return [(x(step), y(value)) for step, value in thinned(series.points)]

    @property
    def steps(self) -> list[int]:
        """The steps that any curve has a value for."""
        return sorted({step for series in self.series for step, _ in series.points})

    @property
    def rows(self) -> list[tuple[int, list[str]]]:
        """The figures by step, evenly spaced over the run if there are many."""
        columns = [dict(series.points) for series in self.series]
        return [
            (step, [f"{c[step]:.5g}" if step in c else "" for c in columns])
            for step in spaced(self.steps, MAX_ROWS)
        ]


def charts_of(records: list[dict[str, Any]]) -> Iterator[Chart]:
    """Draw those charts that records have finite values for, all up to the last step."""
    records = [record for record in records if 0 <= record["step"] < MAX_VALUE]
    last = max((record["step"] for record in records), default=0)
    for key, title, names in CHARTS:
        found = [Series(name, points) for name in names if (points := _points(records, name))]
        if found:
            yield Chart(key, title, found, last)


def _points(records: list[dict[str, Any]], name: str) -> list[Point]:
    """Return the values of a name that can be drawn."""
    values = ((record["step"], record.get(name)) for record in records)
    return [(n, float(v)) for n, v in values if isinstance(v, int | float) and abs(v) < MAX_VALUE]


def thinned(points: list[Point]) -> list[Point]:
    """Keep the ends of a curve, and the lowest and the highest point of each of `BUCKETS` parts."""
    size = math.ceil(len(points) / BUCKETS)
    parts = [points[i : i + size] for i in range(0, len(points), size)]
    kept = {choose(part, key=itemgetter(1)) for part in parts for choose in (min, max)}
    return sorted(kept | {points[0], points[-1]})


def tick_distance(low: float, high: float) -> float:
    """Choose 1, 2 or 5 times a power of ten, so that an axis gets four to nine ticks."""
    largest, span = max(abs(low), abs(high)), high - low
    if span <= FLAT * largest:
        span = largest
    if span < MIN_VALUE:
        span = 1.0
    power = math.pow(10.0, math.floor(math.log10(span / 4)))
    return next((factor * power for factor in (10, 5, 2) if factor * power <= span / 4), power)
