"""Commands that inspect text, runs and models, and change none of them."""

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from mtrain.cli.options import (
    ConfigOption,
    DeviceOption,
    HeadOption,
    KindOption,
    LayerOption,
    ModelOption,
    PrecisionOption,
    SetOption,
    as_name,
    as_path,
    begin_job,
    load_model,
)
from mtrain.cli.streams import check_output, print_lines, reading
from mtrain.runtime.console import loaded, writing
from mtrain.runtime.errors import EXIT_FAILED, RefusedError, UserError
from mtrain.runtime.log import progress_bar
from mtrain.runtime.outputs import refuse_overwriting, write_output


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the commands to the command line."""
    for command in (check, report, attention, verify):
        app.command(rich_help_panel=panel)(command)


def check_page(path: Path) -> None:
    """Raise `RefusedError` unless the path can name a page, `UserError` if it cannot be written."""
    if path.is_dir():
        raise RefusedError(f"--output {path}: is a directory; name a file")
    if str(path) == "-":  # stdout in other commands; here it would become a file of that name
        raise RefusedError("--output -: name a file, such as /dev/stdout")
    check_output(path)
    if path.suffix not in ("", ".html", ".htm"):
        raise RefusedError(f"--output {path}: this is a page; give a name that ends in .html")


def _readable(text: str) -> str:
    """Replace invalid UTF-8 in a text of the command line."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def check(
    config: ConfigOption,
    set_: SetOption = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    examples: Annotated[
        int, typer.Option(help="Lines to name for each kind of finding.", min=1, max=1000)
    ] = 10,
    forecast: Annotated[
        bool, typer.Option("--forecast/--no-forecast", help="Forecast memory, disk and time.")
    ] = True,
    timing: Annotated[
        bool, typer.Option("--timing/--no-timing", help="Time a few steps for the forecast.")
    ] = True,
) -> None:
    """Find faults in the text of a config, and forecast its training.

    Example: `mtrain check -c en-de.yaml`

    Every corpus is read to its end: suspicious characters, shifted lines, swapped or untranslated
    sides, duplicates, overlap of training, validation and test sets. Exit code 1 if training would
    refuse the text or its scores would mean nothing.
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


def attention(
    model: ModelOption,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Page to write, as attention.html.", parser=as_path),
    ],
    text: Annotated[str | None, typer.Argument(help="A sentence.")] = None,
    input_: Annotated[
        str | None,
        typer.Option("--input", "-i", help="A file of sentences, `-` for stdin.", parser=as_name),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            help="Translation to force instead of the model's own: text with TEXT, a file with "
            "--input.",
        ),
    ] = None,
    kind: KindOption = None,
    layer: LayerOption = None,
    head: HeadOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Draw the attention of a model as heat maps on a page of HTML.

    Example: `mtrain attention -m runs/NAME -o attention.html "A small test."`

    The reader of the page chooses layers and heads. It needs no network.
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


def report(
    run_dir: Annotated[
        Path, typer.Argument(help="A run directory; the run may be in progress.", parser=as_path)
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Page to write, as report.html.", parser=as_path),
    ],
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="Sentence to show attention for; default: some of validation. Repeatable."
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Check the text, too.")] = True,
) -> None:
    """Write a page of HTML about a run: scores, curves, translations, attention, data, settings.

    Example: `mtrain report runs/NAME -o report.html`
    """
    from mtrain.report import page as reporting

    check_page(output)
    page = reporting.make_page(run_dir, [_readable(each) for each in text or []], check=check)
    loaded()
    write_output(output, page.encode("utf-8", "replace"))


def verify(
    run_dir: Annotated[
        Path,
        typer.Argument(help="A run directory, or one checkpoint directory.", parser=as_path),
    ],
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Hash every file of a run again and compare it with the run's records.

    Example: `mtrain verify runs/NAME`

    Prints one line per item: ok, damaged, missing or changed (exit code 1), or unreachable for
    corpora that are not here, and notes, which are no failure.
    """
    from mtrain.runs import verify as verifying
    from mtrain.runs.findings import BAD

    findings = []
    bar = progress_bar(None, "item", "verifying", shown=json_ or not sys.stdout.isatty())
    with writing("-") as sink, bar:
        for finding in verifying.verify(run_dir):
            findings.append(finding)
            bar.update()
            if not json_:
                print_lines(sink, [str(finding)])
        bad = [finding for finding in findings if finding.state in BAD]
        if json_:
            listed = [finding.as_json() for finding in findings]
            content = {"run": str(run_dir), "good": not bad, "findings": listed}
            sink.write(json.dumps(content).encode() + b"\n")
    if bad:
        raise UserError(f"{run_dir}: {len(bad)} of {len(findings)} findings are bad")
