"""Languages by their ISO 639 codes: names, what is mistaken for a code, and how BLEU cuts each."""

import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

_TABLES = json.loads(Path(__file__).with_name("languages.json").read_text("utf-8"))
NAMES: dict[str, str] = _TABLES["names"]  # by ISO 639-1, and by some other codes in use
# Codes of three letters, of which some are for one of several languages, by those of two.
_TWO_LETTERS: dict[str, str] = {
    long: code for code, others in _TABLES["long"].items() for long in others.split()
}
# Codes of countries and other words that are taken for codes, each with the code that is meant. Of
# `kr`, Kanuri, which is `kau` as well, Korean is meant more often.
MISTAKES: dict[str, str] = _TABLES["meant"]
# Words that a text of a language is full of, and a text of the others here is not.
FREQUENT: dict[str, str] = _TABLES["frequent"]

_Local = Literal["none", "zh", "13a", "intl", "char", "ja-mecab", "ko-mecab"]
_Fetched = Literal["spm", "flores101", "flores200", "spBLEU-1K"]  # sacreBLEU loads their models
Tokenizer = Literal[_Local, _Fetched]
TOKENIZERS: dict[str, Tokenizer] = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}


# Languages without spaces between words, other than Chinese and Japanese: sacreBLEU cuts their text
# for BLEU with `char` alone, and for TER not at all.
UNSPACED = ("bo", "dz", "km", "lo", "my", "shn", "th")
# Languages of whose text the tokenizer 13a leaves too much in one piece.
UNCUT = ("ja", "ko", *UNSPACED)


def language_code(language: str) -> str:
    """Return the language of a tag such as `zh_CN` or `deu_Latn`, in two letters if it has such a
    code.
    """
    code = re.split("[-_]", language.lower())[0]
    return _TWO_LETTERS.get(code, code)


def tokenizer_for(language: str | None) -> Tokenizer:
    """Return sacreBLEU's tokenizer for a target language; 13a for most and for unknown ones."""
    return TOKENIZERS.get(language_code(language or ""), "13a")


def is_uncut(language: str) -> bool:
    """Whether BLEU would compare whole sentences of a language with its usual tokenizer."""
    return tokenizer_for(language) == "13a" and language_code(language) in UNCUT


def doubt(language: str) -> str | None:
    """Return why a text is no language code, such as `de`, `deu` or `de-AT`, and which is meant;
    None for a code. Of three letters, all are codes but for well-known mistakes.
    """
    code = language_code(language)
    has_form = re.fullmatch("([A-Za-z]{2}|[a-z]{3})([-_][A-Za-z0-9]{1,8})*", language)
    if has_form and code not in MISTAKES and (len(code) == 3 or code in NAMES):
        return None
    word = re.split(r"\W", code)[0]
    names = {name.lower(): known for known, name in NAMES.items()}
    names |= MISTAKES | {known: known for known in NAMES}
    near = get_close_matches(word, names, n=1, cutoff=0.75 if len(word) > 3 else 1.0)
    meant = names[near[0]] if near else ""
    advice = f"did you mean {meant}?" if meant else "write one such as en or zh-TW"
    return f"{language}: not known as a language code (ISO 639); {advice}"
