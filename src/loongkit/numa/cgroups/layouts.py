"""Makes a job's groups in one hierarchy, by the rules of its generation.

First generation: a group takes processes only once it has CPUs and memory nodes. Second: a group
that has processes hands controllers on to threaded groups only, except the root, which hands them
on to any; where it can't, groups still tell training and data workers apart, without CPU sets.
"""

from __future__ import annotations

import errno

from loongkit.activation import cpulists
from loongkit.numa.cgroups import own as own_groups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from loongkit.numa.cgroups.operations import Operations
    from loongkit.numa.cgroups.own import Own

#: How far the groups carry: CPU sets and room for every controller; CPU sets and CPU time alone;
#: nothing but the separation of the processes.
DOMAIN, THREADED, MEMBERS = "domain", "threaded", "members"

_CONTROLLERS = ("cpuset", "cpu")
#: What the kernel answers where it has threaded groups, but none that could be below this one.
_NOT_HERE = (errno.EBUSY, errno.EOPNOTSUPP)


class Wanted:
    """What a group is to leave to its processes: CPUs, and memory nodes (none named: any)."""

    __slots__ = ("cpus", "mems")

    def __init__(self, cpus: frozenset[int], mems: frozenset[int] = frozenset()) -> None:
        self.cpus = cpus
        self.mems = mems


def make(operations: Operations, own: Own, job: str, leaves: Mapping[str, Wanted]) -> str:
    """Make a job's group and those below it, by their folders; return how far they carry.

    Groups of these names that exist already are taken as they are, unless they hold processes
    on other CPUs.

    Raises:
        OSError: the kernel refuses; whatever was made is still there.
    """
    if not own.second:
        _make_first(operations, own.folder, job, leaves)
        return DOMAIN
    if "cpuset" not in operations.read(f"{own.folder}/cgroup.controllers").split():
        return _make_members(operations, job, leaves)
    if not operations.tree.exists(f"{own.folder}/cgroup.type"):
        _make_second(operations, own.folder, job, leaves, threaded=False)
        return DOMAIN
    try:
        _make_second(operations, own.folder, job, leaves, threaded=True)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        remove(operations, job, leaves)
        take_back(operations, own)
        return _make_members(operations, job, leaves)
    return THREADED


def make_plain(operations: Operations, job: str, leaves: Mapping[str, Wanted]) -> None:
    """Make the groups in a hierarchy of the first generation that has no CPU sets.

    Raises:
        OSError: the kernel refuses.
    """
    for folder in (job, *leaves):
        operations.make(folder)


def remove(operations: Operations, job: str, leaves: Mapping[str, Wanted]) -> None:
    """Remove what can be removed; groups that others still use stay."""
    for folder in (*leaves, job):
        try:
            operations.remove(folder)
        except OSError:
            continue


def take_back(operations: Operations, own: Own) -> None:
    """Have a group without groups below it hand no controllers on any more.

    A threaded root would keep other tools from handing on controllers that threads can't have.
    """
    try:
        if not own.second or operations.groups_in(own.folder):
            return
        if operations.read(f"{own.folder}/cgroup.type") == "domain threaded":
            on = operations.read(f"{own.folder}/cgroup.subtree_control").split()
            off = " ".join(f"-{name}" for name in _CONTROLLERS if name in on)
            operations.write(f"{own.folder}/cgroup.subtree_control", off)
    except OSError:
        pass


def is_populated(operations: Operations, folder: str) -> bool:
    """Tell whether a group, or one below it, has processes.

    Raises:
        OSError: there is no such group any more.
    """
    if operations.tree.exists(f"{folder}/cgroup.events"):
        return "populated 1" in operations.read(f"{folder}/cgroup.events").splitlines()
    if own_groups.processes(operations, folder):
        return True
    return any(
        is_populated(operations, f"{folder}/{name}") for name in operations.groups_in(folder)
    )


def _make_first(operations: Operations, own: str, job: str, leaves: Mapping[str, Wanted]) -> None:
    operations.make(job)
    for kind in ("cpus", "mems"):
        if not operations.read(f"{job}/cpuset.{kind}"):
            above = own_groups.effective(operations, own, kind)
            operations.write(f"{job}/cpuset.{kind}", cpulists.format(above))
    mems = own_groups.effective(operations, own, "mems")
    for leaf, wanted in leaves.items():
        operations.make(leaf)
        _set(operations, leaf, "cpus", wanted.cpus)
        _set(operations, leaf, "mems", wanted.mems & mems or mems)


def _make_second(
    operations: Operations, own: str, job: str, leaves: Mapping[str, Wanted], threaded: bool
) -> None:
    available = operations.read(f"{own}/cgroup.controllers").split()
    controllers = [name for name in _CONTROLLERS if name in available]
    operations.make(job)
    if threaded:
        _thread(operations, job)
    _hand_on(operations, own, controllers)
    for leaf in leaves:
        operations.make(leaf)
        if threaded:
            _thread(operations, leaf)
    _hand_on(operations, job, controllers)
    mems = own_groups.effective(operations, own, "mems")
    for leaf, wanted in leaves.items():
        _set(operations, leaf, "cpus", wanted.cpus)
        if wanted.mems & mems:
            _set(operations, leaf, "mems", wanted.mems & mems)


def _make_members(operations: Operations, job: str, leaves: Mapping[str, Wanted]) -> str:
    make_plain(operations, job, leaves)
    return MEMBERS


def _thread(operations: Operations, folder: str) -> None:
    if operations.read(f"{folder}/cgroup.type") != "threaded":
        operations.write(f"{folder}/cgroup.type", "threaded")


def _hand_on(operations: Operations, folder: str, controllers: list[str]) -> None:
    on = operations.read(f"{folder}/cgroup.subtree_control").split()
    missing = [name for name in controllers if name not in on]
    if missing:
        text = " ".join(f"+{name}" for name in missing)
        operations.write(f"{folder}/cgroup.subtree_control", text)


def _set(operations: Operations, leaf: str, kind: str, wanted: frozenset[int]) -> None:
    """Give a group its CPUs or memory nodes, and see whether it has them."""
    path = f"{leaf}/cpuset.{kind}"
    found = cpulists.parse(operations.read(path))
    if found != wanted:
        if found and is_populated(operations, leaf):
            raise FileExistsError(
                errno.EEXIST,
                f"/{leaf} holds processes of others on {kind} {cpulists.format(found)}",
            )
        operations.write(path, cpulists.format(wanted))
    got = own_groups.effective(operations, leaf, kind)
    if not got or not got <= wanted:
        raise OSError(
            errno.EINVAL,
            f"/{path} was set to {cpulists.format(wanted)} and became {cpulists.format(got)}",
        )
