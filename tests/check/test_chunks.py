"""Where chunks of rows end, and estimates of their lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from planting import (
    CHARACTERS,
    nothing_found,
)

from mtrain.check import chunks
from mtrain.check.chunks import Chunk
from mtrain.check.findings import Findings
from mtrain.check.words import Characters
from mtrain.config.corpora import TextCorpus


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
