"""A built-in English-German parallel corpus, generated from a hand-written grammar.

It is there for a quick start with nothing to download: it shows that training and translating
work, and says nothing about the quality of a translation of real text. Every sentence is
drawn in both languages at once. An English sentence has exactly one German translation ("you"
is always "du", "you all" is "ihr"), so a model can learn the mapping completely.

Some combinations of a verb with its object and of an adjective with its noun are held out:
only the test split shows them, and about half of its sentences do.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from hashlib import blake2b
from random import Random
from typing import NamedTuple

from mtrain.phrasebook import inflection as words
from mtrain.phrasebook.clauses import (
    BE,
    GERADE,
    PAST_TENSES,
    WHERE_PEOPLE,
    Clause,
    Tenses,
    add_adverbs,
    choose_noun,
    draw_clause,
    draw_subject,
    english,
    fill,
    german,
    suited,
)
from mtrain.phrasebook.inflection import ACC, DAT, GROUPS, NOM, NOTHING, NOUNS, Both, Noun
from mtrain.phrasebook.phrases import (
    FRAMES,
    PEOPLE,
    SUBJECT_PRONOUNS,
    Frame,
    Phrase,
    Source,
    definite_phrase,
    held_out,
    noun_phrase,
    place_phrase,
    subject_phrase,
)

SPLITS = ("train", "valid", "test")
# The most pairs that one call may ask of a split.
LIMITS = {"train": 5_000_000, "valid": 100_000, "test": 100_000}

NOVEL_SHARE = 0.45
MIN_WORDS, MAX_WORDS = 3, 20


class Derivation(NamedTuple):
    """A sentence pair with the lexeme combinations that its grammar put together."""

    english: str
    german: str
    combinations: tuple[tuple[str, str], ...]


# --- Sentences -------------------------------------------------------------------------------


def _front(clause: Clause) -> tuple[str, str]:
    """Say a clause with its adverb of time in front, if it has one that can stand there."""
    time = clause.time
    if not time.en:
        return english(clause), german(clause)
    clause.time = NOTHING
    return f"{time.en} {english(clause)}", f"{time.de} {german(clause, 'first')}"


def _statement(src: Source) -> tuple[str, str]:
    clause = draw_clause(src, words.ANY)
    if src.chance(0.35):
        en, de = _front(clause)
        return f"{en}.", f"{de}."
    return f"{english(clause)}.", f"{german(clause)}."


def _question(src: Source) -> tuple[str, str]:
    clause = draw_clause(src, words.ASKED, negatable=False)
    return f"{english(clause, True)}?", f"{german(clause, 'first')}?"


def _why_or_when(src: Source) -> tuple[str, str]:
    if src.chance(0.5):
        clause, ask = draw_clause(src, words.ANY), Both("why", "warum")
    else:
        frame = src.pick(EVENTS)
        clause = draw_clause(src, TIMELESS, frame, timed=False, negatable=False)
        ask = Both("when", "wann")
    return f"{ask.en} {english(clause, True)}?", f"{ask.de} {german(clause, 'first')}?"


def _where(src: Source) -> tuple[str, str]:
    """Ask for the place that a verb needs, or for where something is."""
    if src.chance(0.6):
        clause = draw_clause(src, words.ANY, src.pick(STATIC), place=False, negatable=False)
    else:
        noun = src.pick(src.pick(FINDABLE))
        clause = Clause(BE, words.PRESENT, definite_phrase(src, noun, NOM))
    return f"where {english(clause, True)}?", f"wo {german(clause, 'first')}?"


def _who(src: Source) -> tuple[str, str]:
    subject = Phrase("who", "wer", 2, pronoun=True, key="who")
    clause = draw_clause(src, words.ANY, src.pick(HUMAN), subject, negatable=False)
    return f"{english(clause)}?", f"{german(clause)}?"


def _open_clause(src: Source, tenses: Tenses, frame: Frame, subject: Phrase | None) -> Clause:
    """Draw a clause whose object stands elsewhere in the sentence."""
    tense = suited(src.pick(src.pick(tenses)), frame)
    if subject is None:
        subject = draw_subject(src, frame, tense, True)
    clause = Clause(frame.verb, tense, subject, taken=(subject.key,))
    if frame.verb.en.tail:
        clause.add(frame.verb.en.tail)
    if tense is words.PROGRESSIVE:
        clause.time = GERADE
    add_adverbs(src, clause, True)
    return clause


def _what_or_whom(src: Source) -> tuple[str, str]:
    frame = src.pick(OBJECTIVE)
    human = src.pick(frame.nouns[0]).group in ("person", "kin")
    ask = Both("whom", "wem" if frame.use.kind == "d" else "wen") if human else Both("what", "was")
    if frame.use.kind == "d" and not human:
        return _what_or_whom(src)
    clause = _open_clause(src, words.ANY, frame, None)
    return f"{ask.en} {english(clause, True)}?", f"{ask.de} {german(clause, 'first')}?"


def _which(src: Source) -> tuple[str, str]:
    """Ask which one, or how many, with the object in front."""
    frame = src.pick(OBJECTIVE)
    clause = _open_clause(src, words.ANY, frame, None)
    noun = choose_noun(src, clause, frame)
    if noun.group == "kin":
        return _which(src)
    plural = not noun.mass and src.chance(0.5)
    src.combinations.append((frame.verb.key, noun.key))
    determiner = words.HOW_MANY if plural and src.chance(0.6) else words.WHICH
    phrase = noun_phrase(src, noun, CASE[frame.use.kind], determiner, plural, 0.2)
    return f"{phrase.en} {english(clause, True)}?", f"{phrase.de} {german(clause, 'first')}?"


def _how(src: Source) -> tuple[str, str]:
    """Ask for an age or a price."""
    if src.chance(0.5):
        clause, ask = draw_clause(src, words.NOW, PRICE, place=False), Both("much", "viel")
        clause.negated = False
    else:
        noun = src.pick((*PEOPLE, *GROUPS["animal"], *GROUPS["building"]))
        subject = definite_phrase(src, noun, NOM)
        clause, ask = Clause(BE, words.PRESENT, subject), Both("old", "alt")
    return f"how {ask.en} {english(clause, True)}?", f"wie {ask.de} {german(clause, 'first')}?"


def _conjoined(src: Source) -> tuple[str, str]:
    """Join a main and a subordinate clause, in either order."""
    conjunction, main_tenses, tenses = src.pick(CONJUNCTIONS)
    main = draw_clause(src, main_tenses, light=True)
    plain = conjunction.en in ("while", "before")
    timed = not plain and src.chance(0.3)
    clause = draw_clause(src, tenses, light=True, timed=timed, negatable=not plain)
    en, de = f"{conjunction.en} {english(clause)}", f"{conjunction.de} {german(clause, 'last')}"
    if src.chance(0.4):
        return f"{en}, {english(main)}.", f"{de}, {german(main, 'first')}."
    return f"{english(main)} {en}.", f"{german(main)}, {de}."


def _reported(src: Source) -> tuple[str, str]:
    verb, german_word, english_word = src.pick(words.REPORTS)
    past = src.chance(0.35)
    tense = words.PAST if past else words.PRESENT
    subject = subject_phrase(src, PEOPLE, tense, 0.1)
    main = Clause(verb, tense, subject)
    main.negated = subject.definite and src.chance(0.1)
    clause = draw_clause(src, words.THEN if past else words.NOW, light=True)
    return (
        f"{english(main)} {english_word} {english(clause)}.",
        f"{german(main)}, {german_word} {german(clause, 'last')}.",
    )


def _coordinated(src: Source) -> tuple[str, str]:
    tenses = src.pick((words.NOW, words.THEN))
    first = draw_clause(src, tenses, light=True)
    second = draw_clause(src, tenses, light=True, timed=False)
    word = src.pick((Both(", and", " und"), Both(", but", ", aber")))
    en, de = f"{english(first)}{word.en} {english(second)}", f"{german(first)}{word.de}"
    return f"{en}.", f"{de} {german(second)}."


def _relative(src: Source) -> tuple[str, str]:
    """Say something more about the object in a relative clause after it."""
    frame = src.pick(OBJECTIVE)
    main = _open_clause(src, words.ANY, frame, None)
    main.english, main.middle = "", NOTHING
    noun = choose_noun(src, main, frame)
    src.combinations.append((frame.verb.key, noun.key))
    plural = not noun.mass and noun.group != "kin" and src.chance(0.3)
    determiner = words.THE if plural or noun.mass else src.pick((words.THE, words.THE, words.A))
    head = noun_phrase(src, noun, CASE[frame.use.kind], determiner, plural, 0.15)
    main.add_object(head)
    if noun.key in ACTIONS and src.chance(0.5):
        who = "who" if noun.group in ("person", "kin") else "that"
        pronoun = Phrase(who, RELATIVE[NOM][head.gender], head.person, True, True, noun.key)
        clause = draw_clause(
            src, words.ANY, src.pick(ACTIONS[noun.key]), pronoun, light=True, timed=False
        )
        tail = Both(english(clause), german(clause, "last"))
    else:
        tail = _object_relative(src, noun, head.gender)
    en, de = _front(main)
    return f"{en} {tail.en}.", f"{de}, {tail.de}."


def _object_relative(src: Source, noun: Noun, gender: int) -> Both:
    """Return "that I have read": the subject is a pronoun that cannot be the object."""
    frame = src.pick(TAKING[noun.key][src.pool])
    tense = src.pick(src.pick(words.ANY))
    subject = src.pick(RELATIVE_SUBJECTS[tense in PAST_TENSES :])
    clause = _open_clause(src, ((tense,),), frame, subject)
    if clause.time != GERADE:
        clause.time = NOTHING
    src.combinations.append((frame.verb.key, noun.key))
    word = "whom" if noun.group in ("person", "kin") else "that"
    relative = RELATIVE[CASE[frame.use.kind]][gender]
    return Both(f"{word} {english(clause)}", f"{relative} {german(clause, 'last')}")


def _existential(src: Source) -> tuple[str, str]:
    noun = src.pick(src.pick(FINDABLE))
    plural = not noun.mass and src.chance(0.5)
    asked = src.chance(0.25)
    several = (words.MANY, src.pick(words.COUNTED), words.BARE)
    choice = several if plural else (words.BARE if noun.mass else words.A,)
    determiner = src.pick(choice if asked else (*choice, words.NO))
    phrase = noun_phrase(src, noun, ACC, determiner, plural)
    place = place_phrase(src, WHERE_PEOPLE)
    past = src.chance(0.35)
    be, gibt = (words.WAS if past else words.AM)[phrase.person], "gab" if past else "gibt"
    en, de = f"{phrase.en} {place.en}", f"{phrase.de} {place.de}"
    if asked:
        return f"{be} there {en}?", f"{gibt} es {de}?"
    return f"there {be} {en}.", f"es {gibt} {de}."


def _request(src: Source) -> tuple[str, str]:
    """Ask somebody, or propose together, to do something."""
    frame = src.pick(DOABLE)
    together = src.chance(0.4)
    subject = Phrase("", "", 3 if together else 1, pronoun=True)
    clause = Clause(frame.verb, words.LET_US if together else words.IMPERATIVE, subject)
    clause.negated = not together and src.chance(0.2)
    fill(src, clause, frame, False)
    if together:
        add_adverbs(src, clause, True)
        return f"let us {english(clause)}!", f"lass uns {german(clause)}!"
    clause.time = Both("", "bitte")
    return f"please {english(clause)}!", f"{german(clause)}!"


Conjunction = tuple[Both, Tenses, Tenses]
TIMELESS: Tenses = ((words.PRESENT,), (words.PAST,), words.MODALS)
LATER: Tenses = ((words.FUTURE,), (words.PRESENT,), (words.SHOULD, words.MUST, words.CAN))
PRESENT, PAST = ((words.PRESENT,),), ((words.PAST,),)
CONJUNCTIONS: tuple[Conjunction, ...] = (
    (Both("because", "weil"), words.NOW, words.NOW),
    (Both("because", "weil"), words.THEN, words.THEN),
    (Both("although", "obwohl"), words.NOW, words.NOW),
    (Both("although", "obwohl"), words.THEN, words.THEN),
    (Both("if", "wenn"), LATER, (*PRESENT, *PRESENT, (words.CAN, words.WANT, words.MUST))),
    (Both("when", "wenn"), PRESENT, PRESENT),
    (Both("when", "als"), words.THEN, PAST),
    (Both("while", "während"), PRESENT, PRESENT),
    (Both("while", "während"), PAST, PAST),
    (Both("before", "bevor"), PAST, PAST),
)
USES = tuple(frame for frames in FRAMES for frame in frames)
HUMAN = tuple(frame for frame in USES if PEOPLE[0] in frame.subjects)
STATIC = tuple(frame for frame in USES if frame.use.kind == "s" or "in" in frame.use.adjuncts)
EVENTS = tuple(f for f in USES if not f.verb.state and f.use.kind != "w")
OBJECTIVE = tuple(frame for frame in USES if frame.use.kind in "td")
DOABLE = tuple(
    f for f in HUMAN if f.verb.active and f.use.kind in "tdbcmo" and f.verb.key != "kommen"
)
PRICE = next(frame for frame in USES if frame.use.kind == "n")
CASE = {"t": ACC, "d": DAT}
FINDABLE = tuple(GROUPS[name] for name in ("animal", "thing", "person", "food", "text", "plant"))
# For every noun the uses of verbs whose subject, or whose object, it can be.
ACTIONS = {
    noun.key: tuple(frame for frame in USES if noun in frame.subjects)
    for noun in (*PEOPLE, *GROUPS["animal"])
}
TAKING = {
    noun.key: tuple(
        tuple(f for f in OBJECTIVE if f in HUMAN and noun in f.nouns[pool]) for pool in (0, 1)
    )
    for noun in NOUNS.values()
}
# Relative pronouns by case, then masculine, feminine, neuter and plural.
RELATIVE = {
    NOM: ("der", "die", "das", "die"),
    ACC: ("den", "die", "das", "die"),
    DAT: ("dem", "der", "dem", "denen"),
}
RELATIVE_SUBJECTS = tuple(SUBJECT_PRONOUNS[index] for index in (-2, 0, 2, 4))

# How often each pattern is drawn, in percent.
PATTERNS: tuple[tuple[Callable[[Source], tuple[str, str]], int], ...] = (
    (_statement, 32),
    (_question, 9),
    (_why_or_when, 5),
    (_where, 2),
    (_who, 3),
    (_what_or_whom, 3),
    (_which, 4),
    (_how, 1),
    (_conjoined, 17),
    (_reported, 7),
    (_coordinated, 5),
    (_relative, 6),
    (_existential, 2),
    (_request, 4),
)
DECK = tuple(pattern for pattern, share in PATTERNS for _ in range(share))

# --- Splits ----------------------------------------------------------------------------------


def _draw(random: Callable[[], float], known: bool) -> Derivation | None:
    """Draw a sentence, or None if it came out too short or too long."""
    source = Source(random, known)
    en, de = source.pick(DECK)(source)
    for words_in in (en.count(" ") + 1, de.count(" ") + 1):
        if not MIN_WORDS <= words_in <= MAX_WORDS:
            return None
    return Derivation(en[0].upper() + en[1:], de[0].upper() + de[1:], tuple(source.combinations))


def split_of(derivation: Derivation) -> str:
    """Return the only split that may show a sentence.

    Held-out combinations belong to the test; all else is dealt by a hash of the German
    sentence. As an English sentence has one German translation, this parts both sides.
    """
    if any(held_out(*combination) for combination in derivation.combinations):
        return "test"
    share = zlib.crc32(derivation.german.encode()) % 100
    return "train" if share < 90 else "valid" if share < 95 else "test"


def _fitting(split: str, random: Callable[[], float]) -> Derivation:
    """Draw until a sentence belongs to the split, novel in the share the test should have."""
    novel = split == "test" and random() < NOVEL_SHARE
    while True:
        found = _draw(random, known=not novel)
        if found is None or split_of(found) != split:
            continue
        if not novel or any(held_out(*combination) for combination in found.combinations):
            return found


def _stream(split: str, count: int, seed: int) -> Iterator[Derivation]:
    random = Random(f"{split} {seed}").random
    shown: set[bytes] = set()
    while len(shown) < count:
        found = _fitting(split, random)
        pair = f"{found.english}\t{found.german}".encode()
        mark = blake2b(pair, digest_size=8).digest()
        if mark not in shown:
            shown.add(mark)
            yield found


def derivations(split: str, count: int, seed: int = 1) -> Iterator[Derivation]:
    """Return what ``pairs`` returns, with the combinations that each sentence shows."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: must be one of {', '.join(SPLITS)}")
    if not 0 <= count <= LIMITS[split]:
        raise ValueError(f"the {split} split has 0 to {LIMITS[split]} pairs, not {count}")
    return _stream(split, count, seed)


def pairs(split: str, count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Return ``count`` distinct (English, German) pairs of a split.

    The pairs depend on the split and the seed alone, and fewer pairs are the beginning of
    more. No sentence of one split is in another, whatever their seeds.
    """
    return ((found.english, found.german) for found in derivations(split, count, seed))
