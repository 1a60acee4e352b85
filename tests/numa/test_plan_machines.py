"""Plans for recorded machines, from their files: reading, identity and plan together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import machines
import numa_oracle
import pytest
from numa_hosts import codes, shown

from loongkit.numa import devices, topology
from loongkit.numa.plan import plan
from loongkit.numa.records import Plan, Request

TreeOf = Callable[[str], Path]
NONE = ["loongson-3c6000", "epyc-7451", "sg2042"]  # no accelerator


def asked(machine: topology.Machine, rank: int, ranks: int, **options: bool) -> Request:
    identity = devices.guess(
        {}, machine, local_rank=rank, ranks=ranks, torch=(2, 8), allow_index=True
    )
    return Request(
        local_rank=rank,
        ranks=ranks,
        devices=identity.devices,
        options=options,
        given=frozenset(options),
    )


def plans(folder: Path, ranks: int, **options: bool) -> list[Plan]:
    machine = topology.read(str(folder))
    return [plan(machine, asked(machine, rank, ranks, **options)) for rank in range(ranks)]


#: Machine, ranks, and for some ranks their CPUs, by default.
GOLDEN = [
    ("dgx-2", 16, {0: "0-23,48-71", 7: "0-23,48-71", 8: "24-47,72-95", 15: "24-47,72-95"}),
    ("p4d", 8, {0: "0-23,48-71", 3: "0-23,48-71", 4: "24-47,72-95"}),
    ("epyc-9654", 8, {0: "0-23,192-215", 3: "72-95,264-287", 7: "168-191,360-383"}),
    ("epyc-9654", 4, {0: "0-23,192-215", 3: "72-95,264-287"}),
    ("epyc-9654", 16, {0: "0-95,192-287"}),  # 12 caches for 8 ranks
    ("hygon-32", 4, {0: "0-7,32-39", 3: "24-31,56-63"}),
    ("kunpeng-920", 4, {0: "64-95", 1: "96-127", 2: "0-31", 3: "32-63"}),
    ("power9", 6, {0: "0-87", 2: "0-87", 3: "88-175", 5: "88-175"}),
    # 6 caches a node for 2 ranks; GPUs on nodes 1, 1, 0, 0, 3, 3, 2, 2
    ("ndv4", 8, {0: "24-35", 1: "36-47", 2: "0-11", 3: "12-23", 4: "72-83", 7: "60-71"}),
    ("intel-snc", 2, {0: None, 1: None}),  # GPUs on two of four nodes
    ("epyc-7763", 8, {0: None, 7: None}),  # GPUs on four of eight nodes
    *((name, 2, {0: None, 1: None}) for name in NONE),
]


@pytest.mark.parametrize(("name", "ranks", "expected"), GOLDEN)
def test_golden_plans(tree_of: TreeOf, name: str, ranks: int, expected: dict[int, str]) -> None:
    found = plans(tree_of(name), ranks)
    for rank, cpus in expected.items():
        assert shown(found[rank]) == (None if cpus is None else (cpus, cpus)), rank
    assert not any(each.warnings for each in found)


def test_why_the_others_are_not_bound(tree_of: TreeOf) -> None:
    for name, code in [*((name, "no-gpu") for name in NONE), ("intel-snc", "asymmetric")]:
        assert codes(plans(tree_of(name), 1)[0]) == [code]


def test_asymmetric_machines_with_permission(tree_of: TreeOf) -> None:
    options = {"allow_asymmetric": True, "data_worker_on_gpuless": True}
    snc = plans(tree_of("intel-snc"), 2, **options, data_worker_gpuless_only=True)
    assert [shown(each) for each in snc] == [
        ("0-11,48-59", "12-23,60-71"),
        ("24-35,72-83", "36-47,84-95"),
    ]
    nps4 = plans(tree_of("epyc-7763"), 8, **options)
    assert [each.memory for each in nps4] == [3, 3, 1, 1, 7, 7, 5, 5]
    # Nodes 0 and 2 are as far from node 1 as from node 3, of one socket: the lower id has them.
    assert [len(each.data) // 32 for each in nps4] == [1, 1, 3, 3, 1, 1, 3, 3]


@pytest.mark.parametrize("name", sorted(set(machines.NAMES) - set(NONE)))
@pytest.mark.parametrize("ranks", [1, 2, 4, 6, 8, 16])
def test_the_oracle_agrees(tree_of: TreeOf, name: str, ranks: int) -> None:
    machine = topology.read(str(tree_of(name)))
    everything = {
        "partition_per_llc": True,
        "separate_by_roles": True,
        "allow_asymmetric": True,
        "data_worker_on_gpuless": True,
    }
    for options in ({}, everything):
        for rank in {0, ranks // 2, ranks - 1}:
            request = asked(machine, rank, ranks, **options)
            found = plan(machine, request)
            expected = numa_oracle.answer(machine, request)
            assert (expected is not None) == found.active
            if expected is not None:
                assert (found.train, found.data, found.memory) == expected
