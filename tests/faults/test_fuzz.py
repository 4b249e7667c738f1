"""The small share of `make fuzz` that every test run takes."""

from __future__ import annotations

from pathlib import Path

from faults.conftest import Count
from faults.fuzz import Base, attempts, failures
from faults.rig import Processes

SEED = 12


def test_nothing_odd_does_harm(tmp_path: Path, processes: Processes, count: Count) -> None:
    base = Base(tmp_path, processes)
    outcomes = attempts(base, SEED, seconds=600, cases=count(30, 1000))
    assert not any(outcome.troubles for outcome in outcomes), failures(outcomes, SEED)
