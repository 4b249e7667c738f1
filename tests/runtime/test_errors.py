"""How messages show text from outside."""

import pytest

from mtrain.runtime.errors import printable


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "Qu\u2019est-ce\u00a0? Bonjour\u202f!",  # no-break spaces
        "\u6771\u4eac\u3000\u5927\u962a",  # the ideographic space
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian, with a non-joiner
        "\u0915\u094d\u200d\u0937",  # Hindi, with a joiner
        "\u1780\u17b6\u200b\u1793\u17b7\u1784",  # Khmer, with a space of no width
        "\U0001f469\u200d\U0001f680",  # an emoji of two
        "\u2764\ufe0f\u200d\U0001f525",
    ],
)
def test_text_of_a_language_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\x1b[31m\x9b", "a\\nb\\x1b[31m\\x9b"),
        ("a\u200cb \u200d", "a\\u200cb \\u200d"),  # joiners that join nothing
        ("\u200db", "\\u200db"),
        ("a\u200bb \u200b\u1780", "a\\u200bb \\u200b\u1780"),  # spaces of no width
        ("a\u202eb\u2066\u200f", "a\\u202eb\\u2066\\u200f"),  # would turn the line around
        ("a\u2028b\u00ad\ufeff", "a\\u2028b\\xad\\ufeff"),
        ("\udcff \ue000 \U000f0000", "\\udcff \\ue000 \\U000f0000"),
    ],
)
def test_characters_that_are_not_seen_are_spelled_out(text: str, shown: str) -> None:
    assert printable(text) == shown
