"""``loongkit-run COMMAND…``: runs a command with Loongkit's prelude folder on PYTHONPATH."""

from __future__ import annotations

import errno
import os
import sys

from loongkit import __version__
from loongkit.activation import process, settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

USAGE = f"""usage: loongkit-run COMMAND [ARGUMENT...]

Runs the command with Loongkit's prelude folder on PYTHONPATH; the command takes over this process,
so its output, exit status and signals are its own. Which optimisations are switched on is said by
LOONGKIT_* variables, for example:

    LOONGKIT_ALL=1 loongkit-run torchrun --nproc-per-node 8 train.py

`loongkit plan` shows what would be on here. Loongkit {__version__}.
"""

NOT_FOUND, NOT_EXECUTABLE, USAGE_ERROR = 127, 126, 2

#: What CPython sets LC_CTYPE to for itself in the C locale (PEP 538).
_COERCED_LOCALES = ("C.UTF-8", "C.utf8", "UTF-8")


def prelude_folder() -> str:
    """Return the real, absolute path of the folder that goes on PYTHONPATH."""
    return os.path.join(os.path.dirname(os.path.realpath(__file__)), "prelude")


def with_prelude(pythonpath: str | None, folder: str) -> str:
    """Return PYTHONPATH with the folder first, once, and the user's entries as they were.

    An empty entry means the working directory to Python; those of the user are kept, none is added.
    """
    if not pythonpath:
        return folder
    entries = [entry for entry in pythonpath.split(os.pathsep) if entry != folder]
    return os.pathsep.join([folder, *entries])


def environment(environ: dict[str, str], folder: str) -> dict[str, str]:
    """Return the environment of the command."""
    changed = dict(environ)
    if changed.get("LC_CTYPE") in _COERCED_LOCALES and not _started_with("LC_CTYPE"):
        del changed["LC_CTYPE"]
    # A job of its own: what an enclosing one has said or runs on does not count here.
    for name in settings.INTERNAL:
        changed.pop(name, None)
    if os.pathsep in folder:
        _say(
            f"{folder!r} contains {os.pathsep!r}, which separates entries of PYTHONPATH: Loongkit "
            "can't be put there and stays off; install it in another place, or use "
            "`import loongkit.all`"
        )
    else:
        changed["PYTHONPATH"] = with_prelude(environ.get("PYTHONPATH"), folder)
    settings.keep_paths(changed)
    return changed


def _started_with(name: str) -> bool:
    """Tell whether this process was given the variable, or has set it itself."""
    try:
        with open("/proc/self/environ", "rb") as file:
            return any(entry.startswith(f"{name}=".encode()) for entry in file.read().split(b"\0"))
    except OSError:
        return True


def warn_of_isolation(words: list[str]) -> None:
    """Log it when the command is an interpreter told to leave PYTHONPATH or sitecustomize out."""
    if not os.path.basename(words[0]).startswith("python"):
        return
    letters, _form, _text = process.command_line(words)
    isolating = [f"-{letter}" for letter in "EIS" if letter in letters]
    asked = any(
        name.startswith("LOONGKIT_") and name not in settings.INTERNAL for name in os.environ
    )
    if not isolating or not asked:
        return
    from loongkit.activation import logs, start

    start.configure_log(settings.read(os.environ))
    logs.warning(
        f"{words[0]} {' '.join(isolating)} does not read PYTHONPATH or runs no sitecustomize: "
        "Loongkit stays off in that process; leave the option out, or use `import loongkit.all`"
    )


def _ignore_signals(ignore: bool) -> None:
    """Undo what Python does for itself at start, or do it again.

    It ignores the two, and a command would inherit that.
    """
    # Not `signal`: a file of that name on the user's PYTHONPATH stands before the library's.
    import _signal  # type: ignore[import-not-found]

    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_IGN if ignore else _signal.SIG_DFL)


def _say(text: str) -> None:
    _write(sys.stderr, f"loongkit-run: {text}\n")


def _write(stream: TextIO | None, text: str) -> bool:
    """Write a message; tell whether nothing was in its way, such as a full disk or a broken pipe.

    Past the stream's buffer: what stays in there makes Python fail at its end, with status 120.
    """
    try:
        if stream is not None:  # None: closed when we were started
            os.write(stream.fileno(), text.encode(stream.encoding, "backslashreplace"))
    except OSError:
        return False
    return True


def _why_not(command: str, environ: dict[str, str], error: OSError | ValueError) -> tuple[int, str]:
    """Return the exit status and the reason, as shells have them."""
    places = [""] if os.sep in command else os.get_exec_path(environ)
    found = [path for path in (os.path.join(p, command) for p in places) if os.path.exists(path)]
    files = [path for path in found if not os.path.isdir(path)]
    if not command or not found or (not files and os.sep not in command):
        return NOT_FOUND, f"command not found{_likely_meant(command)}"
    if not files:
        return NOT_EXECUTABLE, "can't be executed: it is a folder"
    if isinstance(error, FileNotFoundError):
        return NOT_EXECUTABLE, "can't be executed: the interpreter that it names does not exist"
    reason = getattr(error, "strerror", None) or str(error)
    if getattr(error, "errno", None) == errno.ENOEXEC:
        reason += " (a script needs a first line such as #!/bin/bash, or `bash` before its name)"
    return NOT_EXECUTABLE, f"can't be executed: {reason}"


def _likely_meant(command: str) -> str:
    """Return what was probably meant by a command that there is none of, in brackets, or ""."""
    name, equals, _value = command.partition("=")
    if command.startswith("-"):
        return " (it is no option of loongkit-run; what comes first is the command: python -m ...)"
    if equals and name.isidentifier():
        return " (variables are set before loongkit-run, or by `env` behind it)"
    if command.endswith(".py") and os.path.isfile(command):
        return f" (a Python script needs its interpreter: loongkit-run python {command})"
    if os.path.isfile(command):
        return f" (./{command} is one, or `bash {command}` if it is a shell script)"
    if len(command.split()) > 1:
        return " (the command and each argument are words of their own: leave the quotes out)"
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Replace this process by the command; return a status only when that is not possible."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] in (["-h"], ["--help"]):
        return 0 if _write(sys.stdout, USAGE) else 1
    if words[:1] == ["--version"]:
        return 0 if _write(sys.stdout, f"loongkit-run {__version__}\n") else 1
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        _write(sys.stderr, USAGE)
        return USAGE_ERROR
    warn_of_isolation(words)
    changed = environment(dict(os.environ), prelude_folder())
    _ignore_signals(False)
    try:
        os.execvpe(words[0], words, changed)
    except (OSError, ValueError) as error:
        _ignore_signals(True)
        status, reason = _why_not(words[0], changed, error)
        _say(f"{words[0] if words[0].isprintable() else repr(words[0])}: {reason}")
        return status


if __name__ == "__main__":
    sys.exit(main())
