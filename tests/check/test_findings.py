"""Findings are named, counted and shown in any width."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from planting import (
    CHARACTERS,
    nothing_found,
)
from rich.cells import cell_len

from mtrain.check.chunks import Chunk
from mtrain.check.findings import ADVICE, KINDS, Findings
from mtrain.config.corpora import FileCorpus, TextCorpus
from mtrain.config.languages import FREQUENT, NAMES
from mtrain.corpus.lines import RowError
from mtrain.corpus.writing_systems import script_of, scripts_of
from mtrain.runtime.console import cut_to_width


def test_wrong_pairs_elsewhere_are_counted_without_examples() -> None:
    """If all examples that were kept are in blocks that slipped."""
    findings = Findings("data.train.0", TextCorpus(src="a", tgt="b"), Path(), 2)
    for rank, first, last in ((-20.0, 1, 1200), (-9.0, 6001, 6015)):
        numbers = range(first, last + 1)
        examples = [findings.example(number, "text", rank=rank) for number in numbers]
        findings.add("misfit", len(numbers), examples)
    findings.remove_rows("misfit", np.arange(1, 1201))
    assert findings.count("misfit") == 15
    heads = [line.split()[-1] for line in findings.lines(80) if "->" not in line]
    assert heads == ["pairs", "15"]
    findings.remove_rows("misfit", np.arange(6001, 6016))
    assert not findings.has("misfit")


def test_advice_follows_the_examples_of_a_finding() -> None:
    findings = Findings("data.train.0", TextCorpus(src="a.src", tgt="b"), Path(), 2)
    findings.add("ratio", 9, [findings.example(number, "word", 0) for number in (1, 2)])
    findings.add_message("style", "lower case: prepare them alike")  # has advice of its own
    style, ratio = (finding.as_json() for finding in findings.in_order)
    assert (style["advice"], ratio["advice"]) == ("", ADVICE["ratio"])
    assert list(findings.lines(80))[-3:] == [
        "           a.src:1  word",
        "           a.src:2  word",
        "           -> correct them, or set filter.max_ratio: 3",
    ]
    narrow = list(findings.lines(40))
    assert narrow[-2:] == [
        "           -> correct them, or set",
        "              filter.max_ratio: 3",
    ]


def test_tables_of_languages_hold_together() -> None:
    assert scripts_of("ja") == {"CJK", "HIRAGANA", "KATAKANA"}
    assert scripts_of("zh-Hant") == scripts_of("ZH_tw") == {"CJK"}
    assert scripts_of("uz") == scripts_of("kk-Latn") == {"LATIN"}
    assert scripts_of("uz_Cyrl") == scripts_of("sr-cyrl-RS") == {"CYRILLIC"}
    assert scripts_of("xx") == scripts_of("uz_Tfng") == set()
    # of South Azerbaijani and Western Punjabi, unlike az and pa
    assert scripts_of("azb") == scripts_of("pnb") == {"ARABIC"}
    assert {"azb", "pnb"} <= NAMES.keys()  # which mtrain init accepts as the suffix of a file
    assert all(scripts_of(code) for code in FREQUENT if code != "sr")  # is written in two
    assert all(name == name.strip() for name in NAMES.values())
    assert cut_to_width("日本語テキスト", 9) == "日本語..."
    accented = "e\N{COMBINING ACUTE ACCENT}"
    assert cut_to_width(accented * 12, 9) == accented * 6 + "..."
    assert [cut_to_width("letters", width) for width in (7, 6, 2)] == ["letters", "let...", "..."]
    assert ADVICE.keys() <= KINDS.keys()
    assert {severity for severity, _ in KINDS.values()} == {"error", "warning", "note"}


@pytest.mark.parametrize(
    ("syllable", "width"),
    [
        ("\u0e01\u0e34", 1),  # marks that have no combining class in Unicode, as in Thai,
        ("\u0915\u0941", 1),  # in Hindi
        ("\u1780\u17bb\u200b", 1),  # and in Khmer, here with a space of no width
        ("\u845b\U000e0100", 2),  # a Han character in a variant
        ("\u1112\u1161\u11ab", 2),  # a Korean syllable in separate letters
        ("\u304b\u3099", 2),  # a Japanese one
    ],
)
def test_width_of_letters_with_marks(syllable: str, width: int) -> None:
    assert cell_len(syllable) == width
    assert cut_to_width(syllable * 12, 6 * width + 3) == syllable * 6 + "..."


def test_names_of_rows_and_scripts_of_letters() -> None:
    scripts = list(map(script_of, "aｂ人々ーﾊ"))
    assert scripts == ["LATIN", "LATIN", "CJK", "CJK", "KATAKANA", "KATAKANA"]
    assert {script_of(char) for char in "𝐀ℂℌµª\ud800"} == {""}
    found = nothing_found()
    assert [found.name_row(3, side) for side in (0, 1)] == ["old/train.xa:3", "train.xb:3"]
    table = Findings("data.valid", FileCorpus(file="a.tmx", src="a", tgt="b"), Path(), 1)
    assert [table.name_row(3, side) for side in (None, 0, 1)] == ["a.tmx unit 3"] * 3
    swapped = Findings("data.valid", TextCorpus(src="a", tgt="b", swap=True), Path(), 1)
    assert [swapped.name_row(3, side) for side in (0, 1)] == ["b:3", "a:3"]
    rows = [(1, "ab 1", ""), (2, "да c", "x")]
    src, tgt = Chunk.of(found, rows, CHARACTERS).letters
    assert (src["LATIN"].tolist(), src["CYRILLIC"].tolist()) == ([2, 1], [0, 2])
    assert {script: counts.tolist() for script, counts in tgt.items()} == {"LATIN": [0, 1]}


@pytest.mark.parametrize(
    ("name", "kind", "is_dropped", "found"),
    [
        ("data.train.0", "long", True, "long"),
        ("data.valid", "long", True, "row"),
        ("data.train.0", "row", True, "row"),
        ("data.train.0", "encoding", True, "dropped"),
        ("data.train.0", "encoding", False, "encoding"),
    ],
)
def test_rows_that_cannot_be_read(name: str, kind: str, is_dropped: bool, found: str) -> None:
    findings = Findings(name, TextCorpus(src="a", tgt="b"), Path(), 9)
    for number, side in enumerate("ab"):
        findings.add_error(RowError(f"{side}:", number, "", kind), is_dropped=is_dropped)
    [finding] = findings.in_order
    assert (finding.kind, [each.shown for each in finding.examples]) == (found, ["a:0", "b:1"])


def test_examples_begin_a_little_before_the_fault() -> None:
    found, text = nothing_found(), "abcdefghij" * 4
    chunk = Chunk.of(found, [(1, text, ""), (2, text, "")], CHARACTERS)
    chunk.report("control", np.array([True, True]), 0, positions=np.array([3, 30]))
    examples = found.by_kind["control", ""].examples
    assert [example.text for example in examples] == [text, f"...{text[10:]}"]
    assert found.example(1, text * 99).text == (text * 99)[:300]


def test_findings_of_which_all_rows_are_removed_are_none() -> None:
    found = nothing_found()
    found.add("misfit", 15, [found.example(number, "") for number in range(15)])
    found.remove_rows("misfit", np.array([0, 2]))
    finding = found.by_kind["misfit", ""]
    assert [each.number for each in finding.examples] == [1, *range(3, 12)]  # at most ten
    assert finding.count == 13
    found.remove_rows("misfit", np.array([1, *range(3, 15)]))
    assert not found.has("misfit")


def test_wide_characters_take_two_columns() -> None:
    findings = Findings("data.valid", TextCorpus(src="訓練.en", tgt="訓練.de"), Path(), 1)
    assert cell_len(next(findings.lines(80))) == 80
    findings.add("blank", 1, [findings.example(1, "字" * 80)])
    assert cell_len(list(findings.lines(80))[-2]) == 79


def test_messages_are_wrapped_to_the_width() -> None:
    found = Findings("data.valid", TextCorpus(src="a", tgt="b"), Path(), 9)
    found.add_message("contained", "word " * 30)
    assert {len(line) for line in list(found.lines(60))[2:]} <= set(range(15, 61))
    assert " ".join(line.strip() for line in list(found.lines(60))[2:]) == ("word " * 30).strip()
