"""`mtrain compare`: scores of several systems against a baseline, whether they differ
significantly, and the lines that differ most.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from heapq import nlargest
from pathlib import Path
from typing import Any

from mtrain.runtime.errors import RefusedError, printable
from mtrain.runtime.log import logger
from mtrain.scoring.metrics import (
    METRICS,
    MIN_TESTED,
    SIGNIFICANT,
    Paired,
    paired_tests,
    sentence_chrf,
)
from mtrain.scoring.references import read_aligned

System = tuple[str, list[str]]  # its name, and its translations


@dataclass(frozen=True)
class Contrast:
    """A line that a system translates better or worse than the baseline; `scores` are the chrF2 of
    the baseline and of the system.
    """

    line: int  # from 1
    difference: float
    scores: list[float]
    source: str | None
    references: list[str]
    baseline: str
    text: str

    def as_json(self) -> dict[str, Any]:
        """Return an item of `better` or `worse`."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def shown(self, baseline: str, system: str) -> Iterator[str]:
        """Yield the scores and the texts of the line with their names."""
        old, new = self.scores
        yield f"line {self.line}: {self.difference:+.2f} ({old:.2f} -> {new:.2f})"
        rows = [("source", self.source)] if self.source is not None else []
        rows += [("reference", text) for text in self.references]
        rows += [(baseline, self.baseline), (system, self.text)]
        width = max(len(printable(title)) for title, _ in rows)
        for title, text in rows:
            yield f"  {printable(title):<{width}}  {text}".rstrip()


# The lines of a system that are "better" and "worse", most different first.
Contrasts = dict[str, list[Contrast]]


@dataclass(frozen=True)
class Comparison:
    """The result of `mtrain compare`; the first system is the baseline, without contrasts."""

    lines: int
    systems: list[str]
    tested: dict[str, tuple[str, list[Paired]]]  # by metric: signature, and scores of the systems
    contrasts: list[Contrasts]

    def as_json(self) -> dict[str, Any]:
        """Return the object of `--json`."""
        systems = []
        for number, (name, contrasts) in enumerate(zip(self.systems, self.contrasts, strict=True)):
            scores = {metric: rows[number].as_json() for metric, (_, rows) in self.tested.items()}
            lines = {word: [each.as_json() for each in found] for word, found in contrasts.items()}
            systems.append({"system": name, **scores, **lines})
        signatures = {metric: {"bootstrap": text} for metric, (text, _) in self.tested.items()}
        named = {"lines": self.lines, "baseline": self.systems[0]}
        return {**named, "systems": systems, "signatures": signatures}

    def __str__(self) -> str:
        signatures = (f"{METRICS[metric]} {text}" for metric, (text, _) in self.tested.items())
        return "\n".join(map(printable, [*self._table(), *signatures, *self._lines()]))

    def _table(self) -> Iterator[str]:
        """Yield rows of scores with mean and 95 % interval of the resamples, differences, and their
        p-values.
        """
        names = list(map(printable, self.systems))
        width = max(8, *map(len, names))
        heads = ("score", "mean ± 95 % CI", "difference", "p-value")
        for metric, (_, scores) in self.tested.items():
            rows = [heads, *(each.cells(metric) for each in scores)]
            for name, row in zip([METRICS[metric], *names], rows, strict=True):
                cells = map("{:>{}}".format, row, (6, 15, 13, 9))
                yield "  ".join([f"{name:<{width}}", *cells]).rstrip()
            yield ""
        yield f"* p <= {SIGNIFICANT}: significant, by paired bootstrap resampling."
        yield ""

    def _lines(self) -> Iterator[str]:
        """Yield the lines that differ most, with sources, references and scores."""
        for name, contrasts in zip(self.systems, self.contrasts, strict=True):
            for word, found in contrasts.items():
                if found:
                    yield ""
                    yield f"Lines that {name} has {word} than {self.systems[0]}, by their chrF2"
                for each in found:
                    yield ""
                    yield from each.shown(self.systems[0], name)


def choose_metrics(names: str) -> list[str]:
    """Read `--metrics`; raises `RefusedError`."""
    chosen = [name.strip().lower() for name in names.split(",")]
    if not METRICS.keys() >= set(chosen):
        raise RefusedError(f"--metrics {names}: expected some of {','.join(METRICS)}")
    return [name for name in METRICS if name in chosen]


def read_systems(paths: list[Path], references: list[list[str]]) -> list[System]:
    """Read each system's translations, named by its path from the directory that all share. Raises
    `RefusedError` for fewer than two.
    """
    if len(paths) < 2:
        raise RefusedError("mtrain compare: needs two files of translations or more")
    above = os.path.commonpath([path.absolute().parent for path in paths])
    return [
        (os.path.relpath(path.absolute(), above), read_aligned(path, references)) for path in paths
    ]


def compare(
    systems: list[System],
    references: list[list[str]],
    sources: list[str],
    *,
    metrics: list[str],
    tokenize: str,
    lowercase: bool,
    most: int,
) -> Comparison:
    """Compare systems with the first one, and find the `most` lines in either direction whose chrF2
    differs most from the baseline's.
    """
    _warn_of_oddities(systems, references)
    logger.info("comparing %d systems on %s lines", len(systems), f"{len(references[0]):,}")
    tested = paired_tests(metrics, systems, references, tokenize, lowercase)
    contrasts = _contrasts(systems, references, sources, lowercase, most)
    names = [name for name, _ in systems]
    return Comparison(len(references[0]), names, tested, contrasts)


def _warn_of_oddities(systems: list[System], references: list[list[str]]) -> None:
    """Warn of systems and sizes that make the test meaningless, or large."""
    baseline, first = systems[0]
    for name, lines in systems[1:]:
        if lines == first:
            logger.warning("%s: the same text as %s, line for line", name, baseline)
    for name, lines in systems:
        if lines in references:
            logger.warning("%s: the same text as a reference, line for line", name)
    if len(first) < MIN_TESTED:
        logger.warning("too few lines for a test: no difference is called significant")


def _contrasts(
    systems: list[System],
    references: list[list[str]],
    sources: list[str],
    lowercase: bool,
    most: int,
) -> list[Contrasts]:
    """Return the contrasts of each system; the baseline has none."""
    texts = [lines for _, lines in systems]
    chrf = [sentence_chrf(lines, references, lowercase) for lines in texts if most]

    def contrast(number: int, i: int) -> Contrast:
        old, new = chrf[0][i], chrf[number][i]
        source, others = sources[i] if sources else None, [lines[i] for lines in references]
        return Contrast(i + 1, new - old, [old, new], source, others, texts[0][i], texts[number][i])

    def contrasts_of(number: int, sign: int) -> list[Contrast]:
        gains = [sign * (new - old) for old, new in zip(chrf[0], chrf[number], strict=True)]
        found = nlargest(most, range(len(gains)), gains.__getitem__)
        return [contrast(number, i) for i in found if gains[i] > 0]

    words = {"better": 1, "worse": -1} if most else {}
    others = range(1, len(systems))
    return [{}, *({word: contrasts_of(n, sign) for word, sign in words.items()} for n in others)]
