"""The table of the ablation: its last rows translate with the unchanged run's model."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from mtrain.config.loading import load_stored_config


def test_the_last_rows_score_other_beams(
    trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    ablation = importlib.import_module("ablation")
    config = load_stored_config(trained_run / "config.yaml")
    *rows, blank, signature = ablation.search_rows(config, trained_run)
    assert [row.split("|")[1].strip() for row in rows] == ["greedy search", "beam 4"]
    greedy, beam = (float(row.split("|")[2]) for row in rows)
    # 0 without a single 4-gram in common, as rounding may have it for such short lines
    assert greedy > 20
    assert beam == 0 or beam > 20
    assert (blank, signature[:6]) == ("", "nrefs:")
