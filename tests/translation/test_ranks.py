"""Translation by several ranks gives the same text in order, written by rank 0."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from conftest import made_up_pairs
from ranks import Done, start

from mtrain.cli import app as cli
from mtrain.cli import opening
from mtrain.runs import checkpoint, reader
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.errors import RefusedError
from mtrain.translation.loading import load_on_ranks
from mtrain.translation.translator import Translator

PAIRS = made_up_pairs(60, 31)
LINES = [src for src, _ in PAIRS] + ["", "  ", "bavo " * 40]


def run_command(arguments: list[str], source: Path, output: Path) -> None:
    """Run a command as one rank, with stdin and stdout from and to files."""
    sys.argv = ["mtrain", *arguments]
    os.dup2(os.open(source, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), 1)
    cli.main()


def translate_in(folder: Path) -> None:
    """Translate as one rank, with the copy of a model in a folder."""
    os.chdir(folder)
    run_command(["translate", "-m", "model"], Path(os.devnull), folder / "out")


def run_ranks(
    directory: Path, arguments: list[list[str]], source: Path = Path(os.devnull)
) -> tuple[Done, list[bytes]]:
    """Run one rank for each list of arguments; return how they ended, and their outputs."""
    sources = [source, *[Path(os.devnull)] * (len(arguments) - 1)]
    outputs = [directory / f"{rank}.out" for rank in range(len(arguments))]
    bodies = map(partial, [run_command] * len(arguments), arguments, sources, outputs)
    done = start(directory, list(bodies))
    return done, [output.read_bytes() for output in outputs]


@pytest.mark.parametrize("options", [["--n-best", "2", "--scores"], ["--line-buffered"]])
def test_ranks_translate_in_order_and_one_writes(
    trained_run: Path, tmp_path: Path, options: list[str]
) -> None:
    source = tmp_path / "in"
    source.write_text("".join(line + "\n" for line in LINES[-12:]), encoding="utf-8")
    arguments = ["translate", "-m", str(trained_run), "--batch-tokens", "60", *options]
    found = []
    for size in (1, 2):
        done, outputs = run_ranks(tmp_path, [arguments] * size, source)
        assert done.codes == [0] * size, done.stderr
        found.append(outputs)
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


def test_ranks_with_different_commands_are_refused(trained_run: Path, tmp_path: Path) -> None:
    """Otherwise only the text of rank 0 would be translated."""
    outputs = [str(tmp_path / name) for name in "ab"]
    arguments = ["translate", "-m", str(trained_run), "-i", os.devnull, "-o"]
    done, _ = run_ranks(tmp_path, [[*arguments, output] for output in outputs])
    assert done.codes == [2, 2]
    assert "different commands" in done.stderr[0]
    assert not any(map(os.path.exists, outputs))


def test_ranks_with_different_models_are_refused(trained_run: Path, tmp_path: Path) -> None:
    """Machines may have different copies of a model under the same name."""
    steps = sorted((trained_run / "checkpoints").glob("step-*"))
    for folder, step in (("a", steps[0]), ("b", steps[-1])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model").symlink_to(step)
    done = start(tmp_path, [partial(translate_in, tmp_path / folder) for folder in "ab"])
    assert done.codes == [2, 2]
    assert "different models" in done.stderr[0]


def test_a_run_in_training_may_remove_a_checkpoint_that_was_loaded(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, load = tmp_path / "model", checkpoint.load
    shutil.copytree(reader.resolve(trained_run), model)

    def load_and_remove(path: Path) -> checkpoint.Snapshot:
        snapshot = load(path)
        shutil.rmtree(path)
        return snapshot

    monkeypatch.setattr(checkpoint, "load", load_and_remove)
    load_on_ranks([model], Ranks(), device="cpu", precision="fp32")


def test_rank_0_scores(trained_run: Path, tmp_path: Path) -> None:
    for name, side in zip("sr", zip(*PAIRS[:20], strict=True), strict=True):
        (tmp_path / name).write_text("".join(line + "\n" for line in side))
    files = ["-s", str(tmp_path / "s"), "-r", str(tmp_path / "r")]
    done, outputs = run_ranks(tmp_path, [["eval", "-m", str(trained_run), *files, "--json"]] * 2)
    assert done.codes == [0, 0], done.stderr
    assert b'"lines": 20' in outputs[0]
    assert outputs[1] == b""


@pytest.mark.parametrize("command", ["score -m {run} -s s -t r", "eval --hypothesis s -r r"])
def test_commands_of_one_process_refuse_several_ranks(
    trained_run: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each rank would print everything."""
    monkeypatch.setattr(opening, "RANK_0_SECONDS", 0)
    for name in "sr":
        (tmp_path / name).write_text("bavo\n")
    words = command.format(run=trained_run).replace(" s", f" {tmp_path}/s")
    arguments = words.replace(" r", f" {tmp_path}/r").split()
    done, outputs = run_ranks(tmp_path, [arguments] * 2)
    assert done.codes == [2, 2]
    assert "uses one process; start it without torchrun" in done.stderr[0]
    assert (done.stderr[1], outputs) == ("", [b"", b""])


@pytest.mark.parametrize(("rank", "waits"), [("0", []), ("1", [opening.RANK_0_SECONDS])])
def test_rank_0_refuses_first(rank: str, waits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise torchrun may stop it before it has written why."""
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    waited = list[float]()
    monkeypatch.setattr(opening.time, "sleep", waited.append)
    with pytest.raises(RefusedError, match="uses one process") as caught:
        opening.refuse_ranks()
    assert (caught.value.is_silent, waited) == (rank == "1", waits)
