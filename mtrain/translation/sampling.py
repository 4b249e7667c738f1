"""Sample translations from a step function, by the probabilities of the model."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mtrain.translation.search import BeamSearch, Normalize, Rules


def _widest_dtype(device: torch.device) -> torch.dtype:
    """Return the widest float type of a device, for sums of probabilities; MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True)
class TokenSampler:
    """Draws tokens by their probabilities to the power 1 / `temperature`, from the `top_k` most
    likely tokens (0 = all) and from the smallest set with a total probability of `top_p` (Holtzman
    et al. 2020, section 3.1).
    """

    temperature: float
    top_k: int
    top_p: float

    def draw(self, log_probs: Tensor, numbers: Tensor) -> Tensor:
        """Draw a token for each row, given a random number in [0, 1): (N, V), (N,) -> (N,)."""
        vocab_size = log_probs.shape[1]
        count = min(self.top_k or vocab_size, vocab_size)
        scaled, tokens = (log_probs / self.temperature).topk(count)  # (N, count), descending
        probs = scaled.to(_widest_dtype(scaled.device)).softmax(1)
        sums = probs.cumsum(1)
        probs = probs.masked_fill(sums - probs >= self.top_p, 0.0)
        sums = probs.cumsum(1)
        # the first token whose cumulative probability exceeds the random number
        rank = (sums <= numbers[:, None] * sums[:, -1:]).sum(1, keepdim=True)
        # rounding must not select a token of probability 0
        last = (probs > 0).sum(1, keepdim=True) - 1
        return tokens.gather(1, rank.minimum(last).clamp(min=0))[:, 0]


class Sampling(BeamSearch):
    """A search whose only candidate in each sentence is a drawn token. Each sentence has its own
    seed, so that draws do not depend on the rest of the batch.
    """

    def __init__(
        self,
        rules: Rules,
        normalize: Normalize,
        sampler: TokenSampler,
        seeds: list[list[int]],
        device: torch.device,
    ) -> None:
        super().__init__(rules, 1, normalize, device)
        self.scores = self.scores.to(_widest_dtype(self.device))
        self.sampler = sampler
        self.generators = [np.random.default_rng(seed) for seed in seeds]

    def _candidates(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = log_probs[:, 0]
        draws = [self.generators[sentence].random() for sentence in self.sentences]
        numbers = torch.tensor(draws, device=self.device, dtype=self.scores.dtype)
        tokens = self.sampler.draw(log_probs, numbers)[:, None]
        return self.scores + log_probs.gather(1, tokens), tokens
