"""A job's control groups on stand-ins for each generation: made, entered, left, cleared away."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
from cgroup_kernel import ERRORS, Kernel

from loongkit.activation import logs
from loongkit.numa.cgroups import job_groups, layouts, leftovers
from loongkit.numa.cgroups import own as own_groups
from loongkit.numa.cgroups.job_groups import JobGroups
from loongkit.numa.cgroups.layouts import Wanted
from loongkit.numa.cgroups.names import is_leaf
from loongkit.numa.cgroups.operations import Operations

ME, OTHER = os.getpid(), 700
TRAIN, DATA = Wanted(frozenset({0, 1})), Wanted(frozenset({2, 3}))


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path / "host")


@pytest.fixture(autouse=True)
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr(leftovers.time, "sleep", taken.append)
    return taken


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(logs, "info", lines.append)
    return lines


def host(kernel: Kernel, kind: str, *pids: int) -> str:
    """Mount what a kind of host has; return the group that places this process."""
    if kind == "first":
        return kernel.first("cpuset", "pod/box", *pids)
    if kind == "hybrid":
        kernel.first("cpu", "pod/box", *pids)
        own = kernel.first("cpuset", "pod/box", *pids)
        kernel.second("pod/box", *pids, on="hugetlb")
        return own
    own = {"root": "", "threaded": "pod/box", "members": "pod/box"}[kind]
    return kernel.second(own, *pids, on="cpu" if kind == "members" else "cpuset cpu memory pids")


KINDS = ["first", "hybrid", "root", "threaded", "members"]


def groups(kernel: Kernel, pid: int = ME, job: str = "j", name: str = "node0") -> JobGroups:
    return JobGroups(kernel, pid, job, name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_layout_and_that_nothing_stays(kernel: Kernel, kind: str, said: list[str]) -> None:
    own = host(kernel, kind)
    mount = kernel.mount_of(own)
    before = kernel.groups()
    made = groups(kernel)
    made.enter(TRAIN, DATA)
    assert made.folder == f"/{own}/loongkit.j/node0.train"
    assert kernel.where(ME, mount) == f"{own}/loongkit.j/node0.train"
    assert kernel.groups_in(f"{own}/loongkit.j") == ["node0.data", "node0.train"]
    tiers = {"threaded": layouts.THREADED, "members": layouts.MEMBERS}
    assert made.tier == tiers.get(kind, layouts.DOMAIN)
    if kind != "members":
        for role, cpus in (("train", "0-1"), ("data", "2-3")):
            assert kernel.read(f"{own}/loongkit.j/node0.{role}/cpuset.cpus") == cpus
    changed = [line.split()[1] for line in kernel.log]
    assert all("/loongkit.j" in path or path.startswith(f"{own}/cgroup") for path in changed)
    made.leave()
    assert kernel.groups() == before and kernel.where(ME, mount) == own and said == []
    if kind == "threaded":
        assert kernel.read(f"{own}/cgroup.type") == "domain"
        assert kernel.read(f"{own}/cgroup.subtree_control") == ""


def test_the_first_generation_gets_cpus_and_memory_before_processes(kernel: Kernel) -> None:
    job = host(kernel, "first") + "/loongkit.j"
    groups(kernel).enter(TRAIN, DATA)
    assert kernel.log == [
        f"make {job}",
        f"write {job}/cpuset.cpus 0-7",
        f"write {job}/cpuset.mems 0-1",
        f"make {job}/node0.train",
        f"write {job}/node0.train/cpuset.cpus 0-1",
        f"write {job}/node0.train/cpuset.mems 0-1",
        f"make {job}/node0.data",
        f"write {job}/node0.data/cpuset.cpus 2-3",
        f"write {job}/node0.data/cpuset.mems 0-1",
        f"write {job}/node0.train/cgroup.procs {ME}",
    ]


def test_a_group_with_other_processes_hands_on_to_threaded_groups(kernel: Kernel) -> None:
    own = host(kernel, "threaded", ME, OTHER)
    groups(kernel).enter(TRAIN, DATA)
    job = f"{own}/loongkit.j"
    assert kernel.log[:3] == [
        f"make {job}",
        f"write {job}/cgroup.type threaded",
        f"write {own}/cgroup.subtree_control +cpuset +cpu",
    ]
    assert kernel.where(OTHER, kernel.mounts[0]) == own, "others' processes are never moved"
    kernel.write(f"{own}/cgroup.procs", str(OTHER))  # as `docker exec` puts one there


def test_where_threaded_groups_can_not_be_had(kernel: Kernel) -> None:
    """Somebody's processes are in a domain group below ours: the kernel allows no thread root."""
    own = host(kernel, "threaded")
    (kernel.root / own / "other").mkdir()
    kernel._populate(f"{own}/other")
    kernel._join(f"{own}/other", OTHER)
    made = groups(kernel)
    made.enter(TRAIN, DATA)
    assert made.tier == layouts.MEMBERS
    assert kernel.read(f"{own}/loongkit.j/cgroup.type") == "domain"
    assert kernel.read(f"{own}/cgroup.subtree_control") == ""
    made.leave()
    assert kernel.groups_in(own) == ["other"]


def test_the_first_generations_cpu_time_goes_along_and_never_decides(kernel: Kernel) -> None:
    own = host(kernel, "hybrid")
    time_group = f"{kernel.mounts[0]}/pod/box"
    made = groups(kernel)
    made.enter(TRAIN, DATA)
    assert kernel.where(ME, kernel.mounts[0]) == f"{time_group}/loongkit.j/node0.train"
    made.leave()
    kernel.refuse("make", f"{time_group}/loongkit.j", errno.EACCES)
    made = groups(kernel)
    made.enter(TRAIN, DATA)
    assert kernel.where(ME, kernel.mounts[0]) == time_group
    assert kernel.where(ME, kernel.mounts[1]) == f"{own}/loongkit.j/node0.train"


@pytest.mark.parametrize("generation", ["first", "second"])
def test_inside_a_container_the_mount_is_its_own_group(kernel: Kernel, generation: str) -> None:
    mounted = "/docker/4f"
    if generation == "first":
        own = kernel.first("cpuset", "", ME, seen_from=mounted)
    else:
        own = kernel.second("", ME, OTHER, seen_from=mounted)
    assert mounted in (kernel.root / "proc/self/cgroup").read_text()
    groups(kernel).enter(TRAIN, DATA)
    assert kernel.where(ME, kernel.mounts[0]) == f"{own}/loongkit.j/node0.train"


def test_a_group_that_is_not_this_processes_is_never_written(kernel: Kernel) -> None:
    host(kernel, "first", OTHER)  # another one's: this process's own is not in the mount
    with pytest.raises(FileNotFoundError, match="not to be seen"):
        groups(kernel).enter(TRAIN, DATA)
    assert kernel.log == []


def test_no_control_groups_at_all(kernel: Kernel) -> None:
    with pytest.raises(FileNotFoundError, match="no control groups are mounted"):
        groups(kernel).enter(TRAIN, DATA)


CALLS = [
    ("make", "/loongkit.j"),
    ("make", "/node0.train"),
    ("make", "/node0.data"),
    ("write", "/node0.train/cgroup.procs"),
]
FIRST = [("write", "/loongkit.j/cpuset.cpus"), ("write", "/node0.data/cpuset.mems")]
SECOND = [("write", "/loongkit.j/cgroup.type"), ("write", "/box/cgroup.subtree_control")]


@pytest.mark.parametrize(
    ("kind", "call", "end", "number"),
    [
        (kind, *call, number)
        for kind, calls in {"first": CALLS + FIRST, "threaded": CALLS + SECOND}.items()
        for call in calls
        for number in (getattr(errno, name) for name in ERRORS)
    ]
    + [(kind, *call, errno.EPERM) for kind in ("hybrid", "root", "members") for call in CALLS],
)
def test_whatever_fails_nothing_is_left(
    kernel: Kernel, kind: str, call: str, end: str, number: int
) -> None:
    host(kernel, kind)
    before = kernel.groups()
    kernel.refuse(call, end, number)
    made = groups(kernel)
    try:
        made.enter(TRAIN, DATA)
    except OSError as error:
        assert error.errno == number
        assert kernel.groups() == before
        assert "loongkit." not in (kernel.root / "proc/self/cgroup").read_text()
    else:
        assert kind == "threaded" and made.tier == layouts.MEMBERS
        assert number in (errno.EBUSY, errno.EOPNOTSUPP)
    made.leave()
    assert kernel.groups() == before


def test_nonsense_in_a_file_leaves_nothing_either(kernel: Kernel) -> None:
    own = host(kernel, "first")
    kernel._put(f"{own}/cpuset.effective_mems", "zero")
    with pytest.raises(ValueError, match="zero"):
        groups(kernel).enter(TRAIN, DATA)
    assert kernel.groups_in(own) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_only_file_system(kernel: Kernel, kind: str) -> None:
    host(kernel, kind)
    for call in ("make", "write", "remove"):
        kernel.refuse(call, "", errno.EROFS)
    with pytest.raises(OSError, match="Read-only"):
        groups(kernel).enter(TRAIN, DATA)
    assert kernel.log == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [("node0", "node0"), ("node0.r0", "node0.r1")])
def test_ranks_share_a_job_and_the_last_one_clears_it_away(
    kernel: Kernel, kind: str, names: tuple[str, str]
) -> None:
    own = host(kernel, kind, ME, OTHER)
    first, last = groups(kernel, ME, name=names[0]), groups(kernel, OTHER, name=names[1])
    first.enter(TRAIN, DATA)
    kernel.become(OTHER)
    last.enter(TRAIN, DATA)
    assert first.tier == last.tier
    first.leave()
    mount = kernel.mount_of(own)
    assert kernel.where(OTHER, mount) == f"{own}/loongkit.j/{names[1]}.train"
    assert kernel.where(ME, mount) == own
    assert f"{names[1]}.data" in kernel.groups_in(f"{own}/loongkit.j"), "for workers to come"
    last.leave()
    assert not [name for name in kernel.groups() if "loongkit" in name]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV, errno.EACCES, errno.ENOSPC])
def test_groups_that_another_process_clears_away_meanwhile_are_made_again(
    kernel: Kernel, number: int
) -> None:
    """Or has made again itself, but not yet filled in."""
    host(kernel, "first")
    kernel.refuse("write", "/node0.train/cpuset.cpus", number, times=2)
    made = groups(kernel)
    made.enter(TRAIN, DATA)
    assert made.tier == layouts.DOMAIN


def test_the_group_of_the_workers_is_still_there_once_the_process_is_in_its_own(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = host(kernel, "first") + "/loongkit.j"
    taken = []

    def move(operations: Kernel, folder: str, pid: int) -> None:
        kernel.write(f"{folder}/cgroup.procs", str(pid))
        if not taken:
            taken.append(folder)
            kernel.remove(f"{job}/node0.data")

    monkeypatch.setattr(job_groups, "move", move)
    groups(kernel).enter(TRAIN, DATA)
    assert kernel.groups_in(job) == ["node0.data", "node0.train"]
    assert kernel.where(ME, kernel.mounts[0]) == f"{job}/node0.train"


def test_processes_of_others_keep_their_cpus(kernel: Kernel) -> None:
    own = host(kernel, "first", ME, OTHER)
    kernel.become(OTHER)
    groups(kernel, OTHER).enter(TRAIN, DATA)
    kernel.become(ME)
    with pytest.raises(FileExistsError, match="others on cpus 0-1"):
        groups(kernel).enter(DATA, TRAIN)
    assert kernel.read(f"{own}/loongkit.j/node0.train/cpuset.cpus") == "0-1"
    assert kernel.where(ME, kernel.mounts[0]) == own


def test_a_set_that_the_kernel_does_not_take_over_is_an_error(kernel: Kernel) -> None:
    """The second generation takes CPUs beyond those of the group above, and gives others."""
    own = host(kernel, "root")
    kernel._put(f"{own}/cpuset.cpus.effective", "4-7")
    with pytest.raises(OSError, match=r"was set to 0-1 and became 4-7"):
        groups(kernel).enter(TRAIN, DATA)
    assert kernel.groups() == []


@pytest.mark.parametrize(("kind", "others"), [("first", "0-1"), ("threaded", "")])
def test_memory_nodes(kernel: Kernel, kind: str, others: str) -> None:
    job = host(kernel, kind) + "/loongkit.j"
    groups(kernel).enter(Wanted(TRAIN.cpus, frozenset({1, 9})), Wanted(DATA.cpus, frozenset({9})))
    assert kernel.read(f"{job}/node0.train/cpuset.mems") == "1"
    assert kernel.read(f"{job}/node0.data/cpuset.mems") == others, "none of these is ours"


SOME, NO_MEMORY = frozenset({1, 9}), frozenset({9})


@pytest.mark.parametrize(
    ("kind", "train", "data", "problem"),
    [
        ("first", SOME, SOME, ""),
        ("threaded", SOME, SOME, ""),
        ("first", SOME, NO_MEMORY, "node0.data keeps memory nodes 0-1; wanted 9"),
        ("threaded", NO_MEMORY, SOME, "node0.train keeps memory nodes 0-1; wanted 9"),
        ("members", SOME, SOME, "no CPU sets here"),
        ("members", frozenset(), frozenset(), ""),
        ("first", frozenset(), frozenset(), ""),
    ],
)
def test_memory_nodes_that_can_not_be_had(
    kernel: Kernel, kind: str, train: frozenset[int], data: frozenset[int], problem: str
) -> None:
    host(kernel, kind)
    wanted = Wanted(TRAIN.cpus, train), Wanted(DATA.cpus, data)
    made = groups(kernel)
    made.enter(*wanted)
    found = made.memory_problem(*wanted)
    assert problem in found and bool(found) is bool(problem)


class TestLeaving:
    def test_a_helper_of_this_process_goes_along(self, kernel: Kernel) -> None:
        """multiprocessing's resource tracker outlives the process that started it."""
        own = host(kernel, "first")
        made = groups(kernel)
        made.enter(TRAIN, DATA)
        kernel.child_of(ME, 801)
        kernel.write(f"{own}/loongkit.j/node0.train/cgroup.procs", "801")
        made.leave()
        assert kernel.where(801, kernel.mounts[0]) == own
        assert kernel.groups_in(own) == []

    def test_what_others_put_there_stays(
        self, kernel: Kernel, naps: list[float], said: list[str]
    ) -> None:
        own = host(kernel, "first")
        made = groups(kernel)
        made.enter(TRAIN, DATA)
        kernel.child_of(1, 801)
        kernel.write(f"{own}/loongkit.j/node0.data/cgroup.procs", "801")
        made.leave()
        assert kernel.groups_in(f"{own}/loongkit.j") == ["node0.data"]
        assert kernel.where(ME, kernel.mounts[0]) == own and naps == [] and said == []

    def test_who_was_moved_elsewhere_stays_there(self, kernel: Kernel) -> None:
        host(kernel, "first")
        made = groups(kernel)
        made.enter(TRAIN, DATA)
        (kernel.root / kernel.mounts[0] / "batch").mkdir()
        kernel._populate(f"{kernel.mounts[0]}/batch")
        kernel.write(f"{kernel.mounts[0]}/batch/cgroup.procs", str(ME))
        made.leave()
        assert kernel.where(ME, kernel.mounts[0]) == f"{kernel.mounts[0]}/batch"
        assert kernel.groups() == ["batch", "pod", "pod/box"]

    @pytest.mark.parametrize(("times", "left"), [(4, 0), (5, 1)])
    def test_a_busy_group_is_tried_five_times(
        self, kernel: Kernel, naps: list[float], said: list[str], times: int, left: int
    ) -> None:
        own = host(kernel, "first")
        made = groups(kernel)
        made.enter(TRAIN, DATA)
        kernel.refuse("remove", "/node0.train", errno.EBUSY, times)
        made.leave()
        assert len(kernel.groups_in(own)) == left
        assert naps == [0.02] * times
        assert ["is left behind" in line for line in said] == [True] * left

    def test_the_group_above_takes_nobody_back(self, kernel: Kernel, said: list[str]) -> None:
        """A process that is root no more, or was put here by one that is."""
        own = host(kernel, "first")
        made = groups(kernel)
        made.enter(TRAIN, DATA)
        kernel.refuse("write", f"{own}/cgroup.procs", errno.ENOSPC)
        made.leave()
        assert kernel.groups_in(f"{own}/loongkit.j") == ["node0.data", "node0.train"]
        (line,) = said
        assert line.startswith(f"subcgroups: /{own}/loongkit.j/node0.train is left behind: ")
        assert os.strerror(errno.ENOSPC) in line

    def test_a_process_that_can_open_no_file_any_more(
        self, kernel: Kernel, said: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = host(kernel, "first")
        made = groups(kernel)
        made.enter(TRAIN, DATA)

        def fail(path: str) -> str:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

        monkeypatch.setattr(kernel, "read", fail)
        made.leave()
        (line,) = said
        assert line.startswith(f"subcgroups: /{own}/loongkit.j/node0.train is left behind: ")
        assert os.strerror(errno.EMFILE) in line

    def test_a_process_that_sees_no_control_groups_any_more(
        self, kernel: Kernel, said: list[str], tmp_path: Path
    ) -> None:
        own = host(kernel, "first")
        made = groups(kernel)
        made.enter(TRAIN, DATA)
        made._operations = Operations(str(tmp_path / "empty"))
        made.leave()
        (line,) = said
        assert line.startswith(f"subcgroups: /{own}/loongkit.j is left behind: ")

    def test_twice(self, kernel: Kernel) -> None:
        host(kernel, "first")
        made = groups(kernel)
        made.enter(TRAIN, DATA)
        made.leave()
        kernel.log.clear()
        made.leave()
        assert kernel.log == []


class TestStaleGroups:
    @pytest.fixture(params=["first", "threaded"])
    def own(self, kernel: Kernel, request: Any) -> str:
        own = host(kernel, request.param, ME, OTHER)
        kernel.become(OTHER)
        groups(kernel, OTHER, job="dead").enter(TRAIN, DATA)
        kernel.become(ME)
        return own

    def age(self, kernel: Kernel, folder: str, seconds: float) -> None:
        then = time.time() - seconds
        os.utime(kernel.root / folder, (then, then))

    @pytest.mark.parametrize(
        ("populated", "age", "stays"), [(False, 61, False), (False, 50, True), (True, 9999, True)]
    )
    def test_only_old_ones_without_processes_go(
        self, kernel: Kernel, own: str, populated: bool, age: float, stays: bool
    ) -> None:
        if not populated:
            kernel._join(own, OTHER)  # as when it was killed
        self.age(kernel, f"{own}/loongkit.dead", age)
        (kernel.root / own / "loongkit-of-the-users").mkdir()
        kernel._populate(f"{own}/loongkit-of-the-users")
        self.age(kernel, f"{own}/loongkit-of-the-users", 9999)
        groups(kernel).enter(TRAIN, DATA)
        found = kernel.groups_in(own)
        assert ("loongkit.dead" in found) is stays
        assert {"loongkit-of-the-users", "loongkit.j"} <= set(found)

    def test_one_that_can_not_be_removed_is_no_problem(self, kernel: Kernel, own: str) -> None:
        kernel._join(own, OTHER)
        self.age(kernel, f"{own}/loongkit.dead", 9999)
        kernel.refuse("remove", "dead/node0.data", errno.EBUSY)
        made = groups(kernel)
        made.enter(TRAIN, DATA)
        assert made.tier


class TestGroupsOfOthers:
    """They may be called loongkit.<something> too."""

    FOREIGN = (
        *("loongkit.empty", "loongkit.mine/custom", "loongkit.named/custom.train"),
        *("loongkit.mixed/node0.train", "loongkit.mixed/node0.data", "loongkit.mixed/shared"),
    )

    @pytest.fixture
    def own(self, kernel: Kernel) -> str:
        own = host(kernel, "first", ME, OTHER)
        for folder in self.FOREIGN:
            path = own
            for name in folder.split("/"):
                path += f"/{name}"
                if kernel.make(path):
                    os.utime(kernel.root / path, (1, 1))
        return own

    def test_stay_however_old(self, kernel: Kernel, own: str) -> None:
        before = kernel.groups()
        made = groups(kernel)
        made.enter(TRAIN, DATA)
        made.leave()
        assert kernel.groups() == before

    def test_stay_where_a_child_may_have_made_them(
        self, kernel: Kernel, own: str, naps: list[float]
    ) -> None:
        """Nor does anybody wait for their processes to end."""
        kernel._join(f"{own}/loongkit.mine/custom", OTHER)
        before = kernel.groups()
        leftovers.of_children(kernel, ME, 0)
        assert kernel.groups() == before and naps == []

    def test_stay_beside_the_last_of_ours(self, kernel: Kernel, own: str) -> None:
        groups(kernel, job="mixed").enter(TRAIN, DATA)
        before = kernel.groups()
        leftovers.of_this_process(kernel, ME)
        assert kernel.groups() == before and kernel.where(ME, kernel.mounts[0]) == own

    def test_are_not_what_a_process_is_taken_out_of(self, kernel: Kernel, own: str) -> None:
        here = f"{own}/loongkit.named/custom.train"
        kernel._join(here, ME)
        kernel._tell()
        (found,) = own_groups.find(kernel, ME)
        assert (found.folder, found.leaf) == (here, "")


@pytest.mark.parametrize("role", ["train", "data"])
@pytest.mark.parametrize("stem", ["node0", "node0-1", "node0,2-3", "node0.r0", "node1.r15"])
def test_names_of_our_form(stem: str, role: str) -> None:
    assert is_leaf(f"{stem}.{role}")


@pytest.mark.parametrize(
    "name",
    [
        *("custom", "train", "node0", ".train", "0.train", "custom.train", "node0.test"),
        *("nodeA.train", "node00.train", "node1,0.train", "node0.rA.train", "node0.r.train"),
        *("node0.x.train", "node0.r\u0661.train", "node0.r1.r2.train", "mynode0.train"),
    ],
)
def test_names_of_others(name: str) -> None:
    assert not is_leaf(name)


class TestWhatChildrenLeave:
    """The launcher's part, at its own end: it has been in no group of ours itself."""

    @pytest.fixture(params=KINDS)
    def own(self, kernel: Kernel, request: Any) -> str:
        own = host(kernel, request.param, ME, OTHER)
        kernel.become(OTHER)
        groups(kernel, OTHER, job="rank").enter(TRAIN, DATA)
        kernel.become(ME)
        return own

    def kill(self, kernel: Kernel) -> None:
        """As the kernel does it: the process is in no group any more."""
        for mount in kernel.mounts:
            kernel._join(mount, OTHER)

    def test_however_young(self, kernel: Kernel, own: str, naps: list[float]) -> None:
        began = time.time()
        self.kill(kernel)
        leftovers.of_children(kernel, ME, began)
        assert not [name for name in kernel.groups() if "loongkit" in name] and naps == []
        if own not in kernel.mounts and kernel.mount_of(own) in kernel.seconds:
            assert kernel.read(f"{own}/cgroup.type") == "domain"

    def test_those_of_before_may_be_of_a_job_that_is_starting(
        self, kernel: Kernel, own: str
    ) -> None:
        self.kill(kernel)
        leftovers.of_children(kernel, ME, time.time() + 2)
        assert "loongkit.rank" in kernel.groups_in(own)

    def test_those_that_are_dying_get_half_a_second(
        self, kernel: Kernel, own: str, naps: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def nap(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 3:
                self.kill(kernel)

        monkeypatch.setattr(leftovers.time, "sleep", nap)
        leftovers.of_children(kernel, ME, time.time())
        assert "loongkit.rank" not in kernel.groups_in(own) and len(naps) == 3

    def test_those_in_use_stay(self, kernel: Kernel, own: str, naps: list[float]) -> None:
        leftovers.of_children(kernel, ME, time.time())
        assert kernel.groups_in(f"{own}/loongkit.rank") == ["node0.data", "node0.train"]
        assert sum(naps) == pytest.approx(0.5)

    def test_nothing_is_made_or_moved(self, kernel: Kernel, own: str) -> None:
        self.kill(kernel)
        kernel.log.clear()
        leftovers.of_children(kernel, ME, time.time())
        calls = {line.split()[0] for line in kernel.log if "cgroup.subtree_control" not in line}
        assert calls == {"remove"}


class TestTheLastProcess:
    """A data worker that outlives the training process, or that process as another program."""

    @pytest.fixture(params=KINDS)
    def job(self, kernel: Kernel, request: Any) -> str:
        own = host(kernel, request.param, ME, OTHER)
        groups(kernel).enter(TRAIN, DATA)
        return f"{own}/loongkit.j"

    def join(self, kernel: Kernel, folder: str, pid: int, *words: str) -> None:
        kernel.child_of(1, pid)
        (kernel.root / f"proc/{pid}/cmdline").write_bytes("\0".join(words).encode())
        kernel.write(f"{folder}/cgroup.procs", str(pid))

    def test_it_clears_away(self, kernel: Kernel, job: str) -> None:
        job_groups.move_worker(kernel, ME)
        leftovers.of_this_process(kernel, ME)
        assert not [name for name in kernel.groups() if "loongkit" in name]
        assert kernel.where(ME, kernel.mount_of(job)) == job.rpartition("/")[0]

    @pytest.mark.parametrize("role", ["train", "data"])
    def test_another_one_keeps_them(self, kernel: Kernel, job: str, role: str) -> None:
        self.join(kernel, f"{job}/node0.{role}", 801, "python", "train.py")
        leftovers.of_this_process(kernel, ME)
        assert kernel.groups_in(job) == ["node0.data", "node0.train"]
        assert kernel.where(801, kernel.mount_of(job)) == f"{job}/node0.{role}"
        assert kernel.where(ME, kernel.mount_of(job)) == job.rpartition("/")[0]

    TRACKER = ("python", "-c", "from multiprocessing.resource_tracker import main;main(6)")

    def test_multiprocessings_helper_does_not(self, kernel: Kernel, job: str) -> None:
        """It ends after the last data worker that holds its pipe."""
        self.join(kernel, f"{job}/node0.train", 801, *self.TRACKER)
        leftovers.of_this_process(kernel, ME)
        assert "loongkit.j" not in kernel.groups_in(job.rpartition("/")[0])

    def test_the_helper_of_another_rank_stays(self, kernel: Kernel, job: str) -> None:
        self.join(kernel, f"{job}/node0.train", 801, *self.TRACKER)
        self.join(kernel, f"{job}/node0.train", 802, "python", "train.py")
        leftovers.of_this_process(kernel, ME)
        assert kernel.where(801, kernel.mount_of(job)) == f"{job}/node0.train"

    def test_another_one_that_clears_away_too_is_no_reason_to_stay(
        self, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In no hierarchy: the other one could not remove the groups there."""
        own = host(kernel, "hybrid")
        groups(kernel).enter(TRAIN, DATA)
        processes = own_groups.processes

        def vanish(operations: Kernel, folder: str) -> list[int]:
            if folder.endswith("node0.data"):
                kernel.remove(folder)
            return processes(operations, folder)

        monkeypatch.setattr(own_groups, "processes", vanish)
        leftovers.of_this_process(kernel, ME)
        assert not [name for name in kernel.groups() if "loongkit" in name]
        assert kernel.where(ME, kernel.mounts[0]) == f"{kernel.mounts[0]}/pod/box"
        assert kernel.where(ME, kernel.mount_of(own)) == own

    def test_one_that_is_in_none_of_ours_stays(self, kernel: Kernel) -> None:
        host(kernel, "hybrid")
        leftovers.of_this_process(kernel, ME)
        assert kernel.log == []


def test_training_groups_are_removed_first(kernel: Kernel) -> None:
    """So that a process which is about to enter one finds out, and makes both again."""
    job = host(kernel, "first") + "/loongkit.j"
    groups(kernel).enter(TRAIN, DATA)
    kernel._join(kernel.mounts[0], ME)
    kernel.log.clear()
    assert leftovers.of_job(kernel, job)
    assert kernel.log == [f"remove {job}/node0.train", f"remove {job}/node0.data", f"remove {job}"]


def test_from_a_process_that_makes_its_group_again_that_of_its_workers_is_not_taken(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = host(kernel, "first", ME, OTHER) + "/loongkit.j"
    groups(kernel).enter(TRAIN, DATA)
    kernel._join(kernel.mounts[0], ME)
    remove = leftovers.remove

    def enters(operations: Kernel, folder: str) -> bool:
        assert remove(operations, folder)
        kernel.become(OTHER)
        groups(kernel, OTHER).enter(TRAIN, DATA)
        return True

    monkeypatch.setattr(leftovers, "remove", enters)
    assert not leftovers.of_job(kernel, job)
    assert kernel.groups_in(job) == ["node0.data", "node0.train"]


class TestWorkers:
    @pytest.mark.parametrize("kind", KINDS)
    def test_one_goes_from_the_training_group_to_its_own(self, kernel: Kernel, kind: str) -> None:
        own = host(kernel, kind)
        groups(kernel).enter(TRAIN, DATA)
        # /proc/self is this process: it plays the worker that was born in the trainer's group.
        assert job_groups.move_worker(kernel, ME) == f"{own}/loongkit.j/node0.data"
        told = (kernel.root / "proc/self/cgroup").read_text()
        assert told.count("/loongkit.j/node0.data") == (2 if kind == "hybrid" else 1)
        assert job_groups.move_worker(kernel, ME) == "", "it is there already"

    def test_one_that_is_in_no_group_of_ours_stays(self, kernel: Kernel) -> None:
        host(kernel, "hybrid")
        assert job_groups.move_worker(kernel, ME) == ""
        assert kernel.log == []

    def test_the_refusal_is_the_callers_to_handle(self, kernel: Kernel) -> None:
        host(kernel, "first")
        groups(kernel).enter(TRAIN, DATA)
        kernel.refuse("write", "node0.data/cgroup.procs", errno.EACCES)
        with pytest.raises(PermissionError):
            job_groups.move_worker(kernel, ME)


@pytest.mark.parametrize("kind", KINDS)
def test_whether_a_group_holds_a_process(kernel: Kernel, kind: str) -> None:
    assert not own_groups.holds_cpus(kernel, ME)
    host(kernel, kind)
    assert not own_groups.holds_cpus(kernel, ME)
    groups(kernel).enter(TRAIN, DATA)
    assert own_groups.holds_cpus(kernel, ME) is (kind != "members")


def test_a_process_born_in_a_group_of_ours_has_the_one_above_the_job(kernel: Kernel) -> None:
    own = host(kernel, "first")
    groups(kernel, job="outer").enter(TRAIN, DATA)
    (found,) = own_groups.find(kernel, ME)
    assert (found.folder, found.leaf) == (own, f"{own}/loongkit.outer/node0.train")
    groups(kernel, job="inner").enter(TRAIN, DATA)
    assert kernel.where(ME, kernel.mounts[0]) == f"{own}/loongkit.inner/node0.train"
