"""The `mtrain` command: the list of all commands, and the exit codes of their errors.

Heavy imports wait until a command runs, so that `--help` is instant.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated

import typer

import mtrain
from mtrain.cli import runs, scoring, settings, training, translating
from mtrain.cli.options import flag, value, with_verbosity
from mtrain.runtime import log
from mtrain.runtime.console import exit_on_interrupt, open_closed_streams
from mtrain.runtime.errors import EXIT_FAILED, StoppedError, UserError, as_user_error, printable

Command = Callable[..., None]

# Commands by the panel of `mtrain --help` that lists them.
COMMANDS: dict[str, dict[str, Command]] = {
    "Train": {"train": training.train, "init": training.init, "check": training.check},
    "Translate": {"translate": translating.translate, "attention": translating.attention},
    "Score": {"eval": scoring.evaluate, "score": scoring.score, "compare": scoring.compare},
    "Runs": {
        "report": runs.report,
        "verify": runs.verify,
        "average": runs.average,
        "export": runs.export,
    },
}

app = typer.Typer(
    name="mtrain",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train translation models from raw parallel text, translate and score with them.",
)
for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(with_verbosity(command))
data = typer.Typer(no_args_is_help=True, help="Prepare text ahead of training.")
data.command("build")(with_verbosity(training.data_build))
tokenizer = typer.Typer(no_args_is_help=True, help="Train the vocabulary alone, or use it.")
tokenizer.command("train")(with_verbosity(training.tokenizer_train))
tokenizer.command("encode")(with_verbosity(translating.tokenizer_encode))
tokenizer.command("decode")(with_verbosity(translating.tokenizer_decode))
config = typer.Typer(no_args_is_help=True, help="Show what can be set, and what a config sets.")
for command in (settings.keys, settings.show, settings.schema):
    config.command()(with_verbosity(command))
app.add_typer(config, name="config", rich_help_panel="Train")
app.add_typer(data, name="data", rich_help_panel="Train")
app.add_typer(tokenizer, name="tokenizer", rich_help_panel="Train")

_debug = False


def main() -> None:
    """Run the command line; an error for users ends it with one message and its exit code."""
    # started processes import nothing from the working directory, which may be a stranger's
    os.environ["PYTHONSAFEPATH"] = "1"
    open_closed_streams()
    exit_on_interrupt()
    log.set_up_console(level=logging.INFO)
    try:
        app()
    except UnicodeEncodeError as error:  # only names of files are encoded otherwise than in UTF-8
        if error.encoding == "utf-8":
            raise
        text = f"{error.object}: this locale has only names in {error.encoding}; set PYTHONUTF8=1"
        log.logger.error("%s", printable(text))
        sys.exit(EXIT_FAILED)
    except (UserError, OSError, MemoryError) as error:
        if _debug or log.logger.isEnabledFor(logging.DEBUG):
            traceback.print_exc()
        shown = as_user_error(error)
        if not shown.is_silent:
            level = logging.WARNING if isinstance(shown, StoppedError) else logging.ERROR
            log.logger.log(level, "%s", shown)
        sys.exit(shown.exit_code)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"mtrain {mtrain.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, value("", "Show the version.", "--version", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, flag("Show tracebacks of errors.", "--debug")] = False,
) -> None:
    global _debug
    _debug = debug
