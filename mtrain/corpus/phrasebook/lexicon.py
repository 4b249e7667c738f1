"""The words of the phrasebook, read from words.txt, which explains its columns."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

CASES, GENDERS = ("nom", "acc", "dat"), ("m", "f", "n", "plural")

Forms = tuple[str, ...]  # by person, by gender and case, or just words


class Determiner(NamedTuple):
    """A word before a noun: its own endings, and those of an adjective after it."""

    key: str
    english: str
    stem: str
    endings: Forms
    after: Forms
    definite: bool


class Noun(NamedTuple):
    """A noun; its pairs hold the singular and the plural, and that by case."""

    key: str
    gender: int
    english: Forms
    german: tuple[Forms, Forms]
    determiners: tuple[list[Determiner], list[Determiner]]


class Tense(NamedTuple):
    """A tense or modal."""

    key: str
    plain: Forms  # English without an auxiliary
    auxiliary: Forms
    rest: str  # English after the auxiliary
    german: Forms  # forms before the infinitive, or the name of the verb's own tense
    times: list[Forms]  # English and German
    negatable: bool


class Verb(NamedTuple):
    """A verb; English forms are base, he-form, past, participle and gerund."""

    key: str
    prefix: str
    present: Forms
    past: Forms
    auxiliary: Forms
    participle: str
    english: Forms
    tenses: list[Tense]


ROWS: dict[str, list[Any]] = {}  # by section
NAMED: dict[str, tuple[Noun, ...]] = {"": ()}  # nouns, groups and sets of nouns
DESCRIBING = defaultdict[str, list[Forms]](list)  # by noun: German, its stem, English


def _words(text: str) -> Forms:
    """Return the words of a text, or its parts between commas; "-" is the empty word."""
    parts = text.split(",") if "," in text else text.split()
    return tuple(part.strip(" -") for part in parts)


def _nouns(names: str) -> tuple[Noun, ...]:
    """Return the nouns of these names, groups and sets; "-" before one takes away."""
    kept = [name for name in names.split() if not name.startswith("-")]
    away = [noun for name in names.split() if name not in kept for noun in NAMED[name[1:]]]
    return tuple(noun for name in kept for noun in NAMED[name] if noun not in away)


def _group(group: str, one: list[Determiner], many: list[Determiner], members: str) -> None:
    """Name nouns and their group; the dative plural adds an "n" unless there is an "n" or "s"."""
    for text in members.split(","):
        gender, singular, plural, *english = _words(text)
        key, _, oblique = singular.partition("/")
        dative = plural + "n" * (not plural.endswith(("n", "s")))
        german = (key, oblique or key, oblique or key), (plural, plural, dative)
        NAMED[key] = (Noun(key, GENDERS.index(gender), tuple(english), german, (one, many)),)
        NAMED[group] = NAMED.get(group, ()) + NAMED[key]


def _describe(key: str, stem: str, english: str, nouns: tuple[Noun, ...]) -> None:
    for noun in nouns:
        DESCRIBING[noun.key].append((key, stem, english))


READERS: dict[str, Callable[[str], Any]] = {
    "word": lambda text: "" if text == "-" else text,
    "words": _words,
    "yes": lambda text: text == "yes",
    "pairs": lambda text: [_words(pair) for pair in text.split(";")],
    "nouns": _nouns,
}
MAKERS: dict[str, Callable[..., Any]] = {
    "determiners": Determiner,
    "nouns": _group,
    "sets": NAMED.__setitem__,
    "adjectives": _describe,
    "tenses": Tense,
    "verbs": Verb,
}


def table(section: str) -> dict[str, Any]:
    """Return the rows of a section by their first column; of two columns, the second."""
    return {row[0]: row[1] if len(row) == 2 else row for row in ROWS[section]}


def _read(kind: str, text: str) -> Any:
    """Read a column: by a reader, as rows of the section "kind", or as one of "kinds"."""
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
        else:
            cells = zip(columns.split(), line.split("|"), strict=True)
            row = [_read(kind, cell.strip()) for kind, cell in cells]
            ROWS[section].append(MAKERS[section](*row) if section in MAKERS else row)


_read_file()
