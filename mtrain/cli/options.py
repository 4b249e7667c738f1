"""Options that several commands share, and loading what they name."""

import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from mtrain.cli import completion
from mtrain.cli.streams import as_text
from mtrain.config.languages import doubt
from mtrain.runtime import log
from mtrain.runtime.errors import RefusedError, printable
from mtrain.runtime.files import expand_path
from mtrain.runtime.stop import Stop, parse_duration

if TYPE_CHECKING:
    from mtrain.config import schema
    from mtrain.translation.translator import Translator


def as_name(text: str) -> str:
    """Expand `~` and `$NAME` in a path of the command line."""
    try:
        return expand_path(text)
    except ValueError as error:
        raise typer.BadParameter(printable(str(error))) from None


def as_language(text: str) -> str:
    """Refuse what is no language code."""
    if refused := doubt(text):
        raise typer.BadParameter(printable(refused))
    return text


def as_path(text: str) -> Path:
    """Parse a path of the command line."""
    return Path(as_name(text))


def value(metavar: str, text: str, *names: str, complete: Any = None, **more: Any) -> Any:
    """Return an option with the help `text`, which shows the value as `metavar`; the shell gets
    what `complete` returns.
    """
    return typer.Option(*names, help=text, metavar=metavar, autocompletion=complete, **more)


def flag(text: str, *names: str) -> Any:
    """Return an option without a value."""
    return value("", text, *names)


def file(text: str, *names: str, metavar: str = "FILE", complete: Any = None) -> Any:
    """Return an option for a path."""
    return value(metavar, text, *names, parser=as_path, complete=complete)


def model(text: str) -> Any:
    """Return the option for a run or checkpoint directory."""
    return file(text, "--model", "-m", metavar="DIR", complete=completion.runs)


def stream(text: str, *names: str) -> Any:
    """Return an option for a file, or `-` for a standard stream."""
    return value("FILE", text, *names, parser=as_name)


def path(metavar: str, text: str, **more: Any) -> Any:
    """Return a positional argument for a path."""
    return typer.Argument(help=text, metavar=metavar, parser=as_path, **more)


def choice(text: str) -> Any:
    """Return an option with a fixed set of values, which the help and the shell show."""
    return typer.Option(help=text)


def as_setting(text: str) -> str:
    """Refuse a `--set` without a value at once: its value would be read as something else."""
    if "=" not in text:
        raise typer.BadParameter(f"{printable(text)}: write {printable(text)}=VALUE")
    return text


CONFIG, RUN = "-c/--config", "-m/--model"  # what may be given as an argument, too
MODEL = "Run directory (its best model is used) or checkpoint directory."
ConfigFile = Annotated[Path | None, path("FILE", "Config of the run, in YAML.")]
Config = Annotated[Path | None, file("The same as FILE.", "--config", "-c")]
Set = Annotated[
    list[str] | None,
    value(
        "KEY=VALUE",
        "Override a setting, such as `train.max_steps=9` (`mtrain config keys` lists all). "
        "Repeatable.",
        "--set",
        parser=as_setting,
        complete=completion.settings,
    ),
]
TimeLimit = Annotated[
    str | None, value("TIME", "Save and stop after this time, such as `3h30m` (exit code 75).")
]
Run = Annotated[Path | None, path("RUN", MODEL, autocompletion=completion.runs)]
RunDirectory = Annotated[Path | None, path("RUN", "Run directory.", autocompletion=completion.runs)]
Model = Annotated[Path | None, model("The same as RUN.")]
Models = Annotated[list[Path] | None, model("The same as RUN. Repeat it for an ensemble.")]
RunAndTexts = Annotated[
    list[str] | None,
    typer.Argument(
        help="The model, unless -m names it; then sentences, each in quotes.",
        metavar="RUN TEXT",
        autocompletion=completion.runs,
    ),
]
NBEST = "Print the N best (or N samples) as index, score and text, with tabs between."
NBest = Annotated[int | None, value("N", NBEST, min=1, max=1000)]
Source = Annotated[Path | None, file("Source text.", "--source", "-s")]
Reference = Annotated[
    list[Path] | None, file("Reference translation. Repeat it for several.", "--reference", "-r")
]
OwnSet = Annotated[
    str | None,
    value(
        "SET",
        "A run's set: valid (or valid.0, ...), or a test set's name.",
        complete=completion.sets,
    ),
]
Language = Annotated[
    str | None, value("CODE", "Target language; chooses the tokenizer.", parser=as_language)
]
TOKENIZE = "sacreBLEU tokenizer: 13a, intl, zh, ja-mecab, ..."
Tokenize = Annotated[str | None, value("NAME", TOKENIZE, complete=completion.tokenizers)]
Lowercase = Annotated[bool, flag("Ignore case.", "--lowercase")]
Json = Annotated[bool, flag("Print one JSON object.", "--json")]
DEVICES = ["auto", "cpu", "cuda", "mps"]
Device = Annotated[
    str, value("NAME", "Device: auto, cpu, cuda, cuda:N or mps.", complete=lambda: DEVICES)
]
Precision = Annotated[
    Literal["auto", "fp32", "bf16"], choice("Number format; auto: bf16 on CUDA, else fp32.")
]

# Options of the search, for commands that translate; each overrides a setting of `decode`. The type
# of each, and the option.
SEARCH: dict[str, tuple[Any, Any]] = {
    "beam_size": (int, value("N", "Hypotheses kept per sentence; 1 is greedy search.", min=1)),
    "length_penalty": (float, value("ALPHA", "Larger values prefer longer translations.", min=0)),
    "length_norm": (
        Literal["gnmt", "power"],
        choice("Divide scores by ((5+length)/6)^ALPHA (gnmt) or length^ALPHA (power)."),
    ),
    "no_repeat_ngram": (int, value("N", "Never repeat an n-gram of N tokens; 0: off.", min=0)),
    "batch_tokens": (int, value("N", "Largest batch: padded source tokens x beam size.", min=1)),
    "tag": (str, value("TEXT", "Tag to put before each source: one that the model knows.")),
    "mbr": (int, value("N", "Choose the best of N hypotheses or samples.", min=2, max=1000)),
}
SAMPLING: dict[str, tuple[Any, Any]] = {
    "sample": (bool, flag("Sample at random instead of searching.", "--sample")),
    "temperature": (float, value("T", "Sampling temperature; below 1 prefers likely tokens.")),
    "top_k": (int, value("K", "Sample from the K most likely tokens; 0: from all.", min=0)),
    "top_p": (float, value("P", "Sample from the most likely tokens of probability P in all.")),
    "seed": (int, value("N", "Seed of sampling; default: the run's.", min=0)),
}

# Options that mean something only with --sample, and those only without it.
OF_SAMPLING, OF_SEARCH = ["temperature", "top_k", "top_p", "seed"], ["beam_size"]

RANKED = {"train", "data_build", "translate", "evaluate"}  # commands for several processes

Command = TypeVar("Command", bound=Callable[..., None])


def either(argument: Path | None, option: Path | None, name: str) -> Path:
    """Return what is given as an argument or by the option `name`; raises `RefusedError` unless it
    is given once.
    """
    if argument is not None and option is not None:
        raise RefusedError(f"{name}: given twice, as {argument} and {option}; give it once")
    if (found := argument or option) is None:
        what = "config" if name == CONFIG else "run or checkpoint directory"
        raise RefusedError(f"no {what} is given; name it first, or by {name}")
    return found


def run_and_texts(
    words: list[str] | None, models: list[Path] | None
) -> tuple[list[Path], list[str]]:
    """Return models and sentences of the command line: without `-m` the first word is the run;
    raises `RefusedError` if there is none. A sentence stays one if a file has that name.
    """
    words = words or []
    if not models:
        models, words = [either(as_path(words[0]) if words else None, None, RUN)], words[1:]
    for word in words:
        with suppress(OSError, ValueError):  # a sentence may be longer than any name
            if word and Path(word).exists():
                kind, option = ("directory", "-m") if Path(word).is_dir() else ("file", "-i")
                text = "%s: is a %s, too; did you mean %s %s?"
                log.logger.warning(text, word, kind, option, word)
    return models, [as_text(word) for word in words]


def refuse_ranks() -> None:
    """Refuse to run in several processes of torchrun a command that each of them would run whole;
    raises `RefusedError`.
    """
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    if "LOCAL_RANK" in os.environ and size.isdecimal() and int(size) > 1:
        error = RefusedError("this command uses one process; start it without torchrun")
        error.is_silent = rank != "0"
        raise error


def with_verbosity(command: Callable[..., None]) -> Callable[..., None]:
    """Add `-q` and `-v` to a command."""

    @wraps(command)
    def run(*, quiet: bool, verbose: bool, **values: Any) -> None:
        if command.__name__ not in RANKED:
            refuse_ranks()
        if quiet and verbose:
            raise RefusedError("-q/--quiet: does not go with -v/--verbose; remove one of them")
        if quiet or verbose:
            log.set_up_console(level=logging.WARNING if quiet else logging.DEBUG)
        command(**values)

    quiet = bool, flag("Show warnings and errors only.", "--quiet", "-q")
    verbose = bool, flag("Show details.", "--verbose", "-v")
    return _extended(run, {"quiet": quiet, "verbose": verbose}, False)


def with_options(options: Mapping[str, tuple[Any, Any]]) -> Callable[[Command], Command]:
    """Add options to a command, which receives them as `**decode`; None where one is not given."""
    optional = {name: (type_ | None, option) for name, (type_, option) in options.items()}
    return lambda command: _extended(command, optional, None)


def _extended(command: Command, options: Mapping[str, tuple[Any, Any]], default: Any) -> Command:
    """Return the command with the types and options of further parameters in its signature."""
    signature, kind = inspect.signature(command, eval_str=True), inspect.Parameter.KEYWORD_ONLY
    own = [each for each in signature.parameters.values() if each.name != "decode"]
    added = [
        inspect.Parameter(name, kind, default=default, annotation=Annotated[type_, option])
        for name, (type_, option) in options.items()
    ]
    parameters = [each.replace(kind=kind) for each in own] + added
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


@contextmanager
def open_translator(
    models: list[Path],
    device: str,
    precision: str,
    *,
    seed: int | None = None,
    n_best: int | None = None,
    mbr: int | None = None,
    **decode: Any,
) -> Iterator["Translator"]:
    """Load models on every rank of the job; `decode` overrides their search settings. Raises
    `RefusedError` for options that do not go together.
    """
    from mtrain.runtime.distributed import joined
    from mtrain.translation.loading import load_on_ranks
    from mtrain.translation.translator import Translator

    with joined() as ranks:
        ranks.check_same(ascii(sys.argv[1:]), "commands")
        loaded = load_on_ranks(models, ranks, device=device, precision=precision, **decode)
        given = {**decode, "seed": seed, "n_best": n_best, "mbr": mbr}
        if refused := _mismatch(given, loaded.decode):
            raise ranks.as_one(RefusedError(f"--{refused}"))
        samples = n_best or 1
        yield Translator(loaded, ranks, seed=seed, samples=samples, mbr=mbr, in_processes=True)


def _mismatch(given: dict[str, Any], decode: "schema.DecodeConfig") -> str | None:
    """Name options of sampling without `--sample`, options of the search with it, more hypotheses
    than the beam holds, and what does not go with `--mbr`.
    """
    n_best, mbr = given["n_best"], given["mbr"]
    for name in ("beam_size", "n_best"):
        if mbr is not None and given[name] is not None:
            return f"{name.replace('_', '-')}: does not go with --mbr, which chooses one of its N"
    names, advice = OF_SAMPLING, "needs --sample; add it"
    if decode.sample:
        source = "--sample" if given.get("sample") else "decode.sample of this run"
        names, advice = OF_SEARCH, f"does not go with {source}; remove one of them"
    elif n_best is not None and n_best > decode.beam_size:
        return f"n-best {n_best} is more than the beam holds: add --beam-size {n_best} or more"
    unused = (name for name in names if given.get(name) is not None)
    return next((f"{name.replace('_', '-')}: {advice}" for name in unused), None)


def begin_job(
    config: Path, overrides: list[str] | None, time_limit: str | None = None
) -> tuple["schema.Config", Stop]:
    """Catch signals, then read the settings of a long job."""
    stop = Stop(parse_duration(time_limit) if time_limit else None)
    stop.install()
    from mtrain.config.loading import load_config

    settings = load_config(config, overrides)
    log.set_up_console(times=True)
    return settings, stop
