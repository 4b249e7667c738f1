"""Exact resume: however often a run is stopped, killed or damaged, it ends in the same bytes.

A run is compared with an uninterrupted one: weights, Adam's state, position, records, scores and
translations. Restores broken on purpose show that the comparison can fail.
"""

from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import (
    contents,
    differences,
    made_up_pairs,
    make_tokenizer,
    needs_cuda,
    run_mtrain,
    status,
    write_config,
    write_corpus,
)
from fake_cuda import fake_cuda
from ranks import trainer_of
from safetensors.torch import load_file, save_file

from mtrain.config.loading import load_config
from mtrain.data import batches
from mtrain.data.prepare import train_run_tokenizer
from mtrain.data.tokenizer import Tokenizer
from mtrain.runs import checkpoint, layout, manifest, reader
from mtrain.runs.checkpoint import TrainerState
from mtrain.runtime import log
from mtrain.runtime.device import has_fast_bf16
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.errors import (
    EXIT_FAILED,
    EXIT_HUNG_UP,
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    EXIT_STOPPED,
    EXIT_TERMINATED,
    RefusedError,
    StoppedError,
    UserError,
)
from mtrain.runtime.lock import ReplacedError
from mtrain.runtime.stop import Stop
from mtrain.training import job, learner, resume
from mtrain.training import trainer as training
from mtrain.training.resume import Progress
from mtrain.training.trainer import Trainer
from mtrain.training.validation import Validation

# Records, checkpoints and epochs fall on different steps, and dropout is on.
SETTINGS = {
    "pairs": 40,
    "train.max_steps": 24,
    "train.max_tokens": 100,
    "train.log_every": 3,
    "train.save_every": 4,
    "train.valid_every": 8,
    "train.keep_checkpoints": 2,
    "train.average_last": 3,
    "decode.max_len_b": 3,
}

needs_bf16 = pytest.mark.skipif(
    not has_fast_bf16(torch.device("cpu")), reason="this CPU does not compute in bf16"
)


class Crash(BaseException):
    """The process dies here."""


def crash(*_: object) -> None:
    raise Crash


@functools.cache
def config_of_all() -> Path:
    """Return the config of all runs of this file."""
    directory = Path(tempfile.mkdtemp(prefix="mtrain-resume-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return write_config(directory, **SETTINGS)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def start(run: Path, *overrides: str, stop_at: int | None = None) -> None:
    """Do what `mtrain train` does in this process; stop after step `stop_at`."""
    config = load_config(config_of_all(), [f"run_dir={run}", *overrides])
    step = Trainer.take_step

    def stopping_step(self: Trainer, *arguments: Any) -> Any:
        if self.progress.step + 1 == stop_at:
            self.stop.received = signal.SIGTERM
        return step(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "take_step", stopping_step)
        try:
            job.train(config, Stop())
        finally:
            log.close_log_files()


def stop(run: Path, at: int, *overrides: str) -> None:
    """Start or resume a run and stop it after step `at`."""
    if not run.exists():
        shutil.copytree(stopped_run(at, *overrides), run)
        return
    with pytest.raises(StoppedError, match="stopped by SIGTERM") as caught:
        start(run, *overrides, stop_at=at)
    assert caught.value.exit_code == EXIT_TERMINATED


@functools.cache
def stopped_run(at: int, *overrides: str) -> Path:
    """Return a run that was started once and stopped after step `at`. Do not write to it."""
    run = new_directory()
    stop(run, at, *overrides)
    return run


@functools.cache
def uninterrupted(*overrides: str) -> Path:
    """Return a run that was never stopped. Do not write to it."""
    run = new_directory()
    start(run, *overrides)
    return run


def finish(run: Path, *overrides: str) -> None:
    """Resume a run to its end, which must be that of an uninterrupted one."""
    start(run, *overrides)
    assert differences(run, uninterrupted(*overrides)) == []


def best_of(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "best.json").read_text())
    return content


def new_directory() -> Path:
    return Path(tempfile.mkdtemp(dir=config_of_all().parent))


def steps(run: Path) -> list[int]:
    """Return the steps of the checkpoints that exist."""
    return [layout.step_of(path) or 0 for path in layout.complete_checkpoints(run / "checkpoints")]


# --- stopped ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "train.threads=2 train.max_steps=6 train.average_last=0 data.test={}",
        pytest.param("train.precision=bf16", marks=needs_bf16),
        "train.accum_steps=2 train.max_steps=18",
        "train.schedule=cosine train.max_steps=18 train.metric=nll",  # the last is not scheduled
        "train.optimizer=muon",
        "train.subword_sampling=0.2 train.accum_steps=2",
        "train.augment.upper=0.2 train.augment.typos=0.3 train.subword_sampling=0.2",
        "train.ema_decay=0.9",
        "train.consistency=3 train.subword_sampling=0.2 train.ema_decay=0.9",
        "train.packing=true train.consistency=3 train.subword_sampling=0.2 train.optimizer=muon",
        pytest.param("train.compile=true", marks=pytest.mark.slow),
        pytest.param("train.compile=true train.packing=true", marks=pytest.mark.slow),
        pytest.param(
            "train.compile=true train.precision=bf16", marks=[needs_bf16, pytest.mark.slow]
        ),
        pytest.param("train.device=cuda train.packing=false", marks=needs_cuda),
        pytest.param("train.device=cuda train.consistency=3", marks=needs_cuda),
        pytest.param("train.device=cuda train.compile=true", marks=needs_cuda),
    ],
)
def test_stopped_and_resumed_is_uninterrupted(run: Path, settings: str) -> None:
    overrides = settings.split()
    last = load_config(config_of_all(), overrides).train.max_steps
    for at in (1, 5, 12, 13) if not overrides else [n for n in (5, 13) if n < last]:
        stop(run, at, *overrides)
        assert steps(run)[-1] == at
    with (run / "metrics.jsonl").open("a") as out:  # as by a kill
        out.write(f'{{"step": {at + 1}, "time": 1.0}}\n{{"step": {at + 2}, "ti')
    finish(run, *overrides)


@pytest.mark.slow
def test_a_run_on_a_gpu_resumes(run: Path) -> None:
    settings = ["train.device=cuda", "train.max_steps=8", "train.ema_decay=0.9"]
    with fake_cuda():
        stop(run, 5, *settings)
        finish(run, *settings)


@pytest.mark.slow
def test_a_run_that_starts_from_given_weights_resumes(tmp_path: Path) -> None:
    first = tmp_path / "first"
    shutil.copytree(uninterrupted(), first)
    given = f"train.init_from={first}"
    runs = [tmp_path / name for name in ("alone", "stopped")]
    start(runs[0], given)
    stop(runs[1], 5, given)
    shutil.rmtree(first)
    start(runs[1], given)
    assert differences(*runs) == []
    origins = [json.loads((run / "run.json").read_text())["init_from"] for run in runs]
    assert origins[0] == origins[1] is not None
    runs[1] = uninterrupted()
    losses = [json.loads((run / "metrics.jsonl").open().readline())["train/nll"] for run in runs]
    assert losses[0] < losses[1] - 0.3


def test_a_run_starts_again_from_the_same_weights_only(tmp_path: Path) -> None:
    """It was killed before its first checkpoint, and the given run has gone on since."""
    first, run = tmp_path / "first", tmp_path / "run"
    average = Path(shutil.copytree(uninterrupted(), first)) / "checkpoints" / "average"
    given = [f"train.init_from={average}", "train.max_steps=4"]
    for _ in range(2):
        start(run, *given)
        began = json.loads((run / "run.json").read_text())["init_from"]
        assert began == manifest.hash_file(average / layout.MODEL)
        shutil.rmtree(run / "checkpoints")
        (run / "best.json").unlink()
        (run / "status.json").write_text('{"state": "running", "step": 0}')
    shutil.rmtree(average)
    shutil.copytree(layout.complete_checkpoints(first / "checkpoints")[-1], average)
    with pytest.raises(RefusedError, match="not the same as when this run began"):
        start(run, *given)


@pytest.mark.parametrize("given", ["trained", "tokenizer.path"])
def test_a_run_with_its_own_vocabulary_takes_the_rows_that_it_knows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    given: str,
) -> None:
    caplog.set_level("INFO", "mtrain")
    first, settings = uninterrupted(), ["train.init_vocabulary=own", "train.ema_decay=0.9"]
    settings += ["train.max_steps=4", f"train.init_from={first}"]
    if given == "trained":
        settings += ["tokenizer.model_type=unigram", "tokenizer.vocab_size=300"]
    else:
        lines = [line + " kernel" for pair in made_up_pairs(60, 8) for line in pair]
        (tmp_path / "own.model").write_bytes(make_tokenizer(lines, vocab_size=305).proto)
        settings += [f"tokenizer.path={tmp_path / 'own.model'}"]
    runs, began = [tmp_path / name for name in ("alone", "stopped")], []
    copy = resume.copy_values
    monkeypatch.setattr(
        resume, "copy_values", lambda own, values: began.append(values) or copy(own, values)
    )
    start(runs[0], *settings)
    old, new = (Tokenizer.load(run / "tokenizer.model") for run in (first, runs[0]))
    best = json.loads((first / "best.json").read_text())["best"]["checkpoint"]
    before = checkpoint.load(first / "checkpoints" / best).weights["tgt_embedding.weight"]
    found, spelled = began[0]["tgt_embedding.weight"], old.map_vocabulary(new)
    both = {*old.all_pieces} & {*new.all_pieces}
    assert 260 < len(both) < new.vocab_size == len(found)
    for piece, row, ids in zip(new.all_pieces, found, spelled, strict=True):
        assert (len(ids) == 1) or piece not in both
        torch.testing.assert_close(
            row, before[ids].mean(0), rtol=0, atol=0 if len(ids) == 1 else 1e-6
        )
    counts = f"{len(both)} of {new.vocab_size} pieces are in both vocabularies"
    assert counts in caplog.text
    stop(runs[1], 3, *settings)
    start(runs[1], *settings)
    assert differences(*runs) == []
    with pytest.raises(RefusedError, match=r"train\.init_vocabulary: own in the run, theirs now"):
        start(runs[0], *settings, "train.init_vocabulary=theirs")


def test_initial_weights_of_another_shape_are_refused(run: Path) -> None:
    given = [f"train.init_from={uninterrupted()}", "model.d_ff=48", "model.dropout=0.5"]
    with pytest.raises(RefusedError, match=r"another shape.*\n  model\.d_ff: 32 there, 48 here$"):
        start(run, *given)
    given = [given[0], "model.positions=learned", "data.max_length=50"]
    with pytest.raises(
        RefusedError, match=r"shape.*\n +data\.max_length: \d+ there, 50 here\n  mo"
    ):
        start(run, *given)


def test_step_13_is_within_a_later_epoch_and_between_two_records() -> None:
    run = stopped_run(13)
    loop = checkpoint.load_trainer(run / "checkpoints" / "step-00000013").loop
    assert loop.epoch > 0
    assert loop.batch > 0
    assert loop.sum_tokens > 0
    assert len(contents(uninterrupted())) > 20


@pytest.mark.parametrize("call", [1, 3, 4, 5], ids=["valid", "last valid", "average", "test"])
def test_stopped_while_translating(run: Path, call: int) -> None:
    """Validations are due at steps 8, 16 and 24, then the average and the test set."""
    evaluate, calls = Validation.evaluate, [0]

    def stopping(self: Validation, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            self.stop.received = signal.SIGUSR1
        return evaluate(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Validation, "evaluate", stopping)
        with pytest.raises(StoppedError, match="stopped by SIGUSR1") as caught:
            start(run)
    assert caught.value.exit_code == EXIT_STOPPED
    assert status(run)["state"] == "stopped"
    finish(run)


@pytest.mark.parametrize("call", [1, 4, 5], ids=["valid", "average", "test"])
def test_scores_that_were_recorded_before_a_kill_are_recorded_once(run: Path, call: int) -> None:
    """The kill comes before `best.json` is written."""
    write, calls = Validation.write_history, count(1)

    def dying(self: Validation) -> None:
        if next(calls) == call:
            raise Crash
        write(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Validation, "write_history", dying)
        with pytest.raises(Crash):
            start(run)
    finish(run)


def test_a_resume_point_is_removed_at_the_next_scheduled_checkpoint(run: Path) -> None:
    for at, there in ((5, [4, 5]), (6, [4, 5, 6]), (8, [4, 8]), (11, [4, 8, 11])):
        stop(run, at)
        assert steps(run) == there
    trainers = [path.parent.name for path in (run / "checkpoints").glob("*/trainer")]
    assert sorted(trainers) == ["step-00000008", "step-00000011"]
    start(run)
    assert best_of(run)["average"]["of"] == [layout.step_name(step) for step in (16, 20, 24)]
    assert set(steps(run)) - {best_of(run)["best"]["step"]} <= {16, 20, 24}


# --- killed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_change_of_the_disk(tmp_path: Path, step: int) -> None:
    """Die before the first rename, then before a later one, up to the end of the run."""
    overrides = ["train.max_steps=5", "train.valid_every=4", "train.average_last=2"]
    expected = uninterrupted(*overrides)
    rename, calls, run = os.replace, 0, tmp_path / "run"
    for calls in count(0, step):
        effects = chain([rename] * calls, repeat(crash))
        with pytest.MonkeyPatch.context() as patch, suppress(Crash):
            patch.setattr(os, "replace", lambda *names, effects=effects: next(effects)(*names))
            start(run, *overrides)
            break
        start(run, *overrides)
        assert differences(run, expected) == [], f"killed before rename {calls + 1}"
        shutil.rmtree(run)
    assert calls > 20


# Does something in the middle of step 11.
AT_STEP_11 = """
import hashlib, os, signal, threading, time
from mtrain.training.trainer import Trainer
step = Trainer.take_step
def struck(self, *arguments):
    if self.progress.step + 1 == 11:
        {action}
    return step(self, *arguments)
Trainer.take_step = struck
"""
TIME_LIMIT = "self.stop.started -= 3600"


def kill(name: str) -> str:
    return f"os.kill(os.getpid(), signal.{name})"


def train_struck(run: Path, action: str) -> subprocess.CompletedProcess[str]:
    """Do what `mtrain train` does in a process of its own, and `action` within step 11."""
    options = ["--set", f"run_dir={run}", "--time-limit", "30m"]
    prelude = AT_STEP_11.format(action=action)
    return run_mtrain("train", "-c", config_of_all(), *options, prelude=prelude)


@pytest.mark.parametrize(
    ("action", "code", "reason"),
    [
        (kill("SIGTERM"), EXIT_TERMINATED, "stopped by SIGTERM"),
        (kill("SIGINT"), EXIT_INTERRUPTED, "stopped by SIGINT"),
        (kill("SIGUSR1"), EXIT_STOPPED, "stopped by SIGUSR1"),
        (kill("SIGHUP"), EXIT_HUNG_UP, "stopped by SIGHUP"),
        (TIME_LIMIT, EXIT_STOPPED, "stopped by time limit"),
        (kill("SIGKILL"), -signal.SIGKILL, ""),
    ],
)
def test_real_processes_stop_and_resume(run: Path, action: str, code: int, reason: str) -> None:
    done = train_struck(run, action)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert ("run the same command again" in done.stderr) == bool(reason)
    assert steps(run) == ([4, 8, 11] if reason else [4, 8])
    found = status(run)
    ended = ("stopped", code, 11) if reason else ("running", None, 8)
    assert (found["state"], found["exit_code"], found["step"]) == ended
    assert reason in found["reason"]
    assert reason in done.stderr
    where = r"saved and stopped at step 11 of \d+, [\dms]+ after the run began: "
    assert bool(re.search(where + re.escape(str(run)), done.stderr)) == bool(reason)
    finish(run)


def test_the_time_of_a_stop_is_now_and_not_that_of_the_last_record(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mtrain")
    with pytest.raises(StoppedError):
        start(run, "train.log_every=1000", stop_at=2)
    assert not (run / "metrics.jsonl").exists()
    assert re.search(r"stopped at step 2 of \d+, [\dms]+ after the run began: ", caplog.text)


# A step that is one call of a library, of many minutes, in which no Python handler runs.
LONG_CALL = (
    "threading.Thread(target=lambda: [(time.sleep(0.2), os.kill(os.getpid(), signal.SIGTERM)) "
    "for _ in range(2)]).start(); hashlib.pbkdf2_hmac('sha256', b'', b'', 2_000_000_000)"
)


@pytest.mark.parametrize(
    "action",
    [f"{kill('SIGTERM')}; time.sleep(0.2); {kill('SIGTERM')}; time.sleep(9)", LONG_CALL],
    ids=["in Python", "in a library"],
)
def test_a_second_signal_ends_at_once(run: Path, action: str) -> None:
    """Both come within one step, so that nothing can have been saved in between."""
    assert train_struck(run, action).returncode == EXIT_TERMINATED
    assert steps(run) == [4, 8]


def test_signals_that_come_together_are_one(run: Path) -> None:
    """`timeout` sends its signal twice."""
    twice = f"{kill('SIGTERM')}; time.sleep(0.001); {kill('SIGTERM')}"
    assert train_struck(run, twice).returncode == EXIT_TERMINATED
    assert steps(run) == [4, 8, 11]


def test_the_wait_for_a_long_step_is_announced(capfd: pytest.CaptureFixture[str]) -> None:
    for seconds, text in (9.9, ""), (12.4, "\nSIGTERM: saving after this step, in up to 12 s\n"):
        asked = Stop(step_seconds=seconds)
        asked._on_signal(signal.SIGTERM, None)
        assert capfd.readouterr().err == text
        assert asked.request == ("SIGTERM", EXIT_TERMINATED)


# --- damaged ----------------------------------------------------------------------------------


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 16
    file.write_bytes(data)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Return a reader of what was logged so far."""
    log.logger.propagate = True
    caplog.set_level(logging.INFO, "mtrain")
    return lambda: "\n".join(caplog.messages)


@pytest.mark.parametrize(
    ("at", "name", "damage"),
    [
        (12, "model.safetensors", flip),
        (12, "trainer/state.json", Path.unlink),
        (13, "model.safetensors", flip),
        (13, "trainer/optimizer.safetensors", flip),
        (13, "trainer/manifest.json", flip),
        (13, "trainer", shutil.rmtree),
        (13, "manifest.json", Path.unlink),
    ],
)
def test_a_damaged_checkpoint_is_passed_over(
    run: Path, warnings: Callable[[], str], at: int, name: str, damage: Callable[[Path], object]
) -> None:
    stop(run, at)
    newest = run / "checkpoints" / layout.step_name(at)
    damage(newest / name)
    start(run)
    earlier = {12: 8, 13: 12}[at]
    assert f"resuming at step {earlier} " in warnings()
    assert str(newest) in warnings()
    assert "going back to an earlier checkpoint" in warnings()
    if name == "manifest.json":  # what is left is no checkpoint
        shutil.rmtree(newest, ignore_errors=True)
    assert differences(run, uninterrupted()) == []


@pytest.mark.parametrize(
    ("forged", "message"),
    [
        ({"pool": 10**15}, "its position is beyond an epoch"),
        ({"sums": [1.0, 2.0, 3.0]}, "its sums belong to another loss"),
    ],
)
def test_a_state_that_does_not_fit_the_run_is_refused(
    run: Path, forged: dict[str, Any], message: str
) -> None:
    stop(run, 5)
    inner = run / "checkpoints" / "step-00000005" / "trainer"
    state = json.loads((inner / "state.json").read_text())
    (inner / "state.json").write_text(json.dumps({**state, **forged}))
    manifest.seal(inner)
    with pytest.raises(UserError, match=f"trainer: damaged: {message}.*; restore it, or remove"):
        start(run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda moments: moments.popitem(), r"trainer: missing or unknown weights: \S+"),
        (lambda moments: moments.update(x=torch.ones(1)), "trainer: missing or unknown weights: x"),
        (
            lambda moments: moments["tgt_embedding.weight.exp_avg"].fill_(float("nan")),
            r"trainer: tgt_embedding\.weight\.exp_avg has values that are not finite",
        ),
    ],
)
def test_moments_that_do_not_fit_are_refused(
    run: Path, change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    stop(run, 5)
    inner = run / "checkpoints" / "step-00000005" / "trainer"
    moments = load_file(inner / "optimizer.safetensors")
    change(moments)
    save_file(moments, inner / "optimizer.safetensors")
    manifest.seal(inner)
    with pytest.raises(UserError, match=f"{message}.*; restore it, or remove /"):
        start(run)


def test_a_checkpoint_of_another_vocabulary_is_refused(run: Path) -> None:
    stop(run, 5)
    path = run / "checkpoints" / "step-00000005"
    vocabulary = make_tokenizer(["other words"] * 9, vocab_size=280).proto
    (path / "tokenizer.model").write_bytes(vocabulary)
    manifest.seal(path)
    with pytest.raises(UserError, match="has a different vocabulary from this run; restore"):
        start(run)


def test_what_a_kill_left_is_removed_at_the_next_start(run: Path) -> None:
    stop(run, 5)
    left = [".step-00000009.partial", ".step-00000002.removed"]
    for name in left:
        (run / "checkpoints" / name).mkdir()
    stop(run, 6)
    assert [name for name in left if (run / "checkpoints" / name).exists()] == []


def test_checkpoints_are_left_alone_once_the_directory_is_not_held(run: Path) -> None:
    """Another process may have replaced it."""
    stop(run, 5)
    trainer = trainer_of(load_config(config_of_all(), [f"run_dir={run}"]), run)
    with trainer.directory.hold():
        (run / ".lock").unlink()
        (run / "checkpoints" / ".step-00000009.partial").mkdir()
        before = sorted(run.rglob("*"))
        for change in (
            lambda: trainer.checkpoints.save(trainer.progress, set()),
            lambda: trainer.checkpoints.prune(set()),
            lambda: trainer.checkpoints.restore(trainer.batches.pools),
        ):
            with pytest.raises(ReplacedError):
                change()
        assert sorted(run.rglob("*")) == before


def test_a_restored_state_reaches_all_ranks_and_the_model(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 alone reads it; in bf16, the model computes with copies of the weights."""
    settings = ["train.ema_decay=0.9", "train.precision=bf16"]
    stop(run, 3, *settings)
    sent = set[int]()
    monkeypatch.setattr(
        Ranks, "broadcast", lambda _, *tensors: sent.update(t.data_ptr() for t in tensors)
    )
    trainer = trainer_of(load_config(config_of_all(), [f"run_dir={run}", *settings]), run)
    weights, average = trainer.optimizer.weights, trainer.learner.average
    assert average is not None
    assert trainer.checkpoints.restore(trainer.batches.pools).step == 3
    for tensors in (weights, average.values, trainer.optimizer.moments()):
        assert {tensor.data_ptr() for tensor in tensors.values()} <= sent
    for name, parameter in trainer.learner.model.named_parameters():
        assert parameter.equal(weights[name].to(parameter.dtype))
    assert trainer.learner.model.dtype == torch.bfloat16


def test_the_model_of_a_damaged_trainer_stays_until_another_is_saved(run: Path) -> None:
    stop(run, 12)
    newest = run / "checkpoints" / "step-00000012"
    flip(newest / "trainer" / "state.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "take_step", crash)
        with pytest.raises(Crash):
            start(run)
    assert reader.is_intact(newest)
    stop(run, 10)
    assert steps(run) == [4, 8, 10]
    finish(run)


def test_a_damaged_checkpoint_is_replaced_by_that_of_the_same_step(run: Path) -> None:
    stop(run, 8)
    flip(run / "checkpoints" / "step-00000008" / "trainer" / "state.json")
    stop(run, 8)
    assert steps(run) == [4, 8]
    assert reader.is_intact(run / "checkpoints" / "step-00000008" / "trainer")


@pytest.mark.parametrize("name", ["manifest.json", "trainer/state.json"])
def test_without_an_intact_checkpoint_nothing_starts_again(run: Path, name: str) -> None:
    stop(run, 5)
    for step in (4, 5):
        flip(run / "checkpoints" / layout.step_name(step) / name)
    with pytest.raises(UserError, match="no checkpoint that can be resumed from") as caught:
        start(run)
    assert caught.value.exit_code == EXIT_FAILED
    assert status(run)["state"] == "failed"
    assert status(run)["step"] == (0 if name == "manifest.json" else 5)
    assert len(list((run / "checkpoints").glob("step-*"))) == 2


def test_older_checkpoints_without_a_trainer_are_not_called_damaged(
    run: Path, warnings: Callable[[], str]
) -> None:
    stop(run, 13)
    for step in (12, 13):
        flip(run / "checkpoints" / layout.step_name(step) / "trainer" / "state.json")
    with pytest.raises(UserError, match="no checkpoint that can be resumed from"):
        start(run)
    assert steps(run) == [4, 8, 12, 13]
    assert warnings().count("going back to an earlier checkpoint") == 2


def test_a_damaged_average_is_made_again(
    run: Path, warnings: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An intact average stays; a new one leaves out the checkpoints up to a damaged one. The best
    is chosen again, too.
    """
    monkeypatch.setattr("mtrain.runs.history.MIN_BLEU", 0.0)  # the last step is best by NLL
    settings = ["train.keep_checkpoints=6", "train.average_last=3"]
    start(run, *settings)
    average = run / "checkpoints" / "average"
    before = {name: weight.clone() for name, weight in checkpoint.load(average).weights.items()}
    flip(average / "model.safetensors")
    start(run, *settings)
    assert (run / "metrics.jsonl").read_text().count("average/bleu") == 1
    after = checkpoint.load(average).weights
    assert all(torch.equal(after[name], weight) for name, weight in before.items())

    flip(run / "checkpoints" / "step-00000016" / "manifest.json")
    start(run, *settings)
    assert "only later checkpoints are averaged" not in warnings()
    after = checkpoint.load(average).weights
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert best_of(run)["average"]["of"] == ["step-00000016", "step-00000020", "step-00000024"]
    flip(average / "model.safetensors")
    start(run, *settings)
    assert "step-00000016: damaged or missing; only later checkpoints are averaged" in warnings()
    assert best_of(run)["average"]["of"] == ["step-00000020", "step-00000024"]

    best = reader.resolve(run)
    flip(best / "model.safetensors")
    start(run, "train.keep_checkpoints=6", "train.average_last=0")
    assert f"{best}: damaged or missing; using the best intact checkpoint" in warnings()
    assert reader.resolve(run) != best
    assert reader.is_intact(reader.resolve(run))


def test_a_best_checkpoint_that_is_gone_is_marked_at_the_next_start(run: Path) -> None:
    """It may have been removed when another was the best, before a resume at an earlier step."""
    stop(run, 13)
    shutil.rmtree(run / "checkpoints" / "step-00000008")
    stop(run, 14)
    assert [entry["lost"] for entry in best_of(run)["history"]] == [True]
    assert reader.resolve(run).name == "step-00000014"


@pytest.mark.slow
@pytest.mark.parametrize("sets", [["valid"], ["valid", "test"]], ids=" ".join)
def test_a_lost_history_is_rebuilt_from_the_records(
    run: Path, warnings: Callable[[], str], sets: list[str]
) -> None:
    parts = ", ".join(entry(config_of_all().parent / "data" / name) for name in sets)
    settings = f"data.valid={parts if len(sets) == 1 else f'[{parts}]'}"
    stop(run, 18, settings)
    before = best_of(run)
    (run / "best.json").unlink()
    stop(run, 19, settings)
    assert f"{run / 'best.json'}: missing; it is rebuilt from metrics.jsonl" in warnings()
    assert best_of(run) == before
    (run / "best.json").unlink()
    finish(run, settings)


def test_a_resume_warns_of_lost_records(run: Path, warnings: Callable[[], str]) -> None:
    stop(run, 13)
    records = run / "metrics.jsonl"
    lines = records.read_text().splitlines(keepends=True)
    records.write_text("".join(line for line in lines if json.loads(line)["step"] > 8))
    stop(run, 14)
    assert f"{records}: has no record of the validation at step 8, which best" in warnings()


@pytest.mark.parametrize("name", ["best.json", "run.json", "config.yaml"])
def test_a_run_that_lacks_a_file_is_not_resumed(run: Path, name: str) -> None:
    stop(run, 13)
    (run / name).unlink()
    if name == "best.json":  # else it is rebuilt
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        (run / "metrics.jsonl").write_text("".join(line for line in lines if "valid/" not in line))
    with pytest.raises(UserError, match=name):
        start(run)
    assert steps(run) == [4, 8, 12, 13]


@pytest.mark.parametrize("at", [5, 13])
def test_an_epoch_of_many_parts_goes_on_in_the_middle(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    monkeypatch.setattr(batches, "POOL", 16)
    monkeypatch.setattr(batches, "BLOCK", 4)
    start(tmp_path / "undisturbed")
    run.mkdir()  # or it is copied from one of a single pool
    stop(run, at)
    state = checkpoint.load_trainer(run / "checkpoints" / layout.step_name(at)).loop
    assert (state.epoch, state.pool) > (0, 0)
    start(run)
    assert differences(run, tmp_path / "undisturbed") == []


# --- the comparison can fail ------------------------------------------------------------------


def forget(kind: str = "none", **values: Any) -> tuple[Any, str, Any]:
    """Replace a part of the position in what is loaded, and one kind of moments by zeros."""
    load = checkpoint.load_trainer

    def broken(path: Path) -> TrainerState:
        state = load(path)
        zeros = {n: torch.zeros_like(m) for n, m in state.moments.items() if n.endswith(kind)}
        return TrainerState({**state.moments, **zeros}, replace(state.loop, **values))

    return checkpoint, "load_trainer", broken


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        forget(epoch=0),
        forget(batch=0),
        forget(step=0),
        forget(sums=[0.0, 0.0]),
        forget(sum_tokens=1),
        forget(".exp_avg"),
        forget(".exp_avg_sq"),
        forget(".step"),
        (training, "slice_seed", lambda *numbers: sum(numbers)),
        (resume, "copy_values", lambda *_: None),
        (resume, "Progress", lambda sums, step=0, *_: Progress(sums, step)),
    ],
)
def test_a_broken_restore_is_noticed(
    run: Path, owner: Any, name: str, broken: Callable[..., Any]
) -> None:
    stop(run, 13)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, broken)
        start(run)
    assert differences(run, uninterrupted()) != []


# --- complete, and continued ------------------------------------------------------------------


def test_a_complete_run_says_so_and_changes_nothing(run: Path, warnings: Callable[[], str]) -> None:
    start(run)
    before = contents(run)
    start(run)
    assert "training is complete at step 24; to train longer, raise train.max_steps" in warnings()
    assert contents(run) == before
    assert status(run)["exit_code"] == 0


def test_a_complete_run_that_is_to_keep_fewer_checkpoints_removes_them(run: Path) -> None:
    shutil.copytree(uninterrupted(), run)
    assert len(steps(run)) > 2
    start(run, "train.keep_checkpoints=1", "train.average_last=0")
    assert {*steps(run)} == {24, best_of(run)["best"]["step"]}


def test_a_complete_run_is_tested_again_with_another_search_or_text(run: Path) -> None:
    directory, found, tokenizers = config_of_all().parent / "data", list[Any](), list[str]()
    for change in (
        "",
        "decode.beam_size=1",
        f"data.test={{held_out: {entry(directory / 'valid')}}}",
        f"data.test={{held_out: {entry(directory / 'valid')[:-1]}, tgt_lang: zh}}}}",
    ):
        start(run, *[change] * bool(change))
        scored = best_of(run)["tests"]["held_out"]
        lines = (run / "validation" / "test-held_out.txt").read_text().splitlines()
        found.append((scored["decode"]["beam_size"], scored["sha256"], len(lines)))
        tokenizers.append(re.search(r"\|tok:(\w+)", scored["signature"])[1])
    records = (run / "metrics.jsonl").read_text()
    assert (records.count("test/held_out/bleu"), records.count("average/bleu")) == (1, 1)
    (first, other, third, _), record = found, json.loads((run / "run.json").read_text())
    assert other == (1, *first[1:])
    assert third == (2, record["valid"], 12)
    assert tokenizers == ["13a", "13a", "13a", "zh"]


def test_a_larger_max_steps_continues_a_complete_run(run: Path) -> None:
    start(run, "train.max_steps=16")
    start(run)
    expected, final = uninterrupted(), "checkpoints/step-00000024"
    names = ("model.safetensors", "trainer/optimizer.safetensors", "trainer/state.json")
    for name in ("best.json", *(f"{final}/{name}" for name in names)):
        assert (run / name).read_bytes() == (expected / name).read_bytes()


def test_moments_may_be_larger_than_weights(run: Path) -> None:
    """Adam counts the steps, which may be more than a million."""
    start(run, "train.max_steps=16")
    newest = run / "checkpoints/step-00000016"
    moments = load_file(file := newest / "trainer/optimizer.safetensors")
    for name in moments:
        if name.endswith(".step"):
            moments[name].fill_(2e6)
    save_file(moments, file)
    manifest.seal(newest)
    start(run)
    assert (run / "checkpoints/step-00000024").is_dir()


@pytest.mark.slow
def test_a_run_that_is_extended_is_as_if_it_had_not_ended(run: Path) -> None:
    """The first end is validated out of turn, averaged and tested."""
    settings = ["train.valid_every=4", "train.keep_checkpoints=1", "train.average_last=2"]
    start(run, *settings, "train.max_steps=10", "train.save_every=2")
    start(run, *settings, "train.save_every=2")
    expected = uninterrupted(*settings, "train.save_every=2")
    assert differences(run, expected) == ["validation/step-00000010.txt"]


def script(patch: pytest.MonkeyPatch, *scores: float) -> None:
    """Replace the scores of validations."""
    left = list(scores)

    def evaluate(self: Validation, *_: Any) -> Any:
        value = left.pop(0)
        return {"bleu": value, "chrf": value, "nll": 1.0, "signature": "none"}

    patch.setattr(Validation, "evaluate", evaluate)


def test_patience_is_counted_over_stops(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ["train.valid_every=4", "train.patience=2", "data.test={}"]
    script(monkeypatch, 5.0, 4.0, 3.0, 1.0)
    stop(run, 6, *overrides)
    stop(run, 11, *overrides)
    start(run, *overrides)
    assert status(run)["step"] == 12
    best = best_of(run)
    assert [entry["bleu"] for entry in best["history"]] == [5.0, 4.0, 3.0]
    assert best["best"] == {"checkpoint": "step-00000004", "step": 4, "bleu": 5.0}
    assert best["average"]["bleu"] == 1.0
    start(run, *overrides)
    assert status(run)["step"] == 12


def test_a_resume_point_is_not_averaged_where_patience_is_lowered(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, 5.0, 4.0, 1.0)
    stop(run, 18, "data.test={}")
    start(run, "data.test={}", "train.patience=1")
    assert status(run)["step"] == 18
    assert best_of(run)["average"]["of"] == ["step-00000008", "step-00000012", "step-00000016"]


def test_an_average_that_is_not_wanted_any_more_is_not_the_best(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["train.max_steps=8", "data.test={}"]
    script(monkeypatch, 50, 90)
    start(run, *overrides)
    assert best_of(run)["best"]["checkpoint"] == "average"
    start(run, *overrides, "train.average_last=0")
    assert best_of(run)["best"]["checkpoint"] == "step-00000008"
    assert best_of(run)["average"] is None


def test_the_best_checkpoint_outlives_an_average_that_was_better(
    run: Path, monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], str]
) -> None:
    """The average of the first part scores best; the continued run ends with a worse average."""
    overrides = ["train.valid_every=4", "train.keep_checkpoints=1", "train.average_last=2"]
    script(monkeypatch, 50, 10, 90, 90, 10, 10, 10, 10, 5, 50)
    loaded, load = list[str](), Validation._load
    monkeypatch.setattr(
        Validation, "_load", lambda self, name: loaded.append(name) or load(self, name)
    )
    start(run, "train.max_steps=8", *overrides)
    replaced = (
        f"{run}/checkpoints/average was the best model; the run that continues does not count it"
    )
    assert replaced not in warnings()
    start(run, *overrides)
    assert warnings().count(replaced) == 1
    best = best_of(run)["best"]
    assert best["checkpoint"] == "step-00000004"
    assert 4 in steps(run)
    assert loaded == ["average", "average", "average", "step-00000004"]  # validated, tested


# --- other settings and data ------------------------------------------------------------------


@pytest.fixture
def stopped(run: Path) -> Path:
    """Return a run that was stopped at step 5."""
    stop(run, 5)
    return run


def refusal(run: Path, *overrides: str) -> str:
    """Return why a run is not continued; nothing but its status and log may change."""
    before = {path: path.read_bytes() for path in run.rglob("*.*") if path.is_file()}
    stands = {key: value for key, value in status(run).items() if key != "last_start"}
    with pytest.raises(RefusedError) as caught:
        start(run, *overrides)
    assert caught.value.exit_code == EXIT_REFUSED
    after = {path: path.read_bytes() for path in run.rglob("*.*") if path.is_file()}
    written = {run / "train.log", run / "status.json"}
    assert {path for path in after if after[path] != before.get(path)} <= written
    assert after.keys() == before.keys()
    found = status(run)
    last = found.pop("last_start")
    assert found == stands
    assert (last["state"], last["exit_code"]) == ("refused", EXIT_REFUSED)
    assert last["reason"] == str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (
            ["seed=8", "model.d_ff=48", "train.peak_lr=1e-3", "train.metric=chrf"],
            ["seed: 7 in the run, 8 now", "model.d_ff", "train.peak_lr", "train.metric"],
        ),
        (
            ["data.max_length=20", "data.tgt_lang=zh", "tokenizer.vocab_size=310"],
            ["data.max_length", "data.tgt_lang", "tokenizer.vocab_size"],
        ),
        (
            ["train.peak_lr=1e-3", "train.label_smoothing=0.2"],
            ["another run_dir, where train.init_from: /", "train.peak_lr", "train.label_smoothing"],
        ),
        (["train.accum_steps=2"], ["train.accum_steps"]),
        (
            ["train.step_batches=3", "model.d_ff=48"],
            [
                "model.d_ff: 32 in the run, 48 now",
                "micro-batches, not 3",
                "set train.step_batches: 1",
            ],
        ),
        (["train.threads=2"], ["train.threads"]),
    ],
)
def test_other_settings_are_refused_by_name(
    stopped: Path, overrides: list[str], keys: list[str]
) -> None:
    message = refusal(stopped, *overrides)
    assert [key for key in keys if key not in message] == []
    assert str(stopped) in message or "train.threads" in message
    assert ("where train.init_from: " in message) == (overrides[0] == "train.peak_lr=1e-3")
    way_back = f"go back to them (mtrain train {stopped / 'config.yaml'}) or choose another"
    assert (way_back in message) == (len(overrides) > 1)
    assert "train.patience" not in message
    is_set = overrides == ["train.accum_steps=2"]
    assert ("and remove train.accum_steps" in message) == is_set


def entry(path: Path) -> str:
    return f"{{src: {path}.src, tgt: {path}.tgt}}"


def test_free_settings_may_change_and_each_change_is_logged(
    stopped: Path, tmp_path: Path, warnings: Callable[[], str]
) -> None:
    corpora = Path(shutil.copytree(config_of_all().parent / "data", tmp_path / "elsewhere"))
    train, valid = entry(corpora / "train"), entry(corpora / "valid")
    changes = {"data.train": f"[{train}]", "data.valid": valid, "data.test": "{}"}
    changes |= {"data.workers": 2, "decode.beam_size": 1, "decode.max_len_b": 4}
    numbers = {"max_steps": 20, "patience": 3, "log_every": 2, "keep_checkpoints": 3}
    changes |= {f"train.{key}": value for key, value in {**numbers, "average_last": 0}.items()}
    moved = stopped.rename(stopped.with_name("moved"))
    start(moved, *(f"{key}={value}" for key, value in changes.items()))
    logged = warnings()
    assert [key for key in changes if f"changed setting {key}" not in logged] == []
    final = "checkpoints/step-00000020/model.safetensors"
    expected = uninterrupted("train.max_steps=20")
    assert (moved / final).read_bytes() == (expected / final).read_bytes()


def test_several_validation_sets_decide_by_their_mean(run: Path) -> None:
    one = entry(config_of_all().parent / "data" / "valid")[:-1]
    parts = f"data.valid=[{one}, tag: <a>}}, {one}, tag: <b>, swap: true}}]"
    changes = ["train.max_steps=16", "train.metric=chrf"]
    stop(run, 10, parts, *changes)
    other = refusal(run, parts.replace("<a>", "<b>"), *changes)
    assert "the content of data.valid.0 is not" in other  # of the two, the one that changed
    assert "the content of data.valid is not" in refusal(run, f"data.valid={one}}}", *changes)
    finish(run, parts, *changes)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines if '"valid/1/ppl"' in line]
    for scored, record in zip(best_of(run)["history"], records, strict=True):
        assert (run / f"validation/{scored['checkpoint']}.txt").read_text().count("\n") == 24
        for key in ("bleu", "chrf", "nll"):
            one, two = (part[key] for part in scored["parts"])
            names = [f"valid/{key}", f"valid/0/{key}", f"valid/1/{key}"]
            assert [record[name] for name in names] == [(one + two) / 2, one, two]


def test_other_content_is_refused(
    stopped: Path, tmp_path: Path, warnings: Callable[[], str]
) -> None:
    write_corpus(tmp_path / "other", made_up_pairs(40, seed=9))
    other = entry(tmp_path / "other")
    assert "the content of data.valid is not" in refusal(stopped, f"data.valid={other}")
    assert "changed setting" not in warnings()  # nothing was changed
    text = refusal(stopped, f"data.train=[{other}]")
    assert "the content of data.train is not" in text
    assert text.endswith(f"where train.init_from: {stopped} starts from its weights")
    same = entry(config_of_all().parent / "data" / "train").replace("}", ", weight: 2}")
    text = refusal(stopped, f"data.train=[{same}]")
    assert "the list of weights of data.train is not the same" in text
    assert "(it was [1.0], and is [2.0])" in text
    lines = [f"{line} kernel" for pair in made_up_pairs(60, 8) for line in pair]
    vocabulary = make_tokenizer(lines).proto
    (stopped / "tokenizer.model").write_bytes(vocabulary)
    text = refusal(stopped)
    assert "the vocabulary is not the same" in text
    assert "init_from" not in text  # these weights would not fit


@pytest.mark.parametrize(
    ("name", "function", "values"),
    [
        ("precision", "compute_dtype", {"fp32": torch.float32, "bf16": torch.bfloat16}),
        ("threads", "available_threads", {"1": 1, "7": 7}),
    ],
)
def test_auto_that_resolves_to_another_value_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch, name: str, function: str, values: dict[str, object]
) -> None:
    (advice, first), (_, second) = values.items()
    monkeypatch.setattr(learner, function, lambda *_, **__: first)
    stop(run, 5, f"train.{name}=auto")
    assert f"{name}: auto\n" in (run / "config.yaml").read_text()
    monkeypatch.setattr(learner, function, lambda *_, **__: second)
    assert f"set train.{name}: {advice}" in refusal(run, f"train.{name}=auto")


@pytest.mark.parametrize("was", [True, False], ids=["packed", "unpacked"])
def test_packing_stays_as_it_was(run: Path, was: bool) -> None:
    """Also if it is named."""
    stop(run, 5, f"train.packing={str(was or 'auto').lower()}")
    loop = checkpoint.load_trainer(run / "checkpoints" / "step-00000005").loop
    assert loop.machine["packing"] is was
    advice, other = ("true", "false") if was else ("false", "true")
    assert f"set train.packing: {advice}" in refusal(run, f"train.packing={other}")
    stop(run, 7, f"train.packing={advice}")


def test_threads_may_change_where_rounding_does_not_depend_on_them() -> None:
    config = load_config(config_of_all())
    cpu = learner.MachineSettings("cpu", 8, "fp32", compile=False, openmp=2)
    resume.check_machine(cpu, {**asdict(cpu), "threads": 4}, config)
    gpu = replace(cpu, device="cuda")
    resume.check_machine(gpu, {**asdict(gpu), "threads": 4, "openmp": 1}, config)
    with pytest.raises(RefusedError, match=r"train\.threads: .* set train\.threads: 4$"):
        resume.check_machine(cpu, {**asdict(cpu), "threads": 4, "openmp": 1}, config)
    with pytest.raises(RefusedError, match=r"train\.device: .* set train\.device: cuda$"):
        resume.check_machine(cpu, asdict(gpu), config)


def test_a_run_of_an_early_version_goes_on_without_packing() -> None:
    config = load_config(config_of_all())
    plain = learner.MachineSettings("cuda", 8, "bf16", compile=False)
    early = {key: asdict(plain)[key] for key in ("device", "threads", "precision", "compile")}
    resume.check_machine(plain, early, config)
    with pytest.raises(RefusedError, match=r"set train\.packing: false$"):
        resume.check_machine(replace(plain, packing=True), early, config)


def test_a_run_on_cuda_that_auto_would_now_pack_and_compile_needs_one_setting() -> None:
    """Without packing, `auto` does not compile."""
    now = learner.MachineSettings("cuda", 8, "bf16", compile=True, packing=True)
    before = {**asdict(now), "compile": False, "packing": False}
    with pytest.raises(
        RefusedError, match=r"with false, and .* to true; to continue, set train\.packing: false"
    ):
        resume.check_machine(now, before, load_config(config_of_all()))


def test_a_change_of_compile_is_announced_in_the_words_of_a_config(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = learner.MachineSettings("cpu", 1, "fp32", compile=True)
    config = load_config(config_of_all(), ["train.compile=true"])
    resume.check_machine(now, {**asdict(now), "compile": False}, config)
    assert caplog.messages == [
        "train.compile: from here on true, not false; weights equal bit for bit are no longer "
        "promised"
    ]


@needs_bf16
def test_precision_may_be_changed_by_naming_it(stopped: Path, warnings: Callable[[], str]) -> None:
    stop(stopped, 7, "train.precision=bf16")
    assert "train.precision" in warnings()
    assert "bit for bit" in warnings()
    loop = checkpoint.load_trainer(stopped / "checkpoints" / "step-00000007").loop
    assert loop.machine["precision"] == "bf16"


def test_the_weights_of_another_vocabulary_of_one_size_are_refused(run: Path) -> None:
    first = uninterrupted()
    own = [f"run_dir={run}", "tokenizer.user_symbols=[zz]"]
    train_run_tokenizer(load_config(config_of_all(), own), Stop())
    with pytest.raises(RefusedError, match=r"has a different vocabulary from .*; remove that file"):
        start(run, *own, f"train.init_from={first}", "train.max_steps=4")


def test_a_vocabulary_of_other_text_is_not_taken_after_a_crash(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first start dies before it has written anything but the record of the run."""
    with monkeypatch.context() as patch:
        patch.setattr("mtrain.runs.directory.RunDirectory.keep_tokenizer", crash)
        with pytest.raises(Crash):
            start(run)
    with pytest.raises(RefusedError, match="not the same as when this run began"):
        start(run, "data.train=[{generated: phrasebook, split: train, pairs: 300}]")


def test_a_run_that_ends_or_stops_prepares_no_more_text(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    monkeypatch.setattr(batches.TokenBatches, "close", lambda self: closed.append(self))
    stop(run, 3, "train.max_steps=4")
    assert len(closed) == 1
    start(run, "train.max_steps=4")
    assert len(closed) == 2


def test_the_best_of_an_extended_run_is_a_checkpoint_that_is_there(run: Path) -> None:
    """The best validation is at the old end, where none is due now."""
    settings = ["train.keep_checkpoints=1", "train.average_last=0", "train.valid_every=4"]
    start(run, *settings, "train.max_steps=6")
    assert json.loads((run / "best.json").read_text())["best"]["step"] == 6
    stop(run, 7, *settings)
    best = json.loads((run / "best.json").read_text())["best"]
    assert best["checkpoint"] == "step-00000004"
    assert (run / "checkpoints" / best["checkpoint"]).is_dir()


def test_a_run_beyond_a_lower_end_is_validated_there(run: Path) -> None:
    stop(run, 7)
    start(run, "train.max_steps=5")
    found = json.loads((run / "best.json").read_text())
    assert [entry["step"] for entry in found["history"]] == [7]
    assert found["best"]["checkpoint"] in ("step-00000007", "average")
    assert status(run)["state"] == "complete"


def test_precision_is_no_advice_where_it_is_fp32(run: Path) -> None:
    with pytest.raises(UserError) as raised:
        start(run, "train.precision=fp32", "train.schedule=constant", "train.peak_lr=1e30")
    assert "lower learning rate" in str(raised.value)
    assert "train.precision" not in str(raised.value)


def test_pairs_that_pass_other_filters_are_refused(stopped: Path) -> None:
    """Another version of mtrain may filter in another way."""
    record = json.loads((stopped / "run.json").read_text())
    record["pairs"][0] += 1
    (stopped / "run.json").write_text(json.dumps(record))
    with pytest.raises(RefusedError, match=r"number of pairs of .* when this run"):
        stop(stopped, 7)
