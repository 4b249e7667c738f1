"""Tests of the built-in English-German phrasebook."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import time
from collections import Counter
from itertools import islice, pairwise

import pytest

from mtrain.corpus.phrasebook import SPLITS, Derivation, derivations, held_out, is_novel, pairs
from mtrain.corpus.phrasebook.grammar import NICHT, SUBJECTS, Both, Clause, build, english, german
from mtrain.corpus.phrasebook.lexicon import ADJECTIVES, NOUNS, TABLES, USES, nouns

TENSES, VERBS = TABLES["tenses"], TABLES["verbs"]


@pytest.fixture(scope="module")
def train() -> list[Derivation]:
    return list(derivations("train", 20_000))


def words(sentence: str) -> list[str]:
    return [word.strip(".,?") for word in sentence.split()]


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        ("Haus nom a alt", "an old house = ein altes Haus"),
        ("Tisch acc my groß", "my big table = meinen großen Tisch"),
        ("Student dat the müde", "the tired student = dem müden Studenten"),
        ("Apfel acc not-a rot", "a red apple = keinen roten Apfel"),
        ("Buch acc not-any gut plural", "good books = keine guten Bücher"),
        ("Kind dat two klein plural", "two small children = zwei kleinen Kindern"),
    ],
)
def test_noun_phrases(phrase: str, expected: str) -> None:
    noun, case, determiner, adjective, *many = phrase.split()
    quality = next(found for found in ADJECTIVES if found.key == adjective)
    made = build(nouns(noun)[0], case, TABLES["determiners"][determiner], quality, bool(many))
    assert f"{made.en} = {made.de}" == expected


@pytest.mark.parametrize(
    ("tense", "person", "expected"),
    [
        ("progressive", 0, "I am calling = ich rufe an, rufe ich an, ich anrufe"),
        ("past", 2, "he called = er rief an, rief er an, er anrief"),
        ("past", 1, "you called = du hast angerufen, hast du angerufen, du angerufen hast"),
        ("want", 3, "she wants to call = sie will anrufen, will sie anrufen, sie anrufen will"),
    ],
)
def test_word_orders(tense: str, person: int, expected: str) -> None:
    clause = Clause(VERBS["anrufen"], TENSES[tense], SUBJECTS[person], negated=False)
    orders = ", ".join(german(clause, order) for order in ("second", "first", "last"))
    assert f"{english(clause)} = {orders}" == expected


def test_nicht_stands_after_the_object_and_the_time() -> None:
    clause = Clause(VERBS["legen"], TENSES["can"], SUBJECTS[1], negated=True, adverb=NICHT)
    clause.time, clause.fixed, clause.end = Both("today", "heute"), "das Buch", "auf den Tisch"
    assert english(clause) == "you cannot put today"
    assert english(clause, asked=True) == "can you not put today"
    assert german(clause) == "du kannst das Buch heute nicht auf den Tisch legen"


def misspelled(forms: set[str], dictionary: str) -> set[str]:
    command = ["hunspell", "-i", "utf-8", "-d", dictionary, "-l"]
    done = subprocess.run(command, input="\n".join(forms), capture_output=True, encoding="utf-8")
    if done.returncode:
        pytest.skip(f"hunspell has no dictionary {dictionary}")
    return set(done.stdout.split())


@pytest.mark.skipif(not shutil.which("hunspell"), reason="hunspell is not installed")
def test_every_form_is_spelled_right(train: list[Derivation]) -> None:
    known = {form for verb in VERBS.values() for form in verb.english}
    assert not misspelled(known | {w for pair in train for w in words(pair.english)}, "en_US")
    plain = {form for noun in NOUNS for forms in noun.german for form in forms}
    joined = {"ferngesehen"}  # of forms such as "einschläft" the dictionary lacks some
    for verb in VERBS.values():
        plain |= {verb.key, *verb.present, *verb.past}
        joined |= {verb.prefix + form for form in (*verb.present, *verb.past) if verb.prefix}
    shown = {word for pair in train for word in words(pair.german)}
    assert not misspelled(plain | (shown - joined), "de_DE")


def test_the_stream_is_pinned() -> None:
    # The same pairs on every platform and Python: seeds and hashes do not depend on either.
    found = {split: list(pairs(split, 200)) for split in SPLITS}
    text = "\n".join("\t".join(pair) for split in SPLITS for pair in found[split])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "d3691c61d47fb8aa"
    assert list(islice(pairs("train", 5_000_000), 200)) == found["train"]
    for split, many in found.items():
        assert list(pairs(split, 50)) == many[:50]
        assert list(pairs(split, 50, seed=6)) != many[:50]
        assert len(set(many)) == 200


@pytest.mark.parametrize(("split", "count"), [("dev", 1), ("train", -1), ("test", 100_001)])
def test_impossible_requests_are_refused(split: str, count: int) -> None:
    with pytest.raises(ValueError, match="split"):
        pairs(split, count)


def test_no_sentence_is_in_two_splits_or_has_two_translations(train: list[Derivation]) -> None:
    sources: dict[str, tuple[str, str]] = {}
    targets: dict[str, str] = {}
    others = (("valid", pairs("valid", 500, 2)), ("test", pairs("test", 1_000, 3)))
    for split, found in (("train", (pair[:2] for pair in train)), *others):
        for source, target in found:
            assert sources.setdefault(source, (target, split)) == (target, split)
            assert targets.setdefault(target, split) == split


def test_held_out_combinations_are_new_in_the_test(train: list[Derivation]) -> None:
    known = {combination for pair in train for combination in pair.combinations}
    test = list(derivations("test", 1_000))
    new = sum(any(c not in known for c in pair.combinations) for pair in test) / len(test)
    assert 0.4 < sum(map(is_novel, test)) / len(test) < 0.5
    assert new > 0.4
    assert not any(map(is_novel, [*train, *derivations("valid", 300)]))


def test_held_out_adjectives_never_precede_their_nouns_in_train(train: list[Derivation]) -> None:
    # Reads the sentences themselves and trusts no derivation.
    endings = ("e", "en", "em", "er", "es")
    adjectives = {quality.stem + e: quality.key for quality in ADJECTIVES for e in endings}
    keys = {form: noun.key for noun in NOUNS for number in noun.german for form in number}
    found = Counter[bool]()
    for first, second in (two for pair in train for two in pairwise(words(pair.german))):
        if first in adjectives and second in keys:
            found[held_out(adjectives[first], keys[second])] += 1
    assert found[True] == 0
    assert found[False] > 2_000


def test_sentences_are_well_formed_and_show_every_lexeme(train: list[Derivation]) -> None:
    for sentence in (side for pair in train for side in pair[:2]):
        assert re.fullmatch(r"[A-ZÄÖÜ]\w*(,? \w+){2,19}[.?]", sentence), sentence
    counts = Counter(word.lower() for pair in train for word in words(pair.english))
    lexemes = [entry.english for entry in (*NOUNS, *VERBS.values())]
    for forms in lexemes + [(quality.english,) for quality in ADJECTIVES]:
        assert sum(counts[form.lower()] for form in set(forms) if form) >= 30, forms


def test_more_than_ten_million_pairs_are_possible() -> None:
    # "She reads the book": any two such clauses make a sentence with "because" between them.
    uses = [use for use in USES if use.kind == "acc" and use.subjects == nouns("human")]
    known = {(u.verb.key, n.key) for u in uses for n in u.objects}
    shown = [combination for combination in known if not held_out(*combination)]
    assert (len(shown) * len(SUBJECTS)) ** 2 > 10_000_000


def test_generation_is_fast() -> None:
    start = time.process_time()
    assert sum(1 for _ in pairs("train", 5_000, seed=9)) == 5_000
    assert time.process_time() - start < 2  # about 0.2 s alone on a core; leave room for others
