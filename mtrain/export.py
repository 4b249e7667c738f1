"""`mtrain export`: a model in another engine's form, which proves itself before it is there."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from mtrain import checkpoint, ctranslate2_format, manifest
from mtrain.config import Config
from mtrain.corpus import describe, read_pairs
from mtrain.ctranslate2_format import CTranslate2
from mtrain.errors import RefusedError, UserError
from mtrain.evaluate import read_source
from mtrain.log import logger, progress_bar
from mtrain.prepare import reading_of
from mtrain.proof import MUCH_LOST, NEEDED, Agreement, compare
from mtrain.text import is_blank
from mtrain.translate import Translator

# Lines that both engines translate, and how many of those that differ are shown.
MOST_LINES, MOST_SHOWN = 1000, 20

Show = Callable[[str], object]


def export(
    translator: Translator, directory: Path, quantization: str, sample: Path | None, show: Show
) -> None:
    """Write a model for CTranslate2 into a new directory; `show` gets lines on how both engines
    translate a sample.

    Raises `UserError` where they do not translate alike; then it is not written.
    """
    _check_new(directory)
    lines = _read_sample(translator.config, sample)

    def fill(aside: Path) -> None:
        (aside / checkpoint.TOKENIZER).write_bytes(translator.tokenizer.proto)
        for kind in dict.fromkeys(("float32", quantization)):  # the layout first, then its rounding
            parts = translator.model, translator.tokenizer, translator.config
            ctranslate2_format.write(aside, *parts, kind)
            _prove(translator, CTranslate2(aside, translator.tokenizer), kind, lines, show)
        _check_new(directory)  # minutes later

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_directory(directory, fill)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"{directory}: cannot write: {error.strerror or error}") from None
    logger.info("written to %s", directory)


def _check_new(directory: Path) -> None:
    if directory.exists():
        raise RefusedError(f"{directory}: exists already; name a new directory")


def _read_sample(config: Config, sample: Path | None) -> dict[int, str]:
    """Read lines that are not blank, by their numbers: a file's, or the validation set's."""
    name = describe(config.data.valid) if sample is None else str(sample)
    numbered = enumerate(_sources(config, sample), 1)
    found = ((number, line) for number, line in numbered if not is_blank(line))
    lines = dict(islice(found, MOST_LINES))
    if not lines:
        raise UserError(f"{name}: holds no lines to translate; name others with --sample")
    logger.info("comparing on %s lines of %s", f"{len(lines):,}", name)
    return lines


def _sources(config: Config, sample: Path | None) -> Iterator[str]:
    if sample is not None:
        yield from read_source(sample, [])
        return
    reading = reading_of(config, keep_blank=True)
    try:
        yield from (src for src, _ in read_pairs(config.data.valid, reading))
    except UserError as error:
        raise UserError(f"{error}; or name other lines with --sample") from None


def _prove(
    translator: Translator, engine: CTranslate2, kind: str, lines: dict[int, str], show: Show
) -> None:
    """Compare the engines and show how they agree; raises `UserError` where unrounded weights do
    not.
    """
    for beam_size in NEEDED:
        texts = list(lines.values())
        with progress_bar(2 * len(lines), "line", "comparing") as bar:
            found = compare(translator, engine.translate, texts, beam_size, bar.update)
        _show(found, kind, list(lines), show)
        if kind == "float32" and not found.is_equal:
            raise UserError(f"CTranslate2 translates otherwise: {found}")
        if found.lost > MUCH_LOST:
            logger.warning(
                "%s: its %s translations are worse by %.3f natural log-probability a token",
                kind,
                found.search,
                found.lost,
            )


def _show(found: Agreement, kind: str, numbers: list[int], show: Show) -> None:
    show(f"{kind}, {found}")
    for difference in found.differences[:MOST_SHOWN]:
        for engine, score, text in zip(
            ("mtrain", "CTranslate2"), difference.scores, difference.texts, strict=True
        ):
            show(f"  line {numbers[difference.place]}  {engine:<11}  {score:8.3f}  {text}")
    if len(found.differences) > MOST_SHOWN:
        show(f"  and {len(found.differences) - MOST_SHOWN:,} more")
