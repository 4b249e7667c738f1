"""Names of the files and directories of a run. Nothing here reads tensors."""

import os
import re
from pathlib import Path

from mtrain.runs import manifest
from mtrain.runtime.errors import RefusedError, UserError

MODEL, CONFIG, TOKENIZER, TRAINER = "model.safetensors", "config.yaml", "tokenizer.model", "trainer"
OPTIMIZER, STATE = "optimizer.safetensors", "state.json"
CHECKPOINTS, AVERAGE, VALIDATION = "checkpoints", "average", "validation"
SYNTHETIC = "synthetic"  # text that models translated for the run

# The small files of a run directory.
LOCK, RUN, STATUS, BEST = ".lock", "run.json", "status.json", "best.json"
METRICS, LOG = "metrics.jsonl", "train.log"
VOCABULARY, TENSORBOARD = "tokenizer.vocab", "tensorboard"
FILES = (LOCK, RUN, STATUS, BEST, METRICS, LOG, CONFIG, TOKENIZER, VOCABULARY)
DIRECTORIES = (CHECKPOINTS, VALIDATION, SYNTHETIC, TENSORBOARD)

MAX_PARENTS = 4  # nearest parent directories of a file that are searched for a run

STEP = re.compile(r"step-(\d{8,})")


def step_name(step: int) -> str:
    """Name the directory of a step."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int | None:
    """Return the step of a checkpoint directory's name, or None."""
    match = STEP.fullmatch(path.name)
    return int(match[1]) if match else None


def last_step(checkpoints: list[Path]) -> int:
    """Return the step of the last checkpoint of a list, 0 without any."""
    return (step_of(checkpoints[-1]) or 0) if checkpoints else 0


def translations_file(run_dir: Path, name: str) -> Path:
    """Return the file of translations of the validation set by the checkpoint `name`, or, for
    `test-SET`, of a test set by the best model.
    """
    return run_dir / VALIDATION / f"{name}.txt"


def complete_checkpoints(directory: Path) -> list[Path]:
    """List the complete step checkpoints of a `checkpoints/` directory, oldest first."""
    return [path for path in named_checkpoints(directory) if manifest.is_complete(path)]


def require_model(path: Path, kind: str = "run or checkpoint directory") -> None:
    """Raise `UserError` if a path is not that of a directory; `kind` says what it should be."""
    if not path.is_dir():
        state = "not a directory" if path.exists() else "no such directory"
        raise UserError(f"{path}: {state}; give a {kind}")


def is_prepared(path: Path) -> bool:
    """Whether a directory has a file that preparing or training a run writes."""
    return any((path / name).exists() for name in (LOCK, TOKENIZER))


def has_training_files(path: Path) -> bool:
    """Whether a directory has an item that the training of a run writes."""
    return any(os.path.lexists(path / name) for name in (RUN, CHECKPOINTS))


def refuse_prepared(path: Path) -> None:
    """Raise `UserError` for the directory of a run whose training has not begun."""
    if is_prepared(path) and not has_training_files(path):
        raise UserError(f"{path}: nothing has been trained yet; run mtrain train")


def refuse_run_files(path: Path) -> None:
    """Refuse to write to a path inside a sealed directory, or to one that a run uses for its own
    files and directories.
    """
    target = Path(os.path.realpath(path))
    for parent in list(target.parents)[:MAX_PARENTS]:
        is_run = any((parent / name).is_file() for name in (LOCK, RUN))
        is_name = target.relative_to(parent).parts[0] in (*FILES, *DIRECTORIES)
        if (is_run and is_name) or _is_sealed(parent):
            raise RefusedError(f"{path}: belongs to {parent}; write to another path")


def _is_sealed(directory: Path) -> bool:
    """Whether mtrain sealed a directory, even if it is damaged now."""
    if not (directory / manifest.NAME).is_file():  # other programs use this name, too
        return False
    return (directory / MODEL).is_file() or manifest.is_complete(directory)


def named_checkpoints(directory: Path) -> list[Path]:
    """List all paths that are named like a step, complete or not, oldest first."""
    try:  # glob would treat an unreadable directory as empty
        paths = [path for path in directory.iterdir() if step_of(path) is not None]
    except FileNotFoundError:
        return []
    return sorted(paths, key=lambda path: step_of(path) or 0)
