"""Forced scoring: the log-probability that a model gives to existing translations."""

import math
from collections.abc import Generator
from contextlib import closing
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtrain.data.batches import batch_by_tokens, collate, lengths_with_eos
from mtrain.data.store import IdPairs, Ids
from mtrain.model.decoder import mean_log_probs
from mtrain.runtime.device import out_of_memory_as
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.errors import UserError
from mtrain.translation.loading import NOT_A_NUMBER, LoadedModel
from mtrain.translation.threads import in_threads, kept_threads
from mtrain.translation.translator import out_of_memory_message

MAX_LOGITS = 1 << 22  # computed at a time, in each thread
MAX_THREADS = 16  # of Python


class Scorer:
    """Scores targets given their sources. Lines that are too long are cut."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded

    def score(
        self, sources: list[str], targets: list[str]
    ) -> tuple[list[float], tuple[list[int], list[int]]]:
        """Return the natural log-probability of each target with eos, and the indices of the
        sources and of the targets that were cut. Raises `UserError`.
        """
        src, cut_sources = self.loaded.encode_sources(sources)
        tgt, cut_targets = self.loaded.encode_targets(targets)
        nll = self.pair_nll(src, tgt)
        if nll.isnan().any():
            raise UserError(NOT_A_NUMBER)
        return (-nll).tolist(), (cut_sources, cut_targets)

    def nll(self, sources: list[str], targets: list[str], ranks: Ranks) -> float:
        """Return the negative log-likelihood per target token, eos included. Each rank scores a
        part of the batches, which are the same for any number of ranks.
        """
        window = self.loaded.decode.window
        sums = list[float]()
        tokens = 0
        for start in range(0, len(sources), window):
            src, _ = self.loaded.encode_sources(sources[start : start + window])
            tgt, _ = self.loaded.encode_targets(targets[start : start + window])
            nll = ranks.on_all_ranks(partial(self.pair_nll, src, tgt, ranks.rank, ranks.size))
            ranks.sum_(nll)
            sums.append(math.fsum(nll.tolist()))
            tokens += sum(len(ids) + 1 for ids in tgt)
        return math.fsum(sums) / tokens

    def pair_nll(self, src: list[Ids], tgt: list[Ids], rank: int = 0, num_ranks: int = 1) -> Tensor:
        """Return the negative log-likelihood of each pair of ids without eos: (pairs,), fp64, CPU.
        With several ranks, only this rank's batches are scored; other pairs get 0.
        """
        lengths = lengths_with_eos(zip(src, tgt, strict=True))
        result = torch.zeros(len(src), dtype=torch.float64, device="cpu")
        # also on a rank without batches
        self.loaded.check_stop()
        batches = batch_by_tokens(lengths, self.loaded.decode.batch_tokens)[rank::num_ranks]

        def score(indices: NDArray[np.int64]) -> Tensor:
            longest = int(lengths[indices].max())
            lower = "decode.batch_tokens (--batch-tokens)"
            with out_of_memory_as(out_of_memory_message(len(indices), longest, lower)):
                return self._batch_nll([(src[i], tgt[i]) for i in indices])

        scored: Generator[Tensor] = (score(batch) for batch in batches)
        if self.loaded.device.type == "cpu":
            # one torch thread per batch: rounding depends on their number with MKL's AVX2 kernels
            scored = in_threads(score, batches, 1, MAX_THREADS)
        with kept_threads(), closing(scored) as results:
            for indices, nll in zip(batches, results, strict=True):
                self.loaded.check_stop()
                result[torch.from_numpy(indices)] = nll
        return result

    @torch.no_grad()
    def _batch_nll(self, pairs: IdPairs) -> Tensor:
        loaded = self.loaded
        batch = collate(pairs, loaded.ids).to(loaded.device)
        # (N, D) for each model
        hidden = [
            model.hidden(batch.src, batch.tgt_in).flatten(0, 1)[batch.positions]
            for model in loaded.all_models
        ]
        rows = max(1, MAX_LOGITS // loaded.tokenizer.vocab_size)
        token_scores = []
        for start in range(0, batch.num_tokens, rows):
            log_probs = self._log_probs([states[start : start + rows] for states in hidden])
            targets = batch.targets[start : start + rows, None]
            token_scores.append(log_probs.gather(1, targets)[:, 0])
        nll = -torch.cat(token_scores).cpu().double()
        pair_of_token = batch.positions.cpu() // batch.tgt_out.shape[1]
        nll_of_pairs = torch.zeros(len(pairs), dtype=nll.dtype, device=nll.device)
        return nll_of_pairs.index_add(0, pair_of_token, nll)

    def _log_probs(self, hidden: list[Tensor]) -> Tensor:
        """Return the log-probabilities of the next token: (N, D) for each model -> (N, V)."""
        log_probs = [
            model.project(states).float().log_softmax(-1)
            for model, states in zip(self.loaded.all_models, hidden, strict=True)
        ]
        return mean_log_probs(log_probs) if len(log_probs) > 1 else log_probs[0]
