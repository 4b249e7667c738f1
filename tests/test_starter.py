"""`mtrain init` writes configs that load, fit the text, and never validate on what they learn."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
import yaml
from conftest import made_up_pairs, run_mtrain

from mtrain import starter
from mtrain.config import load_config
from mtrain.errors import RefusedError, UserError
from mtrain.starter import Request, Size, language_of, quoted, recipe_for, write_config
from mtrain.stop import Stop


def write(path: Path, lines: list[str]) -> Path:
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    pairs = made_up_pairs(600, 1, longest=9)
    src = write(tmp_path / "text.en", [src for src, _ in pairs])
    return src, write(tmp_path / "text.de.gz", [tgt for _, tgt in pairs])


def request(files: tuple[Path, Path], output: Path, hold_out: int = 50) -> Request:
    return Request(*files, output, "en", "de", None, hold_out)


@pytest.mark.parametrize(
    ("name", "language"),
    [("a.en", "en"), ("x.train.de.gz", "de"), ("a.b.zh-TW.zst", "zh-TW"), ("news.no", "no")],
)
def test_languages_are_told_by_names(name: str, language: str) -> None:
    assert language_of(Path(name), "--src-lang") == language


@pytest.mark.parametrize("name", ["a.txt", "en", "a", "train.english", "a.gz", "a.xx"])
def test_unknown_languages_are_refused(name: str) -> None:
    with pytest.raises(RefusedError, match=r"give --src-lang"):
        language_of(Path(name), "--src-lang")


@pytest.mark.parametrize(
    "text", ["no", "on", "a b", "1e5", "12", "-", "x: y", 'a"b\\', "~", "{a}", "ä"]
)
def test_values_are_read_back(text: str) -> None:
    assert yaml.safe_load(f"[{{k: {quoted(text)}}}]") == [{"k": text}]


@pytest.mark.parametrize("has_gpu", [False, True])
@pytest.mark.parametrize("pairs", [50, 900, 29_000, 50_001, 400_000, 2_000_000, 10**9])
def test_every_size_has_a_recipe_that_loads(tmp_path: Path, pairs: int, has_gpu: bool) -> None:
    """Also, its lines are short."""
    recipe = recipe_for(Size(pairs, 25.0, 5000, 90), has_gpu=has_gpu)
    asked = Request(Path("a.en"), Path("b c.no"), Path("x.yaml"), "en", "no", None, 0)
    train, valid = (Path("a.en"), Path("b c.no")), (Path("v.en"), Path("v.no"))
    text = starter.render(asked, Size(pairs, 25.0, 5000, 90), recipe, train, valid)
    assert "$" not in text
    assert max(map(len, text.splitlines())) <= 100
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(path)
    assert config.data.tgt_lang == "no"
    assert config.data.train[0].tgt == "b c.no"
    assert config.train.valid_every <= config.train.max_steps
    assert config.train.warmup_steps < config.train.max_steps


def test_larger_text_gets_no_smaller_model_and_no_fewer_steps() -> None:
    recipes = [
        recipe_for(Size(pairs, 25.0, 10**5, 90), has_gpu=True)
        for pairs in (1000, 30_000, 60_000, 500_000, 3_000_000)
    ]
    assert [r.d_model * r.d_ff for r in recipes] == sorted(r.d_model * r.d_ff for r in recipes)
    assert [r.vocab_size for r in recipes] == sorted(r.vocab_size for r in recipes)


def test_what_is_held_out_is_nowhere_in_train(tmp_path: Path, files: tuple[Path, Path]) -> None:
    output = tmp_path / "new" / "mine.yaml"
    write_config(request(files, output), Stop(), has_gpu=False)
    config = load_config(output)
    train, valid = (
        [Path(path).read_text().splitlines() for path in (corpus.src, corpus.tgt)]
        for corpus in (config.data.train[0], config.data.valid)
    )
    assert len(valid[0]) == len(valid[1]) == 50
    assert len(train[0]) == len(train[1])
    for learned, held in zip(train, valid, strict=True):
        assert not set(learned) & set(held)
    original = set(made_up_pairs(600, 1, longest=9))
    assert set(zip(*train, strict=True)) | set(zip(*valid, strict=True)) <= original
    assert not list(tmp_path.rglob(".*"))


def test_nothing_is_written_over(tmp_path: Path, files: tuple[Path, Path]) -> None:
    output = tmp_path / "mine.yaml"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "valid.de").write_text("precious\n")
    with pytest.raises(RefusedError, match=r"valid.de: exists already"):
        write_config(request(files, output), Stop(), has_gpu=False)
    assert not output.exists()
    output.write_text("mine\n")
    with pytest.raises(RefusedError, match=r"mine.yaml: exists already"):
        write_config(request(files, output), Stop(), has_gpu=False)
    assert output.read_text() == "mine\n"


def test_too_much_held_out_is_refused(tmp_path: Path, files: tuple[Path, Path]) -> None:
    with pytest.raises(RefusedError, match="more than a tenth of the 600 pairs"):
        write_config(request(files, tmp_path / "m.yaml", 61), Stop(), has_gpu=False)


def test_a_stop_leaves_nothing_half_written(tmp_path: Path, files: tuple[Path, Path]) -> None:
    longer = write(tmp_path / "long.en", ["alone at the end", *["bavo"] * 599])
    bad = write(tmp_path / "long.de", ["x"] * 600)
    bad.write_bytes(bad.read_bytes()[:-2] + b"\xff\n")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match=r"long.de:600: not valid UTF-8"):
        write_config(request((longer, bad), tmp_path / "m.yaml", 5), Stop(), has_gpu=False)
    assert sorted(tmp_path.iterdir()) == before


def test_text_without_words_is_refused(tmp_path: Path) -> None:
    empty = write(tmp_path / "a.en", []), write(tmp_path / "a.de", [])
    with pytest.raises(UserError, match="holds no text to learn from"):
        write_config(request(empty, tmp_path / "m.yaml", 0), Stop(), has_gpu=False)


def test_the_command_makes_what_training_takes(tmp_path: Path, files: tuple[Path, Path]) -> None:
    done = run_mtrain("init", *files, "--hold-out", "50", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "en-de.yaml\n"
    assert "held out 50 pairs" in done.stderr
    dry = run_mtrain("train", "-c", "en-de.yaml", "--dry-run", cwd=tmp_path)
    assert dry.returncode == 0, dry.stderr
    assert "nothing was trained" in dry.stderr


def test_validation_text_that_is_in_train_is_told(tmp_path: Path, files: tuple[Path, Path]) -> None:
    random.seed(1)
    valid = [*made_up_pairs(3, 1, longest=9), ("never seen", "nie gesehen")]
    src = write(tmp_path / "v.en", [src for src, _ in valid])
    tgt = write(tmp_path / "v.de", [tgt for _, tgt in valid])
    given = ["--valid-src", src, "--valid-tgt", tgt, "-o", tmp_path / "m.yaml"]
    done = run_mtrain("init", *files, *given)
    assert done.returncode == 0, done.stderr
    assert "3 of 4 pairs stand in the training text too" in done.stderr
    for wrong in ([], ["--valid-src", src], [*given, "--hold-out", "5"]):
        refused = run_mtrain("init", *files, *wrong)
        assert refused.returncode == 2
        assert "needs text to validate on" in refused.stderr
