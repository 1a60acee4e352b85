"""Runs small training jobs under a copy of Loongkit into which a test puts features of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import children
import copies
import pytest

SUPPORT = Path(__file__).resolve().parent
SCRIPTS = SUPPORT / "scripts"
PROBES = SUPPORT / "probes"
#: A package `torch` of a few lines: optimiser steps, their hooks and nothing else, on any Python.
STUB_TORCH = SUPPORT / "stub_torch"

TITLE = "Loongkit Feature Summary"

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed here"
)

_WRITE_INDEX = """
from loongkit.activation import catalog
rows = catalog.index_rows(catalog.load_all())
with open(catalog.__file__.replace("catalog.py", "_index.py"), "w", encoding="utf-8") as file:
    file.write(f"ROWS = {rows!r}\\n")
"""


class Package:
    """A copy of Loongkit in a folder of its own, with features of the test's besides its own."""

    def __init__(self, folder: Path, probes: Iterable[str] = (), **sources: str) -> None:
        self.site = folder / "site"
        package = copies.copy_package(self.site)
        # The folders that all users share stay as they are, so that nothing is left there.
        logs = package / "activation" / "logs.py"
        shared = 'FALLBACK_FOLDERS = ("/var/log/loongkit", "/tmp/log/loongkit")'
        text = logs.read_text(encoding="utf-8")
        assert shared in text
        logs.write_text(text.replace(shared, "FALLBACK_FOLDERS = ()"), encoding="utf-8")
        features = package / "features"
        for name in probes:
            shutil.copy(PROBES / f"{name}.py", features)
        for name, source in sources.items():
            (features / f"{name}.py").write_text(source, encoding="utf-8")
        done = children.run("-c", _WRITE_INDEX, env=children.clean_env(PYTHONPATH=str(self.site)))
        assert done.status == 0, done

    @property
    def prelude(self) -> Path:
        """The folder of this copy that goes on PYTHONPATH."""
        return self.site / "loongkit" / "prelude"


class Job:
    """One run of a command under Loongkit, and what it left in its log folder."""

    def __init__(self, result: children.Result, log_folder: Path) -> None:
        self.result = result
        self.logs = [
            path.read_text(encoding="utf-8", errors="surrogateescape")
            for path in sorted(log_folder.glob("*.log"))
            if path.is_file()  # a test may plant a pipe
        ]

    @property
    def log(self) -> str:
        """All log files in one text."""
        return "".join(self.logs)

    @property
    def summaries(self) -> int:
        """How many summaries stand on standard output; there are none on standard error."""
        assert TITLE not in self.result.err, self
        return self.result.out.count(TITLE)

    @property
    def summary(self) -> str:
        """The one summary on standard output, from its first rule to the end of the output."""
        assert self.summaries == 1, self
        return self.result.out[self.result.out.index("=" * 20) :]

    @property
    def rows(self) -> dict[str, bool]:
        """The features of the one summary, each with its star."""
        return rows(self.summary)

    @property
    def warnings(self) -> list[str]:
        """The warning and error lines of the log."""
        return [line for line in self.log.splitlines() if " WARNING " in line or " ERROR " in line]

    def __repr__(self) -> str:
        return f"{self.result!r}\n--- log\n{self.log}"


def rows(summary: str) -> dict[str, bool]:
    """Return the features in a summary's table, each with its star."""
    table = summary.split("-" * 82, 1)[1].split("\n" + "=" * 82, 1)[0]
    return {line[:31].rstrip(): line[31] == "*" for line in table.splitlines() if line}


def environment(
    folder: Path, package: Package | None = None, settings: Mapping[str, str] = {}
) -> dict[str, str]:
    """The environment of a job under Loongkit, by the prelude, with its log below ``folder``."""
    prelude = package.prelude if package else children.PRELUDE
    own = settings.get("PYTHONPATH")
    path = os.pathsep.join(filter(None, [str(prelude), own, str(SCRIPTS)]))
    defaults = {"LOONGKIT_LOGDIR": str(folder / "log"), "OMP_NUM_THREADS": "1"}
    return children.clean_env(**{**defaults, **settings, "PYTHONPATH": path})


def run(
    folder: Path,
    code: str,
    *arguments: str,
    package: Package | None = None,
    python: str = sys.executable,
    launcher: Iterable[str] = (),
    **settings: str,
) -> Job:
    """Run ``code`` as a script under Loongkit; its folder and log lie below ``folder``.

    ``launcher`` stands before the script in place of the interpreter: ``[torchrun, ...]``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "script.py"
    script.write_text(code, encoding="utf-8")
    env = environment(folder, package, settings)
    command = [*(launcher or [python]), str(script), *arguments]
    result = children.run_command(*command, env=env, cwd=folder, timeout=240)
    return Job(result, folder / "log")


def train(
    script: str, folder: Path, *arguments: str, prelude: bool = True, **settings: str
) -> children.Result:
    """Run a training script of the support folder under this checkout's Loongkit; log to folder."""
    path = os.pathsep.join([str(SUPPORT), str(children.SOURCE)])
    settings = {"LOONGKIT_LOGDIR": str(folder), "OMP_NUM_THREADS": "1", **settings}
    make = children.with_prelude if prelude else children.clean_env
    result = children.run(SCRIPTS / script, *arguments, env=make(PYTHONPATH=path, **settings))
    assert result.status == 0, result
    return result


def row(name: str, star: str) -> str:
    """The line of the summary for a feature without options."""
    return f"{name:<31}{star} None\n"
