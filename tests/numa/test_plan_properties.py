"""Plans against a brute-force oracle, and what holds of every plan, whatever the host."""

from __future__ import annotations

import itertools

import numa_oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numa_hosts import (
    accelerator,
    codes,
    epyc_7451,
    host,
    hygon_32c,
    kunpeng_920,
    ndv4,
    published_asymmetric,
    request,
)

from loongkit.numa.plan import plan
from loongkit.numa.records import Machine, Node, Plan, Request

SWITCHES = (
    "allow_asymmetric",
    "partition_per_llc",
    "separate_by_roles",
    "train_on_gpuless",
    "data_worker_on_gpuless",
    "data_worker_gpuless_only",
    "memory",
)
HOSTS = {
    "Hygon, 1 GPU": hygon_32c(1),
    "Hygon, 4 GPUs": hygon_32c(4),
    "EPYC 7451": epyc_7451(1),
    "Kunpeng 920": kunpeng_920(2),
    "NDv4": ndv4(),
    "GPUs on three of four nodes": published_asymmetric(),
    "the same on AMD": published_asymmetric(vendor="amd"),
    "GPUs on one of three nodes": host(
        ["0-3", "4-7", "8-11"], [1, 1], llcs=[f"{c}-{c + 1}" for c in range(0, 12, 2)]
    ),
}


def ranks_of(machine: Machine, ranks: int, switches: dict[str, bool], given) -> list[Request]:
    count = len(machine.accelerators)
    devices = [rank % count for rank in range(ranks)]
    return [request(rank, ranks, devices, given=given, **switches) for rank in range(ranks)]


def check(machine: Machine, requests: list[Request]) -> list[Plan]:
    """All properties of the plans of a job's ranks."""
    plans = [plan(machine, each) for each in requests]
    for asked, found in zip(requests, plans, strict=True):
        expected = numa_oracle.answer(machine, asked)
        assert (found.train, found.data, found.memory) == (
            expected or (frozenset(), frozenset(), None)
        )
        assert found.active == (expected is not None)
        assert found.train <= machine.allowed and found.data <= machine.allowed
        assert found.active == bool(found.train) == bool(found.data)
        assert found.reasons and set(found.warnings) <= {text for _code, text in found.reasons}
        assert not any("\n" in text for _code, text in found.reasons)
    check_shares(machine, requests, plans)
    return plans


def check_shares(machine: Machine, requests: list[Request], plans: list[Plan]) -> None:
    """Shares of caches are disjoint between ranks and leave none of the node idle."""
    for node in {each.memory for each in plans} - {None}:
        there = [each for each in plans if each.memory == node]
        usable = machine.nodes[node].cpus & machine.allowed
        split = {"llc-split" in codes(each) for each in there}
        assert len(split) == 1  # all of a node's ranks, or none
        if split == {True}:
            own = [(each.train | each.data) & usable for each in there]
            assert sum(map(len, own)) == len(usable) and frozenset().union(*own) == usable
        for each in there:
            if "roles-split" in codes(each):
                assert not each.train & each.data


@pytest.mark.parametrize("name", HOSTS)
def test_every_combination_of_options_up_to_16_ranks(name: str) -> None:
    machine = HOSTS[name]
    active = split = 0
    for values in itertools.product((False, True), repeat=len(SWITCHES)):
        switches = dict(zip(SWITCHES, values, strict=True))
        # Every combination with some number of ranks, and every number with some combinations.
        ranks = 1 + sum(bit << i for i, bit in enumerate(values)) * 7 % 16
        for given_keys in [(), ("partition_per_llc",)]:
            plans = check(machine, ranks_of(machine, ranks, switches, given_keys))
            active += sum(each.active for each in plans)
            split += sum("llc-split" in codes(each) for each in plans)
    assert active and split  # the comparison was not of nothing with nothing


@pytest.mark.parametrize("ranks", range(1, 17))
@pytest.mark.parametrize("name", HOSTS)
def test_every_number_of_ranks(name: str, ranks: int) -> None:
    machine = HOSTS[name]
    for switches in (
        {"allow_asymmetric": True, "partition_per_llc": True},
        {"partition_per_llc": True, "separate_by_roles": True},
        {"allow_asymmetric": True, "data_worker_on_gpuless": True},
    ):
        check(machine, ranks_of(machine, ranks, switches, ()))


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Hosts of 1 to 4 nodes, whole or with garbage: holes in masks, odd distances, lost nodes."""
    ids = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True))
    sizes = [draw(st.integers(0, 6)) for _ in ids]
    sizes[0] = max(sizes[0], 1)
    numbers = iter(draw(st.permutations(range(sum(sizes)))))
    cpus = {id: frozenset(itertools.islice(numbers, n)) for id, n in zip(ids, sizes, strict=True)}
    nodes = {
        id: Node(
            id,
            cpus[id],
            {other: 10 if other == id else draw(st.integers(11, 14)) for other in ids},
            draw(st.integers(-1, 1)),
        )
        for id in ids
    }
    for a, b in itertools.combinations(ids, 2):  # the kernel's tables are symmetric
        nodes[b].distances[a] = nodes[a].distances[b]  # type: ignore[index]
    width = draw(st.integers(1, 4))
    llcs = [
        frozenset(sorted(members)[i : i + width])
        for members in cpus.values()
        for i in range(0, len(members), width)
    ]
    everything = sorted(frozenset().union(*cpus.values()))
    cpuset = frozenset(draw(st.sets(st.sampled_from(everything), min_size=1)))
    cpuset = draw(st.sampled_from([frozenset(everything), cpuset]))
    allowed = frozenset(draw(st.sets(st.sampled_from(sorted(cpuset)), min_size=1)))
    allowed = draw(st.sampled_from([cpuset, allowed]))
    places = st.sampled_from([*ids, ids[0], -1]) if draw(st.booleans()) else st.sampled_from(ids)
    count = draw(st.integers(1, 6))
    return Machine(
        nodes=nodes,
        llcs=tuple(sorted(llcs, key=min)),
        llcs_known=draw(st.sampled_from([True, True, True, False])),
        accelerators=tuple(accelerator(i, draw(places)) for i in range(count)),
        uuids={},
        vendor=draw(st.sampled_from(["intel", "amd", "hygon", "other"])),
        allowed=allowed,
        cpuset=draw(st.sampled_from([cpuset, frozenset(), cpuset])),
    )


switch_sets = st.fixed_dictionaries({}, optional={key: st.booleans() for key in SWITCHES})


@given(
    machine=machines(),
    switches=switch_sets,
    given_keys=st.sampled_from([(), ("partition_per_llc",)]),
    data=st.data(),
)
@settings(max_examples=400, deadline=None)
def test_any_host_agrees_with_the_oracle(machine, switches, given_keys, data) -> None:
    count = len(machine.accelerators)
    ranks = data.draw(st.integers(1, 16))
    chosen = st.one_of(st.integers(0, count - 1), st.just(""))
    devices = data.draw(
        st.one_of(
            st.just([rank % count for rank in range(ranks)]),
            st.lists(st.integers(0, count - 1), min_size=ranks, max_size=ranks),
            st.lists(chosen, min_size=ranks, max_size=ranks),
        )
    )
    check(
        machine,
        [request(rank, ranks, devices, given=given_keys, **switches) for rank in range(ranks)],
    )


@given(
    machine=machines(),
    rank=st.integers(-2, 20),
    ranks=st.integers(-1, 20),
    devices=st.lists(st.sampled_from(["", "x", *(f"0000:{i:02x}:00.0" for i in range(16, 24))])),
    options=st.dictionaries(
        st.sampled_from([*SWITCHES, "cpus"]),
        st.one_of(st.booleans(), st.none(), st.text(), st.text("0123456789,;- "), st.integers()),
    ),
    given_keys=st.sets(st.sampled_from(SWITCHES)),
)
@settings(max_examples=400, deadline=None)
def test_nothing_is_raised_whatever_is_asked(
    machine, rank, ranks, devices, options, given_keys
) -> None:
    asked = Request(
        local_rank=rank,
        ranks=ranks,
        devices=tuple(devices),
        options=options,
        given=frozenset(given_keys),
    )
    found = plan(machine, asked)
    assert found.train <= machine.allowed and found.data <= machine.allowed
    assert found.active == bool(found.train) == bool(found.data)
    assert found.active or (found.reasons and found.memory is None)
    assert not any("\n" in text for text in found.warnings)
