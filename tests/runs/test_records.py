"""Records of a run: how long it took, and the limits of their file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtrain.runs import records
from mtrain.runs.records import MetricsFile, Provenance, duration
from mtrain.runtime.errors import UserError


@pytest.mark.parametrize(
    ("created", "last", "shown"),
    [
        ("1970-01-01T00:00:10+0000", 70.0, "1m"),
        ("1970-01-01T01:00:10+0100", 3670.0, "1h1m"),
        ("1970-01-01T00:00:10+0000", 10.0, None),  # the clock was set back
        ("soon", 70.0, None),
    ],
)
def test_the_time_of_a_run_is_that_to_its_last_record(
    created: str, last: float, shown: str | None
) -> None:
    provenance = Provenance.model_construct(created=created)
    assert duration(provenance, [{"time": 1.0}, {"time": last}, {"step": 3}]) == shown
    assert duration(None, [{"time": last}]) is None
    assert duration(provenance, []) is None


@pytest.mark.parametrize(
    ("line", "limit"), [(b"\n", "MAX_BROKEN"), (b'{"step":1}\n', "MAX_RECORDS")]
)
def test_records_that_no_run_writes_take_neither_time_nor_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, limit: str
) -> None:
    monkeypatch.setattr(records, limit, 1000)
    (tmp_path / "metrics.jsonl").write_bytes(line * 1001)
    with pytest.raises(UserError, match=r"metrics\.jsonl:1001: more lines, .* than a run writes;"):
        MetricsFile(tmp_path / "metrics.jsonl").parse()
