"""Runs the doctor's checks in the order of the report."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from loongkit import launcher
from loongkit.activation import PREFIX, settings
from loongkit.cli.doctor import command as command_line
from loongkit.cli.doctor import command_checks, probe, startup, surroundings
from loongkit.cli.doctor.finding import Finding, note, ok, problem


def examine(python: str | None, words: Sequence[str], import_torch: bool) -> list[Finding]:
    """Examine this environment for a job: its interpreter, or that of its command line."""
    environ, prelude, folder = dict(os.environ), launcher.prelude_folder(), _working_folder()
    command = command_line.read(words)
    by_launcher = command.launcher or not surroundings.on_pythonpath(environ, prelude)
    chosen = _interpreter(python, command)
    pythonpath = _pythonpath(environ.get("PYTHONPATH"), prelude, by_launcher)
    started = probe.environment(environ, pythonpath)
    own = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    asked = probe.ask(chosen, started, prelude, folder, own)
    found = (asked.answer and asked.answer.settings_read()) or settings.read(environ)
    return [
        *surroundings.installation(prelude),
        *startup.check(asked, chosen, prelude, by_launcher),
        *_frameworks(asked.answer, chosen, environ, started, import_torch),
        *_more_interpreters(chosen, command),
        *command_checks.check(command, folder),
        *surroundings.python_variables(environ, prelude, command.launcher),
        *surroundings.job(environ, command.launcher),
        *surroundings.machine(),
        surroundings.log(found),
        *surroundings.settings_of(found, environ),
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


def _pythonpath(current: str | None, prelude: str, by_launcher: bool) -> str | None:
    """Return the PYTHONPATH of the test process."""
    if not by_launcher or os.pathsep in prelude:  # it can't be put there: no launcher does either
        return current
    return launcher.with_prelude(current, prelude)


def _frameworks(
    answer: probe.Answer | None,
    python: str,
    environ: Mapping[str, str],
    started: Mapping[str, str],
    import_torch: bool,
) -> list[Finding]:
    if answer is None or not startup.is_supported(answer):
        return []
    findings = list(surroundings.frameworks(answer.versions))
    if import_torch:
        plain = probe.environment(environ, environ.get("PYTHONPATH"))
        findings.append(_torch(python, started, plain))
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
