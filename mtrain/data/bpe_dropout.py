"""BPE-dropout (Provilkov et al. 2020): text is segmented differently each time it is trained on.

SentencePiece also has BPE-dropout, but with the same seed it draws other segmentations in another
process. Here numpy segments the words of many lines at once.

Shapes: `N` symbols of all words, concatenated.
"""

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from mtrain.data.store import IdPairs, Ids
from mtrain.data.tokenizer import Tokenizer

Symbols = NDArray[np.int64]


class SubwordSampler:
    """Segments source and target at random by a BPE vocabulary, dropping a fraction of the merges.
    A side that would become longer than `max_length` tokens with eos keeps its usual pieces.
    """

    def __init__(self, tokenizer: Tokenizer, dropout: float, max_length: int) -> None:
        self.dropout, self.max_length = dropout, max_length
        pieces = tokenizer.plain_pieces
        size = tokenizer.vocab_size
        ids = {piece: number for number, piece in pieces.items()}
        self.scores = np.full(size + 1, -np.inf)  # the merge with the highest score comes first
        self.begins_word = np.zeros(size, bool)
        # ids of the characters of each piece; a piece with unknown characters is not split
        self.spelled: list[list[int]] = [[number] for number in range(size)]
        merges: list[tuple[int, int]] = []
        for number, piece in pieces.items():
            self.scores[number] = tokenizer.processor.get_score(number)
            self.begins_word[number] = piece.startswith("\u2581")
            if all(character in ids for character in piece):
                self.spelled[number] = [ids[character] for character in piece]
            for cut in range(1, len(piece)):
                left, right = ids.get(piece[:cut]), ids.get(piece[cut:])
                if left is not None and right is not None:
                    merges.append((left * size + right, number))
        self.vocab_size = size
        self.no_merge = size  # the id after the last one
        keys, self.merged = np.array(sorted(merges) or [(-1, size)], np.int64).T
        self.keys = np.ascontiguousarray(keys)

    def draw(self, pairs: IdPairs, random: np.random.Generator) -> IdPairs:
        """Segment pairs of ids again; the same random numbers give the same result."""
        rows = list(chain.from_iterable(pairs))
        old_and_new = zip(rows, self._segment(rows, random), strict=True)
        chosen = [old if len(new) >= self.max_length else new for old, new in old_and_new]
        return list(zip(chosen[::2], chosen[1::2], strict=True))

    def _segment(self, rows: list[Ids], random: np.random.Generator) -> list[Ids]:
        """Split ids into characters and merge them again. In each round, and for each word, merges
        are dropped at random and the best remaining one is applied, until none remains.

        Example: the word `l o w s` starts as the result [l, o, w, s]. Merging l and o makes it
        [lo, -1, w, s], merging lo and w makes it [low, -1, -1, s]: a merged symbol stands at the
        position of its first character. In the end, each -1 is removed.
        """
        spelled = [list(chain.from_iterable(self.spelled[i] for i in row.tolist())) for row in rows]
        lengths = np.fromiter(map(len, spelled), np.int64, len(spelled))
        symbols = np.fromiter(chain.from_iterable(spelled), np.int64, int(lengths.sum()))
        starts = self.begins_word[symbols]
        starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True  # each row starts a word, too
        words = np.cumsum(starts) - 1
        result = symbols.copy()
        positions = np.arange(len(symbols))
        while len(symbols):
            merged = self._look_up(symbols, words)
            is_dropped = random.random(len(symbols)) < self.dropout
            best = _best_of_words(np.where(is_dropped, -np.inf, self.scores[merged]), words)
            symbols[best] = merged[best]
            result[positions[best]] = merged[best]
            result[positions[best + 1]] = -1
            remains = np.isin(words, words[best])  # a word without a merge is complete
            remains[best + 1] = False
            symbols, words, positions = symbols[remains], words[remains], positions[remains]
        is_symbol = result >= 0
        row_of_symbol = np.repeat(np.arange(len(rows)), lengths)[is_symbol]
        counts = np.bincount(row_of_symbol, minlength=len(rows))
        parts = np.split(result[is_symbol], np.cumsum(counts)[:-1])
        return [part.astype(row.dtype) for part, row in zip(parts, rows, strict=True)]

    def _look_up(self, symbols: Symbols, words: Symbols) -> Symbols:
        """Return the id that each symbol and the next of its word merge to, or `no_merge`: (N,)."""
        merged = np.full(len(symbols), self.no_merge)
        keys = symbols[:-1] * self.vocab_size + symbols[1:]
        indices = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        can_merge = (self.keys[indices] == keys) & (words[:-1] == words[1:])
        merged[:-1][can_merge] = self.merged[indices[can_merge]]
        return merged


def _best_of_words(scores: NDArray[np.float64], words: Symbols) -> Symbols:
    """Return the index of the first highest score of each word that has a finite score."""
    is_start = np.diff(words, prepend=-1) != 0
    best = np.maximum.reduceat(scores, np.flatnonzero(is_start))
    best_of_symbol = best[np.cumsum(is_start) - 1]
    highest = np.flatnonzero((scores == best_of_symbol) & np.isfinite(scores))
    first: Symbols = highest[np.diff(words[highest], prepend=-1) != 0]
    return first
