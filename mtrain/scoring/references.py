"""Files of translations, references and sources that must match line for line."""

from collections import Counter
from pathlib import Path

from mtrain.corpus.lines import decode_lines, read_text_file, scored_lines
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import warn_of_counts


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
    warn_of_counts(counts)
    for reference in references[:1]:
        check_equal(path, len(lines), "the reference", len(reference))
    return lines


def check_equal(name: object, lines: int, other: object, others: int) -> None:
    """Raise `UserError` unless two texts with these names have the same number of lines."""
    if lines != others:
        counts = f"{name} has {lines} lines but {other} has {others}"
        raise UserError(f"{counts}: they must match line for line")
