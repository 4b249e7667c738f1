"""Declarations of the options that several commands share."""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from mtrain.cli import completion
from mtrain.config.languages import BleuTokenizer, language_error
from mtrain.runtime.errors import RefusedError, printable
from mtrain.runtime.files import expand_path

STDIN = Path("/dev/stdin")


def as_path_text(text: str) -> str:
    """Expand `~` and `$NAME` in a path from the command line, as text; refuse an empty one, which
    would mean the working directory or stdin.
    """
    if not text:
        raise typer.BadParameter("an empty path; is a shell variable unset?")
    try:
        return expand_path(text)
    except ValueError as error:
        raise typer.BadParameter(printable(str(error))) from None


def as_language(text: str) -> str:
    """Parse a language code; refuse any other text."""
    if refused := language_error(text):
        raise typer.BadParameter(printable(refused))
    return text


def as_option(name: str) -> str:
    """Return the option of a parameter: `beam_size` -> `--beam-size`."""
    return "--" + name.replace("_", "-")


def as_path(text: str) -> Path:
    """Parse a path of the command line."""
    return Path(as_path_text(text))


def as_input(text: str) -> Path:
    """Parse the path of an input, or `-` for stdin."""
    return STDIN if text == "-" else as_path(text)


def refuse_two_from_stdin(*inputs: Path | None) -> None:
    """Raise `RefusedError` if two texts are to be read from stdin: the second would be empty, or
    the same text again.
    """
    if inputs.count(STDIN) > 1:
        raise RefusedError("-: only one text can be read from stdin; name files for the others")


def value(metavar: str, text: str, *names: str, complete: Any = None, **more: Any) -> Any:
    """Return an option with the help `text`, which shows the value as `metavar`; `complete` returns
    the shell's completions.
    """
    return typer.Option(*names, help=text, metavar=metavar, autocompletion=complete, **more)


def flag(text: str, *names: str) -> Any:
    """Return an option without a value."""
    return typer.Option(*names, help=text)


def file(text: str, *names: str, metavar: str = "FILE", complete: Any = None) -> Any:
    """Return an option for a path."""
    return value(metavar, text, *names, parser=as_path, complete=complete)


def text_file(text: str, *names: str) -> Any:
    """Return an option for a file of text, or `-` for stdin."""
    return value("FILE", f"{text}; `-` is stdin.", *names, parser=as_input)


def model(text: str) -> Any:
    """Return the option for a run or checkpoint directory."""
    return file(text, "--model", "-m", metavar="DIR", complete=completion.runs)


def stream(text: str, *names: str) -> Any:
    """Return an option for a file, or `-` for a standard stream."""
    return value("FILE", text, *names, parser=as_path_text)


def path(metavar: str, text: str) -> Any:
    """Return a positional argument for a path."""
    return typer.Argument(help=text, metavar=metavar, parser=as_path)


def run(text: str) -> Any:
    """Return the positional argument for a run."""
    return typer.Argument(help=text, metavar="RUN", parser=as_path, autocompletion=completion.runs)


def choice(text: str, **more: Any) -> Any:
    """Return an option with a fixed set of values, which the help and the shell show."""
    return typer.Option(help=text, **more)


def as_setting(text: str) -> str:
    """Decode a `--set` as UTF-8, whatever the locale. Refuse an empty one, and one without `=`: its
    value would be the next argument.
    """
    if not text:
        raise typer.BadParameter("an empty setting; is a shell variable unset?")
    if "=" not in text:
        raise typer.BadParameter(f"{printable(text)}: write {printable(text)}=VALUE")
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{printable(text)}: not UTF-8; name it in UTF-8") from None


class CommandGroup(TyperGroup):
    """A group of commands, whose help shows no names of Python types."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        return _without_types(super().get_params(ctx))


class CheckedCommand(TyperCommand):
    """A command that refuses a file that it would ignore, and suggests `--set` for a setting that
    is given as an option. Its help shows no names of Python types.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        return _without_types(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; raises `RefusedError`."""
        if ctx.resilient_parsing:  # the shell completes the command line
            return super().parse_args(ctx, args)
        known = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        given = (word.partition("=")[0] for word in args)
        unknown = [name for name in given if name.startswith("--") and name not in known]
        if "--set" in known and unknown:
            _refuse_settings(unknown)
        order = self.make_parser(ctx).parse_args(list(args))[2]  # a parameter each time it is given
        for parameter, count in Counter(order).items():
            if count > 1 and parameter.metavar in ONCE and not getattr(parameter, "multiple", True):
                name = "/".join(parameter.opts[::-1])
                raise RefusedError(f"{name}: given {count} times, but only one is used; give one")
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = _reworded(error)
            raise


def _reworded(error: typer.BadParameter) -> str:
    """Return the message of an error without pydantic's words, and with the value."""
    from pydantic import ValidationError  # not needed by --help

    message = error.message.removeprefix("Value error, ").removeprefix("Input ")
    cause = error.__cause__
    # messages of Typer and of this module name the value themselves
    if not error.message.startswith("Input ") or not isinstance(cause, ValidationError):
        return message
    given = printable(str(cause.errors()[0]["input"]))
    return f"{message.partition(', unable to parse')[0]}, got {given!r}"


def _without_types(parameters: list[Any]) -> list[Any]:
    """Let the help show `FILE` and `--help` instead of `FILE <Path>` and `--help <bool>`."""
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: ""
        elif parameter.metavar is None and parameter.is_flag:
            parameter.metavar = ""
    return parameters


def _refuse_settings(names: list[str]) -> None:
    """Raise `RefusedError` if one of these options is a setting."""
    from mtrain.config.advice import named_keys

    for name in names:
        if keys := named_keys(name[2:].replace("-", "_")):
            advice = f"is a setting; write it in the config, or --set {keys[0]}=VALUE"
            advice += f" (or did you mean {keys[1]}?)" if len(keys) > 1 else ""
            raise RefusedError(f"{name}: {advice}")


ONCE = ("FILE", "DIR", "SET")  # values of options of which only the last would be used
MODEL = "Run directory (its best model is used) or checkpoint directory."
ConfigFile = Annotated[Path | None, path("FILE", "Config of the run, in YAML.")]
Config = Annotated[list[Path] | None, file("The same as FILE.", "--config", "-c")]
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
    str | None,
    value("TIME", "Save and stop after a time such as `3h30m`, or N seconds (exit code 75)."),
]
Run = Annotated[Path | None, run(MODEL)]
RunDirectory = Annotated[Path | None, run("Run directory.")]
RunOrCheckpoint = Annotated[Path | None, run("Run or checkpoint directory.")]
RunOrVocabulary = Annotated[
    Path | None, run("Run or checkpoint directory, or a SentencePiece model.")
]
Model = Annotated[list[Path] | None, model("The same as RUN.")]
Models = Annotated[
    list[Path] | None, model("The same as RUN; for an ensemble, give each model with -m.")
]
RunAndTexts = Annotated[
    list[str] | None,
    typer.Argument(
        help="Run or checkpoint directory, unless -m names it; then sentences, each in quotes.",
        metavar="RUN TEXT",
        autocompletion=completion.runs,
    ),
]
NBEST = "Print the N best (or N samples) as index, score and text, separated by tabs."
NBest = Annotated[int | None, value("N", NBEST, min=1, max=1000)]
Source = Annotated[Path | None, text_file("Source text", "--source", "-s")]
Reference = Annotated[
    list[Path] | None,
    text_file("Reference translation (repeat it for several)", "--reference", "-r"),
]
Hypothesis = Annotated[Path | None, text_file("Translation to score, without a model")]
RunSet = Annotated[
    str | None,
    value(
        "SET",
        "Set of the run to score on: valid (or valid.0, ...), or the name of a test set.",
        complete=completion.sets,
    ),
]
Language = Annotated[
    str | None, value("CODE", "Target language; chooses the tokenizer.", parser=as_language)
]
TOKENIZE = "sacreBLEU tokenizer: 13a, intl, zh, ja-mecab, ..."
Tokenize = Annotated[BleuTokenizer | None, choice(TOKENIZE, metavar="NAME")]
Lowercase = Annotated[bool, flag("Ignore case.", "--lowercase")]
Json = Annotated[bool, flag("Print one JSON object.", "--json")]
DEVICES = ["auto", "cpu", "cuda", "mps"]
Device = Annotated[
    str, value("NAME", "Device: auto, cpu, cuda, cuda:N or mps.", complete=lambda: DEVICES)
]
Precision = Annotated[
    Literal["auto", "fp32", "bf16"], choice("Number format; auto: bf16 on CUDA, else fp32.")
]

DECODE = "Search and sampling (default: decode settings of the run)"  # a panel of the help


def search(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """Return an option that overrides a key of `decode`."""
    return value(metavar, text, *names, rich_help_panel=DECODE, **more)


# Search options of commands that translate, as (type, option).
SEARCH: dict[str, tuple[Any, Any]] = {
    "beam_size": (int, search("N", "Hypotheses kept per sentence; 1 is greedy search.", min=1)),
    "length_penalty": (float, search("ALPHA", "Larger values prefer longer translations.", min=0)),
    "length_norm": (
        Literal["gnmt", "power"],
        choice(
            "Divide scores by ((5+length)/6)^ALPHA (gnmt) or length^ALPHA (power).",
            rich_help_panel=DECODE,
        ),
    ),
    "no_repeat_ngram": (int, search("N", "Never repeat an n-gram of N tokens; 0: off.", min=0)),
    "max_len_a": (float, search("A", "Longest translation: A x source length + B tokens.", min=0)),
    "max_len_b": (int, search("B", "Constant part B of the longest translation.", min=0)),
    "batch_tokens": (int, search("N", "Largest batch: padded source tokens x beam size.", min=1)),
    "tag": (str, value("TEXT", "Tag to put before each source; the model must know it.")),
    "mbr": (
        int,
        search(
            "N",
            "Of N hypotheses, use the one most similar to the others (minimum Bayes risk).",
            min=2,
            max=1000,
        ),
    ),
}
SAMPLING: dict[str, tuple[Any, Any]] = {
    "sample": (bool, search("", "Sample at random instead of searching.", "--sample")),
    "temperature": (float, search("T", "Sampling temperature; below 1 prefers likely tokens.")),
    "top_k": (int, search("K", "Sample from the K most likely tokens; 0: from all.", min=0)),
    "top_p": (float, search("P", "Sample from the most likely tokens that sum to probability P.")),
    "seed": (int, search("N", "Seed of sampling; default: the seed of the run.", min=0)),
}

Command = TypeVar("Command", bound=Callable[..., None])


def with_options(options: Mapping[str, tuple[Any, Any]]) -> Callable[[Command], Command]:
    """Add options to a command, which receives them as `**decode`: None if they are not given."""
    optional = {name: (type_ | None, option) for name, (type_, option) in options.items()}
    return lambda command: add_parameters(command, optional, None)


def add_parameters(
    command: Command, options: Mapping[str, tuple[Any, Any]], default: Any
) -> Command:
    """Add parameters to the signature of a command, given as (type, option) by name."""
    signature = inspect.signature(command, eval_str=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    declared = [each for each in signature.parameters.values() if each.name != "decode"]
    added = [
        inspect.Parameter(name, kind, default=default, annotation=Annotated[type_, option])
        for name, (type_, option) in options.items()
    ]
    parameters = [each.replace(kind=kind) for each in declared] + added
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command
