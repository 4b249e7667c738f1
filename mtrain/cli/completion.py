"""What the shell completes besides commands, options, files and fixed choices: runs, settings and
the sets of a run. Each function gets the beginning of a word.
"""

import glob
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import typer

from mtrain.runtime.errors import UserError
from mtrain.runtime.files import expand_path


def runs(incomplete: str) -> list[str]:
    """Complete a run or checkpoint directory, up to two folders down; other names are files."""
    from mtrain.runs import layout, manifest  # pydantic takes a while

    try:
        start = expand_path(incomplete)
    except ValueError:
        return []
    found = set[str]()
    for name in (layout.RUN, manifest.NAME):
        for below in ("*", "*/*"):
            found.update(glob.glob(f"{glob.escape(start)}{below}/{name}"))
    # as it was typed: a shell drops completions that begin with anything else
    return sorted(incomplete + os.path.dirname(each)[len(start) :] for each in found)


def settings(incomplete: str) -> list[tuple[str, str]]:
    """Complete a key for `--set`, with its description."""
    from mtrain.config.keys import ENTRY, list_keys  # pydantic takes a while

    with suppress(UserError):
        found = list_keys(incomplete)
        return [(key.name, key.text) for key in found if not key.name.startswith(ENTRY)]
    return []


def sets(context: typer.Context) -> list[str]:
    """Complete a set of the run that the command line names."""
    from mtrain.runs import sets as own

    models = context.params.get("model") or context.args  # the latter of an unfinished line
    with suppress(UserError, OSError, IndexError):
        return list(own.names(own.read_run_of(Path(str(models[0])))))
    return []


def metrics(incomplete: str) -> Iterator[str]:
    """Complete a list of metrics, separated by commas."""
    before = incomplete[: incomplete.rfind(",") + 1]
    return (before + each for each in ("bleu", "chrf", "ter") if each not in before)


def tokenizers() -> list[str]:
    """Complete a tokenizer of BLEU."""
    from sacrebleu.metrics.bleu import BLEU  # takes a while

    return list(BLEU.TOKENIZERS)
