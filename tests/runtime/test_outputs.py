"""Files that commands write: whole or not there, never over what is read or kept."""

from __future__ import annotations

import logging
import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import run_mtrain

from mtrain.runs import checkpoint, manifest
from mtrain.runs.layout import refuse_kept
from mtrain.runtime import outputs
from mtrain.runtime.errors import EXIT_REFUSED, RefusedError, UserError
from mtrain.runtime.outputs import opened, refuse_one_file, refuse_overwriting


def names(directory: Path) -> list[str]:
    return sorted(item.name for item in directory.iterdir())


def fails(text: str, *places: Path, **options: bool) -> bool:
    """Whether writing to the first of some files fails as it is to."""
    try:
        with opened(*places, **options) as sinks:
            sinks[0].write(text.encode())
            raise UserError("no")
    except UserError as error:
        return str(error) == "no"


# --- whole or not there -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["missing", "file", "link", "dangling link"])
def test_a_file_has_its_name_at_the_end(tmp_path: Path, kind: str) -> None:
    out, place = tmp_path / "out", tmp_path / "out"
    if "link" in kind:
        place = tmp_path / "elsewhere"
        out.symlink_to(place)
    if kind in ("file", "link"):
        place.write_text("old\n")
        place.chmod(0o640)
    before = names(tmp_path)
    with opened(str(out)) as (sink,):
        sink.write(b"new\n")
        sink.flush()
        partial = place.with_name(f"{place.name}.partial")
        assert names(tmp_path) == sorted([*before, partial.name])
        assert kind not in ("file", "link") or place.read_text() == "old\n"
        assert kind not in ("file", "link") or stat.S_IMODE(partial.stat().st_mode) == 0o640
    assert place.read_text() == out.read_text() == "new\n"
    assert out.is_symlink() == ("link" in kind)
    assert names(tmp_path) == sorted({out.name, place.name})
    assert kind not in ("file", "link") or stat.S_IMODE(place.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("text", "told", "kept"),
    [
        ("one\ntwo\nthr", "out.partial holds the first 2 lines of the output; ", "one\ntwo\n"),
        ("one\n" * 3000, "out.partial holds the first 3,000 lines of", "one\n" * 3000),
        ("one\n", "out.partial holds the first line of the output", "one\n"),
        ("on", "", None),
        ("", "", None),
    ],
)
@pytest.mark.parametrize("old", ["old", None])
def test_whole_lines_of_an_output_that_fails_are_kept_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, told: str, kept: str, old: str
) -> None:
    caplog.set_level(logging.INFO, "mtrain")
    logging.getLogger("mtrain").propagate = True
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    if old is not None:
        out.write_text(old)
    assert fails(text, out, keeps_lines=True)
    assert (out.read_text() if out.exists() else None) == old
    assert (partial.read_text() if partial.exists() else None) == kept
    assert told in caplog.text
    assert bool(caplog.text) == bool(told)
    assert not told or f"{out} was {'left as it was' if old else 'not written'}" in caplog.text
    with opened(out) as (sink,):
        sink.write(b"again")
    assert (out.read_text(), names(tmp_path)) == ("again", ["out"])


def test_of_several_new_files_all_or_none_have_their_names(tmp_path: Path) -> None:
    places = [tmp_path / name for name in "abc"]
    assert fails("1", *places, is_new=True)
    assert names(tmp_path) == []
    with (
        pytest.raises(RefusedError, match="b: exists already"),
        opened(*places, is_new=True) as sinks,
    ):
        places[1].touch()
    assert names(tmp_path) == ["b"]
    places[1].unlink()
    with opened(*places, is_new=True) as sinks:
        for sink in sinks:
            sink.write(b"1")
    assert [place.read_bytes() for place in places] == [b"1"] * 3


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_what_is_left_of_an_earlier_try_is_replaced(tmp_path: Path, kind: str) -> None:
    partial, precious = tmp_path / "out.partial", tmp_path / "precious"
    if kind == "file":
        partial.write_text("left")
    else:
        partial.symlink_to(precious)
    if kind == "link":
        precious.write_text("precious")
    outputs.write_output(tmp_path / "out", b"new")
    assert (tmp_path / "out").read_text() == "new"
    assert not os.path.lexists(partial)
    assert precious.exists() == (kind == "link")
    assert kind != "link" or precious.read_text() == "precious"


WRITER = """
import sys
from mtrain.runtime.outputs import opened
with opened(sys.argv[1]) as (sink,):
    print("begun", flush=True)
    sink.write(sys.stdin.buffer.read())
"""


def test_a_file_that_another_process_is_writing_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "out")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        with pytest.raises(RefusedError, match=r"out\.partial: another process is writing it"):
            outputs.write_output(tmp_path / "out", b"mine")
        process.communicate(b"theirs")
    assert ((tmp_path / "out").read_text(), names(tmp_path)) == ("theirs", ["out"])


def test_a_partial_file_that_was_replaced_is_not_published(tmp_path: Path) -> None:
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    out.write_text("old")
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(UserError, match="was removed or replaced"))
        (sink,) = stack.enter_context(opened(out))
        sink.write(b"new")
        partial.unlink()
        partial.write_text("of another")
    assert (out.read_text(), partial.read_text()) == ("old", "of another")


def test_where_no_new_file_can_be_made_the_file_itself_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(outputs, "_make_held", refuse)
    (tmp_path / "out").write_text("old")
    outputs.write_output(tmp_path / "out", b"new")
    assert (tmp_path / "out").read_text() == "new"
    with pytest.raises(UserError, match="absent: cannot write: Permission denied"):
        outputs.write_output(tmp_path / "absent", b"new")


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("old")
    write = f"write_output(Path('{tmp_path}/out'), b'x\\n' * 9999)"
    code = f"from mtrain.runtime.outputs import *; {write}"
    line = ["bash", "-c", 'ulimit -f 1; exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert "out: cannot write: File too large" in done.stderr
    assert ((tmp_path / "out").read_text(), names(tmp_path)) == ("old", ["out"])


# --- what must not be written over ------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "other", "is_one"),
    [
        ("out", "out", True),
        ("out", "./out", True),
        ("out", "there/../out", True),
        ("out", "link", True),
        ("old", "hard", True),
        ("out", "out.partial", True),
        ("out.partial", "out", True),
        ("-", "-", True),
        ("-", "/dev/stdout", True),
        ("out", "links", False),
        ("old", "out", False),
        ("-", "out", False),
        ("-", "/dev/null", False),
        ("/dev/null", "/dev/null", False),
    ],
)
def test_two_things_are_not_written_to_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, other: str, is_one: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    Path("old").touch()
    Path("hard").hardlink_to("old")
    Path("link").symlink_to("out")
    if not is_one:
        refuse_one_file(output, other, "--alignments")
        return
    with pytest.raises(RefusedError, match=f"^--alignments {other}: is the output file"):
        refuse_one_file(output, other, "--alignments")


@pytest.mark.parametrize(
    ("output", "source", "is_read"),
    [
        ("text", "text", True),
        ("text", "./text", True),
        ("link", "text", True),
        ("tex", "tex.partial", True),
        ("text.partial", "text", False),
        ("out", "text", False),
        ("-", "-", False),
        (None, "text", False),
    ],
)
def test_what_is_read_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, source: str, is_read: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("text", "tex.partial"):
        Path(name).touch()
    Path("link").symlink_to("text")
    if not is_read:
        refuse_overwriting(output, None, source)
        return
    with pytest.raises(RefusedError, match="is an input, too"):
        refuse_overwriting(output, None, source)


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        ("run/config.yaml", True),
        ("run/.lock", True),
        ("run/tokenizer.vocab", True),
        ("run/metrics.jsonl", True),
        ("run/sub/../best.json", True),
        ("run/checkpoints", True),
        ("run/checkpoints/new", True),
        ("run/checkpoints/new/a/b", True),
        ("run/validation/new.txt", True),
        ("run/tensorboard/new", True),
        ("link/train.log", True),
        ("out", True),
        ("sealed/new", True),
        ("sealed/trainer/new", True),
        ("damaged/new", True),
        ("run/test.out", False),
        ("run/avg", False),
        ("run/sub/config.yaml", False),
        ("other/config.yaml", False),
        ("web/new", False),
        ("new/out", False),
    ],
)
def test_what_a_run_or_checkpoint_keeps_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_kept: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for directory in ("run/sub", "run/checkpoints", "other", "web", "sealed", "damaged"):
        Path(directory).mkdir(parents=True)
    Path("run/run.json").touch()
    Path("link").symlink_to("run")
    Path("out").symlink_to("run/best.json")
    manifest.seal(Path("sealed"))
    for path in ("web/manifest.json", "damaged/manifest.json", "damaged/model.safetensors"):
        Path(path).write_text("{}")
    if not is_kept:
        refuse_kept(Path(name))
        return
    with pytest.raises(RefusedError, match=f"^{name}: belongs to .*; write to another"):
        refuse_kept(Path(name))


# --- translate ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that translates a few lines at a time."""
    snapshot = checkpoint.load(checkpoint.resolve(trained_run))
    path = tmp_path_factory.mktemp("outputs") / "model"
    config = snapshot.config.replace("window: 20000", "window: 40")
    checkpoint.save(path, replace(snapshot, config=config))
    return path


def test_a_translation_that_fails_leaves_the_old_one(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("bavo\n" * 100)
    (tmp_path / "prefixes").write_text("zwent\n" * 99)
    (tmp_path / "out").write_text("old\n")
    line = ["-i", "in", "-o", "out", "--alignments", "links", "--target-prefix", "prefixes"]
    done = run_mtrain("translate", "-m", model, *line, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    told = "out.partial holds the first 80 lines of the output; out was left as it was\n"
    assert f"warning: {told}" in done.stderr
    assert "links.partial holds the first 80 lines of the output; links was not" in done.stderr
    assert (tmp_path / "out").read_text() == "old\n"
    assert (tmp_path / "out.partial").read_text().splitlines() == ["zwent"] * 80
    assert not (tmp_path / "links").exists()
    done = run_mtrain("translate", "-m", model, *line[:-2], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert names(tmp_path) == ["in", "links", "out", "prefixes"]
    assert len((tmp_path / "out").read_text().splitlines()) == 100


@pytest.mark.parametrize(
    ("signals", "code"),
    [([signal.SIGTERM], 143), ([signal.SIGINT], 130), ([signal.SIGTERM, signal.SIGTERM], 143)],
)
def test_a_translation_that_is_stopped_leaves_the_old_one(
    model: Path, tmp_path: Path, signals: list[signal.Signals], code: int
) -> None:
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    out.write_text("old\n")
    command = [sys.executable, "-m", "mtrain", "translate", "-m", str(model), "-o", str(out)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        process.stdin.write(b"bavo celu norva\n" * 3000)
        process.stdin.flush()
        end = time.monotonic() + 60
        while time.monotonic() < end and not (partial.exists() and partial.stat().st_size):
            time.sleep(0.02)
        for number in signals:
            process.send_signal(number)
        process.stdin.close()
        assert process.wait(60) == code
        assert process.stderr is not None
        errors = process.stderr.read().decode()
    assert out.read_text() == "old\n"
    assert "Traceback" not in errors
    if len(signals) == 1:
        lines = partial.read_bytes().splitlines(keepends=True)
        assert lines
        assert len(lines) < 3000
        assert lines[-1].endswith(b"\n")
        told = f"{partial} holds the first {len(lines):,} lines of the output; {out} was left"
        assert told in errors


def test_a_translation_goes_where_a_stream_is(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("bavo\n")
    line = ["-m", model, "-i", "in", "-o", "/dev/stdout"]
    with (tmp_path / "log").open("a") as log:
        log.write("before\n")
        log.flush()
        command = [sys.executable, "-m", "mtrain", "translate", *map(str, line)]
        subprocess.run(command, stdout=log, cwd=tmp_path, check=True)
    assert (tmp_path / "log").read_text() == "before\nzwent\n"
    done = run_mtrain("translate", *line, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "zwent\n")
    assert names(tmp_path) == ["in", "log"]


@pytest.mark.parametrize(
    "line",
    [
        ["translate", "-i", "in", "-o", "out", "--alignments", "./out"],
        ["translate", "-i", "in", "-o", "run/best.json"],
        ["translate", "-i", "in", "--alignments", "run/validation/x"],
        ["eval", "-s", "in", "-r", "in", "-o", "run/metrics.jsonl"],
        ["eval", "-s", "in", "-r", "in", "-o", "-"],
        ["export", "-o", "run/checkpoints/served"],
        ["attention", "-o", "run/validation/a.html", "bavo"],
    ],
    ids=lambda line: " ".join(line),
)
def test_outputs_are_refused_before_anything_is_done(
    model: Path, tmp_path: Path, line: list[str]
) -> None:
    (tmp_path / "in").write_text("bavo\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    done = run_mtrain(line[0], "-m", model, *line[1:], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (EXIT_REFUSED, ""), done.stderr
    told = ("is the output file, too", "belongs to", "--output -: scores go to stdout")
    assert any(text in done.stderr for text in told)
    assert (names(tmp_path), names(tmp_path / "run")) == (["in", "run"], ["run.json"])
