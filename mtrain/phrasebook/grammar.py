"""The sentences of the phrasebook, drawn in both languages at once.

1. ``Draw`` makes the random choices of a sentence: nouns, determiners, adjectives, phrases.
2. ``draw_clause`` draws the parts of a clause, ``english`` and ``german`` put them in order.
3. ``draw_sentence`` makes one or two clauses a statement or a question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeVar

from mtrain.phrasebook import lexicon as words
from mtrain.phrasebook.lexicon import ACC, DAT, DESCRIBING, NOM, ROWS, Both

T = TypeVar("T")


class Phrase(NamedTuple):
    """A noun phrase or a pronoun."""

    en: str
    de: str
    person: int = 2  # 0 to 3: I, you, he or she, we or they
    definite: bool = True
    key: str = ""  # what must not come twice in a clause
    pronoun: bool = False
    echo: int = -1  # the pronoun that means the same


def _pronouns(form: int, case: int) -> tuple[Phrase, ...]:
    """Return the pronouns of a case; ``form`` is 0 for English subjects, 1 for objects."""
    return tuple(
        Phrase(en.split()[form], de.split()[case], int(person), True, speaker, True, index)
        for index, (en, de, person, speaker) in enumerate(ROWS["pronouns"])
    )


SUBJECTS = _pronouns(0, NOM)
OBJECTS = {ACC: _pronouns(1, ACC), DAT: _pronouns(1, DAT)}
ECHOES = (2, 3, -1, 5)  # "he", "she", none, "they" by gender
OWN = tuple(words.DETERMINERS[name] for name in ("my", "your", "his", "her", "our", "their"))
BARE, NOT_A, NOT_ANY = (words.DETERMINERS[name] for name in ("bare", "not-a", "not-any"))
PEOPLE = words.nouns("human")
HUMAN = frozenset(PEOPLE)
FEELINGS = DESCRIBING["Mann"][0]  # adjectives of pronouns and names
NOTHING, NICHT, VERY = Both("", ""), Both("", "nicht"), Both("very", "sehr")


def _line(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def build(
    noun: words.Noun,
    case: int,
    determiner: words.Determiner,
    adjective: words.Adjective | None = None,
    many: bool = False,
) -> Phrase:
    """Build a noun phrase."""
    gender = words.PLURAL if many else noun.gender
    form = 3 * gender + case
    english, german = noun.english[many], noun.german[many][case]
    if adjective:
        english = f"{adjective.english} {english}"
        german = f"{adjective.stem}{determiner.endings[form]} {german}"
    first = "an" if determiner.english == "a" and english[0] in "aeiou" else determiner.english
    echo = ECHOES[gender] if noun in HUMAN else -1
    german = _line(determiner.german[form], german)
    return Phrase(_line(first, english), german, 2 + many, determiner.definite, noun.key, echo=echo)


class Draw:
    """The random choices of one sentence, and what they led to."""

    def __init__(self, random: Callable[[], float], known: bool) -> None:
        """Choose with ``random``; ``known`` leaves out what is held out."""
        self.random, self.known = random, known
        self.combinations: list[tuple[str, str]] = []
        self.keys: list[str] = []  # of the phrases in the clause
        self.repeats = False  # whether a clause has a key twice
        self.owner = -1  # the pronoun that means the subject of the clause
        self.style = "statement"  # or "question" or "joined"

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[int(self.random() * len(items))]

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random() < probability

    def note(self, phrase: Phrase) -> Phrase:
        """Note a phrase of the clause."""
        self.repeats |= phrase.key in self.keys
        self.keys.append(phrase.key)
        return phrase

    def determiner(self, noun: words.Noun, many: bool, definite: bool) -> words.Determiner:
        """Return a determiner, often the possessive that means the subject."""
        determiner = self.pick(noun.determiners[many])
        while definite and not determiner.definite:
            determiner = self.pick(noun.determiners[many])
        own = self.owner >= 0 and determiner in OWN and self.chance(0.7)
        return OWN[self.owner] if own else determiner

    def adjective(self, noun: words.Noun) -> words.Adjective | None:
        """Return an adjective that fits a noun, or None."""
        fitting = DESCRIBING[noun.key][self.known]
        if not fitting or not self.chance(0.3 if self.style == "statement" else 0.15):
            return None
        adjective = self.pick(fitting)
        self.combinations.append((adjective.key, noun.key))
        return adjective

    def phrase(
        self, noun: words.Noun, case: int, definite: bool, *, many: float = 0.25, no: bool = False
    ) -> Phrase:
        """Return a noun phrase, or an object pronoun; ``no`` makes "ein" a "kein"."""
        if case != NOM and noun in HUMAN and self.chance(0.25):
            return self.note(self.pick(OBJECTS[case]))
        plural = self.chance(many) and bool(noun.english[1])
        determiner = self.determiner(noun, plural, definite)
        if no and not determiner.definite:
            determiner = NOT_ANY if plural or not noun.english[1] else NOT_A
        return self.note(build(noun, case, determiner, self.adjective(noun), plural))

    def place(self, places: Sequence[words.Place], definite: bool) -> Both:
        """Return a noun phrase with a preposition: "in dem Haus" is "im Haus"."""
        place = self.pick(places)
        phrase = self.phrase(place.noun, place.case, definite, many=0)
        article, _, rest = phrase.de.partition(" ")
        short = words.CONTRACTIONS.get(f"{place.german} {article}")
        german = f"{short} {rest}" if short else f"{place.german} {phrase.de}"
        return Both(f"{place.english} {phrase.en}", german)


@dataclass(slots=True)
class Clause:
    """A clause before its words are put in order."""

    verb: words.Verb
    tense: words.Tense
    subject: Phrase
    negated: bool
    english: tuple[str, ...] = ()  # what follows the English verb
    time: Both = NOTHING
    adverb: Both = NOTHING  # "often", or German "nicht"
    pronoun: str = ""  # German objects and places, as they follow each other
    fixed: str = ""
    place: str = ""
    loose: str = ""
    end: str = ""

    def add(self, phrase: Phrase) -> None:
        """Add an object."""
        self.english += (phrase.en,)
        if phrase.pronoun:
            self.pronoun = phrase.de
        elif phrase.definite:
            self.fixed = _line(self.fixed, phrase.de)
        else:
            self.loose = phrase.de


def english(clause: Clause, asked: bool = False) -> str:
    """Return the English clause; ``asked`` puts the auxiliary first."""
    tense, person = clause.tense, clause.subject.person
    auxiliary, verb = tense.auxiliary[person], tense.rest
    if tense.plain[person] and not asked and not clause.negated:
        auxiliary, verb = "", tense.plain[person]
    first = (auxiliary, clause.subject.en) if asked else (clause.subject.en, auxiliary)
    middle = ("not" if clause.negated else "", clause.adverb.en, verb.format(*clause.verb.english))
    return _line(*first, *middle, *clause.english, clause.time.en).replace("can not ", "cannot ")


def german(clause: Clause, order: str = "second") -> str:
    """Return the German clause with its finite verb "first", "second" or "last"."""
    verb, tense, subject = clause.verb, clause.tense.german, clause.subject
    forms, closing = verb.own.get(tense[0], (tense, verb.key))
    if not forms[subject.person]:
        forms, closing = verb.own["perfect"]
    finite, early, late = forms[subject.person], clause.time.de, clause.fixed
    if clause.adverb is NICHT:
        early, late = late, early
    field = (clause.pronoun, early, late, clause.adverb.de, clause.place, clause.loose, clause.end)
    if order == "first":
        return _line(finite, subject.de, *field, closing)
    if order == "second":
        return _line(subject.de, finite, *field, closing)
    verbs = closing + finite if closing == verb.prefix else f"{closing} {finite}"
    return _line(subject.de, *field, verbs)


@cache
def _uses(mood: str, question: str, human: bool) -> tuple[words.Use, ...]:
    """Return the uses of verbs in a mood, for a question, with people as subjects."""
    return tuple(
        use
        for use in words.USES
        if use.verb.tenses[mood]
        and (question not in ("where", "what") or question in use.questions)
        and (not human or use.subjects[0] in HUMAN)
    )


def draw_subject(draw: Draw, use: words.Use, settled: bool) -> Phrase:
    """Return a subject of a verb: often a pronoun."""
    if use.subjects[0] in HUMAN and draw.chance(0.4):
        return draw.pick(SUBJECTS[draw.style == "question" :])  # nobody asks what "I" do
    noun = draw.pick(use.subjects)
    if use.kind == "is":
        return build(noun, NOM, draw.determiner(noun, False, True))
    return draw.phrase(noun, NOM, settled or draw.style != "statement")


def draw_clause(
    draw: Draw, mood: str, subject: Phrase | None = None, hidden: str = "", negated: float = 0.15
) -> Clause:
    """Draw a clause without what is ``hidden``: "what", "where" or "when"."""
    draw.owner = -1
    use = draw.pick(_uses(mood, hidden, subject is not None or draw.style == "joined"))
    tense = draw.pick(use.verb.tenses[mood])
    subject = subject or draw_subject(draw, use, "settled" in tense.marks)
    draw.owner, draw.keys = subject.echo, [subject.key]
    no = "not" in tense.marks and subject.definite and draw.chance(negated)
    clause = Clause(use.verb, tense, subject, no)
    if use.kind == "is":
        add_quality(draw, clause)
    else:
        add_objects(draw, clause, use, hidden == "what")
    if hidden != "where":
        add_place(draw, clause, use)
    if no and not clause.loose:
        clause.adverb = NICHT  # "kein" before an indefinite object negates already
    add_time(draw, clause, hidden == "when")
    return clause


def add_quality(draw: Draw, clause: Clause) -> None:
    """Add an adjective that describes the subject."""
    key = clause.subject.key
    fitting = DESCRIBING[key][draw.known] if key in DESCRIBING else ()
    adjective = draw.pick(fitting or FEELINGS)
    if fitting:
        draw.combinations.append((adjective.key, key))
    very = VERY if draw.chance(0.3) else NOTHING
    clause.english, clause.end = (very.en, adjective.english), _line(very.de, adjective.key)


def add_objects(draw: Draw, clause: Clause, use: words.Use, hidden: bool) -> None:
    """Add the objects that the verb has, but not a hidden one."""
    clause.english = (use.verb.before,)
    if use.kind == "give":
        clause.add(draw.phrase(draw.pick(PEOPLE), DAT, True))
    if use.objects[0] and not hidden:
        clause.add(draw_object(draw, clause, use))
    clause.english += (use.verb.after,)


def draw_object(draw: Draw, clause: Clause, use: words.Use) -> Phrase:
    """Return an object of the verb, and note the combination of the two."""
    noun, case = draw.pick(use.objects[draw.known]), DAT if use.kind == "dat" else ACC
    if "general" in clause.tense.marks:
        phrase = build(noun, case, BARE, draw.adjective(noun), bool(noun.english[1]))
    else:
        phrase = draw.phrase(noun, case, False, no=clause.negated)
    if not phrase.pronoun:
        draw.combinations.append((use.verb.key, noun.key))
    return phrase


def add_place(draw: Draw, clause: Clause, use: words.Use) -> None:
    """Add a place that the verb needs, and sometimes one that it may have."""
    if use.needed:
        place = draw.place(use.needed, clause.negated)
        clause.end = place.de
    elif use.optional and not clause.negated and draw.chance(0.35):
        place = draw.place(use.optional, False)
        clause.place = place.de
    else:
        return
    clause.english += (place.en,)


def add_time(draw: Draw, clause: Clause, hidden: bool) -> None:
    """Add an adverb of frequency or of time that suits the tense."""
    if not clause.negated and draw.chance(0.5):
        clause.adverb = draw.pick(clause.tense.adverbs)
    if not clause.adverb.en:
        time = draw.pick(clause.tense.times)
        clause.time = NOTHING if hidden and time.en else time


def statement(draw: Draw) -> Both:
    """Make a statement, perhaps with the time in front."""
    clause = draw_clause(draw, "any")
    time = clause.time
    if time.en and draw.chance(0.4):
        clause.time = NOTHING
        return Both(f"{time.en} {english(clause)}.", f"{time.de} {german(clause, 'first')}.")
    return Both(f"{english(clause)}.", f"{german(clause)}.")


def question(draw: Draw) -> Both:
    """Make a question, with or without a question word."""
    draw.style = "question"
    en, de, mood = draw.pick(ROWS["questions"])
    who = Phrase("who", "wer", definite=False) if en == "who" else None
    clause = draw_clause(draw, mood, who, en, 0.15 if en == "why" else 0)
    if who:
        return Both(f"{english(clause)}?", f"{german(clause)}?")
    ask, frage = english(clause, True), german(clause, "first")
    return Both(_line(en.strip("-"), f"{ask}?"), _line(de.strip("-"), f"{frage}?"))


def joined(draw: Draw) -> Both:
    """Join two clauses, often about the same person; a subordinate one may come first."""
    draw.style = "joined"
    en, de, order, first, second = draw.pick(ROWS["conjunctions"])
    main = draw_clause(draw, first)
    same = main.subject.echo >= 0 and draw.chance(0.7)
    again = SUBJECTS[main.subject.echo] if same else None
    other = draw_clause(draw, second, again, "when", 0 if en == "whether" else 0.15)
    end = german(other, "second" if order == "second" else "last")
    if order == "last" and draw.chance(0.4):
        reverse = f"{de[2:]} {end}, {german(main, 'first')}."
        return Both(f"{en} {english(other)}, {english(main)}.", reverse)
    en, de = f"{english(main)} {en} {english(other)}.", f"{german(main)} {de} {end}."
    return Both(en.replace(" ,", ","), de.replace(" ,", ","))


SENTENCES = (statement, statement, statement, question, question, joined, joined)


def draw_sentence(random: Callable[[], float], known: bool) -> tuple[Both, Draw]:
    """Draw a sentence of some kind; return the choices too."""
    draw = Draw(random, known)
    en, de = draw.pick(SENTENCES)(draw)
    return Both(en[0].upper() + en[1:], de[0].upper() + de[1:]), draw
