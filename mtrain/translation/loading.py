"""Loading models for translation: a run's best model or a checkpoint, alone or as an ensemble."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter

from mtrain.config.loading import parse_stored_config
from mtrain.config.schema import Config, DecodeConfig, override_decode
from mtrain.corpus.lines import CHARACTERS_A_TOKEN, MAX_TEXT_LENGTH, shorten_text
from mtrain.data.batches import SpecialIds
from mtrain.data.tokenizer import Tokenizer
from mtrain.model.building import build, check_weights, shape_of
from mtrain.model.cpu import keep_freed_memory
from mtrain.model.decoder import Decoder, Ensemble
from mtrain.model.transformer import Transformer, set_compute_dtype
from mtrain.runs import checkpoint, layout, manifest
from mtrain.runs.checkpoint import Snapshot
from mtrain.runtime.device import (
    compute_dtype,
    out_of_memory_as,
    pick_device,
)
from mtrain.runtime.distributed import Ranks, device_of
from mtrain.runtime.errors import RefusedError, is_utf8
from mtrain.runtime.log import logger
from mtrain.runtime.workers import available_threads

PATHS = TypeAdapter(list[Path])
# Ids of lines without eos, and the indices of lines that were cut.
Encoded = tuple[list[NDArray[np.int64]], list[int]]


@dataclass
class LoadedModel:
    """A model on its device, or an ensemble, with vocabulary and settings. Lengths are in tokens
    with eos.
    """

    model: Transformer
    tokenizer: Tokenizer
    decode: DecodeConfig
    config: Config
    others: tuple["LoadedModel", ...] = ()  # of an ensemble, with the same vocabulary
    check_stop: Callable[[], None] = lambda: None
    tag: str | None = None  # put before each source

    def __post_init__(self) -> None:
        self.device = self.model.output.weight.device
        self.ids = SpecialIds.of(self.tokenizer)
        self.tag_ids = self.tokenizer.tag_ids(self.tag)
        others = [other.config.tags for other in self.others]
        self.tags = [tag for tag in self.config.tags if all(tag in known for known in others)]
        self.members = (self.model, *(other.model for other in self.others))
        for model in self.members:
            model.eval()

    def tagged(self, tag: str | None) -> "LoadedModel":
        """Return the same model with a tag before each source; raises `RefusedError` for a tag that
        it, or a model of an ensemble, does not know.
        """
        if tag is not None and tag not in self.tags:
            raise RefusedError(f"tag {tag}: the model does not know this tag; {choice(self.tags)}")
        return self if tag == self.tag else replace(self, tag=tag)

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Source and target language of each direction of the text with the tag."""
        data = self.config.data
        same = [corpus for corpus in data.corpora.values() if corpus.tag == self.tag]
        return list(dict.fromkeys(map(data.languages, same))) or data.directions

    @property
    def tgt_lang(self) -> str:
        """Target language of the text with the tag, if all corpora with it agree."""
        languages = {tgt for _, tgt in self.directions}
        return languages.pop() if len(languages) == 1 else self.config.data.tgt_lang

    @cached_property
    def decoder(self) -> Decoder | Ensemble:
        """The step function of the search; made when it is first needed."""
        return Ensemble(self.members) if self.others else Decoder(self.model)

    @property
    def positions_limit(self) -> int | None:
        """Longest sequence that learned positions allow; None for sinusoidal ones."""
        shapes = [model.shape for model in self.members if model.shape.positions == "learned"]
        return min((shape.max_positions for shape in shapes), default=None)

    @property
    def max_source_length(self) -> int:
        """Longest source; longer lines are cut."""
        limit = self.decode.max_source_length
        return min(limit, self.positions_limit or limit)

    @property
    def max_target_length(self) -> int:
        """Longest target that is scored: the longest that a translation can have."""
        return self.limit(self.max_source_length - 1)

    def limit(self, source_length: int, prefix_length: int = 0) -> int:
        """Return the longest target for a source and a prefix of these lengths without eos."""
        limit = int(self.decode.max_len_a * source_length + self.decode.max_len_b) + 1
        limit = max(limit, prefix_length + 1)
        return min(limit, self.positions_limit or limit)

    def most_characters(self, tokens: int) -> int:
        """Return how many characters of a line are tokenized: more than this number of tokens can
        hold, except for lines of blanks. SentencePiece takes some fifty times the memory of a text.
        """
        longest = max(CHARACTERS_A_TOKEN, self.tokenizer.longest_piece)
        return min(tokens * longest, MAX_TEXT_LENGTH)

    def encode_sources(self, lines: list[str]) -> Encoded:
        """Encode sources with the tag, cut to their limit."""
        return self._encode(lines, self.max_source_length - 1, self.tag_ids)

    def encode_targets(self, lines: list[str]) -> Encoded:
        """Encode targets, cut to their limit."""
        return self._encode(lines, self.max_target_length - 1, [])

    def _encode(self, lines: list[str], most: int, begin: list[int]) -> Encoded:
        characters, most = self.most_characters(most + 1), most - len(begin)
        encoded = self.tokenizer.encode([_readable(line, characters) for line in lines])
        cut = [
            index
            for index, (ids, line) in enumerate(zip(encoded, lines, strict=True))
            if len(ids) > most or len(line) > characters
        ]
        return [np.array(begin + ids[:most], np.int64) for ids in encoded], cut

    def texts(self, ids: list[list[int]]) -> list[str]:
        """Return a line of text for each list of ids; a generated newline becomes a space."""
        return [text.replace("\n", " ") for text in self.tokenizer.decode(ids)]


def _readable(line: str, most: int) -> str:
    """Cut a line to a number of characters; half a surrogate pair is read as U+FFFD."""
    text = shorten_text(line, most)
    if is_utf8(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def load(
    *paths: Path, device: str = "auto", precision: str = "auto", **decode: object
) -> LoadedModel:
    """Load a run's best model or a checkpoint, or several as an ensemble, which knows the tags that
    all do; `decode` overrides the search settings of the first. Raises `UserError`.
    """
    found: list[LoadedModel] = []
    for directory in map(checkpoint.resolve, paths):
        snapshot = checkpoint.load_or_name_intact(directory)
        if found and snapshot.tokenizer != found[0].tokenizer.proto:
            raise RefusedError(
                f"{directory}: has another vocabulary than {paths[0]}; the models of an ensemble "
                "must share one"
            )
        own = {} if found else decode
        found.append(unpack(snapshot, directory, own, device=device, precision=precision))
        _check_languages(found[0].config, found[-1].config, paths[0], directory)
    return replace(found[0], others=tuple(found[1:]))


def choice(tags: list[str]) -> str:
    """Return what to do instead of naming an unknown tag."""
    return f"choose one of {', '.join(tags)}" if tags else "it has none"


def load_with_tag(*paths: Path, tag: str | None = None, **options: Any) -> LoadedModel:
    """Load models as `load` does and choose a tag; without one, name those of the training text."""
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
    copies of several machines differ.
    """
    # rank 0 alone chooses: the best checkpoint of a run in training may change
    chosen = ranks.from_rank_0(lambda: [checkpoint.resolve(path) for path in paths], PATHS)

    def load_here() -> LoadedModel:
        threads = available_threads() // ranks.local_size
        if ranks.size == 1:  # torchrun sets it to 1
            threads = min(threads, torch.get_num_threads())
        torch.set_num_threads(max(1, threads))
        name = str(device_of(device, ranks))
        if pick_device(name).type == "cpu":
            keep_freed_memory()
        return load_with_tag(*chosen, device=name, precision=precision, **options)

    loaded = ranks.on_all_ranks(load_here)
    manifests = [manifest.hash_file(path / manifest.NAME) for path in chosen]
    ranks.check_same(" ".join(manifests), "models")
    return loaded


def _check_languages(config: Config, other: Config, path: Path, directory: Path) -> None:
    """Refuse an ensemble of opposite directions; warn of other differences between languages, as
    one language may have two codes.
    """
    ours, theirs = config.data.directions, other.data.directions
    if set(ours) & set(theirs):
        return
    (src, tgt), (other_src, other_tgt) = ours[0], theirs[0]
    directions = f"{directory}: translates {other_src} to {other_tgt}, but {path} {src} to {tgt}"
    if src == other_tgt or tgt == other_src:
        raise RefusedError(
            f"{directions}; the models of an ensemble must have one direction, so leave one out"
        )
    logger.warning("%s; are these languages the same?", directions)


def unpack(
    snapshot: Snapshot,
    directory: Path,
    decode: Mapping[str, object],
    *,
    device: str = "auto",
    precision: str = "auto",
    check_stop: Callable[[], None] = lambda: None,
) -> LoadedModel:
    """Put a checkpoint's model on a device, with search settings that `decode` overrides; errors
    name its directory.
    """
    config = parse_stored_config(snapshot.config, str(directory / layout.CONFIG))
    tokenizer = Tokenizer(snapshot.tokenizer, str(directory / layout.TOKENIZER))
    shape = shape_of(config, tokenizer.vocab_size, tokenizer.pad_id)
    target = pick_device(device)
    with torch.device("meta"):  # a config may ask for any size: no memory before the weights agree
        model = build(shape, target)
    check_weights(dict(model.named_parameters()), snapshot.weights, directory)
    with out_of_memory_as(lambda: f"{directory}: out of memory; free some"):
        model.take_weights(snapshot.weights)
        set_compute_dtype(model, compute_dtype(precision, target, training=False))
        model.to(target)
    settings = override_decode(config.decode, **decode)
    text = "%s: %d parameters, on %s, precision %s; %s"
    logger.debug(text, directory, model.num_parameters, target, precision, settings)
    return LoadedModel(model, tokenizer, settings, config, check_stop=check_stop)
