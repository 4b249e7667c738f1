"""Parquet files, read in bounded memory: a few bytes may decompress to gigabytes of text.

The sizes of columns in the footer may be wrong. Therefore the header of each page is read first: it
has the page's size and shows whether rows share texts. A header is a struct of parquet.thrift in
Thrift's compact protocol.
"""

import mmap
import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from mtrain.corpus.lines import join_names
from mtrain.runtime.errors import UserError

ROWS = 1000  # read at a time
MAX_GROUP_BYTES = 1 << 30  # bytes of the columns of a row group
PAGE_BYTES = 1 << 28  # bytes of a column that are read at a time, where rows share texts

_DELTA_BYTE_ARRAY = 7  # encoding in which a text shares its beginning with the text before it
# Types of fields, and bytes of a boolean (none: its value is in the type), a byte and a double.
_INTEGERS = (4, 5, 6)
_BINARY, _STRUCT = 8, 12
_SIZES = {1: 0, 2: 0, 3: 1, 7: 8}


def read_number(data: mmap.mmap | BytesIO) -> int:
    """Read an unsigned number: 7 bits in each byte; the last byte is below 128. Raises `IndexError`
    at the end of the data, `RecursionError` for a number that is far too long.
    """
    value = data.read(1)[0]
    return value if value < 128 else value - 128 + 128 * read_number(data)


def _signed(data: mmap.mmap) -> int:
    """Read a signed number of 32 bits, encoded as 0, -1, 1, -2, ...; raises `LookupError` for more
    bits, which other readers truncate.
    """
    number = read_number(data)
    if number >> 32:
        raise LookupError
    return number >> 1 ^ -(number & 1)


def _struct(data: mmap.mmap) -> dict[int, Any]:
    """Read the fields of a struct by their numbers: integers and structs, or None for other types.
    Raises `LookupError` if it is invalid, `ValueError` at the end of the file.
    """
    fields = dict[int, Any]()
    number = 0
    while head := data.read_byte():
        step, kind = head >> 4, head & 15
        number = number + step if step else _signed(data)
        if not 0 < number < 100 or number in fields:  # readers treat such fields differently
            raise LookupError
        fields[number] = None
        if kind in _INTEGERS:
            fields[number] = _signed(data)
        elif kind == _STRUCT:
            fields[number] = _struct(data)
        else:  # page headers have no lists, sets and maps
            size = read_number(data) if kind == _BINARY else _SIZES[kind]
            data.seek(size, os.SEEK_CUR)
    return fields


def open_parquet(path: Path) -> Any:
    """Open a Parquet file; raises `UserError`."""
    import pyarrow.parquet  # slow to import; only Parquet files need it

    try:
        # pre_buffer would keep everything that has been read in memory
        return pyarrow.parquet.ParquetFile(path, pre_buffer=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot read: {error}; check the file") from None


def parquet_batches(path: Path, names: list[str]) -> Iterator[dict[str, list[Any]]]:
    """Yield batches of rows of text columns; raises `UserError`."""
    file = open_parquet(path)
    import pyarrow

    columns = [file.schema.column(index).path for index in range(len(file.schema))]
    if missing := [name for name in names if name not in columns]:
        raise UserError(f"{path}: no text column {missing[0]}; it has {join_names(columns)}")
    if repeated := [name for name in names if columns.count(name) > 1]:
        raise UserError(f"{path}: two columns {repeated[0]}; rename one of them")
    rows_read = 0
    try:
        for group in range(file.num_row_groups):
            chunks = [file.metadata.row_group(group).column(columns.index(name)) for name in names]
            batch_size = _rows_at_once(path, group, chunks)
            for batch in file.iter_batches(batch_size, row_groups=[group], columns=names):
                yield batch.to_pydict()
                rows_read += batch.num_rows
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise UserError(
            f"{path}: cannot read after row {rows_read}: {error}; write the file again"
        ) from None


def _rows_at_once(path: Path, group: int, chunks: list[Any]) -> int:
    """Return how many rows of a row group to read at a time: fewer if rows may share the texts of a
    large page. Raises `UserError` if the row group takes too much memory.
    """
    size = 0
    largest_shared = 1
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for chunk in chunks:
            for page_size, is_shared in _pages(data, chunk):
                size += page_size
                if is_shared:
                    largest_shared = max(largest_shared, page_size)
    if size > MAX_GROUP_BYTES:
        text = f"{path}: row group {group} holds {size / (1 << 30):.1f} GiB of text, over the limit"
        raise UserError(f"{text} of 1 GiB; write the file with smaller row groups")
    return max(1, min(ROWS, PAGE_BYTES // largest_shared))


def _pages(data: mmap.mmap, chunk: Any) -> Iterator[tuple[int, bool]]:
    """Yield the decompressed size in bytes of each page of a column in a row group, and whether
    several rows may share its texts.
    """
    starts = (chunk.dictionary_page_offset or 0, chunk.data_page_offset)
    data.seek(min((start for start in starts if start > 0), default=0))
    end = data.tell() + chunk.total_compressed_size
    while data.tell() < end:
        # 2, 3: size decompressed, compressed; 5, 8: data page of version 1, 2; 7: dictionary page
        try:
            header = _struct(data)
            encodings = header.get(5, {}).get(2), header.get(8, {}).get(4)
            if min(header[2], header[3]) < 0:
                raise LookupError
            data.seek(header[3], os.SEEK_CUR)
        except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError):
            raise ValueError("the header of a page is damaged") from None
        yield header[2], 7 in header or _DELTA_BYTE_ARRAY in encodings
