"""`mtrain attention`: the attention of each token of a sentence and of its translation."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtrain.corpus.lines import decode_lines, is_blank, read_lines, read_text_file
from mtrain.report.heatmap import KINDS, MEAN, HeatMap, Sentence, choices, render
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.log import logger, progress_bar, warn_of_counts
from mtrain.scoring.references import check_equal
from mtrain.translation.attention import attention_of
from mtrain.translation.loading import LoadedModel
from mtrain.translation.translator import Line, Translator

Pairs = list[tuple[str, str | None]]

# People look at pictures one by one, and a page holds all of them.
MAX_SENTENCES, MAX_TOKENS, MAX_LETTERS = 50, 200, 100  # letters of a token


@dataclass(frozen=True)
class Choice:
    """Which heat maps of a sentence to draw; an empty field means all. Layers and heads count from
    1, head 0 is the mean of all.
    """

    kinds: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()


def choose(
    kinds: Sequence[str] | None, layers: list[int] | None, heads: list[str] | None
) -> Choice:
    """Check the choice of the command line, whose kinds are of `KINDS`; raises `RefusedError`."""
    for head in heads or []:
        if head != "mean" and not (head.isascii() and head.isdigit() and int(head) > 0):
            raise RefusedError(f"--head {head}: expected a number from 1, or mean")
    numbers = [MEAN if head == "mean" else int(head) for head in heads or []]
    return Choice(tuple(kinds or ()), tuple(layers or ()), tuple(numbers))


def read_pairs(source: Iterable[bytes], target: Path | None) -> Pairs:
    """Read sentences, and from a file their targets, line for line; raises `UserError`."""
    counts: Counter[str] = Counter()
    lines = decode_lines(read_lines(source, counts), counts)
    sources = list(islice(lines, MAX_SENTENCES + 1))
    warn_of_counts(counts)
    if len(sources) > MAX_SENTENCES:
        raise RefusedError(f"the input: more than {MAX_SENTENCES} sentences; give fewer lines")
    if target is None:
        return [(line, None) for line in sources]
    targets = read_text_file(target)
    check_equal(target, len(targets), "the input", len(sources))
    return list(zip(sources, targets, strict=True))


def watch(loaded: LoadedModel, pairs: Pairs, choice: Choice) -> list[Sentence]:
    """Return the maps of each sentence for the model's translation or the given target; blank lines
    are left out. Raises `UserError`.
    """
    check_choice(loaded, choice)
    kept = [(number, src, tgt) for number, (src, tgt) in enumerate(pairs, 1) if not is_blank(src)]
    if not kept:
        raise UserError("no text: all lines are blank")
    if len(kept) < len(pairs):
        logger.warning("blank lines, left out: %d", len(pairs) - len(kept))
    found = []
    with progress_bar(len(kept), "sentence", "computing attention") as bar:
        for number, src, tgt in kept:
            found.append(_watch(loaded, number, src, tgt, choice))
            bar.update()
    return found


def draw_page(sentences: list[Sentence], model: Path) -> str:
    """Draw a page on which the reader chooses kind of attention, layer and head."""
    return render(
        "attention.html", sentences=sentences, model=model.name, choices=choices(sentences)
    )


def check_choice(loaded: LoadedModel, choice: Choice) -> None:
    """Refuse layers and heads that the model does not have."""
    shape = loaded.model.shape
    layers = dict.fromkeys(KINDS, shape.num_decoder_layers)
    layers["encoder"] = shape.num_encoder_layers
    most_layers = max(layers[kind] for kind in choice.kinds or KINDS)
    for option, chosen, most in (
        ("layer", choice.layers, most_layers),
        ("head", choice.heads, shape.num_heads),
    ):
        if max(chosen, default=0) > most:
            raise RefusedError(f"--{option} {max(chosen)}: these maps have {most} {option}s")


def _watch(
    loaded: LoadedModel, number: int, source: str, target: str | None, choice: Choice
) -> Sentence:
    (src,), is_cut = loaded.encode_sources([source])
    if target is None:
        tgt = Translator(loaded).search([Line(src)])[0][0].ids
        text = loaded.texts([tgt])[0]
    else:
        (tgt,) = loaded.tokenizer.encode([target])
        text = target
    most = min(MAX_TOKENS, loaded.positions_limit or MAX_TOKENS)
    if is_cut or max(len(src), len(tgt)) >= most:
        raise UserError(
            f"line {number}: {len(src) + 1} source and {len(tgt) + 1} target tokens; attention can "
            f"be shown for at most {most}: give a shorter sentence"
        )
    maps = _maps(loaded, src, np.array(tgt, np.int64), choice)
    languages = loaded.directions[0] if len(loaded.directions) == 1 else ("", "")
    return Sentence(source, text, target is not None, list(maps), languages)


def _maps(
    loaded: LoadedModel, src: NDArray[np.int64], tgt: NDArray[np.int64], choice: Choice
) -> Iterator[HeatMap]:
    """Draw the chosen maps of a pair of ids without eos."""
    found = attention_of(loaded, src, tgt)
    sides = (found.source, found.target, found.target_in)
    read, produced, seen = ([piece[:MAX_LETTERS] for piece in side] for side in sides)
    axes = {"encoder": (read, read), "decoder": (produced, seen), "cross": (produced, read)}
    for kind, layers in zip(KINDS, (found.encoder, found.decoder, found.cross), strict=True):
        for layer, weights in enumerate(layers, 1):
            if kind in (choice.kinds or KINDS) and layer in (choice.layers or [layer]):
                for head in choice.heads or range(len(weights) + 1):
                    table = weights.mean(0) if head == MEAN else weights[head - 1]
                    yield HeatMap(kind, layer, head, *axes[kind], table)
