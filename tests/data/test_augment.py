"""Augmentation: what each change does to a pair, how often, and that it is a function of the seed,
the epoch and the pair.
"""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from conftest import made_up_pairs, make_tokenizer

from mtrain.config.schema import AugmentConfig, FilterConfig
from mtrain.data import augment as changes
from mtrain.data import batches as data
from mtrain.data.augment import Augmenter
from mtrain.data.batches import SpecialIds, TokenBatches
from mtrain.data.bpe_dropout import SubwordSampler
from mtrain.data.filters import Selection
from mtrain.data.store import Store, open_tokenized, write_tokenized
from mtrain.data.tokenizer import Tokenizer
from mtrain.runs import manifest

TEXTS = [side for pair in made_up_pairs(300, 5, longest=9) for side in pair]
ROWS = np.arange(400)


def train_pieces(vocab_size: int = 360, **settings: Any) -> Tokenizer:
    return make_tokenizer(TEXTS, vocab_size=vocab_size, **settings)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_pieces(user_symbols=["<2bb>", "<ph7>"])


def augment(
    tokenizer: Tokenizer,
    pairs: list[tuple[str, str]],
    *,
    epoch: int = 0,
    longest: int = 999,
    tag: str | None = None,
    **fractions: float,
) -> list[tuple[str, str]]:
    """Return the text of pairs after the changes; the tag must stay the first id."""
    tags = tokenizer.tag_ids(tag)
    rows = [tokenizer.encode(list(pair)) for pair in pairs]
    ids = [(np.array(tags + src, np.uint16), np.array(tgt, np.uint16)) for src, tgt in rows]
    augmenter = Augmenter(tokenizer, AugmentConfig(**fractions), 7, longest)
    found = augmenter.change(ids, np.arange(len(pairs)), epoch)
    assert all(src[: len(tags)].tolist() == tags for src, _ in found)
    assert {side.dtype for pair in found for side in pair} == {np.dtype(np.uint16)}
    texts = [tokenizer.decode([src[len(tags) :].tolist(), tgt.tolist()]) for src, tgt in found]
    return [(src, tgt) for src, tgt in texts]


def test_no_source_becomes_blank(tokenizer: Tokenizer) -> None:
    pairs = [(text, "ba") for text in "abcdefghijklmnop" * 20]
    changed = augment(tokenizer, pairs, tag="<2bb>", typos=1.0)
    assert all(src.strip() for src, _ in changed)
    assert changed != pairs


@pytest.mark.parametrize("tag", [None, "<2bb>"])
@pytest.mark.parametrize(
    ("name", "pair", "expected"),
    [
        ("upper", ("bavo's <ph7> größe.", "b é"), ("BAVO'S <ph7> GRÖSSE.", "B É")),
        ("upper", ("12 有", "12"), ("12 有", "12")),
        ("title", ("bavo's  CELU <ph7> (x) ñu", "éa ǆb"), ("Bavo's  CELU <ph7> (x) Ñu", "Éa ǅb")),
        ("no_final", ("bavo. celu .", "a b."), ("bavo. celu", "a b.")),
        ("no_final", ("有。", "a!"), ("有", "a!")),
        ("no_final", ("bavo. ", "a b. "), ("bavo", "a b. ")),
        ("no_final", ("bavo celu", "a b."), ("bavo celu", "a b.")),
        ("no_final", ("?!", "a b."), ("?!", "a b.")),
        ("typos", ("12 <ph7> 3.", "12."), ("12 <ph7> 3.", "12.")),
        ("numbers", ("1 bavo 0 <ph7>", "1 a 0 <ph7>"), ("1 bavo 0 <ph7>", "1 a 0 <ph7>")),
        ("numbers", ("12 bavo A34 5th", "21 a A34 5th"), ("12 bavo A34 5th", "21 a A34 5th")),
        ("numbers", ("7 bavo", "zwent"), ("7 bavo", "zwent")),
    ],
)
def test_changes_by_hand(
    tokenizer: Tokenizer,
    name: str,
    pair: tuple[str, str],
    expected: tuple[str, str],
    tag: str | None,
) -> None:
    assert augment(tokenizer, [pair], tag=tag, **{name: 1.0}) == [expected]


def test_a_symbol_that_another_begins_with_is_not_split() -> None:
    tokenizer = train_pieces(user_symbols=["_a", "_ab"])
    assert augment(tokenizer, [("celu _ab", "_a b")], upper=1.0) == [("CELU _ab", "_a B")]


def test_a_number_of_a_symbol_is_none_of_the_text() -> None:
    """Otherwise the source would have another number, and the target none."""
    pair = ("1984 bavo", "<1984> zwent")
    assert augment(train_pieces(user_symbols=["<1984>"]), [pair], numbers=1.0) == [pair]


def test_a_vocabulary_may_have_no_symbols() -> None:
    found = augment(train_pieces(), [("bavo's CELU", "éa b")], title=1.0)
    assert found == [("Bavo's CELU", "Éa B")]


def test_numbers_are_others_but_alike_on_both_sides(tokenizer: Tokenizer) -> None:
    pairs = [("In 1984, 7 of 2,450.5 <ph7>; 04", "1984年有7 2.450,5 <ph7> 04 99")] * 50
    found = augment(tokenizer, pairs, numbers=1.0)
    form = r"In ([1-9]\d{3}), ([2-9]) of ([2-9]),([1-9]\d\d)\.([2-9]) <ph7>; (0\d)"
    digits = set()
    for src, tgt in found:
        matched = re.fullmatch(form, src)
        assert matched is not None, src
        year, seven, *others, last = matched.groups()
        assert tgt == "{}年有{} {}.{},{} <ph7> {} 99".format(year, seven, *others, last)
        digits.add(seven)
    assert digits == set("23456789")
    assert len(set(found)) == 50


def test_typing_errors_are_few_and_of_every_kind(tokenizer: Tokenizer) -> None:
    text = "bavo celu dimar fosi gutel hanp jori kesum"  # 35 letters: two errors
    found = [src for src, tgt in augment(tokenizer, [(text, text)] * 300, typos=1.0) if tgt == text]
    assert len(found) == 300
    lengths = Counter(len(src) - len(text) for src in found)
    assert set(lengths) == {-2, -1, 0, 1, 2}
    for src in found:
        matcher = SequenceMatcher(None, text, src, autojunk=False)
        assert sum(block.size for block in matcher.get_matching_blocks()) >= len(text) - 4
    assert sum(src == text for src in found) < 15  # doubled, and dropped again


def test_each_kind_is_as_frequent_as_it_should(tokenizer: Tokenizer) -> None:
    pairs = [("bavo 25.", "zwent 25.")] * 20_000
    fractions = {"upper": 0.1, "title": 0.05, "no_final": 0.2, "typos": 0.1, "numbers": 0.15}
    found = Counter(augment(tokenizer, pairs, **fractions))
    shares = {pair: count / len(pairs) for pair, count in found.items()}
    assert shares["BAVO 25.", "ZWENT 25."] == pytest.approx(0.1, rel=0.1)
    assert shares["Bavo 25.", "Zwent 25."] == pytest.approx(0.05, rel=0.1)
    assert shares["bavo 25", "zwent 25."] == pytest.approx(0.2, rel=0.1)
    others = [pair for pair in found if re.fullmatch(r"zwent (?!25)\d\d\.", pair[1])]
    assert sum(shares[pair] for pair in others) == pytest.approx(0.15 * 89 / 90, rel=0.1)
    assert shares["bavo 25.", "zwent 25."] == pytest.approx(0.4, rel=0.1)


def test_a_pair_that_outgrows_the_longest_stays_as_it_was(tokenizer: Tokenizer) -> None:
    """Also where only one side does: capitals on one side alone would be wrong."""
    pairs = [("bavo celu", "b"), ("b", "zwent yalch")]
    longest = 1 + max(len(ids) for pair in pairs for ids in tokenizer.encode(list(pair)))
    assert augment(tokenizer, pairs, longest=longest, upper=1.0) == pairs
    changed = [(a.upper(), b.upper()) for a, b in pairs]
    assert augment(tokenizer, pairs, upper=1.0) == changed
    grown = max(len(ids) for ids in tokenizer.encode([side for pair in changed for side in pair]))
    assert augment(tokenizer, pairs, longest=grown, upper=1.0) != changed  # with eos
    assert augment(tokenizer, pairs, longest=grown + 1, upper=1.0) == changed


def test_pairs_with_unknown_pieces_or_without_text_stay() -> None:
    tokenizer = train_pieces(90, byte_fallback=False)
    ids = [np.array(row, np.uint16) for row in tokenizer.encode(["bavo 漢", "bavo", ""])]
    pairs = [(ids[0], ids[1]), (ids[2], ids[2])]
    found = Augmenter(tokenizer, AugmentConfig(upper=1.0), 7, 99).change(pairs, ROWS[:2], 0)
    assert [[side.tolist() for side in pair] for pair in found] == [
        [side.tolist() for side in pair] for pair in pairs
    ]


def test_changes_depend_on_seed_epoch_and_pair_alone(tokenizer: Tokenizer) -> None:
    pairs = [
        (np.array(src, np.uint16), np.array(tgt, np.uint16))
        for src, tgt in (tokenizer.encode(list(pair)) for pair in made_up_pairs(400, 8))
    ]
    settings = AugmentConfig(typos=0.3, upper=0.2)

    def change(seed: int, epoch: int, order: np.ndarray = ROWS) -> list[object]:
        augmenter = Augmenter(tokenizer, settings, seed, 99)
        found = augmenter.change([pairs[row] for row in order], order, epoch)
        return [[side.tolist() for side in found[place]] for place in np.argsort(order)]

    first = change(1, 0)
    assert change(1, 0, ROWS[::-1]) == first
    assert change(1, 0, ROWS[50:90]) == first[50:90]
    for other in (change(1, 1), change(2, 0)):
        same = sum(a == b for a, b in zip(first, other, strict=True))
        assert 100 < same < 300


def test_a_pair_is_changed_in_another_way_in_each_epoch(tokenizer: Tokenizer) -> None:
    pairs = [("bavo celu 1984 dimar", "zwent yalch 1984 quarb")]
    for name in ("typos", "numbers"):
        found = {augment(tokenizer, pairs, epoch=epoch, **{name: 1.0})[0] for epoch in range(10)}
        assert len(found) > 5


@pytest.mark.parametrize("rate", [None, 0.2])
def test_the_training_stream_changes_pairs_before_it_samples_subwords(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: float | None
) -> None:
    for name, size in (("POOL", 100), ("BLOCK", 10)):
        monkeypatch.setattr(data, name, size)
    options: dict[str, Any] = {"counts": Counter(), "workers": 1, "progress": lambda _: None}
    options["selection"] = Selection(64, FilterConfig())
    texts = made_up_pairs(400, 8)
    manifest.write_directory(
        tmp_path / "s", lambda inner: write_tokenized(inner, iter(texts), tokenizer, **options)
    )
    store = Store([open_tokenized(tmp_path / "s")], [1.0])

    def read(*place: int) -> list[tuple[str, str]]:
        sampler = rate and SubwordSampler(tokenizer, rate, 64)
        augmenter = Augmenter(tokenizer, AugmentConfig(upper=0.3), 1, 64)
        ids = SpecialIds.of(tokenizer)
        stream = TokenBatches(store, 200, 1, ids, 2, sampler or None, augmenter)
        assert stream.pools == 4
        found = []
        for planned in stream.plan(*place):
            batch = stream.read(planned)
            assert max(batch.src.numel(), batch.tgt_out.numel()) <= 200
            assert batch.num_tokens == planned.num_tokens
            sides = [tokenizer.decode(side.tolist()) for side in (batch.src, batch.tgt_out)]
            found += zip(*sides, strict=True)
        return found

    epochs = [[pair for pool in range(4) for pair in read(epoch, pool)] for epoch in (0, 1)]
    assert read(1, 2) == read(1, 2)
    capitals = [{pair for pair in epoch if pair[0].isupper()} for epoch in epochs]
    for epoch, changed in zip(epochs, capitals, strict=True):
        assert sorted((a.lower(), b.lower()) for a, b in epoch) == sorted(texts)
        assert all(tgt.isupper() == src.isupper() for src, tgt in epoch)
        assert 0.2 < len(changed) / 400 < 0.4
    assert len(capitals[0] & capitals[1]) < 0.6 * len(capitals[0])


def test_changes_are_those_of_earlier_versions(tokenizer: Tokenizer) -> None:
    """Otherwise a run that a later version resumes would not be the same."""
    hashes = [14181437380927821408, 16643683544157866034, 10054658487191850247]
    assert changes._hashes(7, 3, np.array([0, 1, 1 << 40])).tolist() == hashes
    draw = Random(5).random
    texts = [changes._mistype("bavo celu dimar fosi", draw) for _ in range(3)]
    assert texts == ["bavo celu diamr fosi", "bavo celu dimar fosi", "abvo celu dimar fosi"]
    numbers = [changes._other_number(number, draw) for number in ("7", "1984", "007")]
    assert numbers == ["7", "9142", "055"]
    found = augment(tokenizer, [("12 345 67 89", "89 67 345 12")], numbers=1.0)
    assert found == [("75 356 97 77", "77 97 356 75")]
