"""The `mtrain` command: parse, call one function, print, exit. Heavy imports wait until a command
runs.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import mtrain
from mtrain.cli.looking import look_app
from mtrain.cli.options import (
    AlignmentsOption,
    BatchOption,
    BeamOption,
    ConfigOption,
    DeviceOption,
    EvalModelOption,
    HypothesisOption,
    InputOption,
    KeepOption,
    LanguageOption,
    ModelOption,
    ModelsOption,
    NBestOption,
    NoRepeatOption,
    NormOption,
    OutputOption,
    PenaltyOption,
    PrecisionOption,
    PrefixOption,
    ReferenceOption,
    SampleOption,
    SeedOption,
    SetOption,
    SourceOption,
    TemperatureOption,
    TimeLimitOption,
    TokenizeOption,
    TopKOption,
    TopPOption,
    as_path,
    begin_job,
    load_model,
    open_translator,
    search_settings,
)
from mtrain.cli.streams import check_output, print_lines, print_path, reading, refuse_kept
from mtrain.runtime import log
from mtrain.runtime.console import (
    leave_at_once,
    loaded,
    open_closed_streams,
    stopped_by_signals,
    writing,
)
from mtrain.runtime.errors import EXIT_FAILED, RefusedError, StoppedError, UserError
from mtrain.runtime.outputs import (
    opened,
    refuse_one_file,
    refuse_overwriting,
    write_output,
)
from mtrain.runtime.stop import Stop

if TYPE_CHECKING:
    from mtrain.translation.translator import Translator

app = typer.Typer(
    name="mtrain",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train translation models from raw parallel text: **train**, **translate**, **eval**.",
)
tokenizer_app = typer.Typer(
    no_args_is_help=True, help="Train and use the subword vocabulary by itself."
)
app.add_typer(tokenizer_app, name="tokenizer")
data_app = typer.Typer(no_args_is_help=True, help="Prepare text ahead of training.")
app.add_typer(data_app, name="data")
app.add_typer(look_app)

_debug = False


def main() -> None:
    """Run the command line; errors meant for people end it with one message and their exit code."""
    # processes that are started find no modules in the working directory, which may be a stranger's
    os.environ["PYTHONSAFEPATH"] = "1"
    open_closed_streams()
    leave_at_once()
    log.set_up_console()
    try:
        app()
    except (UserError, OSError, MemoryError) as error:
        if _debug:
            traceback.print_exc()
        if isinstance(error, UserError) and error.is_told:
            pass
        elif isinstance(error, StoppedError):
            log.logger.warning("%s", error)
        elif isinstance(error, UserError):
            log.logger.error("%s", error)
        elif isinstance(error, MemoryError):
            log.logger.error("out of memory")
        else:
            log.logger.error("%s: %s", error.filename or "mtrain", error.strerror or error)
        sys.exit(error.exit_code if isinstance(error, UserError) else EXIT_FAILED)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"mtrain {mtrain.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    global _debug
    _debug = debug


@app.command()
def train(
    config: ConfigOption,
    set_: SetOption = None,
    time_limit: TimeLimitOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Load everything, say what would happen, and stop.")
    ] = False,
) -> None:
    """Train a model; the same command starts, resumes, or says that the run is complete.

    Progress goes to stderr and to `RUN_DIR/train.log`, figures to `RUN_DIR/metrics.jsonl`. SIGTERM,
    SIGUSR1, Ctrl-C and `--time-limit` save first: run the same command again to go on.
    """
    settings, stop = begin_job(config, set_, time_limit)
    from mtrain.training import job  # imports torch, which takes seconds

    if dry_run:
        job.dry_run(settings, stop, config)
    else:
        job.train(settings, stop, config)


@app.command()
def translate(
    model: ModelsOption,
    input_: InputOption = "-",
    output: OutputOption = "-",
    beam_size: BeamOption = None,
    length_penalty: PenaltyOption = None,
    length_norm: NormOption = None,
    n_best: NBestOption = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Log-probability first: `score<TAB>text`.")
    ] = False,
    target_prefix: PrefixOption = None,
    alignments: AlignmentsOption = None,
    no_repeat_ngram: NoRepeatOption = None,
    sample: SampleOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    batch_tokens: BatchOption = None,
    line_buffered: Annotated[
        bool, typer.Option("--line-buffered", help="Answer each line before the next is read.")
    ] = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Translate text, line for line: `mtrain translate -m runs/NAME < in > out`.

    What is sampled depends on the seed and the number of the line alone; `--n-best N` draws N.
    """
    from mtrain.translation import streams

    _check_files(output, alignments, input_, target_prefix)
    search = search_settings(beam_size, length_penalty, length_norm, no_repeat_ngram, batch_tokens)
    search |= {"sample": sample, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    with open_translator(
        model, device, precision, seed=seed, samples=n_best or 1, **search
    ) as translator:
        _check_n_best(n_best, translator)
        _check_kind({**search, "seed": seed}, translator)
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
    """Refuse to write over what is read, or two things to one file."""
    for name in (output, alignments):
        refuse_overwriting(name, input_, target_prefix)
        if name not in (None, "-"):
            check_output(Path(name))
    if alignments is not None:
        refuse_one_file(output, alignments, "--alignments")


def _check_kind(given: dict[str, object], translator: "Translator") -> None:
    """Refuse options of sampling where translations are searched for, and `--sample` with an option
    of search.
    """
    names, advice = ["temperature", "top_k", "top_p", "seed"], "is of sampling; add --sample"
    if translator.decode.sample:
        names, advice = ["beam_size"], "is of search; leave it or --sample out"
    if given["sample"] or not translator.decode.sample:
        for name in names:
            if given[name] is not None:
                raise translator.ranks.as_one(RefusedError(f"--{name.replace('_', '-')}: {advice}"))


def _check_n_best(n_best: int | None, translator: "Translator") -> None:
    """Refuse to show more hypotheses than a search finds."""
    decode = translator.decode
    if n_best is not None and n_best > decode.beam_size and not decode.sample:
        raise translator.ranks.as_one(
            RefusedError(
                f"--n-best {n_best} is more than the beam holds: add --beam-size {n_best} or more"
            )
        )


@app.command("eval")
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
    beam_size: BeamOption = None,
    length_penalty: PenaltyOption = None,
    length_norm: NormOption = None,
    no_repeat_ngram: NoRepeatOption = None,
    batch_tokens: BatchOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Score translations: BLEU, chrF and TER with signatures and confidence intervals, by
    sacreBLEU.

    What looks wrong about them is told on stderr, or in `notes` of the `--json` object.
    """
    _check_eval_inputs(model, source, reference, hypothesis, output)
    search = search_settings(beam_size, length_penalty, length_norm, no_repeat_ngram, batch_tokens)
    if hypothesis is not None and any(option is not None for option in (output, *search.values())):
        raise RefusedError("mtrain eval: with --hypothesis nothing is translated: no -o, no search")
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
        with open_translator(model, device, precision, **search) as translator:
            tgt_lang = tgt_lang or translator.loaded.config.data.tgt_lang
            check_tokenizer(tokenize or tokenizer_for(tgt_lang))
            from mtrain.translation.streams import translate_all

            hypotheses = translate_all(translator, sources)
            if output is not None and translator.ranks.is_first:
                write_output(output, "".join(line + "\n" for line in hypotheses).encode("utf-8"))
        if not translator.ranks.is_first:
            return
    result = evaluation.score(hypotheses, references, tgt_lang, tokenize, lowercase)
    notes = explain(hypotheses, references, sources, lowercase)
    with writing("-") as sink:
        listed = {"notes": [note.as_json() for note in notes]}
        text = json.dumps({**result.as_json(), **listed}) if json_ else str(result)
        print_lines(sink, text.split("\n"))
    for note in [] if json_ else notes:
        log.logger.warning("%s", note)


def _check_eval_inputs(
    model: list[Path] | None,
    source: Path | None,
    reference: list[Path] | None,
    hypothesis: Path | None,
    output: Path | None,
) -> None:
    """Refuse combinations of options that say nothing or too much."""
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


@app.command()
def score(
    model: ModelOption,
    source: Annotated[Path, typer.Option("--source", "-s", help="Source text.", parser=as_path)],
    target: Annotated[
        Path,
        typer.Option("--target", "-t", help="Its translation, line for line.", parser=as_path),
    ],
    batch_tokens: BatchOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Print the natural log-probability that the model gives each target line."""
    from mtrain.translation import streams

    decode = {"batch_tokens": batch_tokens}
    model_ = load_model(model, device, precision, decode)
    with writing("-") as sink:
        streams.score_files(model_, source, target, sink)


@app.command()
def average(
    run_dir: Annotated[Path, typer.Argument(help="A run directory.", parser=as_path)],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Checkpoint directory to write.", parser=as_path),
    ],
    last: Annotated[int, typer.Option(help="How many of the newest checkpoints.", min=1)] = 5,
) -> None:
    """Average the weights of a run's last checkpoints into one checkpoint."""
    from mtrain.config.loading import load_stored_config
    from mtrain.runs import checkpoint

    loaded()
    refuse_kept(output)
    if not (run_dir / "config.yaml").exists():
        raise UserError(f"{run_dir}: not a run directory: it holds no config.yaml")
    train = load_stored_config(run_dir / "config.yaml").train
    with stopped_by_signals():
        paths = checkpoint.average_run(run_dir, last, output, train.is_scheduled, train.save_every)
    log.logger.info("averaged %s into %s", ", ".join(path.name for path in paths), output)


@app.command()
def export(
    model: ModelOption,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Directory to write.", parser=as_path)
    ],
    to: Annotated[
        str, typer.Option(help="Whose form: ctranslate2 or hf-marian (Hugging Face transformers).")
    ] = "ctranslate2",
    quantization: Annotated[
        str,
        typer.Option(
            help="Type of the weights: float32, and for CTranslate2 float16, bfloat16, int8, ..."
        ),
    ] = "float32",
    sample: Annotated[
        Path | None,
        typer.Option(
            help="Text to compare the engines on, instead of the validation set.", parser=as_path
        ),
    ] = None,
) -> None:
    """Hand a model on to CTranslate2, for serving, or to Hugging Face's transformers: `mtrain
    export -m runs/NAME -o served`.

    Both engines translate a sample first, greedily and with a beam of 4; the share of equal lines
    is printed, and the first lines that differ, each with this model's score. Where more differ
    than near-ties account for, before weights are rounded, nothing is written.
    """
    from mtrain.export import handover as exporting

    if to not in exporting.FORMS:
        raise RefusedError(f"--to {to}: expected {' or '.join(exporting.FORMS)}")
    refuse_kept(output)
    model_ = load_model(model, "cpu", "fp32", {})
    with writing("-") as sink, stopped_by_signals():

        def show(line: str) -> None:
            print_lines(sink, [line])

        exporting.export(model_, to, output, quantization, sample, show)


@data_app.command("build")
def data_build(
    config: ConfigOption, set_: SetOption = None, time_limit: TimeLimitOption = None
) -> None:
    """Check and tokenize the text of a config ahead of `mtrain train`, on a machine without GPU.

    Vocabulary and tokenized text go to the cache (`MTRAIN_CACHE`), where training finds them. A
    build that is stopped goes on with the same command behind its last whole million pairs.
    """
    settings, stop = begin_job(config, set_, time_limit)
    from mtrain.data.prepare import prepare
    from mtrain.runs.directory import RunDirectory

    prepare(settings, RunDirectory(Path(settings.run_dir)).tokenizer, stop)


@tokenizer_app.command("train")
def tokenizer_train(config: ConfigOption, set_: SetOption = None) -> None:
    """Train the vocabulary of a config and keep it in its run directory, ahead of `mtrain
    train`.
    """
    from mtrain.config.loading import load_config

    settings = load_config(config, set_)
    from mtrain.data.prepare import train_run_tokenizer

    loaded()
    print_path(train_run_tokenizer(settings, Stop(), config))


@tokenizer_app.command("encode")
def tokenizer_encode(model: ModelOption) -> None:
    """Cut lines of stdin into pieces, separated by spaces."""
    from mtrain.translation import streams

    tokenizer = streams.load_tokenizer(model)
    with reading("-") as source, writing("-") as sink:
        streams.encode_stream(tokenizer, source, sink)


@tokenizer_app.command("decode")
def tokenizer_decode(model: ModelOption) -> None:
    """Join pieces of stdin, separated by spaces, to lines."""
    from mtrain.translation import streams

    tokenizer = streams.load_tokenizer(model)
    with reading("-") as source, writing("-") as sink:
        streams.decode_stream(tokenizer, source, sink)
