"""torchrun's ranks and their data workers run where the plan for a recorded machine says."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import children
import clusters
import jobs
import pytest
import two_nodes

from loongkit.activation import cpulists

pytestmark = [
    jobs.needs_torch,
    pytest.mark.skipif(
        not {0, 1} <= os.sched_getaffinity(0), reason="needs the CPUs 0 and 1 for two nodes"
    ),
]

SCRIPT = jobs.SCRIPTS / "placed.py"


class Launch:
    """One torchrun of the script, and what its ranks told."""

    def __init__(
        self,
        folder: Path,
        ranks: int,
        *flags: str,
        under: Sequence[str] = (),
        **settings: str,
    ) -> None:
        machine = two_nodes.write(folder / "machine")
        torchrun, words = [], []
        for flag in flags:
            (words if flag in ("--fail-once", "--moves-itself") else torchrun).append(flag)
        settings = {"NUMA_AFFINITY": "1", "NUMA_AFFINITY_SYSFS": str(machine), **settings}
        env = jobs.environment(
            folder, settings={f"LOONGKIT_{name}": text for name, text in settings.items()}
        )
        launcher = ["-m", "torch.distributed.run", "--standalone"]
        launcher += [f"--nproc-per-node={ranks}", *torchrun]
        command = [*under, sys.executable, *launcher, str(SCRIPT), *words]
        self.job = jobs.Job(children.run_command(*command, env=env, cwd=folder), folder / "log")

    @property
    def reports(self) -> list[dict[str, Any]]:
        """What the ranks told, by rank; the job must have succeeded."""
        return clusters.reports(self.job)


ALL = cpulists.format(os.sched_getaffinity(0))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_and_their_workers_have_masks_of_their_own(tmp_path: Path, ranks: int) -> None:
    found = Launch(tmp_path, ranks)
    assert [report["local_rank"] for report in found.reports] == [*range(ranks)]
    for report in found.reports:
        own = str(report["local_rank"] % 2)  # two accelerators, one on each node
        assert report["mask"] == own
        assert report["workers"] == {"fork": [own], "spawn": [own]}
        assert report["launcher"] == ALL, "the agent is never bound"
        assert report["child"] == report["child_of_worker"] == [int(own)]
    assert found.job.rows["numa_affinity"] and found.job.summaries == 1
    assert "torch's threads" not in found.job.log, "OpenMP had the mask before it was started"


def test_a_restart_keeps_the_plan(tmp_path: Path) -> None:
    found = Launch(tmp_path, 2, "--max-restarts=1", "--fail-once")
    assert [(report["restart"], report["mask"]) for report in found.reports] == [
        (1, "0"),
        (1, "1"),
    ]


def test_workers_may_have_other_cpus_than_the_rank(tmp_path: Path) -> None:
    """Three accelerators would be asymmetric; here a node without one lends itself to workers."""
    machine = two_nodes.write(tmp_path / "lopsided", gpus=(0,))
    found = Launch(
        tmp_path,
        1,
        NUMA_AFFINITY_SYSFS=str(machine),
        NUMA_AFFINITY_ALLOW_ASYMMETRIC="1",
        NUMA_AFFINITY_DATA_WORKER_ON_GPULESS="1",
        NUMA_AFFINITY_DATA_WORKER_GPULESS_ONLY="1",
    )
    (report,) = found.reports
    assert report["mask"] == "0"
    assert report["workers"] == {"fork": ["1"], "spawn": ["1"]}
    assert report["child"] == [0]
    assert report["child_of_worker"] == [1], "it has the local rank of the rank, and is none"


def test_explicit_lists(tmp_path: Path) -> None:
    found = Launch(tmp_path, 2, NUMA_AFFINITY_CPUS="1,0")
    assert [report["mask"] for report in found.reports] == ["1", "0"]
    assert found.reports[0]["workers"] == {"fork": ["1"], "spawn": ["1"]}


@pytest.mark.parametrize("name", ["NUMA_AFFINITY", "SUBCGROUPS"])
def test_a_launcher_that_openmp_binds_to_one_core_does_not_hold_its_ranks_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """torchrun imports torch, which has OpenMP bind it; without Loongkit all ranks are on CPU 0."""
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    found = Launch(tmp_path, 2, **{name: "1"})
    for report in found.reports:
        own = str(report["local_rank"])
        assert report["launcher"] == "0", "that is what the test is about"
        assert report["mask"] == own
        assert report["workers"] == {"fork": [own], "spawn": [own]}
    assert found.job.warnings == []


def test_what_the_script_chooses_itself_is_kept(tmp_path: Path) -> None:
    """It moves itself after the start; its workers go with it, as without Loongkit."""
    found = Launch(tmp_path, 2, "--moves-itself", NUMA_AFFINITY_CPUS="0-1,0-1")
    assert [report["mask"] for report in found.reports] == ["0", "1"]
    assert found.reports[1]["workers"]["fork"] == ["1"]


def test_a_binding_of_the_users_is_kept_and_said(tmp_path: Path) -> None:
    """Both ranks stay on the CPU that taskset chose; one of their accelerators is elsewhere."""
    found = Launch(tmp_path, 2, under=("taskset", "-c", "1"))
    for report in found.reports:
        assert report["mask"] == report["launcher"] == "1"
        assert report["workers"] == {"fork": ["1"], "spawn": ["1"]}
        assert report["child"] == [1]
    said = "kept: this process was bound to CPUs 1 already and stays there"
    elsewhere = f"{said}, though they are of node 1 and its accelerator is on node 0"
    assert f"numa_affinity: skipped: {elsewhere}" in found.job.summary
    (warning,) = (text for text in found.job.warnings if "skipped" not in text)
    assert elsewhere.removeprefix("kept: ") in warning


PREPARATION = """
import os
import torch
from torch.utils.data import DataLoader

assert len(list(DataLoader(range(8), num_workers=2))) == 8
print(sorted(os.sched_getaffinity(0)))
"""


def test_a_script_that_prepares_data_is_never_bound(tmp_path: Path) -> None:
    """It has no rank, and it uses no device."""
    machine = two_nodes.write(tmp_path / "machine")
    job = jobs.run(
        tmp_path,
        PREPARATION,
        LOONGKIT_NUMA_AFFINITY="1",
        LOONGKIT_NUMA_AFFINITY_SYSFS=str(machine),
        LOONGKIT_LOGLEVEL="info",
    )
    assert job.result.out == f"{sorted(os.sched_getaffinity(0))}\n", job
    assert "numa_affinity: armed -> patched" in job.log, "it would be bound at its first use"
    assert "numa_affinity: node" not in job.log and job.warnings == []


TRAINING = """
import torch

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize("name", ["NUMA_AFFINITY", "SUBCGROUPS"])
def test_a_training_without_a_rank_or_a_device_says_why_it_was_not_placed(
    tmp_path: Path, name: str
) -> None:
    machine = two_nodes.write(tmp_path / "machine")
    settings = {f"LOONGKIT_{name}": "1", "LOONGKIT_NUMA_AFFINITY_SYSFS": str(machine)}
    job = jobs.run(tmp_path, TRAINING, **settings)
    why = "not used: no launcher gave this process a local rank, and it has used no GPU"
    assert job.result.status == 0 and f"{name.lower()}: {why}\n" in job.summary
    assert job.rows[name.lower()] is False


@pytest.mark.parametrize("strict", ["0", "1"])
def test_lists_that_are_not_followed_stand_below_the_summary(tmp_path: Path, strict: str) -> None:
    found = Launch(tmp_path, 2, NUMA_AFFINITY_CPUS="0-", STRICT=strict)
    said = "LOONGKIT_NUMA_AFFINITY_CPUS='0-' is not understood and counts as not set"
    if strict == "1":
        assert found.job.result.status != 0 and "mask" not in found.job.result.out
        assert said in found.job.result.err
    else:
        assert [report["mask"] for report in found.reports] == ["0", "1"]
        assert f"numa_affinity: {said}" in found.job.summary
        assert found.job.rows["numa_affinity"]
