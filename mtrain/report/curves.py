"""Curves of a run's records as drawings: scales, ticks, paths, for the template that writes SVG."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Point = tuple[int, float]

WIDTH, HEIGHT = 420, 250  # pixels, with the margins
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 36
MOST = 1e300  # beyond it, differences are no numbers
LEAST = 1e-300  # below it, parts of it are none
FLAT = 1e-9  # fraction of a value; smaller differences are no curve
BUCKETS = 180  # of which a longer curve shows the lowest and the highest value each
MOST_MARKED = 40  # points that each get a mark
MOST_ROWS = 60  # of a curve's table
# Key of a chart, its title, and which values of the records it shows under which names.
CHARTS = (
    ("loss", "Training loss a token, with label smoothing", {"train/loss": "training"}),
    (
        "nll",
        "Negative log-likelihood a token (in training with dropout)",
        {"train/nll": "training", "valid/nll": "validation", "average/nll": "average"},
    ),
    (
        "bleu",
        "BLEU on the validation set",
        {"valid/bleu": "checkpoints", "average/bleu": "average"},
    ),
    ("lr", "Learning rate", {"lr": "learning rate"}),
    ("grad", "Norm of the gradient, before clipping", {"grad_norm": "norm"}),
    ("speed", "Target tokens a second, without padding", {"tokens_per_second": "speed"}),
)
MARKS = (
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",  # circle
    "M-3.5 -3.5h7v7h-7z",  # square
    "M0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z",  # diamond
)


@dataclass(frozen=True)
class Series:
    """Values by step."""

    name: str
    points: list[Point]


@dataclass(frozen=True)
class Tick:
    """A value on an axis, and its position."""

    place: float
    text: str


@dataclass(frozen=True)
class Line:
    """A series as it is drawn; its number chooses colour, dashes and mark."""

    number: int
    name: str
    path: str
    mark: str
    marked: list[tuple[float, float]]


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Place a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


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
        return "; ".join(map(_course, self.series))

    @property
    def x(self) -> Scale:
        """The axis of steps."""
        return Scale(0, max(1, self.last), LEFT, WIDTH - RIGHT)

    @property
    def y(self) -> Scale:
        """The axis of values."""
        values = [value for series in self.series for _, value in series.points]
        every = tick_distance(min(values), max(values))
        low = math.floor(min(values) / every) * every
        high = math.ceil(max(values) / every) * every
        return Scale(low, high if high > low else low + every, HEIGHT - BOTTOM, TOP)

    @property
    def x_ticks(self) -> list[Tick]:
        """Steps in round numbers."""
        scale = self.x
        every = max(1, tick_distance(scale.low, scale.high))
        return [Tick(scale(step), f"{step:,.0f}") for step in _multiples(scale, every)]

    @property
    def y_ticks(self) -> list[Tick]:
        """Values in round numbers."""
        scale = self.y
        every = tick_distance(scale.low, scale.high)
        return [Tick(scale(value), number(value, every)) for value in _multiples(scale, every)]

    @property
    def lines(self) -> Iterator[Line]:
        """The curves as paths."""
        x, y = self.x, self.y
        for i, series in enumerate(self.series):
            places = [(x(step), y(value)) for step, value in thinned(series.points)]
            path = "M" + "L".join(f"{across} {down}" for across, down in places)
            marked = places if len(places) <= MOST_MARKED else []
            yield Line(i, series.name, path, MARKS[i % len(MARKS)], marked)

    @property
    def rows(self) -> list[tuple[int, list[str]]]:
        """The figures by step, evenly spread over the run if there are many."""
        columns = [dict(series.points) for series in self.series]
        steps = spread(sorted({step for column in columns for step in column}), MOST_ROWS)
        return [(step, [_cell(column.get(step)) for column in columns]) for step in steps]

    @property
    def is_whole(self) -> bool:
        """Whether the table has every record."""
        return len({step for series in self.series for step, _ in series.points}) <= MOST_ROWS


def charts_of(records: list[dict[str, Any]]) -> Iterator[Chart]:
    """Draw those charts that records have values for, all up to the last step."""
    records = [record for record in records if 0 <= record["step"] < MOST]
    last = max((record["step"] for record in records), default=0)
    for key, title, names in CHARTS:
        series = [series_of(records, value, name) for value, name in names.items()]
        if found := [each for each in series if each.points]:
            yield Chart(key, title, found, last)


def series_of(records: list[dict[str, Any]], key: str, name: str) -> Series:
    """Return the values of a key in records, without values that are not finite."""
    found = [(record["step"], record[key]) for record in records if key in record]
    return Series(name, [(step, float(value)) for step, value in found if _is_finite(value)])


def thinned(points: list[Point]) -> list[Point]:
    """Keep the lowest and the highest point of each of `BUCKETS` parts of a long curve."""
    if len(points) <= 2 * BUCKETS:
        return points
    kept = {0, len(points) - 1}
    for bucket in range(BUCKETS):
        part = range(bucket * len(points) // BUCKETS, (bucket + 1) * len(points) // BUCKETS)
        kept.add(min(part, key=lambda i: points[i][1]))
        kept.add(max(part, key=lambda i: points[i][1]))
    return [points[i] for i in sorted(kept)]


def spread(items: list[int], most: int) -> list[int]:
    """Return at most `most` items of a list, evenly spread, including the first and the last."""
    if len(items) <= most:
        return items
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def tick_distance(low: float, high: float) -> float:
    """Choose 1, 2 or 5 times a power of ten, so that an axis gets four to nine ticks."""
    largest, span = max(abs(low), abs(high)), high - low
    if span <= FLAT * largest:
        span = largest
    if span < LEAST:
        span = 1.0
    power = math.pow(10.0, math.floor(math.log10(span / 4)))
    return next((factor * power for factor in (10, 5, 2) if factor * power <= span / 4), power)


def number(value: float, every: float) -> str:
    """Write a value with as many digits as ticks so far apart need."""
    if value and (abs(value) >= 1e6 or every < 1e-3):
        return f"{value:.3g}"
    digits = max(0, -math.floor(math.log10(every) + 1e-9))
    return f"{round(value, digits) + 0.0:,.{digits}f}"


def _multiples(scale: Scale, every: float) -> Iterator[float]:
    first, last = math.ceil(scale.low / every - 1e-9), math.floor(scale.high / every + 1e-9)
    yield from (count * every for count in range(first, last + 1))


def _course(series: Series) -> str:
    (first, begin), (last, end) = series.points[0], series.points[-1]
    if first == last:
        return f"{series.name}: {end:.4g} at step {last:,}"
    low, high = (choose(series.points, key=lambda p: p[1]) for choose in (min, max))
    return (
        f"{series.name}: from {begin:.4g} at step {first:,} to {end:.4g} at step {last:,}, "
        f"lowest {low[1]:.4g} (step {low[0]:,}), highest {high[1]:.4g} (step {high[0]:,})"
    )


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < MOST
