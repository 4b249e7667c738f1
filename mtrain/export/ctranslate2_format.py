"""Export to CTranslate2: write the weights in its layout, and load it to compare translations.

CTranslate2 (https://opennmt.net/CTranslate2) is an optional extra, `mtrain[ctranslate2]`.
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from mtrain.data.tokenizer import Tokenizer
from mtrain.export.parity import Engine
from mtrain.model.transformer import DecoderLayer, EncoderLayer, Shape, Transformer
from mtrain.runs import layout
from mtrain.runtime.errors import MissingExtraError
from mtrain.translation.loading import LoadedModel

MAX_BATCH_SIZE = 64  # sentences
MAX_TOKENS = 1024  # CTranslate2 cuts longer sentences unless a call sets another limit


def check(shape: Shape, quantization: str) -> None:
    """Raise `RefusedError` if the library is missing; it supports every shape and quantization."""
    try:
        import ctranslate2  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("--to ctranslate2", "ctranslate2", error) from None


def write(directory: Path, loaded: LoadedModel, quantization: str) -> None:
    """Write a model and its vocabulary into a directory that `ctranslate2.Translator` loads; raises
    `OSError`.
    """
    (directory / layout.TOKENIZER).write_bytes(loaded.tokenizer.proto)
    longest = loaded.max_source_length
    needed = max(MAX_TOKENS + 1, longest, loaded.target_limit(longest))
    is_learned = loaded.model.shape.positions == "learned"
    positions = loaded.positions_limit if is_learned else needed
    spec = _spec(loaded.model, loaded.tokenizer, positions)
    spec.validate()
    kind = None if quantization == "float32" else quantization
    spec.optimize(quantization=kind)
    spec.save(str(directory))


def load(directory: Path, tokenizer: Tokenizer) -> Engine:
    """Load a written model; text is encoded and decoded with the exported vocabulary."""
    import ctranslate2

    ctranslate2.set_log_level(logging.ERROR)  # no warnings of types that this processor lacks
    translator = ctranslate2.Translator(str(directory), device="cpu")
    exported = Tokenizer.load(directory / layout.TOKENIZER)
    pieces = tokenizer.all_pieces
    ids = {piece: i for i, piece in enumerate(pieces)}

    def search(
        sources: list[list[int]], limits: list[int], beam_size: int, alpha: float
    ) -> list[list[int]]:
        translations: list[list[int]] = [[] for _ in sources]
        # one limit per call; limit 1 leaves room for eos only, so the translation stays empty
        for limit in sorted(set(limits) - {1}):
            indices = [index for index, own_limit in enumerate(limits) if own_limit == limit]
            batch = [[pieces[i] for i in sources[index]] for index in indices]
            results = translator.translate_batch(
                batch,
                beam_size=beam_size,
                length_penalty=alpha,
                max_batch_size=MAX_BATCH_SIZE,
                min_decoding_length=0,
                max_decoding_length=limit - 1,
                max_input_length=0,
                suppress_sequences=[[pieces[tokenizer.pad_id]], [pieces[tokenizer.bos_id]]],
            )
            for index, result in zip(indices, results, strict=True):
                translations[index] = [ids[piece] for piece in result.hypotheses[0]]
        return translations

    return Engine("CTranslate2", exported.encode, search, exported.decode)


def _spec(model: Transformer, tokenizer: Tokenizer, positions: int) -> Any:
    """Return a model in the library's layout; the library itself detects tied matrices."""
    from ctranslate2.specs import TransformerSpec

    shape = model.shape
    spec = TransformerSpec.from_config(
        (shape.num_encoder_layers, shape.num_decoder_layers),
        shape.num_heads,
        pre_norm=shape.norm == "pre",
    )
    for side, norm, learned in (
        (spec.encoder, model.encoder_norm, model.src_positions),
        (spec.decoder, model.decoder_norm, model.tgt_positions),
    ):
        side.position_encodings.encodings = _values(model.positions(learned, 0, positions))
        if isinstance(norm, nn.LayerNorm):
            _set_norm(side.layer_norm, norm)
    spec.encoder.embeddings[0].weight = _values(model.src_embedding.weight)
    spec.decoder.embeddings.weight = _values(model.tgt_embedding.weight)
    spec.decoder.projection.weight = _values(model.output.weight)
    layers: list[Any] = [*model.encoder_layers, *model.decoder_layers]
    for target, layer in zip([*spec.encoder.layer, *spec.decoder.layer], layers, strict=True):
        _set_layer(target, layer)
    pieces = tokenizer.all_pieces
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.unk_token = pieces[tokenizer.unk_id]
    spec.config.bos_token = spec.config.decoder_start_token = pieces[tokenizer.bos_id]
    spec.config.eos_token = pieces[tokenizer.eos_id]
    spec.config.add_source_eos = True  # callers such as Argos Translate do not add it
    return spec


def _set_layer(target: Any, layer: EncoderLayer | DecoderLayer) -> None:
    attention, feed_forward = layer.self_attention, layer.feed_forward
    _set_linear(target.self_attention.linear[0], attention.project_in)
    _set_linear(target.self_attention.linear[1], attention.project_out)
    _set_norm(target.self_attention.layer_norm, layer.self_norm)
    _set_linear(target.ffn.linear_0, feed_forward.inner)
    _set_linear(target.ffn.linear_1, feed_forward.outer)
    _set_norm(target.ffn.layer_norm, layer.feed_norm)
    if isinstance(layer, DecoderLayer):
        cross = layer.cross_attention
        width = cross.project_out.in_features
        query, key_and_value, out = target.attention.linear
        _set_linear(query, cross.project_in, slice(width))
        _set_linear(key_and_value, cross.project_in, slice(width, None))
        _set_linear(out, cross.project_out)
        _set_norm(target.attention.layer_norm, layer.cross_norm)


def _set_linear(target: Any, linear: nn.Linear, rows: slice = slice(None)) -> None:
    target.weight, target.bias = _values(linear.weight[rows]), _values(linear.bias[rows])


def _set_norm(target: Any, norm: nn.LayerNorm) -> None:
    target.gamma, target.beta = _values(norm.weight), _values(norm.bias)


def _values(tensor: Tensor) -> np.ndarray:
    """Copy a tensor to an array; a copy, since the library rounds in place."""
    return tensor.detach().float().cpu().numpy().copy()
