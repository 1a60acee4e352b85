"""The control groups that this process is in, where Loongkit may make its own below them."""

from __future__ import annotations

import errno

from loongkit.activation import cpulists
from loongkit.activation.cgroups import Groups
from loongkit.numa.cgroups.names import PREFIX, is_leaf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loongkit.numa.cgroups.operations import Operations


class Own:
    """One hierarchy, as seen by this process.

    ``folder`` is the group that the process is in, or was before it went to one of ours;
    ``leaf`` the one of ours that it is in now, or "". ``second`` tells the generation.
    """

    __slots__ = ("folder", "leaf", "second")

    def __init__(self, here: str, second: bool) -> None:
        parent, _, name = here.rpartition("/")
        above, _, job = parent.rpartition("/")
        is_ours = job.startswith(PREFIX) and is_leaf(name)
        self.folder = above if is_ours else here
        self.leaf = here if is_ours else ""
        self.second = second


def find(operations: Operations, pid: int) -> list[Own]:
    """Return the hierarchy that places processes, and the first generation's for CPU time.

    Raises:
        OSError: no control groups are to be seen, or this process's own one is not among them.
    """
    groups = Groups(operations.tree)
    here = _seen(operations, groups, "cpuset")
    if not here:
        raise FileNotFoundError(errno.ENOENT, "no control groups are mounted")
    found = [_own(operations, here, pid)]
    time = _seen(operations, groups, "cpu")
    if not found[0].second and time and time != here:
        try:
            beside = _own(operations, time, pid)
        except OSError:
            return found
        if not beside.second:
            found.append(beside)
    return found


def holds_cpus(operations: Operations, pid: int) -> bool:
    """Tell whether a group of ours keeps this process to CPUs of its own."""
    try:
        leaf = find(operations, pid)[0].leaf
    except OSError:
        return False
    return bool(leaf) and operations.tree.exists(f"{leaf}/cpuset.cpus")


def effective(operations: Operations, folder: str, kind: str) -> frozenset[int]:
    """Return the "cpus" or the "mems" that a group leaves to its processes.

    Raises:
        OSError: the group has no cpuset.
    """
    for name in (f"cpuset.{kind}.effective", f"cpuset.effective_{kind}"):
        if operations.tree.exists(f"{folder}/{name}"):
            return cpulists.parse(operations.read(f"{folder}/{name}"))
    return cpulists.parse(operations.read(f"{folder}/cpuset.{kind}"))


def processes(operations: Operations, folder: str) -> list[int]:
    """Return the processes in a group (of a threaded one: their threads); those unseen are 0.

    Raises:
        OSError: there is no such group any more.
    """
    try:
        text = operations.read(f"{folder}/cgroup.procs")
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        text = operations.read(f"{folder}/cgroup.threads")
    return [int(word) for word in text.split()]


def parent_of(operations: Operations, pid: int) -> int:
    """Return the process that a process, or thread, is a child of; 0 where that can't be told."""
    # The command's name, in brackets, may hold blanks: count from its end.
    fields = operations.tree.read(f"proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _seen(operations: Operations, groups: Groups, controller: str) -> str:
    """Return the innermost of this process's groups that is to be seen here, or ""."""
    folders = groups.folders(controller)
    return next((folder for folder in folders if operations.tree.exists(folder)), "")


def _own(operations: Operations, here: str, pid: int) -> Own:
    # What is mounted may begin above or beside the group that the process is really in.
    if pid not in processes(operations, here):
        raise FileNotFoundError(
            errno.ENOENT, f"the control group of this process is not to be seen, /{here} is another"
        )
    return Own(here, operations.tree.exists(f"{here}/cgroup.controllers"))
