"""The groups of one job as one process uses them: enter, leave, clear away what dead jobs left."""

from __future__ import annotations

import errno
import time

from loongkit.numa.cgroups import layouts
from loongkit.numa.cgroups import own as own_groups
from loongkit.numa.cgroups.own import DATA, PREFIX, TRAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loongkit.numa.cgroups.layouts import Wanted
    from loongkit.numa.cgroups.operations import Operations
    from loongkit.numa.cgroups.own import Own

#: The kernel counts a process that has just ended for a moment longer.
_TRIES, _PAUSE = 5, 0.02
#: How often a group is made again that another process's clearing away took from under us.
_ATTEMPTS = 3
#: Groups without processes that are younger may be those of a job that is starting right now.
_STALE_AFTER = 60.0


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
            clear_away(self._operations, own.folder, keep=self._job)
            try:
                self._enter(own, train, data, places=own is found[0])
            except Exception:
                self._leave(own)
                if own is found[0]:
                    raise
            else:
                self._entered.append(own)

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
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV) or attempt + 1 == _ATTEMPTS:
                    raise
            else:
                return

    def _leave(self, own: Own) -> None:
        job = self._folder(own)
        leaves = [f"{job}/{self._name}{role}" for role in (TRAIN, DATA)]
        for leaf in leaves:
            self._empty(leaf, own)
        # The training group first: while it has processes, their workers need the other one.
        for folder in (*leaves, job):
            if not _remove(self._operations, folder):
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
                except OSError:
                    continue  # it has ended, or the group above takes no process: the folder stays

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

    Never raises OSError.
    """
    moved = False
    try:
        for own in own_groups.find(operations, pid):
            if own.leaf:
                move(operations, own.folder, pid)
                moved = True
    except OSError:
        return moved
    return moved


def clear_away(operations: Operations, own: str, keep: str) -> None:
    """Remove the groups below one that jobs have left which were killed."""
    try:
        jobs = [name for name in operations.groups_in(own) if name.startswith(PREFIX)]
    except OSError:
        return
    for job in jobs:
        folder = f"{own}/{job}"
        try:
            young = time.time() - operations.made_at(folder) < _STALE_AFTER
            if job == keep or young or layouts.is_populated(operations, folder):
                continue
            leaves = [f"{folder}/{leaf}" for leaf in operations.groups_in(folder)]
            for path in (*leaves, folder):
                operations.remove(path)
        except OSError:
            continue


def _remove(operations: Operations, folder: str) -> bool:
    """Remove a group that nobody uses any more; tell whether it is gone.

    The kernel may need a moment to see that the last process has left.
    """
    for _ in range(_TRIES):
        try:
            if layouts.is_populated(operations, folder) or operations.groups_in(folder):
                return False  # in use by another rank, or by workers that outlive this process
            operations.remove(folder)
            return True
        except OSError as error:
            if error.errno != errno.EBUSY:
                return error.errno == errno.ENOENT
        time.sleep(_PAUSE)
    return False
