"""Batches and their order, and the tokenized store."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import made_up_pairs
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from mtrain.config.schema import FilterConfig
from mtrain.corpus.readers import Pair
from mtrain.data import batches as data
from mtrain.data import store
from mtrain.data.batches import (
    Batch,
    SpecialIds,
    TokenBatches,
    batch_by_tokens,
    collate,
    pack_by_tokens,
    pad,
)
from mtrain.data.cache import cache_directory
from mtrain.data.filters import Selection
from mtrain.data.store import Store, TokenizedCorpus, open_tokenized, store_key, write_tokenized
from mtrain.data.tokenizer import Tokenizer
from mtrain.runs import manifest
from mtrain.runtime.errors import RefusedError, UserError

IDS = SpecialIds(pad=0, bos=2, eos=3)


def corpus_of(lengths: NDArray[np.int64]) -> TokenizedCorpus:
    """Return a corpus of pairs of these lengths in which every line begins with its own number."""
    offsets = np.concatenate(([0], lengths.flatten().cumsum()))
    ids = np.full(int(offsets[-1]), 9)
    starts = offsets[:-1][np.diff(offsets) > 0]
    ids[starts] = 10 + np.arange(2 * len(lengths))[np.diff(offsets) > 0]
    return TokenizedCorpus(ids, offsets, {})


def natural_lengths(pairs: int, seed: int = 0) -> NDArray[np.int64]:
    """Lengths without eos, spread and tied between the sides as in short real sentences."""
    random = np.random.default_rng(seed)
    src = np.exp(random.normal(2.6, 0.35, pairs))
    tgt = src * np.exp(random.normal(0.05, 0.18, pairs))
    return np.stack((src, tgt), 1).round().clip(1, 100).astype(np.int64)


def stream(
    pairs: int = 1500,
    max_tokens: int = 600,
    seed: int = 1,
    step_batches: int = 1,
    row_widths: Sequence[int] = (),
) -> TokenBatches:
    store = Store([corpus_of(natural_lengths(pairs))], [1.0])
    return TokenBatches(store, max_tokens, seed, IDS, step_batches, row_widths=row_widths)


def epoch_of(batches: TokenBatches, epoch: int) -> list[Batch]:
    return [batch for pool in range(batches.pools) for batch in pool_of(batches, epoch, pool)]


def pool_of(batches: TokenBatches, epoch: int, pool: int) -> list[Batch]:
    """The batches of a pool, each of as many tokens as were planned."""
    planned = batches.plan(epoch, pool)
    found = [batches.read(each) for each in planned]
    assert [batch.num_tokens for batch in found] == [each.num_tokens for each in planned]
    return found


def examples(batches: list[Batch]) -> list[tuple[int, int]]:
    """Numbers of the source and target lines in a list of batches."""
    sides = [torch.cat([b[side][b[side] > 9] for b in batches]) - 10 for side in (0, 1)]
    return list(zip(*(side.tolist() for side in sides), strict=True))


def content(batches: list[Batch]) -> list[object]:
    return [(batch.src.tolist(), batch.tgt_out.tolist()) for batch in batches]


# --- Batches ---------------------------------------------------------------------------------


def test_a_batch_by_hand() -> None:
    rows = [([5, 6, 7], [8]), ([9], [10, 0]), ([], [])]  # 0 is a target here, and padding
    batch = collate([(np.array(s, int), np.array(t, int)) for s, t in rows], IDS)
    assert batch.src.tolist() == [[5, 6, 7, 3], [9, 3, 0, 0], [3, 0, 0, 0]]
    assert batch.tgt_in.tolist() == [[2, 8, 0], [2, 10, 0], [2, 0, 0]]
    assert batch.tgt_out.tolist() == [[8, 3, 0], [10, 0, 3], [3, 0, 0]]
    assert batch.positions.tolist() == [0, 1, 3, 4, 5, 6]
    assert batch.targets.tolist() == [8, 3, 10, 0, 3, 3]
    assert batch.num_tokens == 6


def test_only_cuda_copies_a_batch_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """On MPS, such a copy may read the memory of a batch that is freed meanwhile."""
    copies = set[tuple[str, bool]]()

    def to(tensor: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
        copies.add((device.type, non_blocking))
        return tensor

    batch = collate([(np.array([5]), np.array([6]))], IDS)
    monkeypatch.setattr(Tensor, "to", to)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
    for kind in ("cpu", "cuda", "mps"):
        batch.to(torch.device(kind))
    assert copies == {("cpu", False), ("cuda", True), ("mps", False)}


def test_padded_sequences_end_in_eos_or_start_with_bos() -> None:
    rows = [np.array([7, 8], np.uint16), np.array([9], np.uint16)]
    assert pad(rows, IDS).tolist() == [[7, 8, 3], [9, 3, 0]]
    assert pad(rows, IDS, shifted=True).tolist() == [[2, 7, 8], [2, 9, 0]]
    assert pad(rows, IDS).dtype == torch.int64


@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=60),
    max_tokens=st.integers(1, 200),
)
def test_batches_hold_every_row_once_within_the_budget(
    lengths: list[tuple[int, int]], max_tokens: int
) -> None:
    table = np.array(lengths, np.int64).reshape(-1, 2)
    batches = batch_by_tokens(table, max_tokens)
    assert sorted(int(row) for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * table[batch].max() <= max_tokens or len(batch) == 1
    sizes = [len(batch) for batch in batch_by_tokens(np.full((100, 2), 10), 80)]
    assert sizes == [8] * 12 + [4]


def test_packed_rows_by_hand() -> None:
    rows = [([5, 6], [8]), ([9], [10, 11]), ([], []), ([7] * 4, [7]), ([7], [12] * 5), ([4], [4])]
    pairs = [(np.array(s, int), np.array(t, int)) for s, t in rows]
    batch = collate(pairs, IDS, 6)
    assert batch.src.tolist() == [
        [5, 6, 3, 9, 3, 3],
        [7, 7, 7, 7, 3, 0],
        [7, 3, 0, 0, 0, 0],
        [4, 3, 0, 0, 0, 0],
    ]
    assert batch.tgt_in.tolist() == [
        [2, 8, 2, 10, 11, 2],
        [2, 7, 0, 0, 0, 0],
        [2, 12, 12, 12, 12, 12],
        [2, 4, 0, 0, 0, 0],
    ]
    assert batch.tgt_out.tolist() == [
        [8, 3, 10, 11, 3, 3],
        [7, 3, 0, 0, 0, 0],
        [12, 12, 12, 12, 12, 3],
        [4, 3, 0, 0, 0, 0],
    ]
    assert batch.targets.tolist() == [8, 3, 10, 11, 3, 3, 7, 3, *[12] * 5, 3, 4, 3]
    assert batch.targets.equal(batch.tgt_out.flatten()[batch.positions])


@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=60),
    widths=st.sets(st.integers(1, 50), max_size=3).map(sorted),
    rows=st.integers(1, 5),
)
def test_packing_holds_every_pair_once_within_the_budget(
    lengths: list[tuple[int, int]], widths: list[int], rows: int
) -> None:
    table, max_tokens = np.array(lengths, np.int64).reshape(-1, 2), rows * max(widths, default=20)
    batches = pack_by_tokens(table, max_tokens, widths)
    found = [int(pair) for pairs, _ in batches for pair in pairs]
    assert sorted(found) == list(range(len(lengths)))
    for number, (pairs, width) in enumerate(batches, 1):
        sides = [(np.full(s - 1, 9), np.full(t - 1, 9)) for s, t in table[pairs].tolist()]
        batch, longest = collate(sides, IDS, width), int(table[pairs].max())
        assert batch.num_tokens == table[pairs, 1].sum()
        assert int((batch.src != IDS.pad).sum()) == table[pairs, 0].sum()
        if width == 0:  # no row has room
            assert table[pairs].max(1).min() > max(widths, default=0)
            assert len(batch.src) == len(pairs)
            assert len(pairs) == 1 or len(pairs) * longest <= max_tokens
            continue
        assert width >= longest
        assert batch.src.shape[1] == batch.tgt_in.shape[1] == batch.tgt_out.shape[1] == width
        is_full = len(batch.src) == max_tokens // width
        assert is_full or number == len(batches)
        sentences = (batch.src == IDS.eos).sum(1)
        assert (batch.tgt_in == IDS.bos).sum(1).equal(sentences)
        assert (batch.tgt_out == IDS.eos).sum(1).equal(sentences)
    full = pack_by_tokens(np.full((100, 2), 10), 80, [20])
    assert [(len(pairs), width) for pairs, width in full] == [(8, 20)] * 12 + [(4, 20)]


def test_only_the_last_batch_is_incomplete() -> None:
    """Other pairs fill the rows of the longest: a step of few tokens would learn as much of them
    as one of many.
    """
    table = np.array([(10, 9)] * 100 + [(25, 20)] * 2 + [(70, 71)])
    batches = pack_by_tokens(table, 240, [20, 30, 80])
    assert [width for _, width in batches] == [20] * 4 + [80]
    assert sorted(batches[-1][0].tolist()) == [*range(96, 103)]


def test_packed_rows_are_filled() -> None:
    """On both sides together: those of a pair differ in length by a fifth."""
    lengths = natural_lengths(20_000) + 1
    batches = pack_by_tokens(lengths, 4096, [128, 192])
    assert lengths.sum() / (2 * 4096 * len(batches)) > 0.93
    short = np.minimum(lengths, 24)
    assert short.sum() / (2 * 4096 * len(pack_by_tokens(short, 4096, [128]))) > 0.95
    sizes = [
        len(collate([(np.zeros(s - 1), np.zeros(t - 1)) for s, t in lengths[b]], IDS, width).src)
        for b, width in batches[:5]
    ]
    assert sizes == [32] * 5


@pytest.fixture(params=[1 << 17, 400])
def _pools(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pool, or several."""
    monkeypatch.setattr(data, "POOL", request.param)
    monkeypatch.setattr(data, "BLOCK", min(request.param // 8, data.BLOCK))


@pytest.mark.usefixtures("_pools")
@pytest.mark.parametrize(
    ("step_batches", "row_widths"),
    [(1, []), (2, []), (3, []), (7, []), (1000, []), (1, [64]), (3, [17]), (2, [17, 25])],
)
def test_every_example_comes_once_an_epoch_within_the_token_budget(
    step_batches: int, row_widths: list[int]
) -> None:
    batches = epoch_of(stream(step_batches=step_batches, row_widths=row_widths), 3)
    assert sorted(examples(batches)) == [(2 * i, 2 * i + 1) for i in range(1500)]
    assert max(len(b.src) * max(b.src.shape[1], b.tgt_out.shape[1]) for b in batches) <= 600


@pytest.mark.usefixtures("_pools")
@pytest.mark.parametrize("row_widths", [[], [32]])
def test_the_order_is_a_function_of_seed_and_epoch(row_widths: list[int]) -> None:
    new = partial(stream, row_widths=row_widths)
    used = new()
    epoch_of(used, 0)
    torch.manual_seed(99)
    first = epoch_of(used, 1)
    assert content(first) == content(epoch_of(new(), 1))
    assert content(first) != content(epoch_of(new(), 2))
    assert content(first) != content(epoch_of(new(seed=2), 1))
    cuts = [{frozenset(examples([b])) for b in epoch_of(new(), epoch)} for epoch in (0, 1)]
    assert len(cuts[0] & cuts[1]) < len(cuts[0]) / 2
    if row_widths:
        return
    widths = [b.src.shape[1] for b in first]
    assert abs(float(np.corrcoef(widths, range(len(widths)))[0, 1])) < 0.3


class Noted:
    """Leaves pairs as they are, and notes what it is called with."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def change(self, pairs: Any, rows: Any, epoch: int) -> Any:
        self.calls.append([epoch, *rows.tolist()])
        return pairs

    def draw(self, pairs: Any, random: np.random.Generator) -> Any:
        self.calls.append(int(random.integers(1 << 32)))
        return pairs


@pytest.mark.parametrize(
    ("options", "digest"),
    [
        ({}, "594ff4851dda5180"),
        ({"row_widths": [32, 64]}, "0d0cbc7ac0163546"),
        ({"augmenter": Noted}, "bb36fadd34ede78c"),
        ({"sampler": Noted}, "b707d9647d4fe6d8"),
    ],
)
def test_the_order_is_that_of_earlier_versions(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], digest: str
) -> None:
    """Otherwise a run that a later version resumes would not be the same. Change the digests only
    for a good reason, and say so to those who have runs.
    """
    assert (data.POOL, data.BLOCK, data.OPEN_ROWS, data.CHUNK) == (1 << 17, 1 << 10, 16, 4000)
    for name, value in (("POOL", 300), ("BLOCK", 10), ("CHUNK", 70)):
        monkeypatch.setattr(data, name, value)
    numbers = np.arange(400)
    lengths = np.stack((1 + 7 * numbers % 23, 1 + 11 * numbers % 29), 1)
    texts = Store([corpus_of(lengths), corpus_of(lengths[:150])], [1.0, 1.5])
    noted = Noted()
    given = {name: noted if value is Noted else value for name, value in options.items()}
    batches = TokenBatches(texts, 256, 5, IDS, 3, **given)
    plans = [batches._plan(epoch, pool) for epoch in (0, 1) for pool in range(batches.pools)]
    order = [[each.width, *each.indices.tolist()] for plan in plans for each in plan]
    found = json.dumps([order, noted.calls])
    assert hashlib.sha256(found.encode()).hexdigest()[:16] == digest


@pytest.fixture
def _small_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "POOL", 300)
    monkeypatch.setattr(data, "BLOCK", 10)


@pytest.mark.usefixtures("_small_pools")
def test_a_pool_holds_pairs_from_all_over_the_corpus() -> None:
    batches = stream()
    assert batches.pools == 5
    for pool in range(5):
        numbers = sorted(src // 2 for src, _ in examples(pool_of(batches, 0, pool)))
        assert len(numbers) == 300
        assert np.histogram(numbers, 5, (0, 1500))[0].min() >= 10
    first, again = (examples(pool_of(batches, epoch, 4)) for epoch in (0, 1))
    assert len(set(first) & set(again)) < 200


class Slow:
    """Changes text, or draws subwords, in a thousand steps of some milliseconds."""

    def __init__(self) -> None:
        self.begun, self.steps = threading.Event(), 0

    def change(self, pairs: Any, _rows: Any, _epoch: int) -> Any:
        self.steps += 1
        self.begun.set()
        time.sleep(0.005)
        return pairs

    def draw(self, pairs: Any, _random: Any) -> Any:
        return self.change(pairs, None, 0)


@pytest.mark.parametrize("name", ["sampler", "augmenter"])
def test_no_pool_is_prepared_after_the_end(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Python waits for the thread before it ends the process."""
    monkeypatch.setattr(data, "CHUNK", 1)
    slow: Any = Slow()
    store = Store([corpus_of(natural_lengths(1500))], [1.0])
    batches = TokenBatches(store, 600, 1, IDS, 1, **{name: slow})
    planned = batches.executor.submit(batches._plan, 0, 0)
    assert slow.begun.wait(10)
    batches.close()
    batches.executor.shutdown(wait=True)
    assert isinstance(planned.exception(), CancelledError)
    assert slow.steps < 500


def test_each_pool_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = Counter[tuple[int, int]]()
    plan = TokenBatches._plan

    def count(batches: TokenBatches, epoch: int, pool: int) -> list[data.MicroBatch]:
        planned[epoch, pool] += 1
        return plan(batches, epoch, pool)

    monkeypatch.setattr(TokenBatches, "_plan", count)
    store = Store([corpus_of(natural_lengths(50))], [1.0])
    batches = TokenBatches(store, 600, 1, IDS, 1, row_widths=[64])
    for epoch in (0, 0, 1, 2):
        batches.plan(epoch, 0)
    assert list(batches.planned) == [(2, 0), (3, 0)]  # the next one is prepared, the others freed
    batches.close()
    batches.executor.shutdown(wait=True)
    assert set(planned.values()) == {1}


@pytest.mark.usefixtures("_small_pools")
def test_pairs_come_as_often_as_the_weight_of_their_corpus() -> None:
    weights = [1.0, 3.0, 0.3, 2.5]
    corpora = [corpus_of(natural_lengths(400, seed)) for seed in range(4)]
    batches = TokenBatches(Store(corpora, weights), 600, 1, IDS, 1)
    seen = []
    for epoch in range(2):
        rows = [each.indices for pool in range(batches.pools) for each in batches.plan(epoch, pool)]
        seen.append(np.bincount(np.concatenate(rows), minlength=1600).reshape(4, 400))
    for counts in seen:
        assert [set(part) for part in counts] == [{1}, {3}, {0, 1}, {2, 3}]
        assert counts[2].sum() == pytest.approx(120, abs=40)
        assert counts[3].sum() == pytest.approx(1000, abs=40)
    assert (seen[0][2] != seen[1][2]).any()
    assert batches.store.pair(400)[0][0] == corpora[1].ids[0]


def test_a_corpus_that_is_rarely_seen_is_seen() -> None:
    batches = TokenBatches(Store([corpus_of(natural_lengths(3))], [0.2]), 600, 1, IDS, 1)
    rows = [list(each.indices) for epoch in range(60) for each in batches.plan(epoch, 0)]
    assert {row for some in rows for row in some} == {0, 1, 2}
    assert len(rows) < 50


def test_a_step_takes_a_batch_from_each_range_of_length() -> None:
    widths = [b.tgt_out.shape[1] for b in epoch_of(stream(step_batches=3), 0)]
    steps = list(zip(widths[::3], widths[1::3], widths[2::3], strict=False))
    short, middle, long = zip(*steps, strict=True)
    assert len(steps) > 10
    assert all(a < c for a, _, c in steps)
    assert max(short) < np.mean(middle) < min(long)
    assert sorted(short) != list(short)


@pytest.mark.parametrize("max_tokens", [2048, 4096])
def test_padding_stays_under_ten_percent_on_either_side(max_tokens: int) -> None:
    lengths = natural_lengths(20_000) + 1
    batches = batch_by_tokens(lengths, max_tokens)
    padded = sum(len(batch) * lengths[batch].max(0) for batch in batches)
    assert (1 - lengths.sum(0) / padded).max() < 0.10
    assert 1 - lengths.sum() / padded.sum() < 0.08


# --- The store -------------------------------------------------------------------------------


def build(path: Path, pairs: Iterable[Pair], tokenizer: Tokenizer, **options: Any) -> Store:
    """Build a store of the pairs of at most 8 tokens."""
    settings = {"counts": Counter(), "workers": 1, "progress": lambda number: None}
    settings["selection"] = Selection(9, FilterConfig())
    settings |= options
    manifest.write_directory(
        path, lambda inner: write_tokenized(inner, pairs, tokenizer, **settings)
    )
    return Store([open_tokenized(path)], [1.0])


def texts(found: Store, tokenizer: Tokenizer) -> list[tuple[str, ...]]:
    pairs = [found.pair(i) for i in range(len(found))]
    return [tuple(tokenizer.decode([side.tolist() for side in pair])) for pair in pairs]


def files_of(directory: Path) -> list[tuple[str, bytes]]:
    return [(file.name, file.read_bytes()) for file in sorted(directory.iterdir())]


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CHUNK", 4), ("INLINE_CHUNKS", 1)):
        monkeypatch.setattr(store, name, value)


@pytest.mark.parametrize("chunk", [5, 10_000])
def test_a_store_gives_back_what_was_put_in(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(store, "CHUNK", chunk)
    pairs = [*made_up_pairs(30, 5), ("  é 漢 ", "\x00 <s>"), ("", "")]
    options = {"counts": Counter({"odd lines": 2}), "selection": Selection(99, FilterConfig())}
    found = build(tmp_path / "s", pairs, tokenizer, **options)
    assert texts(found, tokenizer) == pairs
    assert found.counts == {"odd lines": 2}
    encoded = [[len(ids) for ids in tokenizer.encode(list(pair))] for pair in pairs]
    assert found.lengths_of(0, len(found)).tolist() == encoded
    assert found.pair(0)[0].dtype == np.uint16
    assert len(build(tmp_path / "empty", [], tokenizer)) == 0


@pytest.mark.parametrize(("size", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_the_ids_of_a_large_vocabulary_are_kept(tmp_path: Path, size: int, dtype: Any) -> None:
    encode = lambda texts: [[size - 1] for _ in texts]  # noqa: E731
    tokenizer: Any = SimpleNamespace(vocab_size=size, longest_piece=1, encode=encode)
    tokenizer.tag_ids = lambda tag: []
    source, _ = build(tmp_path / "s", [("a", "b")], tokenizer).pair(0)
    assert (source.tolist(), source.dtype) == ([size - 1], dtype)


def test_a_long_text_of_a_few_long_pieces_is_kept(tmp_path: Path) -> None:
    tokenizer: Any = SimpleNamespace(vocab_size=9, longest_piece=100)
    tokenizer.tag_ids, tokenizer.encode = lambda tag: [], lambda texts: [[1] * 8 for _ in texts]
    assert len(build(tmp_path / "s", [("a" * 900, "b"), ("a" * 901, "b")], tokenizer)) == 1


def test_corpora_are_one_sequence_of_pairs(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pairs = made_up_pairs(100, 6)
    whole = build(tmp_path / "whole", pairs, tokenizer)
    cuts = [pairs[start : start + 30] for start in range(0, 100, 30)]
    parts = [build(tmp_path / str(n), part, tokenizer) for n, part in enumerate(cuts)]
    joined = Store([part.corpora[0] for part in parts], [1.0] * 4)
    assert texts(joined, tokenizer) == texts(whole, tokenizer)
    assert (len(joined), joined.counts) == (len(whole), whole.counts)
    for start, stop in ((0, len(joined)), (0, 0), (5, 6), (5, 40), (11, 13), (60, len(joined))):
        assert (joined.lengths_of(start, stop) == whole.lengths_of(start, stop)).all()


def test_pairs_with_equal_sides_are_known_by_their_ids(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    parts = [[("ab", "ab"), ("ab", "ba"), ("a", "abc")], [("ba", "ab"), ("bavo", "bavo")]]
    corpora = [build(tmp_path / str(n), part, tokenizer).corpora[0] for n, part in enumerate(parts)]
    assert Store(corpora, [1.0] * 2).equal_sides(0, 5).tolist() == [True, *[False] * 3, True]


@pytest.mark.usefixtures("_small_chunks")
def test_processes_build_the_same_store_as_one(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pairs, read = made_up_pairs(99, 6), []
    for name, workers in (("one", 1), ("two", 2)):
        counts: Counter[str] = Counter()
        options = {"counts": counts, "workers": workers, "progress": read.append}
        build(tmp_path / name, pairs, tokenizer, **options)
        assert 0 < sum(counts.values()) < 99
    assert read == ([4] * 24 + [3]) * 2
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


@pytest.mark.usefixtures("_small_chunks")
def test_a_failure_ends_the_processes_that_tokenize(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: while the error is reported, it refers to them."""
    ended = []

    def map_here(work: Any, tasks: Any, *_: object) -> Any:
        try:
            yield from map(work, tasks)
        finally:
            ended.append(work)

    def fail(pairs: int) -> None:
        raise UserError("stopped")

    monkeypatch.setattr(store, "map_tasks", map_here)
    with pytest.raises(UserError) as caught:
        build(tmp_path / "s", made_up_pairs(20, 6), tokenizer, workers=2, progress=fail)
    assert (len(ended), str(caught.value)) == (1, "stopped")


@pytest.mark.parametrize("file", ["ids", "offsets", "store.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_store_is_not_opened(
    tmp_path: Path, tokenizer: Tokenizer, file: str, damage: str
) -> None:
    build(tmp_path / "s", made_up_pairs(20, 7), tokenizer)
    path = tmp_path / "s" / file
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle] ^= 1
    path.write_bytes(content[:middle] if damage == "cut" else content)
    if damage == "remove":
        path.unlink()
    with pytest.raises(manifest.DamagedError):
        open_tokenized(tmp_path / "s")


def test_a_store_is_named_by_all_that_it_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    first = {"corpora": ["a", "b"], "tokenizer": "t", "invalid_utf8": "error"}
    first["selection"] = Selection(64, FilterConfig())
    others = {"corpora": ["b", "a"], "tokenizer": "u", "invalid_utf8": "drop"}
    changes = [{name: value} for name, value in others.items()]
    filters = Selection(65, FilterConfig()), Selection(64, FilterConfig(identical=True))
    changes += [{"selection": selection} for selection in filters]
    keys = [store_key(**{**first, **change}) for change in [{}, *changes]]
    for name in ("FORMAT", "FILTERS"):
        with monkeypatch.context() as patch:
            patch.setattr(store, name, 99)
            keys.append(store_key(**first))
    assert len(set(keys)) == len(keys)
    assert keys[0] == store_key(**first)


HOME = r"~ has no home directory"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MTRAIN_CACHE": "/mine", "XDG_CACHE_HOME": "/x"}, "/mine"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/mtrain"),
        ({"MTRAIN_CACHE": "~/mine", "HOME": "/h"}, "/h/mine"),
        ({}, rf"~/\.cache/mtrain: {HOME} here; write the path out, as in MTRAIN_CACHE=/data/cache"),
        ({"MTRAIN_CACHE": "~/x"}, rf"~/x: {HOME}"),
        ({"MTRAIN_CACHE": "$NOWHERE/x"}, r"\$NOWHERE is not set; set it or write the path out"),
    ],
)
def test_the_cache_is_where_the_environment_says_or_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    def nobody(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("MTRAIN_CACHE", "HOME", "XDG_CACHE_HOME", "NOWHERE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if expected.startswith("/"):
        assert cache_directory() == Path(expected)
        return
    with pytest.raises(RefusedError, match=f"^MTRAIN_CACHE: .*{expected}"):
        cache_directory()
