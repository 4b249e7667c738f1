"""The `mtrain` command: the list of all commands, and the exit codes of their errors.

Heavy imports wait until a command runs, so that `--help` is instant.
"""

import atexit
import gc
import logging
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial, wraps
from typing import Annotated, Any

import typer

import mtrain
from mtrain.cli import runs, scoring, settings, training, translating
from mtrain.cli.opening import refuse_ranks, require_working_directory
from mtrain.cli.options import CheckedCommand, CommandGroup, add_parameters, flag
from mtrain.runtime import log
from mtrain.runtime.console import open_closed_streams
from mtrain.runtime.errors import (
    EXIT_BROKEN_PIPE,
    EXIT_FAILED,
    EXIT_HUNG_UP,
    StoppedError,
    UserError,
    as_user_error,
    missing_library_error,
    printable,
    thread_limit_error,
)

new_group = partial(typer.Typer, cls=CommandGroup, no_args_is_help=True)
app = new_group(
    name="mtrain",
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train translation models from raw parallel text, translate and score with them.",
)
data = new_group(help="Prepare text ahead of training.")
tokenizer = new_group(help="Train the vocabulary alone, or apply it.")
config = new_group(help="List the settings, and show those of a config.")


def _register(
    group: typer.Typer,
    name: str,
    command: Callable[..., None],
    panel: str | None = None,
    *,
    ranks: bool = False,
) -> None:
    """Add a command with `-q` and `-v`; without `ranks` it refuses to run in several processes."""

    @wraps(command)
    def run(*, quiet: bool, verbose: bool, **values: Any) -> None:
        if not ranks:
            refuse_ranks()
        require_working_directory()
        if verbose:
            log.set_up_console(level=logging.DEBUG)
        elif quiet:
            log.set_up_console(level=logging.WARNING)
        command(**values)

    quiet = bool, flag("Show warnings and errors only.", "--quiet", "-q")
    verbose = bool, flag("Show details.", "--verbose", "-v")
    run = add_parameters(run, {"quiet": quiet, "verbose": verbose}, False)
    group.command(name, cls=CheckedCommand, rich_help_panel=panel)(run)


# `mtrain --help` lists the commands by panel, in this order.
_register(app, "train", training.train, "Train", ranks=True)
_register(app, "init", training.init, "Train")
_register(app, "check", training.check, "Train")
_register(app, "translate", translating.translate, "Translate", ranks=True)
_register(app, "attention", translating.attention, "Translate")
_register(app, "eval", scoring.evaluate, "Score", ranks=True)
_register(app, "score", scoring.score, "Score")
_register(app, "compare", scoring.compare, "Score")
_register(app, "report", runs.report, "Runs")
_register(app, "verify", runs.verify, "Runs")
_register(app, "average", runs.average, "Runs")
_register(app, "export", runs.export, "Runs")
_register(data, "build", training.data_build, ranks=True)
_register(tokenizer, "train", training.tokenizer_train)
_register(tokenizer, "encode", translating.tokenizer_encode)
_register(tokenizer, "decode", translating.tokenizer_decode)
_register(config, "keys", settings.keys)
_register(config, "show", settings.show)
_register(config, "schema", settings.schema)
app.add_typer(config, name="config", rich_help_panel="Train")
app.add_typer(data, name="data", rich_help_panel="Train")
app.add_typer(tokenizer, name="tokenizer", rich_help_panel="Train")


def main() -> None:
    """Run the command line; a `UserError` ends it with one message and an exit code."""
    # Loading torch makes hundreds of thousands of objects, but hardly any cyclic garbage: searching
    # for it at every 700th object, and at the end, would take a quarter of a second.
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
    # child processes must not import modules from the working directory, which may be untrusted
    os.environ["PYTHONSAFEPATH"] = "1"
    open_closed_streams()
    log.set_up_console(level=logging.INFO)
    try:
        app(prog_name="mtrain")  # completion scripts need it, also for `python -m mtrain`
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError) and error.code == EXIT_FAILED:
            sys.exit(EXIT_BROKEN_PIPE)  # Typer's code is 1 if the reader of a help text is gone
        is_of_job, code = "LOCAL_RANK" in os.environ, error.code
        if is_of_job and isinstance(code, int) and code >= EXIT_HUNG_UP:  # or the reader is gone
            os._exit(code)  # the threads of torch.distributed may abort an orderly exit
        raise
    except UnicodeEncodeError as error:  # only file names have an encoding other than UTF-8
        if error.encoding == "utf-8":
            raise
        text = f"{error.object}: file names of this locale are {error.encoding}; set PYTHONUTF8=1"
        log.logger.error("%s", printable(text))
        sys.exit(EXIT_FAILED)
    except (UserError, OSError, MemoryError, ImportError, RuntimeError) as error:
        shown = _shown(error)
        if shown is None:
            raise
        if log.logger.isEnabledFor(logging.DEBUG):
            traceback.print_exc()
        if not shown.is_silent:
            level = logging.WARNING if isinstance(shown, StoppedError) else logging.ERROR
            log.logger.log(level, "%s", shown)
        sys.exit(shown.exit_code)


def _shown(error: Exception) -> UserError | None:
    """Return the error to show; None for a bug in mtrain, whose traceback is needed."""
    if isinstance(error, ImportError):
        return missing_library_error(error)
    if isinstance(error, RuntimeError):
        return thread_limit_error(error)
    return as_user_error(error) if isinstance(error, UserError | OSError | MemoryError) else None


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"mtrain {mtrain.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
    debug: Annotated[bool, flag("Show details and tracebacks of errors.", "--debug")] = False,
) -> None:
    if debug:
        log.set_up_console(level=logging.DEBUG)
