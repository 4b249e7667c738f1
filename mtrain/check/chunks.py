"""Chunks of a corpus: some rows at a time, with the words, letters and hashes to check."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mtrain.check.findings import Findings
from mtrain.check.words import PIECES_PER_CHARACTER, PIECES_PER_WORD, Characters, Words, combined
from mtrain.corpus.lines import chunked, is_blank
from mtrain.corpus.readers import plain_forms
from mtrain.corpus.tables import TextRow
from mtrain.data.duplicates import text_hashes

# Pairs and characters of a chunk, approximately: each character takes far more memory in numpy.
CHUNK, CHUNK_CHARACTERS = 10_000, 1 << 21
CONTEXT = 20  # characters that an example shows before the fault

Mask = NDArray[np.bool_]  # whether each row is selected
Hashes = NDArray[np.uint64]  # one for each row


@dataclass(frozen=True)
class Chunk:
    """Some rows of a corpus: their numbers, and by side their texts, words, and letter counts by
    script.
    """

    findings: Findings  # of the corpus
    numbers: Sequence[int]
    texts: tuple[Sequence[str], Sequence[str]]
    words: tuple[Words, Words]
    letters: tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.int64]]]

    @staticmethod
    def of(findings: Findings, rows: Sequence[TextRow], characters: Characters) -> "Chunk":
        """Make a chunk of rows, at least one; find their words and letters."""
        numbers, *texts = zip(*rows, strict=True)
        words, letters = zip(*map(characters.read, texts), strict=True)
        return Chunk(findings, numbers, (texts[0], texts[1]), words, letters)

    @staticmethod
    def join(findings: Findings, parts: Sequence["Chunk"]) -> "Chunk":
        """Concatenate chunks, without their letters."""
        numbers = [number for part in parts for number in part.numbers]
        src, tgt = ([text for part in parts for text in part.texts[side]] for side in (0, 1))
        words = tuple(Words.join([part.words[side] for part in parts]) for side in (0, 1))
        return Chunk(findings, numbers, (src, tgt), (words[0], words[1]), ({}, {}))

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Numbers of characters of both sides, shape (rows, 2)."""
        return np.array([list(map(len, texts)) for texts in self.texts], np.int64).T

    @cached_property
    def estimated_tokens(self) -> NDArray[np.float64]:
        """Estimates of the numbers of tokens of both sides, for text without a vocabulary, shape
        (rows, 2).
        """
        sides = []
        for words, letters in zip(self.words, self.letters, strict=True):
            tokens = PIECES_PER_WORD * words.counts
            for script, pieces in PIECES_PER_CHARACTER.items():
                if script in letters:  # each of these characters was counted as a word
                    tokens += (pieces - PIECES_PER_WORD) * letters[script]
            sides.append(tokens)
        return np.stack(sides, 1)

    @cached_property
    def blank(self) -> Mask:
        """Whether each side is blank, shape (2, rows)."""
        return self.flags(is_blank)

    def flags(self, test: Callable[[str], object]) -> Mask:
        """Return whether a test holds for each text, shape (2, rows)."""
        return np.array([list(map(test, texts)) for texts in self.texts], bool)

    @cached_property
    def pair_hashes(self) -> Hashes:
        """Hashes of the pairs, with each side stripped of white space. The two directions of a pair
        have different hashes.
        """
        src, tgt = (text_hashes(map(str.strip, texts)) for texts in self.texts)
        return combined(src, tgt) ^ np.uint64(self.findings.is_backward)

    @cached_property
    def plain_hashes(self) -> tuple[Hashes, Hashes, Hashes]:
        """Hashes of the plain forms of the pairs, the sources and the targets."""
        src, tgt = (text_hashes(plain_forms(texts)) for texts in self.texts)
        return combined(src, tgt), src, tgt

    @cached_property
    def bigrams(self) -> tuple[Words, Words]:
        """The distinct bigrams of both sides."""
        return self.words[0].bigrams(), self.words[1].bigrams()

    def prepare(self) -> None:
        """Compute here, in a worker process, what comparisons with other text need."""
        _ = self.lengths, self.pair_hashes, self.plain_hashes, self.bigrams

    def report(
        self,
        kind: str,
        mask: Mask,
        side: int | None = None,
        *,
        ranks: NDArray[np.float64] | None = None,
        positions: NDArray[np.int64] | None = None,
        detail: str = "",
    ) -> None:
        """Report a finding about the rows of a mask, on one side or both. The examples are the rows
        with the lowest `ranks`, shown from a little before the character at their `positions`.
        """
        rows = np.flatnonzero(mask)
        if not len(rows):
            return
        row_ranks = np.zeros(len(rows)) if ranks is None else ranks[rows]
        sides = self.texts if side is None else [self.texts[side]]
        examples = []
        max_kept = self.findings.max_kept(kind)
        for index in np.argsort(row_ranks, kind="stable")[:max_kept].tolist():
            row = int(rows[index])
            rank = float(row_ranks[index])
            start = 0 if positions is None else max(0, int(positions[row]) - CONTEXT)
            text = "..." * (start > 0) + " | ".join(texts[row] for texts in sides)[start:]
            examples.append(self.findings.example(self.numbers[row], text, side, rank=rank))
        self.findings.add(kind, len(rows), examples, detail)


def split_rows(rows: Iterable[TextRow]) -> Iterator[list[TextRow]]:
    """Split rows into parts that take little memory; each has at least one row."""
    return chunked(rows, CHUNK, CHUNK_CHARACTERS)


def chunks(findings: Findings, rows: Iterable[TextRow], characters: Characters) -> Iterator[Chunk]:
    """Split rows into chunks."""
    for part in split_rows(rows):
        yield Chunk.of(findings, part, characters)
