"""Augmentation: each epoch changes a different random part of the training pairs, so that a model
also learns text in capitals, without a full stop, with typing errors or with unseen numbers.

1. draw      a number for each pair from the seed, the epoch and the pair's index
2. decode    the ids of the drawn pairs
3. change    their text, except user symbols and the tag
4. encode    the changed text; a pair that would become too long stays unchanged
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

FINAL = ".!?…。！？｡؟۔।॥։።፧។៕။།"  # punctuation at the end of a sentence
LETTERS_PER_TYPO = 25
WORD_START = re.compile(r"(?<!\S)\S")
NUMBER = re.compile("(?<![0-9A-Za-z])[0-9]+(?![0-9A-Za-z])")  # not the 2 of 2nd or A2


class Augmenter:
    """Changes a fraction of the pairs for each setting of `train.augment`. A pair whose text is the
    same or blank after the change, or that has unknown pieces, stays unchanged.
    """

    def __init__(
        self, tokenizer: Tokenizer, settings: AugmentConfig, seed: int, max_length: int
    ) -> None:
        self.tokenizer, self.seed, self.max_length = tokenizer, seed, max_length
        fractions = settings.model_dump()
        self.names = list(fractions)
        self.ends = np.cumsum(list(fractions.values()))
        symbols = sorted(tokenizer.user_symbols, key=len, reverse=True)
        self.symbols = re.compile(f"({'|'.join(map(re.escape, symbols)) or '(?!)'})")
        self.symbol_ids = {tokenizer.processor.piece_to_id(symbol) for symbol in symbols}

    def change(self, pairs: IdPairs, rows: NDArray[np.int64], epoch: int) -> IdPairs:
        """Return pairs of ids as an epoch uses them; `rows` are their indices in the store."""
        result = list(pairs)
        hashes = _hashes(self.seed, epoch, rows)
        # a number in [0, 1) for each pair; the fractions of the settings divide this range
        changes = np.searchsorted(self.ends, (hashes >> np.uint64(11)) * 2.0**-53, side="right")
        drawn = np.flatnonzero(changes < len(self.names)).tolist()
        unk_id = self.tokenizer.unk_id
        drawn = [index for index in drawn if not any(unk_id in side for side in pairs[index])]
        sides = [side for index in drawn for side in pairs[index]]
        tags = [self._tag(side) for side in sides]
        untagged = [side[len(tag) :].tolist() for side, tag in zip(sides, tags, strict=True)]
        texts = self.tokenizer.decode(untagged)
        changed: list[str] = []
        for index, src, tgt in zip(drawn, texts[::2], texts[1::2], strict=True):
            draw = Random(int(hashes[index])).random
            changed += self._change(self.names[changes[index]], src, tgt, draw)
        ids = self._encode(sides, tags, texts, changed)
        for index, src_ids, tgt_ids in zip(drawn, ids[::2], ids[1::2], strict=True):
            if max(len(src_ids), len(tgt_ids)) < self.max_length:
                result[index] = src_ids, tgt_ids
        return result

    def _tag(self, side: Ids) -> Ids:
        """Return the tag that a side starts with, or an empty array."""
        has_tag = len(side) > 0 and int(side[0]) in self.symbol_ids
        return side[:1] if has_tag else side[:0]

    def _encode(
        self, sides: list[Ids], tags: list[Ids], texts: list[str], changed: list[str]
    ) -> list[Ids]:
        """Return the ids of all sides; a changed text is encoded again and put after its tag."""
        indices = [n for n, text in enumerate(changed) if text != texts[n] and not is_blank(text)]
        result = list(sides)
        encoded = self.tokenizer.encode([changed[n] for n in indices])
        for n, ids in zip(indices, encoded, strict=True):
            result[n] = np.concatenate((tags[n], np.array(ids, sides[n].dtype)))
        return result

    def _change(self, name: str, src: str, tgt: str, draw: Draw) -> tuple[str, str]:
        """Return the text of a pair after the change of the setting `name`."""
        match name:
            case "upper":
                return self._outside_symbols(src, str.upper), self._outside_symbols(tgt, str.upper)
            case "title":
                return self._outside_symbols(src, _title), self._outside_symbols(tgt, _title)
            case "no_final":
                return src.rstrip().rstrip(FINAL).rstrip(), tgt
            case "typos":
                return self._outside_symbols(src, lambda text: _mistype(text, draw)), tgt
            case _:
                return self._change_numbers(src, tgt, draw)

    def _change_numbers(self, src: str, tgt: str, draw: Draw) -> tuple[str, str]:
        """Replace each number that both sides have by another one."""
        src_numbers, tgt_numbers = (
            set(NUMBER.findall(self.symbols.sub(" ", text))) for text in (src, tgt)
        )
        new = {number: _other_number(number, draw) for number in sorted(src_numbers & tgt_numbers)}

        def replace(text: str) -> str:
            return NUMBER.sub(lambda match: new.get(match[0], match[0]), text)

        return self._outside_symbols(src, replace), self._outside_symbols(tgt, replace)

    def _outside_symbols(self, text: str, change: Callable[[str], str]) -> str:
        """Change the text between user symbols."""
        parts = self.symbols.split(text)  # every second part is a symbol
        return "".join(part if n % 2 else change(part) for n, part in enumerate(parts))


def _hashes(seed: int, epoch: int, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 random bits for each index (SplitMix64)."""
    key = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    bits: NDArray[np.uint64] = key + rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _title(text: str) -> str:
    return WORD_START.sub(lambda match: match[0].title(), text)


def _mistype(text: str, draw: Draw) -> str:
    """Drop a letter, double it, replace it by another letter of the text, or swap it with the next
    character: once, and once more for every 25 letters.
    """
    characters = list(text)
    letters = [index for index, character in enumerate(text) if character.isalpha()]
    typos = 1 + len(letters) // LETTERS_PER_TYPO if letters else 0
    for _ in range(typos):
        index = letters[int(draw() * len(letters))]
        other = text[letters[int(draw() * len(letters))]]
        kind = int(draw() * 4)
        if kind < 3:
            characters[index] = ("", text[index] * 2, other)[kind]
        else:
            characters[index : index + 2] = characters[index : index + 2][::-1]
    return "".join(characters)


def _other_number(number: str, draw: Draw) -> str:
    """Return a random number of the same length. 0 and 1 stay: nouns after 1 are singular."""
    if len(number) == 1:
        return number if number in "01" else str(2 + int(draw() * 8))
    first = "0" if number[0] == "0" else str(1 + int(draw() * 9))
    return first + "".join(str(int(draw() * 10)) for _ in number[1:])
