"""Sampling over a step function: translations drawn by the model's probabilities."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mtrain.translation.search import Hypothesis, Rules, S


@dataclass(frozen=True)
class Choice:
    """The distribution to draw tokens from: probabilities to the power 1 / `temperature`,
    restricted to the `top_k` likeliest (0 = all) and to the fewest with `top_p` of the probability
    (Holtzman et al. 2020, section 3.1).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def draw(self, log_probs: Tensor, numbers: Tensor) -> Tensor:
        """Choose tokens by numbers from 0 to 1: (N, V), (N,) -> (N,)."""
        kept = self.top_k or log_probs.shape[1]
        scaled, tokens = (log_probs / self.temperature).topk(min(kept, log_probs.shape[1]))
        probs = scaled.double().softmax(1)
        sums = probs.cumsum(1)
        probs = probs.masked_fill(sums - probs >= self.top_p, 0.0)
        sums = probs.cumsum(1)
        place = (sums <= numbers[:, None] * sums[:, -1:]).sum(1, keepdim=True)
        last = (probs > 0).sum(
            1, keepdim=True
        ) - 1  # rounding must not choose a token of probability 0
        return tokens.gather(1, place.minimum(last).clamp(min=0))[:, 0]


@torch.no_grad()
def sample(
    step: Callable[[Tensor, S], tuple[Tensor, S]],
    state: S,
    *,
    rules: Rules,
    choice: Choice,
    seeds: list[list[int]],
    normalize: Callable[[int], float],
    bos_id: int,
    device: torch.device | None = None,
) -> list[Hypothesis]:
    """Draw a continuation of bos for each sentence of `rules`, by its own seed, independently of
    the others; `step` is as in `beam_search`.
    """
    device = device or torch.device("cpu")
    generators = [np.random.default_rng(seed) for seed in seeds]
    found: dict[int, Hypothesis] = {}
    sentences = list(range(len(seeds)))
    scores = torch.zeros(len(seeds), dtype=torch.float64, device=device)
    ids = torch.zeros(len(seeds), 0, dtype=torch.int64, device=device)
    tokens = torch.full((len(seeds),), bos_id, device=device)
    while sentences:
        log_probs, state = step(tokens, state)
        log_probs = rules.apply(log_probs[:, None], ids[:, None], sentences)[:, 0]
        numbers = [generators[sentence].random() for sentence in sentences]
        tokens = choice.draw(log_probs, torch.tensor(numbers, device=device, dtype=torch.float64))
        scores = scores + log_probs.gather(1, tokens[:, None])[:, 0]
        time = ids.shape[1] + 1
        ended = [
            token == rules.eos_id or time >= rules.max_lens[sentence]
            for token, sentence in zip(tokens.tolist(), sentences, strict=True)
        ]
        if any(ended):
            for place in (place for place, end in enumerate(ended) if end):
                score, own = float(scores[place]), ids[place].tolist()
                normalized = score / normalize(len(own) + 1)
                found[sentences[place]] = Hypothesis(own, score, normalized)
            live = [place for place, end in enumerate(ended) if not end]
            places = torch.tensor(live, dtype=torch.int64, device=device)
            sentences = [sentences[place] for place in live]
            scores, ids, tokens = scores[places], ids[places], tokens[places]
            state = state.select(places, places)
        ids = torch.cat((ids, tokens[:, None]), 1)
    return [found[sentence] for sentence in range(len(seeds))]
