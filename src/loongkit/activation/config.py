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
#: All settings with comments take a tenth of it; every process of the job reads the file.
MAX_CHARACTERS = 1 << 16


def read_into(settings: reading.Settings, path: str, known: Mapping[str, str]) -> None:
    """Read the file's settings; whatever is wrong with the file as a whole is one problem.

    Scalars are kept as they are written (YAML's own reading of ``on`` or ``1`` plays no part), so
    that a value means in the file what it means in the environment.
    """
    try:
        entries = _load(path)
    except Exception as error:  # PyYAML's own, OSError, UnicodeError, RecursionError
        text = error.strerror if isinstance(error, OSError) else str(error)
        reason = " ".join((text or type(error).__name__).split())
        settings.complain(
            VARIABLE,
            f"{VARIABLE}={reading.shown(path)} is ignored: {reading.shown(reason, 240)[1:-1]}; "
            "accepted: a readable YAML file of `NAME: value` lines",
        )
        return
    for variable, written in _by_variable(entries).items():
        key, text = written[-1]
        if variable == VARIABLE:
            settings.complain(variable, f"{VARIABLE}: the file can't name another file")
        elif variable not in known:
            settings.complain(variable, f"{VARIABLE}: {reading.unknown_name(variable, known)}")
        elif text is None:
            settings.complain(
                variable, f"{VARIABLE}: {variable} must be a single value, not a list or a mapping"
            )
        else:
            settings.accept(variable, known[variable], text, "config file")
        if len(written) > 1:
            settings.complain(
                variable,
                f"{VARIABLE}: {variable} stands {len(written)} times in the file: after "
                f"{_shown(*written[-2])} comes {_shown(key, text)}, and the last one counts; "
                "keep one",
            )


def _by_variable(entries: list[tuple[str, str | None]]) -> dict[str, list[tuple[str, str | None]]]:
    """Gather what is written for each variable: keys may differ in letter case and prefix."""
    found: dict[str, list[tuple[str, str | None]]] = {}
    for key, text in entries:
        name = key.strip().upper()
        variable = name if name.startswith(PREFIX) else PREFIX + name
        found.setdefault(variable, []).append((key, text))
    return found


def _shown(key: str, text: str | None) -> str:
    value = "a list or a mapping" if text is None else reading.shown(text)
    return f"{reading.shown(key)[1:-1]}: {value}"


def _load(path: str) -> list[tuple[str, str | None]]:
    """Return the file's keys, each with its text, or with None where it has a list or a mapping.

    PyYAML's own dictionary would hold the last of several equal keys and not tell of the others.
    """
    if not os.path.isfile(path):
        os.stat(path)  # raises what is wrong with the path, if anything is
        raise ValueError("it is no regular file")  # a pipe would keep us waiting
    # utf-8-sig: editors on Windows put a byte-order mark before the first key.
    with open(path, encoding="utf-8-sig") as file:
        text = file.read(MAX_CHARACTERS + 1)
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it is longer than {MAX_CHARACTERS} characters")
    try:
        import yaml
    except ImportError:
        raise ValueError(f"PyYAML is not installed for {sys.executable}; pip install PyYAML")
    loader = yaml.BaseLoader(text)
    try:
        document = loader.get_single_node()
        if document is None:
            return []
        # Read as a whole too: values that hold themselves, and keys that are lists, are errors.
        whole = loader.construct_document(document)
    finally:
        loader.dispose()
    if whole == "":
        return []
    if not isinstance(whole, dict):
        raise ValueError(f"it holds a {type(whole).__name__}, not names with values")
    return [
        (str(key.value), value.value if isinstance(value, yaml.ScalarNode) else None)
        for key, value in document.value
    ]
