"""Reads LOONGKIT_CONFIG: a YAML file with the same settings as the environment."""

from __future__ import annotations

import os
import sys

from loongkit.activation import PREFIX
from loongkit.activation import settings as reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "LOONGKIT_CONFIG"
MAX_BYTES = 1 << 20


def read_into(settings: reading.Settings, path: str, known: Mapping[str, str]) -> None:
    """Read the file's settings; whatever is wrong with the file as a whole is one problem.

    Scalars are kept as they are written (YAML's own reading of ``on`` or ``1`` plays no part), so
    that a value means in the file what it means in the environment.
    """
    try:
        entries = _load(path)
    except Exception as error:  # PyYAML's own, OSError, UnicodeError, RecursionError
        reason = " ".join(str(error).split()) or type(error).__name__
        settings.complain(
            VARIABLE,
            f"{VARIABLE}={reading.shown(path)} is ignored: {reading.shown(reason)[1:-1]}; "
            "accepted: a readable YAML file of `NAME: value` lines",
        )
        return
    for key, value in entries.items():
        name = str(key).strip().upper()
        variable = name if name.startswith(PREFIX) else PREFIX + name
        if variable not in known or variable == VARIABLE:
            settings.complain(variable, f"{VARIABLE}: {reading.unknown_name(variable, known)}")
        elif not isinstance(value, str):
            settings.complain(
                variable, f"{VARIABLE}: {variable} must be a single value, not a list or a mapping"
            )
        else:
            settings.accept(variable, known[variable], value, "config file")


def _load(path: str) -> dict[object, object]:
    if not os.path.isfile(path):  # also keeps us from waiting on a pipe or a device
        found = "is not a regular file" if os.path.exists(path) else "does not exist"
        raise ValueError(f"the file {found}")
    # utf-8-sig: editors on Windows put a byte-order mark before the first key.
    with open(path, encoding="utf-8-sig") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(f"the file is larger than {MAX_BYTES} characters")
    try:
        import yaml
    except ImportError:
        raise ValueError(f"PyYAML is not installed for {sys.executable}; pip install PyYAML")
    entries = yaml.load(text, Loader=yaml.BaseLoader)
    if entries in (None, ""):
        return {}
    if not isinstance(entries, dict):
        raise ValueError(f"found a {type(entries).__name__}, wanted `NAME: value` lines")
    return entries
