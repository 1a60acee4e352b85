"""The CPUs that CONFIG_GUARDS reckons with."""

from __future__ import annotations

import os
import types

import pytest

from loongkit.activation.files import Folder
from loongkit.guards import allowance, libraries, openmp
from loongkit.guards import budget as budgets
from loongkit.guards.budget import Budget
from loongkit.numa import launched
from loongkit.numa.openmp import binding_variables

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
        ({"OMP_PLACES": "cores"}, ("OMP_PLACES",)),
        ({"OMP_PLACES": "cores", "OMP_PROC_BIND": "FALSE"}, ()),
        ({"KMP_AFFINITY": "compact", "OMP_PROC_BIND": "false"}, ()),
        (
            {"GOMP_CPU_AFFINITY": "0-3", "OMP_PROC_BIND": "true"},
            ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY"),
        ),
    ],
)
def test_variables_that_bind_threads(environ, names):
    assert binding_variables(environ) == names
    if not names:
        assert openmp.binding(environ) == openmp.Binding()


class Library:
    """An OpenMP library that binds its threads to places, or to none."""

    def __init__(self, *places):
        self._places = places

    def omp_get_num_places(self):
        return len(self._places)

    def omp_get_place_num_procs(self, place):
        return len(self._places[place])

    def omp_get_place_proc_ids(self, place, cpus):
        cpus[:] = self._places[place]


@pytest.mark.parametrize(
    ("name", "environ", "variables"),
    [
        ("libgomp-a1b2.so.1", {"OMP_PLACES": "cores"}, ("OMP_PLACES",)),
        ("libgomp-a1b2.so.1", {"KMP_AFFINITY": "compact"}, ()),  # GNU's does not read it
        ("libiomp5.so", {"KMP_AFFINITY": "compact"}, ("KMP_AFFINITY",)),
        (
            "libgomp.so.1",
            {"KMP_AFFINITY": "compact", "OMP_PROC_BIND": "close"},
            ("OMP_PROC_BIND",),
        ),
    ],
)
def test_what_binds_threads_is_what_the_library_reads(monkeypatch, name, environ, variables):
    library = Library([0, 64], [1, 65])
    monkeypatch.setattr(libraries, "loaded", lambda *_: [(name, library)])
    found = openmp.binding(environ)
    assert found == (variables, frozenset([0, 1, 64, 65]) if variables else frozenset())
    monkeypatch.setattr(libraries, "loaded", lambda *_: [(name, Library())])
    assert openmp.binding(environ) == openmp.Binding()


@pytest.fixture
def process(monkeypatch, machine):
    """Make a process: what it was started with, its threads' masks and its OpenMP's places."""

    def make(main, started=frozenset(), others=(), places=frozenset(), environ=(), cpuset=""):
        masks = {0: main, 1: main, **{2 + number: other for number, other in enumerate(others)}}
        monkeypatch.setattr(allowance, "_started_with", frozenset(started))
        monkeypatch.setattr(os, "sched_getaffinity", masks.__getitem__)
        monkeypatch.setattr(os, "listdir", lambda path: [str(tid) for tid in masks if tid])
        bound = openmp.Binding(("OMP_PROC_BIND",) if places else (), frozenset(places))
        monkeypatch.setattr(openmp, "binding", lambda environ: bound)
        files = {"sys/fs/cgroup/pod/cpuset.cpus.effective": cpuset} if cpuset else {}
        tree = machine("0::/pod", V2, **files)
        return allowance.of_process(tree, dict(environ))

    return make


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # Confined from outside: taskset, numactl, Slurm, a cpuset. It may use no more.
        ({"main": mask(1), "started": mask(1)}, mask(1)),
        ({"main": mask(1), "started": mask(1), "others": [mask(1)]}, mask(1)),
        ({"main": mask(1)}, mask(1)),  # nobody has noted the start
        ({"main": mask(1), "started": mask(8), "cpuset": "0"}, mask(1)),  # moved since
        ({"main": mask(1), "started": mask(1), "places": mask(1)}, mask(1)),
        # Bound from inside.
        ({"main": mask(1), "started": mask(8)}, mask(8)),
        ({"main": mask(1), "started": mask(8), "cpuset": "0-3"}, mask(4)),
        ({"main": mask(1), "others": [mask(1, 3), mask(4)]}, mask(4)),
        ({"main": mask(1), "places": mask(4)}, mask(4)),
        ({"main": mask(2), "started": mask(8), "places": mask(8)}, mask(8)),  # a core
        # A choice.
        ({"main": mask(2), "started": mask(8)}, mask(2)),
        ({"main": mask(3), "started": mask(8), "places": mask(8)}, mask(3)),
        # NUMA_AFFINITY places the process and its workers.
        (
            {
                "main": mask(1),
                "started": mask(8),
                "environ": {"LOONGKIT_JOB_PLACEMENT": "1/0/1/0-7/0/0"},
            },
            mask(1),
        ),
    ],
)
def test_what_a_process_may_use(process, found, expected):
    allowed = process(**found)
    assert (allowed.mask, allowed.cpus) == (found["main"], expected)
    bound_by_openmp = found["main"] < expected and "places" in found
    assert allowed.variables == (("OMP_PROC_BIND",) if bound_by_openmp else ())


def test_the_start_is_noted_once(monkeypatch):
    monkeypatch.setattr(allowance, "_started_with", frozenset())
    for found in (mask(8), mask(1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, found=found: found)
        allowance.note_start()
    assert allowance._started_with == mask(8)
    assert not allowance._bound_before


def test_a_launcher_that_openmp_has_bound_is_looked_through(process, monkeypatch):
    for name in ("_started_with", "_bound_before"):
        monkeypatch.setattr(allowance, name, frozenset())  # as it is, after the test
    monkeypatch.setattr(launched, "started_with", lambda _environ, _mask: mask(8))
    allowance.note_start()
    environ = {"OMP_PROC_BIND": "true"}
    allowed = process(main=mask(1), started=mask(8), places=mask(1), environ=environ)
    assert allowed == (mask(1), mask(8), ("OMP_PROC_BIND",))


def test_libraries_are_found_and_not_loaded():
    ((name, library),) = libraries.loaded("libc.so")
    assert name.startswith("libc.so") and library.getpid() == os.getpid()
    assert list(libraries.loaded("libnobodyhas")) == []
