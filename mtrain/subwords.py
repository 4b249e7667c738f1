"""Subword sampling: the same text cut into other pieces each time it is learned from."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtrain.tokenizer import Tokenizer

Row = NDArray[Any]
Pairs = list[tuple[Row, Row]]


class SubwordSampler:
    """Draws the pieces of both sides anew: BPE-dropout (Provilkov et al. 2020, algorithm 1), or a
    unigram model's regularization (Kudo 2018, section 3.2).

    A side whose text its pieces do not tell, and one that would become longer than `max_length`
    tokens with eos, keeps the pieces that it has.
    """

    def __init__(self, tokenizer: Tokenizer, strength: float, max_length: int) -> None:
        """`strength` is the share of a BPE's merges that are left out, or the exponent of a unigram
        model's probabilities.
        """
        self.tokenizer, self.strength, self.max_length = tokenizer, strength, max_length

    def draw(self, pairs: Pairs, seed: int) -> Pairs:
        """Draw the pieces of pairs of ids; the same seed gives the same."""
        rows = [row for pair in pairs for row in pair]
        texts = self.tokenizer.decode([row.tolist() for row in rows])
        drawn = self.tokenizer.sample(texts, self.strength, seed)
        chosen = [self._choose(*both) for both in zip(rows, drawn, strict=True)]
        return list(zip(chosen[::2], chosen[1::2], strict=True))

    def _choose(self, row: Row, drawn: list[int]) -> Row:
        if len(drawn) >= self.max_length or self.tokenizer.unk_id in row:
            return row
        return np.array(drawn, row.dtype)
