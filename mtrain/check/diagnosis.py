"""`mtrain check`: the findings in all text, how the vocabulary fits it, and a forecast of the
training.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from textwrap import wrap

import numpy as np
from numpy.typing import NDArray

from mtrain.check.checker import Checker
from mtrain.check.findings import ERROR, NOTE, WARNING, Findings
from mtrain.check.words import Words
from mtrain.config.schema import Config
from mtrain.data.prepare import Preparation, weights_of, without_missing_init_from
from mtrain.data.tokenizer import Tokenizer
from mtrain.runs.compatibility import refuse_foreign_directory
from mtrain.runs.directory import RunDirectory
from mtrain.runtime.errors import RefusedError, UserError
from mtrain.runtime.stop import Stop
from mtrain.scoring.suitability import missing_tokenizers, text_warnings, tokenizer_warnings
from mtrain.training.plan import Forecast, forecast_from_sample

MAX_ENCODED = 20_000  # approximate number of pairs of the sample that are tokenized
MAX_BYTE_FRACTION = 0.02  # fraction of tokens that are bytes or unknown
MAX_TOKENS_PER_WORD = 3.0  # on average
SEVERITIES = (ERROR, WARNING, NOTE)
VOCABULARY_BYTES = 250_000  # estimate for a vocabulary that is not trained yet

# How a vocabulary splits the words of a side: tokens per word (a Han character is one), and
# fractions of the tokens that are bytes or unknown.
Fit = dict[str, float]
FIT_FORMAT = "{tokens_per_word:.2f} tokens per word, {bytes:.2%} bytes, {unknown:.2%} unknown"


@dataclass
class Diagnosis:
    """All that `mtrain check` reports."""

    corpora: list[Findings]
    has_vocabulary: bool = False
    fits: dict[str, Fit] = field(default_factory=dict)  # of the vocabulary, by side of the text
    forecast: Forecast | None = None
    failure: str = ""  # why there is no forecast
    warnings: list[str] = field(default_factory=list)  # about the plan, such as too little text
    refusals: list[str] = field(default_factory=list)  # why training would not start here

    def count(self, severity: str) -> int:
        """Count the findings of this severity: one for each kind and corpus."""
        findings = chain.from_iterable(corpus.by_kind.values() for corpus in self.corpora)
        others = {WARNING: self.warnings, ERROR: self.refusals}.get(severity, [])
        return len(others) + sum(finding.severity == severity for finding in findings)

    def lines(self, width: int) -> Iterator[str]:
        """Yield the lines for people, at most `width` columns wide where possible."""
        for findings in self.corpora:
            yield from findings.lines(width)
        yield "vocabulary"
        if not self.has_vocabulary:
            text = "none yet: lengths in tokens are estimated (mtrain train --dry-run makes one)"
            yield from wrap(text, width, initial_indent="  ", subsequent_indent="    ")
        elif not self.fits:
            yield "  not measured: there is no text to measure"
        for name, fit in self.fits.items():
            yield f"  {name}: {FIT_FORMAT.format(**fit)}"
        if self.forecast is not None:
            yield "forecast"
            for line in self.forecast.lines:
                yield from wrap(line, width, initial_indent="  ", subsequent_indent="    ")
        elif self.failure:
            yield from wrap(f"no forecast: {self.failure}", width, subsequent_indent="    ")
        for severity, texts in ((ERROR, self.refusals), (WARNING, self.warnings)):
            for text in texts:
                yield from wrap(f"{severity}: {text}", width, subsequent_indent="    ")
        counts = {name: self.count(name) for name in SEVERITIES}
        totals = [f"{n} {name}{'s' * (n != 1)}" for name, n in counts.items() if n]
        yield ", ".join(totals) or "nothing suspicious was found"

    def as_json(self) -> dict[str, object]:
        """Return the object for scripts."""
        return {
            "corpora": [findings.as_json() for findings in self.corpora],
            "vocabulary": self.fits or None,
            "forecast": self.forecast.numbers if self.forecast else None,
            "doubts": self.warnings,
            "refusals": self.refusals,
            **{f"{name}s": self.count(name) for name in SEVERITIES},
        }


def diagnose(
    config: Config,
    stop: Stop,
    config_file: Path | None = None,
    *,
    examples: int,
    with_forecast: bool,
    timed: bool,
) -> Diagnosis:
    """Check all text of a config, and the run directory if its file is given; return the findings.
    Raises `UserError` if the vocabulary that the config names cannot be read.
    """
    from_scratch = config.train.init_from is None
    config, warnings = without_missing_init_from(config)
    checker = Checker(config, stop, examples)
    checker.scan()
    preparation = Preparation(config, stop)
    preparation.scans = checker.scans
    tokenizer = preparation.find_tokenizer()
    checker.check(tokenizer)
    diagnosis = Diagnosis(
        checker.all_findings, has_vocabulary=tokenizer is not None, warnings=warnings
    )
    if config_file is not None:
        try:
            refuse_foreign_directory(RunDirectory(Path(config.run_dir)), config_file)
        except RefusedError as error:
            diagnosis.refusals.append(str(error))
    lengths = [_add_fit(diagnosis, checker, side) for side in (0, 1)]
    sizes = [findings.usable for findings in checker.train]
    sets = {
        findings.name: findings.pairs for findings in checker.all_findings if not findings.is_train
    }
    diagnosis.warnings += text_warnings(sum(sizes), sets, from_scratch=from_scratch)
    diagnosis.warnings += tokenizer_warnings(config.data, {})
    diagnosis.warnings += missing_tokenizers(config.data.tokenizers)
    if with_forecast:
        pairs = sum(n * w for n, w in zip(sizes, weights_of(config, sizes), strict=True))
        size = tokenizer.vocab_size if tokenizer else config.tokenizer.vocab_size
        vocabulary_bytes = len(tokenizer.proto) if tokenizer else VOCABULARY_BYTES
        sample = np.stack(lengths, 1)  # (pairs, 2)
        try:
            diagnosis.forecast = forecast_from_sample(
                config, size, vocabulary_bytes, sample, pairs, timed=timed, check_stop=stop.check
            )
        except RefusedError as error:  # such as for a device that this machine lacks
            diagnosis.refusals.append(str(error))
        except UserError as error:
            stop.check()
            diagnosis.failure = str(error)
        else:
            diagnosis.warnings += diagnosis.forecast.warnings()
    return diagnosis


def _add_fit(diagnosis: Diagnosis, checker: Checker, side: int) -> NDArray[np.int64]:
    """Add how the vocabulary fits a side of the sample to the diagnosis; return the lengths of its
    texts in tokens with tag, estimated if there is no vocabulary.
    """
    texts = [text for chunk in checker.sample for text in chunk.texts[side]]
    step = max(1, len(texts) // MAX_ENCODED)
    all_tags = [chunk.findings.tags[side] for chunk in checker.sample for _ in chunk.numbers]
    tags = np.array(all_tags[::step], np.int64)
    if checker.tokenizer is None:
        estimates = [chunk.estimated_tokens[:, side] for chunk in checker.sample]
        return np.array(np.ceil(np.concatenate([[], *estimates])[::step]), np.int64) + tags
    words = Words.join([chunk.words[side] for chunk in checker.sample]).counts
    texts, words = texts[::step], words[::step]
    if not texts:
        return tags
    name, ids = ("source", "target")[side], checker.tokenizer.encode(texts)
    diagnosis.fits[name] = fit = _fit(checker.tokenizer, ids, int(words.sum()))
    is_bad = (
        fit["bytes"] + fit["unknown"] > MAX_BYTE_FRACTION
        or fit["tokens_per_word"] > MAX_TOKENS_PER_WORD
    )
    if is_bad:
        checker.all_findings[0].add_message("pieces", f"{name}: {FIT_FORMAT.format(**fit)}")
    return np.array(list(map(len, ids)), np.int64) + tags


def _fit(tokenizer: Tokenizer, lines: list[list[int]], words: int) -> Fit:
    """Return how a vocabulary splits lines with this number of words."""
    counts, processor = Counter(chain.from_iterable(lines)), tokenizer.processor
    tokens = max(1, counts.total())
    byte_tokens = sum(count for number, count in counts.items() if processor.is_byte(number))
    return {
        "tokens_per_word": round(counts.total() / max(1, words), 4),
        "bytes": round(byte_tokens / tokens, 6),
        "unknown": round(counts[tokenizer.unk_id] / tokens, 6),
    }
