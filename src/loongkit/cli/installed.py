"""Which version of a package is installed, without importing it."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from importlib.machinery import PathFinder

from loongkit.activation import versions


@dataclass(frozen=True)
class Package:
    """An import name: whether there is such a package, and its version where it can be read."""

    present: bool
    version: str | None


def find(name: str) -> Package:
    """Return what is installed under an import name, such as "mmcv" for mmcv-full.

    The metadata of the distribution says the version. Where none or several claim the name (a
    checkout that is not installed; mmcv beside mmcv-full), the package's own ``version.py`` does.
    """
    claimed = [
        version
        for distribution in versions.DISTRIBUTIONS.get(name, (name,))
        if (version := _distribution_version(distribution)) is not None
    ]
    if len(claimed) == 1:
        return Package(True, claimed[0])
    spec = PathFinder.find_spec(name)
    if spec is None or spec.origin is None:  # without origin: an empty folder of that name
        return Package(bool(claimed), claimed[0] if claimed else None)
    in_file = versions.version_in_file(list(spec.submodule_search_locations or ()))
    return Package(True, in_file or (claimed[0] if claimed else None))


def _distribution_version(name: str) -> str | None:
    try:
        version: str | None = importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, KeyError, OSError, UnicodeError):
        return None  # KeyError: metadata without a version, as an interrupted installation leaves
    return version


def unmet(requirement: str, package: Package) -> str | None:
    """Return why the installed package does not meet a version gate, or None when it does."""
    name = versions.package(requirement)
    if not package.present:
        return f"{name} is not installed; wanted {requirement[len(name) :].strip()}"
    return versions.mismatch(requirement, package.version)
