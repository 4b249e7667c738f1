"""Validation during training: scores, translations, and which checkpoint is best."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import TypeAdapter

from mtrain.config.schema import Config
from mtrain.corpus.readers import Text
from mtrain.data.prepare import Prepared
from mtrain.runs import layout
from mtrain.runs.directory import RunDirectory
from mtrain.runs.history import History
from mtrain.runs.records import BEST, Entry
from mtrain.runtime import files
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import logger, progress_bar
from mtrain.runtime.stop import Stop
from mtrain.scoring import metrics
from mtrain.translation.loading import LoadedModel
from mtrain.translation.scorer import Scorer
from mtrain.translation.translator import Translator


@dataclass(frozen=True)
class Likelihood:
    """Negative log-likelihood and number of the reference tokens of some lines of a set."""

    nll: float
    tokens: int


LIKELIHOOD, HISTORY = TypeAdapter(Likelihood), TypeAdapter(History)


class Validation:
    """The history of a run's scores, kept in `best.json`, `metrics.jsonl` and `validation/`. Every
    rank translates and knows the history; rank 0 writes.
    """

    def __init__(
        self,
        config: Config,
        prepared: Prepared,
        run: RunDirectory,
        stop: Stop,
        ranks: Ranks,
        device: torch.device,
    ) -> None:
        self.config, self.prepared, self.run, self.stop = config, prepared, run, stop
        self.ranks, self.device = ranks, device
        self.history = History(config.train.metric)

    def resume(self, step: int) -> None:
        """Restore the history of a step; later records are dropped."""
        self.update_history(partial(self._cut, step))

    def _cut(self, step: int) -> None:
        if self.look_back(step):
            self.write_history()
        self.run.metrics.cut(step)

    def update_history(self, work: Callable[[], None]) -> None:
        """Call `work`, which changes the history, on rank 0; broadcast the result."""

        def find() -> History:
            work()
            return self.history

        self.history = self.ranks.share(find, HISTORY)

    def look_back(self, step: int) -> bool:
        """Load the history of a step; return whether the file has later entries."""
        stored = self.run.read(layout.BEST, BEST)
        if stored is None and step > self.config.train.valid_every:
            raise UserError(
                f"{self.run.path / 'best.json'}: missing, so the best checkpoint is unknown; "
                "restore the file, or choose another run_dir"
            )
        self.history = History.of(self.history.metric, stored)
        before = self.history.as_json()
        self.history.cut(step, self.config.train.is_validated)
        return self.history.as_json() != before

    def validate(self, model: LoadedModel, step: int) -> None:
        """Score the checkpoint of a step on the validation set."""
        entry, hypotheses = self.evaluate(model, self.prepared.valid, "valid")
        name = layout.step_name(step)
        self.keep(name, hypotheses, step, "valid/", entry)
        self.history.entries.append({"step": step, "checkpoint": name, **entry})
        self.history.average = None  # of an earlier last step
        self.write_history()
        best = self.history.best
        mark = "  best so far" if best is not None and best["step"] == step else ""
        logger.info("step %s  %s%s", f"{step:,}", summary(entry), mark)

    def evaluate(self, model: LoadedModel, text: Text, name: str) -> tuple[Entry, list[str]]:
        """Return the BLEU, chrF and NLL per token of a model on a set, and its translations."""
        with progress_bar(len(text), "line", f"translating {name}") as bar:
            hypotheses = Translator(model, self.ranks).best(text.sources, bar.update)
        parts = self.ranks.gather(partial(self._score_references, model, text), LIKELIHOOD)
        bleu = metrics.bleu_of_run(hypotheses, text.references, self.config.data.tgt_lang)
        entry = {
            "bleu": bleu.score,
            "chrf": metrics.chrf(hypotheses, [text.references]).score,
            "nll": sum(part.nll for part in parts) / sum(part.tokens for part in parts),
            "signature": bleu.signature,
        }
        return entry, hypotheses

    def _score_references(self, model: LoadedModel, text: Text) -> Likelihood:
        """Score the references of this rank's lines."""
        mine = slice(self.ranks.rank, None, self.ranks.size)
        return Likelihood(*Scorer(model).nll(text.sources[mine], text.references[mine]))

    def keep(self, name: str, hypotheses: list[str], step: int, prefix: str, entry: Entry) -> None:
        """Write translations and their record; an unfinished record is replaced."""
        if not self.ranks.is_first:
            return
        self.run.check_held()
        path = layout.translations(self.run.path, name)
        files.make_directory(path.parent)
        files.write_text(path, "".join(line + "\n" for line in hypotheses))
        values = {f"{prefix}{key}": value for key, value in entry.items()}
        values[f"{prefix}ppl"] = math.exp(min(entry["nll"], 700))
        self.run.metrics.replace({"step": step, "time": time.time(), **values}, prefix)

    def write_history(self) -> None:
        """Write `best.json` on rank 0."""
        if self.ranks.is_first:
            self.run.write(layout.BEST, self.history.as_json())


def summary(entry: Entry) -> str:
    """Format the scores of an entry for the log."""
    return (
        f"BLEU {entry['bleu']:.2f}  chrF {entry['chrf']:.2f}  "
        f"nll {entry['nll']:.4f}  ppl {math.exp(min(entry['nll'], 700)):.2f}"
    )
