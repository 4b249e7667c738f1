"""Refuse configs that do not belong to a run directory, so that no run is lost or changed."""

import shlex
from fnmatch import fnmatch
from pathlib import Path

from mtrain.config.changes import fixed_changes
from mtrain.config.loading import load_stored_config
from mtrain.config.schema import Config, dump_config
from mtrain.config.yaml_reader import quote_text, quote_value
from mtrain.corpus.lines import join_names
from mtrain.runs import layout, manifest, reader
from mtrain.runs.directory import RunDirectory
from mtrain.runs.history import History
from mtrain.runs.records import Fingerprints, Provenance, Status
from mtrain.runtime.errors import RefusedError
from mtrain.runtime.files import quote_path

# What must not change within a run, by its key in `run.json`: subject and verb of a message.
FIXED = {
    "train": "the content of data.train is",
    "weights": "the list of weights of data.train is",
    "valid": "the content of data.valid is",
    "tokenizer": "the vocabulary is",
    "pairs": "the number of pairs of each corpus that pass the filters is",
    "init_from": "the model of train.init_from is",
    "metric_command": "--metric-command is",
}

# Files of job scripts and desktops that a new run directory may hold, next to the config itself.
HARMLESS = ("*.out", "*.err", "slurm-*", ".*")


def refuse_foreign_directory(run: RunDirectory, config_file: Path | None) -> None:
    """Refuse a directory that holds other files than a run's, or a `config.yaml` that the user
    wrote, since every start replaces that file.
    """
    if config_file and config_file.name == layout.CONFIG:
        _refuse_moved(config_file, run.path)
    if not run.path.is_dir():
        if run.path.exists():
            raise RefusedError(f"run_dir: {run.path} is a file; name a directory")
        return
    settings = run.path / layout.CONFIG
    if _is_same(config_file, settings) and not _has_written_config(run):
        raise RefusedError(
            f"{config_file}: mtrain replaces this file by its own {settings.name}; "
            f"move your config out of {run.path}, or rename it"
        )
    if run.has_begun:
        return
    allowed = list(HARMLESS)
    if (run.path / layout.LOCK).exists():  # left by a start that ended early
        allowed += [*layout.FILES, *layout.DIRECTORIES]
    for item in sorted(run.path.iterdir()):
        is_allowed = any(fnmatch(item.name, pattern) for pattern in allowed)
        if not is_allowed and not _is_same(config_file, item):
            raise RefusedError(
                f"{run.path}: holds {item.name}, but no run of mtrain; choose another run_dir"
            )


def _refuse_moved(settings: Path, run_dir: Path) -> None:
    """Refuse the `config.yaml` of a run that was moved or copied, unless `--set` names another
    run_dir: it would start a new run at the old path, or resume the run that is still there.
    """
    actual = settings.parent
    if not (actual / layout.RUN).exists() or _is_same(actual, run_dir):
        return
    stored = load_stored_config(settings).run_dir
    if Path(stored) == run_dir:
        option = shlex.quote(f"run_dir={quote_text(str(actual))}")
        raise RefusedError(
            f"{settings}: is the config of the run in {actual}, but its run_dir is {stored}; add "
            f"--set {option} to continue that run"
        )


def _has_written_config(run: RunDirectory) -> bool:
    """Whether mtrain wrote `config.yaml`."""
    provenance = run.read(layout.RUN, Provenance)
    if provenance is None:
        return False
    text, config = reader.read_settings(run.path)
    # a kill between writing `run.json` and `config.yaml` leaves the hash of a newer text
    return provenance.config == manifest.hash_text(text) or dump_config(config) == text


def _is_same(path: Path | None, other: Path) -> bool:
    """Whether two paths lead to one file."""
    return path is not None and path.exists() and other.exists() and path.samefile(other)


def refuse_lost_checkpoints(run: RunDirectory, status: Status | None, save_every: int) -> None:
    """Refuse to start again at step 0 if the status or `best.json` shows that the run had
    checkpoints.
    """
    if layout.named_checkpoints(run.checkpoints):
        return
    history = run.read(layout.BEST, History)
    last = 0
    if history is not None and history.steps:
        last = max(history.steps)
    elif status is not None and _has_saved(status, save_every, run.checkpoints):
        last = status.step
    if last:
        raise RefusedError(
            f"{run.checkpoints}: the checkpoints of this run are gone; it had reached step "
            f"{last}; restore them, or choose another run_dir to start again"
        )


def _has_saved(status: Status, save_every: int, checkpoints: Path) -> bool:
    """Whether a run that ended with this status had saved a checkpoint."""
    if status.state in ("complete", "stopped", "running"):
        return True
    if checkpoints.is_dir():  # empty if the first save failed, as on a full disk
        return status.step > save_every
    return status.step >= save_every


def check_settings(run: RunDirectory, config: Config, ranks: int) -> None:
    """Refuse a config that changes keys that are fixed within a run, or the number of
    micro-batches per step.
    """
    stored = reader.read_settings(run.path)[1] if _has(run, layout.CONFIG) else None
    step_fault = _step_fault(run, stored, config, ranks)
    if refused := fixed_changes(stored or config, config):
        keys = [key for key, *_ in refused]
        is_fitting = "train.init_from" not in keys and all(k.startswith("train.") for k in keys)
        raise RefusedError(
            f"{run.path}: this run was made with other settings; go back to them (mtrain train "
            f"{quote_path(run.path / layout.CONFIG)}) or "
            f"{_another_run(run, with_weights=is_fitting)}",
            *(
                f"  {key}: {quote_value(old)} in the run, {quote_value(new)} now"
                for key, old, new in refused
            ),
            *([f"  {step_fault}"] if step_fault else []),
        )
    if step_fault:
        raise RefusedError(f"{run.path}: {step_fault}")


def _step_fault(run: RunDirectory, stored: Config | None, config: Config, ranks: int) -> str | None:
    """Return why settings are refused that give another number of micro-batches per step than the
    run has or, in a new run, contradict each other; None for other settings.
    """
    expected = run.step_batches(config, ranks)
    given, accum = config.train.step_batches, config.train.accum_steps
    requested = [given] if given else []
    # the same accum_steps as before may be for another number of processes
    is_new = accum != (stored.train.accum_steps if stored else 1)
    is_left_out = given and accum == 1
    if is_new and not is_left_out:
        requested.append(accum * ranks)
    for count in requested:
        if count != expected:
            removed = " and remove train.accum_steps" if accum != 1 else ""
            return (
                f"train.step_batches: a step of this run has {expected} micro-batches, not {count} "
                f"(train.accum_steps {accum}, processes {ranks}); "
                f"set train.step_batches: {expected}{removed}"
            )
    return None


def check_data(run: RunDirectory, fingerprints: Fingerprints) -> None:
    """Refuse text, a vocabulary or initial weights that differ from those in `run.json`."""
    provenance = run.read(layout.RUN, Provenance) if _has(run, layout.RUN) else None
    if provenance is None:
        return
    for key, subject in FIXED.items():
        before = getattr(provenance, key)
        now = fingerprints.get(key, before)
        if before not in (None, now):
            is_short = key in ("weights", "pairs", "metric_command")
            detail = f" (it was {before!r}, and is {now!r})" if is_short else ""
            subject = subject.replace(f"data.{key}", _changed_corpora(key, before, now))
            raise RefusedError(
                f"{run.path}: {subject} not the same as when this run began{detail}; restore it, "
                f"or {_another_run(run, with_weights=key == 'train')}"
            )


def _another_run(run: RunDirectory, *, with_weights: bool) -> str:
    """Return the advice to begin another run, with the weights of this one if they would fit."""
    start = f", where train.init_from: {quote_text(str(run.path))} starts from its weights"
    return f"choose another run_dir{start if with_weights else ''}"


def _changed_corpora(key: str, before: object, now: object) -> str:
    """Name the corpora of `data.KEY` whose hashes differ, or the key if their number differs."""
    if not isinstance(before, list) or not isinstance(now, list) or len(before) != len(now):
        return f"data.{key}"
    pairs = enumerate(zip(before, now, strict=True))
    changed = [f"data.{key}.{number}" for number, (old, new) in pairs if old != new]
    return join_names(changed) if len(now) > 1 else f"data.{key}"


def _has(run: RunDirectory, name: str) -> bool:
    """Whether the run has this file; raises `RefusedError` if it has checkpoints without it."""
    if (run.path / name).exists():
        return True
    if layout.named_checkpoints(run.checkpoints):
        advice = "use another run_dir"
        if name == layout.CONFIG:
            advice = f"restore it: {reader.COPIES}"
        raise RefusedError(f"{run.path}: holds checkpoints but no {name}; {advice}")
    return False
