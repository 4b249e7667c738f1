"""`mtrain verify`: hash every file of a run again, and check that its records agree.

It loads no model, follows no link and writes nothing. Each check yields findings.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mtrain.config.changes import fixed_changes
from mtrain.config.corpora import HubCorpus
from mtrain.config.loading import load_stored_config
from mtrain.corpus.readers import corpus_name, files_of, read_pairs, reading_of, scan
from mtrain.runs import layout, manifest, reader, synthetic
from mtrain.runs.reader import Run
from mtrain.runs.records import Loop, MetricsFile, read_record
from mtrain.runtime.errors import UserError, as_user_error, printable
from mtrain.runtime.log import first_numbers

OK, DAMAGED, MISSING, CHANGED = "ok", "damaged", "missing", "changed"
NOTE, UNREACHABLE = "note", "unreachable"  # no failure
BAD = (DAMAGED, MISSING, CHANGED)
INTACT = "matches its manifest"


@dataclass(frozen=True)
class Finding:
    """An item that was checked, its state, and the reason."""

    what: str
    state: str
    detail: str

    def __str__(self) -> str:
        return printable(f"{self.state:<11}  {self.what}: {self.detail}")


def verify(path: Path) -> Iterator[Finding]:
    """Check a run or checkpoint directory; raises `UserError` for any other."""
    layout.require_model(path)
    if (path / manifest.NAME).exists():
        yield from _checkpoint(path.resolve(), path.resolve().name, None)
        return
    has_begun = layout.has_training_files(path)
    if not has_begun and not os.path.lexists(path / layout.STATUS):
        layout.refuse_prepared(path)
        raise UserError(f"{path}: not a run directory: it holds no run.json; give a run directory")
    run = reader.read_run(path)
    sizes = dict[str, int]()
    checks = [(str(path), _small_files(run, has_begun)), (layout.STATUS, _status(run))]
    if has_begun:
        checks += [
            (layout.CONFIG, _settings(run)),
            (layout.TOKENIZER, _vocabulary(run)),
            (layout.CHECKPOINTS, _checkpoints(run)),
            (layout.BEST, _best(run)),
            (layout.METRICS, _metrics(run)),
            (layout.SYNTHETIC, _synthetic(run)),
            ("data", _data(run, sizes)),
            (layout.VALIDATION, _translations(run, sizes)),
        ]
    links = list(_guarded(str(path), _links(run)))
    yield from links
    linked = {finding.what for finding in links}
    for what, check in checks:
        yield from (finding for finding in _guarded(what, check) if finding.what not in linked)


def _guarded(what: str, check: Iterator[Finding]) -> Iterator[Finding]:
    """Turn an error of a check into a finding, so that the other checks run."""
    try:
        yield from check
    except (UserError, OSError) as error:
        is_missing = isinstance(error, manifest.MissingError)
        yield Finding(what, MISSING if is_missing else DAMAGED, str(as_user_error(error)))


def _links(run: Run) -> Iterator[Finding]:
    """Report links, through which a run must not be written."""
    for path in reader.links(run.path):
        yield Finding(_name(run, path), DAMAGED, reader.LINK)


def _small_files(run: Run, has_begun: bool) -> Iterator[Finding]:
    """Report small files that are damaged or, once the run has begun, missing."""
    for name, error in run.errors.items():
        if os.path.lexists(run.path / name):
            yield Finding(name, DAMAGED, str(error))
    if not has_begun:
        yield Finding(layout.RUN, NOTE, "does not exist yet: nothing has been trained")
        return
    for name in (layout.CONFIG, layout.RUN, layout.STATUS):
        if not os.path.lexists(run.path / name):
            yield Finding(name, MISSING, "every start of mtrain train writes it")


def _status(run: Run) -> Iterator[Finding]:
    """Report the state of the run, and whether the process that trains it is alive."""
    if run.status is None:
        return
    detail = f"{run.state} at step {run.status.step}"
    if run.state not in ("running", "preparing"):
        yield Finding(layout.STATUS, OK, detail)
        return
    process = f"process {run.status.pid} on {run.status.host}"
    if run.is_running:
        process += " trains it, so the items below show an unfinished run"
    else:
        process += " does not run here; if it was killed, the same command resumes"
    yield Finding(layout.STATUS, NOTE, f"{detail}: {process}")


def _settings(run: Run) -> Iterator[Finding]:
    """Compare `config.yaml` with `run.json`."""
    provenance, config = run.provenance, run.config
    if provenance is not None:
        yield Finding(layout.RUN, OK, f"seed {provenance.seed}, started {provenance.created}")
    if config is None:
        return
    state, detail = OK, "its SHA-256 is that of run.json"
    if provenance is not None and config.seed != provenance.seed:
        state, detail = CHANGED, f"seed {config.seed}, but {provenance.seed} in run.json"
    elif provenance is None:
        detail = "a valid config; run.json, which has its SHA-256, is missing or damaged"
    elif manifest.hash_text(run.text) != provenance.config:
        state, detail = CHANGED, "its SHA-256 differs from run.json"
    yield Finding(layout.CONFIG, state, detail)


def _vocabulary(run: Run) -> Iterator[Finding]:
    """Compare the vocabulary with `run.json`."""
    data = reader.read_vocabulary(run.path)
    if data is None:
        if run.state not in ("preparing", "refused", "failed", "unknown"):
            yield Finding(layout.TOKENIZER, MISSING, "every checkpoint has a copy")
        return
    sha256 = hashlib.sha256(data).hexdigest()
    if run.provenance is not None and sha256 != run.provenance.tokenizer:
        yield Finding(layout.TOKENIZER, CHANGED, "its SHA-256 differs from run.json")
    else:
        yield Finding(layout.TOKENIZER, OK, f"{len(data):,} bytes")


def _checkpoints(run: Run) -> Iterator[Finding]:
    """Hash every file of every checkpoint, including the average."""
    directory = run.path / layout.CHECKPOINTS
    reader.refuse_link(directory)
    average = directory / layout.AVERAGE
    paths = [*layout.named_checkpoints(directory), average]
    paths = [path for path in paths if path.exists() and not path.is_symlink()]  # see _links
    newest_complete = layout.complete_checkpoints(directory)[-1:]
    if run.history and run.history.average and not os.path.lexists(average):
        yield Finding(_name(run, average), MISSING, "best.json has its scores")
    for path in paths:
        findings = list(_checkpoint(path, _name(run, path), run))
        inner = path / layout.TRAINER
        if run.state != "complete" and not inner.exists() and path in newest_complete:
            text = "resuming from this checkpoint needs it"
            findings.append(Finding(_name(run, inner), MISSING, text))
        if not run.is_running or path.exists():  # training may have removed an old checkpoint
            yield from findings
    if run.status is not None and run.state == "complete":
        newest = directory / layout.step_name(run.status.step)
        if not paths:
            yield Finding(layout.CHECKPOINTS, MISSING, "a complete run has checkpoints")
        elif newest not in paths:
            yield Finding(_name(run, newest), NOTE, "missing: it would be trained again")


def _checkpoint(path: Path, name: str, run: Run | None) -> Iterator[Finding]:
    """Check one checkpoint against its manifest and the run's vocabulary and settings."""
    yield from _guarded(name, _model(path, name, run))
    inner = path / layout.TRAINER
    name = f"{name}/{layout.TRAINER}"
    if os.path.lexists(inner):
        yield from _guarded(name, _trainer(inner, name, layout.step_of(path)))


def _model(path: Path, name: str, run: Run | None) -> Iterator[Finding]:
    """Check the model of a checkpoint, its vocabulary and its settings."""
    # not by its weights, which Marian names like a checkpoint's
    if run is None and not manifest.lists(path, layout.CONFIG):
        manifest.verify(path)
        yield Finding(name, OK, f"{INTACT}: an exported model, not a checkpoint")
        return
    manifest.verify(path, layout.MODEL, layout.CONFIG, layout.TOKENIZER)
    provenance, config = (run.provenance, run.config) if run else (None, None)
    stored = load_stored_config(path / layout.CONFIG)
    changed = [key for key, *_ in fixed_changes(stored, config or stored)]
    if provenance and manifest.hash_file(path / layout.TOKENIZER) != provenance.tokenizer:
        yield Finding(name, CHANGED, f"its {layout.TOKENIZER} differs from run.json")
    elif changed:
        yield Finding(name, CHANGED, f"its settings differ from config.yaml: {', '.join(changed)}")
    else:
        yield Finding(name, OK, INTACT)


def _trainer(path: Path, name: str, step: int | None) -> Iterator[Finding]:
    """Check the `trainer/` directory of a checkpoint, and its step unless that is None."""
    reader.refuse_link(path)
    manifest.verify(path, layout.OPTIMIZER, layout.STATE)
    loop = read_record(path / layout.STATE, Loop)
    if loop is not None and step not in (None, loop.step):
        yield Finding(name, CHANGED, f"{layout.STATE} is of step {loop.step}")
    else:
        yield Finding(name, OK, INTACT)


def _best(run: Run) -> Iterator[Finding]:
    """Check that the best checkpoint exists, that `best.json` names the best of its validations,
    and that its metric is that of `config.yaml`.
    """
    history = run.history
    if history is None:
        step = layout.last_step(layout.complete_checkpoints(run.path / layout.CHECKPOINTS))
        # a step is saved before it is validated
        is_due = run.config is not None and step > run.config.train.valid_every
        if (is_due or run.state == "complete") and not (run.path / layout.BEST).exists():
            text = "so the best checkpoint is unknown; mtrain train rebuilds it from metrics.jsonl"
            yield Finding(layout.BEST, MISSING, text)
        return
    best = history.best
    name = best["checkpoint"] if best else "none"
    stored = history.stored_best
    if (stored and (stored.checkpoint, stored.step)) != (best and (name, best["step"])):
        detail = f"its best is not the best of its history, which is {name}"
        yield Finding(layout.BEST, CHANGED, detail)
    if run.config is not None and history.metric != run.config.train.metric:
        detail = f"metric {history.metric}, but {run.config.train.metric} in config.yaml"
        yield Finding(layout.BEST, CHANGED, detail)
    directory = run.path / layout.CHECKPOINTS / name
    if best is None or directory.is_dir():
        detail = f"validations: {len(history.entries)}, best checkpoint: {name}"
        yield Finding(layout.BEST, OK, detail)
    elif not run.is_running:  # training may have replaced the best meanwhile
        yield Finding(layout.BEST, MISSING, f"the best checkpoint, {_name(run, directory)}")


def _metrics(run: Run) -> Iterator[Finding]:
    """Check that `metrics.jsonl` is readable and agrees with `best.json`."""
    path = run.path / layout.METRICS
    entries = run.history.entries if run.history else []
    if not path.exists():
        if entries:
            yield Finding(path.name, MISSING, "best.json has validations")
        return
    records, broken = MetricsFile(path).parse()
    if broken:
        yield Finding(path.name, DAMAGED, f"invalid records: line {first_numbers(broken)}")
    steps = [record["step"] for record in records]
    if steps != sorted(steps):
        yield Finding(path.name, CHANGED, "its steps are not in order")
    recorded = {(r["step"], r["valid/bleu"]) for r in records if "valid/bleu" in r}
    differing = [e["step"] for e in entries if (e["step"], e["bleu"]) not in recorded]
    if differing:
        detail = f"its validation differs from best.json at step {first_numbers(differing)}"
        yield Finding(path.name, CHANGED, detail)
    elif not broken:
        yield Finding(path.name, OK, f"{len(records):,} record{'s' * (len(records) != 1)}")


def _data(run: Run, sizes: dict[str, int]) -> Iterator[Finding]:
    """Hash the readable corpora, without the cache; store the numbers of pairs of unchanged sets in
    `sizes`, by their keys in the config.
    """
    if run.config is None or run.provenance is None:
        return
    train = run.config.data.train
    recorded = run.provenance.train
    if len(train) != len(recorded):
        detail = f"{len(train)} corpora, but {len(recorded)} in run.json"
        yield Finding("data.train", CHANGED, detail)
    for key, (corpus, sha256) in run.corpora.items():
        if sha256 is not None:
            finding = check_corpus(run, key)
            if finding.state == OK and not key.startswith("data.train"):
                # without pairs that `data.invalid_utf8: drop` leaves out
                reading = reading_of(run.config, keep_blank=True)
                sizes[key] = sum(1 for _ in read_pairs(corpus, reading))
            yield finding


def check_corpus(run: Run, key: str) -> Finding:
    """Hash a corpus of the config, and compare the hash with that of the text that the run used."""
    corpus, sha256 = run.corpora[key]
    assert run.config is not None
    what = f"{key} {corpus_name(corpus)}"
    reading = reading_of(run.config)
    if isinstance(corpus, HubCorpus):
        return Finding(what, UNREACHABLE, "a dataset, which is not loaded again")
    for file in files_of(corpus, reading.root):
        if not os.access(file, os.R_OK):
            advice = "" if file.is_absolute() else "; start mtrain where the run was started"
            detail = f"{file.absolute()}: missing or not readable{advice}"
            return Finding(what, UNREACHABLE, detail)
    try:
        text = scan(corpus, reading)
    except UserError as error:
        return Finding(what, DAMAGED, str(error))
    if text.sha256 != sha256:
        return Finding(what, CHANGED, "its content differs from the run's")
    return Finding(what, OK, f"{text.pairs:,} pairs, same as in the run")


def _synthetic(run: Run) -> Iterator[Finding]:
    """Hash the synthetic text of the run."""
    for key in run.provenance.synthetic if run.provenance else ():
        path = synthetic.directory(run.path, int(key.rpartition(".")[2]))
        yield from _guarded(_name(run, path), _synthetic_text(run, path))


def _synthetic_text(run: Run, path: Path) -> Iterator[Finding]:
    if not path.exists():
        raise manifest.MissingError("the run was trained on it")
    manifest.verify(path, synthetic.PAIRS, synthetic.RECORD)
    yield Finding(_name(run, path), OK, INTACT)


def _translations(run: Run, sizes: dict[str, int]) -> Iterator[Finding]:
    """Check that the translations of validations and tests have a line for each pair."""
    if run.history is None:
        return
    entries = [*run.history.entries, *filter(None, [run.history.average])]
    # each validation has one file of translations of all its corpora
    valid_keys = run.config.data.valid_keys if run.config else []
    sets = [(entry["checkpoint"], valid_keys) for entry in entries]
    sets += [(f"test-{name}", [f"data.test.{name}"]) for name in run.history.tests]
    for name, keys in sets:
        what = _name(run, layout.translations_file(run.path, name))
        counted = [sizes[key] for key in keys if key in sizes]
        size = sum(counted) if counted and len(counted) == len(keys) else None
        yield from _guarded(what, _count(what, run.path, name, size))


def _count(what: str, run_dir: Path, name: str, size: int | None) -> Iterator[Finding]:
    """Check translations of a set of `size` pairs, None if unknown."""
    count = sum(1 for _ in reader.read_translations(run_dir, name))
    if size is not None and count != size:
        yield Finding(what, CHANGED, f"{count:,} lines, but {size:,} pairs in its set")
    else:
        yield Finding(what, OK, f"{count:,} lines")


def _name(run: Run, path: Path) -> str:
    return str(path.relative_to(run.path))
