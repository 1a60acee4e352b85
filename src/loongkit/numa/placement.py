"""Places this process and its data workers: decides once, binds, confirms, and can put it all back.

The ranks of a job are placed when Loongkit is armed, before OpenMP sizes its pool by the mask. Any
other process is placed when it first uses a device, so that launchers, pip and scripts that
prepare data never are. Data workers get their own mask at the start of their loop.
"""

from __future__ import annotations

import os
import sys

from loongkit.activation import logs, process, session, states, versions
from loongkit.activation.patching import Skip
from loongkit.numa import handover, launched, openmp, survey, torch_state
from loongkit.numa import plan as planning
from loongkit.numa.binding import Binding
from loongkit.numa.report import Report
from loongkit.numa.survey import Survey
from loongkit.numa.system import PREFERRED, System

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from loongkit.activation.patching import Patcher
    from loongkit.numa.records import Machine, Plan

#: Why a process was not placed so far, in the words of the summary.
_UNPLACED = "no launcher gave this process a local rank, and it has used no GPU"
_UNKNOWN = "which GPU this process computes on could not be known"
_STARTED_BY = "local rank {} or a data worker of it has started this program, which stays there"


def of(patcher: Patcher) -> Placement:
    """Return the placement of this process, which all hooks of the feature share."""
    global _placement
    if _placement is None or not _placement.belongs_to(patcher):
        _placement = Placement(patcher)
        patcher.on_undo(_placement.put_back)
    return _placement


class Placement:
    """What was decided for one process, and what was done about it."""

    def __init__(self, patcher: Patcher, system: System | None = None) -> None:
        self._patcher = patcher
        self._system = system or System()
        self._pid = os.getpid()
        self._survey = Survey()
        self._rank = self._survey.rank
        self._binding: Binding | None = None
        self._plan: Plan | None = None
        self._is_worker = False
        self._confirmed = False
        self._took_over = False
        self._report = Report(self._rank)

    def belongs_to(self, patcher: Patcher) -> bool:
        """Tell whether it was made for this patcher, not for one of an earlier activation."""
        return self._patcher is patcher

    def at_start(self) -> bool:
        """Place a rank before it imports any framework; False: only later can tell.

        Raises:
            Skip: this process is not to be bound, with the reason.
        """
        return not self._in_reserve() and self._place_rank()

    def _place_rank(self) -> bool:
        if self._stays():
            return True
        version = survey.torch_on_path()
        if version is None or process.is_launcher():
            return False
        self._check(version)
        self._look(version)
        # Which device this rank uses may show only once it is in use.
        return self._carry_out(must=False)

    def at_import(self, device_module: Any) -> None:
        """Check the version that was really imported, and wait for the first use of a device.

        ``device_module`` is torch.cuda, under which also vendors' devices register.

        Raises:
            Skip: this torch can't tell which device is which.
        """
        self._check(versions.module_version("torch"))
        if not self._stays() and not self._patcher.record.unused:
            self._patcher.expect(_UNPLACED if self._rank < 0 else _UNKNOWN)
        # Runs at once where the device is in use already.
        device_module._lazy_call(self._when_used)

    def at_step(self, optimizer: Any, *_: Any) -> None:
        """Confirm or correct the placement by the device that the first optimiser step is on.

        Not at the first use: every rank's current device is 0 until it has chosen another one,
        and choosing is a use. To be registered as a hook that runs after each step.
        """
        if self._confirmed or self._in_reserve():
            return
        self._confirmed = True
        self._contained(lambda: self._confirm(torch_state.device_index(optimizer)))

    def worker(self) -> None:
        """Move the data worker that is starting in this process to the CPUs of its kind."""
        self._is_worker = True
        left = handover.read(os.environ)
        if left is None or left.pid == os.getpid() or self._is_held():
            return
        mask = self._system.mask()
        pinned = mask < left.train and bool(openmp.binding_variables(os.environ))
        if mask == left.train or pinned:  # else the user has chosen another mask in the meantime
            self._system.set_mask(0, left.data)
            prefers = self._system.memory_policy() == PREFERRED
            if left.data != left.train and self._options["memory"] and prefers:
                # It has inherited a preference for the node of the GPU, and may be on another one.
                self._system.prefer_memory(None)

    def at_worker_loop(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a data worker's loop, after moving it. To be wrapped around that loop."""
        try:
            self.worker()
        except Exception as error:
            logs.info(f"{self._name}: a data worker is left where it is: {error!r}")
        return original(*args, **kwargs)

    def take_over(self) -> None:
        """Place the process after all, where something else should have and could not.

        Raises:
            StrictError: LOONGKIT_STRICT=1 and the process can't be placed.
        """
        if not self._took_over:
            self._took_over = True
            self._contained(self._at_first_use if "torch" in sys.modules else self._place_rank)

    def supersede(self, reason: str) -> None:
        """Put everything back, since something else places the process as it was asked to."""
        self._patcher.record.strict = False  # that is what the user wants
        self._patcher.step_aside(reason)

    def put_back(self) -> None:
        """Undo the binding in the process that did it."""
        if self._binding is not None and os.getpid() == self._pid:
            self._binding.put_back()
            handover.forget(os.environ)

    def _check(self, version: str | None) -> None:
        problem = survey.too_old(version, self._options)
        if problem:
            self._patcher.skip(problem)

    def _look(self, version: str | None) -> None:
        mask = self._system.mask()
        base = handover.base_mask(launched.started_with(os.environ, mask), os.environ)
        try:
            self._survey.look(self._options, base, version)
        except ValueError as error:
            self._patcher.skip(str(error))
        self._binding = Binding(self._system, base, inherits=handover.read(os.environ) is not None)

    def _contained(self, step: Callable[[], object]) -> None:
        """Do something in the middle of the job.

        Raises:
            StrictError: LOONGKIT_STRICT=1 and the process can't be placed.
        """
        if os.getpid() != self._pid or self._is_worker or self._patcher.record.out:
            return  # a child that inherited the call; its own worker loop has placed it
        try:
            step()
        except Skip as skip:
            reason, failed = str(skip), False
        except states.StrictError:
            raise
        except Exception as error:
            reason, failed = f"{type(error).__name__}: {error}", True
        else:
            return
        (self._patcher.give_up if failed else self._patcher.step_aside)(reason)

    def _when_used(self) -> None:
        if not self._in_reserve():
            self._contained(self._at_first_use)

    def _at_first_use(self) -> None:
        if self._plan is not None or self._stays():
            return
        if self._survey.machine is None:
            self._look(versions.module_version("torch"))
        if self._carry_out(must=False):
            torch_state.limit_threads(len(self._system.mask()), self._name)

    def _confirm(self, index: int | None) -> None:
        """Ask the devices who they are, and place the process anew where it was placed wrongly."""
        if index is None or self._survey.machine is None:
            return
        if self._survey.confirm(index) or self._plan is None:
            self._carry_out(must=True)

    def _carry_out(self, must: bool) -> bool:
        """Plan, bind, and leave word to children; tell whether the process was bound.

        ``must``: not knowing the device is no reason to wait any longer.

        Raises:
            Skip: there is nothing to be bound to, with the reason.
        """
        found = self._survey.plan(self._options, self._given)
        if found is None or self._binding is None:
            return False
        plan, identity, machine = found
        if not must and plan.reasons and plan.reasons[-1][0] == "no-device-identity":
            self._wait_for_device(dict(identity.reasons).get("no-device-identity"))
            return False
        self._report.warn(self._name, (*identity.warnings, *plan.warnings))
        self._report.explain(self._name, (*identity.reasons, *plan.reasons))
        if not plan.active:
            code, text = plan.reasons[-1]
            # The same cause in the words of those who know more about it.
            text = dict(identity.reasons).get(code, text)
            self._patcher.skip(f"{code}: {text}")
        missing = planning.not_followed(plan)
        if missing:
            self._patcher.fall_short("; ".join(missing))
        self._apply(machine, plan, self._binding)
        self._plan = plan
        self._patcher.mark()
        return True

    def _apply(self, machine: Machine, plan: Plan, binding: Binding) -> None:
        for refused in binding.bind(plan.train, plan.memory):
            logs.info(f"{self._name}: {refused}")
            if "memory" in self._given:
                self._patcher.fall_short(refused)
        self._hand_over(binding.base, plan.train, plan.data)

    def _wait_for_device(self, doubt: str | None) -> None:
        """Say why the device of a rank is not known yet: in the log, and later in the summary."""
        why = f"{_UNKNOWN}: {doubt}" if doubt else _UNKNOWN
        if self._patcher.record.unused != why:
            logs.info(f"{self._name}: {why}")
            self._patcher.expect(why)

    def _hand_over(self, base: frozenset[int], train: frozenset[int], data: frozenset[int]) -> None:
        handover.Handover(
            pid=self._pid,
            rank=self._rank,
            ranks=self._survey.ranks,
            base=base,
            train=train,
            data=data,
        ).write(os.environ)

    def _stays(self) -> bool:
        """Tell whether a placed rank has started this program, or its data worker: it stays."""
        stays = handover.is_of_placed_rank(
            os.environ,
            pid=os.getpid(),
            rank=self._rank,
            ranks=self._survey.ranks,
            mask=self._system.mask(),
        )
        if stays:
            self._patcher.expect(_STARTED_BY.format(self._rank))
        return stays

    def _in_reserve(self) -> bool:
        """Tell whether sub-cgroups are going to place the process, unless they can't be had."""
        record = session.SESSION.records.get("subcgroups")
        holds = record is not None and record.decision.on and not record.out
        return holds and not self._took_over

    def _is_held(self) -> bool:
        """Tell whether sub-cgroups hold this data worker, whose parent has been put into one."""
        if not self._in_reserve():
            return False
        from loongkit.numa.cgroups import own
        from loongkit.numa.cgroups.operations import Operations

        return own.holds_cpus(Operations(), os.getpid())

    @property
    def _name(self) -> str:
        return self._patcher.record.name

    @property
    def _options(self) -> Mapping[str, bool | int | str]:
        return self._patcher.options

    @property
    def _given(self) -> frozenset[str]:
        return self._patcher.given


_placement: Placement | None = None


def take_over() -> None:
    """Have NUMA_AFFINITY place the process after all, if it is on.

    Raises:
        StrictError: LOONGKIT_STRICT=1 and the process can't be placed.
    """
    if _placement is not None:
        _placement.take_over()


def supersede(reason: str) -> None:
    """Have NUMA_AFFINITY, if it is on, step aside."""
    if _placement is not None:
        _placement.supersede(reason)
