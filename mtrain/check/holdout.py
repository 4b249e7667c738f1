"""Pairs that are held out of a corpus, to validate on."""

from pathlib import Path
from typing import IO

import numpy as np

from mtrain.config.schema import TextCorpus
from mtrain.corpus.lines import Reading, is_blank
from mtrain.corpus.readers import read_rows
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.log import logger, progress_bar
from mtrain.runtime.stop import Stop

CHUNK = 10_000  # pairs between checks for a stop
MOST_HELD_OUT = 0.1  # fraction of the pairs


def hold_out(
    corpus: TextCorpus, pairs: int, count: int, parts: dict[Path, IO[bytes]], stop: Stop
) -> int:
    """Split off pairs as a validation set, drawn from all over the text, and write to four open
    files: train and valid, source and target.

    Pairs with the same text on a side as a held-out pair are in neither. Return the number of pairs
    left for training; raises `UserError` if no pair can be held out, or none is left.
    """
    if count > MOST_HELD_OUT * pairs:
        raise RefusedError(
            f"--hold-out {count}: more than a tenth of the {pairs:,} pairs; give a "
            "smaller number, or a validation set of its own by --valid-src and --valid-tgt"
        )
    held = chosen(corpus, pairs, count, stop)
    if not held:
        raise UserError(
            f"{corpus.src}: nothing can be held out: the pairs that were drawn are blank on a side "
            "or invalid UTF-8; see mtrain check"
        )
    sources, targets = (set(map(str.strip, texts)) for texts in zip(*held.values(), strict=True))
    sinks = list(parts.values())
    left = dropped = 0
    with progress_bar(pairs, "pair", "splitting") as bar:
        for number, src, tgt in read_rows(corpus, Reading(invalid_utf8="drop")):
            bar.update()
            if number % CHUNK == 0:
                stop.check()
            is_held = number in held
            if not is_held and (src.strip() in sources or tgt.strip() in targets):
                dropped += 1
                continue
            left += not (is_held or is_blank(src) or is_blank(tgt))
            for side, text in enumerate((src, tgt)):
                sinks[side + 2 * is_held].write(text.encode("utf-8") + b"\n")
    if not left:
        raise UserError(
            f"{corpus.src}: nothing is left to learn from: every other pair is blank on a side "
            "or shares one with those held out"
        )
    logger.info("held out %s pairs: %s, %s", f"{len(held):,}", *list(parts)[2:])
    if len(held) < count:
        logger.warning(
            "these are fewer than the %s asked for: others that were drawn are blank or share a "
            "side with one of them",
            f"{count:,}",
        )
    if dropped:
        logger.info("left out %s pairs that share a side with one of them", f"{dropped:,}")
    return left


def chosen(corpus: TextCorpus, pairs: int, count: int, stop: Stop) -> dict[int, tuple[str, str]]:
    """Draw pairs that are not blank and share no side, by their line numbers."""
    drawn = np.random.default_rng(1).choice(pairs, 2 * count, replace=False, shuffle=False)
    wanted = set((drawn + 1).tolist())
    found: dict[int, tuple[str, str]] = {}
    seen: tuple[set[str], set[str]] = set(), set()
    for number, *sides in read_rows(corpus, Reading(invalid_utf8="drop")):
        if number % CHUNK == 0:
            stop.check()
        if number in wanted and not any(map(is_blank, sides)):
            if not any(text.strip() in before for text, before in zip(sides, seen, strict=True)):
                found[number] = (sides[0], sides[1])
            for text, before in zip(sides, seen, strict=True):
                before.add(text.strip())
    order = np.random.default_rng(2).permutation(len(found))[:count]
    numbers = list(found)
    return {number: found[number] for number in sorted(numbers[place] for place in order.tolist())}
