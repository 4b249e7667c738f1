"""Run directories that came from somebody else, or that somebody removes while a run goes on."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import stat
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from conftest import TinyConfig, Train, edit, run_mtrain, status, write_config

from mtrain.config.loading import load_config
from mtrain.config.schema import dump_config
from mtrain.runs import checkpoint, compatibility, layout, manifest, reader, sets
from mtrain.runs.directory import RunDirectory
from mtrain.runs.records import TIME, Provenance, State, Status
from mtrain.runtime import files, lock
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.lock import ReplacedError
from mtrain.training.trainer import Trainer

Captured = pytest.CaptureFixture[str]
TWO_STEPS = {"train.max_steps": 2, "train.valid_every": 2, "data.test": {}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a complete run of two steps."""
    path = tmp_path_factory.mktemp("finished")
    done = run_mtrain("train", "-c", write_config(path, **TWO_STEPS))
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def config(tiny_config: TinyConfig) -> Path:
    """A config of two steps, whose run is not there yet."""
    return tiny_config(**TWO_STEPS)


@pytest.fixture
def run(finished: Path, config: Path) -> Path:
    """The complete run of this config."""
    run = config.parent / "run"
    shutil.copytree(finished / "run", run)
    own = run / "config.yaml"
    own.write_text(own.read_text().replace(str(finished), str(config.parent)))
    return run


# --- files that mtrain owns -------------------------------------------------------------------


PLANTS: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, victim: path.symlink_to(victim),
    "dangling link": lambda path, victim: path.symlink_to(victim.with_name("not there yet")),
    "pipe": lambda path, victim: os.mkfifo(path),
    "folder": lambda path, victim: path.mkdir(),
}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user's that nothing may change."""
    file = tmp_path / "precious.txt"
    file.write_text("precious\n")
    return file


@pytest.mark.parametrize("kind", PLANTS)
@pytest.mark.parametrize("opened", [files.append, files.read, lock.exclusive])
def test_a_file_that_stays_is_a_regular_one(
    tmp_path: Path, victim: Path, kind: str, opened: Callable[[Path], AbstractContextManager[Any]]
) -> None:
    """A log, or a lock: of a run, and of a cache that others may write to, too."""
    path = tmp_path / "kept"
    PLANTS[kind](path, victim)
    before = os.listdir("/dev/fd")
    with pytest.raises(OSError, match="where mtrain needs a regular file"), opened(path):
        pass
    assert os.listdir("/dev/fd") == before
    assert victim.read_text() == "precious\n"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["kept", "precious.txt"]


@pytest.mark.parametrize("kind", [kind for kind in PLANTS if kind != "folder"])
def test_a_new_file_is_new(tmp_path: Path, victim: Path, kind: str) -> None:
    path = tmp_path / "new"
    for place in (path, path.with_name(".new.partial")):
        PLANTS[kind](place, victim)
    files.write_text(path, "a")
    assert (path.read_text(), victim.read_text()) == ("a", "precious\n")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["new", "precious.txt"]
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


INNER = ("checkpoints/step-00000009", "checkpoints/.step-00000009.partial")


@pytest.mark.parametrize("name", [*layout.FILES, *layout.DIRECTORIES, *INNER])
def test_no_link_is_followed_out_of_a_run(
    train: Train, config: Path, tmp_path: Path, capsys: Captured, name: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    (tmp_path / "run" / ".lock").touch()
    path.unlink(missing_ok=True)
    path.symlink_to(outside / "file" if name in layout.FILES else outside)
    assert train(config) == 2
    assert f"{path}: is a link" in capsys.readouterr().err
    assert list(outside.iterdir()) == []


def test_links_planted_for_what_is_written_aside_are_replaced(
    train: Train, config: Path, run: Path, victim: Path
) -> None:
    for name in layout.FILES:
        (run / f".{name}.partial").symlink_to(victim)
        (run / f".{name}.removed").symlink_to(run.parent)
    assert train(config, "--set", "train.max_steps=4") == 0
    assert victim.read_text() == "precious\n"
    assert (run.parent / "data").is_dir()


def test_what_is_no_file_or_directory_of_a_run_ends_the_start(
    train: Train, config: Path, tmp_path: Path, capsys: Captured
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in (".lock", "tensorboard"):
        (run / name).touch()
    assert train(config, "--set", "train.tensorboard=true") == 1
    assert "tensorboard: cannot use the run directory: not a directory" in capsys.readouterr().err
    (run / "train.log").unlink()
    os.mkfifo(run / "train.log")  # opening it for writing would wait for a reader
    assert train(config) == 1
    assert "train.log: cannot use the run directory: not a regular" in capsys.readouterr().err
    for name in ("train.log", "status.json"):
        (run / name).unlink(missing_ok=True)
        (run / name).mkdir()
        assert train(config) == 1
        message = f"/{name}: cannot use the run directory: a folder, where mtrain needs a regular "
        assert message in capsys.readouterr().err
        (run / name).rmdir()


def test_an_error_of_a_file_elsewhere_is_not_one_of_the_run(
    train: Train, tmp_path: Path, tiny_config: TinyConfig, capsys: Captured
) -> None:
    name = "x" * 300  # too long; as in a directory of somebody else, asking for it is an error
    config = tiny_config(**{"data.valid": {"src": str(tmp_path / name), "tgt": name}})
    assert train(config) == 1
    assert f"{name}: File name too long" in capsys.readouterr().err


# --- a directory that is held, or removed while it is used ------------------------------------


def test_a_run_whose_directory_was_replaced_writes_nothing_more(
    train: Train, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    run, step = config.parent / "run", Trainer.take_step

    def disturbed(self: Trainer, *arguments: Any) -> Any:
        if self.progress.step == 1:
            shutil.rmtree(run)
            run.mkdir()
            (run / ".lock").write_text("another process's")
        return step(self, *arguments)

    monkeypatch.setattr(Trainer, "take_step", disturbed)
    assert train(config) == 1
    error = capsys.readouterr().err
    assert f"{run}: was removed or replaced while this process used it" in error
    assert "if the directory was renamed, add --set run_dir=NEW" in error
    assert [item.name for item in run.rglob("*")] == [".lock"]


def test_every_way_to_write_into_a_run_looks_whether_it_is_held(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    with run.hold():
        (run.path / ".lock").unlink()
        for write in (
            lambda: run.write("best.json", {}),
            lambda: run.set_status("running", 1),
            lambda: run.metrics.append({"step": 1}),
            lambda: run.metrics.cut(0),
            lambda: run.keep_tokenizer(b"", ""),
        ):
            with pytest.raises(ReplacedError):
                write()
        assert list(run.path.iterdir()) == []


def test_a_run_that_has_the_model_of_its_vocabulary_has_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that finds the model writes neither of them."""
    written = list[str]()
    monkeypatch.setattr(files, "write_bytes", lambda path, data: written.append(path.name))
    RunDirectory(tmp_path).keep_tokenizer(b"model", "pieces")
    assert written == ["tokenizer.vocab", "tokenizer.model"]


def test_a_lock_removed_while_it_is_waited_for_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    waiting, found = threading.Event(), []

    def wait_for_it() -> None:
        with lock.exclusive(path, wait=lambda holder: waiting.set()) as held:
            found.append(files.is_at(held.descriptor, path))

    thread = threading.Thread(target=wait_for_it)
    with lock.exclusive(path):
        thread.start()
        waiting.wait()
        path.unlink()
    thread.join()
    assert found == [True]


# --- directories of others, and runs that lost their checkpoints ------------------------------


@pytest.mark.parametrize("name", ["train.en", "metrics.jsonl", "train.log", "tokenizer.model"])
def test_a_directory_of_something_else_is_refused(
    train: Train, config: Path, tmp_path: Path, capsys: Captured, name: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / name).write_text('{"step": 9}\n')
    for options in ([], ["--dry-run"]):
        assert train(config, *options) == 2
        assert f"{run}: holds {name}, but no run of mtrain" in capsys.readouterr().err
    assert [(item.name, item.read_text()) for item in run.iterdir()] == [(name, '{"step": 9}\n')]


def test_a_file_is_no_run_directory(
    train: Train, config: Path, tmp_path: Path, capsys: Captured
) -> None:
    (file := tmp_path / "corpus.en").touch()
    for options in ([], ["--dry-run"]):
        assert train(config, "--set", f"run_dir={file}", *options) == 2
        assert f"run_dir: {file} is a file; name a directory" in capsys.readouterr().err


def test_a_lock_of_another_program_does_not_make_a_folder_a_run(
    train: Train, config: Path, tmp_path: Path, capsys: Captured
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in (".lock", "corpus.en"):
        (run / name).touch()
    assert train(config) == 2
    assert f"{run}: holds corpus.en, but no run of mtrain" in capsys.readouterr().err
    assert len(list(run.iterdir())) == 2


def test_a_config_and_what_job_scripts_leave_are_no_hindrance(
    train: Train, config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("slurm-17.log", "job.err", "nohup.out", ".gitignore"):
        (run / name).write_text("")
    assert train(shutil.copy(config, run / "mine.yaml")) == 0
    assert status(run)["state"] == "complete"


@pytest.mark.parametrize("fixture", ["config", "run"])
def test_a_users_config_is_not_written_over(
    train: Train, request: pytest.FixtureRequest, config: Path, capsys: Captured, fixture: str
) -> None:
    request.getfixturevalue(fixture)
    own = config.parent / "run" / "config.yaml"
    own.parent.mkdir(exist_ok=True)
    own.write_text(config.read_text() + "# my notes\n")
    assert train(own) == 2
    assert "mtrain replaces this file by its own config.yaml" in capsys.readouterr().err
    assert own.read_text().endswith("# my notes\n")


def test_the_stored_config_goes_on_with_a_run(train: Train, run: Path) -> None:
    own = run / "config.yaml"  # of another hash than in run.json: as after a kill between the two
    (run / "notes.txt").touch()  # is no hindrance either
    edit(run / "run.json", created="2020-01-01T00:00:00+0000")
    assert train(own, "--set", "train.max_steps=4") == 0
    assert train(own, "--set", "train.max_steps=6") == 0
    assert status(run)["step"] == 6
    with own.open("a") as text:
        text.write("# as an earlier version writes it\n")
    edit(run / "run.json", config=manifest.hash_file(own))
    assert train(own, "--set", "train.max_steps=8") == 0
    assert json.loads((run / "run.json").read_text())["created"] == "2020-01-01T00:00:00+0000"


def test_the_paths_in_advice_on_other_settings_can_be_pasted(tiny_config: TinyConfig) -> None:
    config = load_config(tiny_config())
    run = RunDirectory(Path(config.run_dir).with_name("it's #1"))
    run.path.mkdir()
    (run.path / "config.yaml").write_text(dump_config(config))
    train = config.train.model_copy(update={"peak_lr": 1.0})
    with pytest.raises(RefusedError) as caught:
        compatibility.check_settings(run, config.model_copy(update={"train": train}), 1)
    back, start = re.search(
        r"go back to them \((.*)\) or .*, where (.*) starts from its weights", str(caught.value)
    ).groups()
    assert shlex.split(back) == ["mtrain", "train", f"{run.path}/config.yaml"]
    assert yaml.safe_load(start) == {"train.init_from": str(run.path)}


def test_a_run_that_begins_with_other_weights_is_no_start_for_them(tiny_config: TinyConfig) -> None:
    config = load_config(tiny_config())
    run = RunDirectory(Path(config.run_dir))
    run.path.mkdir()
    (run.path / "config.yaml").write_text(dump_config(config))
    train = config.train.model_copy(update={"init_from": "runs/other"})
    with pytest.raises(RefusedError, match=r"choose another run_dir\n  train\.init_from: null in"):
        compatibility.check_settings(run, config.model_copy(update={"train": train}), 1)


def test_the_number_of_processes_may_change_with_the_same_or_the_advised_settings(
    tiny_config: TinyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run began with two micro-batches per step, on one process."""
    stored = load_config(tiny_config(**{"train.accum_steps": 2}))
    run = RunDirectory(Path(stored.run_dir))
    run.path.mkdir()
    (run.path / "config.yaml").write_text(dump_config(stored))
    monkeypatch.setattr(RunDirectory, "step_batches", lambda *_: 2)
    advised = load_config(tiny_config(**{"train.step_batches": 2}))
    for ranks in (1, 2, 3):
        compatibility.check_settings(run, stored, ranks)
        compatibility.check_settings(run, advised, ranks)
    with pytest.raises(RefusedError, match=r"set train\.step_batches: 2$"):
        compatibility.check_settings(run, load_config(tiny_config()), 3)


@pytest.mark.parametrize("spelling", ["run", "run/", "./run"])
def test_the_stored_config_of_a_moved_run_starts_no_other_run(
    train: Train, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, spelling: str
) -> None:
    monkeypatch.chdir(run.parent)
    own = run.rename(run.with_name("moved")) / "config.yaml"
    own.write_text(own.read_text().replace(f"run_dir: {run}", f"run_dir: {spelling}"))
    assert train(own) == 2
    assert f"its run_dir is {spelling}; add --set run_dir={run.parent}/moved" in (
        capsys.readouterr().err
    )
    assert not run.exists()


def test_the_stored_config_of_a_moved_run_starts_a_new_run_that_is_named(
    train: Train, run: Path
) -> None:
    own, new = run.rename(run.with_name("moved")) / "config.yaml", run.with_name("new")
    assert train(own, "--set", f"run_dir={new}") == 0
    assert (status(new)["state"], run.exists()) == ("complete", False)


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


def test_a_failure_that_cannot_be_recorded_is_told(
    train: Train, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def fail(*arguments: object) -> None:
        raise UserError("the first failure")

    def full(run: RunDirectory, state: str, *arguments: Any, **options: Any) -> None:
        if state == "failed":
            raise OSError(errno.ENOSPC, "No space left on device")
        set_status(run, state, *arguments, **options)

    set_status = RunDirectory.set_status
    monkeypatch.setattr(Trainer, "take_step", fail)
    monkeypatch.setattr(RunDirectory, "set_status", full)
    assert train(config) == 1
    assert "error: the first failure\n" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["nothing", "best.json", "status.json"])
def test_a_run_whose_checkpoints_are_gone_is_not_trained_anew(
    train: Train, config: Path, run: Path, capsys: Captured, missing: str
) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / missing).unlink(missing_ok=True)
    if missing == "best.json":
        edit(run / "status.json", state="failed", exit_code=1)
    before = {file: file.read_bytes() for file in run.glob("[bcmr]*.*")}
    for options in (["--dry-run"], []):
        assert train(config, "--set", "train.max_steps=4", *options) == 2
        assert "of this run are gone; it had reached step 2" in capsys.readouterr().err
        assert {file: file.read_bytes() for file in run.glob("[bcmr]*.*")} == before
    if missing == "best.json":
        edit(run / "status.json", step=1)  # nothing was saved then
        assert train(config) == 0


@pytest.mark.parametrize(
    ("state", "step", "is_there", "has_saved"),
    [
        *((state, 3, True, True) for state in ("complete", "stopped", "running")),
        ("failed", 10, True, False),  # at the first save
        ("failed", 11, True, True),
        ("failed", 9, False, False),
        ("failed", 10, False, True),
    ],
)
def test_whether_a_run_had_saved_follows_from_its_status(
    tmp_path: Path, state: State, step: int, is_there: bool, has_saved: bool
) -> None:
    checkpoints = tmp_path if is_there else tmp_path / "checkpoints"
    found = compatibility._has_saved(Status(state=state, step=step), 10, checkpoints)
    assert found is has_saved


def test_a_refused_start_leaves_a_damaged_status_as_it_is(
    train: Train, config: Path, run: Path
) -> None:
    file = run / "status.json"
    for damage in ("{", '{"state": "complete", "step": -1}'):
        file.write_text(damage)
        assert train(config, "--set", "seed=9") == 2
        assert file.read_text() == damage
    assert train(config, "--dry-run") == 0  # as the start that follows
    assert train(config) == 0
    assert status(run)["state"] == "complete"


@pytest.mark.parametrize("damage", ["run_dir: [", "seed: x\nrun_dir: y\nmodel: {}", None])
def test_a_damaged_or_missing_config_can_be_restored_from_a_checkpoint(
    train: Train, config: Path, run: Path, capsys: Captured, damage: str | None
) -> None:
    settings, copy = run / "config.yaml", run / "checkpoints/step-00000002/config.yaml"
    settings.unlink()
    if damage is not None:
        settings.write_text(damage)
    assert train(config) == 2
    assert f"{reader.COPIES}\n" in capsys.readouterr().err
    with pytest.raises(UserError, match=reader.COPIES):
        reader.read_settings(run)
    shutil.copy(copy, settings)
    assert train(config) == 0


@pytest.mark.parametrize("model", [".", "checkpoints/step-00000002"])
def test_a_set_is_not_read_by_a_damaged_config_which_is_named(run: Path, model: str) -> None:
    (run / "config.yaml").write_text("run_dir: [")
    with pytest.raises(UserError, match=r"run/config\.yaml:1: invalid YAML"):
        sets.read_run_of(run / model)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "; make room and run the same command again"),
        (errno.EROFS, "; allow writing there, or choose another run_dir"),
        (errno.EFBIG, "; raise the limit on the size of files (ulimit -f)"),
        (errno.ENOTDIR, "; restore the directory, or choose another run_dir"),
        (errno.EIO, ""),
    ],
)
def test_an_error_of_writing_the_run_says_what_to_do(code: int, advice: str) -> None:
    run = RunDirectory(Path("runs/new"))
    assert str(run.failure(OSError("odd"))) == "runs/new: cannot use the run directory: odd"
    for path in ("runs/new/.lock", "runs"):  # or a folder that cannot be made for it
        failure = run.failure(OSError(code, os.strerror(code), path))
        text = f"{path}: cannot use the run directory: {os.strerror(code)}{advice}"
        assert str(failure) == text


@pytest.mark.parametrize("setting", ["seed=9", "train.metric=command", "train.device=cuda:7"])
def test_a_refused_start_is_kept_beside_the_state_of_the_run(
    train: Train, config: Path, run: Path, capsys: Captured, setting: str
) -> None:
    before = status(run)
    assert train(config, "--set", setting) == 2
    message = capsys.readouterr().err
    found = status(run)
    last = found.pop("last_start")
    assert ((last["state"], last["exit_code"]), found) == (("refused", 2), before)
    assert datetime.strptime(last["time"], TIME).timestamp() > time.time() - 3600
    assert last["reason"].split("\n")[0] in message
    assert last["reason"] in (run / "train.log").read_text()


def test_a_start_that_never_began_leaves_the_state_of_the_run(
    train: Train, config: Path, run: Path
) -> None:
    shutil.move(run.parent / "data", run.parent / "elsewhere")
    assert train(config) == 1
    found = status(run)
    assert (found["state"], found["exit_code"], found["step"]) == ("complete", 0, 2)
    assert (found["last_start"]["state"], found["last_start"]["exit_code"]) == ("failed", 1)
    shutil.move(run.parent / "elsewhere", run.parent / "data")
    assert train(config) == 0
    assert "last_start" not in status(run)


def test_a_dry_run_refuses_what_a_start_would(
    train: Train, config: Path, run: Path, capsys: Captured
) -> None:
    record = json.loads((run / "run.json").read_text())
    for change, words in (
        ({"valid": "0" * 64}, "the content of data.valid is not the same"),
        (
            {"pairs": [1]},
            "that pass the filters is not the same as when this run began (it was [1], and",
        ),
    ):
        edit(run / "run.json", **{**record, **change})
        for options in (["--dry-run"], []):
            assert train(config, *options) == 2
            assert words in capsys.readouterr().err


def test_a_validation_set_comes_before_a_test_set_of_its_name() -> None:
    keys = ["data.train.0", "data.valid", "data.test.valid", "data.test.news"]
    run: Any = SimpleNamespace(corpora=dict.fromkeys(keys))
    assert sets.names(run) == {"valid": "data.valid", "news": "data.test.news"}


def test_a_step_of_too_many_micro_batches_is_refused(
    train: Train, config: Path, run: Path, capsys: Captured
) -> None:
    """It would be read whole before a stop is looked at."""
    edit(run / "run.json", step_batches=10**15)
    assert train(config) == 1
    assert "run.json: damaged: step_batches: " in capsys.readouterr().err


@pytest.mark.parametrize("value", ["x", [], -1, 10**400, True, None])
def test_odd_and_missing_numbers_in_run_json_are_named(
    train: Train, config: Path, run: Path, capsys: Captured, value: object
) -> None:
    whole = (run / "run.json").read_text()
    for key in ("ranks", "accum_steps"):
        edit(run / "run.json", **{key: value})
        before = (run / "run.json").read_text()
        assert train(config) == 1
        shown = capsys.readouterr().err
        assert f"run.json: damaged: {key}: " in shown
        assert "Traceback" not in shown
        assert (run / "run.json").read_text() == before
        (run / "run.json").write_text(whole)


# --- text that would forge a line -------------------------------------------------------------


def test_names_forge_no_line_of_a_log(train: Train, config: Path, capsys: Captured) -> None:
    stem = config.parent / "a\n2026-01-01 00:00:00 ERROR forged\x1b]0;x\x07"
    for side in ("src", "tgt"):
        shutil.copy(config.parent / "data" / f"train.{side}", f"{stem}.{side}")
    entry = json.dumps({"src": f"{stem}.src", "tgt": f"{stem}.tgt", "weight": 2})
    assert train(config, "--set", f"data.train=[{entry}]") == 0
    for text in (capsys.readouterr().err, (config.parent / "run" / "train.log").read_text()):
        assert r"a\n2026-01-01 00:00:00 ERROR forged\x1b]0;x\x07" in text
        assert "\x1b" not in text


def test_a_file_that_cannot_be_read_is_not_taken_for_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files, "read_whole", refuse)
    with pytest.raises(UserError, match=r"run\.json: cannot be read: Permission denied$"):
        RunDirectory(tmp_path).read(layout.RUN, Provenance)
