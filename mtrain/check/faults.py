"""Faults of texts by themselves, such as odd characters, and of pairs, such as swapped sides."""

import re
from collections.abc import Iterator
from unicodedata import normalize

import numpy as np
import regex
from numpy.typing import NDArray

from mtrain.check.chunks import Chunk, Mask
from mtrain.check.profile import Profile
from mtrain.check.words import PIECES_A_WORD
from mtrain.corpus.lines import MAX_TEXT_LENGTH, shorten_text
from mtrain.corpus.markup import ENTITIES, SUBWORDS
from mtrain.corpus.writing_systems import name_of
from mtrain.data.filters import is_identical
from mtrain.data.tokenizer import Tokenizer

MIN_LETTERS = 5  # of a line in another script
MIN_FOREIGN_LATIN = 20  # names and commands in Latin letters occur in texts of all scripts
SURE = 7.0  # nats for a line to be in the other side's language
FAR_RATIO, FAR_SPREAD = 1.1, 5.0  # logarithm, three times the usual; standard deviations
MISFIT_A_WORD = 0.6  # nats against a pair for each word of its longer side, to report it
MIN_CHARACTERS = 30  # of the longer side, for its length to be suspicious

# Joiners, direction marks and tags of flags. They belong to the scripts that join letters or run
# from right to left, and to emoji.
_SHAPING = "\u061c\u200c-\u200f\u202a-\u202e\u2066-\u2069\U000e0001-\U000e007f"
_SHAPED = regex.compile(
    r"(?V1)\p{Extended_Pictographic}|[\p{L}--[\p{Latin}\p{Greek}\p{Cyrillic}\p{Han}\p{Hiragana}"
    r"\p{Katakana}\p{Hangul}\p{Common}]]"
)
_HIDDEN = r"(?V1)[\p{Default_Ignorable_Code_Point}--[\p{Variation_Selector}"
_INVISIBLE = regex.compile(_HIDDEN + "]]"), regex.compile(_HIDDEN + _SHAPING + "]]")
_CONTROL = re.compile("[\0-\x08\n-\x1f\x7f-\x9f\u2028\u2029]")
# Newer characters than the tables know, such as emoji, pass.
_NO_CHARACTER = regex.compile(
    r"(?V1)[\ufffc\ufffd\p{Co}\p{Cs}\p{Noncharacter_Code_Point}[\p{Cn}--[\U0001f000-\U0010ffff]]]"
)
_SEEMS_PRINTABLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\ufffc\ufffd]")
# A letter with its accent or part, as text from macOS has it.
_APART = re.compile("\\w[\u0300-\u036f\u1161-\u1175\u11a8-\u11c2\u3099\u309a]")

# Characters that a byte of 0x80 to 0xbf, which continues a character in UTF-8, is in Windows-1252.
_CP1252 = {byte: bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in range(128, 192)}
_BYTES = {char: byte for byte, char in _CP1252.items()}
_RUN = re.compile(rf"(?:[\u00c2-\u00f4][\x80-\x9f{re.escape(''.join(_BYTES))}]{{1,3}})+")
_WINDOWS_1251 = re.compile(
    r"(?:[РС][\u0402-\u040f\u0452-\u045f\u0490\u0491\u00a0-\u00bb\u2013-\u203a№]){3,}"
)
_QUOTES = set("‘’“”‹›„‚»«´¨…–—")
_TAG = (
    r"</?(?:a|abbr|b|big|blockquote|body|br|center|code|div|em|font|form|h[1-6]|head|hr|html|i|img|"
    r"input|li|link|meta|ol|p|pre|s|script|small|span|strong|style|sub|sup|table|tbody|td|th|title|"
    r"tr|tt|u|ul)(?:\s+[a-zA-Z:-]+\s*=[^<>]*|\s*)/?>|<!--|<!\[CDATA\["
)
_MARKUP = re.compile(f"{ENTITIES.pattern}|{_TAG}")
_CUT = re.compile(f"{SUBWORDS.pattern}|<unk>")
_LATIN = "[A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u1e00-\u1eff]"
_CYRILLIC = "[\u0400-\u0481\u048a-\u052f]"
_MIXED = re.compile(f"{_CYRILLIC}(?:(?={_LATIN})|(?<={_LATIN}{_CYRILLIC}))")


def check_pairs(chunk: Chunk, profile: Profile) -> NDArray[np.float64]:
    """Find faults of pairs; return the evidence of words, in nats, that the sides of each belong
    together, 0 for pairs with another finding.
    """
    find_faults(chunk)
    known = np.array(chunk.blank.any(0))
    chunk.add("blank", known)
    same = np.array(list(map(is_identical, zip(*chunk.texts, strict=True))), bool)
    same &= ~known & (chunk.words[0].counts > 0)
    chunk.add("same", same, ranks=-chunk.lengths[:, 0].astype(float))
    known |= same
    if profile.has_words:
        known |= _find_other_languages(chunk, profile, known)
    if profile.has_scripts:
        known |= _find_other_scripts(chunk, profile, known)
    if profile.has_words:
        far, spread = profile.ratio.distance(chunk.lengths)
        odd = ~known & (far >= FAR_RATIO) & (spread >= FAR_SPREAD)
        chunk.add("ratio", odd & (chunk.lengths.max(1) >= MIN_CHARACTERS), ranks=-spread)
    if not profile.has_associations:
        return np.zeros(len(chunk))
    words = profile.associations.evidence(*chunk.words)
    longer = np.maximum(*(side.counts for side in chunk.words))
    misfit = ~known & (words <= -profile.misfit) & (words <= -MISFIT_A_WORD * longer)
    chunk.add("misfit", misfit, ranks=words)
    return np.where(known, 0.0, words)


def _find_other_languages(chunk: Chunk, profile: Profile, known: Mask) -> Mask:
    """Find sides whose words are those of the other side."""
    src, tgt = (profile.leaning.of(words) for words in chunk.words)
    swapped = (src <= -SURE / 2) & (tgt >= SURE / 2) & (tgt - src >= 2 * SURE)
    source = ~swapped & (src <= -SURE) & (tgt <= -SURE)
    target = ~swapped & (src >= SURE) & (tgt >= SURE)
    chunk.add("swapped", swapped & ~known, ranks=src - tgt)
    chunk.add("other_language", source & ~known, 0, ranks=src, about="(source)")
    chunk.add("other_language", target & ~known, 1, ranks=-tgt, about="(target)")
    return swapped | source | target


def _find_other_scripts(chunk: Chunk, profile: Profile, known: Mask) -> Mask:
    """Find lines of which most letters are of scripts that are not at home on their side."""
    found = np.zeros(len(chunk), bool)
    for side, name in enumerate(("source", "target")):
        letters, own = chunk.letters[side], profile.home(side, chunk.findings.languages[side])
        foreign = [script for script in letters if script not in own]
        if not own or not foreign:
            continue
        counts = np.array([letters[script] for script in foreign])
        main, count = counts.argmax(0), counts.sum(0)
        is_latin = np.array([script == "LATIN" for script in foreign])[main]
        odd = ~known & (count >= np.where(is_latin, MIN_FOREIGN_LATIN, MIN_LETTERS))
        odd &= 2 * count > sum(letters.values())
        for number, script in enumerate(foreign):
            about = f"({name} mostly {name_of(script)})"
            ranks = -count.astype(float)
            chunk.add("script", odd & (main == number), side, ranks=ranks, about=about)
        found |= odd
    return found


def find_long_pairs(chunk: Chunk, tokenizer: Tokenizer | None, max_length: int) -> None:
    """Find pairs that training drops for their length; `max_length` is in tokens with eos."""
    if tokenizer is None:
        lengths = np.maximum(*(words.counts for words in chunk.words)) * PIECES_A_WORD
        chunk.add("long", lengths >= max_length - 1, ranks=-lengths, about="(estimated)")
        return
    sizes = np.array([[len(text.encode("utf-8")) for text in texts] for texts in chunk.texts])
    rows = np.flatnonzero(sizes.max(0) >= max_length - 1)  # no text has many more tokens than bytes
    lengths = np.zeros(len(chunk))
    for texts in chunk.texts:
        some = [shorten_text(texts[row], MAX_TEXT_LENGTH) for row in rows.tolist()]
        counts = [len(ids) for ids in tokenizer.encode(some)]
        lengths[rows] = np.maximum(lengths[rows], counts)
    chunk.add("long", lengths >= max_length, ranks=-lengths, about=f"{max_length}")


def find_faults(chunk: Chunk) -> None:
    """Add what is found in the texts of a chunk."""
    for side, texts in enumerate(chunk.texts):
        found: dict[str, NDArray[np.int64]] = {}  # index of the first character with it, or -1
        for row, text in enumerate(texts):
            for kind, place in _faults(text):
                if place is not None:
                    found.setdefault(kind, np.full(len(texts), -1))[row] = place
        for kind, places in found.items():
            chunk.add(kind, places >= 0, side, places=places)


def _faults(text: str) -> Iterator[tuple[str, int | None]]:
    """Yield the kinds of faults that a text may have, and where the first of each begins."""
    if not text.isprintable() or _SEEMS_PRINTABLE.search(text):
        yield "control", _first(_CONTROL, text)
        yield "invisible", _first(_INVISIBLE[bool(_SHAPED.search(text))], text)
        yield "no_character", _first(_NO_CHARACTER, text)
    if not text.isascii():
        yield "mojibake", _find_mojibake(text)
        yield "decomposed", _find_decomposed(text)
        yield "mixed_word", _first(_MIXED, text)
    if "<" in text or "&" in text:
        yield "markup", _first(_MARKUP, text)
    if "@" in text or "#" in text or "▁" in text or "￭" in text or "<" in text:
        yield "subwords", _first(_CUT, text)


def _first(pattern: "re.Pattern[str] | regex.Pattern[str]", text: str) -> int | None:
    match = pattern.search(text)
    return match.start() if match else None


def _find_mojibake(text: str) -> int | None:
    """Find UTF-8 that was read as Windows-1252, Latin-1 or Windows-1251."""
    runs = (match.start() for match in _RUN.finditer(text) if _is_mojibake(match))
    places = [next(runs, None), _first(_WINDOWS_1251, text)]
    return min((place for place in places if place is not None), default=None)


def _is_mojibake(match: "re.Match[str]") -> bool:
    """Whether characters are misdecoded UTF-8, and not letters before a closing quote."""
    run, following = match.group(), match.string[match.end() : match.end() + 1]
    data = bytes(_BYTES.get(char, ord(char) if ord(char) < 256 else 0) for char in run)
    meant = data.decode("utf-8", "ignore")
    if len(meant) != 1:
        return len(meant) > 1
    ends_in_quote = len(run) < 4 and run[-1] in _QUOTES and not following.isalpha()
    is_usual = meant <= "\u017f" or "\u2010" <= meant < "\u2c00" or meant >= "\ufffd"
    return is_usual and not ends_in_quote and run[0] in "ÂÃÄÅâïð"


def _find_decomposed(text: str) -> int | None:
    """Find a letter that is followed by its accent, where there is a letter with it."""
    pairs = (match for match in _APART.finditer(text) if len(normalize("NFC", match.group())) == 1)
    return next((match.start() for match in pairs), None)
