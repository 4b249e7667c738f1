"""What `mtrain verify` reads first and reports: a run's small files, and findings."""

import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from mtrain.config.schema import Config
from mtrain.runs import layout, reader
from mtrain.runs.history import History
from mtrain.runs.records import BEST, PROVENANCE, STATUS, Best, Provenance, Status
from mtrain.runtime.errors import UserError, printable
from mtrain.runtime.json_reader import Content, read_json_file
from mtrain.runtime.lock import is_alive

OK, DAMAGED, MISSING, CHANGED = "ok", "damaged", "missing", "changed"
NOTE, UNREACHABLE = "note", "unreachable"  # no failure
BAD = (DAMAGED, MISSING, CHANGED)


@dataclass(frozen=True)
class Finding:
    """One item that was checked, and its state."""

    what: str
    state: str
    detail: str

    def as_json(self) -> dict[str, str]:
        """An item of `findings` in `--json`."""
        return asdict(self)

    def __str__(self) -> str:
        return printable(f"{self.state:<11}  {self.what}: {self.detail}")


@dataclass(frozen=True)
class Run:
    """A run directory and its small files; None for a file that cannot be read."""

    path: Path
    status: Status | None
    text: str  # of config.yaml
    config: Config | None
    begun: Provenance | None
    best: Best | None
    history: History | None

    @property
    def state(self) -> str:
        """State of the run by its status."""
        return self.status.state if self.status else "unknown"

    @property
    def is_running(self) -> bool:
        """Whether a process of this machine trains the run, by its status."""
        status = self.status
        if status is None or status.state not in ("running", "preparing"):
            return False
        if status.host != socket.gethostname():
            return False
        return status.pid is not None and is_alive(status.pid)


def open_run(path: Path, findings: list[Finding]) -> Run:
    """Read the small files of a run; each that cannot be read is added to the findings."""

    def read(name: str, form: TypeAdapter[Content]) -> Content | None:
        try:
            return read_json_file(path / name, form)
        except FileNotFoundError:
            return None
        except ValueError as error:
            findings.append(Finding(name, DAMAGED, str(error)))
            return None

    status, begun = read(layout.STATUS, STATUS), read(layout.RUN, PROVENANCE)
    best = read(layout.BEST, BEST)
    history = _history(best, findings) if best is not None else None
    text, config = "", None
    try:
        text, config = reader.read_settings(path)
    except UserError as error:
        state = DAMAGED if os.path.lexists(path / layout.CONFIG) else MISSING
        findings.append(Finding(layout.CONFIG, state, str(error)))
    findings += [
        Finding(name, MISSING, "every start of mtrain train writes it")
        for name in (layout.RUN, layout.STATUS)
        if not os.path.lexists(path / name)
    ]
    return Run(path, status, text, config, begun, best, history)


def _history(best: Best, findings: list[Finding]) -> History:
    """Return the validations of `best.json`; its best one must be the best of them."""
    history = History.of(best.metric, best)
    recomputed = history.as_json()["best"]
    if recomputed != (best.best.as_json() if best.best else None):
        name = (recomputed or {}).get("checkpoint", "none")
        detail = f"its best is not the best of its history, which is {name}"
        findings.append(Finding(layout.BEST, CHANGED, detail))
    return history
