"""Heat maps of attention, and `render`, which fills the templates of all HTML pages.

The templates escape all text. Sentences and other text from files also pass through `printable`,
which escapes characters that are invisible or reorder the text around them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import jinja2
import numpy as np
from numpy.typing import NDArray

import mtrain
from mtrain.corpus.writing_systems import text_direction
from mtrain.runtime.errors import printable

# Kinds of attention and their titles.
KINDS = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder masked self-attention",
    "cross": "Encoder-decoder attention",
}
MEAN = 0  # head number of the mean of all heads

CELL = 18  # width and height of a cell, in pixels
LEVELS = 20  # weights are rounded to this many shades
GAMMA = 0.75  # opacity is weight ** GAMMA, which makes small weights visible


@dataclass(frozen=True)
class HeatMap:
    """Attention weights (rows, columns) of one head or the mean of all heads, and the tokens of
    both axes.
    """

    kind: str
    layer: int
    head: int
    rows: list[str]
    columns: list[str]
    weights: NDArray[np.float32]

    @property
    def title(self) -> str:
        """Name the kind of attention, the layer and the head."""
        head = "mean of all heads" if self.head == MEAN else f"head {self.head}"
        return f"{KINDS[self.kind]}, layer {self.layer}, {head}"

    @property
    def summary(self) -> str:
        """Describe the map in words: the largest weight of each row."""
        rows = (
            f"{token} → {self.columns[row.argmax()]} {row.max():.2f}"
            for token, row in zip(self.rows, self.weights, strict=True)
        )
        return "Largest weight of each row: " + printable("; ".join(rows))

    @property
    def shades(self) -> Iterator[tuple[float, str]]:
        """Yield the opacity of each shade and an SVG path around its cells. Weights near 0 are left
        out.
        """
        levels = np.rint(self.weights * LEVELS).astype(np.int64)
        for level in np.unique(levels[levels > 0]).tolist():
            cells = np.argwhere(levels == level).tolist()
            yield opacity(level), "".join(f"M{column} {row}h1v1h-1z" for row, column in cells)


@dataclass(frozen=True)
class Sentence:
    """A sentence, its translation or given target, heat maps of the attention, and the languages of
    both sides (empty strings for a model of several directions).
    """

    source: str
    target: str
    is_forced: bool
    maps: list[HeatMap]
    languages: tuple[str, str]

    def axes(self, kind: str) -> tuple[str, str]:
        """Return the languages of the rows and of the columns of maps of a kind."""
        src, tgt = self.languages
        return {"encoder": (src, src), "decoder": (tgt, tgt), "cross": (tgt, src)}[kind]


def menus(sentences: list[Sentence]) -> list[tuple[str, str, dict[str, str]]]:
    """Return the menus of a page (kind, layer, head): name, initial option, and the options with
    their labels. The initial option is "all" if no sentence has a map of the usual option.
    """
    maps = [heat_map for sentence in sentences for heat_map in sentence.maps]
    heads = {str(m.head): "mean" if m.head == MEAN else str(m.head) for m in maps}
    specs = (
        ("kind", "cross", {m.kind: KINDS[m.kind] for m in maps}),
        ("layer", "all", {str(m.layer): str(m.layer) for m in maps}),
        ("head", str(MEAN), heads),
    )
    return [
        (name, usual if usual in options else "all", {"all": "all", **options})
        for name, usual, options in specs
    ]


def opacity(level: int) -> float:
    """Return the opacity of a shade."""
    return round(math.pow(level / LEVELS, GAMMA), 3)


def render(template: str, **values: object) -> str:
    """Fill a template of `mtrain/report/templates`."""
    return _templates().get_template(template).render(values)


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mtrain.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(printable=printable, direction=text_direction)
    scale = [opacity(level) for level in range(1, LEVELS + 1)]
    environment.globals.update(version=mtrain.__version__, cell=CELL, scale=scale)
    return environment
