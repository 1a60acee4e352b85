"""The CPU set and the quota of control groups, of both generations and seen from inside."""

from __future__ import annotations

from pathlib import Path

import pytest

from loongkit.activation.files import Folder
from loongkit.numa import container

V2_MOUNT = "31 23 0:28 {root} /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
V1_MOUNT = "3{n} 31 0:3{n} {root} /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n"


class Host:
    """A folder with the files of control groups."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = Folder(str(root))

    def file(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def process(self, cgroup: str, mounts: str) -> None:
        self.file("proc/self/cgroup", cgroup)
        self.file("proc/self/mountinfo", "20 1 0:19 / /proc rw - proc proc rw\n" + mounts)

    def cpuset(self) -> set[int]:
        return set(container.cpuset(container.Groups(self.tree), self.tree))

    def quota(self) -> float | None:
        return container.quota(container.Groups(self.tree), self.tree)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_second_generation(host: Host) -> None:
    host.process("0::/pods/job\n", V2_MOUNT.format(root="/"))
    host.file("sys/fs/cgroup/pods/job/cpuset.cpus.effective", "4-7\n")
    host.file("sys/fs/cgroup/cpuset.cpus.effective", "0-15\n")
    host.file("sys/fs/cgroup/pods/job/cpu.max", "max 100000\n")
    host.file("sys/fs/cgroup/pods/cpu.max", "250000 100000\n")
    assert host.cpuset() == {4, 5, 6, 7}
    assert host.quota() == 2.5


def test_a_group_without_the_controller_has_what_its_parent_has(host: Host) -> None:
    host.process("0::/a/b/c\n", V2_MOUNT.format(root="/"))
    host.file("sys/fs/cgroup/a/b/c/cgroup.procs", "1\n")
    host.file("sys/fs/cgroup/a/cpuset.cpus.effective", "2-3\n")
    assert host.cpuset() == {2, 3}
    assert host.quota() is None


def test_the_smallest_quota_up_the_tree_counts(host: Host) -> None:
    host.process("0::/a/b\n", V2_MOUNT.format(root="/"))
    host.file("sys/fs/cgroup/a/b/cpu.max", "800000 100000\n")
    host.file("sys/fs/cgroup/a/cpu.max", "150000 50000\n")
    assert host.quota() == 3.0


def test_first_generation(host: Host) -> None:
    mounts = V1_MOUNT.format(n=1, root="/", name="cpuset") + V1_MOUNT.format(
        n=2, root="/", name="cpu,cpuacct"
    )
    host.process("4:cpuset:/slurm/step\n3:cpu,cpuacct:/slurm\n0::/other\n", mounts)
    host.file("sys/fs/cgroup/cpuset/slurm/step/cpuset.cpus", "8-11\n")
    host.file("sys/fs/cgroup/cpuset/cpuset.cpus", "0-15\n")
    host.file("sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_quota_us", "150000\n")
    host.file("sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_period_us", "100000\n")
    host.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    host.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert host.cpuset() == {8, 9, 10, 11}
    assert host.quota() == 1.5


def test_both_generations_side_by_side(host: Host) -> None:
    """A controller that the first has is not in the second."""
    mounts = V1_MOUNT.format(n=1, root="/", name="cpuset") + V2_MOUNT.format(root="/")
    host.process("4:cpuset:/a\n0::/b\n", mounts)
    host.file("sys/fs/cgroup/cpuset/a/cpuset.effective_cpus", "1\n")
    host.file("sys/fs/cgroup/b/cpu.max", "50000 100000\n")
    assert host.cpuset() == {1}
    assert host.quota() == 0.5


@pytest.mark.parametrize(
    ("cgroup", "root"),
    [
        ("0::/docker/f00\n", "/docker/f00"),  # the host's path, the mount of the own group alone
        ("0::/\n", "/"),  # a namespace of its own
        ("0::/docker/f00\n", "/"),  # the path isn't to be seen in here
        ("0::/../other\n", "/elsewhere"),
    ],
)
def test_inside_a_container(host: Host, cgroup: str, root: str) -> None:
    host.process(cgroup, V2_MOUNT.format(root=root))
    host.file("sys/fs/cgroup/cpuset.cpus.effective", "0-1\n")
    host.file("sys/fs/cgroup/cpu.max", "100000 100000\n")
    assert host.cpuset() == {0, 1}
    assert host.quota() == 1.0


def test_below_the_root_of_a_mount(host: Host) -> None:
    host.process("0::/docker/f00/job\n", V2_MOUNT.format(root="/docker/f00"))
    host.file("sys/fs/cgroup/job/cpuset.cpus.effective", "3\n")
    assert host.cpuset() == {3}


@pytest.mark.parametrize(
    ("cgroup", "mounts"),
    [
        ("", ""),
        ("nonsense", "nonsense"),
        ("0::", "a b c d e - cgroup2\n"),
        (":::::", " - cgroup cgroup rw,cpuset\n"),
        ("4:cpuset:../../..", V1_MOUNT.format(n=1, root="..", name="cpuset")),
    ],
)
def test_nothing_readable_means_no_bound(host: Host, cgroup: str, mounts: str) -> None:
    host.process(cgroup, mounts)
    assert host.cpuset() == set()
    assert host.quota() is None


@pytest.mark.parametrize(
    "text", ["", "max", "max max", "0 0", "100 0", "-1 100", "x y", "\0", "9" * 5000]
)
def test_a_quota_of_nonsense_is_none(host: Host, text: str) -> None:
    host.process("0::/\n", V2_MOUNT.format(root="/"))
    host.file("sys/fs/cgroup/cpu.max", text)
    assert host.quota() is None
