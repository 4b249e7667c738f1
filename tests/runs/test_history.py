"""Validations of a run: the best of them, patience, and the form of `best.json`."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrain.config.schema import Metric, TrainConfig
from mtrain.runs.history import Entry, History
from mtrain.runs.layout import step_name
from mtrain.runtime.json_reader import read_json


def scored(step: int, checkpoint: str, **scores: float) -> Entry:
    values = {"bleu": 0.0, "chrf": 0.0, "nll": 0.0, **scores}
    return {"step": step, "checkpoint": checkpoint, **values, "signature": "nrefs:1"}


def history(metric: Metric, *values: float) -> History:
    """Return a history with these values at steps 10, 20, ..."""
    found = History.begin(metric)
    found.entries = [
        scored(step, step_name(step), **{metric: value})
        for step, value in zip(range(10, 1000, 10), values, strict=False)
    ]
    return found


@given(st.sampled_from(["bleu", "chrf", "nll"]), st.lists(st.integers(0, 4)), st.integers(0, 3))
def test_the_best_is_the_first_of_equals_and_patience_waits_for_a_better_one(
    metric: Metric, values: list[int], patience: int
) -> None:
    found, choose = history(metric, *values), min if metric == "nll" else max
    best = values.index(choose(values)) if values else None
    assert (found.best and found.best["step"]) == (None if best is None else 10 * best + 10)
    before, last = values[:-patience], values[-patience:]
    is_out = bool(patience and before) and choose(before) == choose(before + last)
    assert found.is_out_of_patience(patience) == is_out


def with_nll(*values: tuple[float, float]) -> History:
    """Return a history with these BLEU and NLL at steps 10, 20, ..."""
    found = history("bleu", *(bleu for bleu, _ in values))
    for entry, (_, nll) in zip(found.entries, values, strict=True):
        entry["nll"] = nll
    return found


def test_nll_decides_until_a_validation_reaches_a_bleu_of_1() -> None:
    early = [(0.3, 6.4), (0.1, 6.3), (0.9, math.nan)]
    found = with_nll(*early)
    assert found.as_json()["best"] == {"checkpoint": step_name(20), "step": 20, "nll": 6.3}
    assert found.as_json()["measure"] == "nll"
    assert [found.is_out_of_patience(patience) for patience in (1, 2)] == [True, False]
    found = with_nll(*early, (1.0, 7.0), (0.5, 2.0))
    assert found.as_json()["best"] == {"checkpoint": step_name(40), "step": 40, "bleu": 1.0}
    assert found.as_json()["measure"] == "bleu"
    assert [found.is_out_of_patience(patience) for patience in (1, 2)] == [True, False]
    found.entries[3]["lost"] = True  # so the others are compared by NLL again
    assert found.best_step_name == step_name(50)
    for metric in ("chrf", "nll", "command"):
        assert History.begin(metric).as_json()["measure"] == metric


def test_a_validation_that_is_not_a_number_is_the_worst_wherever_it_is() -> None:
    assert with_nll((0.1, math.nan), (0.1, 6.0)).best_step_name == step_name(20)


@pytest.mark.parametrize(
    ("values", "outlook"),
    [
        ((1.0,), None),
        ((1.0, 2.0), "The last validation is the best by bleu: more steps may help."),
        ((2.0, 1.0), "The best step is step-00000010: 1 later validation was no better."),
        ((2.0, 1.0, 2.0), "The best step is step-00000010: 2 later validations were no better."),
    ],
)
def test_whether_training_still_helped(values: tuple[float, ...], outlook: str | None) -> None:
    assert history("bleu", *values).outlook == outlook


def test_the_average_may_be_the_best_but_counts_for_no_patience() -> None:
    found = history("bleu", 2.0, 3.0, 2.5)
    for score, best in ((3.0, found.entries[1]), (3.1, scored(30, "average", bleu=3.1))):
        found.average = scored(30, "average", bleu=score)
        assert found.best == best
    assert found.is_out_of_patience(1)


def test_a_damaged_checkpoint_is_not_the_best_but_counts_for_patience() -> None:
    found = history("bleu", 3.0, 2.0, 2.5)
    found.entries[0]["lost"] = True
    assert found.best == found.entries[2]
    assert [found.is_out_of_patience(patience) for patience in (1, 2, 3)] == [True, True, False]


def test_a_history_is_cut_to_the_resumed_step_and_read_back() -> None:
    found = history("nll", 4.0, 3.0, 2.0)
    found.average = scored(30, "average", nll=1.0)
    found.tests = {"held_out": scored(30, "average", nll=1.0)}
    content = json.dumps(found.as_json())
    assert json.loads(content)["best"] == {"checkpoint": "average", "step": 30, "nll": 1.0}
    again = read_json(content.encode(), History)
    assert again.stored_best is not None
    assert again.stored_best.model_dump() == {"checkpoint": "average", "step": 30, "nll": 1.0}
    train = TrainConfig(max_steps=30, valid_every=20, save_every=10)
    again.cut(30, train.model_copy(update={"valid_every": 10}))
    assert json.dumps(again.as_json()) == content
    again.cut(29, train)  # 10 was validated as the last step of a shorter run
    assert (again.steps, again.average, again.tests) == ([20], None, {})
    for step, end in ((30, 40), (20, 20)):  # the run goes on, or ends earlier
        again = read_json(content.encode(), History)
        again.cut(step, train.model_copy(update={"max_steps": end}))
        assert (again.steps, again.average, again.tests) == ([20], None, {})


def test_the_best_where_more_steps_follow_is_kept_as_well() -> None:
    found = history("bleu", 3.0, 2.0, 4.0)
    assert found.best_names(20) == {step_name(30), step_name(20)}
    assert found.best_names(10) == {step_name(30)}
    assert history("bleu").best_names(10) == set()


def test_records_of_impossible_scores_make_no_history() -> None:
    scores = {"valid/bleu": 5.0, "valid/chrf": 9.0, "valid/nll": 1.0, "valid/signature": "x"}
    records = [{"step": 5, "lr": 0.1}, {"step": 10, **scores}]
    assert History.of_records("bleu", records).steps == [10]
    for wrong in ({"valid/bleu": 500.0}, {"valid/signature": 1}):
        with pytest.raises(ValueError, match=r"entries|history"):
            History.of_records("bleu", [{**records[1], **wrong}])


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ([], "an object"),
        ({"metric": "accuracy"}, "metric"),
        ({"best": {"checkpoint": "../x"}}, "best.checkpoint"),
        ({"history": [{"step": 10}]}, "history.0"),
        ({"tests": {"a": 1}}, "tests.a"),
    ],
)
def test_a_history_of_another_form_is_no_history(changes: object, place: str) -> None:
    content = (
        {**History.begin("bleu").as_json(), **changes} if isinstance(changes, dict) else changes
    )
    with pytest.raises(ValueError, match=place) as caught:
        read_json(json.dumps(content).encode(), History)
    assert "\n" not in str(caught.value)
