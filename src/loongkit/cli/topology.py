"""Gathers what ``loongkit topology`` shows: a machine, and where the ranks of a job would run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from loongkit.activation import files, plan, settings, versions
from loongkit.activation.files import Tree
from loongkit.activation.hardware import Accelerator
from loongkit.cli import installed
from loongkit.numa import details, devices, nccl_topology, topology
from loongkit.numa import plan as planning
from loongkit.numa.details import Details
from loongkit.numa.records import Machine, Node, Plan, Request

FEATURE = "numa_affinity"
SYSFS = "LOONGKIT_NUMA_AFFINITY_SYSFS"

#: More processes than anybody starts on one host; planning each looks at all of them.
MOST_RANKS = 1024


@dataclass(frozen=True)
class Rank:
    """Where one local rank and its data workers would run: its device ("": unknown), its plan.

    ``reasons`` are (code, text) pairs, those about the device before those about the CPUs.
    """

    number: int
    device: str
    plan: Plan
    reasons: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """What is shown; ``options`` are those of numa_affinity that differ from their defaults."""

    machine: Machine
    details: Details
    ranks: tuple[Rank, ...]
    options: dict[str, bool | int | str]
    on: bool
    problems: tuple[str, ...]

    def node_of(self, cpus: frozenset[int]) -> Node:
        """Return the node that a cache or a core lies in."""
        return next(node for node in self.machine.nodes.values() if cpus <= node.cpus)

    def llcs_of(self, node: Node) -> list[tuple[frozenset[int], int]]:
        """Return the last-level caches of a node as CPU sets, with their sizes in bytes."""
        sized = zip(self.machine.llcs, self.details.cache_bytes, strict=True)
        return [(cpus, size) for cpus, size in sized if cpus <= node.cpus]

    def cores_of(self, cpus: frozenset[int]) -> list[frozenset[int]]:
        """Return the cores that lie within a set of CPUs, by their smallest CPU."""
        return [core for core in self.details.cores if core <= cpus]

    def cards_of(self, node: int) -> list[Accelerator]:
        """Return the accelerators that hang on a node (-1: those of which that isn't known)."""
        return [card for card in self.machine.accelerators if card.numa_node == node]

    @property
    def bound(self) -> tuple[Rank, ...]:
        """Return the ranks that would be bound."""
        return tuple(rank for rank in self.ranks if rank.plan.active)


def gather(environ: Mapping[str, str], root: str | Tree | None, ranks: int | None) -> View:
    """Return the machine whose files lie below a root, and the plan of a job there.

    ``root`` is None for the machine that a job here would plan for: this one, or a recorded one
    that LOONGKIT_NUMA_AFFINITY_SYSFS names. ``ranks`` is the number of processes on this host;
    None: what the launcher has said, else one for each accelerator.

    Raises:
        NotAMachine: there is no machine to be read from ``root``.

    """
    found = settings.read(environ)
    decision = plan.decide(found, plan.entries())[FEATURE]
    plan.add_options(decision, found)  # also where it is off: the plan is what it would do
    problems = [text for _, text in found.problems]
    recorded = str(decision.options["sysfs"])
    tree = files.open_tree(root or recorded or "/")
    machine = topology.read(tree)
    if tree.live:
        nccl_topology.fill_in(machine, environ)
    elif root is None:
        topology.bring_here(machine, frozenset(os.sched_getaffinity(0)))
        problems.append(
            f"{SYSFS}: shown is the machine recorded in {recorded}, of whose CPUs a job here uses "
            "those that this machine has"
        )
    count = ranks or _ranks(environ, machine)
    return View(
        machine=machine,
        details=details.read(tree, machine),
        ranks=tuple(_rank(environ, machine, decision, number, count) for number in range(count)),
        options=dict(decision.shown),
        on=decision.on,
        problems=tuple(problems),
    )


def _ranks(environ: Mapping[str, str], machine: Machine) -> int:
    said = environ.get("LOCAL_WORLD_SIZE", "").strip()
    if said.isascii() and said.isdigit() and 0 < int(said[:9]) <= MOST_RANKS:
        return int(said)
    return len(machine.accelerators) or 1


def _rank(
    environ: Mapping[str, str],
    machine: Machine,
    decision: plan.Decision,
    number: int,
    count: int,
) -> Rank:
    """Plan for one local rank as its own process would."""
    identity = devices.guess(
        environ,
        machine,
        local_rank=number,
        ranks=count,
        torch=_torch(),
        allow_index=bool(decision.options["allow_index"]),
    )
    request = Request(
        local_rank=number,
        ranks=count,
        devices=identity.devices,
        options=decision.options,
        given=decision.given,
    )
    planned = planning.plan(machine, request)
    return Rank(
        number,
        identity.devices[number] if number < len(identity.devices) else "",
        planned,
        (*identity.reasons, *planned.reasons),
        (*identity.warnings, *planned.warnings),
    )


def _torch() -> tuple[int, ...]:
    """Return the release of the installed torch; without one, a release that knows its devices."""
    return versions.release(installed.find("torch").version or "") or devices.IDENTITY_SINCE
