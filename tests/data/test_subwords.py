"""Subword sampling: other pieces of the same text, the same ones for the same seed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import made_up_pairs
from hypothesis import given
from hypothesis import strategies as st

from mtrain.data import batches as data
from mtrain.data.batches import SpecialIds, TokenBatches
from mtrain.data.filters import Selection
from mtrain.data.store import Store, build_store, open_store
from mtrain.data.subwords import SubwordSampler
from mtrain.data.tokenizer import Tokenizer, train_tokenizer
from mtrain.runtime.errors import RefusedError

Pairs = list[tuple[np.ndarray, np.ndarray]]
TEXTS = [side for pair in made_up_pairs(300, 5, longest=9) for side in pair]


def train_pieces(model_type: str = "bpe", **settings: Any) -> Tokenizer:
    settings = {"vocab_size": 360, **settings}
    return Tokenizer(train_tokenizer(lambda: TEXTS, model_type=model_type, **settings))


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


def test_pieces_change_and_text_does_not(tokenizer: Tokenizer) -> None:
    sampler, pairs = SubwordSampler(tokenizer, 0.2, 256), ids(tokenizer, *TEXTS[:50])
    drawn = sampler.draw(pairs, 1)
    assert decoded(tokenizer, drawn) == decoded(tokenizer, pairs)
    both = zip(drawn, pairs, strict=True)
    assert sum(not np.array_equal(new[0], old[0]) for new, old in both) > 25
    assert sum(not np.array_equal(*new) for new in drawn) > 25  # source and target apart


def test_pieces_range_from_sentencepieces_to_characters(tokenizer: Tokenizer) -> None:
    pairs = ids(tokenizer, *TEXTS)
    rates = (0.0, 0.1, 0.3, 0.6, 1.0)
    drawn = [plain(SubwordSampler(tokenizer, rate, 999).draw(pairs, 3)) for rate in rates]
    assert drawn[0] == plain(pairs)
    lengths = [sum(map(len, rows[::2])) for rows in drawn]
    assert lengths == sorted(lengths)
    # one more of each text: the space before the first word
    assert lengths[-1] == sum(len(text) + 1 for text in TEXTS)


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_a_merge_is_left_out_as_often_as_it_should(tokenizer: Tokenizer, dropout: float) -> None:
    """Of a word that one merge makes."""
    pieces = tokenizer.plain_pieces
    (word,) = [n for n, piece in pieces.items() if len(piece) == 2 and piece[0] == "\u2581"][:1]
    rows = [(np.array([word]), np.array([word]))] * 3000
    drawn = SubwordSampler(tokenizer, dropout, 999).draw(rows, 2)
    assert {len(row) for pair in drawn for row in pair} == {1, 2}
    share = np.mean([len(row) == 2 for pair in drawn for row in pair])
    assert share == pytest.approx(dropout, abs=0.03)


def test_a_seed_fixes_the_pieces(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """In another process, too."""
    pairs = ids(tokenizer, *TEXTS[:20])
    drawn = {n: plain(SubwordSampler(tokenizer, 0.2, 256).draw(pairs, n)) for n in (1, 2, 1 << 40)}
    for seed, before in drawn.items():
        assert plain(SubwordSampler(tokenizer, 0.2, 256).draw(pairs, seed)) == before
    assert len({str(rows) for rows in drawn.values()}) == 3
    (tmp_path / "model").write_bytes(tokenizer.proto)
    (tmp_path / "rows").write_text(json.dumps(plain(pairs)))
    code = (
        "import json, sys; from pathlib import Path; import numpy as np\n"
        "from mtrain.data.subwords import SubwordSampler\n"
        "from mtrain.data.tokenizer import Tokenizer\n"
        "rows = [np.array(row) for row in json.loads(Path(sys.argv[2]).read_text())]\n"
        "sampler = SubwordSampler(Tokenizer.load(Path(sys.argv[1])), 0.2, 256)\n"
        "drawn = sampler.draw(list(zip(rows[::2], rows[1::2])), 1)\n"
        "print(json.dumps([row.tolist() for pair in drawn for row in pair]))"
    )
    command = [sys.executable, "-c", code, tmp_path / "model", tmp_path / "rows"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == drawn[1]


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=40))
def test_no_text_is_changed(text: str) -> None:
    tokenizer = OF_ALL[0]
    pairs = ids(tokenizer, text, "", f"{TEXTS[0]} {text}")
    drawn = SubwordSampler(tokenizer, 0.3, 999).draw(pairs, 4)
    assert decoded(tokenizer, drawn) == decoded(tokenizer, pairs)


OF_ALL = [train_pieces()]


def test_symbols_and_what_is_unknown_stay_whole() -> None:
    tokenizer = train_pieces(byte_fallback=False, user_symbols=("<tag>", "__"), vocab_size=90)
    pairs = ids(tokenizer, f"{TEXTS[0]} <tag> 漢 __{TEXTS[1]}")
    symbols = [tokenizer.unk_id, *map(tokenizer.pieces.piece_to_id, ("<tag>", "__"))]
    drawn = SubwordSampler(tokenizer, 0.9, 999).draw(pairs, 1)
    for row in (pairs[0][0], *drawn[0]):
        found = [token for token in row.tolist() if token in symbols]
        assert found == [symbols[1], symbols[0], symbols[2]]


@pytest.mark.parametrize("model_type", ["unigram", "char"])
def test_vocabularies_without_merges_are_refused(model_type: str) -> None:
    size = {"unigram": 310, "char": 280}[model_type]
    with pytest.raises(RefusedError, match="bpe"):
        SubwordSampler(train_pieces(model_type, vocab_size=size), 0.1, 256)


def test_a_side_stays_within_its_longest(tokenizer: Tokenizer) -> None:
    pairs = ids(tokenizer, *TEXTS[:100])
    longest = max(len(row) for row, _ in pairs) + 1
    drawn = SubwordSampler(tokenizer, 0.3, longest).draw(pairs, 6)
    assert max(len(row) for pair in drawn for row in pair) + 1 <= longest
    assert decoded(tokenizer, drawn) == decoded(tokenizer, pairs)
    assert any(drawn[place][0] is not src for place, (src, _) in enumerate(pairs))


# --- in the training stream -----------------------------------------------------------------


def store_of(tokenizer: Tokenizer, path: Path) -> Store:
    pairs = iter(made_up_pairs(400, 8, longest=9))
    options = {"counts": Counter(), "workers": 1, "progress": lambda _: None}
    build_store(path, pairs, tokenizer, selection=Selection(64), **options)
    found = open_store(path)
    assert found is not None
    return found


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
