"""Copies of the package with a feature or a fault of the test's own, and frameworks to hook."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import children
import jobs

#: Hooks `framework.leaf.work`, a function that returns "work"; needs no torch.
PROBE = """
from loongkit.activation.feature import Feature

FEATURE = Feature(name="probe", level=1, group="data", summary="for the tests", position=1)


@FEATURE.when_imported("framework.leaf")
def patch(module, patcher):
    def wrapper(original, *args, **kwargs):
        patcher.mark()
        return "patched " + original(*args, **kwargs)

    patcher.wrap(module, "work", wrapper)
"""

FRAMEWORK = {
    "framework/__init__.py": "from framework.leaf import work\n",
    "framework/leaf.py": "def work():\n    return 'work'\n",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write files, given by relative path, below a folder and return the folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def copy_package(folder: Path) -> Path:
    """Copy what is installed into a folder (its site-packages); return the package's own folder."""
    package = folder / "loongkit"
    shutil.copytree(
        children.PRELUDE.parent, package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
    )
    shutil.copy(children.SOURCE / "_loongkit_entry.py", folder)
    return package


def copy_with_feature(folder: Path, source: str = PROBE) -> Path:
    """Copy the package with one more feature, `probe`, in its features and its index."""
    return jobs.Package(folder, probe=source).site / "loongkit"


def virtual_environment(python: str, folder: Path) -> tuple[str, Path]:
    """Make one with nothing in it; return its interpreter and its site-packages."""
    made = children.run("-m", "venv", "--without-pip", folder, python=python)
    assert made.status == 0, made
    return str(folder / "bin" / "python"), next((folder / "lib").glob("python3*")) / "site-packages"


def with_copy(package: Path, *entries: str | Path, **changes: str) -> dict[str, str]:
    """The environment of a job with a copy's prelude, and further entries, on PYTHONPATH."""
    path = ":".join(map(str, (package / "prelude", *entries)))
    return children.clean_env(PYTHONPATH=path, **changes)


def script(path: Path, text: str) -> Path:
    """Write an executable file."""
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def write_launcher(folder: Path, source: Path) -> Path:
    """Write `loongkit-run` as pip does for a package in ``source``: it runs in any environment."""
    return script(
        folder / "loongkit-run",
        f"#!{sys.executable}\n"
        f"import sys; sys.path.insert(0, {str(source)!r})\n"
        "from _loongkit_entry import run\n"
        "sys.exit(run())\n",
    )


class Log:
    """A log folder of the test's own: what Loongkit said in it, by process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def settings(self) -> dict[str, str]:
        return {"LOONGKIT_LOGLEVEL": "debug", "LOONGKIT_LOGDIR": str(self.folder)}

    @property
    def text(self) -> str:
        files = sorted(self.folder.glob("*.log")) if self.folder.is_dir() else []
        return "".join(file.read_text(encoding="utf-8") for file in files)

    def lines(self, word: str) -> list[str]:
        return [line for line in self.text.splitlines() if word in line]

    @property
    def armed(self) -> list[int]:
        """The numbers of the processes that wrote their plan, in order."""
        return sorted(int(line.split("pid=")[1].split()[0]) for line in self.lines(" armed by "))
