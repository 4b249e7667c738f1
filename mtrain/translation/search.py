"""Greedy and beam search over a step function, independent of model, vocabulary and text.

Shapes: `B` sentences still searched, `W` live hypotheses of each, `N` all of these (B x W), `V`
vocabulary, `C` candidates per sentence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

Normalize = Callable[[int], float]  # the divisor of a score for a length counted with eos
# Lead of a live hypothesis, in nats, for which a search with enough endings goes on. 1 is enough to
# find the texts of a search without this rule.
LIVE_MARGIN = 1.0
# With fewer blocks, sorting all is as fast: see `_best`.
MIN_BLOCKS = 32


@dataclass(frozen=True)
class Hypothesis:
    """A translation: ids without bos and eos, and its log-probability with eos."""

    ids: list[int]
    score: float


@dataclass(frozen=True)
class Rules:
    """Which tokens may follow in each sentence: never those `banned`; within its prefix only the
    next token of it; none that repeats an n-gram of `no_repeat_ngram` tokens (0 = off); at its
    limit of `max_lens` tokens with eos only eos.
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
            places, tokens = list(forced), list(forced.values())
            log_probs = log_probs.clone()
            kept = log_probs[places, :, tokens]
        if self.banned:
            log_probs.index_fill_(2, self._banned.to(log_probs.device), float("-inf"))
        if 0 < self.no_repeat_ngram <= time:
            _ban_repeats(log_probs.flatten(0, 1), hypotheses, self.no_repeat_ngram)
        if forced:
            log_probs[places] = float("-inf")
            log_probs[places, :, tokens] = kept
        return log_probs

    @cached_property
    def _banned(self) -> Tensor:
        return torch.tensor(self.banned)

    def _forced(self, sentences: list[int], time: int) -> dict[int, int]:
        """Return the only token that may follow, by the index of the sentence."""
        found = {}
        for place, sentence in enumerate(sentences):
            if time + 1 >= self.max_lens[sentence]:
                found[place] = self.eos_id
            elif self.prefixes is not None and time < len(self.prefixes[sentence]):
                found[place] = self.prefixes[sentence][time]
        return found


def _ban_repeats(log_probs: Tensor, hypotheses: Tensor, length: int) -> None:
    """Ban tokens that would repeat an n-gram of `length` tokens: (N, V), (N, time)."""
    ngrams = hypotheses.unfold(1, length, 1)  # (N, n-grams, length)
    last = hypotheses[:, hypotheses.shape[1] - length + 1 :]
    same = (ngrams[..., :-1] == last[:, None]).all(-1)
    rows, n = same.nonzero(as_tuple=True)
    log_probs[rows, ngrams[rows, n, -1]] = float("-inf")


def length_normalizer(norm: str, alpha: float) -> Normalize:
    """Return the divisor of a score for a length counted with eos.

    "gnmt" is ((5 + length) / 6) ** alpha (Wu et al. 2016, equation 14), "power" is length ** alpha.
    """
    if norm == "power":
        return lambda length: float(length**alpha)
    return lambda length: float(((5 + length) / 6) ** alpha)


class BeamSearch:
    """The hypotheses of the sentences of `rules` that are not done.

    A sentence is done when `beam_size` hypotheses have ended, as in fairseq and CTranslate2, unless
    a live one is far likelier than these; or at its own limit. If eos has no probability even
    there, the best unended hypothesis is returned.
    """

    def __init__(
        self, rules: Rules, beam_size: int, normalize: Normalize, device: torch.device | None = None
    ) -> None:
        self.rules, self.beam_size, self.normalize = rules, beam_size, normalize
        self.device = device or torch.device("cpu")
        B = len(rules.max_lens)
        self.found: list[list[Hypothesis]] = [[] for _ in range(B)]
        self.sentences = list(range(B))
        self.scores = torch.zeros(B, 1, device=self.device)  # (B, W)
        self.hypotheses = torch.zeros(B, 0, dtype=torch.int64, device=self.device)  # (N, time)

    @torch.inference_mode()  # each call of torch takes less time than with no_grad
    def run(
        self, step: Callable[[Tensor, Any], tuple[Tensor, Any]], state: Any, bos_id: int
    ) -> list[list[Hypothesis]]:
        """Return the best continuations of bos for each sentence, best first. `step` maps tokens
        (N,) and a state to log-probabilities (N, V) of the next token and a new state, whose
        `select(rows, sentences)` keeps hypotheses `rows`, and `sentences` (None: all).
        """
        tokens = torch.full((len(self.sentences),), bos_id, device=self.device)
        while self.sentences:
            log_probs, state = step(tokens, state)
            rows, kept, tokens = self._advance(log_probs)
            if self.sentences and rows is not None:
                state = state.select(rows, kept)
        return [self.ranked(found) for found in self.found]

    def ranked(self, found: list[Hypothesis]) -> list[Hypothesis]:
        """Sort hypotheses by their scores normalized by length, best first."""
        return sorted(found, key=lambda h: -h.score / self.normalize(len(h.ids) + 1))

    def _advance(self, log_probs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Extend every hypothesis by a token, given (N, V). Return the rows of N and the sentences
        of B (None: all) that go on, and the new tokens, one per row.
        """
        B, W = self.scores.shape
        log_probs = self.rules.apply(log_probs.view(B, W, -1), self.hypotheses, self.sentences)
        scores, places = self._candidates(log_probs)
        V = log_probs.shape[2]
        rows, tokens = places // V, places % V
        if B > 1:
            rows += torch.arange(0, B * W, W, device=self.device)[:, None]
        live, ends = scores, None
        if any(self.rules.eos_id in row for row in tokens.tolist()):  # at few steps
            ends = tokens == self.rules.eos_id
            self._collect(scores, rows, ends & scores.isfinite())
            live = scores.masked_fill(ends, float("-inf"))
        kept = self._drop(self._done(live))
        if not self.sentences:
            return rows, kept, tokens
        if kept is not None:
            live, rows, tokens = live[kept], rows[kept], tokens[kept]
            ends = None if ends is None else ends[kept]
        rows, tokens = self._best_unended(live, rows, tokens, ends)
        self.hypotheses = torch.cat((self.hypotheses.index_select(0, rows), tokens[:, None]), 1)
        return rows, kept, tokens

    def _candidates(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Choose C extensions of each sentence, given (B, W, V), best first: scores and indices
        among W * V, both (B, C).
        """
        _, W, V = log_probs.shape
        # as many may be eos as hypotheses are live; greedy search ends with its first one
        count = 2 * self.beam_size if self.beam_size > 1 else 1
        return _best(self.scores, log_probs, min(count, W * V))

    def _collect(self, scores: Tensor, rows: Tensor, ended: Tensor) -> None:
        """Keep the candidates that ended among the best `beam_size`."""
        places, ranks = ended[:, : self.beam_size].nonzero(as_tuple=True)
        if not len(places):
            return
        ids = self.hypotheses[rows[places, ranks]].tolist()
        ended_scores = scores[places, ranks].tolist()
        for place, own, score in zip(places.tolist(), ids, ended_scores, strict=True):
            self.found[self.sentences[place]].append(Hypothesis(own, score))

    def _done(self, live: Tensor) -> set[int]:
        """Return the places of the sentences that are done, given the scores (B, C) of unended
        candidates.
        """
        places = zip(self.sentences, live.amax(1).tolist(), strict=True)
        done = {place for place, each in enumerate(places) if self._is_done(*each)}
        for place in done:
            if not self.found[self.sentences[place]]:
                self.found[self.sentences[place]].append(self._unended(place))
        return done

    def _drop(self, done: set[int]) -> Tensor | None:
        """Remove the sentences at these places. Return the places of the others, of which the last
        take the places left, or None if all stay.
        """
        if not done:
            return None
        kept = [place for place in range(len(self.sentences)) if place not in done]
        alive, last = set(kept), [place for place in kept if place >= len(kept)]
        kept = [place if place in alive else last.pop() for place in range(len(kept))]
        self.sentences = [self.sentences[place] for place in kept]
        return torch.tensor(kept, dtype=torch.int64, device=self.device)

    def _is_done(self, sentence: int, best_live: float) -> bool:
        """Whether a sentence is at its limit, or has enough hypotheses and no live one leads by
        `LIVE_MARGIN`, since a model that is sure of its words lets unlikely endings into the beam.
        A beam of 1 is greedy search, which ends with its first eos.
        """
        found, length = self.found[sentence], self.hypotheses.shape[1] + 1
        if length >= self.rules.max_lens[sentence]:
            return True
        if len(found) < self.beam_size:
            return False
        return self.beam_size == 1 or best_live <= LIVE_MARGIN + max(h.score for h in found)

    def _unended(self, place: int) -> Hypothesis:
        """Return the best hypothesis of a sentence at its limit, where eos has no probability."""
        row = place * self.scores.shape[1] + int(self.scores[place].argmax())
        return Hypothesis(self.hypotheses[row].tolist(), float(self.scores.flatten()[row]))

    def _best_unended(
        self, scores: Tensor, rows: Tensor, tokens: Tensor, ends: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Keep the best candidates that have not ended (None: none has), W' of each sentence, and
        their scores; return their rows among N and tokens, both (B * W',).
        """
        C = scores.shape[1]
        W = min(self.beam_size, C)
        if ends is None:
            rows, tokens, self.scores = rows[:, :W], tokens[:, :W], scores[:, :W]
        else:
            unended_first = (torch.arange(C, device=self.device) + C * ends).argsort(1)
            best = unended_first[:, :W]
            rows, tokens, self.scores = (x.gather(1, best) for x in (rows, tokens, scores))
        return rows.flatten(), tokens.flatten()


class GreedySearch(BeamSearch):
    """A beam of 1 without scores, which are 0: any values serve as log-probabilities that order
    tokens as these do.
    """

    def __init__(self, rules: Rules, device: torch.device | None = None) -> None:
        super().__init__(rules, 1, float, device)

    def _advance(self, log_probs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        log_probs = self.rules.apply(log_probs[:, None], self.hypotheses, self.sentences)
        _, tokens = _best(self.scores, log_probs, 1)
        length, done = self.hypotheses.shape[1] + 1, set()
        for place, (token,) in enumerate(tokens.tolist()):
            sentence = self.sentences[place]
            if token == self.rules.eos_id or length >= self.rules.max_lens[sentence]:
                self.found[sentence].append(Hypothesis(self.hypotheses[place].tolist(), 0.0))
                done.add(place)
        kept = self._drop(done)
        if kept is not None:
            self.scores, tokens = self.scores[kept], tokens[kept]
            self.hypotheses = self.hypotheses[kept]
        self.hypotheses = torch.cat((self.hypotheses, tokens), 1)
        return kept, kept, tokens[:, 0]


def _best(scores: Tensor, log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the scores and indices of the `count` best of W * V extensions, best first: (B, W)
    scores of hypotheses, (B, W, V) of next tokens -> two of (B, count).

    On the CPU a partial sort of all takes longer than to compute them. The best ones are in the
    blocks with the best maxima: only these are sorted, in a tenth of the time.
    """
    B, W, V = log_probs.shape
    if B == W == count == 1:
        best, where = log_probs.view(1, V).max(1, keepdim=True)
        return scores + best, where
    # maxima are fast where whole vectors, of 32 values, fill a block
    size = next((n for n in (128, 96, 64, 32, *range(127, 15, -1)) if V % n == 0), V)
    each = V // size  # blocks of a hypothesis
    if log_probs.device.type != "cpu" or W * each < max(count, MIN_BLOCKS):
        return (scores[:, :, None] + log_probs).view(B, W * V).topk(count)
    tops = log_probs.view(B, W, each, size).amax(3) + scores[:, :, None]
    found = tops.view(B, W * each).topk(count).indices
    rows = found + torch.arange(0, B * W * each, W * each)[:, None] if B > 1 else found
    blocks = log_probs.view(-1, size).index_select(0, rows.flatten())
    values = blocks.view(B, count, size) + scores.gather(1, found // each)[:, :, None]
    best, where = values.view(B, count * size).topk(count)
    return best, torch.add(where % size, found.gather(1, where // size), alpha=size)
