"""The plan of NUMA_AFFINITY on hosts whose answers are known, and the cause of each refusal."""

from __future__ import annotations

import children
import pytest
from numa_hosts import (
    codes,
    epyc_7451,
    epyc_9654,
    host,
    hygon_32c,
    kunpeng_920,
    ndv4,
    published_asymmetric,
    request,
    shown,
)

from loongkit.activation.hardware import Accelerator
from loongkit.numa.plan import plan


def test_the_planner_loads_nothing_at_the_start_of_a_rank() -> None:
    code = (
        "import os, sys; before = set(sys.modules); "
        "import loongkit.numa.plan, loongkit.numa.devices; print(*set(sys.modules) - before)"
    )
    result = children.run("-S", "-c", code, env=children.clean_env(PYTHONPATH=str(children.SOURCE)))
    assert result.status == 0, result
    assert {name for name in result.out.split() if not name.startswith("loongkit")} <= {
        "__future__"
    }
    assert "loongkit.numa.plan_caches" in result.out.split()


class TestPlainAffinity:
    two_nodes = host(["0-3", "4-7"], [0, 0, 1, 1])

    def test_rank_and_workers_get_the_node_of_the_accelerator(self) -> None:
        found = [plan(self.two_nodes, request(rank, 4)) for rank in range(4)]
        assert [shown(each) for each in found] == [("0-3", "0-3")] * 2 + [("4-7", "4-7")] * 2
        assert [each.memory for each in found] == [0, 0, 1, 1]
        assert not any(each.warnings for each in found)

    def test_memory_is_left_alone_when_the_user_says_so(self) -> None:
        found = plan(self.two_nodes, request(3, 4, memory=False))
        assert (found.active, found.memory) == (True, None)

    def test_order_of_accelerators_is_not_the_order_of_nodes(self) -> None:
        found = [plan(ndv4(), request(rank, 8)).memory for rank in range(8)]
        assert found == [1, 1, 0, 0, 3, 3, 2, 2]

    def test_two_of_eight_accelerators_are_a_part_of_a_symmetric_host(self) -> None:
        found = plan(ndv4(), request(0, 2, [6, 7], partition_per_llc=False))
        assert (found.active, found.memory) == (True, 2)

    def test_sparse_node_ids(self) -> None:
        found = plan(host({0: "0-3", 33: "4-7"}, [0, 33]), request(1, 2))
        assert (shown(found), found.memory) == (("4-7", "4-7"), 33)

    def test_a_single_node_is_home_whatever_the_firmware_says(self) -> None:
        found = plan(host(["0-7"], [-1, -1]), request(1, 2))
        assert (shown(found), found.memory) == (("0-7", "0-7"), 0)
        assert plan(host(["0-7"], [-1]), request(1, 2, ["", ""])).active

    def test_memory_of_a_gpu_is_not_a_home(self) -> None:
        """Power9 and Grace show the GPUs' memory as nodes without CPUs."""
        rows = {
            0: {0: 10, 8: 40, 254: 80, 255: 80},
            8: {0: 40, 8: 10, 254: 80, 255: 60},
            254: {0: 40, 8: 80, 254: 10, 255: 80},
            255: {0: 80, 8: 60, 254: 80, 255: 10},
        }
        machine = host({0: "0-3", 8: "4-7", 254: "", 255: ""}, [254, 255], distances=rows)
        found = [plan(machine, request(rank, 2)) for rank in (0, 1)]
        assert [(shown(each), each.memory) for each in found] == [
            (("0-3", "0-3"), 0),
            (("4-7", "4-7"), 8),
        ]

    def test_a_process_without_local_rank_gets_all_nodes_of_its_accelerators(self) -> None:
        machine = host(["0-3", "4-7", "8-11"], [0, 1, 2], llcs=["0-3", "4-7", "8-11"], vendor="amd")
        found = plan(machine, request(-1, 1, [0, 2]))
        assert (shown(found), found.memory) == (("0-3,8-11", "0-3,8-11"), None)
        assert "no-local-rank" in codes(found) and not found.warnings
        assert plan(machine, request(-1, 1, [0, 2], partition_per_llc=True)).warnings
        assert plan(machine, request(-1, 1, [2])).memory == 2

    def test_another_vendors_display_card_does_not_count(self) -> None:
        machine = host(["0-3", "4-7"], [0, 1])
        display = Accelerator("AMD", "amd", "0000:01:00.0", "console", 0)
        machine.accelerators = (display, *machine.accelerators)
        assert plan(machine, request(1, 2)).active
        assert codes(plan(machine, request(0, 1, ["0000:01:00.0"]))) == ["asymmetric"]

    def test_more_ranks_than_accelerators_share_the_nodes(self) -> None:
        found = [plan(self.two_nodes, request(rank, 8, [0, 1, 2, 3] * 2)) for rank in range(8)]
        assert [each.memory for each in found] == [0, 0, 1, 1] * 2


class TestNothingIsBound:
    @pytest.mark.parametrize(
        ("machine", "asked", "code"),
        [
            (host(["0-3", "4-7"], []), request(0), "no-gpu"),
            (host(["0-3", "4-7"], [0, 1]), request(0, 2, []), "no-gpu"),
            (host({}, [0]), request(0), "no-topology"),
            (host(["0-3", "4-7"], [0, 1]), request(0, 2, ["", ""]), "no-device-identity"),
            (host(["0-3", "4-7"], [0, 1]), request(2, 2), "no-device-identity"),
            (host(["0-3", "4-7"], [0, 1]), request(-1, 1, [0, ""]), "no-device-identity"),
            (host(["0-3", "4-7"], [-1, -1]), request(0, 2), "gpu-node-unknown"),
            (host(["0-3", "4-7"], [7, 0]), request(0, 2), "gpu-node-unknown"),
            (host(["0-3", "4-7"], [0, -1]), request(0, 2), "gpu-node-unknown"),
            (host(["0-3", "4-7"], [0, 1]), request(0, 1, ["0000:99:00.0"]), "gpu-node-unknown"),
            (host(["0-3", "4-7"], [0, 0]), request(0, 2), "asymmetric"),
            (host(["0-3", "4-7"], [0, 0, 1]), request(2, 3), "asymmetric"),
            (host(["0-3", "4-7"], [0, 1], allowed="4-7", cpuset="4-7"), request(0, 2),
             "cpuset-excludes-node"),
        ],
    )  # fmt: skip
    def test_the_last_reason_is_the_cause(self, machine, asked, code) -> None:
        found = plan(machine, asked)
        assert not found.active and codes(found)[-1] == code
        assert (found.train, found.data, found.memory) == (frozenset(), frozenset(), None)
        assert all(text for _code, text in found.reasons) and not found.warnings

    def test_one_accelerator_of_unknown_node_leaves_the_others_bound_where_that_is_allowed(
        self,
    ) -> None:
        machine = host(["0-3", "4-7"], [0, -1])
        assert plan(machine, request(0, 2, allow_asymmetric=True)).memory == 0
        assert codes(plan(machine, request(1, 2, allow_asymmetric=True))) == ["gpu-node-unknown"]

    def test_a_binding_that_somebody_made_is_kept(self) -> None:
        kept = plan(host(["0-3", "4-7"], [0, 1], allowed="0-1"), request(0, 2))
        assert codes(kept) == ["kept"] and not kept.active and not kept.warnings
        elsewhere = plan(host(["0-3", "4-7"], [0, 1], allowed="4-7"), request(0, 2))
        assert codes(elsewhere) == ["kept"] and not elsewhere.active
        assert len(elsewhere.warnings) == 1 and "node 1" in elsewhere.warnings[0]

    def test_a_containers_cpus_are_no_binding(self) -> None:
        machine = host(["0-3", "4-7"], [0, 1], allowed="0-1", cpuset="0-1")
        assert shown(plan(machine, request(0, 2))) == ("0-1", "0-1")
        bound = host(["0-3", "4-7"], [0, 1], allowed="1", cpuset="0-1")
        assert codes(plan(bound, request(0, 2))) == ["kept"]

    def test_a_mask_over_several_nodes_is_no_binding(self) -> None:
        machine = host(["0-7", "8-15"], [0, 1], allowed="4-11")
        assert shown(plan(machine, request(1, 2))) == ("8-11", "8-11")

    @pytest.mark.parametrize(
        ("allowed", "warned"),
        [("0,16-31", True), ("0-2,16-31", True), ("0-3,16-31", False), ("0", False)],
    )
    def test_few_cpus_are_warned_of_where_binding_takes_others_away(self, allowed, warned) -> None:
        machine = host(["0-15", "16-31"], [0, 1], allowed=allowed, cpuset=allowed)
        found = plan(machine, request(0, 2))
        assert found.active and bool(found.warnings) == warned == ("few-cpus" in codes(found))

    def test_the_only_cpu_of_a_node_is_all_of_it(self) -> None:
        assert codes(plan(host(["0", "1"], [0, 1]), request(0, 2))) == ["node"]

    def test_one_cpu_of_a_small_node_is_few(self) -> None:
        machine = host(["0-1", "2-3"], [0, 1], allowed="0,2-3")
        assert plan(machine, request(0, 2)).warnings
        assert not plan(machine, request(1, 2)).warnings


class TestCaches:
    """The golden cases: (machine, ranks a node) -> the CPUs of some ranks."""

    def test_epyc_9654_with_four_ranks_a_socket(self) -> None:
        found = [shown(plan(epyc_9654(4), request(rank, 8))) for rank in range(8)]
        assert found[0] == ("0-23,192-215",) * 2
        assert found[3] == ("72-95,264-287",) * 2
        assert found[4] == ("96-119,288-311",) * 2
        assert found[7] == ("168-191,360-383",) * 2

    def test_epyc_9654_with_eight_ranks_a_socket_is_uneven(self) -> None:
        default = plan(epyc_9654(8), request(0, 16))
        assert shown(default) == ("0-95,192-287",) * 2
        assert "llc-uneven" in codes(default) and not default.warnings
        explicit = plan(epyc_9654(8), request(0, 16, partition_per_llc=True))
        assert shown(explicit) == shown(default) and "12 last-level" in explicit.warnings[0]

    def test_hygon_with_four_ranks(self) -> None:
        found = [shown(plan(hygon_32c(4), request(rank, 4))) for rank in range(4)]
        assert found[0] == ("0-7,32-39",) * 2 and found[3] == ("24-31,56-63",) * 2

    def test_epyc_7451_with_two_ranks_a_node(self) -> None:
        found = [shown(plan(epyc_7451(2), request(rank, 16))) for rank in range(16)]
        assert found[:2] == [("0-2,48-50",) * 2, ("3-5,51-53",) * 2]
        assert found[15] == ("45-47,93-95",) * 2

    def test_kunpeng_920(self) -> None:
        alone = plan(kunpeng_920(1), request(3, 4, partition_per_llc=True))
        assert shown(alone) == ("96-127",) * 2 and "llc-split" in codes(alone)
        two = plan(kunpeng_920(2), request(7, 8, partition_per_llc=True))
        assert shown(two) == ("96-127",) * 2 and "llc-uneven" in codes(two)

    def test_a_cache_over_two_nodes_is_one_for_each(self) -> None:
        """Sub-NUMA clustering: both halves of a socket share its L3."""
        machine = host(["0-3", "4-7"], [0, 1], llcs=["0-7"])
        found = plan(machine, request(1, 2, partition_per_llc=True))
        assert shown(found) == ("4-7", "4-7") and "llc-split" in codes(found)

    def test_shares_go_by_pci_address_then_rank(self) -> None:
        machine = host(["0-7"], [0, 0], llcs=["0-1", "2-3", "4-5", "6-7"], vendor="amd")
        found = [shown(plan(machine, request(rank, 4, [1, 0, 1, 0])))[0] for rank in range(4)]
        assert found == ["4-5", "0-1", "6-7", "2-3"]

    def test_the_containers_cpus_are_shared_out(self) -> None:
        machine = host(
            ["0-7"], [0, 0], llcs=["0-1", "2-3", "4-5", "6-7"], allowed="4-7", cpuset="4-7"
        )
        found = [plan(machine, request(rank, 2, partition_per_llc=True)) for rank in range(2)]
        assert [shown(each)[0] for each in found] == ["4-5", "6-7"]

    def test_caches_of_unequal_rest_are_uneven(self) -> None:
        machine = host(["0-7"], [0, 0], llcs=["0-3", "4-7"], allowed="0-6", cpuset="0-6")
        found = plan(machine, request(0, 2, partition_per_llc=True))
        assert shown(found) == ("0-6", "0-6") and "3 to 4" in found.warnings[0]

    def test_masks_that_may_differ_between_ranks_are_not_shared_out(self) -> None:
        machine = host(
            ["0-7", "8-15"], [0, 1], llcs=["0-3", "4-7", "8-11", "12-15"], allowed="0-11",
            cpuset="0-15",
        )  # fmt: skip
        found = plan(machine, request(1, 2, partition_per_llc=True))
        assert shown(found) == ("8-11", "8-11") and "peers-unknown" in codes(found)

    def test_unknown_caches(self) -> None:
        for caches in (None, ["0-3"], ["0-5", "2-7"]):
            machine = host(["0-7"], [0], llcs=caches)
            if caches:
                machine.llcs_known = True
            found = plan(machine, request(0, 1, partition_per_llc=True))
            assert shown(found) == ("0-7", "0-7"), caches
            assert "llc-unknown" in codes(found) and found.warnings

    @pytest.mark.parametrize("devices", [[0, ""], [0], [0, "0000:99:00.0"]])
    def test_unknown_peers(self, devices) -> None:
        machine = host(["0-3", "4-7"], [0, 1], llcs=["0-1", "2-3", "4-5", "6-7"], vendor="amd")
        found = plan(machine, request(0, 2, devices))
        assert shown(found) == ("0-3", "0-3") and "peers-unknown" in codes(found)
        assert not found.warnings

    def test_a_rank_beyond_the_number_of_ranks_has_no_share(self) -> None:
        machine = host(["0-3"], [0, 0], llcs=["0-1", "2-3"], vendor="amd")
        found = plan(machine, request(5, 2, [0, 1]))
        assert shown(found) == ("0-3", "0-3") and "peers-unknown" in codes(found)

    @pytest.mark.parametrize(
        ("vendor", "options", "given", "split"),
        [
            ("intel", {}, (), False),
            ("other", {}, (), False),
            ("amd", {}, (), True),
            ("hygon", {}, (), True),
            ("amd", {"partition_per_llc": False}, (), True),
            ("amd", {"partition_per_llc": False}, ("partition_per_llc",), False),
            ("amd", {"allow_asymmetric": True}, (), False),
            ("amd", {"allow_asymmetric": True, "partition_per_llc": True}, (), True),
            ("intel", {"partition_per_llc": True}, (), True),
        ],
    )
    def test_default_by_hardware(self, vendor, options, given, split) -> None:
        machine = host(["0-3"], [0, 0], llcs=["0-1", "2-3"], vendor=vendor)
        found = plan(machine, request(1, 2, given=given, **options))
        assert shown(found) == (("2-3", "2-3") if split else ("0-3", "0-3"))


class TestRoles:
    def test_first_half_and_the_odd_cache_train(self) -> None:
        found = plan(epyc_9654(4), request(1, 8, separate_by_roles=True))
        assert shown(found) == ("24-39,216-231", "40-47,232-239")
        assert codes(found) == ["node", "llc-split", "roles-split"] and not found.warnings

    @pytest.mark.parametrize(
        ("machine", "ranks", "given", "text"),
        [
            (kunpeng_920(1), 4, (), "PARTITION_PER_LLC=1"),
            (hygon_32c(8), 8, (), "a single one"),
            (hygon_32c(3), 3, (), "can't be split"),
            (hygon_32c(2), 2, ("partition_per_llc",), "PARTITION_PER_LLC=1"),
        ],
    )
    def test_without_two_caches_there_is_a_warning(self, machine, ranks, given, text) -> None:
        asked = request(0, ranks, separate_by_roles=True, partition_per_llc=False, given=given)
        found = plan(machine, asked)
        assert found.train == found.data and codes(found)[-1] == "roles-need-2-llc"
        assert len(found.warnings) == 1 and text in found.warnings[0]


#: TRAIN_ON_GPULESS, DATA_WORKER_ON_GPULESS, DATA_WORKER_GPULESS_ONLY, the process of GPU 2 and
#: its data workers: the published table.
PUBLISHED = """
| 0 | 0 | ignored | node 2 | node 2 |
| 0 | 1 | 0 | node 2 | nodes 2,3 |
| 0 | 1 | 1 | node 2 | node 3 |
| 1 | 0 | ignored | nodes 2,3 | node 2 |
| 1 | 1 | 0 | nodes 2,3 | nodes 2,3 |
| 1 | 1 | 1 | nodes 2,3 | node 3 |
"""


def published_rows() -> list[tuple[dict[str, bool], str, str]]:
    names = ("train_on_gpuless", "data_worker_on_gpuless", "data_worker_gpuless_only")
    rows = []
    for line in PUBLISHED.split("\n")[1:-1]:
        *options, train, data = (cell.strip() for cell in line.strip("|").split("|"))
        for last in "01" if options[2] == "ignored" else options[2]:
            values = (options[0] == "1", options[1] == "1", last == "1")
            rows.append((dict(zip(names, values, strict=True)), train, data))
    return rows


class TestAsymmetric:
    @pytest.mark.parametrize(("options", "train", "data"), published_rows())
    def test_published_table(self, options, train, data) -> None:
        where = {"node 2": "16-23", "node 3": "24-31", "nodes 2,3": "16-31"}
        found = plan(published_asymmetric(), request(2, 3, allow_asymmetric=True, **options))
        assert shown(found) == (where[train], where[data]) and found.memory == 2
        assert not found.warnings

    def test_the_table_has_eight_rows(self) -> None:
        assert len(published_rows()) == 8

    def test_a_node_without_neighbours_stays_with_itself(self) -> None:
        options = {"train_on_gpuless": True, "data_worker_on_gpuless": True}
        for only in (False, True):
            found = plan(
                published_asymmetric(),
                request(1, 3, allow_asymmetric=True, data_worker_gpuless_only=only, **options),
            )
            assert shown(found) == ("8-15", "8-15") and "no-gpuless-node" in codes(found)

    def test_a_neighbour_outside_the_container_is_none(self) -> None:
        machine = published_asymmetric(allowed="0-23", cpuset="0-23")
        asked = request(2, 3, allow_asymmetric=True, data_worker_on_gpuless=True,
                        data_worker_gpuless_only=True)  # fmt: skip
        found = plan(machine, asked)
        assert shown(found) == ("16-23", "16-23") and "no-gpuless-node" in codes(found)

    def test_without_permission_the_options_are_ignored_aloud(self) -> None:
        found = plan(published_asymmetric(), request(2, 3, data_worker_on_gpuless=True))
        assert codes(found) == ["ignored", "asymmetric"] and not found.active
        assert "DATA_WORKER_ON_GPULESS" in found.warnings[0]
        even = plan(host(["0-3", "4-7"], [0, 1]), request(1, 2, train_on_gpuless=True))
        assert shown(even) == ("4-7", "4-7") and codes(even)[0] == "ignored"

    def test_on_a_symmetric_host_they_have_nothing_to_lend(self) -> None:
        options = {"train_on_gpuless": True, "allow_asymmetric": True}
        found = plan(host(["0-3", "4-7"], [0, 1]), request(1, 2, **options))
        assert shown(found) == ("4-7", "4-7") and not found.warnings

    def test_a_free_node_belongs_to_the_nearest(self) -> None:
        """At a tie to its own package's, then to the lower id."""
        even = {a: {b: 10 if a == b else 20 for b in range(3)} for a in range(3)}
        far = {a: {**even[a], **({2: 30} if a == 1 else {})} for a in range(3)}
        options = {"allow_asymmetric": True, "train_on_gpuless": True}

        def borrower(distances, packages) -> list[str]:
            machine = host(["0-1", "2-3", "4-5"], [0, 1], distances=distances, packages=packages)
            plans = [plan(machine, request(rank, 2, **options)) for rank in range(2)]
            return [shown(each)[0] for each in plans]

        assert borrower(even, None) == ["0-1,4-5", "2-3"]
        assert borrower(even, {0: 0, 1: 1, 2: 1}) == ["0-1", "2-5"]
        assert borrower(far, {0: 0, 1: 1, 2: 1}) == ["0-1,4-5", "2-3"]

    def test_caches_are_split_only_when_asked_and_only_on_the_own_node(self) -> None:
        machine = published_asymmetric(vendor="amd")
        asked = {"allow_asymmetric": True, "partition_per_llc": True}
        devices = [2, 2]
        found = plan(machine, request(1, 2, devices, **asked))
        assert shown(found) == ("20-23", "20-23")
        lent = plan(machine, request(1, 2, devices, train_on_gpuless=True, **asked))
        assert shown(lent) == ("16-31", "16-23") and "llc-gpuless" in codes(lent)
        assert lent.warnings
        workers = plan(machine, request(1, 2, devices, data_worker_on_gpuless=True, **asked))
        assert shown(workers) == ("20-23", "20-31")

    def test_roles_beside_lent_nodes(self) -> None:
        asked = {"allow_asymmetric": True, "partition_per_llc": True, "separate_by_roles": True}
        machine = published_asymmetric()
        found = plan(machine, request(0, 1, [2], data_worker_on_gpuless=True, **asked))
        assert shown(found) == ("16-19", "20-31")
        apart = plan(
            machine,
            request(0, 1, [2], data_worker_on_gpuless=True, data_worker_gpuless_only=True, **asked),
        )
        assert shown(apart) == ("16-23", "24-31") and not apart.warnings

    def test_a_node_that_may_have_an_accelerator_is_not_lent(self) -> None:
        machine = host(["0-1", "2-3", "4-5"], [0, 1, -1])
        options = {"allow_asymmetric": True, "train_on_gpuless": True}
        found = plan(machine, request(0, 3, **options))
        assert shown(found) == ("0-1", "0-1") and "gpu-node-unknown" in codes(found)
