"""`mtrain compare`: scores of several systems against a baseline, whether they differ
significantly, and the lines that differ most.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from typing import Any

from mtrain.runtime.errors import RefusedError, printable
from mtrain.runtime.log import logger, progress_bar
from mtrain.scoring.metrics import Paired, check_seed, paired_tests, sentence_chrf
from mtrain.scoring.references import read_aligned

METRICS = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}
SIGNIFICANT = 0.05  # the largest p-value called so, as sacreBLEU has it
FEWEST = 10  # lines; fewer do not give enough different resamples
MANY = 20_000  # lines; sacreBLEU's tests hold a number for each line of each of their trials
BYTES_OF_A_LINE = 110_000

System = tuple[str, list[str]]  # its name, and its translations


@dataclass(frozen=True)
class Contrast:
    """A line that a system translates better or worse than the baseline; scores are chrF2."""

    line: int  # from 1
    baseline_score: float
    score: float

    @property
    def difference(self) -> float:
        """By how much the system is better."""
        return self.score - self.baseline_score


@dataclass(frozen=True)
class Comparison:
    """The result of `mtrain compare`; the first system is the baseline."""

    systems: list[System]
    references: list[list[str]]
    sources: list[str]
    scores: dict[str, list[Paired]]
    signatures: dict[str, dict[str, str]]
    better: dict[str, list[Contrast]]
    worse: dict[str, list[Contrast]]

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return len(self.references[0])

    def is_significant(self, metric: str, number: int, p: float | None) -> bool:
        """Whether a system differs significantly from the baseline by a test's p-value; never for
        equal scores or few lines.
        """
        scores = self.scores[metric]
        differs = scores[number].score != scores[0].score
        return p is not None and p <= SIGNIFICANT and differs and self.lines >= FEWEST

    def as_json(self) -> dict[str, Any]:
        """The object of `--json`."""
        return {
            "lines": self.lines,
            "baseline": self.systems[0][0],
            "systems": [self._system_as_json(number) for number in range(len(self.systems))],
            "signatures": self.signatures,
        }

    def _system_as_json(self, number: int) -> dict[str, Any]:
        name = self.systems[number][0]
        content: dict[str, Any] = {"system": name}
        for metric, scores in self.scores.items():
            paired = scores[number]
            content[metric] = {
                "score": paired.score,
                "mean": paired.mean,
                "ci": [paired.mean - paired.ci, paired.mean + paired.ci],
            }
            if number:
                content[metric]["difference"] = paired.score - scores[0].score
                for test in ("bootstrap", "randomization"):
                    p = getattr(paired, test)
                    significant = self.is_significant(metric, number, p)
                    content[metric][test] = {"p": p, "significant": significant}
        if number:
            for key, found in (("better", self.better), ("worse", self.worse)):
                content[key] = [self._contrast_as_json(number, item) for item in found[name]]
        return content

    def _contrast_as_json(self, number: int, found: Contrast) -> dict[str, Any]:
        place = found.line - 1
        return {
            "line": found.line,
            "difference": found.difference,
            "scores": [found.baseline_score, found.score],
            **({"source": self.sources[place]} if self.sources else {}),
            "references": [lines[place] for lines in self.references],
            "baseline": self.systems[0][1][place],
            "text": self.systems[number][1][place],
        }

    def __str__(self) -> str:
        lines = [*self._table(), *self._signatures(), *self._texts()]
        return "\n".join(map(printable, lines))

    def _table(self) -> Iterator[str]:
        """Scores with mean and 95 % interval of the resamples, differences and their p-values."""
        systems = [printable(name) for name, _ in self.systems]
        width = max(8, *map(len, systems))
        heads = ("score", "mean ± 95 % CI", "difference", "bootstrap", "randomization")
        sizes = (6, 15, 13, 9, 13)
        for metric, scores in self.scores.items():
            rows = [heads, *(self._row(metric, number) for number in range(len(scores)))]
            names = [METRICS[metric], *systems]
            for name, row in zip(names, rows, strict=True):
                cells = (f"{cell:>{size}}" for cell, size in zip(row, sizes, strict=True))
                yield "  ".join([f"{name:<{width}}", *cells]).rstrip()
            yield ""
        yield f"* p <= {SIGNIFICANT}: significant."
        yield ""

    def _row(self, metric: str, number: int) -> tuple[str, ...]:
        first, paired = self.scores[metric][0], self.scores[metric][number]
        interval = f"{paired.mean:.2f} ± {paired.ci:.2f}"
        if number == 0:
            return f"{paired.score:.2f}", interval, "baseline ", "", ""
        difference = paired.score - first.score
        word = "better" if (difference < 0) == (metric == "ter") else "worse "
        values = (
            f"{p:.4f}{'*' if self.is_significant(metric, number, p) else ' '}"
            for p in (paired.bootstrap, paired.randomization)
        )
        shown = f"{difference:+.2f} {word if difference else 'equal '}"
        return f"{paired.score:.2f}", interval, shown, *values

    def _signatures(self) -> Iterator[str]:
        for metric, signatures in self.signatures.items():
            for test, signature in signatures.items():
                yield f"{METRICS[metric]} {test} {signature}"

    def _texts(self) -> Iterator[str]:
        """Yield the lines that differ most, with sources, references and scores."""
        baseline = self.systems[0][0]
        for number, (name, _) in enumerate(self.systems[1:], 1):
            for word, found in (("better", self.better[name]), ("worse", self.worse[name])):
                if found:
                    yield ""
                    yield f"Lines that {name} has {word} than {baseline}, by their chrF2"
                for item in found:
                    yield from self._text(number, item)

    def _text(self, number: int, found: Contrast) -> Iterator[str]:
        place, chosen = found.line - 1, (self.systems[0], self.systems[number])
        rows = [("source", self.sources[place])] if self.sources else []
        rows += [("reference", lines[place]) for lines in self.references]
        rows += [(name, lines[place]) for name, lines in chosen]
        width = max(len(printable(name)) for name, _ in rows)
        scores = f"{found.baseline_score:.2f} -> {found.score:.2f}"
        yield ""
        yield f"line {found.line}: {found.difference:+.2f} ({scores})"
        for name, text in rows:
            yield f"  {printable(name):<{width}}  {text}".rstrip()


def choose_metrics(names: str) -> list[str]:
    """Read `--metrics`; raises `RefusedError`."""
    chosen = [name.strip().lower() for name in names.split(",")]
    for name in chosen:
        if name not in METRICS:
            raise RefusedError(f"--metrics {names}: expected some of {','.join(METRICS)}")
    return [name for name in METRICS if name in chosen]


def check_paths(paths: list[Path]) -> None:
    """Refuse fewer than two systems, and the same file twice."""
    if len(paths) < 2:
        raise RefusedError("mtrain compare: needs two files of translations or more")
    for number, path in enumerate(paths):
        for other in paths[:number]:
            if _is_same(path, other):
                raise RefusedError(f"{path}: given twice; name different files")


def _is_same(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return os.path.samefile(path, other)
    return path == other


def read_systems(paths: list[Path], references: list[list[str]]) -> list[System]:
    """Read each system's translations, named by the shortest distinct end of its path; raises
    `UserError`.
    """
    systems = [(path, read_aligned(path, references)) for path in paths]
    return [(_short_name(path, paths), lines) for path, lines in systems]


def _short_name(path: Path, paths: list[Path]) -> str:
    for count in range(1, len(path.parts)):
        tails = [other.parts[-count:] for other in paths]
        if tails.count(path.parts[-count:]) == 1:
            return str(Path(*path.parts[-count:]))
    return str(path)


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
    check_seed()
    _warn_of_oddities(systems, references)
    scores, signatures = {}, {}
    size = f"{len(references[0]):,}"
    logger.info("comparing %d systems on %s lines", len(systems), size)
    with progress_bar(len(metrics), "metric", "comparing") as bar:
        for metric in metrics:
            bar.set_postfix_str(METRICS[metric])
            tested = paired_tests(metric, systems, references, tokenize, lowercase)
            scores[metric], signatures[metric] = tested
            bar.update()
    better, worse = _contrasts(systems, references, lowercase, most)
    return Comparison(systems, references, sources, scores, signatures, better, worse)


def _warn_of_oddities(systems: list[System], references: list[list[str]]) -> None:
    """Warn of what makes the tests meaningless, or large."""
    baseline, first = systems[0]
    for name, lines in systems[1:]:
        if lines == first:
            logger.warning("%s: the same text as %s, line for line", name, baseline)
    for name, lines in systems:
        if lines in references:
            logger.warning("%s: the same text as a reference, line for line", name)
    if len(first) < FEWEST:
        logger.warning(
            "%s too few for a test: no difference is called significant",
            "1 line is" if len(first) == 1 else f"{len(first)} lines are",
        )
    if len(first) > MANY:
        need = len(first) * BYTES_OF_A_LINE / 1e9
        logger.warning("the tests of %s lines take about %.0f GB", f"{len(first):,}", need)


def _contrasts(
    systems: list[System], references: list[list[str]], lowercase: bool, most: int
) -> tuple[dict[str, list[Contrast]], dict[str, list[Contrast]]]:
    better: dict[str, list[Contrast]] = {name: [] for name, _ in systems[1:]}
    worse: dict[str, list[Contrast]] = {name: [] for name, _ in systems[1:]}
    if not most:
        return better, worse
    first, *others = (sentence_chrf(lines, references, lowercase) for _, lines in systems)
    for (name, _), scores in zip(systems[1:], others, strict=True):
        pairs = enumerate(zip(first, scores, strict=True), 1)
        found = [Contrast(line, *pair) for line, pair in pairs if pair[0] != pair[1]]
        up = nlargest(most, found, key=lambda item: item.difference)
        down = nlargest(most, found, key=lambda item: -item.difference)
        better[name] = [item for item in up if item.difference > 0]
        worse[name] = [item for item in down if item.difference < 0]
    return better, worse
