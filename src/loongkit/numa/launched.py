"""The CPUs that the launcher of a job's ranks was started with, where OpenMP has bound it since.

torchrun imports torch, and torch loads OpenMP's library. Under OMP_PROC_BIND and the like that
binds the launcher's main thread to one core, and every rank is started there.
"""

from __future__ import annotations

import os

from loongkit.activation import cpulists, process, settings
from loongkit.numa import openmp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping


def note(environ: MutableMapping[str, str]) -> None:
    """Tell the ranks that this launcher starts which CPUs it has: before it imports anything."""
    cpus = cpulists.format(frozenset(os.sched_getaffinity(0)))
    environ[settings.JOB_LAUNCHER] = f"{os.getpid()}/{cpus}"


def started_with(environ: Mapping[str, str], mask: frozenset[int]) -> frozenset[int]:
    """Return the CPUs that this process would have if OpenMP had not bound its launcher.

    ``mask`` is what it has, and is returned where that did not come about in this way.
    """
    pid, _, text = environ.get(settings.JOB_LAUNCHER, "").partition("/")
    if not openmp.binding_variables(environ) or not (pid.isdecimal() and len(pid) < 10):
        return mask
    try:
        cpus = cpulists.parse(text)
        inherited = mask < cpus and frozenset(os.sched_getaffinity(int(pid))) == mask
    except (OSError, ValueError):
        return mask  # nonsense, or of a launcher that has ended
    return cpus if inherited and process.is_below(os.getpid(), int(pid)) else mask
