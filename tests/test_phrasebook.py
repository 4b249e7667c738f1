"""Tests of the built-in English-German phrasebook."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import pytest

from mtrain.phrasebook import (
    LIMITS,
    MAX_WORDS,
    MIN_WORDS,
    SPLITS,
    Derivation,
    derivations,
    inflection,
    lexicon,
    pairs,
)
from mtrain.phrasebook.clauses import Clause, english, german
from mtrain.phrasebook.inflection import ACC, ADJECTIVES, NOUNS, VERBS, Adjective, Noun, Verb
from mtrain.phrasebook.phrases import (
    DESCRIBING,
    FRAMES,
    SUBJECT_PRONOUNS,
    Source,
    held_out,
    noun_phrase,
)

PARADIGMS = Path(__file__).with_name("phrasebook_paradigms.txt")
# Separable prefixes: hunspell lacks some joined forms, such as "einschläft".
PREFIXES = ("ab", "an", "auf", "aus", "ein", "fern", "mit", "weg", "zu")


@pytest.fixture(scope="module")
def train() -> list[Derivation]:
    return list(derivations("train", 20_000))


@pytest.fixture(scope="module")
def test() -> list[Derivation]:
    return list(derivations("test", 1_000))


# --- Paradigms -------------------------------------------------------------------------------


def noun_line(noun: Noun) -> str:
    """Return all forms of a noun: the four cases of the singular and of the plural."""
    article = ("der", "die", "das")[noun.gender]
    plural = "" if noun.mass else f" | {' '.join(noun.plural)}"
    english_forms = " ".join(filter(None, noun.english))
    return f"noun {english_forms} = {article} {' '.join(noun.singular)}{plural}"


def adjective_line(adjective: Adjective) -> str:
    """Return all forms of an adjective."""
    endings = sorted({e for kind in inflection.ADJECTIVE_ENDINGS for row in kind for e in row})
    forms = [adjective.key, *(adjective.stem + ending for ending in endings)]
    more, mehr = adjective.comparative
    compared = f" | {more} = {mehr}" if more else ""
    return f"adjective {adjective.english} = {' '.join(forms)}{compared}"


def verb_line(verb: Verb) -> str:
    """Return all forms of a verb: present, imperative, past, perfect; separable ones joined."""
    en, de = verb.en, verb.de
    auxiliary = "ist" if de.with_sein else "hat"
    requested = verb.active and any(use.kind in "tdbcmo" for use in verb.uses)
    joined = {de.prefix + form for form in (*de.present, *de.past)} if de.prefix else set()
    parts = (
        f"verb {' '.join(en[:5])} {en.tail}".rstrip() + f" = {de.infinitive}",
        f"{' '.join(de.present)}" + (f" {de.imperative.title()}!" if requested else ""),
        " ".join(de.past),
        f"{auxiliary} {de.participle}",
        " ".join(sorted(joined)),
    )
    return " | ".join(filter(None, parts))


def determiner_lines() -> Iterator[str]:
    """Yield the forms of the determiners: masculine, feminine, neuter, plural, by case."""
    names = ("THE", "A", "NO", "THIS", "EVERY", "ALL", "MANY", "WHICH", "HOW_MANY")
    every = [getattr(inflection, name) for name in names]
    for determiner in (*every, *inflection.POSSESSIVES):
        singular, plural = determiner.english
        rows = [" ".join(row).strip() for row in determiner.german]
        used = (rows[:3] if singular else []) + (rows[3:] if plural else [])
        yield f"determiner {singular or plural} = {' | '.join(used)}"
    for endings in inflection.ADJECTIVE_ENDINGS:
        yield f"endings {' | '.join(' '.join(row) for row in endings)}"


def paradigms() -> list[str]:
    """Return every inflected form the grammar can use, one lexeme a line."""
    verbs = (*VERBS, *(verb for verb, _, _ in inflection.REPORTS))
    modals = (*dict.fromkeys(inflection.MODALS), *inflection.PAST_MODALS)
    return [
        *map(noun_line, NOUNS.values()),
        *map(adjective_line, inflection.ADJECTIVES),
        *map(verb_line, verbs),
        *(f"modal {(m.auxiliary or m.links)[2]} = {' '.join(m.finite)}" for m in modals),
        *determiner_lines(),
        *(f"number {' = '.join(inflection.number_words(n))}" for n in lexicon.NUMBERS),
    ]


def test_paradigms_are_the_reviewed_ones() -> None:
    assert paradigms() == PARADIGMS.read_text(encoding="utf-8").splitlines()


def misspelled(words: set[str], dictionary: str) -> list[str]:
    """Return the words that the spelling dictionary does not know."""
    done = subprocess.run(
        ["hunspell", "-i", "utf-8", "-d", dictionary, "-l"],
        input="\n".join(sorted(words)),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout.split()


def dictionaries() -> str:
    """Return what hunspell says about the dictionaries it finds."""
    if not shutil.which("hunspell"):
        return ""
    done = subprocess.run(["hunspell", "-D"], input="", capture_output=True, encoding="utf-8")
    return done.stdout + done.stderr


def spoken(sentences: list[str]) -> set[str]:
    """Return the words of sentences without the punctuation."""
    return {word.strip(".,!?") for sentence in sentences for word in sentence.split()}


def plain(word: str) -> str:
    """Return a word without its separable prefix."""
    prefix = next((p for p in PREFIXES if word.startswith(p)), "")
    return word.removeprefix(prefix)


@pytest.mark.skipif("de_DE" not in dictionaries(), reason="hunspell with German is not installed")
def test_german_forms_are_spelled_right(train: list[Derivation]) -> None:
    lines = [line.split(" = ", 1)[1] for line in paradigms() if " = " in line]
    sides = [part.split(" = ")[-1] for line in lines for part in line.split(" | ")]
    words = spoken(sides) | spoken([pair.german for pair in train])
    unknown = misspelled(words, "de_DE")
    assert misspelled({plain(word) for word in unknown}, "de_DE") == []
    assert all(plain(word) != word for word in unknown)


@pytest.mark.skipif("en_US" not in dictionaries(), reason="hunspell with English is not installed")
def test_english_forms_are_spelled_right(train: list[Derivation]) -> None:
    words = spoken([line.split("=")[0] for line in paradigms()])
    assert misspelled(words | spoken([pair.english for pair in train]), "en_US") == []


# --- Splits ----------------------------------------------------------------------------------


def test_the_stream_is_pinned() -> None:
    # The same pairs on every platform and Python: seeds and hashes do not depend on either.
    text = "\n".join("\t".join(pair) for split in SPLITS for pair in pairs(split, 200))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "3297d50056691e48"


def test_fewer_pairs_are_the_beginning_of_more() -> None:
    for split in SPLITS:
        many = list(pairs(split, 300, seed=5))
        assert list(pairs(split, 100, seed=5)) == many[:100]
        assert list(pairs(split, 100, seed=6)) != many[:100]
        assert len(set(many)) == 300


def test_pairs_stream() -> None:
    assert len(list(islice(pairs("train", LIMITS["train"]), 10))) == 10
    assert list(pairs("valid", 0)) == []


@pytest.mark.parametrize(
    ("split", "count"),
    [("dev", 1), ("train", -1), *((split, LIMITS[split] + 1) for split in SPLITS)],
)
def test_impossible_requests_are_refused(split: str, count: int) -> None:
    with pytest.raises(ValueError, match="split"):
        pairs(split, count)


def test_no_sentence_is_in_two_splits() -> None:
    sides: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for split, count in (("train", 10_000), ("valid", 1_000), ("test", 2_000)):
        for seed in (1, 2):
            for pair in pairs(split, count, seed):
                for side, sentence in zip(sides, pair, strict=True):
                    assert side.setdefault(sentence, split) == split


def test_an_english_sentence_has_one_translation() -> None:
    found: dict[str, str] = {}
    for seed in (1, 2):
        for source, target in pairs("train", 10_000, seed):
            assert found.setdefault(source, target) == target


def novel(derivation: Derivation) -> bool:
    return any(held_out(*combination) for combination in derivation.combinations)


def test_held_out_combinations_are_new_in_the_test(
    train: list[Derivation], test: list[Derivation]
) -> None:
    known = {combination for pair in train for combination in pair.combinations}
    share = sum(any(c not in known for c in pair.combinations) for pair in test) / len(test)
    assert 0.4 < sum(map(novel, test)) / len(test) < 0.5
    assert share > 0.4
    assert not any(map(novel, train))
    for split, seed in (("train", 2), ("valid", 1)):
        assert not any(map(novel, derivations(split, 2_000, seed)))


def test_held_out_adjectives_never_precede_their_nouns_in_train() -> None:
    # Reads the sentences themselves and trusts no derivation.

    endings = ("e", "en", "em", "er", "es")
    adjectives = {adjective.stem + e: adjective.key for adjective in ADJECTIVES for e in endings}
    nouns = {form: noun.key for noun in NOUNS.values() for form in (*noun.singular, *noun.plural)}
    found = Counter[bool]()
    for split in ("train", "test"):
        for _, sentence in pairs(split, 20_000 if split == "train" else 500, seed=3):
            words = [word.strip(".,!?") for word in sentence.split()]
            for first, second in pairwise(words):
                if first in adjectives and second in nouns:
                    new = held_out(adjectives[first], nouns[second])
                    assert split == "test" or not new
                    found[new] += 1
    assert found[True] > 50
    assert found[False] > 2_000


def test_train_shows_every_lexeme(train: list[Derivation]) -> None:
    words = Counter(word.strip(".,!?") for pair in train for word in pair.german.split())
    stems = Counter(word.strip(".,!?").lower() for pair in train for word in pair.english.split())
    for noun in NOUNS.values():
        forms = {*noun.singular, *noun.plural} - {""}
        assert sum(words[form] for form in forms) >= 40, noun.key
    for adjective in ADJECTIVES:
        assert stems[adjective.english] >= 40, adjective.key
    for verb in VERBS:
        assert sum(stems[form] for form in set(verb.en[:5])) >= 40, verb.key


def test_known_combinations_remain_for_every_word() -> None:
    for frame in (frame for frames in FRAMES for frame in frames if frame.nouns[0]):
        assert frame.nouns[1], frame.verb.key
    for noun in NOUNS.values():
        assert DESCRIBING[noun.key][1], noun.key


# --- Size and form ---------------------------------------------------------------------------


def test_there_are_enough_lexemes() -> None:
    closed = len(lexicon.NAMES) + len(lexicon.TOWNS) + len(lexicon.NUMBERS)
    assert len(NOUNS) + len(ADJECTIVES) + len(VERBS) + closed >= 250
    assert len(NOUNS) >= 140
    assert len(VERBS) >= 80


def simple_clauses() -> Iterator[tuple[str, str]]:
    """Yield "she reads the book" with every pronoun, verb and object the grammar allows."""
    source = Source(lambda: 1.0, known=True)
    for frame in (frame for frames in FRAMES for frame in frames):
        if frame.use.kind != "t" or frame.subjects[0].group != "person":
            continue
        for subject in dict.fromkeys(SUBJECT_PRONOUNS[:6]):
            for noun in frame.nouns[source.pool]:
                for plural in (False, True)[: 1 + (not noun.mass)]:
                    clause = Clause(frame.verb, inflection.PRESENT, subject)
                    clause.add_object(noun_phrase(source, noun, ACC, inflection.THE, plural, 0))
                    yield english(clause), german(clause)


def test_more_than_ten_million_pairs_are_possible() -> None:
    # Any of these clauses can stand before and after "because", which none of them holds,
    # so every ordered pair of them is another sentence; none has a held-out combination.
    sources, targets = (set(side) for side in zip(*simple_clauses(), strict=True))
    assert not any("because" in source for source in sources)
    assert len(targets) > 5_000
    assert len(sources) ** 2 > 25_000_000


def test_sentences_are_well_formed(train: list[Derivation]) -> None:
    for pair in train:
        for sentence in (pair.english, pair.german):
            assert sentence[0].isupper()
            assert sentence[-1] in ".?!"
            assert "  " not in sentence
            assert MIN_WORDS <= len(sentence.split()) <= MAX_WORDS


def test_the_vocabulary_stays_small(train: list[Derivation]) -> None:
    for side in (spoken([p.english for p in train]), spoken([p.german for p in train])):
        assert len({word.lower() for word in side}) < 1_500
