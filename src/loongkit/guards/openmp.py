"""What OpenMP was told to bind its threads to, and the CPUs that it spreads them over."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

from loongkit.guards import libraries
from loongkit.numa.openmp import binding_variables

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Run-time libraries, by the beginning of their file's name: GNU's, Intel's, LLVM's.
RUNTIMES = ("libgomp", "libiomp5", "libomp")
_GNU = RUNTIMES[0]
#: What only the other libraries read.
_NOT_GNU = ("KMP_AFFINITY",)


class Binding(NamedTuple):
    """The variables that have OpenMP bind threads, and the CPUs of all its places."""

    variables: tuple[str, ...] = ()
    cpus: frozenset[int] = frozenset()


def binding(environ: Mapping[str, str]) -> Binding:
    """Return what binds the threads of the OpenMP libraries in this process, and to which CPUs.

    Those are within the mask that the library was loaded with (OpenMP 5.0, section 3.2.23 ff.).
    """
    asked = binding_variables(environ)
    found: set[int] = set()
    heard: set[str] = set()
    for name, library in libraries.loaded(*RUNTIMES) if asked else ():
        read = [one for one in asked if one not in _NOT_GNU or not name.startswith(_GNU)]
        cpus = _places(library) if read else set()
        if cpus:
            found |= cpus
            heard.update(read)
    return Binding(tuple(name for name in asked if name in heard), frozenset(found))


def _places(library: ctypes.CDLL) -> set[int]:
    found: set[int] = set()
    for place in range(library.omp_get_num_places()):
        cpus = (ctypes.c_int * max(0, library.omp_get_place_num_procs(place)))()
        library.omp_get_place_proc_ids(place, cpus)
        found.update(cpus)
    return found
