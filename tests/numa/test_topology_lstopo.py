"""The reader against hwloc's lstopo, which reads the same files on its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lstopo
import machines
import pytest

from loongkit.activation import files
from loongkit.numa import details, topology
from loongkit.numa.records import Machine

pytestmark = pytest.mark.skipif(
    lstopo.command() is None, reason="lstopo is missing: apt-get install hwloc-nox"
)


def compare(machine: Machine, cores: tuple[frozenset[int], ...], facts: lstopo.Facts) -> None:
    nodes = {id: node.cpus for id, node in machine.nodes.items()}
    # lstopo shows nodes of memory alone with the CPUs near to them, or not at all.
    assert {id: facts.nodes[id] for id, cpus in nodes.items() if cpus} == {
        id: cpus for id, cpus in nodes.items() if cpus
    }
    pieces = {llc & cpus for llc in facts.llcs for cpus in nodes.values() if llc & cpus}
    assert set(machine.llcs) == (pieces or {cpus for cpus in nodes.values() if cpus})
    assert machine.llcs_known == bool(facts.llcs)
    assert set(cores) == facts.cores
    for card in machine.accelerators:
        if card.kind == "nvidia" and card.numa_node >= 0:
            assert facts.cards[card.pci] == nodes[card.numa_node]


@pytest.mark.parametrize("name", machines.NAMES)
def test_recorded_machines(tree_of: Callable[[str], Path], name: str) -> None:
    tree = files.open_tree(str(tree_of(name)))
    machine = topology.read(tree)
    compare(machine, details.read(tree, machine).cores, lstopo.read(tree_of(name)))


def test_this_machine() -> None:
    tree = files.open_tree("/")
    machine = topology.read(tree)
    compare(machine, details.read(tree, machine).cores, lstopo.read())
