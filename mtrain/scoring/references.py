"""Read files of translations, references and sources, which must match line for line."""

from collections import Counter
from pathlib import Path

from mtrain.corpus.language_identification import MOST_SWAPPED, swapped_fraction
from mtrain.corpus.lines import decode_lines, is_blank, read_text_file, scored_lines
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import logger, warn_of_counts


def read_references(paths: list[Path]) -> list[list[str]]:
    """Read reference files of the same length; raises `UserError`, also if all lines are blank."""
    references = list[list[str]]()
    for path in paths:
        references.append(read_aligned(path, references, paths[0]))
        if all(map(is_blank, references[-1])):
            what = "all lines are blank" if references[-1] else "holds no lines"
            raise UserError(f"{path}: {what}; give a file of reference translations")
    return references


def read_aligned(path: Path, references: list[list[str]], name: Path) -> list[str]:
    """Read a file; raises `UserError` unless it matches the references line for line; `name` is
    that of the first one.
    """
    counts: Counter[str] = Counter()
    lines = read_text_file(path, counts)
    warn_of_counts(counts)
    if references:
        check_same_length(path, len(lines), name, len(references[0]))
    return lines


def read_source(
    path: Path, references: list[list[str]], name: Path | str = "the reference"
) -> list[str]:
    """Read text to translate, with invalid UTF-8 replaced as in `mtrain translate`; raises
    `UserError` unless it matches the references line for line; `name` is that of the first one.
    Warn if a reference is a copy of the text.
    """
    counts: Counter[str] = Counter()
    lines = list(decode_lines(scored_lines(path, counts), counts))
    warn_of_counts(counts)
    for reference in references:
        check_same_length(path, len(lines), name, len(reference))
        pairs = [(src.strip(), ref.strip()) for src, ref in zip(lines, reference, strict=True)]
        filled = [pair for pair in pairs if any(pair)]
        if 2 * sum(src == ref for src, ref in filled) > len(filled):
            text = "%s: most lines are the same in the source and the reference; is one a copy?"
            logger.warning(text, path)
    return lines


def warn_of_swapped(
    sources: list[str],
    references: list[list[str]],
    directions: list[tuple[str, str]],
    other_advice: str,
) -> bool:
    """Warn if, for each of a model's directions, most sources look like the target language and
    most references like the source language; return whether this is so.
    """
    is_swapped = all(
        any(swapped_fraction(sources, each, src, tgt) > MOST_SWAPPED for each in references)
        for src, tgt in directions
    )
    if is_swapped:
        src, tgt = directions[0]
        logger.warning(
            "most sources look like the target language (%s), most references like the source "
            "language (%s), so the scores mean nothing; exchange the source and the reference%s",
            tgt,
            src,
            other_advice,
        )
    return is_swapped


def check_same_length(name: object, lines: int, other_name: object, other_lines: int) -> None:
    """Raise `UserError` unless two texts have the same number of lines."""
    if lines != other_lines:
        counts = f"{name} has {lines} lines but {other_name} has {other_lines}"
        raise UserError(f"{counts}; they must match line for line")
