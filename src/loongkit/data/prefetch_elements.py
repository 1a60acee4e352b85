"""The ``pin_memory`` method that torch's pin thread looks for, for mmengine's data elements."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from loongkit.data.pinning import PinMethod, is_worth_it

if TYPE_CHECKING:
    from typing import Any

    from loongkit.data.accelerator import Accelerator


class ElementPinning(PinMethod):
    """Copies the tensors that BaseDataElements hold into page-locked memory."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__(accelerator, "mmengine_data_prefetch")

    def pinned(self, element: Any, device: Any = None) -> Any:
        """Return a shallow copy of an element with its tensors pinned.

        The element itself comes back where there is nothing to pin or nothing to pin for and,
        with a warning, where pinning fails. It is never changed.
        """
        try:
            if not self._accelerator.is_available():
                return element
            fields = self._pinned_fields(element, device)
            if not fields:
                return element
            clone = copy.copy(element)
            for name in ("_metainfo_fields", "_data_fields"):
                vars(clone)[name] = set(vars(element)[name])
            vars(clone).update(fields)
        except Exception as error:
            self._report(error)
            return element
        return clone

    def _pinned_fields(self, element: Any, device: Any) -> dict[str, Any]:
        """Return the fields that pinning replaces, by the name under which the element has them."""
        found = {}
        for name in element._data_fields:
            value = vars(element).get(name)
            pinned = self._pinned_field(value, device)
            if pinned is not value:
                found[name] = pinned
        return found

    def _pinned_field(self, value: Any, device: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._accelerator.pin(value, device) if is_worth_it(value) else value
        if callable(getattr(value, "pin_memory", None)):
            return value.pin_memory()
        if not hasattr(value, "to") or not hasattr(value, "__dict__"):
            return value
        # Boxes and the like, which hold a tensor and hand ``to`` on to it.
        tensors = {
            name: self._accelerator.pin(item, device)
            for name, item in vars(value).items()
            if isinstance(item, torch.Tensor) and is_worth_it(item)
        }
        if not tensors:
            return value
        clone = copy.copy(value)
        vars(clone).update(tensors)
        return clone
