"""`mtrain export`: a model in another engine's form, published once both translate alike."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

from mtrain.config.schema import Config, HubCorpus
from mtrain.corpus.lines import is_blank
from mtrain.corpus.readers import describe, read_pairs, reading_of
from mtrain.data.tokenizer import Tokenizer
from mtrain.export import ctranslate2_format, marian_format
from mtrain.export.proof import MUCH_LOST, NEEDED, Agreement, Engine, compare
from mtrain.model.transformer import Shape
from mtrain.runs import manifest
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import logger, progress_bar, shorten
from mtrain.scoring.references import read_source
from mtrain.translation.loading import LoadedModel

# Lines that both engines translate, and different ones that are shown.
MOST_LINES, MOST_SHOWN = 1000, 20

Show = Callable[[str], object]


class Form(Protocol):
    """The functions that the module of a form offers."""

    def check(self, shape: Shape, quantization: str) -> None:
        """Raise `RefusedError` for a model that the engine cannot express."""

    def write(self, directory: Path, loaded: LoadedModel, quantization: str) -> None:
        """Write a model into an existing directory."""

    def load(self, directory: Path, tokenizer: Tokenizer) -> Engine:
        """Load a written model."""
        ...


FORMS: dict[str, Form] = {"ctranslate2": ctranslate2_format, "hf-marian": marian_format}


def export(
    loaded: LoadedModel,
    to: str,
    directory: Path,
    quantization: str,
    sample: Path | None,
    show: Show,
) -> None:
    """Write a model in one of `FORMS` into a new directory; `show` gets lines that compare both
    engines on a sample. Raises `UserError`, and writes nothing, if they do not agree.
    """
    form = FORMS[to]
    form.check(loaded.model.shape, quantization)
    manifest.check_new(directory)
    lines = _read_sample(loaded.config, sample)

    def fill(aside: Path) -> None:
        for kind in dict.fromkeys(("float32", quantization)):  # the layout first, then its rounding
            form.write(aside, loaded, kind)
            _prove(loaded, form.load(aside, loaded.tokenizer), kind, lines, show)

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_new_directory(directory, fill)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"{directory}: cannot write: {error.strerror or error}") from None
    logger.info("written to %s", directory)


def _read_sample(config: Config, sample: Path | None) -> dict[int, str]:
    """Read lines that are not blank, by their numbers: a file's, or the validation set's."""
    name = describe(config.data.valid) if sample is None else str(sample)
    sources = _valid_sources(config, name) if sample is None else read_source(sample, [])
    found = ((number, line) for number, line in enumerate(sources, 1) if not is_blank(line))
    lines = dict(islice(found, MOST_LINES))
    if not lines:
        raise UserError(f"{name}: holds no lines to translate; name others with --sample")
    logger.info("comparing on %s lines of %s", f"{len(lines):,}", name)
    return lines


def _valid_sources(config: Config, name: str) -> Iterator[str]:
    if isinstance(config.data.valid, HubCorpus):
        raise UserError(
            f"{name}: a dataset of the Hugging Face hub is not asked for again; name lines with "
            "--sample"
        )
    try:
        pairs = read_pairs(config.data.valid, reading_of(config, keep_blank=True))
        yield from (src for src, _ in pairs)
    except UserError as error:
        raise UserError(f"{error}; or name other lines with --sample") from None


def _prove(
    loaded: LoadedModel, engine: Engine, kind: str, lines: dict[int, str], show: Show
) -> None:
    """Compare the engines and show the result; raises `UserError` if unrounded weights do not
    translate alike.
    """
    for beam_size in NEEDED:
        texts = list(lines.values())
        with progress_bar(2 * len(lines), "line", "comparing") as bar:
            found = compare(loaded, engine, texts, beam_size, bar.update)
        _show(found, engine.name, kind, list(lines), show)
        if kind == "float32" and not found.is_equal:
            raise UserError(
                f"{engine.name} translates differently: {found}, but {NEEDED[beam_size]:.1%} are "
                "needed; nothing was written. A model that has learned little has many near-ties: "
                "train it longer, or compare on lines like its training text (--sample FILE)"
            )
        if found.lost > MUCH_LOST:
            logger.warning(
                "%s: its %s translations are worse by %.3f natural log-probability a token",
                kind,
                found.search,
                found.lost,
            )


def _show(found: Agreement, name: str, kind: str, numbers: list[int], show: Show) -> None:
    show(f"{kind}, {found}")
    for difference in found.differences[:MOST_SHOWN]:
        for engine, score, text in zip(
            ("mtrain", name), difference.scores, difference.texts, strict=True
        ):
            show(f"  line {numbers[difference.place]}  {engine:<{len(name)}}  {score:8.3f}  {text}")
    if len(found.differences) > MOST_SHOWN:
        show(f"  and {len(found.differences) - MOST_SHOWN:,} more")
    for places, what in (
        (found.cut, "cuts into other pieces"),
        (found.joined, "shows without unknown pieces or white space at the ends"),
    ):
        if places:
            listed = shorten(numbers[place] for place in places)
            show(f"  lines that {name} {what}: {len(places):,} ({listed})")
