"""Commands about a finished run, or one in progress."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from mtrain.cli import options
from mtrain.cli.options import file, flag, path, value
from mtrain.cli.streams import as_text, check_page, print_json, print_text
from mtrain.runtime import log
from mtrain.runtime.console import loaded, stopped_by_signals
from mtrain.runtime.errors import UserError
from mtrain.runtime.outputs import write_output

Run = Annotated[Path, path("RUN", "Run directory.")]


def report(
    run: Run,
    output: Annotated[Path, file("HTML page to write, such as report.html.", "--output", "-o")],
    text: Annotated[
        list[str] | None,
        value("TEXT", "Sentence to draw attention for; default: some of the validation set."),
    ] = None,
    check: Annotated[
        bool, flag("Include the findings of `mtrain check`.", "--check/--no-check")
    ] = True,
) -> None:
    """Write an HTML page about a run: scores, curves, translations, attention, data, settings.

    Example: `mtrain report runs/NAME -o report.html`
    """
    from mtrain.report import page as reporting

    check_page(output)
    page = reporting.make_page(run, [as_text(each) for each in text or []], check=check)
    loaded()
    write_output(output, page.encode("utf-8", "replace"))


def verify(
    run: Annotated[Path, path("RUN", "Run directory or checkpoint directory.")],
    json_: options.Json = False,
) -> None:
    """Check that every file of a run is as the run wrote it (exit code 1 if not).

    Example: `mtrain verify runs/NAME`
    """
    from mtrain.runs import verify as verifying

    findings = []
    is_shown = json_ or not sys.stdout.isatty()
    with log.progress_bar(None, "item", "verifying", shown=is_shown) as bar:
        for finding in verifying.verify(run):
            findings.append(finding)
            bar.update()
            if not json_:
                print_text(str(finding))
    bad = [finding for finding in findings if finding.state in verifying.BAD]
    if json_:
        listed = [asdict(finding) for finding in findings]
        print_json({"run": str(run), "good": not bad, "findings": listed})
    if bad:
        raise UserError(f"{run}: {len(bad)} of {len(findings)} items are not intact")


def average(
    run: Run,
    output: Annotated[
        Path, file("Checkpoint directory to write.", "--output", "-o", metavar="DIR")
    ],
    last: Annotated[int, value("N", "Average the N newest checkpoints.", min=1)] = 5,
) -> None:
    """Average the weights of a run's newest checkpoints.

    Example: `mtrain average runs/NAME --last 5 -o averaged`
    """
    from mtrain.config.loading import load_stored_config
    from mtrain.runs import checkpoint
    from mtrain.runs.layout import refuse_kept

    loaded()
    refuse_kept(output)
    train = load_stored_config(run / "config.yaml").train
    with stopped_by_signals():
        paths = checkpoint.average_run(run, last, output, train)
    log.logger.info("averaged %s into %s", ", ".join(path.name for path in paths), output)


def export(
    model: options.Model,
    output: Annotated[
        Path,
        file("Directory to write; for argos a file.argosmodel.", "--output", "-o", metavar="DIR"),
    ],
    to: Annotated[
        Literal["ctranslate2", "hf-marian", "argos"],
        value("NAME", "Engine: ctranslate2, hf-marian (Hugging Face's transformers) or argos."),
    ] = "ctranslate2",
    quantization: Annotated[
        str | None,
        value("TYPE", "Weights: float32, int8, float16, ...; default: float32, for argos int8."),
    ] = None,
    sample: Annotated[
        Path | None, file("Text to compare the engines on; default: the validation set.")
    ] = None,
) -> None:
    """Convert a model for another engine, after comparing the translations of both.

    Example: `mtrain export -m runs/NAME --to ctranslate2 -o served`
    """
    from mtrain.export import handover as exporting
    from mtrain.runs.layout import refuse_kept
    from mtrain.translation import loading

    refuse_kept(output)
    model_ = loading.load(model, device="cpu", precision="fp32")
    loaded()
    with stopped_by_signals():
        kind = quantization or ("int8" if to == "argos" else "float32")
        exporting.export(model_, to, output, kind, sample, print_text)
