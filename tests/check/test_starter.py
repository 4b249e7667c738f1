"""`mtrain init` writes configs that load, fit the text, and never validate on what they learn."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import MEASURE_HERE, made_up_pairs, run_mtrain
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrain.check import chunks, starter
from mtrain.check.starter import Request, languages_of, write_config
from mtrain.config.corpora import FileCorpus, TextCorpus
from mtrain.config.keys import SCHEMA
from mtrain.config.loading import load_config
from mtrain.config.recipe import Size, recipe_for
from mtrain.corpus.lines import Reading
from mtrain.runtime.errors import RefusedError, StoppedError, UserError
from mtrain.runtime.files import VARIABLE
from mtrain.runtime.stop import Stop


def write(path: Path, lines: list[str]) -> Path:
    data = "".join(line + "\n" for line in lines).encode(errors="surrogateescape")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    pairs = made_up_pairs(600, 1, longest=9)
    src = write(tmp_path / "text.en", [src for src, _ in pairs])
    return src, write(tmp_path / "text.de.gz", [tgt for _, tgt in pairs])


def request(files: tuple[Path, Path], output: Path, hold_out: int = 30) -> Request:
    return Request(*files, output, "en", "de", None, hold_out)


@pytest.mark.parametrize(
    ("name", "language"),
    [
        *(("a.en", "en"), ("x.train.de.gz", "de"), ("a.b.zh-TW.zst", "zh-TW"), ("news.no", "no")),
        *(("a.en.txt", "en"), ("a.de.txt.gz", "de")),
        *(("a.deu", "deu"), ("dev.zho_Hans", "zho_Hans"), ("dev.quy_Latn", "quy_Latn")),
    ],
)
def test_the_name_of_a_file_gives_its_language(name: str, language: str) -> None:
    assert languages_of((Path(name), Path("b.fr")), None, None) == (language, "fr")
    assert languages_of((Path("b.fr"), Path(name)), "xx", None) == ("xx", language)


@pytest.mark.parametrize("name", ["a.txt", "en", "a", "train.english", "a.gz", "a.xx"])
def test_all_languages_that_no_name_gives_are_asked_for_at_once(name: str) -> None:
    unknown, known = Path(name), Path("b.fr")
    with pytest.raises(RefusedError, match=f"^{unknown}: .* give --src-lang$"):
        languages_of((unknown, known), None, None)
    with pytest.raises(RefusedError, match=f"^{unknown}: .* give --tgt-lang$"):
        languages_of((unknown, unknown), "en", None)
    with pytest.raises(RefusedError, match=f"^{unknown} and c: .* give --src-lang and --tgt-lang$"):
        languages_of((unknown, Path("c")), None, None)


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=60
).filter(lambda name: name not in (".", ".."))
ODD_PARTS = [*'\n\r\u2028\x85\x07\ufeff$"\\', "  # x", "no", "1e5"]
ODD_NAMES = st.one_of(
    NAMES, st.lists(st.sampled_from(ODD_PARTS), min_size=1, max_size=30).map("".join)
).filter(lambda name: name[0] != "~" and not VARIABLE.search(name))


@settings(max_examples=60, deadline=None)
@given(st.lists(ODD_NAMES, min_size=5, max_size=5))
def test_any_path_is_read_back(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    sides, valid = ((Path("d") / a, Path(b)) for a, b in (names[:2], names[2:4]))
    output = Path(names[4] + ".yaml")
    asked = Request(*sides, output, "no", "zh-TW", None, 0)
    size = Size(1000, 35.0, 5000, 90)
    train = asked.corpus_of(asked.src, asked.tgt)
    text = starter.render(asked, size, train, valid, has_gpu=False, drop_invalid=False)
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(path)
    data = config.data
    read = [
        getattr(corpus, side) for corpus in (data.train[0], data.valid) for side in ("src", "tgt")
    ]
    assert read == [str(path) for path in (*sides, *valid)]
    assert config.run_dir == f"runs/{output.stem}"
    assert [data.src_lang, data.tgt_lang] == ["no", "zh-TW"]


@pytest.mark.parametrize("has_gpu", [False, True])
@pytest.mark.parametrize("pairs", [50, 900, 29_000, 50_001, 400_000, 2_000_000, 10**9])
def test_every_size_has_a_recipe_that_loads(tmp_path: Path, pairs: int, has_gpu: bool) -> None:
    """Also, its lines are short."""
    size = Size(pairs, 35.0, 5000, 90)
    asked = Request(Path("a.en"), Path("b c.no"), Path("x.yaml"), "en", "no", None, 0)
    valid = Path("v.en"), Path("v.no")
    train = asked.corpus_of(asked.src, asked.tgt)
    text = starter.render(asked, size, train, valid, has_gpu=has_gpu, drop_invalid=False)
    editor, text = text.split("\n", 1)
    assert editor == f"# yaml-language-server: $schema={SCHEMA.as_uri()}"
    assert text.startswith(f"# {pairs:,} pairs, en to no. Sizes and rates")
    assert "None" not in text
    assert max(map(len, text.splitlines())) <= 100
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(path)
    assert config.data.tgt_lang == "no"
    assert config.data.train[0].tgt == "b c.no"
    assert config.train.valid_every <= config.train.max_steps
    assert config.train.warmup_steps < config.train.max_steps
    assert config.train.step_batches == (1 if has_gpu else 4)
    assert config.train.packing == (True if has_gpu else "auto")
    assert config.decode.batch_tokens == (16_384 if has_gpu else 4096)
    _, recipe = recipe_for(size, has_gpu=has_gpu)
    _, larger = recipe_for(replace(size, pairs=2 * pairs), has_gpu=has_gpu)
    for section, key in (("model", "d_model"), ("model", "d_ff"), ("tokenizer", "vocab_size")):
        assert larger[section][key] >= recipe[section][key]


def test_a_recipe_by_hand() -> None:
    """Half of 35 tokens are the target's; a step of 4,096 has 3,400 without padding."""
    _, recipe = recipe_for(Size(29_000, 35.0, 5000, 90), has_gpu=False)
    assert recipe["train"]["max_steps"] == round(16 * 29_000 * 17.5 / 3400 / 500) * 500 == 2500
    assert recipe["tokenizer"]["vocab_size"] == (260 + 90 + 3500) // 100 * 100


@pytest.mark.parametrize(
    ("pairs", "has_gpu", "types", "characters", "pieces"),
    [
        (299_999, False, 10**6, 90, 8000),
        (300_000, False, 10**6, 90, 16_000),
        (1_000_001, False, 10**6, 90, 16_000),
        (1_000_001, True, 10**6, 90, 32_000),
        (29_000, False, 10**6, 5000, 10_000),  # Chinese
        (29_000, False, 10, 90, 260 + 108 + 40),
    ],
)
def test_a_vocabulary_fits_the_words_and_characters_of_the_text(
    pairs: int, has_gpu: bool, types: int, characters: int, pieces: int
) -> None:
    _, recipe = recipe_for(Size(pairs, 35.0, types, characters), has_gpu=has_gpu)
    assert recipe["tokenizer"]["vocab_size"] == pieces


@pytest.mark.parametrize(
    ("pairs", "has_gpu", "changed"),
    [
        (50_000, False, {"d_ff": 512}),
        (50_001, False, {}),
        (1_000_000, True, {"dropout": 0.1}),
        (1_000_001, False, {"dropout": 0.1}),
        (1_000_001, True, {}),
    ],
)
def test_a_recipe_has_the_sizes_and_rates_of_the_config_that_it_names(
    pairs: int, has_gpu: bool, changed: dict[str, Any]
) -> None:
    origin, recipe = recipe_for(Size(pairs, 35.0, 5000, 90), has_gpu=has_gpu)
    named = load_config(Path(__file__).parents[2] / origin.split()[0])
    model, train = named.model.model_dump(), named.train
    assert recipe["model"] == {key: model[key] for key in recipe["model"]} | changed
    keys = ("optimizer", "schedule", "average_last")
    assert [recipe["train"][key] for key in keys] == [getattr(train, key) for key in keys]
    assert recipe["train"]["patience"] == 0
    decode = recipe["decode"]
    found = [decode[key] for key in ("beam_size", "length_penalty", "length_norm")]
    assert found == [5, 1.0, "power"]
    warmup_steps = min(train.warmup_steps, recipe["train"]["max_steps"] // 20)
    assert recipe["train"]["warmup_steps"] == warmup_steps
    assert recipe["train"]["peak_lr"] == (train.peak_lr or 7.0e-4)
    if not has_gpu or train.packing is True:
        assert recipe["train"]["max_tokens"] == train.max_tokens


@pytest.mark.parametrize(
    ("pairs", "steps"), [(1, 500), (50_000, 4000), (50_001, 4000), (10**6, 50_000), (10**9, 50_000)]
)
def test_the_steps_of_a_recipe_are_bounded(pairs: int, steps: int) -> None:
    _, recipe = recipe_for(Size(pairs, 35.0, 5000, 90), has_gpu=False)
    assert recipe["train"]["max_steps"] == steps
    assert recipe["train"]["save_every"] == {500: 10, 4000: 100, 50_000: 1250}[steps]


def test_what_is_held_out_is_nowhere_in_train(
    tmp_path: Path, files: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "new" / "mine.yaml"
    found = write_config(request(files, output, 40), Stop(), has_gpu=False)
    assert found == {"pairs": 557, "held_out": 40, "tests": []}
    assert "pairs dropped: copies of held-out pairs: 3" in caplog.messages
    config = load_config(output)
    train, valid = (
        [Path(path).read_text().splitlines() for path in (corpus.src, corpus.tgt)]
        for corpus in (config.data.train[0], config.data.valid)
    )
    assert len(valid[0]) == len(valid[1]) == 40
    for learned, held in zip(train, valid, strict=True):
        assert not set(learned) & set(held)
    held = set(zip(*valid, strict=True))
    others = [pair for pair in made_up_pairs(600, 1, longest=9) if pair not in held]
    assert list(zip(*train, strict=True)) == others  # nothing else is lost
    assert not list(tmp_path.rglob(".*"))
    again = tmp_path / "again" / "mine.yaml"
    write_config(request(files, again, 40), Stop(), has_gpu=False)
    for name in ("train.en", "valid.de"):
        assert (again.parent / "mine" / name).read_bytes() == (
            output.parent / "mine" / name
        ).read_bytes()


@pytest.mark.parametrize(("pairs", "count"), [(40, 4), (1500, 150), (5000, 200), (90_000, 1000)])
def test_a_usual_number_is_held_out_without_a_validation_set(
    tmp_path: Path, files: tuple[Path, Path], pairs: int, count: int
) -> None:
    asked = request(files, tmp_path / "m.yaml", 0)
    assert starter._count_to_hold_out(asked, pairs) == count


def test_a_very_small_text_is_warned_of_as_by_the_check(
    tmp_path: Path, files: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("test.en", "test.de.gz"):
        write(tmp_path / name, ["one", "two"])
    write_config(request(files, tmp_path / "m.yaml", 40), Stop(), has_gpu=False)
    small = "data.train: too few pairs to learn to translate: 557; use 5,000 or more, or start from"
    assert f"{small} a model with train.init_from" in caplog.messages
    for key, lines in (("data.valid", 40), ("data.test.test", 2)):
        text = f"{key}: scores on only {lines} lines vary by chance; use 200 lines or more"
        assert text in caplog.messages


def test_the_next_commands_take_no_file_for_an_option(
    tmp_path: Path,
    files: tuple[Path, Path],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("INFO", "mtrain")
    monkeypatch.chdir(tmp_path)
    write_config(request(files, Path("-m n.yaml"), 9), Stop(), has_gpu=False)
    assert caplog.messages[-2:] == [
        "next: mtrain check './-m n.yaml'",
        "      mtrain train './-m n.yaml'",
    ]


def test_sets_in_the_same_folder_are_taken(
    tmp_path: Path, files: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mtrain")
    both = ["valid", "test", "test_2016_flickr", "testimony", "latest"]
    for name in [f"{name}.{side}" for name in both for side in ("en", "de.gz")] + ["test2.en"]:
        write(tmp_path / name, ["one"])
    (tmp_path / "test3.en").mkdir()
    write(tmp_path / "test3.de", ["one"])
    output = tmp_path / "m.yaml"
    found = write_config(request(files, output, 0), Stop(), has_gpu=False)
    assert found == {"pairs": 600, "held_out": 0, "tests": ["test", "test_2016_flickr"]}
    data = load_config(output).data
    sets = {"valid": data.valid, **data.test}
    for name, corpus in sets.items():
        assert isinstance(corpus, TextCorpus)
        sides = (str(tmp_path / f"{name}.en"), str(tmp_path / f"{name}.de.gz"))
        assert (corpus.src, corpus.tgt) == sides
    for file, other in (("test2.en", "test2.de"), ("test3.de", "test3.en")):
        reason = f"not used, since its other side {other} is missing; add it"
        assert f"{tmp_path / file}: {reason}" in caplog.messages
    assert f"validation set: {tmp_path / 'valid.en'} and {tmp_path / 'valid.de.gz'}" in caplog.text
    assert [line.strip() for line in caplog.messages[-2:]] == [
        f"next: mtrain check {output}",
        f"mtrain train {output}",
    ]
    # what is asked for comes first, and the text itself is no set
    output = tmp_path / "n.yaml"
    assert write_config(request(files, output, 9), Stop(), has_gpu=False)["held_out"] == 9
    sides = tmp_path / "test.en", tmp_path / "test.de.gz"
    asked = starter.with_found_sets(request(sides, output, 0))
    assert list(asked.tests) == ["test_2016_flickr"]
    (tmp_path / "valid.en").rename(tmp_path / "dev.de-en.en")
    (tmp_path / "valid.de.gz").rename(tmp_path / "dev.de-en.de.gz")
    asked = starter.with_found_sets(request(sides, output, 0))
    assert asked.valid == (tmp_path / "dev.de-en.en", tmp_path / "dev.de-en.de.gz")
    assert list(asked.tests) == ["test_2016_flickr"]


def with_sets(folder: Path, *names: str) -> starter.Request:
    """Write a training text and sets of these names; return a request with those found."""
    for name in ("train", *names):
        for side in ("en", "de"):
            write(folder / f"{name}.{side}", ["one"])
    sides = folder / "train.en", folder / "train.de"
    return starter.with_found_sets(request(sides, folder / "m.yaml", 0))


def test_sets_have_names_in_any_case_or_those_of_news(tmp_path: Path) -> None:
    asked = with_sets(tmp_path, "Valid", "TEST_a", "newstest2016", "latest")
    assert asked.valid == (tmp_path / "Valid.en", tmp_path / "Valid.de")
    assert list(asked.tests) == ["TEST_a", "newstest2016"]


def test_of_several_validation_sets_the_most_usual_name_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("newsdev2017", "val2", "dev-2010", "devtest", "tst2013", "development", "dev_test")
    asked = with_sets(tmp_path, *names)
    assert asked.valid == (tmp_path / "dev-2010.en", tmp_path / "dev-2010.de")
    assert list(asked.tests) == ["devtest", "tst2013"]
    advice = "for the mean score of several sets, list them in data.valid of the config"
    for name in ("newsdev2017", "val2"):
        assert f"{name} set: not used; {advice}" in caplog.messages
    caplog.clear()
    assert starter.with_found_sets(replace(asked, tests={})) == asked  # a set was given
    assert "not used" not in caplog.text


def test_a_given_set_is_not_among_those_that_lack_a_side(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sides = write(tmp_path / "a.en", ["one"]), write(tmp_path / "a.de", ["eins"])
    asked = request(sides, tmp_path / "m.yaml", 0)
    valid = write(tmp_path / "valid.en", ["two"]), write(tmp_path / "zwei.txt", ["zwei"])
    starter.with_found_sets(replace(asked, valid=valid))
    assert caplog.messages == []
    starter.with_found_sets(replace(asked, hold_out=1))
    assert caplog.messages == []
    starter.with_found_sets(asked)
    assert caplog.messages == [
        f"{tmp_path / 'valid.en'}: not used, since its other side valid.de is missing; add it, or "
        "name both sides with --valid-src, --valid-tgt"
    ]


def test_sets_whose_names_end_in_txt_are_taken(tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        for side in ("en", "de"):
            write(tmp_path / f"{name}.{side}.txt", ["one"])
    sides = tmp_path / "train.en.txt", tmp_path / "train.de.txt"
    asked = starter.with_found_sets(request(sides, tmp_path / "m.yaml", 0))
    assert asked.valid == (tmp_path / "valid.en.txt", tmp_path / "valid.de.txt")
    assert list(asked.tests) == ["test"]


def test_bleu_counts_characters_of_a_language_without_spaces(
    tmp_path: Path, files: tuple[Path, Path]
) -> None:
    for code, tokenizer in (("th", "char"), ("km", "char"), ("de", None), ("zh", None)):
        asked = replace(request(files, tmp_path / f"{code}.yaml", 9), tgt_lang=code)
        write_config(asked, Stop(), has_gpu=False)
        assert load_config(asked.output).data.bleu_tokenize == tokenizer


@pytest.mark.parametrize("taken", ["mine/valid.de", "mine.yaml"])
def test_nothing_is_written_over(tmp_path: Path, files: tuple[Path, Path], taken: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / taken).write_text("precious\n")
    before = found(tmp_path)
    with pytest.raises(RefusedError, match=rf"{taken}: exists already"):
        write_config(request(files, tmp_path / "mine.yaml"), Stop(), has_gpu=False)
    assert found(tmp_path) == before
    assert (tmp_path / taken).read_text() == "precious\n"


SOURCE, TARGET, OUTPUT = Path("text.en"), Path("text.de.gz"), Path("m.yaml")
ODD = Path(os.fsdecode(b"x\xff.yaml"))
REFUSED = [
    (Request(ODD, TARGET, OUTPUT, "en", "de", (ODD, TARGET), 0), "should be UTF-8, got"),
    (Request(SOURCE, TARGET, ODD, "en", "de", (SOURCE, TARGET), 0), "should be UTF-8, got"),
    (Request(SOURCE, TARGET, OUTPUT, "en", "de", None, 61), "more than a tenth of the 600 pairs"),
    (Request(SOURCE, SOURCE, OUTPUT, "en", "de", None, 50), "is both sides"),
    (Request(SOURCE, TARGET, OUTPUT, "en", "de", (SOURCE, SOURCE), 0), "is both sides"),
    *(
        (Request(SOURCE, TARGET, Path(name), "en", "de", None, 50), r"name the config \.yaml or")
        for name in ("cfg", "cfg.txt", ".yaml")
    ),
]


@pytest.mark.parametrize(("asked", "message"), REFUSED)
def test_what_no_config_can_be_made_of_is_refused(
    tmp_path: Path,
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    asked: Request,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if not asked.src.exists():
        files[0].rename(asked.src)
    before = found(tmp_path)
    with pytest.raises(RefusedError, match=message):
        write_config(asked, Stop(), has_gpu=False)
    assert found(tmp_path) == before


def found(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize("name", ["config.yaml", "checkpoints.yaml"])
def test_nothing_is_written_among_the_files_of_a_run(
    tmp_path: Path, files: tuple[Path, Path], name: str
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    before = found(tmp_path)
    with pytest.raises(RefusedError, match=r"belongs to .*run; write to another path"):
        write_config(request(files, tmp_path / "run" / name), Stop(), has_gpu=False)
    assert found(tmp_path) == before


def test_a_tokenizer_of_bleu_that_is_not_installed_is_told(
    tmp_path: Path,
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(starter, "missing_tokenizers", lambda names: [f"no {n}" for n in names])
    asked = replace(request(files, tmp_path / "m.yaml"), tgt_lang="ja")
    write_config(asked, Stop(), has_gpu=False)
    assert "no ja-mecab" in caplog.messages


def test_commands_to_copy_quote_names(
    tmp_path: Path, files: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mtrain")
    output = tmp_path / "my text.yaml"
    write_config(request(files, output), Stop(), has_gpu=False)
    for command in ("check", "train"):
        assert f"mtrain {command} '{output}'" in caplog.text
        assert f"mtrain {command} -c '{output}'\n" in output.read_text()


@pytest.mark.parametrize("failing", ["runtime.outputs.os.fsync", "check.starter.render"])
@pytest.mark.parametrize("output", ["m.yaml", "new/there/m.yaml"])
def test_a_failure_leaves_no_file_or_folder(
    tmp_path: Path,
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
    output: str,
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = found(tmp_path)
    monkeypatch.setattr(f"mtrain.{failing}", fail)
    with pytest.raises(UserError, match="No space left on device"):
        write_config(request(files, tmp_path / output, 5), Stop(), has_gpu=False)
    assert found(tmp_path) == before


@pytest.mark.parametrize("deed", ["take the name", "stop"])
def test_what_happens_meanwhile_leaves_no_file_or_folder(
    tmp_path: Path, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    before, stop, output = found(tmp_path), Stop(), tmp_path / "m.yaml"
    choose = starter.choose

    def disturbed(*arguments: Any) -> Any:
        if deed == "stop":
            stop.received = signal.SIGTERM
        else:
            output.write_text("precious")
        return choose(*arguments)

    monkeypatch.setattr(starter, "choose", disturbed)
    with pytest.raises(StoppedError if deed == "stop" else RefusedError):
        write_config(request(files, output, 5), stop, has_gpu=False)
    assert [path for path in found(tmp_path) if path != output] == before
    assert not output.exists() or output.read_text() == "precious"


@pytest.mark.parametrize("languages", [("en", "en"), ("en", "EN")])
def test_equal_languages_get_files_of_their_own(
    tmp_path: Path, files: tuple[Path, Path], languages: tuple[str, str]
) -> None:
    output = tmp_path / "mine.yaml"
    write_config(Request(*files, output, *languages, None, 50), Stop(), has_gpu=False)
    made = sorted(path.name for path in (tmp_path / "mine").iterdir())
    assert made == ["train.src", "train.tgt", "valid.src", "valid.tgt"]
    valid = load_config(output).data.valid
    assert isinstance(valid, TextCorpus)
    assert (valid.src, valid.tgt) == (
        str(output.with_name("mine") / "valid.src"),
        str(output.with_name("mine") / "valid.tgt"),
    )


@pytest.mark.parametrize(
    ("pairs", "count", "message"),
    [
        ([("no", " ")] * 30, 3, "no text to learn from, or all pairs are blank on a side"),
        (
            [("yes", "ja"), *[("no", "ja")] * 29],
            3,
            "too few pairs differ on both sides to hold some out",
        ),
        ([("yes", "ja")] * 30, 3, "too few pairs differ on both sides to hold some out"),
        ([], 0, "no text to learn from"),
        ([("no", "ma\udcdf")] * 30, 0, "30 of 30 pairs are not UTF-8; convert the text"),
        ([("yes", "ja")] * 9, 0, "too few pairs to hold out a validation set: 9; add text"),
    ],
)
def test_text_that_cannot_be_split_is_told(
    tmp_path: Path, pairs: list[tuple[str, str]], count: int, message: str
) -> None:
    sides = (
        write(tmp_path / "a.en", [src for src, _ in pairs]),
        write(tmp_path / "a.de", [tgt for _, tgt in pairs]),
    )
    with pytest.raises(UserError, match=rf"a\.(en|de): {message}") as error:
        write_config(request(sides, tmp_path / "m.yaml", count), Stop(), has_gpu=False)
    assert "mtrain check" not in str(error.value)  # needs a config
    assert found(tmp_path) == sorted(sides)


@pytest.mark.parametrize("hold_out", [0, 5])
def test_pairs_that_are_blank_on_a_side_are_told_and_not_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, hold_out: int
) -> None:
    caplog.set_level("INFO", "mtrain")
    lines = [f"word{number}" for number in range(60)]
    sides = (
        write(tmp_path / "a.en", ["", *lines[1:]]),
        write(tmp_path / "a.de", [*lines[:58], " ", "\u3000"]),
    )
    valid = write(tmp_path / "v.en", ["never"]), write(tmp_path / "v.de", ["seen"])
    output = tmp_path / "m.yaml"
    asked = Request(*sides, output, "en", "de", None if hold_out else valid, hold_out)
    assert write_config(asked, Stop(), has_gpu=False)["pairs"] == 57 - hold_out
    assert f"\n# {57 - hold_out} pairs" in output.read_text()
    assert caplog.messages.count("pairs dropped: blank on a side: 3") == 1
    if hold_out:
        told = "held out 5 of 57 pairs for validation; no other pair shares a side"
        assert told in caplog.messages
        assert len((tmp_path / "m" / "train.en").read_text().split("\n")) == 52 + 1


@pytest.mark.parametrize("line", [b"", b"caf\xe9", b"x" * ((1 << 20) + 1)])
def test_a_stop_is_heard_at_pairs_that_are_dropped(tmp_path: Path, line: bytes) -> None:
    corpus = TextCorpus(src=str(tmp_path / "a.en"), tgt=str(tmp_path / "a.de"))
    for path in (corpus.src, corpus.tgt):
        Path(path).write_bytes((line + b"\n") * 3)
    calls = list[None]()
    reading = Reading(invalid_utf8="drop", check_stop=lambda: calls.append(None))
    assert list(starter._pairs(corpus, reading, 3, "reading")) == []
    assert (len(calls), reading.counts.total()) == (3, 3)


def test_unequal_sides_get_advice_that_needs_no_config_of_init(
    tmp_path: Path, files: tuple[Path, Path]
) -> None:
    short = files[0], write(tmp_path / "short.de", ["eins"])
    advice = r"short\.de has 1: .* \(with a config of these files, mtrain check"
    with pytest.raises(UserError, match=advice):
        write_config(request(short, tmp_path / "m.yaml"), Stop(), has_gpu=False)


@pytest.mark.parametrize("target", [str.title, lambda line: f"{line} {len(line) % 2}"])
def test_a_pair_that_differs_in_punctuation_alone_is_not_held_out(
    tmp_path: Path, target: Callable[[str], str]
) -> None:
    """On both sides, or on the source's."""
    lines = [f"word{number // 2}{'!' * (number % 2)}" for number in range(200)]
    others = [f"other{number}" for number in range(20)]
    src = write(tmp_path / "a.en", [*lines, *others])
    tgt = write(tmp_path / "a.de", [*map(target, lines), *others])
    write_config(request((src, tgt), tmp_path / "m.yaml", 12), Stop(), has_gpu=False)
    valid = (tmp_path / "m" / "valid.en").read_text().split()
    assert valid
    assert all(line.startswith("other") for line in valid)


def test_fewer_held_out_than_asked_for_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mtrain")
    words = [f"word{number}" for number in range(9)]
    sides = (
        write(tmp_path / "a.en", ["the same"] * 111 + words),
        write(tmp_path / "a.de", [*map(str, range(111)), *words]),
    )
    write_config(request(sides, tmp_path / "m.yaml", 12), Stop(), has_gpu=False)
    assert "held out 9 of 120 pairs for validation; no other pair shares a side" in caplog.messages
    warning = "12 pairs were intended, but each of the others shares a side with another pair"
    assert caplog.messages.count(warning) == 1
    assert (tmp_path / "m" / "valid.en").read_text().split() == words


def test_a_pair_and_its_copies_are_held_out_as_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [f"word{number}" for number in range(60)] * 2
    sides = write(tmp_path / "a.en", lines), write(tmp_path / "a.de", lines)
    found = write_config(request(sides, tmp_path / "m.yaml", 12), Stop(), has_gpu=False)
    assert (found["pairs"], found["held_out"]) == (96, 12)
    assert "pairs dropped: copies of held-out pairs: 12" in caplog.messages
    train, valid = (
        (tmp_path / "m" / f"{name}.de").read_text().split() for name in ("train", "valid")
    )
    assert (len(train), len(valid), len({*train, *valid})) == (96, 12, 60)
    assert not set(train) & set(valid)


def test_files_in_another_encoding_are_refused(tmp_path: Path) -> None:
    sides = write(tmp_path / "a.en", ["coffee", "tea", "water"] * 300), tmp_path / "a.fr"
    sides[1].write_bytes(b"caf\xe9\nth\xe9\neau\n" * 300)
    with pytest.raises(UserError, match=r"600 of 900 pairs are not UTF-8; convert.*iconv -f"):
        write_config(request(sides, tmp_path / "a.yaml"), Stop(), has_gpu=False)
    assert {path.name for path in tmp_path.iterdir()} == {"a.en", "a.fr"}


def test_pairs_that_are_not_utf8_are_left_out_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sides = tmp_path / "bad.en", tmp_path / "bad.de"
    for path, last in zip(sides, (b"caf\xe9\n", b"kaffee\n"), strict=True):
        path.write_bytes(b"".join(b"w%d x\n" % number for number in range(40)) + last)
    valid = write(tmp_path / "v.en", ["never"]), write(tmp_path / "v.de", ["seen"])
    output = tmp_path / "m.yaml"
    write_config(Request(*sides, output, "en", "de", valid, 0), Stop(), has_gpu=False)
    told = "pairs dropped: invalid UTF-8: 1"
    assert caplog.messages.count(told) == 1
    assert "\n# 40 pairs" in output.read_text()
    assert load_config(output).data.invalid_utf8 == "drop"
    output = tmp_path / "n.yaml"
    write_config(request(sides, output, 4), Stop(), has_gpu=False)
    assert caplog.messages.count(told) == 2
    assert load_config(output).data.invalid_utf8 == "error"
    made = {path.name: path.read_text("utf-8").split() for path in (tmp_path / "n").iterdir()}
    assert len(made["train.en"] + made["valid.en"]) == 80


@pytest.mark.parametrize(
    ("module", "limit", "value", "step"),
    [(chunks, "CHUNK_CHARACTERS", 1000, 1), (starter, "SAMPLE", 100, 6)],
    ids=["in parts", "by a sample"],
)
def test_a_large_text_is_measured(
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    limit: str,
    value: int,
    step: int,
) -> None:
    monkeypatch.setattr(module, limit, value)
    corpus = TextCorpus(src=str(files[0]), tgt=str(files[1]))
    found = starter._measure(corpus, 600, Reading())
    sample = made_up_pairs(600, 1, longest=9)[::step]
    words = [word for pair in sample for word in " ".join(pair).split()]
    assert found.pairs == 600
    assert found.tokens == pytest.approx(1.4 * len(words) / len(sample))
    assert found.types == len(set(words))


def test_rare_characters_need_no_piece(tmp_path: Path) -> None:
    for end, count in (("c", 2), ("ccc", 3)):  # of 5,000 characters, all but 2.5 are covered
        src = write(tmp_path / "t.en", ["ab" * 125] * 9 + ["ab" * 120 + end])
        tgt = write(tmp_path / "t.de", ["ab" * 125] * 10)
        found = starter._measure(TextCorpus(src=str(src), tgt=str(tgt)), 10, Reading())
        assert found.characters == count


def test_a_letter_of_a_script_without_spaces_is_no_word(tmp_path: Path) -> None:
    """Else Thai would get four times the steps."""
    paths = [write(tmp_path / f"t.{code}", ["ภาษาไทย" * 4] * 20) for code in ("en", "th")]
    found = starter._measure(TextCorpus(src=str(paths[0]), tgt=str(paths[1])), 20, Reading())
    assert found.tokens == pytest.approx(2 * 28 * 0.3)


def test_sets_that_training_cannot_use_are_refused(files: tuple[Path, Path]) -> None:
    folder = files[0].parent
    output, short = folder / "new.yaml", write(folder / "valid.de", ["a"])
    missing = replace(request(files, output, 0), valid=(folder / "none.en", short))
    with pytest.raises(UserError, match=r"none\.en: cannot read"):
        write_config(missing, Stop(), has_gpu=False)
    write(folder / "test.en", ["a", "b"])
    write(folder / "test.de.gz", ["a"])
    with pytest.raises(UserError, match=r"test\.en has 2 lines but .*test\.de\.gz has 1"):
        write_config(request(files, output), Stop(), has_gpu=False)
    assert not output.exists()


@pytest.mark.slow
def test_the_command_makes_what_training_takes(tmp_path: Path, files: tuple[Path, Path]) -> None:
    done = run_mtrain("init", *files, "--hold-out", "50", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "en-de.yaml\n"
    assert "held out 50 of 600 pairs for validation" in done.stderr
    assert done.stderr.splitlines()[-2:] == [
        "next: mtrain check en-de.yaml",
        "      mtrain train en-de.yaml",
    ]
    train = ("train", "-c", "en-de.yaml", "--dry-run")
    dry = run_mtrain(*train, cwd=tmp_path, prelude=MEASURE_HERE)
    assert dry.returncode == 0, dry.stderr
    assert "nothing was trained" in dry.stderr
    sides = ["--valid-src", files[0], "--valid-tgt", files[1]]
    for wrong in (sides[:2], [*sides, "--hold-out", "5"]):
        refused = run_mtrain("init", *files, *wrong)
        assert refused.returncode == 2
        assert "give --valid-src and --valid-tgt for a validation set, or" in refused.stderr
    os.mkfifo(tmp_path / "pipe")
    refused = run_mtrain("init", tmp_path / "pipe", files[1])  # not waited for
    assert (refused.returncode, "pipe: not a regular file" in refused.stderr) == (1, True)
    alone = run_mtrain("init", *files, "-o", "alone.yaml", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert "held out 60 of 600 pairs for validation" in alone.stderr


# --- tables -----------------------------------------------------------------------------------

PAIRS = [(f"source {number}", f"target {number}") for number in range(60)]
TABLES = {
    "a.tsv": ("0,2", "".join(f"{src}\tx\t{tgt}\n" for src, tgt in PAIRS)),
    "b.tsv": ("en,de", "".join(f"{tgt}\t{src}\n" for src, tgt in [("en", "de"), *PAIRS])),
    "c.jsonl": (
        "both.en,both.de",
        "".join(json.dumps({"both": {"en": src, "de": tgt}}) + "\n" for src, tgt in PAIRS),
    ),
    "d.tmx": (
        "en,de",
        "<tmx version='1.4'><body>"
        + "".join(
            f"<tu><tuv xml:lang='en'><seg>{src}</seg></tuv>"
            f"<tuv xml:lang='de'><seg>{tgt}</seg></tuv></tu>"
            for src, tgt in PAIRS
        )
        + "</body></tmx>",
    ),
}


def request_for(table: Path, columns: str, **options: Any) -> Request:
    src, tgt = columns.split(",")
    given = {"valid": None, "hold_out": 6, "columns": (src, tgt), **options}
    return Request(table, table, table.with_suffix(".yaml"), "en", "de", **given)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_split(tmp_path: Path, name: str) -> None:
    columns, content = TABLES[name]
    (tmp_path / name).write_text(content)
    found = write_config(request_for(tmp_path / name, columns), Stop(), has_gpu=False)
    assert found == {"pairs": 54, "held_out": 6, "tests": []}
    data, pairs = load_config((tmp_path / name).with_suffix(".yaml")).data, []
    for corpus, count in ((data.train[0], 54), (data.valid, 6)):
        assert isinstance(corpus, TextCorpus)
        sides = [Path(side).read_text().splitlines() for side in (corpus.src, corpus.tgt)]
        assert list(map(len, sides)) == [count, count]
        pairs += zip(*sides, strict=True)
    assert sorted(pairs) == sorted(PAIRS)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_with_a_validation_set_is_read_where_it_is(tmp_path: Path, name: str) -> None:
    columns, content = TABLES[name]
    (tmp_path / name).write_text(content)
    valid = write(tmp_path / "v.en", ["never"]), write(tmp_path / "v.de", ["seen"])
    options = {"valid": valid, "hold_out": 0}
    write_config(request_for(tmp_path / name, columns, **options), Stop(), has_gpu=False)
    [corpus] = load_config((tmp_path / name).with_suffix(".yaml")).data.train
    assert isinstance(corpus, FileCorpus)
    assert (corpus.file, f"{corpus.src},{corpus.tgt}") == (str(tmp_path / name), columns)


def test_line_breaks_within_texts_keep_the_lines_aligned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"en": f"a\r\nb {number}", "de": f"c {number}"} for number in range(60)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_config(request_for(tmp_path / "a.jsonl", "en,de"), Stop(), has_gpu=False)
    assert "line breaks replaced by spaces: 60" in caplog.messages
    lines = (tmp_path / "a" / "train.en").read_text().splitlines()
    assert {line.rpartition(" ")[0] for line in lines} == {"a b"}


def test_units_of_other_languages_are_not_counted(tmp_path: Path) -> None:
    other = "<tu><tuv xml:lang='en'><seg>x</seg></tuv><tuv xml:lang='fr'><seg>y</seg></tuv></tu>"
    columns, content = TABLES["d.tmx"]
    (tmp_path / "d.tmx").write_text(content.replace("<body>", f"<body>{other * 500}"))
    found = write_config(request_for(tmp_path / "d.tmx", columns), Stop(), has_gpu=False)
    assert found == {"pairs": 54, "held_out": 6, "tests": []}
    asked = request_for(tmp_path / "d.tmx", columns, hold_out=7)
    with pytest.raises(RefusedError, match="more than a tenth of the 60 pairs"):
        write_config(replace(asked, output=tmp_path / "e.yaml"), Stop(), has_gpu=False)


def test_sets_next_to_a_table(tmp_path: Path) -> None:
    """Tables with the same columns, or text files."""
    columns, content = TABLES["a.tsv"]
    for name in ("train.tsv", "valid.tsv", "test_a.tsv"):
        (tmp_path / name).write_text(content)
    write(tmp_path / "test2.en", ["one"]), write(tmp_path / "test2.de", ["eins"])
    asked = request_for(tmp_path / "train.tsv", columns, hold_out=0)
    found = write_config(asked, Stop(), has_gpu=False)
    assert found == {"pairs": 60, "held_out": 0, "tests": ["test2", "test_a"]}
    data = load_config(asked.output).data
    files = {name: corpus.model_dump() for name, corpus in data.scored_corpora.items()}
    assert files["data.valid"]["file"] == str(tmp_path / "valid.tsv")
    assert files["data.test.test_a"] == {**files["data.valid"], "file": f"{tmp_path}/test_a.tsv"}
    assert files["data.test.test2"]["src"] == str(tmp_path / "test2.en")


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("a.tsv", "0,0", "a.tsv, columns 0 and 0: one column is both sides"),
        ("a.tsv", "0,de", "a.tsv, columns 0 and de: src and tgt must both be column numbers"),
        ("c.jsonl", "0,1", "c.jsonl, columns 0 and 1: fields of a .jsonl file have names"),
        ("d.tmx", "en,EN", "d.tmx, columns en and EN: EN is the source's language as well"),
    ],
)
def test_columns_that_a_format_does_not_have(
    tmp_path: Path, name: str, columns: str, message: str
) -> None:
    with pytest.raises(RefusedError, match=re.escape(message)):
        write_config(request_for(tmp_path / name, columns), Stop(), has_gpu=False)


def test_languages_of_columns() -> None:
    table = Path("a.jsonl")
    names = "translation.en", "de"
    assert languages_of((table, table), None, None, names) == ("en", "de")
    assert languages_of((table, table), "fr", None, names) == ("fr", "de")
    with pytest.raises(RefusedError, match=r"a\.jsonl: column b: no known .*give --tgt-lang$"):
        languages_of((table, table), "fr", None, ("a", "b"))
    with pytest.raises(RefusedError, match=r"a\.jsonl, columns 0 and 1: fields .* not numbers$"):
        languages_of((table, table), None, None, ("0", "1"))
