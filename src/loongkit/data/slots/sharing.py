"""Batches that are shared on: their storages get other memory, by torch.

``share_memory_()``, a queue of torch.multiprocessing or the argument of a process move a storage
into a shared file, unless it is one that torch calls shared. As torch's own batches are, nobody
expects a batch to move: arrays made of it before go on looking into the memory that it left. So
that memory is never used again; and from the first time on batches arrive in shared memory of
torch's, or a job that shares each of its batches would leave some behind with every epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from loongkit.activation import logs
from loongkit.data.slots import mappings, worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from loongkit.activation.patching import Patcher


def install(patcher: Patcher) -> None:
    """Watch all that gives a storage other memory."""
    for name in ("_share_fd_cpu_", "_share_filename_cpu_"):
        patcher.wrap(torch.UntypedStorage, name, _share, like=_share_like)


def _share_like(self: Any, *args: Any, **kwargs: Any) -> None:
    """Stand for the parameters of both."""


def _share(original: Callable[..., Any], storage: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        _keep_memory_of(storage)
    except Exception as error:
        logs.debug(f"pytorch: a storage is shared without a look at its memory: {error!r}")
    return original(storage, *args, **kwargs)


def _keep_memory_of(storage: Any) -> None:
    if storage.device.type != "cpu":
        return
    address = storage.data_ptr()
    mine = worker.current()
    if mine is not None:
        mine.abandon(address, storage.nbytes())
    mappings.keep_for_good(address)
