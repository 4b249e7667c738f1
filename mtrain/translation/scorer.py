"""Forced scoring: the log-probability that a model gives to existing translations."""

import math
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtrain.data.batches import batch_by_tokens, collate
from mtrain.model.decoder import mean_log_probs
from mtrain.runtime.device import out_of_memory_as
from mtrain.runtime.distributed import Ranks
from mtrain.translation.loading import LoadedModel
from mtrain.translation.translator import lack_of_memory

Ids = list[NDArray[np.int64]]

MAX_VALUES = 1 << 24  # largest number of logits computed at a time


class Scorer:
    """Scores targets given their sources; cuts lines that are too long."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded

    def score(
        self, sources: list[str], targets: list[str]
    ) -> tuple[list[float], tuple[list[int], list[int]]]:
        """Return the natural log-probability of each target with eos, and the indices of the
        sources and of the targets that were cut.
        """
        src, cut_sources = self.loaded.encode_sources(sources)
        tgt, cut_targets = self.loaded.encode_targets(targets)
        return (-self.pair_nll(src, tgt)).tolist(), (cut_sources, cut_targets)

    def nll(self, sources: list[str], targets: list[str], ranks: Ranks) -> float:
        """Return the negative log-likelihood per target token, eos included. Each rank scores a
        part of the batches, which are the same for any number of ranks.
        """
        src, _ = self.loaded.encode_sources(sources)
        tgt, _ = self.loaded.encode_targets(targets)
        nll = ranks.on_all_ranks(lambda: self.pair_nll(src, tgt, ranks.rank, ranks.size))
        ranks.sum_(nll)
        return math.fsum(nll.tolist()) / sum(len(ids) + 1 for ids in tgt)

    @torch.no_grad()
    def pair_nll(self, src: Ids, tgt: Ids, first: int = 0, every: int = 1) -> Tensor:
        """Return the negative log-likelihood of each pair of ids without eos: (pairs,), fp64, CPU.
        Only batches number `first`, `first` + `every` and so on are scored; other pairs get 0.
        """
        lengths = np.array([(len(s) + 1, len(t) + 1) for s, t in zip(src, tgt, strict=True)])
        result = torch.zeros(len(src), dtype=torch.float64)
        self.loaded.check_stop()  # this rank may have no batch
        batches = batch_by_tokens(lengths.reshape(-1, 2), self.loaded.decode.batch_tokens)
        for indices in batches[first::every]:
            self.loaded.check_stop()
            message = partial(lack_of_memory, len(indices), int(lengths[indices].max()))
            with out_of_memory_as(message):
                nll = self._batch_nll([(src[i], tgt[i]) for i in indices])
            result[torch.from_numpy(indices)] = nll
        return result

    def _batch_nll(self, pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Tensor:
        loaded = self.loaded
        batch = collate(pairs, loaded.ids).to(loaded.device)
        hidden = [  # (N, D) of each model
            model.hidden(batch.src, batch.tgt_in).flatten(0, 1)[batch.positions]
            for model in loaded.members
        ]
        rows = max(1, MAX_VALUES // loaded.tokenizer.vocab_size)
        token_scores = []
        for start in range(0, batch.num_tokens, rows):
            log_probs = self._log_probs([states[start : start + rows] for states in hidden])
            targets = batch.targets[start : start + rows, None]
            token_scores.append(log_probs.gather(1, targets)[:, 0])
        nll = -torch.cat(token_scores).cpu().double()
        pair_index = batch.positions.cpu() // batch.tgt_out.shape[1]  # of each token
        return torch.zeros(len(pairs), dtype=torch.float64).index_add(0, pair_index, nll)

    def _log_probs(self, hidden: list[Tensor]) -> Tensor:
        """Return log-probabilities of the next token: (N, D) of each model -> (N, V)."""
        members = [
            model.project(states).float().log_softmax(-1)
            for model, states in zip(self.loaded.members, hidden, strict=True)
        ]
        return mean_log_probs(members) if len(members) > 1 else members[0]
