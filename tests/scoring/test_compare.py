"""Comparisons of systems: sacreBLEU's own tests to the last digit, and lines that differ most."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import run_mtrain, write_lines
from rich.cells import cell_len

from mtrain.cli.streams import print_text
from mtrain.runtime.errors import RefusedError
from mtrain.scoring import compare
from mtrain.scoring.compare import Comparison, choose_metrics, read_systems
from mtrain.scoring.metrics import METRICS, Paired

WORDS = ["The", "the", "old", "harbour", "boat", ",", ".", "tea", "!", "7", "sells", "He"]
HAN = "红色的船停在旧港口她数了七只鸟，没有一飞走。"


def sentences(count: int, seed: int, words: list[str] | str = WORDS, glue: str = " ") -> list[str]:
    rng = random.Random(seed)
    return [glue.join(rng.choices(words, k=rng.randint(4, 9))) for _ in range(count)]


def worsened(lines: list[str], fraction: float, seed: int) -> list[str]:
    """Shuffle the characters of a fraction of lines: systems of chosen quality."""
    rng = random.Random(seed)
    return [
        "".join(random.Random(i).sample(line, len(line))) if rng.random() < fraction else line
        for i, line in enumerate(lines)
    ]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    reference = sentences(60, 1)
    texts = {"ref": reference, "ref2": worsened(reference, 0.2, 9), "src": sentences(60, 5)}
    for number, fraction in enumerate((0.5, 0.45, 0.1)):
        texts["abc"[number]] = worsened(reference, fraction, number)
    return {name: write_lines(tmp_path / name, lines) for name, lines in texts.items()}


def of_sacrebleu(
    references: list[Path], systems: list[Path], *options: str
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Run sacreBLEU's command; returns the columns of its table and its signatures."""
    arguments = [*map(str, references), "-i", *map(str, systems), "-m", "bleu", "chrf", "ter"]
    arguments += ["-w", "6", "-f", "text", "--no-color", "-q", "--paired-bs", *options]
    command = [sys.executable, "-m", "sacrebleu", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    cells: dict[str, list[str]] = {"BLEU": [], "chrF2": [], "TER": []}
    for line in done.stdout.split("\n"):
        row = re.findall(r"(-?\d+\.\d{6}(?: \(.*?\))?|\(p = [\d.]+\)\*?)", line)
        for column, cell in zip(cells.values(), row, strict=False):
            column.append(cell)
    signatures = dict(re.findall(r"^ - (\S+) +(nrefs\S+)$", done.stdout, re.MULTILINE))
    return cells, signatures


def ours(result: dict[str, Any], metric: str) -> list[str]:
    """Return the same cells from our object."""
    cells = []
    for system in result["systems"]:
        found = system[metric]
        low, high = found["ci"]
        cells.append(f"{found['score']:.6f} ({found['mean']:.6f} ± {(high - low) / 2:.6f})")
        if "difference" in found:
            p = found["bootstrap"]
            cells.append(f"(p = {p['p']:.4f})" + ("*" if p["significant"] else ""))
    return cells


def test_all_numbers_are_those_of_sacrebleu_s_command(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two references, without case, and with a seed."""
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    systems = [files[name] for name in "abc"]
    references = [files["ref"], files["ref2"]]
    options = ["-r", references[0], "-r", references[1], "--lowercase", "--json"]
    done = run_mtrain("compare", *systems, *options)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    cells, signatures = of_sacrebleu(references, systems, "--lowercase", "--chrf-lowercase")
    for metric, name in METRICS.items():
        assert ours(result, metric) == cells[name]
        assert len(cells[name]) == 5
        assert result["signatures"][metric] == {"bootstrap": signatures[name]}
    found = [system["bleu"]["bootstrap"]["significant"] for system in result["systems"][1:]]
    assert found == [False, True]


def test_chinese_is_cut_as_by_eval(tmp_path: Path) -> None:
    reference = sentences(12, 2, HAN, "")
    systems = {"ref": reference, "a": worsened(reference, 0.5, 1), "b": worsened(reference, 0.2, 2)}
    paths = {name: write_lines(tmp_path / name, lines) for name, lines in systems.items()}
    plain = (paths["a"], paths["b"], "-r", paths["ref"], "--json")
    done = run_mtrain("compare", *plain, "--tgt-lang", "zh_CN")
    options = ["-tok", "zh", "--ter-asian-support", "--ter-normalized"]
    cells, _ = of_sacrebleu([paths["ref"]], [paths["a"], paths["b"]], *options)
    for metric, name in METRICS.items():
        assert ours(json.loads(done.stdout), metric) == cells[name]
    done = run_mtrain("compare", *plain, "--metrics", "bleu")
    assert "--tgt-lang" in done.stderr
    assert list(json.loads(done.stdout)["signatures"]) == ["bleu"]


def compared(
    texts: list[list[str]],
    reference: list[str],
    max_lines: int = 2,
    sources: list[str] | None = None,
) -> Comparison:
    options = {"metrics": ["chrf"], "tokenize": "13a", "lowercase": False, "max_lines": max_lines}
    systems = list(zip("abc", texts, strict=False))
    return compare.compare(systems, [reference], sources or [], **options)


def text_of(result: Comparison) -> str:
    return "\n".join(result.rows())


def test_lines_that_differ_most_are_shown_in_either_direction() -> None:
    reference = [f"the {word} boat sails away" for word in ("red", "blue", "green", "grey", "old")]
    first = [reference[0], "xx", "the green boat", reference[3], reference[4]]
    second = ["xx", reference[1], reference[2], "the grey boat", reference[4]]
    result = compared([first, second], reference, 2, ["r", "b", "g", "gy", "o"])
    assert [found.line for found in result.contrasts[1]["better"]] == [2, 3]
    assert [found.line for found in result.contrasts[1]["worse"]] == [1, 4]
    old, new = result.contrasts[1]["better"][0].scores
    assert old < 5
    assert new == pytest.approx(100)
    shown = re.sub(" +", " ", text_of(result))
    assert shown.index("line 2: +") < shown.index("line 3: +") < shown.index("line 1: -")
    assert "source b\n reference the blue boat sails away\n a xx\n b the blue boat sails" in shown
    found = result.as_json()["systems"][1]["better"][0]
    assert (found["line"], found["source"], found["references"]) == (2, "b", [reference[1]])
    assert (found["baseline"], found["text"]) == ("xx", reference[1])
    assert "Lines that b translates better than a (chrF2)\n\nline 2: +" in shown
    assert "line 2" not in text_of(compared([first, second], reference, 0))
    without = compared([first, second], reference)
    assert "source" not in without.as_json()["systems"][1]["better"][0]
    assert "line 2: +" in text_of(without)
    assert "source" not in text_of(without)


def test_invisible_characters_of_lines_are_spelled_out(capfd: pytest.CaptureFixture[str]) -> None:
    texts = [["a\x1b[2J boat"], ["the old boat"]]
    print_text(*compared(texts, ["the old boat"], sources=["s\u202e"]).rows())
    shown = capfd.readouterr().out
    assert r"a\x1b[2J boat" in shown
    assert r"s\u202e" in shown


def test_without_case_capital_letters_make_no_line_better() -> None:
    systems = [("a", ["THE BOAT"]), ("b", ["the boat"])]
    options = {"metrics": ["chrf"], "tokenize": "13a", "max_lines": 1}
    for lowercase, better in ((False, 1), (True, 0)):
        found = compare.compare(systems, [["the boat"]], [], lowercase=lowercase, **options)
        assert len(found.contrasts[1]["better"]) == better


def test_columns_stand_below_each_other_after_names_of_wide_characters() -> None:
    systems = [("日本語の訳文", ["a b c d"] * 12), ("b", ["a b c"] * 12)]
    options = {"metrics": ["chrf"], "tokenize": "13a", "lowercase": False, "max_lines": 1}
    lines = list(compare.compare(systems, [["a b c d"] * 12], [], **options).rows())
    assert len({cell_len(line.partition(" ± ")[0]) for line in lines[1:3]}) == 1
    assert len({cell_len(line.partition("a b")[0]) for line in lines[-3:]}) == 1


def test_equal_systems_and_few_lines_are_never_significant() -> None:
    reference = sentences(30, 3)
    half = worsened(reference, 0.5, 3)
    result = compared([half, half, reference], reference)
    same, better = result.as_json()["systems"][1:]
    assert same["chrf"]["difference"] == 0
    assert same["chrf"]["bootstrap"]["p"] == 1
    assert same["chrf"]["bootstrap"]["significant"] is False
    assert same["better"] == same["worse"] == []
    assert "Lines that b" not in text_of(result)
    assert better["chrf"]["bootstrap"]["significant"] is True
    for count, is_significant in ((9, False), (10, True)):
        result = compared([["xx"] * count, reference[:count]], reference[:count])
        assert result.tests["chrf"][1][1].is_significant is is_significant
    result = compared([["a boat"], ["the boat"]], ["the old boat"])
    assert result.as_json()["systems"][1]["chrf"]["bootstrap"]["significant"] is False
    assert "*" not in text_of(result).split("* p <=")[0]


def test_lower_ter_is_better(files: dict[str, Path]) -> None:
    odd = files["c"].rename(files["c"].with_name("c\udcff"))  # no UTF-8
    done = run_mtrain("compare", files["a"], odd, "-r", files["ref"], "-n", "0")
    rows = [line.split() for line in done.stdout.split("\n") if line.startswith("c\\udcff ")]
    assert [row[6] for row in rows] == ["better"] * 3
    assert [row[5][0] for row in rows] == ["+", "+", "-"]
    assert [row[7][-1] for row in rows] == ["*"] * 3
    assert "comparing 2 systems on 60 lines" in done.stderr
    assert max(map(len, done.stdout.split("\n\n")[0].split("\n"))) <= 80


def test_a_score_without_a_difference_is_equal() -> None:
    paired = Paired(1.0, 1.0, 0.0, difference=0.0, p=1.0, is_significant=False)
    assert [paired.cells(metric)[2] for metric in ("bleu", "ter")] == ["+0.00 equal "] * 2


def test_metrics_are_chosen_in_one_order_and_systems_named_by_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose_metrics("ter, BLEU") == ["bleu", "ter"]
    with pytest.raises(
        RefusedError, match=r"--metrics bleu,: expected one or more of bleu,chrf,ter"
    ):
        choose_metrics("bleu,")
    (tmp_path / "one").mkdir()
    paths = [write_lines(tmp_path / name, ["a"]) for name in ("one/out.txt", "out.txt")]
    monkeypatch.chdir(tmp_path / "one")
    for first in (paths[0], Path("out.txt")):
        systems = read_systems([first, paths[1]], [["b"]], Path("ref"))
        assert [name for name, _ in systems] == ["one/out.txt", "out.txt"]
