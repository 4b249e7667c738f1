r"""Text files, and the rule for lines in all of them: bytes are split at `\n` only.

Python's text files and `str.splitlines` split at ten characters (U+2028, form feed, a lone carriage
return, ...), which would shift the two sides against each other.
"""

import codecs
import gzip
import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar, cast

from mtrain.runtime.errors import UserError, reason_not_opened

DROPPED = "pairs dropped: "  # prefix of the counts of pairs that are left out
CARRIAGE_RETURNS = "carriage returns removed"
NOT_UTF8 = DROPPED + "invalid UTF-8"
BLANK = DROPPED + "blank on a side"
# Maximum length in bytes of a line, cell, field or segment; a longer one is not a sentence. The
# excess is not read into memory; the pair is dropped, or refused in a scored set.
MAX_LINE_LENGTH = 1 << 20
CHARACTERS_PER_TOKEN = 64  # at most, in ordinary text; more if a vocabulary has a longer piece
MAX_TEXT_LENGTH = MAX_LINE_LENGTH // 4  # characters of a line that a model or a vocabulary gets
MAX_SET_BYTES = 1 << 30  # bytes of a scored set, which is held in memory
LINE_OVERHEAD = 100  # bytes that each line adds to the size of a set
TOO_LONG = f"longer than {MAX_LINE_LENGTH:,} bytes"

PACKED = (".gz", ".zst")  # suffixes of text files that are unpacked as they are read
_ENCODING = "{}, not UTF-8; convert the file: iconv -f {} -t UTF-8"
_CONVERT = "convert the file if it has another encoding (iconv -f ENCODING -t UTF-8)"
# Escape sequences that switch from ASCII to the letters of a 7-bit encoding.
_ESCAPES = {b"\x1b$B": "ISO-2022-JP", b"\x1b$@": "ISO-2022-JP", b"\x1b$)C": "ISO-2022-KR"}
# First bytes of files that are not UTF-8 text, and what the error says.
_OTHER_FORMATS = {
    # before UTF-16, whose first bytes may be the same
    codecs.BOM_UTF32_LE: _ENCODING.format("UTF-32", "UTF-32"),
    codecs.BOM_UTF32_BE: _ENCODING.format("UTF-32", "UTF-32"),
    codecs.BOM_UTF16_LE: _ENCODING.format("UTF-16", "UTF-16"),
    codecs.BOM_UTF16_BE: _ENCODING.format("UTF-16", "UTF-16"),
    b"\x1f\x8b": "looks like gzip; unpack it, or give the file a name that ends in .gz",
    b"\x28\xb5\x2f\xfd": "looks like zstd; unpack it, or give the file a name that ends in .zst",
    b"\xfd7zXZ\0": "looks like xz; unpack it, or pack it with gzip or zstd",
    b"BZh91AY&SY": "looks like bzip2; unpack it, or pack it with gzip or zstd",
    b"PK\3\4": "looks like a ZIP archive; unpack it",
    # with the first byte of a page's header: a text may begin with PAR1, the name of a receptor
    b"PAR1\x15": "looks like Parquet, not text; name the file of a corpus .parquet",
    b"version https://git-lfs": "is a pointer of Git LFS, not the text; fetch it: git lfs pull",
}
# UTF-8 bytes of characters that are not ASCII.
_CONTINUATION_BYTES, _LEADING_BYTES = bytes(range(0x80, 0xC0)), bytes(range(0xC0, 0x100))
_BLOCK = 1 << 20
_MANY_RETURNS = 10  # times as many carriage returns as newlines show that they end the lines

Row = TypeVar("Row", bound=tuple[Any, ...])  # its last two values are the texts of a pair
MAX_CHUNK_LENGTH = 1 << 22  # characters


class RowError(UserError):
    """A line or row of a corpus that is not text on both sides: its number after its `place`, such
    as `train.de:`. `kind` is "encoding" if it is not valid UTF-8 or holds half a surrogate pair,
    "long" if it is too long, or else "row".
    """

    def __init__(self, place: str, number: int, reason: str, kind: str = "row") -> None:
        super().__init__(f"{place}{number}: {reason}")
        self.place, self.number = place, number
        self.reason, self.kind = reason, kind


def _refuse(error: RowError) -> NoReturn:
    raise error


@dataclass
class Reading:
    """Options and results of reading."""

    root: Path = field(default_factory=Path)
    invalid_utf8: str = "error"
    keep_blank: bool = False  # keep blank pairs and refuse long ones: for a scored set
    counts: Counter[str] = field(default_factory=Counter)  # changed texts and dropped pairs
    check_stop: Callable[[], None] = lambda: None  # called regularly; may raise to stop a long read
    refuse: Callable[[RowError], None] = _refuse  # called with a bad row; skip it by returning

    def count_dropped(self, reason: str) -> None:
        """Count a dropped pair; since it is not yielded, hear a request to stop here."""
        self.counts[reason] += 1
        self.check_stop()

    def drop_long(self, place: str, number: int) -> None:
        """Count a line or text longer than `MAX_LINE_LENGTH`, which is dropped, or refuse it."""
        if self.keep_blank:
            self.refuse(RowError(place, number, f"{TOO_LONG}; cut or remove it", "long"))
        else:
            self.count_dropped(DROPPED + TOO_LONG)

    def drop_invalid(self, place: str, number: int, reason: str) -> None:
        """Count a line or row that is not UTF-8, which is dropped, or refuse it for the reason."""
        self.count_dropped(NOT_UTF8)
        if self.invalid_utf8 == "error":
            reason += ", or set data.invalid_utf8: drop to leave such pairs out"
            self.refuse(RowError(place, number, reason, "encoding"))


def is_blank(text: str) -> bool:
    """Whether a line holds only white space."""
    return not text or text.isspace()


def evenly_spaced(items: list[int], max_items: int) -> list[int]:
    """Return at most `max_items` items of a list, evenly spaced, with the first and the last."""
    if len(items) <= max_items:
        return items
    return [items[i * (len(items) - 1) // (max_items - 1)] for i in range(max_items)]


def medium_line_indices(lines: list[str], max_lines: int) -> list[int]:
    """Return indices of at most `max_lines` lines, evenly spaced in the middle half by length."""
    order = sorted((len(line), i) for i, line in enumerate(lines) if not is_blank(line))
    middle = order[len(order) // 4 : max(1, 3 * len(order) // 4)]
    return evenly_spaced(sorted(i for _, i in middle), max_lines)


def chunked(
    rows: Iterable[Row], count: int, characters: int = MAX_CHUNK_LENGTH
) -> Iterator[list[Row]]:
    """Yield rows in lists of `count`, or fewer if they are long: to bound memory, a list ends with
    the row that brings it to this number of characters.
    """
    chunk = list[Row]()
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row[-2]) + len(row[-1])
        if len(chunk) == count or size >= characters:
            yield chunk
            chunk = []
            size = 0
    if chunk:
        yield chunk


def join_names(names: Iterable[str]) -> str:
    """Join names for a message, cut to 200 characters; "none" if there are none."""
    text = ", ".join(names)
    if not text:
        return "none"
    return text if len(text) <= 200 else f"{text[:200]} ..."


def is_too_long(text: str) -> bool:
    """Whether a text has more than `MAX_LINE_LENGTH` bytes."""
    # most texts need not be encoded: a character has at most 4 bytes
    return len(text) > MAX_TEXT_LENGTH and len(text.encode("utf-8", "replace")) > MAX_LINE_LENGTH


def shorten_text(text: str, max_length: int) -> str:
    """Cut a text to `max_length` characters, at a space if there is one near the end."""
    if len(text) <= max_length:
        return text
    space = text.rfind(" ", max_length * 3 // 4, max_length)
    return text[: space if space > 0 else max_length]


def open_bytes(path: Path) -> IO[bytes]:
    """Open a plain, .gz or .zst file for reading; raises `UserError`."""
    try:
        if path.suffix in PACKED and path.is_file() and not path.stat().st_size:
            raise UserError(f"{path}: cannot read: it is empty, not packed text; fetch it again")
        if path.suffix == ".gz":
            return cast(IO[bytes], gzip.open(path, "rb"))
        if path.suffix == ".zst":
            import pyarrow  # not needed by other files

            packed = pyarrow.CompressedInputStream(path.open("rb"), "zstd")
            return cast(IO[bytes], BufferedReader(packed, _BLOCK))
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: cannot read: {reason_not_opened(path, error)}") from None


@contextmanager
def reading_from(name: Path | str) -> Iterator[None]:
    """Turn errors of reading an open file, such as damaged compression, into `UserError`."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = str(getattr(error, "strerror", None) or error)  # without the number of the error
        advice = ""
        if str(name).endswith(PACKED):
            advice = (
                "; check that it is complete, and packed as its name says (zstd without --long)"
            )
        raise UserError(f"{name}: cannot read: {reason}{advice}") from None


def strip_line_ends(lines: Iterable[bytes], counts: Counter[str] | None = None) -> Iterator[bytes]:
    r"""Yield lines without `\n`, without one `\r` before it, and without a BOM at the start."""
    for number, line in enumerate(lines):
        if number == 0:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.endswith(b"\r\n"):
            if counts is not None:
                counts[CARRIAGE_RETURNS] += 1
            yield line[:-2]
        else:
            yield line.removesuffix(b"\n")


def bounded_lines(stream: IO[bytes], name: object = None) -> Iterator[bytes]:
    r"""Yield the lines of a stream with their `\n`; a line of more than `MAX_LINE_LENGTH` bytes is
    cut a little above that, without `\n`. With a `name`, raises `UserError` for a file that is not
    plain UTF-8.
    """
    max_length = MAX_LINE_LENGTH + 8  # room for `\r\n` and for the last character
    read = cast(BufferedIOBase, stream).read1  # returns without waiting for a full block
    line = b""
    while block := read(_BLOCK):
        if name is not None:
            refuse_other_start(block, name)
            name = None
        rest, *next_lines = block.split(b"\n")
        if len(line) <= max_length:
            line += rest
        for next_line in next_lines:
            yield _cut_line(line + b"\n", max_length)
            line = next_line
    if line:
        yield _cut_line(line, max_length)


def _cut_line(line: bytes, max_length: int) -> bytes:
    """Cut a line to `max_length` bytes, without a last character that may be incomplete."""
    if len(line) <= max_length:
        return line
    line = line[:max_length]
    return line[:-4] + line[-4:].rstrip(_CONTINUATION_BYTES).rstrip(_LEADING_BYTES)


def read_file(path: Path, counts: Counter[str] | None = None) -> Iterator[bytes]:
    """Yield the lines of a file; raises `UserError` where it cannot be read or is damaged."""
    with open_bytes(path) as stream, reading_from(path):
        yield from strip_line_ends(bounded_lines(stream, path), counts)


def scored_lines(path: Path, counts: Counter[str] | None) -> Iterator[bytes]:
    """Yield the lines of a scored set; raises `UserError` if a line is too long, the set too large,
    or, at its end, if carriage returns alone end its lines.
    """
    size = number = returns = 0
    for number, line in enumerate(read_file(path, counts), 1):
        returns += line.count(b"\r")
        if len(line) > MAX_LINE_LENGTH:
            raise UserError(f"{path}:{number}: {TOO_LONG}; cut or remove the line")
        size = add_to_set_size(size, len(line), str(path))
        yield line
    _refuse_lone_returns(returns, number, path)


def add_to_set_size(size: int, line_bytes: int, name: str) -> int:
    """Return the size of a set with one more line; raises `UserError` if it is too large."""
    size += line_bytes + LINE_OVERHEAD
    if size > MAX_SET_BYTES:
        raise UserError(
            f"{name}: more than {MAX_SET_BYTES >> 30} GiB of text in a scored set, which is held "
            "in memory; use a part of it"
        )
    return size


def decode_lines(lines: Iterable[bytes], counts: Counter[str]) -> Iterator[str]:
    """Decode lines of any bytes; invalid UTF-8 is replaced by U+FFFD and counted."""
    for line in lines:
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError:
            counts["lines invalid UTF-8, read with U+FFFD"] += 1
            yield line.decode("utf-8", "replace")


def read_text_file(path: Path, counts: Counter[str] | None = None) -> list[str]:
    """Read the lines of a scored set; raises `UserError` with the first line that is not UTF-8."""
    lines = []
    for number, line in enumerate(scored_lines(path, counts), 1):
        try:
            lines.append(line.decode("utf-8"))
        except UnicodeDecodeError:
            raise UserError(f"{path}:{number}: invalid UTF-8; {_CONVERT}, fix the line") from None
    return lines


def require_regular(path: Path) -> None:
    """Raise `UserError` for a directory or a pipe in a corpus."""
    if path.is_dir():
        raise UserError(f"{path}: is a directory; name a file")
    if path.exists() and not path.is_file():
        raise UserError(
            f"{path}: not a regular file; name a file, since a corpus is read more than once"
        )


def refuse_other_start(start: bytes, name: object) -> None:
    """Raise `UserError` for the first bytes of a file that is not plain UTF-8."""
    for first_bytes, reason in _OTHER_FORMATS.items():
        if start.startswith(first_bytes):
            raise UserError(f"{name}: {reason}")
    for escape, encoding in _ESCAPES.items():
        if escape in start and start.isascii():
            raise UserError(f"{name}: {_ENCODING.format(encoding, encoding)}")
    for order in ("LE", "BE"):
        if _has_utf16_newlines(start, order):  # without a BOM
            raise UserError(f"{name}: {_ENCODING.format('UTF-16', f'UTF-16{order}')}")


def _has_utf16_newlines(start: bytes, order: str) -> bool:
    """Whether most newline bytes at the start of a file belong to newlines of UTF-16, in
    little-endian (LE) or big-endian (BE) order, and nearly all of those next to a NUL do.
    """
    newline = "\n".encode(f"utf-16-{order}")
    if newline not in start:
        return False
    text = start[: len(start) // 2 * 2].decode(f"utf-16-{order}", "ignore")
    count = text.count("\n")
    is_most = 2 * count > start.count(b"\n") and 10 * count >= 9 * start.count(newline)
    return count > 1 and is_most and "\0" not in text


def scan_file(
    path: Path, check_stop: Callable[[], None], *, is_utf8: bool = True
) -> tuple[int, bytes]:
    """Return the number of lines and the SHA-256 of a file's decompressed bytes. Raises `UserError`
    for a file that is not plain UTF-8, if `is_utf8`.
    """
    require_regular(path)
    digest = hashlib.sha256()
    lines = 0
    last = b""
    with open_bytes(path) as stream, reading_from(path):
        while block := stream.read(_BLOCK):
            check_stop()
            if is_utf8 and not last:
                refuse_other_start(block, path)
                _refuse_lone_returns(block.count(b"\r"), block.count(b"\n"), path)
            digest.update(block)
            lines += block.count(b"\n")
            last = block
    if last and not last.endswith(b"\n"):
        lines += 1
    return lines, digest.digest()


def _refuse_lone_returns(returns: int, newlines: int, path: Path) -> None:
    r"""Raise `UserError` if the lines of a text seem to end in `\r` alone."""
    if returns > _MANY_RETURNS * max(1, newlines):
        advice = r"convert it: tr '\r' '\n' < FILE > NEW"
        raise UserError(f"{path}: its lines end in carriage returns alone; {advice}")


def decode_line(path: Path, number: int, line: bytes, reading: Reading) -> str | None:
    """Decode line `number` of a corpus file; None if it is left out, as too long or not UTF-8."""
    if len(line) > MAX_LINE_LENGTH:
        reading.drop_long(f"{path}:", number)
        return None
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"invalid UTF-8 (byte {error.start + 1} of the line); {_CONVERT}, fix the line"
        reading.drop_invalid(f"{path}:", number, reason)
        return None
