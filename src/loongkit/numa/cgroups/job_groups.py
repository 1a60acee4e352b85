"""The groups of one job as one process uses them: enter and leave."""

from __future__ import annotations

import errno

from loongkit.activation import cpulists
from loongkit.numa.cgroups import layouts, leftovers
from loongkit.numa.cgroups import own as own_groups
from loongkit.numa.cgroups.names import DATA, PREFIX, TRAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loongkit.numa.cgroups.layouts import Wanted
    from loongkit.numa.cgroups.operations import Operations
    from loongkit.numa.cgroups.own import Own

#: How often a group is made again that another process's clearing away took from under us, and
#: what the kernel answers then. The last two: it is there again, but not yet ready for use.
_ATTEMPTS = 3
_TAKEN_AWAY = (errno.ENOENT, errno.ENODEV, errno.EACCES, errno.ENOSPC)


class JobGroups:
    """``<own>/loongkit.<job>/<name>.train`` and ``….data`` in each hierarchy of this process."""

    def __init__(self, operations: Operations, pid: int, job: str, name: str) -> None:
        self._operations = operations
        self._pid = pid
        self._job = PREFIX + job
        self._name = name
        self._entered: list[Own] = []
        self.tier = ""

    @property
    def folder(self) -> str:
        """The training group's folder in the hierarchy that places processes."""
        return f"/{self._folder(self._entered[0])}/{self._name}{TRAIN}"

    def enter(self, train: Wanted, data: Wanted) -> None:
        """Make the groups and move this process to the training one.

        Raises:
            OSError: the kernel refuses; nothing of ours is left, and the process is where it was.
        """
        found = own_groups.find(self._operations, self._pid)
        for own in found:
            leftovers.of_dead_jobs(self._operations, own.folder, self._job)
            try:
                self._enter(own, train, data, places=own is found[0])
            except Exception:
                self._leave(own)
                if own is found[0]:
                    raise
            else:
                self._entered.append(own)

    def memory_problem(self, train: Wanted, data: Wanted) -> str:
        """Return why the groups leave other memory nodes than was wanted; "" where they do not.

        Raises:
            OSError: the groups are gone.
        """
        for role, wanted in ((TRAIN, train), (DATA, data)):
            if not wanted.mems:
                continue
            if self.tier == layouts.MEMBERS:
                return "the groups have no CPU sets here, and so no memory nodes of their own"
            leaf = f"{self._folder(self._entered[0])}/{self._name}{role}"
            mems = own_groups.effective(self._operations, leaf, "mems")
            if not mems <= wanted.mems:
                return (
                    f"{self._name}{role} keeps memory nodes {cpulists.format(mems)}; wanted "
                    f"{cpulists.format(wanted.mems)}, of which the group above has none"
                )
        return ""

    def leave(self) -> None:
        """Move this process back and remove the groups that nobody uses any more."""
        while self._entered:
            self._leave(self._entered.pop())

    def _enter(self, own: Own, train: Wanted, data: Wanted, places: bool) -> None:
        job = self._folder(own)
        leaves = {f"{job}/{self._name}{TRAIN}": train, f"{job}/{self._name}{DATA}": data}
        for attempt in range(_ATTEMPTS):
            try:
                if places:
                    self.tier = layouts.make(self._operations, own, job, leaves)
                else:
                    layouts.make_plain(self._operations, job, leaves)
                move(self._operations, next(iter(leaves)), self._pid)
                for leaf in leaves:
                    self._operations.groups_in(leaf)  # nobody has cleared it away in the meantime
            except OSError as error:
                if error.errno not in _TAKEN_AWAY or attempt + 1 == _ATTEMPTS:
                    raise
            else:
                return

    def _leave(self, own: Own) -> None:
        job = self._folder(own)
        if not self._operations.tree.exists(own.folder):
            leftovers.say_left(job, "control groups are not to be seen any more, as after a chroot")
            return
        leaves = [f"{job}/{self._name}{role}" for role in (TRAIN, DATA)]
        for leaf in leaves:
            self._empty(leaf, own)
        # The training group first: while it has processes, their workers need the other one.
        for folder in (*leaves, job):
            if not leftovers.remove(self._operations, folder):
                break
        layouts.take_back(self._operations, own)

    def _empty(self, leaf: str, own: Own) -> None:
        """Move this process and its children, such as multiprocessing's helper, out of a group."""
        try:
            found = own_groups.processes(self._operations, leaf)
        except OSError:
            return  # not made, or gone
        for pid in found:
            if pid == self._pid or own_groups.parent_of(self._operations, pid) == self._pid:
                try:
                    move(self._operations, own.folder, pid)
                except OSError as error:  # it has ended, or the group above takes no process
                    if pid == self._pid:
                        leftovers.say_left(leaf, str(error))

    def _folder(self, own: Own) -> str:
        return f"{own.folder}/{self._job}"


def move(operations: Operations, folder: str, pid: int) -> None:
    """Move a process with all its threads to a group.

    Raises:
        OSError: the kernel refuses.
    """
    operations.write(f"{folder}/cgroup.procs", str(pid))


def move_worker(operations: Operations, pid: int) -> str:
    """Move a data worker from the training group it was born in to that of the data workers.

    Returns the new folder in the hierarchy that places processes; "" where the process is in no
    training group of ours: none was made, or somebody has moved it elsewhere.

    Raises:
        OSError: the kernel refuses.
    """
    moved = ""
    for own in reversed(own_groups.find(operations, pid)):  # the one that counts is the last
        moved = ""
        if own.leaf.endswith(TRAIN):
            moved = own.leaf.removesuffix(TRAIN) + DATA
            move(operations, moved, pid)
    return moved


def let_go(operations: Operations, pid: int) -> bool:
    """Move a process from a group of ours to the one above all of ours; tell whether it was in one.

    Never raises OSError, nor ValueError for files that hold something else than expected.
    """
    moved = False
    try:
        for own in own_groups.find(operations, pid):
            if own.leaf:
                move(operations, own.folder, pid)
                moved = True
    except (OSError, ValueError):
        return moved
    return moved
