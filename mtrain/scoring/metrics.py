"""Scores of translations by sacreBLEU: values, confidence intervals, signatures."""

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mtrain.config.languages import FETCHED, UNSPACED, UNSPLIT_BY_13A, is_unspaced, tokenizer_for
from mtrain.corpus.writing_systems import script_fraction
from mtrain.runtime.errors import MissingExtraError, RefusedError, UserError
from mtrain.runtime.log import logger, progress_bar
from mtrain.runtime.workers import available_threads, map_tasks
from mtrain.scoring.references import check_same_length

METRICS = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}
SIGNIFICANT = 0.05  # largest p-value of a significant difference, as in sacreBLEU
MIN_TESTED = 10  # lines for a test; fewer do not give enough different resamples
MOSTLY, PARTLY = 0.5, 0.2  # fractions of the letters; technical Chinese may be mostly Latin
_RESAMPLES = 1000
# TER takes 10 to 30 ms for a sentence, and about 10 s for a line of 400 words. For references of
# this many characters or more, worker processes count the edits, `CHUNK` lines per task.
MANY_CHARACTERS, CHUNK = 25_000, 10
WORKER_DIED = "a process that counts edits for TER died, perhaps for lack of memory; start again"


@dataclass(frozen=True)
class Score:
    """A metric's value and signature, with a 95 % bootstrap confidence interval if requested."""

    name: str
    score: float
    ci: tuple[float, float] | None
    signature: str

    def as_json(self) -> dict[str, Any]:
        """Return the metric's object of `mtrain eval --json`."""
        return {"score": self.score, "ci": self.ci and list(self.ci), "signature": self.signature}

    def __str__(self) -> str:
        interval = f" [{self.ci[0]:.2f}, {self.ci[1]:.2f}]" if self.ci else ""
        return f"{self.name} {self.score:.2f}{interval} {self.signature}"


def check_tokenizer(name: str) -> None:
    """Raise `RefusedError` unless the libraries of a tokenizer are installed."""
    from sacrebleu.metrics.bleu import BLEU

    try:
        BLEU(tokenize=name)
    except (OSError, ImportError, RuntimeError) as error:
        if isinstance(error, OSError) or name in FETCHED:
            advice = "" if isinstance(error, OSError) else "remove that file to load it again, or "
            raise RefusedError(
                f"the tokenizer {name} cannot be loaded: {error}; {advice}choose another"
            ) from None
        advice = "or choose another one, such as char, with data.bleu_tokenize or --tokenize"
        raise MissingExtraError(f"the tokenizer {name}", name.split("-")[0], advice) from None


def choose_tokenizer(
    tokenize: str | None, tgt_lang: str | None, references: list[list[str]]
) -> str:
    """Return `tokenize` or else the target language's tokenizer, if sacreBLEU can load it; raises
    `RefusedError`.
    """
    if tokenize is None:
        tokenize = tokenizer_for(tgt_lang)
        if tokenize == "13a" and is_unsplit_by_13a(references[0]):
            advice = "give --tokenize char"
            if not tgt_lang or not is_unspaced(tgt_lang):
                advice = f"name their language (zh, ja, ko) with --tgt-lang, or {advice}"
            logger.warning(
                "BLEU's tokenizer 13a finds no words in the script of the references; %s", advice
            )
    check_tokenizer(tokenize)
    return tokenize


def is_unsplit_by_13a(lines: list[str]) -> bool:
    """Whether most letters are in scripts that BLEU's tokenizer 13a does not split into words."""
    return script_fraction(UNSPLIT_BY_13A, lines) > MOSTLY


def _warn_of_ter(references: list[list[str]]) -> None:
    """Warn if the references have no spaces between words, since TER then finds no words."""
    if script_fraction(UNSPACED, references[0]) > MOSTLY:
        logger.warning(
            "TER finds no words in the script of the references: one wrong letter makes a whole "
            "phrase wrong; rely on chrF and BLEU"
        )


def score(
    metric: str,
    hypotheses: list[str],
    references: list[list[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    interval: bool = False,
) -> Score:
    """Score translations with a metric of `METRICS` against one or more lists of references;
    `tokenize` is for BLEU. TER ignores case and splits Chinese and Japanese into characters; lower
    is better.
    """
    if interval:
        check_seed()
    for reference in references:  # sacreBLEU silently cuts lists of unequal length
        check_same_length("the translation", len(hypotheses), "the reference", len(reference))
    if not hypotheses:
        raise UserError("there are no lines to score; give files with text")
    scorer = _metric(metric, tokenize, lowercase, references)
    compute = scorer._compute_score_from_stats

    def compute_as_float(stats: Any) -> Any:
        computed = compute(stats)  # the score of a resample without text is not a float
        computed.score = float(computed.score)
        return computed

    scorer._compute_score_from_stats = compute_as_float
    result = scorer.corpus_score(hypotheses, None, n_bootstrap=_RESAMPLES if interval else 1)
    ci = None
    if interval:
        # sacreBLEU's interval is symmetric, so with few lines it can contain impossible scores;
        # its score of equal texts may be 100.00000000000004
        most = math.inf if metric == "ter" else max(100.0, float(result.score))
        ci = max(0.0, float(result._mean - result._ci)), min(most, float(result._mean + result._ci))
    return Score(METRICS[metric], float(result.score), ci, scorer.get_signature().format())


def score_all(
    hypotheses: list[str],
    references: list[list[str]],
    tgt_lang: str | None,
    tokenize: str | None,
    lowercase: bool,
) -> dict[str, Score]:
    """Score with each of `METRICS`, tokenized for the target language."""
    tokenize = choose_tokenizer(tokenize, tgt_lang, references)
    _warn_of_ter(references)
    options: dict[str, Any] = {"tokenize": tokenize, "lowercase": lowercase, "interval": True}
    return {metric: score(metric, hypotheses, references, **options) for metric in METRICS}


def warn_of_zero(scores: dict[str, Score]) -> None:
    """Warn of a BLEU of 0, which also good translations of a few words have."""
    if scores["bleu"].score == 0:
        logger.warning(
            "BLEU is 0 where no translation has four words, or none has a word of its reference; "
            "rely on chrF"
        )


def sentence_chrf(
    hypotheses: list[str], references: list[list[str]], lowercase: bool
) -> list[float]:
    """Return the chrF2 of each line."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF(lowercase=lowercase)
    lines = zip(hypotheses, *references, strict=True)
    return [float(metric.sentence_score(text, refs).score) for text, *refs in lines]


@dataclass(frozen=True)
class Paired:
    """A system's score in one metric; mean and half-width of the 95 % interval over resamples
    (`ci`); and the difference from the baseline with its p-value, which the baseline lacks.
    """

    score: float
    mean: float
    ci: float
    difference: float
    p: float | None
    is_significant: bool

    def as_json(self) -> dict[str, Any]:
        """Return the metric's object of `mtrain compare --json`."""
        ci = [self.mean - self.ci, self.mean + self.ci]
        content = {"score": self.score, "mean": self.mean, "ci": ci}
        if self.p is None:
            return content
        test = {"p": self.p, "significant": self.is_significant}
        return {**content, "difference": self.difference, "bootstrap": test}

    def cells(self, metric: str) -> tuple[str, ...]:
        """Return the cells of a table row."""
        score, interval = f"{self.score:.2f}", f"{self.mean:.2f} ± {self.ci:.2f}"
        if self.p is None:
            return score, interval, "baseline ", ""
        is_better = self.difference < 0 if metric == "ter" else self.difference > 0
        word = "equal " if not self.difference else "better" if is_better else "worse "
        difference = f"{self.difference:+.2f} {word}"
        return score, interval, difference, f"{self.p:.4f}{'*' if self.is_significant else ' '}"


def paired_tests(
    metrics: list[str],
    systems: list[tuple[str, list[str]]],
    references: list[list[str]],
    tokenize: str,
    lowercase: bool,
) -> dict[str, tuple[str, list[Paired]]]:
    """Compare systems with the first one by sacreBLEU's paired bootstrap resampling; return each
    metric's signature and the scores of the systems. Equal scores have a p-value of 1; scores of
    fewer than `MIN_TESTED` lines are never significantly different.
    """
    from sacrebleu.significance import PairedTest

    check_seed()
    if "ter" in metrics:
        _warn_of_ter(references)
    scorers = {name: _metric(name, tokenize, lowercase, references) for name in metrics}
    signatures, results = PairedTest(list(systems), scorers, None, "bs")()
    tests, has_enough_lines = {}, len(references[0]) >= MIN_TESTED
    for metric in metrics:
        key, rows = METRICS[metric], list[Paired]()
        system_results: list[Any] = list(results[key])
        for result in system_results:
            difference = float(result.score - system_results[0].score)
            score, mean, ci = map(float, (result.score, result.mean, result.ci))
            p = result.p_value  # None for the baseline, and meaningless for equal scores
            p = 1.0 if p is not None and not difference else p
            is_significant = p is not None and has_enough_lines and p <= SIGNIFICANT
            rows.append(Paired(score, mean, ci, difference, p, is_significant))
        tests[metric] = signatures[key].format(), rows
    return tests


def check_seed() -> None:
    """Raise `RefusedError` if `SACREBLEU_SEED` is set, but not to a valid seed."""
    seed = os.environ.get("SACREBLEU_SEED", "none")
    if seed.lower() != "none" and not re.fullmatch("[0-9]{1,18}", seed):
        raise RefusedError(f"SACREBLEU_SEED={seed}: expected a whole number from 0, or none")


def _metric(name: str, tokenize: str, lowercase: bool, references: list[list[str]]) -> Any:
    """Make a metric of sacreBLEU with cached references."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name == "bleu":
        # `force` silences a warning of tokenized text: `notes` compares with the references
        return BLEU(tokenize=tokenize, lowercase=lowercase, references=references, force=True)
    if name == "chrf":
        return CHRF(lowercase=lowercase, references=references)
    by_characters = _has_character_ter(tokenize, references)
    ter: Any = TER(normalized=by_characters, asian_support=by_characters, references=references)

    def extract(hypotheses: list[str], _: None) -> list[list[float]]:
        return _count_edits(by_characters, list(zip(hypotheses, *references, strict=True)))

    ter._extract_corpus_statistics = extract
    return ter


def _has_character_ter(tokenize: str, references: list[list[str]]) -> bool:
    """Whether TER compares characters: for Chinese and Japanese."""
    return tokenize in ("zh", "ja-mecab") or script_fraction(("zh", "ja"), references[0]) > PARTLY


def _count_edits(by_characters: bool, lines: list[tuple[str, ...]]) -> list[list[float]]:
    """Return TER's statistics of each line, a hypothesis and its references: the number of edits
    and the mean length of the references.
    """
    count = partial(_count_edits_here, by_characters)
    chunks = (lines[start : start + CHUNK] for start in range(0, len(lines), CHUNK))
    results: Iterable[list[list[float]]] = map(count, chunks)
    processes = available_threads()
    if processes > 1 and sum(len(line[1]) for line in lines) >= MANY_CHARACTERS:
        results = map_tasks(count, chunks, processes, WORKER_DIED)
    statistics = list[list[float]]()
    with progress_bar(len(lines), "line", "counting edits for TER") as bar:
        for result in results:
            statistics += result
            bar.update(len(result))
    return statistics


def _count_edits_here(by_characters: bool, lines: list[tuple[str, ...]]) -> list[list[float]]:
    from sacrebleu.metrics.ter import TER

    hypotheses, *references = zip(*lines, strict=True)
    ter: Any = TER(normalized=by_characters, asian_support=by_characters)
    statistics: list[list[float]] = ter._extract_corpus_statistics(hypotheses, references)
    return statistics
