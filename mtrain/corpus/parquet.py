"""Parquet files, read in bounded memory: a few bytes of one may stand for gigabytes of text.

The footer says how large the pages of a column are, but the pages decide. So the header of each is
read first: its sizes, and whether rows share its texts. A header is a struct of parquet.thrift in
Thrift's compact protocol.
"""

import mmap
import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from mtrain.corpus.lines import listed
from mtrain.runtime.errors import UserError

ROWS = 1000  # read at a time
MAX_GROUP_BYTES = 1 << 30  # bytes of the columns of a row group
PAGE_BYTES = 1 << 28  # bytes of a column that are read at a time, where rows share texts

_DELTA_BYTE_ARRAY = 7  # an encoding of texts that begin as the one before does


def read_number(data: mmap.mmap | BytesIO) -> int:
    """Read an unsigned number: 7 bits in each byte, the last byte is below 128. Raises `IndexError`
    at the end of the data, `RecursionError` for a number that is far too long.
    """
    value = data.read(1)[0]
    return value if value < 128 else value - 128 + 128 * read_number(data)


def _signed(data: mmap.mmap) -> int:
    """Read a signed number of 32 bits: 0, -1, 1, -2, ...; raises `LookupError` for a larger one, of
    which other readers keep 32 bits.
    """
    number = read_number(data)
    if number >> 32:
        raise LookupError
    return number >> 1 ^ -(number & 1)


def _struct(data: mmap.mmap) -> dict[int, Any]:
    """Read the fields of a struct by their numbers: integers and structs; others are None. Raises
    `LookupError`, or `ValueError` at the end of the file.
    """
    fields, field = dict[int, Any](), 0
    while head := data.read_byte():
        field = field + (head >> 4) if head >> 4 else _signed(data)
        kind = head & 15
        if not kind or not 0 < field < 100 or field in fields:  # readers differ in these
            raise LookupError
        fields[field] = None
        if kind in (4, 5, 6):
            fields[field] = _signed(data)
        elif kind == 12:
            fields[field] = _struct(data)
        elif kind > 2:  # booleans have no bytes; page headers have no lists, sets and maps
            data.seek({3: 1, 7: 8, 8: 0}[kind] or read_number(data), os.SEEK_CUR)
    return fields


def open_parquet(path: Path) -> Any:
    """Open a Parquet file; raises `UserError`."""
    import pyarrow.parquet  # slow to import; only Parquet files need it

    try:
        # buffered ahead, all that has been read would stay in memory
        return pyarrow.parquet.ParquetFile(path, pre_buffer=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot read: {error}") from None


def parquet_batches(path: Path, names: list[str]) -> Iterator[dict[str, list[Any]]]:
    """Yield some rows of text columns at a time; raises `UserError`."""
    file = open_parquet(path)
    import pyarrow

    known = [file.schema.column(place).path for place in range(len(file.schema))]
    if missing := [name for name in names if name not in known]:
        raise UserError(f"{path}: no text column {missing[0]}; it has {listed(known)}")
    if repeated := [name for name in names if known.count(name) > 1]:
        raise UserError(f"{path}: two columns {repeated[0]}; rename one of them")
    number = 0
    try:
        for group in range(file.num_row_groups):
            chunks = [file.metadata.row_group(group).column(known.index(name)) for name in names]
            rows = _rows_at_once(path, group, chunks)
            for batch in file.iter_batches(rows, row_groups=[group], columns=names):
                yield batch.to_pydict()
                number += batch.num_rows
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: cannot read after row {number}: {error}") from None


def _rows_at_once(path: Path, group: int, chunks: list[Any]) -> int:
    """Return how many rows of a row group to read at a time: fewer if one page may hold long texts
    that rows share. Raises `UserError` if the row group takes too much memory.
    """
    size, longest = 0, 1
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for chunk in chunks:
            for length, is_shared in _pages(data, chunk):
                size += length
                longest = max(longest, length if is_shared else 1)
    if size > MAX_GROUP_BYTES:
        text = f"{path}: row group {group} holds {size / (1 << 30):.1f} GiB of text, and more than "
        raise UserError(f"{text}1 GiB is not read at once; write it with smaller row groups")
    return max(1, min(ROWS, PAGE_BYTES // longest))


def _pages(data: mmap.mmap, chunk: Any) -> Iterator[tuple[int, bool]]:
    """Yield the bytes of each page of a column in a row group, once it is decompressed, and whether
    it holds texts for more than one row.
    """
    starts = (chunk.dictionary_page_offset or 0, chunk.data_page_offset)
    data.seek(min((start for start in starts if start > 0), default=0))
    end = data.tell() + chunk.total_compressed_size
    while data.tell() < end:
        # fields: 2 and 3 are the sizes, 7 is of a dictionary, 5 and 8 are of two kinds of data
        try:
            header = _struct(data)
            encoding = header.get(5, {}).get(2), header.get(8, {}).get(4)
            if min(header[2], header[3]) < 0:
                raise LookupError
            data.seek(header[3], os.SEEK_CUR)
        except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError):
            raise ValueError("the header of a page is damaged") from None
        yield header[2], 7 in header or _DELTA_BYTE_ARRAY in encoding
