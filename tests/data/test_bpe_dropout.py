"""Subword sampling: other pieces of the same text, the same ones for the same seed."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import made_up_pairs, make_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from mtrain.config.schema import FilterConfig
from mtrain.data import batches as data
from mtrain.data.batches import SpecialIds, TokenBatches
from mtrain.data.bpe_dropout import SubwordSampler
from mtrain.data.filters import Selection
from mtrain.data.store import Store, open_tokenized, write_tokenized
from mtrain.data.tokenizer import Tokenizer
from mtrain.runs import manifest

Pairs = list[tuple[np.ndarray, np.ndarray]]
PAIRS = made_up_pairs(400, 8, longest=9)
TEXTS = [side for pair in made_up_pairs(300, 5, longest=9) for side in pair]


def train_pieces(model_type: str = "bpe", **settings: Any) -> Tokenizer:
    return make_tokenizer(TEXTS, model_type=model_type, **{"vocab_size": 360, **settings})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_pieces()


def ids(tokenizer: Tokenizer, *texts: str) -> Pairs:
    """Pairs of a text with itself."""
    rows = [np.array(row, np.uint16) for row in tokenizer.encode(list(texts))]
    return [(row, row) for row in rows]


def decoded(tokenizer: Tokenizer, pairs: Pairs) -> list[str]:
    return tokenizer.decode([row.tolist() for pair in pairs for row in pair])


def plain(pairs: Pairs) -> list[list[int]]:
    return [row.tolist() for pair in pairs for row in pair]


def test_pieces_range_from_sentencepieces_to_characters(tokenizer: Tokenizer) -> None:
    pairs = ids(tokenizer, *TEXTS)
    rates = (0.0, 0.1, 0.3, 0.6, 1.0)
    drawn = [
        plain(SubwordSampler(tokenizer, rate, 999).draw(pairs, default_rng(3))) for rate in rates
    ]
    assert drawn[0] == plain(pairs)
    assert sum(src != tgt for src, tgt in zip(drawn[1][::2], drawn[1][1::2], strict=True)) > 100
    lengths = [sum(map(len, rows[::2])) for rows in drawn]
    assert lengths == sorted(lengths)
    # one more of each text: the space before the first word
    assert lengths[-1] == sum(len(text) + 1 for text in TEXTS)


def test_texts_are_not_merged_with_each_other(tokenizer: Tokenizer) -> None:
    """Not even where a text does not begin with the mark of a word."""
    pieces = tokenizer.plain_pieces
    first, second = next(p for p in pieces.values() if len(p) == 2 and p[0] != "\u2581")
    ids_of = {piece: number for number, piece in pieces.items()}
    pairs = [(np.array([ids_of[first]]), np.array([ids_of[second]]))]
    assert plain(SubwordSampler(tokenizer, 0.0, 999).draw(pairs, default_rng(1))) == plain(pairs)


def test_a_merge_is_left_out_as_often_as_it_should(tokenizer: Tokenizer) -> None:
    """Of a word that one merge makes."""
    pieces = tokenizer.plain_pieces.items()
    word = next(n for n, piece in pieces if len(piece) == 2 and piece[0] == "\u2581")
    pairs = [(np.array([word]),) * 2] * 3000
    drawn = SubwordSampler(tokenizer, 0.3, 999).draw(pairs, default_rng(2))
    assert np.mean([len(row) == 2 for pair in drawn for row in pair]) == pytest.approx(
        0.3, abs=0.03
    )


def draw_again(proto: bytes, pairs: Pairs) -> list[list[int]]:
    return plain(SubwordSampler(Tokenizer(proto), 0.2, 256).draw(pairs, default_rng(1)))


@pytest.mark.slow
def test_a_seed_fixes_the_pieces(tokenizer: Tokenizer) -> None:
    """In another process, too."""
    pairs = ids(tokenizer, *TEXTS[:20])
    sampler = SubwordSampler(tokenizer, 0.2, 256)
    drawn = {seed: plain(sampler.draw(pairs, default_rng(seed))) for seed in (1, 2, 1 << 40)}
    for seed, before in drawn.items():
        assert plain(SubwordSampler(tokenizer, 0.2, 256).draw(pairs, default_rng(seed))) == before
    assert len({str(rows) for rows in drawn.values()}) == 3
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(draw_again, tokenizer.proto, pairs).result() == drawn[1]


def test_the_pieces_of_a_seed_are_those_of_earlier_versions() -> None:
    """Otherwise a run that a later version resumes would not be the same."""
    pieces = dict(enumerate(["▁", "a", "b", "c", "▁a", "ab", "▁ab", "bc", "abc"]))
    given: Any = SimpleNamespace(plain_pieces=pieces, vocab_size=len(pieces))
    given.processor = SimpleNamespace(get_score=lambda number: -float(number))
    pairs = [(np.array([6, 7, 8]), np.array([4, 8, 4]))] * 2
    drawn = plain(SubwordSampler(given, 0.5, 999).draw(pairs, default_rng(5)))
    assert drawn == [[6, 7, 5, 3], [4, 8, 4], [6, 7, 8], [4, 5, 3, 4]]


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=40))
def test_no_text_is_changed(tokenizer: Tokenizer, text: str) -> None:
    pairs = ids(tokenizer, text, "", f"{TEXTS[0]} {text}", "")
    drawn = SubwordSampler(tokenizer, 0.3, 999).draw(pairs, default_rng(4))
    assert decoded(tokenizer, drawn) == decoded(tokenizer, pairs)


def test_user_symbols_and_unknown_characters_stay_whole() -> None:
    tokenizer = train_pieces(byte_fallback=False, user_symbols=["<tag>", "__"], vocab_size=90)
    pairs = ids(tokenizer, f"{TEXTS[0]} <tag> 漢 __{TEXTS[1]}")
    symbols = [tokenizer.unk_id, *map(tokenizer.processor.piece_to_id, ("<tag>", "__"))]
    drawn = SubwordSampler(tokenizer, 0.9, 999).draw(pairs, default_rng(1))
    for row in (pairs[0][0], *drawn[0]):
        found = [token for token in row.tolist() if token in symbols]
        assert found == [symbols[1], symbols[0], symbols[2]]


def test_a_side_stays_within_its_longest(tokenizer: Tokenizer) -> None:
    pairs = ids(tokenizer, *TEXTS[:100])
    longest = max(len(row) for row, _ in pairs) + 1
    drawn = SubwordSampler(tokenizer, 0.3, longest).draw(pairs, default_rng(6))
    assert max(len(row) for pair in drawn for row in pair) + 1 <= longest
    assert decoded(tokenizer, drawn) == decoded(tokenizer, pairs)
    assert any(drawn[place][0] is not src for place, (src, _) in enumerate(pairs))


def test_a_tag_stays_whole() -> None:
    tokenizer = train_pieces(user_symbols=["<2bb>"])
    tag = tokenizer.tag_ids("<2bb>")
    pairs = [(np.array(tag + src.tolist()), tgt) for src, tgt in ids(tokenizer, *TEXTS[:100])]
    drawn = SubwordSampler(tokenizer, 0.5, 999).draw(pairs, default_rng(3))
    assert {(src[0], tag[0] in src[1:]) for src, _ in drawn} == {(tag[0], False)}
    assert plain(drawn) != plain(pairs)


# --- in the training stream -----------------------------------------------------------------


@pytest.fixture
def store(tokenizer: Tokenizer, tmp_path: Path) -> Store:
    selection = Selection(64, FilterConfig())
    options = {"counts": Counter(), "workers": 1, "progress": lambda _: None}
    (tmp_path / "s").mkdir()
    write_tokenized(tmp_path / "s", iter(PAIRS), tokenizer, selection=selection, **options)
    manifest.seal(tmp_path / "s")
    return Store([open_tokenized(tmp_path / "s")], [1.0])


def stream(store: Store, tokenizer: Tokenizer, rate: float | None = 0.2) -> TokenBatches:
    sampler = None if rate is None else SubwordSampler(tokenizer, rate, 64)
    return TokenBatches(store, 120, 1, SpecialIds.of(tokenizer), 2, sampler)


def test_batches_hold_every_pair_once_within_their_budget(
    tokenizer: Tokenizer, store: Store
) -> None:
    batches, plain = stream(store, tokenizer), stream(store, tokenizer, None)
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
    expected = sorted(src for src, _ in PAIRS)
    assert sorted(texts[0]) == sorted(texts[1]) == expected
    assert tokens[0] != tokens[1]  # other pieces in each epoch


def test_a_pool_is_the_same_whatever_was_read_before(
    tokenizer: Tokenizer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "POOL", 100)
    monkeypatch.setattr(data, "BLOCK", 10)

    def rows(batches: TokenBatches, *place: int) -> list[object]:
        return [batches.read(each).tgt_out.tolist() for each in batches.plan(*place)]

    first = stream(store, tokenizer)
    assert first.pools == 4
    in_order = {place: rows(first, *place) for place in ((0, 2), (0, 3), (1, 0))}
    for place, found in in_order.items():
        assert rows(stream(store, tokenizer), *place) == found
    assert rows(first, 0, 2) == in_order[0, 2]
