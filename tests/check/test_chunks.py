"""Words and letters of chunks of rows, and where chunks end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planting import (
    CHARACTERS,
    nothing_found,
)

from mtrain.check import chunks
from mtrain.check.chunks import Chunk
from mtrain.check.findings import Findings
from mtrain.check.words import Characters, Words
from mtrain.config.corpora import TextCorpus


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


def test_chunks_end_where_they_hold_much_text() -> None:
    long = [(number, "x" * 60_000, "") for number in range(70)]
    for rows, sizes in (
        ([*long, (70, "z" * 3_000_000, ""), (71, "a", "b")], [35, 35, 1, 1]),
        ([(number, "a", "b") for number in range(25_000)], [10_000, 10_000, 5_000]),
        ([], []),
    ):
        parts = list(chunks.chunks(nothing_found(), iter(rows), CHARACTERS))
        assert [number for part in parts for number in part.numbers] == list(range(len(rows)))
        assert [len(part) for part in parts] == sizes


def test_lengths_in_tokens_are_estimated_by_words_or_by_characters_without_spaces() -> None:
    rows = [(1, "three plain words", "三个词"), (2, "APT 工具", ""), (3, "", "ひらがな カタカナ")]
    rows.append((4, "สวัสดีครับ APT", "ខ្មែរ"))  # signs above and below letters count, too
    findings = Findings("", TextCorpus(src="a", tgt="b"), Path(), 0)
    estimates = Chunk.of(findings, rows, Characters()).estimated_tokens
    assert estimates == pytest.approx(np.array([[4.2, 2.4], [3.0, 0.0], [0.0, 4.6], [4.4, 1.5]]))
