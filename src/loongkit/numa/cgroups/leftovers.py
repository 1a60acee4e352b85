"""Clears away groups of ours in which no process is left.

A process that ends in an orderly way removes its own. What others leave, because they were killed
or have become another program, is removed by the data workers that outlive them, by the process
that has started them, at its own end, or by the next job in the same group. A folder that holds
anything but groups of our names is left alone: it may be somebody else's.
"""

from __future__ import annotations

import errno
import time

from loongkit.activation import logs, process
from loongkit.numa.cgroups import layouts
from loongkit.numa.cgroups import own as own_groups
from loongkit.numa.cgroups.names import PREFIX, TRAIN, is_leaf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loongkit.numa.cgroups.operations import Operations

#: The kernel counts a process that has just ended for a moment longer.
_TRIES, _PAUSE = 5, 0.02
#: How often the processes in a group are looked at again that should end right now: half a second.
_TRIES_FOR_CHILDREN = 25
#: Groups without processes that are younger may be those of a job that is starting right now.
_STALE_AFTER = 60.0
#: Two clocks of the kernel, of which one moves in steps, say when a group and a process began.
_SLACK = 1.0


def of_dead_jobs(operations: Operations, own: str, keep: str) -> None:
    """Remove the groups below one that other jobs than ``keep`` have left at least a minute ago.

    Never raises OSError.
    """
    now = time.time()
    for job in _jobs_below(operations, own):
        if not job.endswith(f"/{keep}") and _made_at(operations, job) + _STALE_AFTER < now:
            of_job(operations, job)


def of_children(operations: Operations, pid: int, since: float) -> None:
    """Remove what is left of the processes that this one has started, since it was ``since``.

    Another job that has begun since then makes its groups again, should it be about to enter them.

    Raises:
        OSError: no control groups are to be seen.
    """
    tries = _TRIES_FOR_CHILDREN
    for own in own_groups.find(operations, pid):
        jobs = [
            job
            for job in _jobs_below(operations, own.folder)
            if _made_at(operations, job) >= since - _SLACK
        ]
        # Data workers that were killed together with their parents may need a moment to end.
        while tries and not all(_is_empty(operations, job) for job in jobs):
            tries -= 1
            time.sleep(_PAUSE)
        removed = [of_job(operations, job) for job in jobs]
        if any(removed):
            layouts.take_back(operations, own)


def of_this_process(operations: Operations, pid: int) -> None:
    """Move a process out of the groups of ours that it is in, and remove them if it was the last.

    Raises:
        OSError: no control groups are to be seen, or the group above takes no process.
    """
    ours = [own for own in own_groups.find(operations, pid) if own.leaf]
    # Out of all of them first: another one that is leaving now may count this one.
    for own in ours:
        operations.write(f"{own.folder}/cgroup.procs", str(pid))
    for own in ours:
        job = own.leaf.rpartition("/")[0]
        _move_helpers(operations, job, own.folder)
        if of_job(operations, job):
            layouts.take_back(operations, own)


def of_job(operations: Operations, job: str) -> bool:
    """Remove a job's groups unless one has a process, or is not ours; tell whether all are gone."""
    names = _groups_in(operations, job)
    if names is None or not all(map(is_leaf, names)):
        return False
    # Training groups first: a process that is about to enter one finds out then.
    names.sort(key=lambda name: not name.endswith(TRAIN))
    for name in names:
        if not _is_empty(operations, job) or not remove(operations, f"{job}/{name}"):
            return False
    return remove(operations, job)


def remove(operations: Operations, folder: str) -> bool:
    """Remove a group that nobody uses any more; tell whether it is gone.

    The kernel may need a moment to see that the last process has left. A refusal is a line of the
    log.
    """
    problem = ""
    for _ in range(_TRIES):
        try:
            if layouts.is_populated(operations, folder) or operations.groups_in(folder):
                return False  # in use by another rank, or by workers that outlive this process
            operations.remove(folder)
            return True
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return True
            problem = str(error)
            if error.errno != errno.EBUSY:
                break
        time.sleep(_PAUSE)
    say_left(folder, problem)
    return False


def say_left(folder: str, problem: str) -> None:
    """Log why a group that this process should have removed is left behind."""
    logs.info(f"subcgroups: /{folder} is left behind: {problem}")


def _move_helpers(operations: Operations, job: str, folder: str) -> None:
    """Move multiprocessing's helpers out of a job's groups where they are all that is left.

    They end once the last process has ended that uses them, which may be this one.
    """
    try:
        pids = [
            pid
            for name in operations.groups_in(job)
            for pid in own_groups.processes(operations, f"{job}/{name}")
        ]
        if all(_is_helper(operations, pid) for pid in pids):
            for pid in pids:
                operations.write(f"{folder}/cgroup.procs", str(pid))
    except OSError:
        return  # another process is clearing away, or the helper has ended


def _is_helper(operations: Operations, pid: int) -> bool:
    words = operations.tree.read(f"proc/{pid}/cmdline").split("\0")
    return process.kind(words) == process.HELPER


def _jobs_below(operations: Operations, own: str) -> list[str]:
    """Return the folders of jobs; not those that hold nothing, since they may be anybody's."""
    jobs = []
    for name in _groups_in(operations, own) or ():
        if name.startswith(PREFIX):
            leaves = _groups_in(operations, f"{own}/{name}")
            if leaves and all(map(is_leaf, leaves)):
                jobs.append(f"{own}/{name}")
    return jobs


def _groups_in(operations: Operations, folder: str) -> list[str] | None:
    """Return the names of the groups right below one; None: it is gone."""
    try:
        return operations.groups_in(folder)
    except OSError:
        return None


def _made_at(operations: Operations, job: str) -> float:
    try:
        return operations.made_at(job)
    except OSError:
        return 0.0  # it is gone


def _is_empty(operations: Operations, job: str) -> bool:
    try:
        return not layouts.is_populated(operations, job)
    except OSError:
        return True  # it is gone
