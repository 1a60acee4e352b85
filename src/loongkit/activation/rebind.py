"""Reaches names that were bound before Loongkit was activated (`from module import function`)."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_Module = type(sys)


def _module_dictionaries() -> Iterator[dict[str, Any]]:
    """Yield the dictionaries of all real modules, ours excepted.

    They are read without attribute access, so that lazily loaded modules stay unloaded
    (pulumi/pulumi#21620). A feature's own names are none of the user's early-bound ones.
    """
    for module in list(sys.modules.values()):
        if isinstance(module, _Module):
            names: dict[str, Any] = object.__getattribute__(module, "__dict__")
            if str(names.get("__name__")).partition(".")[0] != "loongkit":
                yield names


def can_be_rebound(value: Any) -> bool:
    """Tell whether every name of this object means the same thing, which ``int``'s do not."""
    return callable(value) and getattr(value, "__module__", None) != "builtins"


def rebind(old: Any, new: Any) -> int:
    """Point every module-level name that holds ``old`` at ``new``; return how many there were."""
    count = 0
    for names in _module_dictionaries():
        for name in [key for key, value in list(names.items()) if value is old]:
            names[name] = new
            count += 1
    return count


def count_holders(value: Any) -> int:
    """Count what holds ``value`` besides module-level names: partials, defaults, containers.

    A class that defines it counts as one; the frames of running functions do not count.
    """
    import gc

    modules = {id(names) for names in _module_dictionaries()}
    count = 0
    for holder in gc.get_referrers(value):
        if isinstance(holder, dict):
            # Whoever wrapped it holds it by a closure, and again by the wrapper's __wrapped__.
            count += id(holder) not in modules and "__wrapped__" not in holder
        else:
            count += type(holder).__name__ != "frame"
    return count
