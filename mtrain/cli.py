"""The `mtrain` command: parse, call one function, print, exit. Heavy imports wait until a command
runs.
"""

import json
import os
import shutil
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import mtrain
from mtrain import log
from mtrain.errors import EXIT_FAILED, RefusedError, StoppedError, UserError
from mtrain.options import (
    BatchOption,
    BeamOption,
    ConfigOption,
    DeviceOption,
    DevicesOption,
    EvalModelOption,
    HeadOption,
    HypothesisOption,
    KeepOption,
    KindOption,
    LanguageOption,
    LayerOption,
    ModelOption,
    ModelsOption,
    NoRepeatOption,
    NormOption,
    PenaltyOption,
    PrecisionOption,
    ReferenceOption,
    SetOption,
    SourceOption,
    TimeLimitOption,
    TokenizeOption,
    load_translator,
    open_translator,
)
from mtrain.stop import Stop, parse_duration
from mtrain.terminal import (
    leave_at_once,
    loaded,
    open_closed_streams,
    reading,
    refuse_overwriting,
    writing,
)

if TYPE_CHECKING:
    from mtrain.config import Config

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

_debug = False


def main() -> None:
    """Run the command line; errors meant for people end it with one message and their exit code."""
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
    settings, stop = _begin_job(config, set_, time_limit)
    from mtrain import job  # imports torch, which takes seconds

    if dry_run:
        job.dry_run(settings, stop)
    else:
        job.train(settings, stop)


@app.command()
def translate(
    model: ModelsOption,
    input_: Annotated[
        str, typer.Option("--input", "-i", help="Text to translate, `-` for stdin.")
    ] = "-",
    output: Annotated[
        str, typer.Option("--output", "-o", help="Where to write, `-` for stdout.")
    ] = "-",
    beam_size: BeamOption = None,
    length_penalty: PenaltyOption = None,
    length_norm: NormOption = None,
    n_best: Annotated[
        int | None, typer.Option(help="N lines an input: `index<TAB>score<TAB>text`.", min=1)
    ] = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Log-probability first: `score<TAB>text`.")
    ] = False,
    target_prefix: Annotated[
        Path | None,
        typer.Option(help="What each translation is to begin with, line for line, whole words."),
    ] = None,
    alignments: Annotated[
        str | None,
        typer.Option(
            help="Where to write which source word each word was made of: `0-0 1-2`, from 0."
        ),
    ] = None,
    no_repeat_ngram: NoRepeatOption = None,
    sample: Annotated[
        bool | None,
        typer.Option("--sample", help="Draw translations at random instead of searching."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Of sampling; lower keeps to what is likelier.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Sample from the K likeliest tokens; 0: from all.", min=0)
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the fewest tokens of this probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of sampling, instead of the run's.")] = None,
    batch_tokens: BatchOption = None,
    line_buffered: Annotated[
        bool, typer.Option("--line-buffered", help="Answer each line before the next is read.")
    ] = False,
    device: DevicesOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Translate text, line for line: `mtrain translate -m runs/NAME < in > out`.

    What is sampled depends on the seed and the number of the line alone; `--n-best N` draws N.
    """
    from mtrain import lines

    refuse_overwriting(output, input_, target_prefix)
    refuse_overwriting(alignments, input_, target_prefix)
    settings = {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "length_norm": length_norm,
        "no_repeat_ngram": no_repeat_ngram,
        "sample": sample,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "samples": n_best or 1,
        "batch_tokens": batch_tokens,
    }
    with open_translator(model, device, precision, **settings) as (translator, ranks):
        decode = translator.decode
        if n_best is not None and n_best > decode.beam_size and not decode.sample:
            raise ranks.as_one(
                RefusedError(
                    f"--n-best {n_best} is more than the beam holds: add --beam-size {n_best} "
                    "or more"
                )
            )
        if not ranks.is_first:
            input_ = output = os.devnull
            alignments = alignments and os.devnull
        links = writing(alignments) if alignments else nullcontext()
        with reading(input_) as source, writing(output) as sink, links as links_sink:
            lines.translate_stream(
                translator,
                source,
                sink,
                n_best=n_best,
                scores=scores,
                prefixes=target_prefix,
                alignments=links_sink,
                line_buffered=line_buffered or (input_ == "-" and sys.stdin.isatty()),
                ranks=ranks,
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
    device: DevicesOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Score translations: BLEU, chrF and TER with signatures and confidence intervals, by
    sacreBLEU.

    What looks wrong about them is told on stderr, or in `notes` of the `--json` object.
    """
    _check_eval_inputs(model, source, reference, hypothesis, output)
    search = {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "length_norm": length_norm,
        "no_repeat_ngram": no_repeat_ngram,
        "batch_tokens": batch_tokens,
    }
    if hypothesis is not None and any(option is not None for option in (output, *search.values())):
        raise RefusedError("mtrain eval: with --hypothesis nothing is translated: no -o, no search")
    from mtrain import evaluate as evaluation
    from mtrain.explain import explain
    from mtrain.metrics import check_seed, check_tokenizer, tokenizer_for

    check_seed()
    check_tokenizer(tokenize or tokenizer_for(tgt_lang))
    references = evaluation.read_references(reference or [])
    sources = evaluation.read_source(source, references) if source else []
    if hypothesis is not None:
        hypotheses = evaluation.read_aligned(hypothesis, references)
    else:
        assert model is not None
        with open_translator(model, device, precision, **search) as (translator, ranks):
            tgt_lang = tgt_lang or translator.config.data.tgt_lang
            check_tokenizer(tokenize or tokenizer_for(tgt_lang))
            hypotheses = evaluation.translate(
                translator, sources, output if ranks.is_first else None
            )
        if not ranks.is_first:
            return
    result = evaluation.score(hypotheses, references, tgt_lang, tokenize, lowercase)
    notes = explain(hypotheses, references, sources, lowercase)
    with writing("-") as sink:
        listed = {"notes": [note.as_json() for note in notes]}
        text = json.dumps({**result.as_json(), **listed}) if json_ else str(result)
        sink.write(text.encode() + b"\n")
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
    refuse_overwriting(output, source, hypothesis, *reference)


@app.command()
def compare(
    systems: Annotated[
        list[Path], typer.Argument(help="Translations, a file each; the first is the baseline.")
    ],
    reference: ReferenceOption = None,
    source: SourceOption = None,
    tgt_lang: LanguageOption = None,
    tokenize: TokenizeOption = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Score without case.")] = False,
    metrics: Annotated[str, typer.Option(help="Which of them.")] = "bleu,chrf,ter",
    lines: Annotated[
        int, typer.Option("--lines", "-n", help="Lines shown of each kind of difference.", min=0)
    ] = 3,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare translations: which scores differ by more than chance, and where the texts do.

    BLEU, chrF and TER by sacreBLEU, with its paired bootstrap resampling and approximate
    randomization: `mtrain compare -r ref.de old.de new.de`.
    """
    if not reference:
        raise RefusedError("mtrain compare: needs -r/--reference FILE")
    from mtrain import compare as comparing
    from mtrain import parallel

    comparing.check_paths(systems)
    chosen = comparing.choose_metrics(metrics)
    references = parallel.read_references(reference)
    result = comparing.compare(
        comparing.read_systems(systems, references),
        references,
        parallel.read_source(source, references) if source else [],
        metrics=chosen,
        tokenize=parallel.choose_tokenizer(tokenize, tgt_lang, references),
        lowercase=lowercase,
        most=lines,
    )
    with writing("-") as sink:
        text = json.dumps(result.as_json()) if json_ else str(result)
        sink.write(text.encode() + b"\n")


@app.command()
def score(
    model: ModelOption,
    source: Annotated[Path, typer.Option("--source", "-s", help="Source text.")],
    target: Annotated[Path, typer.Option("--target", "-t", help="Its translation, line for line.")],
    batch_tokens: BatchOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Print the natural log-probability that the model gives each target line."""
    from mtrain import lines

    decode = {"batch_tokens": batch_tokens}
    translator = load_translator(model, device, precision, decode)
    with writing("-") as sink:
        lines.score_files(translator, source, target, sink)


@app.command()
def verify(
    run_dir: Annotated[Path, typer.Argument(help="A run directory, or one checkpoint directory.")],
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check that a run is what it says: every file is hashed again, every record compared.

    A line for each thing: ok, damaged, missing or changed; unreachable for corpora that are not
    here, which is no failure, nor is a note. Exit code 0 if all is good, else 1.
    """
    from mtrain import verify as verifying

    findings = []
    with writing("-") as sink:
        for finding in verifying.verify(run_dir):
            findings.append(finding)
            if not json_:
                sink.write(f"{finding}\n".encode("utf-8", "backslashreplace"))
                sink.flush()  # the next one may take minutes
        bad = [finding for finding in findings if finding.state in verifying.BAD]
        if json_:
            listed = [finding.as_json() for finding in findings]
            content = {"run": str(run_dir), "good": not bad, "findings": listed}
            sink.write(json.dumps(content).encode() + b"\n")
    if bad:
        raise UserError(f"{run_dir}: {len(bad)} of {len(findings)} findings are bad")


@app.command()
def attention(
    model: ModelOption,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write: .html, .svg or .png.")
    ],
    text: Annotated[str | None, typer.Argument(help="A sentence to look at.")] = None,
    input_: Annotated[
        str | None, typer.Option("--input", "-i", help="A file of sentences, `-` for stdin.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            help="Translation to produce instead of the model's own: text with TEXT, a file with "
            "--input.",
        ),
    ] = None,
    kind: KindOption = None,
    layer: LayerOption = None,
    head: HeadOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Show what a model attends to, as heat maps: `mtrain attention -m runs/NAME -o a.html "Hi."`.

    A page (.html) holds all layers and heads and lets choose among them; it needs no network. PNG
    needs the extra `mtrain[plot]`.
    """
    if (text is None) == (input_ is None):
        raise RefusedError("mtrain attention: give either a sentence or -i/--input FILE")
    refuse_overwriting(output, input_, target if input_ else None)
    from mtrain import picture

    picture.check_format(output)
    from mtrain import maps

    choice = maps.choose(kind, layer, head)
    if input_ is None:
        assert text is not None
        pairs: maps.Pairs = [(text, target)]
    else:
        with reading(input_) as source:
            pairs = maps.read_pairs(source, Path(target) if target else None)
    translator = load_translator(model, device, precision, {})
    loaded()
    picture.write(output, maps.watch(translator, pairs, choice), model)


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(help="A run directory, of a run that may go on.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write, as report.html.")],
    text: Annotated[
        list[str] | None,
        typer.Option(help="Sentence to show attention for, instead of validation's. Repeatable."),
    ] = None,
) -> None:
    """Put a run on one page that needs no network: scores, curves, translations, attention, data,
    settings.
    """
    from mtrain import picture
    from mtrain import report as reporting

    page = reporting.make_page(run_dir, text or [])
    loaded()
    picture.write_output(output, page.encode("utf-8"))


@app.command()
def average(
    run_dir: Annotated[Path, typer.Argument(help="A run directory.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Checkpoint directory to write.")],
    last: Annotated[int, typer.Option(help="How many of the newest checkpoints.", min=1)] = 5,
) -> None:
    """Average the weights of a run's last checkpoints into one checkpoint."""
    from mtrain import checkpoint
    from mtrain.config import load_config

    loaded()
    if not (run_dir / "config.yaml").exists():
        raise UserError(f"{run_dir}: not a run directory: it holds no config.yaml")
    train = load_config(run_dir / "config.yaml").train
    paths = checkpoint.average_run(run_dir, last, output, train.is_scheduled, train.save_every)
    log.logger.info("averaged %s into %s", ", ".join(path.name for path in paths), output)


@app.command()
def export(
    model: ModelOption,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory to write.")],
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
        typer.Option(help="Text to compare the engines on, instead of the validation set."),
    ] = None,
) -> None:
    """Hand a model on to CTranslate2, for serving, or to Hugging Face's transformers: `mtrain
    export -m runs/NAME -o served`.

    Both engines translate a sample first, greedily and with a beam of 4; the share of equal lines
    is printed, and the first lines that differ, each with this model's score. Where more differ
    than near-ties account for, before weights are rounded, nothing is written.
    """
    from mtrain import export as exporting

    if to not in exporting.FORMS:
        raise RefusedError(f"--to {to}: expected {' or '.join(exporting.FORMS)}")
    translator = load_translator(model, "cpu", "fp32", {})
    with writing("-") as sink:

        def show(line: str) -> None:
            sink.write(line.encode("utf-8") + b"\n")
            sink.flush()  # the next one may take minutes

        exporting.export(translator, to, output, quantization, sample, show)


@app.command("init")
def initialize(
    src: Annotated[Path, typer.Argument(help="Source text, one segment a line; .gz or .zst too.")],
    tgt: Annotated[Path, typer.Argument(help="Its translation, line for line.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Config to write.  [SRC-TGT.yaml]")
    ] = None,
    src_lang: Annotated[
        str | None, typer.Option(help="Source language, if the file's name does not tell.")
    ] = None,
    tgt_lang: Annotated[str | None, typer.Option(help="Target language, likewise.")] = None,
    valid_src: Annotated[Path | None, typer.Option(help="Source of a validation set.")] = None,
    valid_tgt: Annotated[Path | None, typer.Option(help="Target of a validation set.")] = None,
    hold_out: Annotated[
        int | None,
        typer.Option(help="Split off so many pairs for validation, into new files.", min=1),
    ] = None,
) -> None:
    """Write a first config, sized to two files of text and to this machine.

    It needs a validation set: either files of its own, or `--hold-out 1000`, which writes both
    parts of the text beside the config, without what they would share.
    """
    if (valid_src is None) != (valid_tgt is None) or (valid_src is None) == (hold_out is None):
        raise RefusedError(
            "mtrain init: needs text to validate on: give --valid-src and --valid-tgt, or "
            "--hold-out 1000 to split so many pairs off"
        )
    stop = Stop()
    stop.install()
    from mtrain import starter
    from mtrain.device import pick_device

    languages = (
        src_lang or starter.language_of(src, "--src-lang"),
        tgt_lang or starter.language_of(tgt, "--tgt-lang"),
    )
    output = output or Path("-".join(languages) + ".yaml")
    valid = (valid_src, valid_tgt) if valid_src is not None and valid_tgt is not None else None
    request = starter.Request(src, tgt, output, *languages, valid, hold_out or 0)
    starter.write_config(request, stop, has_gpu=pick_device("auto").type == "cuda")
    typer.echo(output)


@app.command()
def check(
    config: ConfigOption,
    set_: SetOption = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    examples: Annotated[
        int, typer.Option(help="Lines that are named of each kind of finding.", min=1, max=1000)
    ] = 10,
    forecast: Annotated[
        bool, typer.Option("--forecast/--no-forecast", help="Tell what a run will take, too.")
    ] = True,
    timing: Annotated[
        bool, typer.Option("--timing/--no-timing", help="Time a few steps for it.")
    ] = True,
) -> None:
    """Look for what is wrong with the text of a config, and tell what a run will take.

    Every corpus is read to its end: odd characters, lines out of step, swapped or untranslated
    sides, duplicates, validation and test lines that stand in the training text. Exit code 1 where
    training would refuse the text or its result would mean nothing.
    """
    settings, stop = _begin_job(config, set_, None)
    from mtrain.diagnosis import diagnose
    from mtrain.findings import ERROR

    found = diagnose(settings, stop, examples=examples, with_forecast=forecast, timed=timing)
    with writing("-") as sink:
        lines = [found.as_json()] if json_ else found.lines(shutil.get_terminal_size((100, 0))[0])
        sink.writelines(line.encode("utf-8", "replace") + b"\n" for line in lines)
    if found.count(ERROR):
        raise typer.Exit(EXIT_FAILED)


@data_app.command("build")
def data_build(
    config: ConfigOption, set_: SetOption = None, time_limit: TimeLimitOption = None
) -> None:
    """Check and tokenize the text of a config ahead of `mtrain train`, on a machine without GPU.

    Vocabulary and tokenized text go to the cache (`MTRAIN_CACHE`), where training finds them. A
    build that is stopped goes on with the same command behind its last whole million pairs.
    """
    settings, stop = _begin_job(config, set_, time_limit)
    from mtrain.prepare import prepare
    from mtrain.rundir import RunDirectory

    prepare(settings, RunDirectory(Path(settings.run_dir)).tokenizer, stop)


@tokenizer_app.command("train")
def tokenizer_train(config: ConfigOption, set_: SetOption = None) -> None:
    """Train the vocabulary of a config and keep it in its run directory, ahead of `mtrain
    train`.
    """
    from mtrain.config import load_config

    settings = load_config(config, set_)
    from mtrain.prepare import train_run_tokenizer

    loaded()
    path = train_run_tokenizer(settings, Stop())
    typer.echo(path)


@tokenizer_app.command("encode")
def tokenizer_encode(model: ModelOption) -> None:
    """Cut lines of stdin into pieces, separated by spaces."""
    from mtrain import lines

    tokenizer = lines.load_tokenizer(model)
    with reading("-") as source, writing("-") as sink:
        lines.encode_stream(tokenizer, source, sink)


@tokenizer_app.command("decode")
def tokenizer_decode(model: ModelOption) -> None:
    """Join pieces of stdin, separated by spaces, to lines."""
    from mtrain import lines

    tokenizer = lines.load_tokenizer(model)
    with reading("-") as source, writing("-") as sink:
        lines.decode_stream(tokenizer, source, sink)


def _begin_job(
    config: Path, overrides: list[str] | None, time_limit: str | None
) -> tuple["Config", Stop]:
    """Listen to requests to stop before anything else, then read the settings of a long job."""
    stop = Stop(parse_duration(time_limit) if time_limit else None)
    stop.install()
    from mtrain.config import load_config

    settings = load_config(config, overrides)
    log.set_up_console(times=True)
    return settings, stop
