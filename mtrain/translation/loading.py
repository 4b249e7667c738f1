"""Load models for translation: a run's best model, a checkpoint, or an ensemble of several."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mtrain.config.loading import parse_stored_config
from mtrain.config.schema import Config, DecodeConfig, override_decode
from mtrain.corpus.lines import CHARACTERS_PER_TOKEN, MAX_TEXT_LENGTH, shorten_text
from mtrain.data.batches import SpecialIds
from mtrain.data.tokenizer import Tokenizer
from mtrain.model.building import build, check_weights, shape_of
from mtrain.model.cpu import keep_freed_memory
from mtrain.model.decoder import Decoder, Ensemble
from mtrain.model.recorded import RecordedDecoder, decoder_of
from mtrain.model.transformer import Transformer, set_compute_dtype
from mtrain.runs import checkpoint, layout, manifest, reader
from mtrain.runs.checkpoint import Snapshot
from mtrain.runtime.device import compute_dtype, out_of_memory_as, pick_device
from mtrain.runtime.distributed import Ranks, device_of
from mtrain.runtime.errors import RefusedError, is_utf8
from mtrain.runtime.log import logger
from mtrain.runtime.workers import available_threads

NOT_A_NUMBER = (
    "a score is not a number: the model's weights may be too large; use another checkpoint"
)

# Ids of each line without eos, and the indices of the lines that were cut.
Encoded = tuple[list[NDArray[np.int64]], list[int]]


@dataclass
class LoadedModel:
    """A model or an ensemble on its device, with its vocabulary and settings. Lengths are in tokens
    and count eos.

    `other_models` are the further models of an ensemble, `tag` is put before each source.
    """

    model: Transformer
    tokenizer: Tokenizer
    decode: DecodeConfig
    config: Config
    other_models: tuple["LoadedModel", ...] = ()
    check_stop: Callable[[], None] = lambda: None
    tag: str | None = None

    def __post_init__(self) -> None:
        self.device = self.model.output.weight.device
        self.ids = SpecialIds.of(self.tokenizer)
        self.tag_ids = self.tokenizer.tag_ids(self.tag)
        other_tags = [other.config.tags for other in self.other_models]
        self.tags = [tag for tag in self.config.tags if all(tag in tags for tags in other_tags)]
        self.all_models = (self.model, *(other.model for other in self.other_models))
        for model in self.all_models:
            model.eval()

    def tagged(self, tag: str | None) -> "LoadedModel":
        """Return this model with a tag before each source; raises `RefusedError` for a tag that a
        model of the ensemble does not know.
        """
        if tag is not None and tag not in self.tags:
            advice = tag_advice(self.tags)
            raise RefusedError(f"tag {tag}: the model does not know this tag; {advice}")
        return self if tag == self.tag else replace(self, tag=tag)

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Source and target language of each translation direction of the corpora with the tag."""
        data = self.config.data
        tagged = [corpus for corpus in data.corpora.values() if corpus.tag == self.tag]
        return list(dict.fromkeys(map(data.languages, tagged))) or data.directions

    @property
    def tgt_lang(self) -> str:
        """Target language of the corpora with the tag, or `data.tgt_lang` if they differ."""
        languages = {tgt for _, tgt in self.directions}
        return languages.pop() if len(languages) == 1 else self.config.data.tgt_lang

    @cached_property
    def decoder(self) -> Decoder | RecordedDecoder | Ensemble:
        """The model as a step function for the search."""
        decoders = [decoder_of(model) for model in self.all_models]
        return Ensemble(decoders) if self.other_models else decoders[0]

    @property
    def positions_limit(self) -> int:
        """Longest sequence that learned positions allow; sinusoidal ones allow any."""
        shapes = [model.shape for model in self.all_models if model.shape.positions == "learned"]
        return min((shape.max_positions for shape in shapes), default=sys.maxsize)

    @property
    def max_source_length(self) -> int:
        """Longest source; longer lines are cut."""
        return min(self.decode.max_source_length, self.positions_limit)

    @property
    def max_target_length(self) -> int:
        """Longest target that is scored: the longest possible translation."""
        return self.target_limit(self.max_source_length - 1)

    def target_limit(self, source_length: int, prefix_length: int = 0) -> int:
        """Return the longest allowed target in tokens with eos, for lengths of source and prefix
        without eos.
        """
        limit = max(self.decode.target_limit(source_length), prefix_length + 1)
        return min(limit, self.positions_limit)

    def max_characters(self, tokens: int) -> int:
        """Return the number of characters of a line that are tokenized: more than fit into this
        number of tokens, except for long runs of blanks. SentencePiece needs about 50 times the
        memory of a text.
        """
        longest = max(CHARACTERS_PER_TOKEN, self.tokenizer.longest_piece)
        return min(tokens * longest, MAX_TEXT_LENGTH)

    def encode_sources(self, lines: list[str]) -> Encoded:
        """Encode sources with the tag, cut to their limit."""
        return self._encode(lines, self.max_source_length - 1, self.tag_ids)

    def encode_targets(self, lines: list[str]) -> Encoded:
        """Encode targets, cut to their limit."""
        return self._encode(lines, self.max_target_length - 1, [])

    def _encode(self, lines: list[str], max_ids: int, tag_ids: list[int]) -> Encoded:
        max_characters = self.max_characters(max_ids + 1)
        max_ids -= len(tag_ids)
        encoded = self.tokenizer.encode([_valid_text(line, max_characters) for line in lines])
        cut = [
            index
            for index, (ids, line) in enumerate(zip(encoded, lines, strict=True))
            if len(ids) > max_ids or len(line) > max_characters
        ]
        return [np.array(tag_ids + ids[:max_ids], np.int64) for ids in encoded], cut

    def decode_targets(self, ids: list[list[int]]) -> list[str]:
        """Return the text of each list of ids; newlines become spaces."""
        return [text.replace("\n", " ") for text in self.tokenizer.decode(ids)]


def _valid_text(line: str, max_characters: int) -> str:
    """Cut a line to a number of characters and replace lone surrogates by U+FFFD."""
    text = shorten_text(line, max_characters)
    if is_utf8(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def load(*paths: Path, device: str = "auto", precision: str = "auto", **decode: Any) -> LoadedModel:
    """Load the best model of a run, or a checkpoint. Several paths make an ensemble, which knows
    the tags that all its models know. `decode` overrides the search settings of the first model.
    Raises `UserError`.
    """
    models: list[LoadedModel] = []
    for path in paths:
        directory, snapshot = checkpoint.load_resolved(path)
        if models and snapshot.tokenizer != models[0].tokenizer.proto:
            raise RefusedError(
                f"{directory}: has a different vocabulary from {paths[0]}; an ensemble needs "
                "models with the same vocabulary"
            )
        models.append(unpack(snapshot, directory, decode, device=device, precision=precision))
        _check_languages(models[0].config, models[-1].config, paths[0], directory)
    return replace(models[0], other_models=tuple(models[1:]))


def tag_advice(tags: list[str]) -> str:
    """Return the advice for an unknown tag."""
    return f"choose one of {', '.join(tags)}" if tags else "it has no tags, so leave the tag out"


def load_with_tag(*paths: Path, tag: str | None = None, **options: Any) -> LoadedModel:
    """Load models as `load` does, with a tag; without a tag, log the tags of the training text."""
    loaded = load(*paths, **options).tagged(tag)
    tags = [corpus.tag for corpus in loaded.config.data.train]
    named = ", ".join(dict.fromkeys(filter(None, tags)))
    if tag is None and all(tags):
        logger.warning("all training text of this model has tags: choose one of %s", named)
    elif tag is None and named:
        logger.info("some training text of this model has tags: %s", named)
    return loaded


def load_on_ranks(
    paths: list[Path], ranks: Ranks, *, device: str, precision: str, **options: Any
) -> LoadedModel:
    """Load the same models on every rank, each on its own device; raises `RefusedError` if the
    copies on several machines differ.
    """
    chosen = paths
    if ranks.size > 1:  # all ranks use rank 0's choice: training may change the best checkpoint
        chosen = ranks.from_rank_0(lambda: [reader.resolve(path) for path in paths], list[Path])

    def load_here() -> LoadedModel:
        threads = available_threads() // ranks.local_size
        # with several ranks, torchrun has set the number of threads to 1
        if ranks.size == 1:
            threads = min(threads, torch.get_num_threads())
        torch.set_num_threads(max(1, threads))
        own_device = device_of(device, ranks)
        if own_device.type == "cpu":
            keep_freed_memory()
        return load_with_tag(*chosen, device=str(own_device), precision=precision, **options)

    loaded = ranks.on_all_ranks(load_here)
    if ranks.size > 1:  # not for one rank: training may have removed the checkpoint by now
        manifests = [manifest.hash_file(path / manifest.NAME) for path in chosen]
        ranks.check_same(" ".join(manifests), "models")
    return loaded


def _check_languages(config: Config, other: Config, path: Path, directory: Path) -> None:
    """Refuse an ensemble of opposite translation directions, and warn of other differences: two
    codes may name the same language.
    """
    ours, theirs = config.data.directions, other.data.directions
    if set(ours) & set(theirs):
        return
    (src, tgt), (other_src, other_tgt) = ours[0], theirs[0]
    directions = f"{directory}: translates {other_src} to {other_tgt}, but {path} {src} to {tgt}"
    if src == other_tgt or tgt == other_src:
        raise RefusedError(
            f"{directions}; an ensemble needs models of one direction; leave one model out"
        )
    logger.warning("%s; check that these are the same languages", directions)


def unpack(
    snapshot: Snapshot,
    directory: Path,
    decode: Mapping[str, Any],
    *,
    device: str = "auto",
    precision: str = "auto",
    check_stop: Callable[[], None] = lambda: None,
) -> LoadedModel:
    """Build the model of a checkpoint on a device. `decode` overrides its search settings; errors
    name its directory.
    """
    config = parse_stored_config(snapshot.config, str(directory / layout.CONFIG))
    tokenizer = Tokenizer(snapshot.tokenizer, str(directory / layout.TOKENIZER))
    shape = shape_of(config, tokenizer.vocab_size, tokenizer.pad_id)
    target = pick_device(device)
    # allocate no memory before the weights are checked: the config may claim any size
    with torch.device("meta"):
        model = build(shape, target)
    check_weights(dict(model.named_parameters()), snapshot.weights, directory)
    with out_of_memory_as(f"{directory}: out of memory; free some"):
        model.assign_weights(snapshot.weights)
        set_compute_dtype(model, compute_dtype(precision, target, training=False))
        model.to(target)
    settings = override_decode(config.decode, **decode)
    message = "%s: %d parameters, on %s, precision %s; %s"
    logger.debug(message, directory, model.num_parameters, target, precision, settings)
    return LoadedModel(model, tokenizer, settings, config, check_stop=check_stop)
