"""A built-in English-German parallel corpus, generated from a hand-written grammar.

It needs no download: it shows that training and translating work, and says nothing about the
quality of translations of real text. Every sentence is drawn in both languages at once. An English
sentence has exactly one German translation ("you" is always "du"), so that a model can learn the
mapping completely.
"""

import zlib
from collections.abc import Iterator
from hashlib import blake2b
from random import Random

from mtrain.corpus.phrasebook.grammar import Drawing
from mtrain.runtime.errors import UserError

LIMITS = {"train": 5_000_000, "valid": 100_000, "test": 100_000}  # maximum pairs of a call
# A pair's split follows from a hash of its German side, modulo 100. This separates the English
# sides, too, since each has exactly one translation.
SPLITS = {"train": range(90), "valid": range(90, 95), "test": range(95, 100)}


def pairs(split: str, count: int) -> Iterator[tuple[str, str]]:
    """Yield the first `count` pairs (English, German) of a split, which are always the same and all
    different. No sentence of one split is in another. Raises `UserError` for too many.
    """
    if count > LIMITS[split]:
        raise UserError(
            f"phrasebook: {split} has at most {LIMITS[split]} pairs, not {count}; lower pairs"
        )
    drawing = Drawing(Random(f"{split} 1").random)
    digests = set[bytes]()
    while len(digests) < count:
        pair = drawing.sentence()
        digest = blake2b("\t".join(pair).encode(), digest_size=8).digest()
        if digest not in digests and zlib.crc32(pair[1].encode()) % 100 in SPLITS[split]:
            digests.add(digest)
            yield pair
