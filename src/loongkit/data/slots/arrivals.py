"""The receiving side: storages that lie in the arena of a worker, and when they are given back.

The names in messages are those of this module; it is imported where a message is unpickled, which
is in the process that trains, in its main thread or in the one that pins memory.
"""

from __future__ import annotations

import _thread
import mmap
import os
import weakref
from typing import TYPE_CHECKING, NamedTuple

import torch

from loongkit.activation import logs
from loongkit.data.slots import lending
from loongkit.data.slots.arena import FREE, HELD, RECEIVED

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


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

    Where it can't be mapped, storages are read from the file into memory of their own.
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
        try:
            self._map = mmap.mmap(descriptor, size)
        except (OSError, ValueError) as error:
            logs.debug(f"pytorch: the slots of a data worker can't be mapped: {error!r}")
            self._descriptor = os.dup(descriptor)
        else:
            self._view = memoryview(self._map)
        self._write(RECEIVED, 1)

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
        if self._map is None:
            return from_bytes(self.read(place))
        begin = place.start + place.offset
        part = self._view[begin : begin + place.nbytes]
        watch = Watch(part, self._died)
        watch.hold = hold
        self._watches[id(watch)] = watch
        hold.share()
        return torch.frombuffer(part, dtype=torch.uint8).untyped_storage()

    def read(self, place: Place) -> bytearray:
        """Copy the bytes at a place."""
        begin = place.start + place.offset
        if self._map is not None:
            return bytearray(self._view[begin : begin + place.nbytes])
        copy = bytearray(place.nbytes)
        done = 0
        while done < place.nbytes:
            done += os.preadv(self._descriptor, [memoryview(copy)[done:]], begin + done)
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
                _orphans.pop(self.key, None)

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


class Arrival:
    """One parcel while it is being unpickled: what it holds, until its end."""

    def __init__(self) -> None:
        self.holds: dict[int, Hold] = {}

    def hold(self, source: Any, index: int, place: Place) -> Hold:
        """Hold an extent until the end of the parcel."""
        found = self.holds.get(index)
        if found is None:
            found = self.holds[index] = _mapping(source).hold(index, place)
        return found


#: The arenas of this process's workers, and those of ended workers of which something is held.
_mappings: dict[str, Mapping] = {}
_orphans: dict[str, Mapping] = {}


def _mapping(source: Any) -> Mapping:
    """Return the arena of a message, mapping it when the message brings its descriptor.

    Raises:
        RuntimeError: the arena was dropped, since its worker has ended.

    """
    key = source if isinstance(source, str) else source[0]
    found = _mappings.get(key)
    if found is not None:
        return found
    if isinstance(source, str):
        raise RuntimeError(
            "a batch lies in shared memory of a data worker that has ended and is forgotten; "
            "start a new iterator over the DataLoader, or set LOONGKIT_PYTORCH=0"
        )
    _key, size, duplicate = source
    forget_the_dead()
    descriptor = duplicate.detach()
    try:
        found = _mappings[key] = Mapping(key, size, descriptor)
    finally:
        os.close(descriptor)
    lending.watch_forks(_mappings, _orphans)
    return found


def from_bytes(data: bytes | bytearray) -> Any:
    """Return a storage with these bytes, in memory of its own."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).untyped_storage()


def packed(arrival: Arrival, source: Any, index: int, place: Place) -> Any:
    """Return a storage in memory of its own, with the bytes at a place."""
    hold = arrival.hold(source, index, place)
    return torch.frombuffer(hold.mapping.read(place), dtype=torch.uint8).untyped_storage()


def shared(arrival: Arrival, source: Any, index: int, place: Place) -> Any:
    """Return the storage that lies at a place of the arena."""
    hold = arrival.hold(source, index, place)
    return hold.mapping.storage(hold, place)


def end(arrival: Arrival) -> None:
    """End a parcel: from here on its storages alone hold their extents."""
    for hold in arrival.holds.values():
        hold.release()
    lending.collect()


def open_parcel(_arrival: Arrival, idx: Any, data: Any, _end: None) -> tuple[Any, Any]:
    """Return what the worker put into the queue."""
    return idx, data


def forget(processes: Iterable[int]) -> None:
    """Drop the arenas of these workers, which have ended."""
    ended = {str(process) for process in processes}
    for key in list(_mappings):
        if key.partition("-")[0] in ended:
            _drop(key)
    lending.collect()


def forget_the_dead() -> None:
    """Drop the arenas of workers that are no more, however they ended."""
    for key in list(_mappings):
        if not os.path.exists(f"/proc/{key.partition('-')[0]}"):
            _drop(key)


def _drop(key: str) -> None:
    mapping = _mappings.pop(key, None)
    if mapping is not None:
        if mapping.holds:
            _orphans[key] = mapping
        mapping.orphan()
