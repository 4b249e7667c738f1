"""Lines in, lines out: batching by length, limits for each sentence, original order; and forced
scores.
"""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtrain.config.loading import parse_stored_config
from mtrain.config.schema import Config, DecodeConfig, override_decode
from mtrain.corpus.lines import CHARACTERS_A_TOKEN, LONGEST_TEXT, is_blank, shorten_text
from mtrain.data.batches import SpecialIds, batch_by_tokens, collate, pad
from mtrain.data.tokenizer import Tokenizer
from mtrain.model.decoder import Decoder, Ensemble, mean_log_probs
from mtrain.model.transformer import Dropout, Shape, Transformer, set_compute_dtype
from mtrain.runs import checkpoint, layout
from mtrain.runs.checkpoint import Snapshot
from mtrain.runtime.device import compute_dtype, pick_device, telling_lack_of_memory
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.log import logger
from mtrain.translation.sampling import Choice, sample
from mtrain.translation.search import Hypothesis, Rules, beam_search, length_normalizer

# Batches searched side by side on a CPU; more would wait for each other's Python.
MOST_AT_ONCE = 4


@dataclass(frozen=True)
class Translation:
    """A translated line and the natural log-probability of its pieces with eos."""

    text: str
    score: float


@dataclass(frozen=True)
class Line:
    """What is translated: ids of the source without eos; those that the translation is to begin
    with; and the number of its line, which fixes what is sampled.
    """

    source: NDArray[np.int64]
    prefix: list[int] = field(default_factory=list)
    number: int = 0


# Sentences that are searched together, and the translations of each.
Group = list[Line]
Translated = list[list[Translation]]
ShareOut = Callable[[list[Group]], Generator[Translated]]


def model_shape(config: Config, tokenizer: Tokenizer) -> Shape:
    """Derive a model's shape from its settings and vocabulary."""
    return shape_of(config, tokenizer.vocab_size, tokenizer.pad_id)


def shape_of(config: Config, vocab_size: int, pad_id: int) -> Shape:
    """Derive a model's shape from its settings and the size of a vocabulary."""
    m = config.model
    return Shape(
        vocab_size=vocab_size,
        pad_id=pad_id,
        d_model=m.d_model,
        num_heads=m.num_heads,
        d_ff=m.d_ff,
        num_encoder_layers=m.num_encoder_layers,
        num_decoder_layers=m.num_decoder_layers,
        norm=m.norm,
        positions=m.positions,
        max_positions=config.data.max_length,
        tie_embeddings=m.tie_embeddings,
    )


def model_dropout(config: Config) -> Dropout:
    """Take a model's dropout rates from its settings."""
    m = config.model
    return Dropout(m.dropout, m.attention_dropout, m.activation_dropout)


@dataclass
class Translator:
    """A model ready to translate, or several that do it together: `translate` and `score` work on
    lists of lines of any size.
    """

    model: Transformer
    tokenizer: Tokenizer
    decode: DecodeConfig
    config: Config
    check_stop: Callable[[], None] = lambda: None
    share_out: ShareOut | None = None  # who translates batches instead of this process alone
    others: tuple[Transformer, ...] = ()  # of the same vocabulary
    seed: int | None = None  # of sampling; None: the run's
    samples: int = 1  # drawn of each sentence
    device: torch.device = field(init=False)

    def __post_init__(self) -> None:
        self.device = self.model.output.weight.device
        self.ids = SpecialIds.of(self.tokenizer)
        self.normalize = length_normalizer(self.decode.length_norm, self.decode.length_penalty)
        if self.seed is None:
            self.seed = self.config.seed
        for model in self._models:
            model.eval()

    @property
    def _models(self) -> tuple[Transformer, ...]:
        return (self.model, *self.others)

    @cached_property
    def decoder(self) -> Decoder | Ensemble:
        """What searches step by step, made where the first batch is translated."""
        return Ensemble(self._models) if self.others else Decoder(self.model)

    @property
    def _step(self) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
        return self.decoder.step

    @property
    def _positions_limit(self) -> int | None:
        """Tokens a side that learned positions allow; sinusoidal ones have no limit."""
        shapes = [model.shape for model in self._models if model.shape.positions == "learned"]
        return min((shape.max_positions for shape in shapes), default=None)

    @property
    def max_source_length(self) -> int:
        """Source tokens with eos beyond which a line is cut."""
        limit = self.decode.max_source_length
        return min(limit, self._positions_limit or limit)

    def encode_sources(self, lines: list[str]) -> tuple[list[NDArray[np.int64]], list[int]]:
        """Encode and cut at the length limit; returns ids and the places of lines that were cut."""
        return self._cut(lines, self.max_source_length)

    @property
    def max_target_length(self) -> int:
        """Most target tokens with eos that are scored: as many as a translation can have."""
        return self.limit(self.max_source_length - 1)

    def _cut(self, lines: list[str], limit: int) -> tuple[list[NDArray[np.int64]], list[int]]:
        most = limit - 1  # without eos
        encoded = self.tokenizer.encode(
            [shorten_text(line, self.most_characters) for line in lines]
        )
        lengths = zip(map(len, encoded), map(len, lines), strict=True)
        cut = [
            place
            for place, (tokens, characters) in enumerate(lengths)
            if tokens > most or characters > self.most_characters
        ]
        return [np.array(ids[:most], np.int64) for ids in encoded], cut

    @property
    def most_characters(self) -> int:
        """Characters of a line that are tokenized: more than its tokens can hold, unless the text
        is next to nothing but blanks. SentencePiece takes some fifty times the size of a text.
        """
        longest = max(CHARACTERS_A_TOKEN, self.tokenizer.longest_piece)
        return min(self.max_source_length * longest, LONGEST_TEXT)

    def translate(
        self,
        lines: list[str],
        progress: Callable[[int], object] = lambda lines: None,
        *,
        prefixes: list[str] | None = None,
        first: int = 0,
    ) -> tuple[list[list[Translation]], list[int]]:
        """Translate lines, the numbers of which begin with `first`; returns the hypotheses of each,
        best first, and the places of lines that were cut. Each translation begins with the line's
        prefix, if there are any.
        """
        results: list[list[Translation]] = [[Translation("", 0.0)] for _ in lines]
        places = [place for place, line in enumerate(lines) if not is_blank(line)]
        rows, cut = self.encode_sources([lines[place] for place in places])
        begun = self.tokenizer.encode([prefixes[place] for place in places] if prefixes else [])
        progress(len(lines) - len(places))
        batches = list(self._source_batches(rows))
        work = [
            [Line(rows[i], begun[i] if begun else [], first + places[i]) for i in batch]
            for batch in batches
        ]
        with closing((self.share_out or self.translate_batches)(work)) as translated:
            for batch, found in zip(batches, translated, strict=True):
                for i, translations in zip(batch, found, strict=True):
                    results[places[i]] = translations
                progress(len(batch))
        return results, [places[i] for i in cut]

    def translate_batches(self, batches: list[Group]) -> Generator[Translated]:
        """Translate sources batch by batch, on a CPU several at a time: the matrices of decoding
        are so small that two cores do two of them sooner than one together.
        """
        for found in self._translated(batches):
            self.check_stop()
            yield found

    def _translated(self, batches: list[Group]) -> Iterator[Translated]:
        _ = self.decoder  # before several threads ask for it
        work, threads = self.translate_batch, torch.get_num_threads()
        at_once = min(threads, len(batches), MOST_AT_ONCE)
        if self.device.type != "cpu" or at_once < 2:
            yield from map(work, batches)
            return
        share = (threads // at_once,)
        pool = ThreadPoolExecutor(at_once, initializer=torch.set_num_threads, initargs=share)
        try:
            yield from pool.map(work, batches)
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)

    def translate_batch(self, group: Group) -> Translated:
        """Translate sentences that are searched together."""
        longest = max(len(sentence.source) for sentence in group)
        with telling_lack_of_memory(partial(_too_large, len(group), longest)):
            found = self._sample(group) if self.decode.sample else self.search(group)
        texts = iter(self.texts([h.ids for hypotheses in found for h in hypotheses]))
        return [[Translation(next(texts), h.score) for h in hypotheses] for hypotheses in found]

    def best(
        self, lines: list[str], progress: Callable[[int], object] = lambda lines: None
    ) -> list[str]:
        """Translate lines to the best text of each."""
        return [hypotheses[0].text for hypotheses in self.translate(lines, progress)[0]]

    def _source_batches(self, rows: list[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
        """Cut sources into batches of alike lengths within the token budget; the longest first."""
        lengths = np.fromiter((len(row) + 1 for row in rows), np.int64, len(rows))
        width = self.samples if self.decode.sample else self.decode.beam_size
        budget = max(1, self.decode.batch_tokens // width)
        batches = batch_by_tokens(np.stack((lengths, lengths), 1), budget)
        yield from reversed(batches)

    @torch.no_grad()
    def search(self, group: Group) -> list[list[Hypothesis]]:
        """Search for the translations of sentences, together; the hypotheses of each, best
        first.
        """
        return beam_search(
            self._step,
            self.decoder.begin(self._padded(group)),
            rules=self._rules(group),
            beam_size=self.decode.beam_size,
            normalize=self.normalize,
            bos_id=self.ids.bos,
            device=self.device,
        )

    @torch.no_grad()
    def _sample(self, group: Group) -> list[list[Hypothesis]]:
        repeated = [sentence for sentence in group for _ in range(self.samples)]
        found = sample(
            self._step,
            self.decoder.begin(self._padded(repeated)),
            rules=self._rules(repeated),
            choice=Choice(self.decode.temperature, self.decode.top_k, self.decode.top_p),
            seeds=[[self.seed or 0, s.number, k] for s in group for k in range(self.samples)],
            normalize=self.normalize,
            bos_id=self.ids.bos,
            device=self.device,
        )
        own = [found[start : start + self.samples] for start in range(0, len(found), self.samples)]
        return [sorted(drawn, key=lambda h: -h.normalized) for drawn in own]

    def _padded(self, group: Group) -> Tensor:
        sources = [sentence.source for sentence in group]
        return pad(sources, self.ids, bos=False, eos=True).to(self.device)

    def _rules(self, group: Group) -> Rules:
        return Rules(
            [self.limit(len(each.source), len(each.prefix)) for each in group],
            self.ids.eos,
            banned=(self.ids.pad, self.ids.bos),
            prefixes=[each.prefix for each in group] if any(s.prefix for s in group) else None,
            no_repeat=self.decode.no_repeat_ngram,
        )

    def limit(self, source_length: int, prefix_length: int = 0) -> int:
        """Most target tokens with eos for a source and a prefix of so many tokens without."""
        limit = int(self.decode.max_len_a * source_length + self.decode.max_len_b) + 1
        limit = max(limit, prefix_length + 1)
        return min(limit, self._positions_limit or limit)

    def texts(self, ids: list[list[int]]) -> list[str]:
        """Join pieces to lines; a generated newline would break the line contract and becomes a
        space.
        """
        return [text.replace("\n", " ") for text in self.tokenizer.decode(ids)]

    def score(
        self, sources: list[str], targets: list[str]
    ) -> tuple[list[float], tuple[list[int], list[int]]]:
        """Natural log-probability of each target with eos given its source, and the places of the
        sources and of the targets that were cut.
        """
        src, cut_sources = self.encode_sources(sources)
        tgt, cut_targets = self._cut(targets, self.max_target_length)
        return (-self.pair_nll(src, tgt)).tolist(), (cut_sources, cut_targets)

    def nll(self, sources: list[str], targets: list[str]) -> tuple[float, int]:
        """Sum of negative log-likelihood over all target tokens with eos, and their number; lines
        are cut as by `score`.
        """
        src, _ = self.encode_sources(sources)
        tgt, _ = self._cut(targets, self.max_target_length)
        return float(self.pair_nll(src, tgt).sum()), sum(len(row) + 1 for row in tgt)

    @torch.no_grad()
    def pair_nll(self, src: list[NDArray[np.int64]], tgt: list[NDArray[np.int64]]) -> Tensor:
        """Negative log-likelihood of each pair of ids without eos, in fp64 on the CPU."""
        lengths = np.array([(len(s) + 1, len(t) + 1) for s, t in zip(src, tgt, strict=True)])
        result = torch.zeros(len(src), dtype=torch.float64)
        for rows in batch_by_tokens(lengths.reshape(-1, 2), self.decode.batch_tokens):
            self.check_stop()
            with telling_lack_of_memory(partial(_too_large, len(rows), int(lengths[rows].max()))):
                nll = self._batch_nll([(src[i], tgt[i]) for i in rows])
            result[torch.from_numpy(rows)] = nll
        return result

    def _batch_nll(self, pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Tensor:
        batch = collate(pairs, self.ids).to(self.device)
        members = []
        for model in self._models:
            hidden = model.hidden(batch.src, batch.tgt_in).flatten(0, 1)[batch.positions]
            members.append(model.project(hidden).float().log_softmax(-1))
        log_probs = mean_log_probs(members) if self.others else members[0]
        nll = -log_probs.gather(1, batch.targets[:, None])[:, 0].cpu().double()
        row_of = batch.positions.cpu() // batch.tgt_out.shape[1]
        return torch.zeros(len(pairs), dtype=torch.float64).index_add(0, row_of, nll)


def _too_large(rows: int, longest: int) -> str:
    return (
        f"out of memory on {rows} lines of up to {longest} tokens; free memory, or lower "
        "decode.batch_tokens or decode.beam_size (--batch-tokens, --beam-size)"
    )


def load_translator(
    *paths: Path,
    device: str = "auto",
    precision: str = "auto",
    seed: int | None = None,
    samples: int = 1,
    **decode: object,
) -> Translator:
    """Load a run's best model or a checkpoint, or several that translate together; `decode`
    overrides the search settings of the first. Raises `UserError`.
    """
    found: list[Translator] = []
    for directory in map(checkpoint.resolve, paths):
        snapshot = checkpoint.load_or_name_good(directory)
        if found and snapshot.tokenizer != found[0].tokenizer.proto:
            raise RefusedError(
                f"{directory}: has another vocabulary than {paths[0]}; models that translate "
                "together must share one"
            )
        own = decode if not found else {}
        found.append(
            make_translator(snapshot, directory, device=device, precision=precision, **own)
        )
        _check_languages(found[0].config, found[-1].config, paths[0], directory)
    first, *others = found
    models = tuple(other.model for other in others)
    return replace(first, others=models, seed=seed, samples=samples)


def _check_languages(config: Config, other: Config, path: Path, directory: Path) -> None:
    """Refuse two models of which one translates into what the other translates from; warn where
    their languages differ otherwise, for the same one may have two codes.
    """
    ours, theirs = ((c.data.src_lang, c.data.tgt_lang) for c in (config, other))
    if ours == theirs:
        return
    told = f"{directory}: translates {' to '.join(theirs)}, but {path} {' to '.join(ours)}"
    if ours[0] == theirs[1] or ours[1] == theirs[0]:
        raise RefusedError(
            f"{told}; models that translate together must be of one direction, so leave one out"
        )
    logger.warning("%s; are these languages the same?", told)


def make_translator(
    snapshot: Snapshot,
    directory: Path,
    *,
    device: str = "auto",
    precision: str = "auto",
    **decode: object,
) -> Translator:
    """Put a checkpoint's model on a device; errors name the directory that it is of."""
    name = str(directory / layout.CONFIG)
    config = parse_stored_config(snapshot.config, name)
    tokenizer = Tokenizer(snapshot.tokenizer, str(directory / layout.TOKENIZER))
    shape = model_shape(config, tokenizer)
    with torch.device("meta"):  # a config may ask for any size: no memory before the weights agree
        model = Transformer(shape)
    check_weights(dict(model.named_parameters()), snapshot.weights, directory)
    target = pick_device(device)
    with telling_lack_of_memory(lambda: f"{directory}: out of memory; free some"):
        model.take_weights(snapshot.weights)
        set_compute_dtype(model, compute_dtype(precision, target, training=False))
        model.to(target)
    settings = override_decode(config.decode, **decode)
    return Translator(model, tokenizer, settings, config)


def check_weights(parameters: dict[str, Tensor], weights: dict[str, Tensor], name: Path) -> None:
    """Raise `UserError` where names, shapes or values of weights do not fit the parameters."""
    if parameters.keys() != weights.keys():
        odd = sorted(parameters.keys() ^ weights.keys())
        raise UserError(f"{name}: its weights are not this model's: {', '.join(odd[:3])}")
    for key, parameter in parameters.items():
        if weights[key].dtype != torch.float32:
            raise UserError(f"{name}: {key} is {weights[key].dtype}, not fp32")
        if parameter.shape != weights[key].shape:
            shapes = f"{tuple(weights[key].shape)} instead of {tuple(parameter.shape)}"
            raise UserError(f"{name}: {key} has shape {shapes}")
        if not weights[key].isfinite().all():
            raise UserError(f"{name}: {key} holds values that are not finite")
