"""Text that is prepared differently from the other text, at a start and in `mtrain check`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TinyConfig, run_here, write_corpus

from mtrain.check import checker
from mtrain.config.loading import load_config
from mtrain.corpus import phrasebook
from mtrain.data import mix_ups, styles
from mtrain.data.prepare import Preparation, refuse_worthless_text
from mtrain.data.styles import grouped_texts, odd_parts, style_differences
from mtrain.runtime.stop import Stop

PAIRS = list(phrasebook.pairs("train", 300))
SENTENCES = [f"Here is sentence {row}, a plain one." for row in range(2000)]


HAN = ["".join(chr(0x4E00 + (7 * row + 31 * n) % 5000) for n in range(12)) for row in range(2000)]


def tokenized(text: str) -> str:
    return re.sub(r"(?=[.,])", " ", text)


def without_mark(text: str) -> str:
    return text.rstrip(".!?")


@pytest.mark.parametrize(
    ("in_train", "in_valid", "expected"),
    [
        ((str, str), (str, str), []),
        ((str.lower, tokenized), (str.lower, tokenized), []),
        (
            (str.lower, str),
            (str, tokenized),
            [
                "100% of the sources have capital letters, against 0% of the training texts in en",
                "targets have spaces before commas or periods, against 0% of the training texts in",
            ],
        ),
        (
            (tokenized, str),
            (str, str),
            ["0% of the sources have spaces before commas or periods, "],
        ),
        (
            (str, str),
            (str, str.upper),
            ["100% of the targets have capital letters only, against 0% of the training texts in"],
        ),
        (
            (str, str),
            (without_mark, str),
            ["0% of the sources whose other side ends in a mark such as . ! ? have such a mark, "],
        ),
        ((str, str), (without_mark, without_mark), []),  # such as titles
    ],
)
def test_a_scored_set_prepared_in_another_way_is_warned_of(
    tiny_config: TinyConfig,
    tmp_path: Path,
    in_train: tuple[Callable[[str], str], Callable[[str], str]],
    in_valid: tuple[Callable[[str], str], Callable[[str], str]],
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also if training reads the text the other way round."""
    train, valid = (
        [(by_side[0](src), by_side[1](tgt)) for src, tgt in pairs]
        for by_side, pairs in ((in_train, PAIRS[:200]), (in_valid, PAIRS[200:]))
    )
    settings = {
        "data.src_lang": "en",
        "data.tgt_lang": "de",
        "data.valid": write_corpus(tmp_path / "v", valid),
    }
    path = tiny_config(
        **settings, **{"data.train": [{**write_corpus(tmp_path / "t", train), "swap": True}]}
    )
    refuse_worthless_text(Preparation(load_config(path), Stop()))
    warned = [text for text in caplog.messages if "prepare both alike" in text]
    assert run_here(monkeypatch, "check", path, "--no-forecast", "--json") == 0
    report = json.loads(capfd.readouterr().out)
    found = [
        example["text"]
        for corpus in report["corpora"]
        for finding in corpus["findings"]
        if finding["kind"] == "style"
        for example in finding["examples"]
    ]
    assert warned == [f"data.valid: {text}" for text in found]
    assert len(found) == len(expected)
    for text, part in zip(found, expected, strict=True):
        assert part in text


Part = tuple[str, int, int, str]  # corpus, first and last row, beginning of the message


def found(*corpora: list[str], other: str = "x") -> list[Part]:
    """The odd parts of corpora with these English sides, all of whose other sides are the same."""
    rows = [
        (f"c{index}", ("en", "xx"), range(1, len(texts) + 1), (texts, [other] * len(texts)))
        for index, texts in enumerate(corpora)
    ]
    parts = list(odd_parts(rows))
    assert all(part.side == 0 for part in parts)
    return [(part.owner, part.first, part.last, part.message[:30]) for part in parts]


LOWERED, SPACED = "0% of the sources have capital", "100% of the sources have spaces"[:30]
RAISED = "100% of the sources have capit"
UNMARKED = "0% of the sources whose other "
QUOTED = "100% of the sources have double quotes"[:30]
NUMBERED = "100% of the sources have a number"[:30]


def quoted(text: str) -> str:
    return f'"{text}"'


def numbered(text: str) -> str:
    return f"{len(text)} {text}"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (str.lower, LOWERED),
        (str.upper, RAISED),
        (tokenized, SPACED),
        (quoted, QUOTED),
        (numbered, NUMBERED),
    ],
)
@pytest.mark.parametrize(("start", "stop"), [(0, 200), (901, 1200), (1500, 2000)])
def test_an_odd_part_is_found_to_the_row(
    change: Callable[[str], str], expected: str, start: int, stop: int
) -> None:
    texts = [*SENTENCES[:start], *map(change, SENTENCES[start:stop]), *SENTENCES[stop:]]
    assert found(texts) == [("c0", start + 1, stop, expected)]


def test_a_part_without_the_final_marks_of_its_other_side_is_found() -> None:
    bare = [without_mark(text) for text in SENTENCES]
    texts = SENTENCES[:900] + bare[900:1200] + SENTENCES[1200:]
    assert found(texts) == []  # the other sides have no marks either
    assert found(texts, other="x?”") == [("c0", 901, 1200, UNMARKED)]
    assert found(SENTENCES, [f"{text}…" for text in bare], other="x...") == []
    assert found(bare, other="x.") == []  # as in Thai
    assert found(SENTENCES, [f"{text};" for text in bare], other="x?") == []  # Greek questions


def test_a_part_with_spaces_between_chinese_characters_is_found() -> None:
    spaced = [" ".join(re.findall("..", text)) for text in HAN]
    assert found(HAN[:900] + spaced[900:1200] + HAN[1200:]) == [("c0", 901, 1200, SPACED)]
    names = [f"{text[:3]} {text[3:6]}" for text in HAN[:500]]  # of persons, for example
    subtitles = [f"{text[:6]} {text[6:]}" for text in HAN[:500]]
    assert found(HAN, names, subtitles) == []


@pytest.mark.parametrize("end", ["です。", "好，", "जी,", "e\u0301."])
def test_a_part_with_spaces_before_marks_is_found_in_any_letters(end: str) -> None:
    texts = [f"{row} {end}" for row in range(2000)]
    spaced = [f"{text[:-1]} {end[-1]}" for text in texts]
    assert found(texts[:900] + spaced[900:1200] + texts[1200:]) == [("c0", 901, 1200, SPACED)]


def test_a_part_in_simplified_chinese_among_traditional_is_found() -> None:
    forms = str.maketrans("門車見長東馬鳥魚語書", "门车见长东马鸟鱼语书")
    traditional = [f"{'門車見長東馬鳥魚語書'[row % 10]}中人山水{row}" for row in range(2000)]
    simplified = [text.translate(forms) for text in traditional]
    part = traditional[:900] + simplified[900:1200] + traditional[1200:]
    assert found(part) == [("c0", 901, 1200, "0% of the sources have traditi")]
    assert found(simplified, traditional[:300]) == [
        ("c1", 1, 300, "100% of the sources have tradi")
    ]
    assert found(traditional, ["中人山水"] * 500) == []  # the same in both
    sides = [(texts, ["x"] * len(texts)) for texts in (traditional, simplified)]
    training = grouped_texts([(("zh", "en"), sides[0])])
    [message] = style_differences(training, ("zh", "en"), sides[1])
    assert message.startswith("0% of the sources have traditional Chinese characters, against 100%")


def test_full_width_letters_in_a_part_or_a_scored_set_are_found() -> None:
    plain = [f"これは{row}、CPU" for row in range(2000)]
    wide = [text.translate({code: code + 0xFEE0 for code in range(48, 91)}) for text in plain]
    expected = [("c0", 901, 1200, "100% of the sources with Latin")]
    assert found(plain[:900] + wide[900:1200] + plain[1200:]) == expected
    assert found(plain, ["これは"] * 500) == []
    training = grouped_texts([(("ja", "en"), (plain, plain))])
    words = ["これは"] * 500
    [message] = style_differences(training, ("ja", "en"), (words + wide[:500], words + plain[:500]))
    assert message.startswith(
        "100% of the sources with Latin letters or digits have full-width letters or digits, "
    )


def test_a_scored_set_in_another_script_is_found_and_a_part_with_names_is_not() -> None:
    cyrillic = [f"ово је реч {row}" for row in range(500)]
    latin = [f"ovo je reč {row}" for row in range(500)]
    training = grouped_texts([(("sr", "en"), (cyrillic, latin))])
    [message] = style_differences(training, ("sr", "en"), (latin, latin))
    assert message.startswith(
        "0% of the sources have letters that are not Latin, against 100% of the "
    )
    assert not list(style_differences(training, ("sr", "en"), (cyrillic, latin)))
    assert found(cyrillic, [f"keyboard model {row}" for row in range(300)]) == []


def test_a_part_may_be_a_corpus_or_span_several() -> None:
    low = [text.lower() for text in SENTENCES[:300]]
    assert found(SENTENCES, low, SENTENCES) == [("c1", 1, 300, LOWERED)]
    parts = found(SENTENCES, SENTENCES + low, low + SENTENCES)
    assert parts == [("c1", 2001, 2300, LOWERED), ("c2", 1, 300, LOWERED)]
    # the first texts of the next corpus fit by chance
    assert found(SENTENCES + low, low[:19] + SENTENCES) == [("c0", 2001, 2300, LOWERED)]


def test_several_parts_and_a_plain_part_of_tokenized_text_are_found() -> None:
    low = [text.lower() for text in SENTENCES]
    texts = SENTENCES[:500] + low[500:800] + SENTENCES[800:1400] + low[1400:1650] + SENTENCES[1650:]
    assert sorted(found(texts)) == [("c0", 501, 800, LOWERED), ("c0", 1401, 1650, LOWERED)]
    texts = [tokenized(text) for text in SENTENCES[:1500]] + SENTENCES[1500:]
    assert [part[:3] for part in found(texts)] == [("c0", 1501, 2000)]


@pytest.mark.parametrize(
    "texts",
    [
        SENTENCES,
        list(map(str.lower, SENTENCES)),
        list(map(tokenized, SENTENCES)),
        # too few to tell
        SENTENCES[:1800] + [text.lower() for text in SENTENCES[:199]],
        # sources of two kinds, equally often
        [text.lower() if row % 2 else text for row, text in enumerate(SENTENCES)],
        # most of a part, but not nearly all
        SENTENCES + [text.lower() if row % 7 else text for row, text in enumerate(SENTENCES[:400])],
        # speech among other text, and some numbers
        [f'"{text}" she said.' if row % 3 else text for row, text in enumerate(SENTENCES)],
        [f"{row} {text}" if row % 7 else text for row, text in enumerate(SENTENCES)],
        # labels and words, which need no capital letters
        SENTENCES + [f"a label {row}" for row in range(500)],
        SENTENCES + [f"word {row}." for row in range(500)],
        # a script without capital letters
        SENTENCES + [f"שורה מספר אחת היא כאן {row} סוף." for row in range(500)],
        # Unicode has capital Georgian letters, but sentences do not begin with them
        SENTENCES + [f"ეს არის წინადადება {row} ერთი." for row in range(500)],
        [],
    ],
)
def test_sound_text_has_no_odd_parts(texts: list[str]) -> None:
    assert found(texts) == []


def test_text_to_restore_capital_letters_is_sound() -> None:
    """Both sides have the same language, and only one has capital letters."""
    low = [text.lower() for text in SENTENCES]
    rows = range(1, len(low) + 1)
    assert not list(odd_parts([("c", ("en", "en"), rows, (low, SENTENCES))]))
    training = grouped_texts([(("en", "en"), (low, SENTENCES))])
    assert not list(style_differences(training, ("en", "en"), (low[:100], SENTENCES[:100])))
    assert len(list(style_differences(training, ("en", "en"), (SENTENCES[:100], low[:100])))) == 2


def test_an_odd_part_is_named_by_a_start_and_by_check(
    tiny_config: TinyConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also if training reads the text the other way round, and only a sample is looked at."""
    monkeypatch.setattr(mix_ups, "SAMPLE", 600)
    monkeypatch.setattr(checker, "SAMPLE", 600)
    pairs = list(phrasebook.pairs("train", 1200))
    pairs = [(src, tgt.lower() if row >= 700 else tgt) for row, (src, tgt) in enumerate(pairs)]
    settings = {"data.train": [{**write_corpus(tmp_path / "t", pairs), "swap": True}]}
    path = tiny_config(**{"data.src_lang": "en", "data.tgt_lang": "de"}, **settings)
    refuse_worthless_text(Preparation(load_config(path), Stop()))
    [warned] = [text for text in caplog.messages if "prepare them alike" in text]
    text = "0% of the targets have capital letters, against 100% of the other training texts in de"
    match = re.match(rf"data.train.0: rows (\d+) to (\d+): {text}", warned)
    assert match
    assert 700 <= int(match[1]) <= 710
    assert 1190 <= int(match[2]) <= 1200
    assert run_here(monkeypatch, "check", path, "--no-forecast", "--json") == 0
    [finding] = [
        finding
        for corpus in json.loads(capfd.readouterr().out)["corpora"]
        for finding in corpus["findings"]
        if finding["kind"] == "style"
    ]
    [example] = finding["examples"]
    assert re.match(rf"t.tgt:{match[1]} to {match[2]}: {text}", example["text"])


def test_a_part_is_odd_only_where_the_rest_is_clear() -> None:
    rest = [True, False, False] * 200
    assert styles._parts_of(np.array([False] * 300 + rest)) == []
    assert styles._parts_of(np.array([False] * 300 + [True] * 600)) == [(slice(0, 300), 1.0)]
    for text in ("no such letters", "使用 A 和 B 和 C"):
        assert not styles._has_spaces_in_han(text)


def test_sentences_and_capitals_in_any_letters() -> None:
    for text in ("Un petit mot été.", "Un petit mot ete\u0301.", "Un petit mot dit !"):
        assert styles._is_sentence(text, "")
    assert not styles._is_sentence("ეს არის კარგი სიტყვა.", "")  # which has no capital letters
    texts = ("A WORD OF ADVICE", "AN ADVICE", "1 2 3 4", "A WORD of advice")
    assert [styles._has_only_capitals(text) for text in texts] == [True, False, False, False]
    assert styles._OTHER_THAN_LATIN.search("O\u02bbzbekiston") is None
