"""The content of `best.json`: validations of a run, the best one, and patience."""

import math
from itertools import count, takewhile
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat

from mtrain.config.schema import FileName, Metric, TrainConfig
from mtrain.runs.layout import step_name
from mtrain.runs.records import CheckpointName, Count, Score, with_fields_of

MIN_BLEU = 1.0  # lower BLEU differs by chance, NLL does not


class Scores(BaseModel):
    """Scores of a set."""

    bleu: Score
    chrf: Score
    nll: float  # NaN where training went wrong
    signature: str
    command: FiniteFloat = 0.0  # of `--metric-command`, if it is the metric


class ValidationEntry(Scores):
    """Fields of an entry of `best.json`."""

    step: Count
    checkpoint: CheckpointName
    parts: list[Scores] = []  # of each corpus, if `data.valid` is a list
    lost: bool = False  # whether the checkpoint was found damaged
    of: list[CheckpointName] = []  # the checkpoints of an average
    sha256: str | None = None  # of a test set's text


Entry = Annotated[dict[str, Any], with_fields_of(ValidationEntry)]


class StoredBest(BaseModel, extra="allow"):
    """The best validation as `best.json` names it, with its score."""

    checkpoint: CheckpointName
    step: Count


class History(BaseModel, populate_by_name=True):
    """Validations in the order of steps, and the scores at the end of a run.

    `metric` is `train.metric`. It chooses the best validation, except that NLL replaces BLEU while
    no validation has reached a BLEU of `MIN_BLEU`: see `measure`.
    """

    metric: Metric
    stored_best: StoredBest | None = Field(alias="best")  # None before the first validation
    entries: list[Entry] = Field(alias="history")
    average: Entry | None  # scores of the averaged model
    tests: dict[FileName, Entry]  # scores by the name of the test set

    @classmethod
    def begin(cls, metric: Metric) -> "History":
        """Return a history without validations."""
        return cls(metric=metric, stored_best=None, entries=[], average=None, tests={})

    @classmethod
    def of_records(cls, metric: Metric, records: list[dict[str, Any]]) -> "History":
        """Return the validations of steps that `metrics.jsonl` records, without the scores at the
        end of the run; raises `ValueError` for impossible scores.
        """
        entries = [_entry_of(record) for record in records if "valid/bleu" in record]
        return cls.model_validate({**cls.begin(metric).model_dump(), "entries": entries})

    def as_json(self) -> dict[str, Any]:
        """Return the content of `best.json`."""
        best, measure = self.best, self.measure
        shown = best and {key: best.get(key) for key in ("checkpoint", "step", measure)}
        head = {"metric": self.metric, "measure": measure}
        return head | self.model_dump(by_alias=True) | {"best": shown}

    def cut(self, step: int, train: TrainConfig) -> None:
        """Drop what an uninterrupted run would not have at a step: later entries, entries at steps
        where no validation is due any more, the average and the test scores of another last step,
        and an average if averaging is off now.
        """
        entries = [entry for entry in self.entries if entry["step"] <= step]
        self.entries = [entry for entry in entries if train.is_validated(entry["step"])]
        end = step if self.is_end(step, train) else None
        self.tests = {name: test for name, test in self.tests.items() if test["step"] == end}
        if self.average and (self.average["step"] != end or train.average_last < 2):
            self.average = None

    def is_end(self, step: int, train: TrainConfig) -> bool:
        """Whether training is complete at a step: by the number of steps, or by patience."""
        return step >= train.max_steps or self.is_out_of_patience(train.patience)

    @property
    def steps(self) -> list[int]:
        """The steps that were validated."""
        return [entry["step"] for entry in self.entries]

    @property
    def checkpoints(self) -> list[str]:
        """The names of the checkpoints that were validated; also that of the average."""
        return [entry["checkpoint"] for entry in self._validated]

    @property
    def best(self) -> Entry | None:
        """The best validation, including that of the average; the earliest of equal ones."""
        return self._best_intact(self._validated)

    @property
    def measure(self) -> Metric:
        """The metric that chooses the best validation."""
        return self._metric_for(self._validated)

    @property
    def _validated(self) -> list[Entry]:
        return self.entries + ([self.average] if self.average else [])

    @property
    def best_step_name(self) -> str | None:
        """Name of the best checkpoint of a step, whether or not the average is better."""
        best = self._best_intact(self.entries)
        return best["checkpoint"] if best else None

    def best_names(self, valid_every: int) -> set[str]:
        """Return the names of the best checkpoint of all steps, and of the best one at a multiple
        of `valid_every`: if the run is extended, only such steps count.
        """
        regular = [entry for entry in self.entries if entry["step"] % valid_every == 0]
        candidates = self._best_intact(self.entries), self._best_intact(regular)
        return {best["checkpoint"] for best in candidates if best}

    @property
    def outlook(self) -> str | None:
        """A sentence on whether training still helped at the end."""
        best = self._best_intact(self.entries)
        if len(self.entries) < 2 or best is None:
            return None
        if later := sum(step > best["step"] for step in self.steps):
            what = "1 later validation was" if later == 1 else f"{later} later validations were"
            return f"The best step is {best['checkpoint']}: {what} no better."
        metric = self._metric_for(self.entries)
        return f"The last validation is the best by {metric}: more steps may help."

    def is_out_of_patience(self, patience: int) -> bool:
        """Whether none of the last `patience` validations improved on the ones before."""
        if not patience:
            return False
        best = self._best_of(self.entries)
        return best is not None and len(self.entries) - 1 - self.entries.index(best) >= patience

    def _best_intact(self, entries: list[Entry]) -> Entry | None:
        """Return the best of these validations whose checkpoint has not been found damaged."""
        return self._best_of(_intact(entries))

    def _best_of(self, entries: list[Entry]) -> Entry | None:
        """Return the best of these validations, the earliest of equal ones."""
        metric = self._metric_for(entries)
        return max(entries, key=lambda entry: _quality(entry, metric), default=None)

    def _metric_for(self, entries: list[Entry]) -> Metric:
        """Return the metric that compares these validations."""
        best_bleu = max((entry["bleu"] for entry in _intact(entries)), default=MIN_BLEU)
        return "nll" if self.metric == "bleu" and best_bleu < MIN_BLEU else self.metric


def _entry_of(record: dict[str, Any]) -> Entry:
    """Return the validation that a record of `metrics.jsonl` describes."""
    step = record["step"]
    parts = takewhile(bool, (_scores_of(record, f"valid/{n}/") for n in count()))
    entry = {"step": step, "checkpoint": step_name(step), **_scores_of(record, "valid/")}
    return entry | ({"parts": listed} if (listed := list(parts)) else {})


def _scores_of(record: dict[str, Any], prefix: str) -> Entry:
    """Return the scores whose keys begin with a prefix."""
    return {key: record[prefix + key] for key in Scores.model_fields if prefix + key in record}


def _intact(entries: list[Entry]) -> list[Entry]:
    """Leave out validations whose checkpoint has been found damaged."""
    return [entry for entry in entries if not entry.get("lost")]


def _quality(entry: Entry, metric: Metric) -> float:
    """Return a score of which larger is better; NaN and a missing score are the worst."""
    score = float(entry.get(metric, -math.inf)) * (-1 if metric == "nll" else 1)
    return -math.inf if math.isnan(score) else score
