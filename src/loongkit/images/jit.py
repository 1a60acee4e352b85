"""Loads the modules of compiled kernels, or says in one line why they can't be had here."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

from loongkit.activation import versions

if TYPE_CHECKING:
    from typing import Any

#: The oldest release that knows every NumPy that PyTorch 2.4 runs with.
NUMBA = "numba>=0.59"


def missing() -> str | None:
    """Return why there can be no kernels, without importing numba (half a second); else None."""
    if importlib.util.find_spec("numba") is None:
        return f"numba is not installed; wanted {NUMBA}: pip install 'loongkit[jit]'"
    return None


def kernels_of(name: str) -> Any:
    """Import ``loongkit.kernels.<name>``, and numba with it.

    Raises:
        RuntimeError: numba is too old, or its compiler is switched off.
        Exception: whatever importing numba raises where it does not fit NumPy or the machine.
    """
    numba = importlib.import_module("numba")
    reason = versions.mismatch(NUMBA, getattr(numba, "__version__", None))
    if reason is not None:
        raise RuntimeError(reason)
    if numba.config.DISABLE_JIT:
        raise RuntimeError("NUMBA_DISABLE_JIT is set: without compiler the kernels would crawl")
    return importlib.import_module(f"loongkit.kernels.{name}")
