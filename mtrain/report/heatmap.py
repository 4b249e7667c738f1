"""Heat maps of attention as drawings: what stands where, for the templates that write SVG."""

import math
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

# Kinds of attention and what they are called; in the decoder a token sees only those before it.
KINDS = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder masked self-attention",
    "cross": "Encoder-decoder attention",
}
CAUSAL = "decoder"
MEAN = 0  # the head that stands for the mean of all

CELL, FONT = 18, 12  # pixels
HEADING = 14  # pixels of the letters above the maps
LEVELS = 20  # shades that weights are rounded to, besides none
GAMMA = 0.75  # makes small weights stand out from the ground; the legend shows it
LONGEST = 18  # widths of a Chinese character that a label may take
SLANT = 60  # degrees that the columns' labels rise
GAP = 6

_ISOLATE, _END = "\u2068", "\u2069"  # a part whose first letter tells its direction
_RIGHT_TO_LEFT = {"R", "AL"}
_WITHIN = {"NSM", "BN"}  # vowels and joiners go with their letters
_JOINERS = "\u200c\u200d"  # shape the letters beside them
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # controls and the like: no glyph shows them


@dataclass(frozen=True)
class Label:
    """The text of a token as it is shown, whole, and cut to what there is room for."""

    whole: str
    text: str


@dataclass(frozen=True)
class HeatMap:
    """Attention weights (rows, columns) of a head, or of the mean of all, with the tokens of both
    axes; of a causal one, row i sees the columns 0 to i.
    """

    kind: str
    layer: int
    head: int
    rows: list[str]
    columns: list[str]
    weights: NDArray[np.float32]
    is_causal: bool = False

    @property
    def place(self) -> str:
        """Name layer and head."""
        head = "mean of all heads" if self.head == MEAN else f"head {self.head}"
        return f"layer {self.layer}, {head}"

    @property
    def title(self) -> str:
        """Name what is drawn."""
        return f"{KINDS[self.kind]}, {self.place}"

    @property
    def summary(self) -> str:
        """Tell in words where most of each row's weight goes."""
        most = self.weights.argmax(1)
        found = (
            f"{token} → {self.columns[column]} {row[column]:.2f}"
            for token, column, row in zip(self.rows, most, self.weights, strict=True)
        )
        return "Largest weight of each row: " + "; ".join(map(visible, found))

    @cached_property
    def row_labels(self) -> list[Label]:
        """What stands left of each row."""
        return [label(token) for token in self.rows]

    @cached_property
    def column_labels(self) -> list[Label]:
        """What stands above each column."""
        return [label(token) for token in self.columns]

    @property
    def left(self) -> int:
        """Pixels that the rows' labels take."""
        return max((width_of(each.text) for each in self.row_labels), default=0) + 2 * GAP

    @property
    def top(self) -> int:
        """Pixels that the columns' labels take."""
        longest = max((width_of(each.text) for each in self.column_labels), default=0)
        return round(longest * math.sin(math.radians(SLANT))) + FONT + GAP

    @property
    def width(self) -> int:
        """Pixels from the first label to where the last column's ends."""
        slope = math.cos(math.radians(SLANT))
        ends = [
            (column + 0.5) * CELL + width_of(each.text) * slope
            for column, each in enumerate(self.column_labels)
        ]
        return self.left + max(len(self.columns) * CELL, round(max(ends, default=0))) + GAP

    @property
    def height(self) -> int:
        """Pixels from the highest label to the last row."""
        return self.top + len(self.rows) * CELL + GAP

    @property
    def ground(self) -> str:
        """Path around the cells that attention may go to, in cells."""
        T, S = len(self.rows), len(self.columns)
        if not self.is_causal:
            return f"M0 0h{S}v{T}h-{S}z"
        return "M0 0" + "h1v1" * T + f"h-{T}z"

    @property
    def shades(self) -> Iterator[tuple[float, str]]:
        """Opacity and path, in cells, of all cells of a shade; those next to nothing stay empty."""
        levels = np.rint(self.weights * LEVELS).astype(np.int64)
        for level in np.unique(levels[levels > 0]).tolist():
            cells = np.argwhere(levels == level).tolist()
            yield opacity(level), "".join(f"M{column} {row}h1v1h-1z" for row, column in cells)


@dataclass(frozen=True)
class Sentence:
    """A sentence, its translation or, if forced, another target, and heat maps of the attention."""

    source: str
    target: str
    is_forced: bool
    maps: list[HeatMap]


def opacity(level: int) -> float:
    """How much of a shade covers the ground."""
    return round(math.pow(level / LEVELS, GAMMA), 3)


def label(token: str) -> Label:
    """Turn a token into what stands at an axis, with the beginning of right-to-left letters, as
    `▁`, at their right.
    """
    whole = visible(token)
    if unicodedata.category(whole[:1] or " ").startswith("M"):
        whole = "\u25cc" + whole  # a mark that belongs on the letter before
    return Label(isolate(whole), isolate(cut(whole, LONGEST * FONT)))


def cut(text: str, most: int) -> str:
    """Cut a text to what so many pixels have room for, with an ellipsis."""
    if width_of(text) <= most:
        return text
    length = bisect_right(range(len(text)), most, key=lambda n: width_of(text[:n] + "…")) - 1
    return text[: max(0, length)] + "…"


def isolate(text: str) -> str:
    """Keep together what belongs to right-to-left letters: without its marks, what has no direction
    of its own, as a full stop, goes the way of the text around.
    """
    directions = {unicodedata.bidirectional(character) for character in text}
    mixed = directions & _RIGHT_TO_LEFT and directions - _RIGHT_TO_LEFT - _WITHIN
    return f"{_ISOLATE}{text}{_END}" if mixed else text


def visible(text: str) -> str:
    """Name the characters that would not be seen, or would turn the text around them."""
    return "".join(
        f"<U+{ord(character):04X}>"
        if unicodedata.category(character) in _UNSEEN and character not in _JOINERS
        else character
        for character in text
    )


def width_of(text: str) -> int:
    """Estimate the pixels that a text takes in a font of fixed width: 0.62 of its size a character,
    1.1 a wide one, none a combining mark or one of format.
    """
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    marks = sum(unicodedata.category(character) in ("Mn", "Cf") for character in text)
    return round(FONT * (0.62 * (len(text) - wide - marks) + 1.1 * wide))
