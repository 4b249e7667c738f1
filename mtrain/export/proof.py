"""Whether another engine translates like mtrain: the same lines through both, compared."""

from collections.abc import Callable, Sequence
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
# Loss of natural log-probability per token by rounded weights that is worth a warning.
MUCH_LOST = 0.05

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
    """A line, by its index, with the different texts of two engines and mtrain's log-probability of
    both.
    """

    place: int
    texts: tuple[str, str]
    scores: tuple[float, float]


@dataclass(frozen=True)
class Agreement:
    """The translations of the same lines, with `tokens` target tokens in all, by two engines.

    `cut` has the indices of lines that the other engine encodes to other ids, `joined` those of
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

    @property
    def search(self) -> str:
        """The search in words."""
        return "greedy" if self.beam_size == 1 else f"beam {self.beam_size}"

    def __str__(self) -> str:
        equal = self.lines - len(self.differences)
        return f"{self.search}: {equal:,} of {self.lines:,} lines equal ({equal / self.lines:.1%})"


def compare(
    loaded: LoadedModel,
    engine: Engine,
    lines: list[str],
    beam_size: int,
    progress: Callable[[int], object],
) -> Agreement:
    """Translate lines, none of them blank, with both engines, text to text; score both texts where
    they differ.
    """
    settings = override_decode(loaded.decode, beam_size=beam_size, length_norm="power")
    ours = replace(loaded, decode=settings)
    best = [found[0] for found in Translator(ours).translate(lines, progress)[0]]
    rows = [row.tolist() for row in ours.encode_sources(lines)[0]]
    limits = [ours.limit(len(row)) for row in rows]
    theirs = [row[: ours.max_source_length - 1] for row in engine.encode(lines)]
    found = engine.search(theirs, limits, beam_size, settings.length_penalty)
    progress(len(lines))
    shown = [text.replace("\n", " ") for text in engine.decode(found)]
    joined, bare = ours.texts(found), _bare_texts(ours, found)
    places = [
        place
        for place, own in enumerate(best)
        if own.text != joined[place] or shown[place].strip() not in (own.text.strip(), bare[place])
    ]
    scores = _scores(ours, rows, found, places)
    differences = [
        Difference(place, (best[place].text, shown[place]), (best[place].score, score))
        for place, score in zip(places, scores, strict=True)
    ]
    tokens = sum(len(ids) + 1 for ids in found)
    cut, other = _unequal(rows, theirs), _unequal(joined, shown)
    return Agreement(beam_size, len(lines), tokens, differences, cut, other)


def _bare_texts(loaded: LoadedModel, found: list[list[int]]) -> list[str]:
    """Decode ids without unknown pieces and white space at the ends, which other engines omit."""
    unknown = loaded.tokenizer.unk_id
    texts = loaded.texts([[number for number in ids if number != unknown] for ids in found])
    return [text.strip() for text in texts]


def _scores(
    loaded: LoadedModel, rows: list[list[int]], found: list[list[int]], places: list[int]
) -> list[float]:
    """Return mtrain's log-probabilities of translations that another engine found."""
    sources = [np.array(rows[place], np.int64) for place in places]
    targets = [np.array(found[place], np.int64) for place in places]
    scores: list[float] = (-Scorer(loaded).pair_nll(sources, targets)).tolist()
    return scores


def _unequal(a: Sequence[object], b: Sequence[object]) -> list[int]:
    return [place for place, pair in enumerate(zip(a, b, strict=True)) if pair[0] != pair[1]]
