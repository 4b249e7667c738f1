"""Commands that hand a model on."""

from pathlib import Path
from typing import Annotated

import typer

from mtrain.cli.options import ModelOption, as_path, load_model
from mtrain.cli.streams import print_lines, refuse_kept
from mtrain.runtime import log
from mtrain.runtime.console import loaded, stopped_by_signals, writing
from mtrain.runtime.errors import RefusedError, UserError


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the commands to the command line."""
    for command in (average, export):
        app.command(rich_help_panel=panel)(command)


def average(
    run_dir: Annotated[Path, typer.Argument(help="A run directory.", parser=as_path)],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Checkpoint directory to write.", parser=as_path),
    ],
    last: Annotated[int, typer.Option(help="Number of checkpoints, the newest.", min=1)] = 5,
) -> None:
    """Average the last checkpoints of a run into one.

    Example: `mtrain average runs/NAME --last 5 -o averaged`
    """
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


def export(
    model: ModelOption,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Directory to write.", parser=as_path)
    ],
    to: Annotated[
        str, typer.Option(help="Engine: ctranslate2 or hf-marian (Hugging Face transformers).")
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
            help="Text to compare the engines on; default: the validation set.", parser=as_path
        ),
    ] = None,
) -> None:
    """Convert a model for CTranslate2 or Hugging Face's transformers.

    Example: `mtrain export -m runs/NAME --to ctranslate2 -o served`

    Both engines translate a sample first, greedily and with a beam of 4. The fraction of equal
    lines and the first different ones are printed. If more differ than near-ties explain, with
    unrounded weights, nothing is written.
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
