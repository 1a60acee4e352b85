"""The arenas of workers as the receiving process maps them, and what it holds of them."""

from __future__ import annotations

import _thread
import ctypes
import mmap
import os
import weakref
from typing import TYPE_CHECKING, NamedTuple

import torch

from loongkit.activation import logs
from loongkit.data.slots import budget
from loongkit.data.slots.arena import FREE, HELD, RECEIVED, UNWANTED

if TYPE_CHECKING:
    from typing import Any

#: torch gives memory of this alignment; kernels may round otherwise where it is less.
_ALIGNMENT = 64


class Place(NamedTuple):
    """Where a storage lies: an extent of the arena, and bytes within it."""

    start: int
    length: int
    offset: int
    nbytes: int


class Hold:
    """What this process has of one extent, as one parcel brought it.

    It begins as the parcel's own; each storage in the extent is a further hold on it. The last that
    is released gives the extent back, once: a list's ``pop`` is atomic where ``-= 1`` is not, and
    storages die in any thread.
    """

    __slots__ = ("_further", "index", "length", "mapping", "start")

    def __init__(self, mapping: Mapping, index: int, place: Place) -> None:
        self.mapping = mapping
        self.index = index
        self.start = place.start
        self.length = place.length
        self._further: list[None] = []

    def share(self) -> None:
        """Let it be held once more."""
        self._further.append(None)

    def release(self) -> None:
        """Undo one ``share``, or what it began with."""
        try:
            self._further.pop()
        except IndexError:
            self.mapping.give_back(self)


class Watch(weakref.ref[memoryview]):
    """A weak reference to the memory of a storage, which knows on what it is a hold."""

    __slots__ = ("hold",)

    hold: Hold


class Mapping:
    """The arena of one worker, mapped into this process.

    Where it can't or should not be mapped, storages are read from the file into memory of their
    own. ``inode`` is the file's number, as in /proc/<pid>/maps.
    """

    def __init__(self, key: str, size: int, descriptor: int) -> None:
        self.key = key
        self.process = os.getpid()
        self.holds: dict[int, Hold] = {}
        self._watches: dict[int, Watch] = {}
        self._map: mmap.mmap | None = None
        self._descriptor = -1
        #: True once the worker has ended: what is given back from then on leaves the memory.
        self._orphaned = False
        self._address = 0
        self.inode = os.fstat(descriptor).st_ino
        try:
            if shares_on():
                raise ValueError("the job shares its batches on")
            if budget.addresses_are_limited():
                raise ValueError("there is a limit on address space")
            self._map = mmap.mmap(descriptor, size)
        except (OSError, ValueError) as error:
            logs.debug(f"pytorch: the slots of a data worker are not mapped: {error!r}")
            self._descriptor = os.dup(descriptor)
        else:
            self._view = memoryview(self._map)
            self._address = torch.frombuffer(self._view, dtype=torch.uint8).data_ptr()
            _known.append(weakref.ref(self, _known.remove))
        self._write(RECEIVED, UNWANTED if shares_on() else 1)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def hold(self, index: int, place: Place) -> Hold:
        """Begin to hold an extent."""
        self._write(index, HELD)
        hold = self.holds[index] = Hold(self, index, place)
        return hold

    def storage(self, hold: Hold, place: Place) -> Any:
        """Return the storage at a place; the extent is held as long as it lives."""
        if self._map is None or shares_on():
            return storage_in(self.read(place))
        begin = place.start + place.offset
        part = self._view[begin : begin + place.nbytes]
        watch = Watch(part, self._died)
        watch.hold = hold
        self._watches[id(watch)] = watch
        hold.share()
        return torch.frombuffer(part, dtype=torch.uint8).untyped_storage()

    def hold_at(self, address: int) -> Hold | None:
        """Return what is held of the extent at an address; None: nothing is."""
        start = address - self._address
        if self._map is None or not 0 <= start < len(self._map):
            return None
        for hold in list(self.holds.values()):
            if hold.start <= start < hold.start + hold.length:
                return hold
        return None

    def stop(self) -> None:
        """Tell the worker that its slots are not wanted any more."""
        if os.getpid() == self.process:
            self._write(RECEIVED, UNWANTED)

    def read(self, place: Place) -> memoryview:
        """Copy the bytes at a place into memory of their own."""
        begin = place.start + place.offset
        copy = new_memory(place.nbytes)
        if self._map is not None:
            copy[:] = self._view[begin : begin + place.nbytes]
            return copy
        done = 0
        while done < place.nbytes:
            done += os.preadv(self._descriptor, [copy[done:]], begin + done)
        return copy

    def give_back(self, hold: Hold) -> None:
        """Let the worker use an extent again; in a forked child of this process, do nothing."""
        if os.getpid() != self.process:
            return
        del self.holds[hold.index]
        # All reads of the extent must be over before the worker sees the byte. Where memory is
        # weakly ordered (aarch64) a store may overtake earlier loads, but no release of a lock, and
        # no later acquisition overtakes that release. A lock of its own: this may run in the middle
        # of garbage collection, where waiting for another would be forever.
        barrier = _thread.allocate_lock()
        barrier.acquire()
        barrier.release()
        barrier.acquire()
        self._write(hold.index, FREE)
        if self._orphaned:
            self._remove(hold.start, hold.length)
            if not self.holds:
                orphans.pop(self.key, None)

    def lend(self) -> list[Hold]:
        """Hold once more all that is held, for a child that this process is about to fork."""
        lent = list(self.holds.values())
        for hold in lent:
            hold.share()
        return lent

    def orphan(self) -> None:
        """Give the memory back that nothing here refers to: the worker has ended."""
        self._orphaned = True
        if self._map is None:
            return
        begin = mmap.PAGESIZE
        for hold in sorted(self.holds.values(), key=lambda hold: hold.start):
            self._remove(begin, hold.start - begin)
            begin = hold.start + hold.length
        self._remove(begin, len(self._map) - begin)

    def _died(self, watch: Any) -> None:
        del self._watches[id(watch)]
        watch.hold.release()

    def _write(self, index: int, state: int) -> None:
        if self._map is not None:
            self._view[index] = state
        else:
            os.pwrite(self._descriptor, bytes([state]), index)

    def _remove(self, start: int, length: int) -> None:
        if length > 0 and self._map is not None:
            try:
                self._map.madvise(mmap.MADV_REMOVE, start, length)
            except OSError:
                pass  # it stays until the mapping goes


#: The arenas of ended workers of which something is held.
orphans: dict[str, Mapping] = {}
#: All arenas mapped into this process, also those that a parent has left to it.
_known: list[weakref.ref[Mapping]] = []
#: Memory of storages that lie in no arena, by address.
_private: weakref.WeakValueDictionary[int, memoryview] = weakref.WeakValueDictionary()
#: What is never given back, see ``keep_for_good``.
_kept: list[Hold | memoryview] = []


def keep_for_good(address: int) -> None:
    """Keep the memory of a batch's storage mapped and out of use, if one has this address.

    For a storage that is about to get other memory: an array may still look into this one, and
    nothing would tell of it. From the first time on nothing arrives that might need it: batches are
    in shared memory of torch's, which is never exchanged.
    """
    found = _hold_at(address) or _private.get(address)
    if found is None:
        return
    if isinstance(found, Hold):
        found.share()
    first = not _kept
    _kept.append(found)
    if first:
        logs.debug("pytorch: a batch is shared on; from now on its workers go without slots")
        for mapping in _all_known():
            mapping.stop()


def shares_on() -> bool:
    """Tell whether this process, or that which forked it, has had to keep memory for good."""
    return bool(_kept)


def new_memory(nbytes: int) -> memoryview:
    """Return bytes that are aligned as torch's own are."""
    memory = bytearray(nbytes + _ALIGNMENT - 1)
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _ALIGNMENT
    return memoryview(memory)[begin : begin + nbytes]


def storage_in(memory: memoryview) -> Any:
    """Return a storage that is this memory; where batches are shared on, a shared copy."""
    storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    if shares_on():
        try:
            return torch.UntypedStorage._new_shared(len(memory)).copy_(storage)
        except RuntimeError as error:
            logs.debug(f"pytorch: no shared memory for a batch that may be shared on: {error!r}")
    _private[storage.data_ptr()] = memory
    return storage


def _all_known() -> list[Mapping]:
    return [mapping for ref in tuple(_known) if (mapping := ref()) is not None]


def _hold_at(address: int) -> Hold | None:
    holds = (mapping.hold_at(address) for mapping in _all_known())
    return next((hold for hold in holds if hold is not None), None)
