"""The fraction of texts that lost their accents, by the words that occur with and without them."""

import random

import pytest

from mtrain.corpus.accents import lost_accents


def test_letters_that_stay_are_not_lost() -> None:
    texts = [" ".join(f"w{char}ß" for char in "abcdefghijklmnop")] * 20
    assert lost_accents(texts, "de") == (0.0, "")


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.4])
def test_other_letters_and_words_without_accents_change_nothing(fraction: float) -> None:
    """ß may stay as it is, and a third of the words are two words, such as "qab" and "qäb"."""
    draw = random.Random(6)
    words = [
        f"w{first}{mark}{last}" for first in "abcdefgh" for mark in ("ä", "oßä") for last in "xy"
    ]
    words += [f"q{mark}{last}" for mark in "aä" for last in "bcdfghjk"]
    texts = [" ".join(draw.choices(words, k=3)) for _ in range(2000)]
    for row in draw.sample(range(len(texts)), int(fraction * len(texts))):
        texts[row] = texts[row].replace("ä", "a")
    found, example = lost_accents(texts, "de")
    assert found == pytest.approx(fraction, abs=0.03)
    assert (" for " in example) or fraction == 0
