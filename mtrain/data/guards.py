"""Mix-ups of text that make a training or a score worthless. The start of a training and `mtrain
check` decide here what is one.

1. sample     pairs of the training text at equal distances
2. swapped    whether sources look like the target language, and the other way round
3. repeated   whether many different sources have one and the same target, or the other way round
4. contained  whether the training text holds nearly all pairs of a scored set
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from mtrain.config.corpora import Corpus
from mtrain.config.schema import DataConfig
from mtrain.corpus.lines import Reading, is_blank, shorten_text
from mtrain.corpus.misalignment import seem_swapped
from mtrain.corpus.readers import Pair, ScoredText, skim
from mtrain.corpus.tables import TextRow
from mtrain.data.filters import is_identical

# Pairs of all training text in the sample, and the most characters of them.
SAMPLE, SAMPLE_CHARACTERS = 40_000, 1 << 25
MAX_CONTAINED = 0.9  # fraction of a scored set that may be in the training text
# Pairs, and fraction of all different ones, that may have the same text on a side.
MIN_REPEATED, MAX_REPEATED = 20, 0.02
MAX_SHOWN_LENGTH = 60  # characters

Owner = TypeVar("Owner")  # of a row: its corpus


def find_mix_ups(
    data: DataConfig,
    texts: dict[str, Corpus],
    reading: Reading,
    pairs: int,
    sets: dict[str, ScoredText],
) -> Iterator[tuple[str, bool]]:
    """Read the training corpora `texts`, of `pairs` pairs in all, once; yield their mix-ups and
    those of the scored sets, each with whether it is allowed.
    """
    wanted = {key: _pairs_of(data, each) for key, each in sets.items()}
    sources = {src for own in wanted.values() for src, _ in own}
    seen, step = set[Pair](), max(1, pairs // SAMPLE)

    def sample() -> Iterator[tuple[str, TextRow]]:
        for key, corpus in zip(texts, map(data.forward, texts.values()), strict=True):
            for is_nth, row in skim(corpus, reading, step, sources):
                if (src := row[1].strip()) in sources:
                    seen.add((src, row[2].strip()))
                if is_nth and is_informative(row):
                    yield key, row

    rows = thinned(sample())
    for key, corpus in texts.items():
        own = [row for owner, row in rows if owner == key]
        sides = [src for _, src, _ in own], [tgt for _, _, tgt in own]
        if text := swapped(data.languages(data.forward(corpus)), *sides):
            yield f"{key}: {text}", data.allow_swapped
        for text in repeated(*sides):
            yield f"{key}: {text}", True
    for key, (corpus, scored) in sets.items():
        if text := swapped(data.languages(corpus), scored.sources, scored.references):
            yield f"{key}: {text}", data.allow_swapped
        for text in repeated(scored.sources, scored.references):
            yield f"{key}: {text}", True
        if text := contained(sum(pair in seen for pair in wanted[key]), len(scored)):
            yield f"{key}: {text}", data.allow_overlap


def is_informative(row: TextRow) -> bool:
    """Whether a row has text on both sides that is not the same."""
    return not (is_blank(row[1]) or is_blank(row[2]) or is_identical(row[1:]))


def thinned(rows: Iterable[tuple[Owner, TextRow]]) -> list[tuple[Owner, TextRow]]:
    """Keep all rows, or every second, fourth, ... such that they have at most `SAMPLE_CHARACTERS`,
    and none that has a hundredth of them alone.
    """
    kept, step, size = list[tuple[Owner, TextRow]](), 1, 0
    short = (row for row in rows if _size(row[1]) <= SAMPLE_CHARACTERS // 100)
    for number, row in enumerate(short):
        if number % step == 0:
            kept.append(row)
            size += _size(row[1])
        while size > SAMPLE_CHARACTERS:
            kept, step = kept[::2], 2 * step
            size = sum(_size(row) for _, row in kept)
    return kept


def _size(row: TextRow) -> int:
    return len(row[1]) + len(row[2])


def swapped(languages: tuple[str, str], sources: list[str], targets: list[str]) -> str:
    """Return what is wrong if the sides of a sample seem to be swapped, else an empty text."""
    if not seem_swapped(sources, targets, *languages):
        return ""
    text = "most sources look like the target language ({1}), most targets like the source ({0})"
    advice = "; exchange src and tgt, unless it is meant (data.allow_swapped: true)"
    return text.format(*languages) + advice


def repeated(sources: Iterable[str], targets: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong if one text of a side comes with many different ones of the other, as
    where a program that translated has failed.
    """
    pairs = set(zip(sources, targets, strict=True))
    for side, name in enumerate(("source", "target")):
        for text, count in Counter(pair[side] for pair in pairs).most_common(1):
            if count > max(MIN_REPEATED, MAX_REPEATED * len(pairs)):
                shown = shorten_text(text, MAX_SHOWN_LENGTH)
                yield f"{count / len(pairs):.0%} of the different pairs have the {name}: {shown}"


def contained(same: int, pairs: int) -> str:
    """Return what is wrong if too many of the pairs of a scored set, `same`, are in the training
    text, else an empty text.
    """
    if same <= MAX_CONTAINED * pairs:
        return ""
    text = f"{same:,} of {pairs:,} pairs are in data.train, so its score means nothing"
    return f"{text}; name other text, unless it is meant (data.allow_overlap: true)"


def _pairs_of(data: DataConfig, scored: ScoredText) -> list[Pair]:
    """Return the pairs of a set, but blank ones, in the direction that `DataConfig.forward` has."""
    corpus, text = scored
    order = 1 if data.forward(corpus) is corpus else -1
    sides = (text.sources, text.references)[::order]
    pairs = ((src.strip(), tgt.strip()) for src, tgt in zip(*sides, strict=True))
    return [pair for pair in pairs if all(pair)]
