"""The summary of a run: on what it was trained, and what its scores say."""

from mtrain.runs import layout
from mtrain.runs.history import History
from mtrain.runs.reader import Run
from mtrain.runs.records import LOOP, read_record
from mtrain.scoring.notes import Note, judge


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


def verdict(history: History, notes: list[Note] | None) -> list[str]:
    """Return sentences on the validations: whether something looks wrong with the translations of
    the best model (`notes`; None: not known), and whether training still helped at the end.
    """
    looks = None if notes is None or history.best is None else judge(notes)
    return list(filter(None, (looks, history.outlook)))
