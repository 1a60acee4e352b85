"""The arguments of torch's ``_worker_loop``, in which a data worker runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

#: Places of two of them, which torch passes by position.
INIT_FN, NUM_WORKERS = 9, 11


def like(
    dataset_kind: Any,
    dataset: Any,
    index_queue: Any,
    data_queue: Any,
    done_event: Any,
    auto_collation: Any,
    collate_fn: Any,
    drop_last: Any,
    base_seed: Any,
    init_fn: Any,
    worker_id: Any,
    num_workers: Any,
    persistent_workers: Any,
    shared_seed: Any,
) -> None:
    """Stand for the parameters of torch.utils.data._utils.worker._worker_loop."""
