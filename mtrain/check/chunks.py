"""Some rows of a corpus at a time, with what the checks ask of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mtrain.check.findings import Findings
from mtrain.check.words import Characters, Words, mixed
from mtrain.corpus.lines import chunked, is_blank
from mtrain.corpus.tables import TextRow
from mtrain.data.duplicates import text_hashes

# Pairs in a chunk, and roughly its characters: each takes far more memory in numpy.
CHUNK, CHUNK_CHARACTERS = 10_000, 1 << 21
CONTEXT = 20  # characters that an example shows before the fault

Mask = NDArray[np.bool_]  # whether a row is meant


@dataclass(frozen=True)
class Chunk:
    """Rows of a corpus: numbers, texts, words, and the counts of letters by script, by side."""

    findings: Findings  # of the corpus
    numbers: Sequence[int]
    texts: tuple[Sequence[str], Sequence[str]]
    words: tuple[Words, Words]
    letters: tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.int64]]]

    @staticmethod
    def of(findings: Findings, rows: Sequence[TextRow], characters: Characters) -> "Chunk":
        """Read the words and letters of rows."""
        numbers, src, tgt = zip(*rows, strict=True)
        (src_words, src_letters), (tgt_words, tgt_letters) = map(characters.read, (src, tgt))
        words, letters = (src_words, tgt_words), (src_letters, tgt_letters)
        return Chunk(findings, numbers, (src, tgt), words, letters)

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
        """Characters of each side, shape (rows, 2)."""
        return np.array([list(map(len, texts)) for texts in self.texts], np.int64).T

    @cached_property
    def blank(self) -> Mask:
        """Whether each side is blank, shape (2, rows)."""
        return np.array([list(map(is_blank, texts)) for texts in self.texts], bool)

    @cached_property
    def hashes(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]:
        """Hashes of the pairs, the sources and the targets, without white space around them."""
        src, tgt = (text_hashes(map(str.strip, texts)) for texts in self.texts)
        return mixed(src, tgt), src, tgt

    @cached_property
    def bigrams(self) -> tuple[Words, Words]:
        """Pairs of neighbouring words."""
        return self.words[0].bigrams(), self.words[1].bigrams()

    def add(
        self,
        kind: str,
        rows: Mask,
        side: int | None = None,
        *,
        ranks: NDArray[np.float64] | None = None,
        places: NDArray[np.int64] | None = None,
        about: str = "",
    ) -> None:
        """Add a finding about rows, on one side or both; the lowest of `ranks` are shown first,
        from the characters at `places` on.
        """
        chosen = np.flatnonzero(rows)
        order = np.zeros(len(chosen)) if ranks is None else ranks[chosen]
        examples = []
        for index in np.argsort(order, kind="stable")[: self.findings.most].tolist():
            row = int(chosen[index])
            texts = self.texts if side is None else [self.texts[side]]
            start = 0 if places is None else max(0, int(places[row]) - CONTEXT)
            text = "..." * (start > 0) + " | ".join(each[row] for each in texts)[start:]
            number, rank = self.numbers[row], float(order[index])
            examples.append(self.findings.example(number, text, side, rank=rank))
        if len(chosen):
            self.findings.add(kind, len(chosen), examples, about)


def chunks(findings: Findings, rows: Iterable[TextRow], characters: Characters) -> Iterator[Chunk]:
    """Cut rows into chunks that take little memory; each has at least one row."""
    for some in chunked(rows, CHUNK, CHUNK_CHARACTERS):
        yield Chunk.of(findings, some, characters)
