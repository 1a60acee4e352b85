"""How many CPUs a process of the job may count on, and where that number comes from."""

from __future__ import annotations

import math
import multiprocessing
import os
from typing import TYPE_CHECKING, NamedTuple

from loongkit.activation import cgroups, process
from loongkit.numa import handover

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loongkit.activation.files import Tree


class Bound(NamedTuple):
    """CPUs for one rank, and the words that say why not more."""

    cpus: int
    reason: str


class Budget(NamedTuple):
    """The CPUs of one rank.

    ``cpus`` are those that it may run on, which ``sharers`` of the ``ranks`` on this host have to
    share; ``quota`` is the CPU time granted to all ranks together, in CPUs (None: no quota).
    ``data_cpus`` are those that NUMA_AFFINITY set aside for the data workers (None: it did not).
    """

    cpus: int
    ranks: int = 1
    sharers: int = 1
    quota: float | None = None
    data_cpus: int | None = None

    @property
    def share(self) -> int:
        """The whole CPUs of one rank."""
        return max(1, self.cpus // self.sharers)

    @property
    def mask(self) -> Bound:
        """The bound that the affinity mask sets."""
        shared = f" shared by {self.sharers} ranks" if self.sharers > 1 else ""
        return Bound(self.share, f"{_cpus(self.cpus)}{shared}")

    @property
    def time(self) -> Bound | None:
        """The bound that the quota sets. It limits CPU time, not how much runs at once."""
        if self.quota is None:
            return None
        shared = f" shared by {self.ranks} ranks" if self.ranks > 1 else ""
        share = max(1, math.ceil(self.quota) // self.ranks)
        return Bound(share, f"the container's CPU quota of {self.quota:g}{shared}")


def _cpus(count: int) -> str:
    return "1 CPU" if count == 1 else f"{count} CPUs"


def read(tree: Tree, environ: Mapping[str, str], mask: frozenset[int]) -> Budget:
    """Return the budget of a rank whose mask is given.

    ``mask`` is that of the main thread, or of its process where that thread alone was bound.
    """
    ranks = process.local_ranks(environ)
    base = job_mask(tree, environ, mask) if ranks > 1 else mask
    # Ranks that were bound to parts of the job's CPUs share them in proportion.
    sharers = max(1, round(ranks * len(mask) / len(base))) if base else ranks
    placed = handover.read(environ)
    apart = placed is not None and placed.data != placed.train
    return Budget(
        cpus=len(mask),
        ranks=ranks,
        sharers=sharers,
        quota=cgroups.cpu_quota(cgroups.Groups(tree)),
        data_cpus=len(placed.data) if placed is not None and apart else None,
    )


def job_mask(tree: Tree, environ: Mapping[str, str], mask: frozenset[int]) -> frozenset[int]:
    """Return the CPUs of the whole job on this host: those that its launcher may run on."""
    placed = handover.read(environ)
    if placed is not None:
        return placed.base
    try:
        return mask | frozenset(os.sched_getaffinity(_launcher(tree)))
    except (OSError, ValueError):
        return mask  # it is of another container, or has ended


def _launcher(tree: Tree) -> int:
    """Return the process that started this rank; of a data worker's parent, in a data worker."""
    rank = multiprocessing.parent_process()
    if rank is None:
        return os.getppid()
    # The command's name, in brackets, may hold blanks: count from its end (proc_pid_stat).
    return int(tree.read(f"proc/{rank.pid}/stat").rpartition(")")[2].split()[1])
