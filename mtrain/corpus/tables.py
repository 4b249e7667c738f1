"""Read pairs from files with a column for each side, and from Hugging Face datasets.

`FORMATS` has an entry for each file format; a new format needs a reader, and its suffix in
`config.corpora`. Rows are numbered from 1; in a file of lines, a row has the number of its line.
"""

import errno
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from mtrain.config.corpora import FileCorpus, HubCorpus
from mtrain.config.languages import NAMES, language_code, language_error
from mtrain.corpus.lines import (
    NOT_UTF8,
    Reading,
    RowError,
    decode_line,
    is_blank,
    is_too_long,
    join_names,
    read_file,
    scan_file,
)
from mtrain.corpus.markup import is_quoted_cell
from mtrain.corpus.parquet import ROWS, open_parquet, parquet_batches
from mtrain.corpus.tmx import count_tmx, read_tmx
from mtrain.runtime.errors import UserError, first_line, is_utf8

_READERS = "datasets.packaged_modules"
# Suffixes of files and the readers of the library datasets for them.
SUFFIXES = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}
SUFFIXES |= {".arrow": "arrow", ".txt": "text"}
OTHER_COLUMNS = "rows with more or fewer columns than the first (is a tab part of a text?)"
QUOTED = "rows with quotes of CSV, which become part of the text (use JSON lines instead)"
HEADER = "a first row that looks like names of columns (give them by name: src: {}, tgt: {})"
# Names of columns, in addition to language codes.
_NAMES = {"source", "src", "target", "tgt", "text", "sentence", "segment", "original"}
_NAMES |= {"translation", "reference", "input", "output", *(n.lower() for n in NAMES.values())}
_ROW_NAMES = "__index_level_0__"  # the first column of a CSV file, if the header does not name it
_QUOTE = "in a CSV file, put text that holds a comma in double quotes"
_KINDS = "Parquet, JSON, CSV, Arrow or plain text"
# Errors of a cache that cannot be written.
_UNWRITABLE = (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
BATCH_BYTES = 1 << 27  # approximate bytes of rows read at a time

Row = tuple[int, Any, Any]  # number, and source and target, which need not be texts
TextRow = tuple[int, str, str]


@dataclass(frozen=True)
class Format:
    """Functions for a file format: `read` yields the rows. `count` returns their number, given the
    number of lines; None: each line is a row.
    """

    read: Callable[[FileCorpus, Path, Reading], Iterator[Row]]
    count: Callable[[FileCorpus, Path, Reading, int], int] | None = None
    before_number: str = ":"  # between a file's name and the number of a row, in messages


def scan_table(corpus: FileCorpus, reading: Reading) -> tuple[int, str]:
    """Return the number of rows of a table, and the hash of its content with the columns read."""
    path = reading.root / corpus.file
    # XML declares its encoding
    lines, content = scan_file(path, reading.check_stop, is_utf8=corpus.kind != "tmx")
    columns = json.dumps([corpus.src, corpus.tgt]).encode()
    count = FORMATS[corpus.kind].count
    rows = count(corpus, path, reading, lines) if count else lines
    return rows, hashlib.sha256(content + columns).hexdigest()


def read_table(corpus: FileCorpus, reading: Reading) -> Iterator[TextRow]:
    """Yield the numbered pairs of a file; raises `RowError` for a row that is not two texts."""
    path, form = reading.root / corpus.file, FORMATS[corpus.kind]
    return _texts(form.read(corpus, path, reading), corpus, f"{path}{form.before_number}", reading)


def read_dataset(corpus: HubCorpus, reading: Reading) -> Iterator[TextRow]:
    """Yield the numbered pairs of a Hugging Face dataset or local folder; raises `UserError`."""
    name = f"dataset {dataset_name(corpus)}"
    rows = _rows_of_batches(_dataset_batches(corpus, reading.root, name), corpus, name)
    return _texts(rows, corpus, f"{name}: row ", reading)


def dataset_files(corpus: HubCorpus, root: Path) -> list[Path]:
    """Return the cached files of a dataset; none if it is streamed."""
    if corpus.streaming:
        return []
    with _loading(f"dataset {dataset_name(corpus)}"):
        return [Path(file["filename"]) for file in _load_dataset(corpus, root).cache_files]


def dataset_name(corpus: HubCorpus) -> str:
    """Return the name of a dataset, with its configuration and split."""
    return " ".join(filter(None, (corpus.dataset, corpus.name, corpus.split)))


def _texts(
    rows: Iterable[Row], corpus: FileCorpus | HubCorpus, location: str, reading: Reading
) -> Iterator[TextRow]:
    """Yield the rows that are two texts, and drop or refuse others; errors name `location` and
    row.
    """
    for number, src, tgt in rows:
        if not (isinstance(src, str) and isinstance(tgt, str)):
            name, value = (corpus.tgt, tgt) if isinstance(src, str) else (corpus.src, src)
            kind = "null" if value is None else f"of the type {type(value).__name__}"
            reason = f"{name} is {kind}, not text; fix or remove the row"
            reading.refuse(RowError(f"{location}{number}", number, reason))
        elif is_too_long(src) or is_too_long(tgt):
            reading.drop_long(f"{location}{number}", number)
        elif is_utf8(src) and is_utf8(tgt):
            yield number, src, tgt
        else:
            reading.counts[NOT_UTF8] += 1
            if reading.invalid_utf8 == "error":
                reason = "holds half of a surrogate pair; fix the row, or set data.invalid_utf8: "
                reason += "drop to leave such pairs out"
                reading.refuse(RowError(f"{location}{number}", number, reason, "encoding"))


# --- TSV, JSON lines and Parquet ----------------------------------------------------------------


def _decoded_lines(path: Path, reading: Reading) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(read_file(path, reading.counts), 1):
        text = decode_line(path, number, line, reading)
        if text is not None:
            yield number, text


def _read_tsv(corpus: FileCorpus, path: Path, reading: Reading) -> Iterator[Row]:
    """Yield rows by column numbers, from 0, or by the names in the first line."""
    lines, (src, tgt) = _decoded_lines(path, reading), (corpus.src, corpus.tgt)
    header = list[str]()
    if isinstance(src, str) or isinstance(tgt, str):
        number, first = next(lines, (1, ""))
        # a first line that is not UTF-8 was skipped: then there is no header
        header = first.split("\t") if number == 1 else []
        src, tgt = (_column_index(str(name), header, path) for name in (src, tgt))
    least = max(src, tgt) + 1  # columns of a row
    columns = len(header)  # of the first row
    first_lines: dict[str, int] = {}  # the first line of each kind of odd row

    def count(odd: str) -> None:
        reading.counts[f"{odd}, from line {first_lines.setdefault(odd, number)} on"] += 1

    for number, line in lines:
        cells = line.split("\t")
        if len(cells) < least or 0 < len(header) < len(cells):
            reason = _column_fault(line, cells, header, least, corpus)
            reading.refuse(RowError(f"{path}:{number}", number, reason))
            continue
        columns = columns or len(cells)
        if len(cells) != columns:
            count(OTHER_COLUMNS)
        elif number == 1 and _is_name(cells[src]) and _is_name(cells[tgt]):
            reading.counts[HEADER.format(cells[src].strip(), cells[tgt].strip())] += 1
        if '""' in line and any(_has_quotes(cells[column]) for column in (src, tgt)):
            count(QUOTED)
        yield number, cells[src], cells[tgt]


def _column_fault(
    line: str, cells: list[str], header: list[str], least: int, corpus: FileCorpus
) -> str:
    """Return why a line has fewer than `least` columns, or more than the header."""
    if len(cells) >= least:
        has = f"has {len(cells)} columns, but the first line names {len(header)}"
        return f"{has}: is a tab part of a text?"
    if is_blank(line):
        return "blank; remove the line"
    has = f"has {len(cells)} columns" if len(cells) > 1 else "has 1 column, and no tab"
    needs = f"src: {corpus.src}, tgt: {corpus.tgt} needs {least}"
    return f"{has}, but {needs} (columns are numbered from 0); fix or remove the line"


def _has_quotes(cell: str) -> bool:
    """Whether a cell is in quotes and holds doubled quotes, as programs write CSV."""
    return '""' in cell[1:-1] and is_quoted_cell(cell)


def _is_name(cell: str) -> bool:
    """Whether a cell looks like the name of a column."""
    name = cell.strip()
    is_code = language_error(name) is None and language_code(name) in NAMES
    return is_code or name.lower() in _NAMES


def _column_index(name: str, header: list[str], path: Path) -> int:
    """Return the index of a named column; raises `UserError` for none or two."""
    if header.count(name) == 1:
        return header.index(name)
    fault = "two columns" if name in header else "no column"
    raise UserError(
        f"{path}:1: {fault} {name}; it has {join_names(header)}. If the columns have no names, "
        "give their numbers, from 0"
    )


def _count_tsv(corpus: FileCorpus, path: Path, reading: Reading, lines: int) -> int:
    header_lines = 1 if isinstance(corpus.src, str) else 0
    return max(0, lines - header_lines)


def _read_json_lines(corpus: FileCorpus, path: Path, reading: Reading) -> Iterator[Row]:
    wanted = {part for name in (corpus.src, corpus.tgt) for part in (name, *str(name).split("."))}
    quoted = [json.dumps(name, ensure_ascii=False) for name in wanted]
    for number, line in _decoded_lines(path, reading):
        try:
            # the hook is slow, so use it only if a field may occur twice: its name does, or an
            # escape may spell it
            if "\\" in line or any(line.count(name) > 1 for name in quoted):
                row = json.loads(line, object_pairs_hook=partial(_object, wanted))
            else:
                row = json.loads(line)
            yield number, _field(row, str(corpus.src)), _field(row, str(corpus.tgt))
        except (ValueError, RecursionError, LookupError) as error:
            reading.refuse(RowError(f"{path}:{number}", number, _fault(line, error)))


def _fault(line: str, error: Exception) -> str:
    """Return what is wrong with a line of JSON."""
    match error:
        case LookupError():
            return str(error.args[0])
        case RecursionError():
            return "not JSON: nested too deep; fix or remove the line"
        case json.JSONDecodeError() if is_blank(line):
            return "blank; remove the line"
        case json.JSONDecodeError():
            what = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
            return f"not JSON: {what}; write one JSON object per line"
    return "not JSON: a number has too many digits"


def _object(wanted: set[Any], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raises `LookupError` if a wanted field occurs twice, since programs
    differ in which of the two they use.
    """
    counts = Counter(name for name, _ in pairs if name in wanted)
    for name, count in counts.items():
        if count > 1:
            raise LookupError(f"the field {name} occurs twice; remove one")
    return dict(pairs)


def _field(row: Any, name: str) -> Any:
    """Return a field of an object by a name or a dotted path such as `translation.en`; raises
    `LookupError`.
    """
    if isinstance(row, dict) and name in row:
        return row[name]
    for part in name.split("."):
        if not isinstance(row, dict):
            raise LookupError(f"no field {name}; the value is not an object")
        if part not in row:
            raise LookupError(f"no field {name}; it has {join_names(_paths(row))}")
        row = row[part]
    return row


def _paths(row: dict[str, Any]) -> Iterator[str]:
    """Yield the names of an object's fields; for a field that is an object, dotted names of its
    fields.
    """
    for name, value in row.items():
        inner = value if isinstance(value, dict) else {}
        yield from (f"{name}.{part}" for part in inner) if inner else (name,)


def _rows_of_batches(
    batches: Iterable[dict[str, list[Any]]], corpus: FileCorpus | HubCorpus, name: str
) -> Iterator[Row]:
    number = 0
    for batch in batches:
        sides = (_column(batch, str(column), name) for column in (corpus.src, corpus.tgt))
        for src, tgt in zip(*sides, strict=True):
            number += 1
            yield number, src, tgt


def _column(batch: dict[str, list[Any]], path: str, name: str) -> list[Any]:
    """Return a column of a batch by a name or a dotted path such as `translation.en`."""
    if path in batch:
        return batch[path]
    column, _, rest = path.partition(".")
    try:
        values = _field(batch, column)
        return [None if value is None else _field(value, rest) for value in values]
    except LookupError as error:
        raise UserError(f"{name}: {path}: {error.args[0]}") from None


def _read_parquet(corpus: FileCorpus, path: Path, reading: Reading) -> Iterator[Row]:
    names = sorted({str(corpus.src), str(corpus.tgt)})
    return _rows_of_batches(parquet_batches(path, names), corpus, str(path))


def _count_parquet(corpus: FileCorpus, path: Path, reading: Reading, lines: int) -> int:
    return int(open_parquet(path).metadata.num_rows)


# --- Hugging Face datasets ----------------------------------------------------------------------


def _dataset_batches(corpus: HubCorpus, root: Path, name: str) -> Iterator[dict[str, list[Any]]]:
    with _loading(name):
        dataset, batch_size = _load_dataset(corpus, root), ROWS
        if not corpus.streaming:
            rows = BATCH_BYTES * dataset.num_rows // max(1, dataset.data.nbytes)
            batch_size = min(ROWS, 1 + rows)
        yield from dataset.iter(batch_size=batch_size)


def _load_dataset(corpus: HubCorpus, root: Path) -> Any:
    import datasets  # slow to import; only `dataset:` entries need it

    datasets.disable_progress_bars()
    for library in ("datasets", "huggingface_hub"):  # their warnings quote the card
        logging.getLogger(library).setLevel(logging.ERROR)
    load = _load_directory if (root / corpus.dataset).is_dir() else _load_from_hub
    return load(corpus, root, {"split": corpus.split, "streaming": corpus.streaming})


def _load_directory(corpus: HubCorpus, root: Path, options: dict[str, Any]) -> Any:
    """Load a local folder of files of one kind."""
    from datasets import load_dataset

    name = corpus.dataset
    reader, files = _reader_and_files((root / name / (corpus.name or "")).absolute())
    if reader != "csv":
        return load_dataset(reader, data_files=files, **options)
    options |= _local_csv_options(chain.from_iterable(files.values()))
    dataset = load_dataset(reader, data_files=files, **options)
    # a streamed dataset has no column names until a row is read
    if _ROW_NAMES in (dataset.column_names or next(iter(dataset.take(1)), {})):
        raise UserError(f"dataset {name}: a row has more cells than the header; {_QUOTE}")
    return dataset


def _load_from_hub(corpus: HubCorpus, root: Path, options: dict[str, Any]) -> Any:
    """Load a dataset from the hub; refuse files of unknown kinds and files from elsewhere."""
    from datasets import load_dataset, load_dataset_builder

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
    builder = load_dataset_builder(name, corpus.name)
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
    options |= _csv_options(corpus) if "csv" in readers else {}
    return load_dataset(name, corpus.name, **options)


def _csv_options(corpus: HubCorpus) -> dict[str, Any]:
    """Return options that make the CSV reader keep text as it is; by default it reads 007 as a
    number and None as null.
    """
    columns = [corpus.src, corpus.tgt]
    return {"converters": dict.fromkeys(columns, str), "keep_default_na": False, "usecols": columns}


def _local_csv_options(files: Iterable[str]) -> dict[str, Any]:
    """Return the same options for files on disk, without `usecols`: with it, the reader drops the
    end of a row that has too many cells, such as text with a comma and no quotes.
    """
    import pandas

    headers = (pandas.read_csv(file, nrows=0, encoding_errors="replace") for file in files)
    columns = set(chain.from_iterable(header.columns for header in headers))
    return {"converters": dict.fromkeys(sorted(columns), str), "keep_default_na": False}


def _reader_and_files(directory: Path) -> tuple[str, dict[str, list[str]]]:
    """Return the reader for the files of a local dataset, and the files of each split. The card of
    the dataset is not read: it may name any file or address.
    """
    import datasets

    files = datasets.load_dataset_builder("text", data_dir=str(directory)).config.data_files
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
    from pandas.errors import ParserError

    # errors of a malformed dataset card
    card_errors = (AttributeError, LookupError, TypeError, ValueError)
    try:
        yield
    except (*card_errors, OSError, RuntimeError, ImportError, DatasetsError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        advice = ""
        if isinstance(cause, OSError) and cause.errno in _UNWRITABLE:
            advice = "; if that is the cache of datasets, set HF_HOME to another directory"
        elif isinstance(cause, ParserError):
            advice = f"; {_QUOTE}"
        raise UserError(f"{name}: cannot load: {first_line(cause)}{advice}") from None


FORMATS = {
    "tsv": Format(_read_tsv, _count_tsv),
    "jsonl": Format(_read_json_lines),
    "parquet": Format(_read_parquet, _count_parquet, before_number=": row "),
    "tmx": Format(read_tmx, count_tmx, before_number=": unit "),
}
