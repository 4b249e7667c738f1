"""Scripts of letters and of languages, named by the first words of the Unicode names of letters."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache

from mtrain.config.languages import language_code

SAMPLE = 1000  # lines, about, whose letters are counted
# A Latin letter, in regular expressions.
LATIN = "[A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u1e00-\u1eff]"
# The codes of each script in language tags (ISO 15924), its own first, then its languages.
SCRIPTS = {
    "LATIN": "latn latf latg af az bs ca cs cy da de en eo es et eu fi fr ga gl hr hu id is it la "
    "lb lt lv mg ms mt nb nl nn no oc pl pt ro sk sl so sq sv sw tl tr uz vi yo zu",
    "CYRILLIC": "cyrl be bg kk ky mk mn ru tg tt uk",
    "CJK": "hani hanb hans hant jpan zh ja",
    "HIRAGANA": "hira hrkt jpan ja",
    "KATAKANA": "kana hrkt jpan ja",
    "HANGUL": "hang kore ko",
    "ARABIC": "arab aran ar azb ckb fa pnb ps sd ug ur",
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
# First words in Unicode names of letters that are not names of scripts.
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
    """Return the scripts of a language, or only the script that its tag names, as in `uz_Cyrl`; an
    empty set if unknown.
    """
    subtag = re.search("[-_]([a-z]{4})(?![a-z0-9])", language.lower())
    code = subtag[1] if subtag else language_code(language)
    return {script for script, codes in SCRIPTS.items() if code in codes.split()}


def script_fraction(languages: Iterable[str], lines: list[str]) -> float:
    """Return the fraction of letters, in a sample of lines, that belong to the scripts of these
    languages.
    """
    sample = lines[:: max(1, len(lines) // SAMPLE)]
    letters = Counter(script_of(char) for line in sample for char in line if char.isalpha())
    scripts = set().union(*map(scripts_of, languages))
    return sum(letters[script] for script in scripts) / max(1, letters.total())


def text_direction(language: str) -> str:
    """Return the value of HTML's attribute dir for a language; auto: HTML goes by the text."""
    return "rtl" if scripts_of(language) & {"ARABIC", "HEBREW"} else "auto"


def script_name(script: str) -> str:
    """Return the usual name of a script of `SCRIPTS`."""
    return "Han" if script == "CJK" else script.capitalize()


def tag_of(language: str, script: str) -> str:
    """Return the tag of a language in a script of `SCRIPTS`, such as uz-Cyrl; empty for others."""
    code = SCRIPTS.get(script, "").partition(" ")[0]
    return code and f"{re.split('[-_]', language)[0]}-{code.title()}"
