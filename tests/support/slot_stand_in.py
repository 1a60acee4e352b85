"""Stands in for a data worker's slots: ordinary memory, and a record of what was asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils.data._utils.worker as worker


class StandIn:
    """Slots for tensors of at least ``least`` bytes; none left while ``full``."""

    def __init__(self, least: int = 1) -> None:
        self.least = least
        self.full = False
        self.made: list[torch.Tensor] = []
        self.joins = 0
        self.reservation: torch.Tensor | None = None
        self.failure: Exception | None = None

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        if self.failure is not None:
            raise self.failure
        found = torch.empty(tuple(shape), dtype=dtype)
        if self.full or found.numel() * found.element_size() < self.least:
            return None
        self.made.append(found)
        return found

    def places(self, count: int, *shape: int) -> list[torch.Tensor]:
        """Reserve places side by side and return one array's tensor for each."""
        self.reservation = torch.rand(count, *shape)
        return list(self.reservation)

    def joined(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
        found = self.reservation
        if found is None or len(tensors) != len(found):
            return None
        same = [one.data_ptr() == two.data_ptr() for one, two in zip(tensors, found, strict=True)]
        if not all(same) or tensors[0].shape != found.shape[1:]:
            return None
        self.joins += 1
        return found

    def has_made(self, tensor: Any) -> bool:
        return any(made is tensor for made in self.made)


@contextlib.contextmanager
def in_worker() -> Iterator[None]:
    """Let torch take this process for a data worker, as collates ask it."""
    before = worker._worker_info
    worker._worker_info = worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=None)
    try:
        yield
    finally:
        worker._worker_info = before
