"""The words of the phrasebook, read from words.txt, which explains its own columns."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

NOM, ACC, DAT = range(3)
PLURAL = 3  # the fourth gender of articles and endings
HELD_OUT_PERCENT = 20

Forms = tuple[str, ...]


@cache
def held_out(first: str, second: str) -> bool:
    """Whether a combination (verb, object) or (adjective, noun) is kept for the test."""
    return zlib.crc32(f"{first} {second}".encode()) % 100 < HELD_OUT_PERCENT


# --- Words: tuples of forms go by person, or by gender and case ------------------------------


class Both(NamedTuple):
    """An expression in both languages."""

    en: str
    de: str


@dataclass(frozen=True, slots=True, eq=False)
class Determiner:
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
    english: tuple[str, str]
    german: tuple[Forms, Forms]
    determiners: tuple[tuple[Determiner, ...], tuple[Determiner, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective: German base form and stem, and whether it takes "very"."""

    key: str
    stem: str
    english: str
    graded: bool
    nouns: frozenset[Noun]


class Tense(NamedTuple):
    """A tense or modal."""

    name: str
    plain: Forms  # English without an auxiliary
    auxiliary: Forms
    rest: str  # English after the auxiliary
    german: Forms  # forms before the infinitive, or the name of the verb's own tense
    times: tuple[Both, ...]
    adverbs: tuple[Both, ...]
    negatable: bool


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
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
    kind: str
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


def _persons(text: str) -> Forms:
    """Return a form for each person; a single one stands for all."""
    forms = _forms(text)
    return forms if len(forms) == 4 else (text.strip("-"),) * 4


def _both(text: str) -> tuple[Both, ...]:
    parts = (part.partition("=") for part in text.split(","))
    return tuple(Both(en.strip(" -"), de.strip(" -")) for en, _, de in parts)


def _determiner(row: list[str]) -> Determiner:
    _, english, stem, endings, after, definite = row
    german = tuple(stem.strip("-") + ending for ending in ENDINGS[endings])
    return Determiner(english.strip("-"), german, ENDINGS[after], definite == "yes")


def _determiners(names: str) -> tuple[Determiner, ...]:
    return tuple(DETERMINERS[name] for name in names.split() if name != "-")


def _noun(row: str, choice: str) -> Noun:
    """Read a noun; the dative plural adds an "n" unless there is an "n" or "s"."""
    gender, singular, plural, one, many = row.split()
    key, _, oblique = singular.partition("/")
    dative = plural if plural[-1] in "ns" else plural + "n"
    german = (key, oblique or key, oblique or key), (plural, plural, dative)
    return Noun(key, "mfn".index(gender), (one, many.strip("-")), german, CHOICES[choice])


def _read_nouns() -> dict[str, tuple[Noun, ...]]:
    """Return nouns by name: of a noun or of a group."""
    found: dict[str, tuple[Noun, ...]] = {}
    for (row,) in ROWS["nouns"]:
        if row.startswith("*"):
            _, group, choice = row.split()
            found[group] = ()
        else:
            noun = _noun(row, choice)
            found[noun.key] = (noun,)
            found[group] += (noun,)
    return found


@cache
def nouns(names: str) -> tuple[Noun, ...]:
    """Return the named nouns; "-" before a name takes away."""
    found: dict[str, Noun] = {}
    for name in () if names == "-" else names.split():
        for noun in NAMED[name.removeprefix("-")]:
            found[noun.key] = noun
            if name.startswith("-"):
                del found[noun.key]
    return tuple(found.values())


def _adjective(row: list[str]) -> Adjective:
    key, stem, english = row[0].split()
    return Adjective(key, stem, english, row[1] == "yes", frozenset(nouns(row[2])))


def _describing(noun: Noun) -> tuple[tuple[Adjective, ...], tuple[Adjective, ...]]:
    """Return the adjectives that fit a noun, and those not held out."""
    fitting = tuple(adjective for adjective in ADJECTIVES if noun in adjective.nouns)
    return fitting, tuple(a for a in fitting if not held_out(a.key, noun.key))


def _tense(row: list[str]) -> Tense:
    name, plain, auxiliary, rest, german, times, adverbs, negatable = row
    forms = _persons(plain), _persons(auxiliary), rest.strip("-"), _persons(german)
    return Tense(name, *forms, TIMES[times], TIMES[adverbs], negatable == "yes")


def _verb(row: list[str]) -> Verb:
    """Read a verb; a past that is like the base form could be misread, so it is left out."""
    infinitive, present, past, perfect, words, before, after, kind = row
    prefix, _, plain = infinitive.rpartition("-")
    one, many = past.split()
    auxiliary, participle = perfect.split()
    german = _persons(present), (one, one, one, many), AUXILIARIES[auxiliary], participle
    english = _forms(words), before.strip("-"), after.strip("-")
    known = set(KINDS[kind]) - {"past" if english[0][0] == english[0][2] else ""}
    tenses = {mood: tuple(TENSES[t] for t in names if t in known) for mood, names in MOODS.items()}
    return Verb(prefix + plain, prefix, *german, *english, kind, tenses)


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
    verb, found = VERBS[infinitive.replace("-", "")], nouns(names)
    objects = found, tuple(noun for noun in found if not held_out(verb.key, noun.key))
    places = _places(needed), _places(optional)
    return Use(verb, kind, *places, _forms(questions), nouns(subjects), objects)


ROWS = _read_sections()
CASES = {"acc": ACC, "dat": DAT}
AUXILIARIES = {"hat": _forms("habe hast hat haben"), "ist": _forms("bin bist ist sind")}
CONTRACTIONS = dict(ROWS["contractions"])
ENDINGS = {name: _forms(forms) for name, forms in ROWS["endings"]}
DETERMINERS = {row[0]: _determiner(row) for row in ROWS["determiners"]}
CHOICES = {name: (_determiners(one), _determiners(many)) for name, one, many in ROWS["choices"]}
NAMED = _read_nouns()
NOUNS = tuple(found[0] for name, found in NAMED.items() if found[0].key == name)
for _name, _members in ROWS["sets"]:
    NAMED[_name] = nouns(_members)
ADJECTIVES = tuple(map(_adjective, ROWS["adjectives"]))
DESCRIBING = {noun.key: _describing(noun) for noun in NOUNS}
TIMES = {name: _both(entries) for name, entries in ROWS["times"]}
TENSES = {row[0]: _tense(row) for row in ROWS["tenses"]}
MOODS = {name: _forms(names) for name, names in ROWS["moods"]}
KINDS = {name: _forms(names) for name, names in ROWS["kinds"]}
VERBS = {verb.key: verb for verb in map(_verb, ROWS["verbs"])}
USES = tuple(map(_use, ROWS["uses"]))
