"""Placement in one process: when it is decided, by what, and what becomes of the feature."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import two_nodes
from numa_kernel import Kernel

from loongkit.activation import logs, plan, settings, states
from loongkit.activation.patching import Patcher, Skip
from loongkit.features import numa_affinity
from loongkit.numa import placement, survey
from loongkit.numa.placement import Placement
from loongkit.numa.system import PREFERRED

BOTH = frozenset({0, 1})
#: Modes of memory policies that are never ours (linux/mempolicy.h).
BIND, INTERLEAVE = 2, 3
OF_LAUNCHERS = ("LOONGKIT_", "CUDA_", "NVIDIA_", "SLURM", "OMPI", "MPI_", "LOCAL_", "WORLD_SIZE")


class Rank:
    """A process with a placement of its own, a kernel and an environment of the test's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.kernel = Kernel({0: BOTH})
        self.marks: list[int] = []
        self.sysfs = two_nodes.write(folder / "machine")
        self.torch: str | None = "2.13.0+cpu"
        self.log = folder / "log"
        for name in list(os.environ):
            if name.startswith(OF_LAUNCHERS):
                monkeypatch.delenv(name)
        for name in settings.INTERNAL:  # what a placement sets is not left to the next test
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        monkeypatch.setattr(logs, "_state", logs._state)
        logs.configure("info", str(self.log))
        monkeypatch.setattr(survey, "torch_on_path", lambda: self.torch)
        monkeypatch.setattr("loongkit.activation.versions.module_version", lambda _: self.torch)
        monkeypatch.setattr(placement.process, "is_launcher", lambda: False)

    def env(self, **variables: str) -> Rank:
        for name, text in variables.items():
            self._patch.setenv(name, text)
        return self

    def placement(self, **options: Any) -> Placement:
        entry = next(entry for entry in plan.entries() if entry.name == "numa_affinity")
        decision = plan.Decision(entry, True, plan.OWN, "asked for by a test")
        decision.options = {key: default for key, _, _, default, _ in entry.options}
        decision.options |= {"sysfs": str(self.sysfs)} | options
        decision.given = frozenset(options)
        record = states.Record(decision, strict=False)
        record.state = states.PATCHED
        self.patcher = Patcher(record, lambda: self.marks.append(1))
        made = Placement(self.patcher, self.kernel)
        self.patcher.on_undo(made.put_back)
        return made

    @property
    def mask(self) -> frozenset[int]:
        return self.kernel.masks[0]

    @property
    def said(self) -> str:
        return "".join(file.read_text("utf-8") for file in self.log.glob("*.log"))


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(tmp_path, monkeypatch)


class Cuda:
    """torch.cuda, before and after the first use of a device."""

    def __init__(self, *devices: Any, current: int = 0) -> None:
        self.devices = devices
        self.current = current
        self.calls: list[Any] = []

    def _lazy_call(self, call: Any) -> None:
        self.calls.append(call)

    def use(self) -> None:
        for call in self.calls:
            call()

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return len(self.devices)

    def current_device(self) -> int:
        return self.current

    def get_device_properties(self, index: int) -> Any:
        return self.devices[index]


def device(bus: int) -> Any:
    return SimpleNamespace(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0, uuid="none")


@pytest.mark.parametrize("own", [0, 1])
def test_a_rank_is_bound_at_start_and_marks_the_feature(rank: Rank, own: int) -> None:
    rank.env(LOCAL_RANK=str(own), LOCAL_WORLD_SIZE="2")
    assert rank.placement().at_start() is True
    assert rank.mask == {own} and rank.kernel.preferred == [own] and rank.marks
    pid = os.getpid()
    assert os.environ[settings.JOB_PLACEMENT] == f"{pid}/{own}/2/0-1/{own}/{own}"
    rank.patcher.undo()
    assert rank.mask == BOTH and settings.JOB_PLACEMENT not in os.environ


@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs the CPUs 0 and 1")
@pytest.mark.parametrize(("own", "warned"), [(0, True), (1, False)])
def test_a_mask_that_somebody_narrowed_is_kept_and_said(rank: Rank, own: int, warned: bool) -> None:
    """taskset, numactl or Slurm did it; a warning where the accelerator is elsewhere."""
    rank.kernel.masks[0] = frozenset({1})
    made = rank.env(LOCAL_RANK=str(own), LOCAL_WORLD_SIZE="2").placement()
    with pytest.raises(
        Skip, match="kept: this process was bound to CPUs 1 already and stays there"
    ):
        made.at_start()
    assert rank.mask == {1} and not rank.marks and rank.kernel.preferred == []
    assert ("its accelerator is on node 0" in rank.said) is warned
    assert (" WARNING " in rank.said) is warned


def test_a_command_that_a_rank_starts_does_not_warn_again(rank: Rank) -> None:
    rank.env(LOCAL_RANK="0", LOCAL_WORLD_SIZE="2", **{settings.JOB_WARNED: "LOONGKIT_ALL"})
    rank.placement(cpus="nonsense").at_start()
    assert rank.said.count(" WARNING ") == 1
    assert os.environ[settings.JOB_WARNED] == "LOONGKIT_ALL,numa_affinity"
    rank.placement(cpus="nonsense").at_start()
    assert rank.said.count(" WARNING ") == 1


def milan(folder: Path) -> Path:
    """An AMD machine of one node with four caches and two accelerators."""
    two_nodes.write(folder, gpus=(0, 0), cpus=4)
    changed = {
        "proc/cpuinfo": "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 25\nmodel name : X",
        "sys/devices/system/cpu/online": "0-3",
        "sys/devices/system/node/online": "0",
        "sys/devices/system/node/node0/cpulist": "0-3",
        "sys/devices/system/node/node0/distance": "10",
    }
    for cpu in range(4):
        changed[f"sys/devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list"] = str(cpu)
    for name, text in changed.items():
        (folder / name).write_text(text + "\n", encoding="utf-8")
    shutil.rmtree(folder / "sys/devices/system/node/node1")
    return folder


@pytest.mark.parametrize(
    ("said", "own"),
    [
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, {2, 3}),
        ({"LOCAL_RANK": "1", "LOCAL_SIZE": "2"}, {2, 3}),  # DeepSpeed
        ({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, {2, 3}),  # MPICH, Intel MPI
        ({"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x4)"}, {2, 3}),
        # Lightning: shares of an unknown number would overlap.
        ({"LOCAL_RANK": "1"}, {0, 1, 2, 3}),
    ],
)
def test_caches_are_shared_out_where_the_number_of_ranks_is_known(
    rank: Rank, tmp_path: Path, said: dict[str, str], own: set[int]
) -> None:
    rank.sysfs = milan(tmp_path / "milan")
    rank.kernel.masks[0] = frozenset(range(4))
    rank.env(**said).placement().at_start()
    assert rank.mask == own
    assert ("peers-unknown: " in rank.said) is (len(said) == 1)


def test_the_first_rank_takes_no_shares_of_ranks_it_does_not_know(
    rank: Rank, tmp_path: Path
) -> None:
    rank.sysfs = milan(tmp_path / "milan")
    rank.kernel.masks[0] = frozenset(range(4))
    rank.env(LOCAL_RANK="0").placement(separate_by_roles=True).at_start()
    assert rank.mask == {0, 1, 2, 3} and "peers-unknown: " in rank.said


def test_without_memory_preference(rank: Rank) -> None:
    rank.env(LOCAL_RANK="1", LOCAL_WORLD_SIZE="2").placement(memory=False).at_start()
    assert rank.mask == {1} and rank.kernel.preferred == []


def test_a_process_without_torch_and_a_launcher_are_left_alone(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.env(LOCAL_RANK="0", LOCAL_WORLD_SIZE="2").torch = None
    assert rank.placement().at_start() is False
    rank.torch = "2.13.0"
    monkeypatch.setattr(placement.process, "is_launcher", lambda: True)
    assert rank.placement().at_start() is False
    assert rank.mask == BOTH and not rank.marks


@pytest.mark.parametrize(
    ("version", "options", "bound"),
    [
        ("2.4.1", {}, False),
        ("2.5.0", {}, True),
        ("2.5.0a0+git12", {}, True),
        ("2.4.1", {"allow_index": True}, True),
        ("2.4.1", {"cpus": "0,1"}, True),
    ],
)
def test_the_edge_of_the_version_gate(
    rank: Rank, version: str, options: dict[str, Any], bound: bool
) -> None:
    rank.env(LOCAL_RANK="1", LOCAL_WORLD_SIZE="2").torch = version
    made = rank.placement(**options)
    if bound:
        made.at_start()
        assert rank.mask == {1}
    else:
        with pytest.raises(Skip, match=r"found torch 2\.4\.1, wanted >=2\.5\.0"):
            made.at_start()
        assert rank.mask == BOTH


def test_the_imported_torch_is_older_than_its_files_said(rank: Rank) -> None:
    """Another torch is first on the path by then: the mask is put back."""
    made = rank.env(LOCAL_RANK="1", LOCAL_WORLD_SIZE="2").placement()
    made.at_start()
    rank.torch = "2.4.0"
    with pytest.raises(Skip):
        made.at_import(Cuda())
    rank.patcher.undo()  # what the session does after a Skip
    assert rank.mask == BOTH and rank.kernel.preferred == [1, None]


@pytest.mark.parametrize(
    ("gpus", "variables", "reason"),
    [
        ((), {}, "no-gpu: "),
        ((0, 0, 1), {}, "asymmetric: "),
        ((0, 1), {"CUDA_VISIBLE_DEVICES": ""}, "no-gpu: CUDA_VISIBLE_DEVICES"),
        ((-1, -1), {}, "gpu-node-unknown: "),
    ],
)
def test_why_nothing_is_bound(
    rank: Rank, tmp_path: Path, gpus: tuple[int, ...], variables: dict[str, str], reason: str
) -> None:
    rank.sysfs = two_nodes.write(tmp_path / "other", gpus=gpus)
    made = rank.env(LOCAL_RANK="0", LOCAL_WORLD_SIZE="2", **variables).placement()
    with pytest.raises(Skip, match=reason):
        made.at_start()
    assert rank.mask == BOTH and not rank.marks


def test_a_folder_that_is_no_machine(rank: Rank, tmp_path: Path) -> None:
    rank.sysfs = tmp_path / "nothing"
    with pytest.raises(Skip, match="nothing"):
        rank.env(LOCAL_RANK="0").placement().at_start()


def test_a_process_without_a_rank_waits_for_its_first_use_of_a_device(rank: Rank) -> None:
    cuda = Cuda(device(0x20))
    made = rank.env(CUDA_VISIBLE_DEVICES="1").placement()
    made.at_import(cuda)
    assert rank.mask == BOTH and not rank.marks
    cuda.use()
    assert rank.mask == {1} and rank.marks


def optimizer(*indices: int | None) -> Any:
    """An optimiser of parameters on these devices; None: on the CPU."""
    devices = [SimpleNamespace(type="cpu" if i is None else "cuda", index=i) for i in indices]
    parameters = [SimpleNamespace(device=device) for device in devices]
    return SimpleNamespace(param_groups=[{"params": parameters}])


def test_the_device_says_otherwise_and_the_rank_moves_once(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=Cuda(device(0x10), device(0x20)))
    )
    made = rank.env(LOCAL_RANK="0", LOCAL_WORLD_SIZE="2").placement()
    made.at_start()
    assert rank.mask == {0}
    made.at_step(optimizer(None, 1), (), {})
    assert rank.mask == {1}
    assert "WARNING" in rank.said and "placed anew" in rank.said
    made.at_step(optimizer(0), (), {})
    assert rank.mask == {1}, "the first step decides"


@pytest.mark.parametrize("indices", [(1,), (None,), ()])
def test_the_device_agrees_or_says_nothing_and_nothing_moves(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, indices: tuple[int | None, ...]
) -> None:
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=Cuda(device(0x10), device(0x20)))
    )
    made = rank.env(LOCAL_RANK="1", LOCAL_WORLD_SIZE="2").placement()
    made.at_start()
    rank.kernel.refuses = {0}  # another call would raise
    made.at_step(optimizer(*indices), (), {})
    assert rank.mask == {1} and rank.patcher.record.state == states.PATCHED


def test_a_rank_whose_device_is_not_known_before_it_is_used(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A MIG slice of a card that the driver's files do not tell of."""
    cuda = Cuda(device(0x20))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    rank.env(LOCAL_RANK="0", LOCAL_WORLD_SIZE="2", CUDA_VISIBLE_DEVICES="MIG-unknown")
    made = rank.placement()
    assert made.at_start() is False and rank.mask == BOTH
    made.at_import(cuda)
    cuda.use()
    assert rank.mask == BOTH and rank.patcher.record.state == states.PATCHED
    made.at_step(optimizer(0), (), {})
    assert rank.mask == {1} and rank.marks


def test_late_and_nothing_to_bind_is_a_skip_and_no_failure(rank: Rank, tmp_path: Path) -> None:
    rank.sysfs = two_nodes.write(tmp_path / "other", gpus=(0, 0, 1))
    cuda = Cuda(device(0x10))
    made = rank.placement()
    made.at_import(cuda)
    cuda.use()
    record = rank.patcher.record
    assert record.state == states.SKIPPED and record.reason.startswith("asymmetric: ")
    assert "WARNING" not in rank.said


def test_late_and_refused_by_the_kernel_does_not_reach_the_job(rank: Rank) -> None:
    cuda = Cuda(device(0x20))
    rank.kernel.refuses = {0}
    made = rank.placement()
    made.at_import(cuda)
    cuda.use()
    assert rank.patcher.record.state == states.FAILED
    assert rank.mask == BOTH


class TestProgramsOfARank:
    """What a rank that was placed on CPU 1, or its data worker on CPU 0, starts."""

    @pytest.fixture
    def program(self, rank: Rank) -> Rank:
        rank.env(LOONGKIT_JOB_PLACEMENT=f"{os.getppid()}/1/2/0-1/1/0")
        return rank.env(LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")

    @pytest.mark.parametrize("mask", [{1}, {0}, {0, 1}], ids=["rank", "worker", "moved since"])
    def test_they_stay_where_they_were_started(self, program: Rank, mask: set[int]) -> None:
        program.kernel.masks[0] = frozenset(mask)
        cuda = Cuda(device(0x10), device(0x20))
        made = program.placement()
        assert made.at_start() is True
        made.at_import(cuda)
        cuda.use()
        made.at_step(optimizer(1), (), {})
        assert program.mask == mask and program.kernel.preferred == []
        assert not program.marks and "local rank 1 or a data" in program.patcher.record.unused

    def test_their_own_data_workers_are_placed_as_those_of_the_rank(self, program: Rank) -> None:
        program.kernel.masks[0] = frozenset({1})
        made = program.placement()
        made.at_start()
        made.worker()
        assert program.mask == {0}

    def test_another_rank_is_placed(self, program: Rank) -> None:
        """The one that was placed was a launcher in truth."""
        program.kernel.masks[0] = frozenset({1})
        program.env(LOCAL_RANK="0").placement().at_start()
        assert program.mask == {0} and program.marks

    def test_the_rank_itself_is_placed_again_after_an_exec(self, program: Rank) -> None:
        program.kernel.masks[0] = frozenset({1})
        program.env(LOONGKIT_JOB_PLACEMENT=f"{os.getpid()}/1/2/0-1/1/0")
        program.placement().at_start()
        assert program.mask == {1} and program.kernel.preferred == [1] and program.marks


class TestMemoryPolicy:
    """numactl in front of the job, or in front of the shell that it came from."""

    @pytest.mark.parametrize("policy", [PREFERRED, BIND, INTERLEAVE])
    def test_one_of_somebody_else_is_kept_and_said(self, rank: Rank, policy: int) -> None:
        rank.kernel.policy = policy
        rank.env(LOCAL_RANK="1", LOCAL_WORLD_SIZE="2").placement().at_start()
        assert rank.mask == {1} and rank.kernel.preferred == []
        assert "the memory policy that somebody else has set (numactl) is kept" in rank.said
        assert rank.patcher.record.shortfall == ""
        rank.patcher.undo()
        assert rank.kernel.policy == policy

    def test_it_is_a_shortfall_of_one_who_asked_for_ours(self, rank: Rank) -> None:
        rank.kernel.policy = BIND
        rank.env(LOCAL_RANK="1", LOCAL_WORLD_SIZE="2").placement(memory=True).at_start()
        assert "somebody else" in rank.patcher.record.shortfall and rank.mask == {1}

    @pytest.mark.parametrize("asked", [True, False])
    def test_a_refusal_is_one_of_somebody_who_asked_for_it(self, rank: Rank, asked: bool) -> None:
        rank.kernel.memory_refused = "Operation not permitted"
        options = {"memory": True} if asked else {}
        rank.env(LOCAL_RANK="1", LOCAL_WORLD_SIZE="2").placement(**options).at_start()
        assert ("Operation not permitted" in rank.patcher.record.shortfall) is asked
        assert "Operation not permitted" in rank.said and rank.mask == {1}

    @pytest.mark.parametrize(("policy", "preferred"), [(PREFERRED, [1]), (BIND, [])])
    def test_a_preference_that_a_placed_process_has_left_is_ours(
        self, rank: Rank, policy: int, preferred: list[int]
    ) -> None:
        rank.kernel.policy = policy
        rank.env(LOONGKIT_JOB_PLACEMENT=f"{os.getpid()}/1/2/0-1/1/1")  # and this is it, after exec
        rank.env(LOCAL_RANK="1", LOCAL_WORLD_SIZE="2").placement().at_start()
        assert rank.kernel.preferred == preferred


def test_a_refused_mask_is_told_in_words(rank: Rank) -> None:
    rank.kernel.refuses = {0}
    made = rank.env(LOCAL_RANK="1", LOCAL_WORLD_SIZE="2").placement()
    with pytest.raises(OSError, match="kernel refuses to bind this process to CPUs 1: Invalid"):
        made.at_start()


def test_why_a_device_is_not_known_is_said(rank: Rank) -> None:
    rank.env(LOCAL_RANK="0", LOCAL_WORLD_SIZE="2", CUDA_VISIBLE_DEVICES="MIG-unknown")
    made = rank.placement()
    made.at_start()
    made.at_import(Cuda())
    why = "could not be known: CUDA_VISIBLE_DEVICES names devices whose parents"
    assert why in rank.patcher.record.unused and rank.said.count(why) == 1


class TestShortfalls:
    """Options that can't be followed, while the process is placed by the others."""

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"cpus": "nonsense"}, "LOONGKIT_NUMA_AFFINITY_CPUS='nonsense' is not understood"),
            ({"cpus": "0"}, "has lists for 1 of the 2 local ranks"),
            ({"cpus": "0,1-5"}, "may not use CPUs 2-5"),
            ({"train_on_gpuless": True}, "no effect without LOONGKIT_NUMA_AFFINITY_ALLOW_ASYMM"),
            ({"separate_by_roles": True}, "SEPARATE_BY_ROLES has no effect"),
        ],
    )
    def test_they_are_the_summary_s_reason(
        self, rank: Rank, options: dict[str, Any], said: str
    ) -> None:
        rank.env(LOCAL_RANK="1", LOCAL_WORLD_SIZE="2").placement(**options).at_start()
        assert said in rank.patcher.record.shortfall
        assert rank.mask == {1} and rank.marks

    @pytest.mark.parametrize("asked", [True, False])
    def test_caches_that_are_not_split_are_one_where_the_user_asked_for_it(
        self, rank: Rank, asked: bool
    ) -> None:
        options = {"partition_per_llc": True} if asked else {}
        rank.env(LOCAL_RANK="1", LOCAL_WORLD_SIZE="4").placement(**options).at_start()
        assert ("PARTITION_PER_LLC has no effect" in rank.patcher.record.shortfall) is asked

    def test_none_without_such_options(self, rank: Rank) -> None:
        rank.env(LOCAL_RANK="1", LOCAL_WORLD_SIZE="2").placement(cpus="0,1").at_start()
        assert rank.patcher.record.shortfall == ""

    def test_strict_fails_before_anything_is_bound(self, rank: Rank) -> None:
        made = rank.env(LOCAL_RANK="1", LOCAL_WORLD_SIZE="2").placement(cpus="nonsense")
        rank.patcher.record.strict = True
        with pytest.raises(states.StrictError, match="does not do all of that: LOONGKIT_NUMA_A"):
            made.at_start()
        assert rank.mask == BOTH

    def test_strict_fails_in_the_job_that_uses_its_device(self, rank: Rank) -> None:
        cuda = Cuda(device(0x20))
        made = rank.env(CUDA_VISIBLE_DEVICES="1").placement(cpus="nonsense")
        rank.patcher.record.strict = True
        made.at_import(cuda)
        with pytest.raises(states.StrictError, match="does not do all of that: LOONGKIT_NUMA_A"):
            cuda.use()
        assert rank.mask == BOTH


def test_why_a_process_was_not_placed_so_far(rank: Rank) -> None:
    cuda = Cuda(device(0x20))
    rank.placement().at_import(cuda)
    assert rank.patcher.record.unused == (
        "no launcher gave this process a local rank, and it has used no GPU"
    )


class TestWorkers:
    """The start of a data worker's loop, in a child of a placed process."""

    @pytest.fixture
    def child(self, rank: Rank) -> Rank:
        rank.env(LOONGKIT_JOB_PLACEMENT=f"{os.getppid()}/-1/1/0-3/0-1/2")
        return rank

    def test_it_moves_to_the_cpus_of_data_workers(self, child: Rank) -> None:
        child.placement().worker()
        assert child.mask == {2}

    @pytest.mark.parametrize(
        ("data", "options", "preferred"),
        [("2", {}, [None]), ("0-1", {}, []), ("2", {"memory": False}, [])],
    )
    def test_on_cpus_of_its_own_it_takes_the_memory_next_to_them(
        self, rank: Rank, data: str, options: dict[str, Any], preferred: list[None]
    ) -> None:
        rank.env(LOONGKIT_JOB_PLACEMENT=f"{os.getppid()}/-1/1/0-3/0-1/{data}")
        rank.kernel.policy = PREFERRED
        rank.placement(**options).worker()
        assert rank.kernel.preferred == preferred

    def test_a_memory_policy_of_the_users_is_kept(self, child: Rank) -> None:
        child.kernel.policy = INTERLEAVE
        child.placement().worker()
        assert child.mask == {2} and child.kernel.preferred == []

    def test_a_mask_of_the_users_is_kept(self, child: Rank) -> None:
        child.kernel.masks[0] = frozenset({0, 3})
        child.placement().worker()
        assert child.mask == {0, 3} and child.kernel.preferred == []

    @pytest.mark.parametrize(("variable", "mask"), [("OMP_PROC_BIND", {2}), ("NOTHING", {1})])
    def test_one_core_from_openmp_is_no_choice_of_the_users(
        self, child: Rank, variable: str, mask: set[int]
    ) -> None:
        child.kernel.masks[0] = frozenset({1})
        child.env(**{variable: "true"}).placement().worker()
        assert child.mask == mask

    def test_nothing_was_placed(self, rank: Rank) -> None:
        rank.placement().worker()
        assert rank.mask == BOTH

    def test_a_worker_that_uses_a_device_stays_with_the_workers(self, child: Rank) -> None:
        cuda = Cuda(device(0x10))
        made = child.placement()
        made.at_import(cuda)
        made.worker()
        cuda.use()
        assert child.mask == {2}


def test_the_hooks_share_one_placement(rank: Rank) -> None:
    rank.placement()
    first = placement.of(rank.patcher)
    assert placement.of(rank.patcher) is first
    rank.placement()
    assert placement.of(rank.patcher) is not first
    assert {target for target, _ in numa_affinity.FEATURE.hooks} == {"torch.cuda"}
