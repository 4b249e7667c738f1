"""`mtrain export`: write a model for another engine, if the engine translates like mtrain."""

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from mtrain.config.corpora import HubCorpus
from mtrain.config.schema import Config
from mtrain.corpus.lines import is_blank
from mtrain.corpus.readers import corpus_name, read_pairs, reading_of
from mtrain.export import argos_format, ctranslate2_format, marian_format
from mtrain.export.parity import NEEDED, Agreement, Engine, compare
from mtrain.runs import manifest
from mtrain.runtime import files
from mtrain.runtime.console import handling_write_errors
from mtrain.runtime.errors import RefusedError, UserError, is_utf8
from mtrain.runtime.log import first_numbers, logger, progress_bar
from mtrain.runtime.outputs import describe_size, opened
from mtrain.scoring.references import read_source
from mtrain.translation.loading import LoadedModel

# Largest number of lines that both engines translate, and of differing lines that are shown.
MAX_LINES, MAX_SHOWN = 1000, 20
# Loss of natural log-probability per token by rounded weights, above which there is a warning.
MUCH_LOST = 0.05
# Each module has `check`, which refuses a shape or quantization; `write`, which writes a model into
# an existing directory; and `load`, which loads a written model as an `Engine`.
FORMATS = {
    "ctranslate2": ctranslate2_format,
    "hf-marian": marian_format,
    "hf": marian_format,
    "argos": ctranslate2_format,  # which `argos_format` packs into one file
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
    """Write a model in one of `FORMATS` to a new directory (`argos`: a new file) if both engines
    agree on a sample; else raise `UserError` and write nothing. `show` gets the comparison.
    """
    format_ = FORMATS[to]
    loaded = loaded.tagged(loaded.config.data.valid_corpora[0].tag)
    format_.check(loaded.model.shape, quantization)
    files.check_new(directory)
    if not is_utf8(str(directory)):
        raise RefusedError(
            f"{directory}: its path is not UTF-8, which the library of the engine needs; choose "
            "another name (for a locale without UTF-8, set PYTHONUTF8=1)"
        )
    if to == "argos":
        argos_format.check(loaded, directory)
    lines = _read_sample(loaded.config, sample)

    def fill(temporary: Path) -> None:
        for kind in dict.fromkeys(("float32", quantization)):  # check the layout before rounding
            format_.write(temporary, loaded, kind)
            _compare(loaded, format_.load(temporary, loaded.tokenizer), kind, lines, show)

    with handling_write_errors(str(directory)):
        files.make_directories(directory.parent)
        if to == "argos":
            place = TemporaryDirectory(prefix=".mtrain-", dir=directory.parent)
            with place as temporary, opened(directory, is_new=True, is_logged=True) as (sink,):
                fill(Path(temporary))
                argos_format.pack(Path(temporary), loaded, sink)
        else:
            manifest.write_new_directory(directory, fill)
            logger.info("wrote %s (%s)", directory, describe_size(directory))


def _read_sample(config: Config, sample: Path | None) -> dict[int, str]:
    """Read lines of the sample file, or else of the first validation corpus, that are not blank;
    return them by line number.
    """
    valid = config.data.valid_corpora[0]
    name = corpus_name(valid) if sample is None else str(sample)
    if sample is None and isinstance(valid, HubCorpus):
        raise UserError(
            f"{name}: a dataset, which is not loaded again; give lines with --sample FILE"
        )
    try:
        sources: Iterable[str]
        if sample is None:
            sources = (src for src, _ in read_pairs(valid, reading_of(config, keep_blank=True)))
        else:
            sources = read_source(sample, [])
        numbered = ((number, line) for number, line in enumerate(sources, 1) if not is_blank(line))
        lines = dict(islice(numbered, MAX_LINES))
    except UserError as error:
        if sample is not None:
            raise
        raise UserError(f"{error}; or give other lines with --sample FILE") from None
    if not lines:
        raise UserError(f"{name}: no lines to translate; give other lines with --sample FILE")
    with_tag = f", each after the piece {valid.tag}" if valid.tag else ""
    logger.info("comparing on %s lines of %s%s", f"{len(lines):,}", name, with_tag)
    return lines


def _compare(
    loaded: LoadedModel, engine: Engine, kind: str, lines: dict[int, str], show: Show
) -> None:
    """Compare the engines with weights of a kind, and show the result; raises `UserError` if
    float32 weights do not translate alike.
    """
    for beam_size in NEEDED:
        with progress_bar(2 * len(lines), "line", "comparing") as bar:
            agreement = compare(loaded, engine, lines, beam_size, bar.update)
        _show(agreement, engine.name, kind, show)
        if kind == "float32" and not agreement.is_equal:
            raise UserError(
                f"{engine.name} translates differently: {agreement}, but {NEEDED[beam_size]:.1%} "
                "must be equal; nothing was written. A model that has learned little has many "
                "near-ties: train it longer, or give lines like its training text (--sample FILE)"
            )
        if agreement.lost > MUCH_LOST:
            lost = f"different translations lose {agreement.lost:.3f} log-probability per token"
            advice = ""
            if kind != "float32":
                advice = "; if that is too much, choose --quantization float32"
            logger.warning("%s, %s: %s%s", kind, agreement, lost, advice)


def _show(agreement: Agreement, name: str, kind: str, show: Show) -> None:
    is_expected = kind != "float32" and agreement.differences
    note = "; weights are rounded, which changes some translations" if is_expected else ""
    show(f"{kind}, {agreement}{note}")
    for line in agreement.differences[:MAX_SHOWN]:
        for engine, score, text in zip(("mtrain", name), line.scores, line.texts, strict=True):
            show(f"  line {line.number}  {engine:<{len(name)}}  {score:8.3f}  {text}")
    if len(agreement.differences) > MAX_SHOWN:
        show(f"  and {len(agreement.differences) - MAX_SHOWN:,} more")
    for numbers, what in (
        (agreement.encoded, "splits into other pieces"),
        (agreement.decoded, "decodes without unknown pieces or white space at the ends"),
    ):
        if numbers:
            show(f"  lines that {name} {what}: {len(numbers):,} ({first_numbers(numbers)})")
