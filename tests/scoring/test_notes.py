"""Notes on translations: faults are reported with their lines, good text gets no notes."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from unicodedata import normalize

import pytest
from conftest import run_mtrain, write_lines
from hypothesis import given
from hypothesis import strategies as st

from mtrain.scoring.notes import Note, find_faults

SUBJECTS = ["The old Harbour", "A Baker in Lund", "My neighbour", "The Swedish ferry"]
RESTS = ["does not sell the bread, as ever.", "has lost its lamps - or so they say.", "paints!"]
HAN = "红色的船停在旧港口她数了七只鸟没有一飞走面包店今天不开门"
KANA = "あかいふねがふるいみなとにとまるかもめがななわとんだ"
GREEK = "το παλιό λιμάνι βρίσκεται πίσω από καινούργιο"


def english(count: int, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return [f"{n} {rng.choice(SUBJECTS)} {rng.choice(RESTS)}" for n in range(1000, 1000 + count)]


def unspaced(count: int, letters: str = HAN, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(letters, k=rng.randint(8, 20))) + "。" for _ in range(count)]


REFERENCE, CHINESE = english(100), unspaced(100)
SOURCE = unspaced(100, GREEK.replace(" ", ""), 2)


def notes(
    hypotheses: list[str], references: list[str] = REFERENCE, sources: list[str] | None = None
) -> dict[str, Note]:
    return {note.kind: note for note in find_faults(hypotheses, [references], sources or [])}


def with_lines(lines: list[str], change: Callable[[str], str], *places: int) -> list[str]:
    return [change(line) if i + 1 in places else line for i, line in enumerate(lines)]


@pytest.mark.parametrize(
    "lines", [REFERENCE, CHINESE, unspaced(100, KANA), unspaced(100, GREEK)], ids=lambda x: x[0]
)
def test_references_get_no_notes(lines: list[str]) -> None:
    assert find_faults(lines, [lines], SOURCE) == []
    assert find_faults(lines, [lines[::-1], lines], []) == []


def test_a_good_system_gets_no_notes() -> None:
    """About two of ten words differ from the reference."""
    rng = random.Random(4)
    words = [word for line in REFERENCE for word in line.split()[1:]]
    hypotheses = [
        " ".join(w if i < 3 or rng.random() < 0.8 else rng.choice(words) for i, w in enumerate(ws))
        for ws in (line.split() for line in REFERENCE)
    ]
    assert notes(hypotheses, sources=SOURCE) == {}
    assert find_faults(hypotheses, [REFERENCE, hypotheses[::-1]], SOURCE) == []


def test_lines_in_another_order() -> None:
    rng = random.Random(3)
    words = [word for line in REFERENCE for word in line.split()[1:]]
    lines = [f"{n} {' '.join(rng.choices(words, k=rng.randint(2, 30)))}" for n in range(1000)]
    assert notes(lines, lines) == {}
    found = notes(lines[3:] + lines[:3], lines)
    assert (found["order"].lines, found["order"].first[0]) == (1000, 1)
    late = lines[:700] + lines[702:] + lines[700:702]
    order = notes(late, lines)["order"]
    assert order.lines == 292  # two windows of 150 lines, 8 of them in both
    assert order.first[0] > 560  # the window in which it begins
    assert find_faults(late, [lines, late], []) == []
    one_empty = with_lines(late, lambda line: "", 5)
    assert list(notes(one_empty, lines)) == ["order", "empty"]  # the first one sums them up


def test_empty_lines() -> None:
    found = notes(with_lines(REFERENCE, lambda line: " \u3000", 3, 50))
    assert list(found) == ["empty"]
    note = found["empty"]
    assert (note.lines, note.of, note.first) == (2, 100, [3, 50])
    assert str(note).startswith("empty translations: 2 of 100 lines (lines 3, 50); ")
    assert list(notes(with_lines(REFERENCE, lambda line: "", *range(1, 60)))) == ["empty"]
    blank = with_lines(REFERENCE, lambda line: "", 3)
    assert notes(blank, blank) == {}


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (1, "1 of 100 lines (line 1)"),
        (5, "5 of 100 lines (lines 1, 2, 3, 4, 5)"),
        (6, "6 of 100 lines (lines 1, 2, 3, 4, 5, ...)"),
    ],
)
def test_a_note_names_its_first_lines(count: int, shown: str) -> None:
    lines = with_lines(REFERENCE, lambda line: "", *range(1, count + 1))
    expected = f"empty translations: {shown}; the model may need more training"
    assert str(notes(lines)["empty"]) == expected


def test_copies_of_the_source_unless_the_reference_is_one() -> None:
    sources = english(100, seed=7)
    references = with_lines(CHINESE, lambda line: sources[4], 5)
    copied = [
        sources[i].upper() + " " if i in (4, 10, 11, 30) else line for i, line in enumerate(CHINESE)
    ]
    note = notes(copied, references, sources)["copied"]
    assert (note.lines, note.first) == (3, [11, 12, 31])
    assert "copied" not in notes(copied, references)
    nearly = [line.replace(" the ", " ") for line in sources]
    assert notes(nearly, references, sources)["copied"].lines > 90
    sizes = [f"{n} kg" for n in range(100)]  # few letters
    assert "copied" not in notes(sizes, CHINESE, sizes)


def test_one_translation_of_many_sources() -> None:
    same = "1 boat sails away."
    hypotheses = with_lines(REFERENCE, lambda line: same + " " * len(line), *range(20, 40))
    for sources in (SOURCE, None):
        note = notes(hypotheses, sources=sources)["same"]
        assert (note.lines, note.first[0]) == (20, 20)
        texts = "sources" if sources else "references"
        assert f"for different {texts} (most often: {same})" in note.what
        assert note.advice.startswith("the model has hardly learned")
    repeated = with_lines(SOURCE, lambda line: "ΠΛΟΙΟ" + " " * len(line), *range(20, 40))
    assert "same" not in notes(hypotheses, sources=repeated)  # they are no different sources
    long = with_lines(REFERENCE, lambda line: "a very long translation " * 99, *range(20, 40))
    assert len(notes(long)["same"].what) < 130
    right = ["Yes."] * 30
    assert "1 boat" in notes(hypotheses + right, REFERENCE + right, [])["same"].what
    assert notes(REFERENCE + right, REFERENCE + ["Yes. "] * 30, []) == {}
    assert notes(right, right, SOURCE[:30]) == {}
    looping = with_lines(hypotheses, lambda line: line + " so on" * 9, *range(60, 90))
    assert list(notes(looping)) == ["same"]  # only the cause
    few = with_lines(REFERENCE, lambda line: "1 boat sails away.", *range(20, 26))
    assert "ignores parts of the source" in notes(few)["same"].advice
    looping = with_lines(few, lambda line: line + " so on" * 9, *range(60, 90))
    assert list(notes(looping))[:2] == ["same", "loops"]
    assert "loops" in notes(looping[40:], REFERENCE[40:])
    lines = with_lines(REFERENCE, lambda line: "NAME", *range(1, 60))
    assert notes(lines, lines, with_lines(SOURCE, lambda line: "ΟΝΟΜΑ", *range(1, 60))) == {}


def test_another_script_than_the_references() -> None:
    found = notes(with_lines(CHINESE, lambda line: "the harbour lies here", 5, 6, 7), CHINESE)
    assert (found["script"].lines, found["script"].first) == (3, [5, 6, 7])
    assert found["script"].advice == "check the file; a model may need more training"
    mixed = with_lines(CHINESE, lambda line: "apt-get " + line[:2], 5, 6, 7)
    assert notes(mixed, mixed) == {}
    one_letter = with_lines(CHINESE, lambda line: line * 2 + "A", 5, 6, 7)
    changed = with_lines(one_letter, lambda line: "the harbour lies here", 5, 6, 7)
    assert notes(changed, one_letter)["script"].lines == 3
    assert notes(unspaced(100, GREEK), REFERENCE)["script"].lines == 100
    assert "script" not in notes(unspaced(100, KANA), unspaced(100, HAN))  # Japanese mixes them
    assert "script" not in notes(with_lines(CHINESE, lambda line: "OK", 5, 6, 7), CHINESE)


@pytest.mark.parametrize(
    ("line", "is_loop"),
    [
        ("the man in the man in the man in the man", True),
        ("红色的船停在旧港口红色的船停在旧港口红色的船停在旧港口", True),
        ("very, very good", False),
        ("10000000000", False),
        ("no no no", False),
    ],
)
def test_phrases_that_are_repeated(line: str, is_loop: bool) -> None:
    assert ("loops" in notes(with_lines(REFERENCE, lambda _: line, 8))) == is_loop
    both = with_lines(REFERENCE, lambda _: line, 8)
    assert notes(both, both) == {}


def test_loops_in_very_long_lines_are_found_quickly() -> None:
    letters = "".join(random.Random(3).choices("abcdefgh _.@%{<0", k=60_000))
    lines = [letters, letters + "and so on " * 300, "x" * 60_000, "1," * 30_000]
    begun = time.process_time()
    found = find_faults(lines, [["a"] * 4], ["b"] * 4)
    assert time.process_time() - begun < 5
    assert next(note for note in found if note.kind == "loops").first[0] == 2


def test_letters_with_very_many_accents_take_no_long_time() -> None:
    many = "e" + "\u0301\u0316" * 250_000
    begun = time.process_time()
    find_faults([many, *"abc"], [["a"] * 4], ["b"] * 4)
    find_faults([*"abcd"], [[many] * 4], ["b"] * 4)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("kind", "change", "lines"),
    [
        ("subword", lambda line: line.replace("ar", "a@@ r"), REFERENCE),
        ("subword", lambda line: "▁" + line, REFERENCE),
        ("subword", lambda line: line.replace(" - ", " @-@ "), REFERENCE),
        ("tokenized", lambda line: line.removesuffix(".") + " .", REFERENCE),
        ("escapes", lambda line: line.replace(" - ", " &quot; "), REFERENCE),
        ("unknown", lambda line: f"{line} <unk>", REFERENCE),
        ("unknown", lambda line: f"{line} [UNK]", REFERENCE),
        ("unknown", lambda line: f"{line}⁇", CHINESE),
        ("bytes", lambda line: f"{line[:9]}\ufffd{line[9:]}", REFERENCE),
        ("case", str.lower, REFERENCE),
    ],
)
def test_text_that_was_prepared_for_a_model(
    kind: str, change: Callable[[str], str], lines: list[str]
) -> None:
    changed = [change(line) for line in lines]
    places = [i + 1 for i, line in enumerate(lines) if line != changed[i]]
    found = notes(changed, lines)
    assert list(found) == [kind]
    assert (found[kind].lines, found[kind].first) == (len(places), places[:5])
    assert notes(changed, changed) == {}


def test_accents_in_another_unicode_form_are_told() -> None:
    """Not called too long or too short, whichever file has separate accents."""
    composed = unspaced(100, "tiếngViệtcóđủdấu")
    apart = [normalize("NFD", line) for line in composed]
    for hypotheses, references in ((composed, apart), (apart, composed)):
        found = notes(hypotheses, references)
        assert list(found) == ["form"]
        assert found["form"].lines > 80
        assert notes(hypotheses, hypotheses) == {}
    assert find_faults(apart, [composed, apart], []) == []
    assert "form" not in notes(REFERENCE, apart)
    assert "form" not in notes(apart, REFERENCE)


def test_letters_that_are_separate_in_every_unicode_form() -> None:
    single, apart, vowel = "\u09a8\u09df", "\u09a8\u09af\u09bc", "\u0995\u09cb"  # in Bengali
    single_lines = [f"{single} {vowel} {number}" for number in range(20)]
    apart_lines = [line.replace(single, apart) for line in single_lines]
    vowels = [f"{vowel} {number}" for number in range(20)]  # in NFC
    assert "form" not in notes(vowels, single_lines)
    assert "form" not in notes(vowels, apart_lines)
    assert "form" not in notes(single_lines, single_lines)
    assert notes(apart_lines, single_lines)["form"].lines == 20
    assert notes(single_lines, apart_lines)["form"].lines == 20


def test_letters_without_case_are_not_in_lower_case() -> None:
    capitals = [line + " PDF" for line in CHINESE]
    assert "case" not in notes(CHINESE, capitals)
    assert "case" not in notes([line + " pdf" for line in CHINESE], CHINESE)
    assert find_faults([line.lower() for line in REFERENCE], [REFERENCE], [], lowercase=True) == []
    lines = with_lines([line.lower() for line in REFERENCE], lambda line: "", 3)
    assert [note.kind for note in find_faults(lines, [REFERENCE], [], lowercase=True)] == ["empty"]


@pytest.mark.parametrize("lines", [REFERENCE, CHINESE], ids=["english", "chinese"])
def test_lengths(lines: list[str]) -> None:
    short = [line[: len(line) // 2] for line in lines]
    assert 0.4 < float(notes(short, lines)["short"].what.split()[2]) < 0.55
    longer = [line + line[5:] for line in lines]
    assert notes(longer, lines)["long"].lines == 100
    for kind, changed, advice in (("short", short, "raise"), ("long", longer, "lower")):
        note = notes(changed[:60] + lines[60:], lines)[kind]
        assert note.lines == 60
        assert f"look at the lines; {advice} decode.length_penalty of a beam search" in str(note)
    assert ["short" in notes(short[:count], lines[:count]) for count in (9, 10)] == [False, True]
    assert find_faults(short, [lines, short], []) == []
    assert find_faults(lines, [lines, [line[:1] for line in lines]], []) == []
    assert "long" not in notes([" ".join(line) for line in lines], lines)
    assert "long" not in notes(lines, with_lines(lines, lambda line: "", *range(1, 60)))


@given(
    st.lists(
        st.tuples(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40)), min_size=1
    )
)
def test_any_text_is_accepted(rows: list[tuple[str, str, str]]) -> None:
    hypotheses, references, sources = (list(side) for side in zip(*rows, strict=True))
    for note in find_faults(hypotheses, [references, references[::-1]], sources):
        assert 0 < note.lines <= note.of == len(rows)
        assert json.loads(json.dumps(asdict(note)))["kind"] == note.kind


def test_eval_reports_notes_with_the_scores(tmp_path: Path) -> None:
    lower = with_lines([line.lower() for line in REFERENCE], lambda _: "", 4)
    for name, lines in (("hyp", lower), ("ref", REFERENCE)):
        write_lines(tmp_path / name, lines)
    arguments = ("eval", "--hypothesis", tmp_path / "hyp", "-r", tmp_path / "ref")
    plain = run_mtrain(*arguments)
    assert [line.split()[0] for line in plain.stdout.splitlines()] == ["BLEU", "chrF2", "TER"]
    assert "warning: empty translations: 1 of 100 lines (line 4); " in plain.stderr
    assert (
        "warning: lower case, unlike the references: 99 of 100 lines (lines 1, 2, 3, 5, 6, ...); "
        in plain.stderr
    )
    done = run_mtrain(*arguments, "--json")
    found = json.loads(done.stdout)["notes"]
    assert [note["kind"] for note in found] == ["empty", "case"]
    assert found[0] == {**found[0], "lines": 1, "of": 100, "first": [4]}
    assert done.stderr == ""
    done = run_mtrain(*arguments, "--json", "--lowercase")
    assert [note["kind"] for note in json.loads(done.stdout)["notes"]] == ["empty"]
