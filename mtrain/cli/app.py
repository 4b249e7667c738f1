"""The `mtrain` command: its groups, its errors, its exit codes.

Heavy imports wait until a command runs, so that `--help` is instant.
"""

import os
import sys
import traceback
from typing import Annotated

import typer

import mtrain
from mtrain.cli import handing_on, looking, training, translating
from mtrain.runtime import log
from mtrain.runtime.console import leave_at_once, open_closed_streams
from mtrain.runtime.errors import EXIT_FAILED, StoppedError, UserError

app = typer.Typer(
    name="mtrain",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train translation models from raw parallel text: **train**, **translate**, **eval**.",
)
training.add_to(app, panel="Train")
translating.add_to(app, panel="Translate and score")
looking.add_to(app, panel="Look")
handing_on.add_to(app, panel="Hand on")

_debug = False


def main() -> None:
    """Run the command line; an error for people ends it with one message and its exit code."""
    # started processes import nothing from the working directory, which may be a stranger's
    os.environ["PYTHONSAFEPATH"] = "1"
    open_closed_streams()
    leave_at_once()
    log.set_up_console()
    try:
        app()
    except (UserError, OSError, MemoryError) as error:
        if _debug:
            traceback.print_exc()
        if isinstance(error, UserError) and error.is_silent:
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
