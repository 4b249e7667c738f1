"""Open the config, run or models that the arguments of a command name."""

import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtrain.cli.options import as_option, as_path
from mtrain.cli.streams import as_text
from mtrain.runtime import log
from mtrain.runtime.errors import RefusedError
from mtrain.runtime.stop import Stop, parse_duration

if TYPE_CHECKING:
    from mtrain.config import schema
    from mtrain.translation.translator import Translator

SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9_-]{1,8}")  # of a file, such as .txt, .gz or .zh-TW
# How long the other ranks wait for rank 0 to end with the message of all.
RANK_0_SECONDS = 10
# What a path must name, in messages.
RUN_DIRECTORY, RUN_OR_CHECKPOINT = "run directory", "run or checkpoint directory"


def config_path(argument: Path | None, option: list[Path] | None) -> Path:
    """Return the only config that is given, as an argument or by its option; raises `RefusedError`
    if there is none or more than one.
    """
    return _only_path(argument, option, "-c/--config", "config")


def run_or_checkpoint(argument: Path | None, option: list[Path] | None) -> Path:
    """Return the only run or checkpoint directory that is given; raises as `config_path` does."""
    return _only_path(argument, option, "-m/--model", RUN_OR_CHECKPOINT)


def run_directory(argument: Path | None, option: list[Path] | None) -> Path:
    """Return the only run directory that is given; raises as `config_path` does, and `UserError` if
    it is not a directory.
    """
    run = _only_path(argument, option, "-m/--model", RUN_DIRECTORY)
    require_models(run, kind=RUN_DIRECTORY)
    return run


def _only_path(argument: Path | None, option: list[Path] | None, name: str, what: str) -> Path:
    given = [path for path in (argument, *(option or [])) if path is not None]
    if len(given) > 1:
        paths = ", ".join(map(str, given))
        raise RefusedError(f"{name}: only one path can be given, not {paths}; leave out the others")
    if not given:
        raise RefusedError(f"no {what} is given; give it as the first argument or with {name}")
    return given[0]


def require_models(*paths: Path, kind: str = RUN_OR_CHECKPOINT) -> None:
    """Raise `UserError` for a path of no directory, before seconds of loading torch. With
    several processes, rank 0 checks the paths later.
    """
    from mtrain.runs.layout import require_model

    if "LOCAL_RANK" not in os.environ:
        for path in paths:
            require_model(path, kind)


def run_and_texts(
    words: list[str] | None, models: list[Path] | None
) -> tuple[list[Path], list[str]]:
    """Return the models and the sentences of the command line. Without `-m` the first word is the
    run; raises `RefusedError` if there is none. Warn of sentences that look like names of files.
    """
    words = words or []
    if not models:
        run = as_path(words[0]) if words else None
        models = [run_or_checkpoint(run, None)]
        words = words[1:]
    for word in words:
        with suppress(OSError, ValueError):  # a sentence may be longer than any file name
            _warn_of_file_name(word)
    return models, [as_text(word) for word in words]


def _warn_of_file_name(sentence: str) -> None:
    """Warn if a sentence is the name of a file, or looks like the misspelt name of one."""
    if sentence == "-":
        log.logger.warning("-: is used as text; leave it out for stdin, or give -i -")
        return
    if sentence and Path(sentence).exists():
        kind, option = ("directory", "-m") if Path(sentence).is_dir() else ("file", "-i")
        message = "%s: is also the name of a %s; did you mean %s %s?"
        log.logger.warning(message, sentence, kind, option, shlex.quote(sentence))
        return
    has_form = "/" in sentence or SUFFIX.fullmatch(Path(sentence).suffix)
    if has_form and len(sentence.split()) == 1:
        message = "%s: no such file, so this is used as text; name a file with -i"
        log.logger.warning(message, sentence)


def refuse_ranks() -> None:
    """Raise `RefusedError` if torchrun started several processes, each of which would run the
    whole command.
    """
    size = os.environ.get("WORLD_SIZE", "")
    has_others = size.isdecimal() and int(size) > 1
    if has_others and "LOCAL_RANK" in os.environ:
        error = RefusedError("this command uses one process; start it without torchrun")
        error.is_silent = os.environ.get("RANK") != "0"
        if error.is_silent:  # once a process ends, torchrun stops the others: rank 0 must be first
            time.sleep(RANK_0_SECONDS)
        raise error


def require_working_directory() -> None:
    """Raise `RefusedError` if the working directory was removed: libraries fail without one."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise RefusedError("the working directory was removed; change to another one") from None


@contextmanager
def open_translator(
    models: list[Path],
    device: str,
    precision: str,
    *,
    seed: int | None = None,
    n_best: int | None = None,
    mbr: int | None = None,
    tag: str | None = None,
    **decode: Any,
) -> Iterator["Translator"]:
    """Load models on every rank; `decode` overrides their search settings. Raises `RefusedError`
    for options that cannot be combined.
    """
    from mtrain.config.schema import DecodeConfig, override_decode
    from mtrain.runtime.distributed import connected_ranks
    from mtrain.translation.loading import load_on_ranks
    from mtrain.translation.translator import Translator, check_options

    with connected_ranks() as ranks:
        ranks.check_same(ascii(sys.argv[1:]), "commands")
        ranks.on_all_ranks(lambda: override_decode(DecodeConfig(), as_option, **decode))
        loaded = load_on_ranks(models, ranks, device=device, precision=precision, tag=tag, **decode)
        given = {**decode, "seed": seed, "n_best": n_best, "mbr": mbr}
        ranks.on_all_ranks(lambda: check_options(loaded.decode, given, as_option))
        if (n_best or 1) > loaded.decode.beam_size and not loaded.decode.sample:
            log.logger.info("--n-best %d: the beam is widened to this size", n_best)
        yield Translator(loaded, ranks, seed=seed, n_best=n_best or 1, mbr=mbr, in_processes=True)


def begin_job(
    config: Path, overrides: list[str] | None, time_limit: str | None = None
) -> tuple["schema.Config", Stop]:
    """Catch signals, then read the settings of a long job."""
    stop = Stop(None if time_limit is None else parse_duration(time_limit))
    stop.install()
    from mtrain.config.loading import load_config

    settings = load_config(config, overrides)
    log.set_up_console(times=True)
    return settings, stop
