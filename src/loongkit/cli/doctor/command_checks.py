"""What in the command keeps Loongkit out of its processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from loongkit.cli.doctor import shell
from loongkit.cli.doctor.command import Command, Script
from loongkit.cli.doctor.finding import Finding, note, ok, problem

CHECK = "command"
BY_IMPORT = "or put `import loongkit.all` at the top of the training script"

#: What each flag keeps the interpreter from.
_BLOCKING_FLAGS = {
    "S": "running any sitecustomize",
    "E": "reading PYTHONPATH",
    "I": "reading PYTHONPATH",
}

_CONTAINER = (
    "starts the job in a container, with that container's environment",
    "install Loongkit in the image and run `loongkit doctor` in the container",
)
_ANOTHER_MACHINE = (
    "starts the job on another machine, with that machine's environment",
    "install Loongkit there, run `loongkit doctor` there and start the job with loongkit-run there",
)
_MPI = (
    "passes the environment on to other machines only as far as it is told",
    "put loongkit-run behind it, before the interpreter, and pass LOONGKIT_* on (Open MPI: -x)",
)
_CHOOSES_INTERPRETER = (
    "chooses the interpreter by itself",
    "name that interpreter: loongkit doctor --python PATH",
)

#: Programs behind which another environment begins -> what they do, and what to do.
_ELSEWHERE = {
    "docker": _CONTAINER,
    "podman": _CONTAINER,
    "nerdctl": _CONTAINER,
    "apptainer": _CONTAINER,
    "singularity": _CONTAINER,
    "kubectl": _ANOTHER_MACHINE,
    "ssh": _ANOTHER_MACHINE,
    "pdsh": _ANOTHER_MACHINE,
    "mpirun": _MPI,
    "mpiexec": _MPI,
    "orterun": _MPI,
    "ray": (
        "starts workers with the environment of the cluster",
        'give PYTHONPATH and LOONGKIT_* in runtime_env={"env_vars": ...}, '
        "or put `import loongkit.all` into the worker function",
    ),
    "sudo": (
        "drops PYTHONPATH and LOONGKIT_* on its way",
        "put them behind it: sudo env LOONGKIT_ALL=1 loongkit-run COMMAND",
    ),
    "conda": _CHOOSES_INTERPRETER,
    "mamba": _CHOOSES_INTERPRETER,
    "micromamba": _CHOOSES_INTERPRETER,
    "pixi": _CHOOSES_INTERPRETER,
    "uv": _CHOOSES_INTERPRETER,
    "poetry": _CHOOSES_INTERPRETER,
    "pipenv": _CHOOSES_INTERPRETER,
    "hatch": _CHOOSES_INTERPRETER,
}


def check(command: Command, folder: str) -> list[Finding]:
    """Return what there is to say about a command; ``folder`` is the working directory."""
    return [
        *_program(command),
        *_flags(command),
        *_archives(command),
        *_environment_of(command, folder),
        *(found for script in command.scripts for found in _script(script, folder)),
    ]


def _program(command: Command) -> Iterator[Finding]:
    name = os.path.basename(command.program)
    if name in _ELSEWHERE:
        does, advice = _ELSEWHERE[name]
        yield note(CHECK, f"{name} {does}, which can't be examined from here", advice)
    missing = {i.word: i.where for i in command.interpreters if i.path is None}
    if command.program and not missing and shutil.which(command.program) is None:
        missing[command.program] = "the command"
    for word, where in missing.items():
        yield note(CHECK, f"{where}: there is no {word} here", "correct PATH or the command")
    if command.program and not missing and not command.interpreters:
        yield note(
            CHECK,
            "names no interpreter: the one of this Loongkit was examined",
            "name the job's: loongkit doctor --python PATH",
        )


def _flags(command: Command) -> Iterator[Finding]:
    for interpreter in command.interpreters:
        blocking = [flag for flag in _BLOCKING_FLAGS if flag in interpreter.flags]
        for flag in blocking:
            yield problem(
                CHECK,
                f"{interpreter.where}: -{flag} keeps {interpreter.word} from "
                f"{_BLOCKING_FLAGS[flag]}, so Loongkit isn't loaded",
                f"leave -{flag} out, {BY_IMPORT}",
            )
        harmless = [flag for flag in "sP" if flag in interpreter.flags]
        if harmless and not blocking:
            flags = " and ".join(f"-{flag}" for flag in harmless)
            yield ok(CHECK, f"{interpreter.where}: {flags} does no harm to Loongkit")


def _archives(command: Command) -> Iterator[Finding]:
    for word, kind in command.archives:
        if kind == "pex":
            yield problem(
                CHECK,
                f"{word} is a pex file, which starts Python once more with -I",
                "put `import loongkit.all` at the top of its entry point, and Loongkit into it",
            )
        else:
            yield ok(CHECK, f"{word} is a zipapp: Loongkit is loaded before it")


def _environment_of(command: Command, folder: str) -> Iterator[Finding]:
    """Check what the command's own `env` does to PYTHONPATH behind the prelude."""
    if command.cleared:
        yield problem(
            CHECK,
            f"`{command.cleared}` takes PYTHONPATH out of the environment",
            f"put loongkit-run behind it, {BY_IMPORT}",
        )
    for value in command.assigned:
        yield _assignment("the command", value, None, folder)


def _script(script: Script, folder: str) -> Iterator[Finding]:
    lines = list(shell.lines(script.text))
    # From there on the prelude is on PYTHONPATH again, whatever stood before.
    launched = max((number for number, line in lines if "loongkit-run" in line), default=0)
    for number, line in lines:
        if number <= launched:
            continue
        where = f"{script.where}, line {number}"
        if shell.clears(line):
            yield problem(
                CHECK,
                f"{where} takes PYTHONPATH out of the environment",
                f"put loongkit-run before the interpreter in the script, {BY_IMPORT}",
            )
        for value in shell.assignments(line):
            yield _assignment(where, value, script.folder, folder)


def _assignment(where: str, value: str, script_folder: str | None, folder: str) -> Finding:
    ahead = shell.ahead(value)
    folders = [shell.expand(entry, script_folder, folder) for entry in ahead]
    if not shell.keeps(value):
        if None in folders:
            return note(
                CHECK,
                f"{where} sets PYTHONPATH anew, to something that only a shell can tell",
                "make sure that it ends in :$PYTHONPATH",
            )
        return problem(
            CHECK,
            f"{where} sets PYTHONPATH anew, without what was on it: Loongkit's folder is lost",
            "write PYTHONPATH=...:$PYTHONPATH, or put loongkit-run before the interpreter there",
        )
    for found in folders:
        if found is not None and _holds_sitecustomize(found):
            return problem(
                CHECK,
                f"{where} puts {found} ahead on PYTHONPATH, whose sitecustomize then runs in place "
                "of Loongkit's",
                "put that folder behind: PYTHONPATH=$PYTHONPATH:..., or put loongkit-run before "
                "the interpreter there",
            )
    if None in folders:
        entries = ", ".join(
            entry for entry in ahead if shell.expand(entry, script_folder, folder) is None
        )
        return note(
            CHECK,
            f"{where} puts {entries} ahead on PYTHONPATH",
            "fine unless a sitecustomize.py is in there",
        )
    if not ahead:
        return ok(CHECK, f"{where} adds to PYTHONPATH behind Loongkit's folder")
    return ok(
        CHECK,
        f"{where} puts {', '.join(filter(None, folders))} ahead on PYTHONPATH, "
        "with no sitecustomize in there",
    )


def _holds_sitecustomize(folder: str) -> bool:
    return any(
        os.path.exists(os.path.join(folder, name))
        for name in ("sitecustomize.py", "sitecustomize.pyc", "sitecustomize/__init__.py")
    )
