"""CONFIG_GUARDS in whole jobs: real interpreters, data workers of every kind, ranks, one log."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import children
import jobs
import pytest

pytestmark = jobs.needs_torch

SCRIPT = jobs.SCRIPTS / "guarded.py"
CPUS = len(os.sched_getaffinity(0))
#: More than fits on any machine, and a job that fits on this one.
TOO_MANY, THREADS = CPUS + 3, CPUS + 5
FITS = ["1", "1"]
UNSET = "unset"


def train(folder: Path, *arguments: str, launcher: tuple[str, ...] = (), **settings: str):
    """Run the training under the guards; return its report and the job."""
    settings = {"LOONGKIT_CONFIG_GUARDS": "1", "LOONGKIT_LOGLEVEL": "debug", **settings}
    env = jobs.environment(folder, settings=settings)
    env = {name: value for name, value in env.items() if value is not UNSET}
    command = [*(launcher or [sys.executable]), SCRIPT, *arguments]
    found = jobs.Job(children.run_command(*command, env=env, cwd=folder), folder / "log")
    assert found.result.status == 0, found
    return json.loads(found.result.out.splitlines()[0]), found


def codes(found: jobs.Job) -> list[str]:
    """The checks that warned, in the log's order by process."""
    return [re.search(r"config_guards (CG-\d\d)", line)[1] for line in found.warnings]


BAD = (str(TOO_MANY), str(THREADS), "cv2", "blur")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory):
    """What the badly configured job reports without Loongkit."""
    folder = tmp_path_factory.mktemp("plain")
    env = children.clean_env(OMP_NUM_THREADS="1")
    result = children.run(SCRIPT, "fork", *BAD, env=env, cwd=folder)
    assert result.status == 0, result
    return json.loads(result.out)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_each_warning_once_a_job_and_the_same_losses(tmp_path: Path, plain, method: str) -> None:
    """Two epochs start twice as many workers as there are in the report; each checks itself."""
    pytest.importorskip("cv2")
    report, found = train(tmp_path, method, *BAD)
    assert report == plain
    expected = ["CG-01", "CG-03", "CG-04"] if CPUS > 1 else ["CG-01", "CG-03"]
    assert sorted(codes(found)) == expected
    assert found.rows["config_guards"]


def test_apply_fix_mends_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    fix = {"LOONGKIT_CONFIG_GUARDS_APPLY_FIX": "1", "OMP_NUM_THREADS": UNSET}
    report, found = train(tmp_path, "fork", *BAD, **fix)
    limit = CPUS - 1 if CPUS > 2 else CPUS
    assert report["workers"] == limit and report["threads"] == CPUS
    _cpus, threads, omp = report["in workers"]
    assert (threads, omp) == (1, 1) or CPUS == 1
    changed = [line.split("; ")[1] for line in found.warnings]
    assert f"num_workers changed {TOO_MANY} -> {limit}" in "".join(changed)
    assert f"torch.get_num_threads() changed {THREADS} -> {CPUS}" in "".join(changed)
    assert len(changed) == len(set(codes(found)))
    assert f"{'config_guards':<31}* {{'apply_fix': True}}\n" in found.result.out


needs_two_cpus = pytest.mark.skipif(CPUS < 2, reason="there is one CPU")


@needs_two_cpus
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("work", ["multiply", "blur"])
def test_pools_at_work_are_named_with_what_workers_can_do(
    tmp_path: Path, method: str, work: str
) -> None:
    """The trainer keeps its threads: OpenBLAS has those of the machine, torch one."""
    names = {"multiply": "OpenBLAS", "blur": "OpenCV"}
    calls = {"multiply": "threadpoolctl.threadpool_limits(1)", "blur": "cv2.setNumThreads(0)"}
    pytest.importorskip("cv2")
    _report, found = train(tmp_path, method, str(CPUS), "1", "cv2", work, OMP_NUM_THREADS=UNSET)
    (line,) = [line for line in found.warnings if "CG-04" in line]
    assert f"of {names[work]} busy beside its own" in line
    assert line.endswith(f"; call {calls[work]} in worker_init_fn")


@needs_two_cpus
@pytest.mark.parametrize("words", [("cv2",), ("cv2", "blur", "alone"), ("numba",)])
def test_pools_that_do_not_work_are_no_concern(tmp_path: Path, words: tuple[str, ...]) -> None:
    """numpy, OpenCV and numba have as many threads as there are CPUs, and nothing uses them."""
    for module in set(words) & {"cv2", "numba"}:
        pytest.importorskip(module)
    _report, found = train(tmp_path, "fork", str(CPUS), "1", *words, OMP_NUM_THREADS=UNSET)
    assert [line for line in found.log.splitlines() if "CG-04" in line] == []


@needs_two_cpus
def test_apply_fix_takes_openblas_its_threads_in_workers(tmp_path: Path) -> None:
    fix = {"LOONGKIT_CONFIG_GUARDS_APPLY_FIX": "1", "OMP_NUM_THREADS": UNSET}
    _report, found = train(tmp_path, "fork", str(CPUS), "1", "multiply", **fix)
    (line,) = [line for line in found.warnings if "CG-04" in line]
    assert f"threads of a data worker changed {CPUS} -> 1" in line
    _cpus, _threads, omp = _report["in workers"]
    assert omp == 1  # for what the worker loads or starts from then on


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_job_confined_from_outside_is_not_bound(tmp_path: Path, method: str) -> None:
    """What it was started with is what it may use, however much its launcher has."""
    cpu = min(os.sched_getaffinity(0))
    for settings in ({}, {"OMP_PROC_BIND": "true"}):
        folder = tmp_path / str(len(settings))
        folder.mkdir()
        launcher = ("taskset", "-c", str(cpu), sys.executable)
        report, found = train(folder, method, *FITS, launcher=launcher, **settings)
        assert report["in workers"][0] == 1 and found.warnings == []


@needs_two_cpus
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_main_thread_bound_from_inside(tmp_path: Path, method: str) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    report, found = train(tmp_path, method, *FITS, "bind")
    (line,) = found.warnings
    assert report["in workers"][0] == 1
    problem = f"CG-09: something has bound the main thread to 1 of the {CPUS} CPUs of its process"
    assert problem in line
    advice = line.split("call os.sched_setaffinity(0, ")[1].split(") in worker_init_fn")[0]
    assert list(eval(advice)) == cpus
    folder = tmp_path / "mended"
    folder.mkdir()
    report, found = train(folder, method, *FITS, "bind", "widen")
    assert report["in workers"][0] == CPUS and found.warnings == []


def test_a_job_that_fits_says_nothing(tmp_path: Path) -> None:
    report, found = train(tmp_path, "fork", *FITS, "loongkit.all", LOONGKIT_STRICT="1")
    assert found.warnings == [] and report["workers"] == 1
    assert found.rows == {"config_guards": True}


@needs_two_cpus
@pytest.mark.parametrize("fix", ["0", "1"])
def test_workers_bound_by_openmp(tmp_path: Path, fix: str) -> None:
    """libgomp binds the main thread to the first CPU of the list; the workers inherit that."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    binding = {"GOMP_CPU_AFFINITY": f"{cpus[0]} {cpus[1]}", "LOONGKIT_CONFIG_GUARDS_APPLY_FIX": fix}
    report, found = train(tmp_path, "fork", *FITS, OMP_NUM_THREADS="2", **binding)
    assert report["in workers"][0] == (2 if fix == "1" else 1)
    (line,) = found.warnings
    assert "CG-09: GOMP_CPU_AFFINITY has bound the main thread to 1 of" in line
    assert ("changed 1 -> 2" in line) == (fix == "1")


@needs_two_cpus
@pytest.mark.parametrize("fix", ["0", "1"])
def test_a_launcher_that_openmp_has_bound(tmp_path: Path, fix: str) -> None:
    """torchrun imports torch: its ranks start on one CPU, unlike those confined from outside."""
    binding = {"OMP_PROC_BIND": "true", "LOONGKIT_CONFIG_GUARDS_APPLY_FIX": fix}
    report, found = train(tmp_path, "fork", *FITS, launcher=torchrun(1), **binding)
    assert report["in workers"][0] == (CPUS if fix == "1" else 1)
    (line,) = found.warnings
    assert f"CG-09: OMP_PROC_BIND has bound the main thread to 1 of the {CPUS} CPUs" in line
    assert (f"changed 1 -> {CPUS}" in line) == (fix == "1")


def torchrun(ranks: int) -> tuple[str, ...]:
    """Return what stands before a script to run it as so many ranks."""
    command = (sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}")
    return (*command, "--master_port=0", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0")


def test_the_first_rank_of_the_host_warns(tmp_path: Path) -> None:
    _report, found = train(tmp_path, "fork", str(TOO_MANY), "1", launcher=torchrun(2))
    (warning,) = found.warnings
    assert "CG-03" in warning and "rank=0" in warning
    assert f"({CPUS} CPUs shared by 2 ranks)" in warning
    assert re.search(r"DEBUG rank=1 .* config_guards CG-03", found.log)


TRAINS_NOTHING = f"""
import torch
torch.set_num_threads({THREADS})
torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
import torch._inductor.config, torch._inductor.async_compile
list(torch.utils.data.DataLoader([1, 2]))
"""

COMPILES = """
import torch
weight = torch.nn.Parameter(torch.ones(1))
torch.optim.SGD([weight], lr=0.1).step()
import torch._inductor.config, torch._inductor.async_compile
from loongkit.guards import trainer
print(trainer._interop_runs())
@torch.jit.script
def relu(x):
    return torch.jit.wait(torch.jit.fork(torch.relu, x))
relu(torch.ones(2))
print(trainer._interop_runs())
"""


def test_a_process_that_trains_nothing_is_not_looked_at(tmp_path: Path) -> None:
    settings = {"LOONGKIT_CONFIG_GUARDS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "999"}
    found = jobs.run(tmp_path, TRAINS_NOTHING, LOONGKIT_LOGLEVEL="debug", **settings)
    assert found.result.status == 0 and found.result.err == "", found
    assert "config_guards: armed -> patched" in found.log
    assert "CG-" not in found.log and "effective" not in found.log


def test_compile_processes_and_the_interop_pool_of_the_real_torch(tmp_path: Path) -> None:
    settings = {"LOONGKIT_CONFIG_GUARDS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "999"}
    found = jobs.run(tmp_path, COMPILES, **settings)
    assert found.result.out.splitlines()[:2] == ["False", "True"], found
    (line,) = found.warnings
    assert f"inductor compiles with 999 processes in each rank, more than {CPUS}" in line


@pytest.mark.parametrize(("version", "passes"), [("2.0.1", False), ("2.1.0", True)])
def test_the_version_of_torch_decides(tmp_path: Path, version: str, passes: bool) -> None:
    """The gate is checked when the first of the hooked modules was imported, late in this case."""
    code = f"""
import torch
torch.__version__ = {version!r}
import loongkit.all
weight = torch.nn.Parameter(torch.ones(1))
torch.optim.SGD([weight], lr=0.1).step()
"""
    folder = tmp_path / "job"
    settings = {"LOONGKIT_CONFIG_GUARDS": "1", "PYTHONPATH": str(children.SOURCE)}
    folder.mkdir()
    env = children.clean_env(LOONGKIT_LOGDIR=str(folder / "log"), **settings)
    result = children.run("-c", code, env=env, cwd=folder)
    assert result.status == 0, result
    assert (f"{'config_guards':<31}* None\n" in result.out) is passes
    reason = f"config_guards: skipped: found torch {version}, wanted >=2.1.0"
    assert (reason in result.out) is not passes
