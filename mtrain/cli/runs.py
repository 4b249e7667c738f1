"""Commands about a run, finished or in progress."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from mtrain.cli import opening, options
from mtrain.cli.options import choice, file, flag, value
from mtrain.cli.streams import as_text, check_page, print_json, print_text, write_page
from mtrain.runtime import log
from mtrain.runtime.console import stopped_by_signals
from mtrain.runtime.errors import UserError
from mtrain.runtime.outputs import describe_size

Quantization = Literal[
    "float32",
    "float16",
    "bfloat16",
    "int16",
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
]


def report(
    run: options.RunDirectory = None,
    model: options.Model = None,
    output: Annotated[
        Path | None, file("HTML page to write; default: report.html.", "--output", "-o")
    ] = None,
    text: Annotated[
        list[str] | None,
        value(
            "TEXT",
            "Sentence to draw attention for; default: some of the validation set. Repeatable.",
        ),
    ] = None,
    check: Annotated[
        bool, flag("Include the findings of `mtrain check`.", "--check/--no-check")
    ] = True,
) -> None:
    """Write an HTML page about a run: scores, curves, translations, attention, data, settings.

    Example: `mtrain report runs/NAME -o report.html`
    """
    run = opening.run_directory(run, model)
    from mtrain.report import page as reporting

    output = check_page(output, "report.html")
    with stopped_by_signals():  # so that the check removes its temporary files
        page = reporting.make_page(run, [as_text(each) for each in text or []], check=check)
    write_page(output, page)


def verify(
    run: options.RunOrCheckpoint = None, model: options.Model = None, json_: options.Json = False
) -> None:
    """Check the hashes of a run's files and text, and the form of its records (exit code 1 for a
    fault).

    Example: `mtrain verify runs/NAME`
    """
    run = opening.run_or_checkpoint(run, model)
    from mtrain.runs import verify as verifying

    findings = []
    with log.progress_bar(None, "item", "verifying") as bar:
        for finding in verifying.verify(run):
            findings.append(finding)
            bar.update()
    bad = [finding for finding in findings if finding.state in verifying.BAD]
    if json_:
        print_json({"run": str(run), "good": not bad, "findings": list(map(asdict, findings))})
    else:
        counts = Counter(finding.state for finding in findings)
        total = f"total: {', '.join(f'{n} {state}' for state, n in counts.items())}"
        print_text(*map(str, findings), total)
    if bad:
        raise UserError(f"{run}: {len(bad)} of {len(findings)} items are not intact")


def average(
    output: Annotated[
        Path, file("Checkpoint directory to write.", "--output", "-o", metavar="DIR")
    ],
    run: options.RunDirectory = None,
    model: options.Model = None,
    last: Annotated[
        int | None,
        value(
            "N",
            "Average the N newest checkpoints; default: train.average_last, or if that is 0, "
            "train.keep_checkpoints.",
            min=1,
        ),
    ] = None,
    json_: options.Json = False,
) -> None:
    """Average the weights of a run's newest checkpoints.

    Example: `mtrain average runs/NAME -o averaged`
    """
    run = opening.run_directory(run, model)
    from mtrain.runs import checkpoint, reader
    from mtrain.runs.layout import refuse_run_files

    refuse_run_files(output)
    reader.directory_of(run)  # first, because a path that is not a run lacks a config, too
    train = reader.read_settings(run)[1].train
    with stopped_by_signals():
        paths = checkpoint.average_run(run, last, output, train)
    names = [path.name for path in paths]
    log.logger.info("averaged %s into %s (%s)", ", ".join(names), output, describe_size(output))
    if json_:
        print_json({"checkpoint": str(output), "averaged": names})


def export(
    output: Annotated[
        Path,
        file("Directory to write; for argos a file.argosmodel.", "--output", "-o", metavar="DIR"),
    ],
    run: options.Run = None,
    model: options.Model = None,
    to: Annotated[
        Literal["ctranslate2", "hf-marian", "hf", "argos"],
        choice("Engine; hf is hf-marian, for Hugging Face's transformers."),
    ] = "ctranslate2",
    quantization: Annotated[
        Quantization | None,
        choice("Weight type; default: float32, for argos int8; hf-marian has float32 only."),
    ] = None,
    sample: Annotated[
        Path | None, file("Text to compare the engines on; default: the validation set.")
    ] = None,
    json_: options.Json = False,
) -> None:
    """Convert a model for another engine, after comparing the translations of both.

    Example: `mtrain export runs/NAME --to ctranslate2 -o served`
    """
    run = opening.run_or_checkpoint(run, model)
    opening.require_models(run)
    from mtrain.export import convert as exporting
    from mtrain.runs.layout import refuse_run_files
    from mtrain.translation import loading

    refuse_run_files(output)
    loaded = loading.load(run, device="cpu", precision="fp32")
    with stopped_by_signals():
        shown = list[str]()
        show = shown.append if json_ else print_text
        kind = quantization or ("int8" if to == "argos" else "float32")
        exporting.export(loaded, to, output, kind, sample, show)
    if json_:
        print_json({"directory": str(output), "to": to, "comparison": shown})
