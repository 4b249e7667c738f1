"""The words of the phrasebook, read from words.txt, which explains its columns."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

CASES, GENDERS = ("nom", "acc", "dat"), ("m", "f", "n", "plural")

Forms = tuple[str, ...]  # by person, by gender and case, or just words


class Both(NamedTuple):
    """An expression in both languages."""

    en: str
    de: str


@dataclass(frozen=True, slots=True, eq=False)
class Determiner:
    """A word before a noun: its own endings, and those of an adjective after it."""

    english: str
    stem: str
    endings: Forms
    after: Forms
    definite: bool


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun; its pairs hold the singular and the plural, and that by case."""

    key: str
    gender: int
    english: Forms
    german: tuple[Forms, Forms]
    determiners: tuple[list[Determiner], list[Determiner]]


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective: the German base form, and the stem before an ending."""

    key: str
    stem: str
    english: str
    nouns: tuple[Noun, ...]


class Tense(NamedTuple):
    """A tense or modal."""

    plain: Forms  # English without an auxiliary
    auxiliary: Forms
    rest: str  # English after the auxiliary
    german: Forms  # forms before the infinitive, or the name of the verb's own tense
    times: list[Both]
    adverbs: list[Both]
    marks: Forms


class Verb(NamedTuple):
    """A verb; English forms are base, he-form, past, participle and gerund."""

    key: str
    prefix: str
    present: Forms
    past: Forms
    auxiliary: Forms
    participle: str
    english: Forms
    before: str  # the English word before an object, and after it
    after: str
    tenses: list[Tense]


class Place(NamedTuple):
    """A preposition, the case after it and the nouns that it goes with."""

    german: str
    case: str
    english: str
    nouns: tuple[Noun, ...]


class Use(NamedTuple):
    """One way to use a verb."""

    verb: Verb
    kind: str
    needed: list[Place]
    optional: list[Place]
    questions: Forms
    subjects: tuple[Noun, ...]
    objects: tuple[Noun, ...]


def _read_file() -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return what the columns of each section hold, and its rows."""
    text = Path(__file__).with_name("words.txt").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    found: dict[str, tuple[list[str], list[list[str]]]] = {}
    for line in "\n".join(lines).replace("\n ", " ").splitlines():
        if line.startswith("["):
            name, columns = line.strip("[]").split(": ")
            found[name] = columns.split(), []
        else:
            found[name][1].append([column.strip() for column in line.split("|")])
    return found


def _words(text: str) -> Forms:
    """Return the words of a text, or its parts between commas; "-" is the empty word."""
    parts = text.split(",") if "," in text else text.split()
    return tuple(part.strip(" -") for part in parts)


def nouns(names: str) -> tuple[Noun, ...]:
    """Return the nouns, or groups or sets of nouns, of these names; "-" before one takes away."""
    found: dict[str, Noun] = {}
    for name in names.split():
        for noun in NAMED[name.removeprefix("-")]:
            found[noun.key] = noun
            if name.startswith("-"):
                del found[noun.key]
    return tuple(found.values())


def _noun(text: str, choice: tuple[list[Determiner], list[Determiner]]) -> Noun:
    """Read a noun; the dative plural adds an "n" unless there is an "n" or "s"."""
    gender, singular, plural, *english = _words(text)
    key, _, oblique = singular.partition("/")
    dative = plural if plural.endswith(("n", "s")) else plural + "n"
    german = (key, oblique or key, oblique or key), (plural, plural, dative)
    return Noun(key, GENDERS.index(gender), tuple(english), german, choice)


def _read(kind: str, text: str) -> Any:
    """Read a column: by a reader, as rows of the section "kind", or as one of "kinds"."""
    if kind in READERS:
        return READERS[kind](text)
    if kind in TABLES:
        return [TABLES[kind][name] for name in text.split() if name != "-"]
    return TABLES[f"{kind}s"][text]


def rows(section: str) -> list[list[Any]]:
    """Return the rows of a section with every column read."""
    kinds, lines = SECTIONS[section]
    return [[_read(*column) for column in zip(kinds, line, strict=True)] for line in lines]


SECTIONS = _read_file()
READERS: dict[str, Callable[[str], Any]] = {
    "word": lambda text: "" if text == "-" else text,
    "words": _words,
    "yes": lambda text: text == "yes",
    "pairs": lambda text: [Both(*_words(pair)) for pair in text.split(";")],
    "nouns": nouns,
}
TABLES: dict[str, dict[str, Any]] = {}
for _name in ("endings", "helpers", "contractions", "times"):
    TABLES[_name] = dict(rows(_name))
TABLES["determiners"] = {name: Determiner(*row) for name, *row in rows("determiners")}
TABLES["choices"] = {name: choice for name, *choice in rows("choices")}
GROUPS = {
    group: tuple(_noun(text, choice) for text in members.split(","))
    for group, choice, members in rows("nouns")
}
NOUNS = [noun for group in GROUPS.values() for noun in group]
NAMED = {"": (), **GROUPS, **{noun.key: (noun,) for noun in NOUNS}}
for _name, _members in rows("sets"):
    NAMED[_name] = nouns(_members)
ADJECTIVES = [Adjective(*row) for row in rows("adjectives")]
DESCRIBING = {noun.key: [found for found in ADJECTIVES if noun in found.nouns] for noun in NOUNS}
TABLES["tenses"] = {name: Tense(*row) for name, *row in rows("tenses")}
TABLES["moods"], TABLES["kinds"] = dict(rows("moods")), dict(rows("kinds"))
TABLES["verbs"] = {row[0]: Verb(*row) for row in rows("verbs")}
TABLES["places"] = {name: Place(*row) for name, *row in rows("places")}
USES = [Use(*row) for row in rows("uses")]
