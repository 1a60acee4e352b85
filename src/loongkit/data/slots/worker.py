"""The slots of this data worker, for those who make its samples and batches."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import numpy as np
import torch

from loongkit.activation import logs
from loongkit.data.slots import budget
from loongkit.data.slots.arena import Arena

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import numpy.typing as npt

    from loongkit.data.slots.arena import Extent, Watch

#: Smaller storages are packed together on their way, and get memory of their own on arrival: to
#: copy them costs less than to keep account of them, and whoever collects the labels of all
#: batches takes no slot out of use.
SMALL = 64 << 10
#: An arena of less is not worth having.
_LEAST = 4 << 20


class Reservation:
    """One extent with places, one behind the other, for the samples of one batch."""

    __slots__ = ("extent", "joined", "nbytes", "watches")

    def __init__(self, extent: Extent, nbytes: int, count: int) -> None:
        self.extent = extent
        self.nbytes = nbytes
        self.watches: list[Watch | None] = [None] * count
        self.joined: Watch | None = None

    def free_place(self) -> int | None:
        """Return the first place whose array does not exist, or not any more."""
        for place, watch in enumerate(self.watches):
            if watch is None or watch() is None:
                return place
        return None


class WorkerSlots:
    """Hands out memory that the batches of this worker travel in, without another copy.

    The arena is made when it is needed first. ``workers`` share the memory that may be taken.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._arena: Arena | None = None
        self._refused = False
        self._samples = 1
        self._reservations: dict[Any, Reservation | None] = {}

    @property
    def arena(self) -> Arena | None:
        """The arena; None: there is no memory for one."""
        if self._arena is None and not self._refused:
            try:
                size = budget.worker_limit(self._workers)
                if size < _LEAST:
                    raise MemoryError(f"{size} bytes are left for the slots of this data worker")
                self._arena = Arena(size)
            except Exception as error:
                self._refused = True
                logs.debug(f"pytorch: this data worker has no slots: {error!r}")
        return self._arena

    @property
    def has_arena(self) -> bool:
        """Tell whether the arena has been made."""
        return self._arena is not None

    def begin_batch(self, samples: int) -> None:
        """Note that a batch of so many samples is fetched from now on."""
        self._samples = samples
        self._close_reservations()

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """Return an uninitialised contiguous tensor for a batch, in a slot where that pays.

        Small ones are ordinary memory and are packed together on their way. None: there is no
        room, and the caller does what it would do without slots.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes <= SMALL:
            return torch.empty(tuple(shape), dtype=dtype)
        arena = self.arena
        extent = None if arena is None else arena.take(nbytes, sent=False)
        if arena is None or extent is None:
            return None
        flat, _watch = arena.tensor_in(extent, 0, nbytes)
        extent.reserved = False
        return flat.view(dtype).view(tuple(shape))

    def item(self, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any] | None:
        """Return an uninitialised C-contiguous array for one sample of the batch being fetched.

        The first call with a shape and dtype reserves as many places, one behind the other, as the
        batch has samples; each call gets the first place that no array lies in. None: it would be
        small, or there is no room or place left.
        """
        kind = np.dtype(dtype)
        shape = tuple(shape)
        nbytes = math.prod(shape) * kind.itemsize
        if nbytes <= SMALL or kind.hasobject:
            return None
        key = (shape, kind)
        if key not in self._reservations:
            self._reservations[key] = self._reserve(nbytes)
        reservation = self._reservations[key]
        place = None if reservation is None else reservation.free_place()
        if reservation is None or place is None or self._arena is None:
            return None
        flat, watch = self._arena.tensor_in(
            reservation.extent, place * nbytes, nbytes, is_place=True
        )
        reservation.watches[place] = watch
        array: npt.NDArray[Any] = flat.numpy()
        return array.view(kind).reshape(shape)

    def joined(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return the batch of these samples without copying, where they lie side by side.

        They must be, in this order, the places of one reservation from the first on, with one
        shape and dtype. None: they are not, or are a batch already: a second one is a copy.
        """
        if self._arena is None or not tensors:
            return None
        first = tensors[0]
        nbytes = first.numel() * first.element_size()
        reservation = self._reservation_at(first.data_ptr(), nbytes)
        if reservation is None or len(tensors) > len(reservation.watches):
            return None
        if reservation.joined is not None and reservation.joined() is not None:
            return None
        address = self._arena.address + reservation.extent.start
        for place, tensor in enumerate(tensors):
            if (
                tensor.data_ptr() != address + place * nbytes
                or tensor.shape != first.shape
                or tensor.dtype != first.dtype
                or not tensor.is_contiguous()
            ):
                return None
        flat, reservation.joined = self._arena.tensor_in(
            reservation.extent, 0, nbytes * len(tensors)
        )
        return flat.view(first.dtype).view(len(tensors), *first.shape)

    def abandon(self, address: int, nbytes: int) -> None:
        """Never use the extent again that these bytes lie in, if they lie in one."""
        extent = None if self._arena is None else self._arena.extent_at(address, nbytes)
        if extent is not None:
            extent.abandoned = True

    def _reserve(self, nbytes: int) -> Reservation | None:
        arena = self.arena
        extent = None if arena is None else arena.take(nbytes * self._samples, sent=False)
        return None if extent is None else Reservation(extent, nbytes, self._samples)

    def _reservation_at(self, address: int, nbytes: int) -> Reservation | None:
        if self._arena is None:
            return None
        start = address - self._arena.address
        for reservation in self._reservations.values():
            if (
                reservation is not None
                and reservation.extent.start == start
                and reservation.nbytes == nbytes
            ):
                return reservation
        return None

    def _close_reservations(self) -> None:
        for reservation in self._reservations.values():
            if reservation is not None:
                reservation.extent.reserved = False
        self._reservations.clear()

    def _after_fork(self) -> None:
        if self._arena is not None:
            self._arena.abandon_living()


_current: WorkerSlots | None = None


def current() -> WorkerSlots | None:
    """Return this data worker's slots; None in any other process, and where there are none."""
    return _current


def appoint(slots: WorkerSlots) -> None:
    """Make these the slots of this process, and of none that it forks."""
    global _current
    _current = slots
    os.register_at_fork(after_in_parent=slots._after_fork, after_in_child=_dismiss)


def _dismiss() -> None:
    global _current
    _current = None
