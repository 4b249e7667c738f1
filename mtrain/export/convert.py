"""`mtrain export`: a model in another engine's form, published once both translate alike."""

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from mtrain.config.corpora import HubCorpus
from mtrain.config.schema import Config
from mtrain.corpus.lines import is_blank
from mtrain.corpus.readers import describe, read_pairs, reading_of
from mtrain.export import argos_format, ctranslate2_format, marian_format
from mtrain.export.parity import NEEDED, Agreement, Engine, compare
from mtrain.runs import manifest
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.log import is_on_terminal, logger, progress_bar, shorten
from mtrain.runtime.outputs import opened, size_of
from mtrain.scoring.references import read_source
from mtrain.translation.loading import LoadedModel

# Lines that both engines translate, and different ones that are shown.
MAX_LINES, MAX_SHOWN = 1000, 20
# Loss of natural log-probability per token by rounded weights that is worth a warning.
MUCH_LOST = 0.05
# Each module has `check`, which refuses a shape or quantization; `write`, which writes a model into
# an existing directory; and `load`, which makes an `Engine` of what was written.
FORMS = {
    "ctranslate2": ctranslate2_format,
    "hf-marian": marian_format,
    "hf": marian_format,
    "argos": argos_format,
}

Show = Callable[[str], object]


def export(
    loaded: LoadedModel,
    to: str,
    directory: Path,
    quantization: str,
    sample: Path | None,
    show: Show,
) -> None:
    """Write a model in one of `FORMS` into a new directory, for `argos` a new file; `show` gets
    lines that compare both engines on a sample. Raises `UserError`, and writes nothing, if they
    do not agree.
    """
    form = FORMS[to]
    form.check(loaded.model.shape, quantization)
    manifest.check_new(directory)
    if to == "argos" and directory.suffix != argos_format.SUFFIX:
        raise RefusedError(f"--output {directory}: give a name that ends in {argos_format.SUFFIX}")
    lines = _read_sample(loaded.config, sample)
    loaded = loaded.tagged(loaded.config.data.valid_parts[0].tag)

    def fill(aside: Path) -> None:
        for kind in dict.fromkeys(("float32", quantization)):  # the layout first, then its rounding
            form.write(aside, loaded, kind)
            _prove(loaded, form.load(aside, loaded.tokenizer), kind, lines, show)

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        if to == "argos":
            with TemporaryDirectory() as aside, opened(directory, is_new=True) as (sink,):
                fill(Path(aside))
                argos_format.pack(Path(aside), loaded, sink)
        else:
            manifest.write_new_directory(directory, fill)
    except OSError as error:
        raise UserError(f"{directory}: cannot write: {error.strerror or error}") from None
    if to != "argos" or not is_on_terminal():  # where the file was opened, it was logged there
        logger.info("wrote %s (%s)", directory, size_of(directory))


def _read_sample(config: Config, sample: Path | None) -> dict[int, str]:
    """Read lines that are not blank, by their numbers: a file's, or those of the first validation
    corpus.
    """
    valid = config.data.valid_parts[0]
    name = describe(valid) if sample is None else str(sample)
    if sample is None and isinstance(valid, HubCorpus):
        raise UserError(
            f"{name}: a dataset of the Hugging Face hub is not asked for again; name lines with "
            "--sample"
        )
    try:
        sources: Iterable[str]
        if sample is None:
            sources = (src for src, _ in read_pairs(valid, reading_of(config, keep_blank=True)))
        else:
            sources = read_source(sample, [])
        found = ((number, line) for number, line in enumerate(sources, 1) if not is_blank(line))
        lines = dict(islice(found, MAX_LINES))
    except UserError as error:
        raise UserError(f"{error}; or name other lines with --sample") from None
    if not lines:
        raise UserError(f"{name}: holds no lines to translate; name others with --sample")
    with_tag = f", each after the piece {valid.tag}" if valid.tag else ""
    logger.info("comparing on %s lines of %s%s", f"{len(lines):,}", name, with_tag)
    return lines


def _prove(
    loaded: LoadedModel, engine: Engine, kind: str, lines: dict[int, str], show: Show
) -> None:
    """Compare the engines and show the result; raises `UserError` if unrounded weights do not
    translate alike.
    """
    for beam_size in NEEDED:
        with progress_bar(2 * len(lines), "line", "comparing") as bar:
            found = compare(loaded, engine, lines, beam_size, bar.update)
        _show(found, engine.name, kind, show)
        if kind == "float32" and not found.is_equal:
            raise UserError(
                f"{engine.name} translates differently: {found}, but {NEEDED[beam_size]:.1%} are "
                "needed; nothing was written. A model that has learned little has many near-ties: "
                "train it longer, or compare on lines like its training text (--sample FILE)"
            )
        if found.lost > MUCH_LOST:
            lost = f"the others lose {found.lost:.3f} natural log-probability a token"
            logger.warning("%s, %s: %s", kind, found, lost)


def _show(found: Agreement, name: str, kind: str, show: Show) -> None:
    show(f"{kind}, {found}")
    for each in found.differences[:MAX_SHOWN]:
        for engine, score, text in zip(("mtrain", name), each.scores, each.texts, strict=True):
            show(f"  line {each.number}  {engine:<{len(name)}}  {score:8.3f}  {text}")
    if len(found.differences) > MAX_SHOWN:
        show(f"  and {len(found.differences) - MAX_SHOWN:,} more")
    for numbers, what in (
        (found.cut, "cuts into other pieces"),
        (found.joined, "shows without unknown pieces or white space at the ends"),
    ):
        if numbers:
            show(f"  lines that {name} {what}: {len(numbers):,} ({shorten(numbers)})")
