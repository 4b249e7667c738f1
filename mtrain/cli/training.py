"""Commands before and during training."""

from pathlib import Path
from typing import Annotated

import typer

from mtrain.cli.options import (
    ConfigOption,
    ModelOption,
    SetOption,
    TimeLimitOption,
    as_path,
    begin_job,
)
from mtrain.cli.streams import print_path, reading
from mtrain.runtime.console import loaded, writing
from mtrain.runtime.errors import RefusedError
from mtrain.runtime.stop import Stop


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the commands to the command line."""
    app.command(rich_help_panel=panel)(train)
    app.command("init", rich_help_panel=panel)(initialize)
    data = typer.Typer(no_args_is_help=True, help="Prepare text ahead of training.")
    data.command("build")(data_build)
    app.add_typer(data, name="data", rich_help_panel=panel)
    tokenizer = typer.Typer(no_args_is_help=True, help="Train or use the vocabulary alone.")
    tokenizer.command("train")(tokenizer_train)
    tokenizer.command("encode")(tokenizer_encode)
    tokenizer.command("decode")(tokenizer_decode)
    app.add_typer(tokenizer, name="tokenizer", rich_help_panel=panel)


def train(
    config: ConfigOption,
    set_: SetOption = None,
    time_limit: TimeLimitOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read all text, show what would be trained, and stop.")
    ] = False,
) -> None:
    """Train a model; the same command starts and resumes a run.

    Example: `mtrain train -c en-de.yaml`

    Progress goes to stderr and to `RUN_DIR/train.log`, records to `RUN_DIR/metrics.jsonl`. Ctrl-C,
    SIGTERM, SIGUSR1 and `--time-limit` save first; run the same command again to resume.
    """
    settings, stop = begin_job(config, set_, time_limit)
    from mtrain.training import job  # imports torch, which takes seconds

    if dry_run:
        job.dry_run(settings, stop, config)
    else:
        job.train(settings, stop, config)


def initialize(
    src: Annotated[
        Path,
        typer.Argument(help="Source text, one segment a line; .gz or .zst too.", parser=as_path),
    ],
    tgt: Annotated[Path, typer.Argument(help="Its translation, line for line.", parser=as_path)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Config to write.  [SRC-TGT.yaml]", parser=as_path),
    ] = None,
    src_lang: Annotated[
        str | None, typer.Option(help="Source language; default: by the file's name.")
    ] = None,
    tgt_lang: Annotated[
        str | None, typer.Option(help="Target language; default: by the file's name.")
    ] = None,
    valid_src: Annotated[
        Path | None, typer.Option(help="Source of a validation set.", parser=as_path)
    ] = None,
    valid_tgt: Annotated[
        Path | None, typer.Option(help="Target of a validation set.", parser=as_path)
    ] = None,
    hold_out: Annotated[
        int | None,
        typer.Option(help="Number of pairs to split off for validation, into new files.", min=1),
    ] = None,
) -> None:
    """Write a first config, sized to two files of text and to this machine.

    Example: `mtrain init train.en train.de --hold-out 1000`

    The validation set is given by files, or split off by `--hold-out`, which writes both parts
    next to the config, without pairs that they would share.
    """
    if (valid_src is None) != (valid_tgt is None) or (valid_src is None) == (hold_out is None):
        raise RefusedError(
            "mtrain init: needs a validation set: give --valid-src and --valid-tgt, or "
            "--hold-out 1000 to split off 1,000 pairs"
        )
    stop = Stop()
    stop.install()
    from mtrain.check import starter
    from mtrain.runtime.device import pick_device

    languages = (
        src_lang or starter.language_of(src, "--src-lang"),
        tgt_lang or starter.language_of(tgt, "--tgt-lang"),
    )
    output = output or Path("-".join(languages) + ".yaml")
    valid = (valid_src, valid_tgt) if valid_src is not None and valid_tgt is not None else None
    request = starter.Request(src, tgt, output, *languages, valid, hold_out or 0)
    starter.write_config(request, stop, has_gpu=pick_device("auto").type == "cuda")
    print_path(output)


def data_build(
    config: ConfigOption, set_: SetOption = None, time_limit: TimeLimitOption = None
) -> None:
    """Build the vocabulary and tokenize the text of a config, for instance without a GPU.

    Example: `mtrain data build -c en-de.yaml`

    The results go to the cache (`MTRAIN_CACHE`), where training finds them. A stopped build resumes
    after its last whole million pairs.
    """
    settings, stop = begin_job(config, set_, time_limit)
    from mtrain.data.prepare import prepare
    from mtrain.runs.directory import RunDirectory

    prepare(settings, RunDirectory(Path(settings.run_dir)).tokenizer, stop)


def tokenizer_train(config: ConfigOption, set_: SetOption = None) -> None:
    """Train the vocabulary of a config and write it to the run directory.

    Example: `mtrain tokenizer train -c en-de.yaml`
    """
    from mtrain.config.loading import load_config

    settings = load_config(config, set_)
    from mtrain.data.prepare import train_run_tokenizer

    loaded()
    print_path(train_run_tokenizer(settings, Stop(), config))


def tokenizer_encode(model: ModelOption) -> None:
    """Split lines of stdin into pieces.

    Example: `mtrain tokenizer encode -m runs/NAME < in.txt`
    """
    from mtrain.translation import streams

    tokenizer = streams.load_tokenizer(model)
    with reading("-") as source, writing("-") as sink:
        streams.encode_stream(tokenizer, source, sink)


def tokenizer_decode(model: ModelOption) -> None:
    """Join pieces of stdin into lines.

    Example: `mtrain tokenizer decode -m runs/NAME < pieces.txt`
    """
    from mtrain.translation import streams

    tokenizer = streams.load_tokenizer(model)
    with reading("-") as source, writing("-") as sink:
        streams.decode_stream(tokenizer, source, sink)
