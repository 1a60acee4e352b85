"""What torch's fused Adam kernels can and cannot take, read off the tensors themselves."""

from __future__ import annotations

import functools
from itertools import chain, repeat
from operator import getitem
from typing import TYPE_CHECKING

import torch
from torch.utils import _foreach_utils

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Exact types: a subclass (DTensor, FlatParameter, a quantised weight) may mean anything.
PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
#: The devices that torch 2.4 names, for a torch that no longer has the private list.
_DEVICES_OF_TORCH_2_4 = ("cuda", "xpu", "cpu")

# Unbound C methods and getters: mapped over hundreds of tensors at every step.
_dtype = torch.Tensor.dtype.__get__
_is_contiguous = torch.Tensor.is_contiguous
_is_cpu = torch.Tensor.is_cpu.__get__
_stride = torch.Tensor.stride


def supported_devices() -> frozenset[str]:
    """Return the device types that torch's fused optimisers take."""
    listed = getattr(_foreach_utils, "_get_fused_kernels_supported_devices", None)
    return frozenset(_DEVICES_OF_TORCH_2_4 if listed is None else listed())


def are_plain(*lists: Iterable[torch.Tensor]) -> bool:
    """Tell whether every tensor is exactly a Tensor or a Parameter."""
    return PLAIN_TYPES.issuperset(map(type, chain.from_iterable(lists)))


def are_on_cpu(tensors: Iterable[torch.Tensor]) -> bool:
    """Tell whether every tensor lies in host memory."""
    return all(map(_is_cpu, tensors))


def dtypes(tensors: Iterable[torch.Tensor]) -> set[torch.dtype]:
    """Return the element types that occur."""
    return set(map(_dtype, tensors))


def differing_layouts(lists: Sequence[list[torch.Tensor]], exact: bool) -> list[int]:
    """Return the indices at which the lists hold tensors laid out differently, or with holes.

    The kernels walk raw memory. On the CPU they do not look at strides at all: a channels-last
    weight with a row-major gradient is updated with the wrong elements, silently (torch 2.4 to
    2.13). ``exact`` is for accelerators, whose kernels refuse strides that differ even where the
    order in memory does not, along axes of length one (pytorch/pytorch#106951).
    """
    if not exact and all(map(_is_contiguous, chain.from_iterable(lists))):
        return []
    orders = [list(map(_stride, tensors)) for tensors in lists]
    first = orders[0]
    if all(order == first for order in orders[1:]) and all(map(is_dense, lists[0])):
        return []
    return [
        index
        for index, (tensors, strides) in enumerate(
            zip(zip(*lists, strict=True), zip(*orders, strict=True), strict=True)
        )
        if not (
            (not exact and all(map(_is_contiguous, tensors)))
            or (len(set(strides)) == 1 and is_dense(tensors[0]))
        )
    ]


def is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether the tensor's elements fill one block of memory, in any order of the axes."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def pick(lists: Sequence[list[torch.Tensor]], indices: Sequence[int]) -> list[list[torch.Tensor]]:
    """Return the lists reduced to some positions; an empty list (no AMSGrad) stays empty."""
    return [list(map(getitem, repeat(tensors), indices)) if tensors else [] for tensors in lists]


def uniform_batches(lists: list[list[torch.Tensor]]) -> list[list[list[torch.Tensor]]] | None:
    """Return the lists divided by the parameters' device and type, or None where torch refuses.

    It refuses state of another type than its parameter, or on another device (a step count may be
    on the host): the stock step has an error of its own to say of that, or copes.
    """
    try:
        grouped = _foreach_utils._group_tensors_by_device_and_dtype(lists)
    except RuntimeError:
        return None
    return [batch for batch, _indices in grouped.values()]


def are_on(device: torch.device, tensors: Iterable[torch.Tensor]) -> bool:
    """Tell whether every tensor is on the device and of type float32, as the kernels count."""
    return all(each.device == device and each.dtype == torch.float32 for each in tensors)


def count(steps: list[torch.Tensor], by: int) -> None:
    """Add 1 or -1 to every step count in place.

    On the CPU by a plain descent along a gradient of that size: torch's fused optimiser runs over
    a list at the speed of C, ``_foreach_add_`` takes a tenfold time to add one to each scalar.
    """
    if are_on_cpu(steps) and dtypes(steps) == {torch.float32} and _descent_counts():
        _descend(steps, float(-by))
    else:
        torch._foreach_add_(steps, by)


def _descend(steps: list[torch.Tensor], slope: float) -> None:
    gradient = torch.tensor(slope)
    torch._fused_sgd_(
        steps,
        [gradient] * len(steps),
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=1.0,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


@functools.cache
def _descent_counts() -> bool:
    """Try the descent out, so that counting rests on no assumption about a kernel."""
    tried = [torch.tensor(value) for value in (0.0, 7.0, 2.0**24 - 2)]
    wanted = [step.item() + 1 for step in tried]
    try:
        _descend(tried, -1.0)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return [step.item() for step in tried] == wanted


def device_steps(params: Sequence[torch.Tensor], counts: Sequence[float]) -> list[torch.Tensor]:
    """Return the counts as float32 scalars on the parameters' device, one for each parameter.

    ``params`` share one device. Filled there by value, one fill for each distinct count, so that
    the host neither waits nor copies.
    """
    positions: dict[float, list[int]] = {}
    for index, count in enumerate(counts):
        positions.setdefault(count, []).append(index)
    steps: dict[int, torch.Tensor] = {}
    for count, indices in positions.items():
        filled = torch.full((len(indices),), count, dtype=torch.float32, device=params[0].device)
        steps.update(zip(indices, filled.unbind(0), strict=True))
    return [steps[index] for index in range(len(counts))]


def note_modified(params: list[torch.Tensor]) -> None:
    """Tell autograd that the parameters changed, which torch's fused kernels forget to do.

    Without it a second backward pass over the same graph would run on with the new weights and
    give wrong gradients, where the stock step makes it raise.
    """
    increment = torch.autograd.graph.increment_version
    if _takes_lists():
        increment(params)
    else:
        for param in params:
            increment(param)


@functools.cache
def _takes_lists() -> bool:
    """Tell whether this torch bumps the versions of many tensors in one call (2.5 and later)."""
    try:
        torch.autograd.graph.increment_version([torch.empty(0)])
    except (RuntimeError, TypeError):
        return False
    return True
