"""The rows of the paper's table 3: their settings, and the table of what was trained."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from mtrain.config.changes import changed_keys
from mtrain.config.loading import load_config

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs/paper-table-3"
SHIM = """#!/bin/sh
for word; do printf '%s\\t' "$word"; done >> "$PLACE/commands"
echo >> "$PLACE/commands"
"""
# Settings by which rows differ from the base, at the paper's size and at the small one.
CHANGES = {
    "base": ({}, {}),
    "heads-1": ({"num_heads": 1}, {"num_heads": 1}),
    "heads-32": ({"num_heads": 32}, {"num_heads": 16}),
    "layers-2": ({"num_encoder_layers": 2, "num_decoder_layers": 2},) * 2,
    "d_model-1024": ({"d_model": 1024}, {"d_model": 256}),
    "d_ff-4096": ({"d_ff": 4096}, {"d_ff": 1024}),
    "dropout-0.0": ({"dropout": 0.0},) * 2,
    "smoothing-0.2": ({"label_smoothing": 0.2},) * 2,
    "learned": ({"positions": "learned"},) * 2,
    "big": (
        {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3},
        {"d_model": 256, "num_heads": 8, "d_ff": 1024, "dropout": 0.3},
    ),
}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("paper_table")


def commands(place: Path, *options: str) -> list[list[str]]:
    """The words of every `mtrain` command of run.sh."""
    (place / "mtrain").write_text(SHIM)
    (place / "python3").write_text("#!/bin/sh\necho the table\n")
    for name in ("mtrain", "python3"):
        (place / name).chmod(0o755)
    path = os.pathsep.join([str(place), os.environ["PATH"]])
    env = {**os.environ, "PLACE": str(place), "PATH": path}
    script = [CONFIGS / "run.sh", *options]
    done = subprocess.run(["sh", *script], env=env, check=True, capture_output=True, text=True)
    assert done.stdout == ("" if "--row" in options else "the table\n")
    return [line.split("\t")[:-1] for line in (place / "commands").read_text().splitlines()]


@pytest.mark.parametrize("size", ["base", "small"])
def test_rows_differ_by_what_their_names_say(tmp_path: Path, script: ModuleType, size: str) -> None:
    options = ["--small"] if size == "small" else []
    rows = {}
    for words in commands(tmp_path, *options, "--set", "data.root=a folder"):
        assert words[:5] == ["train", "-c", f"{CONFIGS}/{size}.yaml", "--set", "data.root=a folder"]
        config = load_config(Path(words[2]), words[4::2])
        folder, name = os.path.split(config.run_dir)
        assert folder == f"runs/paper-table-3/{size}"
        rows[name] = config
    assert list(rows) == list(script.PAPER)
    for name, changes in CHANGES.items():
        found = changed_keys(rows["base"], rows[name])
        settings = {key.split(".")[1]: new for key, _, new in found if key != "run_dir"}
        assert settings == changes[size == "small"]


def test_one_row(tmp_path: Path) -> None:
    [words] = commands(tmp_path, "--small", "--row", "big", "--dry-run")
    assert "--dry-run" in words
    assert "run_dir=runs/paper-table-3/small/big" in words
    with pytest.raises(subprocess.CalledProcessError):
        commands(tmp_path, "--row", "huge")


def test_the_table_has_the_complete_rows(
    script: ModuleType,
    trained_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, state in (("base", "complete"), ("big", "complete"), ("learned", "running")):
        shutil.copytree(trained_run, tmp_path / name)
        status = tmp_path / name / "status.json"
        status.write_text(json.dumps({**json.loads(status.read_text()), "state": state}))
    best = tmp_path / "big/best.json"
    history = json.loads(best.read_text())
    history["history"][-1] |= {"nll": 0.125, "bleu": 99.5}
    best.write_text(json.dumps(history))
    monkeypatch.setattr("sys.argv", ["paper_table.py", str(tmp_path)])
    script.main()
    _, _, *rows = capsys.readouterr().out.splitlines()
    base, big = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    assert base[:5] == ["base", "", "4.92", "25.8", "2"]
    assert big[:8] == ["big", "", "4.33", "26.4", "1", "0.125", "99.50", "1"]
