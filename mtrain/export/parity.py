"""Whether another engine translates like mtrain: the same lines through both, compared."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mtrain.config.schema import override_decode
from mtrain.translation.loading import LoadedModel
from mtrain.translation.scorer import Scorer
from mtrain.translation.translator import Translator

# Fraction of lines that must be equal in the same precision, by beam size. The others are near-ties
# or, with a beam, lines where another engine ends the search before the likeliest translation is
# complete: up to 3 % of the lines of models that have learned little.
NEEDED = {1: 0.999, 4: 0.95}

# Another engine's search: ids without eos, limits in tokens with eos, beam size and alpha (scores
# are divided by length ** alpha) -> ids without eos.
Search = Callable[[list[list[int]], list[int], int, float], list[list[int]]]


@dataclass(frozen=True)
class Engine:
    """Another program with the same model: it encodes lines to ids without eos, searches, and
    decodes ids to texts.
    """

    name: str
    encode: Callable[[list[str]], list[list[int]]]
    search: Search
    decode: Callable[[list[list[int]]], list[str]]


@dataclass(frozen=True)
class Difference:
    """A line with the different texts of two engines and mtrain's log-probability of both."""

    number: int
    texts: tuple[str, str]
    scores: tuple[float, float]


@dataclass(frozen=True)
class Agreement:
    """The translations of the same lines, with `tokens` target tokens in all, by two engines.

    `cut` has the numbers of lines that the other engine encodes to other ids, `joined` those of
    translations that it decodes to another text, at the ends or for unknown pieces.
    """

    beam_size: int
    lines: int
    tokens: int
    differences: list[Difference]
    cut: list[int]
    joined: list[int]

    @property
    def is_equal(self) -> bool:
        """Whether no more lines differ than near-ties explain."""
        allowed = max(1, round(self.lines * (1 - NEEDED[self.beam_size])))
        return len(self.differences) <= min(allowed, (self.lines - 1) // 2)

    @property
    def lost(self) -> float:
        """Natural log-probability per token that mtrain's model loses in the other engine's
        translations.
        """
        return sum(d.scores[0] - d.scores[1] for d in self.differences) / self.tokens

    def __str__(self) -> str:
        search = "greedy" if self.beam_size == 1 else f"beam {self.beam_size}"
        equal = self.lines - len(self.differences)
        return f"{search}: {equal:,} of {self.lines:,} lines equal ({equal / self.lines:.1%})"


def compare(
    loaded: LoadedModel,
    engine: Engine,
    lines: dict[int, str],
    beam_size: int,
    progress: Callable[[int], object],
) -> Agreement:
    """Translate lines, by their numbers and none of them blank, with both engines, text to text;
    score both texts where they differ.
    """
    decode = override_decode(loaded.decode, beam_size=beam_size, length_norm="power")
    ours, numbers, texts = replace(loaded, decode=decode), list(lines), list(lines.values())
    best = [found[0] for found in Translator(ours).translate(texts, progress)[0]]
    rows = ours.encode_sources(texts)[0]
    limits = [ours.limit(len(row)) for row in rows]
    most, tag = ours.max_source_length - 1, ours.tag_ids
    theirs = [(tag + ids)[:most] for ids in engine.encode(texts)]
    found = engine.search(theirs, limits, beam_size, decode.length_penalty)
    progress(len(lines))
    shown = [text.replace("\n", " ") for text in engine.decode(found)]
    joined, unknown = ours.texts(found), ours.tokenizer.unk_id
    # other engines leave out unknown pieces, and white space at the ends
    bare = ours.texts([[number for number in ids if number != unknown] for ids in found])
    places = [
        i
        for i, own in enumerate(best)
        if own.text != joined[i] or shown[i].strip() not in (own.text.strip(), bare[i].strip())
    ]
    targets = [np.array(found[i], np.int64) for i in places]
    scores = (-Scorer(ours).pair_nll([rows[i] for i in places], targets)).tolist()
    differences = [
        Difference(numbers[i], (best[i].text, shown[i]), (best[i].score, score))
        for i, score in zip(places, scores, strict=True)
    ]
    cut = [n for n, row, ids in zip(numbers, rows, theirs, strict=True) if row.tolist() != ids]
    other = [n for n, a, b in zip(numbers, joined, shown, strict=True) if a != b]
    tokens = sum(len(ids) + 1 for ids in found)
    return Agreement(beam_size, len(lines), tokens, differences, cut, other)
