"""Words and letters of lines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planting import CHARACTERS

from mtrain.check.words import Words


def test_words_are_runs_characters_or_threes() -> None:
    texts = ["Hello, HELLO wor-ld", "我们ab", "สวัสดี", "नमस्ते दुनिया", "?! ...", ""]
    words, _ = CHARACTERS.read(texts)
    assert words.counts.tolist() == [4, 3, 6, 2, 0, 0]
    assert words.hashes[0] == words.hashes[1]
    apart, together, numbers = (CHARACTERS.read([text])[0] for text in ("ก ขค", "กขค", "İ 12"))
    assert [set(apart.hashes) & set(together.hashes), *numbers.counts] == [set(apart.hashes[1:]), 2]


def test_texts_that_are_doubled() -> None:
    texts = ["a b c d a b c d", "a b c d e a b c d", "a b a b", "a b c d a b c e"]
    assert CHARACTERS.read(texts)[0].are_doubled().tolist() == [True, False, False, False]
    assert len(Words.join([]).shifted(3)) == 0


@settings(deadline=None)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=8))
def test_lines_do_not_touch_each_other(texts: list[str]) -> None:
    words, _ = CHARACTERS.read(texts)
    lines = [words.part(row, row + 1).hashes.tolist() for row in range(len(words))]
    assert lines == [CHARACTERS.read([text])[0].hashes.tolist() for text in texts]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        *(("THAI", "สวัสดี"), ("LAO", "ສະບາຍດີ"), ("KHMER", "ខ្មែរ"), ("MYANMAR", "မြန်မာ")),
        *(("TIBETAN", "བོད"), ("JAVANESE", "ꦗꦮ"), ("BALINESE", "ᬩᬮᬶ")),
    ],
)
def test_each_letter_of_scripts_without_spaces_begins_a_word_of_three(
    script: str, text: str
) -> None:
    words, letters = CHARACTERS.read([text, f"{text[0]} {text[1]}", text[0]])
    assert words.counts.tolist() == letters[script].tolist() == [len(text), 2, 1]
    assert words.hashes[-1] == words.hashes[len(text)]  # the letter after a space is not joined


def test_signs_of_other_scripts_are_no_letters() -> None:
    assert CHARACTERS.read(["नमस्ते 12"])[1]["DEVANAGARI"].tolist() == [4]


@pytest.mark.parametrize(
    ("texts", "are_loops"),
    [
        (["a a a", "a a a b"], [True, False]),  # more than half of the words
        (["a b a b a b", "a b a b", "a b c d " * 3], [True, False, True]),
        (["a b c d e " * 3], [False]),  # a longer phrase
        (["a a", "a a", "a a"], [False] * 3),  # not with the end of the line before
    ],
)
def test_phrases_that_are_repeated_twice(texts: list[str], are_loops: list[bool]) -> None:
    assert CHARACTERS.read(texts)[0].repeat(2, 0.5).tolist() == are_loops


def test_distinct_words_are_the_first_ones_of_each_line() -> None:
    words = CHARACTERS.read(["a b A c b", "a"])[0]
    distinct = words.distinct()
    assert distinct.counts.tolist() == [3, 1]
    assert distinct.hashes.tolist() == words.hashes[[0, 1, 3, 5]].tolist()
