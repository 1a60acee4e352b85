"""What a process knows of its machine and its accelerators, and the plan that follows from it."""

from __future__ import annotations

import os
import sys

from loongkit.activation import process, versions
from loongkit.numa import devices, nccl_topology, topology
from loongkit.numa import plan as planning
from loongkit.numa.records import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from loongkit.numa.records import Machine, Plan

_TOO_OLD = (
    "found torch {}, wanted >=2.5.0; LOONGKIT_NUMA_AFFINITY_ALLOW_INDEX=1 matches devices by index"
)


class Survey:
    """The machine and the accelerators of the local ranks, as far as this process can tell.

    ``rank`` is the local rank, -1 where no launcher has said it, and ``ranks`` the number of them,
    at least as many as that shows; ``machine`` and ``identity`` are None until ``look``.
    """

    def __init__(self) -> None:
        self.rank = process.local_rank(os.environ) if process.has_local_rank(os.environ) else -1
        said = process.said_local_ranks(os.environ)
        self._knows_peers = said > self.rank
        self.ranks = max(said, self.rank + 1, 1)
        self.machine: Machine | None = None
        self.identity: devices.Identity | None = None

    def look(
        self, options: Mapping[str, bool | int | str], base: frozenset[int], torch: str | None
    ) -> None:
        """Read the machine, and guess the accelerators before any is in use.

        ``base`` is the mask to plan from, ``torch`` the version of torch.

        Raises:
            ValueError: the recorded machine that the options name is none.
        """
        root = str(options["sysfs"]) or "/"
        machine = topology.read(root)
        if root != "/":
            topology.bring_here(machine, base)
        else:
            machine.allowed = base
            nccl_topology.fill_in(machine, os.environ)
        self.machine = machine
        self.identity = devices.guess(
            os.environ,
            machine,
            local_rank=self.rank,
            ranks=self.ranks,
            torch=versions.release(torch or ""),
            allow_index=bool(options["allow_index"]),
        )

    def confirm(self, index: int) -> bool:
        """Ask the devices in use who they are; tell whether that differs from what was guessed.

        ``index`` is that of the device that this process computes on.
        """
        if self.machine is None or self.identity is None:
            return False
        live = devices.read_live(sys.modules["torch"].cuda, self.machine, index)
        if live is None:
            return False
        before = self.identity
        self.identity = devices.confirm(
            live, self.machine, before, local_rank=self.rank, ranks=self.ranks
        )
        return self.identity is not before

    def plan(
        self, options: Mapping[str, bool | int | str], given: frozenset[str]
    ) -> tuple[Plan, devices.Identity, Machine] | None:
        """Return the plan with what it rests on; None before ``look``."""
        if self.machine is None or self.identity is None:
            return None
        request = Request(
            local_rank=self.rank,
            ranks=self.ranks,
            devices=self._devices(self.identity),
            options=options,
            given=given,
        )
        return planning.plan(self.machine, request), self.identity, self.machine

    def _devices(self, identity: devices.Identity) -> tuple[str, ...]:
        """Return the accelerators of all local ranks, with one more where their number is unknown.

        Lightning and scripts of the user's own set a local rank and nothing else; shares that were
        reckoned from it would overlap.
        """
        if self._knows_peers or not identity.devices:
            return identity.devices
        return (*identity.devices, "")


def too_old(version: str | None, options: Mapping[str, bool | int | str]) -> str:
    """Return why this version of torch can't tell which device is which, "" where it can."""
    release = versions.release(version or "")
    by_name = bool(options["cpus"]) or bool(options["allow_index"])
    if by_name or release is None or release >= devices.IDENTITY_SINCE:
        return ""
    return _TOO_OLD.format(version)


def torch_on_path() -> str | None:
    """Return the version of the torch that this process would import, read from its files."""
    for entry in sys.path:
        found = versions.version_in_file([os.path.join(entry or os.curdir, "torch")])
        if found is not None:
            return found
    return None
