"""`mtrain check`: all findings in all text of a config, and nothing in sound text."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import signal
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import run_mtrain
from planting import (
    HAN,
    PAIRS,
    RIGHT,
    Folder,
    corpus,
    found,
    kinds,
    look,
    messages,
    places,
    plant,
    sound,
)

from mtrain.check import checker, chunks, diagnosis
from mtrain.check.checker import Checker
from mtrain.check.chunks import Chunk
from mtrain.check.diagnosis import Diagnosis, diagnose
from mtrain.config.loading import load_config
from mtrain.corpus.lines import MAX_LINE_LENGTH
from mtrain.data import mix_ups
from mtrain.runtime import workers
from mtrain.runtime.errors import StoppedError
from mtrain.runtime.stop import Stop


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_nothing_is_said_of_sound_text(folder: Folder) -> None:
    report = folder.look()
    assert kinds(report) == []
    assert [each["pairs"] for each in report["corpora"]] == [PAIRS, 200, 200]
    assert [doubt.split(";")[0][-5:] for doubt in report["doubts"]] == [f"{PAIRS:,}"]
    assert (report["errors"], report["warnings"], report["notes"]) == (0, 1, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "joint"), [(8, "words"), (40, "words"), (900, "words"), (40, "han")]
)
def test_a_slipped_block_is_found_with_its_ends(tmp_path: Path, length: int, joint: str) -> None:
    made = (HAN, "") if joint == "han" else (RIGHT, " ")
    sets = {"train": corpus(PAIRS, 1, *made), "valid": corpus(50, 2, *made)}
    folder = Folder(tmp_path, {**sets, "test": corpus(50, 3, *made)})
    lines = folder.bytes["train.xb"]
    lines[1000 : 1000 + length] = [*lines[1001 : 1000 + length], lines[1000]]
    report = folder.look()
    [(_, _, slip)] = [each for each in found(report) if each[1] == "slip"]
    [example] = slip["examples"]
    assert abs(example["line"] - 1001) <= 1
    assert abs(example["end"] - (1000 + length)) <= 1
    assert example["distance"] == -1
    assert "targets are about 1 line ahead of their sources" in example["text"]
    assert not {"misfit", "unrelated"} & {kind for _, kind in kinds(report)}


@pytest.mark.slow
def test_a_slipped_block_explains_its_wrong_pairs_but_hides_none_elsewhere(folder: Folder) -> None:
    for lines in (folder.bytes["train.xa"], folder.bytes["train.xb"]):
        lines[1010] = b" ".join(lines[1010:1020])  # where it slips, two pairs differ in length
    lines = folder.bytes["train.xb"]
    lines[1900] = b" ".join(lines[1900:1910])
    lines[1000:1048] = [*lines[1008:1048], *lines[1000:1008]]
    wrong = [1400, 1600, 1800]
    texts = [lines[row] for row in wrong]
    for row, text in zip(wrong, [*texts[1:], texts[0]], strict=True):
        lines[row] = text
    report = folder.look()
    findings = {kind: finding for _, kind, finding in found(report)}
    [example] = findings["slip"]["examples"]
    assert (example["line"], example["end"], example["distance"]) == (1001, 1048, -8)
    assert findings["misfit"]["count"] == len(wrong)
    assert (findings["ratio"]["count"], places(report, "ratio")) == (1, [("train.xa", 1901)])
    lines_of_misfits = {each["line"] for each in findings["misfit"]["examples"]}
    assert lines_of_misfits == {row + 1 for row in wrong}


@pytest.mark.slow
@pytest.mark.parametrize("change", ["shuffled", "far"])
def test_a_block_that_goes_together_nowhere_near_is_found(folder: Folder, change: str) -> None:
    lines = folder.bytes["train.xb"]
    block = lines[1000:1600]
    if change == "shuffled":
        random.Random(7).shuffle(block)
    lines[1000:1600] = block if change == "shuffled" else block[80:] + block[:80]
    report = folder.look()
    [(_, _, slip)] = [each for each in found(report) if each[1] == "slip"]
    [example] = slip["examples"]
    assert abs(example["line"] - 1001) <= 3
    assert abs(example["end"] - 1600) <= 3
    assert "distance" not in example
    assert "match no better than neighbouring" in example["text"]


@pytest.mark.slow
def test_a_lost_line_is_found_where_it_was(folder: Folder) -> None:
    del folder.bytes["train.xa"][1499]
    report = folder.look()
    [(_, _, unequal)] = [each for each in found(report) if each[1] == "unequal"]
    assert f"has {PAIRS - 1:,} lines but" in unequal["examples"][0]["text"]
    assert "find the missing or extra line" in unequal["examples"][0]["text"]
    [(_, line)] = places(report, "slip")
    assert abs(line - 1500) <= 1
    assert report["errors"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("slip", [1, 700])
def test_lines_of_documents_that_slipped_are_noticed(folder: Folder, slip: int) -> None:
    """Lines of one subject have words that come together, whichever lines are paired."""
    draw = random.Random(8)
    words = ["".join(draw.choices("abcdefghijklmnop", k=4)) for _ in range(3000)]
    lines = []
    for _ in range(PAIRS // 20):
        subject = draw.sample(words, 8)
        for _ in range(20):
            line = draw.sample(subject, 7) + draw.choices(words, k=draw.randint(0, 14))
            lines.append(draw.sample(line, len(line)))
    folder.bytes["train.xa"] = [" ".join(line).encode() for line in lines]
    targets = [" ".join(word[::-1] + "o" for word in line).encode() for line in lines]
    folder.bytes["train.xb"] = targets
    assert ("data.train.0", "unrelated") not in kinds(folder.look_at_train())
    folder.bytes["train.xb"] = targets[slip:] + targets[:slip]
    if slip == 1:
        assert ("data.train.0", "slip") in kinds(folder.look())
    else:
        assert ("data.train.0", "unrelated") in kinds(folder.look_at_train())


@pytest.mark.slow
@pytest.mark.parametrize("slip", [1, -2, 12, -30])
def test_sides_that_are_shifted_throughout_are_told_by_how_many_lines(
    folder: Folder, slip: int
) -> None:
    for name in ("train.xb", "valid.xb"):
        folder.bytes[name] = folder.bytes[name][slip:] + folder.bytes[name][:slip]
    report = folder.look()
    slips = {name: finding for name, kind, finding in found(report) if kind == "slip"}
    assert slips.keys() == {"data.train.0", "data.valid"}
    for finding in slips.values():
        [example] = finding["examples"]
        assert (example["line"], example["distance"]) == (1, -slip)
        assert "throughout: look at the first lines; the" in example["text"]
    assert not {"unrelated", "misfit"} & {kind for _, kind in kinds(report)}


@pytest.mark.slow
@pytest.mark.parametrize("slip", [5, 25])
def test_a_shift_in_most_of_the_lines_is_told_with_its_beginning(folder: Folder, slip: int) -> None:
    lines = folder.bytes["train.xb"]
    del lines[700 : 700 + slip]
    del folder.bytes["train.xa"][len(lines) :]
    [(_, kind, finding)] = [each for each in found(folder.look()) if each[0] == "data.train.0"]
    [example] = finding["examples"]
    assert (kind, example["distance"]) == ("slip", -slip)
    assert abs(example["line"] - 701) <= 10
    units = f"about {slip} lines ahead of their sources"
    assert example["text"] == f"to {len(lines)}: targets are {units}"


@pytest.mark.slow
def test_sets_that_overlap_are_named_on_both_sides(folder: Folder) -> None:
    lines = folder.bytes
    lines["train.xa"][10], lines["train.xb"][10] = lines["valid.xa"][1], lines["valid.xb"][1]
    lines["train.xa"][20] = lines["valid.xa"][2]
    lines["train.xb"][30] = lines["test.xb"][3] + b" "
    lines["test.xa"][4], lines["test.xb"][4] = lines["valid.xa"][4], lines["valid.xb"][4]
    near = max(range(50, 200), key=lambda row: len(lines["test.xa"][row].split()))
    for side in ("xa", "xb"):
        words = lines[f"test.{side}"][near].split()
        words[4] = b"otherwise"
        lines[f"train.{side}"][40] = b" ".join(words)
    report = folder.look()
    others = {
        (name, kind, finding["examples"][0].get("line")): finding["examples"][0]["other"]["line"]
        for name, kind, finding in found(report)
        if "overlap" in kind
    }
    assert others == {
        ("data.valid", "overlap", 2): 11,
        ("data.valid", "source_overlap", 3): 21,
        ("data.test.held", "target_overlap", 4): 31,
        ("data.valid", "overlap", 5): 5,
        ("data.test.held", "near_overlap", near + 1): 41,
    }


@pytest.mark.slow
def test_blank_lines_do_not_overlap_and_an_equal_pair_counts_before_an_equal_side(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 333)
    lines = folder.bytes
    lines["train.xa"][10], lines["train.xb"][10] = lines["valid.xa"][1], lines["valid.xb"][1]
    lines["train.xa"][1900] = lines["valid.xa"][1]
    for name, row in (("train", 20), ("valid", 2)):
        lines[f"{name}.xa"][row] = b""
    places = [
        (name, kind, finding["examples"][0]["line"], finding["examples"][0]["other"]["line"])
        for name, kind, finding in found(folder.look())
        if "overlap" in kind
    ]
    assert places == [("data.valid", "overlap", 2, 11)]


@pytest.mark.slow
def test_a_nearly_equal_pair_is_not_shown_as_an_equal_one(folder: Folder) -> None:
    """A phrase twice and three times: all bigrams are the same."""
    lines = folder.bytes
    row = max(range(50, 200), key=lambda row: len(lines["valid.xa"][row].split()))
    for side in ("xa", "xb"):
        line = lines[f"valid.{side}"][row]
        lines[f"valid.{side}"][row] = b" ".join([line] * 2)
        lines[f"train.{side}"][40] = b" ".join([line] * 3)
    shown = {(name, kind): finding for name, kind, finding in found(folder.look())}
    first = shown["data.valid", "near_overlap"]["examples"][0]
    assert (first["line"], first["other"]["line"], first["likeness"]) == (row + 1, 41, 1)
    assert first["text"].startswith("99% equal to train.xa:41  ")


@pytest.mark.slow
def test_a_set_that_stands_in_train_is_an_error_and_dropped_bytes_are_none(folder: Folder) -> None:
    folder.data |= {"valid": folder.entry("train"), "invalid_utf8": "drop"}
    folder.bytes["train.xa"][3] += b"\xff"
    report = folder.look(examples=1)
    assert ("data.valid", "contained") in kinds(report)
    assert places(report, "dropped") == [("train.xa", 4)]
    assert report["errors"] == 1
    folder.data["allow_overlap"] = True
    report = folder.look()
    [message] = messages(report, "contained")
    assert message.endswith("; data.allow_overlap allows it")
    assert report["errors"] == 0


@pytest.mark.slow
def test_all_that_is_broken_is_told_in_one_run(folder: Folder) -> None:
    del folder.bytes["train.xb"][-1]
    folder.bytes["valid.xa"][3] += b"\xff"
    folder.bytes["test.xa"], folder.bytes["test.xb"] = [], []
    for name in ("lost", "pipe", "gzip"):
        folder.data["test"][name] = {"src": name, "tgt": "one"}
    folder.data["train"].append({"src": "cut.gz", "tgt": "train.xa"})
    os.mkfifo(folder.path / "pipe")  # not waited for
    packed = gzip.compress(b"\n".join(folder.bytes["train.xa"]))
    for name, data in (
        ("cut.gz", packed[:-50]),
        ("gzip", gzip.compress(b"a", mtime=0)),
        ("one", b"a\n"),
    ):
        (folder.path / name).write_bytes(data)
    errors = {
        (name, kind) for name, kind, each in found(folder.look()) if each["severity"] == "error"
    }
    assert errors == {
        ("data.train.0", "unequal"),
        ("data.train.1", "unreadable"),
        ("data.valid", "encoding"),
        ("data.test.held", "empty"),
        ("data.test.lost", "unreadable"),
        ("data.test.pipe", "unreadable"),
        ("data.test.gzip", "unreadable"),
    }


@pytest.mark.slow
def test_tables_are_named_by_row(folder: Folder) -> None:
    src, tgt = (list(side) for side in sound()["train"])
    src[6], tgt[8] = src[6] + "\nand more", " "
    pq.write_table(pa.table({"a": src, "b": tgt}), folder.path / "pairs.parquet")
    rows = [json.dumps({"t": {"a": a, "b": b}}) for a, b in zip(src, tgt, strict=True)]
    rows[3], rows[4], rows[5] = "{", '{"t": {"a": 1, "b": "x"}}', '{"t": []}'
    (folder.path / "pairs.jsonl").write_text("\n".join(rows), encoding="utf-8")
    lines = ["a\tb", *(f"{a}\t{b}" for a, b in zip(*sound()["train"], strict=True)), "alone"]
    with gzip.open(folder.path / "pairs.tsv.gz", "wt", encoding="utf-8") as out:
        out.write("\n".join(lines))
    folder.data["train"] = [
        {"file": "pairs.parquet", "src": "a", "tgt": "b"},
        {"file": "pairs.jsonl", "src": "t.a", "tgt": "t.b"},
        {"file": "pairs.tsv.gz", "src": "a", "tgt": "b"},
    ]
    report = folder.look()
    shown = {(name, kind): finding for name, kind, finding in found(report)}
    assert shown["data.train.0", "control"]["examples"][0]["row"] == 7
    assert shown["data.train.0", "blank"]["examples"][0]["row"] == 9
    assert [each["line"] for each in shown["data.train.1", "row"]["examples"]] == [4, 5, 6]
    assert [each["line"] for each in shown["data.train.2", "row"]["examples"]] == [PAIRS + 2]
    first = shown["data.train.2", "duplicate"]["examples"][0]
    assert (first["line"], first["first"]["row"]) == (2, 1)


@pytest.mark.slow
def test_generated_text_is_sound(folder: Folder) -> None:
    made = {"generated": "phrasebook"}
    folder.data |= {"src_lang": "en", "tgt_lang": "de", "test": {}}
    folder.data["train"] = [{**made, "split": "train", "pairs": 4000}]
    folder.data["valid"] = {**made, "split": "valid", "pairs": 200}
    assert set(kinds(folder.look())) <= {("data.valid", "near_overlap")}


@pytest.mark.parametrize("pairs", [0, 1, 5, 60])
def test_little_text_is_looked_at_too(tmp_path: Path, pairs: int) -> None:
    sets = {"train": corpus(pairs, 1), "valid": corpus(3, 2), "test": corpus(3, 3)}
    folder = Folder(tmp_path, sets)
    empty = [("data.train.0", "empty")]
    assert kinds(folder.look(forecast=True)) == ([] if pairs else empty)
    folder.bytes["train.xb"] = [b" "] * pairs
    report = folder.look()
    assert set(kinds(report)) >= set(empty)
    assert report["errors"] == 1


@pytest.mark.slow
def test_text_of_which_training_has_nothing_left_is_an_error(folder: Folder) -> None:
    folder.data["max_length"] = 4
    report = folder.look()
    assert ("data.train.0", "empty") in kinds(report)
    assert report["errors"] == 1
    folder.bytes["train.xa"][5] = folder.bytes["train.xb"][5] = b"a"
    assert folder.look()["errors"] == 0
    # lines that are too long to be read do not count against the others
    too_long = b"a" * (MAX_LINE_LENGTH + 1)
    folder.bytes |= {"train.xa": [b"a", too_long, too_long], "train.xb": [b"a", b"b", b""]}
    assert folder.look()["errors"] == 0


@pytest.mark.slow
def test_a_set_of_blank_lines_is_an_error(folder: Folder) -> None:
    folder.bytes["valid.xb"] = [b" "] * len(folder.bytes["valid.xa"])
    report = folder.look()
    assert ("data.valid", "empty") in kinds(report)
    assert report["errors"] == 1


def test_a_side_in_a_legacy_encoding_is_not_judged_by_its_rows_in_ascii(folder: Folder) -> None:
    folder.data["tgt_lang"] = "ja"
    lines = folder.bytes["train.xb"]
    lines[:] = [
        "日本語です".encode("euc-jp") if row % 9 else text for row, text in enumerate(lines)
    ]
    report = folder.look()
    assert not messages(report, "language")
    assert ("data.train.0", "encoding") in kinds(report)


@pytest.mark.slow
def test_a_part_of_a_side_in_reverse(folder: Folder) -> None:
    lines = folder.bytes["train.xb"]
    lines[1000:1200] = [line[::-1] for line in lines[1000:1200]]
    [message] = messages(folder.look(), "mixture")
    assert message.startswith("about 10.0% of the targets with 20 or more characters differ")
    assert "from train.xb:1011 to 1190; compare" in message
    odd, usual = map(int, re.findall(r"(?:compare|with) train.xb:(\d+) ", message))
    assert 1000 < odd <= 1200
    assert not 1000 < usual <= 1200
    assert "another encoding or language, other spacing, letters in reverse order" in message


@pytest.mark.slow
def test_one_message_in_place_of_many_texts_is_no_mixture(folder: Folder) -> None:
    lines = folder.bytes["train.xb"]
    lines[1000:1300] = [b"HTTP 503: Quota exceeded, try again later!"] * 300
    report = folder.look()
    assert messages(report, "repeated")
    assert not messages(report, "mixture")


@pytest.mark.slow
def test_two_languages_of_a_side_are_no_mixture(folder: Folder) -> None:
    """Each corpus is compared with text in its own languages."""
    han = corpus(600, 9, HAN, "")[1]
    folder.bytes |= {
        "more.xb": folder.bytes["train.xb"][:600],
        "more.zh": [text.encode() for text in han],
    }
    folder.data["train"].append({"src": "more.zh", "tgt": "more.xb", "src_lang": "zh"})
    assert not messages(folder.look(), "mixture")


@pytest.mark.slow
@pytest.mark.parametrize("count", [60, 200])
def test_a_part_in_other_letters(folder: Folder, count: int) -> None:
    """Few such texts are each reported; more seem to be usual on their side, but are a part."""
    lines = folder.bytes["train.xb"]
    greek = str.maketrans("abcdefghiklmnopqrstuvwxyz", "αβψδεφγηικλμνοπφρστθωςχυζ")
    for row in range(1000, 1000 + count):
        lines[row] = lines[row].decode().translate(greek).encode()
    report = folder.look()
    assert bool(messages(report, "mixture")) == (count == 200)
    assert (("data.train.0", "script") in kinds(report)) == (count == 60)


@pytest.mark.slow
def test_both_directions_are_checked_in_one(folder: Folder) -> None:
    """Whether swapped or written the other way round, files are named as they are."""
    for name in ("train", "valid"):
        folder.data[name] = [folder.entry(name), {**folder.entry(name), "swap": True}]
    turned = {"src": "test.xb", "tgt": "test.xa", "src_lang": "ba", "tgt_lang": "aa"}
    folder.data["test"]["held"] = turned
    assert kinds(folder.look()) == []
    folder.bytes["test.xb"][6] = folder.bytes["train.xa"][9] = b"lo\0st"
    folder.data["train"][1]["src_lang"] = "ru"
    report = folder.look()
    assert places(report, "control", "data.test.held") == [("test.xb", 7)]
    assert places(report, "control", "data.train.1") == [("train.xa", 10)]
    assert ("data.train.1", "language") in kinds(report)


@pytest.mark.slow
def test_examples_are_bounded_and_the_worst_first(folder: Folder) -> None:
    for row in range(100, 160):
        plant(folder, "same", row)
    [finding] = [each for _, kind, each in found(folder.look(examples=3)) if kind == "same"]
    longest = sorted((len(folder.bytes["train.xa"][row]) for row in range(100, 160)), reverse=True)
    assert finding["count"] == 60
    assert [len(each["text"]) for each in finding["examples"]] == [2 * n + 3 for n in longest[:3]]


@pytest.mark.slow
def test_chunks_change_nothing(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = folder.bytes["train.xb"]
    lines[990:1020] = [*lines[991:1020], lines[990]]
    plant(folder, "same", 999)
    whole = folder.look()
    monkeypatch.setattr(chunks, "CHUNK", 333)
    assert kinds(folder.look()) == kinds(whole)


@pytest.mark.slow
@pytest.mark.skipif(not workers.CAN_FORK, reason="needs processes that are forked")
def test_processes_change_nothing(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = folder.bytes["train.xb"]
    lines[990:1020] = [*lines[991:1020], lines[990]]
    lines[1500:1503] = lines[10], b"\xff", b""
    for row in range(20, 2000, 60):
        lines[row] += b" <b>"
    folder.bytes["train.xa"][1900] = folder.bytes["test.xa"][5]
    lines[1900] = folder.bytes["test.xb"][5]
    monkeypatch.setattr(chunks, "CHUNK", 333)
    here = folder.look()
    processes = []

    def map_tasks(*args: Any, **options: Any) -> Iterator[Any]:
        processes.append(args[2])
        return workers.map_tasks(*args, **options)

    monkeypatch.setattr(checker, "MANY_PAIRS", 1000)
    folder.data["workers"] = 3
    monkeypatch.setattr(checker, "map_tasks", map_tasks)
    assert folder.look() == here
    assert processes == [3]  # only for the training text
    assert {"slip", "encoding", "blank", "markup", "overlap"} <= {kind for _, kind in kinds(here)}


@pytest.mark.slow
@pytest.mark.parametrize(("swap", "side"), [(False, "src"), (True, "tgt")])
def test_pairs_that_filters_leave_out_are_counted_by_reason(
    folder: Folder, swap: bool, side: str
) -> None:
    plant(folder, "script", 100)
    plant(folder, "same", 160)
    folder.bytes["train.xb"][220] += b"\0"
    folder.data["train"][0]["swap"] = swap
    folder.settings["filter"] = {"identical": True, "control": True, f"{side}_script": ["Latin"]}
    report = folder.look()
    left_out = [each for _, kind, each in found(report) if kind == "filtered"]
    assert {each["about"]: each["examples"][0]["line"] for each in left_out} == {
        "control or invalid characters": 221,
        f"{side}_script is not Latin": 101,
        "the same text on both sides": 161,
    }
    assert [each["count"] for each in left_out] == [1, 1, 1]
    assert report["errors"] == 0
    assert f": {PAIRS - 3:,};" in report["doubts"][0]


@pytest.mark.slow
@pytest.mark.parametrize("filters", [{"tgt_script": ["Han"]}, {"min_length": 500}])
def test_filters_that_leave_no_pair_are_an_error(folder: Folder, filters: dict[str, Any]) -> None:
    folder.settings["filter"] = filters
    report = folder.look(forecast=True)
    [message] = messages(report, "empty")
    assert message.startswith("no pair is left to train on: ")
    assert (report["errors"], report["forecast"]) == (1, None)
    reason = "no forecast: data.train: no pair is left to train on"
    assert reason in look(folder.write(), forecast=True).lines(100)


@pytest.mark.slow
def test_a_device_that_the_machine_lacks_is_an_error_of_the_forecast(folder: Folder) -> None:
    folder.settings["train"] = {"device": "cuda:99"}
    assert folder.look()["errors"] == 0
    told = look(folder.write(), forecast=True)
    assert told.as_json()["errors"] == 1
    assert any(line.startswith("error: device cuda:99: ") for line in told.lines(80))


def test_a_request_to_stop_is_heard(folder: Folder) -> None:
    stop = Stop(time_limit=1e-9, started=time.monotonic() - 1)
    with pytest.raises(StoppedError):
        diagnose(load_config(folder.write()), stop, examples=1, with_forecast=False, timed=False)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["Profile", "report_mixture"])
def test_a_signal_stops_the_learning_of_what_is_normal_at_once(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    stop = Stop()

    def learn(sample: list[Chunk]) -> None:
        stop._on_signal(signal.SIGTERM, None)
        pytest.fail("goes on")

    monkeypatch.setattr(checker, step, learn)
    with pytest.raises(StoppedError, match="SIGTERM"):
        diagnose(load_config(folder.write()), stop, examples=1, with_forecast=False, timed=False)


@pytest.mark.slow
def test_a_start_from_a_model_that_is_yet_to_be_trained_needs_less_text(folder: Folder) -> None:
    folder.settings["train"] = {"init_from": str(folder.path / "first")}
    assert folder.look()["doubts"] == [
        f"train.init_from: {folder.path / 'first'} does not exist yet and is ignored here"
    ]


def test_how_the_vocabulary_fits_is_told(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "MAX_ENCODED", 100)
    folder = Folder(tmp_path, {n: corpus(300, 1, HAN, "") for n in ("train", "valid", "test")})
    folder.settings["tokenizer"] = {"path": str(trained_run / "tokenizer.model")}
    report = folder.look(forecast=True)
    [(_, _, finding)] = [each for each in found(report) if each[1] == "pieces"]
    assert [each["text"].split(":")[0] for each in finding["examples"]] == ["source", "target"]
    fits = report["vocabulary"]
    assert fits["target"]["bytes"] > 0.9
    assert fits["source"]["tokens_per_word"] > 3
    assert fits["source"]["unknown"] == 0
    assert report["forecast"]["vocab_size"] == 350
    folder.data["train"][0]["weight"] = 4.0
    weighted = folder.look(forecast=True)
    assert 4 * weighted["forecast"]["epochs"] == pytest.approx(report["forecast"]["epochs"], 0.01)


def test_without_text_the_vocabulary_is_not_measured(folder: Folder, trained_run: Path) -> None:
    folder.settings["tokenizer"] = {"path": str(trained_run / "tokenizer.model")}
    folder.data["train"] = [{"src": "lost.xa", "tgt": "lost.xb"}]
    found = look(folder.write())
    assert found.as_json()["vocabulary"] is None
    assert "  not measured: there is no text to measure" in found.lines(80)


def test_the_last_line_counts_what_was_found() -> None:
    assert [*Diagnosis([]).lines(80)][-1] == "nothing suspicious was found"
    found = Diagnosis([], warnings=["a"], refusals=["b", "c"])
    assert [*found.lines(80)][-4:] == ["error: b", "error: c", "warning: a", "2 errors, 1 warning"]


@pytest.mark.slow
def test_the_command_prints_a_table_and_fails_on_errors(folder: Folder) -> None:
    folder.bytes["train.xb"][41] += "\0 \u00a0\x85".encode()
    config = folder.write()
    done = run_mtrain("check", "-c", config, "--no-forecast", env={"COLUMNS": "80", "PATH": ""})
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "warning  control characters" in done.stdout
    assert "train.xb:42" in done.stdout
    assert f"\nwarning: data.train: too few pairs to learn to translate: {PAIRS:,}" in done.stdout
    assert done.stdout.endswith("2 warnings\n")
    (folder.path / "valid.xa").unlink()
    (folder.path / "run").mkdir()
    (folder.path / "run" / "notes.txt").touch()
    done = run_mtrain("check", "-c", config, "--json", "--no-timing")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert (report["errors"], report["forecast"]["step_seconds"]) == (2, None)
    assert [text.partition("/run: ")[2][:15] for text in report["refusals"]] == ["holds notes.txt"]
    assert places(report, "control") == [("train.xb", 42)]


def test_the_sample_is_thinned_evenly_where_lines_are_long(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = folder.bytes["train.xb"]
    lines[3] = b" ".join(lines[:100])  # pushes no others out of the sample
    looked = Checker(load_config(folder.write()), Stop(), 10)
    monkeypatch.setattr(mix_ups, "SAMPLE_CHARACTERS", 100_000)
    looked.scan()
    looked.check(None)
    numbers = [number for chunk in looked.sample for number in chunk.numbers]
    assert 50_000 / 2 - 1000 <= sum(int(chunk.lengths.sum()) for chunk in looked.sample) <= 100_000
    assert len(set(np.diff(numbers)[2:].tolist())) == 1
    assert numbers[-1] > 0.9 * PAIRS
    assert 4 not in numbers


@pytest.mark.slow
def test_memory_does_not_grow_with_long_lines(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 million characters, of which a chunk of 10,000 pairs would hold all: 139 MB."""
    monkeypatch.setattr(chunks, "CHUNK_CHARACTERS", 1 << 20)
    for name in ("train.xa", "train.xb"):
        lines = folder.bytes[name]
        lines[:] = [b" ".join(lines[n : n + 120]) for n in range(125)]
    looked = Checker(load_config(folder.write()), Stop(), 10)
    tracemalloc.start()
    looked.scan()
    looked.check(None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 115_000_000
