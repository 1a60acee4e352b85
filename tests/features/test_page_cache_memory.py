"""PAGE_CACHE_LIMIT's reading of memory and cgroups, on folders that stand for machines."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from loongkit.activation import logs
from loongkit.activation.cgroups import Groups
from loongkit.activation.files import Folder
from loongkit.page_cache import limiter, memory
from loongkit.page_cache.memory import MemoryCgroup

GB = 1 << 30
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "36 29 0:31 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
MEMINFO = (
    "MemTotal:       67108864 kB\nSwapTotal:  {swap} kB\nDirty: 12 kB\n"
    "Active(file):   1024 kB\nInactive(file): 2048 kB\nCached: 9999 kB\n"
)


class Machine:
    """A root folder with the files of /proc and of a cgroup file system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = Folder(str(root))
        self.write("proc/meminfo", MEMINFO.format(swap=0))

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def v2(self, path: str = "/job/trainer", **files: str) -> str:
        self.write("proc/self/cgroup", f"0::{path}\n")
        self.write("proc/self/mountinfo", V2)
        folder = f"sys/fs/cgroup{path}".rstrip("/")
        files = {"stat": "inactive_file 300\nactive_file 200\nfile 9999\nfile_dirty 7\n", **files}
        for name, text in files.items():
            self.write(f"{folder}/memory.{name}", text)
        return folder

    def v1(self, path: str = "/docker/abc", root: str = "/", **files: str) -> str:
        self.write("proc/self/cgroup", f"4:memory:{path}\n3:cpuset:/other\n0::/\n")
        self.write("proc/self/mountinfo", V2 + V1.format(root=root))
        inside = path.removeprefix(root if root != "/" else "")
        folder = f"sys/fs/cgroup/memory{inside}".rstrip("/")
        files = {"stat": "total_inactive_file 30\ntotal_active_file 20\ntotal_dirty 5\n", **files}
        for name, text in files.items():
            self.write(f"{folder}/memory.{name}", text)
        return folder

    @property
    def cgroup(self) -> MemoryCgroup | None:
        return memory.own_cgroup(Groups(self.tree))

    def use(self) -> tuple[int | None, int]:
        """Reclaimable page cache, and what of it is dirty."""
        cgroup = self.cgroup
        return memory.page_cache(self.tree, cgroup), memory.dirty_files(self.tree, cgroup)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_own_cgroup_of_version_2(machine):
    assert machine.cgroup is None
    folder = machine.v2(max="max")
    assert machine.cgroup == MemoryCgroup(2, folder, False)
    assert machine.use() == (500, 7)


def test_the_own_cgroup_of_version_1_on_a_hybrid_host(machine):
    folder = machine.v1()
    assert machine.cgroup == MemoryCgroup(1, folder, False)
    assert machine.use() == (50, 5)


@pytest.mark.parametrize("path", ["/docker/abc", "/elsewhere"])
def test_a_container_that_sees_the_paths_of_its_host(machine, path):
    machine.v1("/docker/abc", root="/docker/abc")
    machine.write("proc/self/cgroup", f"4:memory:{path}\n")
    assert machine.cgroup == MemoryCgroup(1, "sys/fs/cgroup/memory", False)


@pytest.mark.parametrize("version", [1, 2])
def test_at_the_root_the_machine_counts(machine, version):
    if version == 2:
        machine.v2("/")
    else:
        machine.write(f"{machine.v1('/')}/cgroup.sane_behavior", "0\n")
    cgroup = machine.cgroup
    assert cgroup is not None and cgroup.generation == version and cgroup.is_root
    assert machine.use() == (3 << 20, 12 << 10)


def test_the_root_of_a_namespace_is_a_group_like_any_other(machine):
    machine.v1("/")
    assert machine.cgroup == MemoryCgroup(1, "sys/fs/cgroup/memory", False)
    assert machine.use() == (50, 5)
    machine.v2("/", max="max")
    assert machine.cgroup == MemoryCgroup(2, "sys/fs/cgroup", False)
    assert machine.use() == (500, 7)


@pytest.mark.parametrize("text", ["", "nonsense\n", "0::/\n"])
def test_without_a_memory_cgroup_the_machine_counts(machine, text):
    machine.write("proc/self/cgroup", text)
    machine.write("proc/self/mountinfo", "short line\n1 2 3 - x\n")
    assert machine.cgroup is None
    assert machine.use() == (3 << 20, 12 << 10)


def test_a_group_above_is_not_the_own_one(machine):
    """Others may be in it: nothing must be asked of it, whether ours lacks memory or is hidden."""
    machine.v2("/pod", max="max")
    machine.write("proc/self/cgroup", "0::/pod/job\n")
    assert machine.cgroup is None
    machine.write("sys/fs/cgroup/pod/job/cgroup.procs", "1\n")
    assert machine.cgroup is None


def test_nothing_can_be_read(tmp_path):
    tree = Folder(str(tmp_path))
    assert memory.own_cgroup(Groups(tree)) is None
    assert memory.page_cache(tree, None) is None
    assert memory.dirty_files(tree, None) == 0
    assert not memory.has_swap(tree)


@pytest.mark.parametrize("swap", [0, 1])
def test_swap(machine, swap):
    machine.write("proc/meminfo", MEMINFO.format(swap=swap))
    assert memory.has_swap(machine.tree) == bool(swap)


def test_a_look_at_the_page_cache_reads_one_file(machine, monkeypatch):
    """The leader polls it."""
    machine.v2(max="max")
    cgroup, seen = machine.cgroup, []
    read = Folder.read

    def note(tree, path, limit=4096):
        seen.append(path)
        return read(tree, path, limit)

    monkeypatch.setattr(Folder, "read", note)
    assert memory.page_cache(machine.tree, cgroup) == 500
    assert memory.dirty_files(machine.tree, cgroup) == 7
    assert seen == ["sys/fs/cgroup/job/trainer/memory.stat"] * 2


@pytest.mark.parametrize(
    ("total", "wanted"),
    [(64 * GB, 0.3 * 64 * GB), (1 * GB, 0.5 * GB), (1.5 * GB, 512 << 20), (0.5 * GB, 0.25 * GB)],
)
def test_the_computed_limit(total, wanted):
    assert memory.automatic_limit(int(total)) == int(wanted)


@pytest.mark.parametrize(
    ("size", "total", "wanted", "warnings"),
    [
        (100, 64 * GB, 100 << 20, 0),
        (0, 64 * GB, int(0.3 * 64 * GB), 0),
        (65 * 1024, 64 * GB, 64 * GB, 1),
        (64 * 1024, 64 * GB, 64 * GB, 0),
        (100, None, 100 << 20, 0),
        (0, None, None, 0),
    ],
)
def test_the_limit_that_is_asked_for(monkeypatch, size, total, wanted, warnings):
    said: list[str] = []
    monkeypatch.setattr(logs, "warning", said.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    patcher = types.SimpleNamespace(options={"size": size, "sync": False})
    assert limiter.Limiter(patcher)._limit(total) == wanted
    assert len(said) == warnings
    assert all("LOONGKIT_PAGE_CACHE_LIMIT_SIZE" in line for line in said)
    monkeypatch.setenv("LOCAL_RANK", "3")
    limiter.Limiter(patcher)._limit(total)
    assert len(said) == warnings  # once a job


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": " 4 "}, 4),
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
        ({"LOCAL_WORLD_SIZE": "many"}, 1),
    ],
)
def test_how_many_ranks_share_the_limit(environ, wanted):
    assert limiter._ranks_here(environ) == wanted
