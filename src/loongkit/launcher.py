"""``loongkit-run COMMAND…``: runs a command with Loongkit's prelude folder on PYTHONPATH."""

from __future__ import annotations

import os
import sys

from loongkit import __version__
from loongkit.activation import settings

USAGE = f"""usage: loongkit-run COMMAND [ARGUMENT...]

Runs the command with Loongkit's prelude folder on PYTHONPATH; the command takes over this process,
so its output, exit status and signals are its own. Which optimisations are switched on is said by
LOONGKIT_* variables, for example:

    LOONGKIT_ALL=1 loongkit-run torchrun --nproc-per-node 8 train.py

`loongkit plan` shows what would be on here. Loongkit {__version__}.
"""

NOT_FOUND, NOT_EXECUTABLE, USAGE_ERROR = 127, 126, 2


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
    if os.pathsep in folder:
        _say(
            f"{folder!r} contains {os.pathsep!r}, which separates entries of PYTHONPATH: Loongkit "
            "can't be put there and stays off; install it in another place, or use "
            "`import loongkit.all`"
        )
        return changed
    changed["PYTHONPATH"] = with_prelude(environ.get("PYTHONPATH"), folder)
    # A job of its own: what an enclosing one has said or runs on does not count here.
    for name in settings.INTERNAL:
        changed.pop(name, None)
    return changed


def _say(text: str) -> None:
    sys.stderr.write(f"loongkit-run: {text}\n")
    sys.stderr.flush()


def main(arguments: list[str] | None = None) -> int:
    """Replace this process by the command; return a status only when that is not possible."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] in (["-h"], ["--help"]):
        sys.stdout.write(USAGE)
        return 0
    if words[:1] == ["--version"]:
        sys.stdout.write(f"loongkit-run {__version__}\n")
        return 0
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        sys.stderr.write(USAGE)
        return USAGE_ERROR
    changed = environment(dict(os.environ), prelude_folder())
    try:
        os.execvpe(words[0], words, changed)
    except (FileNotFoundError, NotADirectoryError):
        _say(f"{words[0]}: command not found")
        return NOT_FOUND
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        _say(f"{words[0]}: can't be executed: {reason}")
        return NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main())
