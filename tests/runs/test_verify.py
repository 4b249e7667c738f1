"""Checks of a run: each file that is damaged, missing or changed is found and named."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import edit, empty, folder, huge, link, pipe, run_mtrain, write_config
from faults.mutate import mutate_json

from mtrain.report import page
from mtrain.runs import manifest, reader
from mtrain.runs.verify import BAD, Finding, verify

LAST, AVERAGE = "checkpoints/step-00000400", "checkpoints/average"
INNER = f"{LAST}/trainer"
Harm = Callable[[Path], object]


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of a complete run, with corpora of its own."""
    run, config = tmp_path / "run", tmp_path / "run" / "config.yaml"
    shutil.copytree(trained_run, run)
    shutil.copytree(trained_run.parent / "data", tmp_path / "data")
    config.write_text(config.read_text().replace(str(trained_run.parent), str(tmp_path)))
    edit(run / "run.json", config=manifest.hash_file(config))
    return run


def edit_config(path: Path, key: str, value: Any) -> None:
    content = yaml.safe_load(path.read_text())
    section, name = key.split(".")
    content[section][name] = value
    path.write_text(yaml.safe_dump(content))


def flip(path: Path) -> None:
    """Change a file, but neither its size nor its times: no remembered hash is to be trusted."""
    data, before = bytearray(path.read_bytes()), path.stat()
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def reseal(directory: Path) -> None:
    (directory / manifest.NAME).unlink()
    manifest.seal(directory)


def bad_ones(run: Path) -> list[Finding]:
    return [finding for finding in verify(run) if finding.state in BAD]


def test_a_complete_run_is_good_all_over(run: Path) -> None:
    found = {finding.what.split()[0]: finding for finding in verify(run)}
    assert {finding.state for finding in found.values()} == {"ok"}
    names = {"status.json", "run.json", "config.yaml", "tokenizer.model", "best.json"}
    names |= {"metrics.jsonl", LAST, INNER, AVERAGE}
    names |= {f"validation/{name}.txt" for name in ("step-00000400", "average", "test-held_out")}
    assert names | {"data.train.0", "data.valid", "data.test.held_out"} <= found.keys()
    assert found["validation/average.txt"].detail == "12 lines"


def flipped(name: str) -> Harm:
    return lambda run: flip(run / name)


def removed(name: str) -> Harm:
    return lambda run: shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()


def replaced(name: str) -> Harm:
    return lambda run: (run / name).rename(run / "moved") and (run / name).touch()


def written(name: str, data: bytes) -> Harm:
    return lambda run: (run / name).write_bytes(data)


def appended(name: str, text: str) -> Harm:
    return lambda run: append(run / name, text)


def edited(name: str, **values: Any) -> Harm:
    return lambda run: edit(run / name, **values)


def without_scores(run: Path) -> None:
    content = json.loads((run / "best.json").read_text())
    (run / "best.json").write_text(json.dumps({**content, "history": [], "average": None}))


VALID, LINES = "../data/valid.tgt", "validation/average.txt"
OTHER, OTHER_BLEU = {"checkpoint": "average", "step": 1}, b'{"step": 400, "valid/bleu": 0.5}\n'
FAULTS: list[tuple[str, str, str, Harm]] = [
    (LAST, "damaged", "SHA-256 is not", flipped(f"{LAST}/model.safetensors")),
    (LAST, "missing", "config.yaml: missing", removed(f"{LAST}/config.yaml")),
    (LAST, "damaged", "no manifest.json", removed(f"{LAST}/manifest.json")),
    (INNER, "damaged", "SHA", flipped(f"{LAST}/trainer/optimizer.safetensors")),
    (AVERAGE, "missing", "has its scores", removed(AVERAGE)),
    ("best.json", "missing", "step-00000400", removed(LAST)),
    ("best.json", "missing", "the best checkpoint is unknown", removed("best.json")),
    ("best.json", "changed", "not the best", edited("best.json", best=OTHER)),
    ("best.json", "changed", "which is none", without_scores),
    ("best.json", "changed", "chrf, but bleu", edited("best.json", metric="chrf")),
    ("run.json", "missing", "", removed("run.json")),
    ("status.json", "missing", "", removed("status.json")),
    ("config.yaml", "missing", "", removed("config.yaml")),
    ("config.yaml", "damaged", "did you mean", appended("config.yaml", "sead: 1\n")),
    ("config.yaml", "changed", "SHA-256", appended("config.yaml", "# mine\n")),
    ("config.yaml", "changed", "seed 7, but 8", edited("run.json", seed=8)),
    ("tokenizer.model", "missing", "", removed("tokenizer.model")),
    ("tokenizer.model", "changed", "", written("tokenizer.model", b"x")),
    ("metrics.jsonl", "damaged", "line", appended("metrics.jsonl", '{"step": 9, "lr": [1]}\n')),
    ("metrics.jsonl", "missing", "", removed("metrics.jsonl")),
    ("metrics.jsonl", "changed", "at step 400", written("metrics.jsonl", b"")),
    ("metrics.jsonl", "changed", "at step 400", written("metrics.jsonl", OTHER_BLEU)),
    ("metrics.jsonl", "changed", "order", appended("metrics.jsonl", '{"step": 1}\n')),
    (LINES, "damaged", "average.txt:2: invalid UTF-8", written(LINES, b"a\n\xff\n" * 6)),
    (LINES, "changed", "11 lines, but 12 pairs in its set", written(LINES, b"zwent\n" * 11)),
    (LINES, "damaged", "longer than 1,048,576 bytes", written(LINES, b"a" * (1 << 21) + b"\n")),
    ("validation/test-held_out.txt", "missing", "", removed("validation/test-held_out.txt")),
    ("data.valid", "changed", "content", written(VALID, b"zwent\n" * 12)),
    ("data.valid", "damaged", "has 12 lines but", appended(VALID, "zwent\n")),
    ("data.train.0", "changed", "content", flipped("../data/train.tgt")),
    ("checkpoints", "damaged", "Not a directory", replaced("checkpoints")),
    ("checkpoints", "missing", "a complete run has checkpoints", removed("checkpoints")),
    ("data.train", "changed", "1 corpora, but 2", edited("run.json", train=["a", "b"])),
]


@pytest.mark.parametrize(
    ("what", "state", "words", "harm"), FAULTS, ids=[f"{w} {s} {d}" for w, s, d, _ in FAULTS]
)
def test_each_fault_is_found(run: Path, what: str, state: str, words: str, harm: Harm) -> None:
    harm(run)
    found = [one for one in bad_ones(run) if one.what.split()[0] == what and one.state == state]
    assert any(words in one.detail for one in found), bad_ones(run)


FILES = [
    *("status.json", "run.json", "best.json", "config.yaml", "tokenizer.model", "tokenizer.vocab"),
    *("metrics.jsonl", "validation/step-00000400.txt", "validation/test-held_out.txt"),
]


@pytest.mark.parametrize(
    "name", [*FILES, "train.log", "validation", "checkpoints", AVERAGE, LAST, INNER]
)
def test_links_in_a_run_are_found_and_not_followed(run: Path, name: str) -> None:
    link(run / name)
    found = bad_ones(run)
    own = [each for each in found if each.what == name]
    assert [each.state for each in own if reader.LINK.split(",")[0] in each.detail] == ["damaged"]
    assert len(own) == 1 or name in (AVERAGE, LAST)
    inside = [each for each in verify(run) if each.what.startswith(f"{name}/")]
    assert {each.state for each in inside} <= {"damaged"}


def many(path: Path) -> None:
    """Write values that take hundreds of times the memory of their text."""
    path.write_text("[" + "[]," * 500_000 + "[]]")


@pytest.mark.parametrize("harm", [pipe, folder, empty, huge, many])
def test_what_is_no_file_of_a_run_is_found(run: Path, harm: Harm) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    alone = {"run.json", "best.json", "config.yaml"}  # other checks need these
    for name in alone:
        shutil.copytree(run, run.parent / name)
        harm(run.parent / name / name)
        assert name in {each.what for each in bad_ones(run.parent / name)}
    rest = set(FILES) - alone - {"tokenizer.vocab"}
    for name in rest:
        harm(run / name)
    assert {each.what for each in bad_ones(run)} >= rest
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (1 << 20)  # KiB


def test_records_that_no_run_writes_take_neither_time_nor_memory(run: Path) -> None:
    (run / "metrics.jsonl").write_bytes(b"\n" * 3_000_000)
    (found,) = bad_ones(run)
    assert found.what == "metrics.jsonl"
    assert "than a run writes" in found.detail


@pytest.mark.parametrize(
    "name",
    [
        *("run.json", "status.json", "best.json", "metrics.jsonl"),
        *(f"{LAST}/manifest.json", f"{LAST}/trainer/state.json", f"{AVERAGE}/manifest.json"),
    ],
)
def test_json_of_any_content_ends_in_findings_and_a_page(run: Path, name: str) -> None:
    """A sealed directory is sealed again."""
    shutil.rmtree(run.parent / "data")  # hashing it each time takes the longest
    file, whole = run / name, (run / name).read_bytes()
    for seed in range(12):
        data = mutate_json(random.Random(f"{name} {seed}"), whole)
        file.write_bytes(data)
        if file.name == manifest.NAME:
            with suppress(ValueError, KeyError, TypeError):
                entries = json.loads(data)["files"]
                file.write_text(manifest._with_own_hash({"files": entries}))
        elif file.name == "state.json":
            reseal(file.parent)
        assert list(verify(run)), seed
        if seed % 4 == 0:
            page.make_page(run, ["bavo"], check=False)


def test_parts_of_the_validation_set_have_one_file(both_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(both_run, tmp_path / "run"))
    assert bad_ones(run) == []
    file = next((run / "validation").glob("step-*.txt"))
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:12]))
    assert [each.detail for each in bad_ones(run)] == ["12 lines, but 24 pairs in its set"]


def test_a_checkpoint_of_another_run_is_found(run: Path) -> None:
    """It is intact, but has another vocabulary or other settings than those that may change."""
    directory = run / LAST
    for key, value in (("train.max_steps", 900), ("decode.beam_size", 7)):
        edit_config(directory / "config.yaml", key, value)
    reseal(directory)
    assert bad_ones(run) == []
    edit_config(directory / "config.yaml", "model.d_ff", 64)
    reseal(directory)
    (found,) = bad_ones(run)
    assert (found.what, found.state) == (LAST, "changed")
    assert "settings differ from config.yaml: model.d_ff" in found.detail
    flip(directory / "tokenizer.model")
    reseal(directory)
    (found,) = bad_ones(run)
    assert "its tokenizer.model differs from run.json" in found.detail


@pytest.mark.parametrize(
    ("change", "state", "detail"),
    [
        ({"step": 200}, "changed", "state.json is of step 200"),
        ({"pool": "a"}, "damaged", "state.json: damaged: pool: Input should be a valid integer"),
    ],
)
def test_a_state_of_another_step_or_form_is_found(
    run: Path, change: dict[str, object], state: str, detail: str
) -> None:
    edit(run / INNER / "state.json", **change)
    reseal(run / INNER)
    (found,) = bad_ones(run)
    assert (found.what, found.state) == (INNER, state)
    assert detail in found.detail


def test_a_checkpoint_alone_is_checked_with_its_trainers_part(run: Path) -> None:
    assert bad_ones(run / LAST) == []
    flip(run / INNER / "optimizer.safetensors")
    (found,) = bad_ones(run / LAST)
    assert (found.what, found.state) == ("step-00000400/trainer", "damaged")


def test_pairs_of_a_set_that_were_dropped_have_no_translations(tmp_path: Path) -> None:
    settings = {"data.invalid_utf8": "drop", "train.max_steps": 2, "train.valid_every": 2}
    config = write_config(tmp_path, **settings)
    for name in ("valid", "test"):
        source = tmp_path / "data" / f"{name}.src"
        _, *lines = source.read_bytes().splitlines(keepends=True)
        source.write_bytes(b"".join([b"\xff\n", *lines]))
    assert run_mtrain("train", "-c", config).returncode == 0
    details = {finding.what: finding.detail for finding in verify(tmp_path / "run")}
    assert details["validation/test-held_out.txt"] == "11 lines"
    assert bad_ones(tmp_path / "run") == []


def test_translations_are_not_counted_where_a_part_of_their_set_is_not_here(
    both_run: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(both_run, tmp_path / "run"))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"]["valid"][1]["src"] = str(tmp_path / "gone")
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    edit(run / "run.json", config=manifest.hash_file(run / "config.yaml"))
    assert bad_ones(run) == []
    assert [one.what.split()[0] for one in verify(run) if one.state == "unreachable"] == [
        "data.valid.1"
    ]


def test_names_forge_no_finding() -> None:
    finding = Finding("data.valid a\nok  b", "damaged", "\x1b[2J")
    assert str(finding) == r"damaged      data.valid a\nok  b: \x1b[2J"


def test_corpora_that_are_not_here_are_no_fault(run: Path) -> None:
    shutil.rmtree(run.parent / "data")
    found = {one.what.split()[0]: one for one in verify(run)}
    away = [one for one in found.values() if one.state == "unreachable"]
    assert len(away) == 3
    assert all(one.detail.endswith("missing or not readable") for one in away)
    assert {one.state for one in found.values()} == {"ok", "unreachable"}


def test_relative_corpora_are_looked_for_where_the_run_was_started(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(f"{run.parent}/", ""))
    edit(run / "run.json", config=manifest.hash_file(config))
    monkeypatch.chdir(run.parent)
    assert {finding.state for finding in verify(run)} == {"ok"}
    monkeypatch.chdir(run)
    away = [one.detail for one in verify(run) if one.state == "unreachable"]
    advice = "missing or not readable; start mtrain where the run was started"
    assert away
    assert all(detail.endswith(advice) for detail in away)


def test_interrupted_and_running_runs(run: Path) -> None:
    (run / "checkpoints" / ".step-00000900.partial").mkdir()
    append(run / "metrics.jsonl", '{"step": 601, "ti')
    gone = subprocess.Popen(["true"])
    gone.wait()
    here = socket.gethostname()
    for pid, host, state, words in (
        *((pid, here, "running", "was killed") for pid in (gone.pid, 0, 2**31 - 1, None)),
        *((os.getpid(), here, state, "trains it") for state in ("running", "preparing")),
        (os.getpid(), "elsewhere", "running", "on elsewhere does not run here"),
    ):
        edit(run / "status.json", state=state, exit_code=None, pid=pid, host=host)
        found = {one.what: one for one in verify(run)}
        assert not [one for one in found.values() if one.state in BAD]
        assert words in found["status.json"].detail


def test_a_run_in_training_may_replace_its_best_meanwhile(run: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    shutil.rmtree(run / LAST)
    for pid, found in ((os.getpid(), []), (gone.pid, [("best.json", "missing")])):
        process = {"state": "running", "pid": pid, "host": socket.gethostname()}
        edit(run / "status.json", exit_code=None, **process)
        assert [(each.what, each.state) for each in bad_ones(run)] == found


def test_a_run_in_training_may_remove_a_checkpoint_that_is_being_checked(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hash_file = manifest.hash_file

    def remove_and_hash(path: Path) -> str:
        if path.parent == run / LAST:
            shutil.rmtree(path.parent)
        return hash_file(path)

    process = {"state": "running", "pid": os.getpid(), "host": socket.gethostname()}
    edit(run / "status.json", exit_code=None, **process)
    monkeypatch.setattr(manifest, "hash_file", remove_and_hash)
    assert bad_ones(run) == []
    assert not (run / LAST).exists()


@pytest.mark.parametrize("state", ["preparing", "refused", "failed"])
def test_a_start_that_ended_early_may_have_left_no_vocabulary(run: Path, state: str) -> None:
    (run / "tokenizer.model").unlink()
    edit(run / "status.json", state=state)
    assert bad_ones(run) == []


def test_resuming_wants_the_trainers_part(run: Path) -> None:
    shutil.rmtree(run / INNER)
    assert bad_ones(run) == []
    edit(run / "status.json", state="stopped")
    assert [(found.what, found.state) for found in bad_ones(run)] == [(INNER, "missing")]


def test_lost_scores_are_missed_after_a_failed_start_too(run: Path) -> None:
    edit(run / "status.json", state="failed")
    (run / "best.json").unlink()
    assert bad_ones(run) == []  # killed before its first validation
    text = (run / "config.yaml").read_text().replace("valid_every: 400", "valid_every: 200")
    (run / "config.yaml").write_text(text)
    edit(run / "run.json", config=manifest.hash_text(text))
    assert ("best.json", "missing") in [(found.what, found.state) for found in bad_ones(run)]


def test_a_run_that_has_saved_nothing_yet(run: Path) -> None:
    edit(run / "status.json", state="stopped")
    for name in ("checkpoints", "validation"):
        shutil.rmtree(run / name)
    for name in ("best.json", "metrics.jsonl"):
        (run / name).unlink()
    assert bad_ones(run) == []
    for name in ("run.json", "config.yaml", "tokenizer.model", "tokenizer.vocab"):
        (run / name).unlink()
    assert [one.state for one in verify(run)] == ["note", "ok"]


def test_the_command_ends_with_1_where_something_is_bad(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (run, *run.rglob("*"))}
    done = run_mtrain("verify", run)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in (run, *run.rglob("*"))} == before
    *lines, total = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} == {"ok"}
    assert total == f"total: {len(lines)} ok"
    flip(run / LAST / "model.safetensors")
    done = run_mtrain("verify", run, "--json")
    content = json.loads(done.stdout)
    assert done.returncode == 1
    assert f"error: {run}: 1 of {len(content['findings'])} items are not intact" in done.stderr
    assert content["good"] is False
    (bad,) = [one for one in content["findings"] if one["state"] in BAD]
    assert bad["what"] == LAST
    shutil.copytree(run / AVERAGE, run.parent / "mine")  # under another name, and from inside
    done = run_mtrain("verify", ".", cwd=run.parent / "mine")
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["ok", "mine:"])
    assert run_mtrain("verify", run / LAST).returncode == 1


def test_a_newest_checkpoint_that_is_gone_is_told(run: Path) -> None:
    """It is no damage by itself: any but the best may be removed to save space."""
    shutil.rmtree(run / LAST)
    (found,) = [finding for finding in verify(run) if finding.what == LAST]
    assert (found.state, found.detail) == ("note", "missing: it would be trained again")


@pytest.mark.parametrize("name", ["model.bin", "model.safetensors"])  # CTranslate2, Marian
def test_an_exported_model_is_checked_against_its_manifest(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"weights")
    manifest.seal(tmp_path)
    [finding] = verify(tmp_path)
    assert finding.state == "ok"
    assert "an exported model, not a checkpoint" in finding.detail
    flip(tmp_path / name)
    [finding] = verify(tmp_path)
    assert finding.state == "damaged"
    assert name in finding.detail
