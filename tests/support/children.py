"""Runs real child interpreters: every CPython on this machine, with and without Loongkit."""

from __future__ import annotations

import functools
import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src"
PRELUDE = SOURCE / "loongkit" / "prelude"


class Result:
    """What a child left behind: standard output and error as bytes, and its exit status."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.stdout = done.stdout
        self.stderr = done.stderr
        self.status = done.returncode

    @property
    def out(self) -> str:
        return self.stdout.decode("utf-8", "backslashreplace")

    @property
    def err(self) -> str:
        return self.stderr.decode("utf-8", "backslashreplace")

    @property
    def seen_by_user(self) -> tuple[bytes, bytes, int]:
        return self.stdout, self.stderr, self.status

    def __repr__(self) -> str:
        return f"status {self.status}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def clean_env(**changes: str) -> dict[str, str]:
    """The environment without Loongkit, Python and job settings, plus the given changes."""
    dropped = ("LOONGKIT_", "PYTHON", "SLURM_", "OMPI_", "TORCHELASTIC")
    single = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(dropped) and name not in single
    }
    env.update(changes)
    return env


def with_prelude(**changes: str) -> dict[str, str]:
    """The environment of a job started with the prelude folder on PYTHONPATH."""
    own = changes.pop("PYTHONPATH", "")
    return clean_env(PYTHONPATH=os.pathsep.join(filter(None, [str(PRELUDE), own])), **changes)


def run(
    *arguments: str | Path,
    env: dict[str, str] | None = None,
    python: str = sys.executable,
    cwd: str | Path | None = None,
    timeout: float = 300,
) -> Result:
    """Run ``python arguments…``."""
    return run_command(python, *arguments, env=env, cwd=cwd, timeout=timeout)


def log_of(folder: Path) -> str:
    """All that was written to the logs in a folder."""
    return "".join(file.read_text("utf-8") for file in sorted(folder.glob("*.log")))


def run_command(
    *command: str | Path,
    env: dict[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float = 300,
) -> Result:
    """Run any command and wait for it."""
    done = subprocess.run(
        [str(word) for word in command],
        env=clean_env() if env is None else env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    return Result(done)


@functools.cache
def interpreters(oldest: tuple[int, int] = (3, 10)) -> tuple[str, ...]:
    """One interpreter for each CPython version >= ``oldest`` on this machine, ours included."""
    found: dict[tuple[int, int], str] = {sys.version_info[:2]: sys.executable}
    for candidate in _candidates("python3*"):
        version = _version(candidate)
        if version is not None and version >= oldest:
            found.setdefault(version, candidate)
    return tuple(found[version] for version in sorted(found))


@functools.cache
def older_interpreters() -> tuple[str, ...]:
    """Interpreters on which Loongkit can't run, Python 2.7 included, each version once."""
    found: dict[tuple[int, int], str] = {}
    for candidate in (*_candidates("python2*"), *_candidates("python3*")):
        version = _version(candidate)
        if version is not None and version < (3, 10):
            found.setdefault(version, candidate)
    return tuple(found[version] for version in sorted(found))


def _candidates(pattern: str) -> list[str]:
    folders = [os.path.expanduser("~/.pyenv/versions/*/bin"), "/usr/local/bin", "/usr/bin"]
    names = [name for folder in folders for name in sorted(glob.glob(f"{folder}/{pattern}"))]
    return [name for name in names if "config" not in name and shutil.which(name)]


def _version(python: str) -> tuple[int, int] | None:
    code = "import sys; print('%d %d' % sys.version_info[:2])"
    try:
        result = run("-c", code, python=python, timeout=60)
        major, minor = result.out.split()
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return int(major), int(minor)
