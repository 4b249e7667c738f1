"""Checks of a run: each file that is damaged, missing or another one is found, and told as such."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import run_mtrain

from mtrain.report import page
from mtrain.runs import directory as rundir
from mtrain.runs import layout, manifest, reader, records
from mtrain.runs.directory import commit_of, commit_of_package
from mtrain.runs.findings import BAD, Finding
from mtrain.runs.verify import verify


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of a complete run, with corpora of its own."""
    shutil.copytree(trained_run, tmp_path / "run")
    shutil.copytree(trained_run.parent / "data", tmp_path / "data")
    text = (tmp_path / "run" / "config.yaml").read_text()
    moved = text.replace(str(trained_run.parent / "data"), str(tmp_path / "data"))
    (tmp_path / "run" / "config.yaml").write_text(moved)
    change_json(
        tmp_path / "run" / "run.json", "config", manifest.hash_file(tmp_path / "run/config.yaml")
    )
    return tmp_path / "run"


def change_json(path: Path, key: str, value: Any) -> None:
    content = json.loads(path.read_text())
    content[key] = value
    path.write_text(json.dumps(content))


def change(run: Path, name: str, key: str, value: Any) -> None:
    change_json(run / f"{name}.json", key, value)


def more_config(run: Path, text: str) -> None:
    append(run / "config.yaml", text)


def add_record(run: Path) -> None:
    append(run / "metrics.jsonl", '{"step": 1}\n')


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def edit_config(path: Path, key: str, value: Any) -> None:
    content = yaml.safe_load(path.read_text())
    section, name = key.split(".")
    content[section][name] = value
    path.write_text(yaml.safe_dump(content))


def reseal(directory: Path) -> None:
    (directory / manifest.NAME).unlink()
    manifest.seal(directory)


def bad_ones(run: Path) -> list[Finding]:
    return [finding for finding in verify(run) if finding.state in BAD]


def test_a_complete_run_is_good_all_over(run: Path) -> None:
    found = {finding.what: finding for finding in verify(run)}
    assert {finding.state for finding in found.values()} == {"ok"}
    assert {
        "status.json",
        "run.json",
        "config.yaml",
        "tokenizer.model",
        "checkpoints/step-00000400",
        "checkpoints/step-00000400/trainer",
        "checkpoints/average",
        "best.json",
        "metrics.jsonl",
        "validation/step-00000400.txt",
        "validation/average.txt",
        "validation/test-held_out.txt",
    } <= found.keys()
    data = [what.split()[0] for what in found if what.startswith("data.")]
    assert data == ["data.train.0", "data.valid", "data.test.held_out"]
    assert found["validation/average.txt"].detail == "12 lines"
    assert "commit " in found["run.json"].detail


LAST, AVERAGE = "checkpoints/step-00000400", "checkpoints/average"
FAULTS: list[tuple[str, str, str, Callable[[Path], object]]] = [
    (LAST, "damaged", "SHA-256 is not", lambda run: flip(run / LAST / "model.safetensors")),
    (LAST, "missing", "config.yaml: missing", lambda run: (run / LAST / "config.yaml").unlink()),
    (LAST, "damaged", "no manifest.json", lambda run: (run / LAST / "manifest.json").unlink()),
    (LAST, "damaged", "manifest.json: damaged", lambda run: flip(run / LAST / "manifest.json")),
    (
        f"{LAST}/trainer",
        "damaged",
        "in the manifest",
        lambda run: (run / LAST / "trainer/optimizer.safetensors").write_bytes(b"short"),
    ),
    (AVERAGE, "missing", "has its scores", lambda run: shutil.rmtree(run / AVERAGE)),
    (
        "checkpoints/average",
        "damaged",
        "",
        lambda run: flip(run / "checkpoints/average/config.yaml"),
    ),
    ("best.json", "missing", "step-00000400", lambda run: shutil.rmtree(run / LAST)),
    (
        "best.json",
        "missing",
        "the best checkpoint is unknown",
        lambda run: (run / "best.json").unlink(),
    ),
    ("best.json", "damaged", "history", lambda run: change(run, "best", "history", 7)),
    (
        "best.json",
        "changed",
        "is not the best",
        lambda run: change(run, "best", "best", {"checkpoint": "average", "step": 1}),
    ),
    ("best.json", "damaged", "metric", lambda run: change(run, "best", "metric", "x")),
    ("best.json", "changed", "chrf, but bleu", lambda run: other_metric(run)),
    ("run.json", "damaged", "JSON", lambda run: (run / "run.json").write_text("{")),
    ("run.json", "damaged", "seed", lambda run: change(run, "run", "seed", "one")),
    ("run.json", "missing", "", lambda run: (run / "run.json").unlink()),
    ("status.json", "missing", "", lambda run: (run / "status.json").unlink()),
    ("status.json", "damaged", "", lambda run: (run / "status.json").write_bytes(b"\xff")),
    ("config.yaml", "missing", "", lambda run: (run / "config.yaml").unlink()),
    (
        "config.yaml",
        "damaged",
        "did you mean",
        lambda run: more_config(run, "sead: 1\n"),
    ),
    ("config.yaml", "changed", "SHA-256", lambda run: more_config(run, "# mine\n")),
    (
        "config.yaml",
        "changed",
        "seed 7, but 8",
        lambda run: change(run, "run", "seed", 8),
    ),
    ("tokenizer.model", "missing", "", lambda run: (run / "tokenizer.model").unlink()),
    ("tokenizer.model", "changed", "", lambda run: (run / "tokenizer.model").write_bytes(b"x")),
    ("metrics.jsonl", "damaged", "line 2", lambda run: break_record(run)),
    ("metrics.jsonl", "missing", "", lambda run: (run / "metrics.jsonl").unlink()),
    ("metrics.jsonl", "changed", "at step 400", lambda run: (run / "metrics.jsonl").write_text("")),
    (
        "metrics.jsonl",
        "changed",
        "order",
        lambda run: append(run / "metrics.jsonl", '{"step": 1}\n'),
    ),
    (
        "validation/step-00000400.txt",
        "damaged",
        "step-00000400.txt:2: invalid UTF-8",
        lambda run: (run / "validation/step-00000400.txt").write_bytes(b"a\n\xff\n" * 6),
    ),
    (
        "validation/average.txt",
        "changed",
        "11 lines, but 12 pairs in its set",
        lambda run: (run / "validation/average.txt").write_text("zwent\n" * 11),
    ),
    (
        "validation/test-held_out.txt",
        "missing",
        "",
        lambda run: (run / "validation/test-held_out.txt").unlink(),
    ),
    ("data.valid", "changed", "content", lambda run: valid(run).write_text("zwent\n" * 12)),
    ("data.valid", "damaged", "has 12 lines but", lambda run: append(valid(run), "zwent\n")),
    ("data.train", "changed", "1 corpora, but 2", lambda run: two_hashes(run)),
]


def valid(run: Path) -> Path:
    return run.parent / "data" / "valid.tgt"


def other_metric(run: Path) -> None:
    best = json.loads((run / "best.json").read_text())
    best["metric"] = "chrf"
    (run / "best.json").write_text(json.dumps(best))


def break_record(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().split("\n")
    (run / "metrics.jsonl").write_text("\n".join([lines[0], lines[1][:9], *lines[2:]]))


def two_hashes(run: Path) -> None:
    hashes = json.loads((run / "run.json").read_text())["train"]
    change_json(run / "run.json", "train", hashes * 2)


@pytest.mark.parametrize(
    ("what", "state", "words", "harm"), FAULTS, ids=[f"{w} {s} {d}" for w, s, d, _ in FAULTS]
)
def test_each_fault_is_found(
    run: Path, what: str, state: str, words: str, harm: Callable[[Path], object]
) -> None:
    harm(run)
    found = [one for one in bad_ones(run) if one.what.split()[0] == what and one.state == state]
    assert any(words in one.detail for one in found), bad_ones(run)


def records_as_directory(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()


def checkpoints_as_file(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").touch()


@pytest.mark.parametrize(
    ("spoil", "what", "detail"),
    [
        (records_as_directory, "metrics.jsonl", "not a regular file"),
        (
            lambda run: append(run / "metrics.jsonl", '{"step": 9, "valid/bleu": [1]}\n'),
            "metrics.jsonl",
            "invalid records: line",
        ),
        (checkpoints_as_file, "checkpoints", "Not a directory"),
    ],
)
def test_what_keeps_a_section_from_being_checked_is_a_finding(
    run: Path, spoil: Callable[[Path], None], what: str, detail: str
) -> None:
    spoil(run)
    found = list(verify(run))
    (finding,) = [each for each in found if each.what == what]
    assert finding.state == "damaged"
    assert detail in finding.detail
    assert found[-1].what.startswith("validation/")


FILES = [
    *("status.json", "run.json", "best.json", "config.yaml", "tokenizer.model", "tokenizer.vocab"),
    *("metrics.jsonl", "validation/step-00000400.txt", "validation/test-held_out.txt"),
]


def link(path: Path) -> None:
    """Move a file or directory away and put a link in its place."""
    target = path.parent / f"moved-{path.name}"
    path.symlink_to(path.rename(target).name)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def huge(path: Path) -> None:
    """10 GB, of which the disk holds next to nothing."""
    with path.open("r+b") as stream:
        stream.truncate(10 << 30)


@pytest.mark.parametrize("name", [*FILES, "train.log", "validation", "checkpoints", AVERAGE, LAST])
def test_links_in_a_run_are_found_and_not_followed(run: Path, name: str) -> None:
    link(run / name)
    found = bad_ones(run)
    told = [each for each in found if each.what == name]
    assert [each.state for each in told if reader.LINK.split(",")[0] in each.detail] == ["damaged"]
    assert len(told) == 1 or name in (AVERAGE, LAST)
    inside = [each for each in verify(run) if each.what.startswith(f"{name}/")]
    assert {each.state for each in inside} <= {"damaged"}


def test_a_link_to_a_trainer_s_state_is_not_followed(run: Path) -> None:
    link(run / LAST / "trainer")
    assert bad_ones(run) == [Finding(f"{LAST}/trainer", "damaged", reader.LINK)]


@pytest.mark.parametrize("harm", [pipe, folder, empty, huge])
def test_what_is_no_file_of_a_run_is_found(run: Path, harm: Callable[[Path], None]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("run.json", "best.json"):  # which tell of the others, so by themselves
        kept_as = run.parent / name
        (run / name).rename(kept_as)
        shutil.copy(kept_as, run / name)
        harm(run / name)
        assert name in {each.what for each in bad_ones(run)}
        shutil.rmtree(run / name) if harm == folder else (run / name).unlink()
        kept_as.rename(run / name)
    rest = [name for name in FILES if name not in ("run.json", "best.json", "config.yaml")]
    for name in rest:
        harm(run / name)
    assert {each.what for each in bad_ones(run)} >= set(rest) - {"tokenizer.vocab"}
    harm(run / "config.yaml")
    assert "config.yaml" in {each.what for each in bad_ones(run)}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (1 << 20)  # KiB


def test_translations_that_no_run_writes_are_damaged(run: Path) -> None:
    file = run / "validation" / "average.txt"
    file.write_bytes(b"a" * (1 << 20) + b"a\n" + b"b\n" * 11)
    (found,) = bad_ones(run)
    assert (found.what, found.state) == ("validation/average.txt", "damaged")
    assert "longer than 1,048,576 bytes" in found.detail


@pytest.mark.parametrize("line", [b"\n", b'{"step":1}\n'])
def test_records_that_no_run_writes_take_neither_time_nor_memory(
    run: Path, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOST_RECORDS", 20_000)
    (run / "metrics.jsonl").write_bytes(line * 30_000)
    (found,) = bad_ones(run)
    assert found.what == "metrics.jsonl"
    assert "than a run writes" in found.detail


def test_a_start_that_came_to_nothing_is_a_note(run: Path) -> None:
    start = {"state": "refused", "exit_code": 2, "reason": "other\x1b seed", "time": "today"}
    change(run, "status", "last_start", start)
    note, status = (each for each in verify(run) if each.what == "status.json")
    assert str(note) == r"note         status.json: last start: refused at today: other\x1b seed"
    assert (status.state, status.detail) == ("ok", "complete at step 400")


ODD = (
    *(None, True, -1, 0, 1 << 53, 1 << 64, 10**400, 1e308, -1e400, float("nan"), 5e-324, 0.5),
    *("", "x", "\0", "\x1b[2J", "\ud800", "../../x", "step-00000400", "a" * 9999, "<script>"),
    *([], {}, [None], [[[]]], {"a": {"b": []}}, {"": ""}, [{}] * 3, {"step": 1}),
)


def places_in(content: Any) -> list[tuple[Any, Any]]:
    """List every container in JSON content with every key of it."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    found = [(content, key) for key, _ in items]
    children = content.values() if isinstance(content, dict) else content
    return found + [
        p for each in children if isinstance(each, dict | list) for p in places_in(each)
    ]


def mutate(content: Any, rng: random.Random) -> Any:
    """Replace, remove, or add a value somewhere in JSON content."""
    places = places_in(content)
    if not places or rng.random() < 0.05:
        return rng.choice(ODD)
    container, key = rng.choice(places)
    if rng.random() < 0.2:
        del container[key]
    elif rng.random() < 0.1 and isinstance(container, dict):
        container[rng.choice(("", "a", "step", "lost", "last_start", "../x"))] = rng.choice(ODD)
    else:
        container[key] = rng.choice(ODD)
    return content


def mutate_file(path: Path, rng: random.Random) -> None:
    """Change a JSON file, or a line of JSON lines; what is sealed is sealed anew."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = rng.randrange(len(lines))
    lines[number] = json.dumps(mutate(json.loads(lines[number]), rng))
    path.write_text("\n".join(lines) + "\n")
    if path.name == manifest.NAME:
        content = json.loads(path.read_text())
        if isinstance(content, dict) and "files" in content:
            path.write_text(manifest._with_own_hash({"files": content["files"]}))
    elif path.name == "state.json":
        reseal(path.parent)


@pytest.mark.parametrize(
    "name",
    [
        *("run.json", "status.json", "best.json", "metrics.jsonl"),
        *(f"{LAST}/manifest.json", f"{LAST}/trainer/state.json", f"{AVERAGE}/manifest.json"),
    ],
)
def test_json_of_any_content_ends_in_findings_and_a_page(run: Path, name: str) -> None:
    shutil.rmtree(run.parent / "data")  # hashing it each time takes the longest
    file = run / name
    whole = file.read_bytes()
    sealed = (file.parent / manifest.NAME).read_bytes() if name.startswith(LAST) else b""
    for seed in range(12):
        rng = random.Random(f"{name} {seed}")
        file.write_bytes(whole)
        for _ in range(rng.choice((1, 1, 3))):
            try:
                mutate_file(file, rng)
            except (ValueError, TypeError, AttributeError):  # of what is no object any more
                break
        assert list(verify(run)), seed
        if seed % 4 == 0:
            page.make_page(run, ["bavo"], check=False)
        if sealed:
            (file.parent / manifest.NAME).write_bytes(sealed)


@pytest.mark.parametrize("pid", [2**31 - 1, 0])
def test_a_number_that_no_process_has_is_none(run: Path, pid: int) -> None:
    content = {"state": "running", "step": 1, "pid": pid, "host": socket.gethostname()}
    (run / "status.json").write_text(json.dumps(content))
    assert any("was killed" in finding.detail for finding in verify(run))


def test_a_checkpoint_is_good_from_inside_and_under_another_name(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = max((run / "checkpoints").glob("step-*"))
    monkeypatch.chdir(last)
    assert {(each.what.split("/")[0], each.state) for each in verify(Path())} == {(last.name, "ok")}
    shutil.copytree(last, tmp_path / "mine")
    assert {each.state for each in verify(tmp_path / "mine")} == {"ok"}


def test_a_checkpoint_of_another_run_is_told(run: Path) -> None:
    """Whole, and sealed, but with another vocabulary or other settings."""
    directory = run / LAST
    append(directory / "config.yaml", "")
    edit_config(directory / "config.yaml", "model.d_ff", 64)
    reseal(directory)
    (found,) = bad_ones(run)
    assert (found.what, found.state) == (LAST, "changed")
    assert "settings differ from config.yaml: model.d_ff" in found.detail
    flip(directory / "tokenizer.model")
    reseal(directory)
    (found,) = bad_ones(run)
    assert "its tokenizer.model differs from run.json" in found.detail


def test_settings_that_may_change_are_no_fault(run: Path) -> None:
    edit_config(run / LAST / "config.yaml", "train.max_steps", 900)
    edit_config(run / LAST / "config.yaml", "decode.beam_size", 7)
    reseal(run / LAST)
    assert bad_ones(run) == []


def test_a_state_of_another_step_is_told(run: Path) -> None:
    state = run / LAST / "trainer" / "state.json"
    change_json(state, "step", 200)
    reseal(state.parent)
    (found,) = bad_ones(run)
    assert found == Finding(f"{LAST}/trainer", "changed", "state.json is of step 200")


def test_corpora_that_are_not_here_are_no_fault(run: Path) -> None:
    shutil.rmtree(run.parent / "data")
    found = list(verify(run))
    assert not [one for one in found if one.state in BAD]
    away = [one for one in found if one.state == "unreachable"]
    assert away[0].what.startswith("data.train.0 ")
    assert len(away) == 3
    assert "missing or not readable" in away[0].detail
    assert any(one.what == "validation/average.txt" and one.state == "ok" for one in found)


def test_hashes_that_are_remembered_are_not_trusted(run: Path) -> None:
    """A file whose size and times are what they were, and whose content is not."""
    file = run.parent / "data" / "train.tgt"
    before = file.stat()
    flip(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [one.state for one in bad_ones(run) if one.what.startswith("data.train")] == ["changed"]


def test_interrupted_and_running_runs(run: Path) -> None:
    (run / "checkpoints" / ".step-00000900.partial").mkdir()
    append(run / "metrics.jsonl", '{"step": 601, "ti')
    gone = subprocess.Popen(["true"])
    gone.wait()
    status = {"state": "running", "exit_code": None, "reason": "", "step": 400, "pid": gone.pid}
    for pid, host, words, left in (
        (gone.pid, socket.gethostname(), "was killed", "next start"),
        (os.getpid(), socket.gethostname(), "trains it", "being written"),
        (os.getpid(), "elsewhere", "on another machine", "next start"),
    ):
        content = {**status, "pid": pid, "host": host}
        (run / "status.json").write_text(json.dumps(content))
        found = {one.what: one for one in verify(run)}
        assert not [one for one in found.values() if one.state in BAD]
        assert words in found["status.json"].detail
        assert left in found["checkpoints/.step-00000900.partial"].detail
    notes = [one for one in verify(run) if one.state == "note"]
    assert [one.what for one in notes][-1] == "metrics.jsonl"
    assert "was truncated by a crash" in notes[-1].detail


def test_resuming_wants_the_trainers_part(run: Path) -> None:
    shutil.rmtree(run / LAST / "trainer")
    assert bad_ones(run) == []  # of a complete run nothing but a note
    change_json(run / "status.json", "state", "stopped")
    (found,) = bad_ones(run)
    assert (found.what, found.state) == (f"{LAST}/trainer", "missing")


def test_a_run_that_has_saved_nothing_yet(run: Path) -> None:
    change_json(run / "status.json", "state", "stopped")
    for name in ("checkpoints", "validation"):
        shutil.rmtree(run / name)
    for name in ("best.json", "metrics.jsonl"):
        (run / name).unlink()
    assert bad_ones(run) == []
    for name in ("run.json", "config.yaml", "tokenizer.model", "tokenizer.vocab"):
        (run / name).unlink()
    assert [one.state for one in verify(run)] == ["ok", "note"]


def test_other_versions_are_a_note(run: Path) -> None:
    versions = json.loads((run / "run.json").read_text())["versions"]
    change_json(run / "run.json", "versions", {**versions, "torch": "1.0", "gone": "2"})
    (note,) = [one for one in verify(run) if one.state == "note"]
    assert "torch 1.0 in the run, " in note.detail
    assert "gone" not in note.detail  # nothing but the packages that mtrain names is looked up


def test_the_command_ends_with_1_where_something_is_bad(run: Path) -> None:
    done = run_mtrain("verify", run)
    assert (done.returncode, done.stderr) == (0, "")
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"ok"}
    flip(run / LAST / "model.safetensors")
    done = run_mtrain("verify", run, "--json")
    content = json.loads(done.stdout)
    assert done.returncode == 1
    assert f"error: {run}: 1 of {len(content['findings'])} findings are bad" in done.stderr
    assert content["good"] is False
    (bad,) = [one for one in content["findings"] if one["state"] in BAD]
    assert bad["what"] == LAST
    assert run_mtrain("verify", run / "checkpoints" / "average").returncode == 0
    assert run_mtrain("verify", run / LAST).returncode == 1


def test_nothing_is_written_and_torch_is_not_loaded(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (run, *run.rglob("*"))}
    code = (
        "import sys, pathlib, mtrain.runs.verify as v\n"
        "list(v.verify(pathlib.Path(sys.argv[1]))); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
    assert {path: path.stat().st_mtime_ns for path in (run, *run.rglob("*"))} == before


def test_the_commit_is_of_what_git_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commit_of(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "a"]):
        subprocess.run([*git, *arguments], check=True)
    commit = commit_of(tmp_path)
    assert commit is not None
    assert len(commit) == 40
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    assert commit_of(Path("/")) is None
    monkeypatch.setenv("PATH", "")
    assert commit_of(tmp_path) is None
    monkeypatch.setattr(rundir, "GIT_SECONDS", 0)
    assert commit_of_package() is None
    assert layout.step_name(7) == "step-00000007"
