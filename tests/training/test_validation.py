"""What a run shows of its translations, how it ends, and a program that chooses its best model."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from conftest import TinyConfig, Train, differences, edit, run_mtrain, status

from mtrain.runs.history import History
from mtrain.runtime.console import cut_to_width
from mtrain.runtime.errors import printable
from mtrain.training import validation
from mtrain.training.validation import Validation, summary
from mtrain.translation.loading import LoadedModel

# Prints a number that depends on the hypotheses; fails where the file that it is given exists.
SCORER = """
import pathlib, sys
lines = sys.stdin.read().split("\\n")[:-1]
assert lines and all(line.count("\\t") == 2 for line in lines), lines
if pathlib.Path(sys.argv[1]).exists():
    raise SystemExit("no licence")
print(-(sum(map(ord, "".join(line.split("\\t")[1] for line in lines))) % 97))
"""


@pytest.fixture
def command(tmp_path: Path) -> str:
    (tmp_path / "scorer.py").write_text(SCORER)
    return shlex.join([sys.executable, str(tmp_path / "scorer.py"), str(tmp_path / "broken")])


def logged(run: Path) -> list[str]:
    """Return the messages of a run's log, with their levels."""
    return [line.split(" ", 2)[2] for line in (run / "train.log").read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    ("nll", "shown"), [(2.0, "7.39"), (13.8, "984609.11"), (13.9, "1.09e+06"), (1e6, "1.01e+304")]
)
def test_the_perplexity_of_a_run_that_diverges_is_short(nll: float, shown: str) -> None:
    assert summary({"bleu": 0, "chrf": 0, "nll": nll}).endswith(f"  ppl {shown}")


@pytest.mark.slow
def test_each_validation_shows_the_same_lines(
    tiny_config: TinyConfig, tmp_path: Path, train: Train
) -> None:
    config, run = tiny_config(), tmp_path / "run"
    files = [tmp_path / "data" / f"valid.{side}" for side in ("src", "tgt")]
    odd = [f"\x1b[2J{line}{'+' * 300}" for line in files[0].read_text().splitlines()]
    files[0].write_text("".join(line + "\n" for line in odd))
    assert train(config) == 0
    lines, shown = logged(run), []
    for step in (4, 8):
        start = 1 + next(i for i, line in enumerate(lines) if f"INFO step {step}  BLEU" in line)
        shown.append([line.removeprefix("INFO ") for line in lines[start : start + 9]])
        name = run / "validation" / f"step-{step:08}.txt"
        texts = [path.read_text().splitlines() for path in (*files, name)]
        for place in (0, 3, 6):
            number, of_line = int(shown[-1][place].split()[0]), shown[-1][place : place + 3]
            titles = ("source", "reference", "translation")
            for line, title, text in zip(of_line, titles, texts, strict=True):
                expected = f"{title:<11}  {printable(cut_to_width(text[number - 1], 300))}"
                assert line[6:].lstrip().rstrip() == expected.rstrip()
            assert f"{number:>6}  source       \\x1b[2J" in of_line[0]
    assert [shown[0][i] for i in (0, 1, 3, 4, 6, 7)] == [shown[1][i] for i in (0, 1, 3, 4, 6, 7)]


def test_the_end_of_a_run_says_what_became_of_it(
    tiny_config: TinyConfig, tmp_path: Path, train: Train
) -> None:
    config, run = tiny_config(run_dir=str(tmp_path / "a run")), tmp_path / "a run"
    assert train(config) == 0
    best = json.loads((run / "best.json").read_text())
    name, signature = best["best"]["checkpoint"], best["history"][0]["signature"]
    lines = logged(run)
    place = next(i for i, line in enumerate(lines) if line.startswith("INFO complete at step 8 "))
    assert re.fullmatch(
        rf"INFO complete at step 8 of 8, [\dms]+ after the run began: {run}", lines[place]
    )
    assert any(re.fullmatch(r"INFO step 2/8  .*  left [\dms]+", line) for line in lines)
    assert any(line.startswith("INFO average of 2 checkpoints  BLEU ") for line in lines)
    assert lines[place + 1].startswith(f"INFO best by nll: {name}  BLEU ")
    assert lines[place + 2].startswith("INFO test held_out: BLEU ")
    assert lines[place + 3] == f"INFO signature of BLEU: {signature}"
    assert sum(line.startswith("WARNING data.valid: ") for line in lines[place:]) == 1
    assert lines[-3].startswith(("INFO The best step is step-", "INFO The last validation is the"))
    assert lines[-2:] == [
        f"INFO next: mtrain translate -m '{run}'",
        f"INFO       mtrain report '{run}'",
    ]
    # the same command again: the same end
    assert train(config) == 0
    assert logged(run)[-len(lines[place:]) :] == lines[place:]
    assert train(config, "--set", "train.max_steps=4") == 0
    assert "\nINFO complete at step 8 (train.max_steps: 4), " in "\n".join(logged(run))


def test_the_log_marks_the_best_validation_so_far_and_names_an_unusual_measure(
    tiny_config: TinyConfig, tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([(0.5, 3.0), (5.0, 4.0), (4.0, 2.0)])  # BLEU and NLL

    def evaluate(*_: object) -> dict[str, object]:
        bleu, nll = next(scores)
        return {"bleu": bleu, "chrf": 1.0, "nll": nll, "signature": "none"}

    monkeypatch.setattr(Validation, "evaluate", evaluate)
    settings = {"train.max_steps": 12, "train.average_last": 0, "data.test": {}}
    assert train(tiny_config(**settings)) == 0
    lines = [line for line in logged(tmp_path / "run") if re.match(r"INFO step \d+  BLEU", line)]
    assert [re.split(r"ppl [\d.]+", line)[1] for line in lines] == [
        *("  best so far by nll, since no BLEU is above 1 yet", "  best so far", ""),
    ]


def test_a_validation_has_the_precision_of_translations_and_not_that_of_training(
    tiny_config: TinyConfig, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def dtype_of(precision: str, device: torch.device, *, training: bool) -> torch.dtype:
        assert (precision, training) == ("auto", False)
        return torch.bfloat16

    def evaluate(self: Validation, model: LoadedModel, *_: object) -> dict[str, object]:
        found.append((model.model.dtype, self.learner.model.dtype))
        return {"bleu": 1.0, "chrf": 1.0, "nll": 1.0, "signature": "none"}

    monkeypatch.setattr(validation, "compute_dtype", dtype_of)
    monkeypatch.setattr(Validation, "evaluate", evaluate)
    settings = {"train.max_steps": 4, "train.average_last": 0, "data.test": {}}
    assert train(tiny_config(**settings)) == 0
    assert found == [(torch.bfloat16, torch.float32)]


def test_the_end_of_a_run_names_patience(
    tiny_config: TinyConfig, tmp_path: Path, train: Train
) -> None:
    config = tiny_config(**{"train.metric": "command", "train.patience": 1, "train.max_steps": 12})
    assert train(config, "--metric-command", "sh -c 'cat > /dev/null; echo 1'") == 0
    end = "\nINFO complete at step 8 of 12 (ended by train.patience: 1), "
    assert end in "\n".join(logged(tmp_path / "run"))


def test_the_next_command_names_the_tag(
    tiny_config: TinyConfig, tmp_path: Path, train: Train
) -> None:
    valid = f"{{src: {tmp_path}/data/valid.src, tgt: {tmp_path}/data/valid.tgt, tag: <2x>}}"
    assert train(tiny_config(), "--set", f"data.valid={valid}") == 0
    run = tmp_path / "run"
    assert logged(run)[-2] == f"INFO next: mtrain translate -m {run} --tag '<2x>'"


def test_each_signature_names_its_sets(
    tiny_config: TinyConfig, tmp_path: Path, train: Train
) -> None:
    files = f"src: {tmp_path}/data/valid.src, tgt: {tmp_path}/data/valid.tgt"
    sets = [f"data.valid=[{{{files}, tgt_lang: zh}}, {{{files}}}]"]
    sets += [f"data.test={{news: {{{files}}}, web: {{{files}, tgt_lang: zh}}}}"]
    assert train(tiny_config(), *(word for text in sets for word in ("--set", text))) == 0
    signed = [line.split("|")[0::3] for line in logged(tmp_path / "run") if "signature of" in line]
    assert signed == [
        ["INFO signature of BLEU of valid.0, test web: nrefs:1", "tok:zh"],
        ["INFO signature of BLEU of valid.1, test news: nrefs:1", "tok:13a"],
    ]


@pytest.mark.slow
def test_best_patience_and_records_follow_the_program(
    tiny_config: TinyConfig, tmp_path: Path, train: Train, command: str
) -> None:
    config = tiny_config(**{"train.metric": "command", "train.max_steps": 12})
    option = ("--metric-command", command)
    runs = [tmp_path / name for name in ("run", "other")]
    assert train(config, *option) == 0
    content = json.loads((runs[0] / "best.json").read_text())
    history = History.model_validate(content)
    entries = [*history.entries, history.average]
    for entry in entries:
        text = (runs[0] / "validation" / f"{entry['checkpoint']}.txt").read_text()
        assert entry["command"] == -(sum(map(ord, text.replace("\n", ""))) % 97)
    assert len({entry["command"] for entry in entries}) > 1
    assert content["best"]["command"] == max(entry["command"] for entry in entries)
    records = [json.loads(line) for line in (runs[0] / "metrics.jsonl").open()]
    scores = [each["valid/command"] for each in records if "valid/command" in each]
    assert scores == [entry["command"] for entry in history.entries]
    assert "test/held_out/command" in records[-1]
    assert json.loads((runs[0] / "run.json").read_text())["metric_command"] == command
    # fails at the first validation, is mended, and goes on
    (tmp_path / "broken").touch()
    mistyped = ("--metric-command", f"{command} --typo")
    assert train(config, *mistyped, "--set", f"run_dir={runs[1]}") == 1
    assert (status(runs[1])["state"], status(runs[1])["exit_code"]) == ("failed", 1)
    assert "ended with exit code 1: no licence" in status(runs[1])["reason"]
    assert (runs[1] / "checkpoints" / "step-00000004" / "trainer").is_dir()
    (tmp_path / "broken").unlink()
    assert train(config, *option, "--set", f"run_dir={runs[1]}") == 0
    assert status(runs[1])["state"] == "complete"
    assert differences(*runs) == []
    report = run_mtrain("report", runs[0], "-o", tmp_path / "r.html", "--no-check")
    assert report.returncode == 0, report.stderr
    verified = run_mtrain("verify", runs[0])
    assert verified.returncode == 0, verified.stdout


def test_the_program_is_named_on_the_command_line_alone(
    tiny_config: TinyConfig, tmp_path: Path, train: Train, command: str
) -> None:
    """A start that names none, or another one, leaves the state of the run as it was."""
    settings = {"train.metric": "command", "train.max_steps": 8, "data.test": {}}
    config, run = tiny_config(**settings), tmp_path / "run"
    refused = run_mtrain("train", "-c", config)
    assert refused.returncode == 2
    usage = "add --metric-command 'PROGRAM ARGUMENTS' to the command"
    assert usage in refused.stderr
    assert not run.exists()
    named = run_mtrain("train", "-c", config, "--set", "train.metric_command=touch /tmp/x")
    assert named.returncode == 2
    assert "unknown key" in named.stderr
    assert train(config, "--metric-command", command) == 0
    before = status(run)
    for options in (["--dry-run"], []):
        assert "last_start" not in status(run)
        assert run_mtrain("train", "-c", config, *options).returncode == 2
    found = status(run)
    assert usage in found.pop("last_start")["reason"]
    assert found == before
    # what a run names is compared, not run
    mark = tmp_path / "mark"
    edit(run / "run.json", metric_command=f"touch {mark}")
    other = run_mtrain("train", "-c", config, "--metric-command", command)
    assert other.returncode == 2
    changed = "--metric-command is not the same as when this run began (it was 'touch "
    assert changed in other.stderr
    (run / "best.json").unlink()  # is made again from the scores of the earlier program
    other = run_mtrain("train", "-c", config, "--metric-command", command)
    assert (other.returncode, changed in other.stderr) == (2, True)
    assert not mark.exists()
    assert status(run)["state"] == "complete"


def test_the_option_without_the_metric_is_refused(tiny_config: TinyConfig, command: str) -> None:
    done = run_mtrain("train", "-c", tiny_config(), "--metric-command", command)
    assert done.returncode == 2
    assert "the metric of this config is bleu; add --set train.metric=command" in done.stderr


def test_a_forged_history_without_the_score_is_read(tmp_path: Path) -> None:
    entry = {"bleu": 1.0, "chrf": 2.0, "nll": 3.0, "signature": "x"}
    entries = [{**entry, "step": n, "checkpoint": f"step-{n:08}"} for n in (1, 2)]
    entries[1]["command"] = -4.0
    content = {"metric": "command", "measure": "command", "best": None, "history": entries}
    content |= {"average": None, "tests": {}}
    history = History.model_validate(content)
    assert history.best == entries[1]
    with pytest.raises(ValueError, match="command"):
        History.model_validate(content | {"history": [{**entries[0], "command": "no"}]})


def test_records_are_on_the_disk_before_a_resume_relies_on_them(
    tiny_config: TinyConfig, tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power failure loses records that are older than a checkpoint or `best.json`."""
    metrics, synced = tmp_path / "run" / "metrics.jsonl", b""
    relied, lost = list[str](), list[str]()
    fsync, replace = os.fsync, os.replace

    def noting_fsync(descriptor: int) -> None:
        nonlocal synced
        fsync(descriptor)
        if metrics.exists() and os.path.samestat(os.fstat(descriptor), metrics.stat()):
            synced = metrics.read_bytes()

    def noting_replace(source: Path, target: Path) -> None:
        if re.fullmatch(r"step-\d+|best\.json", target.name):
            relied.append(target.name)
            if metrics.exists() and metrics.read_bytes() != synced:
                lost.append(target.name)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", noting_replace)
    assert train(tiny_config(**{"train.log_every": 1})) == 0
    assert {"step-00000008", "best.json"} <= {*relied}
    assert not lost
