"""Marks that tokenizers, subword splitters, tables and HTML pages leave in text."""

import re
from html.entities import name2codepoint

# Marks of subwords, and tokens such as @-@ for punctuation within a word or a number. `Ġ` begins
# the pieces of byte-level BPE; in Maltese it is a letter, but seldom begins two words in a row.
# Each alternative begins with a certain character: the search skips all others (15 times as fast).
SUBWORDS = re.compile(
    r"@@(?<!\W@@)(?=\s|$)|▁|￭|</w>|##(?<!\S##)\w|@[-,.:/&]@(?<!\S@.@)(?=\s|$)|Ġ(?<!\SĠ)\w+ Ġ\w"
)
# Also special tokens of other programs, bytes as pieces, and brackets of the Penn Treebank.
SUBWORD_MARKS = re.compile(
    rf"{SUBWORDS.pattern}|⁇|<(?i:unk|bos|eos|sos)>|\[(?:UNK|CLS|SEP|MASK)\]|<\|[a-z_]+\|>|"
    r"<0x[0-9A-F]{2}>|-[LR][RSC]B-"
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
MARKUP = re.compile(f"{ENTITIES.pattern}|{TAGS.pattern}")


def is_quoted(text: str) -> bool:
    """Whether a text is in double quotes."""
    return len(text) > 1 and text[0] == text[-1] == '"'


def is_quoted_cell(text: str) -> bool:
    """Whether a text is in double quotes, and all quotes in it are doubled, as in a CSV file."""
    inner = text[1:-1]
    return f'"{inner}"' == text and '"' not in inner.replace('""', "")
