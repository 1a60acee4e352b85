"""Places this process and its data workers by control groups, where NUMA_AFFINITY sets masks.

When and where to is decided alike, by the same options. What is different is that the kernel
holds the processes there, and that other tools find the two kinds of them apart. Where that
can't be had, or holds no CPU sets, NUMA_AFFINITY takes over if it is on.
"""

from __future__ import annotations

import atexit
import errno
import os
import sys
import time

from loongkit.activation import cpulists, logs, process, session, states
from loongkit.activation import plan as decisions
from loongkit.numa import handover, openmp, placement
from loongkit.numa import plan as planning
from loongkit.numa.cgroups import job_groups, layouts, leftovers, names
from loongkit.numa.cgroups import own as own_groups
from loongkit.numa.cgroups.job_groups import JobGroups
from loongkit.numa.cgroups.layouts import Wanted
from loongkit.numa.cgroups.operations import Operations
from loongkit.numa.placement import Placement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from loongkit.activation.patching import Patcher
    from loongkit.numa.binding import Binding
    from loongkit.numa.records import Machine, Plan
    from loongkit.numa.system import System

_CARRY = {
    layouts.DOMAIN: "domain groups with CPU sets",
    layouts.THREADED: "threaded groups with CPU sets",
    layouts.MEMBERS: "groups without CPU sets, which this host can't hand on",
}
#: After all that is the job's own (multiprocessing takes these numbers from high to low).
_LAST = -100


def of(patcher: Patcher) -> GroupPlacement:
    """Return the placement of this process, which all hooks of the feature share."""
    global _placement
    if _placement is None or not _placement.belongs_to(patcher):
        _placement = GroupPlacement(patcher)
        patcher.on_undo(_placement.put_back)
    return _placement


class GroupPlacement(Placement):
    """What was decided for one process, and the groups that it was put into."""

    def __init__(
        self,
        patcher: Patcher,
        system: System | None = None,
        operations: Operations | None = None,
    ) -> None:
        super().__init__(patcher, system)
        self._operations = operations or Operations()
        self._groups: JobGroups | None = None
        self._affinity = decisions.Decision(_affinity(), True, "", "")
        decisions.add_options(self._affinity, session.SESSION.settings)

    def at_start(self) -> bool:
        """Place a rank before it imports any framework; False: only later can tell.

        Raises:
            Skip: this process is not to be placed, with the reason.
        """
        self._leave_former()
        try:
            return super().at_start()
        except Exception:
            placement.take_over()
            raise

    def at_import(self, device_module: Any) -> None:
        """Wait for the first use of a device; a launcher, which trains nothing, stays where it is.

        Raises:
            Skip: this torch can't tell which device is which.
        """
        if process.is_launcher():
            self._clear_away_at_end()
            return
        self._leave_former()
        super().at_import(device_module)
        if self._rank < 0 and process.kind() == process.MAIN:
            self._clear_away_at_end()  # it may start processes that train, as mp.spawn does

    def at_worker_loop(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a data worker's loop in the workers' group. To be wrapped around that loop."""
        parent = os.getppid()
        try:
            return super().at_worker_loop(original, *args, **kwargs)
        finally:
            if os.getppid() != parent:  # it was killed: the last of its workers clears away
                _contained(lambda: leftovers.of_this_process(self._operations, os.getpid()))

    def worker(self) -> None:
        """Move the data worker that is starting in this process to the group of its kind."""
        self._is_worker = True
        group = job_groups.move_worker(self._operations, os.getpid())
        if group:
            self._patcher.wrap(os, "sched_setaffinity", self._set_affinity)
        if not group or not self._operations.tree.exists(f"{group}/cpuset.cpus"):
            return
        cpus = own_groups.effective(self._operations, group, "cpus")
        if self._system.mask() < cpus and openmp.binding_variables(os.environ):
            self._system.set_mask(0, cpus)  # newer kernels keep a mask in spite of the move

    def put_back(self) -> None:
        """Leave the groups, in the process that entered them."""
        if self._groups is not None and os.getpid() == self._pid:
            groups, self._groups = self._groups, None
            groups.leave()
            if groups.tier != layouts.MEMBERS:
                handover.forget(os.environ)
            atexit.unregister(self._put_back_at_end)

    def _put_back_at_end(self) -> None:
        _contained(self.put_back)

    def _leave_at_end(self) -> None:
        atexit.register(self._put_back_at_end)
        util = sys.modules.get("multiprocessing.util")
        if util is not None and process.kind() == process.FORKSERVER:
            # What its children end with, since they know no atexit.
            util.Finalize(None, self._put_back_at_end, exitpriority=_LAST)

    def _clear_away_at_end(self) -> None:
        """Remove at the end of this process what those leave that it starts from now on."""
        since = time.time()

        def clear_away() -> None:
            if os.getpid() == self._pid:
                _contained(lambda: leftovers.of_children(self._operations, self._pid, since))

        atexit.register(clear_away)
        self._patcher.on_undo(lambda: atexit.unregister(clear_away))

    def _leave_former(self) -> None:
        """Leave the groups that this process entered before it became this program, by exec."""
        left = handover.read(os.environ)
        if left is not None and left.pid == self._pid and self._groups is None:
            _contained(lambda: leftovers.of_this_process(self._operations, self._pid))

    @property
    def _options(self) -> Mapping[str, bool | int | str]:
        return self._affinity.options

    @property
    def _given(self) -> frozenset[str]:
        return self._affinity.given

    def _in_reserve(self) -> bool:
        return False

    def _contained(self, step: Callable[[], object]) -> None:
        try:
            super()._contained(step)
        finally:
            if self._patcher.record.out:
                placement.take_over()

    def _apply(self, machine: Machine, plan: Plan, binding: Binding) -> None:
        self.put_back()
        groups = JobGroups(
            self._operations,
            self._pid,
            names.job_name(os.environ, self._rank),
            names.leaf_name(machine, plan, self._rank),
        )
        others = self._pinned_by_others(binding.base)
        inherited = self._system.mask() < binding.base
        wanted = (self._wanted(machine, plan.train), self._wanted(machine, plan.data))
        try:
            groups.enter(*wanted)
        except OSError as error:
            self._patcher.skip(f"cgroup-unavailable:{_described(error)}")
        self._groups = groups
        self._leave_at_end()
        self._check_memory(groups.memory_problem(*wanted), plan)
        self._pin_again(others, plan.train)
        logs.info(
            f"subcgroups: {groups.folder} ({_CARRY[groups.tier]}): training on CPUs "
            f"{cpulists.format(plan.train)}, data workers on {cpulists.format(plan.data)}"
        )
        if groups.tier == layouts.MEMBERS:
            placement.take_over()
        else:
            self._patcher.wrap(os, "sched_setaffinity", self._set_affinity)
            placement.supersede("superseded by subcgroups, whose groups hold the processes")
            self._hand_over(binding.base, plan.train, plan.data)
            if inherited:
                self._take_all(plan.train)

    def _check_memory(self, problem: str, plan: Plan) -> None:
        """Say that the groups leave other memory nodes than was asked for, and why.

        Raises:
            StrictError: LOONGKIT_STRICT=1; the groups are left then.
        """
        if not problem:
            return
        text = f"LOONGKIT_SUBCGROUPS_MEMS has no effect: {problem}"
        logs.info(f"subcgroups: {text}")
        try:
            self._patcher.fall_short("; ".join((*planning.not_followed(plan), text)))
        except states.StrictError:
            self.put_back()
            raise

    def _take_all(self, cpus: frozenset[int]) -> None:
        """Take the CPUs of the group, where a mask from before the launch would hold on."""
        try:
            self._system.set_mask(0, cpus)
        except OSError as error:
            logs.info(f"subcgroups: the mask that this process was started with stays: {error}")

    def _set_affinity(self, original: Callable[..., None], pid: int, mask: Iterable[int]) -> None:
        """Let the job choose CPUs of which the group has none: the process leaves the group then.

        Without us that would have worked, and a job must not fail because of us.
        """
        mask = list(mask)
        try:
            original(pid, mask)
        except OSError as error:
            if error.errno != errno.EINVAL or pid not in (0, os.getpid()):
                raise
            if not job_groups.let_go(self._operations, os.getpid()):
                raise
            logs.info(f"subcgroups: this process has chosen CPUs {mask} and left its group")
            original(pid, mask)

    def _pinned_by_others(self, base: frozenset[int]) -> dict[int, frozenset[int]]:
        """Return the masks of the threads that have one of their own."""
        usual = (base, self._system.mask())
        masks = {}
        for thread in self._system.threads():
            try:
                masks[thread] = self._system.mask(thread)
            except OSError:
                continue  # it has ended
        return {thread: mask for thread, mask in masks.items() if mask not in usual}

    def _pin_again(self, masks: dict[int, frozenset[int]], cpus: frozenset[int]) -> None:
        """Give those threads their masks back, which older kernels drop on the way."""
        for thread, mask in masks.items():
            try:
                if mask & cpus and self._system.mask(thread) != mask & cpus:
                    self._system.set_mask(thread, mask & cpus)
            except OSError:
                continue

    def _wanted(self, machine: Machine, cpus: frozenset[int]) -> Wanted:
        if not self._patcher.options["mems"]:
            return Wanted(cpus)
        return Wanted(cpus, frozenset(names.nodes_of(machine, cpus)))


def _contained(step: Callable[[], object]) -> None:
    """Do something when all else is done, where nobody is left to be told but the log."""
    try:
        step()
    except Exception as error:
        logs.info(f"subcgroups: groups may be left: {error!r}")


def _affinity() -> decisions.Entry:
    return next(entry for entry in decisions.entries() if entry.name == "numa_affinity")


def _described(error: OSError) -> str:
    """Return an error's name, which one number shares with another, and what it was about."""
    names = {**errno.errorcode, errno.EOPNOTSUPP: "EOPNOTSUPP"}
    about = f": {error.filename}" if error.filename else ""
    return f"{names.get(error.errno or 0, 'unknown')}: {error.strerror}{about}"


_placement: GroupPlacement | None = None
