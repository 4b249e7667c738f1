"""Beam search and sampling over toy step functions, compared with enumeration and plain loops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from mtrain.translation.sampling import Sampling, TokenSampler
from mtrain.translation.search import (
    LIVE_MARGIN,
    BeamSearch,
    GreedySearch,
    Hypothesis,
    Rules,
    _best_extensions,
    length_normalizer,
)

BOS, EOS = 1, 0
CPU = torch.device("cpu")
Normalize = Callable[[int], float]
# Log-probabilities of the next token of a sentence after a prefix.
Table = Callable[[int, tuple[int, ...]], list[float]]
# Sequences without eos, with their log-probabilities.
Scored = list[tuple[tuple[int, ...], float]]

GNMT, POWER = length_normalizer("gnmt", 0.6), length_normalizer("power", 1.0)


@dataclass(frozen=True)
class ToyState:
    """The sentence of each hypothesis and its tokens."""

    owners: list[int]
    prefixes: list[tuple[int, ...]]
    sentences: list[int]

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> ToyState:
        kept = self.sentences
        if sentences is not None:
            kept = [self.sentences[i] for i in sentences.tolist()]
        owners = [self.owners[i] for i in rows.tolist()]
        width = len(owners) // max(1, len(kept))
        assert owners == [sentence for sentence in kept for _ in range(width)]
        return ToyState(owners, [self.prefixes[i] for i in rows.tolist()], kept)


def run(search: BeamSearch, table: Table) -> list[list[Hypothesis]]:
    """Search with a step function that looks log-probabilities up in a table."""

    def step(tokens: Tensor, state: ToyState) -> tuple[Tensor, ToyState]:
        pairs = zip(state.prefixes, tokens.tolist(), strict=True)
        prefixes = [(*prefix, token) for prefix, token in pairs]
        assert all(prefix[0] == BOS for prefix in prefixes)
        rows = [table(s, p[1:]) for s, p in zip(state.owners, prefixes, strict=True)]
        after = ToyState(state.owners, prefixes, state.sentences)
        return torch.tensor(rows, dtype=torch.float64), after

    sentences = list(search.sentences)
    return search.run(step, ToyState(sentences, [()] * len(sentences), sentences), BOS)


def beam(
    table: Table, limits: list[int], beam_size: int, normalize: Normalize = GNMT
) -> list[list[Hypothesis]]:
    return run(BeamSearch(Rules(limits, EOS), beam_size, normalize, CPU), table)


def random_table(seed: int, vocab_size: int) -> Table:
    """Return a table of distributions that depend on the sentence and its whole prefix."""

    def log_probs(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        logits = np.random.default_rng([seed, sentence, *prefix]).normal(0, 1.5, vocab_size)
        return (logits - np.log(np.exp(logits).sum())).tolist()

    return log_probs


def score_of(table: Table, sentence: int, ids: tuple[int, ...]) -> float:
    """Return the log-probability of a sequence with eos."""
    return sum(table(sentence, ids[:n])[token] for n, token in enumerate((*ids, EOS)))


def enumerate_all(table: Table, sentence: int, limit: int, vocab_size: int) -> Scored:
    """Return every sequence that ends within `limit` tokens, with its log-probability."""
    finished, alive = [], [((), 0.0)]
    for _ in range(limit):
        finished += [(ids, score + table(sentence, ids)[EOS]) for ids, score in alive]
        alive = [
            ((*ids, token), score + table(sentence, ids)[token])
            for ids, score in alive
            for token in range(vocab_size)
            if token != EOS
        ]
    return finished


def naive_beam(table: Table, sentence: int, limit: int, vocab_size: int, beam_size: int) -> Scored:
    """Search one sentence with lists; keep hypotheses that end among the best `beam_size`."""
    finished: Scored = []
    alive: Scored = [((), 0.0)]
    for time in range(1, limit + 1):
        tokens = [EOS] if time == limit else range(vocab_size)
        candidates = [
            (ids, token, score + table(sentence, ids)[token])
            for ids, score in alive
            for token in tokens
        ]
        candidates.sort(key=lambda c: -c[2])
        finished += [(ids, score) for ids, token, score in candidates[:beam_size] if token == EOS]
        unfinished = [((*ids, token), score) for ids, token, score in candidates if token != EOS]
        alive = unfinished[:beam_size]
        if len(finished) >= beam_size and alive:
            likeliest = max(score for _, score in finished)
            if beam_size == 1 or alive[0][1] <= likeliest + LIVE_MARGIN:
                break
    return finished


def check(found: list[Hypothesis], expected: Scored, normalize: Normalize) -> None:
    """Check hypotheses and scores, best normalized score first."""
    ranked = sorted(expected, key=lambda e: -e[1] / normalize(len(e[0]) + 1))
    assert [tuple(h.ids) for h in found] == [ids for ids, _ in ranked]
    assert [h.score for h in found] == pytest.approx([score for _, score in ranked], abs=1e-6)


SEEDS = pytest.mark.parametrize("seed", range(6))
NORMALIZERS = pytest.mark.parametrize("normalize", [GNMT, POWER], ids=["gnmt", "power"])

# --- Beams --------------------------------------------------------------------------------------


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
    found = beam(table, limits, 64, normalize)
    for sentence, limit in enumerate(limits):
        check(found[sentence], enumerate_all(table, sentence, limit, 4), normalize)


@SEEDS
@NORMALIZERS
@pytest.mark.parametrize("beam_size", [1, 2, 3, 5])
def test_narrow_beams_of_many_sentences_equal_a_plain_loop_over_each(
    seed: int, normalize: Normalize, beam_size: int
) -> None:
    table, limits = random_table(seed, 7), [9, 2, 6, 1, 12]
    found = beam(table, limits, beam_size, normalize)
    for sentence, limit in enumerate(limits):
        check(found[sentence], naive_beam(table, sentence, limit, 7, beam_size), normalize)


@SEEDS
@pytest.mark.parametrize("no_repeat_ngram", [0, 2])
@pytest.mark.parametrize("has_eos", [True, False])
def test_greedy_search_by_logits_finds_what_a_beam_of_1_finds(
    seed: int, no_repeat_ngram: int, has_eos: bool
) -> None:
    endings, prefixes = random_table(seed, 40), [[], [5, 5, 7], [], [], []]
    rules = Rules([9, 6, 2, 1, 12], EOS, (3,), prefixes, no_repeat_ngram)

    def table(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        log_probs = endings(sentence, prefix)
        return log_probs if has_eos else [-math.inf, *log_probs[1:]]

    def logits(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        return [value + 3.0 + len(prefix) for value in table(sentence, prefix)]

    expected = run(BeamSearch(rules, 1, POWER, CPU), table)
    found = run(GreedySearch(rules, CPU), logits)
    assert [[h.ids for h in each] for each in found] == [[h.ids for h in each] for each in expected]


@pytest.mark.parametrize("beam_size", [1, 2, 9])
@pytest.mark.parametrize("limit", [1, 6])
def test_without_eos_the_best_unfinished_hypothesis_is_returned(beam_size: int, limit: int) -> None:
    endings = random_table(2, 4)
    ((hypothesis,),) = beam(
        lambda s, prefix: [-math.inf, *endings(s, prefix)[1:]], [limit], beam_size
    )
    ids = tuple(hypothesis.ids)
    assert len(ids) == limit - 1
    expected = sum(endings(0, ids[:n])[token] for n, token in enumerate(ids))
    assert hypothesis.score == pytest.approx(expected, abs=1e-6)


CERTAIN_END = [0.0, -math.inf, -math.inf]


@pytest.mark.parametrize("beam_size", [2, 4])
def test_unlikely_early_endings_do_not_stop_a_likely_hypothesis(beam_size: int) -> None:
    """Five words of 98 % each and a certain end, against an eos of 1 % after every word."""
    word = [math.log(0.01), -math.inf, math.log(0.98)]
    (found,) = beam(lambda _, prefix: CERTAIN_END if len(prefix) == 5 else word, [20], beam_size)
    assert found[0].ids == [2] * 5
    assert found[0].score == pytest.approx(5 * math.log(0.98), abs=1e-6)


@pytest.mark.parametrize("beam_size", [2, 4])
def test_a_search_ends_with_its_endings(beam_size: int) -> None:
    """Each hypothesis ends with 90 %, so that the beam is full long before the limit."""
    longest = 0

    def table(_: int, prefix: tuple[int, ...]) -> list[float]:
        nonlocal longest
        longest = max(longest, len(prefix))
        return [math.log(0.9), math.log(0.04), math.log(0.06)]

    (found,) = beam(table, [50], beam_size)
    assert found[0].ids == []
    assert longest <= beam_size


def test_the_best_ending_decides_whether_a_search_ends() -> None:
    """Not the first one, which is unlikely here."""
    first, later = ([math.log(p) for p in row] for row in ((0.01, 0.985, 0.005), (0.9, 0.04, 0.06)))
    (found,) = beam(lambda _, prefix: later if prefix else first, [50], 2)
    assert [hypothesis.ids for hypothesis in found] == [[1], []]


def test_no_sentences_give_no_hypotheses() -> None:
    assert beam(random_table(0, 3), [], 2) == []


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
        log_probs[2, 1:] = float("-inf")  # fewer candidates than `count`
        log_probs[2, 0, count // 2 :] = float("-inf")
    count = min(count, width * vocab_size)

    best, places = _best_extensions(scores, log_probs, count)

    total = (scores[:, :, None] + log_probs).view(3, -1)
    assert torch.equal(best, total.sort(descending=True).values[:, :count])
    assert torch.equal(total.gather(1, places), best)
    assert all(len(set(row)) == count for row in places.tolist())

    alone, place = _best_extensions(scores[:1], log_probs[:1], count)
    assert torch.equal(alone, best[:1])
    assert torch.equal(total[:1].gather(1, place), alone)


# --- Rules --------------------------------------------------------------------------------------


def check_best(table: Table, rules: Rules, vocab_size: int, allowed: Callable[..., bool]) -> None:
    """Check that a beam that holds everything finds the best of the allowed sequences."""
    found = run(BeamSearch(rules, 300, POWER, CPU), table)
    for sentence, limit in enumerate(rules.max_lens):
        every = enumerate_all(table, sentence, limit, vocab_size)
        kept = [each for each in every if allowed(sentence, each[0])]
        ids, score = max(kept, key=lambda each: each[1] / (len(each[0]) + 1))
        assert tuple(found[sentence][0].ids) == ids
        assert found[sentence][0].score == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_translations_begin_with_their_prefixes(seed: int) -> None:
    """Scores include the prefix. The first sentence leaves the batch at once, and the last prefix
    is longer than its limit.
    """
    prefixes, limits = [[], [2, 3], [], [3], [3, 2, 3]], [1, 4, 5, 3, 3]

    def begins(sentence: int, ids: tuple[int, ...]) -> bool:
        prefix = prefixes[sentence][: limits[sentence] - 1]
        return list(ids[: len(prefix)]) == prefix

    check_best(random_table(seed, 4), Rules(limits, EOS, prefixes=prefixes), 4, begins)


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_no_n_gram_repeats(seed: int, length: int) -> None:
    def is_allowed(sentence: int, ids: tuple[int, ...]) -> bool:
        ngrams = [ids[start : start + length] for start in range(len(ids) - length + 1)]
        return max(Counter(ngrams).values(), default=0) < 2

    rules = Rules([6, 5], EOS, no_repeat_ngram=length)
    check_best(random_table(seed, 3), rules, 3, is_allowed)


def test_a_prefix_may_repeat_tokens_and_have_banned_ones() -> None:
    rules = Rules([6], EOS, banned=(2,), prefixes=[[2, 2, 2]], no_repeat_ngram=1)
    (found,) = run(BeamSearch(rules, 300, POWER, CPU), random_table(1, 4))
    assert all(h.ids[:3] == [2, 2, 2] and 2 not in h.ids[3:] for h in found)


# --- Sampling -----------------------------------------------------------------------------------


def sampler_of(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> TokenSampler:
    return TokenSampler(temperature, top_k, top_p)


def draw(
    table: Table, sampler: TokenSampler, seeds: list[list[int]], limit: int = 4
) -> list[Hypothesis]:
    sampling = Sampling(Rules([limit] * len(seeds), EOS), POWER, sampler, seeds, CPU)
    return [hypothesis for (hypothesis,) in run(sampling, table)]


def same_for_all(table: Table) -> Table:
    return lambda sentence, prefix: table(0, prefix)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_samples_are_as_frequent_as_they_are_likely(temperature: float) -> None:
    table, count = same_for_all(random_table(3, 4)), 2000
    found = draw(table, sampler_of(temperature), [[1, n] for n in range(count)], limit=2)
    first = np.bincount([h.ids[0] if h.ids else EOS for h in found], minlength=4) / count
    weights = np.exp(np.array(table(0, ())) / temperature)
    assert first == pytest.approx(weights / weights.sum(), abs=0.03)


def test_the_temperature_does_not_change_the_score_of_a_sample() -> None:
    table = random_table(5, 6)
    for sentence, h in enumerate(draw(table, sampler_of(3.0), [[n] for n in range(20)])):
        expected = score_of(table, sentence, tuple(h.ids))
        assert h.score == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("sampler", "kept"),
    [
        (sampler_of(top_k=1), {2}),
        (sampler_of(top_k=2), {1, 2}),
        (sampler_of(top_p=0.45), {2}),
        (sampler_of(top_p=0.55), {1, 2}),
        (sampler_of(top_p=0.81), {0, 1, 2}),
        (sampler_of(top_k=2, top_p=0.9), {1, 2}),
        (sampler_of(top_k=9), {0, 1, 2, 3}),
        # of 0.2 ** 2, 0.25 ** 2 ...: the most likely token has more than 0.7 of the sum
        (sampler_of(temperature=0.5, top_p=0.7), {2}),
    ],
)
def test_unlikely_tokens_are_never_drawn(sampler: TokenSampler, kept: set[int]) -> None:
    """The others are as frequent as they are likely."""
    probs = torch.tensor([[0.2, 0.25, 0.5, 0.05]])
    numbers = torch.linspace(0, 1, 501, dtype=torch.float64)
    drawn = sampler.draw(probs.log().expand(501, 4), numbers)
    assert set(drawn.tolist()) == kept
    weights = probs[0, drawn.unique()] ** (1 / sampler.temperature)
    fractions = drawn.bincount()[drawn.unique()] / 501
    assert fractions.tolist() == pytest.approx((weights / weights.sum()).tolist(), abs=0.01)


def test_a_sample_ends_at_its_limit_even_if_eos_has_no_probability() -> None:
    (found,) = draw(lambda sentence, prefix: [-math.inf, -1.0, -1.0], sampler_of(), [[1]], limit=5)
    assert len(found.ids) == 4
