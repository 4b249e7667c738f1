"""`mtrain check` names every planted fault by file and line, and says nothing of sound text."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import signal
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import made_up_pairs, run_mtrain
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from mtrain.check import checker, chunks, diagnosis, faults
from mtrain.check.checker import Checker
from mtrain.check.chunks import Chunk
from mtrain.check.diagnosis import Diagnosis, diagnose
from mtrain.check.findings import KINDS, Findings
from mtrain.check.words import Characters
from mtrain.config.corpora import TextCorpus
from mtrain.config.languages import FREQUENT, NAMES
from mtrain.config.loading import load_config
from mtrain.config.schema import FilterConfig
from mtrain.corpus.lines import MAX_LINE_LENGTH
from mtrain.corpus.writing_systems import script_of, scripts_of
from mtrain.data import mix_ups
from mtrain.data.filters import Selection
from mtrain.data.tokenizer import Tokenizer
from mtrain.runtime import workers
from mtrain.runtime.console import cut_to_width
from mtrain.runtime.errors import StoppedError, printable
from mtrain.runtime.stop import Stop

Sides = tuple[list[str], list[str]]
PAIRS = 2000
CHARACTERS = Characters()


# Words of two made-up languages.
LEFT, RIGHT = (
    random.Random(1).sample(sorted(map("".join, product(syllables.split(), repeat=3))), 500)
    for syllables in ("ba de fi go lu ma ne ri", "schra blen krit wolf zan durch eig ust")
)
HAN = [chr(0x4E00 + 7 * n) + chr(0x5E00 + 11 * n) for n in range(500)]


def corpus(pairs: int, seed: int, right: list[str] = RIGHT, joint: str = " ") -> Sides:
    """Sentences of a made-up language and their translations, word for word from the end on."""
    rng = random.Random(seed)
    sides: Sides = ([], [])
    while len(sides[0]) < pairs:
        numbers = [min(499, int(rng.expovariate(0.012))) for _ in range(rng.randint(5, 14))]
        source = " ".join(["xo", *(LEFT[n] for n in numbers)])
        if source not in sides[0]:
            sides[0].append(source)
            sides[1].append(joint.join(["qua", *(right[n] for n in reversed(numbers))]))
    return sides


@pytest.fixture(scope="session")
def sound() -> dict[str, Sides]:
    return {"train": corpus(PAIRS, 1), "valid": corpus(200, 2), "test": corpus(200, 3)}


class Folder:
    """A config with its corpora, to be hurt and looked at."""

    def __init__(self, path: Path, sets: dict[str, Sides]) -> None:
        self.path = path
        self.bytes = {
            f"{name}.{code}": [text.encode() for text in side]
            for name, sides in sets.items()
            for code, side in zip(("xa", "xb"), sides, strict=True)
        }
        self.data: dict[str, Any] = {
            "root": str(path),
            "src_lang": "aa",
            "tgt_lang": "ba",
            "train": [self.entry("train")],
            "valid": self.entry("valid"),
            "test": {"held": self.entry("test")},
        }
        self.settings: dict[str, Any] = {"run_dir": str(path / "run")}

    @staticmethod
    def entry(name: str) -> dict[str, Any]:
        return {"src": f"{name}.xa", "tgt": f"{name}.xb"}

    def write(self) -> Path:
        for name, lines in self.bytes.items():
            (self.path / name).write_bytes(b"".join(line + b"\n" for line in lines))
        config = self.path / "config.yaml"
        config.write_text(yaml.safe_dump({**self.settings, "data": self.data}), encoding="utf-8")
        return config

    def look(self, examples: int = 10, *, forecast: bool = False) -> dict[str, Any]:
        found = look(self.write(), examples, forecast=forecast)
        report: dict[str, Any] = json.loads(json.dumps(found.as_json()))
        for width in (40, 80):
            for line in found.lines(width):
                assert printable(line) == line
        return report


def look(config: Path, examples: int = 10, *, forecast: bool = False) -> Diagnosis:
    return diagnose(
        load_config(config), Stop(), examples=examples, with_forecast=forecast, timed=False
    )


@pytest.fixture
def folder(tmp_path: Path, sound: dict[str, Sides]) -> Folder:
    return Folder(tmp_path, sound)


def found(report: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every finding, as the corpus's name, its kind, and itself."""
    for each in report["corpora"]:
        for finding in each["findings"]:
            yield each["name"], finding["kind"], finding


def kinds(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, kind) for name, kind, _ in found(report)]


def places(report: dict[str, Any], kind: str, name: str = "data.train.0") -> list[Any]:
    return [
        (Path(example["files"][0]).name, example.get("line"))
        for where, what, finding in found(report)
        if (where, what) == (name, kind)
        for example in finding["examples"]
    ]


def messages(report: dict[str, Any], kind: str) -> list[str]:
    return [
        example["text"]
        for _, what, finding in found(report)
        if what == kind
        for example in finding["examples"]
    ]


def test_nothing_is_said_of_sound_text(folder: Folder) -> None:
    report = folder.look()
    assert kinds(report) == []
    assert [each["pairs"] for each in report["corpora"]] == [PAIRS, 200, 200]
    assert [doubt.split(";")[0][-5:] for doubt in report["doubts"]] == [f"{PAIRS:,}"]
    assert (report["errors"], report["warnings"], report["notes"]) == (0, 1, 0)


# Words whose UTF-8 was read in an encoding of another script.
MISREAD = {
    "gbk": "保存文件，请稍等",
    "cp932": "ファイルを開く",
    "koi8_u": "Київ і Одеса",
    "cp1253": "Πρώτη σελίδα",
    "cp1255": "תודה רבה",
    "cp1256": "سلام عليكم",
}
# What is put into the middle of a line, by the kind of finding.
ODD_TEXT = {
    "control": ["\0", "\r", "\u2028", "\x85", "\f", "\x07"],
    "invisible": ["\u200b", " ไ\ufeff", "\u3164", "\u034f", "\u200e", " 中\u202e文 ", "\U000e0041"],
    "no_character": ["\ufffd", "\ue123", "\uffff", "\U0001ffff", "\u0378"],
    "mojibake": [
        "Ã¼",
        "donâ€™t",
        " РџСЂРёРІРµС‚ ",
        "日本".encode().decode("cp1252"),
        "ðŸ˜‚",
        *(" fⁿr ", " M‰nner ", " by³o ", " gr▀ße ", " aºa ", " f眉r ", " 脺ber ", " gr枚脽e "),
        *(f" {text.encode().decode(code, 'ignore')} " for code, text in MISREAD.items()),
    ],
    "escaped": [" f\\u00fcr ", " f=C3=BCr ", " f%c3%bcr ", " f\\xc3\\xbcr ", " f+APw-r "],
    "markup": [
        *(" &amp; ", '<a href="x">', " &#39;", " &times; "),
        *(" & quot ;", " &nbsp ", " quot;", "(apos;"),
    ],
    "subwords": [
        *(" ab@@ cd", " ▁ab", " @-@ ", " ##ing", " Ġab Ġcd"),
        *(" <unk> ", " <UNK> ", " [UNK] ", " ⁇ "),
    ],
    "decomposed": [" cafe\u0301 "],
    "presentation": [" \ufb01n ", " \ufe8d\ufee0 ", " \ufefb "],
    "mixed_word": [" pаypal ", " словоx ", " %pаypаl ", " \\nсловоx "],
}


def test_odd_text_is_named_by_file_and_line(folder: Folder) -> None:
    planted: dict[str, set[tuple[str, int]]] = {}
    plants = [(kind, text.encode()) for kind, texts in ODD_TEXT.items() for text in texts]
    for side, name in enumerate(("train.xa", "train.xb")):
        lines = folder.bytes[name]
        for number, (kind, text) in enumerate([*plants, ("encoding", b"\xff")]):
            row = 100 + 24 * number + 12 * side
            lines[row] = lines[row][:6] + text + lines[row][6:]
            planted.setdefault(kind, set()).add((name, row + 1))
    lines[3] += b"\r"
    report = folder.look(examples=50)
    for kind, expected in planted.items():
        assert set(places(report, kind)) == expected, kind
    assert {kind for _, kind in kinds(report)} == {*planted, "crlf"}
    assert report["errors"] == 1


HONEST = [
    "„FREMDWÖRTERMENÜ“ und „Spaß“",
    "São, NÃO e «à\u00a0»",
    "Œuvre à “Â la” dents",
    "a < b && c > d",
    "AT&T, x@y.org, C# ##",
    "Die €-Preise – ‚so‘ – …",
    "РССР и СРСР",
    "%sслово%sслово, %1$sслово, %5.2fм %-lluс \\nслово",
    "2µm² × 3 ±d, C++, x=C3, 50%C, a+b-c, §7, Intel®-PCs, %sνύξη \\u0000 D:\\user",
    "it´s l´ami menu→datei km⁄h a•b",
    "nºs 1 e 2, Nºs, nºde, Exmºs, Srªs, Mªdel",
    "می‌خواهم",
    "ជំរាប\u200bសួរ ไทย\u200bไทย",
    "👩‍🔧",
    "❤️‍🔥 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "中国 １２ ＡＢ ｘ＝ａ＋ｂ",
    *("未知状态", "网格大小：", "ㅠㅠㅠㅠㅠ", "указатель-дерева", "μπλοκ"),
    "\ufdf2 \ufdfa \ufd3e1\ufd3f, \ufb1d\ufb2a",  # words, brackets, letters with points
    "\u0958\u0940\u092e\u0924, ẹ̀kọ́, 2 \u212b",  # which NFC makes longer, or no shorter
]


def test_honest_text_is_let_pass(folder: Folder) -> None:
    for row, text in enumerate(HONEST):
        folder.bytes["valid.xb"][row] += b" " + text.encode()
    assert {kind for _, kind in kinds(folder.look())} == set()


def test_words_that_were_divided_at_the_end_of_a_line_are_named(folder: Folder) -> None:
    first, second = (word.encode() for word in RIGHT[:2])
    lines = folder.bytes["train.xb"]
    lines[100] += b" " + first[:4].title() + b"- " + first[4:]
    lines[105] += b" ab- " + first[:4] + "\u2010 ".encode() + first[4:]
    lines[110] += b" " + first + b"- und " + second + b"- " + first  # parts of compounds
    report = folder.look()
    assert kinds(report) == [("data.train.0", "divided")]
    assert places(report, "divided") == [("train.xb", 101), ("train.xb", 106)]


def test_hours_of_different_clocks_are_no_different_numbers(folder: Folder) -> None:
    times = [("10:30 p.m.", "22:30"), ("12:05 a.m.", "00:05"), ("11 p.m.", "\u06f2\u06f3")]
    times += [("10 h", "21 h")]
    for row, (src, tgt) in enumerate(times, 200):
        folder.bytes["train.xa"][row] += b" " + src.encode()
        folder.bytes["train.xb"][row] += b" " + tgt.encode()
    report = folder.look()
    assert kinds(report) == [("data.train.0", "digits")]
    assert places(report, "digits") == [("train.xa", 204)]


@pytest.mark.parametrize("language", ["he", "fa_Arab", "ru"])
def test_direction_marks_are_normal_in_any_text_of_a_language_from_right_to_left(
    folder: Folder, language: str
) -> None:
    folder.data["tgt_lang"] = language
    folder.bytes["valid.xb"][3] += " \u200f%s\u202a".encode()
    invisible = ("data.valid", "invisible") in kinds(folder.look())
    assert invisible == (language == "ru")


def unrelated(lines: list[bytes], row: int) -> bytes:
    own, size = set(lines[row].split()), len(lines[row].split())
    others = (line for line in lines[:900] if len(own & set(line.split())) == 1)
    return next(line for line in others if len(line.split()) == size)


# A pair to put in place of that of a row, by the kind of finding.
PLANTS: dict[str, Callable[[list[bytes], list[bytes], int], tuple[bytes, bytes]]] = {
    "swapped": lambda src, tgt, row: (tgt[row], src[row]),
    "duplicate": lambda src, tgt, row: (src[100], tgt[100]),
    "same": lambda src, tgt, row: (src[row], src[row]),
    "other_language": lambda src, tgt, row: (tgt[7], tgt[row]),
    "script": lambda src, tgt, row: ("несколько слов на другом языке".encode(), tgt[row]),
    "ratio": lambda src, tgt, row: (src[row], b" ".join(tgt[row : row + 7])),
    "long": lambda src, tgt, row: (b" ".join(src[row : row + 40]), b" ".join(tgt[row : row + 40])),
    "misfit": lambda src, tgt, row: (src[row], unrelated(tgt, row)),
    "blank": lambda src, tgt, row: (b" \t", tgt[row]),
    "both": lambda src, tgt, row: (src[row] + b" " + tgt[row], tgt[row]),
    "loop": lambda src, tgt, row: (src[row] + b" ab cd" * 9, tgt[row] + b" ef" * 9),
    "spacing": lambda src, tgt, row: (b" ".join(src[row][i : i + 1] for i in range(20)), tgt[row]),
    "digits": lambda src, tgt, row: (src[row] + b" 2.10", tgt[row] + b" 2.20"),
}


def plant(folder: Folder, kind: str, row: int) -> None:
    src, tgt = folder.bytes["train.xa"], folder.bytes["train.xb"]
    src[row], tgt[row] = PLANTS[kind](src, tgt, row)


def test_one_odd_pair_is_named(folder: Folder) -> None:
    for number, kind in enumerate(PLANTS):
        plant(folder, kind, 1000 + 60 * number)
    report = folder.look()
    for number, kind in enumerate(PLANTS):
        assert places(report, kind) == [("train.xa", 1001 + 60 * number)], kind
    assert {kind for _, kind in kinds(report)} == set(PLANTS)
    assert report["errors"] == 0


def test_numbers_may_be_written_in_another_way(folder: Folder) -> None:
    src, tgt = folder.bytes["train.xa"], folder.bytes["train.xb"]
    same = [("12/24/2019", "24.12.2019"), ("1,000", "1.000"), ("2019", "٢٠١٩"), ("2 of 3", "3")]
    for row, (source, target) in enumerate(same):
        src[row] += b" " + source.encode()
        tgt[row] += b" " + target.encode()
    src[100], tgt[100] = src[100] + b" 1", unrelated(tgt, 100) + b" 2"
    assert kinds(folder.look()) == [("data.train.0", "misfit")]


@pytest.mark.parametrize("joint", ["", " "])
def test_a_text_that_occurs_twice_in_its_line_is_named(tmp_path: Path, joint: str) -> None:
    made = (HAN, "") if joint == "" else (RIGHT, " ")
    sets = {name: corpus(300, seed, *made) for seed, name in enumerate(("train", "valid", "test"))}
    folder = Folder(tmp_path, sets)
    src, tgt = folder.bytes["train.xa"], folder.bytes["train.xb"]
    tgt[100] += joint.encode() + tgt[100]
    tgt[110] = b"qua qua qua"  # few words
    for side in (src, tgt):
        side[120] += b" " + side[120]  # on both sides, thus intended
    assert places(folder.look(), "loop") == [("train.xb", 101)]


def test_half_translated_texts_are_named(folder: Folder) -> None:
    src, tgt = folder.bytes["train.xa"], folder.bytes["train.xb"]
    long = [row for row in range(100, 2000) if len(src[row].split()) >= 12]
    expected = {}
    for number, row in enumerate(long[:20]):
        own, other = src[row].split(), tgt[row].split()
        half = len(own) // 2
        if number % 2:
            own[:half] = other[:half]
        else:
            other[half:] = own[half:]
        src[row], tgt[row] = b" ".join(own), b" ".join(other)
        expected[row + 1] = ("train.xb", "train.xa")[number % 2]
    # quotations and options are sound
    options = b" --".join([b"", *src[9].split()[:6]])
    quoted = b' "' + b" ".join(src[8].split()[:6]) + b'"'
    for row, end in ((20, options), (21, quoted)):
        src[row], tgt[row] = src[row] + end, tgt[row] + end
    report = folder.look(examples=50)
    found = places(report, "other_language")
    assert sorted(found) == sorted((name, row) for row, name in expected.items())


# Repetitions at the end of a text: loops of a translation, and sound ones.
LOOPS = [" und so weiter" * 3 + ".", " Haus" * 6, "上海的" * 4, " दिल्ली शहर" * 4, " ไปเที่ยวกัน" * 4]
SOUND_ENDS = [
    *(" hahahaha" * 5, "来吧" * 3, " %s," * 5, "-" * 60, " 1234567" * 5, "😀" * 30),
    *(" Text 1, Text 2, Text 3, Text 4, Text 5, Text 6", " -d degree, --degree degree"),
]


def test_loops_at_the_end_of_a_text_are_named(folder: Folder) -> None:
    src, tgt = folder.bytes["train.xa"], folder.bytes["train.xb"]
    for row, end in enumerate([*LOOPS, *SOUND_ENDS], 100):
        tgt[row] += end.encode()
    src[120], tgt[120] = src[120] + b" go" * 5, tgt[120] + b" vamos" * 5  # intended
    tgt[121] = tgt[121] + b" und so weiter" * 3 + tgt[122]  # not at the end
    named = [("train.xb", row) for row in range(101, 101 + len(LOOPS))]
    assert places(folder.look(), "loop") == named


MARKS = ["- ", "•\u00a0", "00:01:02,000 --> ", "[12:30] ", "7. ", " (12) "]


def mark_texts(folder: Folder, stop: int) -> list[tuple[str, int]]:
    """Put marks before texts of one side, and before pairs, where they are intended; return the
    places of the former.
    """
    src, tgt = folder.bytes["train.xa"], folder.bytes["train.xb"]
    for number, row in enumerate(range(0, stop, 20)):
        mark = MARKS[number % len(MARKS)].encode()
        tgt[row] = mark + tgt[row]
        for side in (src, tgt):
            side[row + 1] = mark + side[row + 1]
    return [("train.xb", row + 1) for row in range(0, stop, 20)]


def test_marks_before_texts_of_one_side(folder: Folder) -> None:
    expected = mark_texts(folder, 720)
    assert places(folder.look(examples=50), "marked") == expected


def test_fewer_marks_than_one_in_a_hundred_texts_may_be_dates(folder: Folder) -> None:
    mark_texts(folder, 260)
    assert places(folder.look(), "marked") == []


FRENCH = [
    "les mots que {} est dans le {}",
    "un {} avec une {} pour des {}",
    "il ne sont pas {} sur {}",
]


@pytest.mark.parametrize(
    ("language", "count", "is_found"), [("de", 30, True), ("de", 4, False), ("eu", 30, False)]
)
def test_texts_in_a_third_language_are_found(
    folder: Folder, language: str, count: int, is_found: bool
) -> None:
    """By frequent words; those of Basque are not known, and a few texts may be quotations."""
    folder.data["tgt_lang"] = language
    lines, rows = folder.bytes["train.xb"], random.Random(5).sample(range(PAIRS), count)
    for row in rows:
        words = lines[row].decode().split()
        lines[row] = FRENCH[row % 3].format(*words[:3]).encode()
    lines_found = {line - 1 for _, line in places(folder.look(examples=100), "third_language")}
    assert lines_found <= set(rows)
    assert len(lines_found) >= 0.9 * count if is_found else not lines_found


@pytest.mark.parametrize(
    ("fraction", "spelling"),
    [(0.1, "ae"), (0.1, "a"), (1.0, "a"), (0.0, "a"), (0.1, ""), (1.0, "")],
)
def test_lost_accents_are_found(folder: Folder, fraction: float, spelling: str) -> None:
    folder.data["tgt_lang"] = "de"
    draw, lines = random.Random(6), folder.bytes["train.xb"]
    words = ["für", "über", "während", *(f"w{left}ä{right}" for left in "abcd" for right in "xyz")]
    for row, line in enumerate(lines):
        text = f"{line.decode()} {draw.choice(words)}"
        if draw.random() < fraction:
            text = text.replace("ä", spelling).replace("ü", spelling.replace("a", "u"))
        lines[row] = text.encode()
    messages = [
        each["examples"][0]["text"] for _, kind, each in found(folder.look()) if kind == "accents"
    ]
    assert len(messages) == (fraction > 0)
    for text in messages:
        assert abs(float(text.split("%")[0].removeprefix("about ")) - 100 * fraction) <= 3
        assert " for " in text


@pytest.mark.parametrize("unit", ["characters", "bytes", "words"])
def test_texts_cut_off_at_a_length_are_found(folder: Folder, unit: str) -> None:
    lines = folder.bytes["train.xb"]
    for row, line in enumerate(lines):
        text = line.decode().replace("a", "ä")
        cuts = {"characters": text[:30], "words": " ".join(text.split()[:8])}
        lines[row] = cuts.get(unit, text).encode()
        if unit == "bytes":
            lines[row] = lines[row][:30].decode(errors="ignore").encode()
    [text] = [
        each["examples"][0]["text"] for _, kind, each in found(folder.look()) if kind == "cut"
    ]
    assert text.endswith(
        f"of the targets have {8 if unit == 'words' else 30} {unit}, and none has more"
    )


@pytest.mark.parametrize("made", ["Room {0} on floor {0}", "{1} {1}", "{1}"])
def test_texts_that_all_have_one_length_are_not_cut(folder: Folder, made: str) -> None:
    """Such as templates with numbers, names and the words of a dictionary."""
    for name in ("valid.xa", "valid.xb"):
        words = LEFT if name == "valid.xa" else RIGHT
        texts = [made.format(row, words[row]) for row in range(200)]
        folder.bytes[name] = [text.encode() for text in texts]
    assert "cut" not in {kind for _, kind in kinds(folder.look())}


@pytest.mark.parametrize(("fraction", "kept"), [(0.1, 0.5), (0.6, 0.6), (0.3, 1.0)])
def test_texts_cut_off_within_sentences_are_found(
    folder: Folder, fraction: float, kept: float
) -> None:
    """Texts that lost only their periods are whole."""
    lines, draw = folder.bytes["train.xb"], random.Random(9)
    folder.bytes["train.xa"] = [line + b"." for line in folder.bytes["train.xa"]]
    for row, line in enumerate(lines):
        is_cut = draw.random() < fraction
        lines[row] = line[: int(kept * len(line))].strip() if is_cut else line + b"."
    messages = [
        each["examples"][0]["text"] for _, kind, each in found(folder.look()) if kind == "cut"
    ]
    assert len(messages) == (kept < 1)
    for text in messages:
        assert abs(float(text.split("%")[0].removeprefix("about ")) - 100 * fraction) <= 3
        assert "targets end within a sentence that the source ends" in text
        row = int(text.rsplit(":", 1)[1]) - 1
        assert not lines[row].endswith(b".")


def test_letters_that_became_question_marks_are_found(folder: Folder) -> None:
    src, tgt = folder.bytes["train.xa"], folder.bytes["train.xb"]
    for row, text in enumerate((b"sch?n", b"GR??E", b"?" * 4 + b" a" + b" ?" * 200)):
        tgt[100 + row] += b" " + text
    sound = ["Was?Nein!", "ende????", "???", "http://a.de/b?c=d", "什么?我", "뭐?나"]
    for row, text in enumerate(sound):
        tgt[200 + row] += f" {text}".encode()
    for side in (src, tgt):
        side[300] += b" files a?b"  # on both sides, thus intended
    src[310], tgt[310] = b"for ???? days, since ??:?? of the last day", b"qua ???? e, ??:??"
    report = folder.look()
    assert places(report, "lost") == [("train.xb", row) for row in (101, 102, 103)]


@pytest.mark.parametrize("fraction", [0.1, 0.4])
def test_a_fraction_of_swapped_pairs_is_found(folder: Folder, fraction: float) -> None:
    chosen = random.Random(4).sample(range(PAIRS), int(fraction * PAIRS))
    for row in chosen:
        plant(folder, "swapped", row)
    report = folder.look(examples=1000)
    [finding] = [finding for _, kind, finding in found(report) if kind == "swapped"]
    assert 0.95 * len(chosen) <= finding["count"] <= len(chosen)
    assert {line - 1 for _, line in places(report, "swapped")} <= set(chosen)


@pytest.mark.parametrize(
    ("length", "joint"), [(8, "words"), (40, "words"), (900, "words"), (40, "han")]
)
def test_a_slipped_block_is_found_with_its_ends(tmp_path: Path, length: int, joint: str) -> None:
    made = (HAN, "") if joint == "han" else (RIGHT, " ")
    sets = {"train": corpus(PAIRS, 1, *made), "valid": corpus(50, 2, *made)}
    folder = Folder(tmp_path, {**sets, "test": corpus(50, 3, *made)})
    lines = folder.bytes["train.xb"]
    lines[1000 : 1000 + length] = [*lines[1001 : 1000 + length], lines[1000]]
    report = folder.look()
    [(_, _, slip)] = [each for each in found(report) if each[1] == "slip"]
    [example] = slip["examples"]
    assert abs(example["line"] - 1001) <= 1
    assert abs(example["end"] - (1000 + length)) <= 1
    assert example["distance"] == -1
    assert "targets are about 1 line ahead of their sources" in example["text"]
    assert not {"misfit", "unrelated"} & {kind for _, kind in kinds(report)}


def test_a_slipped_block_explains_its_wrong_pairs_but_hides_none_elsewhere(folder: Folder) -> None:
    for lines in (folder.bytes["train.xa"], folder.bytes["train.xb"]):
        lines[1010] = b" ".join(lines[1010:1020])  # where it slips, two pairs differ in length
    lines = folder.bytes["train.xb"]
    lines[1900] = b" ".join(lines[1900:1910])
    lines[1000:1048] = [*lines[1008:1048], *lines[1000:1008]]
    wrong = [1400, 1600, 1800]
    texts = [lines[row] for row in wrong]
    for row, text in zip(wrong, [*texts[1:], texts[0]], strict=True):
        lines[row] = text
    report = folder.look()
    findings = {kind: finding for _, kind, finding in found(report)}
    [example] = findings["slip"]["examples"]
    assert (example["line"], example["end"], example["distance"]) == (1001, 1048, -8)
    assert findings["misfit"]["count"] == len(wrong)
    assert (findings["ratio"]["count"], places(report, "ratio")) == (1, [("train.xa", 1901)])
    lines_of_misfits = {each["line"] for each in findings["misfit"]["examples"]}
    assert lines_of_misfits == {row + 1 for row in wrong}


def test_wrong_pairs_elsewhere_are_counted_without_examples() -> None:
    """If all examples that were kept are in blocks that slipped."""
    findings = Findings("data.train.0", TextCorpus(src="a", tgt="b"), Path(), 2)
    for rank, first, last in ((-20.0, 1, 1200), (-9.0, 6001, 6015)):
        numbers = range(first, last + 1)
        examples = [findings.example(number, "text", rank=rank) for number in numbers]
        findings.add("misfit", len(numbers), examples)
    findings.remove_rows("misfit", [(1, 5000)], 1200)
    assert findings.count("misfit") == 15
    assert [line.split()[-1] for line in findings.lines(80)] == ["pairs", "15"]
    findings.remove_rows("misfit", [(6000, 7000)], 15)
    assert not findings.has("misfit")


@pytest.mark.parametrize("change", ["shuffled", "far"])
def test_a_block_that_goes_together_nowhere_near_is_found(folder: Folder, change: str) -> None:
    lines = folder.bytes["train.xb"]
    block = lines[1000:1600]
    if change == "shuffled":
        random.Random(7).shuffle(block)
    lines[1000:1600] = block if change == "shuffled" else block[80:] + block[:80]
    report = folder.look()
    [(_, _, slip)] = [each for each in found(report) if each[1] == "slip"]
    [example] = slip["examples"]
    assert abs(example["line"] - 1001) <= 3
    assert abs(example["end"] - 1600) <= 3
    assert "distance" not in example
    assert "match no better than neighbouring" in example["text"]


def test_a_lost_line_is_found_where_it_was(folder: Folder) -> None:
    del folder.bytes["train.xa"][1499]
    report = folder.look()
    [(_, _, unequal)] = [each for each in found(report) if each[1] == "unequal"]
    assert f"has {PAIRS - 1:,} lines but" in unequal["examples"][0]["text"]
    assert "find the missing or extra line" in unequal["examples"][0]["text"]
    [(_, line)] = places(report, "slip")
    assert abs(line - 1500) <= 1
    assert report["errors"] == 1


@pytest.mark.parametrize("pairs", [150, PAIRS])
def test_shuffled_sides_are_noticed(folder: Folder, pairs: int) -> None:
    for name in ("train.xa", "train.xb"):
        del folder.bytes[name][pairs:]
    random.Random(5).shuffle(folder.bytes["train.xb"])
    assert ("data.train.0", "unrelated") in kinds(folder.look())


@pytest.mark.parametrize("kind", ["unrelated", "slip"])
def test_sentences_do_not_seem_cut_off_by_a_title_on_the_other_side(
    folder: Folder, kind: str
) -> None:
    src, tgt = folder.bytes["train.xa"], folder.bytes["train.xb"]
    for row, line in enumerate(src):
        if len(line) > 60:  # a sentence
            src[row] += b"."
            tgt[row] += b"."
    if kind == "slip":
        tgt.insert(1500, tgt.pop())
    else:
        random.Random(5).shuffle(tgt)
    assert {found_kind for _, found_kind in kinds(folder.look())} == {kind}


@pytest.mark.parametrize("every", [2, 5, 20])
def test_lines_in_a_script_that_is_not_the_language_s_are_found_however_many(
    folder: Folder, every: int
) -> None:
    folder.data["tgt_lang"] = "de"
    lines = folder.bytes["train.xb"]
    chosen = range(0, PAIRS, every)
    for row in chosen:
        lines[row] = f"привет мир и добрый день {row}".encode()
    report = folder.look(examples=1000)
    [finding] = [finding for _, kind, finding in found(report) if kind == "script"]
    assert finding["count"] == len(chosen)


def test_sides_without_any_words_that_go_together_are_noticed(folder: Folder) -> None:
    """Also where lengths correlate, as when each side was sorted."""
    for name in ("train.xa", "train.xb"):
        folder.bytes[name].sort(key=len)
    assert ("data.train.0", "unrelated") in kinds(folder.look())


@pytest.mark.parametrize("percent", [10, 30, 60])
def test_wrong_pairs_all_over_are_counted(folder: Folder, percent: int) -> None:
    lines, draw = folder.bytes["train.xb"], random.Random(5)
    rows = draw.sample(range(PAIRS), percent * PAIRS // 100)
    for row, line in zip(rows, draw.sample([lines[row] for row in rows], len(rows)), strict=True):
        lines[row] = line
    report = folder.look()
    [(_, _, unrelated)] = [each for each in found(report) if each[1] == "unrelated"]
    assert all(len(finding["examples"]) <= 10 for _, _, finding in found(report))
    [example] = unrelated["examples"]
    if percent < 60:  # lengths alone do not show it
        estimate = int(example["text"].split("%")[0].removeprefix("about "))
        assert 0.5 * percent < estimate < 1.3 * percent
        wrong = {line - 1 for _, line in places(report, "misfit")}
        assert len(wrong - set(rows)) <= 0.1 * len(wrong)


def test_words_show_that_lines_of_a_few_patterns_go_together(folder: Folder) -> None:
    """Where a longer word has a shorter translation, lengths do not correlate."""
    draw = random.Random(6)
    letters = "abcdefghijklmnopqrst"
    words = [
        (first + second * (number + 1), second + first * (20 - number))
        for number, first in enumerate(letters)
        for second in "xyz"
    ]
    rows = [draw.sample(words, 3) for _ in range(PAIRS)]
    for side, name in enumerate(("train.xa", "train.xb")):
        folder.bytes[name] = [" ".join(word[side] for word in row).encode() for row in rows]
    assert ("data.train.0", "unrelated") not in kinds(folder.look())
    draw.shuffle(folder.bytes["train.xb"])
    assert ("data.train.0", "unrelated") in kinds(folder.look())


def test_sound_text_of_very_few_words_seems_related(folder: Folder) -> None:
    """Each word is in so many lines that none shows which lines go together."""
    draw = random.Random(7)
    rows = [draw.choices(range(12), k=draw.randint(3, 12)) for _ in range(PAIRS)]
    for words, name in ((LEFT, "train.xa"), (RIGHT, "train.xb")):
        folder.bytes[name] = [" ".join(words[n] for n in row).encode() for row in rows]
    assert ("data.train.0", "unrelated") not in kinds(folder.look())


@pytest.mark.parametrize(("percent", "is_found"), [(0, False), (30, True), (100, True)])
def test_words_that_occur_once_say_nothing_of_their_pairs(
    folder: Folder, percent: int, is_found: bool
) -> None:
    """In a dictionary, most pairs have such words on a side, and frequent ones on the other."""
    draw = random.Random(9)
    signs = [chr(0x4E00 + 7 * n) for n in range(150)]
    frequent = [("".join(draw.sample(LEFT, 2)), "".join(draw.sample(signs, 2))) for _ in range(99)]
    rare = ["".join(pair) for pair in draw.sample(list(product(LEFT, LEFT)), PAIRS)]
    rows = [(word, "".join(draw.sample(signs, 2))) for word in rare]
    rows[: PAIRS // 3] = draw.choices(frequent, k=PAIRS // 3)
    draw.shuffle(rows)
    sides = [[row[side].encode() for row in rows] for side in (0, 1)]
    count = PAIRS * percent // 100
    sides[1][:count] = draw.sample(sides[1][:count], count)
    for name, texts in zip(("train.xa", "train.xb"), sides, strict=True):
        folder.bytes[name] = texts
    reported = kinds(folder.look())
    assert (("data.train.0", "unrelated") in reported) == is_found
    assert ("data.train.0", "cut") not in reported


@pytest.mark.parametrize("slip", [1, 700])
def test_lines_of_documents_that_slipped_are_noticed(folder: Folder, slip: int) -> None:
    """Lines of one subject have words that come together, whichever lines are paired."""
    draw = random.Random(8)
    words = ["".join(draw.choices("abcdefghijklmnop", k=4)) for _ in range(3000)]
    lines = []
    for _ in range(PAIRS // 20):
        subject = draw.sample(words, 8)
        for _ in range(20):
            line = draw.sample(subject, 7) + draw.choices(words, k=draw.randint(0, 14))
            lines.append(draw.sample(line, len(line)))
    folder.bytes["train.xa"] = [" ".join(line).encode() for line in lines]
    targets = [" ".join(word[::-1] + "o" for word in line).encode() for line in lines]
    folder.bytes["train.xb"] = targets
    assert ("data.train.0", "unrelated") not in kinds(folder.look())
    folder.bytes["train.xb"] = targets[slip:] + targets[:slip]
    expected = "slip" if slip == 1 else "unrelated"
    assert ("data.train.0", expected) in kinds(folder.look())


@pytest.mark.parametrize("slip", [1, -2, 12, -30])
def test_sides_that_are_shifted_throughout_are_told_by_how_many_lines(
    folder: Folder, slip: int
) -> None:
    for name in ("train.xb", "valid.xb"):
        folder.bytes[name] = folder.bytes[name][slip:] + folder.bytes[name][:slip]
    report = folder.look()
    slips = {name: finding for name, kind, finding in found(report) if kind == "slip"}
    assert slips.keys() == {"data.train.0", "data.valid"}
    for finding in slips.values():
        [example] = finding["examples"]
        assert (example["line"], example["distance"]) == (1, -slip)
        assert "throughout: look at the first lines; the" in example["text"]
    assert not {"unrelated", "misfit"} & {kind for _, kind in kinds(report)}


@pytest.mark.parametrize("slip", [5, 25])
def test_a_shift_in_most_of_the_lines_is_told_with_its_beginning(folder: Folder, slip: int) -> None:
    lines = folder.bytes["train.xb"]
    del lines[700 : 700 + slip]
    del folder.bytes["train.xa"][len(lines) :]
    [(_, kind, finding)] = [each for each in found(folder.look()) if each[0] == "data.train.0"]
    [example] = finding["examples"]
    assert (kind, example["distance"]) == ("slip", -slip)
    assert abs(example["line"] - 701) <= 10
    units = f"about {slip} lines ahead of their sources"
    assert example["text"] == f"to {len(lines)}: targets are {units}"


def test_sets_that_overlap_are_named_on_both_sides(folder: Folder) -> None:
    lines = folder.bytes
    lines["train.xa"][10], lines["train.xb"][10] = lines["valid.xa"][1], lines["valid.xb"][1]
    lines["train.xa"][20] = lines["valid.xa"][2]
    lines["train.xb"][30] = lines["test.xb"][3] + b" "
    lines["test.xa"][4], lines["test.xb"][4] = lines["valid.xa"][4], lines["valid.xb"][4]
    near = max(range(50, 200), key=lambda row: len(lines["test.xa"][row].split()))
    for side in ("xa", "xb"):
        words = lines[f"test.{side}"][near].split()
        words[4] = b"otherwise"
        lines[f"train.{side}"][40] = b" ".join(words)
    report = folder.look()
    others = {
        (name, kind, finding["examples"][0].get("line")): finding["examples"][0]["other"]["line"]
        for name, kind, finding in found(report)
        if "overlap" in kind
    }
    assert others == {
        ("data.valid", "overlap", 2): 11,
        ("data.valid", "source_overlap", 3): 21,
        ("data.test.held", "target_overlap", 4): 31,
        ("data.valid", "overlap", 5): 5,
        ("data.test.held", "near_overlap", near + 1): 41,
    }


def test_blank_lines_do_not_overlap_and_an_equal_pair_counts_before_an_equal_side(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 333)
    lines = folder.bytes
    lines["train.xa"][10], lines["train.xb"][10] = lines["valid.xa"][1], lines["valid.xb"][1]
    lines["train.xa"][1900] = lines["valid.xa"][1]
    for name, row in (("train", 20), ("valid", 2)):
        lines[f"{name}.xa"][row] = b""
    places = [
        (name, kind, finding["examples"][0]["line"], finding["examples"][0]["other"]["line"])
        for name, kind, finding in found(folder.look())
        if "overlap" in kind
    ]
    assert places == [("data.valid", "overlap", 2, 11)]


def test_a_nearly_equal_pair_is_not_shown_as_an_equal_one(folder: Folder) -> None:
    """A phrase twice and three times: all bigrams are the same."""
    lines = folder.bytes
    row = max(range(50, 200), key=lambda row: len(lines["valid.xa"][row].split()))
    for side in ("xa", "xb"):
        line = lines[f"valid.{side}"][row]
        lines[f"valid.{side}"][row] = b" ".join([line] * 2)
        lines[f"train.{side}"][40] = b" ".join([line] * 3)
    shown = {(name, kind): finding for name, kind, finding in found(folder.look())}
    first = shown["data.valid", "near_overlap"]["examples"][0]
    assert (first["line"], first["other"]["line"], first["likeness"]) == (row + 1, 41, 1)
    assert first["text"].startswith("99% of train.xa:41  ")


@pytest.mark.parametrize(("side", "name"), [("xa", "sources"), ("xb", "targets")])
def test_text_that_was_added_to_some_texts_of_a_side_is_named(
    folder: Folder, side: str, name: str
) -> None:
    lines = folder.bytes[f"train.{side}"]
    lines[4::5] = [b"Note to myself: " + line for line in lines[4::5]]
    [(corpus, finding)] = [each[::2] for each in found(folder.look()) if each[1] == "added"]
    assert corpus == "data.train.0"
    [example] = finding["examples"]
    first = {"xa": "xo", "xb": "qua"}[side]  # with which all texts begin
    begin = f'begin with "Note to myself: {first}", for instance train.{side}:5, '
    assert example["text"].startswith(f"about 20.0% of the {name} {begin}")


def test_a_set_that_stands_in_train_is_an_error_and_dropped_bytes_are_none(folder: Folder) -> None:
    folder.data |= {"valid": folder.entry("train"), "invalid_utf8": "drop"}
    folder.bytes["train.xa"][3] += b"\xff"
    report = folder.look(examples=1)
    assert ("data.valid", "contained") in kinds(report)
    assert places(report, "dropped") == [("train.xa", 4)]
    assert report["errors"] == 1


def test_all_that_is_broken_is_told_in_one_run(folder: Folder) -> None:
    del folder.bytes["train.xb"][-1]
    folder.bytes["valid.xa"][3] += b"\xff"
    folder.bytes["test.xa"], folder.bytes["test.xb"] = [], []
    for name in ("lost", "pipe", "gzip"):
        folder.data["test"][name] = {"src": name, "tgt": "one"}
    folder.data["train"].append({"src": "cut.gz", "tgt": "train.xa"})
    os.mkfifo(folder.path / "pipe")  # not waited for
    packed = gzip.compress(b"\n".join(folder.bytes["train.xa"]))
    for name, data in (
        ("cut.gz", packed[:-50]),
        ("gzip", gzip.compress(b"a", mtime=0)),
        ("one", b"a\n"),
    ):
        (folder.path / name).write_bytes(data)
    errors = {
        (name, kind) for name, kind, each in found(folder.look()) if each["severity"] == "error"
    }
    assert errors == {
        ("data.train.0", "unequal"),
        ("data.train.1", "unreadable"),
        ("data.valid", "encoding"),
        ("data.test.held", "empty"),
        ("data.test.lost", "unreadable"),
        ("data.test.pipe", "unreadable"),
        ("data.test.gzip", "unreadable"),
    }


def test_tables_are_named_by_row(folder: Folder, sound: dict[str, Sides]) -> None:
    src, tgt = (list(side) for side in sound["train"])
    src[6], tgt[8] = src[6] + "\nand more", " "
    pq.write_table(pa.table({"a": src, "b": tgt}), folder.path / "pairs.parquet")
    rows = [json.dumps({"t": {"a": a, "b": b}}) for a, b in zip(src, tgt, strict=True)]
    rows[3], rows[4], rows[5] = "{", '{"t": {"a": 1, "b": "x"}}', '{"t": []}'
    (folder.path / "pairs.jsonl").write_text("\n".join(rows), encoding="utf-8")
    lines = ["a\tb", *(f"{a}\t{b}" for a, b in zip(*sound["train"], strict=True)), "alone"]
    with gzip.open(folder.path / "pairs.tsv.gz", "wt", encoding="utf-8") as out:
        out.write("\n".join(lines))
    folder.data["train"] = [
        {"file": "pairs.parquet", "src": "a", "tgt": "b"},
        {"file": "pairs.jsonl", "src": "t.a", "tgt": "t.b"},
        {"file": "pairs.tsv.gz", "src": "a", "tgt": "b"},
    ]
    report = folder.look()
    shown = {(name, kind): finding for name, kind, finding in found(report)}
    assert shown["data.train.0", "control"]["examples"][0]["row"] == 7
    assert shown["data.train.0", "blank"]["examples"][0]["row"] == 9
    assert [each["line"] for each in shown["data.train.1", "row"]["examples"]] == [4, 5, 6]
    assert [each["line"] for each in shown["data.train.2", "row"]["examples"]] == [PAIRS + 2]
    first = shown["data.train.2", "duplicate"]["examples"][0]
    assert (first["line"], first["first"]["row"]) == (2, 1)


def test_generated_text_is_sound(folder: Folder) -> None:
    made = {"generated": "phrasebook"}
    folder.data |= {"src_lang": "en", "tgt_lang": "de", "test": {}}
    folder.data["train"] = [{**made, "split": "train", "pairs": 4000}]
    folder.data["valid"] = {**made, "split": "valid", "pairs": 200}
    assert set(kinds(folder.look())) <= {("data.valid", "near_overlap")}


@pytest.mark.parametrize("pairs", [0, 1, 5, 60])
def test_little_text_is_looked_at_too(tmp_path: Path, pairs: int) -> None:
    sets = {"train": corpus(pairs, 1), "valid": corpus(3, 2), "test": corpus(3, 3)}
    folder = Folder(tmp_path, sets)
    empty = [("data.train.0", "empty")]
    assert kinds(folder.look(forecast=True)) == ([] if pairs else empty)
    folder.bytes["train.xb"] = [b" "] * pairs
    report = folder.look()
    assert set(kinds(report)) >= set(empty)
    assert report["errors"] == 1


def test_text_of_which_training_has_nothing_left_is_an_error(folder: Folder) -> None:
    folder.data["max_length"] = 4
    report = folder.look()
    assert ("data.train.0", "empty") in kinds(report)
    assert report["errors"] == 1
    folder.bytes["train.xa"][5] = folder.bytes["train.xb"][5] = b"a"
    assert folder.look()["errors"] == 0
    # lines that are too long to be read do not count against the others
    too_long = b"a" * (MAX_LINE_LENGTH + 1)
    folder.bytes |= {"train.xa": [b"a", too_long, too_long], "train.xb": [b"a", b"b", b""]}
    assert folder.look()["errors"] == 0


def test_a_set_of_blank_lines_is_an_error(folder: Folder) -> None:
    folder.bytes["valid.xb"] = [b" "] * len(folder.bytes["valid.xa"])
    report = folder.look()
    assert ("data.valid", "empty") in kinds(report)
    assert report["errors"] == 1


def test_a_side_in_another_script_than_its_language(folder: Folder) -> None:
    folder.data |= {"src_lang": "ru", "tgt_lang": "zh-TW"}
    [(_, _, finding)] = [each for each in found(folder.look()) if each[1] == "language"]
    texts = [example["text"] for example in finding["examples"]]
    assert [text.split(",")[0] for text in texts] == [
        "data.src_lang is ru",
        "data.tgt_lang is zh-TW",
    ]


@pytest.mark.parametrize(
    ("language", "is_other"), [("nl", True), ("de-AT", False), ("eu", False), ("ru", False)]
)
def test_a_side_in_another_language_of_its_script(
    folder: Folder, language: str, is_other: bool
) -> None:
    """By frequent words; those of Basque are not known, and Russian has another script."""
    words, lines = sorted(FREQUENT["de"]), folder.bytes["train.xb"]
    lines[::2] = [line + b" " + words[n % 8].encode() for n, line in enumerate(lines[::2])]
    folder.data["tgt_lang"] = language
    messages = json.dumps([finding["examples"] for _, _, finding in found(folder.look())])
    text = f"the language of the targets is given as {language}, but they look like de"
    assert (text in messages) == is_other


def test_a_side_without_the_frequent_words_of_its_language(folder: Folder) -> None:
    folder.data |= {"src_lang": "de", "tgt_lang": "ru"}
    words, lines = sorted(FREQUENT["de"]), folder.bytes["train.xa"]
    lines[:] = [line + b" " + words[n % 8].encode() for n, line in enumerate(lines)]
    messages = json.dumps([finding["examples"] for _, _, finding in found(folder.look())])
    assert "the targets have hardly any frequent words of ru; were they read in" in messages


def test_a_language_in_another_script(folder: Folder) -> None:
    folder.data["tgt_lang"] = "uz"
    letters = str.maketrans("abcdefghiklmnopqrstuvwxyz", "абцдефгхиклмнопярстувшзыж")
    for lines in (folder.bytes[f"{name}.xb"] for name in ("train", "valid", "test")):
        lines[:] = [line.decode().translate(letters).encode() for line in lines]
    [message] = messages(folder.look(), "language")
    assert message == (
        "data.tgt_lang is uz, but 100% of the target's letters are Cyrillic: "
        "is this the right file? If uz is meant, write uz-Cyrl"
    )


def test_a_side_in_a_legacy_encoding_is_not_judged_by_its_rows_in_ascii(folder: Folder) -> None:
    folder.data["tgt_lang"] = "ja"
    lines = folder.bytes["train.xb"]
    lines[:] = [
        "日本語です".encode("euc-jp") if row % 9 else text for row, text in enumerate(lines)
    ]
    report = folder.look()
    assert not messages(report, "language")
    assert ("data.train.0", "encoding") in kinds(report)


def test_a_part_of_a_side_in_reverse(folder: Folder) -> None:
    lines = folder.bytes["train.xb"]
    lines[1000:1200] = [line[::-1] for line in lines[1000:1200]]
    [message] = messages(folder.look(), "mixture")
    assert message.startswith(
        "about 10.0% of the targets of 20 characters and more, nearly all of them"
    )
    assert "from train.xb:1011 to 1190, such as" in message
    odd, usual = map(int, re.findall(r"(?:such as|unlike) train.xb:(\d+) ", message))
    assert 1000 < odd <= 1200
    assert not 1000 < usual <= 1200
    assert "another encoding or language, other spaces, letters in reverse order" in message


def test_two_languages_of_a_side_are_no_mixture(folder: Folder) -> None:
    """Each corpus is compared with text in its own languages."""
    han = corpus(600, 9, HAN, "")[1]
    folder.bytes |= {
        "more.xb": folder.bytes["train.xb"][:600],
        "more.zh": [text.encode() for text in han],
    }
    folder.data["train"].append({"src": "more.zh", "tgt": "more.xb", "src_lang": "zh"})
    assert not messages(folder.look(), "mixture")


@pytest.mark.parametrize("count", [60, 200])
def test_a_part_in_other_letters(folder: Folder, count: int) -> None:
    """Few such texts are each reported; more seem to be usual on their side, but are a part."""
    lines = folder.bytes["train.xb"]
    greek = str.maketrans("abcdefghiklmnopqrstuvwxyz", "αβψδεφγηικλμνοπφρστθωςχυζ")
    for row in range(1000, 1000 + count):
        lines[row] = lines[row].decode().translate(greek).encode()
    report = folder.look()
    assert bool(messages(report, "mixture")) == (count == 200)
    assert (("data.train.0", "script") in kinds(report)) == (count == 60)


def test_a_corpus_whose_sides_are_swapped(folder: Folder) -> None:
    words = [sorted(FREQUENT["de"]), sorted(FREQUENT["en"])]
    for name, own in zip(("train.xa", "train.xb"), words, strict=True):
        lines = folder.bytes[name]
        lines[:] = [line + b" " + own[n % 8].encode() for n, line in enumerate(lines)]
    folder.data |= {"src_lang": "en", "tgt_lang": "de"}
    report = folder.look()
    assert ("data.train.0", "turned") in kinds(report)
    assert report["errors"] == 1
    folder.data |= {"src_lang": "de", "tgt_lang": "en"}
    assert ("data.train.0", "turned") not in kinds(folder.look())


def test_both_directions_are_checked_in_one(folder: Folder) -> None:
    """Whether swapped or written the other way round, files are named as they are."""
    for name in ("train", "valid"):
        folder.data[name] = [folder.entry(name), {**folder.entry(name), "swap": True}]
    turned = {"src": "test.xb", "tgt": "test.xa", "src_lang": "ba", "tgt_lang": "aa"}
    folder.data["test"]["held"] = turned
    assert kinds(folder.look()) == []
    folder.bytes["test.xb"][6] = folder.bytes["train.xa"][9] = b"lo\0st"
    folder.data["train"][1]["src_lang"] = "ru"
    report = folder.look()
    assert places(report, "control", "data.test.held") == [("test.xb", 7)]
    assert places(report, "control", "data.train.1") == [("train.xa", 10)]
    assert ("data.train.1", "language") in kinds(report)


def test_examples_are_bounded_and_the_worst_first(folder: Folder) -> None:
    for row in range(100, 160):
        plant(folder, "same", row)
    [finding] = [each for _, kind, each in found(folder.look(examples=3)) if kind == "same"]
    longest = sorted((len(folder.bytes["train.xa"][row]) for row in range(100, 160)), reverse=True)
    assert finding["count"] == 60
    assert [len(each["text"]) for each in finding["examples"]] == [2 * n + 3 for n in longest[:3]]


def test_chunks_change_nothing(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = folder.bytes["train.xb"]
    lines[990:1020] = [*lines[991:1020], lines[990]]
    plant(folder, "same", 999)
    whole = folder.look()
    monkeypatch.setattr(chunks, "CHUNK", 333)
    assert kinds(folder.look()) == kinds(whole)


@pytest.mark.skipif(not workers.CAN_FORK, reason="needs processes that are forked")
def test_processes_change_nothing(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = folder.bytes["train.xb"]
    lines[990:1020] = [*lines[991:1020], lines[990]]
    lines[1500:1503] = lines[10], b"\xff", b""
    for row in range(20, 2000, 60):
        lines[row] += b" <b>"
    folder.bytes["train.xa"][1900] = folder.bytes["test.xa"][5]
    lines[1900] = folder.bytes["test.xb"][5]
    monkeypatch.setattr(chunks, "CHUNK", 333)
    here = folder.look()
    processes = []

    def map_tasks(*args: Any, **options: Any) -> Iterator[Any]:
        processes.append(args[2])
        return workers.map_tasks(*args, **options)

    monkeypatch.setattr(checker, "MANY_PAIRS", 1000)
    folder.data["workers"] = 3
    monkeypatch.setattr(checker, "map_tasks", map_tasks)
    assert folder.look() == here
    assert processes == [3]  # only for the training text
    assert {"slip", "encoding", "blank", "markup", "overlap"} <= {kind for _, kind in kinds(here)}


@pytest.mark.parametrize(("swap", "side"), [(False, "src"), (True, "tgt")])
def test_pairs_that_filters_leave_out_are_counted_by_reason(
    folder: Folder, swap: bool, side: str
) -> None:
    plant(folder, "script", 100)
    plant(folder, "same", 160)
    folder.bytes["train.xb"][220] += b"\0"
    folder.data["train"][0]["swap"] = swap
    folder.settings["filter"] = {"identical": True, "control": True, f"{side}_script": ["Latin"]}
    report = folder.look()
    left_out = [each for _, kind, each in found(report) if kind == "filtered"]
    assert {each["about"]: each["examples"][0]["line"] for each in left_out} == {
        "control or invalid characters": 221,
        f"{side}_script is not Latin": 101,
        "the same text on both sides": 161,
    }
    assert [each["count"] for each in left_out] == [1, 1, 1]
    assert report["errors"] == 0
    assert f": {PAIRS - 3:,};" in report["doubts"][0]


@pytest.mark.parametrize("filters", [{"tgt_script": ["Han"]}, {"min_length": 500}])
def test_filters_that_leave_no_pair_are_an_error(folder: Folder, filters: dict[str, Any]) -> None:
    folder.settings["filter"] = filters
    report = folder.look(forecast=True)
    [message] = messages(report, "empty")
    assert message.startswith("no pair is left to train on: ")
    assert (report["errors"], report["forecast"]) == (1, None)


def test_a_device_that_the_machine_lacks_is_an_error_of_the_forecast(folder: Folder) -> None:
    folder.settings["train"] = {"device": "cuda:99"}
    assert folder.look()["errors"] == 0
    told = look(folder.write(), forecast=True)
    assert told.as_json()["errors"] == 1
    assert any(line.startswith("error: device cuda:99: ") for line in told.lines(80))


def test_a_request_to_stop_is_heard(folder: Folder) -> None:
    stop = Stop(time_limit=1e-9, started=time.monotonic() - 1)
    with pytest.raises(StoppedError):
        diagnose(load_config(folder.write()), stop, examples=1, with_forecast=False, timed=False)


@pytest.mark.parametrize("step", ["Profile", "report_mixture"])
def test_a_signal_stops_the_learning_of_what_is_normal_at_once(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    stop = Stop()

    def learn(sample: list[Chunk]) -> None:
        stop._on_signal(signal.SIGTERM, None)
        pytest.fail("goes on")

    monkeypatch.setattr(checker, step, learn)
    with pytest.raises(StoppedError, match="SIGTERM"):
        diagnose(load_config(folder.write()), stop, examples=1, with_forecast=False, timed=False)


def test_how_the_vocabulary_fits_is_told(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "MAX_ENCODED", 100)
    folder = Folder(tmp_path, {n: corpus(300, 1, HAN, "") for n in ("train", "valid", "test")})
    folder.settings["tokenizer"] = {"path": str(trained_run / "tokenizer.model")}
    report = folder.look(forecast=True)
    [(_, _, finding)] = [each for each in found(report) if each[1] == "pieces"]
    assert [each["text"].split(":")[0] for each in finding["examples"]] == ["source", "target"]
    fits = report["vocabulary"]
    assert fits["target"]["bytes"] > 0.9
    assert fits["source"]["tokens_per_word"] > 3
    assert fits["source"]["unknown"] == 0
    assert report["forecast"]["vocab_size"] == 350
    folder.data["train"][0]["weight"] = 4.0
    weighted = folder.look(forecast=True)
    assert 4 * weighted["forecast"]["epochs"] == pytest.approx(report["forecast"]["epochs"], 0.01)


def test_without_text_the_vocabulary_is_not_measured(folder: Folder, trained_run: Path) -> None:
    folder.settings["tokenizer"] = {"path": str(trained_run / "tokenizer.model")}
    folder.data["train"] = [{"src": "lost.xa", "tgt": "lost.xb"}]
    found = look(folder.write())
    assert found.as_json()["vocabulary"] is None
    assert "  not measured: there is no text to measure" in found.lines(80)


# --- the command line ---------------------------------------------------------------------------


def test_the_command_prints_a_table_and_fails_on_errors(folder: Folder) -> None:
    folder.bytes["train.xb"][41] += "\0 \u00a0\x85".encode()
    config = folder.write()
    done = run_mtrain("check", "-c", config, "--no-forecast", env={"COLUMNS": "80", "PATH": ""})
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "warning  control characters" in done.stdout
    assert "train.xb:42" in done.stdout
    assert f"\nwarning: data.train: too few pairs to learn to translate: {PAIRS:,}" in done.stdout
    assert done.stdout.endswith("2 warnings\n")
    (folder.path / "valid.xa").unlink()
    (folder.path / "run").mkdir()
    (folder.path / "run" / "notes.txt").touch()
    done = run_mtrain("check", "-c", config, "--json", "--no-timing")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert (report["errors"], report["forecast"]["step_seconds"]) == (2, None)
    assert [text.partition("/run: ")[2][:15] for text in report["refusals"]] == ["holds notes.txt"]
    assert places(report, "control") == [("train.xb", 42)]


# --- parts --------------------------------------------------------------------------------------


def nothing_found() -> Findings:
    files = TextCorpus(src="old/train.xa", tgt="/far/away/train.xb")
    return Findings("data.valid", files, Path("root"), 10)


def test_words_are_runs_characters_or_threes() -> None:
    texts = ["Hello, HELLO wor-ld", "我们ab", "สวัสดี", "नमस्ते दुनिया", "?! ...", ""]
    words, _ = CHARACTERS.read(texts)
    assert words.counts.tolist() == [4, 3, 6, 2, 0, 0]
    assert words.hashes[0] == words.hashes[1]


@settings(deadline=None)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=8))
def test_lines_do_not_touch_each_other(texts: list[str]) -> None:
    words, _ = CHARACTERS.read(texts)
    lines = [words.part(row, row + 1).hashes.tolist() for row in range(len(words))]
    assert lines == [CHARACTERS.read([text])[0].hashes.tolist() for text in texts]


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
    rows = [(1, "ab 1", ""), (2, "да c", "x")]
    src, tgt = Chunk.of(found, rows, CHARACTERS).letters
    assert (src["LATIN"].tolist(), src["CYRILLIC"].tolist()) == ([2, 1], [0, 2])
    assert {script: counts.tolist() for script, counts in tgt.items()} == {"LATIN": [0, 1]}


@pytest.mark.parametrize("tags", [(0, 0), (1, 0), (0, 1)])
def test_long_pairs_are_those_that_training_drops(
    tokenizer: Tokenizer, tags: tuple[int, int]
) -> None:
    pairs = made_up_pairs(80, 3, longest=9)
    pairs += [("b", tgt) for _, tgt in pairs] + [(src, "b") for src, _ in pairs]
    lengths = np.array([[len(ids) for ids in tokenizer.encode(list(pair))] for pair in pairs])
    lengths += tags
    findings = nothing_found()
    findings.corpus = TextCorpus(src="a", tgt="b", tag="<x>" if any(tags) else None)
    findings.is_backward = bool(tags[1])
    chunk = Chunk.of(findings, [(n, *pair) for n, pair in enumerate(pairs)], CHARACTERS)
    limit = int(np.median(lengths))
    faults.find_long_pairs(chunk, tokenizer, limit)
    passed = Selection(limit, FilterConfig()).by_length(lengths, Counter())
    assert findings.count("long") == (~passed).sum()
    selection = Selection(limit, FilterConfig(min_length=4, max_ratio=2))
    usable = checker._filter(chunk, passed, tokenizer, selection)
    assert usable.tolist() == selection.by_length(lengths, Counter()).tolist()
    assert findings.count("filtered") == passed.sum() - usable.sum() > 0
    assert (lengths.max(1) == limit).any()


def test_chunks_end_where_they_hold_much_text() -> None:
    long = [(number, "x" * 60_000, "") for number in range(70)]
    for rows, sizes in (
        ([*long, (70, "z" * 3_000_000, ""), (71, "a", "b")], [35, 35, 1, 1]),
        ([(number, "a", "b") for number in range(25_000)], [10_000, 10_000, 5_000]),
        ([], []),
    ):
        parts = list(chunks.chunks(nothing_found(), iter(rows), CHARACTERS))
        assert [number for part in parts for number in part.numbers] == list(range(len(rows)))
        assert [len(part) for part in parts] == sizes


def test_the_sample_is_thinned_evenly_where_lines_are_long(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = folder.bytes["train.xb"]
    lines[3] = b" ".join(lines[:100])  # pushes no others out of the sample
    looked = Checker(load_config(folder.write()), Stop())
    monkeypatch.setattr(mix_ups, "SAMPLE_CHARACTERS", 100_000)
    looked.scan()
    looked.check()
    numbers = [number for chunk in looked.sample for number in chunk.numbers]
    assert 50_000 / 2 - 1000 <= sum(int(chunk.lengths.sum()) for chunk in looked.sample) <= 100_000
    assert len(set(np.diff(numbers)[2:].tolist())) == 1
    assert numbers[-1] > 0.9 * PAIRS
    assert 4 not in numbers


def test_memory_does_not_grow_with_long_lines(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 million characters, of which a chunk of 10,000 pairs would hold all: 139 MB."""
    monkeypatch.setattr(chunks, "CHUNK_CHARACTERS", 1 << 20)
    for name in ("train.xa", "train.xb"):
        lines = folder.bytes[name]
        lines[:] = [b" ".join(lines[n : n + 120]) for n in range(125)]
    looked = Checker(load_config(folder.write()), Stop())
    tracemalloc.start()
    looked.scan()
    looked.check()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 115_000_000


def test_accents_apart_from_their_letters_are_found() -> None:
    assert faults._find_decomposed("plain é क़") is None  # what composition leaves apart
    assert faults._find_decomposed("x" * 500 + "cafe\u0301") == 503
    # to be put in order, all in one go, takes an hour
    assert faults._find_decomposed("e" + "\u0301\u0316" * 500_000) == 0


def test_wide_characters_take_two_columns() -> None:
    findings = Findings("data.valid", TextCorpus(src="訓練.en", tgt="訓練.de"), Path(), 1)
    assert cell_len(next(findings.lines(80))) == 80
    findings.add("blank", 1, [findings.example(1, "字" * 80)])
    assert cell_len(list(findings.lines(80))[-1]) == 79


def test_messages_are_wrapped_to_the_width() -> None:
    found = Findings("data.valid", TextCorpus(src="a", tgt="b"), Path(), 9)
    found.add_message("contained", "word " * 30)
    assert {len(line) for line in list(found.lines(60))[2:]} <= set(range(15, 61))
    assert " ".join(line.strip() for line in list(found.lines(60))[2:]) == ("word " * 30).strip()


def test_katakana_is_at_home_in_japanese(folder: Folder) -> None:
    """However few of a text's letters are Katakana."""
    folder.data["tgt_lang"] = "ja"
    for row, line in enumerate(folder.bytes["train.xb"]):
        folder.bytes["train.xb"][row] = "これはあかいはなのえです".encode() + line[:2]
    folder.bytes["train.xb"][700] = "スペースキャラクターコード".encode()
    folder.bytes["train.xb"][800] = "несколько слов на другом языке".encode()
    assert places(folder.look(), "script") == [("train.xb", 801)]


def test_lengths_in_tokens_are_estimated_by_words_or_by_characters_without_spaces() -> None:
    rows = [(1, "three plain words", "三个词"), (2, "APT 工具", ""), (3, "", "ひらがな カタカナ")]
    rows.append((4, "สวัสดีครับ APT", "ខ្មែរ"))  # signs above and below letters count, too
    findings = Findings("", TextCorpus(src="a", tgt="b"), Path(), 0)
    estimates = Chunk.of(findings, rows, Characters()).estimated_tokens
    assert estimates == pytest.approx(np.array([[4.2, 2.4], [3.0, 0.0], [0.0, 4.6], [4.4, 1.5]]))
