"""Attention weights of sentence pairs, and word alignments by them.

Alignments are in Pharaoh's form (`0-0 1-2`: source word, target word). A target word is aligned to
the source word with the most attention, averaged over the heads of the last `LAYERS` layers: which
single layer is best depends on their number.
"""

import re
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtrain.corpus.lines import is_blank
from mtrain.data.batches import batch_by_tokens, collate
from mtrain.runtime.device import out_of_memory_as
from mtrain.translation.loading import LoadedModel

LAYERS = 3
BYTE = re.compile("<0x([0-9A-F]{2})>")

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Attention:
    """Attention weights of a sentence pair; each row of a table sums to 1.

    `source` (S) and `target` (T) are pieces, both ending with `</s>`; `target_in` (T) is the input
    of the decoder, beginning with `<s>`. For each layer there is an array: `encoder` (H, S, S),
    `decoder` (H, T, T) over `target_in`, `cross` (H, T, S).
    """

    source: list[str]
    target: list[str]
    target_in: list[str]
    encoder: list[NDArray[np.float32]]
    decoder: list[NDArray[np.float32]]
    cross: list[NDArray[np.float32]]


@torch.no_grad()
def attention_maps(loaded: LoadedModel, pairs: list[tuple[Ids, Ids]]) -> dict[str, list[Tensor]]:
    """Return the attention weights of pairs of ids without eos: by kind (`encoder`, `decoder`,
    `cross`) and layer, (B, H, queries, keys). Keys of the decoder are bos and the target.
    """
    batch = collate(pairs, loaded.ids).to(loaded.device)
    return loaded.model.attention_maps(batch.src, batch.tgt_in)


def attention_of(loaded: LoadedModel, src: Ids, tgt: Ids) -> Attention:
    """Return the attention weights of a pair of ids without eos."""
    bos, eos, pieces = loaded.ids.bos, loaded.ids.eos, loaded.tokenizer.all_pieces
    sides = ((*src, eos), (*tgt, eos), (bos, *tgt))
    read, produced, seen = ([pieces[number] for number in side] for side in sides)
    maps = attention_maps(loaded, [(src, tgt)]).items()
    tables = {kind: [layer[0].float().cpu().numpy() for layer in layers] for kind, layers in maps}
    return Attention(read, produced, seen, **tables)


def align(loaded: LoadedModel, sources: list[str], targets: list[str]) -> list[str]:
    """Align the words of each source line and its translation."""
    links = [""] * len(sources)
    lines = enumerate(zip(sources, targets, strict=True))
    places = [place for place, pair in lines if not any(map(is_blank, pair))]
    tag, pieces = loaded.tag_ids, loaded.tokenizer.all_pieces

    def words_of(ids: Ids) -> Ids:
        """Return the index of the word that each piece belongs to."""
        return np.array(word_numbers([pieces[number] for number in ids]), np.int64)

    src_ids, _ = loaded.encode_sources([sources[i] for i in places])
    tgt_ids, _ = loaded.encode_targets([targets[i] for i in places])
    pairs = list(zip(src_ids, tgt_ids, strict=True))
    lengths = np.array([(len(src) + 1, len(tgt) + 1) for src, tgt in pairs])
    budget = max(1, loaded.decode.batch_tokens // loaded.decode.beam_size)
    for batch in batch_by_tokens(lengths.reshape(-1, 2), budget):
        loaded.check_stop()
        with out_of_memory_as(lambda: "out of memory on alignments; lower --batch-tokens"):
            maps = attention_maps(loaded, [pairs[i] for i in batch])
            # (B, T, S), of words of the line alone
            tables = torch.stack(maps["cross"][-LAYERS:]).float().mean((0, 2))[:, :, len(tag) :]
        for i, table in zip(batch, tables.cpu().numpy(), strict=True):
            src, tgt = pairs[i]
            links[places[i]] = _link(table, words_of(src[len(tag) :]), words_of(tgt))
    return links


def _link(table: NDArray[np.float32], src: Ids, tgt: Ids) -> str:
    """Link each target word to the source word that its pieces, rows of (T, S), attend to most, by
    the word of each piece; none if a side is cut before its first word.
    """
    if not (src.size and tgt.size):
        return ""
    rows, columns = tgt[:, None], src[None, :]
    by_word = np.zeros((int(rows.max()) + 1, int(columns.max()) + 1))
    np.add.at(by_word, (rows, columns), table[: rows.size, : columns.size])
    return " ".join(f"{int(row.argmax())}-{word}" for word, row in enumerate(by_word))


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
