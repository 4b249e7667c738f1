"""The words of the phrasebook, read from words.txt, which explains its own columns."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

NOM, ACC, DAT = range(3)
PLURAL = 3  # the fourth gender
HELD_OUT_PERCENT = 20

Forms = tuple[str, ...]  # by person, or by gender and case


@cache
def held_out(first: str, second: str) -> bool:
    """Whether a combination (verb, object) or (adjective, noun) is kept for the test."""
    return zlib.crc32(f"{first} {second}".encode()) % 100 < HELD_OUT_PERCENT


class Both(NamedTuple):
    """An expression in both languages."""

    en: str
    de: str


class Determiner(NamedTuple):
    """A word before a noun, with the endings of an adjective after it."""

    english: str
    german: Forms
    endings: Forms
    definite: bool


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun; its pairs hold the singular and the plural."""

    key: str
    gender: int
    english: Forms
    german: tuple[Forms, Forms]
    determiners: tuple[tuple[Determiner, ...], tuple[Determiner, ...]]


class Adjective(NamedTuple):
    """An adjective: German base form and stem before an ending."""

    key: str
    stem: str
    english: str


class Tense(NamedTuple):
    """A tense or modal."""

    plain: Forms  # English without an auxiliary
    auxiliary: Forms
    rest: str  # English after the auxiliary
    german: Forms  # forms before the infinitive, or the name of the verb's own tense
    times: tuple[Both, ...]
    adverbs: tuple[Both, ...]
    marks: Forms


class Verb(NamedTuple):
    """A verb; English forms are base, he-form, past, participle and gerund."""

    key: str
    prefix: str
    own: dict[str, tuple[Forms, str]]  # the finite verb and the end of the clause by German tense
    english: Forms
    before: str  # the English word before an object, and after it
    after: str
    tenses: dict[str, tuple[Tense, ...]]  # by mood


class Place(NamedTuple):
    """A preposition with a noun that it goes with."""

    german: str
    case: int
    english: str
    noun: Noun


class Use(NamedTuple):
    """One way to use a verb."""

    verb: Verb
    kind: str
    needed: tuple[Place, ...]
    optional: tuple[Place, ...]
    questions: Forms
    subjects: tuple[Noun, ...]
    objects: tuple[tuple[Noun, ...], tuple[Noun, ...]]  # all, and those not held out


# --- Reading ---------------------------------------------------------------------------------


def _read_sections() -> dict[str, list[list[str]]]:
    """Return the rows of each section, split into columns."""
    text = Path(__file__).with_name("words.txt").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    found: dict[str, list[list[str]]] = {}
    for line in "\n".join(lines).replace("\n ", " ").splitlines():
        if line.startswith("["):
            rows = found.setdefault(line.strip("[]"), [])
        else:
            rows.append([column.strip() for column in line.split("|")])
    return found


def _forms(text: str) -> Forms:
    """Return the words of a text, or its parts between commas; "-" is the empty word."""
    parts = text.split(",") if "," in text else text.split()
    return tuple(part.strip(" -") for part in parts)


def _both(text: str) -> tuple[Both, ...]:
    parts = (part.partition("=") for part in text.split(","))
    return tuple(Both(en.strip(" -"), de.strip(" -")) for en, _, de in parts)


def _determiner(english: str, stem: str, endings: str, after: str, definite: str) -> Determiner:
    german = tuple(stem.strip("-") + ending for ending in ENDINGS[endings])
    return Determiner(english.strip("-"), german, ENDINGS[after], definite == "yes")


def _determiners(names: str) -> tuple[Determiner, ...]:
    return tuple(DETERMINERS[name] for name in names.split() if name != "-")


def _noun(text: str, choice: str) -> Noun:
    """Read a noun; the dative plural adds an "n" unless there is an "n" or "s"."""
    gender, singular, plural, *english = _forms(text)
    key, _, oblique = singular.partition("/")
    dative = plural if plural.endswith(("n", "s")) else plural + "n"
    german = (key, oblique or key, oblique or key), (plural, plural, dative)
    return Noun(key, "mfn".index(gender), tuple(english), german, CHOICES[choice])


@cache
def nouns(names: str) -> tuple[Noun, ...]:
    """Return the nouns, or groups or sets of nouns, of these names; "-" before one takes away."""
    found: dict[str, Noun] = {}
    for name in () if names == "-" else names.split():
        for noun in NAMED[name.removeprefix("-")]:
            found[noun.key] = noun
            if name.startswith("-"):
                del found[noun.key]
    return tuple(found.values())


def _describing(noun: Noun) -> tuple[tuple[Adjective, ...], tuple[Adjective, ...]]:
    """Return the adjectives that fit a noun, and those not held out."""
    fitting = tuple(adjective for adjective, fits in ADJECTIVES if noun in fits)
    return fitting, tuple(a for a in fitting if not held_out(a.key, noun.key))


def _tense(row: list[str]) -> Tense:
    plain, auxiliary, rest, german, times, adverbs, marks = row
    english = _forms(plain), _forms(auxiliary), rest.strip("-")
    return Tense(*english, _forms(german), TIMES[times], TIMES[adverbs], _forms(marks))


def _verb(row: list[str]) -> Verb:
    infinitive, present, past, perfect, english, before, after, kind = row
    prefix, _, plain = infinitive.rpartition("-")
    auxiliary, participle = perfect.split()
    own = {name: (_forms(forms), prefix) for name, forms in (("present", present), ("past", past))}
    own["perfect"] = AUXILIARIES[auxiliary], participle
    tenses = {
        mood: tuple(TENSES[name] for name in names if name in KINDS[kind])
        for mood, names in MOODS.items()
    }
    particles = before.strip("-"), after.strip("-")
    return Verb(prefix + plain, prefix, own, _forms(english), *particles, tenses)


@cache
def _places(names: str) -> tuple[Place, ...]:
    found = []
    for name, words, spots in ROWS["places"]:
        if name in names.split():
            german, case, english = words.split(maxsplit=2)
            found += [Place(german, CASES[case], english, noun) for noun in nouns(spots)]
    return tuple(found)


def _use(row: list[str]) -> Use:
    infinitive, kind, needed, optional, questions, subjects, names = row
    verb, found = VERBS[infinitive], nouns(names)
    objects = found, tuple(noun for noun in found if not held_out(verb.key, noun.key))
    places = _places(needed), _places(optional)
    return Use(verb, kind, *places, _forms(questions), nouns(subjects), objects)


ROWS = _read_sections()
CASES = {"acc": ACC, "dat": DAT}
AUXILIARIES = {"hat": _forms("habe hast hat haben"), "ist": _forms("bin bist ist sind")}
CONTRACTIONS = dict(ROWS["contractions"])
ENDINGS = {name: _forms(forms) for name, forms in ROWS["endings"]}
DETERMINERS = {name: _determiner(*row) for name, *row in ROWS["determiners"]}
CHOICES = {name: (_determiners(one), _determiners(many)) for name, one, many in ROWS["choices"]}
GROUPS = {
    group: tuple(_noun(text, choice) for text in members.split(","))
    for group, choice, members in ROWS["nouns"]
}
NOUNS = tuple(noun for group in GROUPS.values() for noun in group)
NAMED = {**GROUPS, **{noun.key: (noun,) for noun in NOUNS}}
for _name, _members in ROWS["sets"]:
    NAMED[_name] = nouns(_members)
ADJECTIVES = [(Adjective(*row.split()), frozenset(nouns(fits))) for row, fits in ROWS["adjectives"]]
DESCRIBING = {noun.key: _describing(noun) for noun in NOUNS}
TIMES = {name: _both(entries) for name, entries in ROWS["times"]}
TENSES = {name: _tense(row) for name, *row in ROWS["tenses"]}
MOODS = {name: _forms(names) for name, names in ROWS["moods"]}
KINDS = {name: _forms(names) for name, names in ROWS["kinds"]}
VERBS = {row[0]: _verb(row) for row in ROWS["verbs"]}
USES = tuple(map(_use, ROWS["uses"]))
