"""Read pairs from files with a column for each side.

`FORMATS` has an entry for each file format; a new format needs a reader, and its suffix in
`config.corpora`. Rows are numbered from 1; in a file of lines, a row has the number of its line.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mtrain.config.corpora import FileCorpus, HubCorpus
from mtrain.config.languages import NAMES, language_code, language_error
from mtrain.corpus.lines import (
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
from mtrain.corpus.parquet import open_parquet, parquet_batches
from mtrain.corpus.tmx import count_tmx, read_tmx
from mtrain.runtime.errors import UserError, is_utf8

OTHER_COLUMNS = "rows with more or fewer columns than the first (is a tab part of a text?)"
HEADER = (
    "a first row that looks like names of columns, and is one of the pairs (to leave it out, "
    "remove it, or give the columns by name: src: {}, tgt: {})"
)
# Names of columns, in addition to language codes.
_NAMES = {"source", "src", "target", "tgt", "text", "sentence", "segment", "original"}
_NAMES |= {"translation", "reference", "input", "output", *(n.lower() for n in NAMES.values())}

Row = tuple[int, Any, Any]  # number, and source and target, which need not be texts
TextRow = tuple[int, str, str]


@dataclass(frozen=True)
class Format:
    """Functions for a file format: `read` yields the rows. `count` returns their number, given the
    number of lines; None: each line is a row. `unit` is what the number of a row counts.
    """

    read: Callable[[FileCorpus, Path, Reading], Iterator[Row]]
    count: Callable[[FileCorpus, Path, Reading, int], int] | None = None
    unit: str = "line"


def scan_table(corpus: FileCorpus, reading: Reading) -> tuple[int, str]:
    """Return the number of rows of a table, and the hash of its content with the columns read."""
    path = reading.root / corpus.file
    form = FORMATS[corpus.kind]
    # only a table of lines is UTF-8: XML declares its encoding, and Parquet is binary
    lines, content = scan_file(path, reading.check_stop, is_utf8=form.unit == "line")
    columns = json.dumps([corpus.src, corpus.tgt]).encode()
    rows = form.count(corpus, path, reading, lines) if form.count else lines
    return rows, hashlib.sha256(content + columns).hexdigest()


def read_table(corpus: FileCorpus, reading: Reading) -> Iterator[TextRow]:
    """Yield the numbered pairs of a file; raises `RowError` for a row that is not two texts."""
    path = reading.root / corpus.file
    form = FORMATS[corpus.kind]
    rows = form.read(corpus, path, reading)
    place = f"{path}:" if form.unit == "line" else f"{path}: {form.unit} "
    return texts_of(rows, corpus, place, reading)


def texts_of(
    rows: Iterable[Row], corpus: FileCorpus | HubCorpus, place: str, reading: Reading
) -> Iterator[TextRow]:
    """Yield the rows that are two texts, and drop or refuse others; errors name `place` and row."""
    for number, src, tgt in rows:
        if not (isinstance(src, str) and isinstance(tgt, str)):
            name, value = (corpus.tgt, tgt) if isinstance(src, str) else (corpus.src, src)
            kind = "null" if value is None else f"of the type {type(value).__name__}"
            reason = f"{name} is {kind}, not text; fix or remove the row"
            reading.refuse(RowError(place, number, reason))
        elif is_too_long(src) or is_too_long(tgt):
            reading.drop_long(place, number)
        elif is_utf8(src) and is_utf8(tgt):
            yield number, src, tgt
        else:
            reason = "holds half of a surrogate pair; fix the row"
            reading.drop_invalid(place, number, reason)


def _decoded_lines(path: Path, reading: Reading) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(read_file(path, reading.counts), 1):
        text = decode_line(path, number, line, reading)
        if text is not None:
            yield number, text


def _read_tsv(corpus: FileCorpus, path: Path, reading: Reading) -> Iterator[Row]:
    """Yield rows by column numbers, from 0, or by the names in the first line."""
    lines = _decoded_lines(path, reading)
    src, tgt = corpus.src, corpus.tgt
    header = list[str]()
    if isinstance(src, str) or isinstance(tgt, str):
        number, first = next(lines, (1, ""))
        if number > 1:  # `lines` drops lines that are not UTF-8
            raise UserError(f"{path}:1: the names of the columns are not UTF-8; convert the file")
        header = first.split("\t")
        src, tgt = (_column_index(str(name), header, path) for name in (src, tgt))
    least = max(src, tgt) + 1  # columns of a row
    columns = len(header)  # of the first row
    first_odd = 0  # line with another number of columns
    for number, line in lines:
        cells = line.split("\t")
        if len(cells) < least or 0 < len(header) < len(cells):
            reason = _column_fault(line, cells, header, least, corpus)
            reading.refuse(RowError(f"{path}:", number, reason))
            continue
        columns = columns or len(cells)
        if len(cells) != columns:
            first_odd = first_odd or number
            reading.counts[f"{OTHER_COLUMNS}, from line {first_odd} on"] += 1
        elif number == 1 and _is_name(cells[src]) and _is_name(cells[tgt]):
            reading.counts[HEADER.format(_name(cells[src]), _name(cells[tgt]))] += 1
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


def _is_name(cell: str) -> bool:
    """Whether a cell looks like the name of a column."""
    name = _name(cell)
    is_code = language_error(name) is None and language_code(name) in NAMES
    return is_code or name.lower() in _NAMES


def _name(cell: str) -> str:
    """Return the name in a cell of the header, without spaces around it and quotes of CSV."""
    name = cell.strip()
    return name[1:-1].strip() if is_quoted_cell(name) else name


def _column_index(name: str, header: list[str], path: Path) -> int:
    """Return the index of a named column; raises `UserError` for none or two."""
    names, wanted = list(map(_name, header)), _name(name)
    if names.count(wanted) == 1:
        return names.index(wanted)
    fault = "two columns" if wanted in names else "no column"
    raise UserError(
        f"{path}:1: {fault} {name}; it has {join_names(header)}. If the columns have no names, "
        "give their numbers, from 0"
    )


def _count_tsv(corpus: FileCorpus, path: Path, reading: Reading, lines: int) -> int:
    header_lines = 1 if isinstance(corpus.src, str) else 0
    return max(0, lines - header_lines)


def _read_json_lines(corpus: FileCorpus, path: Path, reading: Reading) -> Iterator[Row]:
    wanted = set[str]()
    for name in (str(corpus.src), str(corpus.tgt)):
        wanted |= {name, *name.split(".")}
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
            reading.refuse(RowError(f"{path}:", number, _fault(line, error)))


def _fault(line: str, error: Exception) -> str:
    """Return what is wrong with a line of JSON."""
    if isinstance(error, LookupError):
        return str(error.args[0])
    if is_blank(line):
        return "blank; remove the line"
    what = "values are nested too deep, or a number has too many digits"
    if isinstance(error, json.JSONDecodeError):
        what = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
    return f"not JSON: {what}; write one JSON object per line"


def _object(wanted: set[str], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
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


def rows_of_batches(
    batches: Iterable[dict[str, list[Any]]], corpus: FileCorpus | HubCorpus, name: str
) -> Iterator[Row]:
    """Yield the numbered rows of batches of columns; `name` is that of the file or dataset."""
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
        if column not in batch:  # the error names the fields of the first objects, too
            _field({key: next(filter(None, each), None) for key, each in batch.items()}, path)
        values = batch[column]
        return [None if value is None else _field(value, rest) for value in values]
    except LookupError as error:
        raise UserError(f"{name}: {path}: {error.args[0]}") from None


def _read_parquet(corpus: FileCorpus, path: Path, reading: Reading) -> Iterator[Row]:
    names = sorted({str(corpus.src), str(corpus.tgt)})
    return rows_of_batches(parquet_batches(path, names), corpus, str(path))


def _count_parquet(corpus: FileCorpus, path: Path, reading: Reading, lines: int) -> int:
    return int(open_parquet(path).metadata.num_rows)


FORMATS = {
    "tsv": Format(_read_tsv, _count_tsv),
    "jsonl": Format(_read_json_lines),
    "parquet": Format(_read_parquet, _count_parquet, "row"),
    "tmx": Format(read_tmx, count_tmx, "unit"),
}
