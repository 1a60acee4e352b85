"""Runs children whose log goes where it goes by default, and takes their log files away again."""

from __future__ import annotations

import glob
import os
import subprocess
from pathlib import Path

import children

#: As in loongkit.activation.logs; the tests that use this module check that one is usable.
FOLDERS = ("/var/log/loongkit", "/tmp/log/loongkit")


def run(
    *command: str | Path,
    env: dict[str, str],
    cwd: str | Path | None = None,
    pids: Path | None = None,
    stdin: bytes = b"",
) -> tuple[children.Result, str]:
    """Run a command; also return what it, and the processes listed in a file, have logged.

    ``pids`` is a file to which the command's own children add their process numbers, a line each.
    """
    words = [str(word) for word in command]
    before = _sizes()
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=env, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        stdout, stderr = child.communicate(stdin, timeout=300)
    numbers = [child.pid]
    if pids is not None and pids.exists():
        numbers += map(int, pids.read_text(encoding="utf-8").split())
        pids.unlink()
    done = subprocess.CompletedProcess(words, child.returncode, stdout, stderr)
    return children.Result(done), "".join(_take(number, before) for number in numbers)


def _sizes() -> dict[str, int]:
    """Sizes of the log files there are; an earlier process of the same number may have left one."""
    names = (name for folder in FOLDERS for name in glob.glob(f"{folder}/loongkit-*.log"))
    return {name: os.path.getsize(name) for name in names if os.path.exists(name)}


def _take(pid: int, before: dict[str, int]) -> str:
    """Return what a finished process has added to its log file, and remove the file."""
    text = ""
    for folder in FOLDERS:
        for name in glob.glob(f"{folder}/loongkit-*-{pid}.log"):
            text += Path(name).read_bytes()[before.get(name, 0) :].decode("utf-8")
            os.unlink(name)
    return text
