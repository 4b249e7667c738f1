"""The Python interface: the same texts and scores as the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import made_up_pairs

import mtrain

LINES = [src for src, _ in made_up_pairs(10, 21)]


@pytest.fixture(scope="module")
def model(trained_run: Path) -> mtrain.Model:
    return mtrain.load(trained_run, device="cpu", precision="fp32")


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, mtrain; print({'torch', 'numpy', 'pydantic', 'typer'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("options", [{"n_best": 2, "beam_size": 3}, {"n_best": 6}])
def test_it_translates_as_the_command_does(
    model: mtrain.Model, trained_run: Path, options: dict[str, Any]
) -> None:
    """Also with more hypotheses than the run's beam holds, which is widened."""
    from conftest import run_mtrain

    text = "".join(line + "\n" for line in LINES)
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    done = run_mtrain("translate", "-m", trained_run, *given, input=text)
    assert ("the beam is widened" in done.stderr) == ("beam_size" not in options)
    found = model.translate(LINES, **options)
    rows = [line.split("\t") for line in done.stdout.split("\n")[:-1]]
    assert [row[2] for row in rows] == [each.text for best in found for each in best]
    scores = [each.score for best in found for each in best]
    assert [float(row[1]) for row in rows] == pytest.approx(scores, rel=1e-4)
    done = run_mtrain("translate", "-m", trained_run, "--sample", "--mbr", "4", input=text)
    assert done.stdout.split("\n")[:-1] == model.translate(LINES, sample=True, mbr=4)


def test_a_model_is_loaded_from_the_home_directory_to_a_device_of_torch(
    model: mtrain.Model, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv("HOME", str(trained_run.parent))
    loaded = mtrain.load(f"~/{trained_run.name}", device=torch.device("cpu"), precision="fp32")
    assert loaded.translate(LINES) == model.translate(LINES)


def test_a_text_gives_a_text_and_a_list_a_list(model: mtrain.Model) -> None:
    best = model.translate(LINES)
    assert model.translate(LINES[0]) == best[0]
    assert model.translate([]) == []
    assert model.translate(["", LINES[1]]) == ["", best[1]]
    lists = model.translate(np.array(LINES[:2]), n_best=2)
    assert list(map(len, lists)) == [2, 2]
    found = model.translate(LINES[0], n_best=2)
    assert [each.text for each in found] == [each.text for each in lists[0]]


def test_half_a_surrogate_pair_is_a_character_without_meaning(model: mtrain.Model) -> None:
    texts = ["bavo", "\ud800 bavo", "celu \udc80"]
    plain = ["bavo", "\ufffd bavo", "celu \ufffd"]
    assert model.translate(texts) == model.translate(plain)
    assert model.score(texts, texts) == model.score(plain, plain)


def test_scores_are_those_of_the_search(model: mtrain.Model) -> None:
    found = [hypotheses[0] for hypotheses in model.translate(LINES, n_best=1)]
    scores = model.score(LINES, [each.text for each in found])
    close = [
        score == pytest.approx(each.score, rel=1e-3)
        for score, each in zip(scores, found, strict=True)
    ]
    assert sum(close) >= 8  # the others were spelled with other pieces


def test_attention_has_a_table_for_each_layer_and_head(model: mtrain.Model) -> None:
    found = model.attention(LINES[0])
    sizes = {"encoder": 2 * [len(found.source)], "decoder": 2 * [len(found.target)]}
    sizes["cross"] = [len(found.target), len(found.source)]
    for kind, size in sizes.items():
        for layer in getattr(found, kind):
            assert layer.shape == (4, *size)
            np.testing.assert_allclose(layer.sum(-1), 1, rtol=1e-4)
    assert found.source[-1] == found.target[-1] == "</s>"


def test_several_paths_are_an_ensemble(model: mtrain.Model, trained_run: Path) -> None:
    twice = mtrain.load(str(trained_run), trained_run, device="cpu", precision="fp32")
    assert twice.translate(LINES) == model.translate(LINES)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model: mtrain.load(), "needs a run or checkpoint directory"),
        (lambda model: mtrain.load(""), "an empty path; name a run"),
        (lambda model: mtrain.load(next(os.scandir(b"/"))), "expected paths"),
        (lambda model: mtrain.load("no/where"), "no/where"),
        (lambda model: mtrain.load(300 * "x"), "File name too long"),
        (lambda model: mtrain.load("~no_such_user/run"), "~no_such_user/run: no such directory"),
        (lambda model: model.translate(["a"], beam_size=0), "^beam_size 0"),
        (lambda model: model.translate(["a"], n_best=5, beam_size=2), "use beam_size 5 or more"),
        (lambda model: model.translate(["a"], n_best=2, mbr=4), "n_best: cannot be combined"),
        (lambda model: model.translate(["a"], beem_size=4), "beem_size: unknown option"),
        (lambda model: model.translate(["a", None]), r"text\[1\]: expected a line, not NoneType"),
        (lambda model: model.translate(b"a"), "text: expected a list of lines, not bytes"),
        (lambda model: model.translate(5), "text: expected a list of lines, not int"),
        (lambda model: model.score(["a"], []), "1 sources but 0 targets"),
        (lambda model: model.score("ab", "cd"), "sources: expected a list of lines, not str"),
        (lambda model: model.score(["a"], [1]), r"targets\[0\]: expected a line, not int"),
    ],
)
def test_mistakes_are_user_errors(model: mtrain.Model, call: object, words: str) -> None:
    assert callable(call)
    with pytest.raises(mtrain.UserError, match=words):
        call(model)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mtrain.nothing  # noqa: B018


def test_a_tag_is_that_of_each_call(both_run: Path) -> None:
    model = mtrain.load(both_run, device="cpu", precision="fp32")
    assert model.attention("a", "b", tag="<2bb>").source[0] == "<2bb>"
    assert model.score(["a"], ["b"], tag="<2bb>") != model.score(["a"], ["b"], tag="<2aa>")
    with pytest.raises(mtrain.UserError, match="choose one of <2bb>, <2aa>"):
        model.translate(LINES, tag="<x>")


def test_samples_are_as_many_as_asked_for_and_depend_on_the_seed(model: mtrain.Model) -> None:
    one, same, other = (model.translate(LINES, n_best=3, sample=True, seed=n) for n in (1, 1, 2))
    assert [len(found) for found in one] == [3] * len(LINES)
    assert one == same != other
    with pytest.raises(mtrain.UserError, match="seed -1: must be 0 or larger"):
        model.translate(LINES, sample=True, seed=-1)


def test_the_matrices_are_packed_once(model: mtrain.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = model.translate(LINES)
    monkeypatch.setattr("mtrain.translation.loading.Decoder", None)
    assert model.translate(LINES, length_penalty=0.6, beam_size=2)
    assert model.translate(LINES) == expected
