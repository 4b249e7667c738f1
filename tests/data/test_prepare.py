"""What is prepared once is used again; what is broken, changing or too long is logged."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from conftest import TinyConfig, made_up_pairs, run_here, write_both_ways, write_corpus
from tqdm import tqdm

from mtrain.config.corpora import GeneratedCorpus, SyntheticCorpus, TextCorpus
from mtrain.config.loading import load_config
from mtrain.config.schema import Config
from mtrain.corpus import readers
from mtrain.corpus.readers import Pair, ScoredText
from mtrain.data import cache, store
from mtrain.data import prepare as preparation
from mtrain.data.cache import cache_directory
from mtrain.data.prepare import (
    Preparation,
    Prepared,
    refuse_worthless_text,
    train_run_tokenizer,
    without_missing_init_from,
)
from mtrain.data.tokenizer import Tokenizer
from mtrain.data.vocabulary import existing_vocabulary, init_checkpoint
from mtrain.runs import manifest
from mtrain.runtime import files, lock, log
from mtrain.runtime.errors import RefusedError, StoppedError, UserError
from mtrain.runtime.stop import Stop


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    log.logger.propagate = True
    caplog.set_level(logging.INFO, "mtrain")
    return caplog


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CHUNK", 10), ("INLINE_CHUNKS", 1)):
        monkeypatch.setattr(store, name, value)


def prepared(config: Config) -> Prepared:
    return Preparation(config, Stop()).prepared


def ids_of(found: Prepared) -> list[bytes]:
    return [corpus.ids.tobytes() for corpus in found.store.corpora]


def test_vocabulary_and_text_are_prepared_once(
    config: Config, logged: pytest.LogCaptureFixture
) -> None:
    first = prepared(config)
    assert "training a bpe vocabulary" in logged.text
    logged.clear()
    again = prepared(config)
    assert "training a bpe vocabulary" not in logged.text
    assert again.tokenizer.proto == first.tokenizer.proto
    assert ids_of(again) == ids_of(first)
    smaller = config.tokenizer.model_copy(update={"vocab_size": 310})
    other = config.model_copy(update={"tokenizer": smaller})
    assert prepared(other).tokenizer.vocab_size == 310


def test_a_vocabulary_is_named_by_all_that_it_depends_on(
    tiny_config: TinyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_config()
    source, target = (str(tmp_path / "data" / f"train.{side}") for side in ("src", "tgt"))
    changes = ["tokenizer.vocab_size=310", "tokenizer.user_symbols=['<x>']", "data.max_length=31"]
    changes += ["filter.identical=true", "filter.duplicates=true", "data.invalid_utf8=drop"]
    changes += [f"data.train=[{{src: {target}, tgt: {source}}}]"]
    changes += [f"data.train=[{{src: {source}, tgt: {target}, tag: <y>}}]"]
    changes += [f"data.valid={{src: {source}, tgt: {target}, tag: <z>}}"]
    keys = [
        preparation.Preparation(load_config(path, change), Stop())._tokenizer_key
        for change in ([], *([change] for change in changes))
    ]
    versions = {"FILTERS": 99, "MAX_SENTENCES": 99, "version": lambda library: "99"}
    for name, value in versions.items():
        with monkeypatch.context() as patch:
            patch.setattr(preparation, name, value)
            keys.append(preparation.Preparation(load_config(path), Stop())._tokenizer_key)
    assert len(set(keys)) == len(keys)


def test_a_vocabulary_is_trained_with_all_settings(
    tiny_config: TinyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        preparation, "train_tokenizer", lambda _, used: given.update(used.model_dump()) or b""
    )
    settings = {"vocab_size": 301, "model_type": "unigram", "normalization": "nfkc"}
    settings |= {"character_coverage": 0.99, "byte_fallback": False}
    settings |= {"user_symbols": ["<x>"], "split_digits": True}
    path = tiny_config(**{f"tokenizer.{key}": value for key, value in settings.items()})
    preparation.Preparation(load_config(path), Stop())._train_tokenizer(tmp_path)
    assert given == {"path": None, **settings}


def test_a_library_that_only_the_scores_need_is_missed_before_the_vocabulary_is_trained(
    tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tokenizer: str) -> None:
        raise UserError(f"{tokenizer} needs mecab")

    monkeypatch.setattr(preparation, "check_tokenizer", fail)
    own = Preparation(load_config(tiny_config(**{"data.tgt_lang": "ja"})), Stop())
    with pytest.raises(UserError, match="ja-mecab needs mecab"):
        _ = own.fingerprints


def test_a_vocabulary_is_not_written_to_a_directory_of_something_else(
    tiny_config: TinyConfig, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.en").touch()
    with pytest.raises(RefusedError, match=r"run: holds train\.en, but no run of mtrain"):
        train_run_tokenizer(load_config(tiny_config()), Stop())
    assert len(list((tmp_path / "run").iterdir())) == 1


def test_a_vocabulary_is_trained_on_the_sides_that_no_model_made(
    config: Config, tmp_path: Path
) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"src": "s", "tgt": "t"}\n')
    found, keys = {}, set[str]()
    for side in ("src", "tgt"):
        for swap in (False, True):
            entry = {"file": str(tmp_path / "pairs.jsonl"), "src": "src", "tgt": "tgt"}
            corpus = SyntheticCorpus.model_construct(**entry, synthetic_side=side, swap=swap)
            data = config.data.model_copy(update={"train": [corpus]})
            own = preparation.Preparation(config.model_copy(update={"data": data}), Stop())
            found[side, swap] = "".join(own._sentences())
            keys.add(own._tokenizer_key)
    texts = {("src", False): "t", ("src", True): "t", ("tgt", False): "s", ("tgt", True): "s"}
    assert found == texts
    assert len(keys) == 4


def test_a_vocabulary_is_not_trained_on_lines_that_training_drops(
    tiny_config: TinyConfig, tmp_path: Path
) -> None:
    first = prepared(load_config(tiny_config()))
    for side in ("src", "tgt"):
        with (tmp_path / "data" / f"train.{side}").open("a") as file:
            file.write("ω" * 10_000 + "\n")
    again = prepared(load_config(tiny_config()))
    assert len(again.store) == len(first.store)
    assert again.tokenizer.proto == first.tokenizer.proto


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The corpora that are read whole from here on, each time that they are."""
    read: list[Any] = []
    scan = readers.scan
    monkeypatch.setattr(readers, "scan", lambda c, reading: read.append(c) or scan(c, reading))
    return read


def test_unchanged_files_are_not_scanned_again(
    config: Config, scans: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MIN_AGE_NS", -(10**9))  # those of this test are
    first = prepared(config)
    corpora_read = len(scans)
    assert corpora_read == len({repr(corpus) for corpus in scans})
    hashed: list[Path] = []
    hash_file = manifest.hash_file
    monkeypatch.setattr(manifest, "hash_file", lambda p: hashed.append(p) or hash_file(p))
    again = prepared(config)
    assert again.fingerprints == first.fingerprints
    assert [path.name for path in hashed] == ["tokenizer.model"]
    assert len(scans) == corpora_read
    monkeypatch.undo()
    for damage in (lambda data: b"no JSON", lambda data: data.replace(b"1", b"2")):
        for file in cache_directory().glob("known/*/*"):
            file.write_bytes(damage(file.read_bytes()))
        assert prepared(config).fingerprints == first.fingerprints


def test_a_generated_corpus_is_made_once_to_be_scanned(
    tiny_config: TinyConfig, scans: list[Config]
) -> None:
    """It cannot have changed while it was read."""
    corpus = {"generated": "phrasebook", "split": "train", "pairs": 300}
    prepared(load_config(tiny_config(**{"data.train": [corpus]})))
    assert sum(isinstance(each, GeneratedCorpus) for each in scans) == 1


@pytest.mark.parametrize("how", ["in place", "by another file"])
def test_changed_files_are_scanned_again(
    config: Config, tmp_path: Path, scans: list[Config], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same size, and with the old time of change."""
    prepared(config)
    known = len(scans)
    before = prepared(config).fingerprints["valid"]
    assert len(scans) > known  # they are too young for their times to be trusted
    monkeypatch.setattr(cache, "MIN_AGE_NS", -(10**9))
    prepared(config)
    assert isinstance(config.data.valid, TextCorpus)
    file = Path(config.data.root or "") / config.data.valid.src
    stat, data = file.stat(), file.read_bytes()
    if how == "by another file":
        file.rename(tmp_path / "old")
    file.write_bytes(data[::-1].strip(b"\n") + b"\n")
    assert file.stat().st_size == stat.st_size
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert prepared(config).fingerprints["valid"] != before


def test_the_scan_of_a_file_is_that_of_its_columns_and_settings(
    tiny_config: TinyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MIN_AGE_NS", -(10**9))
    file, path = tmp_path / "rows.tsv", tiny_config()
    file.write_text("a\tb\tc\n")
    options = ("src: 0, tgt: 1", "src: 1, tgt: 0", "src: 0, tgt: 2", "src: 0, tgt: 1, swap: true")
    options = (*options, "src: 0, tgt: 1, tag: <x>", "src: 0, tgt: 1, weight: 2")
    scans = []
    for option in options:
        entry = load_config(path, [f"data.train=[{{file: {file}, {option}}}]"])
        scans.append(preparation.scan_corpus(entry, entry.data.train[0], Stop()).sha256)
    assert len(set(scans)) == len(scans) - 1
    assert scans[-1] == scans[0]


@pytest.mark.parametrize("number", range(4))
def test_damaged_files_of_the_cache_are_made_again(config: Config, number: int) -> None:
    first = prepared(config)
    files = sorted(f for f in cache_directory().glob("*/*") if f.name != "manifest.json")
    assert len(files) == 4
    before = first.tokenizer.proto, ids_of(first)
    data = bytearray(files[number].read_bytes())
    data[len(data) // 2] ^= 4
    files[number].unlink()  # the mapping of the first store keeps its bytes
    files[number].write_bytes(data)
    again = prepared(config)
    assert (again.tokenizer.proto, ids_of(again)) == before
    assert files[number].read_bytes() != bytes(data)


def test_unfinished_items_of_killed_processes_are_removed_from_the_cache(config: Config) -> None:
    place = cache_directory()
    left, held, foreign = (place / files.PARTIAL.format(key * 32) for key in "abc")
    for each in (left, held, foreign):
        each.mkdir(parents=True)
        (each / "ids").write_bytes(b"half of it")
    (place / f".{'c' * 32}.lock").mkdir()  # cannot be locked, as one of another user
    with lock.exclusive(place / f".{'b' * 32}.lock"):  # another process is making it
        prepared(config)
    assert sorted(place.glob(files.PARTIAL.format("*"))) == [held, foreign]


def test_a_complete_cache_need_not_be_writable(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    prepared(config)
    monkeypatch.setattr(lock, "exclusive", read_only)
    prepared(config)
    monkeypatch.setenv("MTRAIN_CACHE", str(tmp_path / "another"))
    with pytest.raises(UserError, match="Read-only file system; set MTRAIN_CACHE"):
        prepared(config)


@pytest.mark.parametrize(("maker", "kept"), [("train_tokenizer", 0), ("write_tokenized", 1)])
def test_results_of_a_corpus_that_changes_are_not_cached(
    config: Config, monkeypatch: pytest.MonkeyPatch, maker: str, kept: int
) -> None:
    """It would be taken for what the old text gives."""
    make, read, making = getattr(preparation, maker), readers.read_pairs, []
    (corpus,) = config.data.train
    assert isinstance(corpus, TextCorpus)
    src = Path(corpus.src)

    def noted(*arguments: Any, **options: Any) -> Any:
        making.append(maker)
        return make(*arguments, **options)

    def changing(*arguments: Any) -> Iterator[Pair]:
        yield from read(*arguments)
        if making:
            src.write_text(src.read_text().swapcase())

    monkeypatch.setattr(preparation, maker, noted)
    monkeypatch.setattr(readers, "read_pairs", changing)
    with pytest.raises(UserError, match="changed while it was read"):
        prepared(config)
    assert len(list(cache_directory().glob("*/manifest.json"))) == kept


def test_a_cache_that_is_emptied_while_it_is_written_gets_advice() -> None:
    def fill(directory: Path) -> None:
        shutil.rmtree(cache_directory())
        (directory / "text").write_text("text")

    with pytest.raises(UserError, match=r"cannot store the .*, or run the same command again$"):
        cache.cached("key", Path.read_text, fill, Stop())


def test_validation_lines_that_will_be_cut_are_warned_of(
    tiny_config: TinyConfig, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    valid = write_corpus(tmp_path / "long", [("bavo", "b"), ("bavo celu " * 20, "c"), ("a", "b")])
    learned = {"model.positions": "learned", "data.max_length": 13}
    for settings, limit in ({"decode.max_source_length": 12}, 12), (learned, 13):
        prepared(load_config(tiny_config(**{"data.valid": valid, **settings})))
        assert f"data.valid: lines longer than {limit} tokens, cut there: 1 (line 2)" in logged.text


@pytest.mark.slow
@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("command", [["check"], ["data", "build"]])
def test_processes_load_no_module_of_the_working_directory(
    tiny_config: TinyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    config = tiny_config(**{"data.workers": 2})
    folder = tmp_path / "received"
    folder.mkdir()
    (folder / "struct.py").write_text("open('ran', 'w')\nfrom _struct import *\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # set by the command, and not left to other tests
    assert run_here(monkeypatch, *command, "-c", config) == 0
    assert not (folder / "ran").exists()


def test_facts_are_not_cached_through_a_link(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MIN_AGE_NS", -(10**12))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (cache_directory() / "known").symlink_to(elsewhere)
    prepared(config)
    assert list(elsewhere.iterdir()) == []


def test_a_link_to_a_store_is_not_followed(config: Config, tmp_path: Path) -> None:
    first = ids_of(prepared(config))
    path = next(cache_directory().glob("*/store.json")).parent
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    before = sorted(file.read_bytes() for file in (tmp_path / "elsewhere").iterdir())
    assert ids_of(prepared(config)) == first
    assert not path.is_symlink()
    assert sorted(file.read_bytes() for file in (tmp_path / "elsewhere").iterdir()) == before


# --- tags -------------------------------------------------------------------------------------


def test_a_tag_is_one_id_before_each_source_and_max_length_counts_it(tmp_path: Path) -> None:
    found = prepared(load_config(write_both_ways(tmp_path, **{"data.max_length": 200})))
    pairs = [found.tokenizer.encode(list(pair)) for pair in made_up_pairs(120, 1)]
    for tag, start, way in (("<2bb>", 0, 1), ("<2aa>", 120, -1)):
        (number,) = found.tokenizer.tag_ids(tag)
        src, tgt = pairs[7][::way]
        assert [row.tolist() for row in found.store.pair(start + 7)] == [[number, *src], tgt]
    sizes = [(len(src), len(tgt)) for a, b in pairs for src, tgt in ((a, b), (b, a))]
    limit = max(map(max, sizes)) + 1  # without a tag, all would be short enough
    shorter = prepared(load_config(write_both_ways(tmp_path, **{"data.max_length": limit})))
    kept = sum(max(src + 2, tgt + 1) <= limit for src, tgt in sizes)
    assert len(shorter.store) == kept < len(found.store) == 240


def test_another_vocabulary_than_that_of_init_from_is_refused(
    trained_run: Path, tmp_path: Path
) -> None:
    own = prepared(load_config(write_both_ways(tmp_path))).tokenizer
    (tmp_path / "own.model").write_bytes(own.proto)
    settings = {"train.init_from": str(trained_run), "tokenizer.path": str(tmp_path / "own.model")}
    words = r"is not the one .*; remove tokenizer\.path, or set train\.init_vocabulary: own$"
    with pytest.raises(RefusedError, match=words):
        prepared(load_config(write_both_ways(tmp_path, **settings)))


def test_settings_that_the_vocabulary_of_init_from_does_not_have_are_refused(
    trained_run: Path, tiny_config: TinyConfig
) -> None:
    size = load_config(trained_run / "config.yaml").tokenizer.vocab_size
    given = {"train.init_from": str(trained_run)}
    words = r"is not the one .*; remove tokenizer\.vocab_size, or set train\.init_vocabulary: own$"
    with pytest.raises(RefusedError, match=words):
        prepared(load_config(tiny_config(**given, **{"tokenizer.vocab_size": size - 1})))
    found = prepared(load_config(tiny_config(**given, **{"tokenizer.vocab_size": size})))
    assert found.tokenizer.vocab_size == size


def test_a_run_keeps_the_vocabulary_of_init_from(
    trained_run: Path, tiny_config: TinyConfig, tmp_path: Path
) -> None:
    """It is none that the settings of `tokenizer` describe."""
    path = tiny_config(**{"train.init_from": str(trained_run)})
    path.write_text(yaml.dump({**yaml.safe_load(path.read_text()), "tokenizer": {}}))
    (tmp_path / "run").mkdir()
    vocabulary = shutil.copy(trained_run / "tokenizer.model", tmp_path / "run")
    assert prepared(load_config(path)).tokenizer.proto == Path(vocabulary).read_bytes()


def test_filters_that_leave_no_text_for_the_vocabulary_are_named(tiny_config: TinyConfig) -> None:
    config = load_config(tiny_config(), ["filter.tgt_script=[Han]"])
    with pytest.raises(UserError, match=r"^data\.train: no text to train .* left out by filter"):
        prepared(config)


@pytest.mark.parametrize("place", ["tokenizer.path", "train.init_from", "the run"])
def test_a_vocabulary_without_a_tag_is_refused(
    trained_run: Path, tmp_path: Path, place: str
) -> None:
    model, settings = trained_run / "tokenizer.model", {"tokenizer.vocab_size": 350}
    if place == "the run":
        (tmp_path / "run").mkdir()
        shutil.copy(model, tmp_path / "run")
    else:
        settings[place] = str(model if place == "tokenizer.path" else trained_run)
    other = r"user_symbols" if place != "train.init_from" else r"\(train\.init_vocabulary: own\)"
    words = rf"^data\.train\.0\.tag: <2bb> is not .*\.model; use one that is, or .*{other}$"
    with pytest.raises(RefusedError, match=words):
        prepared(load_config(write_both_ways(tmp_path, **settings)))


def test_a_vocabulary_without_a_user_symbol_is_refused_at_the_start_of_a_run(
    trained_run: Path, tiny_config: TinyConfig, tmp_path: Path
) -> None:
    path, run = str(trained_run / "tokenizer.model"), tmp_path / "started"
    given = {"tokenizer.path": path, "tokenizer.user_symbols": ["<x>"], "run_dir": str(run)}
    config = load_config(tiny_config(**given))
    with pytest.raises(RefusedError, match=r"^tokenizer\.user_symbols: <x> is not a user symbol"):
        prepared(config)
    run.mkdir()
    (run / "run.json").touch()  # of a version that did not refuse it
    assert "<x>" not in prepared(config).tokenizer.user_symbols


def test_a_vocabulary_without_merges_has_none_to_drop(
    tiny_config: TinyConfig, tmp_path: Path
) -> None:
    unigram = {
        "tokenizer.model_type": "unigram",
        "tokenizer.vocab_size": 300,
        "run_dir": str(tmp_path / "other"),
    }
    path = train_run_tokenizer(load_config(tiny_config(**unigram)), Stop())
    config = load_config(
        tiny_config(**{"tokenizer.path": str(path), "train.subword_sampling": 0.1})
    )
    with pytest.raises(RefusedError, match=r"subword_sampling: .*tokenizer\.model has no merges"):
        existing_vocabulary(config)


@pytest.mark.parametrize(
    "setting",
    [
        {"tokenizer.model_type": "unigram"},
        {"tokenizer.normalization": "nfkc"},
        {"tokenizer.byte_fallback": False},
        {"tokenizer.split_digits": True},
    ],
)
def test_a_vocabulary_of_other_settings_is_refused(
    tiny_config: TinyConfig, setting: dict[str, Any]
) -> None:
    train_run_tokenizer(load_config(tiny_config()), Stop())
    words = rf"is not the one that the config describes \({re.escape(*setting)}\); restore"
    with pytest.raises(RefusedError, match=words):
        prepared(load_config(tiny_config(**setting)))
    assert prepared(load_config(tiny_config())).tokenizer.normalization == "identity"


def test_a_run_of_a_version_that_did_not_check_a_setting_goes_on(tiny_config: TinyConfig) -> None:
    run = train_run_tokenizer(load_config(tiny_config()), Stop()).parent
    (run / "run.json").touch()
    for setting in ({"tokenizer.byte_fallback": False}, {"tokenizer.split_digits": True}):
        assert existing_vocabulary(load_config(tiny_config(**setting)))
    with pytest.raises(RefusedError, match=r"describes \(tokenizer\.normalization\); restore"):
        existing_vocabulary(load_config(tiny_config(**{"tokenizer.normalization": "nfkc"})))


def test_the_vocabulary_of_a_run_is_that_of_the_path_or_refused(
    tiny_config: TinyConfig, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    own = train_run_tokenizer(load_config(tiny_config()), Stop())
    for name, content in (("own.model", own.read_bytes()), ("other.model", tokenizer.proto)):
        (tmp_path / name).write_bytes(content)
    paths = [str(tmp_path / f"{name}.model") for name in ("own", "other", "none")]
    same, other, none = (load_config(tiny_config(**{"tokenizer.path": path})) for path in paths)
    assert existing_vocabulary(same)
    with pytest.raises(
        RefusedError, match=r"that the config describes \(tokenizer\.path\); restore"
    ):
        existing_vocabulary(other)
    with pytest.raises(
        UserError, match=r"tokenizer\.path: .*none\.model: cannot read the tokenizer"
    ):
        existing_vocabulary(none)


def test_a_damaged_vocabulary_of_a_run_can_be_restored(tiny_config: TinyConfig) -> None:
    config = load_config(tiny_config())
    train_run_tokenizer(config, Stop()).write_bytes(b"x")
    with pytest.raises(UserError, match="restore it: each checkpoint of the run has a copy"):
        prepared(config)


def test_each_reading_of_the_text_shows_its_progress(
    tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counter[str]()
    monkeypatch.setattr(log, "is_on_terminal", lambda: True)
    monkeypatch.setattr(log, "_columns", lambda: 100)
    monkeypatch.setattr(tqdm, "update", lambda bar, n: counts.update({bar.desc: n}))
    config = load_config(tiny_config())
    refuse_worthless_text(Preparation(config, Stop()))
    prepared(config)
    [tokenizing] = (name for name in counts if name.startswith("tokenizing "))
    assert counts == dict.fromkeys(["checking the text", "sampling text", tokenizing], 120)


def test_a_stop_ends_each_reading_of_the_text(config: Config) -> None:
    preparation = Preparation(config, Stop())
    steps = ("scans", "sets", "tokenizer", "prepared")
    readings = [partial(getattr, preparation, name) for name in steps]
    for read in (*readings, partial(refuse_worthless_text, preparation)):
        preparation.stop.received = signal.SIGTERM
        with pytest.raises(StoppedError):
            read()
        preparation.stop.received = None
        read()


def test_a_corpus_of_which_nothing_is_used_is_named(
    tiny_config: TinyConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty, other, full = tmp_path / "empty", tmp_path / "other", tmp_path / "data" / "train"
    empty.touch()
    other.write_text("\u0431\u0430\u0432\u043e\n" * 9, encoding="utf-8")
    files = [(f"{full}.src", f"{full}.tgt"), (empty, empty), (other, other)]
    train = [{"src": str(src), "tgt": str(tgt)} for src, tgt in files]
    config = tiny_config(**{"data.train": train, "filter": {"src_script": ["Latin"]}})
    prepared(load_config(config))
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    named = [f"data.train: {file} + {file}: no pair is used" for file in (empty, other)]
    assert [text for text in warned if "no pair" in text] == named


def test_training_text_without_pairs_is_named(tiny_config: TinyConfig, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    empty = {side: str(tmp_path / "empty") for side in ("src", "tgt")}
    with pytest.raises(UserError, match=r"^data\.train: no pairs in .*/empty \+ .*; add text$"):
        prepared(load_config(tiny_config(**{"data.train": [empty]})))


@pytest.mark.parametrize(
    ("src", "tgt", "message"),
    [
        ("", "", "holds no pairs"),
        ("\n \n", " \n\n", "all pairs are blank on a side"),
        ("bavo\n\n", " \nzwent\n", "all pairs are blank on a side"),
    ],
)
def test_a_set_without_pairs_is_named_by_its_key(
    tiny_config: TinyConfig, tmp_path: Path, src: str, tgt: str, message: str
) -> None:
    entry = {"src": str(tmp_path / "src"), "tgt": str(tmp_path / "tgt")}
    for path, lines in zip(entry.values(), (src, tgt), strict=True):
        Path(path).write_text(lines)
    with pytest.raises(UserError, match=rf"data\.test\.held_out: .* {message}"):
        prepared(load_config(tiny_config(**{"data.test": {"held_out": entry}})))


def test_weighted_corpora_are_logged_with_their_tags(
    tiny_config: TinyConfig, logged: pytest.LogCaptureFixture
) -> None:
    (entry,) = load_config(tiny_config()).data.train
    files = {"src": entry.src, "tgt": entry.tgt}
    tagged = [{**files, "tag": "<a>", "weight": 2}, {**files, "tag": "<b>"}]
    tags = {"data.valid": {**files, "tag": "<a>"}, "data.test": {}}
    prepared(load_config(tiny_config(**{"data.train": tagged, **tags})))
    name = f"train: {entry.src} + {entry.tgt}"
    weighted = [line for line in logged.messages if line.startswith(name)]
    assert weighted == [f"{name} <a>: 120 pairs x 2", f"{name} <b>: 120 pairs x 1"]


def test_without_pairs_to_train_on_the_reason_is_named(tiny_config: TinyConfig) -> None:
    reason = r"no pair is left to train on \(pairs dropped: shorter than 30 tokens\); change"
    with pytest.raises(UserError, match=reason):
        prepared(load_config(tiny_config(filter={"min_length": 30})))


def test_weights_that_leave_no_pair_are_refused(tiny_config: TinyConfig, tmp_path: Path) -> None:
    (entry,) = load_config(tiny_config()).data.train
    settings = {"data.train": [{"src": entry.src, "tgt": entry.tgt, "weight": 1e-9}]}
    with pytest.raises(UserError, match=r"data\.train: with these weights, an epoch has less than"):
        prepared(load_config(tiny_config(**settings)))


@pytest.mark.parametrize("has_run", [False, True])
def test_a_model_to_start_from_that_is_not_there_yet(
    tiny_config: TinyConfig, tmp_path: Path, has_run: bool
) -> None:
    absent = str(tmp_path / "absent")
    config = load_config(tiny_config(**{"train.init_from": absent}))
    if has_run:
        Path(config.run_dir).mkdir()
        (Path(config.run_dir) / "run.json").touch()
    found, warnings = without_missing_init_from(config)
    assert found.train.init_from == (absent if has_run else None)
    assert has_run or warnings == [
        f"train.init_from: {absent} does not exist yet and is ignored here"
    ]
    with pytest.raises(UserError, match=r"train\.init_from: .*absent: no such directory"):
        init_checkpoint(absent)
    Path(absent).mkdir()
    assert without_missing_init_from(config) == (config, [])


def test_references_that_validation_cuts_are_warned_of(
    tiny_config: TinyConfig, logged: pytest.LogCaptureFixture
) -> None:
    learned = {"model.positions": "learned", "data.max_length": 8}
    for settings in (learned, {"decode.max_len_a": 0.0, "decode.max_len_b": 7}):
        logged.clear()
        prepared(load_config(tiny_config(**settings)))
        text = "data.valid, references: lines longer than 8 tokens, cut there: "
        assert text in logged.text


def test_carriage_returns_that_are_removed_are_counted(
    tiny_config: TinyConfig, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    config = load_config(tiny_config())
    for name in ("train", "valid"):
        path = tmp_path / "data" / f"{name}.src"
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    prepared(config)
    for name, count in (("train", 120), ("data.valid", 12)):
        assert f"{name}: carriage returns removed: {count}" in logged.messages


@pytest.mark.parametrize(("tag", "cut"), [(None, "1 (line 5)"), ("<x>", "2 (lines 3, 5)")])
def test_eos_and_the_tag_count_where_validation_cuts_lines(
    tiny_config: TinyConfig,
    logged: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tag: str | None,
    cut: str,
) -> None:
    monkeypatch.setattr(preparation, "ENCODED", 2)
    own = Preparation(load_config(tiny_config(**{"decode.max_source_length": 4})), Stop())
    words: Any = SimpleNamespace(encode=lambda texts: [text.split() for text in texts])
    words.tag_ids = lambda tag: [tag] if tag else []
    vars(own)["tokenizer"] = words
    sources = ["one", "", "one two three", "one", "one two three four"]
    corpus = TextCorpus(src="a", tgt="b", tag=tag)
    own._warn_of_long_lines("data.valid", ScoredText(corpus, sources, [""] * 5, ""))
    assert logged.messages == [f"data.valid: lines longer than 4 tokens, cut there: {cut}"]


def test_text_that_is_the_same_on_both_sides_is_warned_of(
    tiny_config: TinyConfig, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    """In the training text and in a scored set."""
    same = [(text, text) for pair in made_up_pairs(60, 2) for text in pair]
    entry = write_corpus(tmp_path / "same", same)
    prepared(load_config(tiny_config(**{"data.train": [entry], "data.valid": entry})))
    text = "100% of the pairs have the same text on both sides"
    warned = [record.getMessage() for record in logged.records if record.levelname == "WARNING"]
    assert warned == [f"data.valid: {text}", f"data.train: {text}"]


@pytest.mark.parametrize(("count", "level"), [(6, "INFO"), (7, "WARNING")])
def test_many_pairs_that_are_not_utf8_are_warned_of(
    tiny_config: TinyConfig,
    tmp_path: Path,
    logged: pytest.LogCaptureFixture,
    count: int,
    level: str,
) -> None:
    """More than one in twenty of 120: perhaps the text has another encoding."""
    config = load_config(tiny_config(**{"data.invalid_utf8": "drop"}))
    source = tmp_path / "data" / "train.src"
    lines = source.read_bytes().splitlines(keepends=True)
    source.write_bytes(b"".join([b"\xff\n"] * count + lines[count:]))
    prepared(config)
    levels = {record.getMessage(): record.levelname for record in logged.records}
    assert levels[f"train: pairs dropped: invalid UTF-8: {count}"] == level


def write_text(directory: Path) -> None:
    (directory / "text").write_text("new")


def read_text(directory: Path) -> str:
    return (directory / "text").read_text()


def test_another_process_that_prepares_the_same_text_is_named_once(
    monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    held, naps = ExitStack(), []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            held.close()

    monkeypatch.setattr(lock, "time", SimpleNamespace(sleep=sleep))
    held.enter_context(lock.exclusive(cache_directory() / ".key.lock"))
    assert cache.cached("key", read_text, write_text, Stop()) == "new"
    name = f"process {os.getpid()} on {socket.gethostname()}"
    assert logged.messages == [f"waiting for {name}, which prepares the same text"]


def test_text_that_another_process_has_prepared_meanwhile_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, item = ExitStack(), cache_directory() / "key"

    def sleep(seconds: float) -> None:
        item.mkdir()
        (item / "text").write_text("theirs")
        held.close()

    monkeypatch.setattr(lock, "time", SimpleNamespace(sleep=sleep))
    held.enter_context(lock.exclusive(item.with_name(".key.lock")))
    assert cache.cached("key", read_text, lambda _: pytest.fail("again"), Stop()) == "theirs"


def test_prepared_text_that_cannot_be_read_back_is_named() -> None:
    def read(directory: Path) -> str:
        raise manifest.DamagedError("a bit has flipped")

    with pytest.raises(UserError, match=r"/key: cannot read the prepared text back; check the di"):
        cache.cached("key", read, write_text, Stop())


def test_a_stop_ends_the_wait_for_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stop()

    def sleep(seconds: float) -> None:
        assert stop.received is None, "goes on"
        stop.received = signal.SIGTERM

    monkeypatch.setattr(lock, "time", SimpleNamespace(sleep=sleep))
    with lock.exclusive(cache_directory() / ".key.lock"), pytest.raises(StoppedError):
        cache.cached("key", read_text, write_text, stop)
