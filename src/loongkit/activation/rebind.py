"""Reaches names that were bound before Loongkit was activated (`from module import function`)."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_Module = type(sys)


def rebind(old: Any, new: Any) -> int:
    """Point every module-level name that holds ``old`` at ``new``; return how many there were.

    Only real modules are looked at, and their dictionaries are read without attribute access, so
    that lazily loaded modules stay unloaded (pulumi/pulumi#21620).
    """
    count = 0
    for module in list(sys.modules.values()):
        if not isinstance(module, _Module):
            continue
        names: dict[str, Any] = object.__getattribute__(module, "__dict__")
        for name in [key for key, value in list(names.items()) if value is old]:
            names[name] = new
            count += 1
    return count


def count_unreachable(old: Any) -> int:
    """Count what still holds ``old`` besides modules: partials, default arguments, containers.

    Loongkit's own references (seams, closure cells) are not counted.
    """
    import gc

    count = 0
    for holder in gc.get_referrers(old):
        if type(holder).__name__ in ("partial", "tuple", "list", "set", "method"):
            count += 1
        elif isinstance(holder, dict):
            # Neither a module's dictionary nor that of one of our dispatchers.
            count += "__name__" not in holder and "__wrapped__" not in holder
    return count
