"""Text that a program added to a part of the texts of one side."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mtrain.corpus import phrasebook
from mtrain.corpus.additions import additions

SOURCES, TARGETS = (list(side) for side in zip(*phrasebook.pairs("train", 2000), strict=True))
Change = Callable[[int, str], str]


def changed(texts: list[str], step: int, change: Change) -> list[str]:
    return [change(row, text) if row % step == 0 else text for row, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("change", "place", "text"),
    [
        (lambda row, text: f"Here is the translation: {text}", "begin", "Here is the translation:"),
        (lambda row, text: f"{text} (machine translation)", "end", "(machine translation)"),
        (lambda row, text: f"<item id='{row}'>{text}", "begin", "<item id='NUMBER'>"),
        (
            lambda row, text: f"{text} https://example.org/{row}",
            "end",
            "https://example.org/NUMBER",
        ),
        (lambda row, text: f"{text} 译文 [{row}]", "end", "译文 [NUMBER]"),
        (lambda row, text: f"{text}[{row}]", "end", "[NUMBER]"),
        (lambda row, text: f"{row} {text}", "begin", "NUMBER"),
        (lambda row, text: f"{text} {row}", "end", "NUMBER"),
        (lambda row, text: f"{{\\an8}}{text}", "begin", "{\\an8}"),
        (lambda row, text: f"{text}. © 2014 Word", "end", "© 2014 Word"),
        (
            lambda row, text: f"{text} http://www.example.org/a/p{row}.html",
            "end",
            "http://www.example.org/a/pNUMBER.html",
        ),
    ],
)
@pytest.mark.parametrize("step", [3, 60])
def test_an_addition_is_found_as_it_is_written(
    change: Change, place: str, text: str, step: int
) -> None:
    [found] = additions(changed(TARGETS, step, change), SOURCES)
    assert (found.place, found.text) == (place, text)
    assert found.indices == list(range(0, 2000, step))
    assert found.fraction == len(found.indices) / 2000


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("Here is the translation: {}", "Here is the translation:"),
        ("Indeed, {}", "Indeed,"),
        ("1. {}", ""),  # a list
        ("{} (machine translation)", "(machine translation)"),
        ("{} ||| 0.5", "||| 0.5"),
        ("{} © 2014 Word", "© 2014 Word"),
        ("{}. © 2014 Word", "© 2014 Word"),
        ("{}[3]", "[3]"),
        ("n/a", ""),  # nothing else
        *(("<2de> {}", ""), (">>de<< {}", ""), ("__de__ {}", "")),  # tags that choose the language
        ("{} !", ""),  # style
    ],
)
def test_what_nearly_all_texts_have_is_found(form: str, text: str) -> None:
    for count in (60, 2000):
        texts = [form.format(text) for text in TARGETS[:count]]
        texts[7:10] = TARGETS[7:10]
        assert [each.text for each in additions(texts, SOURCES[:count])] == [text] * bool(text)
        sources = [f"Source: {text}" for text in SOURCES[:count]]
        assert not list(additions(texts, sources))


WORDS = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht"]
NAMES = ["Anna", "Mr. Ben", "Clara", "Dora"]


@pytest.mark.parametrize(
    ("form", "place"), [("{name}: {text}", "begin"), ("{text} (by {name})", "end")]
)
@pytest.mark.parametrize("count", [60, 2000])
def test_names_that_nearly_all_texts_have_are_found(form: str, place: str, count: int) -> None:
    rng = random.Random(1)
    chosen = rng.choices(NAMES, k=count)

    def named(texts: list[str]) -> list[str]:
        rows = zip(texts, chosen, strict=False)
        return [form.format(text=text, name=name) for text, name in rows]

    sources, targets = SOURCES[:count], named(TARGETS)
    targets[7:10] = TARGETS[7:10]
    found = list(additions(targets, sources))
    assert {each.place for each in found} == {place}
    added = {form.format(text="", name=name).strip() for name in NAMES}
    assert {each.text for each in found} == added
    assert not list(additions(sources, targets))
    assert not list(additions(named(TARGETS), named(SOURCES)))
    assert not list(additions(named(SOURCES), named(TARGETS)))
    mostly = [TARGETS[row] if row % 8 == 0 else text for row, text in enumerate(targets)]
    assert not any(each.gain == 1 for each in additions(mostly, sources))


def test_what_nine_of_ten_texts_have_may_be_short() -> None:
    texts = changed(TARGETS, 1, lambda row, text: text if row < 150 else f"T: {text}")
    [found] = additions(texts, SOURCES)
    assert (found.text, found.fraction) == ("T:", 0.925)


@pytest.mark.parametrize(
    ("form", "other"), [("-- {}", "\u2014 {}"), ("A: {}", "\u2014 {}"), ("{} ...", "{} \u2026")]
)
def test_what_corresponds_to_marks_of_the_other_side_is_no_addition(form: str, other: str) -> None:
    texts = [form.format(text) for text in TARGETS]
    sources = [other.format(text) for text in SOURCES]
    assert not list(additions(texts, sources))
    assert not list(additions(sources, texts))


def test_numbers_at_the_end_of_nearly_all_texts_correspond_to_those_of_the_other_side() -> None:
    texts, sources = (
        [f"{text} {row}" for row, text in enumerate(side)] for side in (TARGETS, SOURCES)
    )
    assert [each.text for each in additions(texts, SOURCES)] == ["NUMBER"]
    assert not list(additions(texts, sources))


def test_both_ends_and_several_additions_are_found() -> None:
    names = ["Anna", "Bernadette", "Christopher"]
    texts = changed(TARGETS, 4, lambda row, text: f"{names[row % 3]} (speaking): {text}")
    texts = changed(texts, 7, lambda row, text: f"{text} </item>")
    found = sorted((each.place, each.text) for each in additions(texts, SOURCES))
    assert found == [*(("begin", f"{name} (speaking):") for name in names), ("end", "</item>")]


def test_a_large_text_is_sampled_and_examples_keep_their_rows() -> None:
    texts = changed(TARGETS * 25, 7, lambda row, text: f"Here is the translation: {text}")
    [found] = additions(texts, SOURCES * 25)
    assert all(texts[index].startswith("Here is") for index in found.indices)
    assert abs(found.fraction - 1 / 7) < 0.02


@pytest.mark.parametrize(
    ("src", "tgt"),
    [
        (lambda row, text: text, lambda row, text: text),
        # translated, or longer in the other language
        (lambda row, text: f"Warning: {text}", lambda row, text: f"Wichtige Warnung: {text}"),
        # a number, on one side as a word
        (lambda row, text: f"{row % 9} {text}", lambda row, text: f"{row % 9} {text}"),
        (lambda row, text: f"{WORDS[row % 9]} {text}", lambda row, text: f"{row % 9} {text}"),
        # too few
        (
            lambda row, text: text,
            lambda row, text: f"Here is the translation: {text}" if row < 29 * 4 else text,
        ),
        # in all texts, or nothing else
        (lambda row, text: text, lambda row, text: "(machine translation)"),
        # words of the text
        (lambda row, text: text, lambda row, text: f"Indeed and verily, {text}"),
    ],
)
def test_sound_text_has_no_additions(src: Change, tgt: Change) -> None:
    sources, targets = changed(SOURCES, 4, src), changed(TARGETS, 4, tgt)
    assert not list(additions(targets, sources))
    assert not list(additions(sources, targets))


def test_what_depends_on_the_other_side_is_no_addition() -> None:
    """A translator says more than the source, always for the same word."""
    sources = [f"{text} Please." if row % 5 == 0 else text for row, text in enumerate(SOURCES)]
    targets = changed(TARGETS, 5, lambda row, text: f"Wir bitten Sie sehr freundlich: {text}")
    assert not list(additions(targets, sources))
    shuffled = random.Random(1).sample(sources, len(sources))
    assert [each.text for each in additions(targets, shuffled)] != []


@pytest.mark.filterwarnings("error")  # numpy's, about means of nothing
def test_no_texts_have_no_additions() -> None:
    assert not list(additions([], []))
    assert not list(additions([""] * 100, [""] * 100))
