"""Greedy and beam search over a step function, independent of model, vocabulary and text.

Shapes: `B` sentences still searched, `W` live hypotheses of each, `V` vocabulary, `C` candidates
per sentence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor


class State(Protocol):
    """The state of a step function from position to position, one row per hypothesis."""

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> Self:
        """Keep hypotheses `rows`, and `sentences` (None: all)."""
        ...


S = TypeVar("S", bound=State)

# Natural log-probability. At 1 a trained model's texts are the same as without this condition.
FAR = 1.0
# With fewer columns, sorting all is as fast: see `_best`.
MANY = 32


@dataclass(frozen=True)
class Hypothesis:
    """A translation: ids without bos and eos, its log-probability with eos, and the same normalized
    by length.
    """

    ids: list[int]
    score: float
    normalized: float


class Settings(Protocol):
    """Settings that decide which tokens may follow."""

    @property
    def no_repeat_ngram(self) -> int:
        """Length of n-grams that never repeat; 0 = off."""


@dataclass(frozen=True)
class Rules:
    """Which tokens may follow in each of `len(max_lens)` sentences: never those `banned`; within
    the sentence's prefix only its next token; none that repeats an n-gram, if the settings forbid
    that; at the limit of `max_lens` tokens with eos only eos.
    """

    max_lens: list[int]
    eos_id: int
    banned: tuple[int, ...] = ()
    prefixes: list[list[int]] | None = None
    settings: Settings | None = None

    def apply(self, log_probs: Tensor, hypotheses: Tensor, sentences: list[int]) -> Tensor:
        """Put minus infinity where something may not follow: (B, W, V), hypotheses (B, W, time) of
        the sentences with these numbers.
        """
        time = hypotheses.shape[2]
        forced = self._forced(sentences, time)
        if forced:
            places, tokens = list(forced), list(forced.values())
            log_probs = log_probs.clone()
            kept = log_probs[places, :, tokens]
        if self.banned:
            log_probs[:, :, list(self.banned)] = float("-inf")
        no_repeat = self.settings.no_repeat_ngram if self.settings else 0
        if 0 < no_repeat <= time:
            _ban_repeats(log_probs, hypotheses, no_repeat)
        if forced:
            log_probs[places] = float("-inf")
            log_probs[places, :, tokens] = kept
        return log_probs

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
    """Ban tokens that would repeat an n-gram of `length` tokens: (B, W, V), (B, W, time)."""
    rows = hypotheses.unfold(2, length, 1)  # (B, W, rows, length)
    last = hypotheses[:, :, hypotheses.shape[2] - length + 1 :]
    same = (rows[..., :-1] == last[:, :, None]).all(-1)
    b, w, row = same.nonzero(as_tuple=True)
    log_probs[b, w, rows[b, w, row, -1]] = float("-inf")


def length_normalizer(norm: str, alpha: float) -> Callable[[int], float]:
    """Return the divisor of a score for a length counted with eos.

    "gnmt" is ((5 + length) / 6) ** alpha (Wu et al. 2016, equation 14), "power" is length ** alpha.
    """
    if norm == "power":
        return lambda length: float(length**alpha)
    return lambda length: float(((5 + length) / 6) ** alpha)


@torch.no_grad()
def beam_search(
    step: Callable[[Tensor, S], tuple[Tensor, S]],
    state: S,
    *,
    rules: Rules,
    beam_size: int,
    normalize: Callable[[int], float],
    bos_id: int,
    device: torch.device | None = None,
) -> list[list[Hypothesis]]:
    """Return the best continuations of bos for each sentence of `rules`, best first.

    `step` maps tokens (N,) and a state to log-probabilities (N, V) of the next token and a new
    state. A sentence is done when `beam_size` hypotheses have ended, as in fairseq and CTranslate2,
    unless a live one is far likelier than these; or at its own limit. If eos has no probability
    even there, the best unended hypothesis is returned.
    """
    search = _Search(beam_size, normalize, rules, device or torch.device("cpu"))
    tokens = torch.full((len(rules.max_lens),), bos_id, device=search.device)
    while search.sentences:
        log_probs, state = step(tokens, state)
        rows, kept, tokens = search.advance(log_probs)
        if rows is not None:
            state = state.select(rows, kept)
    return [sorted(found, key=lambda h: -h.normalized) for found in search.found]


class _Search:
    """The hypotheses of the sentences that are not done."""

    def __init__(
        self,
        beam_size: int,
        normalize: Callable[[int], float],
        rules: Rules,
        device: torch.device,
    ) -> None:
        self.beam_size, self.normalize, self.rules, self.device = (
            beam_size,
            normalize,
            rules,
            device,
        )
        self.eos_id, self.limits = rules.eos_id, rules.max_lens
        B = len(self.limits)
        self.found: list[list[Hypothesis]] = [[] for _ in self.limits]
        self.sentences = list(range(B))
        self.scores = torch.zeros(B, 1, device=device)  # (B, W)
        self.prefixes = torch.zeros(B, 1, 0, dtype=torch.int64, device=device)  # (B, W, time)

    def advance(self, log_probs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Extend every hypothesis by a token, given (B * W, V). Return the rows of B * W that stay
        (None: all, unchanged), the sentences of B that stay (None: all), and the new tokens, one
        per row.
        """
        width = self.scores.shape[1]
        scores, parents, tokens = self._candidates(log_probs)
        ends = tokens == self.eos_id
        some_end = bool(ends.any())  # at most steps none does, and the best live on as they are
        live = scores
        if some_end:
            self._collect(scores, parents, ends & scores.isfinite())
            live = scores.masked_fill(ends, float("-inf"))
        kept = self._drop_done(live)
        if kept is not None:
            live, parents, tokens, ends = live[kept], parents[kept], tokens[kept], ends[kept]
        parents, tokens = self._extend(live, parents, tokens, ends if some_end else None)
        if kept is None and width == parents.shape[1] == 1:
            return None, None, tokens.flatten()
        places = torch.arange(len(parents), device=self.device) if kept is None else kept
        return (parents + width * places[:, None]).flatten(), kept, tokens.flatten()

    def _candidates(self, log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best C extensions of each sentence: scores, parents among W, tokens; each (B, C),
        best first.
        """
        B, W = self.scores.shape
        V = log_probs.shape[1]
        log_probs = self.rules.apply(log_probs.view(B, W, V), self.prefixes, self.sentences)
        scores, flat = _best(self.scores, log_probs, min(2 * self.beam_size, W * V))
        return scores, flat // V, flat % V

    def _collect(self, scores: Tensor, parents: Tensor, ended: Tensor) -> None:
        """Keep the candidates that ended among the best `beam_size`."""
        places = ended[:, : self.beam_size].nonzero()
        if not len(places):
            return
        divisor = self.normalize(self.prefixes.shape[2] + 1)
        rows, ranks = places.unbind(1)
        prefixes = self.prefixes[rows, parents[rows, ranks]].tolist()
        for row, ids, score in zip(
            rows.tolist(), prefixes, scores[rows, ranks].tolist(), strict=True
        ):
            self.found[self.sentences[row]].append(Hypothesis(ids, score, score / divisor))

    def _drop_done(self, live: Tensor) -> Tensor | None:
        """Remove the sentences that are done, given the scores (B, C) of unended candidates. Return
        the indices of the others, or None if none is done.
        """
        best_live = live.amax(1).tolist()
        kept = []
        for place, sentence in enumerate(self.sentences):
            if not self._is_done(sentence, best_live[place]):
                kept.append(place)
            elif not self.found[sentence]:
                self.found[sentence].append(self._unended(place))
        if len(kept) == len(self.sentences):
            return None
        places = torch.tensor(kept, dtype=torch.int64, device=self.device)
        self.sentences = [self.sentences[place] for place in kept]
        self.scores, self.prefixes = self.scores[places], self.prefixes[places]
        return places

    def _is_done(self, sentence: int, best_live: float) -> bool:
        """Whether a sentence is at its limit, or has enough hypotheses and no live one that is
        `FAR` likelier: a model that is sure of its words lets unlikely endings into the beam first.
        A beam of 1 is greedy search, which ends with its first eos.
        """
        found, length = self.found[sentence], self.prefixes.shape[2] + 1
        if length >= self.limits[sentence]:
            return True
        if len(found) < self.beam_size:
            return False
        return self.beam_size == 1 or best_live <= FAR + max(h.score for h in found)

    def _unended(self, place: int) -> Hypothesis:
        """The best hypothesis of a sentence that reached its limit without a possible eos."""
        best = int(self.scores[place].argmax())
        score, ids = float(self.scores[place, best]), self.prefixes[place, best].tolist()
        return Hypothesis(ids, score, score / self.normalize(len(ids) + 1))

    def _extend(
        self, scores: Tensor, parents: Tensor, tokens: Tensor, ends: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Let the best candidates live on that have not ended (None: none has); returns their
        parents among W and tokens, both (B, W').
        """
        C = scores.shape[1]
        W = min(self.beam_size, C)
        if ends is None:
            parents, tokens, self.scores = (x[:, :W] for x in (parents, tokens, scores))
        else:
            unended_first = (torch.arange(C, device=self.device) + C * ends).argsort(1)
            best = unended_first[:, :W]
            parents, tokens, self.scores = (x.gather(1, best) for x in (parents, tokens, scores))
        time = self.prefixes.shape[2]
        before = self.prefixes.gather(1, parents[:, :, None].expand(-1, -1, time))
        self.prefixes = torch.cat((before, tokens[:, :, None]), 2)
        return parents, tokens


def _best(scores: Tensor, log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the scores and indices of the `count` best of W * V extensions, best first: (B, W)
    scores of hypotheses, (B, W, V) of next tokens -> two of (B, count).

    On the CPU a partial sort of all takes longer than to compute them. The best ones are in the
    columns with the best maxima: only these are sorted, in a tenth of the time.
    """
    B, W, V = log_probs.shape
    height = next((n for n in range(128, 15, -1) if V % n == 0), V)
    columns = V // height
    if log_probs.device.type != "cpu" or W * columns < max(count, MANY):
        return (scores[:, :, None] + log_probs).view(B, W * V).topk(count)
    tops = log_probs.view(B, W, height, columns).amax(2) + scores[:, :, None]
    found = tops.view(B, W * columns).topk(count).indices
    parents, first = found // columns, found // columns * V + found % columns
    steps = torch.arange(0, V, columns)
    places = (first[:, :, None] + steps).view(B, count * height)
    values = log_probs.view(B, W * V).gather(1, places).view(B, count, height)
    values += scores.gather(1, parents)[:, :, None]
    best, where = values.view(B, count * height).topk(count)
    return best, places.gather(1, where)
