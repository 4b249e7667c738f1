"""The clauses of the phrasebook: drawn as a set of parts, then put into an order.

English and German each have their own order for a statement, a question and a subordinate
clause; the parts are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from mtrain.phrasebook import inflection as words
from mtrain.phrasebook.inflection import (
    ACC,
    DAT,
    GROUPS,
    NOM,
    NOTHING,
    NOUNS,
    Adjective,
    Both,
    English,
    German,
    Noun,
    Tense,
    Verb,
)
from mtrain.phrasebook.lexicon import NUMBERS
from mtrain.phrasebook.phrases import (
    DESCRIBING,
    FRAMES,
    IT,
    PEOPLE,
    PERSONS,
    SUBJECT_PRONOUNS,
    Frame,
    Phrase,
    Source,
    any_noun_phrase,
    definite_phrase,
    object_pronoun,
    person_phrase,
    place_phrase,
    spots,
    subject_phrase,
    with_preposition,
)

# --- Clauses ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Clause:
    """A clause before its word order is chosen; the German fields come in German order."""

    verb: Verb
    tense: Tense
    subject: Phrase
    negated: bool = False
    kein: bool = False  # the German negation is in an object
    english: str = ""  # what follows the English verb
    weak: str = ""  # pronoun object
    time: Both = NOTHING
    fixed: str = ""  # definite objects
    middle: Both = NOTHING  # "often" and the like; "nicht" takes the same place
    adjunct: str = ""
    loose: str = ""  # indefinite object
    complement: str = ""  # direction or predicate
    taken: tuple[str, ...] = ()  # keys that must not come again

    def add(self, english: str) -> None:
        """Append to the English complements."""
        self.english = f"{self.english} {english}" if self.english else english

    def add_object(self, phrase: Phrase) -> None:
        """Put an object where both languages want it."""
        tail = self.verb.en.tail
        if tail and self.verb.en.movable and phrase.pronoun:
            self.add(f"{phrase.en} {tail}")
        else:
            self.add(f"{tail} {phrase.en}" if tail else phrase.en)
        self.place_object(phrase)

    def place_object(self, phrase: Phrase) -> None:
        """Put an object into the German order."""
        if phrase.pronoun:
            self.weak = phrase.de
        elif phrase.definite:
            self.fixed = f"{self.fixed} {phrase.de}" if self.fixed else phrase.de
        else:
            self.loose = phrase.de


BE = Verb(
    "sein",
    English("be", "is", "was", "been", "being", "", False),
    German("sein", "", words.BIN, ("war", "waren"), "gewesen", "sei", True),
    False,
    True,
    (),
)


def english_verb(clause: Clause, support: bool) -> tuple[str, str]:
    """Return the English auxiliary, or "", and the main verb; ``support`` asks for one."""
    tense, person, forms = clause.tense, clause.subject.person, clause.verb.en
    if clause.verb is BE and tense is words.PRESENT:
        return words.AM[person], ""
    if clause.verb is BE and tense is words.PAST:
        return words.WAS[person], ""
    link = tense.links[person]
    if tense.auxiliary:
        main = forms[tense.form]
        return tense.auxiliary[person], f"{link} {main}" if link else str(main)
    if support:
        link = tense.base_link
        return tense.support[person], f"{link} {forms.base}" if link else forms.base
    if link:
        return "", f"{link} {forms.base}"
    if tense is words.PAST:
        return "", forms.past
    return "", forms.third if person == 2 else forms.base


def english(clause: Clause, question: bool = False) -> str:
    """Put an English clause together, without its adverb of time if that was taken away."""
    auxiliary, main = english_verb(clause, question or clause.negated)
    negation = "not" if clause.negated else ""
    if negation and auxiliary == "can" and not question:
        auxiliary, negation = "cannot", ""
    subject = clause.subject.en
    first, second = (auxiliary, subject) if question else (subject, auxiliary)
    parts = (first, second, negation, clause.middle.en, main, clause.english, clause.time.en)
    return " ".join(filter(None, parts))


def german_verb(clause: Clause) -> tuple[str, str]:
    """Return the German finite verb and what closes the clause."""
    tense, person, forms = clause.tense, clause.subject.person, clause.verb.de
    if tense is words.PRESENT or tense is words.PROGRESSIVE:
        return forms.present[person], forms.prefix
    if tense is words.PAST:
        return forms.past[person > 2], forms.prefix
    if tense is words.IMPERATIVE:
        return forms.imperative, forms.prefix
    if tense is words.PERFECT:
        return (words.BIN if forms.with_sein else words.HABE)[person], forms.participle
    return tense.finite[person], forms.infinitive


def german(clause: Clause, order: str = "second") -> str:
    """Put a German clause together with its finite verb "second", "first" or "last"."""
    finite, closing = german_verb(clause)
    subject, weak = clause.subject.de, clause.weak
    if order != "second" and weak and not clause.subject.pronoun:
        subject, weak = weak, subject
    middle = clause.middle.de
    if clause.negated and not clause.kein:
        middle = "nicht"
    field = (clause.time.de, clause.fixed, middle, clause.adjunct, clause.loose, clause.complement)
    if order == "second":
        parts: tuple[str, ...] = (subject, finite, weak, *field, closing)
    elif order == "first":
        parts = (finite, subject, weak, *field, closing)
    elif closing and closing == clause.verb.de.prefix:
        parts = (subject, weak, *field, closing + finite)
    else:
        parts = (subject, weak, *field, closing, finite)
    return " ".join(filter(None, parts))


# --- Drawing clauses -------------------------------------------------------------------------

Tenses = tuple[tuple[Tense, ...], ...]
PAST_TENSES = (words.PAST, words.COULD, words.WANTED, words.HAD)
WEATHER_TENSES = (words.PRESENT, words.PROGRESSIVE, words.PERFECT, words.FUTURE, words.PAST)
YOU, YOU_ALL = SUBJECT_PRONOUNS[-2:]
CHILDREN = ("Kind", "Junge", "Mädchen")
GERADE = Both("", "gerade")
DEGREES = (NOTHING, NOTHING, NOTHING, Both("very ", "sehr "), Both("too ", "zu "))
DESCRIBED = tuple(noun for noun in NOUNS.values() if all(DESCRIBING[noun.key]))
WHERE_PEOPLE, WHERE_THINGS = spots(("place",)), spots(("on", "spot"))


def choose_frame(src: Source, past: bool = False) -> Frame:
    """Return a use of some verb; for the past, one whose English past differs ("cut" does not)."""
    while True:
        frame = src.pick(src.pick(FRAMES))
        if not past or frame.verb.en.past != frame.verb.en.base:
            return frame


def suited(tense: Tense, frame: Frame) -> Tense:
    """Return the tense, or a plain one if the verb does not go with it."""
    verb, past = frame.verb, tense in PAST_TENSES
    if frame.use.kind == "w":
        free = tense in WEATHER_TENSES
    elif verb.state:
        free = False
    else:
        free = verb.active or tense is not words.PROGRESSIVE
    if not free:
        tense = words.PAST if past else words.PRESENT
    hidden = tense is words.PAST and verb.en.past == verb.en.base
    return words.PERFECT if hidden else tense


def _speaks_to_all(verb: Verb, tense: Tense) -> bool:
    """Tell whether the form for "you all" is a usual one, not one that only it takes ("lest")."""
    plain = tense is words.PRESENT or tense is words.PROGRESSIVE
    return verb.key == "haben" or not plain or verb.de.present[4] == verb.de.present[2]


def draw_subject(src: Source, frame: Frame, tense: Tense, light: bool) -> Phrase:
    """Return a subject for a use of a verb."""
    subject = subject_phrase(src, frame.subjects, tense, 0.12 if light else 0.25)
    return YOU if subject is YOU_ALL and not _speaks_to_all(frame.verb, tense) else subject


def draw_clause(
    src: Source,
    tenses: Tenses,
    frame: Frame | None = None,
    subject: Phrase | None = None,
    light: bool = False,
    timed: bool = True,
    place: bool = True,
    negatable: bool = True,
) -> Clause:
    """Draw a clause; ``light`` keeps it short, ``timed`` and ``place`` allow such adverbials."""
    tense = src.pick(src.pick(tenses))
    if frame is None and subject is None and src.random() < 0.16:
        return draw_copula(src, tense, negatable)
    frame = frame or choose_frame(src, tense in PAST_TENSES)
    tense = suited(tense, frame)
    kind = frame.use.kind
    if subject is None:
        subject = IT if kind == "w" else draw_subject(src, frame, tense, light)
    clause = Clause(frame.verb, tense, subject, taken=(subject.key,))
    clause.negated = negatable and subject.definite and src.random() < 0.14
    fill(src, clause, frame, light, place)
    if tense is words.PROGRESSIVE:
        clause.time = GERADE
    elif timed:
        add_adverbs(src, clause, light)
    return clause


def fill(src: Source, clause: Clause, frame: Frame, light: bool, place: bool = True) -> None:
    """Add the objects, places and directions that a use of a verb asks for."""
    kind = frame.use.kind
    if kind in "td":
        clause.add_object(choose_object(src, clause, frame, DAT if kind == "d" else ACC, light))
    elif kind == "b":
        receiver = person_phrase(src, DAT, clause.subject, clause.taken)
        clause.add_object(receiver)
        clause.taken += (receiver.key,)
        gift = choose_object(src, clause, frame, ACC, light)
        clause.add(gift.en)
        clause.place_object(gift)
    elif kind == "c":
        clause.add_object(choose_object(src, clause, frame, ACC, light))
    elif kind == "o":
        _add_prepositional(src, clause, frame)
    elif kind == "n" and place:
        price = words.number_words(src.pick(NUMBERS))
        clause.add(f"{price[0]} euros")
        clause.complement = f"{price[1]} Euro"
    elif clause.verb.en.tail:
        clause.add(clause.verb.en.tail)
    if kind in "smc" and place:
        where = place_phrase(src, frame.places)
        clause.add(where.en)
        clause.complement = where.de
    elif place and not light and not (clause.fixed and clause.negated):
        _add_adjunct(src, clause, frame)


def choose_noun(src: Source, clause: Clause, frame: Frame) -> Noun:
    """Return an object noun that the clause does not hold yet."""
    while True:
        noun = src.pick(frame.nouns[src.pool])
        if noun.key not in clause.taken:
            clause.taken += (noun.key,)
            return noun


def choose_object(src: Source, clause: Clause, frame: Frame, case: int, light: bool) -> Phrase:
    """Return an object of the verb, and note the combination of the two."""
    noun = choose_noun(src, clause, frame)
    if noun.group in ("person", "kin"):
        share = src.random()
        if share < 0.2:
            return object_pronoun(src, case, clause.subject)
        name = src.pick(PERSONS)
        if share < 0.3 and name.key not in clause.taken:
            return name
    src.combinations.append((clause.verb.key, noun.key))
    phrase = any_noun_phrase(src, noun, case, clause.negated, 0.2 if light else 0.35)
    clause.kein = clause.negated and not phrase.definite
    return phrase


def _add_prepositional(src: Source, clause: Clause, frame: Frame) -> None:
    """Add an object with a preposition, which "nicht" negates, never "kein"."""
    noun = choose_noun(src, clause, frame)
    preposition, english_preposition = frame.use.preposition
    case = words.CASES[preposition[-1]]
    if noun.group in ("person", "kin") and src.chance(0.25):
        phrase = object_pronoun(src, case, clause.subject)
    else:
        src.combinations.append((clause.verb.key, noun.key))
        phrase = definite_phrase(src, noun, case)
    clause.add(f"{english_preposition} {phrase.en}")
    clause.complement = with_preposition(preposition[:-1], phrase.de)


def _add_adjunct(src: Source, clause: Clause, frame: Frame) -> None:
    """Sometimes add a place, a companion or a beneficiary."""
    if not frame.use.adjuncts or src.random() > (0.6 if frame.use.kind == "i" else 0.35):
        return
    adjunct = src.pick(frame.use.adjuncts)
    if adjunct == "in":
        where = place_phrase(src, frame.places)
    else:
        english_word, german_word, case = "for", "für", ACC
        if adjunct == "with":
            alone = not clause.negated and src.chance(0.25)
            english_word, german_word = ("without", "ohne") if alone else ("with", "mit")
            case = ACC if alone else DAT
        person = person_phrase(src, case, clause.subject, clause.taken)
        where = Both(f"{english_word} {person.en}", f"{german_word} {person.de}")
    clause.add(where.en)
    clause.adjunct = where.de


def add_adverbs(src: Source, clause: Clause, light: bool) -> None:
    """Add adverbs of time or frequency that suit the tense."""
    tense, share = clause.tense, src.random()
    if clause.verb.state or tense is words.PROGRESSIVE:
        return
    if tense.middle and not clause.negated and share < 0.25:
        clause.middle = src.pick(tense.middle)
    elif share < (0.45 if light else 0.7):
        clause.time = src.pick(tense.times)
        if clause.negated and clause.time in words.NO_NEGATION:
            clause.time = tense.times[0]
        if not light and tense is not words.PERFECT and src.chance(0.12):
            clause.time = src.pick(words.HOURS)


def draw_copula(src: Source, tense: Tense, negatable: bool) -> Clause:
    """Draw a clause with "be": a quality, a comparison, an age or a place."""
    if tense is not words.FUTURE:
        tense = words.PAST if tense in PAST_TENSES else words.PRESENT
    noun = src.pick(DESCRIBED)
    people = src.chance(0.4)
    if people:
        subject = subject_phrase(src, PEOPLE, tense, 0.0)
    else:
        subject = definite_phrase(src, noun, NOM, 0.0)
    clause = Clause(BE, tense, subject, taken=(subject.key,))
    clause.negated = negatable and subject.definite and src.random() < 0.14
    share = src.random()
    if people and share < 0.2:
        small = subject.key in CHILDREN
        number = src.pick([n for n in NUMBERS if (n <= 12) == small])
        english_word, german_word = words.number_words(number)
        clause.add(f"{english_word} years old")
        clause.complement = f"{german_word} Jahre alt"
    elif share < 0.4 and (people or noun.group in ("thing", "text", "animal")):
        where = place_phrase(src, WHERE_PEOPLE if people else WHERE_THINGS)
        clause.add(where.en)
        clause.complement = where.de
    else:
        _add_quality(src, clause, share > 0.7)
    return clause


def _add_quality(src: Source, clause: Clause, compared: bool) -> None:
    """Add a predicative adjective, perhaps in a comparison."""
    key = clause.subject.key if clause.subject.key in NOUNS else ""
    # Names and pronouns make no combination, so anything goes that fits a person.
    fitting = DESCRIBING[key][src.pool] if key else DESCRIBING["Mann"][0]
    if compared:
        fitting = tuple(a for a in fitting if a.comparative[0]) or fitting
    adjective = src.pick(fitting)
    if key:
        src.combinations.append((adjective.key, key))
    if compared and _add_comparison(src, clause, adjective):
        return
    degree = NOTHING
    if adjective.comparative[0]:
        degree = src.pick(DEGREES[: 4 if clause.negated else 5])
    clause.add(degree.en + adjective.english)
    clause.complement = degree.de + adjective.key


def _add_comparison(src: Source, clause: Clause, adjective: Adjective) -> bool:
    """Add "older than my brother", if there is something to compare with."""
    subject = clause.subject.key
    group = GROUPS[NOUNS[subject].group] if subject in NOUNS else PEOPLE
    nouns = [
        noun
        for noun in group
        if noun.key != subject and adjective in DESCRIBING[noun.key][src.pool]
    ]
    if not nouns or not adjective.comparative[0]:
        return False
    other = src.pick(PERSONS)
    if group[0].group not in ("person", "kin") or other.key == subject or src.chance(0.6):
        noun = src.pick(nouns)
        src.combinations.append((adjective.key, noun.key))
        other = definite_phrase(src, noun, NOM, 0.0)
    more, mehr = adjective.comparative
    clause.add(f"{more} than {other.en}")
    clause.complement = f"{mehr} als {other.de}"
    return True
