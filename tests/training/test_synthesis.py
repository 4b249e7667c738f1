"""Text that models make: the translations of the model, the same however they came about."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import MEASURE_HERE, Train, made_up_pairs, run_here, run_mtrain, write_config
from pydantic import TypeAdapter
from ranks import train_by
from sacrebleu.metrics.chrf import CHRF

from mtrain.config.corpora import TextCorpus
from mtrain.config.loading import load_config, parse_stored_config
from mtrain.config.schema import Config, dump_config
from mtrain.data.prepare import Preparation
from mtrain.report import page
from mtrain.runs import layout, manifest
from mtrain.runs.records import SyntheticText
from mtrain.runs.synthetic import with_synthetic_text
from mtrain.runs.verify import verify
from mtrain.runtime import files
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.errors import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_STOPPED,
    RefusedError,
    StoppedError,
    UserError,
)
from mtrain.runtime.stop import Stop
from mtrain.training import synthesis
from mtrain.translation.loading import LoadedModel, load
from mtrain.translation.scorer import Scorer
from mtrain.translation.translator import Translator

Build = Callable[[Path], int]
LINES = [src for src, _ in made_up_pairs(30, 11)]


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthesis, "SHARD", 8)


def synthesizer_of(config: Config, stop: Stop | None = None) -> synthesis.Synthesizer:
    """Return the synthesizer of the second training corpus."""
    return synthesis.Synthesizer(synthesis.GivenText(config, 1, stop or Stop()), Ranks())


def write(directory: Path, *entries: dict[str, Any], **settings: Any) -> Path:
    """Write the config of a tiny run, with further entries of `data.train`."""
    path: Path = write_config(
        directory, **{"train.max_steps": 2, "train.valid_every": 2, **settings}
    )
    config = yaml.safe_load(path.read_text())
    config["data"]["train"] += entries
    path.write_text(yaml.safe_dump(config))
    return path


def text(directory: Path, lines: list[str] = LINES) -> str:
    path = directory / "text"
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


def pairs_of(run: Path, number: int = 1) -> list[tuple[str, str]]:
    """Read the text that was made for an entry."""
    lines = (run / "synthetic" / str(number) / "pairs.jsonl").read_text().splitlines()
    return [(row["src"], row["tgt"]) for row in map(json.loads, lines)]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Build:
    """Run `mtrain data build` in this process and return its exit code."""
    return lambda config: run_here(monkeypatch, "data", "build", "-c", config)


# --- what is made -------------------------------------------------------------------------------


def columns(directory: Path, kind: str) -> dict[str, Any]:
    """Write `LINES` in a format and return what an entry says of it, but for the side."""
    path = directory / f"given.{kind}"
    if kind == "gz":
        path.write_bytes(gzip.compress("".join(f"{line}\n" for line in LINES).encode()))
        return {"column": str(path)}
    if kind == "tsv":
        path.write_text("".join(f"x\t{line}\n" for line in LINES))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"x": {"y": line}}) + "\n" for line in LINES))
    else:
        pq.write_table(pa.table({"x.y": LINES}), path)
    return {"file": str(path), "column": 1 if kind == "tsv" else "x.y"}


@pytest.mark.parametrize("kind", ["gz", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("side", ["src", "tgt"])
def test_the_other_side_is_translated(
    kind: str, side: str, tmp_path: Path, trained_run: Path, build: Build
) -> None:
    given = columns(tmp_path, kind)
    entry = {**given, side: given["column"], "model": str(trained_run)}
    del entry["column"]
    languages = {} if side == "src" else {"data.src_lang": "ba", "data.tgt_lang": "aa"}
    assert build(write(tmp_path, entry, **languages)) == EXIT_OK
    made = Translator(load(trained_run)).best(LINES)
    pairs = zip(LINES, made, strict=True) if side == "src" else zip(made, LINES, strict=True)
    assert pairs_of(tmp_path / "run") == list(pairs)


def test_lines_that_cannot_be_translated_are_dropped_and_counted(
    tmp_path: Path, trained_run: Path, build: Build
) -> None:
    long = " ".join(["bavo"] * 3000)
    lines = [LINES[0], "", "\u2003", long, LINES[1]]
    assert build(write(tmp_path, {"src": text(tmp_path, lines), "model": str(trained_run)})) == 0
    assert [src for src, _ in pairs_of(tmp_path / "run")] == LINES[:2]
    record = json.loads((tmp_path / "run" / "synthetic" / "1" / "synthetic.json").read_text())
    assert record["dropped"] == {synthesis.AT_LIMIT: 1, "pairs dropped: blank on a side": 2}
    assert (record["lines"], record["pairs"]) == (3, 2)


@pytest.mark.parametrize("count", [2, 3])
def test_a_text_that_is_dropped_for_the_most_part_is_warned_of(
    tmp_path: Path,
    trained_run: Path,
    build: Build,
    capsys: pytest.CaptureFixture[str],
    count: int,
) -> None:
    given = text(tmp_path, [*LINES[:2], "", *[" ".join(["bavo"] * 3000)] * count])
    assert build(write(tmp_path, {"src": given, "model": str(trained_run)})) == EXIT_OK
    warning = "data.train.1: 3 of 5 translations are dropped (most frequent reason: source or "
    warning += f"translation at its limit of length); does {trained_run} suit {given}?"
    err = capsys.readouterr().err
    assert (warning in err, "translations are dropped" in err) == (count > 2, count > 2)


def test_translations_that_reach_the_limit_are_dropped(
    tmp_path: Path, trained_run: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(trained_run)
    made = Translator(loaded).best(LINES)
    tokens = [len(ids) + 1 for ids in loaded.tokenizer.encode(made)]
    limit = sorted(tokens)[15]
    monkeypatch.setattr(LoadedModel, "target_limit", lambda *_: limit)
    assert build(write(tmp_path, {"src": text(tmp_path), "model": str(trained_run)})) == EXIT_OK
    kept = [line for line, count in zip(LINES, tokens, strict=True) if count < limit]
    assert [src for src, _ in pairs_of(tmp_path / "run")] == kept
    assert 0 < len(kept) < 16


def test_lines_of_which_only_a_part_was_translated_are_dropped(
    tmp_path: Path, trained_run: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [len(ids) + 1 for ids in load(trained_run).tokenizer.encode(LINES)]
    limit = sorted(tokens)[15]
    monkeypatch.setattr(LoadedModel, "max_source_length", limit)
    assert build(write(tmp_path, {"src": text(tmp_path), "model": str(trained_run)})) == EXIT_OK
    kept = [line for line, count in zip(LINES, tokens, strict=True) if count <= limit]
    assert [src for src, _ in pairs_of(tmp_path / "run")] == kept
    assert len(kept) < len(LINES)


def test_a_model_may_repeat_a_comma_in_every_line(tmp_path: Path) -> None:
    lines = [synthesis.SyntheticLine(", " * 260, -1.0, synthesis.AT_LIMIT)] * 2000
    data = TypeAdapter(synthesis.LineShard).dump_json(lines)
    manifest.write_directory(
        tmp_path / "shard", lambda path: files.write_bytes(path / synthesis.LINES, data)
    )
    assert synthesis._open_shard(tmp_path / "shard") == lines
    (tmp_path / "shard" / synthesis.LINES).write_bytes(data.replace(b",", b";", 1))
    with pytest.raises(manifest.DamagedError):
        synthesis._open_shard(tmp_path / "shard")


def test_the_least_probable_are_dropped(tmp_path: Path, trained_run: Path, build: Build) -> None:
    entry = {"src": text(tmp_path), "model": str(trained_run), "drop_worst": 0.21}
    assert build(write(tmp_path, entry)) == EXIT_OK
    loaded = load(trained_run)
    made = Translator(loaded).best(LINES)
    scores, _ = Scorer(loaded).score(LINES, made)
    tokens = [len(ids) + 1 for ids in loaded.tokenizer.encode(made)]
    each = sorted(zip([s / n for s, n in zip(scores, tokens, strict=True)], LINES, strict=True))
    worst = {line for _, line in each[: int(0.21 * len(LINES))]}
    kept = [line for line in LINES if line not in worst]
    assert [src for src, _ in pairs_of(tmp_path / "run")] == kept
    assert len(kept) == 24


def test_the_hypothesis_most_like_the_reference_is_kept(
    tmp_path: Path, trained_run: Path, build: Build
) -> None:
    references = [tgt + " urfan" for _, tgt in made_up_pairs(30, 12)]
    (tmp_path / "refs").write_text("".join(line + "\n" for line in references))
    entry = {"src": text(tmp_path), "tgt": str(tmp_path / "refs"), "model": str(trained_run)}
    assert build(write(tmp_path, {**entry, "keep": "best", "beam_size": 5})) == EXIT_OK
    lists, _ = Translator(load(trained_run, beam_size=5)).translate(LINES)
    chrf = [
        [CHRF().sentence_score(each.text, [reference]).score for each in found]
        for found, reference in zip(lists, references, strict=True)
    ]
    best = [found[own.index(max(own))].text for found, own in zip(lists, chrf, strict=True)]
    assert [tgt for _, tgt in pairs_of(tmp_path / "run")] == best
    assert best != [found[0].text for found in lists]


def test_the_vocabulary_is_made_of_human_text(
    tmp_path: Path, trained_run: Path, build: Build
) -> None:
    path = write(tmp_path, {"src": text(tmp_path), "model": str(trained_run)})
    assert build(path) == EXIT_OK
    preparation = Preparation(with_synthetic_text(load_config(path)), Stop())
    human = [line for pair in made_up_pairs(120, 1) for line in pair]
    assert list(preparation._sentences()) == human + LINES


# --- the same, however it came about ------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"sample": True, "top_k": 5}])
def test_stopped_after_each_shard_it_is_the_same(
    settings: dict[str, Any],
    tmp_path: Path,
    trained_run: Path,
    build: Build,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = {"src": text(tmp_path), "model": [str(trained_run)] * 2, **settings}
    path = write(tmp_path, entry)
    assert build(path) == EXIT_OK
    whole = (tmp_path / "run" / "synthetic" / "1" / "pairs.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "run")
    monkeypatch.setenv("MTRAIN_CACHE", str(tmp_path / "another"))
    real = synthesis.Synthesizer._translate
    made = list[int]()

    def stop_once(self: synthesis.Synthesizer, number: int, pairs: Any) -> Any:
        if number not in made:
            made.append(number)
            raise StoppedError("stopped", EXIT_STOPPED)
        made.append(number)
        return real(self, number, pairs)

    monkeypatch.setattr(synthesis.Synthesizer, "_translate", stop_once)
    ends = [build(path) for _ in range(5)]
    assert ends == [EXIT_STOPPED] * 4 + [EXIT_OK]
    assert made == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (tmp_path / "run" / "synthetic" / "1" / "pairs.jsonl").read_bytes() == whole


def test_translations_are_named_by_all_that_they_depend_on(
    tmp_path: Path, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthesis.Synthesizer, "_check_direction", lambda *_: None)
    entry = {"src": text(tmp_path), "model": str(trained_run)}
    other = str(shutil.copy(tmp_path / "text", tmp_path / "other"))
    changes = [
        {},
        {"tgt": other, "keep": "best"},
        {"beam_size": 5},
        {"sample": True},
        {"sample": True, "top_k": 3},
    ]
    changes += [{"precision": "bf16"}, {"model_tag": "<x>"}, {"model": [str(trained_run)] * 2}]
    made = []
    for change in [*changes, {"drop_worst": 0.5}]:
        config = load_config(write(tmp_path, entry | change))
        made.append(synthesizer_of(config))
    assert len({each.text_key for each in made}) == len(changes) + 1
    assert len({each._name(0, [("a", "b")]) for each in made}) == len(changes)  # all are kept
    assert made[0]._name(0, [("a", "b")]) != made[0]._name(0, [("a", "c")])
    for change, number in (({}, 1), ({"sample": True}, 4)):  # samples depend on seed and place
        path = write(tmp_path, entry | change)
        configs = [load_config(path, [f"seed={seed}"]) for seed in (7, 8)]
        names = {
            synthesizer_of(config)._name(place, [("a", "b")])
            for config in configs
            for place in (0, 1)
        }
        assert len(names) == number


def test_models_are_known_by_their_weights_and_vocabulary(tmp_path: Path) -> None:
    paths, found = [tmp_path / name for name in (layout.MODEL, layout.TOKENIZER)], []
    for texts in (("a", "b"), ("c", "b"), ("a", "c")):
        for path, content in zip(paths, texts, strict=True):
            path.write_text(content)
        found.append(synthesis._hashes_of([tmp_path]))
    assert len(set(map(tuple, found))) == 3


def small_shards() -> None:
    synthesis.SHARD = 8


@pytest.mark.slow
def test_processes_and_threads_change_nothing(
    tmp_path: Path, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"src": text(tmp_path), "model": str(trained_run), "sample": True}
    path, found = write(tmp_path, entry), list[bytes]()
    for name, size, threads in (("one", 1, 1), ("two", 2, 1), ("threads", 1, 3)):
        run, settings = (
            tmp_path / name,
            (f"train.threads={threads}", f"train.accum_steps={2 // size}"),
        )
        monkeypatch.setenv("MTRAIN_CACHE", str(tmp_path / f"cache-{name}"))
        hooks = dict.fromkeys(range(size), small_shards)
        done = train_by(size, path, run, *settings, hooks=hooks)
        assert done.codes == [0] * size, done.stderr
        found.append((run / "synthetic" / "1" / "pairs.jsonl").read_bytes())
    assert len(set(found)) == 1


def use_own_cache(directory: Path, rank: int) -> None:
    """Give one of two ranks its own cache, and let it translate its own shards alone."""
    small_shards()
    os.environ["MTRAIN_CACHE"] = str(directory / f"cache-{rank}")
    translate = synthesis.Synthesizer._translate

    def translate_own(self: synthesis.Synthesizer, number: int, pairs: Any) -> Any:
        assert number % 2 == rank
        return translate(self, number, pairs)

    synthesis.Synthesizer._translate = translate_own  # type: ignore[method-assign]


@pytest.mark.slow
def test_no_shard_is_translated_twice_by_ranks_without_a_common_cache(
    tmp_path: Path, trained_run: Path
) -> None:
    path = write(tmp_path, {"src": text(tmp_path), "model": str(trained_run)})
    hooks = {rank: partial(use_own_cache, tmp_path, rank) for rank in range(2)}
    done = train_by(2, path, tmp_path / "run", hooks=hooks)
    assert done.codes == [0, 0], done.stderr
    assert [src for src, _ in pairs_of(tmp_path / "run")] == LINES


# --- kept with the run --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_reads_its_own_text_from_then_on(
    tmp_path: Path, trained_run: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    warning = f"{tmp_path / 'text'} is not the text that was translated when this run began"
    model, run = tmp_path / "model", tmp_path / "run"
    shutil.copytree(trained_run / "checkpoints" / "step-00000400", model)
    path = write(tmp_path, {"src": text(tmp_path), "model": str(model)})
    assert train(path) == EXIT_OK
    begun = json.loads((run / layout.RUN).read_text())
    assert begun["synthetic"]["data.train.1"]["pairs"] == 30
    shutil.rmtree(model)
    assert train(path) == EXIT_OK
    assert warning not in capsys.readouterr().err
    (tmp_path / "text").unlink()
    assert train(path, "--set", "train.max_steps=3") == EXIT_OK
    text(tmp_path, ["gutel"])
    assert train(path, "--set", "train.max_steps=4") == EXIT_OK
    assert warning in capsys.readouterr().err
    assert run_mtrain("verify", run).returncode == EXIT_OK
    assert "synthetic/1" in run_mtrain("verify", run).stdout

    other = yaml.safe_load(path.read_text())
    other["data"]["train"][1]["drop_worst"] = 0.5
    path.with_name("other.yaml").write_text(yaml.safe_dump(other))
    assert train(path.with_name("other.yaml")) == EXIT_REFUSED
    assert "data.train.1.drop_worst" in capsys.readouterr().err

    pairs = run / "synthetic" / "1" / "pairs.jsonl"
    size, added = pairs.stat().st_size, b'{"src": "bavo", "tgt": "x"}\n'
    with pairs.open("ab") as out:
        out.write(added)
    damaged = run_mtrain("verify", run)
    assert damaged.returncode == EXIT_FAILED
    assert "synthetic/1" in damaged.stdout
    assert train(path, "--set", "train.max_steps=6") == EXIT_FAILED
    message = f"1/pairs.jsonl: {size + len(added)} bytes instead of {size}"
    advice = f"restore it, or remove {pairs.parent} and run the same command to make it again"
    stderr = capsys.readouterr().err
    assert message in stderr
    assert advice in stderr


def test_a_report_checks_the_text_that_was_made_wherever_the_run_is(
    tmp_path: Path, trained_run: Path, train: Train
) -> None:
    path = write(tmp_path, {"src": text(tmp_path), "model": str(trained_run)})
    assert train(path) == EXIT_OK
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    assert any(finding.what.startswith("data.train.1 ") for finding in verify(moved))
    checked = page.check_text(page.collect_report(moved, []))
    names = {each.name: each.what for each in checked}
    assert str(moved / "synthetic" / "1" / "pairs.jsonl") in names["data.train.1"]


def test_a_start_is_refused_before_text_is_made_for_it(
    tmp_path: Path,
    trained_run: Path,
    train: Train,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Making it may take hours."""
    monkeypatch.setattr(synthesis.Synthesizer, "make", lambda *_: pytest.fail("text is made"))
    entry = {"src": text(tmp_path), "model": str(trained_run)}
    vocabulary = {"tokenizer.path": str(trained_run / "tokenizer.model")}
    learned = {side: str(tmp_path / "data" / f"train.{side}") for side in ("src", "tgt")}
    for settings, words in (
        (vocabulary | {"tokenizer.user_symbols": ["<x>"]}, "<x> is not a user symbol of"),
        ({"data.valid": learned}, "so its score means nothing"),
    ):
        assert train(write(tmp_path, entry, **settings)) == EXIT_REFUSED
        assert words in capsys.readouterr().err


def test_a_dataset_is_not_loaded_to_see_whether_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"dataset": "none/such", "split": "train", "src": "text", "model": "m"}
    config = load_config(write(tmp_path, entry))
    monkeypatch.setattr(synthesis, "scan_corpus", lambda *_: pytest.fail("it is loaded"))
    record = SyntheticText({}, {}, given="", key="", lines=1, pairs=1, dropped={})
    synthesis._warn_if_changed(synthesis.GivenText(config, 1, Stop()), record)


def test_synthetic_text_that_was_removed_is_made_again(
    tmp_path: Path, trained_run: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, {"src": text(tmp_path), "model": str(trained_run)})
    assert train(path) == EXIT_OK
    shutil.rmtree(tmp_path / "run" / "synthetic")
    missing = run_mtrain("verify", tmp_path / "run")
    assert missing.returncode == EXIT_FAILED
    assert "missing      synthetic/1" in missing.stdout
    assert train(path, "--set", "train.max_steps=4") == EXIT_OK
    shutil.rmtree(tmp_path / "run" / "synthetic")
    text(tmp_path, LINES[:20])  # it is not the same
    assert train(path, "--set", "train.max_steps=6") == EXIT_REFUSED
    assert "the content of data.train" in capsys.readouterr().err


def test_before_the_run_begins_other_models_make_it_anew(
    tmp_path: Path, trained_run: Path, build: Build
) -> None:
    model = tmp_path / "model"
    shutil.copytree(trained_run / "checkpoints" / "step-00000200", model)
    path = write(tmp_path, {"src": text(tmp_path), "model": str(model)})
    assert build(path) == EXIT_OK
    first = pairs_of(tmp_path / "run")
    shutil.rmtree(model)
    shutil.copytree(trained_run / "checkpoints" / "step-00000400", model)
    assert build(path) == EXIT_OK
    assert pairs_of(tmp_path / "run") != first


def test_before_the_run_begins_damaged_text_is_made_again(
    tmp_path: Path, trained_run: Path, build: Build
) -> None:
    path = write(tmp_path, {"src": text(tmp_path), "model": str(trained_run)})
    assert build(path) == EXIT_OK
    file = tmp_path / "run" / "synthetic" / "1" / "pairs.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"a", b"e"))
    assert build(path) == EXIT_OK
    assert file.read_bytes() == whole


def test_before_the_run_begins_the_model_may_go(
    tmp_path: Path,
    trained_run: Path,
    build: Build,
    train: Train,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = tmp_path / "model"
    shutil.copytree(trained_run / "checkpoints" / "step-00000400", model)
    entry = {"src": text(tmp_path), "model": str(model)}
    path = write(tmp_path, entry)
    assert build(path) == EXIT_OK
    shutil.rmtree(model)
    lines = text(tmp_path, LINES[:5])
    assert build(path) == EXIT_FAILED  # it is the text of other lines
    assert text(tmp_path) == lines
    assert build(write(tmp_path, entry | {"drop_worst": 0.5})) == EXIT_FAILED
    warning = "using the synthetic text that this model made before"
    assert warning not in capsys.readouterr().err
    assert train(write(tmp_path, entry)) == EXIT_OK
    assert warning in capsys.readouterr().err


def test_text_whose_model_does_not_exist_yet_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config(write(tmp_path, {"src": text(tmp_path), "model": str(tmp_path / "none")}))
    resolved = synthesis.without_missing_text(config, Stop(), timed=False)
    assert resolved.data.available_train == config.data.train[:1]
    assert "data.train.1: left out, as its synthetic text does not exist yet: " in caplog.text
    only = config.data.model_copy(update={"train": config.data.train[1:]})
    with pytest.raises(UserError, match="no text exists yet; make it with `mtrain data build`"):
        synthesis.without_missing_text(
            config.model_copy(update={"data": only}), Stop(), timed=False
        )


def test_a_model_translates_the_given_side_of_an_entry_that_is_swapped_later(
    tmp_path: Path, trained_run: Path, build: Build
) -> None:
    entry = {"src": text(tmp_path), "model": str(trained_run)}
    path = write(tmp_path, entry | {"swap": True})
    assert build(path) == EXIT_OK
    made = Translator(load(trained_run)).best(LINES)
    assert pairs_of(tmp_path / "run") == list(zip(LINES, made, strict=True))
    assert with_synthetic_text(load_config(path)).data.train[1].swap


def test_text_that_was_made_keeps_what_else_its_entry_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"weight": 2.5, "tag": "<bt>", "src_lang": "xx"}
    config = load_config(write(tmp_path, {"src": text(tmp_path), "model": "none", **given}))
    place = tmp_path / "run" / "synthetic" / "1"
    place.parent.mkdir(parents=True)
    manifest.write_directory(place, lambda path: (path / "pairs.jsonl").touch())
    monkeypatch.chdir(tmp_path)
    made = with_synthetic_text(config, Path("run")).data.train[1]
    assert made.model_dump(include=set(given)) == given
    assert made.file == str(place / "pairs.jsonl")  # whatever data.root is


def test_text_that_changes_meanwhile_is_not_kept(
    tmp_path: Path,
    trained_run: Path,
    build: Build,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(tmp_path, {"src": text(tmp_path), "model": str(trained_run)})
    real = synthesis.Synthesizer._translate

    def change(self: synthesis.Synthesizer, number: int, pairs: Any) -> Any:
        text(tmp_path, [*LINES, *LINES])
        return real(self, number, pairs)

    monkeypatch.setattr(synthesis.Synthesizer, "_translate", change)
    assert build(path) == EXIT_FAILED
    assert "it changed while it was translated" in capsys.readouterr().err
    assert not (tmp_path / "run" / "synthetic" / "1").exists()


def test_a_model_that_changes_while_it_is_loaded_translates_nothing(
    tmp_path: Path,
    trained_run: Path,
    build: Build,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hashes = iter("abcd")
    monkeypatch.setattr(synthesis, "_hashes_of", lambda models: [next(hashes), "vocabulary"])
    assert build(write(tmp_path, {"src": text(tmp_path), "model": str(trained_run)})) == EXIT_FAILED
    assert "data.train.1.model: changed while it was loaded" in capsys.readouterr().err
    assert not (tmp_path / "run" / "synthetic" / "1").exists()


def test_a_stop_is_seen_within_a_shard(tmp_path: Path, trained_run: Path) -> None:
    config = load_config(write(tmp_path, {"src": text(tmp_path), "model": str(trained_run)}))
    stop = Stop()
    synthesizer = synthesizer_of(config, stop)
    assert len(synthesizer._translate(0, [(line, "") for line in LINES[:8]])) == 8
    stop.received = signal.SIGTERM
    with pytest.raises(StoppedError):
        synthesizer._translate(0, [(line, "") for line in LINES[:8]])


def test_a_begun_run_gets_no_other_text(
    tmp_path: Path,
    trained_run: Path,
    build: Build,
    train: Train,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry = {"src": text(tmp_path), "model": str(trained_run)}
    assert train(write(tmp_path, entry)) == EXIT_OK
    monkeypatch.setattr(synthesis.Synthesizer, "make", None)
    path = write(tmp_path, entry, entry)
    for start in (build, train):
        assert start(path) == EXIT_REFUSED
        assert "began without data.train.2" in capsys.readouterr().err


def test_tokenizer_train_needs_the_synthetic_text(
    tmp_path: Path, trained_run: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, {"src": text(tmp_path), "model": str(trained_run)})
    command = ("tokenizer", "train", "-c", path)
    assert run_here(monkeypatch, *command) == EXIT_REFUSED
    assert build(path) == EXIT_OK
    assert run_here(monkeypatch, *command) == EXIT_OK
    vocabulary = (tmp_path / "run" / "tokenizer.model").read_bytes()
    config = with_synthetic_text(load_config(path))
    other = config.model_copy(update={"run_dir": str(tmp_path / "other")})
    assert Preparation(other, Stop()).tokenizer.proto == vocabulary


@pytest.mark.slow
def test_check_and_dry_run_make_no_synthetic_text(tmp_path: Path, trained_run: Path) -> None:
    path = write(tmp_path, {"src": text(tmp_path), "model": str(trained_run)})
    for command in (["train", "--dry-run"], ["check"], ["check", "--no-timing"]):
        done = run_mtrain(*command, "-c", path, prelude=MEASURE_HERE)
        assert done.returncode == EXIT_OK, done.stderr
        assert "data.train.1: left out, as its synthetic text does not exist yet" in done.stderr
        assert "30 lines" in done.stderr
        assert ("in about 1s" in done.stderr) == ("--no-timing" not in command)
        assert not (tmp_path / "run").exists()
    assert run_mtrain("data", "build", "-c", path).returncode == EXIT_OK
    for command in (["train", "--dry-run"], ["check", "--no-timing"]):
        done = run_mtrain(*command, "-c", path, prelude=MEASURE_HERE)
        assert "left out" not in done.stderr
    done = run_mtrain(*command, "-c", path, "--set", f"run_dir={tmp_path / 'other'}")
    assert "does not exist yet: all of" in done.stderr


def test_a_model_of_the_other_direction_is_refused(
    tmp_path: Path,
    trained_run: Path,
    build: Build,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        build(write(tmp_path, {"tgt": text(tmp_path), "model": str(trained_run)})) == EXIT_REFUSED
    )
    assert "translates aa to ba; this entry needs a model from ba to aa" in capsys.readouterr().err


def test_a_model_of_other_languages_is_warned_of(
    tmp_path: Path, trained_run: Path, build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"src": text(tmp_path), "model": str(trained_run), "tgt_lang": "fr"}
    assert build(write(tmp_path, entry)) == EXIT_OK
    assert "translates aa to ba, but this entry is of aa and fr" in capsys.readouterr().err


def test_the_same_text_twice_gets_other_samples(
    tmp_path: Path, trained_run: Path, build: Build
) -> None:
    entry = {"src": text(tmp_path), "model": str(trained_run), "sample": True, "tag": "<bt>"}
    assert build(write(tmp_path, entry, {**entry, "tag": "<x>"})) == EXIT_OK
    first, second = (dict(pairs_of(tmp_path / "run", number)) for number in (1, 2))
    common = first.keys() & second.keys()  # empty samples are dropped
    assert len(common) > 20
    assert sum(first[src] != second[src] for src in common) > 5


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("<2aa>", "translates ba to aa; this entry needs a model from aa to ba"),
        (
            "<2cc>",
            "data.train.1.model_tag: {run} does not know the tag <2cc>; choose one of <2bb>, <2aa>",
        ),
        (
            None,
            "data.train.1.model_tag: missing; all training text of {run} has tags: choose one of "
            "<2aa>, <2bb>",
        ),
    ],
)
def test_a_model_of_several_directions_needs_the_tag_of_this_one(
    tag: str | None,
    message: str,
    tmp_path: Path,
    both_run: Path,
    build: Build,
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry = {"src": text(tmp_path), "model": str(both_run), "model_tag": tag}
    assert build(write(tmp_path, entry)) == EXIT_REFUSED
    assert message.format(run=both_run) in capsys.readouterr().err


def test_the_same_lines_in_another_shard_get_other_samples(
    tmp_path: Path, trained_run: Path
) -> None:
    entry = {"src": text(tmp_path), "model": str(trained_run), "sample": True}
    synthesizer = synthesizer_of(load_config(write(tmp_path, entry)))
    shards = [
        synthesizer._translate(number, [(line, "") for line in LINES]) for number in (0, 0, 1)
    ]
    assert shards[0] == shards[1]
    assert shards[0] != shards[2]


def test_a_model_of_which_some_text_has_tags_needs_none(tmp_path: Path, trained_run: Path) -> None:
    entry = {"src": text(tmp_path), "model": str(trained_run)}
    config = load_config(write(tmp_path, entry | {"tag": "<bt>"}))
    assert [each.tag for each in config.data.train] == [None, "<bt>"]
    synthesizer_of(config)._check_direction(config)


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"model": "m"}, "data.train.1.src"),
        ({"src": "a", "tgt": "b", "model": "m"}, "data.train.1.model"),
        ({"src": "a", "model": "m", "keep": "best"}, "data.train.1.keep"),
        (
            {"src": "a", "tgt": "b", "model": "m", "keep": "best", "sample": True},
            "data.train.1.keep",
        ),
        ({"src": "a", "model": "m", "top_k": 5}, "data.train.1.top_k"),
        ({"src": "a", "model": []}, "data.train.1.model"),
        ({"src": "a", "model": "m", "drop_worst": 1.0}, "data.train.1.drop_worst"),
        ({"src": "a", "model": "m", "beam": 3}, "data.train.1.beam: unknown key; did you mean"),
        (
            {"src": "a", "model": "m", "synthetic_side": "src"},
            "data.train.1: has no key synthetic_side",
        ),
        ({"src": "a", "tgt": "b", "fill": {"model": "m"}}, "data.train.1.fill: unknown key"),
        ({"src": "a", "top_k": 5}, "data.train.1: top_k needs model"),
        ({"file": "a.tmx", "src": "en", "model": "m"}, "data.train.1.file"),
        (
            {"generated": "phrasebook", "split": "train", "pairs": 5, "model": "m"},
            "data.train.1.model",
        ),
    ],
)
def test_entries_that_make_no_sense_are_refused(
    entry: dict[str, Any], key: str, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match=re.escape(key)):
        load_config(write(tmp_path, entry))


@pytest.mark.parametrize(
    "entry",
    [
        {"tgt": "a", "model": "m", "sample": True, "top_k": 3},
        {"file": "a.tsv", "src": 0, "model": ["m", "n"], "drop_worst": 0.1},
        {"src": "a", "tgt": "b", "model": "m", "keep": "best", "beam_size": 8},
    ],
)
def test_a_stored_config_is_read_back(entry: dict[str, Any], tmp_path: Path) -> None:
    config = load_config(write(tmp_path, entry))
    assert parse_stored_config(dump_config(config), "stored") == config


def test_text_is_named_by_its_file() -> None:
    corpus = TextCorpus(src="a + b.en", tgt="a + b.en")
    assert synthesis._name_of(corpus) == "a + b.en"
