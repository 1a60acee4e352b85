"""The CPUs that CONFIG_GUARDS reckons with."""

from __future__ import annotations

import os
import types

import pytest

from loongkit.activation.files import Folder
from loongkit.guards import budget as budgets
from loongkit.guards import openmp
from loongkit.guards.budget import Budget

V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"


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


def test_the_quota_of_the_control_groups(machine):
    tree = machine("0::/pod", V2, **{"sys/fs/cgroup/pod/cpu.max": "250000 100000"})
    assert budgets.read(tree, {}, mask(8)).quota == 2.5
    assert budgets.read(machine(), {}, mask(8)).quota is None


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
    environ = {"LOCAL_WORLD_SIZE": "8", "LOONGKIT_JOB_PLACEMENT": "1/0/8/0-63/0-15/16-31"}
    found = budgets.read(machine(), environ, mask(16))
    assert (found.sharers, found.share, found.data_cpus) == (2, 8, 16)
    together = {**environ, "LOONGKIT_JOB_PLACEMENT": "1/0/8/0-63/0-15/0-15"}
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
