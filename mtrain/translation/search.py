"""Greedy and beam search over a step function, independent of model, vocabulary and text.

Shapes: `B` sentences still searched, `W` live hypotheses of each, `N` all of these (B x W), `V`
vocabulary, `C` candidates per sentence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

Normalize = Callable[[int], float]  # from a length counted with eos to the divisor of a score
# A search with enough finished hypotheses continues while a live one is better than all of them
# by more than this, in nats. With 1.0, the texts are those of a search that never ends early.
LIVE_MARGIN = 1.0
# With fewer blocks, sorting all extensions is as fast; see `_best_extensions`.
MIN_BLOCKS = 32


@dataclass(frozen=True)
class Hypothesis:
    """A translation: ids without bos and eos, and its log-probability with eos."""

    ids: list[int]
    score: float


@dataclass(frozen=True)
class Rules:
    """Which tokens may follow in each sentence: no `banned` token; no token that repeats an n-gram
    of `no_repeat_ngram` tokens (0 = off); within the sentence's prefix only the prefix's next
    token; only eos as the last of `max_lens` tokens.
    """

    max_lens: list[int]
    eos_id: int
    banned: tuple[int, ...] = ()
    prefixes: list[list[int]] | None = None
    no_repeat_ngram: int = 0

    def apply(self, log_probs: Tensor, hypotheses: Tensor, sentences: list[int]) -> Tensor:
        """Set log-probabilities (B, W, V) to minus infinity where a token may not follow, given the
        hypotheses (N, time) of the sentences with these indices.
        """
        time = hypotheses.shape[1]
        forced = self._forced(sentences, time)
        if forced:
            positions, tokens = list(forced), list(forced.values())
            forced_values = log_probs[positions, :, tokens]
        if self.banned:
            log_probs.index_fill_(2, _as_tensor(self.banned, log_probs.device), float("-inf"))
        if 0 < self.no_repeat_ngram <= time:
            _ban_repeats(log_probs.flatten(0, 1), hypotheses, self.no_repeat_ngram)
        if forced:
            log_probs[positions] = float("-inf")
            log_probs[positions, :, tokens] = forced_values
        return log_probs

    def is_last(self, sentence: int, time: int) -> bool:
        """Whether a sentence's limit allows no token after the one at position `time`."""
        return time + 1 >= self.max_lens[sentence]

    def _forced(self, sentences: list[int], time: int) -> dict[int, int]:
        """Return the only allowed token, where there is just one, by position in `sentences`."""
        tokens = {}
        for position, sentence in enumerate(sentences):
            if self.is_last(sentence, time):
                tokens[position] = self.eos_id
            elif self.prefixes is not None and time < len(self.prefixes[sentence]):
                tokens[position] = self.prefixes[sentence][time]
        return tokens


@cache
def _as_tensor(ids: tuple[int, ...], device: torch.device) -> Tensor:
    """Return ids on a device; cached, because a copy to a GPU waits for its queued work."""
    return torch.tensor(ids, device=device)


def _ban_repeats(log_probs: Tensor, hypotheses: Tensor, length: int) -> None:
    """Ban tokens that would repeat an n-gram of `length` tokens: (N, V), (N, time)."""
    ngrams = hypotheses.unfold(1, length, 1)  # (N, n-grams, length)
    last = hypotheses[:, hypotheses.shape[1] - length + 1 :]  # (N, length - 1)
    same = (ngrams[..., :-1] == last[:, None]).all(-1)
    rows, ngram_index = same.nonzero(as_tuple=True)
    log_probs[rows, ngrams[rows, ngram_index, -1]] = float("-inf")


def length_normalizer(norm: str, alpha: float) -> Normalize:
    """Return the divisor of a score for a length counted with eos.

    "gnmt" is ((5 + length) / 6) ** alpha (Wu et al. 2016, equation 14), "power" is length ** alpha.
    """
    if norm == "power":
        return lambda length: float(length**alpha)
    return lambda length: float(((5 + length) / 6) ** alpha)


class BeamSearch:
    """A beam search for each sentence of `rules`; sentences that are done leave the batch.

    A sentence is done at its length limit, or when `beam_size` hypotheses are finished, as in
    fairseq and CTranslate2, unless a live hypothesis is far more likely than these. If eos has no
    probability at the limit, the best unfinished hypothesis is returned.

    `sentences` holds the indices of the B sentences still searched; a "position" is an index into
    it, and into the first dimension of `scores`.
    """

    def __init__(
        self, rules: Rules, beam_size: int, normalize: Normalize, device: torch.device
    ) -> None:
        self.rules, self.beam_size, self.normalize = rules, beam_size, normalize
        self.device = device
        B = len(rules.max_lens)
        self.finished: list[list[Hypothesis]] = [[] for _ in range(B)]
        self.sentences = list(range(B))
        self.scores = torch.zeros(B, 1, device=self.device)  # (B, W)
        self.hypotheses = torch.zeros(B, 0, dtype=torch.int64, device=self.device)  # (N, time)

    @torch.inference_mode()  # faster than no_grad in each call of torch
    def run(
        self, step: Callable[[Tensor, Any], tuple[Tensor, Any]], state: Any, bos_id: int
    ) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each sentence, best first. `step` maps tokens (N,) and a
        state to log-probabilities (N, V) of the next token and a new state. `select(rows,
        sentences)` of the state selects hypotheses and sentences (None: all) by index.
        """
        tokens = torch.full((len(self.sentences),), bos_id, device=self.device)
        while self.sentences:
            log_probs, state = step(tokens, state)
            rows, kept, tokens = self._advance(log_probs)
            if self.sentences and rows is not None:
                state = state.select(rows, kept)
        return [self.ranked(hypotheses) for hypotheses in self.finished]

    def ranked(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """Sort hypotheses by their scores normalized by length, best first."""
        return sorted(hypotheses, key=lambda h: -h.score / self.normalize(len(h.ids) + 1))

    def _advance(self, log_probs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Extend every hypothesis by a token, given log-probabilities (N, V). Return the indices of
        the hypotheses (of N) and sentences (of B; None: all) that continue, and the new tokens.
        """
        B, W = self.scores.shape
        V = log_probs.shape[1]
        log_probs = self.rules.apply(log_probs.view(B, W, V), self.hypotheses, self.sentences)
        scores, candidates = self._candidates(log_probs)  # (B, C), as `rows` and `tokens`
        rows, tokens = _among_all(candidates // V, W), candidates % V
        live, is_eos = scores, None
        if any(self.rules.eos_id in row for row in tokens.tolist()):  # true in few steps only
            is_eos = tokens == self.rules.eos_id
            self._collect(scores, rows, is_eos & scores.isfinite())
            live = scores.masked_fill(is_eos, float("-inf"))
        kept = self._drop(self._done(live))
        if kept is not None:
            live, rows, tokens = live[kept], rows[kept], tokens[kept]
            is_eos = None if is_eos is None else is_eos[kept]
        rows, tokens = self._best_unfinished(live, rows, tokens, is_eos)
        self.hypotheses = torch.cat((self.hypotheses.index_select(0, rows), tokens[:, None]), 1)
        return rows, kept, tokens

    def _candidates(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Choose C extensions of each sentence, given (B, W, V), best first: scores and indices
        among W * V, both (B, C).
        """
        _, W, V = log_probs.shape
        # each live hypothesis may have eos among the best, and beam_size others must remain
        count = 2 * self.beam_size if self.beam_size > 1 else 1
        return _best_extensions(self.scores, log_probs, min(count, W * V))

    def _collect(self, scores: Tensor, rows: Tensor, finished: Tensor) -> None:
        """Finish those of the best `beam_size` candidates that end in eos."""
        positions, ranks = finished[:, : self.beam_size].nonzero(as_tuple=True)
        if not len(positions):  # often: saves what follows
            return
        ids_list = self.hypotheses[rows[positions, ranks]].tolist()
        score_list = scores[positions, ranks].tolist()
        for position, ids, score in zip(positions.tolist(), ids_list, score_list, strict=True):
            self.finished[self.sentences[position]].append(Hypothesis(ids, score))

    def _done(self, live: Tensor) -> set[int]:
        """Return the positions of the sentences that are done, given the scores (B, C) of
        unfinished candidates: at the length limit, or with enough finished hypotheses and no live
        one that is better than these by `LIVE_MARGIN`. Without the margin, a confident model would
        stop too early, with a beam full of unlikely endings. A beam of 1 is greedy search, which
        ends with its first eos: it has no other candidate.
        """
        time = self.hypotheses.shape[1]
        finished = [self.finished[sentence] for sentence in self.sentences]
        done = {i for i, number in enumerate(self.sentences) if self.rules.is_last(number, time)}
        for i in done:
            if not finished[i]:
                finished[i].append(self._unfinished(i))
        full = {i for i, found in enumerate(finished) if len(found) >= self.beam_size} - done
        if full:  # in other steps, do not wait for the scores, which a GPU may still compute
            best_live = live.amax(1).tolist()
            for i in full:
                if best_live[i] <= LIVE_MARGIN + max(h.score for h in finished[i]):
                    done.add(i)
        return done

    def _drop(self, done: set[int]) -> Tensor | None:
        """Remove the sentences at the positions `done`. Return the old positions of the sentences
        that stay, or None if all stay. The last sentences fill the gaps, so that few caches move:
        if 0 and 3 of five sentences are done, return [4, 1, 2].
        """
        if not done:
            return None
        count = len(self.sentences) - len(done)
        last = [position for position in range(count, len(self.sentences)) if position not in done]
        kept = [last.pop() if position in done else position for position in range(count)]
        self.sentences = [self.sentences[position] for position in kept]
        return torch.tensor(kept, dtype=torch.int64, device=self.device)

    def _unfinished(self, position: int) -> Hypothesis:
        """Return the best hypothesis of a sentence at its limit, where eos has no probability."""
        row = position * self.scores.shape[1] + int(self.scores[position].argmax())
        return Hypothesis(self.hypotheses[row].tolist(), float(self.scores.flatten()[row]))

    def _best_unfinished(
        self, scores: Tensor, rows: Tensor, tokens: Tensor, is_eos: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Keep the scores of the best W' unfinished candidates per sentence; return their rows
        among N and tokens, both (B * W',). `is_eos` (B, C) marks eos; None: no token is eos.
        """
        C, W = scores.shape[1], self.beam_size
        if is_eos is None:
            rows, tokens, self.scores = rows[:, :W], tokens[:, :W], scores[:, :W]
        else:  # sort by rank, but finished candidates after all others
            unfinished_first = (torch.arange(C, device=self.device) + C * is_eos).argsort(1)
            best = unfinished_first[:, :W]
            rows, tokens, self.scores = (x.gather(1, best) for x in (rows, tokens, scores))
        return rows.flatten(), tokens.flatten()


class GreedySearch(BeamSearch):
    """A beam of 1 whose scores are all 0. Its `step` may return logits, or any values that rank
    tokens as log-probabilities do.
    """

    def __init__(self, rules: Rules, device: torch.device) -> None:
        super().__init__(rules, 1, float, device)

    def _advance(self, log_probs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        log_probs = self.rules.apply(log_probs[:, None], self.hypotheses, self.sentences)
        _, tokens = _best_extensions(self.scores, log_probs, 1)
        rules, time = self.rules, self.hypotheses.shape[1]
        done = [
            position
            for position, (token,) in enumerate(tokens.tolist())
            if token == rules.eos_id or rules.is_last(self.sentences[position], time)
        ]
        if done:
            for position, ids in zip(done, self.hypotheses[done].tolist(), strict=True):
                self.finished[self.sentences[position]].append(Hypothesis(ids, 0.0))
        kept = self._drop(set(done))
        if kept is not None:
            self.scores, tokens = self.scores[kept], tokens[kept]
            self.hypotheses = self.hypotheses[kept]
        self.hypotheses = torch.cat((self.hypotheses, tokens), 1)
        return kept, kept, tokens[:, 0]


def _best_extensions(scores: Tensor, log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the scores and indices of the `count` best of W * V extensions, best first: (B, W)
    scores of hypotheses, (B, W, V) log-probabilities of next tokens -> two of (B, count).

    On a CPU, a partial sort of all extensions takes longer than computing them. But the `count`
    best extensions are in the `count` blocks with the largest maxima, and sorting only these blocks
    takes a tenth of the time. With V = 8000, each hypothesis has 125 blocks of 64 values.
    """
    B, W, V = log_probs.shape
    if B == W == count == 1:
        best, token = log_probs.view(1, V).max(1, keepdim=True)
        return scores + best, token
    # maxima are fast in blocks of whole vectors (32 values)
    size = next((n for n in (128, 96, 64, 32, *range(127, 15, -1)) if V % n == 0), V)
    num_blocks = V // size  # of a hypothesis
    if log_probs.device.type != "cpu" or W * num_blocks < max(count, MIN_BLOCKS):
        return (scores[:, :, None] + log_probs).view(B, W * V).topk(count)
    maxima = log_probs.view(B, W, num_blocks, size).amax(3) + scores[:, :, None]
    chosen = maxima.view(B, W * num_blocks).topk(count).indices  # (B, count) blocks of a sentence
    rows = _among_all(chosen, W * num_blocks).flatten()
    blocks = log_probs.view(-1, size).index_select(0, rows)
    values = blocks.view(B, count, size) + scores.gather(1, chosen // num_blocks)[:, :, None]
    best, places = values.view(B, count * size).topk(count)
    # the index of an extension is the index of its block times the size, plus that in the block
    return best, torch.add(places % size, chosen.gather(1, places // size), alpha=size)


def _among_all(indices: Tensor, count: int) -> Tensor:
    """Turn indices (B, C) among the `count` items of each sentence into indices among all items."""
    B = len(indices)
    if B == 1:
        return indices
    return indices + torch.arange(0, B * count, count, device=indices.device)[:, None]
