"""Marks that tokenizers, subword splitters, tables and documents leave in text."""

import re
from html.entities import name2codepoint

from mtrain.corpus.writing_systems import LATIN

# Marks of subwords, and tokens such as @-@ for punctuation within a word or a number. `Ġ` begins
# the pieces of byte-level BPE; in Maltese it is a letter, but seldom begins two words in a row.
# Each alternative begins with a certain character: the search skips all others (15 times as fast).
SUBWORDS = re.compile(
    r"@@(?<!\W@@)(?=\s|$)|▁|￭|</w>|##(?<!\S##)\w|@[-,.:/&]@(?<!\S@.@)(?=\s|$)|Ġ(?<!\SĠ)\w+ Ġ\w"
)
# Also special tokens of other programs, bytes as pieces, and brackets of the Penn Treebank.
SUBWORD_MARKS = re.compile(
    rf"{SUBWORDS.pattern}|⁇|<(?i:unk|bos|eos|sos)>|\[(?:UNK|CLS|SEP|MASK)\]|<\|[a-z_]+\|>|"
    r"<0x[0-9A-F]{2}>|-[LR][RSC]B-(?<!\w.{5})(?!\w)"
)
# The last line has entities that were split into tokens, or lost a part.
ENTITIES = re.compile(
    rf"&(?:{'|'.join(name2codepoint)}|apos|AMP|LT|GT|QUOT|bar|"
    r"#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});"
    r"|& ?(?:quot|amp|apos|nbsp|lt|gt) ?;|&(?:quot|apos|nbsp)\b|(?<![&\w])(?:quot|amp|apos|nbsp);"
)
_TAG = (
    "a|abbr|b|big|blockquote|body|br|center|code|div|em|font|form|h[1-6]|head|hr|html|i|img|input|"
    "li|link|meta|ol|p|pre|s|script|small|span|strong|style|sub|sup|table|tbody|td|th|title|tr|tt|"
    "u|ul"
)
# Other words in capitals may be placeholders or keys, such as <INPUT> and <P>.
_TAG_IN_CAPITALS = "BLOCKQUOTE|BODY|BR|CENTER|DIV|H[1-6]|HR|HTML|LI|OL|PRE|STRONG|TD|TR|UL"
# Elements of XLIFF and TMX within a text, and of the SGML files of test sets, if they have an
# attribute or end a text; and the marks of segments in files of Trados.
_XML = "bpt|bx|doc|ept|ex|g|hi|it|mrk|ph|seg|tuv?|ut|x"
_SEGMENT = r"</(?i:bpt|ept|mrk|seg|tuv|ut)\s*>|\{0>|<\}\d{1,3}\{>|<0\}"
# Without attributes, these may be placeholders, too, such as <link>.
_NEVER_BARE = "font|form|img|input|link|meta"
TAGS = re.compile(
    rf"<(?!(?:{_NEVER_BARE})\b)(?:{_TAG}|{_TAG_IN_CAPITALS})\s*/?>|</(?i:{_TAG})\s*>"
    rf"|<(?i:{_TAG}|{_XML})\s+[a-zA-Z:-]+\s*=[^<>]*>|<!--|<!\[CDATA\[|{_SEGMENT}"
)
# Times and tags of subtitles.
_SUBTITLES = r"\d:\d\d[,.]\d{3} --> \d|\{\\(?:an?\d|[ibu][01]|pos\()"
MARKUP = re.compile(f"{ENTITIES.pattern}|{TAGS.pattern}|{_SUBTITLES}")
# Characters as they are in JSON, Python, quoted-printable text, URLs, UTF-7, SQL and CSV.
ESCAPED = re.compile(
    r"(?<!\\)\\u(?!00[01])[0-9a-fA-F]{4}|\\x[c-fC-F][0-9a-fA-F]\\x[89abAB][0-9a-fA-F]|"
    r"=[C-F][0-9A-F]=[89AB][0-9A-F]|%[C-Fc-f][0-9A-Fa-f]%[89ABab][0-9A-Fa-f]|"
    r"\+A[A-Za-z0-9+/]{2}-(?<=\w.{5})|"
    r"(?<=[^\s\\])\\[nrt](?:$|(?![a-z])[^\W\d_])|(?<=[.!?])\\[nrt]|"
    r"(?<=\w)\\'(?=\w)|\\\"\w[^\"\\]*\\\"|(?<!\S)[^\s/:]+%20[^\s/]*%20|"
    rf"(?<!\S){LATIN}+''(?={LATIN})|^[^\"]*(?<!\w)\"\"\w[^\"]*\"\"(?![\w\"])"
)
# Quotes and brackets around a text, as in lists of Python and JSON.
_AROUND = [each.split() for each in ('" "', "' '", "b' '", 'b" "', "[ ]", "{ }", "“ ”", "** **")]
# What programs write in place of a text that is missing, or of a formula that failed.
_MISSING = re.compile(
    r"\A\s*(?:nan|NaN|NA|None|NULL|null|\\N|N/A|#(?:N/A|NAME\?|REF!|VALUE!|DIV/0!))\s*\Z"
)


def is_missing(text: str) -> bool:
    """Whether a text is a sign that there is none, such as NULL."""
    return len(text) < 20 and _MISSING.match(text) is not None


def is_quoted(text: str) -> bool:
    """Whether a text is in double quotes."""
    return len(text) > 1 and text[0] == text[-1] == '"'


def is_enclosed(text: str) -> bool:
    """Whether a text is in quotes or brackets, perhaps with a comma after them."""
    text = text.strip().removesuffix(",")
    return any(text.startswith(begin) and text.endswith(end, len(begin)) for begin, end in _AROUND)


def is_quoted_cell(text: str) -> bool:
    """Whether a text is in double quotes, and all quotes in it are doubled, as in a CSV file."""
    inner = text[1:-1]
    return f'"{inner}"' == text and '"' not in inner.replace('""', "")
