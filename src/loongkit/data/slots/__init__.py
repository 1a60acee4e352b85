"""Slots: shared memory that a data worker uses again for batch after batch.

torch makes a new shared file for each tensor of each batch, which the kernel has to fill with
zeroed pages and to take apart again. Here each worker has one such file, its *arena*; a *slot* is
a part of it, and is used again once its batch is gone in the process that trains.

Whoever makes batches in a worker asks ``current()`` for its slots and may write straight into them.
What was made elsewhere is copied into a slot on its way.
"""

from loongkit.data.slots.worker import WorkerSlots, current

__all__ = ["WorkerSlots", "current"]
