"""The sentences of the phrasebook, drawn in both languages at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from mtrain.corpus.phrasebook import lexicon
from mtrain.corpus.phrasebook.lexicon import CASES, DESCRIBING, ROWS, Forms, Noun, Row

T = TypeVar("T")
Keyed = TypeVar("Keyed", bound=Sequence[Any])  # its first item is its key


class Phrase(NamedTuple):
    """A noun phrase, or a pronoun, whose key is a number."""

    key: str
    en: str
    de: str
    person: int  # 0 to 3: I, you, he or she, we or they


PRONOUNS = {
    case: [
        Phrase(key, en[0 if case == "nom" else 1], de[index], int(person))
        for en, de, person, key in ROWS["pronouns"]
    ]
    for index, case in enumerate(CASES)
}
PEOPLE = lexicon.NAMED["human"]
CONTRACTIONS = lexicon.table("contractions")  # "in dem": "im"
NOTHING: Forms = ("", "")
PLURAL = lexicon.GENDERS.index("plural")  # its row of endings, after those of the genders


@dataclass
class Clause:
    """A clause before its words are put in order; `time` and `place` are in English and German."""

    verb: Row
    tense: Row
    subject: Phrase
    negated: bool = False
    time: Forms = NOTHING
    place: Forms = NOTHING  # or an adjective
    objects: list[Phrase] = field(default_factory=list)


def _line(*parts: str) -> str:
    return " ".join(filter(None, parts))


def english(clause: Clause, asked: bool = False) -> str:
    """Return the English clause; `asked` puts the auxiliary first."""
    subject = clause.subject
    _, plain, auxiliaries, verb, *_ = clause.tense
    auxiliary = auxiliaries[subject.person]
    if plain[subject.person] and not asked and not clause.negated:
        auxiliary = ""
        verb = plain[subject.person]
    first = (auxiliary, subject.en) if asked else (subject.en, auxiliary)
    middle = ("not" if clause.negated else "", verb.format(*clause.verb[-2]))
    objects = (phrase.en for phrase in clause.objects)
    line = _line(*first, *middle, *objects, clause.place[0], clause.time[0])
    return line.replace("can not ", "cannot ")


def german(clause: Clause, order: str = "second") -> str:
    """Return the German clause with its finite verb "first", "second" or "last"."""
    infinitive, prefix, present, past, auxiliary, participle, *_ = clause.verb
    subject = clause.subject
    forms = clause.tense[4]
    simple_forms = {"present": present, "past": past}.get(forms[0])
    if simple_forms and simple_forms[subject.person]:
        finite, closing = simple_forms[subject.person], prefix
    elif forms[0] in ("past", "perfect"):
        finite, closing = auxiliary[subject.person], participle
    else:
        finite, closing = forms[subject.person], infinitive
    pronouns = (phrase.de for phrase in clause.objects if phrase.key.isdigit())
    nouns = (phrase.de for phrase in clause.objects if not phrase.key.isdigit())
    nicht = "nicht" if clause.negated else ""
    middle = _line(*pronouns, clause.time[1], *nouns, nicht, clause.place[1])
    if order == "last":
        verbs = closing + finite if closing == prefix else f"{closing} {finite}"
        return _line(subject.de, middle, verbs)
    start = (subject.de, finite) if order == "second" else (finite, subject.de)
    return _line(*start, middle, closing)


class Drawing:
    """The random choices of sentences; `random` returns numbers from 0 to below 1."""

    def __init__(self, random: Callable[[], float]) -> None:
        self.random = random
        self.used: set[str] = set()  # keys of the clause so far

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[int(self.random() * len(items))]

    def pick_new(self, items: Sequence[Keyed]) -> Keyed:
        """Return one of the items that are not in the clause yet, if there are any."""
        picked = self.pick([item for item in items if item[0] not in self.used] or items)
        self.used.add(picked[0])
        return picked

    def phrase(self, nouns: Sequence[Noun], case: str, definite: bool = False) -> Phrase:
        """Return a phrase with one of the nouns, or a pronoun instead of a person."""
        pronoun_fraction = 0.4 if case == "nom" else 0.25
        if nouns[0] in PEOPLE and self.random() < pronoun_fraction:
            return self.pick_new(PRONOUNS[case])
        key, gender, english_forms, german_forms, determiners = self.pick_new(nouns)
        is_plural = bool(english_forms[1]) and self.random() < 0.25
        number, row = (1, PLURAL) if is_plural else (0, gender)
        words = [word for word in determiners[number] if word[-1] or not definite]
        _, article, stem, endings, adjective_endings, _ = self.pick(words)
        en = english_forms[number]
        de = german_forms[number][CASES.index(case)]
        form = len(CASES) * row + CASES.index(case)
        if DESCRIBING[key] and self.random() < 0.3:
            _, adjective_stem, adjective = self.pick_new(DESCRIBING[key])
            en = f"{adjective} {en}"
            de = f"{adjective_stem}{adjective_endings[form]} {de}"
        article = "an" if article == "a" and en[0] in "aeiou" else article
        return Phrase(key, _line(article, en), _line(stem + endings[form], de), 2 + number)

    def clause(self, timed: bool = True) -> Clause:
        """Draw a clause; without `timed`, leave out a time that has English words."""
        self.used.clear()
        verb, kind, needed, optional, subjects, objects = self.pick(ROWS["uses"])
        tense = self.pick(verb[-1])
        *_, times, negatable = tense
        negated = negatable and self.random() < 0.12
        clause = Clause(verb, tense, self.phrase(subjects, "nom"), negated)
        if kind == "give":
            clause.objects.append(self.phrase(PEOPLE, "dat", definite=True))
        if objects:  # negated, "ein" would be "kein"
            case = "dat" if kind == "dat" else "acc"
            clause.objects.append(self.phrase(objects, case, negated))
        if kind == "is":
            key, _, adjective = self.pick_new(DESCRIBING[clause.subject.key] or DESCRIBING["Mann"])
            clause.place = adjective, key
        elif needed or (optional and not negated and self.random() < 0.35):
            _, word, case, en, nouns = self.pick(needed or optional)
            phrase = self.phrase(nouns, case, negated)
            article, _, rest = phrase.de.partition(" ")
            short = CONTRACTIONS.get(f"{word} {article}")
            german = f"{short} {rest}" if short else f"{word} {phrase.de}"
            clause.place = f"{en} {phrase.en}", german
        time = self.pick(times)
        clause.time = time if timed or not time[0] else NOTHING
        return clause

    def sentence(self) -> tuple[str, str]:
        """Draw a statement, a question, or two clauses, in English and German."""
        kind = self.random()
        en, de = self.joined() if kind < 0.3 else self.single(asked=kind < 0.6)
        return en[0].upper() + en[1:], de[0].upper() + de[1:]

    def single(self, asked: bool) -> tuple[str, str]:
        """Draw a question, or a statement, perhaps with the time in front."""
        front = self.pick(ROWS["questions"]) if asked else NOTHING
        clause = self.clause(timed=not front[0])
        sign = "?" if asked else "."
        if not asked and clause.time[0] and self.random() < 0.4:
            front, clause.time = clause.time, NOTHING
        order = "first" if asked or front[0] else "second"
        return (
            _line(front[0], english(clause, asked)) + sign,
            _line(front[1], german(clause, order)) + sign,
        )

    def joined(self) -> tuple[str, str]:
        """Draw two clauses; a subordinate one may come first."""
        en, de, is_last = self.pick(ROWS["conjunctions"])
        main, other = self.clause(), self.clause(timed=False)
        order = "last" if is_last else "second"
        end = german(other, order)
        if is_last and self.random() < 0.4:
            reverse = f"{de[2:]} {end}, {german(main, 'first')}."
            return f"{en} {english(other)}, {english(main)}.", reverse
        english_line = f"{english(main)} {en} {english(other)}."
        german_line = f"{german(main)} {de} {end}."
        return english_line.replace(" ,", ","), german_line.replace(" ,", ",")
