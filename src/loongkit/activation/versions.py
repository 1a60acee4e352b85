"""Version gates: release tuples of the imported module's own version.

Vendor builds read ``2.9.0a0+git…``; the release part alone decides, so such a build passes the
gate of its release (PEP 440 specifiers would call it older than 2.9.0).
"""

from __future__ import annotations

import os
import sys

#: Import name -> names of the distributions that may provide it (for ``loongkit plan``).
DISTRIBUTIONS = {
    "mmcv": ("mmcv", "mmcv-full", "mmcv-lite"),
    "mmseg": ("mmsegmentation",),
}

_OPERATORS = ("==", ">=", "<=", "<", ">")
# A date is the longest number met in a version; Python refuses to convert thousands of digits.
_MOST_DIGITS = 18


def release(text: str) -> tuple[int, ...] | None:
    """Return the leading numbers of a version: ``"2.9.0a0+git1" -> (2, 9, 0)``; None if none."""
    numbers: list[int] = []
    for part in str(text).strip().lstrip("vV").split("."):
        digits = ""
        for character in part:
            if not "0" <= character <= "9":
                break
            digits += character
        if digits:
            numbers.append(int(digits[:_MOST_DIGITS]))
        if digits != part:
            break
    return tuple(numbers) or None


def _split(requirement: str) -> tuple[str, list[tuple[str, str]]]:
    start = min((i for i in map(requirement.find, "=<>") if i >= 0), default=len(requirement))
    name = requirement[:start].strip()
    if not name.isidentifier():  # also met with `!=` and `~=`, which are not among the operators
        raise ValueError(f"requirement {requirement!r}: {name!r} is not the name of a package")
    clauses = []
    for clause in filter(None, (c.strip() for c in requirement[start:].split(","))):
        operator = next((o for o in _OPERATORS if clause.startswith(o)), None)
        if operator is None:
            raise ValueError(f"requirement {requirement!r}: {clause!r} has no comparison operator")
        clauses.append((operator, clause[len(operator) :].strip()))
    return name, clauses


def package(requirement: str) -> str:
    """Return the import name of a requirement: ``"torch>=2.4.0" -> "torch"``."""
    return _split(requirement)[0]


def _compare(found: tuple[int, ...], operator: str, wanted: str) -> bool:
    bound = release(wanted.removesuffix(".*")) or ()
    if wanted.endswith(".*"):
        found = found[: len(bound)]
    width = max(len(found), len(bound))
    left = found + (0,) * (width - len(found))
    right = bound + (0,) * (width - len(bound))
    return {
        "==": left == right,
        ">=": left >= right,
        "<=": left <= right,
        "<": left < right,
        ">": left > right,
    }[operator]


def mismatch(requirement: str, found: str | None) -> str | None:
    """Return why version ``found`` does not meet the requirement, or None when it does."""
    name, clauses = _split(requirement)
    if found is None:
        return f"the version of {name} cannot be read; wanted {requirement}"
    numbers = release(found)
    if numbers is None:
        return f"{name} calls its version {found!r}, which has no number; wanted {requirement}"
    if all(_compare(numbers, operator, wanted) for operator, wanted in clauses):
        return None
    return f"found {name} {found}, wanted {requirement[len(name) :].strip()}"


def module_version(name: str) -> str | None:
    """Return the version of an imported package, also while it is still being imported.

    mmcv sets ``__version__`` on its last line, after its own submodules were imported: until then
    its ``version.py`` is read as text (no code of the package runs).
    """
    module = sys.modules.get(name)
    for source in (module, sys.modules.get(name + ".version")):
        version = getattr(source, "__version__", None)
        if isinstance(version, str):  # some packages have a submodule of this name
            return str(version)
    return None if module is None else version_in_file(list(getattr(module, "__path__", ())))


def version_in_file(folders: list[str]) -> str | None:
    """Return the ``__version__`` in the ``version.py`` of a package's folders, read as text."""
    for folder in folders:
        try:
            with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
                lines = file.read(65536).splitlines()
        except (OSError, UnicodeError):
            continue
        for line in lines:
            left, _, right = line.partition("=")
            if left.split(":")[0].strip() == "__version__":
                value = right.split("#")[0].strip()
                if len(value) > 2 and value[0] in "'\"" and value[-1] == value[0]:
                    return value[1:-1]
    return None


def unmet(requires: tuple[str, ...]) -> str | None:
    """Return the first reason why the imported packages do not meet the gates, or None."""
    for requirement in requires:
        name = package(requirement)
        if name not in sys.modules:
            return f"{name} is not imported; wanted {requirement}"
        reason = mismatch(requirement, module_version(name))
        if reason is not None:
            return reason
    return None


def absent(requires: tuple[str, ...]) -> list[str]:
    """Return the packages that the gates name and nobody has imported so far."""
    return [name for name in map(package, requires) if name not in sys.modules]
