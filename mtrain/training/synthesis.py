"""Synthetic text, as in back-translation: before training, models translate text in one language.

1. read       the lines of the given side
2. translate  shards of consecutive lines, each by one rank in batches that depend on the shard
              alone, and store them in the cache: any number of processes makes the same bytes
3. seal       the pairs to train on in `synthetic/` of the run, which reads them from then on
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

from mtrain.config.corpora import Corpus, FileCorpus, TextCorpus
from mtrain.config.loading import load_stored_config
from mtrain.config.schema import Config, override_decode
from mtrain.corpus import readers
from mtrain.corpus.lines import DROPPED, chunked, is_blank
from mtrain.corpus.readers import Pair, Scan, corpus_name, reading_of
from mtrain.data.cache import cache_directory, cache_key, cached
from mtrain.data.prepare import scan_corpus
from mtrain.runs import layout, manifest, reader, synthetic
from mtrain.runs.directory import RunDirectory
from mtrain.runs.records import Provenance, SyntheticText
from mtrain.runtime import files
from mtrain.runtime.distributed import Ranks, device_of
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.json_reader import adapter_of
from mtrain.runtime.log import logger, progress_bar
from mtrain.runtime.stop import Stop, format_duration
from mtrain.scoring.metrics import sentence_chrf
from mtrain.training.learner import threads_of
from mtrain.translation.loading import load_with_tag, tag_advice
from mtrain.translation.translator import Translator

FORMAT = 1  # of a shard in the cache
SHARD = 2000  # lines: a kill loses at most the work on these
TIMED = 100  # lines that are translated to forecast the time
LINES = "lines.json"  # the file of a shard
MIN_SCORE = -1e9  # replaces -inf, which JSON lacks
PAUSE = 60  # seconds between lines of the log

EMPTY = DROPPED + "empty translation"
AT_LIMIT = DROPPED + "source or translation at its limit of length"
WORST = DROPPED + "least probable translations"


@dataclass(frozen=True)
class SyntheticLine:
    """A translation and its log-probability per token; a pair with a `fault` is dropped."""

    text: str
    score: float
    fault: str = ""


LineShard = list[SyntheticLine]


class MissingModelError(UserError):
    """A model that makes synthetic text does not exist."""


class GivenText:
    """The text that the models of an entry of `data.train` translate."""

    def __init__(self, config: Config, number: int, stop: Stop) -> None:
        self.config, self.number, self.stop = config, number, stop
        self.entry = config.data.train[number]
        self.key = f"data.train.{number}"
        self.corpus = _without_models(self.entry)
        self.name = _name_of(self.corpus)

    @cached_property
    def scan(self) -> Scan:
        """The scan of the text."""
        return scan_corpus(self.config, self.corpus, self.stop)


def _without_models(entry: Corpus) -> Corpus:
    """Return an entry without its models and `swap`."""
    return entry.model_copy(update={"model": [], "swap": False})


def _name_of(text: Corpus) -> str:
    return text.src if isinstance(text, TextCorpus) else corpus_name(text)


def _texts(config: Config, stop: Stop) -> list[GivenText]:
    """Return the texts of all entries with models."""
    numbered = enumerate(config.data.train)
    return [GivenText(config, number, stop) for number, entry in numbered if entry.model]


def synthesize(config: Config, run: RunDirectory, stop: Stop, ranks: Ranks) -> dict[str, Any]:
    """Make missing synthetic text, on all ranks; return the records of all synthetic text, by the
    keys of its entries.
    """
    records = {}
    for text in _texts(config, stop):
        record = ranks.from_rank_0(partial(_find, text, run), SyntheticText | None)
        record = record or Synthesizer(text, ranks).make(run)
        records[text.key] = asdict(record)
    return records


def _find(text: GivenText, run: RunDirectory) -> SyntheticText | None:
    """Read the record of the synthetic text; None if it must be made. A run that has begun keeps
    its text even if the models change, and refuses other settings.
    """
    provenance = run.read(layout.RUN, Provenance)
    if provenance is None:
        return _find_current(text, run)
    if text.key not in provenance.synthetic:
        raise RefusedError(f"{run.path}: this run began without {text.key}; choose another run_dir")
    synthetic.check(text.key, text.entry, provenance.synthetic[text.key].settings)
    try:
        record = synthetic.read(run.path, text.number)
    except manifest.DamagedError as error:
        directory = synthetic.directory(run.path, text.number)
        advice = f"restore it, or remove {directory} and run the same command to make it again"
        raise UserError(f"{error}; {advice}") from None
    if record is not None:
        _warn_if_changed(text, record)
    return record


def _find_current(text: GivenText, run: RunDirectory) -> SyntheticText | None:
    """Find text that was made for a run that has not begun. It must be what the models would make
    now, if they exist.
    """
    try:
        record = synthetic.read(run.path, text.number)
    except manifest.DamagedError as error:
        logger.warning("%s; the text is made again", error)
        return None
    if record is None:
        return None
    try:
        is_same = record.key == Synthesizer(text, Ranks()).text_key
    except MissingModelError as error:
        settings = synthetic.settings_of(text.entry)
        is_same = (record.given, record.settings) == (text.scan.sha256, settings)
        if is_same:
            logger.warning("%s; using the synthetic text that this model made before", error)
    return record if is_same else None


def _warn_if_changed(text: GivenText, record: SyntheticText) -> None:
    """Warn if the files of a text exist, but have changed since they were translated. A dataset is
    not loaded again.
    """
    if not isinstance(text.corpus, TextCorpus | FileCorpus):
        return
    paths = readers.files_of(text.corpus, reading_of(text.config).root)
    if all(path.is_file() for path in paths) and text.scan.sha256 != record.given:
        logger.warning(
            "%s: %s is not the text that was translated when this run began; the run "
            "keeps its synthetic text (choose another run_dir to use the new text)",
            text.key,
            text.name,
        )


def without_missing_text(config: Config, stop: Stop, *, timed: bool) -> Config:
    """Return the config without synthetic text that models have yet to make, and warn of that; if
    `timed`, translate some of it to forecast the time. Raises `UserError` if no text is left.
    """
    run = RunDirectory(Path(config.run_dir))
    missing = set[int]()
    for text in _texts(config, stop):
        if _find(text, run) is not None:
            continue
        missing.add(text.number)
        try:
            described = Synthesizer(text, Ranks()).describe_missing(timed)
        except MissingModelError as error:  # the model may not be trained yet
            described = str(error)
        logger.warning(
            "%s: left out, as its synthetic text does not exist yet: %s", text.key, described
        )
    resolved = synthetic.with_synthetic_text(config, skip=missing)
    if not resolved.data.available_train:
        raise UserError("data.train: no text exists yet; make it with `mtrain data build`")
    return resolved


def _hashes_of(models: list[Path]) -> list[str]:
    """Hash the weights and the vocabulary of each model."""
    names = (layout.MODEL, layout.TOKENIZER)
    return [manifest.hash_file(path / name) for path in models for name in names]


class Synthesizer:
    """Makes the synthetic text of one entry of `data.train`. Raises `UserError`."""

    def __init__(self, text: GivenText, ranks: Ranks) -> None:
        config, entry = text.config, text.entry
        self.text, self.config, self.entry = text, config, entry
        self.key, self.name = text.key, text.name
        self.stop, self.ranks = text.stop, ranks
        self.device = device_of(config.train.device, ranks)
        # rank 0 alone chooses: the best checkpoint of a run in training may change
        self.models = ranks.from_rank_0(self._resolve, list[Path])
        self.hashes = _hashes_of(self.models)
        ranks.check_same(json.dumps(self.hashes), f"models of {self.key}")
        self.search = {name: getattr(entry, name) for name in ("sample", "top_k", "beam_size")}
        model = load_stored_config(self.models[0] / layout.CONFIG)
        self._check_direction(model)
        decode = override_decode(model.decode, **self.search).model_dump()
        options = (entry.model_tag, entry.keep, entry.precision)
        # an entry with the same text as an earlier one gets other samples
        earlier = map(_without_models, config.data.train[: text.number])
        same = [each for each in earlier if corpus_name(each) == corpus_name(text.corpus)]
        self.seed = config.seed + len(same)
        seed = self.seed if entry.sample else None
        self.identity = (FORMAT, SHARD, self.hashes, decode, options, seed, self.device.type)

    def _resolve(self) -> list[Path]:
        """Find the models; raises `MissingModelError`."""
        try:
            return [reader.resolve(Path(path)) for path in self.entry.model]
        except UserError as error:
            raise MissingModelError(f"{self.key}.model: {error}") from None

    def _check_direction(self, model: Config) -> None:
        """Refuse a model of the opposite direction, and a model of several directions without
        `model_tag`; warn of a model of other languages.
        """
        src, tgt = self.config.data.languages(self.text.corpus)
        src, tgt = (tgt, src) if self.entry.synthetic_side == "src" else (src, tgt)
        data = model.data
        tag = self.entry.model_tag
        if tag is not None and tag not in model.tags:
            raise RefusedError(
                f"{self.key}.model_tag: {self.entry.model[0]} does not know the tag {tag}; "
                f"{tag_advice(model.tags)}"
            )
        if tag is None and all(corpus.tag for corpus in data.train):
            tags = ", ".join(sorted({str(corpus.tag) for corpus in data.train}))
            raise RefusedError(
                f"{self.key}.model_tag: missing; all training text of {self.entry.model[0]} has "
                f"tags: choose one of {tags}"
            )
        directions = [data.languages(each) for each in data.train if tag in (None, each.tag)]
        if (tgt, src) in directions and (src, tgt) not in directions:
            raise RefusedError(
                f"{self.key}.model: {self.entry.model[0]} translates {tgt} to {src}; this entry "
                f"needs a model from {src} to {tgt}"
            )
        if directions and (src, tgt) not in directions:
            question = (
                "%s.model: translates %s to %s, but this entry is of %s and %s; are they the same?"
            )
            logger.warning(question, self.key, *directions[0], src, tgt)

    @property
    def text_key(self) -> str:
        """A hash of everything that the pairs depend on."""
        return cache_key(self.identity, self.text.scan.sha256, synthetic.settings_of(self.entry))

    def make(self, run: RunDirectory) -> SyntheticText:
        """Translate the shards that the cache lacks, and seal the pairs in the run."""
        counts = Counter[str]()
        scores = array("d")
        logged_at = time.monotonic()
        logger.info("%s: translating %s with %s", self.key, self.name, ", ".join(self.entry.model))
        shards = enumerate(self._shards(counts))
        lines = self.text.scan.pairs
        with progress_bar(lines, "line", f"translating {Path(self.name).name}") as bar:
            while given := list(islice(shards, self.ranks.size)):  # a shard for each rank
                translated = self.ranks.gather(partial(self._own_shard, given), LineShard)
                # the last ranks may have no shard
                of_ranks = enumerate(zip(given, translated, strict=False))
                for rank, ((number, pairs), shard) in of_ranks:
                    if self.ranks.is_rank_0 and rank > 0:  # rank 0's cache may lack it
                        self._shard(number, pairs, shard)
                    scores.extend(nan if line.fault else line.score for line in shard)
                    counts.update(line.fault for line in shard if line.fault)
                    bar.update(len(pairs))
                if time.monotonic() - logged_at > PAUSE:
                    logged_at = time.monotonic()
                    logger.info("%s: %s of %s lines", self.key, f"{len(scores):,}", f"{lines:,}")
        seal = partial(self._seal, run, np.array(scores), counts)
        return self.ranks.from_rank_0(seal, SyntheticText)

    def _shards(self, counts: Counter[str]) -> Iterator[list[Pair]]:
        """Read the lines to translate with their references, except for blank lines."""
        reading = reading_of(self.config, counts=counts)
        return chunked(readers.read_pairs(self.text.corpus, reading), SHARD)

    def _own_shard(self, given: list[tuple[int, list[Pair]]]) -> LineShard:
        """Translate this rank's shard, if there is one."""
        if self.ranks.rank >= len(given):
            return []
        return self._shard(*given[self.ranks.rank])

    def _shard(self, number: int, pairs: list[Pair], made: LineShard | None = None) -> LineShard:
        """Return a shard from the cache; if it is missing, add `made`, or else translate it."""

        def write(directory: Path) -> None:
            shard = made or self._translate(number, pairs)
            files.write_bytes(directory / LINES, adapter_of(LineShard).dump_json(shard))

        return cached(self._name(number, pairs), _open_shard, write, self.stop)

    def _name(self, number: int, pairs: list[Pair]) -> str:
        position = number if self.entry.sample else None  # samples depend on it
        return cache_key("shard", self.identity, position, pairs)

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
        if _hashes_of(self.models) != self.hashes:
            raise UserError(f"{self.key}.model: changed while it was loaded; run this again")
        loaded.check_stop = self.stop.check
        return Translator(loaded, seed=self.seed, threads=1, in_processes=self.ranks.size == 1)

    def _translate(self, number: int, pairs: list[Pair]) -> LineShard:
        translator = self._translator
        sources = [source for source, _ in pairs]
        translations, cut = translator.translate(sources, first=number * SHARD)
        lines, cut_lines = [], set(cut)
        for index, ((_, reference), hypotheses) in enumerate(zip(pairs, translations, strict=True)):
            best = hypotheses[0]
            if self.entry.keep == "best":
                texts = [hypothesis.text for hypothesis in hypotheses]
                chrf = sentence_chrf(texts, [[reference] * len(texts)], lowercase=False)
                best = hypotheses[int(np.argmax(chrf))]
            is_at_limit = best.is_at_limit or index in cut_lines  # perhaps translated in part
            fault = EMPTY if is_blank(best.text) else AT_LIMIT if is_at_limit else ""
            lines.append(SyntheticLine(best.text, max(best.score / best.tokens, MIN_SCORE), fault))
        return lines

    def _seal(
        self, run: RunDirectory, scores: NDArray[np.float64], counts: Counter[str]
    ) -> SyntheticText:
        """Write the pairs to train on into the run; `scores` has the score of each pair, NaN if its
        line has a fault.
        """
        keep = ~np.isnan(scores)
        if worst := int(self.entry.drop_worst * keep.sum()):
            counts[WORST] += worst
            keep[np.argsort(scores, kind="stable")[:worst]] = False  # NaN is sorted last
        models = dict(zip(map(str, self.models), self.hashes[::2], strict=True))
        record = SyntheticText(
            synthetic.settings_of(self.entry),
            models,
            given=self.text.scan.sha256,
            key=self.text_key,
            lines=len(keep),
            pairs=int(keep.sum()),
            dropped=dict(sorted(counts.items())),
        )

        def write(directory: Path) -> None:
            self._write_pairs(directory / synthetic.PAIRS, keep)
            body = adapter_of(SyntheticText).dump_json(record, indent=1)
            files.write_bytes(directory / synthetic.RECORD, body)

        run.check_held()
        path = synthetic.directory(run.path, self.text.number)
        files.make_directory(path.parent)
        manifest.write_directory(path, write)
        manifest.verify(path, synthetic.PAIRS, synthetic.RECORD)
        self._report(record)
        return record

    def _write_pairs(self, path: Path, keep: NDArray[np.bool_]) -> None:
        """Write the pairs to keep. Raises `UserError` if the text has changed since its scan."""
        translated = (
            zip(pairs, self._shard(number, pairs), strict=True)
            for number, pairs in enumerate(self._shards(Counter()))
        )
        lines = chain.from_iterable(translated)
        with files.create(path) as out:
            for (given, _), line in compress(lines, keep.tolist()):
                sides = {"src": given, "tgt": given, self.entry.synthetic_side: line.text}
                out.write(json.dumps(sides, ensure_ascii=False).encode() + b"\n")
        if scan_corpus(self.config, self.text.corpus, self.stop) != self.text.scan:
            reason = "it changed while it was translated; run the same command again"
            raise UserError(f"{self.key}: {self.name}: {reason}")

    def _report(self, record: SyntheticText) -> None:
        """Log the numbers of pairs and of dropped lines; warn if most translations have faults."""
        report = logger.info if record.pairs else logger.warning
        report("%s: %s pairs", self.key, f"{record.pairs:,}")
        for reason, count in record.dropped.items():
            logger.info("%s: %s: %s", self.key, reason, f"{count:,}")
        faults = Counter({reason: record.dropped.get(reason, 0) for reason in (EMPTY, AT_LIMIT)})
        if 2 * faults.total() > record.lines:
            logger.warning(
                "%s: %s of %s translations are dropped (most frequent reason: %s); does %s suit "
                "%s?",
                self.key,
                f"{faults.total():,}",
                f"{record.lines:,}",
                faults.most_common(1)[0][0].removeprefix(DROPPED),
                ", ".join(self.entry.model),
                self.name,
            )

    def describe_missing(self, timed: bool) -> str:
        """Describe the text to translate and, if `timed`, the time that it takes."""
        remaining = 0
        sample = list[Pair]()
        for number, pairs in enumerate(self._shards(Counter())):
            self.stop.check()
            if not (cache_directory() / self._name(number, pairs)).is_dir():
                remaining += len(pairs)
                sample = sample or pairs[:TIMED]
        if not remaining:
            return f"all of {self.name} is translated in the cache, so training makes it at once"
        models = ", ".join(self.entry.model)
        described = f"{remaining:,} lines of {self.name}, to be translated by {models}"
        if timed:
            _ = self._translator  # loading does not count
            started = time.perf_counter()
            self._translate(0, sample)
            seconds = (time.perf_counter() - started) / len(sample) * remaining
            described += f" in about {format_duration(max(1.0, seconds))}"
        return described


def _open_shard(path: Path) -> LineShard:
    """Read a shard from the cache; raises `DamagedError`, or `ValueError` for an invalid shard."""
    manifest.verify(path, LINES)
    # without the limits of `read_json`, which counts the commas of the text, too
    data = (path / LINES).read_bytes()
    shard: LineShard = adapter_of(LineShard).validate_json(data, strict=True)
    return shard
