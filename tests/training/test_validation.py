"""A run whose best model a program chooses: resumed, refused, failed and never named by a file."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from conftest import TinyConfig, Train, differences, edit, run_mtrain, status

from mtrain.runs.history import BEST

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


def test_best_patience_and_records_follow_the_program(
    tiny_config: TinyConfig, tmp_path: Path, train: Train, command: str
) -> None:
    config = tiny_config(**{"train.metric": "command", "train.max_steps": 12})
    option = ("--metric-command", command)
    runs = [tmp_path / name for name in ("run", "other")]
    assert train(config, *option) == 0
    content = json.loads((runs[0] / "best.json").read_text())
    history = BEST.validate_python(content)
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
    assert train(config, *option, "--set", f"run_dir={runs[1]}") == 1
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
    settings = {"train.metric": "command", "train.max_steps": 4, "data.test": {}}
    config, run = tiny_config(**settings), tmp_path / "run"
    refused = run_mtrain("train", "-c", config)
    assert refused.returncode == 2
    usage = f"type mtrain train -c {config} --metric-command 'PROGRAM ARGUMENTS'"
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
    assert "--metric-command is not the same as when this run began (it was 'touch " in other.stderr
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
    content = {"metric": "command", "best": None, "history": entries, "average": None, "tests": {}}
    history = BEST.validate_python(content)
    assert history.best == entries[1]
    with pytest.raises(ValueError, match="command"):
        BEST.validate_python(content | {"history": [{**entries[0], "command": "no"}]})
