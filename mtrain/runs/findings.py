"""What `mtrain verify` finds: an item, its state, and why."""

from dataclasses import asdict, dataclass

from mtrain.runtime.errors import printable

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
