"""How a vocabulary fits text, and what is said of the plan of a training."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from planting import CHARACTERS, Folder, corpus

from mtrain.check import diagnosis
from mtrain.check.chunks import Chunk
from mtrain.check.diagnosis import Diagnosis
from mtrain.check.findings import Findings
from mtrain.config.corpora import TextCorpus

BYTE, UNKNOWN, WORD = range(3)  # ids of tokens


class Vocabulary:
    """Splits each text into the tokens of its number."""

    unk_id = UNKNOWN
    processor = SimpleNamespace(is_byte=lambda number: number == BYTE)

    def __init__(self, *lines: list[int]) -> None:
        self.lines = lines

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [self.lines[int(text.split()[0])] for text in texts]


def sampled(texts: list[str], vocabulary: Vocabulary | None, tag: str | None = None) -> Any:
    """A checker with a sample of pairs of the same text, of a corpus with a tag."""
    entry = TextCorpus(src="a", tgt="b", tag=tag)
    findings = Findings("data.train.0", entry, Path(), 10)
    chunk = Chunk.of(findings, [(n, text, text) for n, text in enumerate(texts)], CHARACTERS)
    return SimpleNamespace(sample=[chunk], tokenizer=vocabulary, all_findings=[findings])


@pytest.mark.parametrize(
    ("vocabulary", "lengths"), [(Vocabulary([WORD], [WORD] * 5), [1, 5]), (None, [3, 5])]
)
def test_lengths_in_tokens_count_the_tag(vocabulary: Vocabulary | None, lengths: list[int]) -> None:
    """Estimates are 1.4 tokens per word, rounded up."""
    checker = sampled(["0 a", "1 b c"], vocabulary, "<2bb>")
    found = [diagnosis._add_fit(Diagnosis([]), checker, side).tolist() for side in (0, 1)]
    assert found == [[n + 1 for n in lengths], lengths]


@pytest.mark.parametrize(
    ("tokens", "words", "is_named"),
    [
        ([BYTE, UNKNOWN, *[WORD] * 98], 50, False),
        ([BYTE, UNKNOWN, UNKNOWN, *[WORD] * 97], 50, True),
        ([BYTE, BYTE, UNKNOWN, *[WORD] * 97], 50, True),
        ([WORD] * 150, 50, False),
        ([WORD] * 151, 50, True),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_named(
    tokens: list[int], words: int, is_named: bool
) -> None:
    """It has more than 2% bytes and unknown pieces, or more than three tokens per word."""
    checker = sampled([" ".join(["0"] * words)], Vocabulary(tokens))
    diagnosis._add_fit(Diagnosis([]), checker, 1)
    [findings] = checker.all_findings
    assert findings.has("pieces") == is_named


def test_doubts_about_the_plan_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forecast = SimpleNamespace(warnings=lambda: ["too slow"], numbers={}, lines=[])
    given: list[Any] = []
    monkeypatch.setattr(
        diagnosis, "forecast_from_sample", lambda *args, **_: given.append(args) or forecast
    )
    monkeypatch.setattr(diagnosis, "missing_tokenizers", lambda names: [f"no {n}" for n in names])
    folder = Folder(tmp_path, {name: corpus(40, 1) for name in ("train", "valid", "test")})
    folder.data |= {"tgt_lang": "th", "allow_overlap": True}
    folder.bytes["train.xa"][:10] = [b""] * 10
    doubts = [text.split(";")[0] for text in folder.look(forecast=True)["doubts"]]
    assert [text.split(" because")[0] for text in doubts] == [
        "data.train: too few pairs to learn to translate: 30",
        "data.valid: scores on only 40 lines vary by chance",
        "data.test.held: scores on only 40 lines vary by chance",
        "data.valid: BLEU would compare whole sentences,",
        "data.test.held: BLEU would compare whole sentences,",
        "no 13a",
        "too slow",
    ]
    [(_, vocab_size, _, lengths, pairs)] = given
    assert (vocab_size, lengths.shape, pairs) == (8000, (30, 2), 30)
    assert np.all(lengths > 5)
