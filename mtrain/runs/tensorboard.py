"""TensorBoard event files with the same records as a run's `metrics.jsonl`."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mtrain.config.schema import Config
from mtrain.runs import layout
from mtrain.runtime import files
from mtrain.runtime.errors import MissingExtraError


def board_of(config: Config) -> "TensorBoard | None":
    """Return the writer that a config asks for; raises `RefusedError` if its library is missing."""
    if not config.train.tensorboard:
        return None
    try:
        import tensorboard  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("train.tensorboard: true", "tensorboard", error) from None
    return TensorBoard(Path(config.run_dir) / layout.TENSORBOARD)


class TensorBoard:
    """Event files of a run, written by torch's `SummaryWriter`. When a resume drops records, a new
    file starts with all remaining records.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.writer: Any = None

    def begin(self, records: list[dict[str, Any]]) -> None:
        """Write the records to a new file, which tells readers to discard all earlier steps. Keep
        the newest old file, since a reader may have it open.
        """
        from torch.utils.tensorboard import SummaryWriter

        files.make_directory(self.directory)
        threading.excepthook = _print_traceback
        old_files = sorted(self.directory.glob("events.out.tfevents.*"))
        with self._writing():
            if self.writer is not None:
                self.writer.close()
            self.writer = SummaryWriter(str(self.directory), purge_step=0)
            for record in records:
                self._write(record)
        for file in old_files[:-1]:
            file.unlink()

    def add(self, record: dict[str, Any]) -> None:
        """Add a record."""
        with self._writing():
            self._write(record)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Flush what is written in the block; an `OSError` names the directory."""
        try:
            yield
            self.writer.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.directory)) from None

    def _write(self, record: dict[str, Any]) -> None:
        """Write the finite numbers of a record under their names, at its step and time."""
        step = record["step"]
        when = record.get("time", 0.0)
        for key, value in record.items():
            is_number = isinstance(value, int | float) and math.isfinite(value)
            if is_number and key not in ("step", "time"):
                self.writer.add_scalar(key, value, step, walltime=when)


def _print_traceback(arguments: threading.ExceptHookArgs) -> None:
    """Print the traceback of a thread, except for an `OSError`, which `flush` raises again."""
    if not isinstance(arguments.exc_value, OSError):
        threading.__excepthook__(arguments)
