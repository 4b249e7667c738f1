"""Find mix-ups of text that make training or a score worthless; used at the start of training and
by `mtrain check`.

1. sample      every n-th pair of the training text
2. swap        in most or some pairs, the source looks like the target language and vice versa
3. repetition  the same pair again and again, perhaps with other numbers; many different sources
               have the same target, or the other way round
4. quotes      texts of a side are in quotes or brackets, as in a table
5. numbers     nearly all texts of one side begin with a number, or those of both with that of
               their line
6. subwords    many texts of a side are split into the pieces of another program
7. spaces      texts of one side, or some of the pairs, have spaces before commas or periods
8. style       a part of the text is tokenized, lower-cased, in quotes, numbered or lacks final
               punctuation (`styles`)
9. overlap     the training text holds nearly all pairs of a scored set, perhaps with other case,
               spaces or punctuation
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from mtrain.config.corpora import Corpus
from mtrain.config.schema import DataConfig
from mtrain.corpus.language_identification import MOST_SWAPPED, swapped_fraction
from mtrain.corpus.lines import Reading, is_blank, shorten_text
from mtrain.corpus.markup import SUBWORDS, is_enclosed, is_quoted, is_quoted_cell
from mtrain.corpus.readers import Pair, ScoredText, plain_forms, skim
from mtrain.corpus.tables import TextRow
from mtrain.data.filters import is_identical
from mtrain.data.styles import (
    MARK,
    SPACE_BEFORE_MARK,
    Languages,
    Sides,
    grouped_texts,
    odd_parts,
    style_differences,
)
from mtrain.runtime.log import progress_bar

# Approximate number of pairs in the sample of all training text, and limit of its characters.
SAMPLE, SAMPLE_CHARACTERS = 40_000, 1 << 25
MAX_CONTAINED = 0.9  # fraction of a scored set that may be in the training text
# Number, and fraction of all different pairs, that may have the same text on a side; and letters of
# texts whose numbers may differ.
MIN_REPEATED, MAX_REPEATED, MIN_LETTERS = 20, 0.02, 10
MIN_TEXTS, MAX_QUOTED = 20, 0.9  # texts of a side, and fraction that may have quotes or numbers
MIN_CELLS = 5  # texts in double quotes that contain doubled quotes
MAX_SPLIT = 0.2  # fraction of the texts of a side that may have marks of subwords
_NUMBER = re.compile(r"\s{0,9}[0-9]{1,9}\b")
_DIGITS = re.compile(r"\d+")
MAX_SHOWN_LENGTH = 60  # characters
# Fraction of the texts of one side that may have spaces before commas or periods; and in a mixture,
# smallest fraction of the pairs with such spaces, and of those without.
MAX_TOKENIZED, MIN_MIXED = 0.05, 0.1

Owner = TypeVar("Owner")  # identifies the corpus of a row


class MixUp(NamedTuple):
    """A mix-up: its kind (`check.findings.KINDS`), a message, whether the config allows it."""

    kind: str
    message: str
    is_allowed: bool


def find_mix_ups(
    data: DataConfig,
    texts: dict[str, Corpus],
    reading: Reading,
    pairs: int,
    sets: dict[str, ScoredText],
) -> Iterator[tuple[str, bool]]:
    """Read the training corpora `texts` once, `pairs` pairs in all. Yield a message for each mix-up
    of a corpus or a scored set, and whether the config allows it.
    """
    corpora = {key: data.as_forward(corpus) for key, corpus in texts.items()}
    scored_pairs = {key: _pairs_of(data, text) for key, text in sets.items()}
    scored_sources = {src for pairs_of_set in scored_pairs.values() for src, _ in pairs_of_set}
    rows, found = _read(corpora, reading, pairs, scored_sources)
    sampled: list[tuple[str, Languages, list[int], Sides]] = []
    for key, corpus in corpora.items():
        own = [row for owner, row in rows if owner == key]
        numbers = [number for number, _, _ in own]
        sides = [src for _, src, _ in own], [tgt for _, _, tgt in own]
        languages = data.languages(corpus)
        sampled.append((key, languages, numbers, sides))
        for _, message, is_allowed in mix_ups_of(languages, sides, numbers, data.allow_swapped):
            yield f"{key}: {message}", is_allowed
    for part in odd_parts(sampled):
        yield f"{part.owner}: rows {part.first} to {part.last}: {part.message}", True
    training = grouped_texts((languages, sides) for _, languages, _, sides in sampled)
    in_training = set(_plain_pairs(found))
    for key, text in sets.items():
        languages, sides = data.languages(text.corpus), (text.sources, text.references)
        indices = range(len(text))
        for _, message, is_allowed in mix_ups_of(languages, sides, indices, data.allow_swapped):
            yield f"{key}: {message}", is_allowed
        for message in style_differences(training, languages, sides):
            yield f"{key}: {message}", True
        same = sum(pair in in_training for pair in scored_pairs[key])
        if overlap := overlap_message(same, len(text), is_allowed=data.allow_overlap):
            yield f"{key}: {overlap}", data.allow_overlap


def _read(
    corpora: dict[str, Corpus], reading: Reading, pairs: int, scored_sources: set[str]
) -> tuple[list[tuple[str, TextRow]], set[Pair]]:
    """Read corpora of `pairs` pairs in all. Return a sample of their rows, with the keys of their
    corpora, and the pairs whose source has its plain form in `scored_sources`.
    """
    found = set[Pair]()
    step = max(1, pairs // SAMPLE)

    def sample() -> Iterator[tuple[str, TextRow]]:
        for key, corpus in corpora.items():
            for is_nth, is_scored, row in skim(corpus, reading, step, scored_sources):
                if is_scored:
                    found.add(row[1:])
                if is_nth:
                    bar.update(step)
                    if is_informative(row):
                        yield key, row

    with progress_bar(pairs, "pair", "checking the text") as bar:
        return thin_rows(sample()), found


def is_informative(row: TextRow) -> bool:
    """Whether the two sides of a row are not blank and differ."""
    _, src, tgt = row
    return not (is_blank(src) or is_blank(tgt) or is_identical((src, tgt)))


def thin_rows(rows: Iterable[tuple[Owner, TextRow]]) -> list[tuple[Owner, TextRow]]:
    """Keep every row, or every second, fourth, ... row, so that they have at most
    `SAMPLE_CHARACTERS` in all. Rows with more than a hundredth of that are left out.
    """
    kept = list[tuple[Owner, TextRow]]()
    step = 1
    size = 0
    short = (row for row in rows if _size(row[1]) <= SAMPLE_CHARACTERS // 100)
    for number, row in enumerate(short):
        if number % step == 0:
            kept.append(row)
            size += _size(row[1])
        while size > SAMPLE_CHARACTERS:
            kept = kept[::2]
            step = 2 * step
            size = sum(_size(row) for _, row in kept)
    return kept


def _size(row: TextRow) -> int:
    return len(row[1]) + len(row[2])


def mix_ups_of(
    languages: Languages, sides: Sides, numbers: Sequence[int], allow_swapped: bool
) -> Iterator[MixUp]:
    """Yield the mix-ups within a text, given some of its rows and their numbers."""
    (src, tgt), (sources, targets) = languages, sides
    fraction = swapped_fraction(sources, targets, src, tgt)
    if fraction > MOST_SWAPPED:
        text = (
            f"most sources look like the target language ({tgt}), most targets like the source "
            f"({src}); {_unless('data.allow_swapped', allow_swapped, 'exchange src and tgt')}"
        )
        yield MixUp("turned", text, allow_swapped)
    elif fraction:
        text = (
            f"source and target seem to be swapped in about {fraction:.0%} of the pairs: the "
            f"source looks like {tgt}, the target like {src}; mtrain check lists such pairs"
        )
        yield MixUp("swapped", text, True)
    finders: dict[str, Callable[[Sequence[str], Sequence[str]], Iterator[str]]] = {
        "repeated": _repetitions,
        "quoted": _quoted_sides,
        "numbered": partial(_numbered_sides, numbers),
        "subwords": _split_sides,
        "tokenized": _tokenized_sides,
    }
    for kind, find in finders.items():
        for text in find(sources, targets):
            yield MixUp(kind, text, True)


def _repetitions(sources: Sequence[str], targets: Sequence[str]) -> Iterator[str]:
    """Yield a message if many pairs are the same, perhaps with other numbers, or if the same text
    of a side occurs with many different texts of the other, for instance the error message of a
    program that failed to translate.
    """
    counts = Counter(zip(sources, targets, strict=True))
    forms = Counter[Pair]()
    for pair, count in counts.items():
        forms[_without_numbers(pair)] += count
    for form, count in forms.most_common(1):
        if count > max(MIN_REPEATED, MAX_REPEATED * len(sources)):
            first, *others = (pair for pair in counts if _without_numbers(pair) == form)
            note = " (also with other numbers)" if others else ""
            shown = " | ".join(shorten_text(text, MAX_SHOWN_LENGTH) for text in first)
            yield f"{count / len(sources):.0%} of the pairs are the same pair{note}: {shown}"
    for side, name in enumerate(("source", "target")):
        for text, count in Counter(pair[side] for pair in counts).most_common(1):
            if count > max(MIN_REPEATED, MAX_REPEATED * len(counts)):
                fraction = f"{count / len(counts):.0%} of the distinct pairs"
                yield f"{fraction} have the same {name}: {shorten_text(text, MAX_SHOWN_LENGTH)}"


def _without_numbers(pair: Pair) -> Pair:
    """Return a pair without its numbers, unless a text has few letters, as dates have."""
    has_numbers = any(map(_DIGITS.search, pair))
    if not has_numbers or min(sum(map(str.isalpha, text)) for text in pair) < MIN_LETTERS:
        return pair
    src, tgt = (_DIGITS.sub("", text) for text in pair)
    return src, tgt


def _quoted_sides(sources: Sequence[str], targets: Sequence[str]) -> Iterator[str]:
    """Yield a message if texts of a side are in double quotes as the cells of an exported table:
    nearly all texts, or those that hold a comma or a quote.
    """
    for texts, name in ((sources, "sources"), (targets, "targets")):
        quoted = list(filter(is_quoted, map(str.strip, texts)))
        cells = list(filter(is_quoted_cell, quoted))
        with_comma = [text for text in cells if "," in text]
        with_quote = [text for text in cells if '""' in text]
        fraction = f"{100 * len(quoted) / max(1, len(texts)):.3g}% of the {name}"
        if len(texts) >= MIN_TEXTS and len(quoted) >= MAX_QUOTED * len(texts):
            which = fraction
        elif len(texts) >= MIN_TEXTS and sum(map(is_enclosed, texts)) >= MAX_QUOTED * len(texts):
            yield (
                f"nearly all {name} are in quotes or brackets, which will be part of the text; "
                f"export it without them: {shorten_text(texts[0], MAX_SHOWN_LENGTH)}"
            )
            continue
        elif len(with_comma) >= MIN_TEXTS and _are_most(with_comma, quoted, texts, ","):
            which = f"{fraction}, those that hold a comma,"
        elif len(with_quote) >= MIN_CELLS and _are_most(with_quote, quoted, texts, '"'):
            which = f"{fraction}, those that hold a quote,"
        else:
            continue
        yield (
            f"{which} are in double quotes, which will be part of the text; export it without "
            "quotes, or use JSON lines"
        )


def _are_most(cells: list[str], quoted: list[str], texts: Sequence[str], mark: str) -> bool:
    """Whether cells are nearly all of the quoted texts, and of the texts that contain a mark."""
    with_mark = sum(mark in text for text in texts)
    return len(cells) >= MAX_QUOTED * max(len(quoted), with_mark)


def _numbered_sides(
    numbers: Sequence[int], sources: Sequence[str], targets: Sequence[str]
) -> Iterator[str]:
    """Yield a message if nearly all texts of one side begin with a number, or those of both sides
    with the same number, which increases by one from row to row.
    """
    if len(sources) < MIN_TEXTS:
        return
    src, tgt = ([*map(_NUMBER.match, texts)] for texts in (sources, targets))
    most = MAX_QUOTED * len(sources)
    offsets = [
        int(src_match[0]) - number
        if src_match and tgt_match and int(src_match[0]) == int(tgt_match[0])
        else None
        for number, src_match, tgt_match in zip(numbers, src, tgt, strict=True)
    ]
    counted = sum(last == offset is not None for last, offset in pairwise(offsets))
    if counted >= MAX_QUOTED * (len(offsets) - 1):
        yield "nearly all texts of both sides begin with line numbers; remove the numbers"
    names, counts = ("sources", "targets"), [sum(map(bool, matches)) for matches in (src, tgt)]
    for side, texts in enumerate((sources, targets)):
        count, other = counts[side], counts[1 - side]
        if count >= most and 5 * other < most:
            are_only = sum(map(str.isdecimal, map(str.strip, texts))) >= most
            what = "are only a number" if are_only else "begin with a number"
            advice = "use another file or column" if are_only else "remove the numbers"
            yield (
                f"{count / len(texts):.0%} of the {names[side]} {what}, but only "
                f"{other / len(texts):.0%} of the {names[1 - side]}; {advice}"
            )


def _split_sides(sources: Sequence[str], targets: Sequence[str]) -> Iterator[str]:
    """Yield a message if many texts of a side are split into subwords."""
    for texts, name in ((sources, "sources"), (targets, "targets")):
        count = sum(SUBWORDS.search(text) is not None for text in texts)
        if len(texts) >= MIN_TEXTS and count > MAX_SPLIT * len(texts):
            yield (
                f"{count / len(texts):.0%} of the {name} have subword marks (@@, ▁), which will be "
                "part of the text; join the pieces first, as mtrain makes its own"
            )


def _tokenized_sides(sources: Sequence[str], targets: Sequence[str]) -> Iterator[str]:
    """Yield a message if texts of one side, or some of the pairs, have spaces before commas or
    periods, as a tokenizer leaves them.
    """
    is_spaced, is_marked = (  # each of shape (2, pairs)
        np.array([list(map(pattern.search, texts)) for texts in (sources, targets)], bool)
        for pattern in (SPACE_BEFORE_MARK, MARK)
    )
    for side, name in enumerate(("source", "target")):
        own, other = is_spaced[side], is_spaced[1 - side]
        # where both sides have such spaces, a text without commas and periods tells nothing
        is_plain = other.sum() < MAX_TOKENIZED * len(other)
        count = (own & ~other & (is_plain | is_marked[1 - side])).sum()
        if count >= max(MIN_TEXTS, MAX_TOKENIZED * len(own)):
            yield (
                f"{count / len(own):.0%} of the {name}s have spaces before commas or periods, but "
                "the texts of the other side do not; use text that is not tokenized"
            )
    with_marks = is_spaced[:, is_marked.all(0)]
    pairs, both, neither = with_marks.shape[1], with_marks.all(0).sum(), (~with_marks).all(0).sum()
    if min(both, neither) >= max(MIN_TEXTS, MIN_MIXED * pairs):
        yield (
            f"{both / pairs:.0%} of the pairs with commas or periods have spaces before "
            "them, others do not; prepare them alike, best as plain text"
        )


def overlap_message(same: int, pairs: int, *, is_allowed: bool) -> str:
    """Return a message if too many pairs of a scored set are in the training text: `same` of
    `pairs`; else an empty text.
    """
    if same <= MAX_CONTAINED * pairs:
        return ""
    text = f"{same:,} of {pairs:,} pairs are in data.train, so its score means nothing"
    return f"{text}; {_unless('data.allow_overlap', is_allowed, 'use other text')}"


def _unless(key: str, is_allowed: bool, advice: str) -> str:
    """Return what to do, or that a key of the config allows it."""
    return f"{key} allows it" if is_allowed else f"{advice}, or set {key}: true if it is intended"


def _pairs_of(data: DataConfig, text: ScoredText) -> list[Pair]:
    """Return the pairs of a set in their plain forms and in the direction of
    `DataConfig.as_forward`, without those that are blank on a side.
    """
    sources, targets = text.sources, text.references
    if data.as_forward(text.corpus) is not text.corpus:
        sources, targets = targets, sources
    pairs = _plain_pairs(zip(sources, targets, strict=True))
    return [(src, tgt) for src, tgt in pairs if src and tgt]


def _plain_pairs(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Yield pairs with the plain forms of their texts."""
    forms = plain_forms(text for pair in pairs for text in pair)
    return zip(forms, forms, strict=True)
