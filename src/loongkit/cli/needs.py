"""What a feature needs beside its version gates: something to change, and a compiler for some."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loongkit.activation import settings
from loongkit.activation.feature import Feature
from loongkit.activation.versions import package
from loongkit.cli import installed
from loongkit.images import jit

_NO_COMPILER = "NUMBA_DISABLE_JIT"


def unmet(
    feature: Feature, find: Callable[[str], installed.Package], environ: Mapping[str, str]
) -> str:
    """Return why a feature can do nothing in a job started here, "" where it can."""
    changed = dict.fromkeys(target.partition(".")[0] for target, _ in feature.hooks)
    if changed and not any(find(name).present for name in changed):
        names = ", ".join(changed)
        return f"none of {names} is installed" if len(changed) > 1 else f"{names} is not installed"
    return _without_compiler(find, environ) if feature.compiled else ""


def _without_compiler(find: Callable[[str], installed.Package], environ: Mapping[str, str]) -> str:
    numba = find(package(jit.NUMBA))
    reason = installed.unmet(jit.NUMBA, numba)
    if reason:
        return reason if numba.present else f"{reason}: pip install 'loongkit[jit]'"
    if settings.parse_int(environ.get(_NO_COMPILER, "")):
        return f"{_NO_COMPILER} is set, which switches numba's compiler off"
    return ""
