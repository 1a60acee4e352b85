"""Collates a worker's batches straight into the shared memory that they travel in.

torch's own function stacks the samples of a batch into a new shared segment. Here they are stacked
into a slot that is used again and again; where the samples have been laid into one slot side by
side by whoever made them, that is the batch already. Every other case is torch's.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from loongkit.activation import logs, patching, seams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from loongkit.activation.patching import Patcher

#: dtypes that all operations used here and in mmcv's collate have in every supported torch.
DTYPES = frozenset(
    {
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    }
)


def is_plain(tensor: Any) -> bool:
    """Tell whether this is dense CPU memory and no more: no subclass, gradient or lazy bit."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.dtype in DTYPES
        and not tensor.requires_grad
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def are_stackable(tensors: Sequence[Any]) -> bool:
    """Tell whether these are plain tensors of one shape and dtype."""
    first = tensors[0]
    if not is_plain(first):
        return False
    shape, dtype = first.shape, first.dtype
    return all(
        is_plain(tensor) and tensor.dtype is dtype and tensor.shape == shape for tensor in tensors
    )


class TensorCollate:
    """Stands in for torch's ``collate_tensor_fn``, in data workers that have slots.

    ``current_slots`` returns this process's slots or None. That a batch lies in one is no effect
    yet: who sends it notes that it travelled there.
    """

    def __init__(self, current_slots: Callable[[], Any]) -> None:
        self._current_slots = current_slots
        self._joined: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()

    def collate(
        self, original: Callable[..., Any], batch: Any, *, collate_fn_map: Any = None
    ) -> Any:
        """Return the samples of a batch stacked along a new first dimension."""
        slots = self._current_slots()
        if slots is not None:
            try:
                stacked = self._stacked(slots, batch)
            except Exception as error:
                logs.debug(f"pytorch: a batch is left to torch's collate: {error!r}")
            else:
                if stacked is not None:
                    return stacked
        return original(batch, collate_fn_map=collate_fn_map)

    def _stacked(self, slots: Any, batch: Any) -> torch.Tensor | None:
        if type(batch) not in (list, tuple) or not are_stackable(batch):
            return None
        first = batch[0]
        # Under a second key the same samples are a second batch, which must not share its memory.
        if first.data_ptr() not in self._joined:
            joined: torch.Tensor | None = slots.joined(batch)
            if joined is not None:
                self._joined[first.data_ptr()] = joined
                return joined
        out: torch.Tensor | None = slots.tensor((len(batch), *first.shape), first.dtype)
        return None if out is None else torch.stack(batch, 0, out=out)


def install(module: Any, patcher: Patcher, current_slots: Callable[[], Any]) -> None:
    """Put the collate in the place of torch's in ``torch.utils.data._utils.collate``.

    That place is the entry for tensors in ``default_collate_fn_map``. The module's function is
    replaced along with it, so that partials of ``collate`` with a copy of that map stay picklable.
    """

    def like(batch: Any, *, collate_fn_map: Any = None) -> None: ...

    functions: Any = getattr(module, "default_collate_fn_map", None)
    original: Any = seams.raw_attribute(module, "collate_tensor_fn")
    known = callable(original) and isinstance(functions, dict)
    if not known or functions.get(torch.Tensor) is not original:
        logs.debug("pytorch: default_collate has another function for tensors and is left alone")
        return
    difference = patching.parameter_difference(original, like)
    if difference:
        logs.debug(f"pytorch: default_collate is left alone: collate_tensor_fn {difference}")
        return

    def through_module(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return module.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)

    # For the moment: the patcher would report the map as a place that it cannot reach.
    functions[torch.Tensor] = through_module
    try:
        patcher.wrap(module, "collate_tensor_fn", TensorCollate(current_slots).collate)
    finally:
        functions[torch.Tensor] = replacement = module.collate_tensor_fn
    patcher.on_undo(_entry_back(functions, replacement, original))


def _entry_back(functions: dict[Any, Any], ours: Any, original: Any) -> Callable[[], None]:
    # Not within install: its cell would count as a place that holds torch's function.
    def restore() -> None:
        if functions.get(torch.Tensor) is ours:
            functions[torch.Tensor] = original

    return restore
