"""Validations of a run: the best of them, patience, and the form of `best.json`."""

from __future__ import annotations

import json

import pytest

from mtrain.runs.history import History
from mtrain.runs.layout import step_name
from mtrain.runs.records import BEST, Entry
from mtrain.runtime.json_reader import read_json


def scored(step: int, checkpoint: str, **scores: float) -> Entry:
    values = {"bleu": 0.0, "chrf": 0.0, "nll": 0.0, **scores}
    return {"step": step, "checkpoint": checkpoint, **values, "signature": "nrefs:1"}


def history(metric: str, *values: float) -> History:
    """Return a history with these values at steps 10, 20, ..."""
    steps = [10 * (number + 1) for number in range(len(values))]
    entries = [
        scored(step, step_name(step), **{metric: value})
        for step, value in zip(steps, values, strict=True)
    ]
    return History(metric, entries)


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
    ("changes", "place"),
    [
        ([], "an object"),
        ({"metric": "accuracy"}, "metric"),
        ({"best": {"checkpoint": "../x"}}, "best.checkpoint"),
        ({"history": {}}, "history"),
        ({"history": [{"step": 10}]}, "history.0"),
        ({"average": {"step": "10"}}, "average"),
        ({"tests": {"a": 1}}, "tests.a"),
    ],
)
def test_a_history_of_another_form_is_no_history(changes: object, place: str) -> None:
    content = {**History("bleu").as_json(), **changes} if isinstance(changes, dict) else changes
    with pytest.raises(ValueError, match=place) as caught:
        read_json(json.dumps(content).encode(), BEST)
    assert "\n" not in str(caught.value)
