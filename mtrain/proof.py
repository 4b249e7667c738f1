"""Whether another engine translates as this one: the same lines through both, compared."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from mtrain.config import override_decode
from mtrain.translate import Translator

# Of lines that come out equal, by beam size, in the same precision. The rest are near-ties, which
# the last bit of a sum decides, and, with a beam, the other engine's rule for when to stop.
NEEDED = {1: 0.999, 4: 0.99}
# Natural log-probability a token by which translations of rounded weights are worse than expected.
MUCH_LOST = 0.05


class Engine(Protocol):
    """Another program's search over the same model."""

    def translate(
        self, rows: list[list[int]], limits: list[int], beam_size: int, alpha: float
    ) -> list[list[int]]:
        """Translate ids without eos to ids without eos, by scores divided by length ** alpha.

        `limits` are the most tokens with eos of each.
        """
        ...


@dataclass(frozen=True)
class Difference:
    """A line of which two engines make two texts, and what our model makes of both."""

    number: int
    texts: tuple[str, str]
    scores: tuple[float, float]


@dataclass(frozen=True)
class Agreement:
    """How two engines translate the same lines, which together have `tokens` target tokens."""

    beam_size: int
    lines: int
    tokens: int
    differences: list[Difference]

    @property
    def is_equal(self) -> bool:
        """Tell whether no more lines differ than near-ties account for."""
        allowed = max(1, round(self.lines * (1 - NEEDED[self.beam_size])))
        return len(self.differences) <= allowed

    @property
    def lost(self) -> float:
        """Natural log-probability a token that our model misses in the other's translations."""
        return sum(d.scores[0] - d.scores[1] for d in self.differences) / self.tokens

    @property
    def search(self) -> str:
        """The name of the search."""
        return "greedy" if self.beam_size == 1 else f"beam {self.beam_size}"

    def __str__(self) -> str:
        equal = self.lines - len(self.differences)
        return f"{self.search}: {equal:,} of {self.lines:,} lines equal ({equal / self.lines:.1%})"


def compare(
    translator: Translator,
    engine: Engine,
    lines: list[str],
    beam_size: int,
    progress: Callable[[int], object] = lambda lines: None,
) -> Agreement:
    """Translate lines, none of them blank, with both engines; where they differ, score both."""
    settings = override_decode(translator.decode, beam_size=beam_size, length_norm="power")
    ours = replace(translator, decode=settings)
    texts = ours.best(lines, progress)
    rows = [row.tolist() for row in ours.encode_sources(lines)[0]]
    limits = [ours.limit(len(row)) for row in rows]
    found = engine.translate(rows, limits, beam_size, settings.length_penalty)
    pairs = list(zip(texts, ours.texts(found), strict=True))
    places = [place for place, (text, other) in enumerate(pairs) if text != other]
    sources = [lines[place] for place in places]
    scores = [ours.score(sources, [pairs[place][side] for place in places])[0] for side in (0, 1)]
    differences = [
        Difference(place + 1, pairs[place], both)
        for place, both in zip(places, zip(*scores, strict=True), strict=True)
    ]
    return Agreement(beam_size, len(lines), sum(len(ids) + 1 for ids in found), differences)
