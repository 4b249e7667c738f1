"""`mtrain init`: a first config for two files of text, sized to them and to the machine."""

import os
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mtrain.check.characters import Characters
from mtrain.check.holdout import CHUNK, hold_out
from mtrain.check.recipe import Recipe, Size, fill, recipe_for
from mtrain.config.loading import parse_config
from mtrain.config.schema import TextCorpus
from mtrain.config.yaml_reader import dump_document, parse_document
from mtrain.corpus.lines import NOT_UTF8, Reading
from mtrain.corpus.readers import read_rows, scan
from mtrain.corpus.writing_systems import SCRIPTS
from mtrain.runs import manifest
from mtrain.runs.layout import refuse_kept
from mtrain.runtime import files
from mtrain.runtime.errors import RefusedError, UserError, printable
from mtrain.runtime.log import logger
from mtrain.runtime.outputs import opened
from mtrain.runtime.stop import Stop
from mtrain.scoring.references import warn_of_missing_tokenizer

LANGUAGES = {code for codes in SCRIPTS.values() for code in codes.split()}
SAMPLE = 20_000  # pairs by which words and characters are counted
CHUNK_CHARACTERS = 1 << 21  # counted together
RARE = 0.0005  # fraction of characters that the vocabulary need not cover


@dataclass(frozen=True)
class Request:
    """What `mtrain init` was asked for."""

    src: Path
    tgt: Path
    output: Path
    src_lang: str
    tgt_lang: str
    valid: tuple[Path, Path] | None
    hold_out: int


def language_of(path: Path, option: str) -> str:
    """Tell the language of a file by the end of its name; raises `RefusedError`."""
    stem = path.name.removesuffix(".gz").removesuffix(".zst")
    code = stem.rpartition(".")[2]
    if "." not in stem or code.lower().split("-")[0].split("_")[0] not in LANGUAGES:
        raise RefusedError(
            f"{path}: its name ends in no language code that is known here, as .en or .de.gz "
            f"does; give {option}"
        )
    return code


def write_config(request: Request, stop: Stop, *, has_gpu: bool) -> None:
    """Write a config for two files; raises `RefusedError` for names that no config can hold, and
    where it, or what is held out, would be written over something.
    """
    _check_names(request)
    parts = _held_out_files(request) if request.hold_out else []
    outputs = [*parts, request.output]
    for path in (request.output, *parts):
        manifest.check_new(path)
        refuse_kept(path)
    corpus = TextCorpus(src=str(request.src), tgt=str(request.tgt))
    reading = Reading(invalid_utf8="drop", check=stop.check)
    pairs = scan(corpus, reading).pairs
    size = _measure(corpus, pairs, reading, stop)
    train, valid = (request.src, request.tgt), request.valid
    if valid is not None:
        _warn_of_overlap(corpus, TextCorpus(src=str(valid[0]), tgt=str(valid[1])), reading, stop)
    with _directories_of(outputs), opened(*outputs, is_new=True) as sinks:
        if valid is None:
            left = hold_out(
                corpus, pairs, request.hold_out, dict(zip(parts, sinks[:-1], strict=True)), stop
            )
            size, train, valid = (
                replace(size, pairs=left),
                (parts[0], parts[1]),
                (parts[2], parts[3]),
            )
        drops = _tell_invalid(reading.counts, is_split=bool(parts))
        recipe = recipe_for(size, has_gpu=has_gpu)
        text = render(request, size, recipe, train, valid, drops=drops)
        parse_config(parse_document(text, str(request.output)))
        sinks[-1].write(text.encode("utf-8"))
    logger.info("%s pairs; recipe: %s", f"{size.pairs:,}", recipe.origin)
    warn_of_missing_tokenizer(request.tgt_lang)


@contextmanager
def _directories_of(paths: list[Path]) -> Iterator[None]:
    """Make the directories of files; if the block fails, those that were made are removed."""
    above = {each for path in paths for each in path.parents}
    new = sorted((each for each in above if not each.exists()), key=lambda each: len(each.parts))
    is_done = False
    try:
        for each in new:
            each.mkdir(exist_ok=True)
        yield
        is_done = True
    except OSError as error:
        raise UserError(f"{error.filename}: cannot write: {error.strerror}") from None
    finally:
        for each in new[::-1] if not is_done else ():
            with suppress(OSError):  # another process may have written to it
                each.rmdir()


def _check_names(request: Request) -> None:
    """Refuse names that no config can hold, and a config that is not named like one."""
    named = (request.src, request.tgt, request.output, *(request.valid or ()))
    for text in (*map(str, named), request.src_lang, request.tgt_lang):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            shown = os.fsencode(text).decode("utf-8", "backslashreplace")
            raise RefusedError(
                f"{shown}: its name is not UTF-8, as a config must be; rename it"
            ) from None
    for path in named:
        if str(path).startswith("~") or files.VARIABLE.search(str(path)):
            raise RefusedError(
                f"{path}: a config would take this for a name of the environment or of a home "
                "directory; rename it"
            )
    if request.src.exists() and request.tgt.exists() and request.src.samefile(request.tgt):
        raise RefusedError(f"{request.tgt}: is both sides; give the translation as the second file")
    for code in (request.src_lang, request.tgt_lang):
        if "/" in code:
            raise RefusedError(f"{code}: not a language code such as en or zh-TW")
    if request.output.suffix not in (".yaml", ".yml"):
        raise RefusedError(
            f"{request.output}: name the config .yaml or .yml; the held-out text goes into a "
            "folder named as it is without that"
        )


def _tell_invalid(counts: Counter[str], *, is_split: bool) -> bool:
    """Warn of pairs that are not UTF-8; return whether the run must drop them, as those written by
    a split are free of them.
    """
    count = counts[NOT_UTF8]
    if count:
        how = "" if is_split else " (data.invalid_utf8: drop)"
        logger.warning(
            "%s %s invalid UTF-8 on a side, and left out%s",
            f"{count:,}",
            "pair is" if count == 1 else "pairs are",
            how,
        )
    return bool(count) and not is_split


def _warn_of_overlap(train: TextCorpus, valid: TextCorpus, reading: Reading, stop: Stop) -> None:
    """Warn of pairs of the validation set that are in the training text; refuse an empty set.
    Invalid pairs are counted in `reading`.
    """
    rows = [row[1:] for row in read_rows(valid, reading)]
    if not rows:
        raise UserError(f"{valid.src}: holds no line to validate on")
    seen: set[tuple[str, str]] = set()
    known = set(rows)
    for number, src, tgt in read_rows(train, replace(reading, counts=Counter())):
        if (src, tgt) in known:
            seen.add((src, tgt))
        if number % CHUNK == 0:
            stop.check()
    if count := sum(pair in seen for pair in rows):
        logger.warning(
            "%s: %s of %s pairs stand in the training text too: scores there mean little; see "
            "mtrain check",
            valid.src,
            f"{count:,}",
            f"{len(rows):,}",
        )


def _measure(corpus: TextCorpus, pairs: int, reading: Reading, stop: Stop) -> Size:
    """Count the words and characters of a sample from all over the files; pairs that are not UTF-8
    are counted in `reading`.
    """
    characters, times, types = Characters(), np.zeros(0x110000, np.int64), np.zeros(0, np.uint64)
    count = texts = 0
    for some in _sampled(corpus, max(1, pairs // SAMPLE), reading, stop):
        lines = characters.read(some)
        hashes = characters.words(lines).hashes
        times += np.bincount(lines.codes, minlength=len(times))
        types = np.union1d(types, hashes)
        count, texts = count + len(hashes), texts + len(some)
    if not count:
        raise UserError(f"{corpus.src}: holds no text to learn from")
    needed = int((np.cumsum(-np.sort(-times)) <= (1 - RARE) * times.sum()).sum()) + 1
    return Size(pairs - reading.counts[NOT_UTF8], 2 * count / texts, len(types), needed)


def _sampled(corpus: TextCorpus, step: int, reading: Reading, stop: Stop) -> Iterator[list[str]]:
    """Return a sample of pairs, both sides; as much text as fits numpy."""
    some, size = list[str](), 0
    for number, (_, src, tgt) in enumerate(read_rows(corpus, reading)):
        if number % CHUNK == 0:
            stop.check()
        if number % step == 0:
            some += [src, tgt]
            size += len(src) + len(tgt)
        if size >= CHUNK_CHARACTERS:
            yield some
            some, size = [], 0
    if some:
        yield some


def _held_out_files(request: Request) -> list[Path]:
    """Name the files that a split makes: train and valid, source and target."""
    folder = request.output.with_suffix("")
    ends = (request.src_lang, request.tgt_lang)
    if ends[0].lower() == ends[1].lower():  # which may be one name to a file system
        ends = ("src", "tgt")
    return [folder / f"{name}.{end}" for name in ("train", "valid") for end in ends]


def render(
    request: Request,
    size: Size,
    recipe: Recipe,
    train: tuple[Path, Path],
    valid: tuple[Path, Path],
    *,
    drops: bool = False,
) -> str:
    """Write the config; `drops` has it leave out pairs that are invalid UTF-8."""
    policies = ("drop", "error") if drops else ("error", "drop")
    places = {
        "languages": printable(f"{request.src_lang} to {request.tgt_lang}"),
        "config": printable(shlex.quote(str(request.output))),
        "run_dir": _entries({"run_dir": f"runs/{request.output.stem}"}, 0),
        "src_lang": _entries({"src_lang": request.src_lang}, 2),
        "tgt_lang": _entries({"tgt_lang": request.tgt_lang}, 2),
        "train": _entries({"src": str(train[0]), "tgt": str(train[1])}, 6),
        "valid": _entries({"src": str(valid[0]), "tgt": str(valid[1])}, 4),
        "invalid_utf8": policies[0],
        "other_utf8": policies[1],
    }
    return fill(size, recipe, places)


def _entries(values: dict[str, str], indent: int) -> str:
    """Return settings as YAML for an indented position."""
    return dump_document(values).rstrip("\n").replace("\n", "\n" + " " * indent)
