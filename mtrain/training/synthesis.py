"""Synthetic text, as of back-translation: before training, models translate text in one language.

1. given    the lines of the side that is there
2. shards   of consecutive lines, each translated by one rank in batches that depend on the shard
            alone, and kept in the cache: the same bytes however many processes made them
3. sealed   the pairs that stay, in `synthetic/` of the run, which reads them from then on
"""

import json
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import chain, compress, islice
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from tqdm import tqdm

from mtrain.config.corpora import Corpus
from mtrain.config.loading import load_stored_config
from mtrain.config.schema import Config, override_decode
from mtrain.corpus import readers
from mtrain.corpus.lines import DROPPED, chunked, is_blank
from mtrain.corpus.readers import Pair, Scan, describe, reading_of
from mtrain.data.cache import cache_directory, cache_key, cached
from mtrain.data.prepare import scan_corpus
from mtrain.runs import checkpoint, layout, manifest, synthetic
from mtrain.runs.directory import RunDirectory
from mtrain.runs.records import PROVENANCE, SYNTHETIC, SyntheticText
from mtrain.runtime import files
from mtrain.runtime.console import format_bytes
from mtrain.runtime.distributed import Ranks, device_of
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.json_reader import read_json_file
from mtrain.runtime.log import logger, progress_bar
from mtrain.runtime.stop import Stop
from mtrain.scoring.metrics import sentence_chrf
from mtrain.training.learner import threads_of
from mtrain.translation.loading import PATHS, choice, load_with_tag
from mtrain.translation.translator import Translator

FORMAT = 1  # of a shard in the cache
SHARD = 2000  # lines: a kill costs at most the work on these
TIMED = 100  # lines that are translated to forecast the time
LINES = "lines.json"  # the file of a shard
MIN_SCORE = -1e9  # of a score: JSON has no infinity
PAUSE = 60  # seconds between lines of the log

EMPTY = DROPPED + "empty translation"
AT_LIMIT = DROPPED + "source or translation at its limit of length"
WORST = DROPPED + "least probable translations"


@dataclass(frozen=True)
class SyntheticLine:
    """A translation and its log-probability per token; `fault` is why its pair is dropped."""

    text: str
    score: float
    fault: str = ""


LineShard = list[SyntheticLine]
SHARD_FORM = TypeAdapter(LineShard)
SYNTHETIC_OR_NONE: TypeAdapter[SyntheticText | None] = TypeAdapter(SyntheticText | None)


class MissingModelError(UserError):
    """A model is not there."""


def synthesize(config: Config, run: RunDirectory, stop: Stop, ranks: Ranks) -> dict[str, Any]:
    """Make the synthetic text that is not there yet; return what is known of all of it, by the keys
    of its entries. Every rank takes part.
    """
    found = {}
    for number, entry in enumerate(config.data.train):
        if entry.model:
            known = ranks.share(partial(_find, config, run, number, stop), SYNTHETIC_OR_NONE)
            known = known or Synthesizer(config, number, stop, ranks).make(run)
            found[f"data.train.{number}"] = asdict(known)
    return found


def _find(config: Config, run: RunDirectory, number: int, stop: Stop) -> SyntheticText | None:
    """Read what is known of the text of an entry, if it is the one to train on. A run that has
    begun keeps its text whatever becomes of the models, and refuses other settings; before, the
    text must be what the models make now, if they are there.
    """
    key, entry = f"data.train.{number}", config.data.train[number]
    provenance = run.read(layout.RUN, PROVENANCE)
    if provenance is not None:
        if key not in provenance.synthetic:
            raise RefusedError(f"{run.path}: this run began without {key}; choose another run_dir")
        synthetic.check(key, entry, provenance.synthetic[key].settings)
    try:
        known = synthetic.read(run.path, number)
    except manifest.DamagedError as error:
        if provenance is not None:
            place = synthetic.directory(run.path, number)
            text = f"restore it, or remove {place} to have it made again"
            raise UserError(f"{error}; {text}") from None
        logger.warning("%s; it is made again", error)
        return None
    if known is None:
        return None
    if provenance is not None:
        _warn_of_other_text(config, number, known, stop)
        return known
    try:
        is_same = known.key == Synthesizer(config, number, stop, Ranks()).text_key
    except MissingModelError as error:
        scan = scan_corpus(config, _given(entry), stop)
        is_same = (known.given, known.settings) == (scan.sha256, synthetic.settings_of(entry))
        if is_same:
            logger.warning("%s; the synthetic text is already there", error)
    return known if is_same else None


def _given(entry: Corpus) -> Corpus:
    """Return the text that models read: as both sides, if the entry names one, not exchanged."""
    return entry.model_copy(update={"model": [], "swap": False})


def _name_of(text: Corpus) -> str:
    return describe(text).split(" + ")[0]


def _warn_of_other_text(config: Config, number: int, known: SyntheticText, stop: Stop) -> None:
    """Warn if the text of an entry, if it still exists, is not the one that was translated."""
    text = _given(config.data.train[number])
    places = readers.files_of(text, reading_of(config).root)
    is_there = places and all(place.is_file() for place in places)
    if is_there and scan_corpus(config, text, stop).sha256 != known.given:
        logger.warning(
            "data.train.%d: %s is not the text that was translated when this run began; the run "
            "keeps what was made then (choose another run_dir to use the new text)",
            number,
            _name_of(text),
        )


def without_missing(config: Config, stop: Stop, *, timed: bool) -> Config:
    """Return the config with the text that is there; warn of what models have yet to make, of which
    `timed` translates some. Raises `UserError` if there is no training text at all.
    """
    run, missing = RunDirectory(Path(config.run_dir)), set[int]()
    for number, entry in enumerate(config.data.train):
        if not entry.model or _find(config, run, number, stop) is not None:
            continue
        missing.add(number)
        try:
            text = Synthesizer(config, number, stop, Ranks()).missing(timed)
        except MissingModelError as error:  # it is perhaps not trained yet
            text = str(error)
        logger.warning(
            "data.train.%d: left out, as its synthetic text is not there yet: %s", number, text
        )
    resolved = synthetic.resolve(config, skip=missing)
    if not resolved.data.texts:
        raise UserError("data.train: no text is there yet; `mtrain data build` makes it")
    return resolved


class Synthesizer:
    """Makes the synthetic text of one entry of `data.train`. Raises `UserError`."""

    def __init__(self, config: Config, number: int, stop: Stop, ranks: Ranks) -> None:
        entry = config.data.train[number]
        self.config, self.entry = config, entry
        self.stop, self.ranks = stop, ranks
        self.number, self.key = number, f"data.train.{number}"
        self.text = _given(entry)
        self.name = _name_of(self.text)
        self.device = device_of(config.train.device, ranks)
        # rank 0 alone chooses: the best checkpoint of a run in training may change
        self.models = ranks.share(self._resolve, PATHS)
        self.hashes = self._hash()
        ranks.check_same(json.dumps(self.hashes), f"models of {self.key}")
        self.search = {name: getattr(entry, name) for name in ("sample", "top_k", "beam_size")}
        model = load_stored_config(self.models[0] / layout.CONFIG)
        self._check_direction(model)
        decode = override_decode(model.decode, **self.search).model_dump()
        how = (self.entry.model_tag, self.entry.keep, self.entry.precision)
        # an entry of the same text as an earlier one gets other samples
        earlier = [describe(_given(each)) for each in config.data.train[:number]]
        self.seed = config.seed + earlier.count(describe(self.text))
        seed = self.seed if self.entry.sample else None
        self.identity = (FORMAT, SHARD, self.hashes, decode, how, seed, self.device.type)

    def _resolve(self) -> list[Path]:
        """Find the models; raises `MissingModelError`."""
        try:
            return [checkpoint.resolve(Path(path)) for path in self.entry.model]
        except UserError as error:
            raise MissingModelError(f"{self.key}.model: {error}") from None

    def _hash(self) -> list[str]:
        """Hash the weights and the vocabulary of each model."""
        names = (layout.MODEL, layout.TOKENIZER)
        return [manifest.hash_file(path / name) for path in self.models for name in names]

    def _check_direction(self, model: Config) -> None:
        """Refuse a model that translates in the other direction, and one of several directions if
        none is chosen; warn of other languages.
        """
        src, tgt = self.config.data.languages(self.text)
        src, tgt = (tgt, src) if self.entry.synthetic_side == "src" else (src, tgt)
        data, tag = model.data, self.entry.model_tag
        if tag is not None and tag not in model.tags:
            raise RefusedError(
                f"{self.key}.model_tag: {self.entry.model[0]} does not know the tag {tag}; "
                f"{choice(model.tags)}"
            )
        if tag is None and all(each.tag for each in data.train):
            tags = ", ".join(sorted({str(each.tag) for each in data.train}))
            raise RefusedError(
                f"{self.key}.model_tag: missing; all training text of {self.entry.model[0]} has "
                f"tags: choose one of {tags}"
            )
        found = [data.languages(each) for each in data.train if tag in (None, each.tag)]
        if (tgt, src) in found and (src, tgt) not in found:
            raise RefusedError(
                f"{self.key}.model: {self.entry.model[0]} translates {tgt} to {src}; this entry "
                f"needs a model from {src} to {tgt}"
            )
        if found and (src, tgt) not in found:
            text = (
                "%s.model: translates %s to %s, but this entry is of %s and %s; are they the same?"
            )
            logger.warning(text, self.key, *found[0], src, tgt)

    @cached_property
    def scan(self) -> Scan:
        """The scan of the text that is there."""
        return scan_corpus(self.config, self.text, self.stop)

    @property
    def text_key(self) -> str:
        """A hash of everything the pairs depend on."""
        return cache_key(self.identity, self.scan.sha256, synthetic.settings_of(self.entry))

    def make(self, run: RunDirectory) -> SyntheticText:
        """Translate what is not in the cache, and seal the pairs in the run."""
        counts, scores, then = Counter[str](), array("d"), time.monotonic()
        logger.info("%s: translating %s with %s", self.key, self.name, ", ".join(self.entry.model))
        shards, lines = enumerate(self._shards(counts)), self.scan.pairs
        with progress_bar(lines, "line", f"translating {Path(self.name).name}") as bar:
            while some := list(islice(shards, self.ranks.size)):
                found = self.ranks.gather(partial(self._own_shard, some), SHARD_FORM)
                for rank, ((number, pairs), shard) in enumerate(zip(some, found, strict=False)):
                    if self.ranks.is_first and rank > 0:  # another machine may have made it
                        self._shard(number, pairs, shard)
                    scores.extend(nan if each.fault else each.score for each in shard)
                    counts.update(each.fault for each in shard if each.fault)
                    bar.update(len(pairs))
                if time.monotonic() - then > PAUSE:
                    then, done = time.monotonic(), f"{len(scores):,}"
                    logger.info("%s: %s of %s lines", self.key, done, f"{lines:,}")
        return self.ranks.share(partial(self._seal, run, np.array(scores), counts), SYNTHETIC)

    def _shards(self, counts: Counter[str]) -> Iterator[list[Pair]]:
        """Read the lines to translate, each with its reference, without blank ones."""
        reading = reading_of(self.config)
        reading.counts = counts
        return chunked(readers.read_pairs(self.text, reading), SHARD)

    def _own_shard(self, some: list[tuple[int, list[Pair]]]) -> LineShard:
        """Return this rank's shard of a round, if it has one."""
        if self.ranks.rank >= len(some):
            return []
        return self._shard(*some[self.ranks.rank])

    def _shard(self, number: int, pairs: list[Pair], known: LineShard | None = None) -> LineShard:
        """Return a shard from the cache, where it is made if it is not `known`."""

        def write(directory: Path) -> None:
            shard = known or self._translate(number, pairs)
            files.write_bytes(directory / LINES, SHARD_FORM.dump_json(shard))

        return cached(self._name(number, pairs), _open_shard, write, self.stop)

    def _name(self, number: int, pairs: list[Pair]) -> str:
        place = number if self.entry.sample else None  # what is drawn depends on it
        return cache_key("shard", self.identity, place, pairs)

    @cached_property
    def _translator(self) -> Translator:
        torch.set_num_threads(threads_of(self.config, self.ranks))
        loaded = load_with_tag(
            *self.models,
            tag=self.entry.model_tag,
            device=str(self.device),
            precision=self.entry.precision,
            **self.search,
        )
        if self._hash() != self.hashes:
            raise UserError(f"{self.key}.model: it changed while it was loaded; run this again")
        loaded.check_stop = self.stop.check
        alone = self.ranks.size == 1
        return Translator(loaded, seed=self.seed, threads=1, in_processes=alone)

    def _translate(self, number: int, pairs: list[Pair]) -> LineShard:
        translator = self._translator
        sources = [source for source, _ in pairs]
        found, cut = translator.translate(sources, first=number * SHARD)
        encoded, _ = translator.loaded.encode_sources(sources)
        limits = [translator.loaded.limit(len(ids)) for ids in encoded]
        for index in cut:  # a part of the line is not translated
            limits[index] = 0
        lines = []
        for (_, reference), hypotheses, limit in zip(pairs, found, limits, strict=True):
            best = hypotheses[0]
            if self.entry.keep == "best":
                texts, same = [each.text for each in hypotheses], [reference] * len(hypotheses)
                chrf = sentence_chrf(texts, [same], lowercase=False)
                best = hypotheses[int(np.argmax(chrf))]
            fault = EMPTY if is_blank(best.text) else AT_LIMIT if best.tokens >= limit else ""
            lines.append(SyntheticLine(best.text, max(best.score / best.tokens, MIN_SCORE), fault))
        return lines

    def _seal(
        self, run: RunDirectory, scores: NDArray[np.float64], counts: Counter[str]
    ) -> SyntheticText:
        """Write the pairs that stay into the run, given the scores of all, which are not a number
        where a pair is at fault. Raises `UserError` if the text is not the one that was scanned.
        """
        keep = ~np.isnan(scores)
        if worst := int(self.entry.drop_worst * keep.sum()):
            counts[WORST] += worst
            keep[np.argsort(scores, kind="stable")[:worst]] = False  # those at fault are last
        models = dict(zip(map(str, self.models), self.hashes[::2], strict=True))
        prints, sizes = (self.scan.sha256, self.text_key), (len(keep), int(keep.sum()))
        dropped = dict(sorted(counts.items()))
        record = SyntheticText(synthetic.settings_of(self.entry), models, *prints, *sizes, dropped)

        def write(directory: Path) -> None:
            shards = enumerate(self._shards(Counter()))
            lines = chain.from_iterable(zip(p, self._shard(n, p), strict=True) for n, p in shards)
            with files.create(directory / synthetic.PAIRS) as out:
                for (given, _), line in compress(lines, keep.tolist()):
                    sides = {"src": given, "tgt": given, self.entry.synthetic_side: line.text}
                    out.write(json.dumps(sides, ensure_ascii=False).encode() + b"\n")
            if scan_corpus(self.config, self.text, self.stop) != self.scan:
                text = "it changed while it was translated; run the same command again"
                raise UserError(f"{self.key}: {self.name}: {text}")
            files.write_bytes(directory / synthetic.RECORD, SYNTHETIC.dump_json(record, indent=1))

        run.check_held()
        path = synthetic.directory(run.path, self.number)
        files.make_directory(path.parent)
        manifest.write_directory(path, write)
        manifest.verify(path, synthetic.PAIRS, synthetic.RECORD)
        report = logger.info if record.pairs else logger.warning
        report("%s: %s pairs", self.key, f"{record.pairs:,}")
        for reason, count in record.dropped.items():
            logger.info("%s: %s: %s", self.key, reason, f"{count:,}")
        return record

    def missing(self, timed: bool) -> str:
        """Describe what is missing, and how long it takes to make it."""
        left, some, size = 0, list[Pair](), 0
        for number, pairs in enumerate(self._shards(Counter())):
            self.stop.check()
            if not (cache_directory() / self._name(number, pairs)).is_dir():
                left, some = left + len(pairs), some or pairs[:TIMED]
            size += 2 * sum(len(given.encode()) for given, _ in pairs)
        if not left:
            return f"all of {self.name} is translated, in the cache, and training starts with it"
        text = f"{left:,} lines of {self.name}, to be translated by {', '.join(self.entry.model)}"
        if timed and some:
            _ = self._translator
            started = time.perf_counter()
            self._translate(0, some)
            seconds = (time.perf_counter() - started) / len(some) * left
            text += f" in about {tqdm.format_interval(max(1.0, seconds))}"
        return f"{text}, to about {format_bytes(size)}"


def _open_shard(path: Path) -> LineShard:
    """Open a shard of the cache; raises `DamagedError`, or `ValueError` for one of another form."""
    manifest.verify(path, LINES)
    return read_json_file(path / LINES, SHARD_FORM)
