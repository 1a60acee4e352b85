"""Run the commands of a set-up: one line of progress for each, their output in a log file."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

HEARTBEAT_SECONDS = 15


class SetupError(Exception):
    """The environment cannot be made; the text says what was found and what to do."""


class Steps:
    """Runs commands in a folder, shows that they live, and keeps what they print in ``log``."""

    def __init__(self, folder: Path, log: Path) -> None:
        self._folder = folder
        self._log = log
        self._started = time.monotonic()
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")

    def say(self, text: str) -> None:
        """Print one line with the seconds since the start."""
        print(f"[{time.monotonic() - self._started:6.1f} s] {text}", flush=True)

    def run(
        self,
        title: str,
        command: list[str],
        variables: dict[str, str] | None = None,
        progress: Callable[[], str] = str,
    ) -> None:
        """Run one command with these additional environment variables.

        Args:
            title: what the step is called in the progress lines.
            command: the program and its arguments.
            variables: added to the environment.
            progress: its text is appended to each sign of life.

        Raises:
            SetupError: the command failed; the text holds the end of its output.
        """
        self.say(title)
        with self._log.open("ab") as log:
            start = log.tell()
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env={**os.environ, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            status = self._wait(process, progress)
        if status:
            with self._log.open("rb") as log:
                log.seek(start)
                tail = log.read().decode(errors="replace").splitlines()[-30:]
            raise SetupError(
                f"'{title}' failed with status {status}. The end of its output "
                f"(all of it: {self._log}):\n    " + "\n    ".join(tail)
            )

    def _wait(self, process: subprocess.Popen[bytes], progress: Callable[[], str]) -> int:
        began = time.monotonic()
        try:
            while True:
                try:
                    return process.wait(HEARTBEAT_SECONDS)
                except subprocess.TimeoutExpired:
                    self.say(f"    … {time.monotonic() - began:.0f} s{progress()}")
        except BaseException:
            process.terminate()
            process.wait()
            raise


def output_of(python: str | Path, code: str) -> str:
    """What a piece of Python code prints in that interpreter.

    Raises:
        SetupError: it failed.
    """
    answer = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SetupError(f"{python} failed:\n{answer.stderr}")
    return answer.stdout.strip()
