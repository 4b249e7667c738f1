"""Files of translations, references and sources that must match line for line."""

from collections import Counter
from pathlib import Path

from mtrain.corpus.lines import decode_lines, read_text_file, scored_lines
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import warn_of_counts


def read_references(paths: list[Path]) -> list[list[str]]:
    """Read reference files of the same length; raises `UserError`."""
    reference = read_aligned(paths[0], [])
    if not reference:
        raise UserError(f"{paths[0]}: holds no lines")
    return [reference] + [read_aligned(path, [reference]) for path in paths[1:]]


def read_aligned(path: Path, references: list[list[str]]) -> list[str]:
    """Read a file; raises `UserError` unless it matches the references line for line."""
    counts: Counter[str] = Counter()
    return _checked(path, read_text_file(path, counts), counts, references)


def read_source(path: Path, references: list[list[str]]) -> list[str]:
    """Read text to translate, with invalid UTF-8 replaced as in `mtrain translate`; raises
    `UserError` unless it matches the references line for line.
    """
    counts: Counter[str] = Counter()
    lines = list(decode_lines(scored_lines(path, counts), counts))
    return _checked(path, lines, counts, references)


def _checked(
    path: Path, lines: list[str], counts: Counter[str], references: list[list[str]]
) -> list[str]:
    warn_of_counts(counts)
    if references:
        check_same_length(path, len(lines), "the reference", len(references[0]))
    return lines


def check_same_length(name: object, lines: int, other_name: object, other_lines: int) -> None:
    """Raise `UserError` unless two texts have the same number of lines."""
    if lines != other_lines:
        counts = f"{name} has {lines} lines but {other_name} has {other_lines}"
        raise UserError(f"{counts}; they must match line for line")
