"""The benchmark prints what it says, for models small enough to wait for."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest
from conftest import made_up_pairs, shape_with, write_corpus

from mtrain.model.transformer import Shape, Transformer

QUICK = ["--steps", "1", "--turns", "1", "--lines", "4", "--beam-size", "2"]
UNITS = {"training": "target tokens/s", "translating": "lines/s", "one line": "ms"}


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with small shapes."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    module = importlib.import_module("benchmark")
    monkeypatch.setitem(module.SIZES, "tiny", (2, 1, 16, 32, 2))
    monkeypatch.setattr(module, "matmul_speed", lambda *_: 1e12)
    return module


def table(out: str) -> list[list[str]]:
    """Cells of the rows of the table, after the line about the machine."""
    machine, _, head, rule, *rows = out.splitlines()
    assert machine.startswith("mtrain ")
    assert "threads: " in machine
    assert head.count("|") == rule.count("|") == 5
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def check_row(what: str, speed: str, of_limit: str) -> None:
    """A row has the unit of its kind, and a limit where products are counted."""
    kind = next(kind for kind in UNITS if kind in what)
    value, unit = speed.split(maxsplit=1)
    assert unit.removesuffix(" of quiet").startswith(UNITS[kind])
    assert float(value.replace(",", "")) > 0
    assert of_limit.endswith("%") == (kind != "one line" and "busy" not in what)


def test_sizes(benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_corpus(tmp_path / "text.", made_up_pairs(200, seed=1))
    options = ["--sizes", "tiny", "--vocab-size", "320", "--max-tokens", "256", "--busy"]
    benchmark.main([*QUICK, *options, "--src", text["src"], "--tgt", text["tgt"]])
    rows = table(capsys.readouterr().out)
    assert [row[0] for row in rows] == [
        "training tiny, 256 padded tokens",
        "training tiny, 256 padded tokens, one core busy",
        "translating tiny, greedy",
        "one line, tiny, greedy",
        "translating tiny, beam 2",
        "one line, tiny, beam 2",
    ]
    assert "% of quiet" in rows[1][2]
    assert {row[1] for row in rows[2:]} == {"fp32"}
    for what, _, speed, of_limit in rows:
        check_row(what, speed, of_limit)


@pytest.mark.slow
def test_made_up_text_fills_the_documented_vocabulary(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes: list[Shape] = []
    operations = benchmark.operations
    monkeypatch.setattr(
        benchmark, "operations", lambda shape, *n: shapes.append(shape) or operations(shape, *n)
    )
    benchmark.main([*QUICK, "--sizes", "tiny", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {shape.vocab_size for shape in shapes} == {8000}
    assert 0 < rows[0]["padding"] < 0.5
    assert len(rows) == 5


@pytest.mark.slow
def test_a_trained_model_and_its_peer(
    benchmark: ModuleType, trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark.main([*QUICK, "--model", str(trained_run), "--peer"])
    rows = table(capsys.readouterr().out)
    own = [row[0] for row in rows if "CTranslate2" not in row[0]]
    assert [row[0] for row in rows if "CTranslate2" in row[0]] == [f"CTranslate2: {x}" for x in own]
    assert len(own) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--src a", "give both --src and --tgt"),
        ("--peer", "--peer needs --model"),
        ("--sizes tiny,huge", "--sizes: huge: choose from"),
        ("--lines 0", "--lines: 0: must be at least 1"),
    ],
)
def test_refusals(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(options.split())
    assert message in capsys.readouterr().err


def test_products_are_counted_as_the_weights_are_used(benchmark: ModuleType) -> None:
    size = dict(zip(benchmark.SHAPE, (3, 2, 16, 32, 2), strict=True))
    shape = shape_with(50, **size, tie_embeddings="none")
    model = Transformer(shape)
    matrices = sum(each.numel() for name, each in model.named_parameters() if each.dim() == 2)
    used = matrices - 2 * 50 * 16  # embeddings are looked up
    assert benchmark.operations(shape, 1, 1) == 2 * used
