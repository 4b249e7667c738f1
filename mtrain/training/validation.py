"""Judging a run: validations on the way, the averaged model and the test sets at the end."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import Tensor

from mtrain.config.schema import Config
from mtrain.corpus.readers import Text
from mtrain.data.prepare import Prepared
from mtrain.runs import checkpoint, layout
from mtrain.runs.checkpoint import Snapshot
from mtrain.runs.directory import RunDirectory
from mtrain.runs.history import History
from mtrain.runs.records import BEST, Entry
from mtrain.runtime import files
from mtrain.runtime.distributed import BYTES, Ranks
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import logger, progress_bar
from mtrain.runtime.stop import Stop
from mtrain.scoring import metrics
from mtrain.translation.ranks import share_among
from mtrain.translation.translator import Translator, make_translator


@dataclass(frozen=True)
class Share:
    """Negative log-likelihood and number of the references' tokens of one rank's lines of a set."""

    nll: float
    tokens: int


SHARE, NAMES, HISTORY = TypeAdapter(Share), TypeAdapter(list[str]), TypeAdapter(History)


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
        device: torch.device,
    ) -> None:
        self.config, self.prepared, self.run, self.stop = config, prepared, run, stop
        self.ranks, self.device = ranks, device
        self.history = History(config.train.metric)

    def resume(self, step: int) -> None:
        """Take up the history as it was at a step; records of later ones are dropped."""
        self._share(partial(self._cut, step))

    def _cut(self, step: int) -> None:
        if self.look_back(step):
            self._write_history()
        self.run.metrics.cut(step)

    def _share(self, work: Callable[[], None]) -> None:
        """Call `work` on rank 0, and broadcast the history as it is then."""

        def find() -> History:
            work()
            return self.history

        self.history = self.ranks.share(find, HISTORY)

    def look_back(self, step: int) -> bool:
        """Load the history as it was at a step; tells whether the file says more."""
        stored = self.run.read(layout.BEST, BEST)
        if stored is None and step > self.config.train.valid_every:
            raise UserError(
                f"{self.run.path / 'best.json'}: missing, and with it which checkpoint is best; "
                "bring it back, or choose another run_dir"
            )
        self.history = History.of(self.history.metric, stored)
        before = self.history.as_json()
        self.history.cut(step, self.config.train.is_validated)
        return self.history.as_json() != before

    def validate(self, translator: Translator, step: int) -> None:
        """Score the checkpoint of a step on the validation set."""
        entry, hypotheses = self._evaluate(translator, self.prepared.valid, "valid")
        name = layout.step_name(step)
        self._keep(name, hypotheses, step, "valid/", entry)
        self.history.entries.append({"step": step, "checkpoint": name, **entry})
        self.history.average = None  # training has gone on since
        self._write_history()
        best = self.history.best
        mark = "  best so far" if best is not None and best["step"] == step else ""
        logger.info("step %s  %s%s", f"{step:,}", _summary(entry), mark)

    def average(
        self, paths: list[Path], step: int, snapshot: Callable[[dict[str, Tensor]], Snapshot]
    ) -> None:
        """Average checkpoints and validate the result, unless that was done."""
        averaged = self.ranks.share(partial(self._write_average, paths, snapshot), NAMES)
        if not averaged:
            return
        name = layout.AVERAGE
        entry, hypotheses = self._evaluate(self._load(name), self.prepared.valid, "valid")
        self._keep(name, hypotheses, step, "average/", entry)
        self.history.average = {"step": step, "checkpoint": name, "of": averaged, **entry}
        self._write_history()
        logger.info("average of %d  %s", len(averaged), _summary(entry))

    def _write_average(
        self, paths: list[Path], snapshot: Callable[[dict[str, Tensor]], Snapshot]
    ) -> list[str]:
        """Average checkpoints; return their names, none where nothing is to be validated."""
        found = checkpoint.whole_ones(paths)
        if len(found) < len(paths):
            first = paths[-1 - len(found)]
            logger.warning("%s: damaged or gone; only later checkpoints are averaged", first)
        names = [path.name for path in found]
        path = self.run.checkpoints / layout.AVERAGE
        before = self.history.average or {}
        if len(found) < 2 or (before.get("of") == names and checkpoint.is_good(path)):
            return []
        self.stop.check()
        self.run.check_held()
        checkpoint.save(path, snapshot(checkpoint.average(found)))
        return names

    def test(self, step: int) -> None:
        """Score the test sets with the best model, and report."""
        self._share(self._find_lost)
        best = self.history.best
        if best is None:
            return
        for name, text in self.prepared.tests.items():
            self._test(name, text, best["checkpoint"], step)
        logger.info("best: %s  %s", best["checkpoint"], _summary(best))
        for name in self.prepared.tests:
            entry = self.history.tests[name]
            logger.info("test %s: %s  %s", name, _summary(entry), entry["signature"])

    def _find_lost(self) -> None:
        """Note which checkpoints, better than the best of those that are whole, are not."""
        lost = []
        while best := self.history.best:
            path = self.run.checkpoints / best["checkpoint"]
            if checkpoint.is_good(path):
                break
            best["lost"] = True
            lost.append(path)
        if lost:
            logger.warning("%s: damaged or gone; going on with the best of the others", lost[0])
            self._write_history()

    def _test(self, name: str, text: Text, best: str, step: int) -> None:
        """Score one test set, unless that was done with the same model, text and search."""
        identity = {
            "checkpoint": best,
            "step": step,
            "sha256": text.sha256,
            "decode": self.config.decode.model_dump(),
        }
        before = self.history.tests.get(name, {})
        if {key: before.get(key) for key in identity} == identity:
            return
        entry, hypotheses = self._evaluate(self._load(best), text, name)
        self._keep(f"test-{name}", hypotheses, step, f"test/{name}/", entry)
        self.history.tests[name] = {**identity, **entry}
        self._write_history()

    def _evaluate(self, translator: Translator, text: Text, name: str) -> tuple[Entry, list[str]]:
        """Score a model on a set: BLEU, chrF, NLL a token; and its translations."""
        share_among(self.ranks, translator)
        with progress_bar(len(text), "line", f"translating {name}") as bar:
            hypotheses = translator.best(text.sources, bar.update)
        shares = self.ranks.gather(partial(self._find_share, translator, text), SHARE)
        bleu = metrics.bleu_of_run(hypotheses, text.references, self.config.data.tgt_lang)
        entry = {
            "bleu": bleu.score,
            "chrf": metrics.chrf(hypotheses, [text.references]).score,
            "nll": sum(share.nll for share in shares) / sum(share.tokens for share in shares),
            "signature": bleu.signature,
        }
        return entry, hypotheses

    def _find_share(self, translator: Translator, text: Text) -> Share:
        """Score the references of this rank's lines of a set."""
        mine = slice(self.ranks.rank, None, self.ranks.size)
        return Share(*translator.nll(text.sources[mine], text.references[mine]))

    def _keep(self, name: str, hypotheses: list[str], step: int, prefix: str, entry: Entry) -> None:
        """Write translations, and a record in place of one that was left unfinished."""
        if not self.ranks.is_first:
            return
        self.run.check_held()
        path = layout.translations(self.run.path, name)
        files.make_directory(path.parent)
        files.write_text(path, "".join(line + "\n" for line in hypotheses))
        values = {f"{prefix}{key}": value for key, value in entry.items()}
        values[f"{prefix}ppl"] = math.exp(min(entry["nll"], 700))
        self.run.metrics.replace({"step": step, "time": time.time(), **values}, prefix)

    def _write_history(self) -> None:
        if self.ranks.is_first:
            self.run.write(layout.BEST, self.history.as_json())

    def _load(self, name: str) -> Translator:
        """Load a finished checkpoint as `mtrain translate` would."""
        path = self.run.checkpoints / name
        translator = make_translator(
            self._read(path),
            path,
            device=str(self.device),
            **self.config.decode.model_dump(),
        )
        translator.check_stop = self.stop.check
        return translator

    def _read(self, path: Path) -> Snapshot:
        """Read a checkpoint, which rank 0 may have written just now on another machine."""
        if self.ranks.size == 1:
            return checkpoint.load_or_name_good(path)
        read = partial(checkpoint.load_or_name_good, path)
        return checkpoint.unpack(self.ranks.share(lambda: checkpoint.pack(read()), BYTES))


def _summary(entry: Entry) -> str:
    return (
        f"BLEU {entry['bleu']:.2f}  chrF {entry['chrf']:.2f}  "
        f"nll {entry['nll']:.4f}  ppl {math.exp(min(entry['nll'], 700)):.2f}"
    )
