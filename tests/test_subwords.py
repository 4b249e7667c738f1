"""Subword sampling: other pieces of the same text, the same ones for the same seed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import made_up_pairs
from hypothesis import given
from hypothesis import strategies as st

from mtrain import data
from mtrain.data import SpecialIds, TokenBatches
from mtrain.filters import Selection
from mtrain.store import Store, build_store
from mtrain.subwords import SubwordSampler
from mtrain.tokenizer import Tokenizer, train_tokenizer

TEXTS = [side for pair in made_up_pairs(300, 5, longest=9) for side in pair]


def train_pieces(model_type: str, *, byte_fallback: bool = True) -> Tokenizer:
    size = {"bpe": 360, "unigram": 310}[model_type] if byte_fallback else 70
    return Tokenizer(
        train_tokenizer(
            lambda: TEXTS, vocab_size=size, model_type=model_type, byte_fallback=byte_fallback
        )
    )


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_pieces(request.param)


def ids(tokenizer: Tokenizer, *texts: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of a text with itself."""
    rows = [np.array(row, np.uint16) for row in tokenizer.encode(list(texts))]
    return [(row, row) for row in rows]


def told(tokenizer: Tokenizer, pairs: list[tuple[np.ndarray, np.ndarray]]) -> list[str]:
    return tokenizer.decode([row.tolist() for pair in pairs for row in pair])


def test_pieces_change_and_text_does_not(tokenizer: Tokenizer) -> None:
    sampler, pairs = SubwordSampler(tokenizer, 0.2, 256), ids(tokenizer, *TEXTS[:50])
    drawn = sampler.draw(pairs, 1)
    assert told(tokenizer, drawn) == told(tokenizer, pairs)
    sides = list(zip(pairs, drawn, strict=True))
    assert sum(not np.array_equal(before[0], after[0]) for before, after in sides) > 2
    assert sum(not np.array_equal(*after) for after in drawn) > 2  # each side by itself


def test_a_seed_fixes_the_pieces(tokenizer: Tokenizer) -> None:
    sampler, pairs = SubwordSampler(tokenizer, 0.2, 256), ids(tokenizer, *TEXTS[:20])
    drawn = {
        seed: [row.tolist() for pair in sampler.draw(pairs, seed) for row in pair]
        for seed in (1, 2, (1 << 32) - 1, 1 << 62)
    }
    for seed, before in drawn.items():
        again = [row.tolist() for pair in sampler.draw(pairs, seed) for row in pair]
        assert again == before
    assert len({str(rows) for rows in drawn.values()}) == 4


def test_the_strength_is_the_share_of_merges_left_out() -> None:
    tokenizer = train_pieces("bpe")
    pairs = ids(tokenizer, *TEXTS)
    lengths = []
    for strength in (1e-6, 0.1, 0.3, 0.6, 0.999999):
        drawn = SubwordSampler(tokenizer, strength, 999).draw(pairs, 3)
        lengths.append(sum(len(src) for src, _ in drawn))
    assert lengths == sorted(lengths)
    assert lengths[0] == sum(len(src) for src, _ in pairs)
    characters = sum(len(text) + 1 for text in TEXTS)  # one more: the space before the first word
    assert lengths[-1] == characters


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=40))
def test_no_text_is_changed(text: str) -> None:
    tokenizer = OF_ALL[0]
    pairs = ids(tokenizer, text)
    drawn = SubwordSampler(tokenizer, 0.3, 999).draw(pairs, 4)
    assert told(tokenizer, drawn) == told(tokenizer, pairs)


OF_ALL = [train_pieces("bpe")]


def test_what_pieces_do_not_tell_is_kept() -> None:
    tokenizer = train_pieces("bpe", byte_fallback=False)
    [(row, _)] = pairs = ids(tokenizer, f"{TEXTS[0]} 漢 {TEXTS[1]}")
    assert tokenizer.unk_id in row
    for seed in range(5):
        assert SubwordSampler(tokenizer, 0.5, 999).draw(pairs, seed)[0][0] is row


def test_a_side_stays_within_its_longest(tokenizer: Tokenizer) -> None:
    pairs = ids(tokenizer, *TEXTS[:100])
    longest = max(len(row) for row, _ in pairs) + 1
    drawn = SubwordSampler(tokenizer, 0.3, longest).draw(pairs, 6)
    assert max(len(row) for pair in drawn for row in pair) + 1 <= longest
    assert told(tokenizer, drawn) == told(tokenizer, pairs)
    assert any(drawn[place][0] is not src for place, (src, _) in enumerate(pairs))


# --- in the training stream -----------------------------------------------------------------


def store_of(tokenizer: Tokenizer, path: Path) -> Store:
    pairs = iter(made_up_pairs(400, 8, longest=9))
    return build_store(
        path,
        pairs,
        tokenizer,
        selection=Selection(64),
        counts=Counter(),
        workers=1,
        progress=lambda _: None,
    )


def test_batches_hold_every_pair_once_within_their_budget(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    store = store_of(tokenizer, tmp_path / "store")
    sampler = SubwordSampler(tokenizer, 0.2, 64)
    batches = TokenBatches(store, 120, 1, SpecialIds.of(tokenizer), 2, sampler)
    plain = TokenBatches(store, 120, 1, SpecialIds.of(tokenizer), 2)
    texts, tokens = [], []
    for epoch in range(2):
        planned = batches.plan(epoch, 0)
        found = [batches.read(each) for each in planned]
        assert max(b.src.numel() for b in found) <= 120
        assert max(b.tgt_out.numel() for b in found) <= 120
        assert [b.num_tokens for b in found] == [each.num_tokens for each in planned]
        texts.append([text for b in found for text in tokenizer.decode(b.src.tolist())])
        tokens.append(sum(b.num_tokens for b in found))
        assert tokens[-1] > 1.05 * sum(each.num_tokens for each in plain.plan(epoch, 0))
    expected = sorted(src for src, _ in made_up_pairs(400, 8, longest=9))
    assert sorted(texts[0]) == sorted(texts[1]) == expected
    assert tokens[0] != tokens[1]  # other pieces in each epoch


def test_a_pool_is_the_same_whatever_was_read_before(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "POOL", 100)
    monkeypatch.setattr(data, "BLOCK", 10)
    store = store_of(tokenizer, tmp_path / "store")

    def stream() -> TokenBatches:
        return TokenBatches(
            store, 120, 1, SpecialIds.of(tokenizer), 2, SubwordSampler(tokenizer, 0.2, 64)
        )

    def rows(batches: TokenBatches, *place: int) -> list[object]:
        return [batches.read(each).tgt_out.tolist() for each in batches.plan(*place)]

    first = stream()
    assert first.pools == 4
    in_order = {place: rows(first, *place) for place in ((0, 2), (0, 3), (1, 0))}
    for place, found in in_order.items():
        assert rows(stream(), *place) == found
    assert rows(first, 0, 2) == in_order[0, 2]
