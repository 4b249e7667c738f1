"""The training loop: what its records say, and the seed of each slice."""

from __future__ import annotations

import gc
import json
import math
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import TinyConfig
from ranks import trainer_of
from torch import Tensor

from mtrain.config.loading import load_config
from mtrain.data.batches import Batch, TokenBatches
from mtrain.data.prepare import Preparation
from mtrain.runs import checkpoint
from mtrain.runtime.errors import UserError
from mtrain.runtime.stop import Stop
from mtrain.training import job
from mtrain.training import trainer as training
from mtrain.training.optimizer import Optimizer
from mtrain.training.trainer import slice_seed
from mtrain.training.validation import Validation
from mtrain.translation.loading import LoadedModel

RATES = ("", "attention_", "activation_")
TRAINING = (
    "clip_norm=0.1",
    "adam_betas=[0.8,0.98]",
    "adam_betas=[0.9,0.9]",
    "adam_eps=0.001",
    "label_smoothing=0.2",
    "optimizer=muon",
    "subword_sampling=0.3",
    "augment.upper=0.5",
    "consistency=1",
    "consistency=2",
    "consistency=1 train.cutoff=0.5",
)


@pytest.mark.slow
def test_records_are_of_all_steps_since_the_last_one(
    tiny_config: TinyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock by which a step takes half a second; what else takes time does not count."""
    pauses, validate = list[int](), Validation.validate

    def validate_slowly(self: Validation, step: int) -> None:
        validate(self, step)
        pauses.append(100)

    monkeypatch.setattr(Validation, "validate", validate_slowly)
    monkeypatch.setattr(training.Learner, "warm_up", lambda self: pauses.append(100))
    steps, tokens, read, update = list[Any](), [0], TokenBatches.read, Optimizer.update

    def read_and_count(self: TokenBatches, planned: Any) -> Batch:
        batch = read(self, planned)
        tokens[-1] += batch.num_tokens
        return batch

    def step(self: Optimizer, rate: float, num_tokens: int, clip_norm: float) -> Any:
        assert num_tokens == tokens[-1]
        assert gc.get_freeze_count() > 0
        norm = update(self, rate, num_tokens, clip_norm)
        if not steps:  # of gradients g: g / 2 and g ** 2 / 4
            first, second = (
                self.moments()[f"tgt_embedding.weight.exp_avg{kind}"] for kind in ("", "_sq")
            )
            torch.testing.assert_close(second, first**2)
        steps.append((*self.losses.tolist(), rate, float(norm)))
        tokens.append(0)
        return norm

    monkeypatch.setattr(TokenBatches, "read", read_and_count)
    monkeypatch.setattr(Optimizer, "update", step)
    clock = SimpleNamespace(monotonic=lambda: len(steps) / 2 + sum(pauses), time=time.time)
    monkeypatch.setattr(training, "time", clock)
    settings = {"train.max_steps": 6, "train.valid_every": 3, "train.save_every": 3}
    settings |= {"train.max_tokens": 100, "train.accum_steps": 2, "train.average_last": 0}
    config = load_config(
        tiny_config(**settings, **{"train.log_every": 3, "data.test": {}}),
        ["train.adam_betas=[0.5, 0.75]"],
    )
    job.train(config, Stop())
    assert gc.get_freeze_count() == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if "lr" in record]
    assert [record["step"] for record in records] == [3, 6]
    assert tokens[0] != tokens[1]
    rates = [0.00125, 0.0025, 0.00375, 0.005, 0.005 * (4 / 5) ** 0.5, 0.005 * (4 / 6) ** 0.5]
    assert [rate for _, _, rate, _ in steps] == pytest.approx(rates)
    for record, start in zip(records, (0, 3), strict=True):
        total = sum(tokens[start : start + 3])
        loss, nll = (sum(each[n] for each in steps[start : start + 3]) / total for n in (0, 1))
        assert record["train/loss"] == pytest.approx(loss, rel=1e-5)
        assert record["train/nll"] == pytest.approx(nll, rel=1e-5)
        assert record["train/ppl"] == pytest.approx(math.exp(nll), rel=1e-4)
        assert (record["lr"], record["grad_norm"]) == steps[start + 2][2:]
        assert record["tokens_per_second"] == pytest.approx(total / 1.5)


def test_a_moving_average_is_what_is_validated_and_saved(
    tiny_config: TinyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins with the weights of `train.init_from`."""
    path, validated, update = tiny_config(), list[Any](), Optimizer.update
    expected, taken = dict[str, Tensor](), list[int]()

    def average(self: Optimizer, *numbers: Any) -> Tensor:
        if not taken:
            expected.update({name: weight.clone() for name, weight in self.weights.items()})
        taken.append(len(taken) + 1)
        norm = update(self, *numbers)
        kept = min(0.2, (1 + taken[-1]) / (10 + taken[-1]))
        for name, weight in self.weights.items():
            expected[name] = kept * expected[name] + (1 - kept) * weight
        return norm

    def evaluate(self: Validation, model: LoadedModel, *_: Any) -> dict[str, Any]:
        validated.append({name: w.detach().clone() for name, w in model.model.named_parameters()})
        return {"bleu": 1.0, "chrf": 1.0, "nll": 1.0, "signature": "none"}

    monkeypatch.setattr(Optimizer, "update", average)
    monkeypatch.setattr(Validation, "evaluate", evaluate)
    settings = ["train.max_steps=2", "train.average_last=0", "data.test={}"]
    given = [f"train.init_from={tmp_path / 'first'}", "train.ema_decay=0.2"]
    for run, changes in (("first", []), ("run", given)):
        taken.clear()
        job.train(load_config(path, [f"run_dir={tmp_path / run}", *settings, *changes]), Stop())
    saved = checkpoint.load(tmp_path / "run" / "checkpoints" / "step-00000002").weights
    torch.testing.assert_close(saved, expected)
    torch.testing.assert_close(validated[1], expected)


def test_each_setting_of_learning_reaches_the_step(tiny_config: TinyConfig, tmp_path: Path) -> None:
    """Each gives other weights after two steps than any of the others."""
    path = tiny_config(**{"train.warmup_steps": 1, "train.max_tokens": 64})
    found, begins = dict[bytes, str](), dict[str, Tensor]()
    settings = ["", "seed=8", *(f"model.{name}dropout=0.2" for name in RATES)]
    settings += [f"train.{name}" for name in TRAINING]
    prepared = Preparation(load_config(path), Stop()).prepared
    for setting in settings:
        config = load_config(path, setting.split())
        trainer = trainer_of(config, tmp_path / "run", prepared)
        begins[setting] = trainer.optimizer.weights["tgt_embedding.weight"].clone()
        stream = trainer.micro_batches()
        for _ in range(2):
            trainer.take_step(stream)
        trainer.batches.close()
        weights = torch.cat([weight.flatten() for weight in trainer.optimizer.weights.values()])
        assert found.setdefault(weights.numpy().tobytes(), setting) == setting
    assert not begins[""].equal(begins["seed=8"])
    assert begins[""].equal(begins["model.dropout=0.2"])


def test_what_is_not_finite_ends_the_run(tiny_config: TinyConfig, tmp_path: Path) -> None:
    """Also where the loss is finite: a gradient, or a weight that would be saved."""
    trainer = trainer_of(load_config(tiny_config()), tmp_path / "run")
    stream = trainer.micro_batches()
    trainer.take_step(stream)
    trainer._check_finite()
    trainer.optimizer.weights["tgt_embedding.weight"][3, 0] = math.inf
    with pytest.raises(UserError, match=r"step 1 .*: tgt_embedding\.weight is not finite"):
        trainer._save()
    trainer.optimizer.weights["tgt_embedding.weight"][3, 0] = 0.0
    trainer.optimizer.update = lambda *_: torch.tensor(math.nan)  # type: ignore[method-assign]
    trainer.take_step(stream)
    with pytest.raises(UserError, match=r"step 2 .*: the loss or its gradient is not finite"):
        trainer._check_finite()


def test_the_first_step_blames_no_learning_rate(tiny_config: TinyConfig, tmp_path: Path) -> None:
    trainer = trainer_of(load_config(tiny_config()), tmp_path / "run")
    trainer.optimizer.update = lambda *_: torch.tensor(math.nan)  # type: ignore[method-assign]
    trainer.take_step(trainer.micro_batches())
    with pytest.raises(UserError, match=r"step 1 .*; check train\.init_from and model\.dropout"):
        trainer._check_finite()


def test_each_slice_of_each_step_has_a_seed_of_its_own() -> None:
    numbers = list(product((0, 1), (1, 2), (0, 1), (0, 1, 2)))
    assert len({slice_seed(*each) for each in numbers}) == len(numbers)
