"""The end of a run: the average of its last checkpoints, and the scores of its test sets."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter
from torch import Tensor

from mtrain.corpus.readers import Text
from mtrain.runs import checkpoint, layout
from mtrain.runs.checkpoint import Snapshot
from mtrain.runs.history import History
from mtrain.runtime.distributed import BYTES
from mtrain.runtime.log import logger
from mtrain.training.validation import Validation, summary
from mtrain.translation.loading import LoadedModel, unpack

NAMES = TypeAdapter(list[str])


class Finish:
    """Averages and tests a trained run. What an earlier start has done already is not repeated."""

    def __init__(self, validation: Validation) -> None:
        self.validation = validation
        self.config, self.prepared, self.run = (
            validation.config,
            validation.prepared,
            validation.run,
        )
        self.ranks = validation.ranks

    @property
    def history(self) -> History:
        """The history of scores, which rank 0 may replace."""
        return self.validation.history

    def average(
        self, paths: list[Path], step: int, snapshot: Callable[[dict[str, Tensor]], Snapshot]
    ) -> None:
        """Average checkpoints and validate the average."""
        averaged = self.ranks.share(partial(self._write_average, paths, snapshot), NAMES)
        if not averaged:
            return
        name = layout.AVERAGE
        entry, hypotheses = self.validation.evaluate(self._load(name), self.prepared.valid, "valid")
        self.validation.keep(name, hypotheses, step, "average/", entry)
        self.history.average = {"step": step, "checkpoint": name, "of": averaged, **entry}
        self.validation.write_history()
        logger.info("average of %d  %s", len(averaged), summary(entry))

    def _write_average(
        self, paths: list[Path], snapshot: Callable[[dict[str, Tensor]], Snapshot]
    ) -> list[str]:
        """Average checkpoints; return their names, or none if there is nothing to validate."""
        found = checkpoint.whole_ones(paths)
        if len(found) < len(paths):
            first = paths[-1 - len(found)]
            logger.warning("%s: damaged or missing; only later checkpoints are averaged", first)
        names = [path.name for path in found]
        path = self.run.checkpoints / layout.AVERAGE
        before = self.history.average or {}
        if len(found) < 2 or (before.get("of") == names and checkpoint.is_good(path)):
            return []
        self.validation.stop.check()
        self.run.check_held()
        checkpoint.save(path, snapshot(checkpoint.average(found)))
        return names

    def test(self, step: int) -> None:
        """Score the test sets with the best model, and log the scores."""
        self.validation.update_history(self._mark_lost)
        best = self.history.best
        if best is None:
            return
        for name, text in self.prepared.tests.items():
            self._test(name, text, best["checkpoint"], step)
        logger.info("best: %s  %s", best["checkpoint"], summary(best))
        for name in self.prepared.tests:
            entry = self.history.tests[name]
            logger.info("test %s: %s  %s", name, summary(entry), entry["signature"])

    def _mark_lost(self) -> None:
        """Mark damaged checkpoints until the best one is intact."""
        lost = []
        while best := self.history.best:
            path = self.run.checkpoints / best["checkpoint"]
            if checkpoint.is_good(path):
                break
            best["lost"] = True
            lost.append(path)
        if lost:
            logger.warning("%s: damaged or missing; using the best of the others", lost[0])
            self.validation.write_history()

    def _test(self, name: str, text: Text, best: str, step: int) -> None:
        """Score one test set, unless it was scored with the same model, text and search."""
        identity = {
            "checkpoint": best,
            "step": step,
            "sha256": text.sha256,
            "decode": self.config.decode.model_dump(),
        }
        before = self.history.tests.get(name, {})
        if {key: before.get(key) for key in identity} == identity:
            return
        entry, hypotheses = self.validation.evaluate(self._load(best), text, name)
        self.validation.keep(f"test-{name}", hypotheses, step, f"test/{name}/", entry)
        self.history.tests[name] = {**identity, **entry}
        self.validation.write_history()

    def _load(self, name: str) -> LoadedModel:
        """Load a finished checkpoint as `mtrain translate` would."""
        path = self.run.checkpoints / name
        return unpack(
            self._read(path),
            path,
            self.config.decode.model_dump(),
            device=str(self.validation.device),
            check_stop=self.validation.stop.check,
        )

    def _read(self, path: Path) -> Snapshot:
        """Read a checkpoint on rank 0, which wrote it, and broadcast it."""
        if self.ranks.size == 1:
            return checkpoint.load_or_name_good(path)
        read = partial(checkpoint.load_or_name_good, path)
        return checkpoint.unpack(self.ranks.share(lambda: checkpoint.pack(read()), BYTES))
