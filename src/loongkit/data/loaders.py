"""Switches ``pin_memory`` on for the DataLoaders that a feature wants to have pinned."""

from __future__ import annotations

import functools
import sys
import types
import weakref
from typing import TYPE_CHECKING

from loongkit.activation import logs, seams

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from loongkit.data.accelerator import Accelerator

_MOST_WRAPPERS = 64


class LoaderSwitch:
    """Decides for each DataLoader when an iterator is made of it.

    Not when the loader is made: mmdet and its like make their loaders before they move the model
    to the device. By the time of the iterator the device of a job that trains on one is in use, so
    that nothing has to be initialised, or asked of a driver, to find out.

    ``feature`` is what to call it in the log; ``wanted`` tells which loaders it is for: those whose
    batches hold DataContainers, unless another function says otherwise.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        feature: str = "data_container",
        wanted: Callable[[Any], bool] | None = None,
    ) -> None:
        self._accelerator = accelerator
        self._feature = feature
        self._wanted = wanted or _holds_containers
        self._switched: list[weakref.ref[Any]] = []

    def get_iterator(self, original: Callable[[Any], Any], loader: Any) -> Any:
        """Stand in for DataLoader._get_iterator, whose iterator reads the flag once."""
        try:
            self._consider(loader)
        except Exception as error:  # a loader of somebody's own may lack anything
            logs.debug(f"{self._feature}: a DataLoader is left as it is: {error!r}")
        return original(loader)

    def restore(self) -> None:
        """Switch ``pin_memory`` off again where it was switched on here."""
        while self._switched:
            loader = self._switched.pop()()
            if loader is not None:
                loader.pin_memory = False

    def _consider(self, loader: Any) -> None:
        if loader.pin_memory or getattr(loader, "pin_memory_device", ""):
            return  # the user has chosen
        if loader.num_workers == 0:
            return  # there is no pin thread: the training would wait for each copy
        if not self._accelerator.is_in_use() or not self._wanted(loader):
            return
        loader.pin_memory = True
        self._switched.append(weakref.ref(loader))
        logs.info(
            f"{self._feature}: pin_memory switched on for a DataLoader with "
            f"{loader.num_workers} data workers"
        )


def _holds_containers(loader: Any) -> bool:
    return makes_containers(loader.collate_fn)


def makes_containers(collate_fn: Any) -> bool:
    """Tell whether a collate function makes DataContainers, as far as can be seen from outside.

    It does if it is mmcv's, or if its module has imported mmcv's or the class DataContainer.
    """
    module = sys.modules.get("mmcv.parallel.data_container")
    container = getattr(module, "DataContainer", None)
    function = _function_in(collate_fn)
    if container is None or function is None:
        return False
    return any(_tells_of(name, container) for name in list(function.__globals__.values()))


def _tells_of(value: Any, container: type) -> bool:
    if isinstance(value, type):
        return issubclass(value, container)
    return (
        isinstance(value, types.FunctionType)
        and value.__module__ == "mmcv.parallel.collate"
        and value.__name__ == "collate"
    )


def _function_in(collate_fn: Any) -> types.FunctionType | None:
    """Return the function in a partial, a method, a wrapper or an object that can be called."""
    found = collate_fn
    for _ in range(_MOST_WRAPPERS):
        inner = _inside(found)
        if inner is None:
            return found if isinstance(found, types.FunctionType) else None
        found = inner
    return None


def _inside(found: Any) -> Any:
    if isinstance(found, functools.partial):
        return found.func
    if isinstance(found, types.MethodType):
        return found.__func__
    if isinstance(found, types.FunctionType):
        return getattr(found, "__wrapped__", None)
    call = seams.found_attribute(type(found), "__call__")
    return call if isinstance(call, types.FunctionType) else None
