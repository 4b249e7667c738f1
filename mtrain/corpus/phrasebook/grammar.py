"""The sentences of the phrasebook, drawn in both languages at once.

1. `Draw` makes the random choices of a sentence: nouns, determiners, adjectives, phrases.
2. `draw_clause` draws the parts of a clause, `english` and `german` put them in order.
3. `draw_sentence` makes one or two clauses a statement or a question.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeVar

from mtrain.corpus.phrasebook import lexicon as words
from mtrain.corpus.phrasebook.lexicon import DESCRIBING, Adjective, Both, Determiner, Noun, Use

T = TypeVar("T")


class Phrase(NamedTuple):
    """A noun phrase or a pronoun."""

    en: str
    de: str
    person: int = 2  # 0 to 3: I, you, he or she, we or they
    definite: bool = True
    key: str = ""  # what must not come twice: a noun, or in a clause a speaker
    pronoun: bool = False
    echo: int = -1  # the pronoun that means the same


def _pronouns(form: int, case: str) -> tuple[Phrase, ...]:
    """Return the pronouns of a case; `form` is 0 for English subjects, 1 for objects."""
    index = words.CASES.index(case)
    return tuple(
        Phrase(en[form], de[index], int(person), True, key, True, echo)
        for echo, (en, de, person, key) in enumerate(words.rows("pronouns"))
    )


SUBJECTS = _pronouns(0, "nom")
OBJECTS = {case: _pronouns(1, case) for case in ("acc", "dat")}
ECHOES = (2, 3, -1, 5)  # "he", "she", none, "they" by gender
OWN = [words.TABLES["determiners"][name] for name in ("my", "your", "his", "her", "our", "their")]
BARE, NOT_A, NOT_ANY = (words.TABLES["determiners"][name] for name in ("bare", "not-a", "not-any"))
PEOPLE = words.nouns("human")
HUMAN = frozenset(PEOPLE)
FEELINGS = DESCRIBING["Mann"]  # adjectives of pronouns and names
CONJUNCTIONS, QUESTIONS = words.rows("conjunctions"), words.rows("questions")
WHO = Phrase("who", "wer", definite=False)
NOTHING, NICHT = Both("", ""), Both("", "nicht")


def _line(*parts: str) -> str:
    return " ".join(filter(None, parts))


@cache
def build(noun: Noun, case: str, word: Determiner, quality: Adjective | None, many: bool) -> Phrase:
    """Build a noun phrase."""
    gender, index = 3 if many else noun.gender, words.CASES.index(case)
    english, german = noun.english[many], noun.german[many][index]
    if quality:
        english = f"{quality.english} {english}"
        german = f"{quality.stem}{word.after[3 * gender + index]} {german}"
    article = word.stem + word.endings[3 * gender + index]
    first = "an" if word.english == "a" and english[0] in "aeiou" else word.english
    echo = ECHOES[gender] if noun in HUMAN else -1
    english, german = _line(first, english), _line(article, german)
    return Phrase(english, german, 2 + many, word.definite, noun.key, echo=echo)


class Draw:
    """The random choices of one sentence, and what they led to."""

    def __init__(self, random: Callable[[], float]) -> None:
        self.random = random
        self.combinations: list[tuple[str, str]] = []
        self.keys: list[str] = []  # of the phrases
        self.repeats = False  # whether a key came twice
        self.negated = False
        self.owner = -1  # the pronoun that means the subject of the clause
        self.style = "statement"  # or "question" or "joined"

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[int(self.random() * len(items))]

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random() < probability

    def determiner(self, noun: Noun, many: bool, definite: bool) -> Determiner:
        """Return a determiner, often the possessive that means the subject."""
        found = self.pick(noun.determiners[many])
        while definite and not found.definite:
            found = self.pick(noun.determiners[many])
        own = self.owner >= 0 and found in OWN and self.chance(0.7)
        return OWN[self.owner] if own else found

    def adjective(self, key: str) -> Adjective:
        """Return an adjective that fits a noun, or a pronoun or a name."""
        found = self.pick(DESCRIBING.get(key) or FEELINGS)
        self.combinations += [(found.key, key)] if key in DESCRIBING else []
        return found

    def phrase(self, noun: Noun, case: str, definite: bool, many: float = 0.25) -> Phrase:
        """Return a noun phrase, or an object pronoun; in a negated clause "ein" is "kein"."""
        if case != "nom" and noun in HUMAN and self.chance(0.25):
            found = self.pick(OBJECTS[case])
        else:
            plural = self.chance(many) and bool(noun.english[1])
            word = self.determiner(noun, plural, definite)
            if self.negated and not word.definite:
                word = NOT_ANY if plural or not noun.english[1] else NOT_A
            described = DESCRIBING[noun.key] and self.chance(0.3)
            found = build(noun, case, word, self.adjective(noun.key) if described else None, plural)
        self.repeats |= found.key in self.keys
        self.keys.append(found.key)
        return found


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
    pronoun: str = ""  # the German parts, as they follow each other
    fixed: str = ""
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
    """Return the English clause; `asked` puts the auxiliary first."""
    tense, person = clause.tense, clause.subject.person
    auxiliary, verb = tense.auxiliary[person], tense.rest
    if tense.plain[person] and not asked and not clause.negated:
        auxiliary, verb = "", tense.plain[person]
    first = (auxiliary, clause.subject.en) if asked else (clause.subject.en, auxiliary)
    middle = ("not" if clause.negated else "", clause.adverb.en, verb.format(*clause.verb.english))
    return _line(*first, *middle, *clause.english, clause.time.en).replace("can not ", "cannot ")


def _german_verb(verb: words.Verb, forms: words.Forms, person: int) -> tuple[str, str]:
    """Return the finite verb, and the prefix or verb form that ends the clause."""
    own = {"present": verb.present, "past": verb.past}.get(forms[0])
    if own and own[person]:
        return own[person], verb.prefix
    if forms[0] in ("past", "perfect"):
        return verb.auxiliary[person], verb.participle
    return forms[person], verb.key


def german(clause: Clause, order: str = "second") -> str:
    """Return the German clause with its finite verb "first", "second" or "last"."""
    verb, subject = clause.verb, clause.subject
    finite, closing = _german_verb(verb, clause.tense.german, subject.person)
    early, late = clause.time.de, clause.fixed
    if clause.adverb is NICHT:
        early, late = late, early
    field = (clause.pronoun, early, late, clause.adverb.de, clause.loose, clause.end)
    if order == "first":
        return _line(finite, subject.de, *field, closing)
    if order == "second":
        return _line(subject.de, finite, *field, closing)
    verbs = closing + finite if closing == verb.prefix else f"{closing} {finite}"
    return _line(subject.de, *field, verbs)


@cache
def _frames(mood: str, question: str, human: bool) -> list[tuple[Use, list[words.Tense]]]:
    """Return uses of verbs for a question or with people as subjects, with tenses of a mood."""
    found = []
    for use in words.USES:
        tenses = [tense for tense in words.TABLES["moods"][mood] if tense in use.verb.tenses]
        asked = question not in ("where", "what") or question in use.questions
        if tenses and asked and (use.subjects[0] in HUMAN or not human):
            found.append((use, tenses))
    return found


def draw_subject(draw: Draw, use: Use, tense: words.Tense) -> Phrase:
    """Return a subject of a verb: often a pronoun."""
    if use.subjects[0] in HUMAN and draw.chance(0.4):
        return draw.pick(SUBJECTS[draw.style == "question" :])  # nobody asks what "I" do
    definite = draw.style != "statement" or "settled" in tense.marks
    return draw.phrase(draw.pick(use.subjects), "nom", definite)


def draw_clause(
    draw: Draw, mood: str, subject: Phrase | None = None, hidden: str = "", negated: float = 0.15
) -> Clause:
    """Draw a clause without what is `hidden`: "what", "where" or "when"."""
    use, tenses = draw.pick(_frames(mood, hidden, subject is not None or draw.style == "joined"))
    tense = draw.pick(tenses)
    draw.owner, draw.negated = -1, False
    draw.keys = [key for key in draw.keys if not key.isdigit()]
    subject = subject or draw_subject(draw, use, tense)
    draw.owner, draw.keys = subject.echo, [*draw.keys, subject.key]
    draw.negated = "not" in tense.marks and subject.definite and draw.chance(negated)
    clause = Clause(use.verb, tense, subject, draw.negated)
    if use.kind == "is":
        add_quality(draw, clause)
    else:
        add_objects(draw, clause, use, hidden == "what")
    if hidden != "where":
        add_place(draw, clause, use)
    if clause.negated and not clause.loose:
        clause.adverb = NICHT  # "kein" before an indefinite object negates already
    add_time(draw, clause, hidden == "when")
    return clause


def add_quality(draw: Draw, clause: Clause) -> None:
    """Add an adjective that describes the subject, which must have none before it."""
    draw.repeats |= any(noun == clause.subject.key for _, noun in draw.combinations)
    adjective = draw.adjective(clause.subject.key)
    clause.english, clause.end = (adjective.english,), adjective.key


def add_objects(draw: Draw, clause: Clause, use: Use, hidden: bool) -> None:
    """Add the objects of the verb, but not a hidden one, and note the combination."""
    clause.english = (use.verb.before,)
    if use.kind == "give":
        clause.add(draw.phrase(draw.pick(PEOPLE), "dat", True))
    if use.objects and not hidden:
        noun, case = draw.pick(use.objects), "dat" if use.kind == "dat" else "acc"
        if "general" in clause.tense.marks:
            phrase = build(noun, case, BARE, None, bool(noun.english[1]))
        else:
            phrase = draw.phrase(noun, case, False)
        clause.add(phrase)
        if not phrase.pronoun:
            draw.combinations.append((use.verb.key, noun.key))
    clause.english += (use.verb.after,)


def add_place(draw: Draw, clause: Clause, use: Use) -> None:
    """Add a place that the verb needs, or sometimes one that it may have."""
    places = use.needed or use.optional
    if not places or (not use.needed and (clause.negated or draw.chance(0.65))):
        return
    place = draw.pick(places)
    phrase = draw.phrase(draw.pick(place.nouns), place.case, clause.negated, many=0)
    article, _, rest = phrase.de.partition(" ")
    short = words.TABLES["contractions"].get(f"{place.german} {article}")  # "in dem": "im"
    clause.end = f"{short} {rest}" if short else f"{place.german} {phrase.de}"
    clause.english += (place.english, phrase.en)


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
    if clause.time.en and draw.chance(0.4):
        time, clause.time = clause.time, NOTHING
        return Both(f"{time.en} {english(clause)}.", f"{time.de} {german(clause, 'first')}.")
    return Both(f"{english(clause)}.", f"{german(clause)}.")


def question(draw: Draw) -> Both:
    """Make a question, with or without a question word."""
    draw.style = "question"
    en, de, mood = draw.pick(QUESTIONS)
    who = WHO if en == "who" else None
    clause = draw_clause(draw, mood, who, en, 0.15 if en == "why" else 0)
    if who:
        return Both(f"{english(clause)}?", f"{german(clause)}?")
    return Both(_line(en, english(clause, True)) + "?", _line(de, german(clause, "first")) + "?")


def joined(draw: Draw) -> Both:
    """Join two clauses, often about the same person; a subordinate one may come first."""
    draw.style = "joined"
    en, de, order, first, second = draw.pick(CONJUNCTIONS)
    main = draw_clause(draw, first)
    same = main.subject.echo >= 0 and en != "whether" and draw.chance(0.7)
    again = SUBJECTS[main.subject.echo] if same else None
    other = draw_clause(draw, second, again, "when", 0 if en in ("when", "whether") else 0.15)
    end = german(other, "second" if order == "second" else "last")
    if order == "last" and draw.chance(0.4):
        reverse = f"{de[2:]} {end}, {german(main, 'first')}."
        return Both(f"{en} {english(other)}, {english(main)}.", reverse)
    en, de = f"{english(main)} {en} {english(other)}.", f"{german(main)} {de} {end}."
    return Both(en.replace(" ,", ","), de.replace(" ,", ","))


SENTENCES = (statement, statement, statement, question, question, joined, joined)


def draw_sentence(draw: Draw) -> Both:
    """Draw a sentence of some kind."""
    en, de = draw.pick(SENTENCES)(draw)
    return Both(en[0].upper() + en[1:], de[0].upper() + de[1:])
