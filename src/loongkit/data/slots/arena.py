"""The shared memory of one data worker: an anonymous file, and who uses which part of it.

The file (a memfd) begins with a table of one byte for each extent. The worker sets a byte to SENT
before a message that names the extent leaves; the process that gets the message sets it to HELD,
and to FREE once nothing there refers to the extent any more. All other bookkeeping is the worker's
own. There is no lock between the processes: each value is written by one side only, at a time when
the other side does not write.
"""

from __future__ import annotations

import bisect
import collections
import ctypes
import mmap
import os
import threading
import weakref
from typing import TYPE_CHECKING

import torch

from loongkit.activation import logs
from loongkit.data.slots.extents import GRAIN, Extents

if TYPE_CHECKING:
    from typing import Any

FILE_NAME = "loongkit-slots"

#: Values of a byte of the table.
FREE, SENT, HELD = 0, 1, 2
#: Extents at a time: one byte each, in the file's first page.
MOST_EXTENTS = GRAIN - 1
#: The page's last byte: 1 once the receiver has the arena, UNWANTED once it wants no more of it.
RECEIVED = MOST_EXTENTS
UNWANTED = 2

#: How many times the largest batch the receiver may hold before it gets fresh memory, as torch
#: would give it. Enough for batches that wait out of order, for a pin thread and for those in use;
#: whoever keeps more than that collects batches, and reuse gains nothing then.
_HELD_BATCHES = 6
_HELD_AT_LEAST = 16 << 20


#: The kernel maps up to 64 KB around a page that is read first, aligned to as much.
_FAULT_AROUND = 64 << 10
_ZEROS = bytes(256 << 10)


class Extent:
    """A range of an arena: ``start`` and ``length`` in bytes, and its byte of the table.

    ``alive`` counts the storages of this process that lie in the range, ``places`` those among
    them that were handed out for single samples; while it is ``reserved`` further ones may come.
    ``abandoned``: a forked child of this worker may look into it, or something that nothing tells
    of. ``owner`` names the one storage that was handed out for all of it and may travel as it is;
    another one over the same memory (made by way of an array) is a copy where it arrives.
    """

    __slots__ = ("abandoned", "alive", "index", "length", "owner", "places", "reserved", "start")

    def __init__(self, start: int, length: int, index: int) -> None:
        self.start = start
        self.length = length
        self.index = index
        self.alive = 0
        self.reserved = False
        self.abandoned = False
        self.owner = 0
        self.places = 0


class Watch(weakref.ref[memoryview]):
    """A weak reference that knows what it is about."""

    __slots__ = ("about", "is_place")

    about: Any
    is_place: bool


class Arena:
    """The memory of this worker. ``size`` counts the table's page. Used by two threads.

    Raises:
        OSError: there is no memfd, the size is over a limit of the process, or can't be mapped.

    """

    def __init__(self, size: int) -> None:
        self.size = size // GRAIN * GRAIN
        self.descriptor = os.memfd_create(FILE_NAME, os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        os.ftruncate(self.descriptor, self.size)
        self.view = memoryview(mmap.mmap(self.descriptor, self.size))
        self.address = torch.frombuffer(self.view, dtype=torch.uint8).data_ptr()
        #: What the receiver knows this memory by.
        self.key = f"{os.getpid()}-{os.urandom(8).hex()}"
        #: The bytes of the largest batch so far.
        self.largest = 0
        self._lock = threading.Lock()
        self._ranges = Extents(GRAIN, self.size)
        self._extents: list[Extent] = []  # in the order of their starts
        self._populated = GRAIN
        self._indices = list(range(MOST_EXTENTS - 1, -1, -1))
        self._watches: dict[int, Watch] = {}
        # Filled by weak references, which may die in any thread, in the middle of a line here.
        self._deaths: collections.deque[Watch] = collections.deque()

    def take(self, nbytes: int, sent: bool) -> Extent | None:
        """Return a free extent, SENT or else ``reserved``.

        None: there is no room, or the receiver keeps too much.
        """
        if self.is_unwanted:
            return None
        with self._lock:
            held = self._sweep()
            if held > max(_HELD_AT_LEAST, _HELD_BATCHES * max(self.largest, nbytes)):
                return None
            found = self._ranges.take(nbytes) if self._indices else None
            if found is None:
                return None
            if not self._populate(sum(found)):
                self._ranges.give_back(*found)
                return None
            extent = Extent(*found, self._indices.pop())
            extent.reserved = not sent
            if sent:
                self.view[extent.index] = SENT
            bisect.insort(self._extents, extent, key=_start_of)
            return extent

    @property
    def is_received(self) -> bool:
        """True once the receiver has opened the arena, and its name is enough in messages."""
        return self.view[RECEIVED] != 0

    @property
    def is_unwanted(self) -> bool:
        """True once the receiver shares batches on, and storages travel as torch sends them."""
        return self.view[RECEIVED] == UNWANTED

    def take_back(self, extent: Extent) -> None:
        """Make an extent FREE whose message never left."""
        self.view[extent.index] = FREE

    def tensor_in(
        self, extent: Extent, offset: int, nbytes: int, is_place: bool = False
    ) -> tuple[torch.Tensor, Watch]:
        """Return bytes of an extent as a uint8 tensor, and a watch that dies with its storage.

        ``is_place``: it is for one sample of several.
        """
        start = extent.start + offset
        part = self.view[start : start + nbytes]
        watch = Watch(part, self._died)
        watch.about, watch.is_place = extent, is_place
        with self._lock:
            self._watches[id(watch)] = watch
            extent.alive += 1
            extent.places += is_place
        flat = torch.frombuffer(part, dtype=torch.uint8)
        if not is_place:
            extent.owner = flat.untyped_storage()._cdata
        return flat, watch

    def extent_at(self, address: int, nbytes: int) -> Extent | None:
        """Return the extent that these bytes lie in; None: they are not ours, or span several."""
        start = address - self.address
        if not 0 <= start < self.size:
            return None
        with self._lock:
            place = bisect.bisect(self._extents, start, key=_start_of) - 1
            if place < 0:
                return None
            extent = self._extents[place]
            return extent if start + nbytes <= extent.start + extent.length else None

    def claim(self, extent: Extent) -> bool:
        """Mark an extent SENT, as it is; False: it has to be copied.

        That is so where the receiver has it already, and where this worker keeps a sample that lies
        in the memory of its batch: it must not see what the receiver does to the batch.
        """
        with self._lock:
            self._count_deaths()
            sample_kept = 0 < extent.places < extent.alive
            if sample_kept or extent.abandoned or self.view[extent.index] != FREE:
                return False
            self.view[extent.index] = SENT
            return True

    def copy_in(self, extent: Extent, offset: int, address: int, nbytes: int) -> None:
        """Copy bytes from an address into an extent, without Python's lock."""
        ctypes.memmove(self.address + extent.start + offset, address, nbytes)

    def abandon_living(self) -> None:
        """Never use again what objects of this process look into: a forked child has them too."""
        for extent in list(self._extents):
            if extent.alive:
                extent.abandoned = True

    def _populate(self, end: int) -> bool:
        """Have the kernel allocate all pages up to ``end``; False: it has none.

        By writing to the file, without a fault for each page. Reading one byte of each 64 KB then
        maps them all: a read fault maps the pages around it too, and in a shared mapping they may
        be written to at once. (Pages of posix_fallocate would not do, they are not zeroed yet.)
        """
        try:
            while self._populated < end:
                start, length = self._populated, min(len(_ZEROS), end - self._populated)
                if os.pwrite(self.descriptor, _ZEROS[:length], start) < length:
                    raise OSError("a write was cut short")
                self.view[start : start + length : _FAULT_AROUND].tobytes()
                self._populated = start + length
        except OSError as error:
            logs.debug(f"pytorch: no more memory for the slots of a data worker: {error!r}")
            return False
        return True

    def _died(self, watch: Any) -> None:
        del self._watches[id(watch)]
        self._deaths.append(watch)

    def _count_deaths(self) -> None:
        while self._deaths:
            watch = self._deaths.popleft()
            watch.about.alive -= 1
            watch.about.places -= watch.is_place

    def _sweep(self) -> int:
        """Free the extents that nobody uses any more; return the bytes that are held for long."""
        self._count_deaths()
        held = 0
        kept = []
        for extent in self._extents:
            state = self.view[extent.index]
            if state == FREE and not (extent.alive or extent.reserved or extent.abandoned):
                self._ranges.give_back(extent.start, extent.length)
                self._indices.append(extent.index)
                continue
            kept.append(extent)
            if state == HELD or extent.abandoned:
                held += extent.length
        self._extents = kept
        return held


def _start_of(extent: Extent) -> int:
    return extent.start
