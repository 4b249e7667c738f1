"""`mtrain verify`: hash every file of a run again and compare its records with each other.

No model is loaded, no link followed, nothing written. Each check yields findings.
"""

import hashlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter

from mtrain.config.loading import load_stored_config
from mtrain.config.schema import (
    FREE_KEYS,
    MACHINE_KEYS,
    Corpus,
    GeneratedCorpus,
    HubCorpus,
    changed_keys,
    is_among,
)
from mtrain.corpus.readers import describe, files_of, reading_of, scan
from mtrain.runs import layout, manifest, reader
from mtrain.runs.findings import (
    CHANGED,
    DAMAGED,
    MISSING,
    NOTE,
    OK,
    UNREACHABLE,
    Finding,
    Run,
    open_run,
)
from mtrain.runs.records import Count, MetricsFile
from mtrain.runtime.errors import UserError
from mtrain.runtime.json_reader import read_json_file
from mtrain.runtime.log import progress_bar, shorten


@dataclass(frozen=True)
class State:
    """The part of a checkpoint's `state.json` that is compared."""

    step: Count


STATE = TypeAdapter(State)
MOST_VERSIONS = 100  # packages to compare


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
    findings: list[Finding] = []
    run = open_run(path, findings)
    if not begun:
        yield from (each for each in findings if each.state == DAMAGED)
        yield from _status(run)
        yield Finding(layout.RUN, NOTE, "not there yet: nothing has been trained")
        return
    yield from findings
    yield from _guarded(str(path), _links(run, {each.what for each in findings}))
    yield from _guarded(layout.STATUS, _status(run))
    yield from _guarded("config.yaml", _settings(run))
    yield from _guarded(layout.TOKENIZER, _vocabulary(run))
    yield from _guarded(layout.CHECKPOINTS, _checkpoints(run))
    yield from _guarded(str(path), _leftovers(run))
    yield from _guarded(layout.BEST, _best(run))
    yield from _guarded(layout.METRICS, _records(run))
    sizes: dict[str, int] = {}
    yield from _guarded("data", _data(run, sizes))
    yield from _guarded(layout.VALIDATION, _translations(run, sizes))


def _guarded(what: str, section: Iterator[Finding]) -> Iterator[Finding]:
    """Turn an error of one check into a finding, so that the other checks run."""
    try:
        yield from section
    except UserError as error:
        yield Finding(what, DAMAGED, str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        yield Finding(what, DAMAGED, f"{where}{error.strerror or error}")


def _links(run: Run, known: set[str]) -> Iterator[Finding]:
    """Report links under names of mtrain's own, unless they are in `known`."""
    for path in reader.links(run.path):
        if _name(run, path) not in known:
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
        commit = begun.commit.get("mtrain")
        of = f", commit {commit}" if commit else ""
        yield Finding(layout.RUN, OK, f"seed {begun.seed}, started {begun.created}{of}")
        if others := _other_versions(begun.versions):
            detail = f"{', '.join(others)}: equal bits are not promised here"
            yield Finding("versions", NOTE, detail)
    if config is None:
        return
    if begun is None:
        yield Finding("config.yaml", OK, "a valid config")
        return
    if config.seed != begun.seed:
        detail = f"seed {config.seed}, but {begun.seed} in run.json"
        yield Finding("config.yaml", CHANGED, detail)
    elif begun.config is None:
        yield Finding("config.yaml", OK, "a valid config; run.json has no hash of it")
    elif hashlib.sha256(run.text.encode("utf-8")).hexdigest() != begun.config:
        yield Finding("config.yaml", CHANGED, "its SHA-256 differs from run.json")
    else:
        yield Finding("config.yaml", OK, "its SHA-256 is that of run.json")


def _other_versions(versions: dict[str, str]) -> list[str]:
    """Name packages whose version here is not the run's."""
    others = []
    for name, then in islice(versions.items(), MOST_VERSIONS):
        if name in ("", "mtrain", "python"):
            continue
        try:
            now = version(name)
        except PackageNotFoundError:
            now = "not installed"
        if now != then:
            others.append(f"{name} {then} in the run, {now} here")
    return others


def _vocabulary(run: Run) -> Iterator[Finding]:
    """Compare the vocabulary with `run.json`."""
    path = run.path / layout.TOKENIZER
    if path.is_symlink():
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
    paths = [path for path in layout.named_steps(directory) if not path.is_symlink()]
    average = directory / layout.AVERAGE
    if average.is_symlink():
        pass  # reported by _links
    elif average.exists():
        paths.append(average)
    elif run.history is not None and run.history.average:
        yield Finding(_name(run, average), MISSING, "best.json has its scores")
    for path in paths:
        try:
            found = list(_checkpoint(path, _name(run, path), run))
        except FileNotFoundError:
            found = []
            if not run.is_running:
                raise
        if run.is_running:  # training removes old checkpoints meanwhile
            found = [each for each in found if (run.path / each.what).exists()]
        inner = path / layout.TRAINER
        if not inner.exists() and path in layout.steps(directory)[-2:]:  # in this order
            state = NOTE if run.state == "complete" else MISSING
            what = _name(run, inner)
            found.append(Finding(what, state, "resuming from this checkpoint needs it"))
        yield from found
    if not paths and run.state == "complete":
        yield Finding(layout.CHECKPOINTS, MISSING, "a complete run has checkpoints")


def _checkpoint(path: Path, name: str, run: Run | None) -> Iterator[Finding]:
    """Check one checkpoint against its manifest and the run's vocabulary and settings."""
    needed = (layout.MODEL, layout.CONFIG, layout.TOKENIZER)
    is_intact = True
    for damage in manifest.damages(path, *needed):
        is_intact = False
        yield _damage(name, damage)
    if is_intact:
        yield from _belongs(path, name, run)
    inner = path / layout.TRAINER
    name = f"{name}/{layout.TRAINER}"
    if inner.is_symlink():
        yield Finding(name, DAMAGED, reader.LINK)
    if inner.is_symlink() or not inner.exists():
        return
    broken = list(manifest.damages(inner, layout.OPTIMIZER, layout.STATE))
    yield from (_damage(name, damage) for damage in broken)
    if broken:
        return
    try:
        step = read_json_file(inner / layout.STATE, STATE).step
    except ValueError as error:
        yield Finding(name, DAMAGED, f"{layout.STATE}: {error}")
        return
    named = layout.step_of(path.resolve())
    if named is not None and step != named:
        yield Finding(name, CHANGED, f"{layout.STATE} is of step {step}")
    else:
        yield Finding(name, OK, _size(inner))


def _damage(name: str, error: UserError) -> Finding:
    text = str(error)
    return Finding(name, MISSING if text.endswith(": missing") else DAMAGED, text)


def _belongs(path: Path, name: str, run: Run | None) -> Iterator[Finding]:
    """Check that an intact checkpoint belongs to this run."""
    begun, config = (run.begun, run.config) if run else (None, None)
    if begun and manifest.hash_file(path / layout.TOKENIZER) != begun.tokenizer:
        yield Finding(name, CHANGED, f"its {layout.TOKENIZER} differs from run.json")
        return
    try:
        own = load_stored_config(path / layout.CONFIG)
    except UserError as error:
        yield Finding(name, DAMAGED, str(error))
        return
    free = (*FREE_KEYS, *MACHINE_KEYS, "train.accum_steps")
    changes = changed_keys(own, config) if config else []
    if others := [key for key, *_ in changes if not is_among(key, free)]:
        yield Finding(name, CHANGED, f"its settings differ from config.yaml: {', '.join(others)}")
    else:
        yield Finding(name, OK, _size(path))


def _size(directory: Path) -> str:
    """Describe what was hashed."""
    files = [item for item in directory.iterdir() if item.is_file() and item.name != manifest.NAME]
    size = sum(item.stat().st_size for item in files)
    return f"{len(files)} files, {size / 1e6:,.1f} MB, as its manifest says"


def _leftovers(run: Run) -> Iterator[Finding]:
    """Report files of an interrupted or running save."""
    for directory in (run.path, run.path / layout.CHECKPOINTS, run.path / layout.VALIDATION):
        if directory != run.path and directory.is_symlink():
            continue
        for item in sorted((*directory.glob(".*.partial"), *directory.glob(".*.removed"))):
            detail = "left by an interrupted save; the next start of mtrain train removes it"
            if run.is_running:
                detail = "being written or removed"
            yield Finding(_name(run, item), NOTE, detail)


def _best(run: Run) -> Iterator[Finding]:
    """Check that the best checkpoint exists and that the history has the run's metric."""
    if run.best is None:
        if not (run.path / layout.BEST).exists() and run.state == "complete":
            yield Finding(layout.BEST, MISSING, "so the best checkpoint is unknown")
        return
    if run.history is None:
        return
    if run.config is not None and run.history.metric != run.config.train.metric:
        detail = f"metric {run.history.metric}, but {run.config.train.metric} in config.yaml"
        yield Finding(layout.BEST, CHANGED, detail)
    best = run.history.best
    if best is None:
        yield Finding(layout.BEST, OK, "no validation yet")
        return
    directory = run.path / layout.CHECKPOINTS / best["checkpoint"]
    if not directory.is_dir():
        if run.is_running and open_run(run.path, []).best != run.best:
            yield Finding(layout.BEST, NOTE, "another checkpoint is the best by now")
        else:
            yield Finding(layout.BEST, MISSING, f"its best checkpoint, {_name(run, directory)}")
        return
    count = len(run.history.entries)
    detail = f"{count} validation{'s' if count != 1 else ''}, {best['checkpoint']} is best"
    yield Finding(layout.BEST, OK, detail)


def _records(run: Run) -> Iterator[Finding]:
    """Check that `metrics.jsonl` is readable and agrees with `best.json`."""
    path = run.path / layout.METRICS
    if path.is_symlink():
        return
    if not path.exists():
        if run.history is not None and run.history.entries:
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
    entries = run.history.entries if run.history else []
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
    for name, corpus in data.test.items():
        if known := _test_hash(run, name):
            yield _corpus(run, f"data.test.{name}", corpus, known, sizes)


def _test_hash(run: Run, name: str) -> str | None:
    tests = run.history.tests if run.history else {}
    assert run.begun is not None
    return run.begun.test.get(name) or tests.get(name, {}).get("sha256")


def _corpus(run: Run, key: str, corpus: Corpus, sha256: str, sizes: dict[str, int]) -> Finding:
    what = f"{key} {describe(corpus)}"
    assert run.config is not None
    reading = reading_of(run.config)
    if away := _out_of_reach(corpus, reading.root):
        return Finding(what, UNREACHABLE, away)
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


def _out_of_reach(corpus: Corpus, root: Path) -> str | None:
    """Return why a corpus cannot be read from here, or None."""
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
    for entry in run.history.entries:
        yield from _translated(run, entry["checkpoint"], sizes.get("data.valid"))
    if run.history.average:
        yield from _translated(run, layout.AVERAGE, sizes.get("data.valid"))
    for name in run.history.tests:
        yield from _translated(run, f"test-{name}", sizes.get(f"data.test.{name}"))


def _translated(run: Run, name: str, size: int | None) -> Iterator[Finding]:
    """Check a file of translations of a set of `size` pairs, None if unknown."""
    path = layout.translations(run.path, name)
    if not path.is_symlink():  # reported by _links
        yield from _guarded(_name(run, path), _counted(_name(run, path), run.path, name, size))


def _counted(what: str, run_dir: Path, name: str, size: int | None) -> Iterator[Finding]:
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
