"""Languages are told apart by their frequent words; what is not clear is left open."""

from __future__ import annotations

import unicodedata

import pytest

from mtrain.config.languages import FREQUENT, NAMES
from mtrain.corpus import language_identification
from mtrain.corpus.language_identification import (
    ThirdLanguage,
    lacks_frequent_words,
    other_language,
    swapped_fraction,
    words_of,
)
from mtrain.corpus.letters import lost_accents
from mtrain.corpus.writing_systems import scripts_of

ENGLISH = ["the dog is not with you", "you can have it for this", "they were at the house"] * 40
SAME = {"no": "nb", "bs": "hr"}  # have the same frequent words
LATIN = [code for code in FREQUENT if scripts_of(code) <= {"LATIN"} and code != "en"]


def text_of(code: str) -> str:
    """Return a text of words that few other languages have."""
    rarity = {w: sum(w in other for other in FREQUENT.values()) for w in sorted(FREQUENT[code])}
    return " ".join(sorted(rarity, key=lambda word: (rarity[word], -len(word)))[:6])


@pytest.mark.parametrize("code", LATIN)
def test_each_language_is_found_in_a_text_of_another(code: str) -> None:
    third = ThirdLanguage(ENGLISH, "en", "xx")
    assert third.language_of(text_of(code)) in (code, SAME.get(code))
    assert other_language([text_of(code)] * 100, "en") in (code, SAME.get(code))


@pytest.mark.parametrize("code", FREQUENT)
def test_no_text_of_a_side_s_own_languages_is_of_a_third(code: str) -> None:
    texts = [text_of(code)] * 100
    assert ThirdLanguage(texts, code, "en").language_of(texts[0]) == ""
    assert ThirdLanguage(ENGLISH, "en", code).language_of(texts[0]) == ""
    assert other_language(texts, code) == ""


def test_names_and_a_few_foreign_words_are_no_third_language() -> None:
    third = ThirdLanguage(ENGLISH, "en", "fr")
    names = ("El Niño", "the film La vie est belle is not for you", "São Paulo")
    names += ("they were not at the Casa de las Flores por la noche con you",)
    for text in (*names, "k: s, v: z, o: u, i: e", "это не так, как то что на", "", "42"):
        assert third.language_of(text) == ""


def test_words_that_two_languages_have_do_not_hide_the_other_ones() -> None:
    """Such as Dutch and English is, in, of and we."""
    third = ThirdLanguage(ENGLISH, "en", "de")
    assert third.language_of("dat is niet in het water of we") == "nl"


@pytest.mark.parametrize("sample", [40, 2000])
def test_words_that_are_usual_on_a_side_are_its_own(
    monkeypatch: pytest.MonkeyPatch, sample: int
) -> None:
    """Even if they are frequent in another language, as in a text of another variety."""
    monkeypatch.setattr(language_identification, "SIDE_SAMPLE", sample)
    words = "lexi que por una con para"
    assert ThirdLanguage(ENGLISH, "en", "de").language_of(words) in ("es", "gl", "ca")
    assert ThirdLanguage([*ENGLISH, *[words] * 30], "en", "de").language_of(words) == ""


def test_another_language_must_be_that_of_most_texts_and_of_the_same_script() -> None:
    french, english = [text_of("fr")] * 60, ENGLISH[:40]
    assert other_language([*french, *french[:40]], "en") == "fr"
    assert other_language([*french, *french[:39]], "en") == ""  # few texts
    assert other_language([*french, *english], "en") == ""
    assert other_language([*french, *french[:40]], "xx") == ""
    assert other_language([text_of("ru")] * 100, "en") == ""


def test_short_english_texts_are_in_no_other_language() -> None:
    """The article is in them, and the only frequent word that they have."""
    assert other_language(["A red car", "a small house", "A dog, a cat"] * 100, "en") == ""


def test_keys_and_a_few_words_are_no_other_language() -> None:
    """Such as letters that are words of Slovenian, and words that Spanish has in common."""
    assert other_language(["s: save", "v: view", "z: zoom", "k: keep"] * 50, "en") == ""
    words = "o s v z " + " ".join(sorted(FREQUENT["sl"] - FREQUENT["en"])[:6])
    texts = [words.rpartition(" ")[0], words]
    assert [other_language([text] * 100, "en") for text in texts] == ["", "sl"]


def test_another_language_is_found_in_short_texts_of_which_few_have_its_words() -> None:
    only = sorted(w for w in FREQUENT["uk"] - FREQUENT["ru"] if len(w) > 1)
    texts = [f"файл {only[n // 8 % 12]}" if n % 8 == 0 else "файл" for n in range(800)]
    assert other_language(texts, "ru") == "uk"
    assert other_language([t if n % 16 else "файл" for n, t in enumerate(texts)], "ru") == ""


@pytest.mark.parametrize(("written", "read"), [("koi8_r", "cp1251"), ("cp1251", "koi8_r")])
def test_a_side_that_was_read_in_a_wrong_encoding_lacks_the_words(written: str, read: str) -> None:
    words, sources = sorted(FREQUENT["ru"]), (ENGLISH * 4)[:400]
    texts = [f"предмет {words[n % len(words)]} вещь {words[n % 7]}" for n in range(400)]
    misread = [text.encode(written).decode(read) for text in texts]
    assert lacks_frequent_words(misread, sources, "ru", "en")
    assert not lacks_frequent_words(texts, sources, "ru", "en")
    assert not lacks_frequent_words(misread[:399], sources[:399], "ru", "en")
    keys = [*["Close the file"] * 5, *["View"] * 95] * 4  # no sentences
    assert not lacks_frequent_words(["предмет"] * 400, keys, "ru", "en")
    assert not lacks_frequent_words(misread, sources, "ru", "xx")
    assert not lacks_frequent_words(misread, sources, "tt", "en")  # whose words are not known


@pytest.mark.parametrize("code", LATIN)
def test_accents_apart_from_their_letters_make_no_other_language(code: str) -> None:
    texts = [unicodedata.normalize("NFD", " ".join(sorted(FREQUENT[code])))] * 500
    assert other_language(texts, code) == ""
    assert not lacks_frequent_words(texts, ENGLISH, code, "en")
    assert lost_accents(texts, code)[0] == 0.0


def test_words_of_a_letter_with_very_many_accents_take_no_quadratic_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Normalization takes quadratic time in the accents of a letter; it gets few at a time."""
    lengths: list[int] = []

    def normalize(form: str, text: str) -> str:
        lengths.append(len(text))
        return unicodedata.normalize(form, text)

    monkeypatch.setattr(language_identification, "normalize", normalize)
    assert words_of("e" + "\u0301\u0316" * 50_000 + " cafe\u0301") >= {"caf\u00e9"}
    assert max(lengths) <= 5


@pytest.mark.parametrize(("swapped", "found"), [(4, 0.0), (5, 0.05)])
def test_few_swapped_pairs_of_japanese_and_chinese(swapped: int, found: float) -> None:
    japanese, chinese = "これは何ですか", "這是什麼東西"
    src = [japanese] * (100 - swapped) + [chinese] * swapped
    tgt = [chinese] * (100 - swapped) + [japanese] * swapped
    assert swapped_fraction(src, tgt, "ja", "zh") == pytest.approx(found)


def test_swapped_pairs_of_a_large_text_are_estimated_from_a_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(language_identification, "SAMPLE", 30)
    german = [text_of("de")] * 120
    src, tgt = [*german[:60], *ENGLISH[:60]], [*ENGLISH[:60], *german[60:]]
    assert swapped_fraction(src, tgt, "de", "en") == 0.5


@pytest.mark.parametrize(
    ("src", "tgt", "languages"),
    [
        ("the dog is not with you", "xa xe xi xo xu xy", "zu en"),
        ("the dog is not with you", "xa xe xi xo xu xy", "xx en"),
        ("xa xe", "the dog is not with you", "en zu"),
        ("der Hund ist nicht mit dir", "xa xe xi xo xu xy", "en de"),
        ("東京", "これは何ですか", "ja zh"),
    ],
)
def test_short_texts_and_a_few_texts_of_unknown_words_do_not_seem_swapped(
    src: str, tgt: str, languages: str
) -> None:
    sound = 90 * languages.endswith(" en")
    sources, targets = [*[tgt] * sound, *[src] * 10], [*[src] * sound, *[tgt] * 10]
    assert swapped_fraction(sources, targets, *languages.split()) == 0.0
    assert swapped_fraction(targets, sources, *languages.split()) == 0.9 * (sound > 0)


def test_the_middle_dot_of_katakana_makes_no_japanese() -> None:
    """Chinese text has it in foreign names."""
    japanese = ["これは何ですか", "東京大学図書館"] * 100
    chinese = ["這是什麼東西", "安娜・李的大學圖書館"] * 100
    assert swapped_fraction(japanese, chinese, "ja", "zh") == 0.0
    assert swapped_fraction(chinese, japanese, "ja", "zh") == 1.0


def test_all_codes_of_frequent_words_are_languages_with_names() -> None:
    assert set(FREQUENT) <= set(NAMES)
    assert all(len(words) > 20 for words in FREQUENT.values())


@pytest.mark.parametrize("language", ["fr", "es", "it", "pt", "sv", "pl", "cs", "ro", "tr", "hu"])
def test_a_side_that_lost_all_accents_is_found_by_its_frequent_words(language: str) -> None:
    texts = [f"{word} xyz" for word in FREQUENT[language] for _ in range(20)]
    plain = [
        "".join(char for char in unicodedata.normalize("NFD", text) if char.isascii()).replace(
            "ı", "i"
        )
        for text in texts
    ]
    assert lost_accents(texts, language)[0] < 0.01
    assert lost_accents(plain, language)[0] == 1.0
    assert lost_accents(plain, "xx")[0] == 0.0
