"""Files that commands write: whole or not there, never over what is read or kept."""

from __future__ import annotations

import errno
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import run_here, run_mtrain

from mtrain.runs import checkpoint, manifest, reader
from mtrain.runs.layout import refuse_run_files
from mtrain.runtime import files, outputs
from mtrain.runtime.errors import EXIT_REFUSED, RefusedError, UserError
from mtrain.runtime.outputs import opened, refuse_one_file, refuse_overwriting


def names(directory: Path) -> list[str]:
    return sorted(item.name for item in directory.iterdir())


def fails(text: str, *places: Path, **options: bool) -> bool:
    """Write to the first of some files and fail; return whether the error passes through."""
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
    is_old = kind in ("file", "link")
    if is_old:
        place.write_text("old\n")
        place.chmod(0o640)
    before, partial = names(tmp_path), place.with_name(f"{place.name}.partial")
    with opened(str(out)) as (sink,):
        sink.write(b"new\n")
        sink.flush()
        assert names(tmp_path) == sorted([*before, partial.name])
        assert not is_old or place.read_text() == "old\n"
    assert place.read_text() == out.read_text() == "new\n"
    assert out.is_symlink() == ("link" in kind)
    assert names(tmp_path) == sorted({out.name, place.name})
    assert not is_old or stat.S_IMODE(place.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("text", "message", "kept"),
    [
        ("one\ntwo\nthr", "out.partial holds the first 2 lines of the output; ", "one\ntwo\n"),
        ("one\n" * 3000, "out.partial holds the first 3,000 lines of", "one\n" * 3000),
        ("one\n", "out.partial holds the first 1 line of the output", "one\n"),
        ("on", "stopped before the first lines were written; ", None),
    ],
)
@pytest.mark.parametrize("old", ["old", None])
def test_whole_lines_of_an_output_that_fails_are_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    text: str,
    message: str,
    kept: str,
    old: str,
) -> None:
    monkeypatch.setattr(outputs, "_BLOCK", 5)
    logging.getLogger("mtrain").propagate = True
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    if old is not None:
        out.write_text(old)
    assert fails(text, out, keeps_lines=True)
    assert (out.read_text() if out.exists() else None) == old
    assert (partial.read_text() if partial.exists() else None) == kept
    assert message in caplog.text
    assert f"{out} was {'left as it was' if old else 'not written'}" in caplog.text
    outputs.write_output(out, b"again")
    assert (out.read_text(), names(tmp_path)) == ("again", ["out"])


def test_the_lines_that_are_kept_of_a_link_s_file_lie_next_to_that_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("mtrain").propagate = True
    (tmp_path / "elsewhere").mkdir()
    out, partial = tmp_path / "out", tmp_path / "elsewhere" / "file.partial"
    out.symlink_to(tmp_path / "elsewhere" / "file")
    assert fails("one\n", out, keeps_lines=True)
    assert partial.read_text() == "one\n"
    assert f"{partial} holds the first 1 line of the output; {out} was" in caplog.text


def test_no_attempt_removes_the_lines_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "out.partial").touch()  # has none
    for text in ("one\n", "two\n", "three\n"):
        assert fails(text, tmp_path / "out", keeps_lines=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "out.partial.1": "one\n",
        "out.partial.2": "two\n",
        "out.partial": "three\n",
    }


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
def test_what_is_left_of_an_earlier_try_is_not_written_to(tmp_path: Path, kind: str) -> None:
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
    assert not list(tmp_path.glob("out.partial*"))  # part of a file that is no text is worthless


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


@pytest.mark.parametrize("call", [1, 2])
def test_a_file_that_another_process_begins_at_the_same_moment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """The other process replaces the file just before this one locks what an earlier attempt left
    (call 1), or its own new file (call 2).
    """
    (partial := tmp_path / "out.partial").write_text("left")
    calls, try_lock = list[int](), files.try_lock

    def replace_and_lock(descriptor: int) -> bool:
        calls.append(descriptor)
        if len(calls) == call:
            partial.unlink()
            partial.write_text("theirs")
        return try_lock(descriptor)

    monkeypatch.setattr(files, "try_lock", replace_and_lock)
    with pytest.raises(RefusedError, match=r"out\.partial: another process is writing it"):
        outputs.write_output(tmp_path / "out", b"mine")
    assert (partial.read_text(), names(tmp_path)) == ("theirs", ["out.partial"])


def test_a_file_that_another_process_creates_first_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial, open_regular = tmp_path / "out.partial", files.open_regular

    def open_after_another(path: Path, flags: int) -> int:
        if flags & os.O_EXCL:
            partial.write_text("theirs")
        return open_regular(path, flags)

    monkeypatch.setattr(files, "open_regular", open_after_another)
    with pytest.raises(RefusedError, match=r"out\.partial: another process is writing it"):
        outputs.write_output(tmp_path / "out", b"mine")
    assert (partial.read_text(), names(tmp_path)) == ("theirs", ["out.partial"])


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


def test_a_directory_that_may_not_be_read_gets_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(files, "sync", refuse)
    outputs.write_output(tmp_path / "out", b"new")
    assert (tmp_path / "out").read_text() == "new"


def test_where_no_new_file_can_be_made_the_file_itself_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not over its old content where there is no room."""

    def refuse(path: Path, *, keeps_lines: bool) -> int:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(outputs, "_make_held", refuse)
    (tmp_path / "out").write_text("old")
    code = errno.ENOSPC
    with pytest.raises(UserError, match="out: cannot write: No space left on device"):
        outputs.write_output(tmp_path / "out", b"new")
    assert (tmp_path / "out").read_text() == "old"
    code = errno.EACCES
    outputs.write_output(tmp_path / "out", b"new")
    assert (tmp_path / "out").read_text() == "new"
    with pytest.raises(UserError, match="absent: cannot write: Permission denied"):
        outputs.write_output(tmp_path / "absent", b"new")


def test_a_file_that_may_not_be_written_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").write_text("old")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may always write
    with pytest.raises(UserError, match="out: cannot write: Permission denied"):
        outputs.write_output(tmp_path / "out", b"new")
    assert ((tmp_path / "out").read_text(), names(tmp_path)) == ("old", ["out"])


def test_a_pipe_with_a_name_is_written(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    outputs.write_output(pipe, b"new")
    assert os.read(reader, 9) == b"new"
    os.close(reader)
    assert (pipe.is_fifo(), names(tmp_path)) == (True, ["pipe"])


def test_an_open_file_without_a_name_is_written() -> None:
    with tempfile.TemporaryFile() as file:
        outputs.write_output(Path(f"/dev/fd/{file.fileno()}"), b"new")
        assert file.read() == b"new"


@pytest.mark.parametrize(
    ("flags", "reason"), [(os.ST_RDONLY, "Read-only file system"), (0, "Permission denied")]
)
def test_why_a_place_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, reason: str
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flags))
    with pytest.raises(UserError, match=rf"out: cannot write: {reason}$"):
        outputs.check_writable(tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("file/out", "Not a directory"), ("none/out", "No such file"), (".", "Is a directory")],
)
def test_a_place_where_no_file_can_be_is_told(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"cannot write: {reason}"):
        outputs.check_writable(tmp_path / name)


@pytest.mark.parametrize("lines", [600, 9999], ids=["at the end", "at once"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, lines: int) -> None:
    """It is noticed when the buffer is flushed, or when a large piece is written."""
    (tmp_path / "out").write_text("old")
    write = f"write_output(Path('{tmp_path}/out'), b'x\\n' * {lines})"
    code = f"from mtrain.runtime.outputs import *; {write}"
    line = ["bash", "-c", 'ulimit -f 1; exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert "out: cannot write: File too large" in done.stderr
    assert ((tmp_path / "out").read_text(), names(tmp_path)) == ("old", ["out"])


# --- what must not be written over ------------------------------------------------------------


# Pairs of outputs, and an output with an input.
ONE = "out=out out=./out out=there/../out out=link old=hard out=out.partial out.partial=out -=-"
TWO = "out=links old=out -=out -=/dev/null /dev/null=/dev/null"
READ = "text=text text=./text link=text tex=tex.partial"
NOT_READ = "text.partial=text out=text -=- /dev/null=/dev/null"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("pair", [*ONE.split(), "-=/dev/stdout", *TWO.split()])
def test_two_things_are_not_written_to_one_file(folder: Path, pair: str) -> None:
    (folder / "there").mkdir()
    (folder / "old").touch()
    (folder / "hard").hardlink_to("old")
    (folder / "link").symlink_to("out")
    output, other = pair.split("=")
    if pair in TWO.split():
        refuse_one_file(output, other, "--alignments")
        return
    with pytest.raises(RefusedError, match=f"^--alignments {other}: is the output file"):
        refuse_one_file(output, other, "--alignments")


def test_a_directory_in_the_way_is_named(folder: Path) -> None:
    (folder / "out.partial").mkdir()
    with pytest.raises(RefusedError, match=r"out\.partial: is a directory"), opened("out"):
        pass


@pytest.mark.parametrize("pair", [*READ.split(), *NOT_READ.split()])
def test_what_is_read_is_not_written_over(folder: Path, pair: str) -> None:
    for name in ("text", "tex.partial"):
        (folder / name).touch()
    (folder / "link").symlink_to("text")
    output, source = pair.split("=")
    refuse_overwriting(None, source)
    if pair in NOT_READ.split():
        refuse_overwriting(output, None, source)
        return
    with pytest.raises(RefusedError, match="is an input, too"):
        refuse_overwriting(output, None, source)


def test_a_file_that_is_stdin_is_not_written_over(folder: Path) -> None:
    stdin = os.dup(0)
    try:
        with (folder / "text").open("wb") as text:
            os.dup2(text.fileno(), 0)
        with pytest.raises(RefusedError, match=r"^text: is an input, too"):
            refuse_overwriting("text", "-")
        refuse_overwriting("out", "-")
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)


KEPT = """
run/config.yaml run/.lock run/tokenizer.vocab run/metrics.jsonl run/sub/../best.json run/checkpoints
run/checkpoints/new run/checkpoints/new/a/b run/validation/new.txt run/tensorboard/new
link/train.log out sealed/new sealed/trainer/new damaged/new prepared/run.json
"""
FREE = "run/test.out run/avg run/sub/config.yaml other/config.yaml web/new new/out"


@pytest.mark.parametrize("name", [*KEPT.split(), *FREE.split()])
def test_what_a_run_or_checkpoint_keeps_is_not_written_to(folder: Path, name: str) -> None:
    for directory in ("run/sub", "run/checkpoints", "other", "web", "sealed", "damaged"):
        (folder / directory).mkdir(parents=True)
    (folder / "prepared").mkdir()
    (folder / "prepared/.lock").touch()
    (folder / "run/run.json").touch()
    (folder / "link").symlink_to("run")
    (folder / "out").symlink_to("run/best.json")
    manifest.seal(folder / "sealed")
    for path in ("web/manifest.json", "damaged/manifest.json", "damaged/model.safetensors"):
        (folder / path).write_text("{}")
    if name in FREE.split():
        refuse_run_files(Path(name))
        return
    with pytest.raises(RefusedError, match=f"^{name}: belongs to .*; write to another"):
        refuse_run_files(Path(name))


# --- translate ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that translates a few lines at a time."""
    snapshot = checkpoint.load(reader.resolve(trained_run))
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
    for name, end in (("out", "left as it was"), ("links", "not written")):
        words = f"{name}.partial holds the first 80 lines of the output; {name} was {end}\n"
        assert f"warning: {words}" in done.stderr
    assert names(tmp_path) == ["in", "links.partial", "out", "out.partial", "prefixes"]
    assert (tmp_path / "out").read_text() == "old\n"
    assert (tmp_path / "out.partial").read_text().splitlines() == ["zwent"] * 80


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ([signal.SIGTERM], 143),
        ([signal.SIGTERM, signal.SIGTERM], 143),
        pytest.param([signal.SIGINT], 130, marks=pytest.mark.slow),
        pytest.param([signal.SIGHUP], 129, marks=pytest.mark.slow),
    ],
)
def test_a_translation_that_is_stopped_leaves_the_old_one(
    model: Path, tmp_path: Path, signals: list[signal.Signals], code: int
) -> None:
    out, written = tmp_path / "out", tmp_path / "out.partial"
    out.write_text("old\n")
    command = [sys.executable, "-m", "mtrain", "translate", "-m", str(model), "-o", str(out)]
    pipe = subprocess.PIPE
    heard = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, preexec_fn=heard
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"bavo celu norva\n" * 3000)
        process.stdin.flush()
        end = time.monotonic() + 60
        while time.monotonic() < end and not (written.exists() and written.stat().st_size):
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
        lines = written.read_bytes().splitlines(keepends=True)
        assert lines
        assert len(lines) < 3000
        assert lines[-1].endswith(b"\n")
        words = f"{written} holds the first {len(lines):,} lines of the output; {out} was left"
        assert words in errors


@pytest.mark.parametrize("number", [1, 2])
def test_the_file_that_a_stream_goes_to_is_written_directly(folder: Path, number: int) -> None:
    stream = os.dup(number)
    try:
        with (folder / "log").open("ab") as log:
            log.write(b"before\n")
            log.flush()
            os.dup2(log.fileno(), number)
        outputs.write_output(Path("log"), b"new\n")
    finally:
        os.dup2(stream, number)
        os.close(stream)
    assert (folder / "log").read_bytes() == b"before\nnew\n"
    assert names(folder) == ["log"]


@pytest.mark.slow
def test_a_translation_goes_where_a_stream_is(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("bavo\n")
    line = ["-m", str(model), "-i", "in", "-o", "/dev/stdout"]
    with (tmp_path / "log").open("a") as log:
        log.write("before\n")
        log.flush()
        command = [sys.executable, "-m", "mtrain", "translate", *line]
        subprocess.run(command, stdout=log, cwd=tmp_path, check=True)
    assert (tmp_path / "log").read_text() == "before\nzwent\n"
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
    model: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    line: list[str],
) -> None:
    (folder / "in").write_text("bavo\n")
    (folder / "run").mkdir()
    (folder / "run" / "run.json").touch()
    assert run_here(monkeypatch, line[0], "-m", model, *line[1:]) == EXIT_REFUSED
    out, err = capfd.readouterr()
    reasons = ("is the output file, too", "belongs to", "--output -: name a file")
    assert any(text in err for text in reasons)
    assert out == ""
    assert (names(folder), names(folder / "run")) == (["in", "run"], ["run.json"])
