"""The ``pin_memory`` method that torch's pin thread looks for, for mmcv's DataContainer."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

import torch

from loongkit.activation import logs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from loongkit.data.accelerator import Accelerator


class PinMethod:
    """The ``pin_memory`` of a class; ``pinned`` is what it does.

    ``feature`` is the one that it belongs to, in lower case.
    """

    def __init__(self, accelerator: Accelerator, feature: str) -> None:
        self._accelerator = accelerator
        self._feature = feature
        self._has_failed = False

    def method(self) -> Callable[..., Any]:
        """Return the function to be set as ``pin_memory`` on the class."""
        pinning = self

        # The releases of torch read for this (2.4, 2.9, 2.13) pass no device; vendors' may.
        def pin_memory(self: Any, device: Any = None) -> Any:
            """Return this object with its tensors in page-locked memory."""
            return pinning.pinned(self, device)

        return pin_memory

    def pinned(self, value: Any, device: Any = None) -> Any:
        """Return an object with its tensors pinned, or itself where that can't be."""
        raise NotImplementedError

    def _report(self, error: Exception) -> None:
        """Warn once: where memory is short, it is short for many batches."""
        if self._has_failed:
            return
        self._has_failed = True
        logs.warning(
            f"{self._feature}: a batch could not be copied into page-locked memory and goes on as "
            f"it is ({type(error).__name__}: {error}); this is said once. Where page-locked memory "
            "has run out, use fewer data workers, a smaller prefetch_factor or smaller batches, or "
            f"set LOONGKIT_{self._feature.upper()}=0"
        )


class Pinning(PinMethod):
    """Copies what DataContainers hold into page-locked memory.

    ``mark`` is called where something was pinned.
    """

    def __init__(self, accelerator: Accelerator, mark: Callable[[], None]) -> None:
        super().__init__(accelerator, "data_container")
        self._mark = mark

    def pinned(self, container: Any, device: Any = None) -> Any:
        """Return a shallow copy of a container with its tensors pinned.

        The container itself comes back where there is nothing to pin or nothing to pin for, where
        its data stays on the CPU, and, with a warning, where pinning fails: without us it would
        have gone on unpinned as well. It is never changed.
        """
        if container.cpu_only:
            return container
        try:
            if not self._accelerator.is_available():
                return container
            before = container._data
            data = _Copy(self._accelerator, device).of(before)
            if data is before:
                return container
            clone = copy.copy(container)  # not by its __init__: a subclass may have another one
            clone._data = data
        except Exception as error:
            self._report(error)
            return container
        self._mark()
        return clone


class _Copy:
    """One pass over the data of a container: what occurs twice in it is copied once."""

    def __init__(self, accelerator: Accelerator, device: Any) -> None:
        self._accelerator = accelerator
        self._device = device
        # id -> (value, its copy). The value is kept, so that no other object gets its id.
        self._seen: dict[int, tuple[Any, Any]] = {}

    def of(self, value: Any) -> Any:
        """Return the value with its tensors pinned; the value itself where it holds none."""
        convert = self._converter(value)
        if convert is None:
            return value
        if id(value) not in self._seen:
            self._seen[id(value)] = (value, value)  # as it is, inside of itself
            self._seen[id(value)] = (value, convert(value))
        return self._seen[id(value)][1]

    def _converter(self, value: Any) -> Callable[[Any], Any] | None:
        if isinstance(value, torch.Tensor):
            return self._of_tensor
        if callable(getattr(value, "pin_memory", None)):
            return _of_other
        if isinstance(value, list):
            return self._of_list
        if isinstance(value, tuple):
            return self._of_tuple
        if isinstance(value, Mapping):
            return self._of_mapping
        return None

    def _of_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._accelerator.pin(tensor, self._device) if is_worth_it(tensor) else tensor

    def _of_list(self, value: list[Any]) -> list[Any]:
        items = [self.of(item) for item in value]
        if _are_the_same(items, value):
            return value
        if type(value) is list:
            return items
        clone = copy.copy(value)
        clone[:] = items
        return clone

    def _of_tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        items = tuple(self.of(item) for item in value)
        if _are_the_same(items, value):
            return value
        if type(value) is tuple:
            return items
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)

    def _of_mapping(self, value: Mapping[Any, Any]) -> Mapping[Any, Any]:
        before = dict(value.items())
        items = {key: self.of(item) for key, item in before.items()}
        if _are_the_same(list(items.values()), list(before.values())):
            return value
        if not isinstance(value, MutableMapping):
            return type(value)(items)  # type: ignore[call-arg]
        clone = copy.copy(value)
        clone.update(items)
        return clone


def is_worth_it(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor can be pinned, and stays pinned on its way to the device.

    mmcv copies a tensor that is not contiguous into pageable memory before it goes there. A tensor
    with a gradient would leave its graph. Sparse, quantised and nested ones can't be pinned.
    """
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.requires_grad
        and tensor.numel() > 0
        and tensor.is_contiguous()
    )


def _of_other(value: Any) -> Any:
    return value.pin_memory()


def _are_the_same(items: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(item is other for item, other in zip(items, others, strict=True))
