"""BPE-dropout (Provilkov et al. 2020): text is segmented differently each time it is trained on.

SentencePiece implements it, but a seed does not repeat its draws in another process. Here numpy
segments the words of many lines at once.

Shapes: `N` symbols of all words, concatenated.
"""

from collections.abc import Callable
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from mtrain.data.store import IdPairs, Ids
from mtrain.data.tokenizer import Tokenizer
from mtrain.runtime.errors import RefusedError

Symbols = NDArray[np.int64]

CHUNK = 4000  # pairs that are segmented at once


class SubwordSampler:
    """Draws the pieces of source and target, dropping a fraction of the merges. Text that would
    become longer than `max_length` tokens with eos keeps its usual pieces. Raises `RefusedError`
    for a vocabulary that is not a BPE.
    """

    def __init__(self, tokenizer: Tokenizer, dropout: float, max_length: int) -> None:
        if not tokenizer.is_bpe:
            raise RefusedError(
                "train.subword_sampling: drops merges, which this vocabulary does not have; "
                "set tokenizer.model_type: bpe"
            )
        self.dropout, self.max_length = dropout, max_length
        pieces, size = tokenizer.plain_pieces, tokenizer.vocab_size
        ids = {piece: number for number, piece in pieces.items()}
        self.scores = np.full(size + 1, -np.inf)  # merges with the highest score are done first
        self.begins_word = np.zeros(size, bool)
        self.spelled: list[list[int]] = [[number] for number in range(size)]
        merges: list[tuple[int, int]] = []
        for number, piece in pieces.items():
            self.scores[number] = tokenizer.pieces.get_score(number)
            self.begins_word[number] = piece.startswith("\u2581")
            if all(character in ids for character in piece):
                self.spelled[number] = [ids[character] for character in piece]
            for cut in range(1, len(piece)):
                left, right = ids.get(piece[:cut]), ids.get(piece[cut:])
                if left is not None and right is not None:
                    merges.append((left * size + right, number))
        self.vocab_size, self.no_merge = size, size  # the id after the last: no merge
        keys, self.merged = np.array(sorted(merges) or [(-1, size)], np.int64).T
        self.keys = np.ascontiguousarray(keys)

    def draw(self, pairs: IdPairs, seed: int, check: Callable[[], None] = lambda: None) -> IdPairs:
        """Draw the pieces of pairs of ids; the same seed draws the same. `check` is called for
        each chunk; it may raise.
        """
        random = np.random.default_rng(seed)
        found: IdPairs = []
        for start in range(0, len(pairs), CHUNK):
            check()
            rows = list(chain.from_iterable(pairs[start : start + CHUNK]))
            both = zip(rows, self._segment(rows, random), strict=True)
            chosen = [old if len(new) >= self.max_length else new for old, new in both]
            found += zip(chosen[::2], chosen[1::2], strict=True)
        return found

    def _segment(self, rows: list[Ids], random: np.random.Generator) -> list[Ids]:
        """Split ids into characters and merge them again. In each round, and for each word, merges
        are dropped at random and the best remaining one is applied, until none remains.
        """
        spelled = [list(chain.from_iterable(self.spelled[i] for i in row.tolist())) for row in rows]
        lengths = np.fromiter(map(len, spelled), np.int64, len(spelled))
        symbols = np.fromiter(chain.from_iterable(spelled), np.int64, int(lengths.sum()))
        starts = self.begins_word[symbols]
        starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        words = np.cumsum(starts) - 1
        places, found = np.arange(len(symbols)), np.full(len(symbols), -1)
        merged = self._look_up(symbols, words)
        while len(symbols):
            left_out = random.random(len(symbols)) < self.dropout
            best = _best_of_words(np.where(left_out, -np.inf, self.scores[merged]), words)
            found[places] = symbols  # of words without merges for good
            found[places[best + 1]] = -1
            symbols[best] = merged[best]
            kept = np.zeros(int(words[-1]) + 1, bool)
            kept[words[best]] = True
            kept = kept[words]
            kept[best + 1] = False
            found[places[best]] = symbols[best]
            symbols, words, places, merged = (x[kept] for x in (symbols, words, places, merged))
            merged = self._look_up(symbols, words)
        left = found >= 0
        counts = np.bincount(np.repeat(np.arange(len(rows)), lengths)[left], minlength=len(rows))
        parts = np.split(found[left], np.cumsum(counts)[:-1])
        return [part.astype(row.dtype) for part, row in zip(parts, rows, strict=True)]

    def _look_up(self, symbols: Symbols, words: Symbols) -> Symbols:
        """Return what each symbol and the next of its word merge to, or else `no_merge`: (N,)."""
        found = np.full(len(symbols), self.no_merge)
        keys = symbols[:-1] * self.vocab_size + symbols[1:]
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        merge = (self.keys[at] == keys) & (words[:-1] == words[1:])
        found[:-1][merge] = self.merged[at[merge]]
        return found


def _best_of_words(scores: NDArray[np.float64], words: Symbols) -> Symbols:
    """Return the index of the first highest score of each word that has any."""
    starts = np.flatnonzero(np.diff(words, prepend=-1))
    best = np.maximum.reduceat(scores, starts)
    number = np.cumsum(np.diff(words, prepend=words[0]) != 0)
    places = np.flatnonzero((scores == best[number]) & np.isfinite(scores))
    firsts: Symbols = places[np.diff(words[places], prepend=-1) != 0]
    return firsts
