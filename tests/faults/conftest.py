"""How many faults are injected, and the table of what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from faults.rig import Processes

Row = tuple[int, str, int, int]  # number of the fault, its name, injected, survived
ROWS = pytest.StashKey[list[Row]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-faults", action="store_true", help="inject every fault in full number")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the table in Markdown: it stands in the README."""
    if not config.getoption("--all-faults", False):
        return
    terminalreporter.write_line("\n| # | fault | injected | survived |\n| --- | --- | --- | --- |")
    for number, name, injected, survived in sorted(config.stash[ROWS]):
        terminalreporter.write_line(f"| {number} | {name} | {injected:,} | {survived:,} |")
    for report in terminalreporter.getreports("skipped"):
        terminalreporter.write_line(f"not injected: {report.nodeid}: {report.longrepr[2]}")


class Tally:
    """Counts one kind of fault; `check` tells the table and fails unless all were survived."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def check(self, number: int, name: str, outcomes: Iterable[str]) -> None:
        """Each outcome says what went wrong, or nothing."""
        found = list(outcomes)
        failures = [text for text in found if text]
        self.rows.append((number, name, len(found), len(found) - len(failures)))
        assert found
        if failures:
            pytest.fail("\n\n".join(failures[:10]), pytrace=False)


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    return Tally(request.config.stash.get(ROWS, []))


@pytest.fixture
def count(request: pytest.FixtureRequest) -> Count:
    """Choose between the quick share of `make test` and the full number of `make test-faults`."""
    return Count(request.config.getoption("--all-faults", False))


class Count:
    def __init__(self, everything: bool) -> None:
        self.everything = everything

    def __call__(self, quick: int, full: int) -> int:
        number = full if self.everything else quick
        if not number:
            pytest.skip("make test-faults injects it")
        return number


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Starts `mtrain` processes that have torch loaded already."""
    with Processes(tmp_path_factory.mktemp("processes")) as started:
        yield started


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs that are compared with are kept."""
    return tmp_path_factory.mktemp("faults")
