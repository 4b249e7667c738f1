"""Evidence of words that two texts are translations."""

from __future__ import annotations

import pytest
from planting import CHARACTERS

from mtrain.check import associations
from mtrain.check.associations import MAX_LINE_WORDS, Associations
from mtrain.check.words import Words


def words(*texts: str) -> Words:
    return CHARACTERS.read(texts)[0]


@pytest.fixture(scope="module")
def names() -> Associations:
    """What is learned of pairs that share a name, each another one."""
    texts = [f"name{number}" for number in range(200)]
    return Associations(words(*texts), words(*texts))


OTHERS = " ".join(f"other{number}" for number in range(MAX_LINE_WORDS))


@pytest.mark.parametrize(
    ("src", "tgt", "is_evidence"),
    [
        ("Anna", "Anna", True),
        ("Anna", "Berta", False),  # which is not against the pair, either
        (f"Anna {OTHERS}", "Anna", True),
        (f"{OTHERS} Anna", "Anna", False),  # the first words of a line count
        ("", "Anna", False),
    ],
)
def test_a_name_on_both_sides_is_evidence_for_a_pair(
    names: Associations, src: str, tgt: str, is_evidence: bool
) -> None:
    [nats] = names.evidence(words(src), words(tgt))
    assert (nats > 1) if is_evidence else (nats == 0)


def test_words_that_occur_in_the_same_pairs_are_evidence() -> None:
    """Words that are new, or that occurred only twice, are evidence neither way."""
    sources, targets = ([f"{letter}{n % 20}" for n in range(200)] for letter in "st")
    src, tgt = words(*sources, "twice", "twice"), words(*targets, "again", "again")
    pairs = [("s3", "t3"), ("s3", "t4"), ("new", "t4"), ("s3", "again"), ("twice", "again")]
    learned, sides = Associations(src, tgt), [words(*side) for side in zip(*pairs, strict=True)]
    nats = learned.evidence(sides[0], sides[1])
    assert nats[0] > 2
    assert (nats[1:4] < -0.5).all()
    assert nats[4] == 0
    known = [[True, True, False, True, False], [True, True, True, False, False]]
    assert learned.have_known(sides[0], sides[1]).tolist() == known


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_words_are_paired_with_those_of_their_line(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(associations, "CHUNK", size)
    src, tgt = words("", "a b", "", "c d e", "f"), words("u", "v w", "x", "y z", "")
    chunks = [
        list(zip(left.tolist(), right.tolist(), strict=True))
        for left, right in associations._word_pairs(src, tgt)
    ]
    found = [pair for chunk in chunks for pair in chunk]
    assert found == [
        (a, b) for a, line in enumerate(src.lines) for b in (tgt.lines == line).nonzero()[0]
    ]
