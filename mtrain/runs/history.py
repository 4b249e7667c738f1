"""Validations of a run, the best of them, and patience: the content of `best.json`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mtrain.runs.records import Best, Entry


@dataclass
class History:
    """Validations in the order of steps, each with `step`, `checkpoint`, `bleu`, `chrf`, `nll` and
    `signature`; `average` is that of the averaged model, `tests` holds the scores of the test sets.
    """

    metric: str
    entries: list[Entry] = field(default_factory=list)
    average: Entry | None = None
    tests: dict[str, Entry] = field(default_factory=dict)

    @classmethod
    def of(cls, metric: str, stored: Best | None) -> "History":
        """Return the history in `best.json`, or an empty one."""
        if stored is None:
            return cls(metric)
        return cls(metric, stored.history, stored.average, stored.tests)

    @property
    def summary(self) -> dict[str, Any] | None:
        """The best validation as `best.json` names it."""
        best = self.best
        return best and {key: best[key] for key in ("checkpoint", "step", self.metric)}

    def as_json(self) -> dict[str, Any]:
        """Return the content of `best.json`."""
        return {
            "metric": self.metric,
            "best": self.summary,
            "history": self.entries,
            "average": self.average,
            "tests": self.tests,
        }

    def cut(self, step: int, is_due: Callable[[int], bool]) -> None:
        """Drop entries after a step, and that of the step itself if no validation was due there and
        the run continues.
        """
        self.tests = {name: test for name, test in self.tests.items() if test["step"] <= step}
        kept = [entry for entry in self.entries if entry["step"] <= step]
        self.entries = [entry for entry in kept if is_due(entry["step"])]
        if self.average and self.average["step"] != step:
            self.average = None

    def has(self, step: int) -> bool:
        """Whether a step was validated."""
        return any(entry["step"] == step for entry in self.entries)

    @property
    def best(self) -> Entry | None:
        """The best validation, the average's included; the earliest of equals."""
        return self._best_of(self.entries + ([self.average] if self.average else []))

    @property
    def best_step(self) -> str | None:
        """Name of the best checkpoint of a step, whether or not the average is better."""
        best = self._best_of(self.entries)
        return best["checkpoint"] if best else None

    def is_out_of_patience(self, patience: int) -> bool:
        """Whether none of the last `patience` validations improved on the ones before."""
        if not patience or not self.entries:
            return False
        best = max(self.entries, key=self._quality)
        return len(self.entries) - 1 - self.entries.index(best) >= patience

    def _best_of(self, entries: list[Entry]) -> Entry | None:
        """The best whose checkpoint has not been found damaged."""
        there = [entry for entry in entries if not entry.get("lost")]
        return max(there, key=self._quality, default=None)

    def _quality(self, entry: Entry) -> float:
        value = float(entry[self.metric])
        return -value if self.metric == "nll" else value
