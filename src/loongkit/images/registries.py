"""Sees every class that OpenMMLab's registries are given, in packages and plug-ins alike."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

    from loongkit.activation.patching import Patcher


def watch(module: ModuleType, patcher: Patcher, consider: Callable[[type], None]) -> None:
    """Call ``consider`` with each class that a registry is given from now on, or was given before.

    ``module`` defines the class Registry: ``mmcv.utils.registry`` of mmcv 1.x, or mmengine's.

    Raises:
        Skip: registering works in another way.
    """

    def register(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        for item in (*args[1:2], kwargs.get("module"), kwargs.get("module_class")):
            if isinstance(item, type):
                consider(item)
        return result

    patcher.wrap(module.Registry, "_register_module", register)
    if patcher.late:
        for cls in list(_registered(module.Registry)):
            consider(cls)


def _registered(registry_class: type) -> Iterator[type]:
    """Yield every class that is in any registry by now."""
    for item in gc.get_objects():
        # Asked of the type: an object's own __class__ may run the user's code.
        if issubclass(type(item), registry_class):
            for cls in list(item._module_dict.values()):
                if isinstance(cls, type):
                    yield cls
