"""Translate and score streams of lines in bounded memory; results have the order of the input."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat, zip_longest
from pathlib import Path
from typing import IO

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
from mtrain.scoring.references import check_same_length
from mtrain.translation.attention import align
from mtrain.translation.loading import LoadedModel
from mtrain.translation.scorer import Scorer
from mtrain.translation.translator import Translation, Translator, UnfinishedLines, at_limit

Window = list[tuple[str, str]]  # lines to translate together, each with its target prefix


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
    """Translate the lines of `source` to `sink`, in windows, or one by one if `line_buffered`. Only
    rank 0 reads and writes.

    `lines` is the number of lines, if known. `prefixes` is a file with a target prefix for each
    line. Word alignments are written to `alignments`.
    """
    ranks = translator.ranks
    loaded = translator.loaded
    counts: Counter[str] = Counter()
    max_characters = loaded.max_characters(loaded.max_source_length)
    texts = _shortened(strip_line_ends(source, counts), counts, max_characters)
    pairs = _with_prefixes(texts, prefixes, counts) if prefixes else zip(texts, repeat(""))
    windows = translator.in_windows(pairs, 1 if line_buffered else None)
    done = 0
    cut, cut_alignments, unfinished = TruncatedLines(), TruncatedLines(), UnfinishedLines()
    with progress_bar(lines, "line", "translating", shown=not line_buffered) as bar:
        while rows := ranks.from_rank_0(lambda: next(windows, []), Window):
            window = [line for line, _ in rows]
            results, cut_indices = translator.translate(
                window,
                bar.update,
                prefixes=[prefix for _, prefix in rows],
                first=done,
                scored=scores or n_best is not None,
            )
            cut.add(done + index for index in cut_indices)
            unfinished.add(done + index for index in at_limit(results))
            if ranks.is_rank_0:
                for index, hypotheses in enumerate(results, done):
                    sink.writelines(_format(index, hypotheses, n_best, scores))
                if alignments is not None:
                    best = [hypotheses[0].text for hypotheses in results]
                    links, cut_indices = align(loaded, window, best)
                    cut_alignments.add(done + index for index in cut_indices)
                    alignments.writelines(line.encode() + b"\n" for line in links)
            for stream in filter(None, (sink, alignments)):
                stream.flush()  # a reader that has gone away gets no warnings about its lines
            done += len(window)
    warn_of_counts(counts)
    cut.warn(loaded.max_source_length)
    cut_alignments.warn(loaded.max_target_length, "--alignments: translations")
    unfinished.warn()


def _shortened(lines: Iterable[bytes], counts: Counter[str], max_characters: int) -> Iterator[str]:
    """Decode lines and cut them, so that a window of lines fits into memory. One character more
    than `max_characters` stays, so that the model counts the line as cut. A long line loses white
    space before its text first.
    """
    limit = max_characters + 1
    texts = decode_lines(_count_odd(lines, counts), counts)
    return (text if len(text) <= limit else text.lstrip()[:limit] for text in texts)


def _count_odd(lines: Iterable[bytes], counts: Counter[str]) -> Iterator[bytes]:
    """Yield the lines; count those that another program may have ended at a carriage return, and
    those with NUL characters, which a crash or another encoding may have left.
    """
    for line in lines:
        if b"\r" in line:
            counts["lines with carriage returns inside, which do not count as line ends"] += 1
        if b"\0" in line:
            counts["lines with NUL characters, which may be damaged"] += 1
        yield line


def _with_prefixes(
    texts: Iterator[str], path: Path, counts: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Yield each line with its prefix; raises `UserError` if their numbers differ."""
    prefixes = decode_lines(read_file(path, counts), counts)
    for number, (text, prefix) in enumerate(zip_longest(texts, prefixes), 1):
        if text is None or prefix is None:
            comparison = "more" if text is None else "fewer"
            raise UserError(
                f"{path}:{number}: {comparison} prefixes than lines to translate; give one prefix "
                "for each line"
            )
        if is_too_long(prefix):
            raise UserError(f"{path}:{number}: {TOO_LONG}; shorten the prefix")
        yield text, prefix


def _format(
    index: int, hypotheses: list[Translation], n_best: int | None, scores: bool
) -> Iterator[bytes]:
    """Yield the output lines of the input line with this index."""
    for hypothesis in hypotheses[: n_best or 1]:
        score = f"{hypothesis.score:.6f}\t" if scores or n_best is not None else ""
        number = f"{index}\t" if n_best is not None else ""
        yield f"{number}{score}{hypothesis.text}\n".encode()


def score_files(loaded: LoadedModel, source: Path, target: Path) -> Iterator[float]:
    """Yield the natural log-probability of each target line given its source line."""
    counts: Counter[str] = Counter()
    total = _count_lines(source, target, loaded.check_stop)
    limits = ((source, loaded.max_source_length), (target, loaded.max_target_length))
    sides = (
        _shortened(read_file(path, counts), counts, loaded.max_characters(tokens))
        for path, tokens in limits
    )
    scorer = Scorer(loaded)
    cut = (TruncatedLines(), TruncatedLines())
    done = 0
    with progress_bar(total, "line", "scoring") as bar:
        for pairs in chunked(_paired(source, target, *sides), loaded.decode.window):
            src, tgt = zip(*pairs, strict=True)
            scores, cut_indices = scorer.score(list(src), list(tgt))
            for side in (0, 1):
                cut[side].add(done + index for index in cut_indices[side])
            yield from scores
            done += len(scores)
            bar.update(len(scores))
    warn_of_counts(counts)
    cut[0].warn(loaded.max_source_length, str(source))
    cut[1].warn(loaded.max_target_length, str(target))


def _count_lines(source: Path, target: Path, check_stop: Callable[[], None]) -> int | None:
    """Return the number of lines of each file, or None if one is a pipe, which can be read only
    once; raises `UserError` if the numbers differ.
    """
    if not (source.is_file() and target.is_file()):
        return None
    src_lines, tgt_lines = (scan_file(path, check_stop)[0] for path in (source, target))
    check_same_length(source, src_lines, target, tgt_lines)
    return src_lines


def _paired(
    source: Path, target: Path, src: Iterator[str], tgt: Iterator[str]
) -> Iterator[tuple[str, str]]:
    """Yield pairs of lines; raises `UserError` if one side is shorter."""
    for number, (src_line, tgt_line) in enumerate(zip_longest(src, tgt)):
        if src_line is None or tgt_line is None:
            short, long = (source, target) if src_line is None else (target, source)
            raise UserError(
                f"{short}: ends after line {number:,}, but {long} has more; they must match line "
                "for line"
            )
        yield src_line, tgt_line
