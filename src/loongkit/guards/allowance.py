"""The CPUs that this process may use, of which its main thread may be bound to a part.

A process that was confined from outside (taskset, numactl, Slurm, a cpuset) was started with that
mask, and may use no more. A main thread that OpenMP or the script has bound since hands a smaller
mask on to each data worker, although the process may use more.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from loongkit.activation import cgroups
from loongkit.guards import openmp
from loongkit.numa import handover, launched
from loongkit.numa.openmp import binding_variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loongkit.activation.files import Tree

#: A core of two threads: a thread that is bound to more than that was given a choice.
_CORE = 2

_started_with: frozenset[int] = frozenset()
#: Whether OpenMP has bound the launcher, from which this process has its CPUs.
_bound_before = False


class Allowance(NamedTuple):
    """The CPUs of this thread, those of its process, and the variables that bound the former."""

    mask: frozenset[int]
    cpus: frozenset[int]
    variables: tuple[str, ...] = ()


def note_start() -> None:
    """Note what this process was started with: to be called before torch has loaded OpenMP."""
    global _started_with, _bound_before
    if not _started_with:
        mask = frozenset(os.sched_getaffinity(0))
        _started_with = launched.started_with(os.environ, mask)
        _bound_before = mask != _started_with


def of_process(tree: Tree, environ: Mapping[str, str]) -> Allowance:
    """Return the CPUs of this thread and those of its process.

    The latter are looked up only where this thread is bound to one core or less.
    """
    mask = frozenset(os.sched_getaffinity(0))
    if len(mask) > _CORE or handover.read(environ) is not None:
        return Allowance(mask, mask)  # or NUMA_AFFINITY places this process and its workers
    bound = openmp.binding(environ)
    # Somebody may have moved the whole process into a smaller cpuset since.
    granted = cgroups.cpuset(cgroups.Groups(tree)) or _started_with
    cpus = mask | bound.cpus | (_started_with & granted) | _of_threads()
    variables = bound.variables if mask < bound.cpus else ()
    if _bound_before and not variables:
        variables = binding_variables(environ)
    if len(mask) > 1 and not variables:
        return Allowance(mask, mask)
    return Allowance(mask, cpus, variables)


def _of_threads() -> frozenset[int]:
    """Return the CPUs that any thread of this process may run on."""
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            found |= os.sched_getaffinity(int(thread))
        except OSError:
            continue  # it has ended
    return frozenset(found)
