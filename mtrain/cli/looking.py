"""Commands that look at text, models, runs and scores, and change none of them."""

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from mtrain.cli.options import (
    ConfigOption,
    DeviceOption,
    HeadOption,
    KindOption,
    LanguageOption,
    LayerOption,
    ModelOption,
    PrecisionOption,
    ReferenceOption,
    SetOption,
    SourceOption,
    TokenizeOption,
    as_name,
    as_path,
    begin_job,
    load_model,
)
from mtrain.cli.streams import check_output, print_lines, print_path, reading
from mtrain.runtime.console import loaded, writing
from mtrain.runtime.errors import EXIT_FAILED, RefusedError, UserError
from mtrain.runtime.outputs import refuse_overwriting, write_output
from mtrain.runtime.stop import Stop

look_app = typer.Typer()


def check_page(path: Path) -> None:
    """Raise `RefusedError` unless a path is a name for a page; `UserError` where no file can be
    written.
    """
    if path.is_dir():
        raise RefusedError(f"--output {path}: is a directory; name a file")
    if str(path) == "-":  # stdout in other commands; here it would become a file of that name
        raise RefusedError("--output -: name a file, such as /dev/stdout")
    check_output(path)
    if path.suffix not in ("", ".html", ".htm"):
        raise RefusedError(f"--output {path}: this is a page; give a name that ends in .html")


def _readable(text: str) -> str:
    """Replace what is not UTF-8 of a text from the command line."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@look_app.command("init")
def initialize(
    src: Annotated[
        Path,
        typer.Argument(help="Source text, one segment a line; .gz or .zst too.", parser=as_path),
    ],
    tgt: Annotated[Path, typer.Argument(help="Its translation, line for line.", parser=as_path)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Config to write.  [SRC-TGT.yaml]", parser=as_path),
    ] = None,
    src_lang: Annotated[
        str | None, typer.Option(help="Source language, if the file's name does not tell.")
    ] = None,
    tgt_lang: Annotated[str | None, typer.Option(help="Target language, likewise.")] = None,
    valid_src: Annotated[
        Path | None, typer.Option(help="Source of a validation set.", parser=as_path)
    ] = None,
    valid_tgt: Annotated[
        Path | None, typer.Option(help="Target of a validation set.", parser=as_path)
    ] = None,
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
    from mtrain.check import starter
    from mtrain.runtime.device import pick_device

    languages = (
        src_lang or starter.language_of(src, "--src-lang"),
        tgt_lang or starter.language_of(tgt, "--tgt-lang"),
    )
    output = output or Path("-".join(languages) + ".yaml")
    valid = (valid_src, valid_tgt) if valid_src is not None and valid_tgt is not None else None
    request = starter.Request(src, tgt, output, *languages, valid, hold_out or 0)
    starter.write_config(request, stop, has_gpu=pick_device("auto").type == "cuda")
    print_path(output)


@look_app.command()
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
    settings, stop = begin_job(config, set_, None)
    from mtrain.check.diagnosis import diagnose
    from mtrain.check.findings import ERROR
    from mtrain.scoring.references import warn_of_missing_tokenizer

    warn_of_missing_tokenizer(settings.data.tgt_lang)
    found = diagnose(settings, stop, examples=examples, with_forecast=forecast, timed=timing)
    with writing("-") as sink:
        lines = [found.as_json()] if json_ else found.lines(shutil.get_terminal_size((100, 0))[0])
        print_lines(sink, lines)
    if found.count(ERROR):
        raise typer.Exit(EXIT_FAILED)


@look_app.command()
def attention(
    model: ModelOption,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Page to write, as attention.html.", parser=as_path),
    ],
    text: Annotated[str | None, typer.Argument(help="A sentence to look at.")] = None,
    input_: Annotated[
        str | None,
        typer.Option("--input", "-i", help="A file of sentences, `-` for stdin.", parser=as_name),
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

    The page holds all layers and heads, lets choose among them, and needs no network.
    """
    if (text is None) == (input_ is None):
        raise RefusedError("mtrain attention: give either a sentence or -i/--input FILE")
    target = target and (_readable(target) if input_ is None else as_name(target))
    refuse_overwriting(output, input_, target if input_ else None)
    check_page(output)
    from mtrain.report import maps

    choice = maps.choose(kind, layer, head)
    if input_ is None:
        assert text is not None
        pairs: maps.Pairs = [(_readable(text), target)]
    else:
        with reading(input_) as source:
            pairs = maps.read_pairs(source, Path(target) if target else None)
    model_ = load_model(model, device, precision, {})
    loaded()
    page = maps.draw_page(maps.watch(model_, pairs, choice), model)
    write_output(output, page.encode("utf-8", "replace"))


@look_app.command()
def report(
    run_dir: Annotated[
        Path, typer.Argument(help="A run directory, of a run that may go on.", parser=as_path)
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Page to write, as report.html.", parser=as_path),
    ],
    text: Annotated[
        list[str] | None,
        typer.Option(help="Sentence to show attention for, instead of validation's. Repeatable."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Look for what is wrong with the text, too.")
    ] = True,
) -> None:
    """Put a run on one page that needs no network: scores, curves, translations, attention, data,
    settings.
    """
    from mtrain.report import page as reporting

    check_page(output)
    page = reporting.make_page(run_dir, [_readable(each) for each in text or []], check=check)
    loaded()
    write_output(output, page.encode("utf-8", "replace"))


@look_app.command()
def compare(
    systems: Annotated[
        list[Path],
        typer.Argument(
            help="Translations, a file each; the first is the baseline.", parser=as_path
        ),
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


@look_app.command()
def verify(
    run_dir: Annotated[
        Path,
        typer.Argument(help="A run directory, or one checkpoint directory.", parser=as_path),
    ],
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check that a run is what it says: every file is hashed again, every record compared.

    A line for each thing: ok, damaged, missing or changed; unreachable for corpora that are not
    here, which is no failure, nor is a note. Exit code 0 if all is good, else 1.
    """
    from mtrain.runs import verify as verifying

    findings = []
    with writing("-") as sink:
        for finding in verifying.verify(run_dir):
            findings.append(finding)
            if not json_:
                print_lines(sink, [str(finding)])
        bad = [finding for finding in findings if finding.state in verifying.BAD]
        if json_:
            listed = [finding.as_json() for finding in findings]
            content = {"run": str(run_dir), "good": not bad, "findings": listed}
            sink.write(json.dumps(content).encode() + b"\n")
    if bad:
        raise UserError(f"{run_dir}: {len(bad)} of {len(findings)} findings are bad")
