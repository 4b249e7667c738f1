"""Read pairs from Hugging Face datasets: of the hub, or local folders."""

import errno
import glob
import logging
import lzma
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from mtrain.config.corpora import HubCorpus
from mtrain.corpus.lines import Reading
from mtrain.corpus.parquet import ROWS
from mtrain.corpus.tables import TextRow, rows_of_batches, texts_of
from mtrain.runtime.errors import UserError, first_line, printable

_READERS = "datasets.packaged_modules"
# Suffixes of files and the readers of the library datasets for them.
SUFFIXES = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}
SUFFIXES |= {".arrow": "arrow", ".txt": "text"}
_ROW_NAMES = "__index_level_0__"  # the first column of a CSV file, if the header does not name it
_QUOTE = "in a CSV file, put text that holds a comma in double quotes, and end each quote"
_KINDS = "Parquet, JSON, CSV, Arrow or plain text"
# Errors of a cache that cannot be written.
_UNWRITABLE = (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
BATCH_BYTES = 1 << 27  # approximate bytes of rows read at a time


def read_dataset(corpus: HubCorpus, reading: Reading) -> Iterator[TextRow]:
    """Yield the numbered pairs of a Hugging Face dataset or local folder; raises `UserError`."""
    name = f"dataset {dataset_name(corpus)}"
    rows = rows_of_batches(_dataset_batches(corpus, reading.root, name), corpus, name)
    return texts_of(rows, corpus, f"{name}: row ", reading)


def dataset_files(corpus: HubCorpus, root: Path) -> list[Path]:
    """Return the cached files of a dataset; none if it is streamed."""
    if corpus.streaming:
        return []
    with _loading(f"dataset {dataset_name(corpus)}"):
        return [Path(file["filename"]) for file in _load_dataset(corpus, root).cache_files]


def dataset_name(corpus: HubCorpus) -> str:
    """Return the name of a dataset, with its configuration and split."""
    return " ".join(filter(None, (corpus.dataset, corpus.name, corpus.split)))


def _dataset_batches(corpus: HubCorpus, root: Path, name: str) -> Iterator[dict[str, list[Any]]]:
    with _loading(name):
        dataset = _load_dataset(corpus, root)
        batch_size = ROWS
        if not corpus.streaming:
            rows = BATCH_BYTES * dataset.num_rows // max(1, dataset.data.nbytes)
            batch_size = min(ROWS, 1 + rows)
        yield from dataset.iter(batch_size=batch_size)


def _load_dataset(corpus: HubCorpus, root: Path) -> Any:
    import datasets  # slow to import; only `dataset:` entries need it

    datasets.disable_progress_bars()
    for library in ("datasets", "huggingface_hub"):  # their warnings quote the card
        logging.getLogger(library).setLevel(logging.ERROR)
        for handler in logging.getLogger(library).handlers:
            handler.addFilter(_spell_out)
    load = _load_directory if (root / corpus.dataset).is_dir() else _load_from_hub
    return load(corpus, root, {"split": corpus.split, "streaming": corpus.streaming})


def _spell_out(record: logging.LogRecord) -> bool:
    """Make a message of the library printable: it may quote the name of a file."""
    record.msg = printable(record.getMessage())
    record.args = None
    return True


def _load_directory(corpus: HubCorpus, root: Path, options: dict[str, Any]) -> Any:
    """Load a local folder of files of one kind."""
    import pandas
    from datasets import load_dataset

    name = corpus.dataset
    reader, files = _reader_and_files((root / name / (corpus.name or "")).absolute())
    # the library reads names of files as patterns
    patterns = {split: list(map(glob.escape, paths)) for split, paths in files.items()}
    if reader != "csv":
        return load_dataset(reader, data_files=patterns, **options)
    paths = chain.from_iterable(files.values())
    headers = (pandas.read_csv(path, nrows=0, encoding_errors="replace") for path in paths)
    columns = sorted(set(chain.from_iterable(header.columns for header in headers)))
    # without `usecols`, with which the reader drops the end of a row that has too many cells, such
    # as text with a comma and no quotes
    dataset = load_dataset(reader, data_files=patterns, **_csv_options(columns), **options)
    # a streamed dataset has no column names until a row is read
    if _ROW_NAMES in (dataset.column_names or next(iter(dataset.take(1)), {})):
        raise UserError(f"dataset {name}: a row has more cells than the header; {_QUOTE}")
    return dataset


def _load_from_hub(corpus: HubCorpus, root: Path, options: dict[str, Any]) -> Any:
    """Load a dataset from the hub; refuse files of unknown kinds and files from elsewhere."""
    from datasets import load_dataset, load_dataset_builder
    from datasets.exceptions import DatasetNotFoundError

    name = corpus.dataset
    if name.startswith(("/", ".")):
        raise UserError(
            f"dataset {name}: no such folder: {(root / name).absolute()}; name one that exists"
        )
    if name.isidentifier() and find_spec(f"{_READERS}.{name}"):
        raise UserError(
            f"dataset {name}: is a reader of the library datasets, not a dataset; name a dataset "
            "of the hub or a local folder"
        )
    try:
        builder = load_dataset_builder(name, corpus.name)
    except (ConnectionError, DatasetNotFoundError) as error:
        reason = f"cannot load: {first_line(error)}; there is no folder {(root / name).absolute()}"
        raise UserError(f"dataset {name}: {reason}") from None
    for file in chain.from_iterable((builder.config.data_files or {}).values()):
        if not file.startswith("hf://"):
            raise UserError(
                f"dataset {name}: its card names {file}, which is not part of the dataset; name a "
                "local folder with the files"
            )
    # the reader whose class the builder is, or derives from
    modules = (base.__module__.removeprefix(f"{_READERS}.") for base in type(builder).__mro__)
    readers = {module.split(".")[0] for module in modules}
    if readers.isdisjoint({*SUFFIXES.values(), "cache"}):
        raise UserError(f"dataset {name}: its files are not {_KINDS}; convert them")
    if "csv" in readers:
        columns = [corpus.src, corpus.tgt]
        options |= {**_csv_options(columns), "usecols": columns}
    return load_dataset(name, corpus.name, **options)


def _csv_options(columns: Iterable[str]) -> dict[str, Any]:
    """Return options that make the CSV reader keep the text of columns as it is; by default it
    reads 007 as a number and None as null.
    """
    return {"converters": dict.fromkeys(columns, str), "keep_default_na": False}


def _reader_and_files(directory: Path) -> tuple[str, dict[str, list[str]]]:
    """Return the reader for the files of a local dataset, and the files of each split. The card of
    the dataset is not read: it may name any file or address.
    """
    import datasets

    pattern = glob.escape(str(directory))
    files = datasets.load_dataset_builder("text", data_dir=pattern).config.data_files
    by_reader: dict[str, dict[str, list[str]]] = {}  # reader -> split -> files
    for split, paths in files.items():
        for path in paths:
            readers = [SUFFIXES[suffix] for suffix in Path(path).suffixes if suffix in SUFFIXES]
            if readers:
                by_reader.setdefault(readers[0], {}).setdefault(split, []).append(path)
    if "arrow" in by_reader:
        by_reader.pop("json", None)  # the library describes Arrow files in JSON files
    if len(by_reader) != 1:
        found = ", ".join(sorted(by_reader)) or "none"
        raise UserError(f"dataset {directory}: needs files of one kind, {_KINDS}; it has {found}")
    return by_reader.popitem()


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Turn errors of the library into `UserError`."""
    from datasets.exceptions import DatasetsError
    from datasets.table import CastError
    from pandas.errors import ParserError

    # errors of a malformed dataset card, and of packed files that are cut or damaged
    card_errors = (AttributeError, LookupError, TypeError, ValueError)
    file_errors = (EOFError, OSError, StopIteration, zlib.error, lzma.LZMAError)
    try:
        yield
    except (*card_errors, *file_errors, RuntimeError, ImportError, DatasetsError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        advice = ""
        if isinstance(cause, OSError) and cause.errno in _UNWRITABLE:
            advice = "; if that is the cache of datasets, set HF_HOME to another directory"
        elif isinstance(cause, ParserError):
            advice = f"; {_QUOTE}"
        elif isinstance(cause, UnicodeDecodeError):
            advice = "; convert the files to UTF-8"
        reason = "a file is empty" if isinstance(cause, StopIteration) else first_line(cause)
        if isinstance(cause, CastError) or reason.startswith("Schema at index"):
            reason = "its files differ in their columns"
            advice = "; give all the same columns in the same order"
        raise UserError(f"{name}: cannot load: {reason}{advice}") from None
