"""What runs around the loop of a data worker, and around the shutdown of all workers."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING

from loongkit.activation import logs, marks, process
from loongkit.data.slots import arrivals, budget, mappings, outgoing, pickling, worker
from loongkit.data.worker_loop import NUM_WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def shutdown_like(self: Any) -> None:
    """Stand for the parameters of the iterator's ``_shutdown_workers``."""


class Loop:
    """Gives a data worker slots; ``mark`` notes that a batch travelled through one."""

    def __init__(self, mark: Callable[[], None]) -> None:
        self._mark = mark

    def run(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Stand in for torch's ``_worker_loop``."""
        try:
            args = self._with_slots(args)
        except Exception as error:
            logs.debug(f"pytorch: this data worker has no slots: {error!r}")
        original(*args, **kwargs)

    def _with_slots(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        _kind, _dataset, index_queue, data_queue, _event, auto_collation, *_rest = args
        reason = why_not(data_queue)
        if reason is not None:
            logs.debug(f"pytorch: this data worker has no slots: {reason}")
            return args
        slots = worker.WorkerSlots(args[NUM_WORKERS])
        inbox = outgoing.Inbox(index_queue, slots, bool(auto_collation))
        outbox = outgoing.Outbox(data_queue, outgoing.Post(slots, self._mark))
        if not pickling.take_over_storages():
            logs.debug("pytorch: this data worker has no slots: storages are reduced by others")
            return args
        worker.appoint(slots)
        return (*args[:2], inbox, outbox, *args[4:])


def why_not(data_queue: Any) -> str | None:
    """Return why this process can have no slots; None: it can."""
    if multiprocessing.parent_process() is None:
        return "it is no process of its own"
    if not hasattr(os, "memfd_create"):
        return "the system has no memfd"
    if not outgoing.is_known_queue(data_queue):
        return f"its results go through a {type(data_queue).__name__}"
    if budget.addresses_are_limited():
        return "there is a limit on address space"
    if mappings.shares_on():
        return "the process that started it shares its batches on"
    if process.kind() in (process.SPAWNED, process.FORKSERVER) and not marks.parent_is_armed():
        return "Loongkit is not at work in the process that started it"
    return None


def shut_down(original: Callable[[Any], None], iterator: Any) -> None:
    """Stand in for the iterator's ``_shutdown_workers``: forget the workers that are gone."""
    original(iterator)
    try:
        arrivals.forget(worker.pid for worker in iterator._workers if not worker.is_alive())
    except Exception:
        pass  # the interpreter is going down, or the iterator was never complete
