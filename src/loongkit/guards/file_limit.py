"""The limit of open files while a DataLoader's workers start."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import torch

from loongkit.guards import memory_checks

if TYPE_CHECKING:
    from collections.abc import Iterable


class FileLimit:
    """The limit as the job has it, which may be lifted before its first batch shows the need.

    Later is too late: a worker that has lost a batch to the limit leaves torch waiting for it.
    """

    def __init__(self) -> None:
        self.soft, self.hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._lifted = False

    def lift(self) -> None:
        """Raise the limit of this process, which workers inherit, where batches take files."""
        most = memory_checks.most_files(self.hard)
        if passes_files() and memory_checks.could_be_short(self.soft) and self.soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, self.hard))
            self._lifted = True

    def put_back(self, workers: Iterable[int]) -> None:
        """Undo that, also in the workers, given by their process ids."""
        if self._lifted:
            self._lifted = False
            self._set(self.soft, workers)

    def keep(self, files: int, workers: Iterable[int]) -> None:
        """Have this process and the workers keep a limit."""
        self._lifted = False
        self._set(files, workers)

    def _set(self, files: int, workers: Iterable[int]) -> None:
        for pid in (0, *workers):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (files, self.hard))


def passes_files() -> bool:
    """Tell whether each tensor of a batch is an open file on its way from a worker."""
    return bool(torch.multiprocessing.get_sharing_strategy() == "file_descriptor")
