"""Translate and score validation and test sets during training, and record the scores.

At the end of a run the last checkpoints are averaged and validated, then the best model is scored
on the test sets. Scores of an earlier start are not computed again.
"""

import math
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from statistics import fmean

import torch
from safetensors.torch import load, save

from mtrain.corpus.lines import medium_line_indices
from mtrain.corpus.readers import ScoredText
from mtrain.model.building import build
from mtrain.model.transformer import set_compute_dtype
from mtrain.runs import checkpoint, compatibility, layout, reader
from mtrain.runs.history import Entry, History
from mtrain.runs.records import Provenance, duration
from mtrain.runtime import files
from mtrain.runtime.console import cut_to_width
from mtrain.runtime.device import compute_dtype
from mtrain.runtime.errors import UserError
from mtrain.runtime.files import quote_path
from mtrain.runtime.log import first_numbers, logger, progress_bar
from mtrain.scoring import metrics
from mtrain.scoring.notes import find_faults
from mtrain.training.resume import Checkpoints, Session
from mtrain.translation.loading import LoadedModel, unpack
from mtrain.translation.scorer import Scorer
from mtrain.translation.translator import Translator

SAMPLES = 3  # translations that each validation logs
MAX_SAMPLE_LENGTH = 300  # columns of a sample


class Validation:
    """The history of a run's scores, stored in `best.json`, `metrics.jsonl` and `validation/`. All
    ranks translate and have the history; rank 0 writes.
    """

    def __init__(self, session: Session, checkpoints: Checkpoints) -> None:
        self.config = session.config
        self.tokenizer = session.prepared.tokenizer
        data, sets = session.config.data, session.prepared.sets
        self.valid = [sets[key] for key in data.valid_keys]
        self.log = ScoreLog(session, self.valid)
        self.tests = {name: sets[f"data.test.{name}"] for name in data.test}
        self.run = session.run
        self.stop = session.stop
        self.ranks = session.ranks
        self.metric = session.metric
        self.checkpoints = checkpoints
        self.learner = checkpoints.learner
        self.history = History.begin(session.config.train.metric)

    def resume(self, step: int) -> None:
        """Restore the history as it was at a step; records of later steps are removed."""
        self.history = self.ranks.from_rank_0(partial(self._restore, step), History)

    def _restore(self, step: int) -> History:
        """Load the history, and drop records that the resumed run writes again."""
        self.load_history(step)
        if self.history.entries or (self.run.path / layout.BEST).exists():
            # the checkpoint that is best now may have been pruned when another was the best
            self._mark_lost()
            self.write_history()
        history = self.history
        missing = [f"test/{name}/" for name in self.tests if name not in history.tests]
        if step not in history.steps:
            missing.append("valid/")
        if history.average is None:
            missing.append("average/")
        records = self.run.metrics.cut(step, tuple(missing))
        recorded = {record["step"] for record in records if "valid/bleu" in record}
        if lost := sorted({*history.steps} - recorded):
            logger.warning(
                "%s: has no record of the validation at step %s, which %s has; restore the file "
                "for a complete report",
                self.run.metrics.path,
                first_numbers(lost),
                layout.BEST,
            )
        return history

    def load_history(self, step: int) -> None:
        """Load the history as it was at a step. Warn if the best model is of an earlier end of the
        run, which is continued now.
        """
        stored = self.run.read(layout.BEST, History)
        if stored is None and step > self.config.train.valid_every:
            stored = self._rebuild_history(step)
        self.history = stored or self.history
        self.history.metric = self.config.train.metric
        best = self.history.best
        self.history.cut(step, self.config.train)
        if best is None or best["step"] > step or best["checkpoint"] in self.history.checkpoints:
            return
        if (path := self.run.checkpoints / best["checkpoint"]).exists():
            logger.warning(
                "%s was the best model; the run that continues does not count it, and will replace "
                "it; copy it to keep it",
                path,
            )

    def _rebuild_history(self, step: int) -> History:
        """Rebuild the lost history of a run that resumes at a step from `metrics.jsonl`; raises
        `UserError` if that lacks a validation.
        """
        path = self.run.path / layout.BEST
        records = self.run.metrics
        with suppress(ValueError):
            history = History.of_records(self.config.train.metric, records.parse()[0])
            every = self.config.train.valid_every
            if {*range(every, step, every)} <= {*history.steps}:
                command = self.metric.command if self.metric else None
                compatibility.check_data(self.run, {"metric_command": command})
                logger.warning("%s: missing; it is rebuilt from %s", path, records.path.name)
                return history
        raise UserError(
            f"{path}: missing, so the best checkpoint is unknown, and {records.path.name} does not "
            "have all validations; restore one of the two, or choose another run_dir"
        )

    @property
    def best_names(self) -> set[str]:
        """Names of the best checkpoints, which must not be removed."""
        return self.history.best_names(self.config.train.valid_every)

    def write_history(self) -> None:
        """Write `best.json`, on rank 0."""
        if self.ranks.is_rank_0:
            self.run.metrics.sync()
            self.run.write(layout.BEST, self.history.as_json())

    def validate(self, step: int) -> None:
        """Score the current weights, which are those of this step's checkpoint."""
        name = layout.step_name(step)
        entry = self.evaluate(self._current_model(), self.valid, name, step, "valid/")
        self.learner.model.train()
        self.history.entries.append({"step": step, "checkpoint": name, **entry})
        self.write_history()
        best = self.history.best
        mark = "  best so far" if best is not None and best["step"] == step else ""
        if mark and self.history.metric != self.history.measure:
            mark += " by nll, since no BLEU is above 1 yet"
        logger.info("step %s  %s%s", f"{step:,}", summary(entry), mark)
        if self.ranks.is_rank_0:
            with suppress(UserError):  # missing samples must not end a run
                self.log.show_samples(name)

    def _current_model(self) -> LoadedModel:
        """Return a model with the current weights, in the precision of `mtrain translate`."""
        model, device = self.learner.model, self.learner.device
        dtype = compute_dtype("auto", device, training=False)
        if dtype != model.dtype or self.learner.average is not None:
            with torch.device("meta"):
                model = build(model.shape, device)
            model.assign_weights(self.learner.weights)
            set_compute_dtype(model.to(device), dtype)
        config = self.config
        return LoadedModel(model, self.tokenizer, config.decode, config, check_stop=self.stop.check)

    def evaluate(
        self, model: LoadedModel, parts: list[ScoredText], name: str, step: int, prefix: str
    ) -> Entry:
        """Translate a set and return its BLEU, chrF and NLL per token; for a list of validation
        corpora, their means and the scores of each. Rank 0 writes the translations to the file
        `name` and a record whose keys begin with `prefix`.
        """
        results = [self._score(model, part, name) for part in parts]
        entries = [entry for _, entry in results]
        is_list = parts is self.valid and isinstance(self.config.data.valid, list)
        entry = _mean(entries) if is_list else entries[0]
        values = _record(entry, prefix)
        for number, scores in enumerate(entry.get("parts", ())):
            logger.info("%s.%d: %s", prefix.strip("/"), number, summary(scores))
            values |= _record(scores, f"{prefix}{number}/")
        if self.ranks.is_rank_0:
            self.run.check_held()
            path = layout.translations_file(self.run.path, name)
            files.make_directory(path.parent)
            files.write_text(path, "".join(line + "\n" for lines, _ in results for line in lines))
            self.run.metrics.append({"step": step, "time": time.time(), **values})
        return entry

    def _score(self, model: LoadedModel, text: ScoredText, name: str) -> tuple[list[str], Entry]:
        """Translate a set with its tag; return the translations and their scores."""
        model = model.tagged(text.corpus.tag)
        with progress_bar(len(text), "line", f"translating {name}") as bar:
            hypotheses = Translator(model, self.ranks).best(text.sources, bar.update)
        nll = Scorer(model).nll(text.sources, text.references, self.ranks)
        tokenize = self.config.data.tokenizer_of(text.corpus)
        bleu = metrics.score("bleu", hypotheses, [text.references], tokenize=tokenize)
        entry: Entry = {
            "bleu": bleu.score,
            "chrf": metrics.score("chrf", hypotheses, [text.references]).score,
            "nll": nll,
            "signature": bleu.signature,
        }
        if self.metric is not None:
            rows = zip(text.sources, hypotheses, text.references, strict=True)
            run = partial(self.metric.score, rows, self.stop.check)
            entry["command"] = self.ranks.from_rank_0(run, float)
        return hypotheses, entry

    def finish(self, step: int) -> None:
        """Average the last checkpoints and score the test sets, after the last step `step`."""
        names = self.ranks.from_rank_0(partial(self._average, step), list[str])
        if names:
            model = self._load(layout.AVERAGE)
            entry = self.evaluate(model, self.valid, layout.AVERAGE, step, "average/")
            average = {"step": step, "checkpoint": layout.AVERAGE, "of": names, **entry}
            self.history.average = average
            self.write_history()
            logger.info("average of %d checkpoints  %s", len(names), summary(entry))
        self.history = self.ranks.from_rank_0(self._mark_lost, History)
        if best := self.history.best:
            load_best = cache(partial(self._load, best["checkpoint"]))
            for name, text in self.tests.items():
                self._test(name, text, best["checkpoint"], step, load_best)

    def _average(self, step: int) -> list[str]:
        """Average the last scheduled checkpoints and return their names; return none if there are
        too few, or if this average has been validated.
        """
        directory = self.run.checkpoints
        train = self.config.train
        paths = checkpoint.last_scheduled(directory, step, train, train.average_last)
        intact = checkpoint.intact_suffix(paths)
        all_names, names = [path.name for path in paths], [path.name for path in intact]
        stored = self.history.average or {}
        # keep an average of all of them even if some were removed or damaged afterwards
        is_current = stored.get("of") in (all_names, names)
        if is_current and reader.is_intact(directory / layout.AVERAGE):
            return []
        if len(intact) < len(paths):
            damaged = paths[-1 - len(intact)]
            logger.warning("%s: damaged or missing; only later checkpoints are averaged", damaged)
        if len(intact) < 2:
            return []
        self.stop.check()
        self.run.check_held()
        if stored:
            self.run.metrics.cut(step, ("average/",))
        snapshot = self.checkpoints.snapshot(checkpoint.average(intact))
        checkpoint.save(directory / layout.AVERAGE, snapshot)
        return names

    def _mark_lost(self) -> History:
        """Mark the best validation as lost while its checkpoint is not intact."""
        lost = []
        while best := self.history.best:  # the best one that is not marked as lost
            path = self.run.checkpoints / best["checkpoint"]
            if reader.is_intact(path):
                break
            best["lost"] = True
            lost.append(path)
        if lost:
            logger.warning("%s: damaged or missing; using the best intact checkpoint", lost[0])
            self.write_history()
        return self.history

    def _test(
        self, name: str, text: ScoredText, best: str, step: int, load: Callable[[], LoadedModel]
    ) -> None:
        """Score a test set, unless the history has its scores for this model, text and search."""
        identity = {
            "checkpoint": best,
            "step": step,
            "sha256": text.sha256,
            "decode": self.config.decode.model_dump(),
            "tokenize": self.config.data.tokenizer_of(text.corpus),
        }
        stored = self.history.tests.get(name, {})
        if identity.items() <= stored.items():
            return
        if stored and self.ranks.is_rank_0:
            self.run.metrics.cut(step, (f"test/{name}/",))
        entry = self.evaluate(load(), [text], f"test-{name}", step, f"test/{name}/")
        self.history.tests[name] = {**identity, **entry}
        self.write_history()

    def _load(self, name: str) -> LoadedModel:
        """Load a checkpoint as `mtrain translate` does. Rank 0 reads and broadcasts it, because on
        other machines the file may not be visible yet.
        """
        path = self.run.checkpoints / name
        read = partial(checkpoint.load_or_name_intact, path)
        weights = load(self.ranks.from_rank_0(lambda: save(read().weights), bytes))
        snapshot = self.checkpoints.snapshot(weights)
        device = str(self.learner.device)
        return unpack(snapshot, path, {}, device=device, check_stop=self.stop.check)


class ScoreLog:
    """What the log shows of a run's scores, and of the translations of its validation set."""

    def __init__(self, session: Session, valid: list[ScoredText]) -> None:
        self.config, self.run, self.valid = session.config, session.run, valid

    def show_end(self, history: History, state: str, step: int) -> None:
        """Log the end of a complete or stopped run: time, directory and best scores; if complete,
        also test scores, notes on them, and the next commands.
        """
        path = self.run.path
        last = self.config.train.max_steps
        records = self.run.metrics.parse()[0]
        if state != "complete":  # count up to now: the last record may be many steps old
            records.append({"time": time.time()})
        passed = duration(self.run.read(layout.RUN, Provenance), records)
        after = f", {passed} after the run began" if passed else ""
        reached = f"{step:,} of {last:,}"
        if step > last:  # an earlier start had a larger limit
            reached = f"{step:,} (train.max_steps: {last:,})"
        elif state == "complete" and step < last:
            reached += f" (ended by train.patience: {self.config.train.patience})"
        logger.info("%s at step %s%s: %s", state, reached, after, path)
        best = history.best
        if best:
            logger.info("best by %s: %s  %s", history.measure, best["checkpoint"], summary(best))
        if state != "complete":
            return
        for name in filter(history.tests.get, self.config.data.test):
            logger.info("test %s: %s", name, summary(history.tests[name]))
        if best:
            self._show_notes(history, best)
        tag = self.config.data.valid_corpora[0].tag
        command = ["mtrain", "translate", "-m", str(path), *(["--tag", tag] if tag else [])]
        logger.info("next: %s", shlex.join(command))
        logger.info("      mtrain report %s", quote_path(path))

    def _show_notes(self, history: History, best: Entry) -> None:
        """Log the signatures of the scores, and a likely fault of the best translations."""
        scored = {f"valid.{i}": part for i, part in enumerate(best.get("parts") or ())}
        scored = scored or {"valid": best}
        scored |= {f"test {name}": entry for name, entry in history.tests.items()}
        signed: dict[str, list[str]] = {}
        for name, entry in scored.items():
            signed.setdefault(entry["signature"], []).append(name)
        for signature, names in signed.items():
            of_sets = f" of {', '.join(names)}" if len(signed) > 1 else ""
            logger.info("signature of BLEU%s: %s", of_sets, signature)
        with suppress(UserError):  # the file may be gone
            sources, references, hypotheses = self._translated(best["checkpoint"])
            for note in find_faults(hypotheses, [references], sources)[:1]:
                logger.warning("data.valid: %s", note)
        if history.outlook:
            logger.info("%s", history.outlook)

    def _translated(self, name: str) -> tuple[list[str], list[str], list[str]]:
        """Return sources and references of the validation set, and its translations by the
        checkpoint `name`; raises `UserError`.
        """
        sources = [line for text in self.valid for line in text.sources]
        references = [line for text in self.valid for line in text.references]
        return sources, references, list(reader.read_translations(self.run.path, name))

    def show_samples(self, name: str) -> None:
        """Log the same few lines of the validation set each time, with their translations."""
        texts = self._translated(name)
        for index in medium_line_indices(texts[0], SAMPLES):
            number = str(index + 1)  # shown on the first of three lines
            for title, lines in zip(("source", "reference", "translation"), texts, strict=True):
                line = cut_to_width(lines[index], MAX_SAMPLE_LENGTH)
                logger.info("%6s  %-11s  %s", number, title, line, extra={"is_cut": True})
                number = ""


def _mean(parts: list[Entry]) -> Entry:
    """Return the mean scores of a list of sets, with the scores of its parts."""
    keys = [key for key in ("bleu", "chrf", "nll", "command") if key in parts[0]]
    entry: Entry = {key: fmean(part[key] for part in parts) for key in keys}
    signatures = dict.fromkeys(part["signature"] for part in parts)
    return {**entry, "signature": " / ".join(signatures), "parts": parts}


def _record(entry: Entry, prefix: str) -> dict[str, float | str]:
    """Return scores for `metrics.jsonl`, whose keys begin with `prefix`."""
    values = {f"{prefix}{key}": value for key, value in entry.items() if key != "parts"}
    return {**values, f"{prefix}ppl": perplexity(entry["nll"])}


def perplexity(nll: float) -> float:
    """Return the perplexity of a negative log-likelihood per token, bounded to a finite number."""
    return math.exp(min(nll, 700))


def two_decimals(value: float) -> str:
    """Show a number for people; a long one, as of a run that diverges, in powers of ten."""
    return f"{value:.2f}" if value < 1e6 else f"{value:.2e}"


def summary(entry: Entry) -> str:
    """Return the scores in one line."""
    command = f"command {entry['command']:.6g}  " if "command" in entry else ""
    return (
        f"{command}BLEU {entry['bleu']:.2f}  chrF {entry['chrf']:.2f}  "
        f"nll {entry['nll']:.4f}  ppl {two_decimals(perplexity(entry['nll']))}"
    )
