from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import children
import pytest

from loongkit.activation import plan as plan_module

Loongkit = Callable[..., children.Result]


class Report:
    """What `loongkit doctor --json` said."""

    def __init__(self, result: children.Result) -> None:
        document = json.loads(result.out)
        self.status = result.status
        self.runs: bool = document["runs"]
        self.findings: list[dict[str, str]] = document["findings"]

    def of(self, check: str, status: str = "") -> list[str]:
        """The findings of one check, of one status if given, with their advice."""
        return [
            f"{finding['found']} -> {finding['advice']}"
            for finding in self.findings
            if finding["check"] == check and status in ("", finding["status"])
        ]

    def one(self, check: str, status: str) -> str:
        (found,) = self.of(check, status)
        return found

    @property
    def problems(self) -> list[str]:
        return [f["check"] for f in self.findings if f["status"] == "problem"]


@pytest.fixture
def loongkit(tmp_path: Path) -> Loongkit:
    """Runs `python -m loongkit …` in an empty folder: the checkout behind the given PYTHONPATH.

    ``python`` names another interpreter, for a test that the installed frameworks would disturb.
    """
    folder = tmp_path / "empty"
    folder.mkdir()

    def run(*words: str | Path, cwd: Path = folder, **changes: str) -> children.Result:
        python = changes.pop("python", sys.executable)
        entries = [changes.pop("PYTHONPATH", ""), str(children.SOURCE)]
        env = children.clean_env(PYTHONPATH=":".join(filter(None, entries)), **changes)
        return children.run("-m", "loongkit", *words, env=env, cwd=cwd, python=python)

    return run


@pytest.fixture
def doctor(loongkit: Loongkit) -> Callable[..., Report]:
    def run(*words: str | Path, **changes: Any) -> Report:
        return Report(loongkit("doctor", "--json", *words, **changes))

    return run


@pytest.fixture
def plan(loongkit: Loongkit) -> Callable[..., dict[str, Any]]:
    """The document of `loongkit plan --json`, with the features by name."""

    def run(*words: str, **changes: str) -> dict[str, Any]:
        result = loongkit("plan", "--json", *words, **changes)
        assert (result.status, result.err) == (0, ""), result
        document: dict[str, Any] = json.loads(result.out)
        document["by_name"] = {feature["name"]: feature for feature in document["features"]}
        return document

    return run


@pytest.fixture(params=["not in this release", "needs another that is off"])
def stopped(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    """A feature that LOONGKIT_STRICT=1 can't do without and can't have, and the settings."""
    if request.param == "needs another that is off":
        settings = {"LOONGKIT_DATA_PREFETCH": "1", "LOONGKIT_DATA_CONTAINER": "0"}
        return "data_prefetch", settings
    missing = [entry for entry in plan_module.entries() if not entry.implemented]
    if not missing:
        pytest.skip("every feature is in this release")
    return missing[0].name, {missing[0].variable: "1"}


@pytest.fixture
def metadata() -> Callable[..., None]:
    """Writes the metadata of one distribution into a folder."""
    return write_metadata


@pytest.fixture
def distributions(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """Makes a folder with the metadata of distributions, and no package."""

    def make(versions: Mapping[str, str]) -> Path:
        folder = tmp_path / "site"
        for name, version in versions.items():
            write_metadata(folder, name, version)
        return folder

    return make


def write_metadata(folder: Path, name: str, version: str, record: str = "") -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(text)
    if record:
        (info / "RECORD").write_text(record)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment of its own, without Loongkit, made from this interpreter."""
    folder = tmp_path / "venv"
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True, env=children.clean_env(), timeout=120)
    return folder


@pytest.fixture
def sitecustomize() -> Callable[..., Path]:
    """Writes a sitecustomize.py with the given text into a folder and returns its path."""

    def write(folder: Path, text: str = "") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "sitecustomize.py"
        path.write_text(text)
        return path

    return write
