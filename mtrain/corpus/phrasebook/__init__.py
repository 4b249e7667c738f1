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

LIMITS = {"train": 5_000_000, "valid": 100_000, "test": 100_000}  # the most pairs of a call
# Hashes, in percent, of the German sides of a split; that separates the English sides, too, which
# have no other translation.
SPLITS = {"train": range(90), "valid": range(90, 95), "test": range(95, 100)}


def pairs(split: str, count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Yield `count` distinct (English, German) pairs of a split, which depend on the split and the
    seed only: fewer pairs are a prefix of more. No sentence of one split is in another, whatever
    their seeds. Raises `UserError` for too many.
    """
    if count > LIMITS[split]:
        raise UserError(f"phrasebook: {split} has at most {LIMITS[split]} pairs, not {count}")
    drawing, shown = Drawing(Random(f"{split} {seed}").random), set[bytes]()
    while len(shown) < count:
        pair = drawing.sentence()
        mark = blake2b("\t".join(pair).encode(), digest_size=8).digest()
        if mark not in shown and zlib.crc32(pair[1].encode()) % 100 in SPLITS[split]:
            shown.add(mark)
            yield pair
