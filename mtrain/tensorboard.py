"""A run's records as an event file for TensorBoard, kept the same as its `metrics.jsonl`."""

import math
import socket
import time
from pathlib import Path
from typing import Any

from mtrain import files
from mtrain.config import Config
from mtrain.errors import MissingExtraError

FILES = "events.out.tfevents."  # by which TensorBoard knows them, and reads them in their order


def board_of(config: Config) -> "TensorBoard | None":
    """Make the board that a config asks for."""
    return TensorBoard(Path(config.run_dir) / "tensorboard") if config.train.tensorboard else None


def check_board(config: Config) -> None:
    """Raise `RefusedError` where a config asks for a board and its library is missing."""
    if not config.train.tensorboard:
        return
    try:
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("train.tensorboard: true", "tensorboard", error) from None


class TensorBoard:
    """The event file of a run. What changes earlier records, such as a resume, begins another with
    all that hold.

    Written as it goes, where torch's `SummaryWriter` has a thread: an error of the disk is the
    run's, and no child process inherits half a queue.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.writer: Any = None

    def begin(self, records: list[dict[str, Any]]) -> None:
        """Write the records to a new file. It begins with a restart at step 0, at which readers
        purge all that came before. The file before it stays: one that looks on may stand there.
        """
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        files.make_directory(self.directory)
        before = sorted(self.directory.glob(f"{FILES}*"))
        name = f"{FILES}{time.time_ns():020d}.{socket.gethostname()}"
        if self.writer is not None:
            self.writer.close()
        self.writer = RecordWriter(files.create(self.directory / name))
        self._write(time.time(), 0, file_version="brain.Event:2")
        self._write(time.time(), 0, session_log=SessionLog(status=SessionLog.START))
        for record in records:
            self._write_scalars(record)
        self.writer.flush()
        for file in before[:-1]:
            file.unlink()

    def add(self, record: dict[str, Any]) -> None:
        """Write one more record."""
        self._write_scalars(record)
        self.writer.flush()

    def _write_scalars(self, record: dict[str, Any]) -> None:
        """Write the finite numbers of a record under their names, at its step and time."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=key, simple_value=value)
            for key, value in record.items()
            if key not in ("step", "time")
            and isinstance(value, int | float)
            and math.isfinite(value)
        ]
        self._write(record.get("time", 0.0), record["step"], summary=Summary(value=values))

    def _write(self, when: float, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        event = Event(wall_time=when, step=step, **content)
        self.writer.write(event.SerializeToString())
