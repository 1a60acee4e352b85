"""Starts a real interpreter with the prelude on PYTHONPATH and asks what became of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loongkit.activation import PREFIX, settings, versions

#: Import names of the frameworks that the doctor reports.
FRAMEWORKS = (
    "torch",
    "mmcv",
    "mmengine",
    "mmdet",
    "mmdet3d",
    "mmseg",
    "transformers",
    "accelerate",
)

_MARK = "loongkit-doctor-answer "
_SECONDS = 60
_IMPORT_SECONDS = 300

# What `-c` puts first on the path is the current folder, and a json.py there is none of the job's
# start-up. PYTHONSAFEPATH keeps it out from Python 3.11 on, this line in older ones.
_WITHOUT_CURRENT_FOLDER = """
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
"""

# Runs in any Python, 2.7 included. PathFinder alone is asked: what it finds is what the interpreter
# found at its start.
_PROGRAM = (
    _WITHOUT_CURRENT_FOLDER
    + r"""
import json, os, platform
given = json.loads(sys.argv[1])
answer = {
    "version": platform.python_version(),
    "implementation": platform.python_implementation(),
    "prefix": sys.prefix,
}


def origin(finder, name, path):
    try:
        spec = finder.find_spec(name, path)
    except Exception:
        return ""
    return (spec is not None and spec.origin) or ""


def owners(metadata):
    for distribution in metadata.distributions():
        try:
            tops = (distribution.read_text("top_level.txt") or "").split()
            record = "\n" + (distribution.read_text("RECORD") or "")
            name = distribution.metadata["Name"]
            if name == "loongkit" or "loongkit" in tops or "\nloongkit/__init__.py," in record:
                yield [name or "", distribution.version or ""]
        except Exception:
            continue


def found_versions(metadata):
    for name in given["distributions"]:
        try:
            yield [name, metadata.version(name) or ""]
        except Exception:
            continue


def settings_here(reading):
    try:
        found = reading.read(given["settings"])
        return [found.values, found.sources, found.problems]
    except Exception:  # no Loongkit was loaded, or one of another version
        return None


if sys.version_info >= (3, 10):
    from importlib import metadata
    from importlib.machinery import PathFinder

    path = [entry for entry in sys.path if isinstance(entry, str) and entry]
    real = os.path.realpath(given["prelude"])
    others = [entry for entry in path if os.path.realpath(entry) != real]
    package = sys.modules.get("loongkit")
    session = sys.modules.get("loongkit.activation.session")
    answer["winner"] = origin(PathFinder, "sitecustomize", path)
    answer["following"] = origin(PathFinder, "sitecustomize", others)
    answer["following_ran"] = "sitecustomize" in sys.modules
    answer["armed"] = session is not None and bool(session.SESSION.records)
    answer["settings_found"] = settings_here(sys.modules.get("loongkit.activation.settings"))
    answer["package"] = getattr(package, "__file__", "") or ""
    answer["package_version"] = getattr(package, "__version__", "") or ""
    answer["importable"] = origin(PathFinder, "loongkit", [given["folder"]] + path)
    answer["owners"] = list(owners(metadata))
    answer["versions"] = list(found_versions(metadata))
sys.stdout.write("\n" + given["mark"] + json.dumps(answer) + "\n")
"""
)


@dataclass(frozen=True)
class Answer:
    """What the test process said of itself; from ``winner`` on only for Python >= 3.10.

    ``winner`` is the sitecustomize that the interpreter runs, ``following`` the one it would run
    without ours, ``following_ran`` whether the last of them ended well; ``package`` is the file
    of the Loongkit it loaded, ``importable`` that of the one ``import loongkit`` finds by itself;
    ``owners`` are the distributions that install a package called loongkit;
    ``settings_found`` is what the user's settings come to there (values, sources, problems), None
    where nothing read them.
    """

    version: str
    implementation: str
    prefix: str
    winner: str = ""
    following: str = ""
    following_ran: bool = False
    armed: bool = False
    package: str = ""
    package_version: str = ""
    importable: str = ""
    owners: list[list[str]] = field(default_factory=list)
    versions: list[list[str]] = field(default_factory=list)
    settings_found: list[Any] | None = None

    def settings_read(self) -> settings.Settings | None:
        """Return the user's settings as that interpreter reads them: it may lack PyYAML."""
        if self.settings_found is None:
            return None
        found = settings.Settings()
        found.values, found.sources, problems = self.settings_found
        found.problems = [(variable, text) for variable, text in problems]
        return found


@dataclass(frozen=True)
class Probe:
    """The answer of a test process, or the reason why there is none; ``error`` is what it said."""

    answer: Answer | None
    failure: str
    error: str


def environment(environ: Mapping[str, str], pythonpath: str | None) -> dict[str, str]:
    """Return the environment of a test process: no setting of the user's but a level, no log.

    Modules in the current folder are not imported (see the program for Python 3.10).
    """
    changed = {name: value for name, value in environ.items() if not name.startswith(PREFIX)}
    changed["PYTHONSAFEPATH"] = "1"
    changed |= {"LOONGKIT_ALL": "1", "LOONGKIT_LOGDIR": "stderr", "LOONGKIT_LOGLEVEL": "error"}
    changed.pop("PYTHONPATH", None)
    if pythonpath is not None:
        changed["PYTHONPATH"] = pythonpath
    return changed


def ask(
    python: str,
    environ: Mapping[str, str],
    prelude: str,
    folder: str,
    settings_given: Mapping[str, str],
) -> Probe:
    """Start a test process and return what it says of itself. Raises nothing.

    ``folder`` is the working directory, the first place where a script there looks for modules;
    ``settings_given`` are the user's settings, which it reads but does not act upon.
    """
    names = [d for name in FRAMEWORKS for d in versions.DISTRIBUTIONS.get(name, (name,))]
    given = json.dumps(
        {
            "prelude": prelude,
            "folder": folder,
            "mark": _MARK,
            "distributions": names,
            "settings": dict(settings_given),
        }
    )
    done = _run([python, "-c", _PROGRAM, given], environ, _SECONDS)
    if isinstance(done, str):
        return Probe(None, done, "")
    error = last_line(done.stderr)
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return Probe(Answer(**json.loads(line[len(_MARK) :])), "", error)
    return Probe(None, f"it ended with status {done.returncode} and no answer", error)


def import_torch(python: str, environ: Mapping[str, str]) -> tuple[bool, str]:
    """Import torch in a test process; return whether it went well, and the version or the error."""
    program = f"{_WITHOUT_CURRENT_FOLDER}\nimport torch; print({_MARK!r} + torch.__version__)"
    done = _run([python, "-c", program], environ, _IMPORT_SECONDS)
    if isinstance(done, str):
        return False, done
    for line in done.stdout.splitlines():
        if line.startswith(_MARK) and done.returncode == 0:
            return True, line[len(_MARK) :]
    return False, last_line(done.stderr) or f"it ended with status {done.returncode}"


def _run(
    command: list[str], environ: Mapping[str, str], seconds: int
) -> subprocess.CompletedProcess[str] | str:
    try:
        return subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {seconds} s"
    except (OSError, ValueError) as error:
        return f"it can't be started: {getattr(error, 'strerror', None) or error}"


def last_line(text: str) -> str:
    """Return the last line that is not blank, at most 300 characters of it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
