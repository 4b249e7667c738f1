"""Heat maps as files: side by side in one SVG or PNG, or in a page that chooses among them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from mtrain import outputs
from mtrain.errors import MissingExtraError, RefusedError
from mtrain.log import MOST_LISTED, logger
from mtrain.report.heatmap import (
    FONT,
    HEADING,
    KINDS,
    MEAN,
    HeatMap,
    Sentence,
    cut,
    isolate,
    visible,
    width_of,
)
from mtrain.report.rendering import render

FORMATS = (".html", ".svg", ".png")

MARGIN, LINE = 16, 22  # pixels
MOST_PIXELS = 60_000_000  # of a PNG, at its scale: 240 MB while it is drawn
# one of which nearly every system has
FAMILIES = (
    *("DejaVu Sans Mono", "Liberation Mono", "Noto Sans Mono", "Menlo", "Consolas", "Courier New"),
    *("FreeMono", "Ubuntu Mono", "Noto Sans Mono CJK SC", "DejaVu Sans", "Liberation Sans"),
    *("Noto Sans", "Noto Sans CJK SC", "Helvetica", "Arial"),
)
SCALE = 2  # pixels of a PNG for one of the SVG, so that it stays sharp on fine screens


@dataclass(frozen=True)
class Text:
    """A line of text, and where it stands."""

    x: int
    y: int
    role: str
    text: str


@dataclass(frozen=True)
class Placed:
    """A heat map, and where it stands."""

    x: int
    y: int
    map: HeatMap


@dataclass(frozen=True)
class Picture:
    """A drawing of so many pixels."""

    width: int
    height: int
    texts: list[Text]
    maps: list[Placed]


@dataclass(frozen=True)
class Option:
    """One of several that a page lets choose from."""

    key: str
    text: str
    chosen: bool


def check_format(path: Path) -> None:
    """Raise `RefusedError` unless the name of a file tells a format that can be written here."""
    if path.suffix not in FORMATS:
        raise RefusedError(f"--output {path}: expected a name that ends in {', '.join(FORMATS)}")
    if path.suffix == ".png":
        load_resvg()


def check_output(path: Path) -> None:
    """Raise `RefusedError` where a name is no file's, or that of a file that a run or model keeps;
    `UserError` where no file can be written.
    """
    if path.is_dir():
        raise RefusedError(f"--output {path}: is a directory; name a file")
    if str(path) == "-":  # elsewhere stdout, here it would become a file of that name
        raise RefusedError("--output -: name a file; /dev/stdout is one, too")
    outputs.check_output(path)


def draw(path: Path, sentences: list[Sentence], model: Path) -> bytes:
    """Draw heat maps in the format that a file's name tells; raises `RefusedError`."""
    if path.suffix == ".png":
        data, missing = draw_png(sentences)
        _warn_of(missing)
        return data
    text = draw_svg(sentences) if path.suffix == ".svg" else draw_page(sentences, model)
    return text.encode("utf-8", "replace")


def _warn_of(missing: list[str]) -> None:
    if missing:
        logger.warning(
            "no font of this machine has: %s; they are drawn as boxes. Install a font that has "
            "them, or write .svg or .html, which use the fonts of who looks at them",
            " ".join(f"{c} (U+{ord(c):04X})" for c in missing[:MOST_LISTED])
            + (" ..." if len(missing) > MOST_LISTED else ""),
        )


def draw_page(sentences: list[Sentence], model: Path) -> str:
    """Draw a page of its own, in which kind of attention, layer and head are chosen."""
    return render(
        "attention.html", sentences=sentences, model=model.name, choices=choices(sentences)
    )


def choices(sentences: list[Sentence]) -> tuple[list[Option], ...]:
    """List the kinds, layers and heads that sentences have maps of; at first a page shows the mean
    of the heads of all layers, of the attention between source and target.
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
    """List what is there and `all`, of which the one named is chosen, or all if it is not there."""
    texts = {"all": "all", **found}
    chosen = first if first in texts else "all"
    return [Option(key, text, key == chosen) for key, text in texts.items()]


def draw_svg(sentences: list[Sentence]) -> str:
    """Draw the heat maps of sentences below each other: a row for each kind and layer, its heads
    side by side.
    """
    return render("picture.svg", picture=_arrange(sentences))


def draw_png(sentences: list[Sentence]) -> tuple[bytes, list[str]]:
    """Draw the same as PNG; returns with it the characters that no font of this machine has."""
    resvg = load_resvg()
    picture = _arrange(sentences)
    width, height = picture.width * SCALE, picture.height * SCALE
    if width * height > MOST_PIXELS:
        raise RefusedError(
            f"a PNG of {width:,} x {height:,} pixels is too large; choose with --kind, --layer and "
            "--head, or write .svg or .html"
        )
    characters = {c for text in _all_texts(picture) for c in text}
    data = resvg.svg_to_bytes(
        svg_string=render("picture.svg", picture=picture),
        zoom=SCALE,
        background="white",
        monospace_family=_installed_family(),
    )
    return bytes(data), list(_without_glyph(characters))


def load_resvg() -> Any:
    """Load the library that draws PNG; raises `RefusedError`, which names the extra."""
    try:
        import resvg_py
    except ImportError:
        raise MissingExtraError("PNG", "plot", ".svg and .html need none") from None
    return resvg_py


def _arrange(sentences: list[Sentence]) -> Picture:
    """Place everything from top to bottom."""
    texts, maps, y = [], [], MARGIN
    for number, sentence in enumerate(sentences, 1):
        y += LINE
        texts.append(Text(MARGIN, y, "source", f"{number}. {isolate(visible(sentence.source))}"))
        y += LINE
        texts.append(Text(MARGIN, y, "target", f"→ {isolate(visible(sentence.target))}"))
        for kind, of_kind in groupby(sentence.maps, lambda each: each.kind):
            y += 2 * LINE
            texts.append(Text(MARGIN, y, "kind", KINDS[kind]))
            for _, row in groupby(of_kind, lambda each: each.layer):
                placed = list(_place(list(row), y + LINE))
                maps += placed
                y = max(each.y + each.map.height for each in placed)
        y += LINE
    width = max(320, max(each.x + each.map.width for each in maps) + MARGIN)
    room = (width - 2 * MARGIN) * FONT // HEADING
    texts = [Text(each.x, each.y, each.role, cut(each.text, room)) for each in texts]
    return Picture(width, y + 2 * LINE, texts, maps)


def _place(row: list[HeatMap], y: int) -> Iterator[Placed]:
    """Place the heads of a layer beside each other, with room for their titles."""
    x, highest = MARGIN, max(each.top for each in row)
    for each in row:
        yield Placed(x, y + LINE + highest - each.top, each)
        x += max(each.width, width_of(each.place) + MARGIN) + MARGIN


def _all_texts(picture: Picture) -> Iterator[str]:
    yield from (each.text for each in picture.texts)
    for placed in picture.maps:
        yield from (each.text for each in (*placed.map.row_labels, *placed.map.column_labels))


def _without_glyph(characters: set[str]) -> Iterator[str]:
    """List the characters that are drawn as one is that no font can have."""
    family = _installed_family()
    missing = _draw_character("\U0010fffe", family)
    for character in sorted(characters - {" "}):
        if _draw_character(character, family) == missing:
            yield character


@cache
def _installed_family() -> str:
    """Find a family of fonts that is installed: resvg draws no text at all where the families
    that a style names are not, and looks for other fonts only for characters that the first lacks.
    """
    for family in FAMILIES:
        if _draw_character("a", family) != _draw_character(" ", family):
            return family
    return FAMILIES[0]


def _draw_character(character: str, family: str) -> bytes:
    svg = render("character.svg", character=character, size=FONT)
    return bytes(load_resvg().svg_to_bytes(svg_string=svg, monospace_family=family))
