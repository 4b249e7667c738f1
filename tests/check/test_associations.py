"""Evidence of words that two texts are translations."""

from __future__ import annotations

import pytest
from planting import CHARACTERS

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
