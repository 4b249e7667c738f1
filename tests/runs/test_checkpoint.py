"""Checkpoints: whole or not there, verified before anything is parsed, kept as long as needed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import edit, empty, folder, link
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from mtrain.config.schema import TrainConfig
from mtrain.runs import checkpoint, layout, manifest, reader
from mtrain.runs.checkpoint import Snapshot, TrainerState
from mtrain.runs.history import History
from mtrain.runs.layout import step_name
from mtrain.runs.manifest import DamagedError
from mtrain.runs.records import Loop
from mtrain.runtime import json_reader
from mtrain.runtime.errors import EXIT_FAILED, UserError

CONFIG = "run_dir: somewhere\n"
LOOP = Loop(
    step=20, epoch=1, pool=0, batch=3, sums=[1.5, 0.1], sum_tokens=9, machine={"threads": 1}
)
EVERY_10 = TrainConfig(save_every=10, valid_every=10)


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"encoder.weight": (4, 3), "bias": (5,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def save(directory: Path, step: int, *, trainer: bool = True) -> Path:
    """Save a small checkpoint of a step, with weights by the step."""
    path = directory / step_name(step)
    state = TrainerState({"bias.exp_avg": torch.arange(5.0)}, LOOP) if trainer else None
    checkpoint.save(path, Snapshot(weights(step), CONFIG, b"\x00p"), state)
    return path


def files(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


def names(directory: Path) -> list[str]:
    return [path.name for path in layout.complete_checkpoints(directory)]


def load_part(path: Path, name: str) -> object:
    """Load the part of a checkpoint that holds a file."""
    return (checkpoint.load_trainer if name.startswith("trainer") else checkpoint.load)(path)


# --- one checkpoint ---------------------------------------------------------------------------

MODEL_FILES = ["config.yaml", "manifest.json", "model.safetensors", "tokenizer.model"]
TRAINER_FILES = ["trainer/manifest.json", "trainer/optimizer.safetensors", "trainer/state.json"]


def test_a_checkpoint_is_laid_out_as_promised_and_read_back(tmp_path: Path) -> None:
    path = save(tmp_path, 20)
    assert path.name == "step-00000020"
    assert files(path) == [*MODEL_FILES, *TRAINER_FILES]
    listed = json.loads((path / "manifest.json").read_text())["files"]
    for name in set(MODEL_FILES) - {"manifest.json"}:
        data = (path / name).read_bytes()
        assert listed[name] == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    snapshot, state = checkpoint.load(path), checkpoint.load_trainer(path)
    assert snapshot.weights.keys() == weights().keys()
    assert all(torch.equal(snapshot.weights[name], w) for name, w in weights(20).items())
    assert (snapshot.config, snapshot.tokenizer) == (CONFIG, b"\x00p")
    assert state.loop == LOOP
    assert torch.equal(state.moments["bias.exp_avg"], torch.arange(5.0))
    assert files(save(tmp_path, 30, trainer=False)) == MODEL_FILES
    plain = tmp_path / "plain"
    plain.touch()
    others = {file.stat().st_mode for file in path.rglob("*") if file.is_file()}
    assert others == {plain.stat().st_mode}


def test_weights_are_kept_in_fp32_and_whole(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    views = {"half": base.bfloat16(), "view": base[2:6], "turned": base.view(3, 4).T}
    checkpoint.save(tmp_path / "step-00000001", Snapshot(views, CONFIG, b""))
    read = checkpoint.load(tmp_path / "step-00000001").weights
    assert all(tensor.dtype == torch.float32 for tensor in read.values())
    assert all(torch.equal(read[name], views[name].float()) for name in views)


def test_no_parser_sees_a_file_with_a_flipped_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bits are drawn from every file, the manifests and their white space included."""
    path = save(tmp_path, 20)
    monkeypatch.setattr(checkpoint, "load_file", lambda *_: pytest.fail("damage was parsed"))
    rng = random.Random(3)
    for name in files(path):
        data = (path / name).read_bytes()
        for bit in rng.sample(range(8 * len(data)), min(60, 8 * len(data))):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            (path / name).write_bytes(damaged)
            with pytest.raises(DamagedError) as caught:
                load_part(path, name)
            assert str(path) in str(caught.value), f"bit {bit} of {name}"
        (path / name).write_bytes(data)
    monkeypatch.undo()
    assert checkpoint.load(path).config == CONFIG
    assert checkpoint.load_trainer(path).loop == LOOP


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [truncate, empty, Path.unlink, link, folder])
@pytest.mark.parametrize("name", [*MODEL_FILES, "trainer/state.json"])
def test_damage_is_found_and_its_place_named(
    tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    path = save(tmp_path, 20)
    damage(path / name)
    with pytest.raises(DamagedError) as caught:
        load_part(path, name)
    assert caught.value.exit_code == EXIT_FAILED
    assert str((path / name).parent) in str(caught.value)
    if name.startswith("trainer"):  # which does not hinder the use of the model
        assert checkpoint.load(path).config == CONFIG


CONFIG_ENTRIES = (3, {}, {"size": "1", "sha256": ""})
NAMES = ("../x", "/etc/hostname", "sub/x", "..", "", "a\x00b")


@pytest.mark.parametrize("forged", [*NAMES, *CONFIG_ENTRIES, None], ids=repr)
def test_a_forged_manifest_is_damage(tmp_path: Path, forged: Any) -> None:
    """The hash of itself is right, as of a manifest written by a stranger."""
    (tmp_path / "x").write_text("outside")
    path = save(tmp_path, 20)
    entries = json.loads((path / "manifest.json").read_text())["files"]
    entry = entries.pop("config.yaml")
    if forged is not None:
        entries |= {forged: entry} if isinstance(forged, str) else {"config.yaml": forged}
    (path / "manifest.json").write_text(manifest._with_own_hash({"files": entries}))
    with pytest.raises(DamagedError):
        checkpoint.load(path)


NESTED = '{"files": ' + '{"a": ' * 900 + "1" + "}" * 900 + ', "sha256": ""}'


@pytest.mark.parametrize("text", ["", "[]", '{"files": {}}', "[" * 100_000, "\xff", NESTED])
def test_what_is_no_manifest_is_damage(tmp_path: Path, text: str) -> None:
    path = save(tmp_path, 20)
    (path / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedError, match=r"manifest\.json"):
        checkpoint.load(path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["config.yaml", "tokenizer.model", "trainer/state.json"])
def test_a_sealed_file_of_any_size_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = save(tmp_path, 1)
    (path / name).write_bytes(b" " * 100_000)
    manifest.seal((path / name).parent)
    for module in (checkpoint, json_reader):
        monkeypatch.setattr(module, "MAX_JSON_BYTES", 50_000)
    with pytest.raises(DamagedError, match="larger than 50,000 bytes"):
        load_part(path, name)


# --- a directory of checkpoints ---------------------------------------------------------------


def test_only_complete_steps_exist(tmp_path: Path) -> None:
    for step in (20_000_000, 10, 100_000_000, 20):
        save(tmp_path, step)
    (tmp_path / step_name(20) / "manifest.json").unlink()
    (tmp_path / "step-00000040").mkdir()
    (tmp_path / "step-5").mkdir()
    save(tmp_path, 50).rename(tmp_path / "average")
    (tmp_path / ".step-00000060.partial").mkdir()
    assert names(tmp_path) == ["step-00000010", "step-20000000", "step-100000000"]
    assert names(tmp_path / "absent") == []


@pytest.mark.parametrize("key", ["keep_checkpoints", "average_last"])
@pytest.mark.parametrize(
    ("saved", "keep", "best", "kept"),
    [
        ([10, 20, 30], 5, set(), [10, 20, 30]),
        ([10, 20, 30, 40], 2, {10}, [10, 30, 40]),
        ([10, 20, 30, 40, 47], 1, {10, 30}, [10, 30, 40, 47]),
        ([10, 20, 27], 1, set(), [20, 27]),
        ([10, 17, 20], 3, set(), [10, 20]),
        ([10, 17, 20, 23], 1, set(), [20, 23]),
        ([3, 7], 1, set(), [3, 7]),
        ([], 1, set(), []),
    ],
)
def test_retention(
    tmp_path: Path, saved: list[int], keep: int, best: set[int], kept: list[int], key: str
) -> None:
    """Scheduled: multiples of 10. Others are resume points, of use until the next scheduled one."""
    for step in saved:
        save(tmp_path, step)
    (tmp_path / "average").mkdir()
    settings = {"keep_checkpoints": 1, "average_last": 0, key: keep}
    train = EVERY_10.model_copy(update=settings)
    checkpoint.prune(tmp_path, train, {step_name(step) for step in best})
    assert names(tmp_path) == [step_name(step) for step in kept]
    trainers = [
        path.name for path in layout.complete_checkpoints(tmp_path) if (path / "trainer").is_dir()
    ]
    assert trainers == [step_name(step) for step in kept[-2:]]
    assert {item.name for item in tmp_path.iterdir()} == {*names(tmp_path), "average"}


def test_two_checkpoints_can_be_resumed_from_after_any_number_of_stops(tmp_path: Path) -> None:
    for step in (10, 13, 15, 17, 20):
        save(tmp_path, step)
        checkpoint.prune(tmp_path, EVERY_10, set())
    assert names(tmp_path) == [step_name(10), step_name(20)]
    assert all((path / "trainer").is_dir() for path in layout.complete_checkpoints(tmp_path))


def test_a_checkpoint_whose_trainer_s_state_is_gone(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    shutil.rmtree(path / layout.TRAINER)
    with pytest.raises(DamagedError, match="keeps the trainer's state of the newest checkpoints"):
        checkpoint.load_trainer(path)


def test_a_trainer_s_state_of_another_step_is_damage(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match=r"trainer: cannot be read: state\.json is of step 20"):
        checkpoint.load_trainer(save(tmp_path, 30))


def test_damaged_checkpoints_are_removed_when_intact_ones_of_their_age_are(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40, 50):
        path = save(tmp_path, step)
        if step in (10, 20, 40):
            (path / manifest.NAME).unlink()
    checkpoint.prune(tmp_path, EVERY_10.model_copy(update={"keep_checkpoints": 2}), {step_name(20)})
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [step_name(step) for step in (20, 30, 40, 50)]


def test_the_average_is_the_mean(tmp_path: Path) -> None:
    paths = [save(tmp_path, step) for step in (1, 2, 3)]
    mean = checkpoint.average(paths)
    assert mean.keys() == weights().keys()
    for name, tensor in mean.items():
        expected = torch.stack([weights(step)[name].double() for step in (1, 2, 3)]).mean(0)
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected.float())
    checkpoint.save(tmp_path / step_name(4), Snapshot({"bias": torch.zeros(5)}, CONFIG, b""))
    with pytest.raises(UserError, match=r"step-00000004: its model has a different shape"):
        checkpoint.average([paths[0], tmp_path / step_name(4)])
    save_file({"bias": torch.zeros(5).half()}, tmp_path / step_name(4) / "model.safetensors")
    manifest.seal(tmp_path / step_name(4))
    with pytest.raises(UserError, match=r"step-00000004: bias is torch\.float16, not fp32"):
        checkpoint.average([tmp_path / step_name(4)])


# --- run directories --------------------------------------------------------------------------


def make_run(directory: Path, *steps: int) -> Path:
    (directory / "checkpoints").mkdir(parents=True)
    for step in steps:
        save(directory / "checkpoints", step)
    return directory


def test_a_run_resolves_to_its_best_or_newest_and_a_checkpoint_to_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(tmp_path / "run", 10, 20)
    first, last = layout.complete_checkpoints(run / "checkpoints")
    assert reader.resolve(run) == last
    assert caplog.messages == [f"{run}: no best.json; the newest checkpoint is used"]
    content = History.begin("bleu").as_json()  # none validated yet
    for best, expected in ((None, last), ({"checkpoint": first.name, "step": 1}, first)):
        (run / "best.json").write_text(json.dumps({**content, "best": best}))
        assert reader.resolve(run) == expected
    assert reader.resolve(first) == first
    for name in ("manifest.json", "model.safetensors"):  # loading it tells what is missing
        moved = (first / name).rename(tmp_path / name)
        assert reader.resolve(first) == first
        moved.rename(first / name)
    shutil.rmtree(first)
    with pytest.raises(UserError, match=rf"{first}: the best .* is missing; name another: {last}"):
        reader.resolve(run)
    edit(run / "best.json", best={"checkpoint": "../x", "step": 1})
    with pytest.raises(
        UserError, match=r"damaged: .*; remove it, and train will .* name another run or a check"
    ):
        reader.resolve(run)


@pytest.mark.parametrize(("module", "function"), [(Path, "exists"), (manifest, "verify")])
def test_a_best_checkpoint_that_training_replaces_meanwhile_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, function: str
) -> None:
    """It is removed before it is found to exist, or before it is read."""
    run = make_run(tmp_path / "run", 10, 20)
    first, last = layout.complete_checkpoints(run / "checkpoints")
    content = History.begin("bleu").as_json()

    def choose(best: Path) -> None:
        text = json.dumps({**content, "best": {"checkpoint": best.name, "step": 1}})
        (run / "best.json").write_text(text)

    def replaced(path: Path, *names: str) -> Any:
        if path == first and first in layout.complete_checkpoints(run / "checkpoints"):
            shutil.rmtree(first)
            choose(last)
        return real(path, *names)

    real = getattr(module, function)
    choose(first)
    monkeypatch.setattr(module, function, replaced)
    directory, _ = checkpoint.load_resolved(run)
    assert directory == last
    shutil.rmtree(last)
    with pytest.raises(UserError, match=f"{last}: "):
        checkpoint.load_resolved(run)


def test_weights_that_are_removed_while_they_are_opened_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors opens a file, then torch opens it again."""
    (path,) = layout.complete_checkpoints(make_run(tmp_path / "run", 10) / "checkpoints")

    def fail(file: Path) -> None:
        raise RuntimeError(f"unable to open file <{file}>")

    monkeypatch.setattr(checkpoint, "load_file", fail)
    with pytest.raises(RuntimeError, match="unable to open"):
        checkpoint.load(path)
    monkeypatch.setattr(checkpoint, "load_file", lambda file: (shutil.rmtree(path), fail(file)))
    with pytest.raises(manifest.MissingError, match="was removed while it was read; try again"):
        checkpoint.load(path)


def test_a_checkpoint_that_cannot_be_read_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: Path) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = save(tmp_path, 10)
    monkeypatch.setattr(manifest, "hash_file", fail)
    with pytest.raises(UserError, match=f"{path}/.*: cannot be read: Input/output error"):
        reader.is_intact(path)


def test_weights_that_do_not_fit_in_memory_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: Path) -> None:
        raise RuntimeError(
            f"unable to mmap 9 bytes from file <{file}>: Cannot allocate memory (12)"
        )

    path = save(tmp_path, 10)
    monkeypatch.setattr(checkpoint, "load_file", fail)
    with pytest.raises(UserError, match=f"^{path}: out of memory; free some$"):
        checkpoint.load(path)


def test_a_path_that_safetensors_cannot_open_is_named() -> None:
    with pytest.raises(UserError, match="its path is not UTF-8, which safetensors needs; rename"):
        checkpoint.load(Path(os.fsdecode(b"\xff")))


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "make room and"),
        (errno.EACCES, "allow writing there and"),
        (errno.ENOENT, "restore its directory, which was removed or renamed, and"),
    ],
)
def test_why_a_checkpoint_is_not_saved_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(manifest, "write_directory", fail)
    reason = f"cannot save the checkpoint: {os.strerror(code)}; {advice} run the same command again"
    with pytest.raises(UserError, match=f"step-00000010: {reason}$"):
        save(tmp_path, 10)


def test_a_checkpoint_that_is_removed_before_it_is_averaged_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", 10, 20)
    first, last = layout.complete_checkpoints(run / "checkpoints")
    load = checkpoint.load

    def removing(path: Path) -> checkpoint.Snapshot:
        shutil.rmtree(first, ignore_errors=True)  # after both were listed
        return load(path)

    monkeypatch.setattr(checkpoint, "load", removing)
    expected = f"^{first}: training has removed it meanwhile; run the same command again$"
    with pytest.raises(UserError, match=expected):
        checkpoint.average_run(run, 2, tmp_path / "mean", EVERY_10)
    assert sorted(tmp_path.iterdir()) == [run]
    assert len(checkpoint.average_run(run, None, tmp_path / "mean", EVERY_10)) == 1
    assert last.exists()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "new")
    make_run(tmp_path / "elsewhere", 1)
    for name in ("b", "a"):
        make_run(tmp_path / "several" / name)
    (tmp_path / "several" / "file").touch()
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "tokenizer.model").touch()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / ".lock").touch()
    (tmp_path / "linked").mkdir()
    (tmp_path / "nothing").mkdir()
    (tmp_path / "linked" / "checkpoints").symlink_to(tmp_path / "elsewhere" / "checkpoints")
    for name, words in (
        ("absent", "absent: no such directory"),
        ("linked/..", "holds runs; name one"),
        ("nothing", "neither a run directory nor a checkpoint"),
        ("new", "no complete checkpoint; train it"),
        ("new/checkpoints", f"holds the .* of a run; name the run, {tmp_path / 'new'}$"),
        ("prepared", "prepared: this run has no complete checkpoint; train it, or restore"),
        ("begun", "begun: this run has no complete checkpoint; train it, or restore"),
        ("several", f"name one: {tmp_path / 'several' / 'a'}, {tmp_path / 'several' / 'b'}"),
        ("linked", "checkpoints: is a link, which is not followed"),
    ):
        with pytest.raises(UserError, match=words):
            reader.resolve(tmp_path / name)
    with pytest.raises(UserError, match="begun: nothing has been trained yet; run mtrain train"):
        layout.refuse_prepared(tmp_path / "begun")
    (tmp_path / "begun" / "run.json").touch()
    layout.refuse_prepared(tmp_path / "begun")


@pytest.mark.parametrize("name", ["model.bin", "model.safetensors"])  # CTranslate2, Marian
def test_an_exported_model_is_refused_with_what_to_name_instead(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"weights")
    manifest.seal(tmp_path)
    with pytest.raises(UserError, match="exported model, name the run that it was made from"):
        checkpoint.load_resolved(tmp_path)


def test_a_damaged_checkpoint_names_the_newest_good_one(tmp_path: Path) -> None:
    paths = [save(tmp_path, step) for step in (10, 20, 30, 40)]
    for path in paths[2:]:
        truncate(path / "model.safetensors")
    named = r"step-00000040.*model\.safe.*step-00000020 is intact; use it"
    with pytest.raises(UserError, match=named):
        checkpoint.load_or_name_intact(paths[3])
    for path in paths[:2]:
        truncate(path / "config.yaml")
    with pytest.raises(DamagedError, match=r"step-00000040") as caught:
        checkpoint.load_or_name_intact(paths[3])
    assert "is intact; use it" not in str(caught.value)


def test_a_sealed_checkpoint_that_cannot_be_parsed_is_not_called_intact(tmp_path: Path) -> None:
    first, last = (save(tmp_path, step) for step in (10, 20))
    (last / "model.safetensors").write_bytes(b"no tensors")
    manifest.seal(last)
    with pytest.raises(UserError, match=f"^{last}: cannot be read: .*; {first} is intact; use it$"):
        checkpoint.load_or_name_intact(last)
    (last / "trainer" / "optimizer.safetensors").write_bytes(b"no tensors")
    manifest.seal(last / "trainer")
    with pytest.raises(DamagedError, match=r"trainer: cannot be read: .*header"):
        checkpoint.load_trainer(last)


def test_a_name_that_claims_a_huge_step_takes_no_memory(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 10, 20)
    (run / "checkpoints" / step_name(2**53 - 2)).mkdir()
    for last in (1, 10**23):
        with pytest.raises(UserError, match=r"no manifest\.json|checkpoints to average"):
            checkpoint.average_run(run, last, tmp_path / "mean", EVERY_10)
    assert len(checkpoint.last_scheduled(run, 2**53, EVERY_10, 3)) == 3


@pytest.mark.parametrize("name", ["file/mean", "a" * 250])
def test_an_average_that_can_never_be_written_gets_advice_on_its_path(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    run = make_run(tmp_path / "run", 10)
    with pytest.raises(UserError, match="choose another path and run the same command again"):
        checkpoint.average_run(run, 1, tmp_path / name, EVERY_10)


def test_averaging_a_run_takes_its_newest(tmp_path: Path) -> None:
    run, output = make_run(tmp_path / "run", 10, 20, 30), tmp_path / "new" / "mean"
    paths = checkpoint.average_run(run, 2, output, EVERY_10)
    assert [path.name for path in paths] == ["step-00000020", "step-00000030"]
    read, expected = checkpoint.load(output), checkpoint.average(paths)
    assert all(torch.equal(read.weights[name], w) for name, w in expected.items())
    assert read.config == CONFIG
    for last, count in ((2, 2), (0, 3)):  # of `train.average_last`, or all that are kept
        train, path = EVERY_10.model_copy(update={"average_last": last}), tmp_path / f"last-{last}"
        assert len(checkpoint.average_run(run, None, path, train)) == count
    with pytest.raises(UserError, match="mean: exists already"):  # before anything is averaged
        checkpoint.average_run(run, 4, output, EVERY_10)
    with pytest.raises(UserError, match=r"scheduled checkpoints to average: 3, but --last is 4"):
        checkpoint.average_run(run, 4, tmp_path / "other", EVERY_10)
    only_stopped = make_run(tmp_path / "stopped", 5)
    with pytest.raises(UserError, match="stopped: has no scheduled checkpoint yet"):
        checkpoint.average_run(only_stopped, 1, tmp_path / "other", EVERY_10)


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors"])
def test_averaging_by_hand_takes_no_checkpoint_beyond_a_damaged_one(
    tmp_path: Path, name: str
) -> None:
    run = make_run(tmp_path / "run", 10, 20, 30, 40)
    truncate(run / "checkpoints" / step_name(20) / name)
    with pytest.raises(UserError, match=f"{step_name(20)}.*{name}"):
        checkpoint.average_run(run, 3, tmp_path / "mean", EVERY_10)
    assert len(checkpoint.average_run(run, 2, tmp_path / "mean", EVERY_10)) == 2
    truncate(run / "checkpoints" / step_name(40) / name)  # no silent average of older ones
    with pytest.raises(UserError, match=f"{step_name(40)}.*{name}.*; restore it, or remove"):
        checkpoint.average_run(run, 1, tmp_path / "other", EVERY_10)


@given(st.integers(1, 99), st.integers(1, 9), st.booleans())
def test_the_last_scheduled_checkpoints(last: int, count: int, is_end: bool) -> None:
    train = TrainConfig(save_every=10, valid_every=10, max_steps=last + (not is_end))
    paths = checkpoint.last_scheduled(Path("c"), last, train, count)
    expected = sorted({*range(10, last + 1, 10)} | ({last} if is_end else set()))[-count:]
    assert [layout.step_of(path) for path in paths] == expected
