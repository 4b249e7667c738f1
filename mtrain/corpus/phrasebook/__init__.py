"""A built-in English-German parallel corpus, generated from a hand-written grammar.

It needs no download: it shows that training and translating work, and says nothing about the
quality of translations of real text. Every sentence is drawn in both languages at once. An English
sentence has exactly one German translation ("you" is always "du"), so that a model can learn the
mapping completely. Some combinations of a verb with its object and of an adjective with its noun
occur only in the test split, in about half of its sentences.
"""

import zlib
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from random import Random
from typing import NamedTuple

from mtrain.corpus.phrasebook.grammar import Draw, draw_sentence

LIMITS = {"train": 5_000_000, "valid": 100_000, "test": 100_000}  # the most pairs of a call
SPLITS = tuple(LIMITS)

HELD_OUT_PERCENT, NOVEL_FRACTION = 20, 0.45
MIN_WORDS, MAX_WORDS = 3, 20


class Derivation(NamedTuple):
    """A sentence pair with the lexeme combinations that its grammar put together."""

    english: str
    german: str
    combinations: tuple[tuple[str, str], ...]


@cache
def held_out(first: str, second: str) -> bool:
    """Whether a combination (verb, object) or (adjective, noun) is kept for the test split."""
    return zlib.crc32(f"{first} {second}".encode()) % 100 < HELD_OUT_PERCENT


def is_novel(pair: Derivation) -> bool:
    """Whether a sentence shows a held-out combination."""
    return any(held_out(*combination) for combination in pair.combinations)


def split_of(pair: Derivation) -> str:
    """Return the only split that may contain a sentence, by a hash of its German side; this
    separates the English side, too, which has no other translation.
    """
    percent = zlib.crc32(pair.german.encode()) % 100
    return "test" if percent >= 95 or is_novel(pair) else "train" if percent < 90 else "valid"


def _draw(random: Callable[[], float], split: str) -> Derivation:
    """Draw until a sentence belongs to the split; in the test split, a fraction is novel."""
    novel = split == "test" and random() < NOVEL_FRACTION
    while True:
        draw = Draw(random)
        en, de = draw_sentence(draw)
        pair, sizes = Derivation(en, de, tuple(draw.combinations)), (en.count(" "), de.count(" "))
        fits = min(sizes) >= MIN_WORDS - 1 and max(sizes) < MAX_WORDS and not draw.repeats
        if fits and is_novel(pair) == novel and split_of(pair) == split:
            return pair


def _stream(split: str, count: int, seed: int) -> Iterator[Derivation]:
    random = Random(f"{split} {seed}").random
    shown: set[bytes] = set()
    while len(shown) < count:
        pair = _draw(random, split)
        mark = blake2b(f"{pair.english}\t{pair.german}".encode(), digest_size=8).digest()
        if mark not in shown:
            shown.add(mark)
            yield pair


def derivations(split: str, count: int, seed: int = 1) -> Iterator[Derivation]:
    """Return the pairs of `pairs` with the combinations that each sentence contains."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: must be one of {', '.join(SPLITS)}")
    if not 0 <= count <= LIMITS[split]:
        raise ValueError(f"the {split} split has 0 to {LIMITS[split]} pairs, not {count}")
    return _stream(split, count, seed)


def pairs(split: str, count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Return `count` distinct (English, German) pairs of a split, which depend on the split and the
    seed only: fewer pairs are a prefix of more. No sentence of one split is in another, whatever
    their seeds. Raises `ValueError`.
    """
    return ((pair.english, pair.german) for pair in derivations(split, count, seed))
