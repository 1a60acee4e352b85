"""What the plan says of placing is what becomes of it in a rank of a job."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import pytest
import two_nodes

Plan = Callable[..., dict[str, Any]]

#: Nodes of the recorded machine's accelerators; further settings; how the plan's reason begins.
CASES: dict[str, tuple[tuple[int, ...], dict[str, str], str]] = {
    "placed": ((0, 1), {}, ""),
    "no accelerator": ((), {}, "no-gpu: this host has no accelerator"),
    "none visible": ((0, 1), {"CUDA_VISIBLE_DEVICES": ""}, "no-gpu: CUDA_VISIBLE_DEVICES leaves"),
    "asymmetric": ((0, 0, 1), {}, "asymmetric: "),
    "asymmetric, allowed": (
        (0, 0, 1),
        {"LOONGKIT_NUMA_AFFINITY_ALLOW_ASYMMETRIC": "1"},
        "",
    ),
    "unknown node": ((0, 5), {}, "gpu-node-unknown: "),
    "own lists": ((), {"LOONGKIT_NUMA_AFFINITY_CPUS": "0,0"}, ""),
    "own lists, nonsense": ((), {"LOONGKIT_NUMA_AFFINITY_CPUS": "0,x"}, "no-gpu: "),
    "own lists, not there": ((0, 1), {"LOONGKIT_NUMA_AFFINITY_CPUS": "900,901"}, "cpus-not-allow"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_plan_and_a_rank_agree(plan: Plan, tmp_path: Path, case: str) -> None:
    pytest.importorskip("torch")
    if len(os.sched_getaffinity(0) & {0, 1}) < 2:
        pytest.skip("CPUs 0 and 1 are of different nodes in the recorded machine")
    gpus, changes, reason = CASES[case]
    environ = {
        "LOONGKIT_NUMA_AFFINITY": "1",
        "LOONGKIT_NUMA_AFFINITY_SYSFS": str(two_nodes.write(tmp_path / "machine", gpus)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        **changes,
    }
    row = plan(**environ)["by_name"]["numa_affinity"]
    log = children.run(
        *("-c", "pass"),
        env=children.with_prelude(LOONGKIT_LOGDIR="stdout", LOONGKIT_LOGLEVEL="info", **environ),
    ).out
    skipped = re.findall(r"numa_affinity: \w+ -> skipped \((.*)\)$", log, re.MULTILINE)
    if reason:
        (of_job,) = skipped
        assert (row["state"], row["note"]) == ("skipped", "")
        assert row["reason"].startswith(reason)
        assert row["reason"] == f"{of_job}; `loongkit topology` shows the machine"
    else:
        assert skipped == [] and "numa_affinity: patched -> effective" in log
        assert row["state"] == "enabled"
        assert row["note"] == "`loongkit topology` shows where 2 processes would run"


def test_a_recorded_machine_that_is_none(plan: Plan, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environ = {
        "LOONGKIT_NUMA_AFFINITY": "1",
        "LOONGKIT_NUMA_AFFINITY_SYSFS": str(tmp_path / "nowhere"),
        "LOCAL_RANK": "0",
    }
    row = plan(**environ)["by_name"]["numa_affinity"]
    log = children.run(
        *("-c", "pass"),
        env=children.with_prelude(LOONGKIT_LOGDIR="stdout", LOONGKIT_LOGLEVEL="info", **environ),
    ).out
    (of_job,) = re.findall(r"numa_affinity: armed -> skipped \((.*)\)$", log, re.MULTILINE)
    assert row["state"] == "skipped"
    assert row["reason"] == f"LOONGKIT_NUMA_AFFINITY_SYSFS={of_job}"


@pytest.mark.parametrize(
    ("gpus", "changes", "cause"),
    [
        ((), {}, "no-gpu: this host has no accelerator"),
        (
            (0, 1),
            {"LOONGKIT_NUMA_AFFINITY_TRAIN_ON_GPULESS": "1"},
            "LOONGKIT_NUMA_AFFINITY_TRAIN_ON_GPULESS: no effect without "
            "LOONGKIT_NUMA_AFFINITY_ALLOW_ASYMMETRIC=1",
        ),
    ],
    ids=["nothing is done", "an option is not followed"],
)
def test_strict_stops_a_rank_as_the_plan_says(
    plan: Plan, tmp_path: Path, gpus: tuple[int, ...], changes: dict[str, str], cause: str
) -> None:
    pytest.importorskip("torch")
    if len(os.sched_getaffinity(0) & {0, 1}) < 2:
        pytest.skip("CPUs 0 and 1 are of different nodes in the recorded machine")
    environ = {
        "LOONGKIT_NUMA_AFFINITY": "1",
        "LOONGKIT_NUMA_AFFINITY_SYSFS": str(two_nodes.write(tmp_path, gpus)),
        "LOONGKIT_STRICT": "1",
        **changes,
    }
    problems = plan(**environ)["problems"]
    assert [each for each in problems if "STRICT" in each] == [
        "LOONGKIT_STRICT=1 stops each process that a launcher gives a local rank, because of "
        f"numa_affinity ({cause})"
    ]
    env = children.with_prelude(**environ)
    assert children.run("-c", "print(1)", env=env).out.startswith("1\n")
    ranks = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    rank = children.run("-c", "print(1)", env={**env, **ranks})
    assert rank.status != 0 and "1\n" not in rank.out and cause in rank.err
