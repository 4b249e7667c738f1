"""The Python interface refuses wrong options with `UserError`, before anything is translated."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import made_up_pairs

import mtrain
from mtrain.config.schema import DecodeConfig, override_decode
from mtrain.translation.api import Model
from mtrain.translation.loading import LoadedModel
from mtrain.translation.translator import check_options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_best": 2.5}, r"n_best 2\.5: must be an integer, from 1 to 1000"),
        ({"n_best": "3"}, "n_best '3': must be an integer"),
        ({"n_best": True}, "n_best True: must be an integer"),
        ({"n_best": 0}, "n_best 0: must be from 1 to 1000"),
        ({"n_best": 1001}, "n_best 1001: must be from 1 to 1000"),
        ({"n_best": 3, "beam_size": 2}, "n_best 3: more than the beam holds; use beam_size 3 or"),
        ({"beam_size": 2, "sample": True}, "beam_size: cannot be combined with sample=True; leave"),
        ({"mbr": 4.0}, r"mbr 4\.0: must be an integer, from 2 to 1000"),
        ({"mbr": 1}, "mbr 1: must be from 2 to 1000"),
        ({"mbr": 1001}, "mbr 1001: must be from 2 to 1000"),
        ({"mbr": 4, "n_best": 2}, "n_best: cannot be combined with mbr"),
        ({"mbr": 4, "beam_size": 4}, "beam_size: cannot be combined with mbr"),
        ({"seed": "x", "sample": True}, "seed 'x': must be an integer, 0 or larger"),
        ({"seed": 1.5, "sample": True}, r"seed 1\.5: must be an integer"),
        ({"seed": -1, "sample": True}, "seed -1: must be 0 or larger"),
        ({"seed": 1}, "seed: needs sample=True; add it"),
        ({"temperature": 0.5}, "temperature: needs sample=True; add it"),
        ({"top_k": 5, "sample": False}, "top_k: needs sample=True; add it"),
        ({"beam_size": 0}, "^beam_size 0: should be greater than or equal to 1$"),
        ({"beam_size": "x"}, "^beam_size 'x': should be a valid integer"),
        ({"beam_size": 2.5, "n_best": 2}, "^beam_size 2.5: "),
        (
            {"nbest": 2},
            "nbest: unknown option; choose one of n_best, mbr, tag, seed, target_prefix,",
        ),
        ({"tag": 5}, "tag 5: the model does not know this tag"),
        ({"target_prefix": "a"}, "target_prefix: expected a list of lines, not str"),
        ({"target_prefix": ["a", "b"]}, "target_prefix: 2 given for 1 lines; give one for each"),
        ({"target_prefix": [None]}, r"target_prefix\[0\]: expected a line, not NoneType"),
    ],
)
def test_wrong_options_are_user_errors(
    loaded_model: LoadedModel, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(mtrain.UserError, match=words):
        Model(loaded_model).translate(["bavo"], **options)


def test_a_run_that_samples_takes_no_option_of_the_search() -> None:
    given = {"beam_size": 5, "n_best": 7, "mbr": None, "sample": None}
    decode = DecodeConfig(sample=True)
    with pytest.raises(mtrain.UserError, match=r"^beam_size: .* with decode\.sample of this run; "):
        check_options(decode, given, str)
    check_options(decode, {**given, "beam_size": None, "top_k": 3}, str)


def test_translations_begin_with_their_prefixes(loaded_model: LoadedModel) -> None:
    model = Model(loaded_model)
    first, second = model.translate(["bavo celu", "lapo"], target_prefix=["lapo bavo", ""])
    assert first.startswith("lapo bavo")
    assert second == model.translate("lapo")
    assert first == model.translate("bavo celu", target_prefix="lapo bavo")
    limits = {"max_len_a": 0.0, "max_len_b": 0}  # a prefix may be longer
    assert model.translate("bavo", target_prefix="lapo bavo", **limits) == "lapo bavo"
    with pytest.raises(mtrain.UserError, match="target_prefix: expected a line, not list"):
        model.translate("bavo", target_prefix=["lapo"])


def test_numbers_of_numpy_are_numbers(loaded_model: LoadedModel) -> None:
    model = Model(loaded_model)
    options = {"beam_size": np.int64(3), "length_penalty": np.float32(0.5), "sample": np.False_}
    expected = model.translate(["bavo celu"], n_best=3, beam_size=3, length_penalty=0.5)
    assert model.translate(["bavo celu"], n_best=3, **options) == expected
    drawn = model.translate(["bavo"], n_best=np.int64(5), sample=True, seed=np.int64(3))
    assert drawn == model.translate(["bavo"], n_best=5, sample=True, seed=3)
    assert model.translate(["bavo"], mbr=np.int64(4)) == model.translate(["bavo"], mbr=4)


@pytest.mark.parametrize("pair", [(5, "a"), ("a", 5), (["a"], None), (None, "a")])
def test_attention_needs_lines(loaded_model: LoadedModel, pair: tuple[Any, Any]) -> None:
    with pytest.raises(mtrain.UserError, match=r"(source|target): expected a line, not "):
        Model(loaded_model).attention(*pair)


def test_scores_that_are_no_numbers_are_refused(trained_run: Path) -> None:
    """As of weights whose products overflow."""
    model = mtrain.load(trained_run, device="cpu")
    for weight in model.loaded.model.parameters():
        weight.data.mul_(1e30)
    for call in (
        lambda: model.translate("bavo", n_best=2),
        lambda: model.score(["bavo"], ["celu"]),
        lambda: model.attention("bavo", "celu"),
    ):
        with pytest.raises(mtrain.UserError, match="a score is not a number"):
            call()


def test_lines_that_are_cut_are_warned_of(
    loaded_model: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    decode = override_decode(loaded_model.decode, max_source_length=10)
    model, long = Model(replace(loaded_model, decode=decode)), " ".join(["bavo"] * 60)
    model.translate(["bavo", long])
    model.score([long], ["bavo"])
    model.score(["bavo"], [long])
    model.attention(long)
    model.attention(long, long)
    shown = [record.getMessage().partition(" lines")[0] for record in caplog.records]
    assert shown == ["text:", "sources:", "targets:", "text:", "source:", "target:"]
    assert "cut there: 1 (line 2)" in caplog.records[0].getMessage()


def test_translations_as_long_as_their_limit_are_warned_of(
    loaded_model: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model(loaded_model)
    limits = {"max_len_a": 0.0, "max_len_b": 1}
    model.translate(["bavo", "lapo"], n_best=1, **limits)  # each tells whether it is
    assert not caplog.messages
    model.translate(["", "bavo", "lapo"], **limits)
    (message,) = caplog.messages
    assert ": 2 (lines 2, 3); look at them, and raise max_len_a or max_len_b " in message


def test_numbers_do_not_depend_on_what_the_caller_sets_in_torch(trained_run: Path) -> None:
    texts = [src for src, _ in made_up_pairs(30, 5)]

    def found() -> tuple[Any, ...]:
        model = mtrain.load(trained_run, device="cpu")
        weights = np.stack(model.attention(texts[0], "a b").cross)
        greedy = model.translate(texts, beam_size=1)
        return model.translate(texts, n_best=2), greedy, model.score(texts, texts), weights.tolist()

    expected = found()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert found() == expected
    with torch.device("meta"):  # as with torch.set_default_device
        assert found() == expected


FORK = """
import os, sys, signal, torch, mtrain
from threading import Event, Thread
from mtrain.translation.threads import kept_threads
torch.set_num_threads(3)
model = mtrain.load(sys.argv[1])
begun, done = Event(), Event()

def hold():  # as another thread does that translates
    with kept_threads():
        begun.set()
        done.wait()

Thread(target=hold).start()
begun.wait()
child = os.fork()
if not child:
    signal.alarm(60)  # ends a process that waits forever
    assert len(model.translate(["bavo lapo"] * 300)) == 300
    os._exit(7)
done.set()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert torch.get_num_threads() == 3
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_translates(trained_run: Path) -> None:
    subprocess.run([sys.executable, "-c", FORK, str(trained_run)], check=True, timeout=300)
