"""Marks that the preparation of text for a model, or for a page of HTML, leaves in it."""

import re

SUBWORDS = re.compile(r"(?:^|\w)@@(?=\s|$)|▁|￭|</w>|(?:^|\s)##\w")
HYPHENS = re.compile(r"(?:^|\s)@[-,.:/&]@(?=\s|$)")  # tokens for signs within a word or a number
ENTITIES = re.compile(
    r"&(?:amp|lt|gt|quot|apos|nbsp|copy|reg|[lr][ds]?quo|hellip|[mn]dash|shy|euro|bar|bull|middot|"
    r"laquo|raquo|[a-zA-Z](?:acute|grave|circ|uml|tilde|cedil|ring|slash)|szlig|eth|thorn|"
    r"#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});"
)
