"""Beam search over toy step functions, against enumeration and plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from mtrain.translation.search import FAR, Hypothesis, Rules, _best, beam_search, length_normalizer

BOS, EOS = 1, 0
Normalize = Callable[[int], float]
# Log-probabilities of the next token of a sentence after a prefix.
Table = Callable[[int, tuple[int, ...]], list[float]]


@dataclass(frozen=True)
class ToyState:
    """Which sentence each hypothesis belongs to, and what it holds so far."""

    owners: list[int]
    prefixes: list[tuple[int, ...]]
    sentences: list[int]

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> ToyState:
        kept = self.sentences
        if sentences is not None:
            kept = [self.sentences[i] for i in sentences.tolist()]
        owners = [self.owners[i] for i in rows.tolist()]
        share = len(owners) // max(1, len(kept))
        assert owners == [sentence for sentence in kept for _ in range(share)]
        return ToyState(owners, [self.prefixes[i] for i in rows.tolist()], kept)


def random_table(seed: int, vocab_size: int) -> Table:
    """Distributions that depend on the sentence and its whole prefix."""

    def log_probs(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        logits = np.random.default_rng([seed, sentence, *prefix]).normal(0, 1.5, vocab_size)
        return (logits - np.log(np.exp(logits).sum())).tolist()

    return log_probs


def search(
    table: Table, limits: list[int], beam_size: int, normalize: Normalize
) -> list[list[Hypothesis]]:
    def step(tokens: Tensor, state: ToyState) -> tuple[Tensor, ToyState]:
        pairs = zip(state.prefixes, tokens.tolist(), strict=True)
        prefixes = [(*prefix, token) for prefix, token in pairs]
        assert all(prefix[0] == BOS for prefix in prefixes)
        rows = [table(s, p[1:]) for s, p in zip(state.owners, prefixes, strict=True)]
        after = ToyState(state.owners, prefixes, state.sentences)
        return torch.tensor(rows, dtype=torch.float64), after

    everyone = list(range(len(limits)))
    state = ToyState(everyone, [()] * len(limits), everyone)
    return beam_search(
        step,
        state,
        rules=Rules(limits, EOS),
        beam_size=beam_size,
        normalize=normalize,
        bos_id=BOS,
    )


Scored = list[tuple[tuple[int, ...], float]]


def enumerate_all(table: Table, sentence: int, limit: int, vocab_size: int) -> Scored:
    """Every sequence that ends within `limit` tokens, with its log-probability."""
    ended, alive = [], [((), 0.0)]
    for _ in range(limit):
        ended += [(ids, score + table(sentence, ids)[EOS]) for ids, score in alive]
        alive = [
            ((*ids, token), score + table(sentence, ids)[token])
            for ids, score in alive
            for token in range(vocab_size)
            if token != EOS
        ]
    return ended


def naive_beam(table: Table, sentence: int, limit: int, vocab_size: int, beam_size: int) -> Scored:
    """Beam search on lists for one sentence: what ends among the best `beam_size` is kept."""
    ended: Scored = []
    alive: Scored = [((), 0.0)]
    for time in range(1, limit + 1):
        tokens = [EOS] if time == limit else range(vocab_size)
        candidates = [
            (ids, token, score + table(sentence, ids)[token])
            for ids, score in alive
            for token in tokens
        ]
        candidates.sort(key=lambda c: -c[2])
        ended += [(ids, score) for ids, token, score in candidates[:beam_size] if token == EOS]
        going_on = [((*ids, token), score) for ids, token, score in candidates if token != EOS]
        alive = going_on[:beam_size]
        if len(ended) >= beam_size and alive:
            likeliest = max(score for _, score in ended)
            if beam_size == 1 or alive[0][1] <= likeliest + FAR:
                break
    return ended


def check(found: list[Hypothesis], expected: Scored, normalize: Normalize) -> None:
    """Same hypotheses with the same scores, best normalized score first."""
    ranked = sorted(expected, key=lambda e: -e[1] / normalize(len(e[0]) + 1))
    assert [tuple(h.ids) for h in found] == [ids for ids, _ in ranked]
    assert [h.score for h in found] == pytest.approx([score for _, score in ranked], abs=1e-6)
    normalized = [score / normalize(len(ids) + 1) for ids, score in ranked]
    assert [h.normalized for h in found] == pytest.approx(normalized, abs=1e-6)


NORMALIZERS = pytest.mark.parametrize(
    "normalize",
    [length_normalizer("gnmt", 0.6), length_normalizer("power", 1.0)],
    ids=["gnmt", "power"],
)
SEEDS = pytest.mark.parametrize("seed", range(12))


@pytest.mark.parametrize(
    ("norm", "alpha", "length", "expected"),
    [
        ("gnmt", 0.6, 7, 1.5157166),  # 2 ** 0.6
        ("gnmt", 1.0, 1, 1.0),
        ("gnmt", 0.0, 30, 1.0),
        ("power", 0.5, 9, 3.0),
        ("power", 1.0, 30, 30.0),
        ("power", 0.0, 30, 1.0),
    ],
)
def test_length_normalizers_by_hand(norm: str, alpha: float, length: int, expected: float) -> None:
    assert length_normalizer(norm, alpha)(length) == pytest.approx(expected, rel=1e-6)


@SEEDS
@NORMALIZERS
def test_a_beam_that_holds_everything_finds_everything(seed: int, normalize: Normalize) -> None:
    table, limits = random_table(seed, 4), [4, 1, 3, 2]
    found = search(table, limits, 64, normalize)
    for sentence, limit in enumerate(limits):
        check(found[sentence], enumerate_all(table, sentence, limit, 4), normalize)


@SEEDS
@NORMALIZERS
@pytest.mark.parametrize("beam_size", [2, 3, 5])
def test_narrow_beams_of_many_sentences_equal_a_plain_loop_over_each(
    seed: int, normalize: Normalize, beam_size: int
) -> None:
    table, limits = random_table(seed, 7), [9, 2, 6, 1, 12]
    found = search(table, limits, beam_size, normalize)
    for sentence, limit in enumerate(limits):
        check(found[sentence], naive_beam(table, sentence, limit, 7, beam_size), normalize)


@SEEDS
def test_beam_one_is_greedy(seed: int) -> None:
    table, limits = random_table(seed, 6), [8, 3, 15]
    found = search(table, limits, 1, length_normalizer("gnmt", 0.6))
    for sentence, limit in enumerate(limits):
        ids: list[int] = []
        score, token = 0.0, BOS
        while token != EOS:
            log_probs = table(sentence, tuple(ids))
            at_limit = len(ids) + 1 == limit
            token = EOS if at_limit else int(np.argmax(log_probs))
            score += log_probs[token]
            ids += [token] * (token != EOS)
        (hypothesis,) = found[sentence]
        assert hypothesis.ids == ids
        assert hypothesis.score == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_limit_of_one_leaves_the_empty_translation(beam_size: int) -> None:
    table = random_table(3, 5)
    (found,) = search(table, [1], beam_size, length_normalizer("gnmt", 0.6))
    check(found, [((), table(0, ())[EOS])], length_normalizer("gnmt", 0.6))


@pytest.mark.parametrize("beam_size", [1, 2, 9])
@pytest.mark.parametrize("limit", [1, 6])
def test_without_any_eos_the_best_unended_hypothesis_is_given(beam_size: int, limit: int) -> None:
    endings = random_table(2, 4)

    def endless(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        return [-math.inf, *endings(sentence, prefix)[1:]]

    (found,) = search(endless, [limit], beam_size, length_normalizer("gnmt", 0.6))
    (hypothesis,) = found
    assert len(hypothesis.ids) == limit - 1
    prefixes = [tuple(hypothesis.ids[:i]) for i in range(limit)]
    steps = zip(prefixes, hypothesis.ids, strict=False)
    score = sum(endless(0, prefix)[token] for prefix, token in steps)
    assert hypothesis.score == pytest.approx(score, abs=1e-6)
    assert math.isfinite(hypothesis.normalized)


def test_a_beam_wider_than_the_vocabulary_ends_with_distinct_finite_hypotheses() -> None:
    (found,) = search(random_table(1, 2), [6], 10, length_normalizer("power", 1.0))
    assert sorted(len(h.ids) for h in found) == [0, 1, 2, 3, 4, 5]
    assert all(math.isfinite(h.score) for h in found)


def test_a_certain_eos_gives_one_hypothesis_whatever_the_beam() -> None:
    (found,) = search(
        lambda sentence, prefix: [0.0, -math.inf, -math.inf],
        [5],
        3,
        length_normalizer("gnmt", 0.6),
    )
    assert [(h.ids, h.score) for h in found] == [([], 0.0)]


def test_the_length_penalty_prefers_longer_translations() -> None:
    """Ending at once costs 1.0; a word first and a certain end costs 1.5."""

    def table(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        return [-1.0, -math.inf, -1.5] if not prefix else [0.0, -math.inf, -math.inf]

    for alpha, best in ((0.0, []), (1.0, [2])):
        (found,) = search(table, [4], 2, length_normalizer("power", alpha))
        assert found[0].ids == best


@pytest.mark.parametrize("beam_size", [2, 4])
def test_unlikely_early_endings_do_not_stop_a_likely_hypothesis(beam_size: int) -> None:
    """Five words of 98 % each and a certain end, beside an eos of 1 % after every word."""

    def table(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        if len(prefix) == 5:
            return [0.0, -math.inf, -math.inf]
        return [math.log(0.01), -math.inf, math.log(0.98)]

    (found,) = search(table, [20], beam_size, length_normalizer("gnmt", 0.6))
    assert found[0].ids == [2] * 5
    assert found[0].score == pytest.approx(5 * math.log(0.98), abs=1e-6)


def test_no_sentences_give_no_hypotheses() -> None:
    assert search(random_table(0, 3), [], 2, length_normalizer("gnmt", 0.6)) == []


@pytest.mark.parametrize("vocab_size", [37, 997, 1024, 8000, 37 * 64])
@pytest.mark.parametrize(("width", "count"), [(1, 1), (1, 10), (5, 10), (4, 64)])
def test_the_best_extensions_are_those_of_a_whole_sort(
    vocab_size: int, width: int, count: int
) -> None:
    torch.manual_seed(vocab_size + count)
    scores = torch.randn(3, width)
    log_probs = torch.randn(3, width, vocab_size)
    log_probs[:, :, torch.randperm(vocab_size)[: vocab_size // 2]] = float("-inf")
    scores[1, 0] = float("-inf")
    if width > 1:
        log_probs[2, 1:] = float("-inf")  # fewer candidates than are asked for
        log_probs[2, 0, count // 2 :] = float("-inf")
    count = min(count, width * vocab_size)

    best, places = _best(scores, log_probs, count)

    total = (scores[:, :, None] + log_probs).view(3, -1)
    assert torch.equal(best, total.sort(descending=True).values[:, :count])
    assert torch.equal(total.gather(1, places), best)
    assert all(len(set(row)) == count for row in places.tolist())
