"""Streams of lines through a model: one output line per input line, in order, in bounded memory."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat, zip_longest
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from mtrain.corpus.lines import (
    TOO_LONG,
    chunked,
    decode_lines,
    is_too_long,
    read_file,
    scan_file,
    strip_line_ends,
)
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import TruncatedLines, progress_bar, warn_of_counts
from mtrain.scoring.references import check_equal
from mtrain.translation.attention import align
from mtrain.translation.loading import LoadedModel
from mtrain.translation.scorer import Scorer
from mtrain.translation.translator import Translation, Translator

# Lines that are translated together, each with the prefix of its translation.
WINDOW = TypeAdapter(list[tuple[str, str]])


def translate_stream(
    translator: Translator,
    source: Iterable[bytes],
    sink: IO[bytes],
    *,
    lines: int | None = None,
    n_best: int | None = None,
    scores: bool = False,
    prefixes: Path | None = None,
    alignments: IO[bytes] | None = None,
    line_buffered: bool = False,
) -> None:
    """Translate every line of `source` to `sink`, in windows or one by one; rank 0 reads and
    writes. `lines` is their number, if that is known.

    `prefixes` has a prefix for each translation, line for line; word alignments go to `alignments`.
    """
    ranks, loaded = translator.ranks, translator.loaded
    counts: Counter[str] = Counter()
    most = loaded.most_characters(loaded.max_source_length)
    texts = _shortened(strip_line_ends(source, counts), counts, most)
    pairs = _with_prefixes(texts, prefixes, counts) if prefixes else zip(texts, repeat(""))
    windows = translator.in_windows(pairs, 1 if line_buffered else None)
    done, cut = 0, TruncatedLines()
    with progress_bar(lines, "line", "translating", shown=not line_buffered) as bar:
        while rows := ranks.from_rank_0(lambda: next(windows, []), WINDOW):
            some, begun = [line for line, _ in rows], [prefix for _, prefix in rows]
            results, places = translator.translate(
                some,
                bar.update,
                prefixes=begun if prefixes else None,
                first=done,
                scored=scores or n_best is not None,
            )
            cut.add(done + place for place in places)
            if ranks.is_rank_0:
                for index, hypotheses in enumerate(results, done):
                    sink.writelines(_format(index, hypotheses, n_best, scores))
                if alignments is not None:
                    links = align(loaded, some, [found[0].text for found in results])
                    alignments.writelines(line.encode() + b"\n" for line in links)
            if line_buffered:
                for stream in filter(None, (sink, alignments)):
                    stream.flush()
            done += len(some)
    warn_of_counts(counts)
    cut.warn(loaded.max_source_length)


def _shortened(lines: Iterable[bytes], counts: Counter[str], most: int) -> Iterator[str]:
    """Decode lines and cut those of more than `most` characters, but leave enough that the model's
    cut is noticed, so that a window of lines fits into memory.
    """
    return (line[: most + 1] for line in decode_lines(lines, counts))


def _with_prefixes(
    texts: Iterator[str], path: Path, counts: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Yield each line with its prefix; raises `UserError` if there are more prefixes, or fewer."""
    prefixes = decode_lines(read_file(path, counts), counts)
    for number, (text, prefix) in enumerate(zip_longest(texts, prefixes), 1):
        if text is None or prefix is None:
            raise UserError(
                f"--target-prefix: it has {'more' if text is None else 'fewer'} lines than the "
                f"text (after line {number - 1:,}); they must match line for line"
            )
        if is_too_long(prefix):
            raise UserError(f"{path}:{number}: {TOO_LONG}; shorten the prefix")
        yield text, prefix


def _format(
    index: int, hypotheses: list[Translation], n_best: int | None, scores: bool
) -> Iterator[bytes]:
    for each in hypotheses[: n_best or 1]:
        score = f"{each.score:.6f}\t" if scores or n_best is not None else ""
        number = f"{index}\t" if n_best is not None else ""
        yield f"{number}{score}{each.text}\n".encode()


def score_files(loaded: LoadedModel, source: Path, target: Path) -> Iterator[float]:
    """Yield the natural log-probability of each target line given its source line."""
    counts: Counter[str] = Counter()
    total = _count_equal(source, target, loaded.check_stop)
    limits = ((source, loaded.max_source_length), (target, loaded.max_target_length))
    sides = (
        _shortened(read_file(path, counts), counts, loaded.most_characters(tokens))
        for path, tokens in limits
    )
    scorer, cut, done = Scorer(loaded), (TruncatedLines(), TruncatedLines()), 0
    with progress_bar(total, "line", "scoring") as bar:
        for some in chunked(_aligned(source, target, *sides), loaded.decode.window):
            src, tgt = zip(*some, strict=True)
            values, places = scorer.score(list(src), list(tgt))
            for side in (0, 1):
                cut[side].add(done + place for place in places[side])
            yield from values
            done += len(values)
            bar.update(len(values))
    warn_of_counts(counts)
    cut[0].warn(loaded.max_source_length, str(source))
    cut[1].warn(loaded.max_target_length, str(target))


def _count_equal(source: Path, target: Path, check: Callable[[], None]) -> int | None:
    """Return the number of lines of both files, or None if one can be read only once, like a pipe;
    raises `UserError` if they differ.
    """
    if not (source.is_file() and target.is_file()):
        return None
    src, tgt = (scan_file(path, check)[0] for path in (source, target))
    check_equal(source, src, target, tgt)
    return src


def _aligned(
    source: Path, target: Path, src: Iterator[str], tgt: Iterator[str]
) -> Iterator[tuple[str, str]]:
    """Yield lines together; raises `UserError` at the end of the shorter of two pipes."""
    for number, (src_line, tgt_line) in enumerate(zip_longest(src, tgt)):
        if src_line is None or tgt_line is None:
            short = source if src_line is None else target
            raise UserError(f"{short}: ends after line {number:,}: they must match line for line")
        yield src_line, tgt_line
