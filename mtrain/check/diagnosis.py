"""`mtrain check`: the findings in all text, how the vocabulary fits it, and a forecast of the
training.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from textwrap import wrap

import numpy as np

from mtrain.check.corpora import Checker
from mtrain.check.findings import ERROR, NOTE, WARNING, Chunk
from mtrain.check.pairs import token_lengths
from mtrain.config.schema import Config
from mtrain.data.prepare import find_tokenizer, weights_of
from mtrain.data.tokenizer import Tokenizer
from mtrain.runs.directory import RunDirectory
from mtrain.runtime.errors import UserError
from mtrain.runtime.stop import Stop
from mtrain.training.plan import Forecast, forecast

MOST_ENCODED = 20_000  # pairs of the sample
MOST_BYTES = 0.02  # fraction of tokens that are bytes or unknown
MOST_A_WORD = 3.0  # tokens
GUESSED_SIZE = 250_000  # bytes of a vocabulary file that is not there yet


@dataclass(frozen=True)
class Fit:
    """How a vocabulary cuts the words of a side: tokens, and how many are bytes or unknown."""

    words: int
    tokens: int
    bytes: int
    unknown: int

    @property
    def a_word(self) -> float:
        """Tokens a word; a Han character counts as a word."""
        return self.tokens / max(1, self.words)

    def share(self, number: int) -> float:
        """Return a number as a percentage of the tokens."""
        return number / max(1, self.tokens)

    def __str__(self) -> str:
        return (
            f"{self.a_word:.2f} tokens a word, {self.share(self.bytes):.2%} bytes, "
            f"{self.share(self.unknown):.2%} unknown"
        )


@dataclass
class Diagnosis:
    """All that `mtrain check` reports."""

    checker: Checker
    fits: dict[str, Fit] = field(default_factory=dict)  # by side
    forecast: Forecast | None = None
    trouble: str = ""  # why there is no forecast

    def count(self, severity: str) -> int:
        """Count the kinds of findings that are so bad, each once for each corpus."""
        found = chain.from_iterable(each.found.sorted for each in self.checker.sets)
        return sum(finding.severity == severity for finding in found)

    @property
    def summary(self) -> str:
        """Summarize in one line."""
        counts = [(self.count(name), name) for name in (ERROR, WARNING, NOTE)]
        told = [f"{number} {name}{'s' * (number != 1)}" for number, name in counts if number]
        return ", ".join(told) or "nothing suspicious was found"

    def lines(self, width: int) -> Iterator[str]:
        """Yield the lines for people, at most `width` columns wide where possible."""
        for each in self.checker.sets:
            yield from each.found.lines(width)
        yield "vocabulary"
        if self.checker.tokenizer is None:
            yield "  none yet: lengths in tokens are estimated"
        for name, fit in self.fits.items():
            yield f"  {name}: {fit}"
        if self.forecast is not None:
            yield "forecast"
            for line in self.forecast.lines():
                yield from wrap(line, width, initial_indent="  ", subsequent_indent="    ")
        elif self.trouble:
            yield from wrap(f"forecast: none: {self.trouble}", width, subsequent_indent="    ")
        yield self.summary

    def as_json(self) -> str:
        """Return the object for scripts."""
        fits = {
            name: {
                "tokens_per_word": round(fit.a_word, 4),
                "bytes": round(fit.share(fit.bytes), 6),
                "unknown": round(fit.share(fit.unknown), 6),
            }
            for name, fit in self.fits.items()
        }
        return json.dumps(
            {
                "corpora": [each.found.as_json() for each in self.checker.sets],
                "vocabulary": fits or None,
                "forecast": self.forecast.as_json() if self.forecast else None,
                "errors": self.count(ERROR),
                "warnings": self.count(WARNING),
                "notes": self.count(NOTE),
            },
            ensure_ascii=False,
        )


def diagnose(
    config: Config, stop: Stop, *, examples: int, with_forecast: bool, timed: bool
) -> Diagnosis:
    """Check all text of a config and return the findings. Raises `UserError` if the vocabulary that
    the config names cannot be read.
    """
    checker = Checker(config, stop, examples)
    checker.scan()
    checker.tokenizer = _find_tokenizer(config, checker)
    checker.look()
    diagnosis = Diagnosis(checker)
    if checker.tokenizer is not None:
        for side, name in enumerate(("source", "target")):
            diagnosis.fits[name] = _fit(checker.tokenizer, checker.sample, side)
        _warn_of_fit(diagnosis)
    if with_forecast:
        try:
            diagnosis.forecast = _forecast(config, checker, timed=timed)
        except UserError as error:
            stop.check()
            diagnosis.trouble = str(error)
    return diagnosis


def _find_tokenizer(config: Config, checker: Checker) -> Tokenizer | None:
    """Load the vocabulary of the config's run, wherever it is, if it is."""
    scans = [each.scan for each in checker.sets if each.is_train and each.scan]
    return find_tokenizer(config, RunDirectory(Path(config.run_dir)).tokenizer, scans)


def _fit(tokenizer: Tokenizer, sample: list[Chunk], side: int) -> Fit:
    """Cut a part of the sample."""
    texts = [text for chunk in sample for text in chunk.texts[side]]
    step = max(1, len(texts) // MOST_ENCODED)
    counts = np.concatenate([np.zeros(0, np.int64), *(c.words[side].counts for c in sample)])
    ids = np.fromiter(chain.from_iterable(tokenizer.encode(texts[::step])), np.int64)
    pieces = tokenizer.pieces
    is_byte = np.array([pieces.is_byte(number) for number in range(pieces.get_piece_size())])
    unknown = int((ids == tokenizer.unk_id).sum())
    return Fit(int(counts[::step].sum()), len(ids), int(is_byte[ids].sum()), unknown)


def _warn_of_fit(diagnosis: Diagnosis) -> None:
    for name, fit in diagnosis.fits.items():
        odd = fit.share(fit.bytes + fit.unknown) > MOST_BYTES or fit.a_word > MOST_A_WORD
        if fit.words and odd:
            diagnosis.checker.sets[0].found.tell("pieces", f"{name}: {fit}")


def _forecast(config: Config, checker: Checker, *, timed: bool) -> Forecast:
    """Forecast a run by the lengths of the sample."""
    lengths = [np.zeros((0, 2), np.int64)]
    step = max(1, sum(map(len, checker.sample)) // MOST_ENCODED)
    for chunk in checker.sample:
        some = chunk.select(np.arange(0, len(chunk), step))
        lengths.append(token_lengths(some, checker.tokenizer))
    sizes = [each.found.pairs for each in checker.sets if each.is_train]
    pairs = sum(n * w for n, w in zip(sizes, weights_of(config, sizes), strict=True))
    tokenizer = checker.tokenizer
    vocab_size = tokenizer.vocab_size if tokenizer else config.tokenizer.vocab_size
    vocabulary = len(tokenizer.proto) if tokenizer else GUESSED_SIZE
    sample = np.concatenate(lengths)
    return forecast(config, vocab_size, vocabulary, sample, pairs, timed=timed)
