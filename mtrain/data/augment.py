"""Augmentation: some training pairs are changed, others in each epoch, so that a model also learns
text in capitals, without a full stop, with typing errors or with numbers that it has not seen.

1. draw      a number for each pair from the seed, the epoch and the pair's index
2. decode    the ids of those that are to be changed
3. change    their text; user symbols and the tag stay
4. encode    it; a pair of which a side would become too long stays as it was
"""

import re
from collections.abc import Callable
from random import Random

import numpy as np
from numpy.typing import NDArray

from mtrain.config.schema import AugmentConfig
from mtrain.corpus.lines import is_blank
from mtrain.data.store import IdPairs, Ids
from mtrain.data.tokenizer import Tokenizer

Draw = Callable[[], float]  # in [0, 1)

FINAL = ".!?…。！？｡؟۔।॥։።፧។៕။།"  # marks at the end of a sentence
LETTERS_A_TYPO = 25
WORD_START = re.compile(r"(?<!\S)\S")
NUMBER = re.compile("(?<![0-9A-Za-z])[0-9]+(?![0-9A-Za-z])")  # but not the 2 of 2nd or of A2


class Augmenter:
    """Changes a fraction of the pairs for each setting of `train.augment`. A pair whose text is the
    same after the change, or blank, or has unknown pieces, stays as it is.
    """

    def __init__(
        self, tokenizer: Tokenizer, settings: AugmentConfig, seed: int, max_length: int
    ) -> None:
        self.tokenizer, self.seed, self.max_length = tokenizer, seed, max_length
        fractions = settings.model_dump()
        self.names, self.ends = list(fractions), np.cumsum(list(fractions.values()))
        symbols = sorted(tokenizer.user_symbols, key=len, reverse=True)
        self.symbols = re.compile(f"({'|'.join(map(re.escape, symbols)) or '(?!)'})")
        self.symbol_ids = {tokenizer.pieces.piece_to_id(symbol) for symbol in symbols}

    def change(self, pairs: IdPairs, rows: NDArray[np.int64], epoch: int) -> IdPairs:
        """Return pairs of ids, with the indices `rows` in the store, as they are in an epoch."""
        found, hashes = list(pairs), _hashes(self.seed, epoch, rows)
        kinds = np.searchsorted(self.ends, (hashes >> np.uint64(11)) * 2.0**-53, side="right")
        places = [
            place
            for place in np.flatnonzero(kinds < len(self.names)).tolist()
            if not any((side == self.tokenizer.unk_id).any() for side in pairs[place])
        ]
        sides = [side for place in places for side in pairs[place]]
        tags = [self._tag(side) for side in sides]
        ids = [side[len(tag) :].tolist() for side, tag in zip(sides, tags, strict=True)]
        texts = self.tokenizer.decode(ids)
        changed: list[str] = []
        for place, src, tgt in zip(places, texts[::2], texts[1::2], strict=True):
            draw = Random(int(hashes[place])).random
            changed += self._change(self.names[kinds[place]], src, tgt, draw)
        new = self._encode(sides, tags, texts, changed)
        for place, *pair in zip(places, new[::2], new[1::2], strict=True):
            if max(map(len, pair)) < self.max_length:
                found[place] = pair[0], pair[1]
        return found

    def _tag(self, side: Ids) -> Ids:
        """Return the tag at the start of a source, which is empty if there is none."""
        return side[: int(len(side) > 0 and int(side[0]) in self.symbol_ids)]

    def _encode(
        self, sides: list[Ids], tags: list[Ids], texts: list[str], changed: list[str]
    ) -> list[Ids]:
        """Encode the texts that changed, each after its tag; return the ids of all."""
        places = [n for n, text in enumerate(changed) if text != texts[n] and not is_blank(text)]
        new, encoded = list(sides), self.tokenizer.encode([changed[place] for place in places])
        for place, ids in zip(places, encoded, strict=True):
            new[place] = np.concatenate((tags[place], np.array(ids, sides[place].dtype)))
        return new

    def _change(self, name: str, src: str, tgt: str, draw: Draw) -> tuple[str, str]:
        """Return the text of a pair after the change of this name."""
        match name:
            case "upper":
                return self._outside_symbols(src, str.upper), self._outside_symbols(tgt, str.upper)
            case "title":
                return self._outside_symbols(src, _title), self._outside_symbols(tgt, _title)
            case "no_final":
                return src.rstrip().rstrip(FINAL).rstrip() or src, tgt
            case "typos":
                return self._outside_symbols(src, lambda text: _mistype(text, draw)), tgt
        numbers = (NUMBER.findall(self.symbols.sub(" ", text)) for text in (src, tgt))
        both = set.intersection(*map(set, numbers))
        others = {number: _other_number(number, draw) for number in sorted(both)}

        def replace(text: str) -> str:
            return NUMBER.sub(lambda found: others.get(found[0], found[0]), text)

        return self._outside_symbols(src, replace), self._outside_symbols(tgt, replace)

    def _outside_symbols(self, text: str, change: Callable[[str], str]) -> str:
        parts = self.symbols.split(text)
        return "".join(part if n % 2 else change(part) for n, part in enumerate(parts))


def _hashes(seed: int, epoch: int, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 random bits for each index (SplitMix64)."""
    key = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    bits: NDArray[np.uint64] = key + rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _title(text: str) -> str:
    return WORD_START.sub(lambda found: found[0].title(), text)


def _mistype(text: str, draw: Draw) -> str:
    """Drop a letter, double it, take another one of the text for it, or swap it with the next
    character: once, and once more for each 25 letters.
    """
    characters = list(text)
    letters = [place for place, character in enumerate(text) if character.isalpha()]
    for _ in range(1 + len(letters) // LETTERS_A_TYPO if letters else 0):
        place, other, kind = letters[int(draw() * len(letters))], draw(), int(draw() * 4)
        if kind < 3:
            replacements = ("", text[place] * 2, text[letters[int(other * len(letters))]])
            characters[place] = replacements[kind]
        else:
            characters[place : place + 2] = characters[place : place + 2][::-1]
    return "".join(characters)


def _other_number(number: str, draw: Draw) -> str:
    """Return another number of the same length. 0 and 1 stay: after 1 nouns have another form."""
    if len(number) == 1:
        return number if number in "01" else str(2 + int(draw() * 8))
    first = "0" if number[0] == "0" else str(1 + int(draw() * 9))
    return first + "".join(str(int(draw() * 10)) for _ in number[1:])
