"""Pairs from tables: TSV, JSON lines and Parquet files, translation memories, and datasets of
Hugging Face.

Rows are counted from 1, as the lines of their file where it has lines.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mtrain.config import FileCorpus, HubCorpus
from mtrain.errors import RowError, UserError
from mtrain.text import NOT_UTF8, Reading, decode, read_file, scan_file, size_of
from mtrain.tmx import count_units, read_tmx

_READERS = "datasets.packaged_modules"
TEXT_READERS = {"parquet", "json", "csv", "arrow", "text", "cache"}  # of the library datasets
ROWS = 1000  # read at a time
LARGEST_BATCH = 1 << 30  # bytes of a Parquet row group, or of so many rows of a dataset

Row = tuple[int, Any, Any]  # its number, and what should be its source and target
TextRow = tuple[int, str, str]


def scan_table(corpus: FileCorpus, reading: Reading) -> tuple[int, str]:
    """Count the rows of a table, and hash its content with what is read of it."""
    path = reading.root / corpus.file
    lines, content = scan_file(path, reading.check)
    rows = lines
    if corpus.kind == "parquet":
        rows = _open_parquet(path).metadata.num_rows
    elif corpus.kind == "tsv" and isinstance(corpus.src, str):
        rows = max(0, lines - 1)
    elif corpus.kind == "tmx":
        rows = count_units(path, str(corpus.src), str(corpus.tgt), reading.check)
    columns = json.dumps([corpus.src, corpus.tgt]).encode()
    return rows, hashlib.sha256(content + columns).hexdigest()


def read_table(corpus: FileCorpus, reading: Reading) -> Iterator[TextRow]:
    """Yield the pairs of a file, numbered; raises `RowError` for one that is not two texts."""
    path = reading.root / corpus.file
    if corpus.kind == "tmx":
        return read_tmx(path, str(corpus.src), str(corpus.tgt), reading)
    read = {"tsv": _read_tsv, "jsonl": _read_json_lines, "parquet": _read_parquet}[corpus.kind]
    return _texts(read(corpus, path, reading), corpus, str(path), reading)


def read_dataset(corpus: HubCorpus, reading: Reading) -> Iterator[TextRow]:
    """Yield the pairs of a Hugging Face dataset, local folders included, numbered; raises
    `UserError`.
    """
    name = f"dataset {dataset_name(corpus)}"
    rows = _rows_of_batches(_dataset_batches(corpus, reading.root, name), corpus, name)
    return _texts(rows, corpus, name, reading)


def dataset_files(corpus: HubCorpus, root: Path) -> list[Path]:
    """Name the files of the copy that is kept of a dataset; none if it is streamed."""
    if corpus.streaming:
        return []
    with _telling(f"dataset {dataset_name(corpus)}"):
        return [Path(file["filename"]) for file in _load_dataset(corpus, root).cache_files]


def dataset_name(corpus: HubCorpus) -> str:
    """Name a dataset as its config entry does."""
    return " ".join(filter(None, (corpus.dataset, corpus.name, corpus.split)))


def _texts(
    rows: Iterable[Row], corpus: FileCorpus | HubCorpus, name: str, reading: Reading
) -> Iterator[TextRow]:
    """Pass on what is two texts."""
    for number, src, tgt in rows:
        place = f"{name}: row {number}"
        columns = ((corpus.src, src), (corpus.tgt, tgt))
        other = next((column for column, value in columns if not isinstance(value, str)), None)
        if other is not None:
            reading.refuse(RowError(place, number, f"{other} is not text"))
        elif reading.drops(place, number, max(size_of(src), size_of(tgt))):
            continue
        elif _is_unicode(src) and _is_unicode(tgt):
            yield number, src, tgt
        else:
            reading.counts[NOT_UTF8] += 1
            if reading.invalid_utf8 == "error":
                reason = (
                    "holds half of a surrogate pair; mend the row, or set "
                    "data.invalid_utf8: drop to leave such pairs out"
                )
                reading.refuse(RowError(place, number, reason, is_encoding=True))


def _is_unicode(text: str) -> bool:
    """Tell whether a text has a form in UTF-8: JSON can spell what has none."""
    try:
        return text.isascii() or bool(text.encode("utf-8"))
    except UnicodeEncodeError:
        return False


def _decoded_lines(path: Path, reading: Reading) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(read_file(path, reading.counts), 1):
        if reading.drops(f"{path}:{number}", number, len(line)):
            continue
        text = decode(path, number, line, reading)
        if text is None:
            reading.counts[NOT_UTF8] += 1
        else:
            yield number, text


def _read_tsv(corpus: FileCorpus, path: Path, reading: Reading) -> Iterator[Row]:
    """Columns by number, from 0; or by the names that the first line gives them."""
    lines = _decoded_lines(path, reading)
    places = [corpus.src, corpus.tgt]
    if isinstance(corpus.src, str):
        number, first = next(lines, (1, ""))
        header = first.split("\t") if number == 1 else []  # a first line that is not UTF-8 is none
        for name in places:
            if header.count(str(name)) > 1:
                raise UserError(f"{path}:1: two columns have the name {name}; rename one of them")
            if name not in header:
                raise UserError(
                    f"{path}:1: no column {name}; it has {_listed(header)}. Columns without "
                    "names are given by number, from 0"
                )
        places = [header.index(str(name)) for name in places]
    src, tgt = (int(place) for place in places)
    for number, line in lines:
        cells = line.split("\t")
        if max(src, tgt) < len(cells):
            yield number, cells[src], cells[tgt]
            continue
        reason = f"no column {max(src, tgt)}, counted from 0, among {len(cells)}"
        reading.refuse(RowError(f"{path}:{number}", number, reason))


def _read_json_lines(corpus: FileCorpus, path: Path, reading: Reading) -> Iterator[Row]:
    for number, line in _decoded_lines(path, reading):
        try:
            row = json.loads(line)
            _check_names(line, corpus)
            src, tgt = (_field(row, str(name)) for name in (corpus.src, corpus.tgt))
        except (ValueError, RecursionError, LookupError) as error:
            reason = {RecursionError: "not JSON: nested too deep", LookupError: str(error.args[0])}
            text = reason.get(type(error), f"not JSON: {error}")
            reading.refuse(RowError(f"{path}:{number}", number, text))
            continue
        yield number, src, tgt


def _check_names(line: str, corpus: FileCorpus) -> None:
    """Raise `LookupError` where an object holds a wanted name twice: readers differ in which of
    them they take.
    """
    wanted = {part for name in (corpus.src, corpus.tgt) for part in (name, *str(name).split("."))}
    if all(line.count(json.dumps(name)) < 2 for name in wanted) and "\\u" not in line:
        return

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs if name in wanted]
        if len(set(names)) < len(names):
            raise LookupError(f"the field {max(names, key=names.count)} stands there twice")
        return dict(pairs)

    json.loads(line, object_pairs_hook=check)


def _field(row: Any, name: str) -> Any:
    """Reach into an object by a name, or a dotted one such as `translation.en`; raises
    `LookupError`.
    """
    if isinstance(row, dict) and name in row:
        return row[name]
    for part in name.split("."):
        if not isinstance(row, dict):
            raise LookupError(f"no field {name}; it is no object")
        if part not in row:
            raise LookupError(f"no field {name}; it has {_listed(row)}")
        row = row[part]
    return row


def _listed(names: Iterable[str]) -> str:
    """Name what there is, if not too much."""
    text = ", ".join(names)
    return (text if len(text) <= 200 else f"{text[:200]} ...") or "none"


def _open_parquet(path: Path) -> Any:
    import pyarrow.parquet  # slow to import, and needed by Parquet files alone

    try:
        # buffered ahead, all that has been read would stay in memory
        return pyarrow.parquet.ParquetFile(path, pre_buffer=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot read: {error}") from None


def _read_parquet(corpus: FileCorpus, path: Path, reading: Reading) -> Iterator[Row]:
    return _rows_of_batches(_parquet_batches(corpus, path), corpus, str(path))


def _parquet_batches(corpus: FileCorpus, path: Path) -> Iterator[dict[str, list[Any]]]:
    file = _open_parquet(path)
    import pyarrow

    names = {str(name) for name in (corpus.src, corpus.tgt)}
    wanted = names | {name.split(".")[0] for name in names}
    known = [name for name in file.schema_arrow.names if name in wanted]
    _check_row_groups(path, file.metadata, wanted)
    number = 0
    try:
        for batch in file.iter_batches(ROWS, columns=known or None):
            yield batch.to_pydict()
            number += batch.num_rows
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: cannot read: behind row {number}: {error}") from None


def _check_row_groups(path: Path, metadata: Any, wanted: set[str]) -> None:
    """Refuse row groups that take too much memory, by what the file says of itself."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = (group.column(place) for place in range(group.num_columns))
        size = sum(
            column.total_uncompressed_size
            for column in columns
            if column.path_in_schema.split(".")[0] in wanted
        )
        if size > LARGEST_BATCH:
            raise UserError(
                f"{path}: row group {number} holds {size / (1 << 30):.1f} GiB of text, and more "
                "than 1 GiB is not read at once; write it anew with smaller row groups"
            )


def _dataset_batches(corpus: HubCorpus, root: Path, name: str) -> Iterator[dict[str, list[Any]]]:
    with _telling(name):
        found = _load_dataset(corpus, root)
        if not corpus.streaming and found.num_rows:
            size = found.data.nbytes / found.num_rows * ROWS
            if size > LARGEST_BATCH:
                raise UserError(
                    f"{name}: {ROWS} rows hold {size / (1 << 30):.1f} GiB, and more than 1 GiB is "
                    "not read at once"
                )
        yield from found.iter(batch_size=ROWS)


def _load_dataset(corpus: HubCorpus, root: Path) -> Any:
    import datasets  # slow to import, and needed by `dataset:` entries alone

    datasets.disable_progress_bars()
    local, name = root / corpus.dataset, corpus.dataset
    source = str(local) if local.is_dir() else name
    if source == name and name.isidentifier() and find_spec(f"{_READERS}.{name}"):
        raise UserError(
            f"dataset {name}: is a reader of the library datasets, which would look for files in "
            "the working directory; name a dataset of the hub or a local folder"
        )
    parents = type(datasets.load_dataset_builder(source, corpus.name)).__mro__
    readers = {parent.__module__.removeprefix(f"{_READERS}.").split(".")[0] for parent in parents}
    if not readers & TEXT_READERS:
        raise UserError(
            f"dataset {name}: its files are read as Parquet, JSON, CSV, Arrow or plain text alone"
        )
    return datasets.load_dataset(
        source, corpus.name, split=corpus.split, streaming=corpus.streaming
    )


@contextmanager
def _telling(name: str) -> Iterator[None]:
    """Turn errors of the library into one for people."""
    import datasets

    try:
        yield
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{name}: cannot load: {reason[0]}") from None


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
    """Reach into a batch of rows by a name, or a dotted one such as `translation.en`."""
    if path in batch:
        return batch[path]
    column, *rest = path.split(".")
    if column not in batch:
        raise UserError(f"{name}: no column {path}; it has {_listed(batch)}")
    values = batch[column]
    for part in rest:
        known = next((value for value in values if value is not None), {part: None})
        if not isinstance(known, dict) or part not in known:
            has = _listed(known) if isinstance(known, dict) else "none"
            raise UserError(f"{name}: no field {part} in {path}; it has {has}")
        values = [value[part] if value is not None else None for value in values]
    return values
