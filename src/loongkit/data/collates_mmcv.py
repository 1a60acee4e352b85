"""mmcv 1.x's ``collate`` without its second copy, and straight into shared memory.

mmcv pads every stacked sample, which copies it even where there is nothing to pad, and has the
padded ones stacked. Here samples of one shape are stacked at once, and samples of several shapes
are copied once into a batch of the largest shape whose rest is filled. Whatever mmcv would reject,
or might treat in another way, is left to mmcv.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from loongkit.activation import logs
from loongkit.data import collates
from loongkit.images.fingerprint import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from loongkit.activation.patching import Patcher

#: The function as in mmcv 1.1.3 to 1.7.2.
KNOWN = "e474df8ac3656fdc"

#: In the main process, padding a smaller batch piece by piece costs more than it saves.
_LEAST_VALUES = 1 << 21

#: Integers up to here are the same as double, which is what torch's pad makes of its value.
_MOST_EXACT = 1 << 53


class ContainerCollate:
    """Stands in for ``mmcv.parallel.collate.collate``.

    ``module`` is the module that defines it, ``torch_collate`` torch's module of default_collate;
    ``current_slots`` returns this data worker's slots or None, ``mark`` notes a copy less.
    """

    def __init__(
        self,
        module: Any,
        torch_collate: Any,
        current_slots: Callable[[], Any],
        mark: Callable[[], None],
    ) -> None:
        self._module = module
        self._torch_collate = torch_collate
        self._current_slots = current_slots
        self._mark = mark

    def collate(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the batch; mmcv's function calls itself, and so this, for what is nested."""
        try:
            if self._concerns(args[0]):
                collated = self._collated(*args, **kwargs)
                if collated is not None:
                    self._mark()
                    return collated
        except Exception as error:  # the original raises what is to be raised
            logs.debug(f"pytorch: a batch is left to mmcv's collate: {error!r}")
        return original(*args, **kwargs)

    def _concerns(self, batch: Any) -> bool:
        """Tell whether these are containers of samples to be stacked."""
        if type(batch) not in (list, tuple) or type(batch[0]) is not self._module.DataContainer:
            return False
        return batch[0].stack and not batch[0].cpu_only

    def _collated(self, batch: Any, samples_per_gpu: Any = 1) -> Any:
        """Return the container of stacked samples, or None where mmcv's own code is to run."""
        container, first = self._module.DataContainer, batch[0]
        if type(samples_per_gpu) is not int or samples_per_gpu < 1:
            return None
        if not self._is_stock() or any(type(sample) is not container for sample in batch):
            return None
        stacked = []
        for start in range(0, len(batch), samples_per_gpu):
            group = self._stacked(batch[start : start + samples_per_gpu])
            if group is None:
                return None
            stacked.append(group)
        return container(stacked, first.stack, first.padding_value)

    def _is_stock(self) -> bool:
        """Tell whether torch's own functions would stack the samples."""
        found = self._torch_collate
        return (
            self._module.default_collate is found.default_collate
            and found.default_collate_fn_map.get(torch.Tensor) is found.collate_tensor_fn
        )

    def _stacked(self, samples: Sequence[Any]) -> torch.Tensor | None:
        """Return the samples of one device, padded to one shape and stacked."""
        tensors = [sample.data for sample in samples]
        shape = tensors[0].shape
        in_worker = torch.utils.data.get_worker_info() is not None
        slots = self._current_slots() if in_worker else None
        equal = all(tensor.shape == shape for tensor in tensors)
        if not equal and not self._is_worth_padding(tensors, in_worker, slots):
            return None
        pad_dims = samples[0].pad_dims
        if type(pad_dims) is not int or not _can_be_padded(tensors, pad_dims):
            return None
        if not in_worker and not all(map(_is_laid_out_plainly, tensors)):
            return None  # only a worker's batch has a layout of its own
        if equal:
            found: torch.Tensor = self._module.default_collate(tensors)
            return found
        return _padded(samples, slots)

    @staticmethod
    def _is_worth_padding(tensors: Sequence[Any], in_worker: bool, slots: Any) -> bool:
        if in_worker:
            return slots is not None
        return bool(sum(tensor.numel() for tensor in tensors) >= _LEAST_VALUES)


def _padded(samples: Sequence[Any], slots: Any) -> torch.Tensor | None:
    """Return a batch with each sample in the first corner of its place, in a slot if there are."""
    dtype = samples[0].data.dtype
    if not all(_is_exact(sample.padding_value, dtype) for sample in samples):
        return None
    shape = _largest_shape([sample.data for sample in samples])
    out: torch.Tensor | None
    out = torch.empty(shape, dtype=dtype) if slots is None else slots.tensor(shape, dtype)
    if out is not None:
        for place, sample in zip(out, samples, strict=True):
            _fill(place, sample.data, float(sample.padding_value))
    return out


def _can_be_padded(tensors: Sequence[Any], pad_dims: int) -> bool:
    """Tell whether these are plain tensors that differ at most in their last dimensions."""
    first = tensors[0]
    if not collates.is_plain(first) or not first.numel() or not 0 < pad_dims < first.dim():
        return False
    leading = first.shape[:-pad_dims]
    for tensor in tensors:
        if not collates.is_plain(tensor) or tensor.dtype is not first.dtype or not tensor.numel():
            return False
        if tensor.dim() != first.dim() or tensor.shape[:-pad_dims] != leading:
            return False
    return True


def _is_laid_out_plainly(tensor: torch.Tensor) -> bool:
    """Tell whether the strides are those of a new tensor, in dimensions of size 1 too."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != expected:
            return False
        expected *= size
    return True


def _is_exact(value: Any, dtype: torch.dtype) -> bool:
    """Tell whether a padding value comes out of torch's pad as it went in."""
    if type(value) not in (int, float) or (type(value) is int and abs(value) > _MOST_EXACT):
        return False
    if dtype.is_floating_point or dtype.is_complex:
        return True
    if dtype is torch.bool:
        return value in (0, 1)
    limits = torch.iinfo(dtype)
    return bool(limits.min <= value <= limits.max and value == int(value))


def _largest_shape(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return the shape of the batch: the largest size in each dimension."""
    sizes = zip(*(tensor.shape for tensor in tensors), strict=True)
    return len(tensors), *map(max, sizes)


def _fill(place: torch.Tensor, tensor: torch.Tensor, value: float) -> None:
    """Copy a tensor into the first corner of its place, and the value into the rest."""
    for dimension, size in enumerate(tensor.shape):
        rest = place.shape[dimension] - size
        if rest:
            place.narrow(dimension, size, rest).fill_(value)
            place = place.narrow(dimension, 0, size)
    place.copy_(tensor)


def install(
    module: Any, patcher: Patcher, torch_collate: Any, current_slots: Callable[[], Any]
) -> None:
    """Put it in the place of mmcv's, where that is the function that is known."""
    function = getattr(module, "collate", None)
    if fingerprint_of(function) != KNOWN:
        logs.debug("pytorch: this mmcv's collate is not one that is known and is left alone")
        return
    replacement = ContainerCollate(module, torch_collate, current_slots, patcher.mark)
    patcher.wrap(module, "collate", replacement.collate)


def fingerprint_of(function: Any) -> str | None:
    """Return a function's fingerprint; None where it is no plain function with a source."""
    return fingerprint(function) if hasattr(function, "__code__") else None
