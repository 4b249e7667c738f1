"""Heat maps of attention for pages: drawings of the cells; the browser lays out their labels."""

import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Kinds of attention and their titles; in the decoder a token attends to those before it only.
KINDS = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder masked self-attention",
    "cross": "Encoder-decoder attention",
}
CAUSAL = "decoder"
MEAN = 0  # the number for the mean of all heads

CELL = 18  # pixels
LEVELS = 20  # shades that weights are rounded to
GAMMA = 0.75  # makes small weights visible; the legend shows it

_JOINERS = "\u200c\u200d"  # they shape the letters around them
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # categories of characters without a glyph


@dataclass(frozen=True)
class HeatMap:
    """Attention weights (rows, columns) of a head, or of the mean of all heads, with the tokens of
    both axes; in a causal map, row i attends to the columns 0 to i.
    """

    kind: str
    layer: int
    head: int
    rows: list[str]
    columns: list[str]
    weights: NDArray[np.float32]
    is_causal: bool = False

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
        if not self.is_causal:
            return f"M0 0h{S}v{T}h-{S}z"
        return "M0 0" + "h1v1" * T + f"h-{T}z"

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
class Option:
    """A kind, layer or head that a page lets its reader choose."""

    key: str
    text: str
    chosen: bool


def choices(sentences: list[Sentence]) -> tuple[list[Option], ...]:
    """Return the kinds, layers and heads that sentences have maps of. A page starts with the
    cross-attention, averaged over the heads of all layers.
    """
    maps = [each for sentence in sentences for each in sentence.maps]
    kinds = {kind: text for kind, text in KINDS.items() if kind in {each.kind for each in maps}}
    layers = {str(n): str(n) for n in sorted({each.layer for each in maps})}
    heads = {str(n): str(n) if n else "mean" for n in sorted({each.head for each in maps})}
    return (
        _options(kinds, "cross"),
        _options(layers, "all"),
        _options(heads, str(MEAN)),
    )


def _options(found: dict[str, str], first: str) -> list[Option]:
    """List the options found and `all`; `first` is chosen, or `all` where it is not among them."""
    texts = {"all": "all", **found}
    chosen = first if first in texts else "all"
    return [Option(key, text, key == chosen) for key, text in texts.items()]


def opacity(level: int) -> float:
    """Opacity of a shade."""
    return round(math.pow(level / LEVELS, GAMMA), 3)


def label(token: str) -> str:
    """Text of a token at an axis; a mark that belongs on the letter before it gets a circle."""
    text = visible(token)
    return "\u25cc" + text if unicodedata.category(text[:1] or " ").startswith("M") else text


def visible(text: str) -> str:
    """Name the characters that have no glyph or would turn the text around them."""
    return "".join(
        f"<U+{ord(character):04X}>"
        if unicodedata.category(character) in _UNSEEN and character not in _JOINERS
        else character
        for character in text
    )
