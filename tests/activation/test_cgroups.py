"""What control groups leave to a process: both generations, alone, mixed, and seen from inside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import children
import pytest

from loongkit.activation import cgroups
from loongkit.activation.files import Folder

MIB, GIB = 1 << 20, 1 << 30
UNLIMITED = 9223372036854771712
V2 = "sys/fs/cgroup"
MEMORY = "sys/fs/cgroup/memory"
QUOTA = "sys/fs/cgroup/cpu,cpuacct"


def second(root: str = "/", place: str = f"/{V2}") -> str:
    return f"31 23 0:28 {root} {place} rw,relatime shared:9 - cgroup2 cgroup2 rw\n"


def first(*names: str, root: str = "/", below: str = f"/{V2}") -> str:
    lines = (f"32 31 0:29 {root} {below}/{n} rw - cgroup cgroup rw,{n}\n" for n in names)
    return "".join(lines)


class Noting(Folder):
    """A folder that notes what is read and looked for."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.log: list[str] = []

    def read(self, path: str, limit: int = 4096) -> str:
        self.log.append(path)
        return super().read(path, limit)

    def exists(self, path: str) -> bool:
        self.log.append(path)
        return super().exists(path)


class Host:
    """A folder with the files of control groups."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = Noting(str(root))

    def file(self, path: str, text: object) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}\n")

    def process(self, cgroup: str, mounts: str) -> None:
        self.file("proc/self/cgroup", cgroup)
        self.file("proc/self/mountinfo", "20 1 0:19 / /proc rw - proc proc rw\n" + mounts)

    def machine(self, total: int = 64 * GIB, available: int = 48 * GIB) -> None:
        sizes = f"MemTotal: {total >> 10} kB\nMemAvailable:   {available >> 10} kB"
        self.file("proc/meminfo", f"{sizes}\nHugePages_Total:       3\nSwapTotal: 12 kB\nodd")

    def memory(self, folder: str, limit: object, used: object = 0, **stat: int) -> None:
        names = ("max", "current")
        if folder.startswith(MEMORY):
            names = ("limit_in_bytes", "usage_in_bytes")
        for name, text in zip(names, (limit, used), strict=True):
            self.file(f"{folder}/memory.{name}", text)
        lines = (f"{name} {number}" for name, number in {"anon": 5, **stat}.items())
        self.file(f"{folder}/memory.stat", "\n".join(lines))

    @property
    def groups(self) -> cgroups.Groups:
        return cgroups.Groups(self.tree)

    def cpuset(self) -> set[int]:
        return set(cgroups.cpuset(self.groups))

    def quota(self) -> float | None:
        return cgroups.cpu_quota(self.groups)

    def size(self) -> int | None:
        return cgroups.memory_size(self.groups)

    def headroom(self) -> tuple[int, int, str] | None:
        found = cgroups.memory_headroom(self.groups)
        return found and (found.free, found.limit, found.source)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


class TestFolders:
    """Where the groups of a process are to be found."""

    def test_the_own_group_first_and_then_upwards(self, host: Host) -> None:
        host.process("0::/pod/job", second())
        wanted = [f"{V2}/pod/job", f"{V2}/pod", V2]
        assert host.groups.folders("memory") == host.groups.folders("cpuset") == wanted
        assert host.groups.generation("memory") == 2

    def test_each_hierarchy_of_the_first_generation_has_its_own(self, host: Host) -> None:
        host.process(
            "4:memory:/a\n3:cpu,cpuacct:/b/c\n1:name=systemd:/d", first("memory", "cpu,cpuacct")
        )
        groups = host.groups
        assert groups.folders("memory") == [f"{MEMORY}/a", MEMORY]
        assert groups.folders("cpu") == groups.folders("cpuacct")
        assert groups.folders("cpu") == [f"{QUOTA}/b/c", f"{QUOTA}/b", QUOTA]
        assert groups.folders("cpuset") == []
        assert groups.generation("cpu") == 1

    def test_a_controller_that_the_first_has_is_not_in_the_second(self, host: Host) -> None:
        host.process("4:memory:/a\n0::/b", first("memory") + second(place="/sys/fs/cgroup/unified"))
        assert host.groups.folders("memory") == [f"{MEMORY}/a", MEMORY]
        assert host.groups.folders("cpu") == [f"{V2}/unified/b", f"{V2}/unified"]

    @pytest.mark.parametrize(
        ("cgroup", "mounts"),
        [
            ("4:memory:/a\n0::/b", second()),  # the first's hierarchy isn't mounted in here
            ("0::/b", first("memory") + second()),  # it is, but this process is not in it
        ],
    )
    def test_half_of_the_first_generation_is_none(
        self, host: Host, cgroup: str, mounts: str
    ) -> None:
        host.process(cgroup, mounts)
        assert host.groups.generation("memory") == 2
        assert host.groups.folders("memory") == [f"{V2}/b", V2]

    @pytest.mark.parametrize(
        ("path", "root", "wanted"),
        [
            ("/docker/f00", "/docker/f00", []),  # the host's path, the mount of the own group alone
            ("/docker/f00/job", "/docker/f00", ["job"]),
            ("/docker/f00", "/docker/f0", []),  # a name that begins alike is another group
            ("/docker/f00", "/elsewhere", []),
            ("/elsewhere", "/docker/f00", []),
            ("/", "/", []),  # a namespace of its own
            ("/job", "/", ["job"]),
            ("/../other", "/", []),  # moved out of its namespace
            ("/../other", "/elsewhere", []),
            ("/..", "/..", []),
            ("/job", "/../..", []),  # mounted outside of the namespace
            ("", "/", []),
            ("//job/", "//", ["job"]),
        ],
    )
    def test_inside_a_container(self, host: Host, path: str, root: str, wanted: list[str]) -> None:
        host.process(f"0::{path}", second(root))
        assert host.groups.folders("cpu") == ["/".join([V2, *wanted])] + ([V2] if wanted else [])

    def test_blanks_in_paths(self, host: Host) -> None:
        host.process("0::/my jobs/a\\040b/c", second(r"/my\040jobs", r"/sys/c\011\012\134040d"))
        point = "sys/c\t\n\\040d"
        folders = [f"{point}/a\\040b/c", f"{point}/a\\040b", point]
        assert host.groups.folders("cpu") == folders

    @pytest.mark.parametrize("order", [1, -1])
    def test_of_several_mounts_that_counts_which_shows_the_own_group(
        self, host: Host, order: int
    ) -> None:
        mounts = [second("/other", "/run/other"), second("/", f"/{V2}"), second("/", "/run/empty")]
        host.process("0::/job", "".join(mounts[::order]))
        host.file(f"{V2}/job/cgroup.procs", "1")
        (host.root / "run/other").mkdir(parents=True)
        (host.root / "run/empty").mkdir()
        assert host.groups.folders("cpu") == [f"{V2}/job", V2]

    def test_of_several_mounts_that_do_not_show_it_the_first_counts(self, host: Host) -> None:
        host.process("0::/job", second("/a", "/run/a") + second("/b", "/run/b"))
        assert host.groups.folders("cpu") == ["run/a"]

    def test_a_hierarchy_at_the_root_of_the_file_system(self, host: Host) -> None:
        host.process("0::/job", second(place="/"))
        assert all(".." not in folder for folder in host.groups.folders("cpu"))

    @pytest.mark.parametrize(
        ("cgroup", "mounts"),
        [
            ("", ""),
            ("", second()),
            ("0::/job", ""),
            ("nonsense", "nonsense"),
            ("nonsense", "short line\n1 2 3 - x\n"),
            ("0::", "a b c d e - cgroup2\n"),
            (":::::", " - cgroup cgroup rw,cpuset\n"),
            ("4:cpuset:../../..", first("cpuset", root="..")),
        ],
    )
    def test_nothing_readable_means_no_bound(self, host: Host, cgroup: str, mounts: str) -> None:
        host.process(cgroup, mounts)
        assert host.cpuset() == set()
        assert host.quota() is None
        assert host.size() is None
        assert host.headroom() is None

    def test_no_files_at_all(self, host: Host) -> None:
        assert host.groups.folders("memory") == []
        assert (host.quota(), host.size(), host.headroom()) == (None, None, None)


class TestCpus:
    """CPU sets and CPU time."""

    def test_the_second_generation(self, host: Host) -> None:
        host.process("0::/pods/job", second())
        host.file(f"{V2}/pods/job/cpuset.cpus.effective", "4-7")
        host.file(f"{V2}/cpuset.cpus.effective", "0-15")
        assert host.cpuset() == {4, 5, 6, 7}

    def test_a_group_without_the_controller_has_what_its_parent_has(self, host: Host) -> None:
        host.process("0::/a/b/c", second())
        host.file(f"{V2}/a/b/c/cgroup.procs", "1")
        host.file(f"{V2}/a/cpuset.cpus.effective", "2-3")
        assert host.cpuset() == {2, 3}
        assert host.quota() is None

    @pytest.mark.parametrize(
        ("files", "wanted"),
        [
            ({"cpuset.cpus": "8-11"}, {8, 9, 10, 11}),
            ({"cpuset.cpus": "8-11", "cpuset.effective_cpus": "9"}, {9}),
            ({"cpuset.cpus": "8-11", "cpuset.effective_cpus": "11-9"}, {8, 9, 10, 11}),
            ({"cpuset.cpus": ""}, {0, 1}),
            ({"cpuset.cpus": "nonsense"}, {0, 1}),
            ({}, {0, 1}),
        ],
    )
    def test_the_first_generation(
        self, host: Host, files: dict[str, str], wanted: set[int]
    ) -> None:
        host.process("4:cpuset:/slurm/step\n0::/other", first("cpuset"))
        for name, text in files.items():
            host.file(f"{V2}/cpuset/slurm/step/{name}", text)
        host.file(f"{V2}/cpuset/cpuset.cpus", "0-1")
        assert host.cpuset() == wanted

    def test_both_generations_side_by_side(self, host: Host) -> None:
        host.process("4:cpuset:/a\n0::/b", first("cpuset") + second())
        host.file(f"{V2}/cpuset/a/cpuset.effective_cpus", "1")
        host.file(f"{V2}/b/cpu.max", "50000 100000")
        assert host.cpuset() == {1}
        assert host.quota() == 0.5

    @pytest.mark.parametrize(
        ("cgroup", "root"),
        [
            ("0::/docker/f00", "/docker/f00"),
            ("0::/", "/"),
            ("0::/docker/f00", "/"),  # the path isn't to be seen in here
            ("0::/docker/f00", "/docker/other"),
            ("0::/../other", "/elsewhere"),
        ],
    )
    def test_inside_a_container(self, host: Host, cgroup: str, root: str) -> None:
        host.process(cgroup, second(root))
        host.file(f"{V2}/cpuset.cpus.effective", "0-1")
        host.file(f"{V2}/cpu.max", "300000 100000")
        host.memory(V2, 4 * GIB)
        assert host.cpuset() == {0, 1}
        assert host.quota() == 3.0
        assert host.size() == 4 * GIB

    @pytest.mark.parametrize(
        ("own", "parent", "quota"),
        [
            ("max 100000", "max 100000", None),
            ("400000 100000", "max 100000", 4.0),
            ("max 100000", "250000 100000", 2.5),
            ("400000 100000", "250000 100000", 2.5),
            ("50000 100000", "250000 100000", 0.5),
            ("800000 100000", "150000 50000", 3.0),
            ("garbage", "-1 0", None),
            ("100000 0", "max", None),
        ],
    )
    def test_the_smallest_quota_up_the_tree_counts(
        self, host: Host, own: str, parent: str, quota: float | None
    ) -> None:
        host.process("0::/pod/job", second())
        host.file(f"{V2}/pod/job/cpu.max", own)
        host.file(f"{V2}/pod/cpu.max", parent)
        assert host.quota() == quota

    @pytest.mark.parametrize(
        ("own", "parent", "quota"),
        [("-1", "-1", None), ("400000", "-1", 4.0), ("-1", "150000", 1.5)],
    )
    def test_quotas_of_the_first_generation(
        self, host: Host, own: str, parent: str, quota: float | None
    ) -> None:
        host.process("4:cpu,cpuacct:/docker/job\n0::/", first("cpu,cpuacct") + second())
        for folder, amount in ((f"{QUOTA}/docker/job", own), (f"{QUOTA}/docker", parent)):
            host.file(f"{folder}/cpu.cfs_quota_us", amount)
            host.file(f"{folder}/cpu.cfs_period_us", "100000")
        assert host.quota() == quota

    @pytest.mark.parametrize(
        "text",
        ["", "max", "max max", "0 0", "100 0", "0 100", "-1 100", "x y", "1 2 3", "\0", "9" * 5000],
    )
    def test_a_quota_of_nonsense_is_none(self, host: Host, text: str) -> None:
        host.process("0::/", second())
        host.file(f"{V2}/cpu.max", text)
        assert host.quota() is None

    def test_no_more_is_read_than_is_needed(self, host: Host) -> None:
        """A rank reads its CPU set at interpreter start."""
        host.process("0::/pod/job", second())
        host.file(f"{V2}/pod/job/cpuset.cpus.effective", "4-7")
        own = f"{V2}/pod/job/cpuset.cpus.effective"
        host.cpuset()
        assert host.tree.log == ["proc/self/cgroup", "proc/self/mountinfo", own]


class TestMemory:
    """Limits, what is left below them, and what they say of their use."""

    def test_the_smallest_limit_up_the_tree_counts(self, host: Host) -> None:
        host.machine()
        host.process("0::/pod/job/trainer", second())
        host.memory(f"{V2}/pod/job/trainer", "max")
        host.memory(f"{V2}/pod/job", 16 * GIB)
        host.memory(f"{V2}/pod", 8 * GIB)
        assert host.size() == 8 * GIB
        host.memory(f"{V2}/pod/job/trainer", 2 * GIB)
        assert host.size() == 2 * GIB

    def test_a_group_without_the_controller_is_limited_by_those_above(self, host: Host) -> None:
        host.machine()
        host.process("0::/pod/job", second())
        host.file(f"{V2}/pod/job/cgroup.procs", "1")
        host.memory(f"{V2}/pod", 8 * GIB, 6 * GIB)
        assert host.size() == 8 * GIB
        assert host.headroom() == (2 * GIB, 8 * GIB, "the container's memory.max")

    @pytest.mark.parametrize("text", ["max", "", "0", "-1", "nonsense", "9" * 5000, UNLIMITED])
    def test_what_is_no_limit(self, host: Host, text: object) -> None:
        host.process("0::/job", second())
        host.memory(f"{V2}/job", text)
        assert host.size() is None
        host.machine()
        assert host.size() == 64 * GIB

    @pytest.mark.parametrize(
        ("own", "above", "wanted"),
        [
            (UNLIMITED, UNLIMITED, 64 * GIB),
            (4 * GIB, UNLIMITED, 4 * GIB),
            (UNLIMITED, 3 * GIB, 3 * GIB),
            (2 * GIB, 3 * GIB, 2 * GIB),
        ],
    )
    def test_limits_of_the_first_generation_also_of_ancestors_out_of_sight(
        self, host: Host, own: int, above: int, wanted: int
    ) -> None:
        host.machine(available=64 * GIB)
        host.process("4:memory:/docker/abc\n0::/", first("memory", root="/docker/abc") + second())
        host.memory(MEMORY, own, GIB, hierarchical_memory_limit=above)
        assert host.size() == wanted
        found = host.headroom()
        assert found is not None and found[1] == wanted
        assert found[0] == (wanted - GIB if wanted < 64 * GIB else wanted)

    def test_headroom_is_the_tightest_up_the_tree_and_counts_reclaimable_cache(
        self, host: Host
    ) -> None:
        host.machine()
        host.process("0::/pod/job", second())
        host.memory(f"{V2}/pod/job", "max", 100)
        host.memory(f"{V2}/pod", 1000 * MIB, 700 * MIB, inactive_file=200 * MIB, active_file=9)
        assert host.headroom() == (500 * MIB, 1000 * MIB, "the container's memory.max")

    def test_headroom_of_the_first_generation_and_of_the_machine(self, host: Host) -> None:
        host.process("4:memory:/docker", first("memory"))
        cache = {"inactive_file": 1, "total_inactive_file": 300 * MIB}
        host.memory(f"{MEMORY}/docker", 800 * MIB, 900 * MIB, **cache)
        host.memory(MEMORY, UNLIMITED)
        host.machine(4 * GIB, 100 << 10)
        assert host.headroom() == (100 << 10, 4 * GIB, "the machine's memory")
        host.machine(4 * GIB, 3 * GIB)
        assert host.headroom() == (200 * MIB, 800 * MIB, "the container's memory.limit_in_bytes")

    @pytest.mark.parametrize(("used", "cache"), [(900, 0), (800, 0), (2000, 1000)])
    def test_nothing_is_left(self, host: Host, used: int, cache: int) -> None:
        host.machine()
        host.process("5:cpu,memory:/docker/x\n4:cpu:/", first("memory", root="/docker/x"))
        host.memory(MEMORY, 800, used, total_inactive_file=cache)
        assert host.headroom() == (0, 800, "the container's memory.limit_in_bytes")

    def test_more_cache_than_use_leaves_no_more_than_the_limit(self, host: Host) -> None:
        host.process("0::/", second())
        host.memory(V2, 800, 100, inactive_file=500)
        assert host.headroom() == (800, 800, "the container's memory.max")

    def test_a_limit_without_its_use_is_no_headroom(self, host: Host) -> None:
        host.process("0::/job", second())
        host.file(f"{V2}/job/memory.max", 800)
        assert host.headroom() is None
        assert host.size() == 800

    def test_a_root_without_a_limit(self, host: Host) -> None:
        host.machine(available=4000 << 10)
        host.process("5:memory:/", first("memory"))
        host.memory(MEMORY, UNLIMITED, 9000)
        assert host.headroom() == (4000 << 10, 64 * GIB, "the machine's memory")

    def test_numbers_of_a_group_and_of_the_machine(self, host: Host) -> None:
        host.file("g/memory.stat", "anon 5\nfile 7\nodd\nthree 1 2\nnegative -1\nworkingset x")
        assert cgroups.memory_stat(host.tree, "g") == {"anon": 5, "file": 7}
        assert cgroups.memory_stat(host.tree, "none") == {}
        assert cgroups.machine_memory(host.tree) == {}
        host.machine(64 * GIB, 48 * GIB)
        sizes = {"MemTotal": 64 * GIB, "MemAvailable": 48 * GIB}
        counts = {"HugePages_Total": 3, "SwapTotal": 12 << 10}
        assert cgroups.machine_memory(host.tree) == {**sizes, **counts}

    def test_a_group_without_a_limit_costs_one_file(self, host: Host) -> None:
        host.process("0::/pod/job", second())
        host.memory(f"{V2}/pod/job", "max")
        host.memory(f"{V2}/pod", "max")
        host.headroom()
        assert [path for path in host.tree.log if path.startswith("sys")] == [
            f"{folder}/memory.max" for folder in (f"{V2}/pod/job", f"{V2}/pod", V2)
        ]


def test_this_machine() -> None:
    groups = cgroups.Groups(Folder())
    size, headroom = cgroups.memory_size(groups), cgroups.memory_headroom(groups)
    assert size is not None and headroom is not None
    assert 0 <= headroom.free <= headroom.limit <= cgroups.machine_memory(groups.tree)["MemTotal"]


def test_reading_imports_nothing_heavy() -> None:
    program = (
        "import os, sys, __future__; before = set(sys.modules); "
        "from loongkit.activation import cgroups, files; "
        "groups = cgroups.Groups(files.Folder()); "
        "cgroups.cpuset(groups); cgroups.cpu_quota(groups); cgroups.memory_headroom(groups); "
        "print([m for m in set(sys.modules) - before if not m.startswith('loongkit')])"
    )
    env = children.clean_env(PYTHONPATH=str(children.SOURCE))
    words = [sys.executable, "-S", "-c", program]
    result = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
