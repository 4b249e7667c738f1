"""The summary of a run: how long it took and on what, and what its scores say."""

from typing import Any

from tqdm import tqdm

from mtrain.runs import layout
from mtrain.runs.history import History
from mtrain.runs.reader import Run
from mtrain.runs.records import LOOP, read_record
from mtrain.scoring.notes import Note

MANY = 10  # one wrong line in this many is no longer a few


def machine_of(run: Run) -> str | None:
    """Describe the device that the newest checkpoint was trained on; None if it is not known.
    Raises `UserError`.
    """
    directory = run.path / layout.CHECKPOINTS
    paths = [] if directory.is_symlink() else layout.steps(directory)
    for path in (path for path in paths[::-1] if not path.is_symlink()):
        state = read_record(path / layout.TRAINER / layout.STATE, LOOP)
        if state is not None:
            parts = {key: state.machine.get(key) for key in ("device", "precision", "threads")}
            return "{device}, {precision}, threads: {threads}".format(**parts)
    return None


def duration(records: list[dict[str, Any]]) -> str | None:
    """Return the time between the first and the last record, pauses included; None without any."""
    times = [record["time"] for record in records if record.get("time")]
    return tqdm.format_interval(max(times) - min(times)) if times else None


def verdict(history: History, notes: list[Note] | None) -> list[str]:
    """Return sentences on the validations: whether something looks wrong with the translations of
    the best model (`notes`; None: not known), and whether training still helped at the end.
    """
    best, steps = history.best, history.steps
    found = list[str]()
    if best is None:
        return found
    if notes:
        first = next((note for note in notes if note.kind == "same"), notes[0])
        what = "Something looks" if MANY * first.lines >= first.of else "A few lines look"
        found.append(f"{what} wrong: {first}.")
    elif notes is not None:
        found.append("Nothing looks wrong with the translations of the validation set.")
    if len(steps) > 1 and (name := history.best_step) is not None:
        later = [step for step in steps if layout.step_name(step) > name]
        text = f"The best step is {name}: {len(later)} later validations were no better."
        found.append(text if later else "The last validation is the best: more steps may help.")
    return found
