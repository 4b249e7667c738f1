"""Text that is too small, or that BLEU or the vocabulary does not suit, is warned of."""

from __future__ import annotations

import pytest
from conftest import TinyConfig

from mtrain.config.loading import load_config
from mtrain.scoring.suitability import (
    normalization_warnings,
    text_warnings,
    tokenizer_warnings,
)


def test_little_text_is_warned_of() -> None:
    assert list(text_warnings(5000, {"data.valid": 200, "data.test.a": 0})) == []
    train, test = text_warnings(4999, {"data.valid": 200, "data.test.a": 199})
    assert train.startswith("data.train: too few pairs to learn to translate: 4,999;")
    assert test == "data.test.a: scores on only 199 lines vary by chance; use 200 lines or more"
    assert list(text_warnings(1, {"data.valid": 200}, from_scratch=False)) == []
    assert list(text_warnings(0, {"data.valid": 200})) == []  # which is an error of its own


@pytest.mark.parametrize(
    ("language", "tokenize", "line", "warned"),
    [
        ("th", None, None, ["data.valid", "data.test.held_out"]),
        ("th", "char", None, []),
        ("de", None, "Das Schild zeigt 東.", []),
        ("de", None, "標誌指向東方", ["data.valid"]),
        ("zh", None, "標誌指向東方", []),
    ],
)
def test_text_that_bleu_cannot_split_into_words_is_warned_of(
    tiny_config: TinyConfig,
    language: str,
    tokenize: str | None,
    line: str | None,
    warned: list[str],
) -> None:
    settings = {"data.tgt_lang": language, "data.bleu_tokenize": tokenize}
    data = load_config(tiny_config(**settings)).data
    found = list(tokenizer_warnings(data, {"data.valid": [line]} if line else {}))
    assert [text.split(":")[0] for text in found] == warned
    assert all("in them; set data.bleu_tokenize: char" in text for text in found)


def test_a_normalization_that_changes_references_is_warned_of() -> None:
    references = {"data.valid": ["你好，世界", "abc"], "data.test.x": ["abc", "cafe\u0301"]}
    [text] = normalization_warnings("nmt_nfkc", references)
    assert text.startswith("data.valid: the normalization of the vocabulary, nmt_nfkc, changes 50%")
    assert "such as '，' to ','" in text
    assert text.endswith("use tokenizer.normalization: identity, or normalize the references, too")
    for others, is_found in ((8, True), (9, False)):  # more than one in ten
        lines = ["你好，世界", *["abc"] * others]
        assert bool(list(normalization_warnings("nfkc", {"data.valid": lines}))) == is_found
    assert list(normalization_warnings("identity", references)) == []
    spaces = {"data.valid": ["oui\u202f!", "« non\u00a0»", "cafe" + "\u0301" * 5]}
    assert list(normalization_warnings("nfkc", spaces)) == []
    assert list(normalization_warnings("nfkc", {"data.valid": []})) == []
