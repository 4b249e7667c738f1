"""Sampling over a step function: translations drawn by the model's probabilities."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mtrain.translation.search import BeamSearch, Normalize, Rules


def _widest(device: torch.device) -> torch.dtype:
    """Return the type to add up probabilities in: Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


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
        probs = scaled.to(_widest(scaled.device)).softmax(1)
        sums = probs.cumsum(1)
        probs = probs.masked_fill(sums - probs >= self.top_p, 0.0)
        sums = probs.cumsum(1)
        place = (sums <= numbers[:, None] * sums[:, -1:]).sum(1, keepdim=True)
        # rounding must not choose a token of probability 0
        last = (probs > 0).sum(1, keepdim=True) - 1
        return tokens.gather(1, place.minimum(last).clamp(min=0))[:, 0]


class Sampling(BeamSearch):
    """A search with one candidate per sentence: a token drawn by the sentence's own seed,
    independently of the other sentences.
    """

    def __init__(
        self,
        rules: Rules,
        normalize: Normalize,
        choice: Choice,
        seeds: list[list[int]],
        device: torch.device | None = None,
    ) -> None:
        super().__init__(rules, 1, normalize, device)
        self.scores = self.scores.to(_widest(self.device))
        self.choice, self.generators = choice, [np.random.default_rng(seed) for seed in seeds]

    def _candidates(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = log_probs[:, 0]
        numbers = [self.generators[sentence].random() for sentence in self.sentences]
        drawn = torch.tensor(numbers, device=self.device, dtype=self.scores.dtype)
        tokens = self.choice.draw(log_probs, drawn)[:, None]
        return self.scores + log_probs.gather(1, tokens), tokens
