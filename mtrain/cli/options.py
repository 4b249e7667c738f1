"""Options that several commands share, and loading what they name."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mtrain.runtime import log
from mtrain.runtime.errors import RefusedError, printable
from mtrain.runtime.files import expand_path
from mtrain.runtime.stop import Stop, parse_duration

if TYPE_CHECKING:
    from mtrain.config.schema import Config
    from mtrain.translation.loading import LoadedModel
    from mtrain.translation.translator import Translator


def as_name(text: str) -> str:
    """Expand `~` and `$NAME` in a path of the command line."""
    try:
        return expand_path(text)
    except ValueError as error:
        raise typer.BadParameter(printable(str(error))) from None


def as_path(text: str) -> Path:
    """Parse a path of the command line; every path option uses this."""
    return Path(as_name(text))


ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="Run settings in YAML.", parser=as_path)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a setting: `train.max_steps=1000`. The value is YAML. Repeatable.",
    ),
]
TimeLimitOption = Annotated[
    str | None,
    typer.Option(help="Save and stop with exit code 75 after this time: `30m`, `3h30m`."),
]
ModelOption = Annotated[
    Path,
    typer.Option(
        "--model",
        "-m",
        help="A run directory (its best model) or one checkpoint directory.",
        parser=as_path,
    ),
]
ModelsOption = Annotated[
    list[Path],
    typer.Option(
        "--model",
        "-m",
        help="A run directory (its best model) or one checkpoint directory. Repeatable: "
        "several models of one vocabulary are an ensemble.",
        parser=as_path,
    ),
]
InputOption = Annotated[
    str, typer.Option("--input", "-i", help="Text to translate, `-` for stdin.", parser=as_name)
]
OutputOption = Annotated[
    str, typer.Option("--output", "-o", help="File to write, `-` for stdout.", parser=as_name)
]
NBestOption = Annotated[
    int | None, typer.Option(help="N lines per input line: `index<TAB>score<TAB>text`.", min=1)
]
PrefixOption = Annotated[
    Path | None,
    typer.Option(
        help="File of prefixes, one per line: whole words with which each translation begins.",
        parser=as_path,
    ),
]
AlignmentsOption = Annotated[
    str | None,
    typer.Option(
        help="File for word alignments: `0-0 1-2` (source word - target word, from 0).",
        parser=as_name,
    ),
]
SeedOption = Annotated[int | None, typer.Option(help="Seed of sampling; default: the run's.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
PrecisionOption = Annotated[
    str, typer.Option(help="auto (fp32 on a CPU, bf16 on CUDA), fp32 or bf16.")
]

EvalModelOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--model",
        "-m",
        help="Translate the source with this model first. Repeatable.",
        parser=as_path,
    ),
]
SourceOption = Annotated[
    Path | None, typer.Option("--source", "-s", help="Source text.", parser=as_path)
]
ReferenceOption = Annotated[
    list[Path] | None,
    typer.Option("--reference", "-r", help="Reference translation. Repeatable.", parser=as_path),
]
HypothesisOption = Annotated[
    Path | None,
    typer.Option(help="Score this translation instead of a model's.", parser=as_path),
]
KeepOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Keep the model's translations here.", parser=as_path),
]
LanguageOption = Annotated[
    str | None, typer.Option(help="Target language code, for the tokenization of BLEU and TER.")
]
TokenizeOption = Annotated[
    str | None, typer.Option(help="sacreBLEU tokenizer, instead of the target language's.")
]

KindOption = Annotated[
    list[str] | None,
    typer.Option(help="Attention to show: encoder, decoder or cross; all by default. Repeatable."),
]
LayerOption = Annotated[
    list[int] | None,
    typer.Option(help="Layer to show, from 1; all by default. Repeatable.", min=1),
]
HeadOption = Annotated[
    list[str] | None,
    typer.Option(help="Head to show, from 1, or mean; all by default. Repeatable."),
]


# Options of the search, for commands that translate; each overrides a setting of `decode`.
SEARCH = {
    "beam_size": Annotated[
        int | None, typer.Option(help="Hypotheses per sentence; 1 is greedy search.", min=1)
    ],
    "length_penalty": Annotated[
        float | None, typer.Option(help="Alpha; a larger one prefers longer translations.", min=0)
    ],
    "length_norm": Annotated[
        str | None, typer.Option(help="`gnmt`: ((5+length)/6)^alpha, or `power`: length^alpha.")
    ],
    "no_repeat_ngram": Annotated[
        int | None, typer.Option(help="Never repeat an n-gram of this many tokens; 0 = off.", min=0)
    ],
    "batch_tokens": Annotated[
        int | None, typer.Option(help="Padded source tokens x beam size in a batch.", min=1)
    ],
}
SAMPLING = {
    "sample": Annotated[
        bool | None,
        typer.Option("--sample", help="Draw translations at random instead of searching."),
    ],
    "temperature": Annotated[
        float | None, typer.Option(help="Of sampling; a lower one prefers likelier tokens.")
    ],
    "top_k": Annotated[
        int | None, typer.Option(help="Sample from the K likeliest tokens; 0 = all.", min=0)
    ],
    "top_p": Annotated[
        float | None, typer.Option(help="Sample from the fewest tokens of this probability.")
    ],
}

Command = TypeVar("Command", bound=Callable[..., None])


def with_options(options: Mapping[str, Any]) -> Callable[[Command], Command]:
    """Add options to a command, which receives them as `**decode`; None where one is not given."""

    def add(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.name != "decode"]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in options.items()
        ]
        command.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + added
        )
        return command

    return add


@contextmanager
def open_translator(
    models: list[Path],
    device: str,
    precision: str,
    *,
    seed: int | None = None,
    samples: int = 1,
    **decode: Any,
) -> Iterator["Translator"]:
    """Load models on every rank of the job; `decode` overrides their search settings."""
    _check_names(precision, decode.get("length_norm"))
    from mtrain.runtime.distributed import joined
    from mtrain.translation.loading import load_on_ranks
    from mtrain.translation.translator import Translator

    with joined() as ranks:
        ranks.check_same(ascii(sys.argv[1:]), "commands")
        loaded = load_on_ranks(models, ranks, device=device, precision=precision, **decode)
        yield Translator(loaded, ranks, seed=seed, samples=samples)


def load_model(
    model: Path, device: str, precision: str, decode: Mapping[str, Any]
) -> "LoadedModel":
    """Load a model on one device."""
    _check_names(precision)
    from mtrain.translation import loading

    return loading.load(model, device=device, precision=precision, **decode)


def _check_names(precision: str, length_norm: str | None = None) -> None:
    if precision not in ("auto", "fp32", "bf16"):
        raise RefusedError(f"--precision {precision}: expected auto, fp32 or bf16")
    if length_norm not in (None, "gnmt", "power"):
        raise RefusedError(f"--length-norm {length_norm}: expected gnmt or power")


def begin_job(
    config: Path, overrides: list[str] | None, time_limit: str | None
) -> tuple["Config", Stop]:
    """Catch signals, then read the settings of a long job."""
    stop = Stop(parse_duration(time_limit) if time_limit else None)
    stop.install()
    from mtrain.config.loading import load_config

    settings = load_config(config, overrides)
    log.set_up_console(times=True)
    return settings, stop
