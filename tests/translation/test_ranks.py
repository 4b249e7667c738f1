"""Ranks translate and score as one process does."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from conftest import made_up_pairs
from ranks import start

from mtrain.cli import app as cli
from mtrain.translation.translator import Translator

# --- translation --------------------------------------------------------------------------------

LINES = [src for src, _ in made_up_pairs(60, 31)] + ["", "  ", "bavo " * 40]


def by_command(arguments: list[str], source: Path, output: Path) -> None:
    """Be a rank that translates, with text on stdin for the first alone."""
    sys.argv = ["mtrain", *arguments]
    os.dup2(os.open(source, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), 1)
    cli.main()


@pytest.mark.parametrize("options", [[], ["--n-best", "2", "--scores"], ["--line-buffered"]])
def test_ranks_translate_in_order_and_one_writes(
    trained_run: Path, tmp_path: Path, options: list[str]
) -> None:
    source, empty = tmp_path / "in", tmp_path / "empty"
    source.write_text("".join(line + "\n" for line in LINES[-12:]), encoding="utf-8")
    empty.touch()
    found = []
    arguments = ["translate", "-m", str(trained_run), "--batch-tokens", "60", *options]
    for size in (1, 2):
        outputs = [tmp_path / f"{size}-{rank}.out" for rank in range(size)]
        texts = [source, empty][:size]
        pairs = zip(texts, outputs, strict=True)
        done = start(tmp_path, [partial(by_command, arguments, *pair) for pair in pairs])
        assert done.codes == [0] * size, done.told
        found.append([output.read_bytes() for output in outputs])
    assert found[1] == [found[0][0], b""]
    assert found[0][0].count(b"\n") >= 12


@pytest.mark.slow
def test_torchrun_translates_a_stream(trained_run: Path, translator: Translator) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, "-m", "mtrain", "translate", "-m", trained_run, "--batch-tokens", "60"]
    text = "".join(line + "\n" for line in LINES)
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == [*translator.best(LINES), ""]


def test_ranks_with_texts_of_their_own_are_refused(trained_run: Path, tmp_path: Path) -> None:
    """Else only the first one's would be translated."""
    arguments = ["translate", "-m", str(trained_run), "-i", os.devnull, "-o"]
    nothing = Path(os.devnull)
    outputs = [str(tmp_path / name) for name in "ab"]
    done = start(
        tmp_path, [partial(by_command, [*arguments, out], nothing, nothing) for out in outputs]
    )
    assert done.codes == [2, 2]
    assert "different commands" in done.told[0]
    assert not any(map(os.path.exists, outputs))


def test_ranks_score_once(trained_run: Path, tmp_path: Path) -> None:
    pairs = made_up_pairs(20, 33)
    source, reference = tmp_path / "s", tmp_path / "r"
    source.write_text("".join(src + "\n" for src, _ in pairs))
    reference.write_text("".join(tgt + "\n" for _, tgt in pairs))
    arguments = ["eval", "-m", str(trained_run), "-s", str(source), "-r", str(reference), "--json"]
    outputs = [tmp_path / f"{rank}.out" for rank in range(2)]
    nothing = Path(os.devnull)
    done = start(tmp_path, [partial(by_command, arguments, nothing, out) for out in outputs])
    assert done.codes == [0, 0], done.told
    assert '"lines": 20' in outputs[0].read_text()
    assert outputs[1].read_text() == ""
