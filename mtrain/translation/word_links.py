"""Hard word alignments by attention, in Pharaoh's form (`0-0 1-2`: source word, target word).

A target word is aligned to the source word with the most attention, averaged over the heads of the
last `LAYERS` layers: which single layer is best depends on their number.
"""

import re

import numpy as np
import torch
from numpy.typing import NDArray

from mtrain.corpus.lines import is_blank
from mtrain.data.batches import batch_by_tokens, collate
from mtrain.runtime.device import telling_lack_of_memory
from mtrain.translation.loading import LoadedModel

LAYERS = 3
BYTE = re.compile("<0x([0-9A-F]{2})>")


def align(loaded: LoadedModel, sources: list[str], targets: list[str]) -> list[str]:
    """Align the words of each source line and its translation."""
    found = [""] * len(sources)
    both = zip(sources, targets, strict=True)
    places = [n for n, sides in enumerate(both) if not any(map(is_blank, sides))]
    sides = [[_pieces(loaded, lines[place]) for place in places] for lines in (sources, targets)]
    rows = [(src, tgt) for (src, _), (tgt, _) in zip(*sides, strict=True)]
    lengths = np.array([(len(src) + 1, len(tgt) + 1) for src, tgt in rows]).reshape(-1, 2)
    budget = max(1, loaded.decode.batch_tokens // loaded.decode.beam_size)
    for batch in batch_by_tokens(lengths, budget):
        loaded.check_stop()
        with telling_lack_of_memory(lambda: "out of memory on alignments; lower --batch-tokens"):
            maps = _attention(loaded, [rows[i] for i in batch])
        for i, table in zip(batch, maps, strict=True):
            words = [side[i][1] for side in sides]
            found[places[i]] = _links(table[: len(words[1]), : len(words[0])], *words)
    return found


def _pieces(loaded: LoadedModel, text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids of a line and the word index of each piece, as far as the model reads."""
    ids = loaded.tokenizer.encode([text])[0]
    words = word_numbers(list(map(loaded.tokenizer.pieces.id_to_piece, ids)))
    most = loaded.max_source_length - 1
    return np.array(ids[:most]), np.array(words[:most])


def word_numbers(pieces: list[str]) -> list[int]:
    """Number the words, separated by white space, to which pieces belong; a space belongs to the
    word after it.
    """
    numbers, word, within, spelled = [], -1, False, b""
    for piece in pieces:
        text = piece.replace("\u2581", " ")
        if byte := BYTE.fullmatch(piece):
            spelled += bytes.fromhex(byte[1])
            text = spelled.decode("utf-8", "ignore")
        if text:
            spelled = b""
        for character in text:
            word += not within and not character.isspace()
            within = not character.isspace()
        numbers.append(word if within else word + 1)
    return [min(number, max(word, 0)) for number in numbers]


@torch.no_grad()
def _attention(
    loaded: LoadedModel, rows: list[tuple[NDArray[np.int64], NDArray[np.int64]]]
) -> NDArray[np.float32]:
    """Attention over the source, mean of heads and layers: (B, T, S)."""
    batch = collate(rows, loaded.ids).to(loaded.device)
    maps = loaded.model.attention_maps(batch.src, batch.tgt_in)["cross"]
    mean = torch.stack(maps[-LAYERS:]).float().mean((0, 2))
    found: NDArray[np.float32] = mean.cpu().numpy()
    return found


def _links(
    table: NDArray[np.float32], src_words: NDArray[np.int64], tgt_words: NDArray[np.int64]
) -> str:
    """Link each target word to the source word that its pieces (T, S) attend to most."""
    by_word = np.zeros((int(tgt_words.max()) + 1, int(src_words.max()) + 1))
    np.add.at(by_word, (tgt_words[:, None], src_words[None, :]), table)
    return " ".join(f"{int(row.argmax())}-{word}" for word, row in enumerate(by_word))
