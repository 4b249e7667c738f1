"""Mix-ups of text: swapped sides and scored sets within the training text, at a start and in
`mtrain check`.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import category, name

import pytest
from conftest import TinyConfig, Train, run_here, status, write_lines
from hypothesis import given
from hypothesis import strategies as st

from mtrain.config.loading import load_config
from mtrain.config.schema import Config
from mtrain.corpus import lines, phrasebook, readers
from mtrain.corpus.readers import reading_of
from mtrain.data import mix_ups
from mtrain.data.mix_ups import is_informative, mix_ups_of, thin_rows
from mtrain.data.prepare import Preparation, refuse_worthless_text
from mtrain.runtime.errors import RefusedError
from mtrain.runtime.stop import Stop

PAIRS = list(phrasebook.pairs("train", 300))
SWAPPED = "look like the target language ({}), most targets like the source ({}); exchange src and"
OVERLAP = "{} of {} pairs are in data.train, so its score means nothing; use other text"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, list[tuple[str, str]]], dict[str, Any]]:
    """Return a writer of corpora, which returns their config entries."""

    def corpus(name: str, pairs: list[tuple[str, str]]) -> dict[str, Any]:
        entry = {"src": str(tmp_path / f"{name}.a"), "tgt": str(tmp_path / f"{name}.b")}
        for path, side in zip(entry.values(), zip(*pairs, strict=True), strict=True):
            write_lines(Path(path), side)
        return entry

    return corpus


def refusal(config: Config) -> str:
    """Return why the text of a config is refused, or nothing."""
    try:
        refuse_worthless_text(Preparation(config, Stop()))
    except RefusedError as error:
        return str(error)
    return ""


def test_swapped_sides_of_one_corpus_among_others_are_refused(
    tiny_config: TinyConfig, write: Any
) -> None:
    wrong = write("w", [(tgt, src) for src, tgt in PAIRS])
    settings = {"data.src_lang": "en", "data.tgt_lang": "de"}
    path = tiny_config(**settings, **{"data.train": [write("t", PAIRS), wrong]})
    assert refusal(load_config(path)).startswith("data.train.1: most sources look")


def test_swapped_sides_of_a_scored_set_are_refused(tiny_config: TinyConfig, write: Any) -> None:
    valid = write("v", [(tgt, src) for src, tgt in PAIRS[:50]])
    settings = {"data.src_lang": "en", "data.tgt_lang": "de", "data.valid": valid}
    assert refusal(load_config(tiny_config(**settings))).startswith("data.valid: most sources look")
    assert refusal(load_config(tiny_config(**settings, **{"data.allow_swapped": True}))) == ""
    settings["data.valid"] = {**write("w", PAIRS[:50]), "swap": True}  # German to English
    assert refusal(load_config(tiny_config(**settings))) == ""


def test_swapped_sides_are_refused_by_their_words(
    tiny_config: TinyConfig, write: Any, caplog: pytest.LogCaptureFixture
) -> None:
    train = write("t", PAIRS)
    for languages, is_refused in ((("en", "de"), False), (("de", "en"), True)):
        keys = dict(zip(("data.src_lang", "data.tgt_lang"), languages, strict=True))
        settings = {**keys, "data.train": [train]}
        refused = refusal(load_config(tiny_config(**settings)))
        assert (SWAPPED.format(*languages[::-1]) in refused) == is_refused
        assert refused.startswith("data.train.0: ") == is_refused
        assert refusal(load_config(tiny_config(**settings, **{"data.allow_swapped": True}))) == ""
        assert any("look like the target" in text for text in caplog.messages) == is_refused


@pytest.mark.parametrize("languages", ["en mt", "mt en"])
def test_words_of_one_language_are_enough_to_notice_swapped_sides(
    tiny_config: TinyConfig, write: Any, languages: str
) -> None:
    """Frequent words of Maltese are not known; German stands in for it."""
    pairs = [(src, tgt) for src, tgt in PAIRS if len(tgt.split()) > 5]
    sides = {"en": 0, "mt": 1}
    for order, is_refused in (((0, 1), False), ((1, 0), True)):
        names = [languages.split()[side] for side in order]
        rows = [(pair[sides[names[0]]], pair[sides[names[1]]]) for pair in pairs]
        settings = dict(zip(("data.src_lang", "data.tgt_lang"), languages.split(), strict=True))
        config = load_config(tiny_config(**settings, **{"data.train": [write("t", rows)]}))
        assert ("data.train.0: most sources look like" in refusal(config)) == is_refused


@pytest.mark.parametrize("every", [3, 20, 200])
def test_some_pairs_with_swapped_sides_are_warned_of(
    tiny_config: TinyConfig, write: Any, caplog: pytest.LogCaptureFixture, every: int
) -> None:
    """One pair in 3 or 20, in the training text and in a scored set; one in 200 is not enough."""
    pairs = list(phrasebook.pairs("train", 3000))
    mixed = [pair if n % every else pair[::-1] for n, pair in enumerate(pairs)]
    settings = {"data.src_lang": "en", "data.tgt_lang": "de"}
    settings |= {"data.train": [write("t", mixed)], "data.valid": write("v", mixed[-1000:])}
    assert refusal(load_config(tiny_config(**settings, **{"data.allow_overlap": True}))) == ""
    found = [text for text in caplog.messages if "swapped in about" in text]
    assert len(found) == (0 if every == 200 else 2)
    for key, text in zip(("data.train.0", "data.valid"), found, strict=False):
        match = re.match(rf"{key}: source and target seem to be swapped in about (\d+)% of", text)
        assert match is not None
        assert int(match[1]) == pytest.approx(100 / every, abs=2)


RUSSIAN = [("привет мир", "hello world"), ("до 7 встречи", "bye")]
JAPANESE = [
    ("小さい犬は家にいる", "小狗現在就在家裏"),
    ("東京大学図書館", "東京大學圖書館"),
    ("これは何ですか", "這是什麼"),
]


@pytest.mark.parametrize(
    ("pairs", "languages", "is_refused"),
    [
        *((RUSSIAN, "ru en", False), (RUSSIAN, "en ru", True), (RUSSIAN, "rus eng", False)),
        (RUSSIAN, "eng_Latn rus_Cyrl", True),
        # Kana shows Japanese
        *((JAPANESE, "ja zh", False), (JAPANESE, "zh ja", True)),
        *((JAPANESE, "jpn zho_Hant", False), (JAPANESE, "cmn jpn", True)),
    ],
)
def test_swapped_sides_are_refused_by_their_scripts(
    tiny_config: TinyConfig,
    write: Any,
    pairs: list[tuple[str, str]],
    languages: str,
    is_refused: bool,
) -> None:
    src_lang, tgt_lang = languages.split()
    train = write("t", pairs * 20)
    settings = {"data.src_lang": src_lang, "data.tgt_lang": tgt_lang, "data.train": [train]}
    assert bool(refusal(load_config(tiny_config(**settings)))) == is_refused
    backward = {**train, "swap": True}  # learned the other way round, in the files' languages
    settings["data.train"] = [train, backward]
    assert bool(refusal(load_config(tiny_config(**settings)))) == is_refused


@pytest.mark.parametrize("count", [18, 19])
@pytest.mark.parametrize("name", ["data.valid", "data.test.held_out"])
def test_a_scored_set_of_which_nine_in_ten_pairs_are_in_train_is_refused(
    tiny_config: TinyConfig, write: Any, name: str, count: int
) -> None:
    """White space around the texts does not count, nor does the direction."""
    known = [(f"  {src}\r", f"{tgt}\xa0") for src, tgt in PAIRS[-count:]]
    own = write("s", known + list(phrasebook.pairs("valid", 20 - count)))
    spaced = [(f"\u3000{src}\u2003", f"{tgt}\u3000") for src, tgt in PAIRS]
    train = {**write("t", spaced), "src_lang": "aa", "tgt_lang": "ba"}
    for scored in (own, {**own, "swap": True}):
        value = [scored] if name == "data.valid" else {"held_out": scored}
        key = "data.valid" if name == "data.valid" else "data.test"
        settings = {"data.train": [write("o", PAIRS[:9]), train], key: value}
        refused = refusal(load_config(tiny_config(**settings)))
        assert (OVERLAP.format(count, 20) in refused) == (count == 19)
        assert refused.startswith(name) == (count == 19)
        assert refusal(load_config(tiny_config(**settings, **{"data.allow_overlap": True}))) == ""


def test_blank_pairs_of_a_set_are_not_in_the_training_text(
    tiny_config: TinyConfig, write: Any
) -> None:
    blank = [("", "x"), ("y", " ")]
    settings = {"data.train": [write("t", [*PAIRS, *blank])]}
    settings["data.valid"] = write("v", [*PAIRS[:18], *blank])
    assert refusal(load_config(tiny_config(**settings))) == ""


def test_blank_lines_and_copies_are_no_repetitions(
    tiny_config: TinyConfig, write: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [*PAIRS, *[("", "")] * 30, *((src, "") for src, _ in PAIRS[:30]), *[("OK", "OK")] * 30]
    assert refusal(load_config(tiny_config(**{"data.train": [write("t", rows)]}))) == ""
    assert "the same" not in caplog.text


CHANGES: dict[str, Callable[[str], str]] = {
    "end": lambda text: text.rstrip(".?!"),
    "case": str.upper,
    "spaces": lambda text: text.replace(" ", "\u3000 "),
    "punctuation": lambda text: "« " + re.sub(r"([^ a-zA-Z])", r" \1 ", text) + " » …",
}


@pytest.mark.parametrize("change", CHANGES)
def test_case_spaces_and_punctuation_do_not_make_a_new_set(
    tiny_config: TinyConfig, write: Any, change: str, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """The start of a training and `mtrain check` agree, also on a set just below the limit."""
    change_text = CHANGES[change]
    known = [(change_text(src), change_text(tgt)) for src, tgt in PAIRS[:45]]
    assert not set(known) & set(PAIRS)
    symbols = [("→", "…"), ("?!", "!")]  # texts without letters are compared as they are
    for others in (1, 5):
        new = [("…", "→"), *phrasebook.pairs("valid", others)]
        valid = write("v", [*known, *symbols, *new])
        train = write("t", [*PAIRS, *symbols])
        path = tiny_config(**{"data.train": [train], "data.valid": valid})
        text = f"47 of {48 + others} pairs are in data.train"
        assert (text in refusal(load_config(path))) == (others == 1)
        assert run_here(monkeypatch, "check", path, "--no-forecast") == (others == 1)
        assert (text in capfd.readouterr().out) == (others == 1)


def test_text_is_not_prepared_for_a_run_that_would_be_refused(
    tiny_config: TinyConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry = {side: str(tmp_path / "data" / f"train.{side}") for side in ("src", "tgt")}
    config = tiny_config(**{"data.valid": entry})
    assert run_here(monkeypatch, "data", "build", "-c", config) == 2
    assert OVERLAP.format(120, 120) in capsys.readouterr().err


def test_a_start_and_a_dry_run_refuse_and_a_run_that_began_goes_on(
    tiny_config: TinyConfig, tmp_path: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {side: str(tmp_path / "data" / f"train.{side}") for side in ("src", "tgt")}
    config, run = tiny_config(**{"data.valid": entry, "train.max_steps": 4}), tmp_path / "run"
    assert train(config, "--dry-run") == 2
    assert OVERLAP.format(120, 120) in capsys.readouterr().err
    assert not run.exists()
    assert train(config) == 2
    assert status(run)["state"] == "refused"
    assert train(config, "--set", "data.allow_overlap=true") == 0
    assert "warning: data.valid: 120 of 120 pairs" in capsys.readouterr().err
    assert train(config, "--set", "train.max_steps=6") == 0  # as begun before there was this test
    shown = capsys.readouterr().err
    assert "changed setting data.allow_overlap: true -> false" in shown
    assert "120 of 120 pairs are" not in shown
    assert train(config, "--dry-run") == 0


def test_check_finds_the_same(
    tiny_config: TinyConfig, write: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    train = write("t", PAIRS)
    settings = {"data.train": [train], "data.valid": train}
    settings |= {"data.src_lang": "de", "data.tgt_lang": "en"}
    for allowed in (False, True):
        both = {"data.allow_swapped": allowed, "data.allow_overlap": allowed}
        path = tiny_config(**settings, **both)
        code = run_here(monkeypatch, "check", path, "--json", "--no-forecast")
        report = json.loads(capfd.readouterr().out)
        found = {
            f"{corpus['name']}: {finding['examples'][0]['text']}": finding["severity"]
            for corpus in report["corpora"]
            for finding in corpus["findings"]
            if finding["kind"] in ("turned", "contained")
        }
        assert set(found.values()) == {"warning" if allowed else "error"}
        key = r"data\.allow_(swapped|overlap)"
        ending = rf"{key} allows it$" if allowed else rf"set {key}: true if it is intended$"
        assert all(re.search(ending, message) for message in found)
        assert (code, report["errors"]) == ((0, 0) if allowed else (1, 3))
        if not allowed:
            assert sorted(refusal(load_config(path)).split("\n")) == sorted(found)


@pytest.mark.parametrize("key", ["data.train.0", "data.valid.0"])
def test_one_target_for_many_sources_is_warned_of(
    tiny_config: TinyConfig,
    write: Any,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
) -> None:
    rows = [(src, "the service is busy" if n % 3 else tgt) for n, (src, tgt) in enumerate(PAIRS)]
    entry = write("t", rows)
    path = tiny_config(**{key.removesuffix(".0"): [entry]})
    assert run_here(monkeypatch, "check", path, "--no-forecast") == 0
    text = "67% of the distinct pairs have the same target: the service is busy"
    assert text in capfd.readouterr().out
    assert refusal(load_config(path)) == ""
    assert f"warning: {key}: {text}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("made", "is_found"),
    [
        ("The end of page {} | Das Ende von Seite {}", True),
        # dates and titles, of which a text may have many
        ("{} September 2020 | {} septembre 2020", False),
        ("Chapter number {} | 第{}章", False),
    ],
)
def test_a_pair_that_is_repeated_with_other_numbers_is_named(made: str, is_found: bool) -> None:
    rows = [*PAIRS[:60], *(made.format(n, n).split(" | ") for n in range(21))]
    text = "26% of the pairs are the same pair (also with other numbers): "
    text += "The end of page 0 | Das Ende von Seite 0"
    assert messages(rows, "repeated") == [text] * is_found


def messages(rows: list[tuple[str, str]], kind: str) -> list[str]:
    """The messages of a kind of mix-up in a text of unknown languages."""
    sources, targets = zip(*rows, strict=True)
    found = mix_ups_of(("aa", "ba"), (sources, targets), range(len(rows)), False)
    return [each.message for each in found if each.kind == kind]


@pytest.mark.parametrize(("others", "is_found"), [(1000, True), (1100, False)])
def test_one_text_in_fifty_may_be_repeated(others: int, is_found: bool) -> None:
    """A pair that occurs 21 times, and a target of 21 sources."""
    rows = [(f"{src} a", f"{tgt} b") for src, tgt in phrasebook.pairs("train", others)]
    pair = "the same pair", "dasselbe Paar"
    expected = ["2% of the pairs are the same pair: the same pair | dasselbe Paar"]
    assert messages([*rows, *[pair] * 21], "repeated") == expected * is_found
    same = [(src, "nothing else") for src, _ in PAIRS[:21]]
    expected = ["2% of the distinct pairs have the same target: nothing else"]
    assert messages([*rows, *same], "repeated") == expected * is_found


def test_a_text_of_many_others_is_counted_among_distinct_pairs() -> None:
    same = [(src, "nothing else") for src, _ in PAIRS[:21]]
    found = messages([*PAIRS[:60] * 3, *same], "repeated")
    assert found == ["26% of the distinct pairs have the same target: nothing else"]


def test_long_texts_that_are_repeated_are_shown_in_short() -> None:
    long = "long text " * 99, "langer Text " * 99
    rows = [*[long] * 30, *((src, long[1]) for src, _ in PAIRS[:30])]
    found = messages(rows, "repeated")
    assert len(found) == 2
    assert max(map(len, found)) < 200


@pytest.mark.parametrize(("others", "is_found"), [(380, True), (381, False)])
def test_one_text_of_a_side_in_twenty_may_be_tokenized(others: int, is_found: bool) -> None:
    rows = [("yes, one", "ja, eins")] * others + [("yes , one", "ja, eins")] * 20
    found = messages(rows, "tokenized")
    assert [text[:40] for text in found] == ["5% of the sources have spaces before com"] * is_found


def test_a_tokenized_side_is_named_also_if_the_other_has_no_commas_and_periods() -> None:
    [text] = messages([("yes , one", "ja eins")] * 20, "tokenized")
    assert text.startswith("100% of the sources have spaces before commas or periods, but the")


@pytest.mark.parametrize("count", [17, 18, 19])
@pytest.mark.parametrize("name", ["data.train", "data.valid"])
def test_a_side_in_double_quotes_is_warned_of(
    tiny_config: TinyConfig,
    tmp_path: Path,
    name: str,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
) -> None:
    """Of 20 targets; a text that is only one quote is not in quotes, nor is one with another."""
    texts = [f' "{tgt}" ' if n < count else f'"{tgt}' for n, (_, tgt) in enumerate(PAIRS[:19])]
    rows = list(zip([src for src, _ in PAIRS[:20]], [*texts, '"'], strict=True))
    table = tmp_path / "t.tsv"
    table.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in rows), encoding="utf-8")
    path = tiny_config(**{name: [{"file": str(table), "src": 0, "tgt": 1}]})
    assert run_here(monkeypatch, "check", path, "--no-forecast", "--json") == 0
    report = json.loads(capfd.readouterr().out)
    found = {
        corpus["name"]: finding["examples"][0]["text"]
        for corpus in report["corpora"]
        for finding in corpus["findings"]
        if finding["kind"] == "quoted"
    }
    assert refusal(load_config(path)) == ""
    shown = capfd.readouterr().err
    if count < 18:
        assert (found, "quotes" in shown) == ({}, False)
    else:
        [(key, text)] = found.items()
        assert key.startswith(name)
        assert text.startswith(f"{count / 20:.0%} of the targets are in double quotes")
        assert f"warning: {key}: {text}\n" in shown


@pytest.mark.parametrize(
    ("form", "is_found"),
    [
        *(
            (form, True)
            for form in ('"{}",', "['{}']", "b'{}'", "{{'en': '{}'}}", "“{}”", "**{}**")
        ),
        *((form, False) for form in ("'{}.", "({})", "<{}>", "-{}-")),
    ],
)
def test_a_side_in_quotes_or_brackets_is_warned_of(form: str, is_found: bool) -> None:
    rows = [(src, form.format(tgt)) for src, tgt in PAIRS[:30]]
    expected = "nearly all targets are in quotes or brackets, which will be part of the text; ex"
    found = messages(rows, "quoted")
    assert [text.startswith(expected) for text in found] == [True] * is_found
    assert messages(rows[:20] + PAIRS[:10], "quoted") == []


CELL, BARE = '"{0}, and more"', "{0} and more"


@pytest.mark.parametrize(
    ("forms", "held"),
    [
        ([(CELL, 20), (BARE, 280)], "a comma"),
        ([(CELL, 19), (BARE, 281)], None),
        ([(CELL, 45), ("{0}, too", 5), (BARE, 250)], "a comma"),
        ([(CELL, 45), ("{0}, too", 6), (BARE, 249)], None),
        ([(CELL, 45), ('"{0}"', 6), (BARE, 249)], None),  # quotations
        ([('"say ""{0}"" now"', 5), (BARE, 295)], "a quote"),
        ([('"say ""{0}"" now"', 4), (BARE, 296)], None),
        ([('"say ""{0}"" now"', 5), ('"{0}"', 1), (BARE, 294)], None),
        ([('"say "{0}" now"', 5), (BARE, 295)], None),
    ],
)
def test_cells_of_a_table_are_warned_of(
    tiny_config: TinyConfig,
    write: Any,
    caplog: Any,
    forms: list[tuple[str, int]],
    held: str | None,
) -> None:
    """Programs quote only the cells that hold a separator or a quote, and double that one."""
    chosen = [form for form, count in forms for _ in range(count)]
    plain = [(src, tgt.replace(",", "")) for src, tgt in PAIRS]
    pairs = [(src, form.format(tgt)) for form, (src, tgt) in zip(chosen, plain, strict=True)]
    path = tiny_config(**{"data.train": [write("t", pairs)]})
    assert refusal(load_config(path)) == ""
    message = f"of the targets, those that hold {held}, are in double quotes"
    assert (message in caplog.text, "double quotes" in caplog.text) == (bool(held), bool(held))


@pytest.mark.parametrize(
    ("side", "form", "split"),
    [("src", "x@@ {}", 61), ("tgt", "▁{}", 61), ("tgt", "▁{}", 60), ("tgt", "{} @ mail", 300)],
)
def test_text_in_the_subwords_of_another_program_is_warned_of(
    tiny_config: TinyConfig, write: Any, caplog: Any, side: str, form: str, split: int
) -> None:
    """More than a fifth of 300 texts."""
    pairs = [
        (form.format(src), tgt) if side == "src" else (src, form.format(tgt)) for src, tgt in PAIRS
    ]
    path = tiny_config(**{"data.train": [write("t", pairs[:split] + PAIRS[split:])]})
    assert refusal(load_config(path)) == ""
    name = "sources" if side == "src" else "targets"
    expected = f"data.train.0: 20% of the {name} have subword marks"
    assert (expected in caplog.text) == (split == 61)


@pytest.mark.parametrize(
    ("kind", "form"), [("quoted", '"word {}"'), ("numbered", "{}. word"), ("subwords", "word@@ {}")]
)
def test_the_texts_of_a_side_are_judged_from_20_on(kind: str, form: str) -> None:
    sources, targets = [form.format(n) for n in range(20)], [f"mot {n}" for n in range(20)]
    for count, kinds in ((19, []), (20, [kind])):
        sides = sources[:count], targets[:count]
        found = mix_ups_of(("aa", "ba"), sides, range(count), False)
        assert [mix_up.kind for mix_up in found] == kinds


@pytest.mark.parametrize(
    ("src", "tgt", "message"),
    [
        (
            "{}",
            "{row}. {}",
            "100% of the targets begin with a number, but only 0% of the sources",
        ),
        (
            "{row}\t{}",
            "{}",
            "100% of the sources begin with a number, but only 0% of the targets",
        ),
        ("{row}", "{}", "100% of the sources are only a number, but only 0% of the targets"),
        ("     {row}\t{}", "{row}. {}", "nearly all texts of both sides begin with line numbers"),
        ("{half}. {}", "{half}. {}", ""),  # some other number of both sides
    ],
)
@pytest.mark.parametrize("step", [1, 3])
def test_line_numbers_are_found_in_a_set_and_in_a_sample_of_the_training_text(
    tiny_config: TinyConfig,
    write: Any,
    caplog: Any,
    monkeypatch: pytest.MonkeyPatch,
    src: str,
    tgt: str,
    message: str,
    step: int,
) -> None:
    def numbered(rows: range) -> list[tuple[str, str]]:
        texts = (({"row": row, "half": row // 2 + 7}, PAIRS[row]) for row in rows)
        return [(src.format(a, **keys), tgt.format(b, **keys)) for keys, (a, b) in texts]

    monkeypatch.setattr(mix_ups, "SAMPLE", 250 // step)
    train = numbered(range(250))
    train[40:60] = PAIRS[40:60]
    sets = {"data.train": [write("t", train)], "data.valid": write("v", numbered(range(250, 300)))}
    assert refusal(load_config(tiny_config(**sets))) == ""
    if message:
        assert f"data.valid: {message}" in caplog.text
        text = message.replace("100", "92" if step == 1 else "93")
        assert f"data.train.0: {text}" in caplog.text
    else:
        assert "number" not in caplog.text


@pytest.mark.parametrize("count", [1, 8, 9, 50])
def test_the_fraction_of_the_other_side_that_has_numbers_is_named(count: int) -> None:
    """Nine of fifty are too many for numbers of one side alone. A few sources are only a number,
    and no number of the targets is that of their line.
    """
    rows = [
        (f"{n}. word" if n < 40 else f"{n}", f"5 mots {n}" if n < count else f"mot {n}")
        for n in range(50)
    ]
    text = f"100% of the sources begin with a number, but only {count / 50:.0%} of the targets; "
    assert messages(rows, "numbered") == [f"{text}remove the numbers"] * (count < 9)


@pytest.mark.parametrize("sides", [("a", " a"), (" ", "b"), ("a", "\u3000"), ("a", "b")])
def test_rows_that_are_blank_or_copied_tell_nothing(sides: tuple[str, str]) -> None:
    assert is_informative((1, *sides)) == (sides == ("a", "b"))


@pytest.mark.parametrize(("size", "step"), [(166, 1), (167, 2), (1000, 8)])
def test_a_large_sample_is_thinned_evenly(
    monkeypatch: pytest.MonkeyPatch, size: int, step: int
) -> None:
    """Rows of 6 characters of at most 1,000; a longer row than 10 characters is left out."""
    monkeypatch.setattr(mix_ups, "SAMPLE_CHARACTERS", 1000)
    rows = [("t", (number, "a" * 5, "b")) for number in range(size)]
    too_long = [("t", (0, "a", "b" * 10))] * 3
    assert thin_rows([*too_long, *rows]) == rows[::step]


def tokenized(text: str) -> str:
    return re.sub(r"(?=[.,])", " ", text)


@pytest.mark.parametrize(
    ("sides", "count", "is_found"),
    [("source", 20, True), ("target", 60, True), ("target", 19, False), ("both", 300, False)],
)
def test_a_side_that_is_tokenized_in_part_is_warned_of(
    tiny_config: TinyConfig, write: Any, caplog: Any, sides: str, count: int, is_found: bool
) -> None:
    pairs = [
        (
            tokenized(src) if sides != "target" and row < count else src,
            tokenized(tgt) if sides != "source" and row < count else tgt,
        )
        for row, (src, tgt) in enumerate((f"yes, {src}", f"ja, {tgt}") for src, tgt in PAIRS)
    ]
    path = tiny_config(**{"data.train": [write("t", pairs)]})
    assert refusal(load_config(path)) == ""
    expected = f"data.train.0: {count / 300:.0%} of the {sides}s have spaces before commas"
    assert (expected in caplog.text) == is_found
    assert is_found or "the other side do not" not in caplog.text
    assert "of the pairs with commas" not in caplog.text


@pytest.mark.parametrize("count", [0, 20])
def test_a_side_without_commas_in_tokenized_text_is_not_plain(
    tiny_config: TinyConfig, write: Any, caplog: Any, count: int
) -> None:
    """The sources of 30 pairs have no comma or period; `count` others are not tokenized."""
    pairs = [
        (
            re.sub("[.,]", "", src) if row < 30 else f"yes{' ' * (row >= 30 + count)}, {src}",
            f"ja , {tgt}",
        )
        for row, (src, tgt) in enumerate(PAIRS)
    ]
    path = tiny_config(**{"data.train": [write("t", pairs)]})
    assert refusal(load_config(path)) == ""
    expected = f"{count / 300:.0%} of the targets have spaces before commas or periods, but"
    assert (expected in caplog.text) == bool(count)
    assert ("the other side do not" in caplog.text) == bool(count)


@pytest.mark.parametrize(("step", "is_found"), [(2, True), (9, True), (11, False)])
def test_tokenized_pairs_among_others_are_warned_of(
    tiny_config: TinyConfig, write: Any, caplog: Any, step: int, is_found: bool
) -> None:
    pairs = [
        pair if row % step else (tokenized(pair[0]), tokenized(pair[1]))
        for row, pair in enumerate((f"yes, {src}", f"ja, {tgt}") for src, tgt in PAIRS)
    ]
    path = tiny_config(**{"data.train": [write("t", pairs)]})
    assert refusal(load_config(path)) == ""
    expected = f"data.train.0: {1 / step:.0%} of the pairs with commas or periods have spaces"
    assert (expected in caplog.text) == is_found


def test_a_row_that_is_too_long_is_no_reason_to_refuse_a_table(
    tiny_config: TinyConfig, tmp_path: Path
) -> None:
    rows = [*PAIRS, ("x" * (lines.MAX_LINE_LENGTH + 1), "long")]
    table = tmp_path / "t.tsv"
    table.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in rows), encoding="utf-8")
    path = tiny_config(**{"data.train": [{"file": str(table), "src": 0, "tgt": 1}]})
    assert refusal(load_config(path)) == ""


@pytest.mark.parametrize("kind", ["", ".gz"])
def test_a_corpus_is_skimmed_for_some_rows_and_those_that_are_wanted(
    config: Config, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(lines, "_BLOCK", 400)
    corpus = config.data.available_train[0]
    if kind:
        for side in (corpus.src, corpus.tgt):
            with gzip.open(side + kind, "wb") as packed:
                packed.write(Path(side).read_bytes())
        corpus = corpus.model_copy(update={"src": corpus.src + kind, "tgt": corpus.tgt + kind})
    for each in (corpus, corpus.model_copy(update={"swap": True})):
        rows = list(readers.read_rows(each, reading_of(config)))
        sources = {rows[3][1], rows[65][1]}
        expected = [
            (n % 5 == 0, row[1] in sources, row)
            for n, row in enumerate(rows)
            if n % 5 == 0 or row[1] in sources
        ]
        wanted = set(readers.plain_forms(sources))
        assert list(readers.skim(each, reading_of(config), 5, wanted)) == expected
        nothing_wanted = [(True, False, row) for row in rows[::5]]
        assert list(readers.skim(each, reading_of(config), 5, set())) == nothing_wanted


@given(
    st.lists(
        st.text(st.sampled_from("aB\n ß’.\u0301\u0928\u093f\u200d中９𐐀\ud800❤\ufe0f\u3000<>\0"))
        | st.text()
    )
)
def test_plain_forms_have_no_case_white_space_or_punctuation(texts: list[str]) -> None:
    """Each is computed by itself, however many texts come before."""

    def form(text: str) -> str:
        kept = [c for c in text.casefold() if category(c)[0] in "LMN" and not is_selector(c)]
        return "".join(kept) or text.strip()

    def is_selector(character: str) -> bool:
        return "VARIATION SELECTOR" in name(character, "")

    assigned = [text for text in texts if all(category(c) != "Cn" for c in text)]
    for size in (1, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(readers, "CHUNK", size)
            assert list(readers.plain_forms(assigned)) == [form(text) for text in assigned]
