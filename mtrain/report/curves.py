"""Curves of a run's records: axes, ticks and points in pixels, from which a template makes SVG."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from mtrain.corpus.lines import evenly_spaced

Point = tuple[int, float]

WIDTH, HEIGHT = 420, 250  # pixels, with the margins
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 36
MAX_VALUE = 1e300  # differences of larger values overflow
DECIMALS = 100  # places after the decimal point that values are rounded to
BUCKETS = 180  # parts of a long curve; the lowest and the highest point of each are drawn
MAX_ROWS = 60  # rows of a curve's table
# Key and title of each chart, and the keys of `metrics.jsonl` that it shows.
CHARTS = (
    ("loss", "Training loss per token, with label smoothing", ["train/loss"]),
    ("nll", "NLL per token (train/nll: with dropout)", ["train/nll", "valid/nll", "average/nll"]),
    ("bleu", "BLEU on the validation set", ["valid/bleu", "average/bleu"]),
    ("command", "Score of --metric-command", ["valid/command", "average/command"]),
    ("lr", "Learning rate", ["lr"]),
    ("grad", "Norm of the gradient, before clipping", ["grad_norm"]),
    ("speed", "Target tokens per second, without padding", ["tokens_per_second"]),
)


@dataclass(frozen=True)
class Series:
    """A curve: values by step."""

    name: str
    points: list[Point]

    @property
    def summary(self) -> str:
        """Describe the curve in words."""
        (first_step, first), (last_step, last) = self.points[0], self.points[-1]
        values = [value for _, value in self.points]
        if len(values) == 1:
            return f"{self.name}: {first:.4g} at step {first_step:,}"
        return (
            f"{self.name}: from {first:.4g} at step {first_step:,} to {last:.4g} at step "
            f"{last_step:,}, lowest {min(values):.4g}, highest {max(values):.4g}"
        )


@dataclass(frozen=True)
class Axis:
    """An axis of values from `low` to `high`, drawn from pixel `start` to pixel `end`."""

    low: float
    high: float
    start: int
    end: int

    def __call__(self, value: float) -> float:
        """Return the position of a value in pixels."""
        fraction = (value - self.low) / (self.high - self.low)
        return round(self.start + fraction * (self.end - self.start), 1)

    def ticks(self, min_distance: float = 0.0) -> list[tuple[float, str]]:
        """Return pixels and labels of round values that are at least `min_distance` apart."""
        distance = max(min_distance, tick_distance(self.low, self.high))
        first = math.ceil(self.low / distance - 1e-9)
        last = math.floor(self.high / distance + 1e-9)
        values = [multiple * distance for multiple in range(first, last + 1)]
        form = ".2e" if 0 < self.high < 0.001 else ",.6g"
        return [(self(value), format(value, form).replace("e-0", "e-")) for value in values]


@dataclass(frozen=True)
class Chart:
    """Curves over steps that share one axis of values."""

    key: str
    title: str
    series: list[Series]
    last: int  # last step on the axis
    size = WIDTH, HEIGHT

    @property
    def summary(self) -> str:
        """Describe each curve in words."""
        return "; ".join(series.summary for series in self.series)

    @property
    def x(self) -> Axis:
        """Horizontal axis: steps."""
        return Axis(0, max(1, self.last), LEFT, WIDTH - RIGHT)

    @property
    def y(self) -> Axis:
        """Vertical axis: values, from tick to tick."""
        values = [value for series in self.series for _, value in series.points]
        low, high = min(values), max(values)
        for _ in range(2):  # rounding widens the range, and its ticks may then be farther apart
            distance = tick_distance(low, high)
            low = math.floor(low / distance) * distance
            high = math.ceil(high / distance) * distance
        return Axis(low, high if high > low else low + distance, HEIGHT - BOTTOM, TOP)

    def pixels(self, series: Series) -> list[tuple[float, float]]:
        """Return the points of a curve in pixels."""
        x, y = self.x, self.y
        return [(x(step), y(value)) for step, value in downsample(series.points)]

    @property
    def steps(self) -> list[int]:
        """All steps for which a curve has a value."""
        return sorted({step for series in self.series for step, _ in series.points})

    @property
    def rows(self) -> list[tuple[int, list[str]]]:
        """Rows of a table, a step and its values as text; at most `MAX_ROWS`, evenly spaced."""
        columns = [dict(series.points) for series in self.series]
        return [
            (step, [f"{c[step]:.5g}" if step in c else "" for c in columns])
            for step in evenly_spaced(self.steps, MAX_ROWS)
        ]


def charts_of(records: list[dict[str, Any]]) -> Iterator[Chart]:
    """Yield each chart for which the records have values, all with the same axis of steps."""
    records = [record for record in records if 0 <= record["step"] < MAX_VALUE]
    last = max((record["step"] for record in records), default=0)
    for key, title, names in CHARTS:
        curves = [Series(name, points) for name in names if (points := _points(records, name))]
        if curves:
            yield Chart(key, title, curves, last)


def _points(records: list[dict[str, Any]], name: str) -> list[Point]:
    """Return the steps and values of one key, without values that cannot be drawn, such as NaN.
    Values are rounded to nine digits: smaller differences could not be divided into ticks.
    """
    values = ((record["step"], record.get(name)) for record in records)
    drawn = ((n, v) for n, v in values if isinstance(v, int | float) and abs(v) < MAX_VALUE)
    return [(n, round(float(f"{v:.9g}"), DECIMALS)) for n, v in drawn]


def downsample(points: list[Point]) -> list[Point]:
    """Keep the ends of a curve, and the lowest and the highest point of each of `BUCKETS` parts."""
    size = math.ceil(len(points) / BUCKETS)
    sample = {points[0], points[-1]}
    for start in range(0, len(points), size):
        bucket = points[start : start + size]
        sample |= {min(bucket, key=itemgetter(1)), max(bucket, key=itemgetter(1))}
    return sorted(sample)


def tick_distance(low: float, high: float) -> float:
    """Return the distance between ticks: 1, 2 or 5 times a power of ten, for four to nine ticks."""
    span = high - low or abs(high) or 1.0
    power = math.pow(10.0, math.floor(math.log10(span / 4)))
    return next((factor * power for factor in (10, 5, 2) if factor * power <= span / 4), power)
