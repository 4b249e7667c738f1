"""A part of a side that is written in another way is found, and two subjects are not mistaken."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from itertools import product
from math import log2
from pathlib import Path

import numpy as np
import pytest
from planting import CHARACTERS

from mtrain.check import mixture as mixtures
from mtrain.check.chunks import Chunk
from mtrain.check.findings import Findings
from mtrain.check.mixture import (
    MAX_LENGTH,
    MIN_TEXTS,
    PRIOR,
    LetterModel,
    find_mixture,
    report_mixture,
)
from mtrain.config.corpora import TextCorpus

PAIRS = 1500
FIRST, SECOND = (
    random.Random(5).sample(sorted(map("".join, product(syllables.split(), repeat=3))), 400)
    for syllables in ("ba de fi go lu ma ne ri so", "schra blen krit wolf zan durch eig ust nom")
)


def sentences(words: tuple[list[str], list[str]], count: int, seed: int) -> list[list[str]]:
    """Sentences of the words of a language, and their translations word for word."""
    rng = random.Random(seed)
    numbers = [
        [rng.randrange(len(words[0])) for _ in range(rng.randint(6, 12))] for _ in [0] * count
    ]
    return [
        [" ".join(side[n] for n in line).capitalize() + "." for line in numbers] for side in words
    ]


def in_other_letters(text: str) -> str:
    return "".join(chr(ord(char) + 1) if char.isalpha() else char for char in text)


def shuffled_letters(text: str) -> str:
    rng = random.Random(len(text))
    return " ".join("".join(rng.sample(word, len(word))) for word in text.split())


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.3, 0.45])
@pytest.mark.parametrize(
    "write", [lambda text: text[::-1], str.upper, in_other_letters, shuffled_letters]
)
def test_a_part_written_in_another_way(
    write: Callable[[str], str], fraction: float, side: int
) -> None:
    sides = sentences((FIRST, SECOND), PAIRS, 1)
    start, end = 400, 400 + round(fraction * PAIRS)
    sides[side][start:end] = map(write, sides[side][start:end])
    mixture = find_mixture(*sides)
    assert mixture is not None
    assert mixture.side == side
    assert sorted(mixture.part) == list(range(start, end))
    assert mixture.compared == list(range(PAIRS))


@pytest.mark.parametrize("count", [9, 12, 150])
def test_texts_here_and_there(count: int) -> None:
    """Nine are too few to be a part."""
    sides = sentences((FIRST, SECOND), PAIRS, 2)
    rows = random.Random(3).sample(range(PAIRS), count)
    for row in rows:
        sides[1][row] = sides[1][row][::-1]
    mixture = find_mixture(*sides)
    assert (mixture is None) == (count == 9)
    if mixture is None:
        return
    assert sorted(mixture.part) == sorted(rows)


@pytest.mark.parametrize("seed", range(5))
def test_sound_text(seed: int) -> None:
    assert find_mixture(*sentences((FIRST, SECOND), PAIRS, seed)) is None


def test_two_subjects() -> None:
    """Other words on both sides are no fault."""
    one = sentences((FIRST[:200], SECOND[:200]), 1000, 4)
    other = sentences(([word[::-1] for word in FIRST], [word[::-1] for word in SECOND]), 500, 5)
    assert find_mixture(one[0] + other[0], one[1] + other[1]) is None
    # the same on one side only is one
    assert find_mixture(one[0] + one[0][:500], one[1] + other[1][:500]) is not None


def test_short_and_equal_texts_are_left_out() -> None:
    sides = sentences((FIRST, SECOND), 600, 6)
    sides[1][100:200] = [text[::-1] for text in sides[1][100:200]]
    for row in range(300):
        sides[1][2 * row] = "short" if row % 2 else sides[0][2 * row]
    mixture = find_mixture(*sides)
    assert mixture is not None
    assert sorted(mixture.part) == list(range(101, 200, 2))
    assert mixture.compared == list(range(1, 600, 2))
    few = [side[: 2 * (MIN_TEXTS - 1)] for side in sides]
    assert find_mixture(*few) is None
    assert find_mixture([], []) is None


def test_a_large_text_is_judged_by_a_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mixtures, "MAX_TEXTS", 600)
    sides = sentences((FIRST, SECOND), PAIRS, 7)
    sides[0][500:700] = [text[::-1] for text in sides[0][500:700]]
    found = find_mixture(*sides)
    assert found is not None
    assert found.compared == list(range(0, PAIRS, 3))
    assert sorted(found.part) == list(range(501, 700, 3))


@pytest.mark.parametrize(("explained", "is_reported"), [(49, True), (50, False)])
def test_each_corpus_is_named_with_its_own_part_unless_that_is_explained(
    explained: int, is_reported: bool
) -> None:
    """A sixth of 600 targets, and three in ten of 300 others."""
    sides = sentences((FIRST, SECOND), 900, 8)
    sides[1][500:690] = [text[::-1] for text in sides[1][500:690]]
    rows = list(zip(range(1, 901), *sides, strict=True))
    corpora = []
    for name, part in (("a", rows[:600]), ("b", rows[600:])):
        findings = Findings(name, TextCorpus(src=f"{name}.xa", tgt=f"{name}.xb"), Path(), 10)
        findings.pairs = len(part)
        corpora.append(Chunk.of(findings, part, CHARACTERS))
    corpora[0].findings.add("mojibake", explained)
    report_mixture(corpora)
    told = [each.findings.by_kind.get(("mixture", "")) for each in corpora]
    texts = [finding.examples[0].text if finding else "" for finding in told]
    assert texts[0].startswith("about 16.7% of the targets") == is_reported
    assert texts[1].startswith("about 30.0% of the targets")
    assert "nearly all of them from b.xb:605 to 686; compare b.xb:" in texts[1]
    assert not 500 < int(re.findall(r"with a.xb:(\d+)", texts[1])[0]) <= 600


def test_the_model_by_hand() -> None:
    """It costs what a count of all n-grams in dictionaries gives."""
    texts = ["ab ab 12", "abba", "bab\u00e9 ba 7", "a" * (MAX_LENGTH + 5), "", "x\ny"]
    group = np.array([True, False, True, True, False, False])
    shown = [text[:MAX_LENGTH].replace("\n", " ") + "\n" for text in texts]
    shown = ["".join("0" if char.isdigit() else char for char in text) for text in shown]
    size, costs = len(set("".join(shown))), LetterModel(texts).bits(group)
    for row, text in enumerate(shown):
        for in_group, bits in zip((True, False), costs[:, row], strict=True):
            ngrams, contexts = Counter[str](), Counter[str]()
            for number, other in enumerate(shown):
                if group[number] == in_group:
                    padded = "\n\n" + other
                    for end in range(3, len(padded) + 1):
                        for n in (1, 2, 3):
                            ngrams[padded[end - n : end]] += 1
                            contexts[f"{n}{padded[end - n : end - 1]}"] += 1
            own = int(group[row] == in_group)
            padded, expected = "\n\n" + text, 0.0
            for end in range(3, len(padded) + 1):
                p = 1 / size
                for n in (1, 2, 3):
                    ngram = padded[end - n : end]
                    p = (ngrams[ngram] - own + PRIOR * p) / (
                        contexts[f"{n}{ngram[:-1]}"] - own + PRIOR
                    )
                expected -= log2(p)
            assert bits == pytest.approx(expected / len(text))
