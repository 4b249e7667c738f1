"""Commands that translate and score."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtrain.cli.options import (
    SAMPLING,
    SEARCH,
    AlignmentsOption,
    DeviceOption,
    EvalModelOption,
    HypothesisOption,
    InputOption,
    KeepOption,
    LanguageOption,
    ModelOption,
    ModelsOption,
    NBestOption,
    OutputOption,
    PrecisionOption,
    PrefixOption,
    ReferenceOption,
    SeedOption,
    SourceOption,
    TokenizeOption,
    as_path,
    load_model,
    open_translator,
    with_options,
)
from mtrain.cli.streams import check_output, print_lines, reading
from mtrain.runtime import log
from mtrain.runtime.console import writing
from mtrain.runtime.errors import RefusedError
from mtrain.runtime.outputs import opened, refuse_one_file, refuse_overwriting, write_output

if TYPE_CHECKING:
    from mtrain.translation.translator import Translator

# Options that mean something only with --sample, and those only without it.
OF_SAMPLING, OF_SEARCH = ["temperature", "top_k", "top_p", "seed"], ["beam_size"]


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the commands to the command line."""
    app.command(rich_help_panel=panel)(translate)
    app.command("eval", rich_help_panel=panel)(evaluate)
    app.command(rich_help_panel=panel)(score)
    app.command(rich_help_panel=panel)(compare)


@with_options(SEARCH | SAMPLING)
def translate(
    model: ModelsOption,
    input_: InputOption = "-",
    output: OutputOption = "-",
    n_best: NBestOption = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Log-probability first: `score<TAB>text`.")
    ] = False,
    target_prefix: PrefixOption = None,
    alignments: AlignmentsOption = None,
    seed: SeedOption = None,
    line_buffered: Annotated[
        bool, typer.Option("--line-buffered", help="Answer each line before the next is read.")
    ] = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    **decode: Any,
) -> None:
    """Translate text, line for line.

    Example: `mtrain translate -m runs/NAME < in.txt > out.txt`

    With `--sample`, draws depend on the seed and the line number alone; `--n-best N` draws N.
    """
    from mtrain.translation import streams

    _check_files(output, alignments, input_, target_prefix)
    with open_translator(
        model, device, precision, seed=seed, samples=n_best or 1, **decode
    ) as translator:
        _check_n_best(n_best, translator)
        _check_kind({**decode, "seed": seed}, translator)
        if not translator.ranks.is_first:
            input_ = output = os.devnull
            alignments = alignments and os.devnull
        is_at_once = line_buffered or (input_ == "-" and sys.stdin.isatty())
        names = [output, alignments] if alignments else [output]
        with (
            reading(input_) as source,
            opened(*names, as_it_goes=is_at_once, keeps_lines=True) as (sink, *links),
        ):
            streams.translate_stream(
                translator,
                source,
                sink,
                n_best=n_best,
                scores=scores,
                prefixes=target_prefix,
                alignments=links[0] if links else None,
                line_buffered=is_at_once,
            )


def _check_files(
    output: str, alignments: str | None, input_: str, target_prefix: Path | None
) -> None:
    """Refuse to overwrite an input, or to write two outputs to one file."""
    for name in (output, alignments):
        refuse_overwriting(name, input_, target_prefix)
        if name not in (None, "-"):
            check_output(Path(name))
    if alignments is not None:
        refuse_one_file(output, alignments, "--alignments")


def _check_kind(given: dict[str, object], translator: "Translator") -> None:
    """Refuse options of sampling without `--sample`, and options of the search with it."""
    names, advice = OF_SAMPLING, "needs --sample; add it"
    if translator.decode.sample:
        names, advice = OF_SEARCH, "does not go with --sample; remove one of them"
    if given["sample"] or not translator.decode.sample:
        for name in names:
            if given[name] is not None:
                raise translator.ranks.as_one(RefusedError(f"--{name.replace('_', '-')}: {advice}"))


def _check_n_best(n_best: int | None, translator: "Translator") -> None:
    """Refuse to show more hypotheses than the beam holds."""
    decode = translator.decode
    if n_best is not None and n_best > decode.beam_size and not decode.sample:
        raise translator.ranks.as_one(
            RefusedError(
                f"--n-best {n_best} is more than the beam holds: add --beam-size {n_best} or more"
            )
        )


@with_options(SEARCH)
def evaluate(
    model: EvalModelOption = None,
    source: SourceOption = None,
    reference: ReferenceOption = None,
    hypothesis: HypothesisOption = None,
    output: KeepOption = None,
    tgt_lang: LanguageOption = None,
    tokenize: TokenizeOption = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Score without case.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    **decode: Any,
) -> None:
    """Score translations with BLEU, chrF and TER of sacreBLEU.

    Example: `mtrain eval -m runs/NAME -s test.en -r test.de`

    Scores have signatures and confidence intervals. What looks wrong about the translations is
    reported on stderr, or in `notes` of the `--json` object.
    """
    _check_eval_inputs(model, source, reference, hypothesis, output)
    if hypothesis is not None and any(option is not None for option in (output, *decode.values())):
        raise RefusedError(
            "mtrain eval: --hypothesis does not go with -o or options of the search; remove them"
        )
    from mtrain.scoring import evaluation
    from mtrain.scoring.metrics import check_seed, check_tokenizer, tokenizer_for
    from mtrain.scoring.notes import explain
    from mtrain.scoring.references import read_aligned, read_references, read_source

    check_seed()
    check_tokenizer(tokenize or tokenizer_for(tgt_lang))
    references = read_references(reference or [])
    sources = read_source(source, references) if source else []
    if hypothesis is not None:
        hypotheses = read_aligned(hypothesis, references)
    else:
        assert model is not None
        if output is not None:
            check_output(output)
        with open_translator(model, device, precision, **decode) as translator:
            tgt_lang = tgt_lang or translator.loaded.config.data.tgt_lang
            check_tokenizer(tokenize or tokenizer_for(tgt_lang))
            from mtrain.translation.streams import translate_all

            hypotheses = translate_all(translator, sources)
            if output is not None and translator.ranks.is_first:
                write_output(output, "".join(line + "\n" for line in hypotheses).encode("utf-8"))
        if not translator.ranks.is_first:
            return
    scores = evaluation.score(hypotheses, references, tgt_lang, tokenize, lowercase)
    notes = explain(hypotheses, references, sources, lowercase)
    with writing("-") as sink:
        content: dict[str, Any] = {key: each.as_json() for key, each in scores.items()}
        content = {"lines": len(hypotheses), **content, "notes": [n.as_json() for n in notes]}
        print_lines(sink, [json.dumps(content)] if json_ else map(str, scores.values()))
    for note in [] if json_ else notes:
        log.logger.warning("%s", note)


def _check_eval_inputs(
    model: list[Path] | None,
    source: Path | None,
    reference: list[Path] | None,
    hypothesis: Path | None,
    output: Path | None,
) -> None:
    """Refuse options that do not go together."""
    if not reference:
        raise RefusedError("mtrain eval: needs -r/--reference FILE")
    if (model is None) == (hypothesis is None):
        raise RefusedError(
            "mtrain eval: give either -m/--model with -s/--source, or --hypothesis FILE"
        )
    if model is not None and source is None:
        raise RefusedError("mtrain eval: -m/--model needs the text to translate: -s/--source FILE")
    if str(output) == "-":
        raise RefusedError("--output -: scores go to stdout; name a file for the translations")
    refuse_overwriting(output, source, hypothesis, *reference)


@with_options({"batch_tokens": SEARCH["batch_tokens"]})
def score(
    model: ModelOption,
    source: Annotated[Path, typer.Option("--source", "-s", help="Source text.", parser=as_path)],
    target: Annotated[
        Path,
        typer.Option("--target", "-t", help="Its translation, line for line.", parser=as_path),
    ],
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    **decode: Any,
) -> None:
    """Print the log-probability that a model gives to each target line.

    Example: `mtrain score -m runs/NAME -s src.txt -t tgt.txt`
    """
    from mtrain.translation import streams

    model_ = load_model(model, device, precision, decode)
    with writing("-") as sink:
        streams.score_files(model_, source, target, sink)


def compare(
    systems: Annotated[
        list[Path],
        typer.Argument(help="Files of translations; the first is the baseline.", parser=as_path),
    ],
    reference: ReferenceOption = None,
    source: SourceOption = None,
    tgt_lang: LanguageOption = None,
    tokenize: TokenizeOption = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Score without case.")] = False,
    metrics: Annotated[str, typer.Option(help="Metrics, separated by commas.")] = "bleu,chrf,ter",
    lines: Annotated[
        int, typer.Option("--lines", "-n", help="Lines to show of each kind of difference.", min=0)
    ] = 3,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare translations: significant differences of scores, and the lines that differ most.

    Example: `mtrain compare -r ref.de old.de new.de`

    BLEU, chrF and TER are sacreBLEU's, with its paired bootstrap resampling and approximate
    randomization.
    """
    if not reference:
        raise RefusedError("mtrain compare: needs -r/--reference FILE")
    from mtrain.scoring import compare as comparing
    from mtrain.scoring.references import choose_tokenizer, read_references, read_source

    comparing.check_paths(systems)
    chosen = comparing.choose_metrics(metrics)
    references = read_references(reference)
    result = comparing.compare(
        comparing.read_systems(systems, references),
        references,
        read_source(source, references) if source else [],
        metrics=chosen,
        tokenize=choose_tokenizer(tokenize, tgt_lang, references),
        lowercase=lowercase,
        most=lines,
    )
    with writing("-") as sink:
        text = json.dumps(result.as_json()) if json_ else str(result)
        print_lines(sink, text.split("\n"))
