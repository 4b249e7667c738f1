"""Pairs from tables: TSV, JSON lines and Parquet files, translation memories, and datasets of
Hugging Face.

Rows are counted from 1, as the lines of their file where it has lines.
"""

import hashlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from mtrain.config.schema import FileCorpus, HubCorpus
from mtrain.corpus.lines import (
    LONGEST_LINE,
    NOT_UTF8,
    Reading,
    decode,
    read_file,
    scan_file,
    size_of,
)
from mtrain.corpus.tmx import count_units, read_tmx
from mtrain.runtime.errors import RowError, UserError, first_line

_READERS = "datasets.packaged_modules"
TEXT_READERS = {"parquet", "json", "csv", "arrow", "text", "cache"}  # of the library datasets
ROWS = 1000  # read at a time
LARGEST_BATCH = 1 << 30  # bytes of a Parquet row group, or of a batch of a dataset
LARGEST_READ = 1 << 27  # bytes of rows read from a Parquet file at a time, about
LARGEST_CARD, MOST_OF_CARD = 1 << 24, 500_000  # bytes of a dataset's card, values in it

Row = tuple[int, Any, Any]  # number, source and target, not yet checked
TextRow = tuple[int, str, str]


def scan_table(corpus: FileCorpus, reading: Reading) -> tuple[int, str]:
    """Return the number of rows of a table, and the hash of its content with the columns read."""
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
    """Yield the numbered pairs of a file; raises `RowError` for a row that is not two texts."""
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
    """Yield only rows that are two texts."""
    for number, src, tgt in rows:
        if not (isinstance(src, str) and isinstance(tgt, str)):
            other = corpus.tgt if isinstance(src, str) else corpus.src
            reading.refuse(RowError(f"{name}: row {number}", number, f"{other} is not text"))
        elif size_of(src) > LONGEST_LINE or size_of(tgt) > LONGEST_LINE:
            reading.drop_long(f"{name}: row {number}", number)
        elif _is_unicode(src) and _is_unicode(tgt):
            yield number, src, tgt
        else:
            reading.counts[NOT_UTF8] += 1
            if reading.invalid_utf8 == "error":
                reason = (
                    "holds half of a surrogate pair; fix the row, or set "
                    "data.invalid_utf8: drop to leave such pairs out"
                )
                place = f"{name}: row {number}"
                reading.refuse(RowError(place, number, reason, is_encoding=True))


def _is_unicode(text: str) -> bool:
    """Whether a text can be encoded as UTF-8: JSON can spell lone surrogates."""
    try:
        return text.isascii() or bool(text.encode("utf-8"))
    except UnicodeEncodeError:
        return False


def _decoded_lines(path: Path, reading: Reading) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(read_file(path, reading.counts), 1):
        if len(line) > LONGEST_LINE:
            reading.drop_long(f"{path}:{number}", number)
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
                raise UserError(f"{path}:1: two columns are named {name}; rename one of them")
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
    wanted = {part for name in (corpus.src, corpus.tgt) for part in (name, *str(name).split("."))}
    quoted = [json.dumps(name, ensure_ascii=False) for name in wanted]
    # another spelling of a name
    escaped = re.compile(r"\\(?:u00[2-7]|/)" if all(map(str.isascii, quoted)) else r"\\u")
    for number, line in _decoded_lines(path, reading):
        try:
            row = json.loads(line)
            if escaped.search(line) or any(line.count(name) > 1 for name in quoted):
                _check_names(line, wanted)
            src, tgt = (_field(row, str(name)) for name in (corpus.src, corpus.tgt))
        except (ValueError, RecursionError, LookupError) as error:
            reason = {RecursionError: "not JSON: nested too deep", LookupError: str(error.args[0])}
            text = reason.get(type(error), f"not JSON: {error}")
            reading.refuse(RowError(f"{path}:{number}", number, text))
            continue
        yield number, src, tgt


def _check_names(line: str, wanted: set[Any]) -> None:
    """Raise `LookupError` if an object holds a wanted name twice: readers differ in which they
    use.
    """

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = Counter(name for name, _ in pairs if name in wanted)
        for name, count in names.most_common(1):
            if count > 1:
                raise LookupError(f"the field {name} occurs twice")
        return dict(pairs)

    json.loads(line, object_pairs_hook=check)


def _field(row: Any, name: str) -> Any:
    """Return a field of an object by a name or a dotted path such as `translation.en`; raises
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
    """Return a short list of existing names."""
    text = ", ".join(names)
    return (text if len(text) <= 200 else f"{text[:200]} ...") or "none"


def _open_parquet(path: Path, dictionaries: Iterable[str] = ()) -> Any:
    """Open a Parquet file; the text columns `dictionaries` are read as numbers of their values."""
    import pyarrow.parquet  # slow to import; only Parquet files need it

    try:
        # buffered ahead, all that has been read would stay in memory
        return pyarrow.parquet.ParquetFile(
            path, pre_buffer=False, read_dictionary=list(dictionaries)
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot read: {error}") from None


def _read_parquet(corpus: FileCorpus, path: Path, reading: Reading) -> Iterator[Row]:
    return _rows_of_batches(_parquet_batches(corpus, path), corpus, str(path))


def _parquet_batches(corpus: FileCorpus, path: Path) -> Iterator[dict[str, list[Any]]]:
    file = _open_parquet(path)
    import pyarrow

    known = [file.schema.column(place).path for place in range(len(file.schema))]
    names = sorted({str(corpus.src), str(corpus.tgt)})
    for name in names:
        if name not in known:
            raise UserError(f"{path}: no text column {name}; it has {_listed(known)}")
    number = 0
    try:
        for group in range(file.num_row_groups):
            rows = _rows_at_once(path, file, group, {name: known.index(name) for name in names})
            for batch in file.iter_batches(rows, row_groups=[group], columns=names):
                yield batch.to_pydict()
                number += batch.num_rows
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: cannot read after row {number}: {error}") from None


def _rows_at_once(path: Path, file: Any, group: int, columns: dict[str, int]) -> int:
    """Return how many rows of a row group to read at a time: fewer if few bytes of the file may
    stand for long texts. Raises `UserError` if the row group itself takes too much memory.
    """
    chunks = {name: file.metadata.row_group(group).column(at) for name, at in columns.items()}
    size = sum(chunk.total_uncompressed_size for chunk in chunks.values())
    if size > LARGEST_BATCH:
        raise UserError(
            f"{path}: row group {group} holds {size / (1 << 30):.1f} GiB of text, and more "
            "than 1 GiB is not read at once; write it anew with smaller row groups"
        )
    longest = 1
    for name, chunk in chunks.items():
        if "DELTA_BYTE_ARRAY" in chunk.encodings:  # texts that share a prefix with the previous one
            longest = max(longest, chunk.total_uncompressed_size)
        elif any("DICTIONARY" in encoding for encoding in chunk.encodings):
            longest = max(longest, _longest_of_dictionary(path, group, name))
    return max(1, min(ROWS, LARGEST_READ // longest))


def _longest_of_dictionary(path: Path, group: int, name: str) -> int:
    """Return the bytes of the longest text that a row group has numbers for."""
    import pyarrow
    from pyarrow import compute

    file = _open_parquet(path, [name])
    batch = next(file.iter_batches(1, row_groups=[group], columns=[name]), None)
    found = None if batch is None else batch.column(0)
    while found is not None and pyarrow.types.is_struct(found.type):
        found = found.field(0)
    if found is None or not pyarrow.types.is_dictionary(found.type):
        return 0
    return compute.max(compute.binary_length(found.dictionary)).as_py() or 0


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
    import datasets  # slow to import; only `dataset:` entries need it

    datasets.disable_progress_bars()
    for library in ("datasets", "huggingface_hub"):  # whose warnings quote the card
        logging.getLogger(library).setLevel(logging.ERROR)
    name, folder = corpus.dataset, (root / corpus.dataset).absolute()
    is_local = folder.is_dir()
    if is_local:
        _check_card(folder)
    elif name.isidentifier() and find_spec(f"{_READERS}.{name}"):
        raise UserError(
            f"dataset {name}: is a reader of the library datasets, which would look for files in "
            "the working directory; name a dataset of the hub or a local folder"
        )
    source = str(folder) if is_local else name  # whole, since `csv` would be a reader, not a folder
    builder = datasets.load_dataset_builder(source, corpus.name)
    _check_files(name, builder.config.data_files, str(folder) if is_local else "hf://")
    parents = type(builder).__mro__
    readers = {parent.__module__.removeprefix(f"{_READERS}.").split(".")[0] for parent in parents}
    if not readers & TEXT_READERS:
        raise UserError(
            f"dataset {name}: its files must be Parquet, JSON, CSV, Arrow or plain text"
        )
    return datasets.load_dataset(
        source, corpus.name, split=corpus.split, streaming=corpus.streaming
    )


def _check_card(folder: Path) -> None:
    """Refuse a folder whose dataset card names files by URL: what the config calls local must not
    reach the network. Raises `ValueError` for a card that cannot be read.
    """
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    card: dict[str, Any] = {}
    if (folder / "README.md").is_file():
        block = REGEX_YAML_BLOCK.search(_text_of_card(folder / "README.md"))
        card |= _parse_card(block[2]) if block else {}
    if (folder / ".huggingface.yaml").is_file():
        card |= _parse_card(_text_of_card(folder / ".huggingface.yaml"))
    if any(sign in text for text in _texts_in(card.get("configs")) for sign in ("://", "::")):
        raise UserError(
            f"dataset {folder}: its card names files by an address; a local folder holds its files"
        )


def _text_of_card(path: Path) -> str:
    with path.open("rb") as stream:
        data = stream.read(LARGEST_CARD + 1)
    if len(data) > LARGEST_CARD:
        raise ValueError(f"{path.name} is larger than {LARGEST_CARD >> 20} MiB")
    return data.decode("utf-8")


def _parse_card(text: str) -> dict[str, Any]:
    """Parse a card's YAML; raises `ValueError` if it is invalid, or huge once its aliases are
    resolved, which a few lines can make it.
    """
    import yaml

    try:
        left = [yaml.compose(text, Loader=yaml.BaseLoader)]
        for _ in range(MOST_OF_CARD):
            if not left:
                break
            node = left.pop()
            if isinstance(node, yaml.SequenceNode):
                left += node.value
            elif isinstance(node, yaml.MappingNode):
                left += chain.from_iterable(node.value)
        if left:
            raise ValueError(f"its card holds more than {MOST_OF_CARD:,} values")
        card = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"its card is not valid YAML: {first_line(error)}") from None
    if not isinstance(card, dict | None):
        raise ValueError("its card is not a mapping")
    return card or {}


def _texts_in(value: Any) -> Iterator[str]:
    """Yield all texts in a card's value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(part)


def _check_files(name: str, found: dict[str, list[str]] | None, place: str) -> None:
    """Refuse files of a dataset that lie elsewhere than it does: its card may name any."""
    inside = place if "://" in place else f"{os.path.realpath(place)}/"
    for file in (file for files in (found or {}).values() for file in files):
        if not (file if "://" in file else os.path.normpath(file)).startswith(inside):
            raise UserError(f"dataset {name}: its card names {file}, which is outside of it")


@contextmanager
def _telling(name: str) -> Iterator[None]:
    """Turn errors of the library into `UserError`; an odd dataset card raises any of these."""
    from datasets.exceptions import DatasetsError

    of_cards = (AttributeError, LookupError, TypeError, ValueError)
    try:
        yield
    except (*of_cards, OSError, RuntimeError, ImportError, DatasetsError) as error:
        raise UserError(f"{name}: cannot load: {first_line(error)}") from None


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
