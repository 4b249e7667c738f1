"""Find text that a program added to texts of one side, such as "Translation: ".

What texts begin or end with was added if

- lengths of texts and translations match far better without it, and no word of the translations
  occurs with it more often than elsewhere, as its own translation would; or
- nearly all texts have it, and most translations do not begin or end alike; or
- nearly all texts have one of several, such as names, on which translations do not depend.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import NamedTuple
from unicodedata import normalize

import numpy as np
import regex

SAMPLE = 10_000  # texts, about, that are looked at
MIN_COUNT, MIN_FRACTION = 30, 0.003  # texts with an addition
MAX_TOKENS = 8  # of an addition
# Standard errors by which the median ratio of lengths is larger with an addition than elsewhere.
MIN_ERRORS = 4.0
MAX_LEFT = 0.5  # fraction of the surplus length that may be left without the addition
# Texts with an addition must not have a word in their translations more often than by chance, by
# more than this many standard deviations. Words in fewer of these translations do not count.
MAX_EXCESS, MIN_SHARED, MIN_SHARED_FRACTION = 5.0, 4, 0.1
# Fractions of the texts and of the gain of an addition, from which a longer one is preferred.
SAME, NEARLY_BEST = 0.9, 0.8
SHARED = 0.99  # fraction of the texts with an addition that have a part of it that is shown
MAX_LENGTH, MAX_END = 2000, 200  # characters of a translation, and of the end of a text
# Fraction of the texts with an addition that nearly all have, and of the translations that may
# share a beginning or an end.
NEARLY_ALL, MAX_SHARED = 0.9, 0.5
MAX_REPEATED = 0.5  # fraction of the texts with an addition that may be the same text
# If nearly all texts have one of several additions: texts with each of these, and fraction of all
# texts that have one on which their translations do not depend.
MIN_SAME, MIN_INDEPENDENT = 5, 0.7
COMMAS = frozenset(",，、،")
NUMBER_FORM = "0"  # stands for each number when texts are compared
_TOKEN = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\p{M}*|[\w\p{M}]+|[^\w\s]+"
)
# A number, a word without numbers, spaces, or a single mark; the second one searches from the end.
_ATOMS = [
    regex.compile(reverse + r"\p{Nd}+|(?:[^\W\p{Nd}]|\p{M})+|\s+|.") for reverse in ("", "(?r)")
]
_SENTENCE_END = regex.compile(r"^[^\w\s]+\s+")  # of the text before an addition
_DIGITS = regex.compile(r"\p{Nd}+")
# of a language, for example, before a text
_TAG = regex.compile(r"<\S{1,99}?>|>>\S{1,99}?<<|__\S{1,99}?__")


@dataclass(frozen=True)
class Addition:
    """Text that was added to the texts with these indices; `gain` is how much better the lengths
    match without it.
    """

    text: str
    place: str  # where the texts have it: "begin" or "end"
    fraction: float  # of all texts
    indices: list[int]
    gain: float


class _End(NamedTuple):
    """Tokens from the beginning of a text on, or from its end; `sizes[n]` is the length of n."""

    text: str
    from_end: bool
    tokens: list[str]
    sizes: list[int]  # in characters, with the spaces up to the next token

    @staticmethod
    def of(text: str, *, from_end: bool) -> "_End":
        """Find up to `MAX_TOKENS` tokens at an end of a text, and another one, which stays."""
        if not from_end:
            spans = [match.span() for match in islice(_TOKEN.finditer(text), MAX_TOKENS + 1)]
            sizes = [start for start, _ in spans]
        else:
            first = max(0, len(text) - MAX_END)
            spans = [match.span() for match in _TOKEN.finditer(text, first)]
            spans = spans[: -MAX_TOKENS - 2 : -1]
            sizes = [len(text) - end for _, end in spans]
        return _End(text, from_end, [_form(text[start:end]) for start, end in spans], sizes)

    def first(self, count: int) -> str:
        """Return the text of the first tokens."""
        size = self.sizes[count]
        text = self.text[len(self.text) - size :] if self.from_end else self.text[:size]
        return text.strip()

    def shared(self, count: int, others: Iterable["_End"]) -> str:
        """Return the text of the first tokens, extended as far as the other texts are the same;
        NUMBER stands for numbers that differ.
        """
        atoms = [map(itemgetter(0), _ATOMS[self.from_end].finditer(end.text)) for end in others]
        result = ""
        for atom, *same in zip(_ATOMS[self.from_end].finditer(self.text), *atoms, strict=False):
            text, counts = atom[0], Counter(same)
            form = _form(text)
            if sum(counts[each] for each in counts if _form(each) == form) < SHARED * len(same):
                break
            part = "NUMBER" if text[0].isdecimal() and counts.keys() != {text} else text
            result = part + result if self.from_end else result + part
        if self.from_end:
            result = _SENTENCE_END.sub("", result)
        return result.strip() or self.first(count)


class _Texts:
    """Texts, the words of their translations, and the ratios of their lengths."""

    def __init__(self, texts: Sequence[str], others: Sequence[str]) -> None:
        self.words = [set(_TOKEN.findall(_form(other[:MAX_LENGTH]))) for other in others]
        self.totals = Counter(word for words in self.words for word in words)
        lengths, other_lengths = (np.array([*map(len, side)], float) for side in (texts, others))
        self.lengths = lengths
        self.other_logs = np.log(other_lengths + 1)
        self.ratios = np.log(lengths + 1) - self.other_logs
        distances = np.abs(self.ratios - np.median(self.ratios))
        self.deviation = 1.4826 * float(np.median(distances))
        self.least = max(MIN_COUNT, MIN_FRACTION * len(texts))
        self.others = others

    def additions(self, ends: list[_End], indices: Sequence[int], count: int = 1) -> list[Addition]:
        """Return the additions of `count` tokens and more at these ends of the texts with these
        indices, which have the same tokens before.
        """
        by_token = defaultdict[str, list[int]](list)
        for index in indices:
            if len(ends[index].tokens) > count:  # something is left without these tokens
                by_token[ends[index].tokens[count - 1]].append(index)
        result = list[Addition]()
        for group in by_token.values():
            if len(group) < self.least:
                continue
            longer = self.additions(ends, group, count + 1) if count < MAX_TOKENS else []
            if (own := self._addition(ends, group, count)) is None:
                result += longer
            else:
                same = [each for each in longer if len(each.indices) >= SAME * len(group)]
                if any(each.text == own.text for each in same):
                    same = []
                least = NEARLY_BEST * max(each.gain for each in (own, *same))
                result.append(next(each for each in (*same, own) if each.gain >= least))
        return result

    def _addition(self, ends: list[_End], indices: list[int], count: int) -> Addition | None:
        """Return the first `count` tokens of these texts if they are an addition."""
        example = ends[indices[0]]
        # Words alone may be grammar, such as an auxiliary verb at the end of a sentence, and a
        # single mark may be a matter of style. Words with a comma may be of the text ("Indeed,").
        # A number is neither.
        tokens = example.tokens[:count]
        is_common = len(indices) >= NEARLY_ALL * len(ends)
        marks = {token for token in tokens if not token[0].isalnum()}
        is_single = len("".join(tokens)) < 2
        if tokens != [NUMBER_FORM] and (is_single or not (marks if is_common else marks - COMMAS)):
            return None
        if gain := self._gain(ends, indices, count):
            return self._as_addition(ends, indices, count, gain)
        found = self._as_addition(ends, indices, count, 1.0) if is_common else None
        return found if found and self._is_common(found.text, example, count) else None

    def _as_addition(
        self, ends: list[_End], indices: list[int], count: int, gain: float
    ) -> Addition | None:
        """Return what these texts share, unless most of them are the same text."""
        example, *others = (ends[index] for index in indices)
        [(_, repeated)] = Counter(ends[index].text for index in indices).most_common(1)
        if repeated > MAX_REPEATED * len(indices):
            return None
        place = "end" if example.from_end else "begin"
        text = example.shared(count, others)
        return Addition(text, place, len(indices) / len(ends), indices, gain)

    def alternatives(self, ends: list[_End]) -> Iterator[Addition]:
        """Yield what texts have before their first mark, or after the last, such as names, if it
        is in several texts each and in nearly all together, unless translations depend on it.
        """
        groups = defaultdict[tuple[str, ...], list[int]](list)
        for index, end in enumerate(ends):
            tokens = end.tokens[:-1]  # something is left
            marks = (n for n, token in enumerate(tokens) if n and not token[0].isalnum())
            groups[tuple(tokens[: next(marks, -1) + 1])].append(index)
        nearly_all = NEARLY_ALL * len(ends)
        found = [
            (len(key), group)
            for key, group in groups.items()
            if MIN_SAME <= len(group) < nearly_all and any(token[0].isalpha() for token in key)
        ]
        if sum(len(group) for _, group in found) < nearly_all or self.share_an_end:
            return
        found = [each for each in found if self._largest_excess(each[1]) <= MAX_EXCESS]
        if sum(len(group) for _, group in found) >= MIN_INDEPENDENT * len(ends):
            for count, group in found:
                if addition := self._as_addition(ends, group, count, 1.0):
                    yield addition

    def _gain(self, ends: list[_End], indices: list[int], count: int) -> float:
        """Return how much better lengths match without the first `count` tokens of these texts; 0
        unless that is certain.
        """
        size = len(indices)
        if len(ends) - size < MIN_COUNT:  # of the others, which show the usual ratio of lengths
            return 0.0
        usual = float(np.median(np.delete(self.ratios, indices)))
        surplus = float(np.median(self.ratios[indices])) - usual
        # the standard error of a median is 1.2533 times that of a mean
        if surplus < MIN_ERRORS * 1.2533 * self.deviation / math.sqrt(size):
            return 0.0
        sizes = np.array([ends[index].sizes[count] for index in indices])
        if count == MAX_TOKENS:  # an addition may be longer
            example, *others = (ends[index] for index in indices)
            sizes += max(0, len(example.shared(count, others)) - len(example.first(count)))
        lengths = np.maximum(0, self.lengths[indices] - sizes)
        logs = np.log(lengths + 1) - self.other_logs[indices]
        left = abs(float(np.median(logs)) - usual)
        if left > MAX_LEFT * surplus or self._largest_excess(indices) > MAX_EXCESS:
            return 0.0
        return surplus - left

    def _is_common(self, text: str, example: _End, count: int) -> bool:
        """Whether text that nearly all texts have is an addition: their translations have nothing
        in common, and the text is no tag, number of a list or usual end of a sentence.
        """
        if example.from_end:
            marks = regex.findall(r"[^\w\s]", text)
            is_end = len(marks) < 2 and not text[-1].isalnum()
            return not is_end and not self.share_an_end
        is_number = not any(map(str.isalpha, example.first(count)))
        return not is_number and not _TAG.match(example.text) and not self.share_an_end

    @cached_property
    def share_an_end(self) -> bool:
        """Whether most translations begin or end alike: with a number, or with more than a single
        letter, and at the end with more than a single mark.
        """
        for from_end in (False, True):
            # not whole texts: normalization takes quadratic time in the number of accents
            part = slice(-MAX_END, None) if from_end else slice(MAX_END)
            others = (normalize("NFKC", other[part]) for other in self.others)
            ends = [_End.of(other, from_end=from_end).tokens for other in others]
            for count in (1, 2):
                counts = Counter("".join(tokens[:count]) for tokens in ends)
                text, number = counts.most_common(1)[0]
                is_mark = not from_end and text != "" and not text[0].isalnum()
                is_usual = is_mark or len(text) > 1 or text == NUMBER_FORM
                if is_usual and number > MAX_SHARED * len(ends):
                    return True
        return False

    def _largest_excess(self, indices: list[int]) -> float:
        """Return by how many standard deviations the word that is most typical of these
        translations is more frequent in them than by chance.
        """
        counts = Counter(word for index in indices for word in self.words[index])
        size = len(indices)
        total = len(self.words)
        least = max(MIN_SHARED, MIN_SHARED_FRACTION * size)
        shared = [(count, self.totals[word] / total) for word, count in counts.items()]
        scale = size * (1 - size / total)  # drawn without replacement
        return max(
            (
                (count - p * size) / math.sqrt(p * (1 - p) * scale)
                for count, p in shared
                if count >= least and p < 1
            ),
            default=0.0,
        )


def _form(text: str) -> str:
    """Return a text in lower case, with `NUMBER_FORM` in place of each number."""
    text = text.lower()
    # a word of letters, as most tokens are, needs no search: a fifth of the time of `additions`
    return text if text.isalpha() else _DIGITS.sub(NUMBER_FORM, text)


def additions(texts: Sequence[str], others: Sequence[str]) -> Iterator[Addition]:
    """Yield what was added to texts at the beginning or end; `others` are their translations."""
    if len(texts) < 2 * MIN_COUNT:
        return
    step = max(1, len(texts) // SAMPLE)
    sample = _Texts(texts[::step], others[::step])
    for from_end in (False, True):
        ends = [_End.of(text, from_end=from_end) for text in texts[::step]]
        alternatives = list(sample.alternatives(ends))
        for found in alternatives or sample.additions(ends, range(len(ends))):
            yield replace(found, indices=[step * index for index in found.indices])
