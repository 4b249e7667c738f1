"""`mtrain config`: list the settings, and show those of a config."""

import json
import os
import shutil
from typing import Annotated

import typer

from mtrain.cli import completion, opening, options
from mtrain.cli.streams import print_text
from mtrain.runtime.console import writing


def keys(
    prefix: Annotated[
        str,
        typer.Argument(
            help="Text to look for: at the beginning of names, or else anywhere in names, or else "
            "in descriptions.",
            metavar="PREFIX",
            autocompletion=completion.settings,
        ),
    ] = "",
) -> None:
    """List settings: name, default, type and meaning.

    Example: `mtrain config keys train.max`
    """
    from mtrain.config.keys import list_keys

    width = shutil.get_terminal_size().columns if os.isatty(1) else 1000
    print_text(*(line for key in list_keys(prefix) for line in key.lines(width)))


def show(
    config_file: options.ConfigFile = None, config: options.Config = None, set_: options.Set = None
) -> None:
    """Print every setting that a run of a config would use, as a config.

    Example: `mtrain config show en-de.yaml --set train.max_steps=9`
    """
    config_path = opening.config_path(config_file, config)
    from mtrain.config.loading import load_config
    from mtrain.config.schema import dump_config

    with writing("-") as sink:
        sink.write(dump_config(load_config(config_path, set_)).encode())


def schema() -> None:
    """Print a JSON schema of configs, with which editors complete and check them.

    Example: `mtrain config schema > schema.json`
    """
    from mtrain.config.keys import make_schema

    print_text(*json.dumps(make_schema(), indent=1).split("\n"))
