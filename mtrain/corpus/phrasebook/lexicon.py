"""The words of the phrasebook, read from words.txt, which explains its columns."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

CASES, GENDERS = ("nom", "acc", "dat"), ("m", "f", "n", "plural")

Forms = tuple[str, ...]  # by person, by gender and case, or just words
Row = list[Any]  # begins with its key
# A noun's key, gender, English forms, German forms by case, and determiners: the last three each
# for the singular and the plural.
Noun = tuple[str, int, Forms, tuple[Forms, Forms], tuple[list[Row], list[Row]]]

ROWS: dict[str, list[Row]] = {}  # by section
NAMED: dict[str, tuple[Noun, ...]] = {"": ()}  # nouns, groups and sets of nouns
DESCRIBING = defaultdict[str, list[Row]](list)  # adjectives by noun


def _words(text: str) -> Forms:
    """Return the words of a text, or its parts between commas; "-" is the empty word."""
    parts = text.split(",") if "," in text else text.split()
    return tuple(part.strip(" -") for part in parts)


def _nouns(names: str) -> tuple[Noun, ...]:
    """Return the nouns of these names, groups and sets, without those of names after a "-"."""
    included = [name for name in names.split() if not name.startswith("-")]
    excluded = [name[1:] for name in names.split() if name.startswith("-")]
    omitted = [noun for name in excluded for noun in NAMED[name]]
    return tuple(noun for name in included for noun in NAMED[name] if noun not in omitted)


def _group(group: str, one: list[Row], many: list[Row], members: str) -> None:
    """Name nouns and their group; the dative plural adds "n" unless the plural ends in "n", "s"."""
    for text in members.split(","):
        gender, singular, plural, *english = _words(text)
        key, _, oblique = singular.partition("/")
        dative = plural if plural.endswith(("n", "s")) else plural + "n"
        german = (key, oblique or key, oblique or key), (plural, plural, dative)
        NAMED[key] = ((key, GENDERS.index(gender), tuple(english), german, (one, many)),)
        NAMED[group] = NAMED.get(group, ()) + NAMED[key]


READERS: dict[str, Callable[[str], Any]] = {
    "word": lambda text: "" if text == "-" else text,
    "words": _words,
    "yes": lambda text: text == "yes",
    "pairs": lambda text: [_words(pair) for pair in text.split(";")],
    "nouns": _nouns,
}


def table(section: str) -> dict[str, Any]:
    """Return the rows of a section by their first column; if it has two, the second column."""
    return {row[0]: row[1] if len(row) == 2 else row for row in ROWS[section]}


def _read(kind: str, text: str) -> Any:
    """Parse a cell: with the reader of its kind, as row names if the kind is a section, or else as
    one row name of the section `{kind}s`.
    """
    if kind in READERS:
        return READERS[kind](text)
    if kind in ROWS:
        return [table(kind)[name] for name in text.split() if name != "-"]
    return table(f"{kind}s")[text]


def _read_file() -> None:
    """Read the sections, each of which uses earlier ones."""
    text = Path(__file__).with_name("words.txt").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    for line in "\n".join(lines).replace("\n ", " ").splitlines():
        if line.startswith("["):
            section, columns = line.strip("[]").split(": ")
            ROWS[section] = []
            continue
        cells = zip(columns.split(), line.split("|"), strict=True)
        row = [_read(kind, cell.strip()) for kind, cell in cells]
        ROWS[section].append(row)
        if section == "nouns":
            _group(*row)
        elif section == "sets":
            NAMED[row[0]] = row[1]
        elif section == "adjectives":
            for key, *_ in row[3]:
                DESCRIBING[key].append(row[:3])


_read_file()
