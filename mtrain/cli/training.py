"""Commands before and during training."""

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from mtrain.cli import opening, options
from mtrain.cli.options import file, flag, path, value
from mtrain.cli.streams import print_json, print_path, print_text
from mtrain.corpus.lines import open_bytes, read_file, require_regular
from mtrain.runtime import log
from mtrain.runtime.console import restore_interrupt
from mtrain.runtime.errors import EXIT_FAILED, RefusedError
from mtrain.runtime.stop import Stop
from mtrain.scoring.external import ExternalMetric


def train(
    config_file: options.ConfigFile = None,
    config: options.Config = None,
    set_: options.Set = None,
    time_limit: options.TimeLimit = None,
    dry_run: Annotated[
        bool, flag("Read all text, show what would be trained, and stop.", "--dry-run")
    ] = False,
    json_: Annotated[bool, flag("With --dry-run: print one JSON object.", "--json")] = False,
    metric_command: Annotated[
        str | None,
        value("COMMAND", "Program that scores translations, for `train.metric: command`."),
    ] = None,
    metric_timeout: Annotated[
        int | None,
        value("SECONDS", "Time limit for each call of this program; default: 600.", min=1),
    ] = None,
) -> None:
    """Train a model; the same command starts, resumes and extends a run.

    Example: `mtrain train en-de.yaml`
    """
    config_path = opening.config_path(config_file, config)
    if json_ and not dry_run:
        raise RefusedError("--json: needs --dry-run; a run keeps its records in metrics.jsonl")
    if metric_timeout is not None and metric_command is None:
        raise RefusedError("--metric-timeout: needs --metric-command; add it")
    settings, stop = opening.begin_job(config_path, set_, time_limit)
    metric = None
    if metric_command is not None:
        metric = ExternalMetric(metric_command, metric_timeout or 600)
    from mtrain.training import job  # imports torch, which takes seconds

    if not dry_run:
        job.train(settings, stop, config_path, metric)
        return
    found = job.dry_run(settings, stop, config_path, metric)
    if json_ and found is not None:  # on rank 0
        print_json(found)


def init(
    src: Annotated[
        Path, path("SRC", "Source text, one sentence per line; also .gz or .zst; or a table.")
    ],
    tgt: Annotated[Path | None, path("TGT", "Its translation, line by line.")] = None,
    columns: Annotated[
        str | None,
        value("SRC,TGT", "Columns of a .tsv, .jsonl or .parquet file: names, or numbers from 0."),
    ] = None,
    output: Annotated[
        Path | None, file("Config to write; default: en-de.yaml for en to de.", "--output", "-o")
    ] = None,
    src_lang: Annotated[
        str | None,
        value("CODE", "Source language; default: en for train.en.", parser=options.as_language),
    ] = None,
    tgt_lang: Annotated[
        str | None,
        value("CODE", "Target language; default: de for train.de.", parser=options.as_language),
    ] = None,
    valid_src: Annotated[Path | None, file("Source text of the validation set.")] = None,
    valid_tgt: Annotated[Path | None, file("Target text of the validation set.")] = None,
    hold_out: Annotated[
        int | None,
        value(
            "N",
            "Hold out N pairs for validation; default: 2 % (200 to 1,000) without `valid` files.",
            min=1,
        ),
    ] = None,
    json_: options.Json = False,
) -> None:
    """Write a config for two text files or a table, sized for the text and this machine.

    Validation and test sets in the same folder, such as valid.en and test2016.de, are used.

    Example: `mtrain init train.en train.de`

    Example: `mtrain init pairs.tsv --columns 0,1 --src-lang en --tgt-lang de`
    """
    valid = _valid_sides(valid_src, valid_tgt, hold_out)
    table_columns = _columns_of(src, tgt, columns, src_lang, tgt_lang)
    tgt = src if table_columns else _require_target(src, tgt)
    stop = Stop()
    stop.install()
    log.logger.info("reading %s", src if table_columns else f"{src} and {tgt}")
    from mtrain.check import starter
    from mtrain.runtime.device import pick_device

    for text in (src, tgt):
        _refuse_unreadable(text, is_table=table_columns is not None)
    languages = starter.languages_of((src, tgt), src_lang, tgt_lang, table_columns)
    output = output or Path("-".join(languages) + ".yaml")
    request = starter.Request(src, tgt, output, *languages, valid, hold_out or 0, table_columns)
    found = starter.write_config(request, stop, has_gpu=pick_device("auto").type == "cuda")
    if json_:
        print_json({"config": str(output), **found})
    elif not (os.isatty(1) and log.is_on_terminal()):  # on a terminal, the log has named the file
        print_path(output)


def _refuse_unreadable(path: Path, *, is_table: bool) -> None:
    """Raise `UserError` for a file that cannot be opened or, unless it is a table, is not text."""
    require_regular(path)  # opening a pipe would wait for its writer
    if is_table:
        open_bytes(path).close()
    else:
        next(read_file(path), None)


def _valid_sides(
    src: Path | None, tgt: Path | None, hold_out: int | None
) -> tuple[Path, Path] | None:
    """Return the sides of the validation set, if given; raises `RefusedError` if only one side is
    given, or if `hold_out` is given, too.
    """
    is_half = (src is None) != (tgt is None)
    is_double = src is not None and hold_out
    if is_half or is_double:
        raise RefusedError(
            "mtrain init: give --valid-src and --valid-tgt for a validation set, or --hold-out N, "
            "or none of them to hold out a default number of pairs"
        )
    return (src, tgt) if src is not None and tgt is not None else None


def _columns_of(
    src: Path, tgt: Path | None, columns: str | None, src_lang: str | None, tgt_lang: str | None
) -> tuple[str, str] | None:
    """Return the columns of a table, or the languages of a .tmx file; None for two files of text.
    Raises `RefusedError` if they are missing for a table, or if columns are given for two files.
    """
    from mtrain.config.corpora import FileCorpus, table_kind  # pydantic takes a while

    kind = table_kind(str(src))
    if tgt is not None or not kind:
        if tgt is not None and columns is not None:
            formats = FileCorpus.model_fields["file"].description
            raise RefusedError(f"--columns: is for one table: {formats}; remove it for two files")
        return None
    if kind == "tmx" and columns is None and src_lang and tgt_lang:
        return src_lang, tgt_lang
    names = [name.strip() for name in (columns or "").split(",")]
    if len(names) == 2 and all(names):
        return names[0], names[1]
    if columns is not None:
        raise RefusedError(f"--columns {columns}: expected two columns, such as 0,1 or en,de")
    advice = "--columns, with the names of its columns or their numbers from 0, as in 0,1"
    if kind == "tmx":
        advice = "--src-lang en --tgt-lang de, with its languages"
    raise RefusedError(f"mtrain init: {src} is a table; add {advice}")


def _require_target(src: Path, tgt: Path | None) -> Path:
    """Return the target; raises `RefusedError` if it is missing, or if either file is a table."""
    from mtrain.config.advice import table_entry
    from mtrain.config.corpora import FileCorpus, table_kind

    if tgt is not None and not any(map(table_kind, map(str, (src, tgt)))):
        return tgt  # two .csv files are accepted: each may have a single column
    formats = FileCorpus.model_fields["file"].description
    text = f"give two files, source and target, aligned by line, or one table: {formats}"
    if tgt is None and src.suffix in (".csv", ".json"):
        entry = f"with its columns, in data.train: {table_entry(str(src))}"
        text += f"; for a {src.suffix}, write the config yourself, {entry}"
    elif src.is_dir():
        entry = f"data.train: [{{dataset: {src}, split: train, src: en, tgt: de}}]"
        text += f"; {src} is a folder: if it is a dataset, write the config yourself, with {entry}"
    elif tgt is None:
        text = f"{src} is not a table in a format that mtrain reads; {text}"
    raise RefusedError(f"mtrain init: {text}")


def check(
    config_file: options.ConfigFile = None,
    config: options.Config = None,
    set_: options.Set = None,
    json_: options.Json = False,
    examples: Annotated[
        int, value("N", "Lines to show for each kind of problem.", min=1, max=1000)
    ] = 10,
    forecast: Annotated[
        bool, flag("Forecast memory, disk space and time.", "--forecast/--no-forecast")
    ] = True,
    timing: Annotated[
        bool, flag("Time a few training steps for the forecast.", "--timing/--no-timing")
    ] = True,
) -> None:
    """Find problems in the text of a config (exit code 1 for errors), and forecast its training.

    Example: `mtrain check en-de.yaml`
    """
    config_path = opening.config_path(config_file, config)
    settings, stop = opening.begin_job(config_path, set_)
    from mtrain.check.diagnosis import diagnose
    from mtrain.check.findings import ERROR
    from mtrain.training.synthesis import without_missing_text

    settings = without_missing_text(settings, stop, timed=timing and forecast)
    found = diagnose(
        settings, stop, config_path, examples=examples, with_forecast=forecast, timed=timing
    )
    width = shutil.get_terminal_size((100, 0)).columns
    if json_:
        print_json(found.as_json())
    else:
        print_text(*found.lines(width))
    if found.count(ERROR):
        raise typer.Exit(EXIT_FAILED)


def data_build(
    config_file: options.ConfigFile = None,
    config: options.Config = None,
    set_: options.Set = None,
    time_limit: options.TimeLimit = None,
) -> None:
    """Build the vocabulary and tokenize the text of a config, for example without a GPU.

    Example: `mtrain data build en-de.yaml`
    """
    config_path = opening.config_path(config_file, config)
    settings, stop = opening.begin_job(config_path, set_, time_limit)
    from mtrain.training.job import build_data

    build_data(settings, stop, config_path)


def tokenizer_train(
    config_file: options.ConfigFile = None, config: options.Config = None, set_: options.Set = None
) -> None:
    """Train the vocabulary of a config and write it to the run directory.

    Example: `mtrain tokenizer train en-de.yaml`
    """
    config_path = opening.config_path(config_file, config)
    from mtrain.config.loading import load_config

    settings = load_config(config_path, set_)
    from mtrain.data.prepare import train_run_tokenizer

    restore_interrupt()
    print_path(train_run_tokenizer(settings, Stop(), config_path))
