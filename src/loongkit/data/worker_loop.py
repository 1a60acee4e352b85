"""The arguments of torch's ``_worker_loop``, in which a data worker runs."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from loongkit.activation import seams

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

#: Places of two of them, which torch passes by position.
INIT_FN, NUM_WORKERS = 9, 11


def like_of(module: ModuleType) -> Callable[..., None]:
    """Return what ``_worker_loop`` is to look like in this torch.

    ``module`` is torch.utils.data._utils.worker. From 2.14 on the second parameter is a list that
    holds the data set, which the loop takes out.
    """
    function = seams.function_of(seams.found_attribute(module, "_worker_loop"))
    try:
        holds = "dataset_holder" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        holds = False  # missing, or no function: the patcher says so
    return _with_holder() if holds else _like


def _with_holder() -> Callable[..., None]:
    def like() -> None: ...

    signature = inspect.signature(_like)
    renamed = [
        each.replace(name="dataset_holder") if each.name == "dataset" else each
        for each in signature.parameters.values()
    ]
    vars(like)["__signature__"] = signature.replace(parameters=renamed)
    return like


def _like(
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
) -> None: ...
