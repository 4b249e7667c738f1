"""Prepare the text of a config for training: vocabulary, tokenized store, validation and test
text.

1. scan       every corpus: its number of pairs and the SHA-256 of its text
2. sets       validation and test text, line for line
3. vocabulary from the run, `train.init_from` or `tokenizer.path`, else trained on the text
4. stores     each training corpus, filtered and tokenized, in the cache
"""

import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from mtrain.config.corpora import Corpus, GeneratedCorpus, SyntheticCorpus
from mtrain.config.schema import Config, TokenizerConfig
from mtrain.corpus import readers
from mtrain.corpus.lines import DROPPED, NOT_UTF8, chunked, is_blank, join_names
from mtrain.corpus.misalignment import misalignment_warnings
from mtrain.corpus.readers import Pair, Scan, ScoredText, corpus_name, reading_of
from mtrain.data import duplicates
from mtrain.data.cache import cache_key, cached, cached_fact, read_cached
from mtrain.data.filters import FILTERS, Selection
from mtrain.data.mix_ups import find_mix_ups
from mtrain.data.store import (
    CHUNK,
    Store,
    TokenizedCorpus,
    open_tokenized,
    store_key,
    write_tokenized,
)
from mtrain.data.tokenizer import MAX_SENTENCES, Tokenizer, train_tokenizer
from mtrain.data.vocabulary import existing_vocabulary
from mtrain.runs import compatibility, layout, manifest
from mtrain.runs.directory import RunDirectory
from mtrain.runs.records import Fingerprints
from mtrain.runs.synthetic import with_synthetic_text
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.log import TruncatedLines, logger, progress_bar
from mtrain.runtime.stop import Stop
from mtrain.runtime.workers import worker_count
from mtrain.scoring.metrics import check_tokenizer
from mtrain.scoring.suitability import normalization_warnings, text_warnings, tokenizer_warnings

# The temperature repeats the pairs of a small corpus at most this often in an epoch.
MAX_REPETITION = 1000.0
ENCODED = 10_000  # lines of a scored set that are tokenized at a time
MAX_INVALID = 0.05  # warn if a larger fraction of pairs is invalid UTF-8: another encoding?


@dataclass(frozen=True)
class Prepared:
    """The prepared text of a config."""

    tokenizer: Tokenizer
    store: Store
    sets: dict[str, ScoredText]  # validation and test sets, by their keys in the config
    fingerprints: Fingerprints

    def warnings(self, config: Config) -> Iterator[str]:
        """Yield warnings of text that is small, or not prepared for its vocabulary or for BLEU."""
        references = {key: text.references for key, text in self.sets.items()}
        sizes = {key: len(lines) for key, lines in references.items()}
        from_scratch = config.train.init_from is None
        yield from text_warnings(len(self.store), sizes, from_scratch=from_scratch)
        yield from tokenizer_warnings(config.data, references)
        yield from normalization_warnings(self.tokenizer.normalization, references)


def without_missing_init_from(config: Config) -> tuple[Config, list[str]]:
    """Return the config without `train.init_from`, and a warning, if that model does not exist yet
    and the run has not started.
    """
    init_from, run = config.train.init_from, RunDirectory(Path(config.run_dir))
    if not init_from or os.path.exists(init_from) or run.has_begun:
        return config, []
    train = config.train.model_copy(update={"init_from": None})
    warning = f"train.init_from: {init_from} does not exist yet and is ignored here"
    return config.model_copy(update={"train": train}), [warning]


def scan_corpus(config: Config, corpus: Corpus, stop: Stop) -> Scan:
    """Scan a corpus, or return the cached scan of its files."""
    reading = reading_of(config, check_stop=stop.check)
    files, scan = readers.files_of(corpus, reading.root), partial(readers.scan, corpus, reading)
    return cached_fact(files, readers.settings_of(corpus), scan, Scan) if files else scan()


def weights_of(config: Config, sizes: list[int]) -> list[float]:
    """Return how often an epoch uses each pair of each corpus: its weight, times a factor by which
    the temperature repeats smaller corpora. `sizes` are the corpora's numbers of pairs.
    """
    power, largest = 1 / config.data.temperature - 1, max(1, *sizes)
    return [
        corpus.weight * min(MAX_REPETITION, (max(1, size) / largest) ** power)
        for corpus, size in zip(config.data.available_train, sizes, strict=True)
    ]


def train_run_tokenizer(config: Config, stop: Stop, config_file: Path | None = None) -> Path:
    """Write the vocabulary of a config to its run directory for `mtrain train`; return its path."""
    run, config = RunDirectory(Path(config.run_dir)), with_synthetic_text(config)
    compatibility.refuse_foreign_directory(run, config_file)
    if len(config.data.available_train) < len(config.data.train):
        raise RefusedError("data.train: synthetic text is missing; run mtrain data build")
    with run.hold():
        if run.tokenizer.exists():
            raise RefusedError(f"{run.tokenizer}: exists already; choose another run_dir")
        tokenizer = Preparation(config, stop).tokenizer
        run.keep_tokenizer(tokenizer.proto, tokenizer.vocabulary)
    return run.tokenizer


class Preparation:
    """Prepares the text of a config. Each property is computed when it is first read; raises
    `UserError`.
    """

    def __init__(self, config: Config, stop: Stop) -> None:
        self.config, self.stop = config, stop
        self.selection = Selection(config.data.max_length, config.filter)

    @cached_property
    def prepared(self) -> Prepared:
        """The prepared text."""
        for key, text in self.sets.items():
            self._warn_of_long_lines(key, text)
        corpora = [self._tokenized(number) for number in range(len(self.scans))]
        sizes = list(map(len, corpora))
        store = Store(corpora, weights_of(self.config, sizes))
        self._report(store)
        fingerprints: Fingerprints = {
            **self.fingerprints,
            "tokenizer": self.tokenizer.fingerprint,
            "pairs": sizes,
        }
        return Prepared(self.tokenizer, store, self.sets, fingerprints)

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """Hashes of all text, which is read to compute them, and the weights of the corpora."""
        data = self.config.data
        for name in data.tokenizers:
            check_tokenizer(name)
        valid = [self.sets[key].sha256 for key in data.valid_keys]
        return {
            "train": [scan.sha256 for scan in self.scans],
            "weights": [corpus.weight for corpus in data.available_train],
            "valid": valid if isinstance(data.valid, list) else valid[0],
            "test": {name: self.sets[f"data.test.{name}"].sha256 for name in data.test},
        }

    @cached_property
    def scans(self) -> list[Scan]:
        """The scans of the training corpora."""
        texts = self.config.data.available_train
        scans = [scan_corpus(self.config, corpus, self.stop) for corpus in texts]
        if texts and not any(scan.pairs for scan in scans):
            raise UserError(
                f"data.train: no pairs in {join_names(map(corpus_name, texts))}; add text"
            )
        return scans

    @cached_property
    def sets(self) -> dict[str, ScoredText]:
        """The validation and test sets, by their keys in the config."""
        scored = self.config.data.scored_corpora.items()
        return {key: self._read_set(key, corpus) for key, corpus in scored}

    def _read_set(self, key: str, corpus: Corpus) -> ScoredText:
        """Read a set including blank lines, because all lines of its files are scored."""
        reading = reading_of(self.config, keep_blank=True)
        text = readers.read_scored_text(
            corpus, reading, scan_corpus(self.config, corpus, self.stop).sha256
        )
        if not len(text):
            raise UserError(f"{key}: {corpus_name(corpus)} holds no pairs; add text")
        pairs = zip(text.sources, text.references, strict=True)
        if all(is_blank(src) or is_blank(ref) for src, ref in pairs):
            raise UserError(
                f"{key}: {corpus_name(corpus)}: all pairs are blank on a side; add text"
            )
        for reason, count in reading.counts.items():
            logger.info("%s: %s: %s", key, reason, f"{count:,}")
        for sign in misalignment_warnings(text):
            logger.warning("%s: %s", key, sign)
        return text

    def _warn_of_long_lines(self, key: str, text: ScoredText) -> None:
        """Warn of lines that each validation cuts: sources, and references in the NLL."""
        config, decode = self.config, self.config.decode
        positions = config.data.max_length if config.model.positions == "learned" else sys.maxsize
        src_limit = min(decode.max_source_length, positions)
        tgt_limit = min(decode.target_limit(src_limit - 1), positions)
        for lines, limit, tag_ids, side in (
            (text.sources, src_limit, self.tokenizer.tag_ids(text.corpus.tag), ""),
            (text.references, tgt_limit, [], ", references"),
        ):
            truncated = TruncatedLines()
            for start in range(0, len(lines), ENCODED):
                encoded = enumerate(self.tokenizer.encode(lines[start : start + ENCODED]), start)
                truncated.add(index for index, ids in encoded if len(tag_ids) + len(ids) >= limit)
            truncated.warn(limit, f"{key}{side}")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The existing or cached vocabulary; if there is neither, one is trained."""
        self.stop.check()
        return existing_vocabulary(self.config) or cached(
            self._tokenizer_key, _open_tokenizer, self._train_tokenizer, self.stop
        )

    def find_tokenizer(self) -> Tokenizer | None:
        """Load the existing or cached vocabulary; None if it is not trained yet."""
        return existing_vocabulary(self.config) or read_cached(self._tokenizer_key, _open_tokenizer)

    @property
    def _tokenizer_key(self) -> str:
        """Cache key of the vocabulary: all that it depends on."""
        hashes, config = [scan.sha256 for scan in self.scans], self.config
        text_filter = config.filter.model_dump(exclude={"min_length", "max_ratio"})
        options = self._tokenizer_settings.model_dump()
        sides = list(map(_real_sides, config.data.available_train))
        settings = [FILTERS, text_filter, self.selection.max_length, MAX_SENTENCES, options, sides]
        library = version("sentencepiece")
        return cache_key("tokenizer", hashes, config.data.invalid_utf8, *settings, library)

    @property
    def _tokenizer_settings(self) -> TokenizerConfig:
        """The settings of the vocabulary, with the tags among its symbols."""
        return self.config.tokenizer.model_copy(update={"user_symbols": self.config.user_symbols})

    def _train_tokenizer(self, directory: Path) -> None:
        """Train a vocabulary on both sides together and write it to `directory`."""
        settings = self._tokenizer_settings
        size = f"{settings.vocab_size:,}"
        logger.info("training a %s vocabulary of %s pieces", settings.model_type, size)
        model = train_tokenizer(self._sentences, settings)
        (directory / layout.TOKENIZER).write_bytes(model)

    def _sentences(self) -> Iterator[str]:
        """Yield the sentences of both sides, except synthetic ones, of training pairs that pass the
        text filters and are not far too long.
        """
        with progress_bar(sum(scan.pairs for scan in self.scans), "pair", "sampling text") as bar:
            for number, corpus in enumerate(self.config.data.available_train):
                sides = _real_sides(corpus)
                for chunk in chunked(self._read_once(number, Counter()), CHUNK):
                    self._advance(bar, len(chunk))
                    pairs_left = self.selection.by_text(chunk, Counter())
                    for pair in self.selection.by_characters(pairs_left, 0, Counter()):
                        yield from (pair[side] for side in sides)

    def _read(self, number: int, counts: Counter[str]) -> Iterator[Pair]:
        """Read a training corpus. Raises `UserError` at its end if it has changed since its scan:
        results would be cached under the hash of another text.
        """
        corpus = self.config.data.available_train[number]
        yield from readers.read_pairs(corpus, reading_of(self.config, counts=counts))
        can_change = not isinstance(corpus, GeneratedCorpus)
        if can_change and scan_corpus(self.config, corpus, self.stop) != self.scans[number]:
            raise UserError("data.train: changed while it was read; run the same command again")

    def _read_once(self, number: int, counts: Counter[str]) -> Iterator[Pair]:
        """Read a training corpus, without repeated pairs if `filter.duplicates` is on."""
        pairs = self._read(number, counts)
        if not self.config.filter.duplicates:
            return pairs
        hashes = [scan.sha256 for scan in self.scans]
        key = cache_key("repeats", duplicates.FORMAT, hashes, self.config.data.invalid_utf8)
        is_repeat = cached(key, duplicates.open_repeats, self._find_repeats, self.stop)[number]
        if repeats := int(np.bitwise_count(is_repeat).sum()):
            counts[f"{DROPPED}seen before"] += repeats
        return duplicates.without_repeats(pairs, is_repeat)

    def _find_repeats(self, directory: Path) -> None:
        """Find the pairs that occur more than once in all training text."""
        pairs = sum(scan.pairs for scan in self.scans)
        corpora = (self._read(number, Counter()) for number in range(len(self.scans)))
        with progress_bar(pairs, "pair", "finding duplicates") as bar:
            duplicates.write_repeats(directory, corpora, pairs, partial(self._advance, bar))

    def _tokenized(self, number: int) -> TokenizedCorpus:
        """Open the tokenized corpus in the cache; if it is missing, build it first."""
        # repeats are found in all earlier corpora, too
        first = 0 if self.config.filter.duplicates else number
        hashes = [scan.sha256 for scan in self.scans[first : number + 1]]
        invalid_utf8 = self.config.data.invalid_utf8
        key = store_key(hashes, self.tokenizer.fingerprint, self.selection, invalid_utf8)
        return cached(key, open_tokenized, partial(self._write_tokenized, number), self.stop)

    def _write_tokenized(self, number: int, directory: Path) -> None:
        counts = Counter[str]()
        corpus = self.config.data.available_train[number]
        name = Path(corpus_name(corpus)).name
        with progress_bar(self.scans[number].pairs, "pair", f"tokenizing {name}") as bar:
            write_tokenized(
                directory,
                self._read_once(number, counts),
                self.tokenizer,
                selection=replace(self.selection, tag=corpus.tag),
                counts=counts,
                workers=worker_count(self.config.data.workers),
                progress=partial(self._advance, bar),
            )

    def _advance(self, bar: Any, pairs: int) -> None:
        """Move a progress bar; raises `StoppedError` if a stop was requested."""
        bar.update(pairs)
        self.stop.check()

    def _report(self, store: Store) -> None:
        """Log how many pairs training uses and how many were left out, by reason."""
        read = sum(scan.pairs for scan in self.scans)
        logger.info("train: %s of %s pairs", f"{len(store):,}", f"{read:,}")
        is_weighted = any(part.weight != 1 for part in store.ranges)
        for corpus, part in zip(self.config.data.available_train, store.ranges, strict=True):
            name = " ".join(filter(None, (corpus_name(corpus), corpus.tag)))
            if part.start == part.stop:
                logger.warning("data.train: %s: no pair is used", name)
            elif is_weighted:
                size = f"{part.stop - part.start:,}"
                logger.info("train: %s: %s pairs x %.4g", name, size, part.weight)
        for reason, count in store.counts.items():
            is_suspicious = reason == NOT_UTF8 and count > MAX_INVALID * read
            level = logging.WARNING if is_suspicious else logging.INFO
            logger.log(level, "train: %s: %s", reason, f"{count:,}")
        if not len(store):
            reasons = [reason for reason in store.counts if reason.startswith(DROPPED)]
            most = max(reasons, key=lambda reason: store.counts[reason], default="no pairs")
            advice = "change the text, data.max_length or filter"
            raise UserError(f"data.train: no pair is left to train on ({most}); {advice}")
        if sum((part.stop - part.start) * part.weight for part in store.ranges) < 1:
            raise UserError(
                "data.train: with these weights, an epoch has less than one pair; raise the weights"
            )
        for sign in misalignment_warnings(store):
            logger.warning("data.train: %s", sign)


def refuse_worthless_text(preparation: Preparation) -> None:
    """Refuse text with mix-ups, unless the config allows them."""
    data, sets = preparation.config.data, preparation.sets
    reading = reading_of(preparation.config, check_stop=preparation.stop.check)
    texts = {
        key: corpus
        for key, corpus in data.corpora.items()
        if key not in sets and not corpus.model  # `model` entries are translated, not trained on
    }
    pairs = sum(scan.pairs for scan in preparation.scans)
    refused = []
    for message, is_allowed in find_mix_ups(data, texts, reading, pairs, sets):
        if is_allowed:
            logger.warning("%s", message)
        else:
            refused.append(message)
    if refused:
        raise RefusedError(*refused)


def _real_sides(corpus: Corpus) -> list[int]:
    """Return the indices of the sides that are not synthetic: 0 is the source, 1 the target."""
    if not isinstance(corpus, SyntheticCorpus):
        return [0, 1]
    return [1] if (corpus.synthetic_side == "src") != corpus.swap else [0]


def _open_tokenizer(path: Path) -> Tokenizer:
    """Open a cached vocabulary; raises `DamagedError`."""
    manifest.verify(path, layout.TOKENIZER)
    return Tokenizer.load(path / layout.TOKENIZER)
