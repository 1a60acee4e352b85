"""Which variables have OpenMP bind threads to CPUs. Nothing is loaded to find that out."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_SWITCH = "OMP_PROC_BIND"
#: Variables that bind threads, and the words in their values by which they don't.
_BINDING = {
    _SWITCH: ("false",),
    "OMP_PLACES": (),
    "GOMP_CPU_AFFINITY": (),
    "KMP_AFFINITY": ("none", "disabled"),
}


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
