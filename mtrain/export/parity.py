"""Compare mtrain's translations with those of another engine that has the same model."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mtrain.config.schema import override_decode
from mtrain.translation.loading import LoadedModel
from mtrain.translation.scorer import Scorer
from mtrain.translation.translator import Translator

# Beam size -> fraction of the lines that must be equal in the same precision. The rest may be
# near-ties or, with a beam, lines for which the other engine ends its search before the most likely
# translation is complete: up to 3 % of the lines for models that have learned little.
NEEDED = {1: 0.999, 4: 0.95}

# Another engine's search: ids without eos, limits in tokens with eos, beam size and alpha (scores
# are divided by length ** alpha) -> ids without eos.
Search = Callable[[list[list[int]], list[int], int, float], list[list[int]]]


@dataclass(frozen=True)
class Engine:
    """Another program with the same model; `encode` returns ids without eos."""

    name: str
    encode: Callable[[list[str]], list[list[int]]]
    search: Search
    decode: Callable[[list[list[int]]], list[str]]


@dataclass(frozen=True)
class Difference:
    """A line's different translations by mtrain and the other engine, and mtrain's log-probability
    of both.
    """

    number: int
    texts: tuple[str, str]
    scores: tuple[float, float]


@dataclass(frozen=True)
class Agreement:
    """How far two engines agree on the same lines; the other engine's translations have `tokens`
    tokens in all.

    `encoded` has the numbers of the lines that the other engine encodes to other ids, `decoded` of
    those whose translation it decodes to another text, because of white space or unknown pieces.
    """

    beam_size: int
    lines: int
    tokens: int
    differences: list[Difference]
    encoded: list[int]
    decoded: list[int]

    @property
    def is_equal(self) -> bool:
        """Whether no more lines differ than near-ties explain."""
        allowed = max(1, round(self.lines * (1 - NEEDED[self.beam_size])))
        return len(self.differences) <= min(allowed, (self.lines - 1) // 2)

    @property
    def lost(self) -> float:
        """Log-probability per token that the other translations lose under mtrain's model."""
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
    """Translate lines (line number -> text, none blank) with both engines, from text to text; score
    both translations where they differ.
    """
    # the engines neither sample nor ban repeated n-grams
    decode = override_decode(
        loaded.decode, sample=False, no_repeat_ngram=0, beam_size=beam_size, length_norm="power"
    )
    ours = replace(loaded, decode=decode)
    numbers = list(lines)
    texts = list(lines.values())
    best = [n_best[0] for n_best in Translator(ours).translate(texts, progress)[0]]
    sources = ours.encode_sources(texts)[0]
    limits = [ours.target_limit(len(ids)) for ids in sources]
    max_length = ours.max_source_length - 1
    tag = ours.tag_ids
    their_sources = [(tag + ids)[:max_length] for ids in engine.encode(texts)]
    their_ids = engine.search(their_sources, limits, beam_size, decode.length_penalty)
    progress(len(lines))
    their_texts = [text.replace("\n", " ") for text in engine.decode(their_ids)]
    decoded = ours.decode_targets(their_ids)
    unk_id = ours.tokenizer.unk_id
    # other engines leave out unknown pieces, and white space at the ends
    known = ours.decode_targets([[i for i in ids if i != unk_id] for ids in their_ids])

    def differs(i: int) -> bool:
        text = best[i].text
        theirs = their_texts[i].strip()
        return text != decoded[i] or theirs not in (text.strip(), known[i].strip())

    indices = list(filter(differs, range(len(lines))))
    targets = [np.array(their_ids[i], np.int64) for i in indices]
    scores = (-Scorer(ours).pair_nll([sources[i] for i in indices], targets)).tolist()
    differences = [
        Difference(numbers[i], (best[i].text, their_texts[i]), (best[i].score, score))
        for i, score in zip(indices, scores, strict=True)
    ]
    pairs = zip(numbers, sources, their_sources, strict=True)
    other_ids = [number for number, ids, theirs in pairs if ids.tolist() != theirs]
    other_texts = [n for n, a, b in zip(numbers, decoded, their_texts, strict=True) if a != b]
    tokens = sum(len(ids) + 1 for ids in their_ids)
    return Agreement(beam_size, len(lines), tokens, differences, other_ids, other_texts)
