"""Export to Hugging Face transformers, as a Marian model, and load it to compare translations.

transformers (https://huggingface.co/docs/transformers) is an optional extra, `mtrain[hf]`. Marian
(Junczys-Dowmunt et al. 2018) is the paper's post-norm Transformer, but its position vectors have
all sines first and then all cosines, while mtrain's alternate. Every matrix that reads or writes
hidden states is therefore permuted to Marian's order.
"""

import json
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from mtrain.data.tokenizer import Tokenizer
from mtrain.export.parity import Engine
from mtrain.model.transformer import Shape, Transformer
from mtrain.runtime.errors import MissingExtraError, RefusedError, first_line
from mtrain.runtime.log import logger
from mtrain.translation.loading import LoadedModel

BATCH_SIZE = 64  # sentences
# Module of mtrain's layers -> Marian's name; {} is q, k or v.
MARIAN_NAMES = {
    "self_attention.project_in": "self_attn.{}_proj",
    "self_attention.project_out": "self_attn.out_proj",
    "self_norm": "self_attn_layer_norm",
    "cross_attention.project_in": "encoder_attn.{}_proj",
    "cross_attention.project_out": "encoder_attn.out_proj",
    "cross_norm": "encoder_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_norm": "final_layer_norm",
}
WRITERS = ("project_out", "outer", "norm")  # modules that write hidden states; others read them


def check(shape: Shape, quantization: str) -> None:
    """Raise `RefusedError` for what Marian does not support, or if the library is missing."""
    if quantization != "float32":
        raise RefusedError(
            f"--quantization {quantization}: hf-marian writes float32; round when loading, with "
            "from_pretrained(..., dtype=...)"
        )
    for setting, supported in (("norm", "post"), ("positions", "sinusoidal")):
        value = getattr(shape, setting)
        if value != supported:
            raise RefusedError(
                f"model.{setting}: {value}: Marian supports only {supported}; use --to ctranslate2"
            )
    try:
        from transformers import MarianMTModel, MarianTokenizer  # noqa: F401
        from transformers.utils import logging
    except ImportError as error:
        raise MissingExtraError("--to hf-marian", "hf", error) from None
    # hide hints that do not apply, such as those on `max_length` and on sacremoses
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module="transformers")


def write(directory: Path, loaded: LoadedModel, quantization: str) -> None:
    """Write a model into a directory that `from_pretrained` loads; raises `OSError`."""
    from transformers import GenerationConfig, MarianConfig, MarianMTModel

    tokenizer, decode = loaded.tokenizer, loaded.decode
    model = MarianMTModel(MarianConfig(**_settings(loaded)))
    missing, unknown = model.load_state_dict(_weights(loaded.model), strict=False)
    assert not unknown
    assert all(name.endswith(("embed_positions.weight", "_logits_bias")) for name in missing)
    model.tie_weights()
    model.generation_config = GenerationConfig(
        **_special_ids(tokenizer),
        bad_words_ids=[[tokenizer.pad_id], [tokenizer.bos_id]],
        max_new_tokens=loaded.target_limit(loaded.max_source_length - 1),  # of the longest source
        **_search_options(decode.beam_size, decode.length_penalty),
    )
    try:
        model.save_pretrained(directory)
    except SafetensorError as error:  # a full disk
        raise OSError(first_line(error)) from None
    _write_tokenizer(directory, loaded)
    if unread := [tag for tag in loaded.config.tags if not re.fullmatch(">>.+<<", tag)]:
        logger.warning("MarianTokenizer does not read %s: put its id before the others", unread[0])


def load(directory: Path, tokenizer: Tokenizer) -> Engine:
    """Load a written model with `from_pretrained`."""
    from transformers import MarianMTModel, MarianTokenizer

    model = MarianMTModel.from_pretrained(directory, local_files_only=True)
    marian = MarianTokenizer.from_pretrained(directory, local_files_only=True)

    def encode(lines: list[str]) -> list[list[int]]:
        return [ids[:-1] for ids in marian(lines)["input_ids"]]

    def search(
        sources: list[list[int]], limits: list[int], beam_size: int, alpha: float
    ) -> list[list[int]]:
        translations: list[list[int]] = [[] for _ in sources]
        by_length = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        for start in range(0, len(sources), BATCH_SIZE):
            indices = by_length[start : start + BATCH_SIZE]
            batch = [[*sources[i], tokenizer.eos_id] for i in indices]
            batch_limits = [limits[i] for i in indices]
            out = model.generate(
                **marian.pad({"input_ids": batch}, return_tensors="pt"),
                **_search_options(beam_size, alpha),
                logits_processor=[_limit(batch_limits, beam_size, tokenizer.eos_id)],
                max_new_tokens=max(batch_limits) + 1,  # never reached
            )
            for i, ids in zip(indices, out[:, 1:].tolist(), strict=True):
                translations[i] = ids[: ids.index(tokenizer.eos_id)]
        return translations

    decode = partial(marian.batch_decode, skip_special_tokens=True)
    return Engine("transformers", encode, search, decode)


def _limit(limits: list[int], beam_size: int, eos_id: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a logits processor that allows only eos, with its probability, at each sentence's own
    limit. The library has one limit for all sentences, where it gives eos a probability of 1.
    """
    row_limits = torch.tensor(limits).repeat_interleave(beam_size)[:, None]

    def process(ids: Tensor, scores: Tensor) -> Tensor:
        """(N, bos and the tokens so far), (N, V) -> (N, V)."""
        only_eos = torch.full_like(scores, float("-inf"))
        only_eos[:, eos_id] = scores[:, eos_id]
        return torch.where(row_limits <= ids.shape[1], only_eos, scores)

    return process


def _special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "forced_eos_token_id": tokenizer.eos_id,  # at the limit
        "decoder_start_token_id": tokenizer.bos_id,
    }


def _settings(loaded: LoadedModel) -> dict[str, Any]:
    """Return Marian's config."""
    model, shape = loaded.config.model, loaded.model.shape
    longest = loaded.max_source_length
    return {
        "vocab_size": shape.vocab_size,
        "d_model": shape.d_model,
        "encoder_layers": shape.num_encoder_layers,
        "decoder_layers": shape.num_decoder_layers,
        "encoder_attention_heads": shape.num_heads,
        "decoder_attention_heads": shape.num_heads,
        "encoder_ffn_dim": shape.d_ff,
        "decoder_ffn_dim": shape.d_ff,
        "max_position_embeddings": max(longest, loaded.target_limit(longest - 1)),
        "activation_function": "relu",
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": shape.tie_embeddings == "all",
        "tie_word_embeddings": shape.tie_embeddings != "none",
        "dropout": model.dropout,  # for further training
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        **_special_ids(loaded.tokenizer),
    }


def _search_options(beam_size: int, alpha: float) -> dict[str, Any]:
    """Return the options of a search. It divides scores by length ** alpha, whatever the model's
    `decode.length_norm`. `early_stopping` ends a sentence once `beam_size` hypotheses are complete;
    the library refuses it for greedy search.
    """
    if beam_size == 1:
        return {"num_beams": 1}
    return {"num_beams": beam_size, "length_penalty": alpha, "early_stopping": True}


def _write_tokenizer(directory: Path, loaded: LoadedModel) -> None:
    """Write the SentencePiece model and the ids of its pieces.

    `split_special_tokens` makes the library read `</s>` in a text as text.
    """
    from transformers import MarianTokenizer

    tokenizer, data = loaded.tokenizer, loaded.config.data
    source_lang, target_lang = data.languages(data.valid_corpora[0])
    pieces = tokenizer.all_pieces
    source, target, vocabulary = (
        directory / name for name in ("source.spm", "target.spm", "vocab.json")
    )
    source.write_bytes(tokenizer.proto)
    target.write_bytes(tokenizer.proto)
    vocabulary.write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}, indent=2))
    MarianTokenizer(
        *map(str, (source, target, vocabulary)),
        source_lang=source_lang,
        target_lang=target_lang,
        unk_token=pieces[tokenizer.unk_id],
        pad_token=pieces[tokenizer.pad_id],
        bos_token=pieces[tokenizer.bos_id],
        eos_token=pieces[tokenizer.eos_id],
        model_max_length=loaded.max_source_length,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(directory)


def _weights(model: Transformer) -> dict[str, Tensor]:
    """Return the weights under the library's names, with hidden states in Marian's order (D,)."""
    indices = torch.arange(model.shape.d_model)
    order = torch.cat((indices[0::2], indices[1::2]))
    weights = {
        "model.encoder.embed_tokens.weight": model.src_embedding.weight[:, order],
        "model.decoder.embed_tokens.weight": model.tgt_embedding.weight[:, order],
        "lm_head.weight": model.output.weight[:, order],
    }
    if model.shape.tie_embeddings == "all":
        weights["model.shared.weight"] = model.tgt_embedding.weight[:, order]
    for side, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        for number, layer in enumerate(layers):
            for name, weight in _layer_weights(layer, order):
                weights[f"model.{side}.layers.{number}.{name}"] = weight
    return weights


def _layer_weights(layer: nn.Module, order: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a layer, with separate query, key and value; the inside of heads keeps
    its order.
    """
    weight: Tensor
    for name, weight in layer.named_parameters():
        module, _, kind = name.rpartition(".")
        if module.endswith(WRITERS):
            weight = weight[order]
        elif kind == "weight":
            weight = weight[:, order]
        if module.endswith("project_in"):
            for letter, part in zip("qkv", weight.chunk(3), strict=True):
                yield f"{MARIAN_NAMES[module].format(letter)}.{kind}", part
        else:
            yield f"{MARIAN_NAMES[module]}.{kind}", weight
