"""Looks into a DataLoader's iterator for the batch that it will return next, and takes nothing."""

from __future__ import annotations

import queue
from typing import Any


def has_pin_thread(iterator: Any) -> bool:
    """Tell whether batches wait in this process: torch's pin thread puts them into a plain queue.

    Without that thread they lie in a pipe until the training asks for them.
    """
    return isinstance(getattr(iterator, "_data_queue", None), queue.Queue)


def batch_waiting(iterator: Any) -> Any:
    """Return the batch that the next call will return where it has arrived; None where it hasn't.

    It may be torch's wrapper of a worker's exception as well. The iterator is left as it is: when
    it draws from its sampler, ends its workers or raises stays its own business.

    Raises:
        AttributeError: this torch keeps its batches in another way.

    """
    position = _next_position(iterator)
    if position is None:
        return None
    known = iterator._task_info[position]
    if len(known) == 2:  # it has come before those ahead of it, and was put aside
        return known[1]
    waiting = iterator._data_queue
    with waiting.mutex:
        arrived = list(waiting.queue)
    if not getattr(iterator, "_in_order", True):
        return arrived[0][1] if arrived else None
    return next((data for number, data in arrived if number == position), None)


def _next_position(iterator: Any) -> int | None:
    """Return the number of the next batch; None at the end of the epoch.

    Numbers given to workers of an iterable dataset that have ended since are passed over.
    """
    for position in range(iterator._rcvd_idx, iterator._send_idx):
        known = iterator._task_info.get(position)
        if known and (len(known) == 2 or iterator._workers_status[known[0]]):
            return position
    return None
