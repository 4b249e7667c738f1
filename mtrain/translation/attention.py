"""Attention weights of sentence pairs, and word alignments computed from them.

Alignments are in Pharaoh format (`0-0 1-2`: source word, target word). Each target word is aligned
to the source word that it attends to most, averaged over the heads of the last `LAYERS` layers:
which single layer is best depends on the number of layers.
"""

import re
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtrain.corpus.lines import is_blank
from mtrain.data.batches import batch_by_tokens, collate, lengths_with_eos
from mtrain.data.store import IdPairs, Ids
from mtrain.runtime.device import out_of_memory_as
from mtrain.runtime.errors import UserError
from mtrain.translation.loading import NOT_A_NUMBER, LoadedModel

LAYERS = 3
BYTE = re.compile("<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Attention:
    """Attention weights of a sentence pair.

    `source` (S) and `target` (T) are pieces that end with `</s>`; `target_in` (T) is the input of
    the decoder, which starts with `<s>`. `encoder` (H, S, S), `decoder` (H, T, T) and `cross`
    (H, T, S) hold an array for each layer; the weights sum to 1 over the last axis.
    """

    source: list[str]
    target: list[str]
    target_in: list[str]
    encoder: list[NDArray[np.float32]]
    decoder: list[NDArray[np.float32]]
    cross: list[NDArray[np.float32]]


@torch.no_grad()
def attention_maps(loaded: LoadedModel, pairs: IdPairs) -> dict[str, list[Tensor]]:
    """Return the attention weights (B, H, queries, keys) of pairs of ids without eos, for each kind
    (`encoder`, `decoder`, `cross`) and layer. The keys of `decoder` are bos and the target.
    """
    batch = collate(pairs, loaded.ids).to(loaded.device)
    return loaded.model.attention_maps(batch.src, batch.tgt_in)


def attention_of(loaded: LoadedModel, src: Ids, tgt: Ids) -> Attention:
    """Return the attention weights of a pair of ids without eos; raises `UserError`."""
    bos, eos = loaded.ids.bos, loaded.ids.eos
    pieces = loaded.tokenizer.all_pieces
    sequences = ((*src, eos), (*tgt, eos), (bos, *tgt))
    source, target, target_in = ([pieces[id_] for id_ in ids] for ids in sequences)
    maps = attention_maps(loaded, [(src, tgt)]).items()
    weights = {kind: [layer[0].float().cpu().numpy() for layer in layers] for kind, layers in maps}
    if any(np.isnan(layer).any() for layer in chain(*weights.values())):
        raise UserError(NOT_A_NUMBER)
    return Attention(source, target, target_in, **weights)


def align(
    loaded: LoadedModel, sources: list[str], targets: list[str]
) -> tuple[list[str], list[int]]:
    """Return the word alignment of each source line and its translation, empty for blank lines, and
    the indices of the translations that were cut.
    """
    alignments = [""] * len(sources)
    lines = enumerate(zip(sources, targets, strict=True))
    line_indices = [index for index, pair in lines if not any(map(is_blank, pair))]
    tag_length = len(loaded.tag_ids)
    pieces = loaded.tokenizer.all_pieces

    def words_of(ids: Ids) -> Ids:
        return np.array(word_indices([pieces[id_] for id_ in ids]), np.int64)

    src_ids, _ = loaded.encode_sources([sources[i] for i in line_indices])
    tgt_ids, cut = loaded.encode_targets([targets[i] for i in line_indices])
    pairs = list(zip(src_ids, tgt_ids, strict=True))
    budget = max(1, loaded.decode.batch_tokens // loaded.decode.beam_size)
    for batch in batch_by_tokens(lengths_with_eos(pairs), budget):
        loaded.check_stop()
        with out_of_memory_as("out of memory on alignments; lower --batch-tokens"):
            maps = attention_maps(loaded, [pairs[i] for i in batch])
            # (B, T, S), without the tag
            weights = torch.stack(maps["cross"][-LAYERS:]).float().mean((0, 2))[:, :, tag_length:]
        for i, table in zip(batch, weights.cpu().numpy(), strict=True):
            src, tgt = pairs[i]
            alignment = _alignment(table, words_of(src[tag_length:]), words_of(tgt))
            alignments[line_indices[i]] = alignment
    return alignments, [line_indices[i] for i in cut]


def _alignment(weights: NDArray[np.float32], src_words: Ids, tgt_words: Ids) -> str:
    """Link each target word to the source word that its pieces attend to most.

    `weights` (T, S) are those of source pieces for target pieces, `src_words` and `tgt_words` the
    word index of each piece. A side that was cut before its first word has no pieces.
    """
    if not (src_words.size and tgt_words.size):
        return ""
    rows, columns = tgt_words[:, None], src_words[None, :]
    by_word = np.zeros((int(rows.max()) + 1, int(columns.max()) + 1))
    np.add.at(by_word, (rows, columns), weights[: rows.size, : columns.size])
    return " ".join(f"{int(row.argmax())}-{word}" for word, row in enumerate(by_word))


def word_indices(pieces: list[str]) -> list[int]:
    """Return the index of the word that each piece belongs to. Words are separated by white space,
    which belongs to the next word.
    """
    indices = []
    word = -1
    in_word = False
    byte_pieces = b""
    for piece in pieces:
        text = piece.replace("\u2581", " ")
        if byte := BYTE.fullmatch(piece):
            byte_pieces += bytes.fromhex(byte[1])
            text = byte_pieces.decode("utf-8", "ignore")
        if text:
            byte_pieces = b""
        for character in text:
            was_in_word = in_word
            in_word = not character.isspace()
            if in_word and not was_in_word:
                word += 1
        indices.append(word if in_word else word + 1)
    return [min(index, max(word, 0)) for index in indices]
