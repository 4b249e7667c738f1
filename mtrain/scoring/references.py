"""Files of translations, references and sources that must match line for line."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from mtrain.corpus.lines import read_text_file, scored_lines
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import logger


def read_references(paths: list[Path]) -> list[list[str]]:
    """Read reference files of the same length; raises `UserError`."""
    first = read_aligned(paths[0], [])
    if not first:
        raise UserError(f"{paths[0]}: holds no lines")
    return [first] + [read_aligned(path, [first]) for path in paths[1:]]


def read_aligned(path: Path, references: list[list[str]]) -> list[str]:
    """Read a file that must match references line for line; raises `UserError` with both counts."""
    counts: Counter[str] = Counter()
    return _checked(path, read_text_file(path, counts), counts, references)


def read_source(path: Path, references: list[list[str]]) -> list[str]:
    """Read text to translate, as tolerantly as `mtrain translate` does."""
    counts: Counter[str] = Counter()
    lines = list(decode_lines(scored_lines(path, counts), counts))
    return _checked(path, lines, counts, references)


def _checked(
    path: Path, lines: list[str], counts: Counter[str], references: list[list[str]]
) -> list[str]:
    warn_of(counts)
    for reference in references[:1]:
        check_equal(path, len(lines), "the reference", len(reference))
    return lines


def check_equal(name: object, lines: int, other: object, others: int) -> None:
    """Raise `UserError` unless two texts with these names have the same number of lines."""
    if lines != others:
        counts = f"{name} has {lines} lines but {other} has {others}"
        raise UserError(f"{counts}: they must match line for line")


def decode_lines(lines: Iterable[bytes], counts: Counter[str]) -> Iterator[str]:
    """Decode lines of any bytes; invalid UTF-8 is replaced by U+FFFD and counted."""
    for line in lines:
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError:
            counts["lines invalid UTF-8, read with U+FFFD"] += 1
            yield line.decode("utf-8", "replace")


def warn_of(counts: Counter[str]) -> None:
    """Log problems of the input, with counts."""
    for reason, count in counts.items():
        logger.warning("%s: %s", reason, f"{count:,}")
