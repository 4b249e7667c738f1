"""Scripts of letters and of languages, named by the first words of the Unicode names of letters."""

import re
import unicodedata
from functools import cache

from mtrain.config.languages import language_code

# Languages that are written in a script.
SCRIPTS = {
    "LATIN": "af az bs ca cs cy da de en es et eu fi fr ga gl hr hu id is it la lb lt lv mg ms mt "
    "nb nl nn no oc pl pt ro sk sl so sq sv sw tl tr uz vi yo zu",
    "CYRILLIC": "be bg kk ky mk mn ru tg tt uk",
    "CJK": "zh ja",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "HANGUL": "ko",
    "ARABIC": "ar ckb fa ps sd ug ur",
    "HEBREW": "he iw yi",
    "GREEK": "el",
    "DEVANAGARI": "hi mr ne sa",
    "BENGALI": "as bn",
    "GURMUKHI": "pa",
    "GUJARATI": "gu",
    "ORIYA": "or",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "SINHALA": "si",
    "THAI": "th",
    "LAO": "lo",
    "KHMER": "km",
    "MYANMAR": "my shn",
    "TIBETAN": "bo dz",
    "GEORGIAN": "ka",
    "ARMENIAN": "hy",
    "ETHIOPIC": "am ti",
}
# First words of the names of letters that are no names of scripts.
_NO_SCRIPTS = {"MODIFIER", "MICRO", "MASCULINE", "FEMININE", "SCRIPT", "BLACK", "ANGSTROM", "ALEF"}
_NO_SCRIPTS |= {"MATHEMATICAL", "DOUBLE", "KELVIN", "OHM", "PLANCK", "EULER"}


@cache
def script_of(character: str) -> str:
    """Return the script of a letter, mark or digit; empty if it has none."""
    name = unicodedata.name(character, "").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
    script = re.split("[ -]", name)[0]
    if script in _NO_SCRIPTS:
        return ""
    return "CJK" if script == "IDEOGRAPHIC" else script


def scripts_of(language: str) -> set[str]:
    """Return the scripts of a language, if known."""
    code = language_code(language)
    return {script for script, codes in SCRIPTS.items() if code in codes.split()}


def direction(language: str) -> str:
    """Return the direction of text in a language, as HTML names it; auto: by the text itself."""
    return "rtl" if scripts_of(language) & {"ARABIC", "HEBREW"} else "auto"


def name_of(script: str) -> str:
    """Return the usual name of a script."""
    return "Han" if script == "CJK" else script.capitalize()
