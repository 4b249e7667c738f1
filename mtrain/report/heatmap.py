"""Heat maps of attention, and the pages that show them, from templates that escape every text.

Text of a language passes through `visible`, anything else from outside through `printable`: both
spell out characters that are invisible or would reorder the text around them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import jinja2
import numpy as np
import regex
from numpy.typing import NDArray

import mtrain
from mtrain.corpus.writing_systems import direction
from mtrain.runtime.errors import printable

# Kinds of attention and their titles; in the decoder a token attends to those before it only.
KINDS = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder masked self-attention",
    "cross": "Encoder-decoder attention",
}
MEAN = 0  # the number for the mean of all heads

CELL = 18  # pixels
LEVELS = 20  # shades that weights are rounded to
GAMMA = 0.75  # makes small weights visible; the legend shows it

# Characters without a glyph, but for joiners, which shape the letters around them.
_UNSEEN = regex.compile(r"(?V1)[\p{C}\p{Zl}\p{Zp}--[\u200c\u200d]]")


@dataclass(frozen=True)
class HeatMap:
    """Attention weights (rows, columns) of a head, or of the mean of all heads, with the tokens of
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
        """Kind of attention, layer and head."""
        head = "mean of all heads" if self.head == MEAN else f"head {self.head}"
        return f"{KINDS[self.kind]}, layer {self.layer}, {head}"

    @property
    def summary(self) -> str:
        """The largest weight of each row, in words."""
        found = (
            f"{token} → {self.columns[row.argmax()]} {row.max():.2f}"
            for token, row in zip(self.rows, self.weights, strict=True)
        )
        return "Largest weight of each row: " + visible("; ".join(found))

    @property
    def shades(self) -> Iterator[tuple[float, str]]:
        """Opacity and SVG path, in cells, of all cells of each shade; weights near 0 have none."""
        levels = np.rint(self.weights * LEVELS).astype(np.int64)
        for level in np.unique(levels[levels > 0]).tolist():
            cells = np.argwhere(levels == level).tolist()
            yield opacity(level), "".join(f"M{column} {row}h1v1h-1z" for row, column in cells)


@dataclass(frozen=True)
class Sentence:
    """A sentence, its translation or forced target, heat maps of the attention, and the languages
    of both sides; empty if a model of several languages does not tell.
    """

    source: str
    target: str
    is_forced: bool
    maps: list[HeatMap]
    languages: tuple[str, str] = ("", "")

    def axes(self, kind: str) -> tuple[str, str]:
        """Return the languages of the rows and the columns of maps of a kind."""
        src, tgt = self.languages
        return (tgt if kind != "encoder" else src), (src if kind != "decoder" else tgt)


def choices(sentences: list[Sentence]) -> list[tuple[str, str, dict[str, str]]]:
    """Return what a page lets its reader choose: kind, layer and head, each with the one to start
    with, if the sentences have maps of it, and with the texts of all.
    """
    maps = [each for sentence in sentences for each in sentence.maps]
    heads = {str(m.head): "mean" if m.head == MEAN else str(m.head) for m in maps}
    found = (
        ("kind", "cross", {m.kind: KINDS[m.kind] for m in maps}),
        ("layer", "all", {str(m.layer): str(m.layer) for m in maps}),
        ("head", str(MEAN), heads),
    )
    return [
        (name, first if first in options else "all", {"all": "all", **options})
        for name, first, options in found
    ]


def opacity(level: int) -> float:
    """Return the opacity of a shade."""
    return round(math.pow(level / LEVELS, GAMMA), 3)


def visible(text: str) -> str:
    """Name the characters that have no glyph or would turn the text around them."""
    return _UNSEEN.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)


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
    environment.filters.update(printable=printable, visible=visible, direction=direction)
    scale = [opacity(level) for level in range(1, LEVELS + 1)]
    environment.globals.update(version=mtrain.__version__, cell=CELL, scale=scale)
    return environment
