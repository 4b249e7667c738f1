"""Heat maps of attention for pages: drawings of the cells; the browser lays out their labels."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import regex
from numpy.typing import NDArray

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
    both axes; in the decoder, row i attends to the columns 0 to i.
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
        most = self.weights.argmax(1)
        found = (
            f"{token} → {self.columns[column]} {row[column]:.2f}"
            for token, column, row in zip(self.rows, most, self.weights, strict=True)
        )
        return "Largest weight of each row: " + "; ".join(map(visible, found))

    @property
    def ground(self) -> str:
        """SVG path around the cells that attention may go to, in cells."""
        T, S = len(self.rows), len(self.columns)
        is_causal = self.kind == "decoder"
        return "M0 0" + "h1v1" * T + f"h-{T}z" if is_causal else f"M0 0h{S}v{T}h-{S}z"

    @property
    def shades(self) -> Iterator[tuple[float, str]]:
        """Opacity and SVG path, in cells, of all cells of each shade; weights near 0 have none."""
        levels = np.rint(self.weights * LEVELS).astype(np.int64)
        for level in np.unique(levels[levels > 0]).tolist():
            cells = np.argwhere(levels == level).tolist()
            yield opacity(level), "".join(f"M{column} {row}h1v1h-1z" for row, column in cells)


@dataclass(frozen=True)
class Sentence:
    """A sentence, its translation or forced target, and heat maps of the attention."""

    source: str
    target: str
    is_forced: bool
    maps: list[HeatMap]


@dataclass(frozen=True)
class Choice:
    """The kinds, layers or heads that a page lets its reader choose, with their texts."""

    name: str
    chosen: str
    options: dict[str, str]


def choices(sentences: list[Sentence]) -> list[Choice]:
    """Return the kinds, layers and heads that sentences have maps of. A page starts with the
    cross-attention, averaged over the heads of all layers.
    """
    maps = [each for sentence in sentences for each in sentence.maps]
    kinds = {each.kind for each in maps}
    layers, heads = sorted({each.layer for each in maps}), sorted({each.head for each in maps})
    return [
        _choice("kind", "cross", {key: text for key, text in KINDS.items() if key in kinds}),
        _choice("layer", "all", {str(n): str(n) for n in layers}),
        _choice("head", str(MEAN), {str(n): str(n) if n != MEAN else "mean" for n in heads}),
    ]


def _choice(name: str, first: str, found: dict[str, str]) -> Choice:
    return Choice(name, first if first in found else "all", {"all": "all", **found})


def opacity(level: int) -> float:
    """Opacity of a shade."""
    return round(math.pow(level / LEVELS, GAMMA), 3)


def visible(text: str) -> str:
    """Name the characters that have no glyph or would turn the text around them."""
    return _UNSEEN.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)
