"""The words of the phrasebook, read from words.txt, which explains its own columns."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

NOM, ACC, DAT = range(3)
CASES = {"nom": NOM, "acc": ACC, "dat": DAT}
PLURAL = 3  # the fourth gender of articles and endings
HELD_OUT_PERCENT = 20

Forms = tuple[str, ...]


@cache
def held_out(first: str, second: str) -> bool:
    """Whether a combination (verb, object) or (adjective, noun) is kept for the test."""
    return zlib.crc32(f"{first} {second}".encode()) % 100 < HELD_OUT_PERCENT


# --- Words -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Determiner:
    """A word before a noun: German forms by gender and case, endings of an adjective after it."""

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


Pool = tuple[tuple[Noun, ...], tuple[Noun, ...]]  # all nouns, and those not held out


class Adjective(NamedTuple):
    """An adjective: the German base form and stem, and whether it takes "very"."""

    key: str
    stem: str
    english: str
    graded: bool


class Both(NamedTuple):
    """An expression in both languages."""

    en: str
    de: str


class Tense(NamedTuple):
    """A tense or modal; tuples of forms hold one for each person."""

    name: str
    plain: Forms  # of English without an auxiliary; empty if it takes one
    auxiliary: Forms
    rest: str
    german: Forms  # of a verb before the infinitive, or the name of the verb's own tense
    times: tuple[Both, ...]
    adverbs: tuple[Both, ...]
    negatable: bool


class Place(NamedTuple):
    """A preposition with a noun that it goes with."""

    german: str
    case: int
    english: str
    noun: Noun


class Use(NamedTuple):
    """One way to use a verb."""

    case: int
    objects: Pool
    receiver: bool
    needed: tuple[Place, ...]
    optional: tuple[Place, ...]
    subjects: tuple[Noun, ...]
    described: bool
    clause: Forms


class Verb(NamedTuple):
    """A verb; German forms by person, English base, he-form, past, participle and gerund."""

    key: str
    prefix: str
    present: Forms
    past: Forms
    auxiliary: Forms
    participle: str
    english: Forms
    particle: str
    movable: bool  # a pronoun object comes before the particle
    kind: str
    tenses: dict[str, tuple[Tense, ...]]  # by mood
    uses: tuple[Use, ...]


# --- Reading ---------------------------------------------------------------------------------


def _sections() -> dict[str, list[list[str]]]:
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


def _words(text: str) -> Forms:
    """Return the words of a text; "-" is the empty word."""
    return tuple(word.strip("-") for word in text.split())


def _persons(text: str, separator: str | None = None) -> Forms:
    """Return one form for each person: a single form stands for all, "-" for none."""
    forms = tuple(form.strip() for form in text.split(separator))
    return () if forms == ("-",) else forms * 4 if len(forms) == 1 else forms


def _both(text: str) -> tuple[Both, ...]:
    entries = (entry.partition("=") for entry in text.split(","))
    return tuple(Both(en.strip(" -"), de.strip(" -")) for en, _, de in entries)


def _determiner(name: str, stem: str, endings: str, after: str, definite: str) -> Determiner:
    german = tuple(stem.strip("-") + ending for ending in ENDINGS[endings])
    english = "" if name in ("bare", "name") else name
    return Determiner(english, german, ENDINGS[after], definite == "yes")


def _determiners(names: str) -> tuple[Determiner, ...]:
    return tuple(DETERMINERS[name] for name in names.split() if name != "-")


def _noun(row: str, choice: str) -> Noun:
    """Read a noun; the dative plural adds an "n" unless there is an "n" or "s"."""
    gender, singular, plural, one, many = row.split()
    key, _, oblique = singular.partition("/")
    oblique, dative = oblique or key, plural if plural[-1] in "ns" else plural + "n"
    german = (key, oblique, oblique), (plural, plural, dative)
    return Noun(key, "mfn".index(gender), (one, many.strip("-")), german, CHOICES[choice])


def _read_nouns() -> dict[str, tuple[Noun, ...]]:
    """Return every noun and every group of nouns by its name."""
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
    """Return the nouns of the named nouns, groups and sets; "-" before a name takes away."""
    found: dict[str, Noun] = {}
    for name in names.split():
        for noun in NAMED[name.removeprefix("-")]:
            found[noun.key] = noun
            if name.startswith("-"):
                del found[noun.key]
    return tuple(found.values())


def _tense(row: list[str]) -> Tense:
    name, plain, auxiliary, rest, german, times, adverbs, negatable = row
    return Tense(
        name,
        _persons(plain, "/"),
        _persons(auxiliary),
        rest.strip("-"),
        _persons(german),
        TIMES[times],
        TIMES[adverbs],
        negatable == "yes",
    )


@cache
def _places(names: str) -> tuple[Place, ...]:
    found = []
    for name, words, spots in ROWS["places"]:
        if name in names.split():
            german, case, english = words.split(maxsplit=2)
            found += [Place(german, CASES[case], english, noun) for noun in nouns(spots)]
    return tuple(found)


def _use(text: str, key: str) -> Use:
    """Read a use: markers, each followed by its words."""
    parts = dict.fromkeys(("-", "acc", "dat", "give", "to", "at", "by", "is", "clause"), "")
    for word in text.split():
        marker = word if word in parts else marker
        parts[marker] += " " if word in parts else f"{word} "
    objects = nouns(parts["acc"] + parts["dat"] + parts["give"])
    return Use(
        DAT if parts["dat"] else ACC,
        (objects, tuple(noun for noun in objects if not held_out(key, noun.key))),
        bool(parts["give"]),
        _places(parts["to"]),
        _places(parts["at"]),
        nouns(parts["by"] or "human"),
        bool(parts["is"]),
        _words(parts["clause"]),
    )


def _verb(row: list[str]) -> Verb:
    infinitive, present, past, perfect, english, kind, uses = row
    prefix, _, plain = infinitive.rpartition("-")
    one, many = past.split()
    auxiliary, participle = perfect.split()
    forms, particle = _words(english)[:5], " ".join(english.split()[5:])
    # A past that is like the base form could be misread.
    allowed = set(KINDS[kind]) - {"past" if forms[0] == forms[2] else ""}
    return Verb(
        prefix + plain,
        prefix,
        _persons(present),
        (one, one, one, many),
        AUXILIARIES[auxiliary],
        participle,
        forms,
        particle[1:],
        particle.startswith("+"),
        kind,
        {mood: tuple(TENSES[t] for t in names if t in allowed) for mood, names in MOODS.items()},
        tuple(_use(use, prefix + plain) for use in uses.split(";")),
    )


def _describing(noun: Noun) -> tuple[tuple[Adjective, ...], tuple[Adjective, ...]]:
    """Return the adjectives that fit a noun, and those not held out."""
    fitting = tuple(adjective for adjective, fits in ADJECTIVES.items() if noun in fits)
    return fitting, tuple(a for a in fitting if not held_out(a.key, noun.key))


ROWS = _sections()
ENDINGS = {name: _words(forms) for name, forms in ROWS["endings"]}
DETERMINERS = {row[0]: _determiner(*row) for row in ROWS["determiners"]}
CHOICES = {name: (_determiners(one), _determiners(many)) for name, one, many in ROWS["choices"]}
CONTRACTIONS = {tuple(long.split()): short for long, short in ROWS["contractions"]}
NAMED = _read_nouns()
NOUNS = tuple(group[0] for name, group in NAMED.items() if group[0].key == name)
for _name, _members in ROWS["sets"]:
    NAMED[_name] = nouns(_members)
ADJECTIVES = {
    Adjective(*words.split(), graded == "yes"): nouns(fits)
    for words, graded, fits in ROWS["adjectives"]
}
DESCRIBING = {noun.key: _describing(noun) for noun in NOUNS}
TIMES = {name: _both(entries) for name, entries in ROWS["times"]}
TENSES = {row[0]: _tense(row) for row in ROWS["tenses"]}
MOODS = {name: _words(names) for name, names in ROWS["moods"]}
KINDS = {name: _words(names) for name, names in ROWS["kinds"]}
AUXILIARIES = {"hat": _persons("habe hast hat haben"), "ist": _persons("bin bist ist sind")}
VERBS = tuple(_verb(row) for row in ROWS["verbs"])
