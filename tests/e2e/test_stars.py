"""With the real torch: one summary a job, from rank 0, with a star for what ran alone."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import children
import jobs
import pytest

pytestmark = jobs.needs_torch

PROBES = ("probe_collate", "probe_idle", "probe_breaks", "probe_rank")
OWN = {f"LOONGKIT_{name.upper()}": "1" for name in PROBES}
INFO = {"LOONGKIT_LOGLEVEL": "info"}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> jobs.Package:
    return jobs.Package(tmp_path_factory.mktemp("package"), probes=PROBES)


def writers(found: jobs.Job, word: str = " SUMMARY ") -> set[str]:
    """The processes whose log holds the word."""
    lines = (line for line in found.log.splitlines() if word in line)
    return {match[1] for line in lines if (match := re.search(r"pid=(\d+)", line))}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_data_workers_light_stars_and_print_nothing(
    package: jobs.Package, tmp_path: Path, method: str
) -> None:
    env = jobs.environment(tmp_path, package, {**OWN, **INFO, "LOONGKIT_ALL": "1"})
    command = [jobs.SCRIPTS / "tiny.py", "--workers", method, "--optimizer", "SGD"]
    found = jobs.Job(children.run(*command, env=env, cwd=tmp_path), tmp_path / "log")
    assert found.result.status == 0 and found.result.err == "", found
    stars = found.rows
    assert {name: stars[name] for name in PROBES} == {
        "probe_collate": True,  # it ran, and in the workers alone
        "probe_idle": False,  # patched, never called
        "probe_breaks": True,  # it ran before it failed
        "probe_rank": False,
    }
    assert not stars["fused_adamw"] and not stars["allow_tf32"]
    assert found.summary.endswith("=" * 82 + "\nprobe_breaks: failed: the kernel has failed\n")
    assert len(writers(found)) == 1
    assert writers(found, "probe_collate: patched -> effective").isdisjoint(writers(found))
    # The one line at warning level is the failure, said by the process in which it happened.
    (warning,) = found.warnings
    assert "probe_breaks has failed and was switched off: the kernel has failed" in warning


def train_on_two_ranks(
    package: jobs.Package, folder: Path, launcher: list[str], *arguments: str, **settings: str
) -> jobs.Job:
    settings = {**OWN, **INFO, "LOONGKIT_PROBE_BREAKS": "0", "LOONGKIT_PROBE_IDEL": "1", **settings}
    env = jobs.environment(folder, package, settings)
    command = [sys.executable, *launcher, str(jobs.SCRIPTS / "ranks.py"), *arguments]
    result = children.run_command(*command, env=env, cwd=folder)
    assert result.status == 0, result
    return jobs.Job(result, folder / "log")


def summary_of(found: jobs.Job, rank: int) -> dict[str, bool]:
    """The stars in the log of the rank."""
    line = f"this process trains, as rank {rank}\n"
    (log,) = [log for log in found.logs if line in log]
    return jobs.rows(log[log.index(jobs.TITLE) :])


def test_torchrun_with_two_ranks(package: jobs.Package, tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = train_on_two_ranks(package, tmp_path, launcher, "torchrun")
    # Ranks are jobs of their own to us: each shows what ran in its own tree of processes.
    assert found.rows["probe_rank"] is False
    assert summary_of(found, 0)["probe_rank"] is False
    assert summary_of(found, 1)["probe_rank"] is True
    assert len(writers(found)) == 2
    # Said by the launching process, before it has started the ranks; once in the whole job.
    assert [line.partition("rank=0 ")[2].partition(" ")[2] for line in found.warnings] == [
        "LOONGKIT_PROBE_IDEL is not a setting of Loongkit and is ignored; "
        "the nearest is LOONGKIT_PROBE_IDLE"
    ]


@pytest.mark.parametrize("inherited", [{}, {"RANK": "0", "SLURM_PROCID": "0"}])
def test_mp_spawn_with_two_ranks(
    package: jobs.Package, tmp_path: Path, inherited: dict[str, str]
) -> None:
    """The variables of an outer launcher are the same in both: the process group tells."""
    found = train_on_two_ranks(package, tmp_path, [], "spawn", str(tmp_path / "init"), **inherited)
    # The ranks share their marks with the process that started them.
    assert found.rows["probe_rank"] is True
    assert found.result.out.startswith("=" * 28) and found.result.out.endswith("ended\n")
    assert summary_of(found, 0)["probe_rank"] and summary_of(found, 1)["probe_rank"]
    assert len(writers(found)) == 2
    assert len(found.warnings) == 1


TRAINING = (
    "plain",
    "with_closure",
    "lbfgs",
    "own_class",
    "subclass",
    "scaler",
    "scheduler",
    "compiled",
)


def test_every_way_to_step_counts_as_training(package: jobs.Package, tmp_path: Path) -> None:
    env = jobs.environment(tmp_path, package, {**OWN, **INFO})
    command = [jobs.SCRIPTS / "steps.py", *TRAINING, "nothing", "scaler_skips"]
    result = children.run(*command, env=env, cwd=tmp_path)
    found = jobs.Job(result, tmp_path / "log")
    assert result.status == 0 and result.err.count("\n") <= 1, found  # dynamo's own remark
    pids = dict(re.findall(r"^(\w+) (\d+)$", result.out, re.MULTILINE))
    assert writers(found) == {pids[name] for name in TRAINING}
    assert found.summaries == 1
