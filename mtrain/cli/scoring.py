"""Commands that score translations."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mtrain.cli import opening, options
from mtrain.cli.options import file, path, text_file, value
from mtrain.cli.streams import check_output, print_json, print_text
from mtrain.config.languages import FETCHED, BleuTokenizer, language_code, tokenizer_for
from mtrain.runtime import log
from mtrain.runtime.console import writing
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.outputs import refuse_overwriting, write_output

if TYPE_CHECKING:
    from mtrain.config.schema import Config
    from mtrain.scoring.metrics import Score
    from mtrain.scoring.notes import Note
    from mtrain.translation.loading import LoadedModel
    from mtrain.translation.translator import Translator


@options.with_options(options.SEARCH | options.SAMPLING)
def evaluate(
    run: options.Run = None,
    model: options.Models = None,
    source: options.Source = None,
    reference: options.Reference = None,
    on: options.RunSet = None,
    hypothesis: options.Hypothesis = None,
    output: Annotated[
        Path | None, file("File for the model's translations.", "--output", "-o")
    ] = None,
    tgt_lang: options.Language = None,
    tokenize: options.Tokenize = None,
    lowercase: options.Lowercase = False,
    json_: options.Json = False,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    **decode: Any,
) -> None:
    """Score a model or a translation with BLEU, chrF and TER, each with a confidence interval.

    Example: `mtrain eval -m runs/NAME -s test.en -r test.de`
    """
    model = model if run is None else [opening.run_or_checkpoint(run, model)]
    reference = reference or []
    _check_eval_inputs(model, source, reference, hypothesis, output, on, device, precision, decode)
    from mtrain.scoring.metrics import check_seed, check_tokenizer, score_all, warn_of_zero
    from mtrain.scoring.notes import find_faults
    from mtrain.scoring.references import read_aligned, read_references, read_source

    check_seed()
    check_tokenizer(tokenize or tokenizer_for(tgt_lang))
    is_given = tokenize is not None or tgt_lang is not None
    if model is not None and on is not None:
        sources, references, language, tag = _read_run_set(model[0], on, output)
        tgt_lang = tgt_lang or language
        decode["tag"] = tag if decode["tag"] is None else decode["tag"]
    else:
        references = read_references(reference)
        sources = read_source(source, references, reference[0]) if source else []
    is_wrong = False  # whether the languages of translations and references differ
    if hypothesis is not None:
        hypotheses = read_aligned(hypothesis, references, reference[0])
    else:
        with opening.open_translator(model or [], device, precision, **decode) as translator:
            is_wrong = _warn_of_direction(translator.loaded, tgt_lang, sources, references)
            tgt_lang = tgt_lang or translator.loaded.tgt_lang
            tokenize = tokenize if is_given else _tokenizer_of(translator.loaded.config)
            check_tokenizer(tokenize or tokenizer_for(tgt_lang))
            hypotheses = _translate(translator, sources, output)
        if not translator.ranks.is_rank_0:
            return
    scores = score_all(hypotheses, references, tgt_lang, tokenize, lowercase)
    notes: list[Note] = []
    if not is_wrong:
        warn_of_zero(scores)
        notes = find_faults(hypotheses, references, sources, lowercase)
    _print_scores(scores, notes, len(hypotheses), as_json=json_)


def _print_scores(
    scores: "dict[str, Score]", notes: "list[Note]", lines: int, *, as_json: bool
) -> None:
    """Print the scores of some lines, and warn of what the notes say or print them, too."""
    if as_json:
        content: dict[str, Any] = {name: each.as_json() for name, each in scores.items()}
        print_json({"lines": lines, **content, "notes": [*map(asdict, notes)]})
        return
    print_text(*map(str, scores.values()))
    for note in notes:
        log.logger.warning("%s", note)


def _tokenizer_of(config: "Config") -> BleuTokenizer | None:
    """Return the tokenizer that a model's config names, if any. Refuse one that sacreBLEU would
    download: the model may be from somebody else.
    """
    tokenize = config.data.bleu_tokenize
    if tokenize in FETCHED:
        raise RefusedError(
            f"data.bleu_tokenize of the model: {tokenize}: sacreBLEU downloads this tokenizer; add "
            f"--tokenize {tokenize} to allow it, or choose another one"
        )
    return tokenize


def _read_run_set(
    model: Path, name: str, output: Path | None
) -> tuple[list[str], list[list[str]], str, str | None]:
    """Return the sources, references, target language and tag of a set of the run that a model
    belongs to; raises `UserError`, also if `output` would overwrite a file of the set.
    """
    from mtrain.corpus.readers import files_of, reading_of
    from mtrain.runs import sets

    run = sets.read_run_of(model)
    key = sets.key_of(run, name)
    try:
        text = sets.read_set(run, key)
    except UserError as error:
        raise UserError(f"{error}; give files with -s/--source and -r/--reference") from None
    assert run.config is not None
    refuse_overwriting(output, *files_of(text.corpus, reading_of(run.config).root))
    language = run.config.data.languages(text.corpus)[1]
    return text.sources, [text.references], language, text.corpus.tag


def _warn_of_direction(
    loaded: "LoadedModel", tgt_lang: str | None, sources: list[str], references: list[list[str]]
) -> bool:
    """Warn of a tag for translation to another language than `tgt_lang`, that of the references, or
    else if sources and references seem to be swapped; return whether there was a warning.
    """
    from mtrain.scoring.references import warn_of_swapped

    targets = [tgt for _, tgt in loaded.directions]
    is_fitting = language_code(tgt_lang or "") in map(language_code, targets)
    if loaded.tag is None or tgt_lang is None or is_fitting:
        other_tags = [tag for tag in loaded.tags if tag != loaded.tag]
        advice = f", or choose another tag ({', '.join(other_tags)})" if other_tags else ""
        return warn_of_swapped(sources, references, loaded.directions, advice)
    log.logger.warning(
        "--tag %s: translates to %s, but the references are in %s, so the scores mean nothing; "
        "choose another tag of the model (%s), leave the tag out, or give other references",
        loaded.tag,
        " and ".join(targets),
        tgt_lang,
        ", ".join(loaded.tags),
    )
    return True


def _translate(translator: "Translator", sources: list[str], output: Path | None) -> list[str]:
    """Translate sources, and write the translations to the file `output`, if given."""
    from mtrain.translation.translator import UnfinishedLines

    cut, unfinished = log.TruncatedLines(), UnfinishedLines()
    with log.progress_bar(len(sources), "line", "translating") as bar:
        hypotheses = translator.best(sources, bar.update, cut.add, unfinished.add)
    cut.warn(translator.loaded.max_source_length)
    unfinished.warn()
    if output is not None and translator.ranks.is_rank_0:
        write_output(output, "".join(line + "\n" for line in hypotheses).encode("utf-8"))
    return hypotheses


def _check_eval_inputs(
    model: list[Path] | None,
    source: Path | None,
    reference: list[Path],
    hypothesis: Path | None,
    output: Path | None,
    on: str | None,
    device: str,
    precision: str,
    decode: dict[str, object],
) -> None:
    """Refuse options that are missing or cannot be combined, and a missing model."""
    if hypothesis is not None:
        opening.refuse_ranks()
    fault = ""
    if model is None and hypothesis is None:
        fault = "give a model (-m/--model), or a translation (--hypothesis) with -r/--reference"
    elif model is not None and hypothesis is not None:
        fault = "give either a model or a --hypothesis"
    elif on is not None and model is None:
        fault = "--on needs the model (-m/--model)"
    elif on is not None and (source or reference):
        fault = "--on takes source and reference from the run; leave -s/--source and -r/--reference"
        fault += " out, or leave --on out"
    elif on is None and model is not None and not (source and reference):
        fault = "a model needs -s/--source and -r/--reference, or --on SET"
    elif on is None and not reference:
        fault = "--hypothesis needs -r/--reference"
    if fault:
        raise RefusedError(f"mtrain eval: {fault}")
    options.refuse_two_from_stdin(source, hypothesis, *reference)
    refuse_overwriting(output, source, hypothesis, *reference)
    if output is not None:
        check_output(output)
    needs_model = (device, precision) != ("auto", "auto") or any(
        option is not None for option in (output, *decode.values())
    )
    if hypothesis is not None and needs_model:
        raise RefusedError(
            "mtrain eval: --hypothesis cannot be combined with -o, --device, --precision or "
            "search options; remove them"
        )
    opening.require_models(*(model or []))


@options.with_options(
    {
        "batch_tokens": (int, value("N", "Largest batch: padded tokens per side.", min=1)),
        "tag": options.SEARCH["tag"],
    }
)
def score(
    source: Annotated[Path, text_file("Source text", "--source", "-s")],
    target: Annotated[Path, text_file("Its translation, line by line", "--target", "-t")],
    run: options.Run = None,
    model: options.Models = None,
    json_: options.Json = False,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    **decode: Any,
) -> None:
    """Print the log-probability that a model gives to each line of a translation.

    Example: `mtrain score -m runs/NAME -s src.txt -t tgt.txt`
    """
    if run is not None or not model:
        model = [opening.run_or_checkpoint(run, model)]
    opening.require_models(*model)
    options.refuse_two_from_stdin(source, target)
    refuse_overwriting("-", source, target)
    from mtrain.translation import loading, streams

    model_ = loading.load_with_tag(*model, device=device, precision=precision, **decode)
    scores = streams.score_files(model_, source, target)
    if json_:
        print_json({"scores": [round(score, 6) for score in scores]})
        return
    with writing("-") as sink:
        sink.writelines(f"{score:.6f}\n".encode() for score in scores)


def compare(
    systems: Annotated[
        list[Path], path("FILE", "Two or more translations; the first is the baseline.")
    ],
    reference: options.Reference = None,
    source: options.Source = None,
    tgt_lang: options.Language = None,
    tokenize: options.Tokenize = None,
    lowercase: options.Lowercase = False,
    metrics: Annotated[
        str, value("NAMES", "One or more of bleu, chrf, ter, separated by commas.")
    ] = "bleu,chrf,ter",
    lines: Annotated[
        int, value("N", "Lines to show for each kind of difference.", "--lines", "-n", min=0)
    ] = 3,
    json_: options.Json = False,
) -> None:
    """Compare translations: whether their scores differ significantly, and which lines differ most.

    Example: `mtrain compare -r ref.de old.de new.de`
    """
    if not reference:
        raise RefusedError("mtrain compare: needs -r/--reference FILE")
    options.refuse_two_from_stdin(source, *reference, *systems)
    from mtrain.scoring import compare as comparing
    from mtrain.scoring.metrics import choose_tokenizer
    from mtrain.scoring.references import read_references, read_source

    chosen = comparing.choose_metrics(metrics)
    references = read_references(reference)
    hypotheses = comparing.read_systems(systems, references, reference[0])
    sources = read_source(source, references, reference[0]) if source else []
    result = comparing.compare(
        hypotheses,
        references,
        sources,
        metrics=chosen,
        tokenize=choose_tokenizer(tokenize, tgt_lang, references),
        lowercase=lowercase,
        max_lines=lines,
    )
    if json_:
        print_json(result.as_json())
    else:
        print_text(*result.rows())
