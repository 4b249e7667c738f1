"""Patterns of marks that tokenizers, subword splitters and HTML pages leave in text."""

import re
from html.entities import name2codepoint

# Marks of subwords, and tokens such as @-@ for punctuation within a word or a number.
SUBWORDS = re.compile(r"(?:^|\w)@@(?=\s|$)|▁|￭|</w>|(?:^|\s)##\w|(?:^|\s)@[-,.:/&]@(?=\s|$)")
ENTITIES = re.compile(
    rf"&(?:{'|'.join(name2codepoint)}|apos|AMP|LT|GT|QUOT|bar|"
    r"#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});"
)
