"""What OpenMP was told to bind its threads to, and the CPUs that it spreads them over."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

from loongkit.guards import libraries

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Run-time libraries, by the beginning of their file's name: GNU's, Intel's, LLVM's.
RUNTIMES = ("libgomp", "libiomp5", "libomp")
_GNU = RUNTIMES[0]
_SWITCH = "OMP_PROC_BIND"
#: Variables that bind threads, and the words in their values by which they don't.
_BINDING = {
    _SWITCH: ("false",),
    "OMP_PLACES": (),
    "GOMP_CPU_AFFINITY": (),
    "KMP_AFFINITY": ("none", "disabled"),
}
#: What only the other libraries read.
_NOT_GNU = ("KMP_AFFINITY",)


class Binding(NamedTuple):
    """The variables that have OpenMP bind threads, and the CPUs of all its places."""

    variables: tuple[str, ...] = ()
    cpus: frozenset[int] = frozenset()


def binding_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables by which the user has OpenMP bind its threads.

    None where OMP_PROC_BIND forbids it, whatever the others say (OpenMP 5.0, section 6.4).
    """
    values = {name: environ.get(name, "").strip().lower() for name in _BINDING}
    if values[_SWITCH] in _BINDING[_SWITCH]:
        return ()
    return tuple(
        name
        for name, harmless in _BINDING.items()
        if values[name] and not any(word in values[name] for word in harmless)
    )


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
