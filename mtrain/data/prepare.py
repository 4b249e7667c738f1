"""From a config's corpora to what training needs: vocabulary, tokenized store, validation and test
text.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from mtrain.config.schema import Config, Corpus, TokenizerConfig
from mtrain.corpus.lines import DROPPED
from mtrain.corpus.readers import (
    Pair,
    Scan,
    Text,
    columns_of,
    describe,
    files_of,
    read_pairs,
    read_text,
    reading_of,
    scan,
)
from mtrain.corpus.slips import suspicions
from mtrain.data import duplicates
from mtrain.data.cache import cache_directory, cache_key, cached, remembered
from mtrain.data.filters import Selection
from mtrain.data.store import CHUNK, Store, build_store, open_store, store_key
from mtrain.data.tokenizer import MAX_SENTENCES, Tokenizer, train_tokenizer
from mtrain.runs import checkpoint, layout, manifest
from mtrain.runs.directory import RunDirectory
from mtrain.runtime.device import available_threads
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.log import Places, logger, progress_bar
from mtrain.runtime.stop import Stop
from mtrain.scoring.metrics import check_tokenizer, tokenizer_for

SCAN = TypeAdapter(Scan)

# An epoch sees no pair more often by the temperature, however small its corpus.
MOST_OFTEN = 1000.0


class ChangedError(UserError):
    """Text changed after it was hashed."""


@dataclass(frozen=True)
class Prepared:
    """All that training reads."""

    tokenizer: Tokenizer
    store: Store
    valid: Text
    tests: dict[str, Text]
    fingerprints: dict[str, Any]


def prepare(
    config: Config,
    run_tokenizer: Path,
    stop: Stop,
    tokenizer: Tokenizer | None = None,
    begin: Callable[[dict[str, Any]], None] = lambda fingerprints: None,
) -> Prepared:
    """Check every corpus, get the vocabulary, unless it is given, and the tokenized store; `begin`
    is called in between with the fingerprints of the text. Raises `UserError`.
    """
    check_tokenizer(tokenizer_for(config.data.tgt_lang))
    selection_of(config).text_checks()
    train_scans = [scan_corpus(config, corpus, stop) for corpus in config.data.train]
    valid = _read_text(config, "valid", config.data.valid, stop)
    tests = {
        name: _read_text(config, f"test {name}", c, stop) for name, c in config.data.test.items()
    }
    fingerprints = {
        "train": [found.sha256 for found in train_scans],
        "weights": [corpus.weight for corpus in config.data.train],
        "valid": valid.sha256,
        "test": {name: text.sha256 for name, text in tests.items()},
    }
    begin(fingerprints)
    pairs = sum(found.pairs for found in train_scans)
    tokenizer = tokenizer or _get_tokenizer(config, run_tokenizer, train_scans, stop)
    for name, text in (("valid", valid), *((f"test {name}", text) for name, text in tests.items())):
        _warn_of_long_lines(config, tokenizer, name, text)
    numbers = range(len(train_scans))
    stores = [_get_store(config, number, tokenizer, train_scans, stop) for number in numbers]
    store = Store.join(stores, weights_of(config, list(map(len, stores))))
    _report(config, store, pairs)
    fingerprints["tokenizer"] = tokenizer.fingerprint
    return Prepared(tokenizer, store, valid, tests, fingerprints)


def weights_of(config: Config, sizes: list[int]) -> list[float]:
    """Return how often an epoch sees the pairs of each corpus of these sizes: by its weight and the
    temperature, with which the largest corpus is seen as often as without.
    """
    power, largest = 1 / config.data.temperature - 1, max(1, *sizes)
    return [
        corpus.weight * min(MOST_OFTEN, (max(1, size) / largest) ** power)
        for corpus, size in zip(config.data.train, sizes, strict=True)
    ]


def train_run_tokenizer(config: Config, stop: Stop, config_file: Path | None = None) -> Path:
    """Put the vocabulary of a config into its run directory, where `mtrain train` will find it."""
    run = RunDirectory(Path(config.run_dir))
    run.check_place(config_file)
    with run.hold():
        if run.tokenizer.exists():
            raise RefusedError(f"{run.tokenizer}: exists already; choose another run_dir")
        scans = [scan_corpus(config, corpus, stop) for corpus in config.data.train]
        tokenizer = _get_tokenizer(config, run.tokenizer, scans, stop)
        run.keep_tokenizer(tokenizer.proto, tokenizer.vocabulary)
    return run.tokenizer


def scan_corpus(config: Config, corpus: Corpus, stop: Stop) -> Scan:
    """Scan a corpus, or return the cached scan of its files."""
    reading = reading_of(config)
    reading.check = stop.check
    files, find = files_of(corpus, reading.root), partial(scan, corpus, reading)
    return remembered(files, columns_of(corpus), find, SCAN) if files else find()


def _read_text(config: Config, name: str, corpus: Corpus, stop: Stop) -> Text:
    """Read a set, including blank lines: its score must be that of its files."""
    reading = reading_of(config, keep_blank=True)
    text = read_text(corpus, reading, scan_corpus(config, corpus, stop).sha256)
    if not len(text):
        raise UserError(f"data.{name.split()[0]}: {describe(corpus)} holds no pairs")
    for reason, count in reading.counts.items():
        logger.info("%s: %s: %s", name, reason, f"{count:,}")
    for sign in suspicions(text):
        logger.warning("data.%s: %s", name, sign)
    return text


def _warn_of_long_lines(config: Config, tokenizer: Tokenizer, name: str, text: Text) -> None:
    """Warn of lines that every validation cuts."""
    limit = config.decode.max_source_length
    if config.model.positions == "learned":
        limit = min(limit, config.data.max_length)
    encoded, cut = tokenizer.encode(text.sources), Places()
    cut.add(number for number, ids in enumerate(encoded, 1) if len(ids) >= limit)
    cut.warn(limit, f"data.{name}")


def _read_train(config: Config, number: int, counts: Counter[str]) -> Iterator[Pair]:
    """Read one of the training corpora."""
    reading = reading_of(config)
    reading.counts = counts
    return read_pairs(config.data.train[number], reading)


def find_tokenizer(config: Config, run_tokenizer: Path, scans: list[Scan]) -> Tokenizer | None:
    """Load the vocabulary of a run from any of its places, if there is one; raises `UserError`."""
    found = _ready_tokenizer(config, run_tokenizer)
    return found or _open_tokenizer(cache_directory() / _tokenizer_key(config, scans))


def _ready_tokenizer(config: Config, run_tokenizer: Path) -> Tokenizer | None:
    """Load an existing vocabulary: the run's, the one that the config names, or that of
    `train.init_from`.
    """
    settings = config.tokenizer
    if run_tokenizer.exists():
        tokenizer = Tokenizer.load(run_tokenizer)
        if config.train.init_from is None:
            _check_tokenizer(tokenizer, settings, run_tokenizer)
        return tokenizer
    if config.train.init_from is not None:
        return _given_tokenizer(Path(config.train.init_from), settings)
    return Tokenizer.load(Path(settings.path)) if settings.path is not None else None


def _get_tokenizer(config: Config, run_tokenizer: Path, scans: list[Scan], stop: Stop) -> Tokenizer:
    """Load an existing vocabulary, or get one from the cache."""
    stop.check()
    if found := _ready_tokenizer(config, run_tokenizer):
        return found
    make = partial(_train_tokenizer, config, scans, stop)
    return cached(_tokenizer_key(config, scans), _open_tokenizer, make, stop)


def _tokenizer_key(config: Config, scans: list[Scan]) -> str:
    """Name a vocabulary by the text and the settings that it is made of."""
    text = ([found.sha256 for found in scans], config.data.invalid_utf8, _text_filter(config))
    parts = (*text, MAX_SENTENCES, config.tokenizer.model_dump(), version("sentencepiece"))
    return cache_key("tokenizer", *parts)


def _given_tokenizer(path: Path, settings: TokenizerConfig) -> Tokenizer:
    """Load the vocabulary of the model of `train.init_from`."""
    file = checkpoint.resolve(path) / layout.TOKENIZER
    tokenizer = Tokenizer.load(file)
    if settings.path is not None:
        _check_tokenizer(tokenizer, settings, file)
    logger.info("vocabulary of %s: %s pieces", file, f"{tokenizer.vocab_size:,}")
    return tokenizer


def _open_tokenizer(path: Path) -> Tokenizer | None:
    try:
        manifest.verify(path, layout.TOKENIZER)
    except manifest.DamagedError:
        return None
    return Tokenizer.load(path / layout.TOKENIZER)


def _text_filter(config: Config) -> dict[str, Any]:
    """Return the filter of the text that a vocabulary is trained on."""
    return config.filter.model_dump(exclude={"min_length", "max_ratio"})


def _read_unchanged(
    config: Config, number: int, scans: list[Scan], counts: Counter[str], stop: Stop
) -> Iterator[Pair]:
    """Read a training corpus; raises `ChangedError` at its end if it differs from its hash: results
    would be kept under the name of another text.
    """
    yield from _read_train(config, number, counts)
    if scan_corpus(config, config.data.train[number], stop) != scans[number]:
        raise ChangedError("data.train: it changed while it was read; run the same command again")


def _read_once(
    config: Config, number: int, scans: list[Scan], counts: Counter[str], stop: Stop
) -> Iterator[Pair]:
    """Read a training corpus, without repeated pairs if these are filtered."""
    pairs = _read_unchanged(config, number, scans, counts, stop)
    if not config.filter.duplicates:
        return pairs
    hashes = [found.sha256 for found in scans]
    key = cache_key("repeats", duplicates.FORMAT, hashes, config.data.invalid_utf8)
    find = partial(_find_repeats, config, scans, stop)
    look_up = partial(duplicates.open_repeats, corpora=len(scans))
    is_repeat = cached(key, look_up, find, stop)[number]
    if found := int(np.bitwise_count(is_repeat).sum()):
        counts[f"{DROPPED}seen before"] += found
    return duplicates.without_repeats(pairs, is_repeat)


def _find_repeats(
    config: Config, scans: list[Scan], stop: Stop, path: Path
) -> list[NDArray[np.uint8]]:
    """Read all training text for the pairs that come more than once."""
    about = sum(found.pairs for found in scans)
    with progress_bar(about, "pair", "finding duplicates") as bar:

        def progress(number: int) -> None:
            bar.update(number)
            stop.check()

        numbers = range(len(scans))
        corpora = (_read_unchanged(config, n, scans, Counter(), stop) for n in numbers)
        duplicates.write_repeats(path, corpora, about, progress)
    found = duplicates.open_repeats(path, len(scans))
    assert found is not None
    return found


def _train_tokenizer(config: Config, scans: list[Scan], stop: Stop, path: Path) -> Tokenizer:
    """Train a vocabulary on both sides together and keep it."""
    settings = config.tokenizer
    logger.info(
        "training a %s vocabulary of %s pieces", settings.model_type, f"{settings.vocab_size:,}"
    )

    selection = selection_of(config)

    def sentences() -> Iterator[str]:
        for number in range(len(scans)):
            pairs = _read_once(config, number, scans, Counter(), stop)
            while chunk := list(islice(pairs, CHUNK)):
                stop.check()
                yield from chain.from_iterable(selection.by_text(chunk, Counter()))

    proto = train_tokenizer(
        sentences,
        vocab_size=settings.vocab_size,
        model_type=settings.model_type,
        normalization=settings.normalization,
        character_coverage=settings.character_coverage,
        byte_fallback=settings.byte_fallback,
        user_symbols=tuple(settings.user_symbols),
    )

    def fill(directory: Path) -> None:
        (directory / layout.TOKENIZER).write_bytes(proto)

    manifest.write_directory(path, fill)
    return Tokenizer(proto)


def _check_tokenizer(tokenizer: Tokenizer, settings: TokenizerConfig, path: Path) -> None:
    """Refuse a vocabulary in the run directory that cannot be the config's."""
    if settings.path is not None:
        matches = tokenizer.fingerprint == Tokenizer.load(Path(settings.path)).fingerprint
    else:
        matches = tokenizer.vocab_size == settings.vocab_size
    if not matches:
        raise RefusedError(
            f"{path}: this vocabulary of {tokenizer.vocab_size} pieces is not the one that the "
            "config describes; remove it, or choose another run_dir"
        )


def selection_of(config: Config) -> Selection:
    """Which training pairs a config keeps."""
    return Selection(config.data.max_length, config.filter)


def _get_store(
    config: Config, number: int, tokenizer: Tokenizer, scans: list[Scan], stop: Stop
) -> Store:
    """Open a tokenized corpus in the cache, or build it."""
    first = 0 if config.filter.duplicates else number  # of what it depends on
    hashes = [found.sha256 for found in scans[first : number + 1]]
    selection, invalid_utf8 = selection_of(config), config.data.invalid_utf8
    key = store_key(hashes, tokenizer.fingerprint, selection, invalid_utf8)
    make = partial(_build, config, number, tokenizer, scans, stop)
    return cached(key, open_store, make, stop)


def _build(
    config: Config,
    number: int,
    tokenizer: Tokenizer,
    scans: list[Scan],
    stop: Stop,
    path: Path,
) -> Store:
    workers, name = config.data.workers, describe(config.data.train[number])
    counts: Counter[str] = Counter()
    pairs = _read_once(config, number, scans, counts, stop)
    bar = progress_bar(scans[number].pairs, "pair", f"tokenizing {Path(name).name}")

    def progress(number: int) -> None:
        bar.update(number)
        stop.check()

    try:
        with bar:
            return build_store(
                path,
                pairs,
                tokenizer,
                selection=selection_of(config),
                counts=counts,
                workers=available_threads() if workers == "auto" else workers,
                progress=progress,
            )
    except ChangedError:
        manifest.discard(path)  # its shards may be of the other text
        raise


def _report(config: Config, store: Store, read: int) -> None:
    """Log what training uses and what was left out."""
    logger.info("train: %s of %s pairs", f"{len(store):,}", f"{read:,}")
    if any(part.weight != 1 for part in store.parts):
        for corpus, part in zip(config.data.train, store.parts, strict=True):
            size = f"{part.stop - part.start:,}"
            logger.info("train: %s: %s pairs x %.4g", describe(corpus), size, part.weight)
    for reason, count in store.counts.items():
        logger.info("train: %s: %s", reason, f"{count:,}")
    if not len(store):
        raise UserError("data.train: no pair is left to train on")
    for sign in suspicions(store):
        logger.warning("data.train: %s", sign)
