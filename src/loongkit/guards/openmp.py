"""What OpenMP was told to bind its threads to, and the CPUs that it spreads them over."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Variables that bind threads -> words in their values by which they don't.
_BINDING = {
    "OMP_PROC_BIND": ("false",),
    "GOMP_CPU_AFFINITY": (),
    "KMP_AFFINITY": ("none", "disabled"),
}
#: GNU's, Intel's and LLVM's run-time libraries.
_LIBRARIES = ("libgomp", "libiomp5", "libomp")


def binding_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables by which the user has OpenMP bind its threads."""
    found = []
    for name, harmless in _BINDING.items():
        value = environ.get(name, "").strip().lower()
        if value and not any(word in value for word in harmless):
            found.append(name)
    return tuple(found)


def places(environ: Mapping[str, str]) -> frozenset[int]:
    """Return the CPUs of all places of the OpenMP libraries in this process; none: it binds none.

    They are within the mask that the process was started with (OpenMP 5.0, section 3.2.23 ff.).
    """
    if not binding_variables(environ):
        return frozenset()
    found: set[int] = set()
    for path in _loaded():
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        for place in range(library.omp_get_num_places()):
            cpus = (ctypes.c_int * max(0, library.omp_get_place_num_procs(place)))()
            library.omp_get_place_proc_ids(place, cpus)
            found.update(cpus)
    return frozenset(found)


def _loaded() -> Iterator[str]:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = {line.split(maxsplit=5)[5].strip() for line in file if "/" in line}
    for path in sorted(paths):
        if os.path.basename(path).startswith(_LIBRARIES):
            yield path
