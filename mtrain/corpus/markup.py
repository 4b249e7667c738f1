"""Marks that tokenizers, subword splitters, tables and HTML pages leave in text."""

import re
from html.entities import name2codepoint

# Marks of subwords, and tokens such as @-@ for punctuation within a word or a number. `Ġ` begins
# the pieces of byte-level BPE; in Maltese it is a letter, but seldom begins two words in a row.
SUBWORDS = re.compile(
    r"(?:^|\w)@@(?=\s|$)|▁|￭|</w>|(?:^|\s)##\w|(?:^|\s)@[-,.:/&]@(?=\s|$)|(?:^|\s)Ġ\w+ Ġ\w"
)
# The last line has entities that were split into tokens, or lost a part.
ENTITIES = re.compile(
    rf"&(?:{'|'.join(name2codepoint)}|apos|AMP|LT|GT|QUOT|bar|"
    r"#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});"
    r"|& ?(?:quot|amp|apos|nbsp|lt|gt) ?;|&(?:quot|apos|nbsp)\b|(?<![&\w])(?:quot|amp|apos|nbsp);"
)


def is_quoted_cell(text: str) -> bool:
    """Whether a text is in double quotes, and all quotes in it are doubled, as in a CSV file."""
    inner = text[1:-1]
    return f'"{inner}"' == text and '"' not in inner.replace('""', "")
