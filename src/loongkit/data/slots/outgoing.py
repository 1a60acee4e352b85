"""The sending side: a batch leaves the worker with its storages in slots.

Everything about tensors stays torch's business: a batch is pickled by torch's own reducers, in the
thread of the queue that does so anyway. Only the reducer of *storages* is another one, and only
while a batch is being pickled: it puts a storage's bytes into the arena and its place into the
message.

A message is the call ``open_parcel(begin, idx, data, end)``, whose arguments are pickled from left
to right: ``begin`` and ``end`` have side effects where they are pickled, and where they arrive.
"""

from __future__ import annotations

import ctypes
from multiprocessing import reduction
from multiprocessing.queues import Queue
from typing import TYPE_CHECKING

import torch
from torch._utils import ExceptionWrapper
from torch.multiprocessing import reductions
from torch.utils.data._utils.worker import _IterableDatasetStopIteration

from loongkit.data.slots import arrivals, mappings, pickling
from loongkit.data.slots.worker import SMALL

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from loongkit.data.slots.arena import Arena, Extent
    from loongkit.data.slots.worker import WorkerSlots

#: Storages up to this size travel within the message, as long as it fits into the pipe.
_INLINE = 4 << 10
_INLINE_IN_ALL = 32 << 10
#: Others up to SMALL are packed into extents of this size.
_PACK = 256 << 10
#: Messages of small storages alone before an arena is made for them. It costs what about ten of
#: them save, and an epoch may be shorter.
_UNPACKED = 4
#: Packed bytes begin at a cache line.
_LINE = 64

_ORDINARY = "file_descriptor"


class Post:
    """What all parcels of one worker have in common."""

    def __init__(self, slots: WorkerSlots, mark: Callable[[], None]) -> None:
        self.slots = slots
        self.mark = mark
        self._sent_before: dict[int, Any] = {}
        self._clean_up_at = 256
        self._unpacked = 0

    def may_pack(self, first_of_message: bool) -> bool:
        """Tell whether small storages are packed already, or travel as torch sends them."""
        if self.slots.has_arena:
            return True
        self._unpacked += first_of_message
        return self._unpacked > _UNPACKED

    def was_sent_before(self, storage: Any) -> bool:
        """Tell whether this very storage has been sent before, and note that it is.

        torch makes a storage shared memory when it sends it, so that it need not be copied when it
        is sent again: a dataset that keeps its tensors gains by that.
        """
        known = self._sent_before.get(storage._cdata)
        if known is not None and not known.expired():
            return True
        if len(self._sent_before) >= self._clean_up_at:
            living = {key: ref for key, ref in self._sent_before.items() if not ref.expired()}
            self._sent_before = living
            self._clean_up_at = max(256, 2 * len(living))
        self._sent_before[storage._cdata] = reductions.StorageWeakRef(storage)
        return False


class Begin:
    """The first part of a message; where it arrives it becomes the Arrival of the parcel."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self.inline = 0
        self.large = 0
        #: Extents that this message names, by index of the table.
        self.extents: dict[int, Extent] = {}
        self._pack: Extent | None = None
        self._packed = 0
        self._brings_arena = False
        self._has_small = False

    def __reduce__(self) -> tuple[Any, ...]:
        unfinished = pickling.begin(self)
        if unfinished is not None:
            unfinished.cancel()
        return arrivals.Arrival, ()

    def finish(self) -> None:
        """Note that everything up to the end of the message has been pickled."""
        pickling.end()
        arena = self.post.slots.arena
        if self.extents and arena is not None:
            arena.largest = max(arena.largest, self.large)
            self.post.mark()

    def cancel(self) -> None:
        """Take everything back: something could not be pickled, and the message never leaves."""
        arena = self.post.slots.arena
        for extent in self.extents.values():
            assert arena is not None
            arena.take_back(extent)
        self.extents.clear()

    def reduce_storage(self, storage: Any) -> tuple[Any, ...] | None:
        """Return how the receiver gets a storage; None: as torch does it.

        Under torch's lock of the storage: another thread may be about to give it other memory.
        """
        arena = self.post.slots.arena if self.post.slots.has_arena else None
        if not is_ordinary(storage) or (arena is not None and arena.is_unwanted):
            return None
        nbytes, address = storage.nbytes(), storage.data_ptr()
        if nbytes <= _INLINE and self.inline + nbytes <= _INLINE_IN_ALL:
            self.inline += nbytes
            return arrivals.from_bytes, (ctypes.string_at(address, nbytes),)
        if nbytes <= SMALL:
            first, self._has_small = not self._has_small, True
            if not self.post.may_pack(first):
                return None
        arena = self.post.slots.arena
        if arena is None:
            return None
        if nbytes <= SMALL:
            return self._pack_in(arena, address, nbytes)
        return self._ship(arena, storage, address, nbytes)

    def _pack_in(self, arena: Arena, address: int, nbytes: int) -> tuple[Any, ...] | None:
        if self._pack is None or self._packed + nbytes > _PACK:
            self._pack = self._new_extent(arena, _PACK)
            self._packed = 0
        if self._pack is None:
            return None
        offset = self._packed
        arena.copy_in(self._pack, offset, address, nbytes)
        self._packed += -(-nbytes // _LINE) * _LINE
        where = mappings.Place(self._pack.start, self._pack.length, offset, nbytes)
        return arrivals.packed, (self, self._source(arena), self._pack.index, where)

    def _ship(
        self, arena: Arena, storage: Any, address: int, nbytes: int
    ) -> tuple[Any, ...] | None:
        extent = arena.extent_at(address, nbytes)
        offset = 0
        handed_out = extent is not None and extent.owner == storage._cdata
        if extent is not None and handed_out and self._has(arena, extent):
            offset = address - arena.address - extent.start
        else:
            if extent is None and self.post.was_sent_before(storage):
                return None
            extent = self._new_extent(arena, nbytes)
            if extent is None:
                return None
            arena.copy_in(extent, 0, address, nbytes)
        where = mappings.Place(extent.start, extent.length, offset, nbytes)
        return arrivals.shared, (self, self._source(arena), extent.index, where)

    def _has(self, arena: Arena, extent: Extent) -> bool:
        """Name an extent in this message as it is; False: it has to be copied."""
        if extent.index not in self.extents:
            if not arena.claim(extent):
                return False
            self.large += extent.length
            self.extents[extent.index] = extent
        return True

    def _new_extent(self, arena: Arena, nbytes: int) -> Extent | None:
        extent = arena.take(nbytes, sent=True)
        if extent is not None:
            self.large += extent.length
            self.extents[extent.index] = extent
        return extent

    def _source(self, arena: Arena) -> Any:
        """Return what the receiver finds the arena by.

        Until it has it, the first storage of each message brings the descriptor along.
        """
        if self._brings_arena or arena.is_received:
            return arena.key
        self._brings_arena = True
        return arena.key, arena.size, reduction.DupFd(arena.descriptor)


class End:
    """The last part of a message."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin

    def __reduce__(self) -> tuple[Any, ...]:
        self._begin.finish()
        return arrivals.end, (self._begin,)


class Parcel:
    """What is put into the queue in place of ``(idx, data)``, and arrives as that."""

    def __init__(self, post: Post, idx: Any, data: Any) -> None:
        self._post = post
        self._idx = idx
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        begin = Begin(self._post)
        return arrivals.open_parcel, (begin, self._idx, self._data, End(begin))


class Outbox:
    """Stands for the queue of results in the worker; everything but ``put`` is the queue's."""

    def __init__(self, queue: Any, post: Post) -> None:
        self._queue = queue
        self._post = post

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def put(self, item: Any, *args: Any, **kwargs: Any) -> None:
        """Put a batch as a parcel, and anything else as it is."""
        if (
            type(item) is tuple
            and len(item) == 2
            and item[1] is not None
            and not isinstance(item[1], (ExceptionWrapper, _IterableDatasetStopIteration))
            and torch.multiprocessing.get_sharing_strategy() == _ORDINARY
        ):
            item = Parcel(self._post, *item)
        self._queue.put(item, *args, **kwargs)


class Inbox:
    """Stands for the queue of indices in the worker, and tells the slots how long a batch is."""

    def __init__(self, queue: Any, slots: WorkerSlots, batched: bool) -> None:
        self._queue = queue
        self._slots = slots
        self._batched = batched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Get what is to be fetched next."""
        item = self._queue.get(*args, **kwargs)
        if type(item) is tuple and len(item) == 2:
            several = self._batched and isinstance(item[1], (list, tuple))
            self._slots.begin_batch(len(item[1]) if several else 1)
        return item


def is_known_queue(queue: Any) -> bool:
    """Tell whether this queue pickles in a thread of this process, and the receiver unpickles."""
    return type(queue) is Queue


def is_ordinary(storage: Any) -> bool:
    """Tell whether a storage is private memory of this process, or of its arena."""
    return storage.device.type == "cpu" and storage.nbytes() > 0 and not storage.is_shared()
