"""Gathers what ``loongkit topology`` shows: a machine, and where the ranks of a job would run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from loongkit.activation import files, hardware, plan, process, settings, versions
from loongkit.activation.files import Tree
from loongkit.activation.hardware import Accelerator
from loongkit.cli import installed
from loongkit.cli.output import counted
from loongkit.numa import details, devices, nccl_topology, survey, topology, visible_devices
from loongkit.numa import plan as planning
from loongkit.numa.details import Details
from loongkit.numa.records import Machine, Node, Plan, Request

FEATURE = "numa_affinity"
SYSFS = "LOONGKIT_NUMA_AFFINITY_SYSFS"
LOCAL_RANKS = "LOCAL_WORLD_SIZE"

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

    @property
    def cause(self) -> tuple[str, str]:
        """Return why a rank is not bound."""
        return self.reasons[-1]


@dataclass(frozen=True)
class View:
    """What is shown; ``options`` are those of numa_affinity that differ from their defaults.

    ``visible`` is the number of accelerators that a process started here may use, and
    ``chosen_by`` the variable that leaves no more, "" where they are all that the host has;
    ``on`` tells whether NUMA_AFFINITY is on, ``groups_on`` whether SUBCGROUPS is.
    """

    machine: Machine
    details: Details
    visible: int
    chosen_by: str
    ranks: tuple[Rank, ...]
    options: dict[str, bool | int | str]
    on: bool
    groups_on: bool
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
    None: what the launcher has said, else one for each accelerator that a process may use.

    Raises:
        NotAMachine: there is no machine to be read from ``root``.

    """
    found = settings.read(environ)
    decisions = plan.decide(found, plan.entries())
    decision = decisions[FEATURE]
    plan.add_options(decision, found)  # also where it is off: the plan is what it would do
    problems = [text for _, text in found.problems]
    recorded = str(decision.options["sysfs"])
    tree = files.open_tree(root if root is not None else recorded or "/")
    machine = topology.read(tree)
    if tree.live:
        nccl_topology.fill_in(machine, environ)
    elif root is None:
        topology.bring_here(machine, frozenset(os.sched_getaffinity(0)))
        problems.append(
            f"{SYSFS}: shown is the machine recorded in {recorded}, of whose CPUs a job here uses "
            "those that this machine has"
        )
    visible, chosen_by = _visible(environ, machine)
    if ranks is None:
        ranks = _ranks(environ, visible, problems)
    torch = installed.find("torch").version
    return View(
        machine=machine,
        details=details.read(tree, machine),
        visible=visible,
        chosen_by=chosen_by,
        ranks=tuple(
            _rank(environ, machine, decision, torch, number, ranks) for number in range(ranks)
        ),
        options=dict(decision.shown),
        on=decision.on,
        groups_on=decisions["subcgroups"].on,
        problems=tuple(problems),
    )


def _visible(environ: Mapping[str, str], machine: Machine) -> tuple[int, str]:
    """Return how many accelerators torch would show to a process, and what leaves no more."""
    cards = machine.accelerators
    if not cards:
        return 0, ""
    found = visible_devices.read(environ, machine, hardware.summary_kind(cards))
    if found.addresses is None:  # uuids of which no file tells whose they are
        return len(environ[found.source].split(",")), found.source
    count = len(found.addresses)
    return count, found.source if count < len(cards) else ""


def _ranks(environ: Mapping[str, str], visible: int, problems: list[str]) -> int:
    """Return the number of processes on this host; ``problems`` gets what can't be one."""
    said = process.said_local_ranks(environ)
    count = said if 1 <= said <= MOST_RANKS else min(visible, MOST_RANKS) or 1
    text = environ.get(LOCAL_RANKS, "")
    if text.strip() and settings.parse_int(text) != count:
        problems.append(
            f"{LOCAL_RANKS}={settings.shown(text)} is no number of processes; accepted: 1 to "
            f"{MOST_RANKS}. Shown is a job of {counted(count, 'process', 'processes')}"
        )
    return count


def _rank(
    environ: Mapping[str, str],
    machine: Machine,
    decision: plan.Decision,
    torch: str | None,
    number: int,
    count: int,
) -> Rank:
    """Plan for one local rank as its own process would."""
    too_old = survey.too_old(torch, decision.options)
    if too_old:
        return Rank(number, "", Plan(active=False), (("torch-too-old", too_old),), ())
    identity = devices.guess(
        environ,
        machine,
        local_rank=number,
        ranks=count,
        # Without torch: one that knows its devices.
        torch=versions.release(torch or "") or devices.IDENTITY_SINCE,
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
        _merged(identity.reasons, planned.reasons),
        (*identity.warnings, *planned.warnings),
    )


def _merged(
    of_device: tuple[tuple[str, str], ...], of_plan: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """Return both as one; a cause that both have in the words of those who know more about it."""
    known = dict(of_device)
    codes = {code for code, _ in of_plan}
    first = [(code, text) for code, text in of_device if code not in codes]
    return (*first, *((code, known.get(code, text)) for code, text in of_plan))
