"""`mtrain compare`: scores of several systems against a baseline, whether they differ
significantly, and the lines that differ most.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from heapq import nlargest, nsmallest
from pathlib import Path
from typing import Any

from mtrain.runtime.errors import RefusedError, printable
from mtrain.runtime.log import logger, progress_bar
from mtrain.scoring.metrics import METRICS, TESTS, Paired, check_seed, paired_tests, sentence_chrf
from mtrain.scoring.references import read_aligned

SIGNIFICANT = 0.05  # the largest p-value called so, as sacreBLEU has it
FEWEST = 10  # lines; fewer do not give enough different resamples
MANY = 20_000  # lines; sacreBLEU's tests hold a number for each line of each of their trials
BYTES_OF_A_LINE = 110_000

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

    def rows(self, baseline: str, system: str) -> list[tuple[str, str]]:
        """Return the texts of the line with their names."""
        rows = [("source", self.source)] if self.source is not None else []
        rows += [("reference", text) for text in self.references]
        return [*rows, (baseline, self.baseline), (system, self.text)]


# The lines of a system that are "better" and "worse", most different first.
Contrasts = dict[str, list[Contrast]]


@dataclass(frozen=True)
class Comparison:
    """The result of `mtrain compare`; the first system is the baseline, without contrasts."""

    lines: int
    systems: list[str]
    scores: dict[str, list[Paired]]
    signatures: dict[str, dict[str, str]]
    contrasts: list[Contrasts]

    def is_significant(self, metric: str, number: int, test: str) -> bool:
        """Whether a system differs significantly from the baseline by a test; never with equal
        scores or few lines.
        """
        baseline, paired = self.scores[metric][0], self.scores[metric][number]
        p, is_equal = paired.p_values[test], paired.score == baseline.score
        return p <= SIGNIFICANT and not is_equal and self.lines >= FEWEST

    def as_json(self) -> dict[str, Any]:
        """Return the object of `--json`."""
        return {
            "lines": self.lines,
            "baseline": self.systems[0],
            "systems": [self._system_as_json(number) for number in range(len(self.systems))],
            "signatures": self.signatures,
        }

    def _system_as_json(self, number: int) -> dict[str, Any]:
        content: dict[str, Any] = {"system": self.systems[number]}
        for metric, scores in self.scores.items():
            paired = scores[number]
            ci = [paired.mean - paired.ci, paired.mean + paired.ci]
            content[metric] = {"score": paired.score, "mean": paired.mean, "ci": ci}
            if number:
                content[metric]["difference"] = paired.score - scores[0].score
                for test, p in paired.p_values.items():
                    significant = self.is_significant(metric, number, test)
                    content[metric][test] = {"p": p, "significant": significant}
        for key, found in self.contrasts[number].items():
            content[key] = [each.as_json() for each in found]
        return content

    def __str__(self) -> str:
        signatures = [
            f"{METRICS[metric]} {test} {signature}"
            for metric, tests in self.signatures.items()
            for test, signature in tests.items()
        ]
        return "\n".join(map(printable, [*self._table(), *signatures, *self._lines()]))

    def _table(self) -> Iterator[str]:
        """Yield rows of scores with mean and 95 % interval of the resamples, differences, and their
        p-values.
        """
        names = list(map(printable, self.systems))
        width = max(8, *map(len, names))
        heads = ("score", "mean ± 95 % CI", "difference", *TESTS.values())
        for metric, scores in self.scores.items():
            rows = [heads, *(self._row(metric, number) for number in range(len(scores)))]
            for name, row in zip([METRICS[metric], *names], rows, strict=True):
                cells = map("{:>{}}".format, row, (6, 15, 13, 9, 13))
                yield "  ".join([f"{name:<{width}}", *cells]).rstrip()
            yield ""
        yield f"* p <= {SIGNIFICANT}: significant."
        yield ""

    def _row(self, metric: str, number: int) -> tuple[str, ...]:
        first, paired = self.scores[metric][0], self.scores[metric][number]
        score, interval = f"{paired.score:.2f}", f"{paired.mean:.2f} ± {paired.ci:.2f}"
        if number == 0:
            return score, interval, "baseline ", "", ""
        difference = paired.score - first.score
        word = "better" if (difference < 0) == (metric == "ter") else "worse "
        values = (
            f"{p:.4f}{'*' if self.is_significant(metric, number, test) else ' '}"
            for test, p in paired.p_values.items()
        )
        return score, interval, f"{difference:+.2f} {word if difference else 'equal '}", *values

    def _lines(self) -> Iterator[str]:
        """Yield the lines that differ most, with sources, references and scores."""
        for name, contrasts in zip(self.systems, self.contrasts, strict=True):
            for word, found in contrasts.items():
                if found:
                    yield ""
                    yield f"Lines that {name} has {word} than {self.systems[0]}, by their chrF2"
                for each in found:
                    old, new = each.scores
                    rows = each.rows(self.systems[0], name)
                    width = max(len(printable(title)) for title, _ in rows)
                    yield ""
                    yield f"line {each.line}: {each.difference:+.2f} ({old:.2f} -> {new:.2f})"
                    for title, text in rows:
                        yield f"  {printable(title):<{width}}  {text}".rstrip()


def choose_metrics(names: str) -> list[str]:
    """Read `--metrics`; raises `RefusedError`."""
    chosen = [name.strip().lower() for name in names.split(",")]
    if not METRICS.keys() >= set(chosen):
        raise RefusedError(f"--metrics {names}: expected some of {','.join(METRICS)}")
    return [name for name in METRICS if name in chosen]


def check_paths(paths: list[Path]) -> None:
    """Refuse fewer than two systems, and the same file twice."""
    if len(paths) < 2:
        raise RefusedError("mtrain compare: needs two files of translations or more")
    found = [path.resolve() for path in paths]
    for path, place in zip(paths, found, strict=True):
        if found.count(place) > 1:
            raise RefusedError(f"{path}: given twice; name different files")


def read_systems(paths: list[Path], references: list[list[str]]) -> list[System]:
    """Read each system's translations, named by the shortest distinct end of its path; raises
    `UserError`.
    """
    return [(_short_name(path, paths), read_aligned(path, references)) for path in paths]


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
    logger.info("comparing %d systems on %s lines", len(systems), f"{len(references[0]):,}")
    with progress_bar(len(metrics), "metric", "comparing") as bar:
        for metric in metrics:
            bar.set_postfix_str(METRICS[metric])
            tested = paired_tests(metric, systems, references, tokenize, lowercase)
            scores[metric], signatures[metric] = tested
            bar.update()
    contrasts = _contrasts(systems, references, sources, lowercase, most)
    names = [name for name, _ in systems]
    return Comparison(len(references[0]), names, scores, signatures, contrasts)


def _warn_of_oddities(systems: list[System], references: list[list[str]]) -> None:
    """Warn of systems and sizes that make the tests meaningless, or large."""
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
    systems: list[System],
    references: list[list[str]],
    sources: list[str],
    lowercase: bool,
    most: int,
) -> list[Contrasts]:
    """Return the contrasts of each system; the baseline has none."""
    contrasts: list[Contrasts] = [{}]
    if not most:
        return contrasts + [{"better": [], "worse": []} for _ in systems[1:]]
    texts = [lines for _, lines in systems]
    chrf = [sentence_chrf(lines, references, lowercase) for lines in texts]

    def contrast(number: int, i: int) -> Contrast:
        scores = [chrf[0][i], chrf[number][i]]
        source, of = sources[i] if sources else None, [lines[i] for lines in references]
        difference = scores[1] - scores[0]
        return Contrast(i + 1, difference, scores, source, of, texts[0][i], texts[number][i])

    for number in range(1, len(systems)):
        by = [new - old for old, new in zip(chrf[0], chrf[number], strict=True)]
        up = [i for i in nlargest(most, range(len(by)), by.__getitem__) if by[i] > 0]
        down = [i for i in nsmallest(most, range(len(by)), by.__getitem__) if by[i] < 0]
        better, worse = ([contrast(number, i) for i in places] for places in (up, down))
        contrasts.append({"better": better, "worse": worse})
    return contrasts
