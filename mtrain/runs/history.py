"""Validations of a run, the best of them, and patience: the content of `best.json`."""

import math
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, TypeAdapter

from mtrain.config.schema import FileName, TrainConfig
from mtrain.runs.records import CheckpointName, Count, Metric, Score, with_fields_of

MIN_BLEU = 1.0  # below, BLEU tells models apart by chance, and NLL does not


class Scores(BaseModel):
    """Scores of a set."""

    bleu: Score
    chrf: Score
    nll: float  # NaN where training went wrong
    signature: str
    command: FiniteFloat = 0.0  # of `--metric-command`, if it is the metric


class ValidationEntry(Scores):
    """Fields that every entry of `best.json` has."""

    step: Count
    checkpoint: CheckpointName
    parts: list[Scores] = []  # of the list of `data.valid`
    lost: bool = False
    of: list[CheckpointName] = []
    sha256: str | None = None


Entry = Annotated[dict[str, Any], with_fields_of(ValidationEntry)]


class Named(BaseModel, extra="allow"):
    """The best of the validations, as `best.json` names it, with its score."""

    checkpoint: CheckpointName
    step: Count


class History(BaseModel, populate_by_name=True):
    """Validations in the order of steps; `average` is that of the averaged model, `tests` holds the
    scores of the test sets, `named` what the file has for the best validation. `measure` is the
    score by which that is the best: NLL while no validation has reached a BLEU of `MIN_BLEU`; it
    is None in files of earlier versions, which had no such rule.
    """

    metric: Metric
    measure: Metric | None = None
    named: Named | None = Field(alias="best")  # none before the first validation
    entries: list[Entry] = Field(alias="history")
    average: Entry | None
    tests: dict[FileName, Entry]

    @classmethod
    def begin(cls, metric: Metric) -> "History":
        """Return a history without validations."""
        return cls(metric=metric, measure=metric, named=None, entries=[], average=None, tests={})

    @property
    def summary(self) -> dict[str, Any] | None:
        """The best validation as `best.json` names it."""
        best = self.best
        return best and {key: best.get(key) for key in ("checkpoint", "step", self.best_by)}

    def as_json(self) -> dict[str, Any]:
        """Return the content of `best.json`."""
        found = {"measure": self.best_by, "best": self.summary}
        return self.model_dump(by_alias=True) | found

    def cut(self, step: int, train: TrainConfig) -> None:
        """Drop what an uninterrupted run would not have at a step: entries after it or at steps
        where no validation is due now, average and tests of another end.
        """
        kept = [entry for entry in self.entries if entry["step"] <= step]
        self.entries = [entry for entry in kept if train.is_validated(entry["step"])]
        end = step if self.is_end(step, train) else None
        self.tests = {name: test for name, test in self.tests.items() if test["step"] == end}
        if self.average and self.average["step"] != end:
            self.average = None

    def is_end(self, step: int, train: TrainConfig) -> bool:
        """Whether training is complete at a step: by the number of steps, or by patience."""
        return step >= train.max_steps or self.is_out_of_patience(train.patience)

    @property
    def steps(self) -> list[int]:
        """The steps that were validated."""
        return [entry["step"] for entry in self.entries]

    @property
    def best(self) -> Entry | None:
        """The best validation, the average's included; the earliest of equals."""
        return self._best_of(self._validated)

    @property
    def _validated(self) -> list[Entry]:
        return self.entries + ([self.average] if self.average else [])

    @property
    def best_step_name(self) -> str | None:
        """Name of the best checkpoint of a step, whether or not the average is better."""
        best = self._best_of(self.entries)
        return best["checkpoint"] if best else None

    def best_names(self, valid_every: int) -> set[str]:
        """Return the names of the best checkpoint of a step, and of the best one that counts where
        a run is extended: its end may be validated out of turn.
        """
        regular = [entry for entry in self.entries if entry["step"] % valid_every == 0]
        found = self._best_of(self.entries), self._best_of(regular)
        return {best["checkpoint"] for best in found if best}

    @property
    def outlook(self) -> str | None:
        """A sentence on whether training still helped at the end."""
        best = self._best_of(self.entries)
        if len(self.entries) < 2 or best is None:
            return None
        if later := sum(step > best["step"] for step in self.steps):
            what = "1 later validation was" if later == 1 else f"{later} later validations were"
            return f"The best step is {best['checkpoint']}: {what} no better."
        by = self._measure(self.entries)
        return f"The last validation is the best by {by}: more steps may help."

    def is_out_of_patience(self, patience: int) -> bool:
        """Whether none of the last `patience` validations improved on the ones before."""
        if not patience or not self.entries:
            return False
        best = max(self.entries, key=self._quality(self.entries))
        return len(self.entries) - 1 - self.entries.index(best) >= patience

    def _best_of(self, entries: list[Entry]) -> Entry | None:
        """Return the best validation whose checkpoint has not been found damaged."""
        there = [entry for entry in entries if not entry.get("lost")]
        return max(there, key=self._quality(there), default=None)

    @property
    def best_by(self) -> Metric:
        """The measure that decides at present."""
        return self._measure(self._validated)

    def _measure(self, entries: list[Entry]) -> Metric:
        """Return the score that compares these validations."""
        there = [entry for entry in entries if not entry.get("lost")]
        is_low = self.metric == "bleu" and all(each["bleu"] < MIN_BLEU for each in there)
        return "nll" if there and is_low and self.measure is not None else self.metric

    def _quality(self, entries: list[Entry]) -> Callable[[Entry], float]:
        """Return what is larger for better validations, to compare these by."""
        measure = self._measure(entries)

        def quality(entry: Entry) -> float:
            value = float(entry.get(measure, -math.inf)) * (-1 if measure == "nll" else 1)
            return -math.inf if math.isnan(value) else value

        return quality


BEST = TypeAdapter(History)
