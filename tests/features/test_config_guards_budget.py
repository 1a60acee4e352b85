"""The CPUs, the quota and the memory that CONFIG_GUARDS reckons with, on made-up control groups."""

from __future__ import annotations

import os
import types

import pytest

from loongkit.activation.files import Folder
from loongkit.guards import budget as budgets
from loongkit.guards import cgroups, openmp
from loongkit.guards.budget import Budget

MIB = 1 << 20
V2 = "31 23 0:28 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
)


@pytest.fixture
def machine(tmp_path):
    """Make a machine's files; paths are relative to its root."""

    def make(cgroup="", mounts="", **files):
        files = {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mounts, **files}
        for path, text in files.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")
        return Folder(str(tmp_path))

    return make


def test_no_cgroups_no_quota(machine):
    tree = machine()
    assert cgroups.cpu_quota(tree) is None
    assert cgroups.memory_headroom(tree) is None


@pytest.mark.parametrize(
    ("own", "parent", "quota"),
    [
        ("max 100000", "max 100000", None),
        ("400000 100000", "max 100000", 4.0),
        ("max 100000", "250000 100000", 2.5),
        ("400000 100000", "250000 100000", 2.5),
        ("50000 100000", "250000 100000", 0.5),
        ("garbage", "-1 0", None),
        ("100000 0", "max", None),
    ],
)
def test_quota_of_cgroup_2_is_the_smallest_up_the_tree(machine, own, parent, quota):
    files = {
        "sys/fs/cgroup/pod/job/cpu.max": own,
        "sys/fs/cgroup/pod/cpu.max": parent,
    }
    tree = machine("0::/pod/job", V2.format(root="/"), **files)
    assert cgroups.cpu_quota(tree) == quota


@pytest.mark.parametrize(
    ("own", "parent", "quota"), [("-1", "-1", None), ("400000", "-1", 4.0), ("-1", "150000", 1.5)]
)
def test_quota_of_cgroup_1(machine, own, parent, quota):
    folder = "sys/fs/cgroup/cpu,cpuacct"
    files = {
        f"{folder}/docker/job/cpu.cfs_quota_us": own,
        f"{folder}/docker/job/cpu.cfs_period_us": "100000",
        f"{folder}/docker/cpu.cfs_quota_us": parent,
        f"{folder}/docker/cpu.cfs_period_us": "100000",
    }
    tree = machine("4:cpu,cpuacct:/docker/job\n0::/", V1.format(root="/"), **files)
    assert cgroups.cpu_quota(tree) == quota


def test_a_container_that_sees_its_hosts_paths(machine):
    """The group is mounted itself (its root in the mount table), or paths lead out of the mount."""
    inside = {"sys/fs/cgroup/cpu.max": "300000 100000"}
    for root in ("/docker/job", "/docker/other"):
        tree = machine("0::/docker/job", V2.format(root=root), **inside)
        assert cgroups.cpu_quota(tree) == 3.0


def test_blanks_in_mount_points(machine):
    mounts = r"31 23 0:28 / /sys/fs/c\040group rw - cgroup2 cgroup2 rw"
    tree = machine("0::/a", mounts, **{"sys/fs/c group/a/cpu.max": "100000 100000"})
    assert cgroups.cpu_quota(tree) == 1.0


def memory_2(limit, used, inactive=0):
    return {
        "memory.max": limit,
        "memory.current": used,
        "memory.stat": f"anon 5\ninactive_file {inactive}\nactive_file 9",
    }


def below(folder, files):
    return {f"{folder}/{name}": str(text) for name, text in files.items()}


def test_headroom_is_the_tightest_up_the_tree_and_counts_reclaimable_cache(machine):
    files = {
        **below("sys/fs/cgroup/pod/job", memory_2("max", 100)),
        **below("sys/fs/cgroup/pod", memory_2(1000 * MIB, 700 * MIB, 200 * MIB)),
        "proc/meminfo": "MemTotal:  4096000 kB\nMemAvailable:  3000000 kB",
    }
    found = cgroups.memory_headroom(machine("0::/pod/job", V2.format(root="/"), **files))
    assert found == (500 * MIB, 1000 * MIB, "the container's memory.max")


def test_headroom_of_cgroup_1_and_of_the_machine(machine):
    folder = "sys/fs/cgroup/memory/docker"
    files = {
        f"{folder}/memory.limit_in_bytes": str(800 * MIB),
        f"{folder}/memory.usage_in_bytes": str(900 * MIB),
        f"{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {300 * MIB}",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "0",
        "proc/meminfo": "MemTotal:  4096000 kB\nMemAvailable:  100 kB",
    }
    tree = machine("4:memory:/docker", V1.format(root="/"), **files)
    assert cgroups.memory_headroom(tree) == (102400, 4096000 << 10, "the machine's memory")
    files["proc/meminfo"] = "MemTotal:  4096000 kB\nMemAvailable:  3000000 kB"
    tree = machine("4:memory:/docker", V1.format(root="/"), **files)
    assert cgroups.memory_headroom(tree).free == 200 * MIB


def mask(count, start=0):
    return frozenset(range(start, start + count))


@pytest.mark.parametrize(
    ("own", "launcher", "ranks", "share"),
    [
        (64, 64, 1, 64),
        (64, 64, 8, 8),
        (32, 64, 8, 8),  # bound to one of two nodes, four ranks each
        (8, 64, 8, 8),  # bound to CPUs of its own
        (64, 64, 100, 1),
    ],
)
def test_ranks_share_what_they_are_bound_to(machine, monkeypatch, own, launcher, ranks, share):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: mask(launcher) if pid else mask(own))
    environ = {"LOCAL_WORLD_SIZE": str(ranks)}
    found = budgets.read(machine(), environ, mask(own))
    assert found.share == share and found.ranks == ranks


def test_a_data_worker_looks_at_what_started_its_rank(machine, monkeypatch):
    """Its own parent is the rank, bound as it is: all ranks would seem to share these CPUs."""
    masks = {700: mask(64), 55: mask(8)}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: masks[pid])
    rank = types.SimpleNamespace(pid=55)
    monkeypatch.setattr(budgets.multiprocessing, "parent_process", lambda: rank)
    tree = machine(**{"proc/55/stat": "55 (a ) name) S 700 1 1"})
    assert budgets.read(tree, {"LOCAL_WORLD_SIZE": "8"}, mask(8)).share == 8


def test_a_launcher_that_cannot_be_asked(machine, monkeypatch):
    def refuse(pid):
        raise ProcessLookupError

    monkeypatch.setattr(os, "sched_getaffinity", refuse)
    assert budgets.read(machine(), {"LOCAL_WORLD_SIZE": "2"}, mask(8)).share == 4


def test_what_numa_affinity_has_set(machine):
    """The base mask, the rank's and its workers', as it leaves them in the environment."""
    environ = {"LOCAL_WORLD_SIZE": "8", "LOONGKIT_JOB_PLACEMENT": "1/0-63/0-15/16-31"}
    found = budgets.read(machine(), environ, mask(16))
    assert (found.sharers, found.share, found.data_cpus) == (2, 8, 16)
    together = {**environ, "LOONGKIT_JOB_PLACEMENT": "1/0-63/0-15/0-15"}
    assert budgets.read(machine(), together, mask(16)).data_cpus is None


@pytest.mark.parametrize(
    ("quota", "ranks", "cpus"), [(4.0, 1, 4), (3.5, 1, 4), (8.0, 4, 2), (1.0, 4, 1)]
)
def test_shares_of_a_quota(quota, ranks, cpus):
    assert Budget(cpus=64, ranks=ranks, sharers=ranks, quota=quota).time.cpus == cpus
    assert Budget(cpus=64).time is None


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, ()),
        ({"OMP_PROC_BIND": "false"}, ()),
        ({"OMP_PROC_BIND": "close"}, ("OMP_PROC_BIND",)),
        ({"KMP_AFFINITY": "disabled"}, ()),
        ({"KMP_AFFINITY": "granularity=fine,compact,1,0"}, ("KMP_AFFINITY",)),
        ({"GOMP_CPU_AFFINITY": " "}, ()),
        (
            {"GOMP_CPU_AFFINITY": "0-3", "OMP_PROC_BIND": "true"},
            ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY"),
        ),
    ],
)
def test_variables_that_bind_threads(environ, names):
    assert openmp.binding_variables(environ) == names
    if not names:
        assert openmp.places(environ) == frozenset()
