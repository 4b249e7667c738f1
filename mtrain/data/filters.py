"""Filters of the training text. The pairs that each drops are counted by reason."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import regex
from numpy.typing import NDArray

from mtrain.config.schema import FilterConfig
from mtrain.corpus.lines import CHARACTERS_PER_TOKEN, DROPPED
from mtrain.corpus.readers import Pair

FILTERS = 2  # version of the filters, a part of cache keys
# Control characters other than tabs, line separators, surrogates, private use, noncharacters, and
# the replacement characters U+FFFC and U+FFFD.
_CONTROL = re.compile(
    "[\0-\x08\n-\x1f\x7f-\x9f\u2028\u2029\ud800-\uf8ff\ufdd0-\ufdef\ufffc-\uffff"
    "\U000f0000-\U0010ffff]"
)


@dataclass(frozen=True)
class Selection:
    """The filter for training pairs, and the tag of their sources. Lengths are in tokens with eos
    and tag.
    """

    max_length: int
    filter: FilterConfig
    tag: str | None = None

    def by_text(self, pairs: list[Pair], dropped: Counter[str]) -> list[Pair]:
        """Keep the pairs whose text passes."""
        for reason, is_bad in self.text_checks().items():
            kept = [pair for pair in pairs if not is_bad(pair)]
            dropped[DROPPED + reason] += len(pairs) - len(kept)
            pairs = kept
        return pairs

    def by_characters(
        self, pairs: list[Pair], longest_piece: int, dropped: Counter[str]
    ) -> list[Pair]:
        """Drop pairs that are certainly too long in tokens, before they are encoded: that takes
        fifty times the memory of a text.
        """
        limit = self.max_length * max(CHARACTERS_PER_TOKEN, longest_piece)
        kept = [pair for pair in pairs if len(pair[0]) <= limit and len(pair[1]) <= limit]
        dropped[DROPPED + self._too_long] += len(pairs) - len(kept)
        return kept

    @property
    def _too_long(self) -> str:
        return f"longer than {self.max_length} tokens"

    def by_length(self, lengths: NDArray[np.int64], dropped: Counter[str]) -> NDArray[np.bool_]:
        """Return which pairs pass, by their lengths (pairs, 2) without eos."""
        passed = np.ones(len(lengths), bool)
        for reason, is_bad in self.length_checks(lengths).items():
            dropped[DROPPED + reason] += int((passed & is_bad).sum())
            passed &= ~is_bad
        return passed

    def length_checks(self, lengths: NDArray[np.generic]) -> dict[str, NDArray[np.bool_]]:
        """Return which pairs each filter of lengths drops, by the reason that is counted."""
        lengths = lengths + 1
        shorter, longer = lengths.min(1), lengths.max(1)
        min_length = self.filter.min_length
        max_ratio = self.filter.max_ratio or np.inf
        return {
            self._too_long: longer > self.max_length,
            f"shorter than {min_length} tokens": shorter < min_length,
            f"one side over {max_ratio} times as long": longer > max_ratio * shorter,
        }

    def text_checks(self) -> dict[str, Callable[[Pair], bool]]:
        """Return the text filters by the reason that is counted; each returns whether to drop a
        pair.
        """
        settings = self.filter
        checks = dict[str, Callable[[Pair], bool]]()
        if settings.identical:
            checks["the same text on both sides"] = is_identical
        if settings.control:
            checks["control or invalid characters"] = lambda pair: any(map(_CONTROL.search, pair))
        for side, name in enumerate(("src_script", "tgt_script")):
            if scripts := getattr(settings, name):
                wanted = "".join(rf"\p{{Script_Extensions={script}}}" for script in scripts)
                other_letters = regex.compile(rf"(?V1)[\p{{L}}--[{wanted}]]")
                check = partial(_is_mostly_other, side, other_letters, settings.script_share)
                checks[f"{name} is not {' or '.join(scripts)}"] = check
        return checks


def is_identical(pair: Pair) -> bool:
    """Whether both sides are the same text, except for white space around it."""
    return pair[0].strip() == pair[1].strip()


def _is_mostly_other(
    side: int, other_letters: "regex.Pattern[str]", fraction: float, pair: Pair
) -> bool:
    """Whether less than `fraction` of a side's letters are of the wanted scripts."""
    letters = sum(map(str.isalpha, pair[side]))
    return letters - len(other_letters.findall(pair[side])) < fraction * letters
