"""LOONGKIT_SUBCGROUPS in whole jobs, in this machine's own control groups where it has any.

Where a test can't have them (no cgroupfs, no rights), it shows that NUMA_AFFINITY takes over.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import children
import jobs
import pytest
import two_nodes

pytestmark = pytest.mark.skipif(
    not {0, 1} <= os.sched_getaffinity(0), reason="needs the CPUs 0 and 1 for two nodes"
)

SCRIPT = jobs.SCRIPTS / "grouped.py"

_ENTER = """
import json, os, sys
from loongkit.numa.cgroups import job_groups, layouts, own
from loongkit.numa.cgroups.operations import Operations
operations = Operations()
groups = job_groups.JobGroups(operations, os.getpid(), sys.argv[1], "node0")
found = {"error": "", "tier": "", "there": True}
try:
    groups.enter(layouts.Wanted(frozenset({0})), layouts.Wanted(frozenset({1})))
except OSError as error:
    found["error"] = str(error)
else:
    folder = os.path.dirname(groups.folder)
    found |= {"tier": groups.tier, "mask": sorted(os.sched_getaffinity(0))}
    with open("/proc/self/cgroup") as file:
        found["joined"] = f"loongkit.{sys.argv[1]}/node0.train" in file.read()
    job_groups.move_worker(operations, os.getpid())
    found["worker_mask"] = sorted(os.sched_getaffinity(0))
    groups.leave()
    found["there"] = os.path.exists(folder)
    found["after"] = sorted(os.sched_getaffinity(0))
print(json.dumps(found))
"""


def enter(job: str) -> dict[str, Any]:
    """Enter and leave groups in a process of its own, and tell how that went."""
    done = children.run("-c", _ENTER, job, env=children.clean_env(PYTHONPATH=str(children.SOURCE)))
    assert done.status == 0, done
    return dict(json.loads(done.out))


@functools.cache
def groups_hold_cpus() -> bool:
    """Tell whether this machine lets us make groups with CPU sets."""
    return enter(f"probe-{os.getpid()}")["tier"] in ("domain", "threaded")


def left_over() -> list[str]:
    """Return the groups of jobs of this test that were not cleared away."""
    return [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/loongkit.test-{os.getpid()}*")]


class Launch:
    """One torchrun of a rank for each accelerator, and what they told.

    ``gpus`` names the node of each; ``before`` is a shell command that goes first, in a mount
    namespace of the job's own.
    """

    def __init__(
        self, folder: Path, before: str = "", gpus: tuple[int, ...] = (0, 1), **variables: str
    ) -> None:
        machine = two_nodes.write(folder / "machine", gpus=gpus)
        self.name = f"test-{os.getpid()}-{folder.name}"
        asked = {"NUMA_AFFINITY_SYSFS": str(machine), **variables}
        env = jobs.environment(
            folder,
            settings={"SEED": "3"} | {f"LOONGKIT_{name}": text for name, text in asked.items()},
        )
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={len(gpus)}"]
        command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", f"--rdzv-id={self.name}"]
        command.append(str(SCRIPT))
        if before:
            command = ["unshare", "--mount", "sh", "-c", f"{before} exec {shlex.join(command)}"]
        self.job = jobs.Job(children.run_command(*command, env=env, cwd=folder), folder / "log")
        assert self.job.result.status == 0, self.job
        lines = [line for line in self.job.result.out.splitlines() if line.startswith("{")]
        self.reports: list[dict[str, Any]] = sorted(
            map(json.loads, lines), key=lambda report: report["local_rank"]
        )
        assert [report["local_rank"] for report in self.reports] == [*range(len(gpus))]

    def is_in(self, place: dict[str, Any], leaf: str) -> bool:
        return any(f"loongkit.{self.name}/{leaf}" in line for line in place["groups"])

    def check_masks(self) -> None:
        """Ranks and workers are where the plan says, by whichever means."""
        for report in self.reports:
            own = str(report["local_rank"])
            assert report["own"]["mask"] == own
            for method in ("fork", "spawn"):
                assert {place["mask"] for place in report["workers"][method]} == {own}
            assert report["launcher"]["mask"] != own, "the agent is never placed"

    def check_no_groups(self) -> None:
        for report in self.reports:
            for place in (report["own"], *report["workers"]["fork"]):
                assert not any("loongkit." in line for line in place["groups"])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the ranks have trained without the feature."""
    return [report["weight"] for report in Launch(tmp_path_factory.mktemp("plain")).reports]


@jobs.needs_torch
@pytest.mark.parametrize("affinity", ["1", "0"])
def test_ranks_and_workers_are_in_groups_of_their_own(
    tmp_path: Path, plain: list[Any], affinity: str
) -> None:
    found = Launch(tmp_path, SUBCGROUPS="1", NUMA_AFFINITY=affinity)
    assert [report["weight"] for report in found.reports] == plain and plain[0]
    assert left_over() == []
    if not groups_hold_cpus():
        assert "subcgroups: skipped: cgroup-unavailable:" in found.job.summary
        found.check_no_groups()
        if affinity == "1":
            found.check_masks()
        return
    found.check_masks()
    for report in found.reports:
        node = f"node{report['local_rank']}"
        assert found.is_in(report["own"], f"{node}.train")
        for method in ("fork", "spawn"):
            for place in report["workers"][method]:
                assert found.is_in(place, f"{node}.data")
        assert not any("loongkit." in line for line in report["launcher"]["groups"])
    assert found.job.rows["subcgroups"] and not found.job.rows.get("numa_affinity")
    superseded = "numa_affinity: skipped: superseded by subcgroups" in found.job.summary
    assert superseded is (affinity == "1")


@jobs.needs_torch
def test_workers_may_have_other_cpus_than_the_rank(tmp_path: Path) -> None:
    """A node without an accelerator lends itself to the data workers of the other one."""
    asked = ("ALLOW_ASYMMETRIC", "DATA_WORKER_ON_GPULESS", "DATA_WORKER_GPULESS_ONLY")
    found = Launch(
        tmp_path,
        gpus=(0,),
        ALL="2",
        DISABLE="config_guards",
        LOGLEVEL="info",
        **{f"NUMA_AFFINITY_{name}": "1" for name in asked},
    )
    (report,) = found.reports
    assert report["own"]["mask"] == "0"
    for method in ("fork", "spawn"):
        assert {place["mask"] for place in report["workers"][method]} == {"1"}
    assert found.job.rows["subcgroups"] is groups_hold_cpus()
    assert found.job.rows["numa_affinity"] is not groups_hold_cpus()
    superseded = "superseded by subcgroups, whose groups hold the processes"
    assert (superseded in found.job.log) is groups_hold_cpus()
    assert superseded not in found.job.summary, "nobody has asked for numa_affinity by its name"
    assert left_over() == []


@jobs.needs_torch
def test_a_read_only_cgroupfs_leaves_it_to_affinity(tmp_path: Path) -> None:
    """As in most containers. Where groups can't be had anyway, nothing has to be mounted."""
    before = ""
    if groups_hold_cpus():
        points = [
            line.split()[4]
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if " - cgroup" in line
        ]
        before = "".join(f"mount -o remount,bind,ro {shlex.quote(at)} && " for at in points)
    found = Launch(tmp_path, before, SUBCGROUPS="1", NUMA_AFFINITY="1")
    found.check_masks()
    found.check_no_groups()
    assert found.job.rows["numa_affinity"] and not found.job.rows["subcgroups"]
    assert "subcgroups: skipped: cgroup-unavailable:" in found.job.summary
    if before:
        assert "cgroup-unavailable:EROFS: Read-only file system: /" in found.job.summary


def test_real_groups_are_entered_and_cleared_away() -> None:
    found = enter(f"test-{os.getpid()}-real")
    assert left_over() == []
    if found["error"]:
        assert not groups_hold_cpus()
        return
    assert found["joined"] and not found["there"]
    if groups_hold_cpus():
        assert (found["mask"], found["worker_mask"]) == ([0], [1])
        assert found["after"] == sorted(os.sched_getaffinity(0))


def test_what_a_killed_job_has_left_goes_with_the_next_one() -> None:
    job = f"test-{os.getpid()}-dead"
    killed = _ENTER.replace("job_groups.move_worker", "os.kill(os.getpid(), 9); job_groups.move")
    children.run("-c", killed, job, env=children.clean_env(PYTHONPATH=str(children.SOURCE)))
    folders = [path for path in left_over() if path.endswith(job)]
    if not groups_hold_cpus():
        assert folders == [] or enter(job)["tier"] == "members"
    else:
        assert folders and all(
            not (Path(folder) / "node0.train/cgroup.procs").read_text() for folder in folders
        )
    for folder in folders:
        os.utime(folder, (1, 1))
    enter(f"test-{os.getpid()}-next")
    assert left_over() == []


PINS_ITSELF = """
import os
from torch.utils.data import DataLoader, Dataset

def pin(worker):
    os.sched_setaffinity(0, {1})

class Places(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return sorted(os.sched_getaffinity(0))

if __name__ == "__main__":
    found = DataLoader(Places(), num_workers=1, worker_init_fn=pin)
    print([batch[0].item() for batch in found], sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, {1})
    print(sorted(os.sched_getaffinity(0)))
    try:
        os.sched_setaffinity(0, {4095})
    except OSError as error:
        print(error)
"""


def test_a_job_may_choose_cpus_that_its_group_does_not_have(tmp_path: Path) -> None:
    """Without groups that works, and a job must not fail because of us."""
    machine = two_nodes.write(tmp_path / "machine")
    variables = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29777"}
    settings = {"LOONGKIT_SUBCGROUPS": "1", "LOONGKIT_NUMA_AFFINITY_SYSFS": str(machine)}
    job = jobs.run(tmp_path / "job", PINS_ITSELF, **variables, **settings)
    assert job.result.status == 0, job
    assert job.result.out.splitlines() == ["[1, 1] [0]", "[1]", "[Errno 22] Invalid argument"], job


ENDS = """
import os, signal, sys
from torch.utils.data import DataLoader

def end(way):
    with open("/proc/self/cgroup") as file:
        print("in a group:", file.read().count("/loongkit."), flush=True)
    if way == "exit":
        os._exit(0)
    if way == "exec":
        os.execv("/bin/true", ["true"])
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()

if __name__ == "__main__":
    way, workers = sys.argv[1:]
    if workers == "none":
        end(way)
    loader = iter(DataLoader(range(10**6), num_workers=2, multiprocessing_context=workers))
    next(loader), next(loader)  # both workers have begun
    end(way)
"""


def run_to_its_end(
    folder: Path, way: str, workers: str, *launcher: str, **variables: str
) -> jobs.Job:
    """Run a job which leaves its groups behind that has this process's number in its name."""
    variables["LOONGKIT_SUBCGROUPS"] = "1"
    variables["LOONGKIT_NUMA_AFFINITY_SYSFS"] = str(two_nodes.write(folder / "machine"))
    job = jobs.run(folder / "job", ENDS, way, workers, launcher=launcher, **variables)
    times = 2 if len(Path("/proc/self/cgroup").read_text().splitlines()) > 1 else 1
    if groups_hold_cpus():
        assert f"in a group: {times}" in job.result.out, job
    return job


@jobs.needs_torch
@pytest.mark.parametrize(
    ("way", "workers", "status"),
    [("exit", "none", 0), ("exec", "none", 0), ("term", "fork", 1), ("term", "spawn", 1)],
)
def test_the_launcher_clears_away_what_its_ranks_leave(
    tmp_path: Path, way: str, workers: str, status: int
) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    launcher += [f"--rdzv-id=test-{os.getpid()}-{way}-{workers}"]
    job = run_to_its_end(tmp_path, way, workers, *launcher)
    assert job.result.status == status, job
    assert left_over() == []


@jobs.needs_torch
@pytest.mark.parametrize("workers", ["fork", "spawn"])
def test_the_last_data_worker_clears_away_what_a_killed_process_leaves(
    tmp_path: Path, workers: str
) -> None:
    """They see within five seconds that nobody is there any more to take their batches."""
    name = f"test-{os.getpid()}-killed"
    rank = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": name}
    job = run_to_its_end(tmp_path, "kill", workers, **rank)
    assert job.result.status == -9, job
    deadline = time.monotonic() + 60
    while left_over() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left_over() == [], job


STARTS_PROGRAMS = """
import subprocess, sys
from torch.utils.data import DataLoader

SHOW = "import os; print(open('/proc/self/cgroup').read(), *os.sched_getaffinity(0), sep='|')"

def groups(number=0):
    told = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True).stdout
    names = {line.rpartition("/")[2] for line in told.splitlines() if "/loongkit." in line}
    return f"{sorted(names)} {told.rpartition('|')[2].strip()}"

class Groups:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return groups()

if __name__ == "__main__":
    print(groups())
    for method in ("fork", "spawn"):
        loader = DataLoader(Groups(), num_workers=1, multiprocessing_context=method)
        print(*next(iter(loader)))
    print(groups())
"""


@jobs.needs_torch
def test_a_program_that_a_process_starts_stays_in_the_group_of_that_process(
    tmp_path: Path,
) -> None:
    """It inherits the rank's environment, and would come to the training group by that."""
    machine = two_nodes.write(tmp_path / "machine", gpus=(0,))
    asked = ("ALLOW_ASYMMETRIC", "DATA_WORKER_ON_GPULESS", "DATA_WORKER_GPULESS_ONLY")
    job = jobs.run(
        tmp_path / "job",
        STARTS_PROGRAMS,
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
        TORCHELASTIC_RUN_ID=f"test-{os.getpid()}-starts",
        LOONGKIT_SUBCGROUPS="1",
        LOONGKIT_NUMA_AFFINITY="1",
        LOONGKIT_NUMA_AFFINITY_SYSFS=str(machine),
        **{f"LOONGKIT_NUMA_AFFINITY_{name}": "1" for name in asked},
    )
    assert job.result.status == 0, job
    train, data = "['node0.train'] 0", "['node0.data'] 1"
    if not groups_hold_cpus():
        train, data = "[] 0", "[] 1"
    assert job.result.out.splitlines()[:4] == [train, data, data, train], job
    assert left_over() == []


STARTS_A_JOB = """
import os, subprocess, sys

with open("/proc/self/cgroup") as file:
    place = next((line.strip().split("/")[-2:] for line in file if "/loongkit." in line), [])
with open(sys.argv[1], "a") as file:
    print(sys.argv[2], os.environ["LOCAL_RANK"], *place, *os.sched_getaffinity(0), file=file)
if sys.argv[2] == "outer":
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", sys.argv[0]]
    subprocess.run([*command, sys.argv[1], "inner"], check=True)
"""


@jobs.needs_torch
def test_a_job_in_a_job_has_groups_beside_it(tmp_path: Path) -> None:
    """From the CPUs of the rank that started it alone, its ranks could not be placed."""
    outer = f"test-{os.getpid()}-outer"
    job = jobs.run(
        tmp_path / "job",
        STARTS_A_JOB,
        str(tmp_path / "told"),
        "outer",
        LOCAL_RANK="1",
        LOCAL_WORLD_SIZE="4",
        TORCHELASTIC_RUN_ID=outer,
        LOONGKIT_SUBCGROUPS="1",
        LOONGKIT_NUMA_AFFINITY="1",
        LOONGKIT_NUMA_AFFINITY_SYSFS=str(two_nodes.write(tmp_path / "machine")),
    )
    assert job.result.status == 0, job
    told = sorted(line.split() for line in (tmp_path / "told").read_text().splitlines())
    assert [(line[0], line[1], line[-1]) for line in told] == [
        ("inner", "0", "0"),
        ("inner", "1", "1"),
        ("outer", "1", "1"),
    ]
    if groups_hold_cpus():
        assert [line[3] for line in told] == ["node0.train", "node1.train", "node1.train"]
        assert told[0][2] == told[1][2] != told[2][2] == f"loongkit.{outer}"
    assert left_over() == []
