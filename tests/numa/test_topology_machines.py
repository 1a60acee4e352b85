"""The reader on real machines: what it finds is what is known of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import children
import machines
import pytest

from loongkit.numa import details, topology

TreeOf = Callable[[str], Path]

COUNTING = """
import sys
opened = []
from loongkit.numa import topology
events = ("open", "os.listdir", "os.scandir")
sys.addaudithook(lambda event, arguments: event in events and opened.append(arguments[0]))
topology.read(sys.argv[1])
print(len(opened), len(set(opened)))
"""


@pytest.mark.parametrize("name", machines.NAMES)
def test_nodes_packages_and_distances(name: str) -> None:
    facts = machines.Facts(name)
    machine = topology.read(machines.record(name))
    assert {id: node.cpus for id, node in machine.nodes.items()} == facts.nodes
    assert all(node.id == id for id, node in machine.nodes.items())
    for id, node in machine.nodes.items():
        packages = [
            package
            for package, members in zip(facts.package_ids, facts.packages, strict=True)
            if node.cpus & members
        ]
        assert [node.package] == (packages or [-1])
        row = facts.spec.get("distances", {})
        wanted = row[facts.ids.index(id)] if row else [10 if o == id else 20 for o in facts.ids]
        assert node.distances == dict(zip(facts.ids, wanted, strict=True))
    assert machine.allowed == facts.online
    assert machine.cpuset == frozenset()


@pytest.mark.parametrize("name", machines.NAMES)
def test_last_level_caches(name: str) -> None:
    facts = machines.Facts(name)
    machine = topology.read(machines.record(name))
    assert set(machine.llcs) == facts.last_level()
    assert list(machine.llcs) == sorted(machine.llcs, key=min)
    assert machine.llcs_known == bool(facts.caches)


@pytest.mark.parametrize("name", machines.NAMES)
def test_accelerators(name: str) -> None:
    facts = machines.Facts(name)
    machine = topology.read(machines.record(name))
    assert {card.pci: card.numa_node for card in machine.accelerators} == facts.cards
    assert [card.pci for card in machine.accelerators] == sorted(facts.cards)
    model = facts.spec.get("accelerators", {}).get("model")
    if model:
        assert {card.name for card in machine.accelerators} == {model}
        assert set(machine.uuids) == set(facts.cards)
        assert len(set(machine.uuids.values())) == len(facts.cards)
    assert machine.notes == ()


@pytest.mark.parametrize(
    ("name", "vendor"),
    [
        ("epyc-9654", "amd"),
        ("hygon-32", "hygon"),
        ("dgx-2", "intel"),
        ("kunpeng-920", "hisilicon"),
        ("loongson-3c6000", "loongson"),
        ("power9", "other"),
        ("sg2042", "other"),
    ],
)
def test_vendor(name: str, vendor: str) -> None:
    assert topology.read(machines.record(name)).vendor == vendor


@pytest.mark.parametrize("name", machines.NAMES)
def test_details(name: str) -> None:
    facts = machines.Facts(name)
    tree = machines.record(name)
    machine = topology.read(tree)
    found = details.read(tree, machine)
    assert set(found.cores) == set(facts.cores)
    assert list(found.cores) == sorted(found.cores, key=min)
    sizes = {facts.caches[-1][2] << 10} if facts.caches else {0}
    assert set(found.cache_bytes) == sizes
    assert len(found.cache_bytes) == len(machine.llcs)
    memory = dict(zip(facts.ids, facts.spec["nodes"]["memory_mb"], strict=True))
    assert found.memory_bytes == {id: size << 20 for id, size in memory.items()}
    assert found.quota is None
    assert found.cpu.architecture == facts.spec.get("arch", found.cpu.architecture)


def test_few_files_are_opened_on_a_machine_of_384_cpus(tree_of: TreeOf) -> None:
    words = [sys.executable, "-c", COUNTING, str(tree_of("epyc-9654"))]
    env = children.clean_env(PYTHONPATH=str(children.SOURCE))
    result = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    opened, different = map(int, result.stdout.split())
    assert opened == different, "a file was read twice"
    assert 24 < opened <= 80


def test_this_machine() -> None:
    import os

    machine = topology.read()
    assert machine.allowed == os.sched_getaffinity(0)
    everywhere = frozenset().union(*(node.cpus for node in machine.nodes.values()))
    assert machine.allowed <= everywhere
    assert frozenset().union(*machine.llcs) == everywhere
    assert sum(map(len, machine.llcs)) == len(everywhere)
