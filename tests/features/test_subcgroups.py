"""LOONGKIT_SUBCGROUPS in one process: what it decides, and who places the process in the end."""

from __future__ import annotations

import errno
import os
from multiprocessing import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import children
import pytest
import two_nodes
from cgroup_kernel import Kernel as Groups
from numa_hosts import epyc_9654, host, request
from numa_kernel import Kernel

from loongkit.activation import logs, plan, session, settings, states
from loongkit.activation.patching import Patcher, Skip
from loongkit.features import subcgroups
from loongkit.numa import launched, placement, survey
from loongkit.numa import plan as planning
from loongkit.numa.cgroups import own as own_groups
from loongkit.numa.cgroups import placement as group_placement
from loongkit.numa.cgroups.names import job_name, leaf_name
from loongkit.numa.cgroups.placement import GroupPlacement
from loongkit.numa.placement import Placement

BOTH = frozenset({0, 1})
JOB = "loongkit.29500"


class Rank:
    """A process of a job: its kernel, its control groups, and the two features that place it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.kernel = Kernel({0: BOTH})
        self.groups = Groups(folder / "host")
        self.own = self.groups.first("cpuset", "pod")
        self.log = folder / "log"
        self.torch = "2.13.0"
        self.sysfs = str(two_nodes.write(folder / "machine"))
        self.registered: list[Any] = []
        for name in list(os.environ):
            if name.startswith(("LOONGKIT_", "CUDA_", "NVIDIA_", "SLURM", "OMPI", "LOCAL_")):
                monkeypatch.delenv(name)
        monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
        monkeypatch.setenv("MASTER_PORT", "29500")
        monkeypatch.setattr(logs, "_state", logs._state)
        logs.configure("info", str(self.log))
        monkeypatch.setattr(survey, "torch_on_path", lambda: self.torch)
        monkeypatch.setattr("loongkit.activation.versions.module_version", lambda _: self.torch)
        monkeypatch.setattr(placement.process, "is_launcher", lambda: False)
        monkeypatch.setattr(group_placement.atexit, "register", self.registered.append)
        monkeypatch.setattr(group_placement.atexit, "unregister", lambda _: None)
        monkeypatch.setattr(placement, "_placement", None)

    def start(self, rank: int = 0, affinity: bool = True, **variables: str) -> Rank:
        """Switch the features on as a launcher's environment would."""
        asked = {f"LOONGKIT_{name}": text for name, text in variables.items()}
        asked.setdefault("LOONGKIT_NUMA_AFFINITY_SYSFS", self.sysfs)
        if rank >= 0:
            asked |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        asked |= {"LOONGKIT_SUBCGROUPS": "1", "LOONGKIT_NUMA_AFFINITY": str(int(affinity))}
        for name, text in asked.items():
            self._patch.setenv(name, text)
        found = settings.read(os.environ)
        decisions = plan.decide(found, plan.entries())
        self.records = {
            name: states.Record(decisions[name], strict=False)
            for name in ("numa_affinity", "subcgroups")
        }
        self._patch.setattr(
            session, "SESSION", SimpleNamespace(settings=found, records=self.records)
        )
        self.marked: list[str] = []
        self.masks: Placement | None = None
        if affinity:
            patcher = Patcher(self.records["numa_affinity"], lambda: self.marked.append("masks"))
            self.masks = Placement(patcher, self.kernel)
            patcher.on_undo(self.masks.put_back)
            self._patch.setattr(placement, "_placement", self.masks)
        self.patcher = Patcher(self.records["subcgroups"], lambda: self.marked.append("groups"))
        self.placed = GroupPlacement(self.patcher, self.kernel, self.groups)
        self.patcher.on_undo(self.placed.put_back)
        return self

    def arm(self) -> bool:
        """Run the two at_start hooks in the session's order, and do what it does after a Skip."""
        if self.masks is not None:
            assert self.masks.at_start() is False, "it waits for the groups"
        try:
            return self.placed.at_start()
        except Skip as skip:
            self.patcher.undo()
            self.records["subcgroups"].move(states.SKIPPED, str(skip))
            return False

    @property
    def where(self) -> str:
        """This process's group, below the one that it began in."""
        return self.groups.where(os.getpid(), self.groups.mounts[0]).removeprefix(self.own)

    @property
    def mask(self) -> frozenset[int]:
        return self.kernel.masks[0]

    @property
    def said(self) -> str:
        return children.log_of(self.log)


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(tmp_path, monkeypatch)


@pytest.mark.parametrize("own", [0, 1])
@pytest.mark.parametrize("affinity", [True, False])
def test_a_rank_enters_the_group_of_its_node_and_no_mask_is_set(
    rank: Rank, own: int, affinity: bool
) -> None:
    assert rank.start(own, affinity).arm() is True
    assert rank.where == f"/{JOB}/node{own}.train"
    cpus = {
        role: rank.groups.read(f"{rank.own}/{JOB}/node{own}.{role}/cpuset.cpus")
        for role in ("train", "data")
    }
    assert cpus == {"train": str(own), "data": str(own)}
    assert rank.mask == BOTH and rank.kernel.preferred == []
    assert rank.marked == ["groups"]
    assert os.environ[settings.JOB_PLACEMENT] == f"{os.getpid()}/{own}/2/0-1/{own}/{own}"
    if affinity:
        record = rank.records["numa_affinity"]
        assert record.state == states.SKIPPED and "superseded by subcgroups" in record.reason
        assert "superseded by subcgroups" in rank.said
    rank.patcher.undo()
    assert rank.where == "" and rank.groups.groups() == ["pod"]
    assert settings.JOB_PLACEMENT not in os.environ


def test_at_exit_it_leaves_and_a_fork_does_not(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    rank.start().arm()
    (leave,) = rank.registered
    monkeypatch.setattr(os, "getpid", lambda: 4242)
    leave()
    monkeypatch.undo()
    assert rank.groups.groups_in(f"{rank.own}/{JOB}") == ["node0.data", "node0.train"]
    leave()
    assert rank.groups.groups_in(rank.own) == []


@pytest.mark.parametrize("affinity", [True, False])
@pytest.mark.parametrize(
    "name",
    ["EROFS", "EACCES", "EPERM", "EBUSY", "ENOENT", "EOPNOTSUPP", "EINVAL", "ENOSPC", "ERANGE"],
)
def test_without_groups_affinity_takes_over_if_it_is_on(
    rank: Rank, name: str, affinity: bool
) -> None:
    rank.groups.refuse("make", JOB, getattr(errno, name))
    assert rank.start(1, affinity).arm() is False
    record = rank.records["subcgroups"]
    assert record.state == states.SKIPPED
    assert record.reason.startswith(f"cgroup-unavailable:{name}: ")
    assert f"/{rank.own}/{JOB}" in record.reason, "the file that was refused"
    assert rank.where == "" and rank.groups.groups() == ["pod"]
    assert rank.mask == (frozenset({1}) if affinity else BOTH)
    assert rank.marked == (["masks"] if affinity else [])


def test_affinity_takes_over_once(rank: Rank) -> None:
    rank.groups.refuse("make", JOB, errno.EROFS)
    rank.start(1).arm()
    assert rank.masks is not None
    rank.kernel.masks[0] = BOTH  # the user's own choice
    rank.placed._contained(lambda: None)
    assert rank.mask == BOTH


def test_groups_without_cpu_sets_leave_the_cpus_to_affinity(rank: Rank, tmp_path: Path) -> None:
    rank.groups = Groups(tmp_path / "other")
    rank.own = rank.groups.second("pod", on="cpu memory")
    assert rank.start(1).arm() is True
    assert rank.where == f"/{JOB}/node1.train" and rank.mask == {1}
    assert sorted(rank.marked) == ["groups", "masks"]
    assert "groups without CPU sets" in rank.said


@pytest.mark.parametrize("gpus", [(), (0, 0, 1)])
def test_where_nothing_is_to_be_placed_both_say_why(
    rank: Rank, tmp_path: Path, gpus: tuple[int, ...]
) -> None:
    machine = two_nodes.write(tmp_path / "lopsided", gpus=gpus)
    assert rank.start(NUMA_AFFINITY_SYSFS=str(machine)).arm() is False
    reasons = {record.reason for record in rank.records.values()}
    assert len(reasons) == 1 and reasons.pop().startswith("asymmetric" if gpus else "no-gpu")
    assert rank.groups.log == [] and rank.mask == BOTH


def test_the_version_gate_is_that_of_affinity(rank: Rank) -> None:
    rank.torch = "2.4.1"
    assert rank.start().arm() is False
    assert "found torch 2.4.1, wanted >=2.5.0" in rank.records["subcgroups"].reason
    assert rank.where == ""
    rank.torch = "2.5.0"
    assert rank.start().arm() is True


def test_the_options_of_affinity_count_also_where_it_is_off(rank: Rank) -> None:
    rank.start(1, affinity=False, NUMA_AFFINITY_CPUS="0,0-1").arm()
    assert rank.where == f"/{JOB}/node0-1.r1.train"
    assert rank.groups.read(f"{rank.own}/{JOB}/node0-1.r1.data/cpuset.cpus") == "0-1"


@pytest.mark.parametrize(("mems", "found"), [("1", "1"), ("0", "0-1")])
def test_memory_nodes_only_on_demand(rank: Rank, mems: str, found: str) -> None:
    rank.start(1, SUBCGROUPS_MEMS=mems).arm()
    assert rank.groups.read(f"{rank.own}/{JOB}/node1.train/cpuset.mems") == found


NO_MEMORY = "LOONGKIT_SUBCGROUPS_MEMS has no effect: node1.train keeps memory nodes 0; wanted 1"


def without_memory_on_node_1(rank: Rank) -> Rank:
    for name in ("mems", "effective_mems"):
        rank.groups._put(f"{rank.own}/cpuset.{name}", "0")
    return rank


def test_memory_nodes_that_can_not_be_had_are_a_shortfall(rank: Rank) -> None:
    without_memory_on_node_1(rank).start(1, SUBCGROUPS_MEMS="1")
    rank._patch.setattr(planning, "not_followed", lambda _: ["other"])
    assert rank.arm() is True
    assert rank.where == f"/{JOB}/node1.train"
    record = rank.records["subcgroups"]
    assert record.shortfall.startswith(f"other; {NO_MEMORY}"), "it does not replace another one"
    assert f"subcgroups: {NO_MEMORY}" in rank.said


@pytest.mark.parametrize(("mems", "lacks"), [("1", False), ("0", True)])
def test_no_shortfall_where_there_is_none(rank: Rank, mems: str, lacks: bool) -> None:
    if lacks:
        without_memory_on_node_1(rank)
    rank.start(1, SUBCGROUPS_MEMS=mems).arm()
    assert rank.where and rank.records["subcgroups"].shortfall == ""
    assert "SUBCGROUPS_MEMS" not in rank.said


def test_strictness_about_memory_nodes_leaves_nothing(rank: Rank) -> None:
    without_memory_on_node_1(rank).start(1, affinity=False, SUBCGROUPS_MEMS="1")
    rank.records["subcgroups"].strict = True
    with pytest.raises(states.StrictError, match=NO_MEMORY):
        rank.arm()
    assert rank.where == "" and rank.groups.groups() == ["pod"]
    assert settings.JOB_PLACEMENT not in os.environ and rank.marked == []


def test_threads_that_others_have_pinned_stay_pinned(rank: Rank) -> None:
    """The first generation drops all masks when a process enters a group."""
    rank.sysfs = str(two_nodes.write(rank.log.parent / "wide", cpus=8))
    everything = frozenset(range(8))
    rank.kernel.masks = {0: everything, 11: frozenset({2, 3}), 12: everything, 13: frozenset({1})}
    rank.start(0)
    enter = group_placement.JobGroups.enter

    def drops_masks(self: Any, *wanted: Any) -> None:
        enter(self, *wanted)
        rank.kernel.masks = dict.fromkeys(rank.kernel.masks, frozenset({0, 2, 4, 6}))

    rank._patch.setattr(group_placement.JobGroups, "enter", drops_masks)
    rank.arm()
    assert rank.kernel.masks[11] == {2}, "as far as the group has its CPUs"
    assert rank.kernel.masks[12] == rank.kernel.masks[13] == {0, 2, 4, 6}


class TestLate:
    """A process without a local rank enters its group at its first use of a device."""

    class Cuda:
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def _lazy_call(self, call: Any) -> None:
            self.calls.append(call)

    def use(self, rank: Rank) -> None:
        cuda = self.Cuda()
        assert rank.masks is not None
        rank._patch.setenv("CUDA_VISIBLE_DEVICES", "1")
        rank.masks.at_import(cuda)
        rank.placed.at_import(cuda)
        assert rank.where == "" and rank.mask == BOTH
        for call in cuda.calls:
            call()

    def test_it_enters(self, rank: Rank) -> None:
        self.use(rank.start(-1))
        assert rank.where == f"/{JOB}/node1.train" and rank.mask == BOTH
        assert rank.records["numa_affinity"].state == states.SKIPPED

    def test_affinity_takes_over(self, rank: Rank) -> None:
        rank.groups.refuse("write", "cgroup.procs", errno.EACCES)
        self.use(rank.start(-1))
        assert rank.where == "" and rank.mask == {1}
        assert rank.records["subcgroups"].reason.startswith("cgroup-unavailable:EACCES")

    def test_a_fork_that_inherits_the_call_is_left_alone(self, rank: Rank) -> None:
        rank.start(-1).placed._pid += 1
        assert rank.masks is not None
        rank.masks._pid += 1
        self.use(rank)
        assert rank.where == "" and rank.mask == BOTH


class TestTheOneThatStartsOthers:
    """A launcher, or a process without a rank: clears away what those leave that it has started."""

    @pytest.fixture
    def began(self, rank: Rank, request: pytest.FixtureRequest) -> Rank:
        launches = getattr(request, "param", True)
        rank._patch.setattr(group_placement.process, "is_launcher", lambda: launches)
        rank.start(-1)
        self.cuda = TestLate.Cuda()
        rank.placed.at_import(self.cuda)
        return rank

    def leave_some(self, rank: Rank) -> None:
        rank.groups._join(rank.own, 700)
        rank.groups.become(700)
        made = group_placement.JobGroups(rank.groups, 700, "29500", "node0")
        made.enter(group_placement.Wanted(BOTH), group_placement.Wanted(BOTH))
        rank.groups.become(os.getpid())
        rank.groups._join(rank.groups.mounts[0], 700)
        assert rank.groups.groups_in(rank.own) == [JOB]
        rank.groups.log.clear()

    @pytest.mark.parametrize("began", [True, False], indirect=True)
    def test_at_its_end(self, began: Rank) -> None:
        assert began.groups.log == []
        self.leave_some(began)
        (at_end,) = began.registered
        at_end()
        assert began.groups.groups_in(began.own) == []
        assert {line.split()[0] for line in began.groups.log} == {"remove"}

    def test_a_launcher_is_never_placed(self, began: Rank) -> None:
        assert self.cuda.calls == [] and began.marked == []

    def test_a_fork_of_it_leaves_them(self, began: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leave_some(began)
        (at_end,) = began.registered
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 4242)
            at_end()
        assert began.groups.groups_in(began.own) == [JOB]

    @pytest.mark.parametrize("error", [OSError(errno.EACCES, "no"), ValueError("nonsense")])
    def test_what_fails_is_not_the_jobs(self, began: Rank, error: Exception) -> None:
        def fail(*_: Any) -> None:
            raise error

        began._patch.setattr(group_placement.leftovers, "of_children", fail)
        began.registered[0]()
        assert repr(error) in began.said

    def test_not_once_it_is_switched_off(self, began: Rank) -> None:
        left: list[Any] = []
        began._patch.setattr(group_placement.atexit, "unregister", left.append)
        began.patcher.undo()
        assert left == began.registered

    def test_a_rank_and_a_child_of_multiprocessing_do_not(self, rank: Rank) -> None:
        rank.start(0).placed.at_import(TestLate.Cuda())
        rank._patch.delenv("LOCAL_RANK")
        rank._patch.setattr(group_placement.process, "kind", lambda: "spawned")
        rank.start(-1).placed.at_import(TestLate.Cuda())
        assert rank.registered == []


class TestAfterAnExec:
    """The same process as another program, in the groups of the one before."""

    @pytest.fixture
    def former(self, rank: Rank) -> Rank:
        rank.start(0).arm()
        assert rank.where == f"/{JOB}/node0.train"
        return rank

    def test_it_may_come_to_other_cpus(self, former: Rank) -> None:
        """They are in its own way: groups that hold processes keep their CPUs."""
        former._patch.setenv("LOONGKIT_NUMA_AFFINITY_CPUS", "0;0")
        former.start(0, SUBCGROUPS_MEMS="1").arm()
        assert former.where == f"/{JOB}/node0.r0.train"
        assert former.groups.groups_in(f"{former.own}/{JOB}") == ["node0.r0.data", "node0.r0.train"]

    def test_it_may_not_be_placed_any_more(self, former: Rank) -> None:
        lopsided = str(two_nodes.write(former.log.parent / "lopsided", gpus=(0, 0, 1)))
        assert former.start(0, NUMA_AFFINITY_SYSFS=lopsided).arm() is False
        assert former.where == "" and former.groups.groups_in(former.own) == []

    def test_it_may_be_without_a_rank(self, former: Rank) -> None:
        former._patch.delenv("LOCAL_RANK")
        former.start(-1).placed.at_import(TestLate.Cuda())
        assert former.where == ""

    def test_a_child_stays(self, former: Rank) -> None:
        """The programs that a rank or its data worker starts inherit its environment."""
        for role in ("train", "data"):
            former.groups.write(f"{former.own}/{JOB}/node0.{role}/cgroup.procs", str(os.getpid()))
            former.groups.log.clear()
            former._patch.setenv(settings.JOB_PLACEMENT, "1/0/2/0-1/0/0")
            former.kernel.masks[0] = frozenset({0})
            assert former.start(0).arm() is True
            former.placed.at_import(TestLate.Cuda())
            assert former.groups.log == [] and former.where == f"/{JOB}/node0.{role}"


class TestAtItsEnd:
    def test_errors_are_not_the_jobs(self, rank: Rank) -> None:
        rank.start().arm()

        def fail(*_: Any) -> None:
            raise ValueError("nonsense")

        rank._patch.setattr(group_placement.JobGroups, "leave", fail)
        (leave,) = rank.registered
        leave()
        assert "groups may be left: ValueError('nonsense')" in rank.said

    def test_what_fails_after_it_has_entered_is_undone(self, rank: Rank) -> None:
        def fail(*_: Any) -> None:
            raise RuntimeError("a thread")

        rank._patch.setattr(GroupPlacement, "_pin_again", fail)
        rank.start()
        with pytest.raises(RuntimeError):
            rank.placed.at_start()
        rank.patcher.undo()
        assert rank.where == "" and rank.groups.groups_in(rank.own) == []

    @pytest.mark.parametrize(("kind", "told"), [("forkserver", 1), ("spawned", 0), ("main", 0)])
    def test_children_of_a_fork_server_know_no_atexit(
        self, rank: Rank, kind: str, told: int
    ) -> None:
        finalizers: list[Any] = []
        rank._patch.setattr(
            util, "Finalize", lambda *words, exitpriority: finalizers.append((*words, exitpriority))
        )
        rank.start()
        rank._patch.setattr(group_placement.process, "kind", lambda: kind)
        assert rank.placed.at_start()
        assert len(finalizers) == told
        for _none, leave, priority in finalizers:
            assert priority < 0, "after the job's own"
            leave()
            assert rank.where == "" and rank.groups.groups_in(rank.own) == []


class TestWorker:
    @pytest.fixture
    def worker(self, rank: Rank) -> Rank:
        rank.start(0).arm()
        return rank

    def test_it_moves_to_the_data_workers(self, worker: Rank) -> None:
        assert worker.placed.at_worker_loop(lambda *words: words, 1, 2) == (1, 2)
        assert worker.where == f"/{JOB}/node0.data" and worker.mask == BOTH

    @pytest.mark.parametrize("outlives", [True, False])
    def test_where_it_outlives_the_training_process_it_clears_away(
        self, worker: Rank, outlives: bool
    ) -> None:
        def loop() -> None:
            assert worker.where == f"/{JOB}/node0.data"
            if outlives:
                worker._patch.setattr(os, "getppid", lambda: 1)
            raise KeyboardInterrupt  # it leaves by whatever way

        worker._patch.setattr(os, "getppid", lambda: 77)
        with pytest.raises(KeyboardInterrupt):
            worker.placed.at_worker_loop(loop)
        assert worker.groups.groups_in(worker.own) == ([] if outlives else [JOB])

    def test_what_fails_leaves_it_where_it_is(self, worker: Rank) -> None:
        worker.groups.refuse("write", "node0.data/cgroup.procs", errno.EACCES)
        assert worker.placed.at_worker_loop(lambda: "ran") == "ran"
        assert worker.where == f"/{JOB}/node0.train"
        assert "a data worker is left where it is" in worker.said

    def test_a_worker_that_was_moved_by_others_stays(self, worker: Rank) -> None:
        worker.groups.write(f"{worker.own}/cgroup.procs", str(os.getpid()))
        worker.placed.worker()
        assert worker.where == ""

    @pytest.mark.parametrize("held", [True, False])
    def test_affinity_leaves_a_spawned_one_to_its_group(self, rank: Rank, held: bool) -> None:
        """It has no state of its parent's but the environment, and may be where that had none."""
        rank.start()._patch.setenv(settings.JOB_PLACEMENT, "1/0/2/0-1/0-1/1")
        rank._patch.setattr(own_groups, "holds_cpus", lambda *_: held)
        assert rank.masks is not None
        rank.masks.worker()
        assert rank.mask == (BOTH if held else {1})

    @pytest.mark.parametrize(("variable", "mask"), [("OMP_PROC_BIND", {0, 2}), ("OTHER", {0})])
    def test_one_core_from_openmp_is_no_choice_of_the_users(
        self, worker: Rank, variable: str, mask: set[int]
    ) -> None:
        worker._patch.setenv(variable, "true")
        for name in ("cpus", "effective_cpus"):
            worker.groups._put(f"{worker.own}/{JOB}/node0.data/cpuset.{name}", "0,2")
        worker.kernel.masks[0] = frozenset({0})
        worker.placed.worker()
        assert worker.mask == mask


def test_a_launcher_that_openmp_has_bound_is_looked_through(rank: Rank) -> None:
    """Newer kernels keep the mask that the launcher's ranks inherit, in spite of the group."""
    rank.kernel.masks[0] = frozenset({0})
    rank._patch.setattr(launched, "started_with", lambda _environ, _mask: BOTH)
    assert rank.start(1).arm() is True
    assert rank.where == f"/{JOB}/node1.train" and rank.mask == {1}


def test_a_mask_that_stays_is_no_failure(rank: Rank) -> None:
    rank.kernel.masks[0] = frozenset({0})
    rank.kernel.refuses = {0}
    rank._patch.setattr(launched, "started_with", lambda _environ, _mask: BOTH)
    assert rank.start(1).arm() is True
    assert "the mask that this process was started with stays" in rank.said


def test_a_process_born_in_a_group_plans_for_what_is_above_it(rank: Rank) -> None:
    """A rank that a training process has started: from the narrowed mask it would get nothing."""
    rank.start(0).arm()
    rank.kernel.masks[0] = frozenset({0})
    rank._patch.setenv("MASTER_PORT", "29600")
    assert rank.start(1).arm() is True
    assert rank.where == "/loongkit.29600/node1.train"


@pytest.mark.parametrize(
    ("environ", "rank", "name"),
    [
        ({"TORCHELASTIC_RUN_ID": "Run-1_b", "MASTER_PORT": "1"}, 0, "Run-1_b"),
        ({"TORCHELASTIC_RUN_ID": "a/b c", "MASTER_PORT": "1"}, 0, f"a_b_c-{0x612F622063:010x}"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29500"}, 0, "29500"),
        ({"TORCHELASTIC_RUN_ID": "../x"}, 0, f"___x-{0x2E2E2F78:010x}"),
        ({"MASTER_PORT": "29500"}, -1, "29500"),
        ({}, 0, "the launcher's number"),
        ({}, -1, "its own number"),
        ({"TORCHELASTIC_RUN_ID": "r" * 64}, 0, "r" * 64),
    ],
)
def test_names_of_jobs(environ: dict[str, str], rank: int, name: str) -> None:
    numbers = {"the launcher's number": os.getppid(), "its own number": os.getpid()}
    name = str(numbers.get(name, name))
    assert job_name(environ, rank) == name


def test_jobs_that_are_alike_have_names_of_their_own() -> None:
    """In what is cut off, in letters that may stand in no folder, in bytes that are no text."""
    alike = ["a.b", "a_b", "a b", "\udc80", "\udc81", "é", *("r" * 64 + end for end in "AB")]
    found = [job_name({"TORCHELASTIC_RUN_ID": text}, 0) for text in [*alike, "r" * 64]]
    assert len(set(found)) == len(found)
    for name in found:
        assert (
            len(name) <= 64 and name.isascii() and name.replace("-", "").replace("_", "a").isalnum()
        )
    assert found == [job_name({"TORCHELASTIC_RUN_ID": text}, 0) for text in [*alike, "r" * 64]]


@pytest.mark.parametrize("kind", ["spawned", "forkserver"])
def test_trainers_by_multiprocessing_share_a_job(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_placement.process, "kind", lambda: kind)
    assert job_name({}, -1) == str(os.getppid())


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"partition_per_llc": False}, "node0"),
        ({"partition_per_llc": True}, "node0.r1"),
        ({"partition_per_llc": True, "separate_by_roles": True}, "node0.r1"),
        ({"cpus": "0-31,32-63"}, "node0.r1"),
    ],
)
def test_names_of_groups(options: dict[str, Any], name: str) -> None:
    machine = epyc_9654(2)
    found = planning.plan(machine, request(1, 4, given=options, **options))
    assert found.active and leaf_name(machine, found, 1) == name


def test_the_name_of_a_group_over_two_nodes() -> None:
    machine = host(["0-3", "4-7"], [0, 1])
    found = planning.plan(machine, request(-1, 1, devices=[0, 1]))
    assert leaf_name(machine, found, -1) == "node0-1"


def test_the_hooks_share_one_placement(rank: Rank) -> None:
    rank.start()
    first = group_placement.of(rank.patcher)
    assert group_placement.of(rank.patcher) is first
    rank.start()
    assert group_placement.of(rank.patcher) is not first
    assert {target for target, _ in subcgroups.FEATURE.hooks} == {"torch.cuda"}
    assert subcgroups.FEATURE.start_hooks
