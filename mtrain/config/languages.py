"""Languages by ISO 639 code: names, common mistakes, and sacreBLEU's tokenizer for each."""

import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, get_args

_TABLES = json.loads(Path(__file__).with_name("languages.json").read_text("utf-8"))
NAMES: dict[str, str] = _TABLES["names"]  # by ISO 639-1, and by some other codes in use
# The code of two letters for each code of three; several codes of three may have the same.
_TWO_LETTERS: dict[str, str] = {
    long: code for code, others in _TABLES["long"].items() for long in others.split()
}
# Codes of countries and other words that people write instead of a language code, each with the
# right code. `kr` is Kanuri (also `kau`), but most people who write it mean Korean.
MISTAKES: dict[str, str] = _TABLES["meant"]
# Frequent words of languages, each of which is rare in most of the others.
FREQUENT: dict[str, set[str]] = {
    code: set(words.split())
    for codes, words in _TABLES["frequent"].items()
    for code in codes.split()
}

_Local = Literal["none", "zh", "13a", "intl", "char", "ja-mecab", "ko-mecab"]
# sacreBLEU downloads the models of these.
_Fetched = Literal["spm", "flores101", "flores200", "spBLEU-1K"]
BleuTokenizer = Literal[_Local, _Fetched]
FETCHED: tuple[str, ...] = get_args(_Fetched)
TOKENIZERS: dict[str, BleuTokenizer] = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}

# Languages without spaces between words, except Chinese and Japanese: sacreBLEU can only split them
# into characters (`char`) for BLEU, and not at all for TER.
UNSPACED = ("bo", "dz", "km", "lo", "my", "shn", "th")
# Languages whose words the tokenizer 13a does not separate.
UNSPLIT_BY_13A = ("ja", "ko", *UNSPACED)
SCRIPT_NAMES = [
    *("Latin", "Cyrillic", "Greek", "Arabic", "Devanagari", "Han", "Hiragana", "Katakana"),
    *("Hangul", "Hebrew", "Armenian", "Bengali", "Ethiopic", "Georgian", "Gujarati", "Gurmukhi"),
    *("Kannada", "Khmer", "Lao", "Malayalam", "Myanmar", "Sinhala", "Tamil", "Telugu", "Thai"),
]


def language_code(language: str) -> str:
    """Return the language of a tag such as `zh_CN` or `deu_Latn`, as two letters if possible."""
    code = re.split("[-_]", language.lower())[0]
    return _TWO_LETTERS.get(code, code)


def frequent_words(language: str) -> set[str]:
    """Return frequent words of a language; none if they are not known."""
    return FREQUENT.get(language_code(language), set())


def tokenizer_for(language: str | None) -> BleuTokenizer:
    """Return sacreBLEU's tokenizer for a target language; 13a for most and for unknown ones."""
    return TOKENIZERS.get(language_code(language or ""), "13a")


def is_unspaced(language: str) -> bool:
    """Whether sacreBLEU has no tokenizer that finds the words of a language."""
    return language_code(language) in UNSPACED


def language_error(language: str) -> str | None:
    """Return an error if a text is not a language code such as `de`, `deu` or `de-AT`, with the
    code that may be meant, else None. Any three letters are accepted, except well-known mistakes.
    """
    code = language_code(language)
    has_form = re.fullmatch("([A-Za-z]{2}|[a-z]{3})([-_][A-Za-z0-9]{1,8})*", language)
    is_known = len(code) == 3 or code in NAMES
    if has_form and is_known and code not in MISTAKES:
        return None
    word = re.split(r"\W", code)[0]
    names = {name.lower(): known for known, name in NAMES.items()}
    names |= MISTAKES | {known: known for known in NAMES}
    cutoff = 0.75 if len(word) > 3 else 1.0
    near = get_close_matches(word, names, n=1, cutoff=cutoff)
    meant = names[near[0]] if near else ""
    advice = f"did you mean {meant}?" if meant else "write a code such as en or zh-TW"
    return f"{language}: not known as a language code (ISO 639); {advice}"


def known_script(script: str) -> str:
    """Return the name or code of a Unicode script, such as Latin, latin or Latn, as it is; raises
    `ValueError` for another word.
    """
    import regex  # takes a while

    try:
        if not script.isidentifier():
            raise regex.error("not a name")
        regex.compile(rf"\p{{Script_Extensions={script}}}")
    except regex.error:
        near = get_close_matches(script.title(), SCRIPT_NAMES, n=1, cutoff=0.75)
        names = f"use a name such as {', '.join(SCRIPT_NAMES[:8])} or {SCRIPT_NAMES[8]}"
        advice = f"did you mean {near[0]}?" if near else names
        raise ValueError(f"{script}: not a Unicode script; {advice}") from None
    return script
