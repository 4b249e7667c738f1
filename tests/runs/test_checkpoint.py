"""What lies on disk is whole or not there: checkpoints, manifests, locks, histories."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mtrain.runs import checkpoint, layout, manifest
from mtrain.runs.checkpoint import Loop, Snapshot, TrainerState
from mtrain.runs.directory import RunDirectory
from mtrain.runs.history import History
from mtrain.runs.layout import step_name
from mtrain.runs.manifest import DamagedError
from mtrain.runs.records import BEST, Entry
from mtrain.runtime import json_reader, lock
from mtrain.runtime.errors import EXIT_FAILED, EXIT_REFUSED, RefusedError, UserError
from mtrain.runtime.json_reader import read_json

CONFIG = "run_dir: somewhere\n"
LOOP = Loop(
    step=20, epoch=1, pool=0, batch=3, sums=[1.5, 0.1], sum_tokens=9, machine={"threads": 1}
)


EVERY_10 = (lambda step: step % 10 == 0, 10)
SCORES = ("bleu", "chrf", "nll")


class Crash(BaseException):
    """The process dies here."""


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "encoder.weight": torch.randn(4, 3, generator=generator),
        "bias": torch.randn(5, generator=generator),
    }


def save(directory: Path, step: int, *, trainer: bool = True, seed: int | None = None) -> Path:
    """Save a small checkpoint of a step."""
    path = directory / step_name(step)
    state = TrainerState({"bias.exp_avg": torch.arange(5.0)}, LOOP) if trainer else None
    checkpoint.save(
        path, Snapshot(weights(step if seed is None else seed), CONFIG, b"\x00p"), state
    )
    return path


def files(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


def names(directory: Path) -> list[str]:
    return [path.name for path in layout.steps(directory)]


def reseal(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite a manifest by hand, with a right hash of itself."""
    content = json.loads(path.read_text())
    change(content["files"])
    body = json.dumps({"files": content["files"]}, sort_keys=True)
    content["sha256"] = hashlib.sha256(body.encode()).hexdigest()
    path.write_text(json.dumps(content, sort_keys=True, indent=1) + "\n")


# --- one checkpoint ---------------------------------------------------------------------------


def test_a_checkpoint_is_laid_out_as_promised_and_read_back(tmp_path: Path) -> None:
    path = save(tmp_path, 20)
    assert path.name == "step-00000020"
    assert files(tmp_path) == [
        f"step-00000020/{name}"
        for name in (
            "config.yaml",
            "manifest.json",
            "model.safetensors",
            "tokenizer.model",
            "trainer/manifest.json",
            "trainer/optimizer.safetensors",
            "trainer/state.json",
        )
    ]
    snapshot, state = checkpoint.load(path), checkpoint.load_trainer(path)
    assert snapshot.weights.keys() == weights().keys()
    assert all(torch.equal(snapshot.weights[name], w) for name, w in weights(20).items())
    assert (snapshot.config, snapshot.tokenizer) == (CONFIG, b"\x00p")
    assert state.loop == LOOP
    assert torch.equal(state.moments["bias.exp_avg"], torch.arange(5.0))


def test_the_manifest_lists_every_file_with_size_and_hash(tmp_path: Path) -> None:
    path = save(tmp_path, 20)
    for directory in (path, path / "trainer"):
        content = json.loads((directory / "manifest.json").read_text())
        listed = [item for item in directory.iterdir() if item.is_file()]
        assert sorted(content["files"]) == sorted(
            item.name for item in listed if item.name != "manifest.json"
        )
        for name, entry in content["files"].items():
            data = (directory / name).read_bytes()
            assert entry == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_the_averaged_model_has_no_trainer(tmp_path: Path) -> None:
    path = save(tmp_path, 20, trainer=False)
    assert not (path / "trainer").exists()
    assert not torch.equal(checkpoint.load(path).weights["bias"], weights(0)["bias"])


def test_weights_are_kept_in_fp32_and_whole(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    views = {"half": base.bfloat16(), "view": base[2:6], "turned": base.view(3, 4).T}
    checkpoint.save(tmp_path / "step-00000001", Snapshot(views, CONFIG, b""))
    read = checkpoint.load(tmp_path / "step-00000001").weights
    assert all(tensor.dtype == torch.float32 for tensor in read.values())
    assert all(torch.equal(read[name], views[name].float()) for name in views)


def test_saving_again_replaces_a_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 20)
    path = save(tmp_path, 20, seed=5)
    assert torch.equal(checkpoint.load(path).weights["bias"], weights(5)["bias"])
    assert names(tmp_path) == ["step-00000020"]


def test_no_parser_sees_a_file_with_a_flipped_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bits are drawn from every file, the manifests and their white space included."""
    path = save(tmp_path, 20)

    def parse(*_: object, **__: object) -> None:
        pytest.fail("a damaged file was parsed")

    monkeypatch.setattr(checkpoint, "load_file", parse)
    rng = random.Random(3)
    for name in files(path):
        data = (path / name).read_bytes()
        load = checkpoint.load_trainer if name.startswith("trainer") else checkpoint.load
        for bit in rng.sample(range(8 * len(data)), min(60, 8 * len(data))):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            (path / name).write_bytes(damaged)
            with pytest.raises(DamagedError) as caught:
                load(path)
            assert str(path) in str(caught.value), f"bit {bit} of {name}"
        (path / name).write_bytes(data)
    monkeypatch.undo()
    assert checkpoint.load(path).config == CONFIG
    assert checkpoint.load_trainer(path).loop == LOOP


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\n")


def empty(file: Path) -> None:
    file.write_bytes(b"")


def link(file: Path) -> None:
    """Put a link to the very bytes in place of the file."""
    other = file.with_name("other")
    file.rename(other)
    file.symlink_to(other)


def make_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [truncate, lengthen, empty, Path.unlink, link, make_directory])
@pytest.mark.parametrize(
    "name",
    ["config.yaml", "manifest.json", "model.safetensors", "tokenizer.model", "trainer/state.json"],
)
def test_damage_is_found_and_its_place_named(
    tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    path = save(tmp_path, 20)
    damage(path / name)
    load = checkpoint.load_trainer if name.startswith("trainer") else checkpoint.load
    with pytest.raises(DamagedError) as caught:
        load(path)
    assert caught.value.exit_code == EXIT_FAILED
    assert str((path / name).parent) in str(caught.value)


def test_a_damaged_trainer_does_not_hinder_the_use_of_a_model(tmp_path: Path) -> None:
    path = save(tmp_path, 20)
    shutil.rmtree(path / "trainer")
    assert checkpoint.load(path).config == CONFIG
    with pytest.raises(DamagedError, match="trainer"):
        checkpoint.load_trainer(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: entries.update({"../x": entries.pop("config.yaml")}),
        lambda entries: entries.update({"/etc/hostname": entries["config.yaml"]}),
        lambda entries: entries.update({"sub/x": entries["config.yaml"]}),
        lambda entries: entries.update({"..": entries["config.yaml"]}),
        lambda entries: entries.update({"": entries["config.yaml"]}),
        lambda entries: entries.update({"config.yaml": 3}),
        lambda entries: entries.update({"config.yaml": {}}),
        lambda entries: entries.update({"a\x00b": entries["config.yaml"]}),
        lambda entries: entries.pop("model.safetensors"),
    ],
    ids=[
        "up",
        "absolute",
        "below",
        "parent",
        "empty",
        "number",
        "no size",
        "NUL",
        "model unlisted",
    ],
)
def test_a_forged_manifest_is_damage(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    """The hash of itself is right, as of a manifest written by a stranger."""
    (tmp_path / "x").write_text("outside")
    path = save(tmp_path, 20)
    reseal(path / "manifest.json", change)
    with pytest.raises(DamagedError):
        checkpoint.load(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "3", '{"files": {}}', "[" * 100_000, "\xff", '{"files": 1, "sha256": ""}']
)
def test_what_is_no_manifest_is_damage(tmp_path: Path, text: str) -> None:
    path = save(tmp_path, 20)
    (path / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedError, match=r"manifest\.json"):
        checkpoint.load(path)
    assert names(tmp_path) == []


def test_a_manifest_nested_too_deep_is_damage(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    text = '{"files": ' + '{"a": ' * 900 + "1" + "}" * 900 + ', "sha256": ""}'
    (path / "manifest.json").write_text(text)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 950)  # enough to read it, too little to write it
    try:
        with pytest.raises(manifest.DamagedError):
            manifest.verify(path)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize("name", ["config.yaml", "tokenizer.model", "trainer/state.json"])
def test_a_sealed_file_of_any_size_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = save(tmp_path, 1)
    (path / name).write_bytes(b" " * 100_000)
    manifest.seal((path / name).parent)
    monkeypatch.setattr(checkpoint, "LARGEST", 50_000)
    monkeypatch.setattr(json_reader, "LARGEST", 50_000)
    with pytest.raises(manifest.DamagedError, match="larger than 50,000 bytes"):
        checkpoint.load_trainer(path) if "state" in name else checkpoint.load(path)


def test_a_link_to_checkpoints_is_not_followed(tmp_path: Path) -> None:
    for name in ("elsewhere", "run"):
        (tmp_path / name).mkdir()
    save(tmp_path / "elsewhere", 1)
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="checkpoints: is a link, which is not followed"):
        checkpoint.resolve(tmp_path / "run")


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 10)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifest, "seal", full)
    with pytest.raises(UserError, match=r"step-00000020: cannot save .*No space left on device"):
        save(tmp_path, 20)
    assert [item.name for item in tmp_path.iterdir()] == ["step-00000010"]


def crash_after(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """Let the process die at the n-th change of a name on disk, or before the n-th sync."""
    left = [calls]

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Crash
            return function(*arguments, **options)

        return call

    for module, name in ((os, "replace"), (os, "fsync"), (shutil, "rmtree"), (os, "unlink")):
        monkeypatch.setattr(module, name, dying(getattr(module, name)))


@pytest.mark.parametrize("replaces", [False, True])
def test_a_crash_at_any_point_leaves_whole_checkpoints(tmp_path: Path, replaces: bool) -> None:
    outcomes = set()
    for calls in range(100):
        directory = tmp_path / str(calls)
        directory.mkdir()
        save(directory, 10)
        if replaces:
            save(directory, 20, seed=1)
        with pytest.MonkeyPatch.context() as patch:
            crash_after(patch, calls)
            try:
                save(directory, 20, seed=2)
                finished = True
            except Crash:
                finished = False
        found = names(directory)
        assert found[0] == "step-00000010"
        bias = checkpoint.load(directory / found[-1]).weights["bias"]
        assert any(torch.equal(bias, weights(seed)["bias"]) for seed in (1, 2, 10))
        outcomes.add(found[-1])
        checkpoint.clean(directory)
        assert names(directory) == found
        assert {item.name for item in directory.iterdir()} == set(found)
        if finished:
            break
    assert finished
    assert calls > 5
    assert outcomes == {"step-00000010", "step-00000020"}


PLANTED = [".step-00000020.partial", ".step-00000020.removed", "step-00000020"]


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("is_file", [False, True])
def test_no_link_is_followed_where_a_checkpoint_is_written(
    tmp_path: Path, name: str, is_file: bool
) -> None:
    """Nor where what crashes left is removed."""
    elsewhere, directory = tmp_path / "elsewhere", tmp_path / "checkpoints"
    directory.mkdir()
    save(tmp_path, 10).rename(elsewhere)
    (elsewhere / ".mine.partial").mkdir()
    before = files(elsewhere)
    (directory / name).symlink_to(elsewhere / "config.yaml" if is_file else elsewhere)
    checkpoint.clean(directory)
    assert (directory / name).is_symlink() == (not name.startswith("."))
    (directory / name).unlink(missing_ok=True)
    (directory / name).symlink_to(elsewhere / "config.yaml" if is_file else elsewhere)
    manifest.write_directory(directory / "kept", lambda aside: None, keep=Path.exists)
    for seed in (1, 2):
        assert checkpoint.load(save(directory, 20, seed=seed))
    assert [p.name for p in directory.iterdir() if p.is_symlink()] == []
    manifest.remove_directory(directory / step_name(20))
    assert files(elsewhere) == before
    assert (elsewhere / ".mine.partial").is_dir()


def test_what_is_gone_on_with_is_no_link_and_holds_none(tmp_path: Path) -> None:
    elsewhere, aside = tmp_path / "elsewhere", tmp_path / ".new.partial"
    elsewhere.mkdir()
    aside.symlink_to(elsewhere)

    def fill(directory: Path) -> None:
        (directory / "shard").write_bytes(b"ids")

    manifest.write_directory(tmp_path / "new", fill, keep=Path.exists)
    assert list(elsewhere.iterdir()) == []
    aside.mkdir()
    (aside / "shard").symlink_to(elsewhere / "precious")
    manifest.write_directory(tmp_path / "new", fill, keep=Path.exists)
    manifest.verify(tmp_path / "new", "shard")
    assert list(elsewhere.iterdir()) == []


# --- new directories --------------------------------------------------------------------------

RACE = """
import sys, time
from pathlib import Path
from mtrain.runtime.errors import RefusedError
from mtrain.runs.manifest import write_new_directory

def fill(directory):
    (directory / "name").write_text(name)
    time.sleep(pause)

name = sys.argv[2]
print("ready", flush=True)
start = float(sys.stdin.readline())
for number in range(100):
    pause = number % 3 * 0.001
    time.sleep(max(0, start + number * 0.01 - time.monotonic()))
    try:
        write_new_directory(Path(sys.argv[1]) / str(number), fill)
        print(number)
    except RefusedError as error:
        assert "exists already" in str(error) or "another process" in str(error)
"""


def test_of_several_processes_one_writes_a_new_directory(tmp_path: Path) -> None:
    for number in range(0, 100, 2):  # what crashes left
        (tmp_path / f".{number}.partial").mkdir()
        (tmp_path / f".{number}.partial" / "old").touch()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    commands = [[sys.executable, "-c", RACE, str(tmp_path), name] for name in "abc"]
    crew = [subprocess.Popen(command, **pipes) for command in commands]
    for process in crew:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    start = f"{time.monotonic() + 0.2}\n"
    outputs = [process.communicate(start, timeout=60)[0] for process in crew]
    assert [process.returncode for process in crew] == [0, 0, 0]
    written = {int(n): name for name, out in zip("abc", outputs, strict=True) for n in out.split()}
    assert sum(len(out.split()) for out in outputs) == 100
    for number, name in written.items():
        manifest.verify(tmp_path / str(number), "name")
        assert files(tmp_path / str(number)) == ["manifest.json", "name"]
        assert (tmp_path / str(number) / "name").read_text() == name
    assert len(list(tmp_path.iterdir())) == 100


def test_what_is_there_is_never_replaced_by_a_new_directory(tmp_path: Path) -> None:
    def fill(directory: Path) -> None:
        (tmp_path / "late").mkdir()

    for name in ("directory", "file", "link", "late"):
        path = tmp_path / name
        if name == "directory":
            path.mkdir()
        elif name == "file":
            path.touch()
        elif name == "link":
            path.symlink_to("nowhere")
        with pytest.raises(
            RefusedError, match=f"{name}: exists already; remove it, or choose another name"
        ):
            manifest.write_new_directory(path, fill)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["directory", "file", "late", "link"]


@pytest.mark.parametrize("kind", ["directory", "file", "link"])
def test_a_leftover_of_a_new_directory_is_cleared(tmp_path: Path, kind: str) -> None:
    aside, elsewhere = tmp_path / ".new.partial", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    if kind == "directory":
        aside.mkdir()
        (aside / "old").touch()
    elif kind == "file":
        aside.touch()
    else:
        aside.symlink_to(elsewhere)
    manifest.write_new_directory(tmp_path / "new", lambda directory: None)
    assert files(tmp_path) == ["elsewhere/precious", "new/manifest.json"]


def test_a_new_directory_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fill(directory: Path) -> None:
        (directory / "a").touch()
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        manifest.write_new_directory(tmp_path / "new", fill)
    assert list(tmp_path.iterdir()) == []


# --- a directory of checkpoints ---------------------------------------------------------------


def test_only_complete_steps_exist(tmp_path: Path) -> None:
    for step in (30, 10, 100_000_000, 20):
        save(tmp_path, step)
    (tmp_path / step_name(20) / "manifest.json").unlink()
    (tmp_path / "step-00000040").mkdir()
    (tmp_path / "step-5").mkdir()
    save(tmp_path, 50).rename(tmp_path / "average")
    (tmp_path / ".step-00000060.partial").mkdir()
    assert names(tmp_path) == ["step-00000010", "step-00000030", "step-100000000"]
    assert names(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("saved", "keep", "best", "kept"),
    [
        ([10, 20, 30], 2, None, [20, 30]),
        ([10, 20, 30], 5, None, [10, 20, 30]),
        ([10, 20, 30, 40], 2, 10, [10, 30, 40]),
        ([10, 20, 30, 40], 2, 30, [30, 40]),
        ([10, 20, 27], 1, None, [20, 27]),
        ([10, 17, 20], 3, None, [10, 20]),
        ([10, 17, 20, 23], 1, None, [20, 23]),
        ([3, 7], 1, None, [3, 7]),
        ([3, 7, 10], 1, None, [10]),
        ([], 1, None, []),
    ],
)
def test_retention(
    tmp_path: Path, saved: list[int], keep: int, best: int | None, kept: list[int]
) -> None:
    """Scheduled: multiples of 10. Others are resume points, of use until the next scheduled one."""
    for step in saved:
        save(tmp_path, step)
    (tmp_path / "average").mkdir()
    checkpoint.prune(
        tmp_path,
        is_scheduled=lambda step: step % 10 == 0,
        keep=keep,
        best=None if best is None else step_name(best),
    )
    assert names(tmp_path) == [step_name(step) for step in kept]
    trainers = [path.name for path in layout.steps(tmp_path) if (path / "trainer").is_dir()]
    assert trainers == [step_name(step) for step in kept[-2:]]
    assert (tmp_path / "average").is_dir()
    assert {item.name for item in tmp_path.iterdir()} == {*names(tmp_path), "average"}


def test_the_average_is_the_mean(tmp_path: Path) -> None:
    paths = [save(tmp_path, step) for step in (1, 2, 3)]
    mean = checkpoint.average(paths)
    assert mean.keys() == weights().keys()
    for name, tensor in mean.items():
        expected = torch.stack([weights(step)[name].double() for step in (1, 2, 3)]).mean(0)
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected.float())


def test_models_of_other_shapes_are_not_averaged(tmp_path: Path) -> None:
    first = save(tmp_path, 1)
    checkpoint.save(tmp_path / step_name(2), Snapshot({"bias": torch.zeros(5)}, CONFIG, b""))
    with pytest.raises(UserError, match=r"step-00000002: its model has another shape"):
        checkpoint.average([first, tmp_path / step_name(2)])


# --- run directories --------------------------------------------------------------------------


def make_run(directory: Path, *steps: int, best: str | None = None) -> Path:
    for step in steps:
        (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
        save(directory / "checkpoints", step)
    if best is not None:
        named = {"checkpoint": best, "step": 1}
        content = {"metric": "bleu", "best": named, "history": [], "average": None, "tests": {}}
        (directory / "best.json").write_text(json.dumps(content))
    return directory


def test_a_run_resolves_to_its_best_or_newest_and_a_checkpoint_to_itself(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 10, 20)
    assert checkpoint.resolve(run) == run / "checkpoints" / "step-00000020"
    make_run(run, best="step-00000010")
    best = run / "checkpoints" / "step-00000010"
    assert checkpoint.resolve(run) == best
    (run / "best.json").write_text(json.dumps(History("bleu").as_json()))  # none validated yet
    assert checkpoint.resolve(run) == run / "checkpoints" / "step-00000020"
    make_run(run, best="step-00000010")
    assert checkpoint.resolve(best) == best


@pytest.mark.parametrize(
    "best",
    ["{", "[]", "{}", '{"best": {"checkpoint": "../x"}}', '{"best": {"checkpoint": ".."}}'],
)
def test_a_damaged_best_json_is_named(tmp_path: Path, best: str) -> None:
    run = make_run(tmp_path, 10)
    (run / "best.json").write_text(best)
    with pytest.raises(UserError, match=r"best\.json: damaged: .*; name a checkpoint"):
        checkpoint.resolve(run)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="absent: no such directory"):
        checkpoint.resolve(tmp_path / "absent")
    with pytest.raises(UserError, match="neither a run directory nor a checkpoint"):
        checkpoint.resolve(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="no complete checkpoint yet"):
        checkpoint.resolve(tmp_path)


def test_a_damaged_checkpoint_names_the_newest_good_one(tmp_path: Path) -> None:
    paths = [save(tmp_path, step) for step in (10, 20, 30, 40)]
    for path in paths[2:]:
        truncate(path / "model.safetensors")
    with pytest.raises(UserError, match=r"step-00000040.*step-00000020 is good") as caught:
        checkpoint.load_or_name_good(paths[3])
    assert "model.safetensors" in str(caught.value)
    for path in paths[:2]:
        truncate(path / "config.yaml")
    with pytest.raises(DamagedError, match=r"step-00000040") as caught:
        checkpoint.load_or_name_good(paths[3])
    assert "is good" not in str(caught.value)


def test_averaging_a_run_takes_its_newest(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 10, 20, 30)
    output = tmp_path / "mean"
    assert [p.name for p in checkpoint.average_run(run, 2, output, *EVERY_10)] == [
        "step-00000020",
        "step-00000030",
    ]
    expected = checkpoint.average([run / "checkpoints" / step_name(step) for step in (20, 30)])
    read = checkpoint.load(output)
    assert all(torch.equal(read.weights[name], w) for name, w in expected.items())
    assert read.config == CONFIG
    with pytest.raises(UserError, match="mean: exists already"):
        checkpoint.average_run(run, 2, output, *EVERY_10)
    with pytest.raises(UserError, match=r"has 3 scheduled checkpoints.*--last"):
        checkpoint.average_run(run, 4, tmp_path / "other", *EVERY_10)


@pytest.mark.parametrize("damage", [truncate, Path.unlink])
@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors"])
def test_averaging_by_hand_takes_no_checkpoint_beyond_a_damaged_one(
    tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    run = make_run(tmp_path / "run", 10, 20, 30, 40)
    damage(run / "checkpoints" / step_name(20) / name)
    with pytest.raises(UserError, match=f"{step_name(20)}.*{name}"):
        checkpoint.average_run(run, 3, tmp_path / "mean", *EVERY_10)
    assert len(checkpoint.average_run(run, 2, tmp_path / "mean", *EVERY_10)) == 2


@pytest.mark.parametrize(
    ("newest", "count", "expected"),
    [(40, 3, [20, 30, 40]), (45, 3, [30, 40, 45]), (10, 5, [10]), (7, 2, [7]), (30, 1, [30])],
)
def test_the_last_scheduled_checkpoints(newest: int, count: int, expected: list[int]) -> None:
    paths = checkpoint.last_scheduled(Path("c"), newest, 10, count)
    assert [layout.step_of(path) for path in paths] == expected


# --- locks ------------------------------------------------------------------------------------

HOLDER = """
import sys, time
from pathlib import Path
from mtrain.runtime.lock import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of `tmp_path`."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_held_directory_is_refused_naming_the_holder(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(RefusedError) as caught, RunDirectory(tmp_path).hold():
        pytest.fail("both processes hold the lock")
    assert caught.value.exit_code == EXIT_REFUSED
    message = str(caught.value)
    assert f"process {holder.pid} on {socket.gethostname()}" in message
    assert str(tmp_path) in message


def test_a_lock_whose_holder_was_killed_is_taken_over(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    holder.kill()
    holder.wait()
    assert str(holder.pid) in (tmp_path / ".lock").read_text()
    with RunDirectory(tmp_path).hold():
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", "\x00", "[" * 4000, '{"pid": 1e999, "host": "a"}']
)
def test_an_odd_lock_file_is_no_hindrance(tmp_path: Path, content: str) -> None:
    path = tmp_path / "new" / ".lock"
    path.parent.mkdir()
    path.write_text(content)
    with lock.exclusive(path):
        path.write_text(content)
        with pytest.raises(RefusedError, match="in use by another process"):
            lock.exclusive(path).__enter__()
    with lock.exclusive(path, wait=pytest.fail):
        pass


def test_a_file_in_the_way_of_a_run_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UserError, match="cannot use the run directory") as caught:
            RunDirectory(path).hold().__enter__()
        assert caught.value.exit_code == EXIT_FAILED


# --- best.json --------------------------------------------------------------------------------


def history(metric: str, *values: float) -> History:
    steps = range(10, 10 * len(values) + 1, 10)
    entries = [
        scored(step, step_name(step), **{metric: value})
        for step, value in zip(steps, values, strict=True)
    ]
    return History(metric, entries)


def scored(step: int, checkpoint: str, **scores: float) -> Entry:
    values = {**dict.fromkeys(SCORES, 0.0), **scores}
    return {"step": step, "checkpoint": checkpoint, **values, "signature": "nrefs:1"}


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        ("bleu", [1.0, 3.0, 2.0], 20),
        ("bleu", [3.0, 1.0, 3.0], 10),
        ("chrf", [0.0, 0.0], 10),
        ("nll", [3.0, 1.0, 2.0], 20),
        ("nll", [2.0, 2.0], 10),
        ("bleu", [], None),
    ],
)
def test_the_best_is_the_first_of_equals(
    metric: str, values: list[float], best: int | None
) -> None:
    found = history(metric, *values).best
    assert (found and found["step"]) == best


@pytest.mark.parametrize(
    ("metric", "values", "patience", "out"),
    [
        ("bleu", [1, 2, 3], 1, False),
        ("bleu", [3, 2], 1, True),
        ("bleu", [3, 2], 2, False),
        ("bleu", [3, 2, 3], 2, True),
        ("bleu", [3, 2, 4, 1], 2, False),
        ("nll", [3, 2, 1], 1, False),
        ("nll", [1, 2, 3], 2, True),
        ("bleu", [3, 2, 1, 0], 0, False),
        ("bleu", [], 1, False),
    ],
)
def test_patience(metric: str, values: list[float], patience: int, out: bool) -> None:
    assert history(metric, *values).is_out_of_patience(patience) == out


def test_the_average_may_be_the_best_but_counts_for_no_patience() -> None:
    found = history("bleu", 2.0, 3.0, 2.5)
    average = scored(30, "average", bleu=3.0)
    found.average = average
    assert found.best == found.entries[1]
    found.average = {**average, "bleu": 3.1}
    assert found.best == found.average
    assert found.is_out_of_patience(1)


def test_a_history_is_cut_to_the_resumed_step_and_read_back() -> None:
    found = history("nll", 4.0, 3.0, 2.0)
    found.average = scored(30, "average", nll=1.0)
    found.tests = {"old": scored(20, "average", nll=1.0), "new": scored(30, "average", nll=1.0)}
    content = json.dumps(found.as_json())
    assert json.loads(content)["best"] == {"checkpoint": "average", "step": 30, "nll": 1.0}
    again = History.of("nll", read_json(content.encode(), BEST))
    assert json.dumps(again.as_json()) == content
    assert again == found
    again.cut(30, lambda step: True)
    assert again == found
    again.cut(29, lambda step: step != 10)  # validated as the last step of a shorter run
    assert [entry["step"] for entry in again.entries] == [20]
    assert again.average is None
    assert list(again.tests) == ["old"]
    assert again.has(20)
    assert not again.has(30)
    assert History.of("nll", None).as_json()["best"] is None


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("[]", "an object"),
        ('{"metric": "accuracy"}', "metric"),
        ('{"metric": "bleu", "best": {"checkpoint": "../x"}}', "best.checkpoint"),
        ('{"metric": "bleu", "best": null, "history": {}}', "history"),
        ('{"metric": "bleu", "best": null, "history": [{"step": 10}]}', "history.0"),
        (
            '{"metric": "bleu", "best": null, "history": [], "average": {"step": "10"}}',
            "average",
        ),
        (
            '{"metric": "bleu", "best": null, "history": [], "average": null, "tests": {"a": 1}}',
            "tests.a",
        ),
    ],
)
def test_a_history_of_another_form_is_no_history(content: str, place: str) -> None:
    with pytest.raises(ValueError, match=place) as caught:
        read_json(content.encode(), BEST)
    assert "\n" not in str(caught.value)
