"""Shell completion of runs, settings and sets; Typer completes the rest.

Slow imports wait until a completion needs them.
"""

import glob
import os
from contextlib import suppress
from pathlib import Path

import typer

from mtrain.runtime.errors import UserError
from mtrain.runtime.files import expand_path


def runs(incomplete: str) -> list[str]:
    """Complete a run or checkpoint directory, at most two levels below the typed path."""
    from mtrain.runs import layout, manifest

    try:
        start = expand_path(incomplete)
    except ValueError:
        return []
    patterns = [f"{glob.escape(start)}{rest}/{layout.CONFIG}" for rest in ("*", "*/*")]
    found = {os.path.dirname(path) for pattern in patterns for path in glob.glob(pattern)}
    marks = layout.RUN, manifest.NAME  # an export also has a manifest, but no such config
    found = {path for path in found if any(os.path.exists(f"{path}/{mark}") for mark in marks)}
    # `~` and `$NAME` stay as typed: a shell drops completions that do not begin with its word
    return sorted(incomplete + path[len(start) :] for path in found)


def settings(incomplete: str) -> list[tuple[str, str]]:
    """Complete a key for `--set`, with its description."""
    from mtrain.config.keys import ENTRY, list_keys

    with suppress(UserError):
        keys = list_keys(incomplete)
        return [(key.name, key.text) for key in keys if not key.name.startswith(ENTRY)]
    return []


def sets(context: typer.Context) -> list[str]:
    """Complete a validation or test set of the run that the command line names."""
    from mtrain.runs.sets import names, read_run_of

    # in an unfinished line, arguments are not parsed yet
    models = context.params.get("model") or context.args
    with suppress(UserError, OSError, IndexError, ValueError):
        return list(names(read_run_of(Path(expand_path(str(models[0]))))))
    return []
