"""Starts the commands ``loongkit-run`` and ``loongkit``, whatever else goes by Loongkit's name.

PYTHONPATH stands before site-packages. A command that imported ``loongkit`` by its name would get
a job's own ``loongkit.py`` there, or a folder of that name. This module has a name that nobody else
takes, lies beside the package, and loads it from there.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

PACKAGE = "loongkit"


def run() -> int:
    """Run ``loongkit-run``; where Loongkit itself is broken, the command runs without it."""
    try:
        _load_package()
        from loongkit import launcher

        return launcher.main()
    except Exception as error:
        return _run_without_loongkit(sys.argv[1:], error)


def tools() -> int:
    """Run ``loongkit``."""
    _load_package()
    from loongkit.cli import main

    return main.main()


def _load_package() -> None:
    """Enter the package beside this file as ``loongkit``, in place of any other of that name."""
    folder = os.path.dirname(os.path.abspath(__file__))
    spec = sys.modules["_frozen_importlib_external"].PathFinder.find_spec(PACKAGE, [folder])
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no package {PACKAGE} in {folder}")
    if _is_there(sys.modules.get(PACKAGE), spec.origin):
        return  # a prelude has loaded it
    for name in list(sys.modules):
        if name.partition(".")[0] == PACKAGE:
            del sys.modules[name]
    sys.modules["_frozen_importlib"]._load(spec)


def _is_there(module: ModuleType | None, file: str) -> bool:
    found = getattr(module, "__file__", None)
    return isinstance(found, str) and os.path.realpath(found) == os.path.realpath(file)


def _run_without_loongkit(words: list[str], error: Exception) -> int:
    """Replace this process by the command; return a status only when that is not possible."""
    _say(f"Loongkit can't be used, so the command runs without it: {error!r}")
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        return 2
    _ignore_signals(False)
    try:
        os.execvp(words[0], words)
    except (OSError, ValueError) as reason:
        _ignore_signals(True)
        _say(f"{words[0]}: {reason}")
        return 127 if isinstance(reason, FileNotFoundError) else 126


def _ignore_signals(ignore: bool) -> None:
    """Undo what Python does for itself at start, which a command would inherit, or do it again.

    As in ``loongkit.launcher``, which may be what can't be loaded.
    """
    import _signal  # type: ignore[import-not-found]

    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_IGN if ignore else _signal.SIG_DFL)


def _say(text: str) -> None:
    try:
        if sys.stderr is not None:  # closed when we were started
            os.write(
                sys.stderr.fileno(), f"loongkit-run: {text}\n".encode(errors="backslashreplace")
            )
    except OSError:
        return  # a full disk, a broken pipe: the command matters more
