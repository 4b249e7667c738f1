"""Texts that lost their accents, by the words that occur with and without them, or have letters of
other languages.
"""

import random

import pytest

from mtrain.corpus.letters import (
    LOOK_ALIKES,
    find_mojibake,
    look_alikes,
    lost_accents,
    misread_texts,
)


def test_letters_that_stay_are_not_lost() -> None:
    texts = [" ".join(f"w{char}ß" for char in "abcdefghijklmnop")] * 20
    assert lost_accents(texts, "de") == (0.0, "")


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.4])
def test_other_letters_and_words_without_accents_change_nothing(fraction: float) -> None:
    """ß may stay as it is, and a third of the words are two words, such as "qab" and "qäb"."""
    draw = random.Random(6)
    words = [
        f"w{first}{mark}{last}" for first in "abcdefgh" for mark in ("ä", "oßä") for last in "xy"
    ]
    words += [f"q{mark}{last}" for mark in "aä" for last in "bcdfghjk"]
    texts = [" ".join(draw.choices(words, k=3)) for _ in range(2000)]
    for row in draw.sample(range(len(texts)), int(fraction * len(texts))):
        texts[row] = texts[row].replace("ä", "a")
    found, example = lost_accents(texts, "de")
    assert found == pytest.approx(fraction, abs=0.03)
    assert (" for " in example) or fraction == 0


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (["que esta aqui"], "es"),  # words that are others with an accent, "qué" and "está"
        (["the café is naïve", "a cafe is naive"], "en"),  # few words, spelled in both ways
    ],
)
def test_a_few_words_without_accents_are_no_loss(texts: list[str], language: str) -> None:
    assert lost_accents(texts * 20, language) == (0.0, "")


@pytest.mark.parametrize(
    ("language", "sound", "odd", "count", "expected"),
    [
        ("tr", "değil ışık", "deðil ýþýk", 20, ("cp1254", "ð", "ğ")),
        ("hu-HU", "jövő, fű", "idõ", 20, ("cp1250", "õ", "ő")),
        ("lt", "ačiū", "aèiû", 20, ("cp1257", "è", "č")),
        ("lt", "ačiū, šuo", "ðuo", 20, ("cp1257", "ð", "š")),  # also Windows-1252 has š
        ("tr", "değil ışık", "deðil ýþýk", 19, None),  # may be names
        ("tr", "değil ışık", "þór değil", 20, None),  # with letters of Turkish
        ("hu", "jövő, fű", "São", 20, None),  # the letter in its place is not usual
        ("de", "für", "deðil", 20, None),  # German has its letters in Windows-1252
    ],
)
def test_texts_that_were_read_as_windows_1252_are_told_with_a_letter(
    language: str, sound: str, odd: str, count: int, expected: tuple[str, str, str] | None
) -> None:
    found = misread_texts([*[sound] * 100, *[odd] * count], language)
    assert (found and found[:3]) == (expected and ([*range(100, 100 + count)], *expected[1:]))
    assert found is None or f"from {expected[0]}" in found.cause
    assert misread_texts([*[sound] * 100 * count, *[odd] * count], language) is None  # few


@pytest.mark.parametrize(
    ("language", "odd", "others", "is_found"),
    [
        ("tr", "deðil ýþýk", ["bu"] * 180, True),
        ("tr", "deðil ýþýk", ["bu"] * 181, False),
        ("sr", "São Paulo", ["Сао Пауло"] * 181, False),  # in Cyrillic, with some names
        ("pl", "f(x) = ƒ", [], False),  # whose byte is no letter in the code page
    ],
)
def test_text_without_any_letters_of_its_own_is_misread_if_one_in_ten_has_others(
    language: str, odd: str, others: list[str], is_found: bool
) -> None:
    assert (misread_texts([*[odd] * 20, *others], language) is not None) == is_found


@pytest.mark.parametrize("codes", LOOK_ALIKES)
def test_letters_that_look_like_those_of_a_language(codes: str) -> None:
    for wrong, right in LOOK_ALIKES[codes].items():
        texts = [f"{right}a {wrong if row % 50 == 7 else right}b" for row in range(1000)]
        for code in codes.split():
            found = look_alikes(texts, code)
            assert found is not None
            assert (found.indices, found.letter, found.right) == (
                list(range(7, 1000, 50)),
                wrong,
                right,
            )
            assert look_alikes(texts[:950], code) is None  # may be names
            assert look_alikes([right, *texts, *[right] * 1001], code) is None
        assert look_alikes(texts, "de") is None


def test_letters_that_were_read_as_windows_1251_are_found() -> None:
    alphabet = "абвгдежзийклмнопрстуфхцчшщъыьэюяєіїњћџ"
    texts = {each: f"{each}а{each}".encode().decode("cp1251", "ignore") for each in alphabet}
    missed = {
        letter
        for letter, text in texts.items()
        if find_mojibake(text, text, is_latin=False) is None
    }
    assert missed == set("иш")  # ё and € in Windows-1251
