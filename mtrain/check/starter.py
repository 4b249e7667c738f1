"""`mtrain init`: write a first config for a text, for its size and this machine."""

import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import indent
from typing import IO, Any

import numpy as np

from mtrain.check.chunks import chunks
from mtrain.check.findings import Findings
from mtrain.check.words import Characters
from mtrain.config.conflicts import column_conflict
from mtrain.config.corpora import FileCorpus, TextCorpus
from mtrain.config.keys import SCHEMA
from mtrain.config.languages import NAMES, is_unspaced, language_code, tokenizer_for
from mtrain.config.loading import parse_config
from mtrain.config.recipe import Size, recipe_for
from mtrain.config.schema import Config, TokenizerConfig
from mtrain.config.yaml_reader import dump_document, parse_document
from mtrain.corpus.lines import DROPPED, NOT_UTF8, Reading
from mtrain.corpus.readers import Pair, corpus_name, read_pairs, scan
from mtrain.corpus.tables import TextRow
from mtrain.data.duplicates import find_unshared, temporary_folder
from mtrain.runs.layout import refuse_run_files
from mtrain.runtime.console import handling_write_errors
from mtrain.runtime.errors import RefusedError, UserError, printable
from mtrain.runtime.files import check_new, make_directories, quote_path
from mtrain.runtime.log import logger, progress_bar, warn_of_counts
from mtrain.runtime.outputs import opened
from mtrain.runtime.stop import Stop
from mtrain.scoring.suitability import missing_tokenizers, text_warnings

SAMPLE = 20_000  # approximate number of pairs whose words and characters are counted
MAX_LOST = 0.2  # fraction of pairs that may be invalid UTF-8; else the encoding is another one
MAX_HELD_OUT = 0.1  # fraction of the pairs
MIN_HELD_OUT, DEFAULT_HELD_OUT = 200, 1000  # pairs, if no number is given
# Names of validation and test sets next to the text, in any case, without language and
# compression; a validation set may name its languages, as in `dev.de-en`.
VALID = ("valid", "validation", "dev", "val")
VALID_SET = (
    rf"(?:news)?({'|'.join(VALID)})(?:[_-]?[0-9][a-z0-9_-]*)?(?:\.[a-z]{{2,3}}-[a-z]{{2,3}})?"
)
TEST_SET = r"(?:(?:news|dev)?test(?:[0-9_.+-][a-z0-9_.+-]*)?|tst[0-9][a-z0-9_.+-]*)"

HEADER = """\
# yaml-language-server: $schema={schema}
# {pairs:,} pairs, {languages}. Sizes and rates are those of
# {origin};
# they are not tuned to this text. `mtrain config keys` explains every setting.
# Check the text first:   mtrain check -c {config}
# Train:                  mtrain train -c {config}

"""

LINE_BREAKS = "line breaks replaced by spaces"
COPIES = DROPPED + "copies of held-out pairs"
NUMBER = re.compile("[0-9]{1,9}")  # of a column
_LINE_BREAK = re.compile(r"\r\n?|\n")

Sides = tuple[Path, Path]
Text = TextCorpus | FileCorpus


@dataclass(frozen=True)
class Request:
    """The options of `mtrain init`. With `columns`, a text or set whose sides are one file is a
    table with these columns.
    """

    src: Path
    tgt: Path
    output: Path
    src_lang: str
    tgt_lang: str
    valid: Sides | None
    hold_out: int  # pairs; 0: a default number, unless there is a validation set
    columns: tuple[str, str] | None = None
    tests: dict[str, Sides] = field(default_factory=dict)

    def corpus_of(self, src: Path, tgt: Path) -> Text:
        """Return a corpus, unchecked: `parse_config` refuses names that no config can contain."""
        if self.columns is None or src != tgt:
            return TextCorpus.model_construct(src=str(src), tgt=str(tgt))
        return _table_of(src, self.columns)


def _table_of(path: Path, columns: tuple[str, str]) -> FileCorpus:
    src, tgt = (int(name) if NUMBER.fullmatch(name) else name for name in columns)
    return FileCorpus.model_construct(file=str(path), src=src, tgt=tgt)


def languages_of(
    sides: Sides, src_lang: str | None, tgt_lang: str | None, columns: tuple[str, str] | None = None
) -> tuple[str, str]:
    """Return the given language codes, or else those at the end of the names of the files or of
    the columns of a table; raises `RefusedError` if there is neither, or for columns that do not
    suit the table.
    """
    names = list(map(str, sides))
    if columns is not None:
        _check_columns(_table_of(sides[0], columns))  # other columns may have names of languages
        names = [f"{sides[0]}: column {column}" for column in columns]
        sides = Path(f".{columns[0]}"), Path(f".{columns[1]}")
    codes = [src_lang or _language_of(sides[0]), tgt_lang or _language_of(sides[1])]
    if all(codes):
        return codes[0], codes[1]
    unknown = [side for side in (0, 1) if not codes[side]]
    raise RefusedError(
        f"{' and '.join(names[side] for side in unknown)}: no known language code, such as .en or "
        f".de.gz, at the end of the name; give "
        f"{' and '.join(('--src-lang', '--tgt-lang')[side] for side in unknown)}"
    )


def _language_of(path: Path) -> str:
    """Return the language code at the end of a file's name; empty if there is none."""
    code = _suffix_of(path)
    is_script = re.fullmatch("[a-z]{3}_[A-Z][a-z]{3}", code)
    return code if is_script or language_code(code) in NAMES else ""


def _suffix_of(path: Path) -> str:
    """Return the last suffix of a file's name, without its dot and except for compression and
    `.txt`; empty if there is none.
    """
    stem = path.name.removesuffix(".gz").removesuffix(".zst").removesuffix(".txt")
    return stem.rpartition(".")[2] if "." in stem else ""


def with_found_sets(request: Request) -> Request:
    """Add sets from the folder of the text: a validation set, unless one is given or held out, and
    all test sets. Their sides have the suffixes of the text or, next to a table, of its languages.
    Warn of files that lack the other side.
    """
    sides = request.src, request.tgt
    suffixes = [(_suffix_of(request.src), _suffix_of(request.tgt))]
    if request.columns is not None:
        suffixes.insert(0, (request.src_lang, request.tgt_lang))
    elif suffixes[0][0] == suffixes[0][1]:
        return request
    found, alone = dict[str, Sides](), dict[Path, str]()
    for pair in suffixes:
        src, tgt = map(_find_sets, sides, pair)
        found |= {name: (src[name], tgt[name]) for name in src if name in tgt}
        for files, others, suffix in ((src, tgt, pair[1]), (tgt, src, pair[0])):
            alone |= {files[name]: f"{name}.{suffix}" for name in files if name not in others}
    valid_names = sorted(filter(_valid_kind, found), key=lambda n: (VALID.index(_valid_kind(n)), n))
    tests = {name: sides for name, sides in found.items() if name not in valid_names}
    valid = request.valid
    if valid is None and not request.hold_out and valid_names:
        valid = found[valid_names[0]]
        for name in valid_names[1:]:
            advice = "for the mean score of several sets, list them in data.valid of the config"
            logger.warning("%s set: not used; %s", name, advice)
    named = {"validation": valid, **tests} if valid else tests
    for name, sides in named.items():
        logger.info("%s set: %s", name, " and ".join(dict.fromkeys(map(str, sides))))
    _warn_of_lone_sides(request, alone)
    return replace(request, valid=valid, tests=tests)


def _warn_of_lone_sides(request: Request, alone: dict[Path, str]) -> None:
    """Warn of files that are not used because the other side, whose name is given, is missing."""
    given = [side.resolve() for side in request.valid or ()]
    for file, other in alone.items():
        is_valid = _valid_kind(other.rpartition(".")[0]) != ""
        if file.resolve() in given or (is_valid and (request.valid or request.hold_out)):
            continue
        advice = "add it" + ", or name both sides with --valid-src, --valid-tgt" * is_valid
        logger.warning("%s: not used, since its other side %s is missing; %s", file, other, advice)


def _valid_kind(name: str) -> str:
    """Return the kind of a validation set, an item of `VALID`; an empty text for a test set."""
    match = re.fullmatch(VALID_SET, name, re.ASCII | re.IGNORECASE)
    return match[1].lower() if match else ""


def _find_sets(path: Path, suffix: str) -> dict[str, Path]:
    """Return the files of sets next to a text that have this suffix, by the name of the set."""
    suffixes = rf"\.{re.escape(suffix)}(\.txt)?(\.gz|\.zst)?"
    pattern = re.compile(rf"((?ai:{VALID_SET}|{TEST_SET})){suffixes}")
    matches = ((pattern.fullmatch(file.name), file) for file in sorted(path.parent.iterdir()))
    sets = ((match[1], file) for match, file in matches if match and file.is_file())
    return {name: file for name, file in sets if not file.samefile(path)}


def write_config(request: Request, stop: Stop, *, has_gpu: bool) -> dict[str, Any]:
    """Write a config for a text; return the number of pairs, how many are held out, and the names
    of test sets. Raises `RefusedError` for unsuitable names, and if a file would be overwritten.
    """
    _check_names(request)
    check_new(request.output)
    corpus, held = request.corpus_of(request.src, request.tgt), 0
    reading = Reading(invalid_utf8="drop", check_stop=stop.check)
    rows = scan(corpus, reading).pairs
    request = with_found_sets(request)
    named = {"data.valid": request.valid} if request.valid else {}
    named |= {f"data.test.{name}": sides for name, sides in request.tests.items()}
    sets = {  # all readable and equally long
        key: scan(request.corpus_of(*sides), replace(reading, counts=Counter())).pairs
        for key, sides in named.items()
    }
    parts = [] if request.valid else _split_files(request)
    outputs = [*parts, request.output]
    for path in outputs:
        refuse_run_files(path)
    for path in parts:
        check_new(path, "the text is split into that folder; choose another one with -o")
    size = _measure(corpus, rows, reading)
    count = _count_to_hold_out(request, size.pairs)
    with _folders_of(outputs), opened(*outputs, is_new=True) as (*sinks, sink):
        train, valid = corpus, request.valid
        if valid is None:
            held, left = _hold_out(corpus, size.pairs, count, sinks, reading)
            sets["data.valid"] = held
            size = replace(size, pairs=left)
            train, valid = request.corpus_of(parts[0], parts[1]), (parts[2], parts[3])
        # splitting the text has dropped pairs that are not UTF-8
        drop_invalid = bool(reading.counts[NOT_UTF8]) and not parts
        text = render(request, size, train, valid, has_gpu=has_gpu, drop_invalid=drop_invalid)
        parse_config(parse_document(text, str(request.output)))
        sink.write(text.encode("utf-8"))
    warn_of_counts(+reading.counts)
    logger.info("%s training pairs", f"{size.pairs:,}")
    missing = missing_tokenizers([tokenizer_for(request.tgt_lang)])
    for text in (*text_warnings(size.pairs, sets), *missing):
        logger.warning("%s", text)
    logger.info("next: mtrain check %s", quote_path(request.output))
    logger.info("      mtrain train %s", quote_path(request.output))
    return {"pairs": size.pairs, "held_out": held, "tests": list(request.tests)}


@contextmanager
def _folders_of(outputs: list[Path]) -> Iterator[None]:
    """Make the folders of the outputs, the last of which is the config. At the end, remove those
    that are empty because of a failure.
    """
    new = {folder for path in outputs for folder in path.parents if not folder.exists()}
    try:
        with handling_write_errors(str(outputs[-1])):
            for path in outputs:
                make_directories(path.parent)
        yield
    finally:
        for folder in sorted(new, reverse=True):  # a folder after those in it
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _count_to_hold_out(request: Request, pairs: int) -> int:
    """Return the number of pairs to hold out; raises `RefusedError` for too many, `UserError` if
    the text has too few.
    """
    limit = int(MAX_HELD_OUT * pairs)
    if request.hold_out > limit:
        raise RefusedError(
            f"--hold-out {request.hold_out}: more than a tenth of the {pairs:,} pairs; give a "
            "smaller number, or a separate validation set with --valid-src, --valid-tgt"
        )
    if pairs and not limit and request.valid is None:
        raise UserError(
            f"{request.src}: too few pairs to hold out a validation set: {pairs}; add text, or "
            "name a set with --valid-src, --valid-tgt"
        )
    return request.hold_out or min(DEFAULT_HELD_OUT, max(MIN_HELD_OUT, pairs // 50), limit)


def _check_columns(corpus: FileCorpus) -> None:
    """Refuse the same column for both sides, and columns that do not suit the format of a table."""
    conflict = column_conflict(corpus)
    if conflict or corpus.src == corpus.tgt:
        reason = conflict[1] if conflict else "one column is both sides"
        raise RefusedError(f"{corpus.file}, columns {corpus.src} and {corpus.tgt}: {reason}")


def _check_names(request: Request) -> None:
    """Refuse the same file or column for both sides, columns that do not suit the format of a
    table, and a config without suffix .yaml or .yml.
    """
    for sides in filter(None, ((request.src, request.tgt), request.valid)):
        corpus, (src, tgt) = request.corpus_of(*sides), sides
        if isinstance(corpus, FileCorpus) and corpus.kind:
            _check_columns(corpus)
        elif src.exists() and tgt.exists() and src.samefile(tgt):
            raise RefusedError(f"{tgt}: is both sides; give the translation as the second file")
    if request.output.suffix not in (".yaml", ".yml"):
        raise RefusedError(
            f"{request.output}: name the config .yaml or .yml; held-out text goes into a folder "
            "of the same name without this suffix"
        )


def _split_files(request: Request) -> list[Path]:
    """Return the files of a split: train and valid, source and target of each."""
    folder = request.output.with_suffix("")
    suffixes = (request.src_lang, request.tgt_lang)
    if suffixes[0].lower() == suffixes[1].lower():  # the same name in some file systems
        suffixes = ("src", "tgt")
    return [folder / f"{name}.{suffix}" for name in ("train", "valid") for suffix in suffixes]


def _pairs(corpus: Text, reading: Reading, total: int, description: str) -> Iterator[Pair]:
    """Yield the pairs that training would use, about `total`, with a progress bar of this
    description; others are counted in `reading`.
    """
    with progress_bar(total, "pair", description) as bar:
        for pair in read_pairs(corpus, reading):
            reading.check_stop()
            bar.update()
            yield pair


def _measure(corpus: Text, rows: int, reading: Reading) -> Size:
    """Count the pairs, and measure a sample that is spread over the `rows`. Rows that training
    drops, such as invalid UTF-8, are not among the pairs, but counted in `reading`. Raises
    `UserError` if too many are invalid UTF-8, or if no text is left.
    """
    char_counts, words = Counter[str](), np.zeros(0, np.uint64)
    pairs, num_pairs, num_tokens, step = 0, 0, 0.0, max(1, rows // SAMPLE)

    def sample() -> Iterator[TextRow]:
        nonlocal pairs
        for pairs, pair in enumerate(_pairs(corpus, reading, rows, "measuring"), 1):
            if (pairs - 1) % step == 0:
                yield pairs, *pair

    for chunk in chunks(Findings("", corpus, reading.root, 0), sample(), Characters()):
        num_pairs += len(chunk)
        for texts, each in zip(chunk.texts, chunk.words, strict=True):
            char_counts.update("".join(texts))
            words = np.union1d(words, each.hashes)
        num_tokens += float(chunk.estimated_tokens.sum())
    name = corpus_name(corpus)
    if (invalid := reading.counts[NOT_UTF8]) > MAX_LOST * rows:
        advice = "convert the text to UTF-8, such as by iconv -f ENCODING -t UTF-8 FILE > NEW"
        raise UserError(f"{name}: {invalid:,} of {rows:,} pairs are not UTF-8; {advice}")
    if not num_tokens:
        raise UserError(f"{name}: no text to learn from, or all pairs are blank on a side")
    counts = np.sort(np.array(list(char_counts.values())))[::-1]
    to_cover = TokenizerConfig().character_coverage * counts.sum()
    characters = int((np.cumsum(counts) <= to_cover).sum()) + 1
    return Size(pairs, num_tokens / num_pairs, len(words), characters)


def _hold_out(
    corpus: Text, pairs: int, count: int, sinks: list[IO[bytes]], reading: Reading
) -> tuple[int, int]:
    """Split the text into a training set and a random validation set; write four open files: source
    and target of train, then of valid. Return the numbers of pairs held out and left to train on;
    copies of held-out pairs, which are left out, and line breaks within texts of a table are
    counted in `reading`. Raises `UserError` if one of the sets is empty.
    """
    counts, reading, left = reading.counts, replace(reading, counts=Counter()), 0
    numbers = choose(corpus, pairs, count, reading)
    held = set[Pair]()
    for number, pair in enumerate(_pairs(corpus, reading, pairs, "splitting")):
        if pair in held:
            counts[COPIES] += 1
            continue
        is_held = number in numbers
        if is_held:
            held.add(pair)
        left += not is_held
        for sink, text in zip(sinks[2:] if is_held else sinks[:2], pair, strict=True):
            if isinstance(corpus, FileCorpus):
                text, breaks = _LINE_BREAK.subn(" ", text)
                counts[LINE_BREAKS] += breaks
            sink.write(text.encode("utf-8") + b"\n")
    if not held or not left:
        raise UserError(
            f"{corpus_name(corpus)}: too few pairs differ on both sides to hold some out for "
            "validation; add text, or name a set with --valid-src, --valid-tgt"
        )
    text = "held out %s of %s pairs for validation; no other pair shares a side"
    logger.info(text, f"{len(held):,}", f"{pairs:,}")
    if len(held) < count:
        text = "%s pairs were intended, but each of the others shares a side with another pair"
        logger.warning(text, f"{count:,}")
    return len(held), left


def choose(corpus: Text, pairs: int, count: int, reading: Reading) -> set[int]:
    """Draw `count` pairs by number, or all if there are fewer, of those that share no side with
    another pair; of copies of a pair, the first can be drawn. The same text gives the same pairs.
    """
    with temporary_folder() as folder:
        searched = _pairs(corpus, reading, pairs, "searching for repetition")
        numbers = np.flatnonzero(find_unshared(folder, searched, pairs, reading.check_stop))
    drawn = random.Random(1).sample(range(len(numbers)), min(len(numbers), count))
    return set(numbers[drawn].tolist())


def render(
    request: Request,
    size: Size,
    train: Text,
    valid: Sides,
    *,
    has_gpu: bool,
    drop_invalid: bool,
) -> str:
    """Return the config, each setting below its description; with `drop_invalid`, training drops
    pairs that are not UTF-8.
    """
    origin, recipe = recipe_for(size, has_gpu=has_gpu)
    data = {
        "src_lang": request.src_lang,
        "tgt_lang": request.tgt_lang,
        "train": [_entry(train)],
        "valid": _entry(request.corpus_of(*valid)),
        "test": {name: _entry(request.corpus_of(*each)) for name, each in request.tests.items()},
        "invalid_utf8": "drop" if drop_invalid else "error",
        "max_length": 256,
    }
    if is_unspaced(request.tgt_lang):
        data["bleu_tokenize"] = "char"
    header = HEADER.format(
        schema=SCHEMA.as_uri(),
        pairs=size.pairs,
        languages=printable(f"{request.src_lang} to {request.tgt_lang}"),
        origin=origin,
        config=printable(quote_path(request.output)),
    )
    parts = [header, dump_document({"run_dir": f"runs/{request.output.stem}", "seed": 1})]
    for name, settings in {"data": data, **recipe}.items():
        section: Any = Config.model_fields[name].annotation
        parts.append(f"\n{name}:\n")
        for key, value in settings.items():
            parts.append(f"  # {section.model_fields[key].description}\n")
            parts.append(indent(dump_document({key: value}), "  "))
    return "".join(parts)


def _entry(corpus: Text) -> dict[str, Any]:
    """Return the config entry of a corpus."""
    return corpus.model_dump(include={"file", "src", "tgt"})
