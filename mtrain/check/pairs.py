"""Checks of pairs: each function checks a chunk for one kind of fault."""

import re
import unicodedata
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mtrain.check.characters import ODD, PIECES_A_WORD
from mtrain.check.findings import Chunk, Findings
from mtrain.check.profile import Profile
from mtrain.corpus.lines import LONGEST_TEXT, is_blank, shorten_text
from mtrain.corpus.markup import ENTITIES, HYPHENS, SUBWORDS
from mtrain.corpus.writing_systems import JOINING, name_of
from mtrain.data.filters import is_identical
from mtrain.data.tokenizer import Tokenizer

Rows = NDArray[np.int64]

LEAST_LETTERS = 5  # of a line in another script
LEAST_FOREIGN_LATIN = 20  # names and commands in Latin letters occur in texts of all scripts
SURE = 7.0  # nats for a line to be in the other side's language
LEAST_PAIRS = 200  # in a sample from which words and lengths are learned
FAR_RATIO, FAR_SPREAD = 1.1, 5.0  # logarithm, three times the usual; standard deviations
LEAST_CHARACTERS = 30  # of the longer side, for its length to be suspicious

_CP1252 = {byte: bytes([byte]).decode("cp1252", "replace") for byte in range(0x80, 0xC0)}
_FOLLOWING = "".join(char for char in _CP1252.values() if char != "\ufffd") + "\x81\x8d\x8f\x90\x9d"
_BYTES = {char: byte for byte, char in _CP1252.items() if char != "\ufffd"}
_RUN = re.compile(rf"(?:[\u00c2-\u00f4][\x80-\x9f{re.escape(_FOLLOWING)}]{{1,3}})+")
_CYRILLIC = re.compile(
    r"(?:[РС][\u0402-\u040f\u0452-\u045f\u0490\u0491\u00a0-\u00bb\u2013-\u203a№]){3,}"
)
_GARBLED = re.compile("锟斤拷|ï¿½|ðŸ[\x80-\xbf‘-“˜™]")
PIECE = 200  # characters that are normalized together
_EMOJI = re.compile("[\u2190-\u21ff\u2300-\u2bff\U0001f000-\U0001faff]")
_QUOTES = set("‘’“”‹›„‚»«´¨…–—")
_TAG = (
    r"</?(?:a|abbr|b|big|blockquote|body|br|center|code|div|em|font|form|h[1-6]|head|hr|html|i|img|"
    r"input|li|link|meta|ol|p|pre|s|script|small|span|strong|style|sub|sup|table|tbody|td|th|title|"
    r"tr|tt|u|ul)(?:\s+[a-zA-Z:-]+\s*=[^<>]*|\s*)/?>|<!--|<!\[CDATA\["
)
_MARKUP = re.compile(f"{ENTITIES.pattern}|{_TAG}")
_CUT = re.compile(f"{SUBWORDS.pattern}|{HYPHENS.pattern}|<unk>")


def look_at_pairs(chunk: Chunk, profile: Profile, found: Findings) -> NDArray[np.float64]:
    """Find faults of pairs; return the evidence, in nats, that the sides of each belong together,
    by words and by lengths, 0 for pairs with another finding: (2, pairs).
    """
    for side in (0, 1):
        _look_at_side(chunk, side, found)
    blank = _look_for_blanks(chunk, found)
    same = ~blank & np.array(list(map(is_identical, zip(*chunk.texts, strict=True))))
    same &= chunk.words[0].counts > 0
    rows = np.flatnonzero(same)
    found.add_rows("same", chunk, rows, ranks=-chunk.lengths[rows, 0].astype(float))
    told = blank | same
    if profile.pairs >= LEAST_PAIRS:
        told |= _look_at_languages(chunk, profile, found, told)
    told |= _look_at_scripts(chunk, profile, found, told)
    if profile.pairs >= LEAST_PAIRS:
        _look_at_lengths(chunk, profile, found, told)
    if not profile.has_associations:
        return np.zeros((2, len(chunk)))
    words, lengths = (
        profile.associations.evidence(*chunk.words),
        profile.ratio.evidence(chunk.lengths),
    )
    return np.where(told, 0.0, np.stack((words, lengths)))


def _look_at_side(chunk: Chunk, side: int, found: Findings) -> None:
    """Find characters and marks that text should not have."""
    lines = chunk.lines[side]
    odd = chunk.characters.odd[lines.codes]
    places = np.flatnonzero(odd)
    for kind in np.unique(odd[places]).tolist():
        some = places[odd[places] == kind]
        rows, first = np.unique(lines.lines[some], return_index=True)
        begins = np.searchsorted(lines.lines, rows)
        spots = dict(zip(rows.tolist(), (some[first] - begins).tolist(), strict=True))
        if ODD[kind] == "mark":
            rows = rows[~_joins(chunk, side, rows)]
        found.add_rows(ODD[kind], chunk, rows, side, spots=spots)
    for kind, search in _SEARCHES:
        found_at = ((row, search(text)) for row, text in enumerate(chunk.texts[side]))
        spots = {row: spot for row, spot in found_at if spot is not None}
        others = [search(chunk.texts[1 - side][row]) for row in spots]
        ranks = np.array([float(spot is not None) for spot in others])
        rows = np.array(list(spots), np.int64)  # characters on one side only come first
        found.add_rows(kind, chunk, rows, side, ranks=ranks, spots=spots)
    _look_for_mixed_words(chunk, side, found)


def _joins(chunk: Chunk, side: int, rows: Rows) -> NDArray[np.bool_]:
    """Whether lines have letters or signs that are joined or marked in the normal spelling."""
    letters = _has_letters(chunk, side, rows, JOINING)
    texts = (chunk.texts[side][row] for row in rows.tolist())
    signs = np.array([_EMOJI.search(text) is not None for text in texts], bool)
    either: NDArray[np.bool_] = letters | signs
    return either


def _has_letters(chunk: Chunk, side: int, rows: Rows, scripts: set[str]) -> NDArray[np.bool_]:
    """Whether lines have letters of some scripts."""
    chosen = [n for n, name in enumerate(chunk.characters.scripts) if name in scripts]
    found: NDArray[np.bool_] = (
        chunk.characters.letters(chunk.lines[side])[rows][:, chosen].sum(1) > 0
    )
    return found


def _look_for_mixed_words(chunk: Chunk, side: int, found: Findings) -> None:
    scripts = chunk.characters.scripts
    if "LATIN" not in scripts or "CYRILLIC" not in scripts:
        return
    lines = chunk.lines[side]
    letters = chunk.characters.script[lines.codes]
    latin, cyrillic = letters == scripts.index("LATIN"), letters == scripts.index("CYRILLIC")
    mixed = (latin[1:] & cyrillic[:-1]) | (latin[:-1] & cyrillic[1:])
    mixed &= lines.lines[1:] == lines.lines[:-1]
    found.add_rows("mixed_word", chunk, np.unique(lines.lines[1:][mixed]), side)


def _find_mojibake(text: str) -> int | None:
    """Find UTF-8 that was read as Windows-1252, Latin-1 or Windows-1251."""
    if text.isascii():
        return None
    spots = [match.start() for match in _RUN.finditer(text) if _is_mojibake(text, match)]
    others = (pattern.search(text) for pattern in (_CYRILLIC, _GARBLED))
    return min(spots + [match.start() for match in others if match], default=None)


def _is_mojibake(text: str, match: "re.Match[str]") -> bool:
    """Whether characters are misdecoded UTF-8, and not letters before a closing quote."""
    run = match.group()
    data = bytes(_BYTES.get(char, ord(char) if ord(char) < 256 else 0) for char in run)
    meant = data.decode("utf-8", "ignore")
    if not meant:
        return False
    following = text[match.end() : match.end() + 1]
    ends_in_quote = run[-1] in _QUOTES and not following.isalpha()
    if len(meant) == 1 and (
        ends_in_quote or not (meant <= "\u017f" or "\u2010" <= meant < "\u2c00")
    ):
        return False
    return len(meant) > 1 or run[0] in "ÂÃÄÅâ"


def _find_markup(text: str) -> int | None:
    match = _MARKUP.search(text) if "<" in text or "&" in text else None
    return match.start() if match else None


def _find_subwords(text: str) -> int | None:
    marked = "@" in text or "#" in text or "▁" in text or "￭" in text or "<" in text
    match = _CUT.search(text) if marked else None
    return match.start() if match else None


def _find_decomposed(text: str) -> int | None:
    """Find a letter that is followed by its accent, where there is a letter with it."""
    if text.isascii():
        return None
    for start in range(0, len(text), PIECE):  # the time grows with the square of marks in a row
        piece = text[start : start + PIECE]
        composed = unicodedata.normalize("NFC", piece)
        if len(composed) < len(piece):  # others become more characters, or as many
            pairs = enumerate(zip(piece, composed, strict=False), start)
            return next((n for n, (a, b) in pairs if a != b), start + len(composed))
    return None


_SEARCHES: list[tuple[str, Callable[[str], int | None]]] = [
    ("mojibake", _find_mojibake),
    ("markup", _find_markup),
    ("subwords", _find_subwords),
    ("decomposed", _find_decomposed),
]


def _look_for_blanks(chunk: Chunk, found: Findings) -> NDArray[np.bool_]:
    src, tgt = (np.array(list(map(is_blank, texts)), bool) for texts in chunk.texts)
    for kind, odd in (
        ("blank_source", src & ~tgt),
        ("blank_target", tgt & ~src),
        ("blank_both", src & tgt),
    ):
        found.add_rows(kind, chunk, np.flatnonzero(odd))
    blank: NDArray[np.bool_] = src | tgt
    return blank


def _look_at_scripts(
    chunk: Chunk, profile: Profile, found: Findings, told: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Find lines of which most letters are of scripts that are not at home on their side."""
    is_odd = np.zeros(len(chunk), bool)
    for side, name in enumerate(("source", "target")):
        letters = chunk.characters.letters(chunk.lines[side])
        foreign = np.where(profile.scripts[side][: letters.shape[1]], 0, letters)
        main = foreign.argmax(1)
        least = np.where(
            np.array(chunk.characters.scripts)[main] == "LATIN", LEAST_FOREIGN_LATIN, LEAST_LETTERS
        )
        count = foreign.sum(1)
        odd = ~told & (count >= least) & (2 * count > letters.sum(1))
        for script in np.unique(main[odd]).tolist():
            rows = np.flatnonzero(odd & (main == script))
            about = f"({name} mostly {name_of(chunk.characters.scripts[script])})"
            found.add_rows(
                "script", chunk, rows, side, ranks=-count[rows].astype(float), about=about
            )
        is_odd |= odd
    return is_odd


def _look_at_languages(
    chunk: Chunk, profile: Profile, found: Findings, told: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Find sides whose words are those of the other side."""
    src, tgt = (profile.leaning.of(words) for words in chunk.words)
    swapped = (src <= -SURE / 2) & (tgt >= SURE / 2) & (tgt - src >= 2 * SURE)
    source = ~swapped & (src <= -SURE) & (tgt <= -SURE)
    target = ~swapped & (src >= SURE) & (tgt >= SURE)
    for kind, odd, ranks in (
        ("swapped", swapped, src - tgt),
        ("source_language", source, src),
        ("target_language", target, -tgt),
    ):
        rows = np.flatnonzero(odd & ~told)
        found.add_rows(kind, chunk, rows, ranks=ranks[rows])
    return swapped | source | target


def _look_at_lengths(
    chunk: Chunk, profile: Profile, found: Findings, told: NDArray[np.bool_]
) -> None:
    """Find pairs with one side far longer, or shorter, than normal."""
    far, spread = profile.ratio.distance(chunk.lengths)
    odd = ~told & (far >= FAR_RATIO) & (spread >= FAR_SPREAD)
    odd &= chunk.lengths.max(1) >= LEAST_CHARACTERS
    rows = np.flatnonzero(odd)
    found.add_rows("ratio", chunk, rows, ranks=-spread[rows])


def look_for_long_lines(
    chunk: Chunk, tokenizer: Tokenizer | None, max_length: int, found: Findings
) -> None:
    """Find pairs that are too long to be learned from; `max_length` is in tokens with eos."""
    longest = np.maximum(*(words.counts for words in chunk.words)) * PIECES_A_WORD
    if tokenizer is not None:  # no text has more tokens than bytes
        sizes = [[len(text.encode("utf-8")) for text in texts] for texts in chunk.texts]
        longest = np.array(sizes).max(0).astype(float)
    rows = np.flatnonzero(longest >= max_length - 1)
    if tokenizer is not None:
        lengths = token_lengths(chunk.select(rows), tokenizer).max(1, initial=0)
        rows, lengths = rows[lengths >= max_length], lengths[lengths >= max_length]
    else:
        lengths = longest[rows]
    about = "(estimated)" if tokenizer is None else f"{max_length}"
    found.add_rows("long", chunk, rows, ranks=-lengths.astype(float), about=about)


def token_lengths(chunk: Chunk, tokenizer: Tokenizer | None) -> NDArray[np.int64]:
    """Count the tokens of pairs without eos, shape (pairs, 2), or estimate them."""
    if tokenizer is None:
        counts = np.stack([words.counts for words in chunk.words], 1)
        estimated: NDArray[np.int64] = np.ceil(counts * PIECES_A_WORD).astype(np.int64)
        return estimated
    sides = [
        [len(ids) for ids in tokenizer.encode([shorten_text(t, LONGEST_TEXT) for t in texts])]
        for texts in chunk.texts
    ]
    lengths: NDArray[np.int64] = np.array(sides, np.int64).T.reshape(-1, 2)
    return lengths
