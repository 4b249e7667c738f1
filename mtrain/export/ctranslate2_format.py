"""CTranslate2's form of a model: its weights in that library's layout, and its search over them.

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


def check(shape: Shape, quantization: str) -> None:
    """Raise `RefusedError` where the library is missing, which takes models of any shape and has
    every quantization of the command line.
    """
    try:
        import ctranslate2  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("--to ctranslate2", "ctranslate2", error) from None


def write(directory: Path, loaded: LoadedModel, quantization: str) -> None:
    """Write a model into a directory that `ctranslate2.Translator` loads, and its vocabulary;
    raises `OSError`.
    """
    (directory / layout.TOKENIZER).write_bytes(loaded.tokenizer.proto)
    write_model(directory, loaded, quantization)


def write_model(
    directory: Path, loaded: LoadedModel, quantization: str, positions: int = 0
) -> None:
    """Write a model without its vocabulary, with sinusoidal positions for this many tokens or
    more; raises `OSError`.
    """
    longest = loaded.max_source_length
    positions = loaded.positions_limit or max(positions, longest, loaded.limit(longest))
    spec = _spec(loaded.model, loaded.tokenizer, positions)
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    spec.save(str(directory))


def load(directory: Path, tokenizer: Tokenizer) -> Engine:
    """Load a written model."""
    return load_model(directory, directory / layout.TOKENIZER, tokenizer)


def load_model(directory: Path, vocabulary: Path, tokenizer: Tokenizer) -> Engine:
    """Load a written model; text is cut and joined with SentencePiece, as its users do."""
    import ctranslate2

    ctranslate2.set_log_level(logging.ERROR)  # it warns of types that this processor lacks
    translator = ctranslate2.Translator(str(directory), device="cpu")
    own = Tokenizer.load(vocabulary)
    pieces = tokenizer.all_pieces
    numbers = {piece: number for number, piece in enumerate(pieces)}

    def search(
        rows: list[list[int]], limits: list[int], beam_size: int, alpha: float
    ) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in rows]
        for limit in sorted(set(limits) - {1}):  # it has one limit per call, at least 1
            places = [place for place, own_limit in enumerate(limits) if own_limit == limit]
            results = translator.translate_batch(
                [[pieces[i] for i in rows[place]] for place in places],
                beam_size=beam_size,
                length_penalty=alpha,
                max_batch_size=MAX_BATCH_SIZE,
                min_decoding_length=0,
                max_decoding_length=limit - 1,
                max_input_length=0,
                suppress_sequences=[[pieces[tokenizer.pad_id]], [pieces[tokenizer.bos_id]]],
            )
            for place, result in zip(places, results, strict=True):
                found[place] = [numbers[piece] for piece in result.hypotheses[0]]
        return found

    return Engine("CTranslate2", own.encode, search, own.decode)


def _spec(model: Transformer, tokenizer: Tokenizer, positions: int) -> Any:
    """Return a model in the library's layout; it finds by itself which matrices are shared."""
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
    for part, layer in zip([*spec.encoder.layer, *spec.decoder.layer], layers, strict=True):
        _set_layer(part, layer)
    pieces = tokenizer.all_pieces
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.unk_token = pieces[tokenizer.unk_id]
    spec.config.bos_token = spec.config.decoder_start_token = pieces[tokenizer.bos_id]
    spec.config.eos_token = pieces[tokenizer.eos_id]
    spec.config.add_source_eos = True  # many callers do not add it, such as Argos Translate
    return spec


def _set_layer(part: Any, layer: EncoderLayer | DecoderLayer) -> None:
    attention, feed = layer.self_attention, layer.feed_forward
    _set_linear(part.self_attention.linear[0], attention.project_in)
    _set_linear(part.self_attention.linear[1], attention.project_out)
    _set_norm(part.self_attention.layer_norm, layer.self_norm)
    _set_linear(part.ffn.linear_0, feed.inner)
    _set_linear(part.ffn.linear_1, feed.outer)
    _set_norm(part.ffn.layer_norm, layer.feed_norm)
    if isinstance(layer, DecoderLayer):
        cross = layer.cross_attention
        width = cross.project_out.in_features
        query, key_and_value, out = part.attention.linear
        _set_linear(query, cross.project_in, slice(width))
        _set_linear(key_and_value, cross.project_in, slice(width, None))
        _set_linear(out, cross.project_out)
        _set_norm(part.attention.layer_norm, layer.cross_norm)


def _set_linear(part: Any, linear: nn.Linear, rows: slice = slice(None)) -> None:
    part.weight, part.bias = _values(linear.weight[rows]), _values(linear.bias[rows])


def _set_norm(part: Any, norm: nn.LayerNorm) -> None:
    part.gamma, part.beta = _values(norm.weight), _values(norm.bias)


def _values(tensor: Tensor) -> np.ndarray:
    """Return a copy as an array, since the library rounds in place."""
    return tensor.detach().float().cpu().numpy().copy()
