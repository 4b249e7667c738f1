r"""Readers from corpora to pairs of strings, and the one line discipline for all text.

Bytes are split on `\n` alone: Python's text files and `str.splitlines` split on ten characters
(U+2028, form feed, a lone carriage return, ...) and would let the two sides slip out of step.
"""

import gzip
import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, cast

from mtrain import phrasebook
from mtrain.config import Corpus, GeneratedCorpus, HubCorpus, TextCorpus
from mtrain.errors import UserError

Pair = tuple[str, str]

DROPPED = "pairs dropped: "  # how counts of pairs that are left out begin

_BOM = b"\xef\xbb\xbf"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Scan:
    """What a first pass over a corpus found: its number of pairs and the SHA-256 of its text."""

    pairs: int
    sha256: str


@dataclass
class Reading:
    """Options of reading, counts of what was changed or dropped on the way, and what to call now
    and then: it may raise to end a long read.
    """

    root: Path = field(default_factory=Path)
    invalid_utf8: str = "error"
    keep_blank: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    check: Callable[[], None] = lambda: None


def describe(corpus: Corpus) -> str:
    """Name a corpus as its config entry does."""
    if isinstance(corpus, TextCorpus):
        return f"{corpus.src} + {corpus.tgt}"
    if isinstance(corpus, GeneratedCorpus):
        return f"{corpus.generated} {corpus.split} ({corpus.pairs} pairs)"
    return " ".join(filter(None, (corpus.dataset, corpus.name, corpus.split)))


def is_blank(text: str) -> bool:
    """Tell whether a line holds nothing but white space."""
    return not text or text.isspace()


def open_bytes(path: Path) -> IO[bytes]:
    """Open a plain or .gz file for reading; raises `UserError`."""
    try:
        if path.suffix == ".gz":
            return cast(IO[bytes], gzip.open(path, "rb"))
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror or error}") from None


def read_lines(stream: Iterable[bytes], counts: Counter[str] | None = None) -> Iterator[bytes]:
    r"""Yield the lines of a binary stream without `\n`, a BOM at the start, or one `\r` before
    `\n`.
    """
    for number, line in enumerate(stream):
        if number == 0 and line.startswith(_BOM):
            line = line[len(_BOM) :]
        if line.endswith(b"\r\n"):
            if counts is not None:
                counts["carriage returns removed"] += 1
            yield line[:-2]
        else:
            yield line.removesuffix(b"\n")


def read_file(path: Path, counts: Counter[str] | None = None) -> Iterator[bytes]:
    """Yield the lines of a file; raises `UserError` where it cannot be read or is damaged."""
    with open_bytes(path) as stream:
        try:
            yield from read_lines(stream, counts)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path}: cannot read: {error}") from None


def read_text_file(path: Path, counts: Counter[str] | None = None) -> list[str]:
    """Read a whole file of evaluation size as UTF-8 lines; raises `UserError` with the line that is
    not.
    """
    lines = []
    for number, line in enumerate(read_file(path, counts), 1):
        try:
            lines.append(line.decode("utf-8"))
        except UnicodeDecodeError:
            raise UserError(f"{path}:{number}: not valid UTF-8; mend or remove the line") from None
    return lines


def scan(corpus: Corpus, reading: Reading) -> Scan:
    """Count the pairs of a corpus and hash its text; raises `UserError` if its sides differ in
    length.
    """
    if isinstance(corpus, TextCorpus):
        src, tgt = reading.root / corpus.src, reading.root / corpus.tgt
        return _scan_files(src, tgt, reading.check)
    digest, count = hashlib.sha256(), 0
    for pair in read_pairs(corpus, Reading(reading.root, "error", keep_blank=True)):
        reading.check()
        for text in pair:
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        count += 1
    return Scan(count, digest.hexdigest())


def read_pairs(corpus: Corpus, reading: Reading) -> Iterator[Pair]:
    """Yield the pairs of a corpus in order; what is dropped is counted in `reading.counts`."""
    if isinstance(corpus, TextCorpus):
        pairs = _read_files(reading.root / corpus.src, reading.root / corpus.tgt, reading)
    elif isinstance(corpus, GeneratedCorpus):
        pairs = _generate(corpus)
    else:
        pairs = _read_dataset(corpus, reading.root)
    for src, tgt in pairs:
        if not reading.keep_blank and (is_blank(src) or is_blank(tgt)):
            reading.counts[DROPPED + "blank on a side"] += 1
        else:
            yield src, tgt


def _scan_files(src: Path, tgt: Path, check: Callable[[], None]) -> Scan:
    (src_lines, src_hash), (tgt_lines, tgt_hash) = _scan_file(src, check), _scan_file(tgt, check)
    if src_lines != tgt_lines:
        raise UserError(
            f"{src} has {src_lines} lines but {tgt} has {tgt_lines}: "
            "the sides of a corpus must match line for line"
        )
    return Scan(src_lines, hashlib.sha256(src_hash + tgt_hash).hexdigest())


def _scan_file(path: Path, check: Callable[[], None]) -> tuple[int, bytes]:
    """Return the number of lines and the SHA-256 of a file's decompressed bytes."""
    if path.exists() and not path.is_file():
        raise UserError(
            f"{path}: not a regular file; a corpus is read more than once, which no pipe can be"
        )
    digest, lines, last = hashlib.sha256(), 0, b""
    with open_bytes(path) as stream:
        try:
            while block := stream.read(_BLOCK):
                check()
                digest.update(block)
                lines += block.count(b"\n")
                last = block
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path}: cannot read: {error}") from None
    return lines + (bool(last) and not last.endswith(b"\n")), digest.digest()


def _read_files(src: Path, tgt: Path, reading: Reading) -> Iterator[Pair]:
    sides = zip_longest(read_file(src, reading.counts), read_file(tgt, reading.counts))
    for number, (src_line, tgt_line) in enumerate(sides, 1):
        if src_line is None or tgt_line is None:
            short = src if src_line is None else tgt
            raise UserError(f"{short}: ends at line {number - 1}, before the other side does")
        src_text = _decode(src, number, src_line, reading)
        tgt_text = _decode(tgt, number, tgt_line, reading)
        if src_text is None or tgt_text is None:
            reading.counts[DROPPED + "not valid UTF-8"] += 1
        else:
            yield src_text, tgt_text


def _decode(path: Path, number: int, line: bytes, reading: Reading) -> str | None:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        if reading.invalid_utf8 == "drop":
            return None
        raise UserError(
            f"{path}:{number}: not valid UTF-8 (byte {error.start + 1} of the line); mend "
            "the line, or set data.invalid_utf8: drop to leave such pairs out"
        ) from None


def _generate(corpus: GeneratedCorpus) -> Iterator[Pair]:
    try:
        return phrasebook.pairs(corpus.split, corpus.pairs)
    except ValueError as error:
        raise UserError(f"{describe(corpus)}: {error}") from None


def _read_dataset(corpus: HubCorpus, root: Path) -> Iterator[Pair]:
    """Yield the pairs of a Hugging Face dataset, local folders included."""
    rows = _load_dataset(corpus, root)
    number = 0
    for batch in rows.iter(batch_size=1000):
        sides = zip(
            _column(batch, corpus.src, corpus), _column(batch, corpus.tgt, corpus), strict=True
        )
        for src, tgt in sides:
            number += 1
            if not isinstance(src, str) or not isinstance(tgt, str):
                bad = corpus.src if not isinstance(src, str) else corpus.tgt
                raise UserError(f"{describe(corpus)}: row {number}: {bad} is not text")
            yield src, tgt


def _load_dataset(corpus: HubCorpus, root: Path) -> Any:
    import datasets  # slow to import, and needed by `dataset:` entries alone

    datasets.disable_progress_bars()
    local = root / corpus.dataset
    source = str(local) if local.is_dir() else corpus.dataset
    try:
        return datasets.load_dataset(source, corpus.name, split=corpus.split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"dataset {describe(corpus)}: cannot load: {reason[0]}") from None


def _column(batch: dict[str, list[Any]], path: str, corpus: HubCorpus) -> list[Any]:
    """Reach into a batch of rows by a dotted path such as `translation.en`."""
    name, *rest = path.split(".")
    if name not in batch:
        raise UserError(f"dataset {describe(corpus)}: no column {path}; it has {', '.join(batch)}")
    values = batch[name]
    for part in rest:
        known = next((value for value in values if isinstance(value, dict)), {})
        if part not in known:
            raise UserError(
                f"dataset {describe(corpus)}: no field {part} in {path}; it has {', '.join(known)}"
            )
        values = [value[part] if value is not None else None for value in values]
    return values
