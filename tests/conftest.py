"""Writes down which tests ran and which were skipped, for tools/check_skipped.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FILE", help="write each test's outcome as JSON")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("outcomes") and not hasattr(config, "workerinput"):  # not in a worker
        config.pluginmanager.register(Outcomes(Path(config.getoption("outcomes"))), "outcomes")


class Outcomes:
    """Collects the outcomes; a module skipped as a whole counts under its own name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.skipped or report.failed:
            self.found[report.nodeid] = report.outcome

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.found[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.found, indent=0), encoding="utf-8")
