"""`mtrain compare`: score several systems against a baseline, test whether the scores differ
significantly, and find the lines that differ most.
"""

import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from heapq import nlargest
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size

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

System = tuple[str, list[str]]  # name and translations


@dataclass(frozen=True)
class Contrast:
    """A line that a system translates better or worse than the baseline; `scores` has the chrF2 of
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

    def rows(self, baseline: str, system: str) -> Iterator[str]:
        """Yield the scores, then each text after its label; the arguments name the systems."""
        old, new = self.scores
        yield f"line {self.line}: {self.difference:+.2f} ({old:.2f} -> {new:.2f})"
        texts = [("source", self.source)] if self.source is not None else []
        texts += [("reference", text) for text in self.references]
        texts += [(baseline, self.baseline), (system, self.text)]
        width = max(cell_len(printable(label)) for label, _ in texts)
        for label, text in texts:
            yield f"  {set_cell_size(printable(label), width)}  {text}".rstrip()


# The "better" and the "worse" lines of a system, largest difference first.
Contrasts = dict[str, list[Contrast]]


@dataclass(frozen=True)
class Comparison:
    """The result of `mtrain compare`; the first system is the baseline and has no contrasts."""

    lines: int
    systems: list[str]
    tests: dict[str, tuple[str, list[Paired]]]  # metric -> signature, scores of each system
    contrasts: list[Contrasts]

    def as_json(self) -> dict[str, Any]:
        """Return the object of `--json`."""
        systems = []
        for index, (name, contrasts) in enumerate(zip(self.systems, self.contrasts, strict=True)):
            scores = {metric: rows[index].as_json() for metric, (_, rows) in self.tests.items()}
            lines = {word: [line.as_json() for line in lines] for word, lines in contrasts.items()}
            systems.append({"system": name, **scores, **lines})
        signatures = {metric: {"bootstrap": text} for metric, (text, _) in self.tests.items()}
        head = {"lines": self.lines, "baseline": self.systems[0]}
        return {**head, "systems": systems, "signatures": signatures}

    def rows(self) -> Iterator[str]:
        """Yield the lines to print, whose texts are not escaped yet."""
        yield from self._table()
        for metric, (signature, _) in self.tests.items():
            yield f"{METRICS[metric]} {signature}"
        yield from self._examples()

    def _table(self) -> Iterator[str]:
        """Yield a table for each metric: scores, mean and 95 % interval of the resamples,
        differences from the baseline, and p-values.
        """
        names = list(map(printable, self.systems))
        width = max(8, *map(cell_len, names))
        head = ("score", "mean ± 95 % CI", "difference", "p-value")
        for metric, (_, scores) in self.tests.items():
            rows = [head, *(score.cells(metric) for score in scores)]
            for name, row in zip([METRICS[metric], *names], rows, strict=True):
                cells = map("{:>{}}".format, row, (6, 15, 13, 9))
                yield "  ".join([set_cell_size(name, width), *cells]).rstrip()
            yield ""
        test = f"paired bootstrap resampling of {MIN_TESTED} or more lines"
        yield f"* p <= {SIGNIFICANT}: significant, by {test}."
        yield ""

    def _examples(self) -> Iterator[str]:
        """Yield the lines that differ most, with scores, sources and references."""
        baseline = self.systems[0]
        for name, contrasts in zip(self.systems, self.contrasts, strict=True):
            for word, lines in contrasts.items():
                if lines:
                    yield ""
                    yield f"Lines that {name} translates {word} than {baseline} (chrF2)"
                for line in lines:
                    yield ""
                    yield from line.rows(baseline, name)


def choose_metrics(names: str) -> list[str]:
    """Parse `--metrics`; raises `RefusedError`."""
    chosen = [name.strip().lower() for name in names.split(",")]
    if not set(chosen) <= METRICS.keys():
        raise RefusedError(f"--metrics {names}: expected one or more of {','.join(METRICS)}")
    return [name for name in METRICS if name in chosen]


def read_systems(paths: list[Path], references: list[list[str]], name: Path) -> list[System]:
    """Read the translations of each system and name it by its path, relative to the deepest
    directory that holds all files. `name` is that of the first reference. Raises `RefusedError`
    for fewer than two files and for a directory.
    """
    if len(paths) < 2:
        raise RefusedError("mtrain compare: needs two or more files of translations")
    for path in filter(Path.is_dir, paths):
        write = f"mtrain translate -m {shlex.quote(str(path))} -i SRC -o FILE"
        advice = f"give files of translations; for those of a run: {write}"
        raise RefusedError(f"{path}: is a directory; {advice}")
    base = os.path.commonpath([path.absolute().parent for path in paths])
    return [
        (os.path.relpath(path.absolute(), base), read_aligned(path, references, name))
        for path in paths
    ]


def compare(
    systems: list[System],
    references: list[list[str]],
    sources: list[str],
    *,
    metrics: list[str],
    tokenize: str,
    lowercase: bool,
    max_lines: int,
) -> Comparison:
    """Compare systems with the first one, the baseline. For each system, find at most `max_lines`
    better and `max_lines` worse lines: those whose chrF2 differs most from the baseline's.
    """
    logger.info("comparing %d systems on %s lines", len(systems), f"{len(references[0]):,}")
    tests = paired_tests(metrics, systems, references, tokenize, lowercase)
    contrasts = _contrasts(systems, references, sources, lowercase, max_lines)
    names = [name for name, _ in systems]
    return Comparison(len(references[0]), names, tests, contrasts)


def _contrasts(
    systems: list[System],
    references: list[list[str]],
    sources: list[str],
    lowercase: bool,
    max_lines: int,
) -> list[Contrasts]:
    """Return the contrasts of each system; the baseline has none."""
    if not max_lines:
        return [{} for _ in systems]
    texts = [lines for _, lines in systems]
    chrf = [sentence_chrf(lines, references, lowercase) for lines in texts]

    def contrast(n: int, i: int) -> Contrast:
        """Contrast line i of system n."""
        old, new = chrf[0][i], chrf[n][i]
        source = sources[i] if sources else None
        refs = [lines[i] for lines in references]
        return Contrast(i + 1, new - old, [old, new], source, refs, texts[0][i], texts[n][i])

    def largest(n: int, sign: int) -> list[Contrast]:
        gains = [sign * (new - old) for old, new in zip(chrf[0], chrf[n], strict=True)]
        indices = nlargest(max_lines, range(len(gains)), gains.__getitem__)
        return [contrast(n, i) for i in indices if gains[i] > 0]

    others = range(1, len(systems))
    return [{}, *({"better": largest(n, 1), "worse": largest(n, -1)} for n in others)]
