"""Faults of single texts and pairs are named by file and line, and sound ones are not."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from pathlib import Path
from unicodedata import is_normalized, normalize

import numpy as np
import pytest
from conftest import made_up_pairs
from planting import (
    CHARACTERS,
    HAN,
    PAIRS,
    PLANTS,
    RIGHT,
    Folder,
    corpus,
    found,
    kinds,
    nothing_found,
    places,
    plant,
    unrelated,
)

from mtrain.check import checker, faults
from mtrain.check.chunks import Chunk
from mtrain.config.corpora import TextCorpus
from mtrain.config.schema import FilterConfig
from mtrain.data.filters import Selection
from mtrain.data.tokenizer import Tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


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
    "control": ["\0", "\r", "\u2028", "\u2029", "\x85", "\f", "\x07"],
    "invisible": [
        *("\u200b", " ไ\ufeff", "\u200e", " 中\u202e文 ", "\U000e0041", " \u061c ", "\u2067"),
        *"\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0",
        *(f" {letter}\u200d " for letter in "αяあアー가"),  # in scripts that do not join letters
    ],
    "no_character": ["\ufffc", "\ufffd", "\ue123", "\uffff", "\U0001ffff", "\u0378"],
    "mojibake": [
        "Ã¼",
        "donâ€™t",
        " РџСЂРёРІРµС‚ ",
        "日本".encode().decode("cp1252"),
        *(" Ї®«м§®ў ", " аҐ¦Ё¬\xad ў "),  # DOS
        *("ðŸ˜‚", "CANCIÃ“N", "ï»¿", " â€‹"),
        *(" M‰nner ", " gr▀ße ", " f眉r ", " 脺ber ", " gr枚脽e "),
        *(f" f{sign}r " for sign in "ⁿ³º√¥¸Φ¿¡§¶¹†‡"),
        *(f" {text.encode().decode(code, 'ignore')} " for code, text in MISREAD.items()),
    ],
    "escaped": [
        *(" f\\u00fcr ", " f=C3=BCr ", " f%c3%bcr ", " f\\xc3\\xbcr ", " f+APw-r "),
        *(" l''ami ", " ein%20altes%20Haus "),
        *("x\\nFür ", "x\\tÜber ", 'x. \\"Ja\\" ', "x.\\r\\nund ", "don\\'t "),
    ],
    "markup": [
        *(" &amp; ", '<a href="x">', " &#39;", " &times; "),
        *(" & quot ;", " &nbsp ", " quot;", "(apos;", "<br/>", "</td>", "<!-- ", "<![CDATA["),
        *("<BR>", "</FONT>", '<A HREF="x">'),
        *("00:01:02,000 --> 00:01:03,000 ", "{\\an8}", "{\\i1}"),
        *('<seg id="7">', "</seg>", '<g id="1">', '<x id="2"/>', '<bpt i="1">', "<}100{>", "<0}"),
    ],
    "subwords": [
        *(" ab@@ cd", " ab￭ cd", " ▁ab▁cd", " @-@ ", " ##ing", " Ġab Ġcd"),
        *(" <unk> ", " <UNK> ", " [UNK] ", " ⁇ "),
        *(" <eos> ", " <SOS> ", " [CLS] ", "<|endoftext|>", "<0xE2><0x80>", " -LRB- "),
    ],
    "no_break": ["\xa0".join("abcdefghijklmnop"), "\u2009".join("ponmlkjihgfedcba")],
    "dotted": [" i\u0307stanbul "],
    "decomposed": [" cafe\u0301 ", " ハ\u309a ", normalize("NFD", " 한 ")],
    "presentation": [f" {char} " for char in "\ufb01\ufb13\ufb50\ufbd3\ufd50\ufe8d\ufefb"],
    "mixed_word": [
        *(" pаypal ", " словоx ", " %pаypаl ", " \\nсловоx "),
        *(" öл ", " Öл ", " łа ", " ạа ", " xә "),
    ],
}


@pytest.mark.slow
def test_odd_text_is_named_by_file_and_line(folder: Folder) -> None:
    planted: dict[str, set[tuple[str, int]]] = {}
    plants = [(kind, text.encode()) for kind, texts in ODD_TEXT.items() for text in texts]
    for side, name in enumerate(("train.xa", "train.xb")):
        lines = folder.bytes[name]
        for number, (kind, text) in enumerate([*plants, ("encoding", b"\xff")]):
            row = 100 + 12 * number + 5 * side
            lines[row] = lines[row][:6] + text + lines[row][6:]
            planted.setdefault(kind, set()).add((name, row + 1))
    lines[3] += b"\r"
    report = folder.look(examples=100)
    for kind, expected in planted.items():
        assert set(places(report, kind)) == expected, kind
    assert {kind for _, kind in kinds(report)} == {*planted, "crlf"}
    assert report["errors"] == 1


HONEST = [
    "„FREMDWÖRTERMENÜ“ und „Spaß“",
    "São, NÃO e «à\u00a0», “MAÇÃ”, Fuß…und, Aï…», “Não",
    "A B C D E F G H I J",
    "Œuvre à “Â la” dents",
    "a < b && c > d, <P> <INPUT> <Code> <link> <font> <seg> <pad>",
    "''x'' «%s''ə» `%s'', http://a.de/b%20c%20d, 50%20, \"\" x\"\"",
    "AT&T, x@y.org, C# ##, Skript-LSB-Kopf",
    "Die €-Preise – ‚so‘ – …",
    "РССР и СРСР",
    "%sслово%sслово, %1$sслово, %5.2fм %-lluс \\nслово \\n¿qué",
    r"""\t und \n, '\n', "\n", x\nu x\\n '\'' "\"" a\\'b \\"a\\" \r\n und dogs\' x\\u00fc +Abc-""",
    "2µm² × 3 ±d, C++, x=C3, 50%C, a+b-c, §7, Intel®-PCs, %sνύξη \\u0000 D:\\user",
    "it´s l´ami menu→datei km⁄h a•b",
    "nºs 1 e 2, Nºs, nºde, Exmºs, Srªs, Mªdel, Mac™s, f＝r",
    *("می‌خواهم", "م\u061c\u2067م\u2069"),
    *(f"{letter}\u200b{letter}" for letter in "ကកไລཀꦏᬓᨠᥐᦀꪀꨆ"),
    "👩‍🔧",
    "❤️‍🔥 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "中国 １２ ＡＢ ｘ＝ａ＋ｂ",
    *("未知状态", "网格大小：", "ㅠㅠㅠㅠㅠ", "указатель-дерева", "μπλοκ"),
    "\ufdf2 \ufdfa \ufd3e1\ufd3f, \ufb1d\ufb2a",  # words, brackets, letters with points
    "«\xa0ja\xa0»\xa0: 5\xa0km\xa0weit\u202f!",
    "i\u0307\u0301",
    "\u0958\u0940\u092e\u0924, ẹ̀kọ́, 2 \u212b",  # which NFC makes longer, or no shorter
]


def test_honest_text_is_let_pass(folder: Folder) -> None:
    for row, text in enumerate(HONEST):
        folder.bytes["train.xb"][row] += b" " + text.encode()
    assert {kind for _, kind in kinds(folder.look_at_train())} == set()


def test_final_marks_at_the_beginning_are_named(folder: Folder) -> None:
    src, tgt = folder.bytes["train.xa"], folder.bytes["train.xb"]
    for row in range(100, 160):
        src[row] += b"."
        tgt[row] += b"."
    tgt[100] = ".שלום ".encode() + tgt[100]  # ends in a mark, too
    tgt[110] = ".שלום ".encode() + tgt[110][:-1]
    tgt[120] = " ؟ ".encode() + tgt[120][:-1]
    tgt[130] = b".debug " + tgt[130][:-1]
    tgt[140] = b"... " + tgt[140][:-1]
    src[150], tgt[150] = b": " + src[150], b": " + tgt[150][:-1]
    src[155] = src[155][:-1]
    tgt[155] = b". " + tgt[155][:-1]
    expected = [("train.xb", 111), ("train.xb", 121)]
    assert places(folder.look_at_train(), "reversed") == expected


def test_words_that_were_divided_at_the_end_of_a_line_are_named(folder: Folder) -> None:
    first, second = (word.encode() for word in RIGHT[:2])
    lines = folder.bytes["train.xb"]
    lines[100] += b" " + first[:4].title() + b"- " + first[4:]
    lines[105] += b" ab- " + first[:4] + b"- " + first[4:]
    lines[107] += b" " + first[:4] + "\u2010 ".encode() + first[4:]
    lines[110] += b" " + first + b"- und " + second + b"- " + first  # parts of compounds
    report = folder.look_at_train()
    assert kinds(report) == [("data.train.0", "divided")]
    assert places(report, "divided") == [("train.xb", row) for row in (101, 106, 108)]


def test_hours_of_different_clocks_are_no_different_numbers(folder: Folder) -> None:
    times = [("10:30 p.m.", "22:30"), ("12:05 a.m.", "00:05"), ("11 p.m.", "\u06f2\u06f3")]
    times += [("10 h", "21 h")]
    for row, (src, tgt) in enumerate(times, 200):
        folder.bytes["train.xa"][row] += b" " + src.encode()
        folder.bytes["train.xb"][row] += b" " + tgt.encode()
    report = folder.look_at_train()
    assert kinds(report) == [("data.train.0", "digits")]
    assert places(report, "digits") == [("train.xa", 204)]


@pytest.mark.slow
@pytest.mark.parametrize("language", ["he", "fa_Arab", "ru"])
def test_direction_marks_are_normal_in_any_text_of_a_language_from_right_to_left(
    folder: Folder, language: str
) -> None:
    folder.data["tgt_lang"] = language
    folder.bytes["train.xb"][3] += " \u200f%s\u202a".encode()
    invisible = ("data.train.0", "invisible") in kinds(folder.look_at_train())
    assert invisible == (language == "ru")


@pytest.mark.slow
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
    assert kinds(folder.look_at_train()) == [("data.train.0", "misfit")]


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
    assert places(folder.look_at_train(), "loop") == [("train.xb", 101)]


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
    report = folder.look_at_train(examples=50)
    found = places(report, "other_language")
    assert sorted(found) == sorted((name, row) for row, name in expected.items())


# Repetitions at the end of a text: loops of a translation, and sound ones.
LOOPS = [
    *(" und so weiter" * 3 + ".", ". Und so weiter" + " und so weiter" * 2, " Haus" * 6),
    *("上海的" * 4, " दिल्ली शहर" * 4, " नई दिल्ली" * 5, " ไปเที่ยวกัน" * 4),
]


SOUND_ENDS = [
    *(" hahahaha" * 5, "来吧" * 3, " %s," * 5, "-" * 60, " 1234567" * 5, "😀" * 30),
    *(" Haus" * 3, " zu dem alten Haus am Fluss" * 2),
    *(" Text 1, Text 2, Text 3, Text 4, Text 5, Text 6", " -d degree, --degree degree"),
]


def test_loops_at_the_end_of_a_text_are_named(folder: Folder) -> None:
    src, tgt = folder.bytes["train.xa"], folder.bytes["train.xb"]
    for row, end in enumerate([*LOOPS, *SOUND_ENDS], 100):
        tgt[row] += end.encode()
    tgt[99] = b" ".join([b"und so weiter"] * 3)
    src[120], tgt[120] = src[120] + b" go" * 5, tgt[120] + b" vamos" * 5  # intended
    tgt[121] = tgt[121] + b" und so weiter" * 3 + tgt[122]  # not at the end
    named = [("train.xb", row) for row in range(100, 101 + len(LOOPS))]
    assert places(folder.look_at_train(), "loop") == named


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
    assert places(folder.look_at_train(examples=50), "marked") == expected


@pytest.mark.slow
def test_fewer_marks_than_one_in_a_hundred_texts_may_be_dates(folder: Folder) -> None:
    mark_texts(folder, 260)
    assert places(folder.look(), "marked") == []


FRENCH = [
    "les mots que {} est dans le {}",
    "un {} avec une {} pour des {}",
    "il ne sont pas {} sur {}",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "count", "is_found"), [("de", 30, True), ("de", 4, False), ("mt", 30, False)]
)
def test_texts_in_a_third_language_are_found(
    folder: Folder, language: str, count: int, is_found: bool
) -> None:
    """By frequent words; those of Maltese are not known, and a few texts may be quotations."""
    folder.data["tgt_lang"] = language
    lines, rows = folder.bytes["train.xb"], random.Random(5).sample(range(PAIRS), count)
    for row in rows:
        words = lines[row].decode().split()
        lines[row] = FRENCH[row % 3].format(*words[:3]).encode()
    lines_found = {line - 1 for _, line in places(folder.look(examples=100), "third_language")}
    assert lines_found <= set(rows)
    assert len(lines_found) >= 0.9 * count if is_found else not lines_found


def test_signs_of_missing_texts_are_found(folder: Folder) -> None:
    src, tgt = folder.bytes["train.xa"], folder.bytes["train.xb"]
    for row, sign in enumerate((b"nan", b" NULL ", b"\\N", b"#NAME?")):
        tgt[100 + row] = sign
        src[200 + row], tgt[200 + row] = b"xo bade", sign  # may be a translation
        src[300 + row] = tgt[300 + row] = sign
    src[400], tgt[401] = b"N/A", b"NULL qua"
    report = folder.look_at_train()
    expected = [("train.xb", row) for row in (101, 102, 103, 104)]
    assert places(report, "missing") == [*expected, ("train.xa", 401)]


def test_letters_that_became_question_marks_are_found(folder: Folder) -> None:
    src, tgt = folder.bytes["train.xa"], folder.bytes["train.xb"]
    for row, text in enumerate((b"sch?n", b"GR??E", b"?" * 4 + b" a" + b" ?" * 200)):
        tgt[100 + row] += b" " + text
    sound = ["Was?Nein!", "GUT?", "ende????", "???", "http://a.de/b?c=d", "什么?我", "뭐?나"]
    for row, text in enumerate(sound):
        tgt[200 + row] += f" {text}".encode()
    for side in (src, tgt):
        side[300] += b" files a?b"  # on both sides, thus intended
    src[310], tgt[310] = b"for ???? days, since ??:?? of the last day", b"qua ???? e, ??:??"
    report = folder.look_at_train()
    assert places(report, "lost") == [("train.xb", row) for row in (101, 102, 103)]


@pytest.mark.parametrize("fraction", [0.1, 0.4])
def test_a_fraction_of_swapped_pairs_is_found(folder: Folder, fraction: float) -> None:
    chosen = random.Random(4).sample(range(PAIRS), int(fraction * PAIRS))
    for row in chosen:
        plant(folder, "swapped", row)
    report = folder.look_at_train(examples=1000)
    [finding] = [finding for _, kind, finding in found(report) if kind == "swapped"]
    assert 0.95 * len(chosen) <= finding["count"] <= len(chosen)
    assert {line - 1 for _, line in places(report, "swapped")} <= set(chosen)


@pytest.mark.slow
@pytest.mark.parametrize("every", [2, 5, 20])
def test_lines_in_a_script_that_is_not_the_language_s_are_found_however_many(
    folder: Folder, every: int
) -> None:
    folder.data["tgt_lang"] = "de"
    lines = folder.bytes["train.xb"]
    chosen = range(0, PAIRS, every)
    for row in chosen:
        lines[row] = f"привет мир и добрый день {row}".encode()
    report = folder.look_at_train(examples=1000)
    [finding] = [finding for _, kind, finding in found(report) if kind == "script"]
    assert finding["count"] == len(chosen)


def test_katakana_is_at_home_in_japanese(folder: Folder) -> None:
    """However few of a text's letters are Katakana."""
    folder.data["tgt_lang"] = "ja"
    for row, line in enumerate(folder.bytes["train.xb"]):
        folder.bytes["train.xb"][row] = "これはあかいはなのえです".encode() + line[:2]
    folder.bytes["train.xb"][700] = "スペースキャラクターコード".encode()
    folder.bytes["train.xb"][800] = "несколько слов на другом языке".encode()
    assert places(folder.look_at_train(), "script") == [("train.xb", 801)]


def test_accents_apart_from_their_letters_are_found() -> None:
    assert faults._find_decomposed("plain é क़") is None  # what composition leaves apart
    letters = [chr(code) for code in range(0x80, 0x1100) if len(normalize("NFD", chr(code))) == 2]
    for letter in filter(partial(is_normalized, "NFC"), letters):
        assert faults._find_decomposed(f"x {normalize('NFD', letter)} ") == 2, letter
        assert faults._find_decomposed(f"x {letter} ") is None, letter
    assert faults._find_decomposed("x" * 500 + "cafe\u0301") == 503
    # to be put in order, all in one go, takes an hour
    assert faults._find_decomposed("e" + "\u0301\u0316" * 500_000) == 0


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
    checker._find_long_pairs(chunk, tokenizer, limit)
    passed = Selection(limit, FilterConfig()).by_length(lengths, Counter())
    assert findings.count("long") == (~passed).sum()
    selection = Selection(limit, FilterConfig(min_length=4, max_ratio=2))
    usable = checker._filter(chunk, passed, tokenizer, selection)
    assert usable.tolist() == selection.by_length(lengths, Counter()).tolist()
    assert findings.count("filtered") == passed.sum() - usable.sum() > 0
    assert (lengths.max(1) == limit).any()
