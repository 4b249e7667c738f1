"""Noun phrases, objects and places of the phrasebook, drawn in both languages at once."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeVar

from mtrain.phrasebook import inflection as words
from mtrain.phrasebook.inflection import (
    ACC,
    ADJECTIVES,
    DAT,
    GROUPS,
    NOM,
    NOUNS,
    PLURAL,
    VERBS,
    Adjective,
    Both,
    Determiner,
    Noun,
    Place,
    Tense,
    Use,
    Verb,
)
from mtrain.phrasebook.lexicon import NAMES, TOWNS, UNOWNED

HELD_OUT_PERCENT = 20

T = TypeVar("T")


@cache
def held_out(first: str, second: str) -> bool:
    """Tell whether a combination (verb, object) or (adjective, noun) is kept for the test."""
    return zlib.crc32(f"{first} {second}".encode()) % 100 < HELD_OUT_PERCENT


# --- Phrases ---------------------------------------------------------------------------------


class Phrase(NamedTuple):
    """A noun phrase or pronoun in both languages."""

    en: str
    de: str
    person: int  # 0 to 5: I, you, he, we, you all, they
    definite: bool = True
    pronoun: bool = False
    key: str = ""  # noun or name, which must not come again as the object
    gender: int = 0  # 3 for the plural


Spots = tuple[tuple[Place, Noun | Both], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A use of a verb with its nouns looked up; index 1 of the nouns leaves out held-out ones."""

    verb: Verb
    use: Use
    nouns: tuple[tuple[Noun, ...], tuple[Noun, ...]]
    subjects: tuple[Noun, ...]
    places: Spots


def spots(names: tuple[str, ...]) -> Spots:
    """Return every pair of a preposition and a noun that the named places offer."""
    found: list[tuple[Place, Noun | Both]] = []
    for place in (place for name in names for place in words.PLACES[name]):
        found += ((place, NOUNS[noun]) for noun in place.nouns)
        found += ((place, Both(*town)) for town in TOWNS if place.towns)
    return tuple(found)


def _frame(verb: Verb, use: Use) -> Frame:
    static = use.kind in "sm"
    nouns = () if static else tuple(NOUNS[noun] for noun in use.nouns)
    seen = tuple(noun for noun in nouns if not held_out(verb.key, noun.key))
    places = use.nouns if static else ("to_put",) if use.kind == "c" else ("place",)
    subjects = () if use.kind == "w" else tuple(NOUNS[noun] for noun in use.subjects)
    return Frame(verb, use, (nouns, seen), subjects, spots(places))


def _describing(noun: Noun) -> tuple[tuple[Adjective, ...], tuple[Adjective, ...]]:
    fitting = tuple(adjective for adjective in ADJECTIVES if noun.key in adjective.nouns)
    return fitting, tuple(a for a in fitting if not held_out(a.key, noun.key))


FRAMES = tuple(tuple(_frame(verb, use) for use in verb.uses) for verb in VERBS)
DESCRIBING = {noun.key: _describing(noun) for noun in NOUNS.values()}
PEOPLE = (*GROUPS["person"], *GROUPS["kin"])
# Forms that only one pronoun takes would be rare, so "I" and "you" count twice.
SUBJECT_PRONOUNS = tuple(
    Phrase(en, de, person, pronoun=True)
    for en, de, person in (
        ("I", "ich", 0),
        ("I", "ich", 0),
        ("he", "er", 2),
        ("she", "sie", 2),
        ("we", "wir", 3),
        ("they", "sie", 5),
        ("you", "du", 1),
        ("you", "du", 1),
        ("you all", "ihr", 4),
    )
)
OBJECT_PRONOUNS = {
    case: tuple(
        Phrase(en, de, person, pronoun=True)
        for en, de, person in zip(
            ("me", "you", "him", "us", "her", "them"),
            forms.split(),
            (0, 1, 2, 3, 2, 5),
            strict=True,
        )
    )
    for case, forms in ((ACC, "mich dich ihn uns sie sie"), (DAT, "mir dir ihm uns ihr ihnen"))
}
IT = Phrase("it", "es", 2, pronoun=True)
PERSONS = tuple(Phrase(name, name, 2, key=name) for name in NAMES)

# Determiners to choose from: first one of the groups, then one of its members.
Choice = tuple[tuple[Determiner, ...], ...]
THE, A, BARE, THIS = (words.THE,), (words.A,), (words.BARE,), (words.THIS,)
MINE, MANY, COUNTED = words.POSSESSIVES, (words.MANY,), words.COUNTED
NAMED, OWNERS = words.NAMED_OWNERS, words.OWNERS
DEFINITE: Choice = (THE, THE, THE, THIS, MINE, MINE, NAMED, OWNERS)
SINGULAR: Choice = (*DEFINITE[1:], A, A, A)
SEVERAL: Choice = (*DEFINITE[1:], BARE, BARE)
MASS: Choice = (THE, MINE, BARE, BARE, BARE)
FAMILY: Choice = (THE, MINE, MINE, MINE, MINE, A, NAMED)
COUNTS: Choice = (MANY, COUNTED[:11], COUNTED)
UNOWNED_ONE: Choice = (THE, THE, THIS, A, A)
UNOWNED_MANY: Choice = (THE, THE, THIS)
PLACED: Choice = (THE, THE, THE, THE, THIS, A, MINE)
SUBJECT: Choice = (*SINGULAR, (words.EVERY,))
SUBJECTS: Choice = (*SEVERAL, MANY, COUNTED, (words.ALL,))

# --- Choosing phrases ------------------------------------------------------------------------


class Source:
    """The random choices of one sentence, and the combinations they led to."""

    __slots__ = ("combinations", "pool", "random")

    def __init__(self, random: Callable[[], float], known: bool) -> None:
        """Choose with ``random``; ``known`` leaves out the held-out combinations."""
        self.random = random
        self.pool = int(known)
        self.combinations: list[tuple[str, str]] = []

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items, all alike."""
        return items[int(self.random() * len(items))]

    def chance(self, share: float) -> bool:
        """Return True in the given share of calls."""
        return self.random() < share


def noun_phrase(
    src: Source,
    noun: Noun,
    case: int,
    determiner: Determiner,
    plural: bool,
    adjectives: float = 0.3,
    negated: bool = False,
) -> Phrase:
    """Build a noun phrase; ``negated`` turns "a" into "kein" on the German side."""
    gender = PLURAL if plural else noun.gender
    form = words.NO if negated and determiner in (words.A, words.BARE) else determiner
    article = form.german[gender][case]
    english, german = noun.english[plural], (noun.plural if plural else noun.singular)[case]
    fitting = DESCRIBING[noun.key][src.pool]
    if fitting and src.random() < adjectives:
        adjective = src.pick(fitting)
        src.combinations.append((adjective.key, noun.key))
        english = f"{adjective.english} {english}"
        ending = words.ADJECTIVE_ENDINGS[form.endings][gender][case]
        german = f"{adjective.stem}{ending} {german}"
    if article:
        german = f"{article} {german}{form.after}"
    first = determiner.english[plural]
    if first == "a" and english[0] in "aeiou":
        first = "an"
    if first:
        english = f"{first} {english}"
    person = 5 if plural else 2
    return Phrase(english, german, person, determiner.definite, False, noun.key, gender)


def _number(src: Source, noun: Noun) -> bool:
    return not noun.mass and src.random() < (0.1 if noun.group == "kin" else 0.33)


def _choice(noun: Noun, plural: bool, subject: bool) -> Choice:
    """Return the determiners that suit a noun."""
    if noun.mass:
        return MASS
    if noun.group == "kin":
        return (THE, BARE) if plural else FAMILY
    if noun.key in UNOWNED:
        return UNOWNED_MANY if plural else UNOWNED_ONE
    if subject:
        return SUBJECTS if plural else SUBJECT
    return SEVERAL if plural else SINGULAR


def any_noun_phrase(src: Source, noun: Noun, case: int, negated: bool, adjectives: float) -> Phrase:
    """Return an object with any determiner that a negation allows."""
    plural = _number(src, noun)
    choice = _choice(noun, plural, False)
    if plural and not negated and src.chance(0.25):
        choice = COUNTS
    determiner = src.pick(src.pick(choice))
    return noun_phrase(src, noun, case, determiner, plural, adjectives, negated)


def definite_phrase(src: Source, noun: Noun, case: int, adjectives: float = 0.2) -> Phrase:
    """Return a noun phrase that says which one is meant."""
    family = noun.group == "kin"
    plural = not family and _number(src, noun)
    if family or noun.mass:
        choice = FAMILY[:5] if family else MASS[:2]
    else:
        choice = UNOWNED_ONE[:3] if noun.key in UNOWNED else DEFINITE
    determiner = src.pick(src.pick(choice))
    return noun_phrase(src, noun, case, determiner, plural, adjectives)


def subject_phrase(src: Source, nouns: tuple[Noun, ...], tense: Tense, adjectives: float) -> Phrase:
    """Return a subject; names and pronouns stand for people only."""
    if nouns[0].group == "person":
        share = src.random()
        if share < 0.45:
            # German tells about "you" in the past with the perfect, so "you" is left out.
            return src.pick(SUBJECT_PRONOUNS[:6] if tense is words.PAST else SUBJECT_PRONOUNS)
        if share < 0.6:
            return src.pick(PERSONS)
    noun = src.pick(nouns)
    plural = _number(src, noun)
    determiner = src.pick(src.pick(_choice(noun, plural, True)))
    return noun_phrase(src, noun, NOM, determiner, plural, adjectives)


def object_pronoun(src: Source, case: int, subject: Phrase) -> Phrase:
    """Return an object pronoun that is no reflexive and cannot be read as the subject."""
    free = OBJECT_PRONOUNS[case]
    if not subject.pronoun or subject.key:
        return src.pick(free[:4])
    blocked = {0: (0, 3), 3: (0, 3), 1: (1,), 4: (1,)}.get(subject.person, ())
    return src.pick([pronoun for pronoun in free if pronoun.person not in blocked])


def person_phrase(src: Source, case: int, subject: Phrase, taken: tuple[str, ...]) -> Phrase:
    """Return a person in a role that makes no combination, none of those taken."""
    share = src.random()
    if share < 0.2:
        return object_pronoun(src, case, subject)
    named = share < 0.5
    phrase = src.pick(PERSONS) if named else definite_phrase(src, src.pick(PEOPLE), case, 0.1)
    return phrase if phrase.key not in taken else person_phrase(src, case, subject, taken)


def with_preposition(preposition: str, german: str) -> str:
    """Join a German preposition and a phrase, contracting "in dem" to "im"."""
    first, _, rest = german.partition(" ")
    short = words.CONTRACTIONS.get((preposition, first))
    return f"{short} {rest}" if short else f"{preposition} {german}"


def place_phrase(src: Source, spots: Spots) -> Both:
    """Return a place or direction with its preposition."""
    place, noun = src.pick(spots)
    if isinstance(noun, Both):
        return Both(f"{place.english} {noun.en}", f"{place.german} {noun.de}")
    plural = src.chance(0.12)
    choice = UNOWNED_MANY if plural else UNOWNED_ONE if noun.key in UNOWNED else PLACED
    phrase = noun_phrase(src, noun, place.case, src.pick(src.pick(choice)), plural, 0.15)
    return Both(f"{place.english} {phrase.en}", with_preposition(place.german, phrase.de))
