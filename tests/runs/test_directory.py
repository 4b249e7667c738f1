"""Run directories that came from somebody else, or that somebody removes while a run goes on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TinyConfig, run_here, run_mtrain, status

from mtrain.runs import checkpoint, layout, manifest
from mtrain.runs.directory import RunDirectory, commit_of
from mtrain.runtime import files, lock
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.lock import ReplacedError
from mtrain.training.trainer import Trainer

Train = Callable[..., int]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Train:
    """Run `mtrain train` in this process and return its exit code."""
    return lambda config, *options: run_here(monkeypatch, "train", "-c", config, *options)


# --- files that mtrain owns -------------------------------------------------------------------


def plant(path: Path, kind: str, victim: Path) -> None:
    """Put something else where a file of mtrain's own belongs."""
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "dangling link":
        path.symlink_to(victim.with_name("not there yet"))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user's that nothing may change."""
    file = tmp_path / "precious.txt"
    file.write_text("precious\n")
    return file


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
@pytest.mark.parametrize("opened", [files.append, files.read])
def test_a_file_that_stays_is_a_regular_one(
    tmp_path: Path, victim: Path, kind: str, opened: Callable[[Path], Any]
) -> None:
    path = tmp_path / "kept"
    plant(path, kind, victim)
    with pytest.raises(OSError, match="where mtrain keeps a file of its own"):
        opened(path)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["kept", "precious.txt"]


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe"])
def test_a_new_file_is_new(tmp_path: Path, victim: Path, kind: str) -> None:
    path = tmp_path / "new"
    for place in (path, path.with_name(".new.partial")):
        plant(place, kind, victim)
    files.write_text(path, "a")
    assert (path.read_text(), victim.read_text()) == ("a", "precious\n")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["new", "precious.txt"]


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a")
    path.chmod(0o640)
    files.write_text(path, "b")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_file_with_two_names_is_written_under_one(tmp_path: Path, victim: Path) -> None:
    path = tmp_path / "log"
    os.link(victim, path)
    with files.append(path) as log:
        log.write(b"more\n")
    assert (path.read_text(), victim.read_text()) == ("precious\nmore\n", "precious\n")
    (tmp_path / ".lock").hardlink_to(victim)
    with lock.exclusive(tmp_path / ".lock"):
        assert victim.read_text() == "precious\n"


# --- links in a directory that was received ---------------------------------------------------

TWO_STEPS = {"train.max_steps": 2, "train.valid_every": 2, "data.test": {}}


@pytest.mark.parametrize("name", [*layout.FILES, *layout.DIRECTORIES, "checkpoints/step-00000009"])
def test_no_link_is_followed_out_of_a_run(
    train: Train,
    tiny_config: TinyConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    (tmp_path / "run" / ".lock").touch()
    path.unlink(missing_ok=True)
    path.symlink_to(outside / "file" if name in layout.FILES else outside)
    assert train(tiny_config(**TWO_STEPS)) == 2
    assert f"{path}: is a link" in capsys.readouterr().err
    assert list(outside.iterdir()) == []


def test_links_planted_for_what_is_written_aside_are_replaced(
    train: Train, tiny_config: TinyConfig, tmp_path: Path, victim: Path
) -> None:
    config = tiny_config(**TWO_STEPS)
    assert train(config, "--set", "train.max_steps=1") == 0
    for name in (*layout.FILES, "validation", "checkpoints"):
        (tmp_path / "run" / f".{name}.partial").symlink_to(victim)
        (tmp_path / "run" / f".{name}.removed").symlink_to(tmp_path)
    assert train(config) == 0
    assert victim.read_text() == "precious\n"
    assert (tmp_path / "data").is_dir()


def test_a_pipe_for_a_log_does_not_hang(
    train: Train, tiny_config: TinyConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    os.mkfifo(tmp_path / "run" / "train.log")
    assert train(tiny_config(**TWO_STEPS)) == 1
    assert "train.log: cannot use the run directory: not a regular" in capsys.readouterr().err


def test_links_in_a_shared_cache_change_nothing(
    tiny_config: TinyConfig, tmp_path: Path, victim: Path
) -> None:
    """Whoever may write to the cache finds the names of its locks by running the same config."""
    config = tiny_config(**TWO_STEPS)
    own, shared = tmp_path / "own", tmp_path / "shared"
    assert run_mtrain("data", "build", "-c", config, env=cache_at(own)).returncode == 0
    shared.mkdir()
    names = [path.name for path in own.glob(".*.lock")]
    assert names
    for name in names:
        (shared / name).symlink_to(victim)
    done = run_mtrain("data", "build", "-c", config, env=cache_at(shared))
    assert done.returncode == 1
    assert "a link, where mtrain keeps a file of its own" in done.stderr
    assert victim.read_text() == "precious\n"


def cache_at(path: Path) -> dict[str, str]:
    return {**os.environ, "MTRAIN_CACHE": str(path)}


# --- a directory that is removed while it is used ---------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["removed", "replaced"])
def test_a_run_whose_directory_is_gone_writes_nothing_more(
    train: Train,
    tiny_config: TinyConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    again: bool,
) -> None:
    config, run = tiny_config(), tmp_path / "run"
    step = Trainer.take_step

    def disturbed(self: Trainer, *arguments: Any) -> Any:
        if self.progress.step == 5:
            shutil.rmtree(run)
            if again:
                run.mkdir()
                (run / ".lock").write_text("another process's")
        return step(self, *arguments)

    monkeypatch.setattr(Trainer, "take_step", disturbed)
    assert train(config) == 1
    assert f"{run}: was removed or replaced while this process used it" in capsys.readouterr().err
    assert [item.name for item in run.rglob("*")] == ([".lock"] if again else [])
    assert run.exists() == again


def test_every_way_to_write_into_a_run_looks_whether_it_is_held(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    with run.hold():
        (run.path / ".lock").unlink()
        for write in (
            lambda: run.write("best.json", {}),
            lambda: run.set_status("running", 1),
            lambda: run.metrics.append({"step": 1}),
            lambda: run.metrics.replace({"step": 1}, "valid"),
            lambda: run.metrics.cut(0),
        ):
            with pytest.raises(ReplacedError):
                write()
        assert list(run.path.iterdir()) == []


def test_a_lock_removed_while_it_is_waited_for_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    waiting, told = threading.Event(), []

    def wait_for_it() -> None:
        with lock.exclusive(path, wait=lambda holder: waiting.set()) as held:
            told.append(held.is_there())

    thread = threading.Thread(target=wait_for_it)
    with lock.exclusive(path):
        thread.start()
        waiting.wait()
        path.unlink()
    thread.join()
    assert told == [True]


# --- directories of others, and runs that lost their checkpoints ------------------------------


@pytest.mark.parametrize("name", ["train.en", "metrics.jsonl", "train.log", "tokenizer.model"])
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_directory_of_something_else_is_refused(
    train: Train,
    tiny_config: TinyConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    options: list[str],
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / name).write_text('{"step": 9}\n')
    assert train(tiny_config(**TWO_STEPS), *options) == 2
    assert f"{run}: holds {name}, but no run of mtrain" in capsys.readouterr().err
    assert [(item.name, item.read_text()) for item in run.iterdir()] == [(name, '{"step": 9}\n')]


def test_a_config_and_what_job_scripts_leave_are_no_hindrance(
    train: Train, tiny_config: TinyConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("slurm-17.out", "job.err", "nohup.out", ".gitignore"):
        (run / name).write_text("")
    config = shutil.copy(tiny_config(**TWO_STEPS), run / "mine.yaml")
    assert train(config) == 0
    assert status(run)["state"] == "complete"


@pytest.mark.parametrize("is_run", [False, True])
def test_a_users_config_is_not_written_over(
    train: Train,
    tiny_config: TinyConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    is_run: bool,
) -> None:
    config = tiny_config(**TWO_STEPS)
    if is_run:
        assert train(config) == 0
    own = tmp_path / "run" / "config.yaml"
    own.parent.mkdir(exist_ok=True)
    own.write_text(config.read_text() + "# my notes\n")
    assert train(own) == 2
    assert "mtrain replaces this file by its own config.yaml" in capsys.readouterr().err
    assert own.read_text().endswith("# my notes\n")


def test_the_stored_config_goes_on_with_a_run(
    train: Train, tiny_config: TinyConfig, tmp_path: Path
) -> None:
    assert train(tiny_config(**TWO_STEPS)) == 0
    own = tmp_path / "run" / "config.yaml"
    assert train(own, "--set", "train.max_steps=4") == 0
    begun = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**begun, "config": "0" * 64}))
    assert train(own, "--set", "train.max_steps=6") == 0  # as after a kill between the two files
    assert status(tmp_path / "run")["step"] == 6


def test_a_run_that_failed_later_is_not_trained_anew_either(
    train: Train, tiny_config: TinyConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = tiny_config(**TWO_STEPS), tmp_path / "run"
    assert train(config) == 0
    shutil.rmtree(run / "checkpoints")
    (run / "best.json").unlink()
    failed = {**status(run), "state": "failed", "exit_code": 1}
    (run / "status.json").write_text(json.dumps(failed))
    assert train(config) == 2
    assert "the checkpoints of this run are gone, which came to step 2" in capsys.readouterr().err
    (run / "status.json").write_text(json.dumps({**failed, "step": 1}))  # nothing was saved then
    assert train(config) == 0


def test_a_run_whose_first_save_failed_starts_again(
    train: Train, tiny_config: TinyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    config = tiny_config(**TWO_STEPS)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_fill", fail)
        assert train(config) == 1
    assert status(tmp_path / "run")["state"] == "failed"
    assert train(config) == 0


@pytest.mark.parametrize("missing", [(), ("best.json",), ("status.json",)])
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_run_whose_checkpoints_are_gone_is_not_trained_anew(
    train: Train,
    tiny_config: TinyConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    missing: tuple[str, ...],
    options: list[str],
) -> None:
    config, run = tiny_config(**TWO_STEPS), tmp_path / "run"
    assert train(config) == 0
    shutil.rmtree(run / "checkpoints")
    for name in missing:
        (run / name).unlink()
    names = {"metrics.jsonl", "best.json", "config.yaml", "run.json"} - set(missing)
    before = {name: (run / name).read_bytes() for name in names}
    assert train(config, "--set", "train.max_steps=4", *options) == 2
    assert "the checkpoints of this run are gone, which came to step 2" in capsys.readouterr().err
    assert {name: (run / name).read_bytes() for name in names} == before
    if not missing:
        assert status(run)["state"] == "complete"


@pytest.mark.parametrize("damage", ["", "{", '{"state": "complete", "step": -1}'])
def test_a_refused_start_leaves_a_damaged_status_as_it_is(
    train: Train, tiny_config: TinyConfig, tmp_path: Path, damage: str
) -> None:
    config, file = tiny_config(**TWO_STEPS), tmp_path / "run" / "status.json"
    assert train(config) == 0
    file.write_text(damage)
    assert train(config, "--set", "seed=9") == 2
    assert file.read_text() == damage
    assert train(config) == 0
    assert status(tmp_path / "run")["state"] == "complete"


def test_a_start_that_never_began_leaves_the_state_of_the_run(
    train: Train, tiny_config: TinyConfig, tmp_path: Path
) -> None:
    config, run = tiny_config(**TWO_STEPS), tmp_path / "run"
    assert train(config) == 0
    shutil.move(tmp_path / "data", tmp_path / "elsewhere")
    assert train(config) == 1
    found = status(run)
    assert (found["state"], found["exit_code"], found["step"]) == ("complete", 0, 2)
    assert (found["last_start"]["state"], found["last_start"]["exit_code"]) == ("failed", 1)
    shutil.move(tmp_path / "elsewhere", tmp_path / "data")
    assert train(config) == 0
    assert "last_start" not in status(run)


# --- what a repository may not run ------------------------------------------------------------


def git(directory: Path, *arguments: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(directory), *name, *arguments], check=True)


def repository(path: Path) -> Path:
    path.mkdir(parents=True)
    git(path, "init", "-q")
    (path / "f").write_text("a\n")
    git(path, "add", "f")
    git(path, "commit", "-q", "-m", "a")
    return path


def by_monitor(path: Path, program: Path) -> Path:
    git(repository(path), "config", "core.fsmonitor", str(program))
    return path


def by_filter(path: Path, program: Path) -> Path:
    (repository(path) / ".gitattributes").write_text("f filter=x\n")
    git(path, "config", "filter.x.clean", str(program))
    os.utime(path / "f", (1, 1))
    return path


def by_hook(path: Path, program: Path) -> Path:
    hook = repository(path) / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    shutil.copy(program, hook)
    os.utime(path / "f", (1, 1))
    return path


def by_embedded_repository(path: Path, program: Path) -> Path:
    """A bare repository as plain files of a folder, which `git clone` brings along."""
    shutil.copytree(repository(path.with_name("inner")) / ".git", path)
    settings = ("repositoryformatversion = 0", "bare = false", "worktree = .")
    lines = "".join(f"\t{line}\n" for line in (*settings, f"fsmonitor = {program}"))
    (path / "config").write_text(f"[core]\n{lines}")
    return path


@pytest.mark.parametrize("hostile", [by_monitor, by_filter, by_hook, by_embedded_repository])
def test_asking_for_the_commit_runs_nothing_of_the_repository(
    tmp_path: Path, hostile: Callable[[Path, Path], Path]
) -> None:
    program, sign = tmp_path / "program", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {sign}\n")
    program.chmod(0o755)
    directory = hostile(tmp_path / "cloned", program)
    subprocess.run(["git", "-C", str(directory), "describe", "--always", "--dirty"], check=False)
    assert sign.exists()  # the trap works
    sign.unlink()
    commit_of(directory)
    assert not sign.exists()


# --- text that would forge a line -------------------------------------------------------------


def test_names_forge_no_line_of_a_log(
    train: Train, tiny_config: TinyConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stem = tmp_path / "a\n2026-01-01 00:00:00 ERROR forged\x1b]0;x\x07"
    config = tiny_config(**TWO_STEPS)
    for side in ("src", "tgt"):
        shutil.copy(tmp_path / "data" / f"train.{side}", f"{stem}.{side}")
    entry = json.dumps({"src": f"{stem}.src", "tgt": f"{stem}.tgt", "weight": 2})
    assert train(config, "--set", f"data.train=[{entry}]") == 0
    err, log = capsys.readouterr().err, (tmp_path / "run" / "train.log").read_text()
    for text in (err, log):
        assert r"a\n2026-01-01 00:00:00 ERROR forged\x1b]0;x\x07" in text
        assert "\x1b" not in text
    assert not any("ERROR" in line[:30] for line in log.splitlines())


@pytest.mark.parametrize("error", [UserError, RefusedError, manifest.DamagedError])
def test_an_error_has_the_lines_that_it_was_given(error: type[UserError]) -> None:
    assert str(error("a\nb\x1b[2K", "c")) == "a\\nb\\x1b[2K\nc"


# --- Damaged small files ---------------------------------------------------------------------


ODD_NUMBERS = [None, "x", [], -1, 10**400, True]


@pytest.mark.parametrize("key", ["ranks", "accum_steps"])
@pytest.mark.parametrize("value", ODD_NUMBERS, ids=repr)
def test_odd_numbers_in_run_json_are_named(
    tiny_config: TinyConfig,
    train: Train,
    capsys: pytest.CaptureFixture[str],
    key: str,
    value: Any,
) -> None:
    file = tiny_config(**{"train.max_steps": 2})
    run = file.parent / "run"
    assert train(file) == 0
    text = json.dumps({**json.loads((run / "run.json").read_text()), key: value})
    (run / "run.json").write_text(text)
    capsys.readouterr()
    code = train(file)
    shown = capsys.readouterr().err
    if (key, value) == ("accum_steps", None):
        assert code == 0  # as of versions that kept none
    else:
        assert (code, f"run.json: damaged: {key}: " in shown) == (1, True), shown
    assert "Traceback" not in shown
    assert (run / "run.json").read_text() == text or code == 0
