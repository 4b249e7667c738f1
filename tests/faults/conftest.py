"""How many faults are injected, and into what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Processes

from faults.rig import INJECTED, Bench, new_config


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-faults", action="store_true", help="inject every fault in full number")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of the README in Markdown."""
    if not terminalreporter.config.getoption("--all-faults", False):
        return
    terminalreporter.write_line("\n| test | injected | survived |\n| --- | --- | --- |")
    for test, injected, survived in INJECTED:
        terminalreporter.write_line(f"| `{test}` | {injected:,} | {survived:,} |")


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Starts `mtrain` processes that have torch loaded already."""
    with Processes(tmp_path_factory.mktemp("processes")) as started:
        yield started


@pytest.fixture(scope="module")
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config of a module's runs, with the settings that the module names; those without share
    one.
    """
    settings: dict[str, Any] = getattr(request.module, "SETTINGS", {})
    directory = tmp_path_factory.getbasetemp() / f"faults{len(settings)}"
    if not directory.exists():
        new_config(directory, **settings)
    return directory / "config.yaml"


@pytest.fixture
def bench(
    request: pytest.FixtureRequest, config: Path, tmp_path: Path, processes: Processes
) -> Bench:
    everything = request.config.getoption("--all-faults", False)
    return Bench(config, tmp_path, processes, everything)
