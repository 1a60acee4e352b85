"""What the plan says of the features that place processes, on machines of all kinds."""

from __future__ import annotations

import os
from pathlib import Path

import machines
import pytest

from loongkit.cli import placing, topology
from loongkit.cli.placing import Outlook
from loongkit.numa import record
from loongkit.numa.cgroups.operations import Operations

ON = {"LOONGKIT_NUMA_AFFINITY": "1"}


def outlook(
    name: str, *, launched: bool = False, ranks: int | None = None, **environ: str
) -> Outlook:
    view = topology.gather({**ON, **environ}, machines.record(name), ranks)
    return placing.of_view(view, launched)


@pytest.mark.parametrize(
    ("name", "environ", "cause"),
    [
        ("loongson-3c6000", {}, "no-gpu: this host has no accelerator"),
        (
            "epyc-9654",
            {"CUDA_VISIBLE_DEVICES": ""},
            "no-gpu: CUDA_VISIBLE_DEVICES leaves no accelerator visible",
        ),
        (
            "intel-snc",
            {},
            "asymmetric: the accelerators are not spread evenly over the NUMA nodes (node 0: 1, "
            "node 1: 0, node 2: 1, node 3: 0); LOONGKIT_NUMA_AFFINITY_ALLOW_ASYMMETRIC=1 binds all "
            "the same",
        ),
        (
            "ndv4",
            {"LOONGKIT_NUMA_AFFINITY_CPUS": "200"},
            "cpus-not-allowed: this process may use none of LOONGKIT_NUMA_AFFINITY_CPUS's CPUs",
        ),
    ],
    ids=["no GPU", "none visible", "asymmetric", "no such CPU"],
)
def test_what_is_certain_to_do_nothing(name: str, environ: dict[str, str], cause: str) -> None:
    ranks = 1 if "LOONGKIT_NUMA_AFFINITY_CPUS" in environ else None
    found = outlook(name, ranks=ranks, **environ)
    assert (found.cause, found.more) == (cause, "`loongkit topology` shows the machine")


def test_torch_that_does_not_know_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        topology.installed, "find", lambda name: topology.installed.Package(True, "2.4.1")
    )
    assert outlook("ndv4").cause.startswith("torch-too-old: found torch 2.4.1, wanted >=2.5.0; ")
    # On one node there is nothing to match, yet a job steps aside all the same.
    assert outlook("hygon-32").cause.startswith("torch-too-old: ")
    assert outlook("ndv4", LOONGKIT_NUMA_AFFINITY_ALLOW_INDEX="1").cause == ""
    lists = ",".join(f"{n}-{n}" for n in range(8))
    assert outlook("ndv4", LOONGKIT_NUMA_AFFINITY_CPUS=lists).cause == ""


def test_where_everybody_is_placed() -> None:
    assert outlook("ndv4") == Outlook(
        note="`loongkit topology` shows where 8 processes would run", yields_to="subcgroups"
    )
    assert outlook("ndv4", CUDA_VISIBLE_DEVICES="3").note == (
        "`loongkit topology` shows where 1 process would run"
    )


def test_what_only_a_device_in_use_can_tell() -> None:
    found = outlook("kunpeng-920")
    assert found.cause == ""
    assert found.note == (
        "places a process once the accelerator that it uses is known (no-device-identity: the "
        "order in which the driver counts these devices is not known)"
    )


def test_some_are_placed_and_others_are_not() -> None:
    found = outlook(
        "intel-snc",
        ranks=2,
        LOONGKIT_NUMA_AFFINITY_CPUS="0-3,200-203",
    )
    assert found.cause == ""
    assert found.note.startswith(
        "`loongkit topology` shows where the others of 2 processes would run; not bound: rank 1, "
        "cpus-not-allowed: "
    )
    (problem,) = found.problems
    assert problem.startswith("LOONGKIT_NUMA_AFFINITY_CPUS='0-3,200-203': ")


def test_own_lists_where_there_is_no_accelerator_need_a_launcher() -> None:
    lists = {"LOONGKIT_NUMA_AFFINITY_CPUS": "0-3"}
    found = outlook("loongson-3c6000", **lists)
    assert (found.cause, found.note) == (
        "",
        "places processes to which a launcher such as torchrun gives a local rank; any other "
        "waits for an accelerator, and none is visible; `loongkit topology` shows where they would "
        "run",
    )
    launched = outlook("loongson-3c6000", launched=True, **lists)
    assert launched.note == "`loongkit topology` shows where 1 process would run"


def test_options_that_can_not_be_followed() -> None:
    assert outlook("ndv4").problems == ()
    (problem,) = outlook("ndv4", LOONGKIT_NUMA_AFFINITY_CPUS="0-x").problems
    assert problem.startswith("LOONGKIT_NUMA_AFFINITY_CPUS='0-x' is not understood and counts as")


def test_both_features_follow_one_plan(tmp_path: Path) -> None:
    path = tmp_path / "loongson.machine"
    path.write_text(record.capture(machines.record("loongson-3c6000")), "utf-8")
    found = placing.outlooks({"LOONGKIT_NUMA_AFFINITY_SYSFS": str(path)})
    assert list(found) == ["numa_affinity", "subcgroups"]
    assert {each.cause.partition(":")[0] for each in found.values()} == {"no-gpu"}
    assert [each.yields_to for each in found.values()] == ["subcgroups", ""]


def test_a_recorded_machine_that_is_none() -> None:
    found = placing.outlooks({"LOONGKIT_NUMA_AFFINITY_SYSFS": "/no/such/record"})
    for each in found.values():
        assert each.cause.startswith(
            "LOONGKIT_NUMA_AFFINITY_SYSFS=/no/such/record: found no such folder or file; wanted "
        )


def group(root: Path) -> Path:
    """A folder with a control group that this process is in."""
    folder = root / "sys/fs/cgroup/job"
    folder.mkdir(parents=True)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/job\n")
    mount = "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    (root / "proc/self/mountinfo").write_text(mount)
    for name, text in (("cgroup.procs", f"{os.getpid()}\n"), ("cgroup.controllers", "cpuset\n")):
        (folder / name).write_text(text)
    return folder


def test_whether_control_groups_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = group(tmp_path)
    operations = Operations(str(tmp_path))
    assert placing.without_groups(operations) == ""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder)  # root may all
    assert placing.without_groups(operations) == (
        f"cgroup-unavailable: found {folder} read-only, wanted a control group to make others in"
    )
    (folder / "cgroup.procs").write_text("1\n")
    assert placing.without_groups(operations) == (
        "cgroup-unavailable: the control group of this process is not to be seen, "
        "/sys/fs/cgroup/job is another"
    )
    assert placing.without_groups(Operations(str(tmp_path / "nowhere"))) == (
        "cgroup-unavailable: no control groups are mounted"
    )
