"""Scripts of letters and of languages, named by the first words of the Unicode names of letters."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache

from mtrain.config.languages import language_code

SAMPLE = 1000  # lines that tell in what script a text is
# Languages that are written in a script, after its codes in tags of languages (ISO 15924).
SCRIPTS = {
    "LATIN": "latf latg latn af az bs ca cs cy da de en es et eu fi fr ga gl hr hu id is it la lb "
    "lt lv mg ms mt nb nl nn no oc pl pt ro sk sl so sq sv sw tl tr uz vi yo zu",
    "CYRILLIC": "cyrl be bg kk ky mk mn ru tg tt uk",
    "CJK": "hanb hani hans hant jpan zh ja",
    "HIRAGANA": "hira hrkt jpan ja",
    "KATAKANA": "hrkt jpan kana ja",
    "HANGUL": "hang kore ko",
    "ARABIC": "arab aran ar ckb fa ps sd ug ur",
    "HEBREW": "hebr he iw yi",
    "GREEK": "grek el",
    "DEVANAGARI": "deva hi mr ne sa",
    "BENGALI": "beng as bn",
    "GURMUKHI": "guru pa",
    "GUJARATI": "gujr gu",
    "ORIYA": "orya or",
    "TAMIL": "taml ta",
    "TELUGU": "telu te",
    "KANNADA": "knda kn",
    "MALAYALAM": "mlym ml",
    "SINHALA": "sinh si",
    "THAI": "thai th",
    "LAO": "laoo lo",
    "KHMER": "khmr km",
    "MYANMAR": "mymr my shn",
    "TIBETAN": "tibt bo dz",
    "GEORGIAN": "geor ka",
    "ARMENIAN": "armn hy",
    "ETHIOPIC": "ethi am ti",
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
    """Return the scripts of a language, or the one that its tag names, such as `uz_Cyrl`; none if
    they are not known.
    """
    named = re.search("[-_]([a-z]{4})(?![a-z0-9])", language.lower())
    code = named[1] if named else language_code(language)
    return {script for script, codes in SCRIPTS.items() if code in codes.split()}


def fraction_of(languages: Iterable[str], lines: list[str]) -> float:
    """Return the fraction of the letters of (a sample of) lines that are of the scripts of these
    languages.
    """
    sample = lines[:: max(1, len(lines) // SAMPLE)]
    letters = Counter(script_of(char) for line in sample for char in line if char.isalpha())
    scripts = set().union(*map(scripts_of, languages))
    return sum(letters[script] for script in scripts) / max(1, letters.total())


def direction(language: str) -> str:
    """Return the direction of text in a language, as HTML names it; auto: by the text itself."""
    return "rtl" if scripts_of(language) & {"ARABIC", "HEBREW"} else "auto"


def name_of(script: str) -> str:
    """Return the usual name of a script."""
    return "Han" if script == "CJK" else script.capitalize()
