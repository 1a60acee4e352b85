"""Lets mmengine's data preprocessors use the copies that were made ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.overrides import TorchFunctionMode

from loongkit.data.leaves import Leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from loongkit.data.prefetch import Prefetch

_TO = torch.Tensor.to


class CastLeaves(Leaves):
    """Yields the tensors of a batch that ``BaseDataPreprocessor.cast_data`` copies.

    To be made with mmengine's class BaseDataElement.
    """

    def of_object(self, value: Any) -> Iterator[torch.Tensor]:
        """Yield the tensors among an element's data."""
        for field in value.values():
            if isinstance(field, (torch.Tensor, self.kind)):
                yield from self(field)
            elif hasattr(field, "to") and hasattr(field, "__dict__"):
                # Boxes and the like, which hold a tensor and hand ``to`` on to it.
                yield from (item for item in vars(field).values() if isinstance(item, torch.Tensor))


class CastFromStash:
    """Stands in for ``BaseDataPreprocessor.cast_data``, which calls itself for each item.

    Args:
        prefetch: where the copies are.
        element: mmengine's class BaseDataElement.

    """

    def __init__(self, prefetch: Prefetch, element: type) -> None:
        self._prefetch = prefetch
        self._element = element

    def cast_data(self, original: Callable[..., Any], preprocessor: Any, data: Any) -> Any:
        """Return a tensor's copy where there is one; let an element's ``to`` find those of its own.

        Elements are still copied by their own method, so that subclasses, metas and fields that
        are no tensors come out as ever.
        """
        if torch.compiler.is_compiling() or self._prefetch.is_idle:
            return original(preprocessor, data)
        device = preprocessor.device
        if isinstance(data, torch.Tensor) and isinstance(device, torch.device):
            found = self._prefetch.take(data, device)
            return original(preprocessor, data) if found is None else found
        if isinstance(data, self._element):
            with _ToFromStash(self._prefetch):
                return original(preprocessor, data)
        return original(preprocessor, data)


class _ToFromStash(TorchFunctionMode):  # type: ignore[misc]
    """While it is on, ``tensor.to(device)`` returns the copy made ahead where there is one."""

    def __init__(self, prefetch: Prefetch) -> None:
        super().__init__()
        self._prefetch = prefetch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _TO:
            device = _device_asked_for(args, kwargs)
            found = None if device is None else self._prefetch.take(args[0], device)
            if found is not None:
                return found
        return func(*args, **kwargs)


def _device_asked_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """Return the device of ``tensor.to(device, non_blocking=…)``; None where more is asked for."""
    if len(args) != 2 or not kwargs.keys() <= {"non_blocking"}:
        return None
    device = args[1]
    if isinstance(device, str):
        device = torch.device(device)
    return device if isinstance(device, torch.device) else None
