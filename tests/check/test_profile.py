"""Faults of a whole side are found, and sound text of any kind is let pass."""

from __future__ import annotations

import random
import re
from itertools import product
from pathlib import Path

import pytest
from planting import (
    LEFT,
    PAIRS,
    RIGHT,
    Folder,
    found,
    kinds,
    messages,
    places,
)

from mtrain.config.languages import FREQUENT


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.slow
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
    texts = messages(folder.look_at_train(), "accents")
    assert len(texts) == (fraction > 0)
    for text in texts:
        assert abs(float(text.split("%")[0].removeprefix("about ")) - 100 * fraction) <= 3
        assert " for " in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "page", "letters"),
    [("tr", "cp1254", "ğış"), ("hu", "cp1250", "őű"), ("lt", "cp1257", "ąėį")],
)
@pytest.mark.parametrize(("first", "last"), [(0, None), (200, 260)])
def test_letters_that_were_read_as_windows_1252_are_found(
    folder: Folder, language: str, page: str, letters: str, first: int, last: int | None
) -> None:
    folder.data["tgt_lang"] = language
    lines = folder.bytes["train.xb"]
    lines[:] = [line + f" w{letters[n % len(letters)]}x".encode() for n, line in enumerate(lines)]
    # names of other languages
    lines[100:140] = [line + " señor".encode() for line in folder.bytes["train.xb"][100:140]]
    assert messages(folder.look_at_train(), "accents") == []
    for row in range(len(lines))[first:last]:
        lines[row] = lines[row].decode().encode(page, "ignore").decode("cp1252").encode()
    [text] = messages(folder.look_at_train(), "accents")
    last = last or len(lines)
    low, high = map(int, re.findall(r"train\.xb:(\d+) to (\d+)", text)[0])
    assert first < low < first + 0.1 * (last - first)
    assert last - 0.1 * (last - first) < high <= last
    wrong, right = re.findall("such as (.) for (.):", text)[0]
    assert right in letters
    assert right.encode(page) == wrong.encode("cp1252")
    assert text.endswith(f"convert the original file from {page}")


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["characters", "bytes", "words"])
def test_texts_cut_off_at_a_length_are_found(folder: Folder, unit: str) -> None:
    lines = folder.bytes["train.xb"]
    for row, line in enumerate(lines):
        text = line.decode().replace("a", "ä")
        cuts = {"characters": text[:30], "words": " ".join(text.split()[:8])}
        lines[row] = cuts.get(unit, text).encode()
        if unit == "bytes":
            lines[row] = lines[row][:30].decode(errors="ignore").encode()
    [text] = messages(folder.look_at_train(), "cut")
    assert text.endswith(
        f"of the targets have {8 if unit == 'words' else 30} {unit}, and none has more"
    )


@pytest.mark.slow
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
    texts = messages(folder.look_at_train(), "cut")
    assert len(texts) == (kept < 1)
    for text in texts:
        assert abs(float(text.split("%")[0].removeprefix("about ")) - 100 * fraction) <= 3
        assert "targets stop in a sentence that the source completes" in text
        row = int(text.rsplit(":", 1)[1]) - 1
        assert not lines[row].endswith(b".")


def test_one_sign_in_place_of_many_texts_is_no_part_of_them(folder: Folder) -> None:
    for lines in (folder.bytes["train.xa"], folder.bytes["train.xb"]):
        lines[:] = [line + b"." for line in lines]
    folder.bytes["train.xb"][::10] = [b"no value"] * (PAIRS // 10)
    assert not messages(folder.look_at_train(), "cut")


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [150, PAIRS])
def test_shuffled_sides_are_noticed(folder: Folder, pairs: int) -> None:
    for name in ("train.xa", "train.xb"):
        del folder.bytes[name][pairs:]
    random.Random(5).shuffle(folder.bytes["train.xb"])
    assert ("data.train.0", "unrelated") in kinds(folder.look_at_train())


@pytest.mark.slow
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


def test_sides_without_any_words_that_go_together_are_noticed(folder: Folder) -> None:
    """Also where lengths correlate, as when each side was sorted."""
    for name in ("train.xa", "train.xb"):
        folder.bytes[name].sort(key=len)
    assert ("data.train.0", "unrelated") in kinds(folder.look_at_train())


@pytest.mark.slow
@pytest.mark.parametrize("percent", [10, 30, 60])
def test_wrong_pairs_all_over_are_counted(folder: Folder, percent: int) -> None:
    lines, draw = folder.bytes["train.xb"], random.Random(5)
    rows = draw.sample(range(PAIRS), percent * PAIRS // 100)
    for row, line in zip(rows, draw.sample([lines[row] for row in rows], len(rows)), strict=True):
        lines[row] = line
    report = folder.look()
    [text] = messages(report, "unrelated")
    assert all(len(finding["examples"]) <= 10 for _, _, finding in found(report))
    if percent < 60:  # lengths alone do not show it
        estimate = int(text.split("%")[0].removeprefix("about "))
        assert 0.5 * percent < estimate < 1.3 * percent
        wrong = {line - 1 for _, line in places(report, "misfit")}
        assert len(wrong - set(rows)) <= 0.1 * len(wrong)


@pytest.mark.slow
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
    assert ("data.train.0", "unrelated") not in kinds(folder.look_at_train())
    draw.shuffle(folder.bytes["train.xb"])
    assert ("data.train.0", "unrelated") in kinds(folder.look_at_train())


def test_sound_text_of_very_few_words_seems_related(folder: Folder) -> None:
    """Each word is in so many lines that none shows which lines go together."""
    draw = random.Random(7)
    rows = [draw.choices(range(12), k=draw.randint(3, 12)) for _ in range(PAIRS)]
    for words, name in ((LEFT, "train.xa"), (RIGHT, "train.xb")):
        folder.bytes[name] = [" ".join(words[n] for n in row).encode() for row in rows]
    assert ("data.train.0", "unrelated") not in kinds(folder.look_at_train())


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
    reported = kinds(folder.look_at_train())
    assert (("data.train.0", "unrelated") in reported) == is_found
    assert ("data.train.0", "cut") not in reported


@pytest.mark.parametrize(("side", "name"), [("xa", "sources"), ("xb", "targets")])
def test_text_that_was_added_to_some_texts_of_a_side_is_named(
    folder: Folder, side: str, name: str
) -> None:
    lines = folder.bytes[f"train.{side}"]
    lines[4::5] = [b"Note to myself: " + line for line in lines[4::5]]
    report = folder.look_at_train()
    assert ("data.train.0", "added") in kinds(report)
    [text] = messages(report, "added")
    first = {"xa": "xo", "xb": "qua"}[side]  # with which all texts begin
    begin = f'begin with "Note to myself: {first}", for instance train.{side}:5, '
    assert text.startswith(f"about 20.0% of the {name} {begin}")


@pytest.mark.slow
def test_a_side_in_another_script_than_its_language(folder: Folder) -> None:
    folder.data |= {"src_lang": "ru", "tgt_lang": "zh-TW"}
    shown = messages(folder.look_at_train(), "language")
    assert [text.split(",")[0] for text in shown] == [
        "data.src_lang is ru",
        "data.tgt_lang is zh-TW",
    ]


@pytest.mark.parametrize(
    ("language", "is_other"), [("nl", True), ("de-AT", False), ("mt", False), ("ru", False)]
)
def test_a_side_in_another_language_of_its_script(
    folder: Folder, language: str, is_other: bool
) -> None:
    """By frequent words; those of Maltese are not known, and Russian has another script."""
    words, lines = sorted(FREQUENT["de"]), folder.bytes["train.xb"]
    lines[::2] = [line + b" " + words[n % 8].encode() for n, line in enumerate(lines[::2])]
    folder.data["tgt_lang"] = language
    shown = " ".join(messages(folder.look_at_train(), "language"))
    text = f"the language of the targets is given as {language}, but they look like de"
    assert (text in shown) == is_other


def test_a_side_without_the_frequent_words_of_its_language(folder: Folder) -> None:
    folder.data |= {"src_lang": "de", "tgt_lang": "ru"}
    words, lines = sorted(FREQUENT["de"]), folder.bytes["train.xa"]
    lines[:] = [line + b" " + words[n % 8].encode() for n, line in enumerate(lines)]
    shown = " ".join(messages(folder.look_at_train(), "language"))
    assert "the targets have hardly any frequent words of ru; were they read in" in shown


@pytest.mark.slow
def test_a_language_in_another_script(folder: Folder) -> None:
    folder.data["tgt_lang"] = "uz"
    letters = str.maketrans("abcdefghiklmnopqrstuvwxyz", "абцдефгхиклмнопярстувшзыж")
    for lines in (folder.bytes[f"{name}.xb"] for name in ("train", "valid", "test")):
        lines[:] = [line.decode().translate(letters).encode() for line in lines]
    [message] = messages(folder.look_at_train(), "language")
    assert message == (
        "data.tgt_lang is uz, but 100% of the target's letters are Cyrillic: "
        "is this the right file? If uz is meant, write uz-Cyrl"
    )


@pytest.mark.parametrize("word", ["", "word "])
def test_numbers_of_tokens_in_place_of_a_text(folder: Folder, word: str) -> None:
    lines = folder.bytes["train.xb"]
    lines[:] = [word.encode() + " ".join(map(str, line[:8])).encode() for line in lines]
    ids = "data.tgt_lang is ba, but the target has hardly any letters, as if it were token ids: is "
    assert any(ids in each for each in messages(folder.look_at_train(), "language")) == (not word)


@pytest.mark.parametrize(("language", "code"), [("el", "iso8859_7"), ("ru", "cp1251")])
def test_another_script_that_was_read_as_latin(folder: Folder, language: str, code: str) -> None:
    folder.data["tgt_lang"] = language
    letters = {"el": "αβψδεφγηικλμνοπφρστθωςχυζ", "ru": "абцдефгхиклмнопярстувшзыж"}[language]
    table = str.maketrans("abcdefghiklmnopqrstuvwxyz", letters)
    lines = folder.bytes["train.xb"]
    for row, line in enumerate(lines):
        lines[row] = line.decode().translate(table).encode(code).decode("cp1252").encode()
    [message] = messages(folder.look_at_train(), "language")
    assert message == (
        f"data.tgt_lang is {language}, but 100% of the target's letters are Latin: was it read in "
        "a wrong encoding? Convert the original file to UTF-8"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("language", "every"), [("ja", 1000), ("ja", 20), ("zh", 1000)])
def test_chinese_in_place_of_japanese(folder: Folder, language: str, every: int) -> None:
    folder.data["tgt_lang"] = language
    lines = folder.bytes["train.xb"]
    lines[:] = ["山水火木金土日月".encode() + line[:4] for line in lines]
    lines[::every] = [line + "これはカメラ".encode() for line in lines[::every]]
    shown = messages(folder.look_at_train(), "language")
    text = "data.tgt_lang is ja, but the target has hardly any Hiragana or Katakana: is this the "
    assert any(text in each for each in shown) == (language == "ja" and every == 1000)


@pytest.mark.slow
def test_a_corpus_whose_sides_are_swapped(folder: Folder) -> None:
    words = [sorted(FREQUENT["de"]), sorted(FREQUENT["en"])]
    for name, own in zip(("train.xa", "train.xb"), words, strict=True):
        lines = folder.bytes[name]
        lines[:] = [line + b" " + own[n % 8].encode() for n, line in enumerate(lines)]
    folder.data |= {"src_lang": "en", "tgt_lang": "de"}
    report = folder.look()
    assert ("data.train.0", "turned") in kinds(report)
    assert report["errors"] == 1
    folder.data["allow_swapped"] = True
    assert folder.look()["errors"] == 0
    folder.data |= {"src_lang": "de", "tgt_lang": "en"}
    assert ("data.train.0", "turned") not in kinds(folder.look())
