"""The sentences of the phrasebook, drawn in both languages at once.

1. ``Draw.phrase`` draws a noun phrase or a pronoun.
2. ``draw_clause`` draws the parts of a clause.
3. ``english`` and ``german`` put them into the order of a statement, a question or a
   subordinate clause.
4. ``draw_sentence`` makes one or two clauses a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeVar

from mtrain.phrasebook.lexicon import (
    ACC,
    CONTRACTIONS,
    DAT,
    DESCRIBING,
    DETERMINERS,
    MOODS,
    NOM,
    PLURAL,
    ROWS,
    VERBS,
    Adjective,
    Both,
    Determiner,
    Noun,
    Place,
    Tense,
    Use,
    Verb,
    nouns,
)

T = TypeVar("T")

NOTHING, NICHT = Both("", ""), Both("", "nicht")

# --- Phrases ---------------------------------------------------------------------------------


class Phrase(NamedTuple):
    """A noun phrase or a pronoun."""

    en: str
    de: str
    person: int = 2  # 0 to 3: I, you, he or she, we or they
    definite: bool = True
    key: str = ""  # what must not come twice in a clause: a noun, or the speaker or hearer
    pronoun: bool = False
    echo: int = -1  # the subject pronoun that means the same


def _pronouns(form: int, case: int) -> tuple[Phrase, ...]:
    """Return the pronouns of a case; ``form`` is 0 for English subjects, 1 for objects."""
    return tuple(
        Phrase(en.split()[form], de.split()[case], int(person), True, key.strip("-"), True, index)
        for index, (en, de, person, key) in enumerate(ROWS["pronouns"])
    )


SUBJECTS = _pronouns(0, NOM)
OBJECTS = {ACC: _pronouns(1, ACC), DAT: _pronouns(1, DAT)}
HE, SHE, THEY = 2, 3, 5  # of the subject pronouns
YOU = 1  # the person
HUMAN = frozenset(nouns("human"))
PEOPLE = nouns("human")
FEELINGS = DESCRIBING["Mann"][0]  # of pronouns and names
A, BARE, NO, WHICH = (DETERMINERS[name] for name in ("a", "bare", "no", "which"))


@cache
def build(
    noun: Noun,
    case: int,
    determiner: Determiner,
    adjective: Adjective | None,
    plural: bool,
    no: bool,
) -> Phrase:
    """Build a noun phrase; ``no`` makes the German "a" or bare noun one with "kein"."""
    article = NO if no else determiner
    gender = PLURAL if plural else noun.gender
    form = 3 * gender + case
    english, german = noun.english[plural], noun.german[plural][case]
    if adjective:
        english = f"{adjective.english} {english}"
        german = f"{adjective.stem}{article.endings[form]} {german}"
    first = "an" if determiner is A and english[0] in "aeiou" else determiner.english
    return Phrase(
        f"{first} {english}".strip(),
        f"{article.german[form]} {german}".strip(),
        3 if plural else 2,
        determiner.definite,
        noun.key,
        echo=-1 if noun not in HUMAN else (HE, SHE, -1, THEY)[gender],
    )


def join(preposition: str, german: str) -> str:
    """Put a German preposition before a phrase: "in dem Haus" is "im Haus"."""
    article, _, rest = german.partition(" ")
    short = CONTRACTIONS.get((preposition, article))
    return f"{short} {rest}" if short else f"{preposition} {german}"


class Draw:
    """The random choices of one sentence, and the combinations that they led to."""

    __slots__ = ("combinations", "known", "light", "random", "taken")

    def __init__(self, random: Callable[[], float], known: bool) -> None:
        """Choose with ``random``; ``known`` leaves out what is held out."""
        self.random = random
        self.known = known
        self.light = False
        self.combinations: list[tuple[str, str]] = []
        self.taken: list[str] = []

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[int(self.random() * len(items))]

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random() < probability

    def noun(self, choices: Sequence[Noun]) -> Noun:
        """Return a noun that the clause does not have yet."""
        while (noun := self.pick(choices)).key in self.taken:
            pass
        self.taken.append(noun.key)
        return noun

    def adjective(self, noun: Noun) -> Adjective | None:
        """Return an adjective that fits a noun, if there is one."""
        fitting = DESCRIBING[noun.key][self.known]
        if not fitting:
            return None
        adjective = self.pick(fitting)
        self.combinations.append((adjective.key, noun.key))
        return adjective

    def pronoun(self, case: int) -> Phrase:
        """Return an object pronoun that does not mean the subject."""
        return self.pick([p for p in OBJECTS[case] if not p.key or p.key not in self.taken])

    def phrase(
        self,
        noun: Noun,
        case: int,
        *,
        plural: float = 0.3,
        definite: bool = False,
        negated: bool = False,
        general: bool = False,
    ) -> Phrase:
        """Return a noun phrase: perhaps in the plural, with an adjective, negated by "kein"."""
        many = bool(noun.english[1]) and self.chance(1 if general else plural)
        determiner = BARE if general else self.pick(noun.determiners[many])
        while definite and not determiner.definite:
            determiner = self.pick(noun.determiners[many])
        no = negated and not determiner.definite
        if no:
            determiner = A if determiner is A else BARE if many or not noun.english[1] else A
        described = self.chance(0.1 if self.light else 0.25)
        return build(noun, case, determiner, self.adjective(noun) if described else None, many, no)

    def person(self, choices: Sequence[Noun], case: int, *, definite: bool = False) -> Phrase:
        """Return a noun phrase, or a pronoun for a person."""
        noun = self.noun(choices)
        if noun in HUMAN and self.chance(0.25):
            return self.pronoun(case)
        return self.phrase(noun, case, definite=definite)

    def place(self, places: Sequence[Place]) -> Both:
        """Return a noun phrase with a preposition."""
        while (place := self.pick(places)).noun.key in self.taken:
            pass
        human = place.noun in HUMAN
        if human and self.chance(0.25):
            phrase = self.pronoun(place.case)
        else:
            phrase = self.phrase(place.noun, place.case, plural=0.2 if human else 0)
        return Both(f"{place.english} {phrase.en}", join(place.german, phrase.de))


# --- Clauses ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Clause:
    """A clause before its words are put into an order."""

    verb: Verb
    tense: Tense
    subject: Phrase
    negated: bool = False
    english: str = ""  # what follows the English verb
    time: Both = NOTHING
    adverb: Both = NOTHING  # "often", or German "nicht"
    pronoun: str = ""  # German objects, in their order
    fixed: str = ""
    place: str = ""
    loose: str = ""
    end: str = ""

    def add(self, phrase: Phrase) -> None:
        """Add an object on both sides."""
        self.english += f" {phrase.en}"
        if phrase.pronoun:
            self.pronoun = phrase.de
        elif phrase.definite:
            self.fixed += f" {phrase.de}"
        else:
            self.loose = phrase.de


def _joined(*parts: str) -> str:
    return " ".join(part.strip() for part in parts if part)


def english(clause: Clause, asked: bool = False) -> str:
    """Return the English clause, as a question with the auxiliary first if ``asked``."""
    tense, person, forms = clause.tense, clause.subject.person, clause.verb.english
    if asked or clause.negated or not tense.plain:
        auxiliary, verb = tense.auxiliary[person], tense.rest.format(*forms)
    else:
        auxiliary, verb = "", tense.plain[person].format(*forms)
    subject, negation = clause.subject.en, "not" if clause.negated else ""
    if negation and auxiliary == "can" and not asked:
        auxiliary, negation = "cannot", ""
    first = (auxiliary, subject) if asked else (subject, auxiliary)
    return _joined(*first, negation, clause.adverb.en, verb, clause.english, clause.time.en)


def _german_verb(clause: Clause) -> tuple[str, str]:
    """Return the German finite verb, and the prefix or verb form that ends the clause."""
    tense, person, verb = clause.tense, clause.subject.person, clause.verb
    if tense.german[0] == "present":
        return verb.present[person], verb.prefix
    # German tells "you" about the past in the perfect.
    if tense.german[0] == "past" and person != YOU:
        return verb.past[person], verb.prefix
    if tense.german[0] in ("past", "perfect"):
        return verb.auxiliary[person], verb.participle
    return tense.german[person], verb.key if tense.rest else ""


def german(clause: Clause, order: str = "second") -> str:
    """Return the German clause with its finite verb "first", "second" or "last"."""
    finite, closing = _german_verb(clause)
    time, fixed = clause.time.de, clause.fixed
    early, late = (fixed, time) if clause.adverb is NICHT else (time, fixed)
    parts = (early, late, clause.adverb.de, clause.place, clause.loose, clause.end)
    subject, pronoun = clause.subject.de, clause.pronoun
    if order == "first":
        return _joined(finite, subject, pronoun, *parts, closing)
    if order == "second":
        return _joined(subject, finite, pronoun, *parts, closing)
    if closing == clause.verb.prefix:
        return _joined(subject, pronoun, *parts, closing + finite)
    return _joined(subject, pronoun, *parts, closing, finite)


# --- Drawing clauses -------------------------------------------------------------------------


class Frame(NamedTuple):
    """A verb and a way to use it."""

    verb: Verb
    use: Use


BE = VERBS[0]
DEGREES = (NOTHING, NOTHING, Both("very ", "sehr "), Both("too ", "zu "))


def _frames(fits: Callable[[Verb, Use], bool]) -> tuple[tuple[Frame, ...], ...]:
    """Return the uses that fit, verb by verb."""
    frames = (tuple(Frame(verb, use) for use in verb.uses if fits(verb, use)) for verb in VERBS)
    return tuple(frame for frame in frames if frame)


def _is_human(use: Use) -> bool:
    return use.subjects[0] in HUMAN


FRAMES = {
    mood: _frames(lambda verb, use, m=mood: bool(verb.tenses[m]) and not use.clause)
    for mood in MOODS
}


def draw_frame(draw: Draw, mood: str, human: bool) -> Frame:
    """Return a use of a verb, with a person as the subject if ``human``."""
    while True:
        frame = draw.pick(draw.pick(FRAMES[mood]))
        if BE.tenses[mood] and draw.chance(0.25 if draw.light else 0.1):
            frame = Frame(BE, draw.pick(BE.uses))
        if not human or _is_human(frame.use):
            return frame


def draw_subject(draw: Draw, frame: Frame) -> Phrase:
    """Return a subject of a verb: often a pronoun."""
    if _is_human(frame.use) and draw.chance(0.45):
        return draw.pick(SUBJECTS)
    settled = frame.verb.kind in ("state", "be")
    return draw.phrase(draw.noun(frame.use.subjects), NOM, definite=settled)


def draw_clause(
    draw: Draw,
    mood: str,
    frame: Frame | None = None,
    subject: Phrase | None = None,
    hidden: str = "",
    negated: float = 0.15,
) -> Clause:
    """Draw a clause; a question leaves its "object", its "place" or its "time" ``hidden``."""
    draw.taken = []
    verb, use = frame = frame or draw_frame(draw, mood, subject is not None)
    clause = Clause(verb, draw.pick(verb.tenses[mood]), subject or draw_subject(draw, frame))
    draw.taken.append(clause.subject.key)
    clause.negated = clause.tense.negatable and clause.subject.definite and draw.chance(negated)
    add_objects(draw, clause, use, hidden == "object")
    if use.described:
        add_quality(draw, clause)
    elif hidden != "place":
        add_place(draw, clause, use)
    # "Kein" before an indefinite object negates already.
    if clause.negated and not clause.loose:
        clause.adverb = NICHT
    if verb.kind != "state" and hidden != "time":
        add_time(draw, clause)
    return clause


def add_objects(draw: Draw, clause: Clause, use: Use, hidden: bool) -> None:
    """Add the objects, and the English particle before or after them."""
    verb, found = clause.verb, []
    if use.receiver:
        found.append(draw.person(PEOPLE, DAT, definite=True))
    if use.objects[draw.known] and not hidden:
        found.append(draw_object(draw, clause, use))
    after = verb.movable and bool(found) and found[0].pronoun
    clause.english = "" if after else verb.particle
    for phrase in found:
        clause.add(phrase)
    if after:
        clause.english += f" {verb.particle}"


def draw_object(draw: Draw, clause: Clause, use: Use) -> Phrase:
    """Return an object of the verb, and note the combination of the two."""
    noun = draw.noun(use.objects[draw.known])
    if noun in HUMAN and draw.chance(0.25):
        return draw.pronoun(use.case)
    draw.combinations.append((clause.verb.key, noun.key))
    general = clause.tense.name == "habit" and clause.verb.kind == "single"
    return draw.phrase(noun, use.case, negated=clause.negated, general=general)


def add_quality(draw: Draw, clause: Clause) -> None:
    """Add an adjective that describes the subject."""
    key = clause.subject.key
    if DESCRIBING.get(key, ((), ()))[0]:
        adjective = draw.pick(DESCRIBING[key][draw.known])
        draw.combinations.append((adjective.key, key))
    else:
        adjective = draw.pick(FEELINGS)
    degree = draw.pick(DEGREES) if adjective.graded else NOTHING
    clause.english = degree.en + adjective.english
    clause.end = degree.de + adjective.key


def add_place(draw: Draw, clause: Clause, use: Use) -> None:
    """Add a place that the verb needs, and sometimes one that it may have."""
    if use.needed:
        place = draw.place(use.needed)
        clause.end = place.de
    elif use.optional and draw.chance(0.15 if draw.light else 0.4) and not clause.negated:
        place = draw.place(use.optional)
        clause.place = place.de
    else:
        return
    clause.english += f" {place.en}"


def add_time(draw: Draw, clause: Clause) -> None:
    """Add an adverb of frequency or of time that suits the tense."""
    if not clause.negated and draw.chance(0.5):
        clause.adverb = draw.pick(clause.tense.adverbs)
    if clause.adverb in (NOTHING, NICHT):
        clause.time = draw.pick(clause.tense.times)


# --- Sentences -------------------------------------------------------------------------------


def _statement(draw: Draw) -> Both:
    """Make a statement, perhaps with the time in front."""
    clause = draw_clause(draw, "any")
    time = clause.time
    if time.en and draw.chance(0.4):
        clause.time = NOTHING
        return Both(f"{time.en} {english(clause)}.", f"{time.de} {german(clause, 'first')}.")
    return Both(f"{english(clause)}.", f"{german(clause)}.")


def _ask(clause: Clause, en: str = "", de: str = "") -> Both:
    """Make a question, after a question word or another phrase."""
    return Both(
        f"{en} {english(clause, True)}?".lstrip(), f"{de} {german(clause, 'first')}?".lstrip()
    )


def _yes_or_no(draw: Draw) -> Both:
    return _ask(draw_clause(draw, "any", negated=0))


def _why(draw: Draw) -> Both:
    return _ask(draw_clause(draw, "any"), "why", "warum")


def _when(draw: Draw) -> Both:
    return _ask(
        draw_clause(draw, "when", draw.pick(ACTING), hidden="time", negated=0), "when", "wann"
    )


def _where(draw: Draw) -> Both:
    return _ask(
        draw_clause(draw, "any", draw.pick(PLACED), hidden="place", negated=0), "where", "wo"
    )


def _who(draw: Draw) -> Both:
    clause = draw_clause(draw, "any", subject=Phrase("who", "wer", definite=False))
    return Both(f"{english(clause)}?", f"{german(clause)}?")


def _what(draw: Draw) -> Both:
    """Ask for an object, as "what" or as "which" and the noun."""
    frame = draw.pick(OBJECTIVE)
    clause = draw_clause(draw, "any", frame, hidden="object", negated=0)
    if draw.chance(0.5):
        return _ask(clause, "what", "was")
    noun = draw.noun(frame.use.objects[draw.known])
    draw.combinations.append((frame.verb.key, noun.key))
    many = bool(noun.english[1]) and draw.chance(0.3)
    phrase = build(noun, ACC, WHICH, None, many, False)
    return _ask(clause, phrase.en, phrase.de)


def _again(draw: Draw, subject: Phrase) -> Phrase | None:
    """Return a pronoun that means the subject of the clause before, or None."""
    return SUBJECTS[subject.echo] if subject.echo >= 0 and draw.chance(0.6) else None


def _joined_clauses(draw: Draw) -> Both:
    """Join two clauses, in either order if the second is a subordinate one."""
    en, de, order, first, second = draw.pick(CONJUNCTIONS)
    draw.light = True
    main = draw_clause(draw, first)
    other = draw_clause(draw, second, subject=_again(draw, main.subject))
    if order == "last" and draw.chance(0.4):
        german_words = f"{de.strip(', ')} {german(other, order)}, {german(main, 'first')}."
        return Both(f"{en} {english(other)}, {english(main)}.", german_words)
    return Both(
        f"{english(main)} {en} {english(other)}.".replace(" ,", ","),
        f"{german(main)} {de} {german(other, order)}.".replace(" ,", ","),
    )


def _reported(draw: Draw) -> Both:
    """Report what somebody knows, says or asks."""
    frame = draw.pick(draw.pick(REPORTING))
    draw.light = True
    main = draw_clause(draw, "report", frame, negated=0)
    mood = "then" if main.tense.name == "past" else "now"
    other = draw_clause(draw, mood, subject=_again(draw, main.subject))
    de, en = frame.use.clause
    return Both(
        f"{english(main)} {en} {english(other)}.", f"{german(main)}, {de} {german(other, 'last')}."
    )


CONJUNCTIONS = ROWS["conjunctions"]
REPORTING = _frames(lambda verb, use: bool(use.clause))
ALL_FRAMES = tuple(frame for frames in FRAMES["any"] for frame in frames)
ACTING = tuple(frame for frame in ALL_FRAMES if frame.verb.tenses["when"])
PLACED = tuple(
    frame
    for frame in ALL_FRAMES
    if any(place.case == DAT and place.noun not in HUMAN for place in frame.use[3] + frame.use[4])
)
OBJECTIVE = tuple(
    frame
    for frame in ALL_FRAMES
    if frame.use.objects[0] and frame.use.case == ACC and not HUMAN & set(frame.use.objects[0])
)
# How often each kind of sentence is drawn, in percent.
SENTENCES: tuple[tuple[Callable[[Draw], Both], int], ...] = (
    (_statement, 38),
    (_yes_or_no, 13),
    (_why, 4),
    (_when, 3),
    (_where, 4),
    (_who, 4),
    (_what, 6),
    (_joined_clauses, 20),
    (_reported, 8),
)
DECK = tuple(make for make, percent in SENTENCES for _ in range(percent))


def draw_sentence(draw: Draw) -> Both:
    """Draw a sentence of some kind."""
    en, de = draw.pick(DECK)(draw)
    return Both(en[0].upper() + en[1:], de[0].upper() + de[1:])
