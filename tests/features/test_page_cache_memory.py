"""PAGE_CACHE_LIMIT's reading of memory and cgroups, on folders that stand for machines."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from loongkit.activation import logs
from loongkit.page_cache import limiter, memory
from loongkit.page_cache.memory import MemoryCgroup
from loongkit.page_cache.system import System

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
        self.system = System(str(root))
        self.write("/proc/meminfo", MEMINFO.format(swap=0))

    def write(self, path: str, text: str) -> None:
        file = Path(f"{self.root}{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def text(self, path: str) -> str:
        return Path(f"{self.root}{path}").read_text(encoding="utf-8")

    def v2(self, path: str = "/job/trainer", **files: str) -> str:
        self.write("/proc/self/cgroup", f"0::{path}\n")
        self.write("/proc/self/mountinfo", V2)
        folder = f"/sys/fs/cgroup{path}".rstrip("/")
        files = {"stat": "inactive_file 300\nactive_file 200\nfile 9999\nfile_dirty 7\n", **files}
        for name, text in files.items():
            self.write(f"{folder}/memory.{name}", text)
        return folder

    def v1(self, path: str = "/docker/abc", root: str = "/", **files: str) -> str:
        self.write("/proc/self/cgroup", f"4:memory:{path}\n3:cpuset:/other\n0::/\n")
        self.write("/proc/self/mountinfo", V2 + V1.format(root=root))
        inside = path.removeprefix(root if root != "/" else "")
        folder = f"/sys/fs/cgroup/memory{inside}"
        files = {"stat": "total_inactive_file 30\ntotal_active_file 20\ntotal_dirty 5\n", **files}
        for name, text in files.items():
            self.write(f"{folder}/memory.{name}", text)
        return folder


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_own_cgroup_of_version_2(machine):
    folder = machine.v2(max="max")
    cgroup = memory.own_cgroup(machine.system)
    assert cgroup == MemoryCgroup(2, folder, "/sys/fs/cgroup", False)
    assert memory.page_cache(machine.system, cgroup) == 500
    assert memory.dirty_files(machine.system, cgroup) == 7


def test_the_own_cgroup_of_version_1_on_a_hybrid_host(machine):
    folder = machine.v1()
    cgroup = memory.own_cgroup(machine.system)
    assert cgroup == MemoryCgroup(1, folder, "/sys/fs/cgroup/memory", False)
    assert memory.page_cache(machine.system, cgroup) == 50
    assert memory.dirty_files(machine.system, cgroup) == 5


def test_a_container_that_sees_the_paths_of_its_host(machine):
    machine.v1("/docker/abc", root="/docker/abc")
    cgroup = memory.own_cgroup(machine.system)
    assert cgroup == MemoryCgroup(1, "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory", False)


def test_a_path_outside_of_what_is_mounted_is_the_mount_itself(machine):
    machine.v1("/docker/abc", root="/docker/abc")
    machine.write("/proc/self/cgroup", "4:memory:/elsewhere\n")
    cgroup = memory.own_cgroup(machine.system)
    assert cgroup is not None and cgroup.folder == "/sys/fs/cgroup/memory"


@pytest.mark.parametrize("version", [1, 2])
def test_at_the_root_the_machine_counts(machine, version):
    if version == 2:
        machine.v2("/")
    else:
        machine.v1("/")
    cgroup = memory.own_cgroup(machine.system)
    assert cgroup is not None and cgroup.version == version and cgroup.is_root
    assert memory.page_cache(machine.system, cgroup) == 3 << 20
    assert memory.dirty_files(machine.system, cgroup) == 12 << 10


@pytest.mark.parametrize("text", ["", "nonsense\n", "0::/\n"])
def test_without_a_memory_cgroup_the_machine_counts(machine, text):
    machine.write("/proc/self/cgroup", text)
    machine.write("/proc/self/mountinfo", "short line\n1 2 3 - x\n")
    assert memory.own_cgroup(machine.system) is None
    assert memory.page_cache(machine.system, None) == 3 << 20
    assert memory.total_memory(machine.system, None) == 64 * GB


def test_nothing_can_be_read(tmp_path):
    system = System(str(tmp_path))
    assert memory.own_cgroup(system) is None
    assert memory.total_memory(system, None) is None
    assert memory.page_cache(system, None) is None
    assert not memory.has_swap(system)


def test_the_smallest_limit_up_the_tree_counts(machine):
    folder = machine.v2("/pod/job/trainer", max="max")
    machine.write("/sys/fs/cgroup/pod/memory.max", f"{8 * GB}\n")
    machine.write("/sys/fs/cgroup/pod/job/memory.max", f"{16 * GB}\n")
    cgroup = memory.own_cgroup(machine.system)
    assert memory.total_memory(machine.system, cgroup) == 8 * GB
    machine.write(f"{folder}/memory.max", f"{2 * GB}\n")
    assert memory.total_memory(machine.system, cgroup) == 2 * GB


@pytest.mark.parametrize(
    ("own", "above", "wanted"),
    [
        (9223372036854771712, 9223372036854771712, 64 * GB),
        (4 * GB, 9223372036854771712, 4 * GB),
        (9223372036854771712, 3 * GB, 3 * GB),
    ],
)
def test_limits_of_version_1_also_of_ancestors_out_of_sight(machine, own, above, wanted):
    machine.v1(
        "/docker/abc",
        root="/docker/abc",
        limit_in_bytes=str(own),
        stat=f"hierarchical_memory_limit {above}\n",
    )
    cgroup = memory.own_cgroup(machine.system)
    assert memory.total_memory(machine.system, cgroup) == wanted


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
        (-5, 64 * GB, int(0.3 * 64 * GB), 1),
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


def test_a_control_file_is_written_in_one_write_and_refusals_are_seen(tmp_path):
    system = System(str(tmp_path))
    (tmp_path / "file").write_text("123456")
    system.write("/file", "7")
    assert (tmp_path / "file").read_text() == "7"
    with pytest.raises(OSError):
        system.write("/none", "7")
    with pytest.raises(OSError):
        System("").write("/dev/full", "7")
