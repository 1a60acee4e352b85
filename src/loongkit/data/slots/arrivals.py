"""The receiving side: how a batch becomes what it was, and when arenas of workers are forgotten.

The names in messages are those of this module; it is imported where a message is unpickled, which
is in the process that trains, in its main thread or in the one that pins memory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from loongkit.data.slots import lending
from loongkit.data.slots.mappings import Mapping, new_memory, orphans, storage_in

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from loongkit.data.slots.mappings import Hold, Place


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


#: The arenas of this process's workers.
_mappings: dict[str, Mapping] = {}


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
    lending.watch_forks(_mappings, orphans)
    return found


def from_bytes(data: bytes) -> Any:
    """Return a storage with these bytes, in memory of its own."""
    memory = new_memory(len(data))
    memory[:] = data
    return storage_in(memory)


def packed(arrival: Arrival, source: Any, index: int, place: Place) -> Any:
    """Return a storage in memory of its own, with the bytes at a place."""
    return storage_in(arrival.hold(source, index, place).mapping.read(place))


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
            orphans[key] = mapping
        mapping.orphan()
