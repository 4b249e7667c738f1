"""`mtrain attention`: attention maps of sentences and their translations."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtrain.corpus.lines import decode_lines, is_blank, read_text_file, strip_line_ends
from mtrain.report.heatmap import KINDS, MEAN, HeatMap, Sentence, menus, render
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.log import logger, progress_bar, warn_of_counts
from mtrain.scoring.references import check_same_length
from mtrain.translation.attention import attention_of
from mtrain.translation.loading import LoadedModel
from mtrain.translation.translator import Line, Translator

Pairs = list[tuple[str, str | None]]

# Limits of sentences, tokens per sentence and characters per token: one page holds all maps.
MAX_SENTENCES, MAX_TOKENS, MAX_LETTERS = 50, 200, 100


@dataclass(frozen=True)
class Selection:
    """The heat maps to draw; an empty field selects all. Layers and heads are numbered from 1; head
    0 is the mean of all heads.
    """

    kinds: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()


def parse_selection(
    kinds: Sequence[str] | None, layers: list[int] | None, heads: list[str] | None
) -> Selection:
    """Parse `--kind`, `--layer` and `--head`; raises `RefusedError`."""
    for head in heads or []:
        if head != "mean" and not (head.isascii() and head.isdigit() and int(head) > 0):
            raise RefusedError(f"--head {head}: expected a number from 1, or mean")
    numbers = [MEAN if head == "mean" else int(head) for head in heads or []]
    return Selection(tuple(kinds or ()), tuple(layers or ()), tuple(numbers))


def read_pairs(source: Iterable[bytes], target: Path | None) -> Pairs:
    """Read sentences and, if a target file is given, their targets; raises `UserError`."""
    counts: Counter[str] = Counter()
    lines = decode_lines(strip_line_ends(source, counts), counts)
    sources = list(islice(lines, MAX_SENTENCES + 1))
    if len(sources) > MAX_SENTENCES:
        raise RefusedError(f"the input: more than {MAX_SENTENCES} sentences; give fewer lines")
    targets: Sequence[str | None] = [None] * len(sources)
    if target is not None:
        targets = read_text_file(target, counts)
    warn_of_counts(counts)
    check_same_length(target, len(targets), "the input", len(sources))
    return list(zip(sources, targets, strict=True))


def compute_maps(loaded: LoadedModel, pairs: Pairs, selection: Selection) -> list[Sentence]:
    """Compute the selected maps of each pair; a target of None is translated first. Pairs with a
    blank source are skipped. Raises `UserError`.
    """
    check_selection(loaded, selection)
    lines = [(number, src, tgt) for number, (src, tgt) in enumerate(pairs, 1) if not is_blank(src)]
    if not lines:
        raise UserError("the input: all lines are blank; give a sentence")
    if len(lines) < len(pairs):
        logger.warning("blank lines, skipped: %d", len(pairs) - len(lines))
    sentences = []
    with progress_bar(len(lines), "sentence", "computing attention") as bar:
        for number, src, tgt in lines:
            sentences.append(_sentence(loaded, number, src, tgt, selection))
            bar.update()
    return sentences


def draw_page(sentences: list[Sentence], model: Path) -> str:
    """Return an HTML page of maps, with menus for the kind of attention, the layer and the head."""
    name = model.resolve().name
    return render("attention.html", sentences=sentences, model=name, menus=menus(sentences))


def check_selection(loaded: LoadedModel, selection: Selection) -> None:
    """Raise `RefusedError` for layers and heads that the model does not have."""
    shape = loaded.model.shape
    layers = dict.fromkeys(KINDS, shape.num_decoder_layers)
    layers["encoder"] = shape.num_encoder_layers
    num_layers = max(layers[kind] for kind in selection.kinds or KINDS)
    for option, numbers, limit in (
        ("layer", selection.layers, num_layers),
        ("head", selection.heads, shape.num_heads),
    ):
        if max(numbers, default=0) > limit:
            maps = f"these maps have {limit} {option}{'s' * (limit != 1)}"
            raise RefusedError(f"--{option} {max(numbers)}: {maps}; choose a smaller number")


def _sentence(
    loaded: LoadedModel, number: int, source: str, target: str | None, selection: Selection
) -> Sentence:
    """Compute the maps of a line; errors name its number."""
    (src,), cut = loaded.encode_sources([source])
    if target is None:
        tgt = Translator(loaded).search([Line(src)])[0][0].ids
        text = loaded.decode_targets([tgt])[0]
    else:
        (tgt,) = loaded.tokenizer.encode([target])
        text = target
    max_tokens = min(MAX_TOKENS, loaded.positions_limit)
    if cut or max(len(src), len(tgt)) >= max_tokens:
        raise UserError(
            f"line {number}: {len(src) + 1} source and {len(tgt) + 1} target tokens; attention "
            f"can be shown for at most {max_tokens}; give a shorter sentence"
        )
    maps = _maps(loaded, src, np.array(tgt, np.int64), selection)
    languages = loaded.directions[0] if len(loaded.directions) == 1 else ("", "")
    return Sentence(source, text, target is not None, list(maps), languages)


def _maps(
    loaded: LoadedModel, src: NDArray[np.int64], tgt: NDArray[np.int64], selection: Selection
) -> Iterator[HeatMap]:
    """Yield the selected maps of a pair of ids without eos."""
    attention = attention_of(loaded, src, tgt)
    sides = (attention.source, attention.target, attention.target_in)
    source, target, target_in = ([piece[:MAX_LETTERS] for piece in side] for side in sides)
    for kind, layers, rows, columns in (
        ("encoder", attention.encoder, source, source),
        ("decoder", attention.decoder, target, target_in),
        ("cross", attention.cross, target, source),
    ):
        for layer, weights in enumerate(layers, 1):
            if kind in (selection.kinds or KINDS) and layer in (selection.layers or [layer]):
                for head in selection.heads or range(len(weights) + 1):
                    table = weights.mean(0) if head == MEAN else weights[head - 1]
                    yield HeatMap(kind, layer, head, rows, columns, table)
