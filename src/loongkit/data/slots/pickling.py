"""Which pickler is at work in a thread, and the reducer of storages, in a data worker.

A batch may hold objects that pickle something by a pickler of their own. What that one writes is
bytes to the batch, which may be read in any way: only storages that the message's own pickler meets
may go into slots.
"""

from __future__ import annotations

import pickle
import threading
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING

import torch
from torch.multiprocessing import reductions

from loongkit.activation import logs
from loongkit.data.slots.worker import SMALL

if TYPE_CHECKING:
    from typing import Any

    from loongkit.data.slots.outgoing import Begin


class _Thread(threading.local):
    """The picklers at work in this thread, the innermost last, and the message of one of them."""

    def __init__(self) -> None:
        self.picklers: list[Any] = []
        self.begin: Begin | None = None
        self.pickler: Any = None


_thread = _Thread()


def begin(message: Begin) -> Begin | None:
    """Note that the innermost pickler has begun a message; return the one that was not finished."""
    unfinished, _thread.begin = _thread.begin, message
    _thread.pickler = _thread.picklers[-1] if _thread.picklers else None
    return unfinished


def end() -> None:
    """Note that the message has been pickled."""
    _thread.begin = _thread.pickler = None


def take_over_storages() -> bool:
    """Register the reducer of storages in this process; False: it can't be, and torch's stays.

    That is so where somebody else has registered one, or has a ``dump`` of ForkingPickler, and
    where torch has no lock for the time that a storage gets other memory.
    """
    reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    original = reducers.get(torch.UntypedStorage)
    locked = getattr(torch.storage, "_share_memory_lock_protected", None)
    if (
        original is not reductions.reduce_storage
        or locked is None
        or ForkingPickler.dump is not pickle.Pickler.dump
    ):
        return False
    reduced_by_us = locked(_reduced)

    def reduce_storage(storage: Any) -> Any:
        reduced = None
        if _thread.begin is not None and _thread.picklers[-1:] == [_thread.pickler]:
            try:
                reduced = reduced_by_us(storage)
            except Exception as error:
                logs.debug(f"pytorch: a storage travels as torch sends it: {error!r}")
            if reduced is None:
                return original(_movable(storage))
        return original(storage) if reduced is None else reduced

    ForkingPickler.dump = _dump  # type: ignore[method-assign]
    ForkingPickler.register(torch.UntypedStorage, reduce_storage)
    return True


def _dump(self: Any, obj: Any) -> None:
    """Stand in for ForkingPickler's ``dump``."""
    picklers = _thread.picklers
    picklers.append(self)
    try:
        pickle.Pickler.dump(self, obj)
    finally:
        picklers.pop()


def _movable(storage: Any) -> Any:
    """Return what torch may move into shared memory in place of a storage.

    Its collate makes a batch there from the start, the one of slots makes a small one in memory of
    its own: that must stay where it is, for an array of the same batch that looks into it.
    """
    is_small = storage.device.type == "cpu" and 0 < storage.nbytes() <= SMALL
    return storage.clone() if is_small and not storage.is_shared() else storage


def _reduced(storage: Any) -> Any:
    assert _thread.begin is not None
    return _thread.begin.reduce_storage(storage)
