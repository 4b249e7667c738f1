"""The words of the phrasebook, read from words.txt, which explains its columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

CASES = ("nom", "acc", "dat")
PLURAL = 3  # the fourth gender

Forms = tuple[str, ...]  # by person, by gender and case, or just words


class Both(NamedTuple):
    """An expression in both languages."""

    en: str
    de: str


class Determiner(NamedTuple):
    """A word before a noun: its own endings, and those of an adjective after it."""

    name: str
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
    determiners: tuple[Determiners, Determiners]


class Adjective(NamedTuple):
    """An adjective: the German base form, and the stem before an ending."""

    key: str
    stem: str
    english: str
    nouns: Nouns


class Tense(NamedTuple):
    """A tense or modal."""

    name: str
    plain: Forms  # English without an auxiliary
    auxiliary: Forms
    rest: str  # English after the auxiliary
    german: Forms  # forms before the infinitive, or the name of the verb's own tense
    times: Times
    adverbs: Times
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
    tenses: Forms


class Place(NamedTuple):
    """A preposition, the case after it and the nouns that it goes with."""

    name: str
    german: str
    case: str
    english: str
    nouns: Nouns


class Use(NamedTuple):
    """One way to use a verb."""

    verb: Verb
    kind: str
    needed: Places
    optional: Places
    questions: Forms
    subjects: Nouns
    objects: Nouns


Determiners = tuple[Determiner, ...]
Nouns = tuple[Noun, ...]
Places = tuple[Place, ...]
Times = tuple[Both, ...]


def _read_file() -> tuple[dict[str, list[str]], dict[str, list[list[str]]]]:
    """Return what the columns of each section hold, and its rows."""
    text = Path(__file__).with_name("words.txt").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    heads: dict[str, list[str]] = {}
    rows: dict[str, list[list[str]]] = {}
    for line in "\n".join(lines).replace("\n ", " ").splitlines():
        if line.startswith("["):
            name, _, columns = line.strip("[]").partition(": ")
            heads[name], rows[name] = columns.split(), []
        else:
            rows[name].append([column.strip() for column in line.split("|")])
    return heads, rows


def _words(text: str) -> Forms:
    """Return the words of a text, or its parts between commas; "-" is the empty word."""
    parts = text.split(",") if "," in text else text.split()
    return tuple(part.strip(" -") for part in parts)


def nouns(names: str) -> Nouns:
    """Return the nouns, or groups or sets of nouns, of these names; "-" before one takes away."""
    found: dict[str, Noun] = {}
    for name in names.split():
        for noun in NAMED[name.removeprefix("-")]:
            found[noun.key] = noun
            if name.startswith("-"):
                del found[noun.key]
    return tuple(found.values())


def _places(names: str) -> Places:
    return tuple(place for place in PLACES if place.name in names.split())


def _noun(text: str, choices: tuple[Determiners, Determiners]) -> Noun:
    """Read a noun; the dative plural adds an "n" unless there is an "n" or "s"."""
    gender, singular, plural, *english = _words(text)
    key, _, oblique = singular.partition("/")
    dative = plural if plural.endswith(("n", "s")) else plural + "n"
    german = (key, oblique or key, oblique or key), (plural, plural, dative)
    return Noun(key, "mfn".index(gender), tuple(english), german, choices)


def rows(section: str) -> list[list[Any]]:
    """Return the rows of a section, each column read: a name stands for a row of another one."""
    kinds = HEADS[section]
    readers = [READERS.get(kind) or TABLES[kind].__getitem__ for kind in kinds]
    return [[read(text) for read, text in zip(readers, row, strict=True)] for row in ROWS[section]]


HEADS, ROWS = _read_file()
READERS: dict[str, Callable[[str], Any]] = {
    "word": lambda text: text.strip("-"),
    "words": _words,
    "yes": lambda text: text == "yes",
    "pairs": lambda text: [Both(*_words(f"{p.replace('=', ',')}")) for p in text.split(",")],
    "nouns": nouns,
    "places": _places,
    "determiners": lambda names: [TABLES["determiners"][n] for n in names.split() if n != "-"],
}
TABLES: dict[str, dict[str, Any]] = {}
for _name in ("endings", "auxiliaries", "contractions", "times", "moods", "kinds"):
    TABLES[_name] = dict(rows(_name))
TABLES["determiners"] = {row[0]: Determiner(*row) for row in rows("determiners")}
CHOICES = {name: tuple(both) for name, *both in rows("choices")}
GROUPS = {
    group: tuple(_noun(text, CHOICES[choice]) for text in members.split(","))
    for group, choice, members in ROWS["nouns"]
}
NOUNS = [noun for group in GROUPS.values() for noun in group]
NAMED = {"": (), **GROUPS, **{noun.key: (noun,) for noun in NOUNS}}
for _name, _members in ROWS["sets"]:
    NAMED[_name] = nouns(_members)
ADJECTIVES = [Adjective(*row) for row in rows("adjectives")]
DESCRIBING = {noun.key: [found for found in ADJECTIVES if noun in found.nouns] for noun in NOUNS}
TENSES = {row[0]: Tense(*row) for row in rows("tenses")}
TABLES["verbs"] = {row[0]: Verb(*row) for row in rows("verbs")}
PLACES = [Place(*row) for row in rows("places")]
USES = [Use(*row) for row in rows("uses")]
