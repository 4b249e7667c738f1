"""The small part of `make fuzz` that every test run takes."""

from __future__ import annotations

from faults.fuzz import Base, attempts, failures
from faults.rig import Bench

SEED = 12


def test_nothing_odd_does_harm(bench: Bench) -> None:
    base = Base(bench.directory, bench.processes)
    outcomes = attempts(base, SEED, seconds=600, cases=bench.quick_or_full(30, 1000))
    assert not any(outcome.problems for outcome in outcomes), failures(outcomes, SEED)
