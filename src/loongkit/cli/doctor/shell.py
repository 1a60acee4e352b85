"""Reads shell text for what it does to PYTHONPATH. Nothing is run; what can't be told is said."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

_ASSIGNMENT = re.compile(r"(?<![\w$])PYTHONPATH=")
_CLEARING = re.compile(
    r"\bunset\s+(?:-v\s+)?PYTHONPATH\b|\benv\s+(?:-\S+\s+)*(?:-i\b|-u\s*PYTHONPATH\b)"
)

#: From here on a value goes on with what PYTHONPATH was before, or names the prelude itself.
_KEPT = re.compile(
    r"\$\{?PYTHONPATH\b|\$\(\s*loongkit\s+prelude-path|`loongkit\s+prelude-path"
    r"|[^:]*loongkit/prelude\b"
)

#: Ways to spell the folder of the script, and the working directory.
_SELF = r"(?:\$0|\$\{0\}|\$\{?BASH_SOURCE(?:\[0\]\})?)"
_SCRIPT_FOLDER = re.compile(
    rf"\$\(\s*cd\s+(?:--\s+)?\$\(\s*dirname\s+(?:--\s+)?{_SELF}\s*\)\s*(?:&&|;)\s*pwd\s*\)"
    rf"|\$\(\s*dirname\s+(?:--\s+)?{_SELF}\s*\)|`\s*dirname\s+{_SELF}\s*`"
)
_WORKING_FOLDER = re.compile(r"\$\(\s*pwd\s*\)|`pwd`|\$PWD\b|\$\{PWD\}")


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line, those ending in a backslash joined, without comments."""
    start, joined = 1, ""
    for number, line in enumerate(text.splitlines(), 1):
        if not joined:
            start = number
            if line.lstrip().startswith("#"):
                continue
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        yield start, joined + line
        joined = ""
    if joined:
        yield start, joined


def assignments(line: str) -> list[str]:
    """Return the values that a line gives to PYTHONPATH, without quotes, not expanded."""
    return [_value(line, match.end()) for match in _ASSIGNMENT.finditer(line)]


def clears(line: str) -> bool:
    """Tell whether a line takes PYTHONPATH out of the environment."""
    return bool(_CLEARING.search(line))


def _value(line: str, start: int) -> str:
    """Return the shell word that begins at a position; blanks in quotes and $(…) belong to it."""
    quote, depth, position = "", 0, start
    while position < len(line):
        character = line[position]
        if character == "\\":
            position += 1
        elif character == quote:
            quote = ""
        elif not quote and character in "\"'`":
            quote = character
        elif line.startswith("$(", position):
            depth += 1
        elif character == ")":
            if not depth:
                break
            depth -= 1
        elif not quote and not depth and character in " \t;&|<>":
            break
        position += 1
    return re.sub(r"[\"']", "", line[start:position])


def keeps(value: str) -> bool:
    """Tell whether a new value of PYTHONPATH goes on with the old one, or names the prelude."""
    return bool(_KEPT.search(value))


def ahead(value: str) -> list[str]:
    """Return the entries that a value puts ahead of what was on PYTHONPATH before."""
    match = _KEPT.search(value)
    before = value[: match.start()] if match else value
    return [entry for entry in before.split(":") if entry]


def expand(entry: str, script_folder: str | None, folder: str) -> str | None:
    """Return the folder that an entry means, or None where only a shell could tell.

    ``script_folder`` is that of the script (None for the text of ``bash -c``), ``folder`` the
    working directory.
    """
    if script_folder is not None:
        entry = _SCRIPT_FOLDER.sub(lambda _: script_folder, entry)
    entry = os.path.expanduser(_WORKING_FOLDER.sub(lambda _: folder, entry))
    entry = re.sub(r"\$HOME\b|\$\{HOME\}", lambda _: os.path.expanduser("~"), entry)
    if any(character in entry for character in "$`(){}*?"):
        return None
    return os.path.normpath(os.path.join(folder, entry))
