"""Scores of a model in training: sets of text are translated, scored and recorded."""

import math
import time
from functools import partial

import torch
from pydantic import TypeAdapter

from mtrain.config.schema import Config
from mtrain.corpus.readers import Text
from mtrain.data.prepare import Prepared
from mtrain.model.building import build
from mtrain.model.transformer import set_compute_dtype
from mtrain.runs import layout
from mtrain.runs.directory import RunDirectory
from mtrain.runs.history import BEST, Entry, History
from mtrain.runtime import files
from mtrain.runtime.device import compute_dtype
from mtrain.runtime.distributed import Ranks
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import logger, progress_bar
from mtrain.runtime.stop import Stop
from mtrain.scoring import metrics
from mtrain.training.learner import Learner
from mtrain.translation.loading import LoadedModel
from mtrain.translation.scorer import Scorer
from mtrain.translation.translator import Translator

NLL = TypeAdapter(tuple[float, int])


class Validation:
    """The history of a run's scores, kept in `best.json`, `metrics.jsonl` and `validation/`. All
    ranks translate and know the history; rank 0 writes.
    """

    def __init__(
        self,
        config: Config,
        prepared: Prepared,
        run: RunDirectory,
        stop: Stop,
        ranks: Ranks,
        learner: Learner,
    ) -> None:
        self.config, self.prepared, self.run, self.stop = config, prepared, run, stop
        self.ranks, self.learner = ranks, learner
        self.history = History.begin(config.train.metric)

    def resume(self, step: int) -> None:
        """Restore the history as it was at a step; records of later steps are removed."""
        self.ranks.first(partial(self._cut, step))
        self.broadcast_history()

    def _cut(self, step: int) -> None:
        if self.load_history(step):
            self.write_history()
        self.run.metrics.cut(step)

    def broadcast_history(self) -> None:
        """Replace the history of every rank by that of rank 0."""
        self.history = self.ranks.share(lambda: self.history, BEST)

    def load_history(self, step: int) -> bool:
        """Load the history as it was at a step; return whether the file holds more."""
        stored = self.run.read(layout.BEST, BEST)
        if stored is None and step > self.config.train.valid_every:
            raise UserError(
                f"{self.run.path / 'best.json'}: missing, so the best checkpoint is unknown; "
                "restore the file, or choose another run_dir"
            )
        self.history = stored or self.history
        self.history.metric = self.config.train.metric
        before = self.history.as_json()
        self.history.cut(step, self.config.train.is_validated)
        return self.history.as_json() != before

    def write_history(self) -> None:
        """Write `best.json`, on rank 0."""
        if self.ranks.is_first:
            self.run.write(layout.BEST, self.history.as_json())

    def validate(self, step: int) -> None:
        """Score the current weights, which the checkpoint of this step holds."""
        name = layout.step_name(step)
        entry = self.evaluate(self._current_model(), self.prepared.valid, name, step, "valid/")
        self.learner.model.train()
        self.history.entries.append({"step": step, "checkpoint": name, **entry})
        self.history.average = None  # it is of an earlier end of this run
        self.write_history()
        best = self.history.best
        mark = "  best so far" if best is not None and best["step"] == step else ""
        logger.info("step %s  %s%s", f"{step:,}", summary(entry), mark)

    def _current_model(self) -> LoadedModel:
        """Return the current weights, ready to translate as `mtrain translate` does by default."""
        model, device = self.learner.model, self.learner.device
        dtype = compute_dtype("auto", device, training=False)
        if dtype != model.dtype or self.learner.average is not None:
            with torch.device("meta"):
                model = build(model.shape, device)
            model.take_weights(self.learner.weights)
            set_compute_dtype(model.to(device), dtype)
        tokenizer, decode = self.prepared.tokenizer, self.config.decode
        check = self.stop.check
        return LoadedModel(model, tokenizer, decode, self.config, check_stop=check)

    def evaluate(self, model: LoadedModel, text: Text, name: str, step: int, prefix: str) -> Entry:
        """Translate a set and return its BLEU, chrF and NLL per token. Rank 0 writes the
        translations under `name` and a metrics record whose keys begin with `prefix`.
        """
        with progress_bar(len(text), "line", f"translating {name}") as bar:
            hypotheses = Translator(model, self.ranks).best(text.sources, bar.update)
        mine = slice(self.ranks.rank, None, self.ranks.size)
        sources, references = text.sources[mine], text.references[mine]
        parts = self.ranks.gather(lambda: Scorer(model).nll(sources, references), NLL)
        bleu = metrics.bleu_of_run(hypotheses, text.references, self.config.data.tgt_lang)
        entry: Entry = {
            "bleu": bleu.score,
            "chrf": metrics.score("chrf", hypotheses, [text.references]).score,
            "nll": sum(nll for nll, _ in parts) / sum(tokens for _, tokens in parts),
            "signature": bleu.signature,
        }
        if self.ranks.is_first:
            self.run.check_held()
            path = layout.translations(self.run.path, name)
            files.make_directory(path.parent)
            files.write_text(path, "".join(line + "\n" for line in hypotheses))
            values = {f"{prefix}{key}": value for key, value in entry.items()}
            values[f"{prefix}ppl"] = math.exp(min(entry["nll"], 700))
            # replaces the record of an interrupted attempt
            self.run.metrics.replace({"step": step, "time": time.time(), **values}, prefix)
        return entry


def summary(entry: Entry) -> str:
    """Return the scores in one line."""
    return (
        f"BLEU {entry['bleu']:.2f}  chrF {entry['chrf']:.2f}  "
        f"nll {entry['nll']:.4f}  ppl {math.exp(min(entry['nll'], 700)):.2f}"
    )
