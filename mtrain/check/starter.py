"""`mtrain init`: a first config for two files of text, sized to them and to the machine."""

import os
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from string import Template

import numpy as np

from mtrain import manifest
from mtrain.check.characters import PIECES_A_WORD, Characters
from mtrain.check.findings import printable
from mtrain.config import TextCorpus, load_config
from mtrain.corpus import read_rows, scan
from mtrain.errors import RefusedError, UserError
from mtrain.log import logger, progress_bar
from mtrain.scripts import SCRIPTS
from mtrain.stop import Stop
from mtrain.text import NOT_UTF8, Reading, is_blank
from mtrain.yaml_reader import dump_document

LANGUAGES = {code for codes in SCRIPTS.values() for code in codes.split()}
SAMPLE = 20_000  # pairs by which words and characters are counted
CHUNK = 10_000  # pairs between looks at whether to stop
CHUNK_CHARACTERS = 1 << 21  # counted together
RARE = 0.0005  # share of characters that the vocabulary need not hold
EPOCHS = 28  # as the recipes that were measured have, about
MOST_HELD_OUT = 0.1  # share of the pairs

TEMPLATE = """\
# $pairs pairs, $languages. Sizes and rates follow
# $origin.
# Nothing was tuned to this text. configs/multi30k-en-de.yaml explains every setting there is.
# Look at the text first:  mtrain check -c $config
# Train:                   mtrain train -c $config

$run_dir
seed: 1  # fixes every random choice

data:
  $src_lang
  $tgt_lang  # BLEU is tokenized for it
  train:  # any number of corpora, joined
    - $train
  valid:  # translated and scored every valid_every steps
    $valid
  test: {}  # sets scored at the end, such as {news: {src: FILE, tgt: FILE}}
  invalid_utf8: $invalid_utf8  # or: $other_utf8
  max_length: 256  # tokens a side; longer pairs are left out and counted

tokenizer:
  vocab_size: $vocab_size  # pieces, shared by both sides

model:
  d_model: $d_model
  num_heads: $num_heads
  d_ff: $d_ff
  num_encoder_layers: $layers
  num_decoder_layers: $layers
  dropout: $dropout  # higher for less text, against learning by heart

train:
  device: auto  # a GPU if there is one
  threads: auto  # every core
  max_steps: $max_steps
  max_tokens: $max_tokens  # padded tokens a side in a micro-batch
  accum_steps: 4  # micro-batches a step, from short pairs to long ones
  schedule: $schedule
  warmup_steps: $warmup_steps
  peak_lr: $peak_lr
  valid_every: $valid_every
  save_every: $save_every
  patience: 0  # the last steps, at low rates, bring much of the score
  average_last: 5

decode:
  beam_size: 5
  length_penalty: 1.0
  length_norm: power  # score / length
"""


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


@dataclass(frozen=True)
class Size:
    """What is known of the text: pairs, words of both sides a pair, and of a sample how many
    different words and characters it has.
    """

    pairs: int
    words: float
    types: int
    characters: int


@dataclass(frozen=True)
class Recipe:
    """Settings for text of some size, and what they were taken from."""

    origin: str
    d_model: int
    num_heads: int
    d_ff: int
    layers: int
    dropout: float
    vocab_size: int
    max_tokens: int
    max_steps: int
    warmup_steps: int
    schedule: str
    peak_lr: float


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
    files = _held_out_files(request) if request.hold_out else []
    for path in (request.output, *files):
        if path.exists():
            raise RefusedError(f"{path}: exists already; remove it, or write elsewhere with -o")
    corpus = TextCorpus(src=str(request.src), tgt=str(request.tgt))
    reading = Reading(invalid_utf8="drop", check=stop.check)
    pairs = scan(corpus, reading).pairs
    size = _measure(corpus, pairs, reading, stop)
    train, valid = (request.src, request.tgt), request.valid
    if valid is not None:
        _warn_of_overlap(corpus, TextCorpus(src=str(valid[0]), tgt=str(valid[1])), reading, stop)
    else:
        left = _hold_out(request, corpus, pairs, files, stop)
        size, train, valid = replace(size, pairs=left), (files[0], files[1]), (files[2], files[3])
    drops = _tell_invalid(reading.counts, is_split=bool(files))
    recipe = recipe_for(size, has_gpu=has_gpu)
    text = render(request, size, recipe, train, valid, drops=drops)
    request.output.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_file(request.output, text)
    load_config(request.output)
    logger.info("%s pairs; recipe: %s", f"{size.pairs:,}", recipe.origin)


def _check_names(request: Request) -> None:
    """Refuse what cannot be written into a config, and a config that is not named as one."""
    named = (request.src, request.tgt, request.output, *(request.valid or ()))
    for text in (*map(str, named), request.src_lang, request.tgt_lang):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            shown = os.fsencode(text).decode("utf-8", "backslashreplace")
            raise RefusedError(
                f"{shown}: its name is not UTF-8, as a config must be; rename it"
            ) from None
    for code in (request.src_lang, request.tgt_lang):
        if "/" in code:
            raise RefusedError(f"{code}: not a language code such as en or zh-TW")
    if request.output.suffix not in (".yaml", ".yml"):
        raise RefusedError(
            f"{request.output}: a config is named .yaml or .yml; what is held out goes into a "
            "folder named as it is without that"
        )


def _tell_invalid(counts: Counter[str], *, is_split: bool) -> bool:
    """Say how many pairs are not UTF-8, if any; returns whether a run must be told to drop them,
    which those written by a split no longer hold.
    """
    count = counts[NOT_UTF8]
    if count:
        how = "" if is_split else " (data.invalid_utf8: drop)"
        logger.warning(
            "%s %s not valid UTF-8 on a side, and left out%s",
            f"{count:,}",
            "pair is" if count == 1 else "pairs are",
            how,
        )
    return bool(count) and not is_split


def _warn_of_overlap(train: TextCorpus, valid: TextCorpus, reading: Reading, stop: Stop) -> None:
    """Say how many pairs of the validation set stand in the training text; refuse an empty one.
    Those that are not UTF-8 are counted in `reading`.
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
    """Take a pair in so many, both sides of it; together as much text as numpy has room for."""
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


def recipe_for(size: Size, *, has_gpu: bool) -> Recipe:
    """Choose settings by the recipes that were measured, at the sizes of text nearest by."""
    room = 260 + size.characters + int(0.7 * size.types)
    tokens = PIECES_A_WORD * size.words / 2 * max(1, size.pairs)
    if size.pairs <= 50_000:
        steps = _rounded(EPOCHS * tokens / 3400, 500, 8000)
        vocabulary = _vocabulary(8000, room, size)
        name = "configs/multi30k-en-de.yaml (29,000 pairs)"
        return Recipe(
            name, 256, 4, 512, 3, 0.3, vocabulary, 1024, steps, steps // 10, "cosine", 0.002
        )
    if size.pairs <= 1_000_000 or not has_gpu:
        wide = 4 if has_gpu else 1
        steps = _rounded(EPOCHS * tokens / (3400 * wide), 2000, 100_000)
        vocabulary = _vocabulary(8000 if size.pairs < 300_000 else 16_000, room, size)
        dropout = 0.3 if size.pairs < 1_000_000 else 0.1
        name = "configs/small.yaml (110,000 pairs were tried)"
        warmup = min(1000, steps // 10)
        return Recipe(
            name, 256, 4, 1024, 3, dropout, vocabulary, 1024 * wide, steps, warmup, "cosine", 0.002
        )
    vocabulary = _vocabulary(32_000, room, size)
    name = "configs/transformer-base-wmt14-en-de.yaml (the paper's, for 4.5 million pairs)"
    return Recipe(name, 512, 8, 2048, 6, 0.1, vocabulary, 6250, 100_000, 4000, "noam", 7.0e-4)


def _rounded(steps: float, least: int, most: int) -> int:
    return int(min(most, max(least, round(steps / 500) * 500)))


def _vocabulary(wanted: int, room: int, size: Size) -> int:
    """Choose a number of pieces that the text can fill and that holds its characters."""
    least = 260 + int(1.2 * size.characters) + 40
    return max(least, min(max(wanted, 2 * size.characters), room // 100 * 100))


def _held_out_files(request: Request) -> list[Path]:
    """Name the files that a split makes: train and valid, source and target."""
    folder = request.output.with_suffix("")
    ends = (request.src_lang, request.tgt_lang)
    if ends[0].lower() == ends[1].lower():  # which may be one name to a file system
        ends = ("src", "tgt")
    return [folder / f"{name}.{end}" for name in ("train", "valid") for end in ends]


def _hold_out(
    request: Request, corpus: TextCorpus, pairs: int, files: list[Path], stop: Stop
) -> int:
    """Split a number of pairs off into a validation set, drawn from all over; pairs with the same
    text on a side as one of them go to neither. Returns how many are left to learn from; raises
    `UserError` where none can be held out, or none are left.
    """
    if request.hold_out > MOST_HELD_OUT * pairs:
        raise RefusedError(
            f"--hold-out {request.hold_out}: more than a tenth of the {pairs:,} pairs; give a "
            "smaller number, or a validation set of its own by --valid-src and --valid-tgt"
        )
    held = _chosen(corpus, pairs, request.hold_out, stop)
    if not held:
        raise UserError(
            f"{corpus.src}: nothing can be held out: the pairs that were drawn are blank on a side "
            "or not valid UTF-8; see mtrain check"
        )
    sources, targets = (set(map(str.strip, texts)) for texts in zip(*held.values(), strict=True))
    files[0].parent.mkdir(parents=True, exist_ok=True)
    asides = [file.with_name(f".{file.name}.partial") for file in files]
    left = dropped = 0
    try:
        with ExitStack() as stack:
            sinks = [stack.enter_context(aside.open("wb")) for aside in asides]
            bar = stack.enter_context(progress_bar(pairs, "pair", "splitting"))
            for number, src, tgt in read_rows(corpus, Reading(invalid_utf8="drop")):
                bar.update()
                if number % CHUNK == 0:
                    stop.check()
                is_held = number in held
                if not is_held and (src.strip() in sources or tgt.strip() in targets):
                    dropped += 1
                    continue
                left += not (is_held or is_blank(src) or is_blank(tgt))
                for side, text in enumerate((src, tgt)):
                    sinks[side + 2 * is_held].write(text.encode("utf-8") + b"\n")
        if not left:
            raise UserError(
                f"{corpus.src}: nothing is left to learn from: every other pair is blank on a side "
                "or shares one with those held out"
            )
        for aside, file in zip(asides, files, strict=True):
            manifest.sync(aside)
            os.replace(aside, file)
    finally:
        for aside in asides:
            aside.unlink(missing_ok=True)
    logger.info("held out %s pairs: %s, %s", f"{len(held):,}", *files[2:])
    if len(held) < request.hold_out:
        logger.warning(
            "these are fewer than the %s asked for: others that were drawn are blank or share a "
            "side with one of them",
            f"{request.hold_out:,}",
        )
    if dropped:
        logger.info("left out %s pairs that share a side with one of them", f"{dropped:,}")
    return left


def _chosen(corpus: TextCorpus, pairs: int, count: int, stop: Stop) -> dict[int, tuple[str, str]]:
    """Draw pairs that are not blank and not alike on a side, by their line numbers."""
    drawn = np.random.default_rng(1).choice(pairs, 2 * count, replace=False, shuffle=False)
    wanted = set((drawn + 1).tolist())
    found: dict[int, tuple[str, str]] = {}
    seen: tuple[set[str], set[str]] = set(), set()
    for number, *sides in read_rows(corpus, Reading(invalid_utf8="drop")):
        if number % CHUNK == 0:
            stop.check()
        if number in wanted and not any(map(is_blank, sides)):
            if not any(text.strip() in before for text, before in zip(sides, seen, strict=True)):
                found[number] = (sides[0], sides[1])
            for text, before in zip(sides, seen, strict=True):
                before.add(text.strip())
    order = np.random.default_rng(2).permutation(len(found))[:count]
    numbers = list(found)
    return {number: found[number] for number in sorted(numbers[place] for place in order.tolist())}


def render(
    request: Request,
    size: Size,
    recipe: Recipe,
    train: tuple[Path, Path],
    valid: tuple[Path, Path],
    *,
    drops: bool = False,
) -> str:
    """Write the config; `drops` has it leave out pairs that are not valid UTF-8."""
    save_every = max(10, recipe.max_steps // 40 // 10 * 10)
    policies = ("drop", "error") if drops else ("error", "drop")
    values = {
        **asdict(recipe),
        "pairs": f"{size.pairs:,}",
        "languages": printable(f"{request.src_lang} to {request.tgt_lang}"),
        "config": printable(shlex.quote(str(request.output))),
        "run_dir": _entries({"run_dir": f"runs/{request.output.stem}"}, 0),
        "src_lang": _entries({"src_lang": request.src_lang}, 2),
        "tgt_lang": _entries({"tgt_lang": request.tgt_lang}, 2),
        "train": _entries({"src": str(train[0]), "tgt": str(train[1])}, 6),
        "valid": _entries({"src": str(valid[0]), "tgt": str(valid[1])}, 4),
        "invalid_utf8": policies[0],
        "other_utf8": policies[1],
        "save_every": save_every,
        "valid_every": 5 * save_every,
    }
    rows = []
    for row in TEMPLATE.splitlines():
        line, mark, comment = (Template(part).substitute(values) for part in row.partition("  # "))
        rows.append(f"{line:<33} # {comment}\n" if mark else f"{line}\n")
    return "".join(rows)


def _entries(values: dict[str, str], indent: int) -> str:
    """Write settings as YAML for a place that is indented already."""
    return dump_document(values).rstrip("\n").replace("\n", "\n" + " " * indent)
