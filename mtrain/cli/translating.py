"""Commands that run a model on text."""

import os
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mtrain.cli import opening, options
from mtrain.cli.options import choice, file, flag, stream, value
from mtrain.cli.streams import as_text, check_output, check_page, prompting, reading, write_page
from mtrain.corpus.lines import scan_file
from mtrain.runtime import log
from mtrain.runtime.console import restore_interrupt, writing
from mtrain.runtime.errors import RefusedError
from mtrain.runtime.outputs import opened, refuse_one_file, refuse_overwriting

if TYPE_CHECKING:
    from mtrain.translation.translator import Translator

Kind = StrEnum("Kind", {"ENCODER": "encoder", "DECODER": "decoder", "CROSS": "cross"})


@options.with_options(options.SEARCH | options.SAMPLING)
def translate(
    words: options.RunAndTexts = None,
    model: options.Models = None,
    input_: Annotated[
        str | None, stream("Text to translate, a sentence per line; `-` is stdin.", "--input", "-i")
    ] = None,
    output: Annotated[
        str, stream("File for the translations; `-` is stdout.", "--output", "-o")
    ] = "-",
    n_best: options.NBest = None,
    scores: Annotated[
        bool, flag("Print log-probability and text, separated by a tab.", "--scores")
    ] = False,
    target_prefix: Annotated[
        Path | None, file("Prefixes, one per line: words that the translation begins with.")
    ] = None,
    alignments: Annotated[
        str | None, stream("File for word alignments: `0-1` links source word 0 to target word 1.")
    ] = None,
    line_buffered: Annotated[
        bool, flag("Print each translation before reading the next line.", "--line-buffered")
    ] = False,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    **decode: Any,
) -> None:
    """Translate text, line by line, or the sentences of the command line.

    Example: `mtrain translate -m runs/NAME < in.txt > out.txt`
    """
    model, texts = opening.run_and_texts(words, model)
    input_ = _input_of(texts, input_)
    _check_paths(model, output, alignments, input_, target_prefix)
    is_typed = input_ == "-" and sys.stdin.isatty()  # by a person
    line_buffered |= is_typed
    if is_interactive := is_typed and log.is_on_terminal():  # who sees messages
        log.logger.info("loading %s", ", ".join(map(str, model)))
    from mtrain.translation import streams

    with opening.open_translator(model, device, precision, n_best=n_best, **decode) as translator:
        if not translator.ranks.is_rank_0:
            input_, output, alignments = os.devnull, os.devnull, alignments and os.devnull
        names = filter(None, [output, alignments])
        with (
            reading(input_) as source,
            opened(*names, is_direct=line_buffered, keeps_lines=True) as (sink, *links),
        ):
            if is_interactive and translator.ranks.is_rank_0:
                source = _prompting(source, translator, model)
            streams.translate_stream(
                translator,
                [line.encode() + b"\n" for line in texts] or source,
                sink,
                lines=_number_of_lines(texts, input_),
                n_best=n_best,
                scores=scores,
                prefixes=target_prefix,
                alignments=links[0] if links else None,
                line_buffered=line_buffered,
            )


def _prompting(
    source: Iterator[bytes], translator: "Translator", models: list[Path]
) -> Iterator[bytes]:
    """Log the directions and checkpoints; return the lines of a terminal, each with a prompt."""
    from mtrain.runs import reader

    directions = ", ".join(f"{src} -> {tgt}" for src, tgt in translator.loaded.directions)
    checkpoints = ", ".join(str(reader.resolve(path)) for path in models)
    log.logger.info("%s, by %s", directions, checkpoints)
    log.logger.info("One sentence per line; Ctrl-D ends.")
    return prompting(source)


def _number_of_lines(texts: list[str], input_: str) -> int | None:
    """Return the number of lines to translate if a progress bar will show it, else None."""
    if texts or not log.is_on_terminal() or not Path(input_).is_file():
        return len(texts) or None
    return scan_file(Path(input_), lambda: None, is_utf8=False)[0]


def _input_of(texts: list[str], input_: str | None) -> str:
    """Return the input to read: /dev/null if sentences are given, else by default stdin."""
    if texts and input_ is not None:
        raise RefusedError("mtrain translate: give either sentences or -i/--input FILE")
    return os.devnull if texts else input_ or "-"


def _check_paths(
    models: list[Path], output: str, alignments: str | None, input_: str, target_prefix: Path | None
) -> None:
    """Refuse to overwrite an input, or to write two outputs to one file, and a missing model."""
    for name in (output, alignments):
        refuse_overwriting(name, input_, target_prefix)
        if name not in (None, "-"):
            check_output(Path(name))
    if alignments is not None:
        refuse_one_file(output, alignments, "--alignments")
    opening.require_models(*models)


@options.with_options({"tag": options.SEARCH["tag"]})
def attention(
    words: options.RunAndTexts = None,
    model: options.Model = None,
    output: Annotated[
        Path | None, file("HTML page to write; default: attention.html.", "--output", "-o")
    ] = None,
    input_: Annotated[
        str | None, stream("File of sentences, instead of TEXT; `-` is stdin.", "--input", "-i")
    ] = None,
    target: Annotated[
        str | None,
        value(
            "TEXT",
            "Translation to show, instead of the model's; with `--input`: a file.",
            "--target",
            "-t",
        ),
    ] = None,
    kind: Annotated[
        list[Kind] | None,
        choice("Attention to draw; default: all. Repeatable.", metavar="<encoder|decoder|cross>"),
    ] = None,
    layer: Annotated[
        list[int] | None, value("N", "Layer to draw, from 1; default: all. Repeatable.", min=1)
    ] = None,
    head: Annotated[
        list[str] | None, value("N", "Head to draw, from 1, or mean; default: all. Repeatable.")
    ] = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    **decode: Any,
) -> None:
    """Draw the attention of a model as heat maps on an HTML page.

    Example: `mtrain attention -m runs/NAME -o attention.html "A small test."`
    """
    models, texts = opening.run_and_texts(words, model)
    if len(models) > 1:
        raise RefusedError("-m/--model: given twice; a page shows one model")
    if bool(texts) == (input_ is not None):
        raise RefusedError("mtrain attention: give either sentences or -i/--input FILE")
    if target is not None and len(texts) > 1:
        raise RefusedError("-t/--target: is for one sentence; for several, use files (-i, -t)")
    if target is not None:
        target = as_text(target) if input_ is None else options.as_path_text(target)
    refuse_overwriting(output, input_, target if input_ else None)
    output = check_page(output, "attention.html")
    opening.require_models(*models)
    from mtrain.report import attention_maps as maps
    from mtrain.translation import loading

    chosen = maps.parse_selection(kind, layer, head)
    if input_ is None:
        pairs: maps.Pairs = [(text, target) for text in texts]
    else:
        with reading(input_) as source:
            pairs = maps.read_pairs(source, None if target is None else Path(target))
    model_ = loading.load_with_tag(models[0], device=device, precision=precision, **decode)
    restore_interrupt()
    write_page(output, maps.draw_page(maps.compute_maps(model_, pairs, chosen), models[0]))


def tokenizer_encode(run: options.RunOrVocabulary = None, model: options.Model = None) -> None:
    """Split lines of stdin into subword pieces.

    Example: `mtrain tokenizer encode -m runs/NAME < in.txt`
    """
    _convert(opening.run_or_checkpoint(run, model), to_pieces=True)


def tokenizer_decode(run: options.RunOrVocabulary = None, model: options.Model = None) -> None:
    """Join subword pieces of stdin into lines.

    Example: `mtrain tokenizer decode -m runs/NAME < pieces.txt`
    """
    _convert(opening.run_or_checkpoint(run, model), to_pieces=False)


def _convert(model: Path, *, to_pieces: bool) -> None:
    """Convert lines of stdin to pieces, or back, by the vocabulary of a model."""
    refuse_overwriting("-", "-")
    from mtrain.data.tokenizer import convert_stream, load_tokenizer

    tokenizer = load_tokenizer(model)
    with reading("-") as source, writing("-") as sink:
        convert_stream(tokenizer, source, sink, to_pieces=to_pieces)
