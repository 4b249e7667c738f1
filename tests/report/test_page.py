"""The report of a run: what is there is shown as it is, what is not is told, nothing is loaded."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import (
    Page,
    check_that_nothing_is_loaded,
    edit,
    empty,
    folder,
    huge,
    link,
    made_up_pairs,
    pipe,
    run_here,
    run_mtrain,
)
from hypothesis import given
from hypothesis import strategies as st

import mtrain
from mtrain.config.loading import load_config
from mtrain.corpus import hub
from mtrain.corpus.readers import reading_of, scan
from mtrain.report import page as report
from mtrain.report.curves import BUCKETS, MAX_ROWS, Axis, Chart, Series, charts_of, downsample
from mtrain.runs import checkpoint, layout, reader
from mtrain.runs.history import History
from mtrain.runs.records import TIME
from mtrain.runtime.errors import UserError
from mtrain.runtime.stop import format_duration
from mtrain.scoring.notes import Note

TEMPLATES = Path(mtrain.__file__).parent / "report" / "templates"
VALID = made_up_pairs(12, 2)


@pytest.fixture(scope="module")
def page(trained_run: Path) -> str:
    return report.make_page(trained_run, [], check=True)


@pytest.fixture(scope="module")
def whole(trained_run: Path) -> report.Report:
    """The content of the whole run."""
    return report.collect_report(trained_run, [])


@pytest.fixture
def copy(trained_run: Path, tmp_path: Path) -> Path:
    """A run that may be changed."""
    shutil.copytree(trained_run, tmp_path / "copy")
    return tmp_path / "copy"


def notes(text: str) -> list[str]:
    return re.findall(r'<p class="note">(.*?)</p>', text, re.DOTALL)


# --- a whole run ------------------------------------------------------------------------------


def test_the_page_loads_nothing_and_is_closed(page: str) -> None:
    found = check_that_nothing_is_loaded(page)
    assert notes(page) == []
    assert {ref[1:] for ref in found.references if ref.startswith("#")} <= set(found.ids)
    named = re.findall(r'aria-labelledby="([^"]+)"', page)
    assert named
    assert {name for names in named for name in names.split()} <= set(found.ids)
    levels = [int(tag[1]) for tag in found.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_pictures_have_words_and_tables_have_headers(page: str) -> None:
    for svg in re.findall(r"<svg[^>]*>", page):
        assert "aria-labelledby=" in svg or "aria-label=" in svg or 'aria-hidden="true"' in svg
    tables = re.findall(r"<table.*?</table>", page, re.DOTALL)
    figures = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    wide = re.findall(r'<div class="scroll"[^>]*>', page)
    assert min(map(len, (tables, figures, wide))) > 0
    assert all('scope="col"' in table and 'scope="row"' in table for table in tables)
    assert all("<figcaption" in figure and re.search("<desc|unseen", figure) for figure in figures)
    assert all('tabindex="0"' in each and "aria-label=" in each for each in wide)


def test_scores_are_the_run_s(trained_run: Path, whole: report.Report, page: str) -> None:
    stored = json.loads((trained_run / "best.json").read_text())
    (first, best), (last, test) = whole.scores[0], whole.scores[-1]
    assert (first, best["bleu"]) == ("validation", stored["best"]["bleu"])
    assert (last, test) == ("test held_out", stored["tests"]["held_out"])
    assert f"<td>{test['bleu']:.2f}</td><td>{test['chrf']:.2f}</td>" in page
    assert page.count(f"<code>{best['signature']}</code>") == len(whole.scores)


def test_the_best_validation_is_marked_with_its_measure(copy: Path) -> None:
    best = json.loads((copy / "best.json").read_text())
    for entry in (*best["history"], best["average"]):
        entry["bleu"] = 0.5
    edit(copy / "best.json", history=best["history"], average=best["average"], measure="nll")
    text = report.make_page(copy, ["bavo"], check=False)
    assert text.count("<td><strong>best</strong> by nll</td>") == 1


def test_the_time_of_a_page_does_not_grow_with_the_square_of_the_validations(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = json.loads((copy / "best.json").read_text())["history"]
    edit(copy / "best.json", history=[{**entry, "step": step} for step in range(1, 101)])
    calls, best_of = list[int](), History._best_of

    def count(history: History, entries: list[Any]) -> Any:
        calls.append(len(entries))
        return best_of(history, entries)

    monkeypatch.setattr(History, "_best_of", count)
    page = report.make_page(copy, [], check=False)
    assert page.count("<strong>best</strong>") == 100
    assert len(calls) < 20


def test_the_page_begins_with_a_summary(trained_run: Path, whole: report.Report, page: str) -> None:
    text = Page(page).text.partition("Skip to the content")[2].partition("Curves")[0]
    lines = (trained_run / "metrics.jsonl").read_text().splitlines()
    begun = json.loads((trained_run / "run.json").read_text())["created"]
    seconds = json.loads(lines[-1])["time"] - datetime.strptime(begun, TIME).timestamp()
    weights = checkpoint.load(reader.resolve(trained_run)).weights
    parameters = sum(tensor.numel() for tensor in weights.values())
    assert whole.facts == {
        "Training text": whole.data[0].removeprefix("train: "),
        "Device": "cpu, fp32, threads: 1",
        "Time, including pauses": format_duration(seconds),
        "Parameters": f"{parameters:,}",
        "Vocabulary": "350 pieces",
    }
    for words in (*whole.facts.values(), *whole.verdict, f"{whole.scores[0][1]['bleu']:.2f}"):
        assert words in text
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d (UTC|[+-]\d{4})", text)
    assert re.search(r"complete\s+at step 400 of 400", text)


NOTE = Note("loops", "a phrase repeated over and over", 3, 100, [1, 2, 3], "train for longer")
SAME = Note("same", "the same translation", 90, 100, [1], "the model has hardly learned")


@pytest.mark.parametrize(
    ("bleu", "notes", "expected"),
    [
        ([], None, []),
        ([9.0], None, []),
        ([9.0], [], ["Nothing looks wrong with the translations of the validation set."]),
        ([9.0], [NOTE], [f"A few lines look wrong: {NOTE}."]),
        ([9.0], [SAME, NOTE], [f"Something looks wrong: {SAME}."]),
        ([1.0, 9.0], None, ["The last validation is the best by bleu: more steps may help."]),
        (
            [1.0, 9.0, 8.0, 7.0],
            None,
            ["The best step is step-00000020: 2 later validations were no better."],
        ),
    ],
)
def test_the_verdict_follows_the_scores_and_the_look_at_the_lines(
    whole: report.Report, bleu: list[float], notes: list[Note] | None, expected: list[str]
) -> None:
    entries = [
        {"step": step, "checkpoint": f"step-{step:08d}", "bleu": value, "chrf": 1.0, "nll": 1.0}
        for step, value in zip(range(10, 100, 10), bleu, strict=False)
    ]
    history = History.begin("bleu").model_copy(update={"entries": entries})
    assert replace(whole, history=history, translation_notes=notes).verdict == expected


@pytest.mark.parametrize(("bleu", "expected"), [(9.0, ["average"]), (7.0, ["step", "average"])])
def test_an_average_is_listed_once(whole: report.Report, bleu: float, expected: list[str]) -> None:
    entries = [
        {"step": 10, "checkpoint": name, "bleu": value, "chrf": 1.0, "nll": 1.0}
        for name, value in (("step", 8.0), ("average", bleu))
    ]
    update = {"entries": entries[:1], "average": entries[1]}
    found = replace(whole, history=History.begin("bleu").model_copy(update=update))
    assert [entry["checkpoint"] for _, entry in found.scores] == expected
    assert "command" not in found.measures


def test_what_looks_wrong_with_translations_is_shown(copy: Path) -> None:
    best = json.loads((copy / "best.json").read_text())["best"]["checkpoint"]
    (copy / "validation" / f"{best}.txt").write_text("zwent zwent zwent\n" * 12)
    text = report.make_page(copy, ["bavo"], check=False)
    assert "Something looks wrong: the same translation for different sources" in text
    assert "<li>the same translation for different sources (most often: zwent" in text
    (copy / "validation" / f"{best}.txt").write_text("zwent\n")  # of another set, it seems
    assert report.collect_report(copy, ["bavo"]).translation_notes is None
    (copy / "validation" / f"{best}.txt").unlink()
    found = notes(report.make_page(copy, ["bavo"], check=False))
    assert any(each.startswith("The translations were not checked") for each in found)


def test_long_lines_are_shown_in_short_and_not_called_too_long(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MAX_LETTERS", 5)
    best = json.loads((copy / "best.json").read_text())["best"]["checkpoint"]
    (copy / "validation" / f"{best}.txt").write_text("".join(f"{tgt}\n" for _, tgt in VALID))
    found = report.collect_report(copy, ["bavo"])
    assert {len(text) for sample in found.samples for *_, text in sample.texts} <= {*range(6), 9}
    assert found.translation_notes == []


def test_nothing_long_is_cut_off_at_the_side(page: str) -> None:
    """Signatures and hashes are folded away and wrap, as the config does; tables of scores fit."""
    folded = re.findall(r"<details>.*?</details>", page, re.DOTALL)
    (signatures,) = (each for each in folded if "nrefs:" in each)
    (made,) = (each for each in folded if "&#34;tokenizer&#34;" in each)
    assert page.count("nrefs:") == signatures.count("nrefs:")
    assert "<pre>" in made
    css = (TEMPLATES / "page.css").read_text()
    assert re.search(r"pre \{[^}]*white-space: pre-wrap", css)
    assert not re.search(r'<div class="scroll"[^>]*>\s*<pre>', page)


def test_translations_and_attention_are_shown_for_the_same_sentences(
    trained_run: Path, whole: report.Report, page: str
) -> None:
    step = (trained_run / "validation" / "step-00000400.txt").read_text().split("\n")
    assert 3 <= len(whole.samples) <= report.SAMPLES
    for sample in whole.samples:
        texts = {name: text for name, _, text in sample.texts}
        assert (texts["Source"], texts["Reference"]) == VALID[sample.number - 1]
        assert texts["Step 400"] == step[sample.number - 1]
    sources = [sample.texts[0][2] for sample in whole.samples[: report.ATTENDED]]
    assert [sentence.source for sentence in whole.sentences] == sources
    kinds = {each.kind for sentence in whole.sentences for each in sentence.maps}
    assert kinds == {"encoder", "decoder", "cross"}
    assert page.count('<figure class="map ') == sum(len(s.maps) for s in whole.sentences)


def test_a_language_decides_the_direction_of_its_lines(copy: Path) -> None:
    """Also of those that begin with other letters, or have none."""
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("tgt_lang: ba", "tgt_lang: he"))
    (copy / "validation" / "step-00000400.txt").write_text("GNU שלום\n" * 12)
    text = report.make_page(copy, ["bavo"], check=False)
    assert '<dd dir="rtl" lang="he">GNU שלום</dd>' in text
    assert '<dd dir="auto" lang="aa">' in text
    config.write_text(config.read_text().replace("tgt_lang: he", "tgt_lang: fas_Arab"))
    text = report.make_page(copy, ["bavo"], check=False)
    assert '<dd dir="rtl" lang="fas-Arab">' in text


def test_parts_of_a_list_are_shown_in_their_languages(both_run: Path) -> None:
    found = report.collect_report(both_run, [])
    for sample in found.samples:
        src, tgt = ("aa", "ba") if sample.key_suffix == ".0" else ("ba", "aa")
        assert [language for _, language, _ in sample.texts] == [src] + [tgt] * 4
        pair = tuple(text for _, _, text in sample.texts[:2])
        assert pair == VALID[sample.number - 1][:: 1 if src == "aa" else -1]
    assert {sample.key_suffix for sample in found.samples} == {".0", ".1"}
    assert {each.maps[0].rows[0] for each in found.sentences} <= {"<2bb>", "<2aa>"}
    (given,) = report.collect_report(both_run, ["bavo"]).sentences
    assert (given.maps[0].rows[0], given.languages) == ("<2bb>", ("aa", "ba"))
    assert [name for name, _ in found.scores][2:4] == ["data.valid.0", "data.valid.1"]
    page = report.make_page(both_run, ["bavo"], check=True)
    assert all(text in page for text in ("aa → ba, ba → aa", " of data.valid.1</h3>"))


def test_curves_settings_and_what_the_run_is_made_of_are_shown(
    trained_run: Path, whole: report.Report, page: str
) -> None:
    begun, text = json.loads((trained_run / "run.json").read_text()), Page(page).text
    for value in (*begun["train"], begun["command"], begun["versions"]["torch"]):
        assert json.dumps(value) in text
    assert (trained_run / "config.yaml").read_text() in text
    for key in ("loss", "nll", "bleu", "lr", "grad", "speed"):
        assert f'id="curve-{key}-text"' in page
    last = json.loads((trained_run / "metrics.jsonl").read_text().split("\n")[7])
    assert f"to {last['train/loss']:.4g} at step {last['step']:,}" in page
    assert f"<td>{last['grad_norm']:.5g}</td>" in page
    assert re.fullmatch(r"train: [\d,]+ of 3,000 pairs", whole.data[0])
    assert all(line in text and "BLEU" not in line for line in whole.data)


def test_the_text_of_the_newest_start_is_shown(copy: Path) -> None:
    """With the lines of the sets, which come first; of an earlier start, other paths may remain."""
    stamp = "2026-01-01 00:00:00 INFO"
    old = [
        "data.valid: carriage returns removed: 2",
        "train: 9 of 9 pairs",
        "train: old: 9 pairs x 2",
    ]
    new = [
        "data.valid: carriage returns removed: 1",
        "train: 8 of 9 pairs",
        "train: new: 8 pairs x 2",
    ]
    (copy / "train.log").write_text("".join(f"{stamp} {line}\n" for line in old + new))
    found = report.collect_report(copy, ["bavo"])
    assert found.data == new
    assert found.facts["Training text"] == "8 of 9 pairs"


def test_lines_of_a_start_that_failed_are_not_shown(copy: Path) -> None:
    stamp = "2026-01-01 00:00:00 INFO"
    failed, count = "data.valid: carriage returns removed: 2", 45
    sets = ["data.valid: carriage returns removed: 1"]
    sets += [f"data.test.{number}: carriage returns removed: 1" for number in range(count)]
    lines = [failed, *sets, "train: 8 of 9 pairs"]
    (copy / "train.log").write_text("".join(f"{stamp} {line}\n" for line in lines))
    found = report.collect_report(copy, ["bavo"])
    assert found.data == sets[: report.MAX_LOGGED]
    assert found.facts["Training text"] == "8 of 9 pairs"


def test_scores_of_an_external_metric_are_shown(copy: Path) -> None:
    best = json.loads((copy / "best.json").read_text())
    for number, entry in enumerate(best["history"]):
        entry["command"] = number - 38.0625
    (copy / "best.json").write_text(json.dumps({**best, "metric": "command"}))
    records = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    changed = [r | ({"valid/command": 2.5} if "valid/bleu" in r else {}) for r in records]
    (copy / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in changed))
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace("metric: bleu", "metric: command"))
    text = report.make_page(copy, ["bavo"], check=False)
    assert text.count('<th scope="col">command</th>') == 2
    assert "<td>-38.0625</td>" in text
    assert 'id="curve-command-text"' in text


def test_translations_that_no_validation_has_are_not_shown(copy: Path) -> None:
    """As of the end of a run that was extended."""
    shutil.copy(copy / "validation/step-00000400.txt", copy / "validation/step-00000399.txt")
    titles = [title for title, _, _ in report.collect_report(copy, ["bavo"]).samples[0].texts]
    assert "Step 400" in titles
    assert "Step 399" not in titles


def test_the_best_step_is_among_those_whose_translations_are_shown(copy: Path) -> None:
    (entry,) = json.loads((copy / "best.json").read_text())["history"]
    steps = {step: layout.step_name(step) for step in range(40, 401, 40)}
    scored = ({"step": step, "checkpoint": name} for step, name in steps.items())
    history = [{**entry, **each, "bleu": 20.0 + (each["step"] == 120)} for each in scored]
    edit(copy / "best.json", history=history)
    for name in steps.values():
        layout.translations_file(copy, name).write_text("zwent\n" * 12)
    titles = [title for title, _, _ in report.collect_report(copy, ["bavo"]).samples[0].texts]
    shown = (40, 80, 120, 160, 240, 320, 400)  # but for 120, evenly spaced
    assert titles[2:-1] == [f"Step {step}" for step in shown]


def test_more_steps_than_are_set_now_are_told(copy: Path) -> None:
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace("max_steps: 400", "max_steps: 300"))
    text = report.make_page(copy, ["bavo"], check=False)
    assert re.search(r"complete</strong> at step 400 \(train\.max_steps: 300\)", text)


# --- what is missing, damaged or hostile ------------------------------------------------------


def test_a_run_that_has_just_begun_gives_a_page(copy: Path) -> None:
    text = (copy / "config.yaml").read_text()
    shutil.rmtree(copy)
    copy.mkdir()
    (copy / "config.yaml").write_text(text)
    page = report.make_page(copy, [], check=False)
    check_that_nothing_is_loaded(page)
    for words in (
        "Nothing has been scored yet.",
        "There are no records yet.",
        "There is no <code>",
    ):
        assert words in page
    unknown, none_yet, attention = notes(page)[:3]
    assert "without a hash in run.json, and so not known to be the text of the run" in unknown
    assert none_yet == "There is no validation yet."
    assert "Not shown without the validation set" in attention


def test_where_the_corpora_are_gone_the_rest_is_shown(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(re.sub(r"(valid|test)\.(src|tgt)", r"gone.\2", config))
    edit(copy / "status.json", state="running", step=250)
    text = report.make_page(copy, [], check=False)
    found = " ".join(notes(text))
    assert "<strong>running</strong> at step 250 of 400" in text
    assert "a killed run still shows this" in text
    assert "Sources and references are not shown: data.valid: unreachable, and so" in found
    assert "missing or not readable" not in text
    assert "missing or not readable" in caplog.text
    assert "give sentences with --text" in found
    assert "<dt>Step 400</dt>" in text
    assert re.search('<dt>Step 400</dt><dd [^>]*lang="ba"', text)
    assert "<dt>Source</dt>" not in text


def test_what_the_check_finds_is_shown(copy: Path, tmp_path: Path) -> None:
    name = load_config(copy / "config.yaml").data.valid.src
    lines = Path(name).read_text().split("\n")
    lines[3] = f"<b>bavo</b> {SCRIPT} \N{REPLACEMENT CHARACTER}"
    (tmp_path / "other.src").write_text("\n".join(lines))
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace(name, str(tmp_path / "other.src")))
    settings = load_config(copy / "config.yaml")
    edit(copy / "run.json", valid=scan(settings.data.valid, reading_of(settings)).sha256)
    text = report.make_page(copy, [], check=True)
    assert "warning: tags, entities or times, as of HTML, XLIFF or subtitles: 1" in text
    sides = re.search(r'other.src:4<p class="side" dir="auto">(.*?)</p>', text)
    assert sides
    assert sides[1].startswith("&lt;b&gt;bavo")
    assert "U+FFFD, private-use or undefined characters: 1" in text
    assert SCRIPT not in text
    assert "other.src:4" not in report.make_page(copy, [], check=False)


def test_what_is_damaged_is_told_and_the_rest_shown(copy: Path) -> None:
    weights = reader.resolve(copy) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (found,) = report.collect_report(copy, []).section_notes["attention"]
    assert "model.safetensors: " in found
    for name in ("best.json", "run.json", "status.json"):
        (copy / name).write_text("[1")
    text = report.make_page(copy, ["bavo"], check=False)
    for name in ("best.json", "run.json", "status.json"):
        assert any(f"{name}: damaged" in note for note in notes(text))
    assert not any("best.json is missing" in note for note in notes(text))
    assert 'id="curve-loss"' in text


def test_the_device_is_that_of_the_newest_checkpoint(copy: Path) -> None:
    oldest, *_ = sorted((copy / "checkpoints").glob("step-*/trainer/state.json"))
    machine = json.loads(oldest.read_text())["machine"]
    edit(oldest, machine={**machine, "device": "mps"})
    facts = report.collect_report(copy, ["bavo"]).facts
    assert facts["Device"] == "cpu, fp32, threads: 1"


SCRIPT = "<script>alert(1)</script>"


def test_text_of_users_is_shown_and_never_run(copy: Path) -> None:
    lines = [f"{SCRIPT} שלום עולם \x01&amp; \u2028 'x' \"y\""] * 12
    (copy / "validation" / "step-00000400.txt").write_text("\n".join(lines) + "\n")
    (copy / "validation" / "average.txt").write_text(("a" * 100_000 + "\n") * 12)
    edit(copy / "run.json", **{"command": SCRIPT, SCRIPT: {"a": None}})
    start = {"state": "refused", "exit_code": 2, "reason": SCRIPT, "time": "today"}
    edit(copy / "status.json", reason=SCRIPT, last_start=start)
    stamp = "2026-01-01 00:00:00"
    with (copy / "train.log").open("a") as out:
        out.write(f"{stamp} WARNING {SCRIPT}\n{stamp} INFO train: {SCRIPT}\n")
    with (copy / "metrics.jsonl").open("a") as out:
        out.write('{"step": 601, "train/loss": NaN, "lr": "<b>", "grad_norm": Infinity}\n')
        out.write('{"step": 601, "train/loss": null, "lr": 1' + "0" * 400 + "}\n")
    text = report.make_page(copy, [f"{SCRIPT} bavo"], check=False)
    page = check_that_nothing_is_loaded(text)
    assert SCRIPT not in text
    assert page.text.count(SCRIPT) >= 9
    assert re.search(r'<dd dir="auto"[^>]*>&lt;script&gt;[^<]*שלום עולם [^<]*&amp;amp;', text)
    assert re.search(r"<p>Last start: refused at today: &lt;script&gt;.*</p>", text)
    assert "nan" not in " ".join(re.findall(r' points="([^"]*)"', text))
    assert "<b>" not in text
    assert max(map(len, re.findall("a+", page.text))) == report.MAX_LETTERS


# --- a run that somebody else made --------------------------------------------------------------

SECRET = "my secret line"
CORPORA: dict[str, dict[str, str]] = {
    f"{SECRET}\n" * 12: {"src": "{file}", "tgt": "{file}"},
    f"{SECRET}\tother\n" * 12: {"file": "{file}", "src": "a", "tgt": "b"},
    "": {"dataset": "some/pairs", "split": "train", "src": "en", "tgt": "de"},
}


@pytest.mark.parametrize("sha256", [None, "0" * 64])
@pytest.mark.parametrize("place", ["train", "valid", "test"])
@pytest.mark.parametrize("text", CORPORA, ids=["lines", "columns", "dataset"])
def test_a_corpus_that_is_not_the_run_s_text_is_not_on_the_page(
    copy: Path, monkeypatch: pytest.MonkeyPatch, text: str, place: str, sha256: str | None
) -> None:
    """A config may name any file of this machine, or a dataset that is not asked for; what is not
    the run's, by its hash, is left out wherever a message or an example could quote it.
    """
    monkeypatch.setattr(hub, "_load_dataset", None)
    file = copy.parent / "id.tsv"
    file.write_text(text)
    corpus = {key: value.format(file=file) for key, value in CORPORA[text].items()}
    settings = yaml.safe_load((copy / "config.yaml").read_text())
    forms = {"train": [corpus], "valid": corpus, "test": {"held_out": corpus}}
    settings["data"][place] = forms[place]
    (copy / "config.yaml").write_text(yaml.safe_dump(settings))
    hashes = {"train": [sha256] * bool(sha256), "valid": sha256 or "", "test": {}}
    edit(copy / "run.json", **{place: hashes[place]})
    tests = json.loads((copy / "best.json").read_text())["tests"]
    edit(copy / "best.json", tests={"held_out": {**tests["held_out"], "sha256": sha256}})
    page = report.make_page(copy, [], check=True)
    assert "not known to be the text of the run" in page
    assert SECRET not in page


@pytest.mark.slow
def test_the_check_reads_no_other_vocabulary_than_the_run_s(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config may name any file as a vocabulary, or a pipe that nobody writes to."""
    os.mkfifo(copy.parent / "pipe")
    settings = yaml.safe_load((copy / "config.yaml").read_text())
    settings["tokenizer"]["path"] = settings["train"]["init_from"] = str(copy.parent / "pipe")
    # what describes a new vocabulary does not count if there is a path
    settings["tokenizer"] |= {"model_type": "unigram", "normalization": "nfkc"}
    settings["data"]["bleu_tokenize"] = "flores200"  # which would be downloaded
    monkeypatch.setattr("urllib.request.urlopen", None)
    (copy / "config.yaml").write_text(yaml.safe_dump(settings))
    assert report.NOT_CHECKED not in report.make_page(copy, [], check=True)
    (copy / "tokenizer.model").unlink()  # nor is that of `init_from` taken then
    report.check_text(report.collect_report(copy, []))


BEST = "checkpoints/step-00000400"
FILES = [
    *("best.json", "run.json", "status.json", "metrics.jsonl", "train.log"),
    *("validation/step-00000400.txt", "validation/average.txt", "validation/test-held_out.txt"),
    "tokenizer.model",
]


@pytest.mark.parametrize("names", [FILES, ["validation"], ["checkpoints"], [BEST]])
def test_links_in_a_run_are_not_followed(copy: Path, names: list[str]) -> None:
    for name in names:
        link(copy / name)
    found = report.collect_report(copy, ["bavo"])
    (note,) = [
        each for each in found.section_notes["run"] if each.startswith("Links are not followed")
    ]
    assert set(note.split(": ")[1].split(", ")) == set(names)
    assert (found.sentences == []) == (names != ["validation"])
    assert (found.samples == []) == (names in (FILES, ["validation"]))
    assert ("Device" in found.facts) == (names != ["checkpoints"])
    if names == FILES:
        sections = {"run", "settings", "scores", "curves", "samples", "attention", "log"}
        assert found.section_notes.keys() == sections
        with pytest.raises(UserError, match="not known to be the text of the run"):
            report.check_text(found)


@pytest.mark.parametrize("harm", [pipe, folder, empty, huge])
def test_what_is_no_file_of_a_run_is_told(copy: Path, harm: Callable[[Path], None]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    harm(copy / "tokenizer.model")
    with pytest.raises(UserError, match=r"tokenizer\.model"):
        report.check_text(report.collect_report(copy, []))
    for name in FILES[:-1]:
        harm(copy / name)
    found = report.collect_report(copy, [])
    check_that_nothing_is_loaded(report.make_page(copy, [], check=False))
    told = {"run", "settings", "scores", "curves", "samples"}
    assert told <= found.section_notes.keys() or (
        harm == empty and "curves" not in found.section_notes
    )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (1 << 20)  # KiB
    harm(copy / "config.yaml")
    with pytest.raises(UserError, match=r"config\.yaml"):
        report.collect_report(copy, [])


def test_a_checkpoint_and_a_linked_config_are_no_run(copy: Path) -> None:
    with pytest.raises(UserError, match="not a run directory but a checkpoint"):
        report.collect_report(copy / BEST, [])
    link(copy / "config.yaml")
    with pytest.raises(UserError, match=r"config\.yaml: .*a link"):
        report.collect_report(copy, [])


def test_a_directory_that_cannot_be_read_is_not_called_empty(tmp_path: Path) -> None:
    loop = tmp_path / "loop"  # fails as another user's private directory does, also for root
    loop.symlink_to(loop)
    with pytest.raises(OSError, match="Too many levels"):
        report.collect_report(loop, [])
    with pytest.raises(UserError, match=r"holds no config\.yaml"):
        report.collect_report(tmp_path, [])


def test_messages_are_told_once_and_in_short(copy: Path) -> None:
    stamp = "2026-01-01 00:00:00 WARNING"
    hostile = " INFO test" * 200_000  # would take quadratic time to search
    often = "".join(f"{stamp} again\n2026-01-01 00:00:00 ERROR e{n}\n" for n in range(100))
    odd = "a\x1b]0;x\x07\N{RIGHT-TO-LEFT OVERRIDE}b"
    last = f"{stamp} {odd}\r\n{hostile}\n{stamp} {'long ' * 9999}\n"
    (copy / "train.log").write_text(often + last)
    edit(copy / "status.json", reason="\x1b\N{RIGHT-TO-LEFT OVERRIDE}")
    found = report.collect_report(copy, ["bavo"]).warnings
    assert len(found) == report.MAX_LOGGED
    assert found[-4:-1] == ["again", "e99", odd]
    assert len(found[-1]) <= reader.MAX_MESSAGE_BYTES
    text = report.make_page(copy, ["bavo"], check=False)
    assert r"<li>a\x1b]0;x\x07\u202eb</li>" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def test_templates_let_no_text_out_of_its_place() -> None:
    for file in TEMPLATES.iterdir():
        text = file.read_text()
        assert not re.search(r"\|\s*safe|autoescape|Markup", text), file
        assert not re.search(r"[\w-]=\s*\{\{", text), f"{file}: an attribute without quotes"
        assert not re.search(r"\s(on\w+|style)=", text), file
        for style in re.findall(r"<style>(.*?)</style>", text, re.DOTALL):
            assert set(re.findall(r"\{\{ ([^}]*) \}\}", style)) <= {"name", "key"}


# --- curves -----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(-1e9, 1e9)), min_size=1, max_size=30))
def test_curves_stay_inside_and_have_a_few_round_ticks(points: list[tuple[int, float]]) -> None:
    (chart,) = charts_of([{"step": step, "lr": value} for step, value in sorted(points)])
    across, down = chart.x.ticks(1), chart.y.ticks()
    assert all(58 <= x <= 406 and 12 <= y <= 214 for x, y in chart.pixels(chart.series[0]))
    assert all(58 <= x <= 406 for x, _ in across)
    assert all(12 <= y <= 214 for y, _ in down)
    assert {2 <= len(across) <= 12, 2 <= len(down) <= 12} == {True}
    assert len({text for _, text in across}) == len(across)
    assert chart.summary.startswith("lr: ")


@pytest.mark.parametrize(
    "values",
    [(0.0, 5e-324), (5e-324, 5e-324), (1.0, math.nextafter(1, 2)), (-1e299, 1e299), (0.0, 0.0)],
)
def test_values_next_to_nothing_are_drawn_but_no_odd_steps(values: tuple[float, float]) -> None:
    records = [{"step": n, "lr": value} for n, value in enumerate(values)]
    (chart,) = charts_of(records + [{"step": step, "lr": 1.0} for step in (-1, 10**400)])
    assert chart.y.ticks()
    assert len(chart.pixels(chart.series[0])) == 2


def test_a_curve_s_places_are_those_of_its_values() -> None:
    chart = Chart("key", "title", [Series("a", [(0, 0.0), (50, 0.4), (10_000, 0.1)])], 10_000)
    assert chart.pixels(chart.series[0]) == [(58, 214), (59.7, 12), (406, 163.5)]
    assert [text for _, text in chart.y.ticks()] == ["0", "0.1", "0.2", "0.3", "0.4"]
    assert [text for _, text in chart.x.ticks(1)][:3] == ["0", "2,000", "4,000"]
    assert chart.summary == ("a: from 0 at step 0 to 0.1 at step 10,000, lowest 0, highest 0.4")
    assert Series("b", [(50, 0.4)]).summary == "b: 0.4 at step 50"
    css = (TEMPLATES / "page.css").read_text()  # curves are told apart by more than colour
    assert len(set(re.findall(r"stroke-dasharray: ([^;]+);", css))) == 2


def test_an_axis_ends_at_ticks() -> None:
    chart = Chart("key", "title", [Series("a", [(50, 1825.3), (100, 1482.3)])], 100)
    (low, *_), (high, *_) = chart.y.ticks()[0], chart.y.ticks()[-1]
    assert (low, high) == (chart.y.start, chart.y.end)
    for axis, labels in (
        (Axis(0.1 * 3, 0.6, 0, 9), "0.3 0.35 0.4 0.45 0.5 0.55 0.6"),  # 0.1 * 3 is above 0.3
        (Axis(0.0, 0.6, 0, 9), "0 0.1 0.2 0.3 0.4 0.5 0.6"),  # 0.6 / 0.1 is below 6
        (Axis(0.0, 4e-4, 0, 9), "0.00e+00 1.00e-4 2.00e-4 3.00e-4 4.00e-4"),
        (Axis(0.0, 4000.0, 0, 9), "0 1,000 2,000 3,000 4,000"),
    ):
        assert [label for _, label in axis.ticks()] == labels.split()
    assert [label for _, label in Axis(0.0, 2.0, 0, 9).ticks(1.0)] == ["0", "1", "2"]


def test_long_curves_keep_their_extremes_and_tables_their_ends() -> None:
    points = [(step, math.sin(step)) for step in range(20_000)]
    points[7_000], points[12_345] = (7_000, 9.0), (12_345, -9.0)
    found = downsample(points)
    assert len(found) <= 2 * BUCKETS + 2
    assert {points[0], points[7_000], points[12_345], points[-1]} <= set(found)
    assert found == sorted(found)
    rows = Chart("key", "title", [Series("name", points)], 20_000).rows
    assert (len(rows), rows[0][0], rows[-1][0]) == (MAX_ROWS, 0, 19_999)


# --- style ------------------------------------------------------------------------------------


def contrast(*colours: str) -> float:
    """Contrast of two colours by WCAG 2.2."""
    found = []
    for colour in colours:
        parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        found.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(found) + 0.05) / (min(found) + 0.05)


def test_texts_curves_and_shades_stand_out_in_light_and_dark() -> None:
    themes = re.findall(r":root \{(.*?)\}", (TEMPLATES / "page.css").read_text(), re.DOTALL)
    shades = (TEMPLATES / "heatmap.css").read_text()
    grounds, inks = (re.findall(rf"\.{n} \{{ fill: (#\w{{6}});", shades) for n in ("ground", "ink"))
    for theme, ground, ink in zip(themes, grounds, inks, strict=True):
        colours = dict(re.findall(r"--(\w+): (#\w{6});", theme))
        for name in ("text", "quiet", "link", "first", "second"):
            assert contrast(colours[name], colours["page"]) >= 4.5, name
        assert contrast(colours["text"], colours["panel"]) >= 4.5
        assert contrast(ground, ink) > 7


# --- the command ------------------------------------------------------------------------------


def test_the_command_writes_one_file(
    trained_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")}
    output = tmp_path / "report.html"
    options = ["-o", output, "--text", "hanp hanp", "--text", "celu"]
    assert run_here(monkeypatch, "report", trained_run, *options) == 0
    found = Page(output.read_text()).text.partition("Sentence 1")[2]
    assert "hanp hanp" in found.partition("Sentence 2")[0]
    shown, logged = capsys.readouterr()
    assert shown == ""
    assert logged.startswith(f"wrote {output} (")
    assert list(tmp_path.iterdir()) == [output]
    assert {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")} == before


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_leaves_no_temporary_files(
    trained_run: Path, tmp_path: Path, number: str, code: int
) -> None:
    prelude = f"""
import os, signal
from mtrain.check import checker
checker.Profile = lambda sample: os.kill(os.getpid(), signal.{number})
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = run_mtrain("report", trained_run, cwd=tmp_path, env=environment, prelude=prelude)
    assert done.returncode == code
    assert list(tmp_path.iterdir()) == []


def test_text_and_names_that_are_not_utf_8_give_a_page(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, output = copy.rename(tmp_path / "r\udcff"), tmp_path / "a.html"
    options = ["--no-check", "-o", output, "--text", "caf\udce9"]
    assert run_here(monkeypatch, "report", odd, *options) == 0
    assert r"/r\udcff" in output.read_text()  # in messages


@pytest.mark.parametrize(
    ("name", "content", "note"),
    [
        ("metrics.jsonl", None, "Not shown: metrics.jsonl holds no records"),
        ("metrics.jsonl", "[" * 200_000 + "\n{}\n", "Lines of metrics.jsonl that are not records"),
        ("best.json", None, "Not shown: best.json is missing"),
        ("validation", None, "Not shown: the translations are missing"),
    ],
)
def test_what_is_missing_is_not_said_to_be_still_to_come(
    copy: Path, name: str, content: str | None, note: str
) -> None:
    (copy / name).rename(copy.parent / "moved")
    if content is not None:
        (copy / name).write_text(content)
    text = report.make_page(copy, ["bavo"], check=False)
    assert any(each.startswith(note) for each in notes(text))
    assert " yet" not in "".join(notes(text))
    assert " yet.</p>" not in text
