"""Options that commands share, and the model that they name."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    """Expand `~` and `$NAME` in a path from the command line."""
    try:
        return expand_path(text)
    except ValueError as error:
        raise typer.BadParameter(printable(str(error))) from None


def as_path(text: str) -> Path:
    """Read a path from the command line; the parser of every option and argument that is one."""
    return Path(as_name(text))


ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="Run settings in YAML.", parser=as_path)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a setting: `train.max_steps=1000`, the value being YAML. Repeatable.",
    ),
]
TimeLimitOption = Annotated[
    str | None,
    typer.Option(help="Save and stop with exit code 75 after this long: `30m`, `3h30m`."),
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
        "several models of one vocabulary translate together.",
        parser=as_path,
    ),
]
InputOption = Annotated[
    str, typer.Option("--input", "-i", help="Text to translate, `-` for stdin.", parser=as_name)
]
OutputOption = Annotated[
    str, typer.Option("--output", "-o", help="Where to write, `-` for stdout.", parser=as_name)
]
BeamOption = Annotated[
    int | None, typer.Option(help="Hypotheses kept a sentence; 1 is greedy search.", min=1)
]
PenaltyOption = Annotated[
    float | None, typer.Option(help="Alpha; larger prefers longer translations.", min=0)
]
NormOption = Annotated[
    str | None, typer.Option(help="`gnmt`: ((5+length)/6)^alpha, or `power`: length^alpha.")
]
NBestOption = Annotated[
    int | None, typer.Option(help="N lines an input: `index<TAB>score<TAB>text`.", min=1)
]
PrefixOption = Annotated[
    Path | None,
    typer.Option(
        help="What each translation is to begin with, line for line, whole words.",
        parser=as_path,
    ),
]
AlignmentsOption = Annotated[
    str | None,
    typer.Option(
        help="Where to write which source word each word was made of: `0-0 1-2`, from 0.",
        parser=as_name,
    ),
]
SampleOption = Annotated[
    bool | None,
    typer.Option("--sample", help="Draw translations at random instead of searching."),
]
TemperatureOption = Annotated[
    float | None, typer.Option(help="Of sampling; lower keeps to what is likelier.")
]
TopKOption = Annotated[
    int | None, typer.Option(help="Sample from the K likeliest tokens; 0: from all.", min=0)
]
TopPOption = Annotated[
    float | None, typer.Option(help="Sample from the fewest tokens of this probability.")
]
SeedOption = Annotated[int | None, typer.Option(help="Of sampling, instead of the run's.")]
NoRepeatOption = Annotated[
    int | None,
    typer.Option("--no-repeat-ngram", help="No row of so many tokens comes twice; 0: off.", min=0),
]
BatchOption = Annotated[
    int | None, typer.Option(help="Padded source tokens x beam size in a batch.", min=1)
]
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


def search_settings(
    beam_size: int | None,
    length_penalty: float | None,
    length_norm: str | None,
    no_repeat_ngram: int | None,
    batch_tokens: int | None,
) -> dict[str, Any]:
    """Name the settings of a search that options give, None where they give none."""
    return {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "length_norm": length_norm,
        "no_repeat_ngram": no_repeat_ngram,
        "batch_tokens": batch_tokens,
    }


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
    """Listen to requests to stop before anything else, then read the settings of a long job."""
    stop = Stop(parse_duration(time_limit) if time_limit else None)
    stop.install()
    from mtrain.config.loading import load_config

    settings = load_config(config, overrides)
    log.set_up_console(times=True)
    return settings, stop
