"""`mtrain verify`: hash every file of a run again and compare its records with each other.

No model is loaded, no link followed, nothing written. Each check yields findings.
"""

import hashlib
import os
import socket
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from mtrain.config.changes import fixed_changes
from mtrain.config.loading import load_stored_config
from mtrain.config.schema import Corpus, GeneratedCorpus, HubCorpus
from mtrain.corpus.readers import describe, files_of, reading_of, scan
from mtrain.runs import layout, manifest, reader
from mtrain.runs.findings import CHANGED, DAMAGED, MISSING, NOTE, OK, UNREACHABLE, Finding
from mtrain.runs.reader import Run
from mtrain.runs.records import LOOP, PACKAGES, MetricsFile, read_record
from mtrain.runtime.errors import UserError
from mtrain.runtime.log import progress_bar, shorten


def verify(path: Path) -> Iterator[Finding]:
    """Check a run directory, or one checkpoint directory; raises `UserError` for any other."""
    if not path.is_dir():
        raise UserError(f"{path}: no such directory; give a run directory")
    if (path / manifest.NAME).exists():
        name = path.resolve().name
        yield from _guarded(name, _checkpoint(path, name, None))
        return
    begun = any(os.path.lexists(path / name) for name in (layout.RUN, layout.CHECKPOINTS))
    if not begun and not os.path.lexists(path / layout.STATUS):
        raise UserError(f"{path}: not a run directory: it holds no run.json")
    run = reader.read_run(path)
    yield from _small_files(run, begun)
    if not begun:
        yield from _status(run)
        yield Finding(layout.RUN, NOTE, "not there yet: nothing has been trained")
        return
    sizes: dict[str, int] = {}
    yield from _guarded(str(path), _links(run))
    yield from _guarded(layout.STATUS, _status(run))
    yield from _guarded(layout.CONFIG, _settings(run))
    yield from _guarded(layout.TOKENIZER, _vocabulary(run))
    yield from _guarded(layout.CHECKPOINTS, _checkpoints(run))
    yield from _guarded(str(path), _leftovers(run))
    yield from _guarded(layout.BEST, _best(run))
    yield from _guarded(layout.METRICS, _metrics(run))
    yield from _guarded("data", _data(run, sizes))
    yield from _guarded(layout.VALIDATION, _translations(run, sizes))


def _guarded(what: str, check: Iterator[Finding]) -> Iterator[Finding]:
    """Turn an error of one check into a finding, so that the other checks run."""
    try:
        yield from check
    except UserError as error:
        yield Finding(what, DAMAGED, str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        yield Finding(what, DAMAGED, f"{where}{error.strerror or error}")


def _small_files(run: Run, begun: bool) -> Iterator[Finding]:
    """Report small files that cannot be read, and, if the run has begun, those that are missing."""
    for name, error in run.errors.items():
        if os.path.lexists(run.path / name):
            yield Finding(name, DAMAGED, str(error))
    for name in (layout.CONFIG, layout.RUN, layout.STATUS) if begun else ():
        if not os.path.lexists(run.path / name):
            yield Finding(name, MISSING, "every start of mtrain train writes it")


def _links(run: Run) -> Iterator[Finding]:
    for path in reader.links(run.path):
        if _name(run, path) not in run.errors:  # these are reported
            yield Finding(_name(run, path), DAMAGED, reader.LINK)


def _status(run: Run) -> Iterator[Finding]:
    if run.status is None:
        return
    status, last = run.status, run.status.last_start
    if last is not None:
        detail = f"last start: {last.state} at {last.time}: {last.reason}"
        yield Finding(layout.STATUS, NOTE, detail)
    detail = f"{run.state} at step {status.step}"
    if run.state not in ("running", "preparing"):
        yield Finding(layout.STATUS, OK, detail)
        return
    holder = f"process {status.pid} on {status.host}"
    if run.is_running:
        detail += f": {holder} trains it, so what follows is its state so far"
    elif status.host != socket.gethostname():
        detail += f", by {holder}, on another machine"
    else:
        detail += f", but {holder} was killed; the same command resumes"
    yield Finding(layout.STATUS, NOTE, detail)


def _settings(run: Run) -> Iterator[Finding]:
    """Compare `config.yaml` and this machine with `run.json`."""
    begun, config = run.begun, run.config
    if begun is not None:
        commit = f", commit {begun.commit['mtrain']}" if begun.commit.get("mtrain") else ""
        yield Finding(layout.RUN, OK, f"seed {begun.seed}, started {begun.created}{commit}")
        others = [
            f"{name} {then} in the run, {now} here"
            for name, then in begun.versions.items()
            if name in PACKAGES and (now := version(name)) != then
        ]
        if others:
            detail = f"{', '.join(others)}: equal bits are not promised here"
            yield Finding("versions", NOTE, detail)
    if config is None:
        return
    state, detail = OK, "its SHA-256 is that of run.json"
    if begun is not None and config.seed != begun.seed:
        state, detail = CHANGED, f"seed {config.seed}, but {begun.seed} in run.json"
    elif begun is None or begun.config is None:
        detail = "a valid config; there is no hash of it in run.json"
    elif hashlib.sha256(run.text.encode("utf-8")).hexdigest() != begun.config:
        state, detail = CHANGED, "its SHA-256 differs from run.json"
    yield Finding(layout.CONFIG, state, detail)


def _vocabulary(run: Run) -> Iterator[Finding]:
    """Compare the vocabulary with `run.json`."""
    path = run.path / layout.TOKENIZER
    if path.is_symlink():  # reported by _links
        return
    data = reader.read_vocabulary(run.path)
    if data is None:
        if run.state not in ("preparing", "refused", "failed", "unknown"):
            yield Finding(path.name, MISSING, "every checkpoint has a copy")
    elif run.begun is not None and hashlib.sha256(data).hexdigest() != run.begun.tokenizer:
        yield Finding(path.name, CHANGED, "its SHA-256 differs from run.json")
    else:
        yield Finding(path.name, OK, f"{len(data):,} bytes")


def _checkpoints(run: Run) -> Iterator[Finding]:
    """Hash every file of every checkpoint, the average's included."""
    directory = run.path / layout.CHECKPOINTS
    if directory.is_symlink():
        return
    average = directory / layout.AVERAGE
    paths = [path for path in (*layout.named_steps(directory), average) if path.exists()]
    paths = [path for path in paths if not path.is_symlink()]  # reported by _links
    if run.history and run.history.average and not os.path.lexists(average):
        yield Finding(_name(run, average), MISSING, "best.json has its scores")
    for path in paths:
        found = list(_checkpoint(path, _name(run, path), run))
        if run.is_running:  # training removes old checkpoints meanwhile
            found = [each for each in found if (run.path / each.what).exists()]
        yield from found
        inner = path / layout.TRAINER
        if not inner.exists() and path in layout.steps(directory)[-2:]:  # in this order
            state = NOTE if run.state == "complete" else MISSING
            yield Finding(_name(run, inner), state, "resuming from this checkpoint needs it")
    if not paths and run.state == "complete":
        yield Finding(layout.CHECKPOINTS, MISSING, "a complete run has checkpoints")


def _checkpoint(path: Path, name: str, run: Run | None) -> Iterator[Finding]:
    """Check one checkpoint against its manifest and the run's vocabulary and settings."""
    damages = list(manifest.damages(path, layout.MODEL, layout.CONFIG, layout.TOKENIZER))
    yield from (_damage(name, damage) for damage in damages)
    if not damages:
        yield from _guarded(name, _belongs(path, name, run))
    inner, name = path / layout.TRAINER, f"{name}/{layout.TRAINER}"
    if inner.is_symlink():
        yield Finding(name, DAMAGED, reader.LINK)
    elif inner.exists():
        yield from _guarded(name, _trainer(inner, name, layout.step_of(path.resolve())))


def _trainer(path: Path, name: str, step: int | None) -> Iterator[Finding]:
    """Check the trainer's part of a checkpoint, of this step if it is known."""
    damages = list(manifest.damages(path, layout.OPTIMIZER, layout.STATE))
    yield from (_damage(name, damage) for damage in damages)
    loop = None if damages else read_record(path / layout.STATE, LOOP)
    if loop is not None and step not in (None, loop.step):
        yield Finding(name, CHANGED, f"{layout.STATE} is of step {loop.step}")
    elif loop is not None:
        yield Finding(name, OK, _size(path))


def _damage(name: str, error: UserError) -> Finding:
    is_missing = isinstance(error, manifest.MissingError)
    return Finding(name, MISSING if is_missing else DAMAGED, str(error))


def _belongs(path: Path, name: str, run: Run | None) -> Iterator[Finding]:
    """Check that an intact checkpoint belongs to this run."""
    begun, config = (run.begun, run.config) if run else (None, None)
    if begun and manifest.hash_file(path / layout.TOKENIZER) != begun.tokenizer:
        yield Finding(name, CHANGED, f"its {layout.TOKENIZER} differs from run.json")
        return
    own = load_stored_config(path / layout.CONFIG)
    if keys := [key for key, *_ in fixed_changes(own, config or own)]:
        yield Finding(name, CHANGED, f"its settings differ from config.yaml: {', '.join(keys)}")
    else:
        yield Finding(name, OK, _size(path))


def _size(directory: Path) -> str:
    """Describe what was hashed."""
    files = [item for item in directory.iterdir() if item.is_file() and item.name != manifest.NAME]
    size = sum(item.stat().st_size for item in files)
    return f"{len(files)} files, {size / 1e6:,.1f} MB, as its manifest says"


def _leftovers(run: Run) -> Iterator[Finding]:
    """Report files of an interrupted or running save."""
    detail = "left by an interrupted save; the next start of mtrain train removes it"
    if run.is_running:
        detail = "being written or removed"
    for name in ("", layout.CHECKPOINTS, layout.VALIDATION):
        directory = run.path / name
        if name and directory.is_symlink():
            continue
        for item in sorted((*directory.glob(".*.partial"), *directory.glob(".*.removed"))):
            yield Finding(_name(run, item), NOTE, detail)


def _best(run: Run) -> Iterator[Finding]:
    """Check that the best checkpoint exists and that `best.json` agrees with itself and with
    `config.yaml`.
    """
    stored, history = run.best, run.history
    if stored is None or history is None:
        if not (run.path / layout.BEST).exists() and run.state == "complete":
            yield Finding(layout.BEST, MISSING, "so the best checkpoint is unknown")
        return
    best = history.best
    if history.summary != (stored.best and stored.best.model_dump(exclude_unset=True)):
        name = best["checkpoint"] if best else "none"
        detail = f"its best is not the best of its history, which is {name}"
        yield Finding(layout.BEST, CHANGED, detail)
    if run.config is not None and history.metric != run.config.train.metric:
        detail = f"metric {history.metric}, but {run.config.train.metric} in config.yaml"
        yield Finding(layout.BEST, CHANGED, detail)
    if best is None:
        yield Finding(layout.BEST, OK, "no validation yet")
        return
    directory = run.path / layout.CHECKPOINTS / best["checkpoint"]
    count = len(history.entries)
    if directory.is_dir():
        detail = f"{count} validation{'s' if count != 1 else ''}, {best['checkpoint']} is best"
        yield Finding(layout.BEST, OK, detail)
    elif run.is_running and reader.read_run(run.path).best != stored:
        yield Finding(layout.BEST, NOTE, "another checkpoint is the best by now")
    else:
        yield Finding(layout.BEST, MISSING, f"its best checkpoint, {_name(run, directory)}")


def _metrics(run: Run) -> Iterator[Finding]:
    """Check that `metrics.jsonl` is readable and agrees with `best.json`."""
    path = run.path / layout.METRICS
    entries = run.history.entries if run.history else []
    if path.is_symlink():
        return
    if not path.exists():
        if entries:
            yield Finding(path.name, MISSING, "best.json has validations")
        return
    found = MetricsFile(path).parse()
    if found.broken:
        yield Finding(path.name, DAMAGED, f"invalid records: line {shorten(found.broken)}")
    if found.cut:
        detail = f"line {found.cut} was truncated by a crash; the next start removes it"
        yield Finding(path.name, NOTE, detail)
    steps = [record["step"] for record in found.records]
    if steps != sorted(steps):
        yield Finding(path.name, CHANGED, "its steps are not in order")
    known = {(r["step"], r["valid/bleu"]) for r in found.records if "valid/bleu" in r}
    if lost := [e["step"] for e in entries if (e["step"], e["bleu"]) not in known]:
        detail = f"its validation differs from best.json at step {shorten(lost)}"
        yield Finding(path.name, CHANGED, detail)
    elif not found.broken:
        yield Finding(path.name, OK, f"{len(found.records):,} records")


def _data(run: Run, sizes: dict[str, int]) -> Iterator[Finding]:
    """Hash the corpora that can be read, without the cache; the numbers of pairs of unchanged ones
    are added to `sizes`, by their keys in the config.
    """
    if run.config is None or run.begun is None:
        return
    data, train = run.config.data, run.begun.train
    if len(data.train) != len(train):
        detail = f"{len(data.train)} corpora, but {len(train)} in run.json"
        yield Finding("data.train", CHANGED, detail)
    for number, (corpus, sha256) in enumerate(zip(data.train, train, strict=False)):
        yield _corpus(run, f"data.train.{number}", corpus, sha256, sizes)
    yield _corpus(run, "data.valid", data.valid, run.begun.valid, sizes)
    tests = run.history.tests if run.history else {}
    for name, corpus in data.test.items():
        if known := run.begun.test.get(name) or tests.get(name, {}).get("sha256"):
            yield _corpus(run, f"data.test.{name}", corpus, known, sizes)


def _corpus(run: Run, key: str, corpus: Corpus, sha256: str, sizes: dict[str, int]) -> Finding:
    what = f"{key} {describe(corpus)}"
    assert run.config is not None
    reading = reading_of(run.config)
    if reason := _why_unreachable(corpus, reading.root):
        return Finding(what, UNREACHABLE, reason)
    try:
        with progress_bar(None, "MB", f"hashing {key}") as bar:

            def progress() -> None:  # once for each block of a file
                bar.update()

            reading.check = progress
            found = scan(corpus, reading)
    except UserError as error:
        return Finding(what, DAMAGED, str(error))
    if found.sha256 != sha256:
        return Finding(what, CHANGED, "its content differs from the run's")
    sizes[key] = found.pairs
    return Finding(what, OK, f"{found.pairs:,} pairs, same as in the run")


def _why_unreachable(corpus: Corpus, root: Path) -> str | None:
    if isinstance(corpus, HubCorpus):
        return "a dataset of the Hugging Face hub, which is not downloaded again"
    for file in [] if isinstance(corpus, GeneratedCorpus) else files_of(corpus, root):
        if not os.access(file, os.R_OK):
            return f"{file.absolute()}: missing or not readable"
    return None


def _translations(run: Run, sizes: dict[str, int]) -> Iterator[Finding]:
    """Check that the translations of validations and tests have a line for each pair."""
    if run.history is None:
        return
    entries = [*run.history.entries, *filter(None, [run.history.average])]
    sets = [(entry["checkpoint"], "data.valid") for entry in entries]
    sets += [(f"test-{name}", f"data.test.{name}") for name in run.history.tests]
    for name, key in sets:
        path = layout.translations(run.path, name)
        if not path.is_symlink():  # reported by _links
            what = _name(run, path)
            yield from _guarded(what, _count(what, run.path, name, sizes.get(key)))


def _count(what: str, run_dir: Path, name: str, size: int | None) -> Iterator[Finding]:
    """Check translations of a set of `size` pairs, None if unknown."""
    lines = reader.read_translations(run_dir, name)
    if lines is None:
        yield Finding(what, MISSING, "best.json has its score")
        return
    count = sum(1 for _ in lines.texts())
    if size is not None and count != size:
        yield Finding(what, CHANGED, f"{count:,} lines, but {size:,} pairs in its set")
    else:
        yield Finding(what, OK, f"{count:,} lines")


def _name(run: Run, path: Path) -> str:
    return str(path.relative_to(run.path))
