"""Lets the scatter of mmcv 1.x use the copies that were made ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from loongkit.data.leaves import Leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from loongkit.data.prefetch import Prefetch


class ScatterLeaves(Leaves):
    """Yields the tensors of a batch that mmcv's scatter copies to the device.

    To be made with mmcv's class DataContainer.
    """

    def of_object(self, value: Any) -> Iterator[torch.Tensor]:
        """Yield the tensors in a container, unless it stays on the CPU."""
        if not value.cpu_only:
            yield from self(value.data)


class ScatterFromStash:
    """Stands in for the two functions through which mmcv's scatter copies tensors."""

    def __init__(self, prefetch: Prefetch) -> None:
        self._prefetch = prefetch

    def forward(self, original: Callable[..., Any], target_gpus: Any, input: Any) -> Any:
        """Stand in for mmcv.parallel._functions.Scatter.forward, the way of DataContainers."""
        device = self._device_of(target_gpus)
        if device is None or not _is_nest(input):
            return original(target_gpus, input)
        found = {
            id(tensor): copy
            for tensor in _tensors_of(input)
            if (copy := self._prefetch.take(tensor, device)) is not None
        }
        if not found:
            return original(target_gpus, input)

        def replaced(value: Any) -> Any:
            if isinstance(value, list):
                return [replaced(item) for item in value]
            # Once: stock makes two copies of a tensor that occurs twice.
            copy = found.pop(id(value), None)
            return original(target_gpus, value)[0] if copy is None else copy

        outputs = replaced(input)
        return tuple(outputs) if isinstance(outputs, list) else (outputs,)

    def torch_scatter(self, stock: Any) -> type:
        """Return a class to stand in for torch's Scatter, mmcv's way of tensors outside of those.

        Args:
            stock: torch.nn.parallel._functions.Scatter.

        """
        scatter = self

        class Scatter(stock):  # type: ignore[misc]
            """torch's, but for a tensor that one device alone gets and has already."""

            @staticmethod
            def apply(target_gpus: Any, chunk_sizes: Any, dim: Any, *inputs: Any) -> Any:
                found = scatter._whole(target_gpus, chunk_sizes, dim, inputs)
                if found is not None:
                    return (found,)
                return stock.apply(target_gpus, chunk_sizes, dim, *inputs)

        Scatter.__qualname__, Scatter.__module__ = stock.__qualname__, stock.__module__
        return Scatter

    def _whole(self, target_gpus: Any, chunk_sizes: Any, dim: Any, inputs: Any) -> Any:
        device = self._device_of(target_gpus)
        if device is None or chunk_sizes is not None or len(inputs) != 1:
            return None
        tensor = inputs[0]
        if not isinstance(tensor, torch.Tensor) or not -tensor.dim() <= dim < tensor.dim():
            return None  # the original has an error to raise
        return self._prefetch.take(tensor, device)

    def _device_of(self, target_gpus: Any) -> torch.device | None:
        """Return the one device that gets all; None for the CPU (-1) and for several devices."""
        if self._prefetch.is_idle or not isinstance(target_gpus, (list, tuple)):
            return None
        if len(target_gpus) != 1:
            return None
        target = target_gpus[0]
        if isinstance(target, torch.device):
            return None if target.type == "cpu" else target
        if not isinstance(target, int) or target < 0:
            return None
        return self._prefetch.accelerator.device_of_index(target)


def _is_nest(value: Any) -> bool:
    """Tell whether a value holds what mmcv scatters, tensors in lists, and nothing else."""
    if isinstance(value, list):
        return all(map(_is_nest, value))
    return isinstance(value, torch.Tensor)


def _tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, list):
        for item in value:
            yield from _tensors_of(item)
    else:
        yield value
