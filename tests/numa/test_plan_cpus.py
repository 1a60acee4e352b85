"""The user's own lists, LOONGKIT_NUMA_AFFINITY_CPUS."""

from __future__ import annotations

import pytest
from numa_hosts import codes, host, request, shown

from loongkit.activation import cpulists
from loongkit.numa import plan_cpus
from loongkit.numa.plan import plan

MACHINE = host(["0-31", "32-63"], [0, 1], llcs=["0-31", "32-63"])


@pytest.mark.parametrize(
    ("text", "lists"),
    [
        ("0-31,32-63", ["0-31", "32-63"]),
        ("0-31;32-63", ["0-31", "32-63"]),
        ("0-3,8;4-7,12", ["0-3,8", "4-7,12"]),
        ("0-3,8;", ["0-3,8"]),
        (" 0-3 , 4-7 ", ["0-3", "4-7"]),
        ("0 ; 1 ", ["0", "1"]),
        ("5", ["5"]),
        ("0-1,0-1", ["0-1", "0-1"]),
    ],
)
def test_a_list_for_each_rank(text, lists) -> None:
    assert plan_cpus.read(text) == [cpulists.parse(each) for each in lists]
    for rank, expected in enumerate(lists):
        found = plan(MACHINE, request(rank, len(lists), cpus=text))
        assert shown(found) == (expected, expected) and codes(found) == ["cpus"]
        assert not found.warnings


def test_lists_that_nobody_uses_are_told() -> None:
    """Two ranges that were meant for one rank look like that."""
    found = plan(MACHINE, request(0, 1, cpus="0-15,32-47"))
    assert shown(found) == ("0-15", "0-15") and codes(found) == ["cpus-not-used", "cpus"]
    assert found.reasons[0][1].endswith(
        "has 2 lists, of which 1 are used; for one rank a list of several ranges ends in ;"
    )
    assert codes(plan(MACHINE, request(0, 1, cpus="0-15,32-47;"))) == ["cpus"]


BAD = [
    "x",
    "0-",
    "3-1",
    "0,,1",
    "0;;1",
    ";",
    ",",
    "0x1",
    "-1",
    "0-3 4",
    "0.5",
    "0-99999999999",
    "1-2-3",
    "²",
]


@pytest.mark.parametrize("text", BAD)
def test_a_text_that_is_no_list_acts_as_unset(text) -> None:
    unset = plan(MACHINE, request(1, 2))
    found = [plan(MACHINE, request(rank, 2, cpus=text)) for rank in range(2)]
    assert shown(found[1]) == shown(unset) and found[1].memory == 1
    assert found[0].warnings == found[1].warnings  # so that one rank can speak for all
    (warning,) = found[0].warnings
    assert warning.startswith(f"LOONGKIT_NUMA_AFFINITY_CPUS='{text}'") and "accepted:" in warning
    assert "\n" not in warning and codes(found[0])[0] == "cpus-not-read"


def test_a_long_text_is_cut_in_the_warning() -> None:
    (warning,) = plan(MACHINE, request(0, 1, cpus="x\n" * 500)).warnings
    assert len(warning) < 400 and "\n" not in warning


def test_too_few_lists_act_as_unset() -> None:
    found = plan(MACHINE, request(1, 2, cpus="0-31"))
    assert codes(found)[0] == "cpus-too-few" and shown(found) == ("32-63", "32-63")
    assert "has lists for 1 of the 2 local ranks" in found.warnings[0]


def test_lists_for_more_ranks_than_there_are_do_no_harm() -> None:
    found = plan(MACHINE, request(0, 1, cpus="0-3,4-7,400"))
    assert shown(found) == ("0-3", "0-3") and not found.warnings


def test_lists_reach_hosts_without_accelerators_and_override_everything() -> None:
    bare = host(["0-31", "32-63"])
    assert shown(plan(bare, request(0, 2, [], cpus="4,8"))) == ("4", "4")
    options = {"separate_by_roles": True, "train_on_gpuless": True, "partition_per_llc": True}
    found = plan(MACHINE, request(1, 2, cpus="0,1", **options))
    assert shown(found) == ("1", "1") and not found.warnings
    bound = host(["0-3", "4-7"], [0, 1], allowed="0-1")
    assert shown(plan(bound, request(0, 1, cpus="1"))) == ("1", "1")


def test_a_process_without_local_rank_takes_the_first() -> None:
    assert shown(plan(MACHINE, request(-1, 1, [0, 1], cpus="7,9"))) == ("7", "7")


def test_memory_follows_lists_within_one_node() -> None:
    assert plan(MACHINE, request(0, 1, cpus="40-41")).memory == 1
    assert plan(MACHINE, request(0, 1, cpus="40-41", memory=False)).memory is None
    assert plan(MACHINE, request(0, 1, cpus="30-33")).memory is None


def test_cpus_that_are_not_allowed_are_left_out_and_named_on_every_rank() -> None:
    machine = host(["0-31", "32-63"], [0, 1], allowed="0-35")
    found = [plan(machine, request(rank, 3, cpus="0-3,34-37,60-70")) for rank in range(3)]
    assert [shown(each) for each in found] == [("0-3", "0-3"), ("34-35", "34-35"), None]
    assert len({each.warnings for each in found}) == 1
    assert "36-37,60-70" in found[0].warnings[0]
    assert codes(found[2]) == ["cpus-not-allowed"] * 2
