"""Runs the doctor's checks in the order of the report."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from loongkit import launcher
from loongkit.activation import settings
from loongkit.cli.doctor import command as command_line
from loongkit.cli.doctor import command_checks, probe, startup, surroundings
from loongkit.cli.doctor.finding import Finding, note, ok, problem


def examine(python: str | None, words: Sequence[str], import_torch: bool) -> list[Finding]:
    """Examine this environment for a job: its interpreter, or that of its command line."""
    environ, prelude, folder = dict(os.environ), launcher.prelude_folder(), _working_folder()
    command = command_line.read(words)
    by_launcher = command.launcher or not surroundings.on_pythonpath(environ, prelude)
    found = settings.read(environ)
    chosen = _interpreter(python, command)
    return [
        *surroundings.installation(prelude),
        *_ask(chosen, environ, prelude, folder, by_launcher, import_torch),
        *_more_interpreters(chosen, command),
        *command_checks.check(command, folder),
        *surroundings.python_variables(environ, prelude, command.launcher),
        *surroundings.job(environ, command.launcher),
        *surroundings.machine(),
        surroundings.log(found),
        *surroundings.settings_of(found),
    ]


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # removed under us
        return os.sep


def _interpreter(python: str | None, command: command_line.Command) -> str:
    """Return the interpreter to examine: the one asked for, the command's, else this one."""
    if python is not None:
        return shutil.which(python) or python
    named = [interpreter.path for interpreter in command.interpreters if interpreter.path]
    return named[0] if named else sys.executable


def _more_interpreters(chosen: str, command: command_line.Command) -> list[Finding]:
    others = {
        interpreter.path: interpreter.where
        for interpreter in command.interpreters
        if interpreter.path and _identity(interpreter.path) != _identity(chosen)
    }
    return [
        note("interpreter", f"{where} names another one, {path}", f"examine it: --python {path}")
        for path, where in others.items()
    ]


def _identity(python: str) -> tuple[str, str]:
    """Tell environments apart: those made from one interpreter link to the same file."""
    return os.path.realpath(os.path.dirname(python)), os.path.realpath(python)


def _ask(
    python: str,
    environ: Mapping[str, str],
    prelude: str,
    folder: str,
    by_launcher: bool,
    import_torch: bool,
) -> list[Finding]:
    current = environ.get("PYTHONPATH")
    if os.pathsep in prelude:
        pythonpath = current  # it can't be put there, the launcher doesn't either
    else:
        pythonpath = launcher.with_prelude(current, prelude) if by_launcher else current
    started = probe.environment(environ, pythonpath)
    asked = probe.ask(python, started, prelude, folder)
    findings = startup.check(asked, python, prelude, by_launcher)
    if asked.answer is not None and startup.is_supported(asked.answer):
        findings += surroundings.frameworks(asked.answer.versions)
        if import_torch:
            findings.append(_torch(python, started, probe.environment(environ, current)))
    return findings


def _torch(python: str, started: Mapping[str, str], plain: Mapping[str, str]) -> Finding:
    """Import torch with Loongkit and, where that fails, without it."""
    went_well, text = probe.import_torch(python, started)
    if went_well:
        return ok("torch", f"{text} was imported in a test process with Loongkit")
    fails_alone = not probe.import_torch(python, {**plain, "LOONGKIT_ALL": "0"})[0]
    alone = "without Loongkit too" if fails_alone else "with Loongkit only"
    return problem(
        "torch",
        f"its import fails, {alone}: {text}",
        "mend the installation of torch" if fails_alone else "report this as a fault of Loongkit",
    )
