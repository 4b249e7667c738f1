"""Read corpora as pairs of strings that stay aligned; name them, and count and hash their text."""

import hashlib
import json
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray

from mtrain.config.corpora import Corpus, FileCorpus, GeneratedCorpus, HubCorpus, TextCorpus
from mtrain.config.schema import Config
from mtrain.corpus import phrasebook
from mtrain.corpus.hub import dataset_files, dataset_name, read_dataset
from mtrain.corpus.lines import (
    BLANK,
    Reading,
    add_to_set_size,
    chunked,
    decode_line,
    is_blank,
    read_file,
    require_regular,
    scan_file,
)
from mtrain.corpus.tables import TextRow, read_table, scan_table
from mtrain.runtime.errors import UserError

Pair = tuple[str, str]
CHUNK, CHUNK_CHARACTERS = 1000, 1 << 18  # rows and characters processed at a time


class UnequalError(UserError):
    """The sides have different numbers of lines; the shorter side ends after `pairs` pairs."""

    def __init__(self, message: str, pairs: int) -> None:
        super().__init__(message)
        self.pairs = pairs


@dataclass(frozen=True)
class Scan:
    """Result of a first pass over a corpus: its number of pairs and the SHA-256 of its text."""

    pairs: int
    sha256: str


@dataclass(frozen=True)
class ScoredText:
    """A validation or test set in memory, line for line, and its entry in the config."""

    corpus: Corpus
    sources: list[str]
    references: list[str]
    sha256: str

    def __len__(self) -> int:
        return len(self.sources)

    def lengths_of(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the lengths in characters of the pairs `start` to `stop` - 1, shape (pairs, 2)."""
        pairs = zip(self.sources[start:stop], self.references[start:stop], strict=True)
        return np.array([(len(src), len(tgt)) for src, tgt in pairs])

    def equal_sides(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Whether the sides of each of these pairs are the same."""
        pairs = zip(self.sources[start:stop], self.references[start:stop], strict=True)
        return np.array([src == tgt for src, tgt in pairs])


def reading_of(config: Config, **options: Any) -> Reading:
    """Return the options for reading the corpora of a config; `options` are other fields of
    `Reading`.
    """
    return Reading(Path(config.data.root or ""), config.data.invalid_utf8, **options)


def corpus_name(corpus: Corpus) -> str:
    """Return the name of a corpus: its files, generator or dataset."""
    if isinstance(corpus, TextCorpus):
        return f"{corpus.src} + {corpus.tgt}"
    if isinstance(corpus, GeneratedCorpus):
        return f"{corpus.generated} {corpus.split} ({corpus.pairs} pairs)"
    if isinstance(corpus, FileCorpus):
        return corpus.file
    return dataset_name(corpus)


def files_of(corpus: Corpus, root: Path) -> list[Path]:
    """Return the files that a corpus is read from; none if it is generated or streamed."""
    if isinstance(corpus, TextCorpus):
        return [root / corpus.src, root / corpus.tgt]
    if isinstance(corpus, FileCorpus):
        return [root / corpus.file]
    return dataset_files(corpus, root) if isinstance(corpus, HubCorpus) else []


def settings_of(corpus: Corpus) -> list[object]:
    """Return the settings, other than files, that the scan of a corpus depends on."""
    files = {"src", "tgt"} if isinstance(corpus, TextCorpus) else {"file"}
    return list(corpus.model_dump(exclude={"weight", *files}).items())


def scan(corpus: Corpus, reading: Reading) -> Scan:
    """Count the pairs of a corpus, and hash its text with its swap, tag and languages; raises
    `UnequalError` for unequal sides.
    """
    result = _scan(corpus, reading)
    options = {"swap", "tag", "src_lang", "tgt_lang"}
    changes = corpus.model_dump(include=options, exclude_defaults=True)
    if not changes:
        return result
    text = json.dumps([result.sha256, changes]).encode()
    return Scan(result.pairs, hashlib.sha256(text).hexdigest())


def _scan(corpus: Corpus, reading: Reading) -> Scan:
    if isinstance(corpus, TextCorpus):
        src, tgt = files_of(corpus, reading.root)
        src_lines, src_hash = scan_file(src, reading.check_stop)
        tgt_lines, tgt_hash = scan_file(tgt, reading.check_stop)
        if src_lines != tgt_lines:
            message = (
                f"{src} has {src_lines:,} lines but {tgt} has {tgt_lines:,}: the sides of a "
                "corpus must match line for line; find the missing or extra line (with a config of "
                "these files, mtrain check shows where lines are shifted)"
            )
            raise UnequalError(message, min(src_lines, tgt_lines))
        return Scan(src_lines, hashlib.sha256(src_hash + tgt_hash).hexdigest())
    if isinstance(corpus, FileCorpus):
        return Scan(*scan_table(corpus, reading))
    digest = hashlib.sha256()
    count = 0
    dropping = Reading(reading.root, "drop")  # `read_pairs` refuses such rows if it must
    for _, *pair in read_rows(corpus, dropping):
        reading.check_stop()
        for text in pair:
            data = text.encode("utf-8")
            digest.update(len(data).to_bytes(8, "little") + data)
        count += 1
    return Scan(count + dropping.counts.total(), digest.hexdigest())


def read_pairs(corpus: Corpus, reading: Reading) -> Iterator[Pair]:
    """Yield the pairs of a corpus in order; dropped pairs are counted in `reading.counts`."""
    for _, src, tgt in read_rows(corpus, reading):
        if not reading.keep_blank and (is_blank(src) or is_blank(tgt)):
            reading.count_dropped(BLANK)
        else:
            yield src, tgt


def read_scored_text(corpus: Corpus, reading: Reading, sha256: str) -> ScoredText:
    """Read a set into memory; `sha256` is its hash from `scan`."""
    size = 0
    pairs = list[Pair]()
    for pair in read_pairs(corpus, reading):
        pair_bytes = sum(len(text.encode("utf-8", "replace")) for text in pair)
        size = add_to_set_size(size, pair_bytes, corpus_name(corpus))
        pairs.append(pair)
    return ScoredText(corpus, [src for src, _ in pairs], [tgt for _, tgt in pairs], sha256)


def read_rows(corpus: Corpus, reading: Reading) -> Iterator[TextRow]:
    """Yield the pairs of a corpus in order, including blank ones, numbered from 1."""
    rows = _read_rows(corpus, reading)
    return ((number, tgt, src) for number, src, tgt in rows) if corpus.swap else rows


def _read_rows(corpus: Corpus, reading: Reading) -> Iterator[TextRow]:
    if not isinstance(corpus, HubCorpus):
        for path in files_of(corpus, reading.root):
            require_regular(path)  # opening a pipe without a writer would wait forever
    if isinstance(corpus, TextCorpus):
        return _read_files(reading.root / corpus.src, reading.root / corpus.tgt, reading)
    if isinstance(corpus, GeneratedCorpus):
        pairs = phrasebook.pairs(corpus.split, corpus.pairs)
        return ((number, *pair) for number, pair in enumerate(pairs, 1))
    if isinstance(corpus, FileCorpus):
        return read_table(corpus, reading)
    return read_dataset(corpus, reading)


def skim(
    corpus: Corpus, reading: Reading, step: int, wanted: Collection[str]
) -> Iterator[tuple[bool, bool, TextRow]]:
    """Yield every `step`-th row of a corpus, and each row whose source has its plain form in
    `wanted`, with stripped texts. Two flags precede a row: whether it is a `step`-th row, and
    whether its source is wanted.
    """
    start = 0
    for rows in chunked(read_rows(corpus, reading), CHUNK, CHUNK_CHARACTERS):
        reading.check_stop()
        forms = plain_forms([src for _, src, _ in rows]) if wanted else [""] * len(rows)
        for index, (form, (number, src, tgt)) in enumerate(zip(forms, rows, strict=True), start):
            is_nth = index % step == 0
            is_wanted = form in wanted
            if is_nth or is_wanted:
                yield is_nth, is_wanted, (number, src.strip(), tgt.strip())
        start += len(rows)


def plain_forms(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts without case, white space, punctuation and symbols. A text that consists of these
    only, or is very long, is only stripped.
    """
    for chunk in chunked(((text, "") for text in texts), CHUNK, CHUNK_CHARACTERS):
        short = ["" if len(text) > CHUNK_CHARACTERS else text for text, _ in chunk]
        codes = code_points(map(str.casefold, short))
        forms = codes[_is_plain()[codes]].tobytes().decode("utf-32-le").split("\n")[:-1]
        for form, (text, _) in zip(forms, chunk, strict=True):
            yield form or text.strip()


def code_points(texts: Iterable[str]) -> NDArray[np.uint32]:
    """Return the code points of texts, with a line feed after each and none within."""
    lines = "".join([text.replace("\n", " ") + "\n" for text in texts])
    return np.frombuffer(lines.encode("utf-32-le", "surrogatepass"), np.uint32)


@cache
def _is_plain() -> NDArray[np.bool_]:
    """Whether each code point is a letter, mark, digit or line feed."""
    is_plain = np.zeros(sys.maxunicode + 1, bool)
    pattern = regex.compile(r"(?V1)[\n\p{L}\p{M}\p{N}--\p{Variation_Selector}]+")
    for start in range(0, len(is_plain), 1 << 16):
        codes = np.arange(start, start + (1 << 16), dtype=np.uint32)
        characters = codes.tobytes().decode("utf-32-le", "surrogatepass")
        for match in pattern.finditer(characters):
            is_plain[start + match.start() : start + match.end()] = True
    return is_plain


def _read_files(src: Path, tgt: Path, reading: Reading) -> Iterator[TextRow]:
    tgt_counts = reading.counts if tgt != src else None  # text of one side counts once
    sides = zip_longest(read_file(src, reading.counts), read_file(tgt, tgt_counts))
    for number, (src_line, tgt_line) in enumerate(sides, 1):
        if src_line is None or tgt_line is None:
            shorter = src if src_line is None else tgt
            message = f"{shorter}: ends at line {number - 1}, before the other side does"
            raise UnequalError(message, number - 1)
        src_text = decode_line(src, number, src_line, reading)
        if src_text is None:
            continue  # count an invalid pair only once
        tgt_text = decode_line(tgt, number, tgt_line, reading)
        if tgt_text is not None:
            yield number, src_text, tgt_text
