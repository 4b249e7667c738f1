"""Attention weights of a sentence pair, as arrays."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from mtrain.data.batches import pad
from mtrain.translation.loading import LoadedModel


def pieces_of(loaded: LoadedModel, ids: Iterable[int]) -> list[str]:
    """Return the piece of each id."""
    pieces = loaded.tokenizer.all_pieces
    return [pieces[number] for number in ids]


@torch.no_grad()
def attention_of(
    loaded: LoadedModel, src: NDArray[np.int64], tgt: NDArray[np.int64]
) -> dict[str, list[NDArray[np.float32]]]:
    """Return the attention weights of a pair of ids without eos: by kind (`encoder`, `decoder`,
    `cross`) and layer, an array (H, queries, keys). Keys of the decoder are bos and the target.
    """
    src_ids = pad([src], loaded.ids, bos=False, eos=True).to(loaded.device)
    tgt_in = pad([tgt], loaded.ids, bos=True, eos=False).to(loaded.device)
    maps = loaded.model.attention_maps(src_ids, tgt_in)
    return {
        kind: [layer[0].float().cpu().numpy() for layer in layers] for kind, layers in maps.items()
    }
