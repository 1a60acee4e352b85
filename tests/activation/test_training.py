"""Who prints the summary: the process of rank 0 that trained, once a job, on every Python.

A stub stands in for torch (``stub_torch``), so that each case costs two bare interpreter starts;
tests/e2e has the main ones with the real torch.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import children
import jobs
import pytest

METHODS = ("fork", "spawn", "forkserver")
every_python = pytest.mark.parametrize("python", children.interpreters())
every_method = pytest.mark.parametrize("method", METHODS)

STEP = "import torch; torch.optim.SGD().step()\n"


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> jobs.Package:
    return jobs.Package(tmp_path_factory.mktemp("package"), probes=["probe_update", "probe_extra"])


@pytest.fixture
def job(package: jobs.Package, tmp_path: Path):
    """Run a script with the probe switched on by its own variable."""

    def run(code: str, *arguments: str, **settings: str) -> jobs.Job:
        settings = {"LOONGKIT_PROBE_UPDATE": "1", "LOONGKIT_LOGLEVEL": "info", **settings}
        path = str(jobs.STUB_TORCH)
        return jobs.run(tmp_path, code, *arguments, package=package, PYTHONPATH=path, **settings)

    return run


def without_loongkit(folder: Path, python: str) -> children.Result:
    """Run the script that the job ran once more, without Loongkit."""
    env = children.clean_env(PYTHONPATH=str(jobs.STUB_TORCH))
    return children.run(folder / "script.py", env=env, python=python, cwd=folder)


@every_python
@pytest.mark.parametrize(
    ("ending", "summaries"),
    [
        ("", 1),
        ("raise RuntimeError('diverged')", 1),
        ("import sys; sys.exit(3)", 1),
        ("raise KeyboardInterrupt", 1),
        ("import os; os._exit(4)", 0),
        ("import os; os.kill(os.getpid(), 15)", 0),
        ("import os; os.kill(os.getpid(), 9)", 0),
    ],
)
def test_the_summary_ends_each_job_that_lives_to_its_end(
    job, tmp_path: Path, python: str, ending: str, summaries: int
) -> None:
    found = job(f"{STEP}print('trained', flush=True)\n{ending}\n", python=python)
    plain = without_loongkit(tmp_path, python)
    assert found.result.status == plain.status
    assert found.result.stderr == plain.stderr
    assert found.result.out.startswith(plain.out)
    assert found.summaries == summaries
    # A killed job has its record all the same: each line was flushed at once.
    assert "probe_update: patched -> effective" in found.log
    assert "this process trains, as rank 0" in found.log
    if summaries:
        assert found.rows == {"probe_update": True}
        assert found.log.endswith(found.summary)


@pytest.mark.parametrize(
    "code",
    [
        "import torch.optim.optimizer; print('imported')",
        "import torch; print(torch.__version__)",
        "import torch; torch.optim.SGD(); print('evaluated')",
        "import torch; torch.optim.SGD().update(); print('no step')",
    ],
)
def test_what_trains_nothing_prints_nothing(job, tmp_path: Path, code: str) -> None:
    found = job(code)
    assert "probe_update: armed -> patched" in found.log
    assert jobs.TITLE not in found.log
    assert found.result.seen_by_user == without_loongkit(tmp_path, sys.executable).seen_by_user


WORKERS = """
import multiprocessing, os, sys
import torch

def work(*args):
    torch.optim.SGD().update()      # the effect without a step: what a data worker does
    return os.getpid()

def train(*args):
    torch.optim.SGD().step()

def die(*args):
    torch.optim.SGD().step()
    os.kill(os.getpid(), 9)

def run(context, target):
    process = context.Process(target=target)
    process.start()
    process.join()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    for word in sys.argv[2:]:
        if word == "train_here":
            train()
        elif word == "pool":
            with context.Pool(2) as pool:
                assert os.getpid() not in pool.map(work, range(4))
        elif word == "preload":
            context.set_forkserver_preload(["torch"])
        else:
            run(context, globals()[word])
    print("parent", os.getpid(), flush=True)
"""


def writers(found: jobs.Job) -> list[int]:
    """Return the processes that wrote a summary into their log."""
    lines = [line for line in found.log.splitlines() if " SUMMARY " in line]
    return [int(line.rpartition("pid=")[2]) for line in lines]


def parent(found: jobs.Job) -> int:
    return int(found.result.out.partition("parent ")[2].split()[0])


@every_python
@every_method
def test_a_multiprocessing_child_that_trains_prints(job, python: str, method: str) -> None:
    found = job(WORKERS, method, "train", python=python)
    assert found.result.status == 0 and found.result.err == ""
    assert found.rows == {"probe_update": True}
    assert len(writers(found)) == 1 and writers(found) != [parent(found)]


@every_python
def test_a_child_of_a_preloaded_forkserver_that_trains_prints(job, python: str) -> None:
    found = job(WORKERS, "forkserver", "preload", "train", python=python)
    assert found.result.status == 0 and found.result.err == ""
    assert found.rows == {"probe_update": True}


@every_python
@every_method
def test_workers_do_not_print_and_light_the_star(job, python: str, method: str) -> None:
    """The parent steps another optimiser than the probe's: only the workers run the probe."""
    code = WORKERS.replace("torch.optim.SGD().step()", "torch.optim.Optimizer().step()")
    found = job(code, method, "pool", "work", "train_here", python=python)
    assert found.result.status == 0 and found.result.err == ""
    assert found.rows == {"probe_update": True}
    assert writers(found) == [parent(found)]
    dark = job(code, method, "train_here", python=python)
    assert dark.rows == {"probe_update": False}


@every_python
@every_method
def test_a_star_for_what_only_the_workers_import(job, python: str, method: str) -> None:
    code = WORKERS.replace(
        "SGD().update()", "Optimizer(); from torch.extra import collate; collate()"
    )
    settings = {"LOONGKIT_PROBE_EXTRA": "1", "LOONGKIT_PROBE_UPDATE": "0"}
    found = job(code, method, "work", "train_here", python=python, **settings)
    assert found.result.status == 0 and found.result.err == ""
    assert found.rows == {"probe_extra": True}


@every_method
def test_a_parent_that_trains_speaks_for_its_children(job, method: str) -> None:
    found = job(WORKERS, method, "train_here", "train", "train_here")
    assert found.summaries == 1
    child, last = writers(found)
    assert {child, last} > {parent(found)}
    assert found.result.out.startswith("parent"), "the child has printed"


@every_method
def test_of_children_that_train_in_turn_the_first_that_ends_prints(job, method: str) -> None:
    found = job(WORKERS, method, "train", "train")
    assert found.summaries == 1 and len(writers(found)) == 2
    assert found.result.out.endswith(f"parent {parent(found)}\n")
    found = job(WORKERS, method, "train", "train_here")
    assert found.summaries == 1
    found = job(WORKERS, method, "die", "train")
    assert found.summaries == 1, "the first was killed: the second speaks"


@every_python
def test_a_bare_fork_that_trains_prints(job, python: str) -> None:
    code = """
import os, sys, torch
step = torch.optim.SGD().step
if "before" in sys.argv:
    step()
pid = os.fork()
if pid == 0:
    if "child" in sys.argv:
        step()
    sys.exit(0)
os.waitpid(pid, 0)
print("parent", os.getpid(), flush=True)
"""
    forked = job(code, "child", python=python)
    assert forked.summaries == 1 and writers(forked) != [parent(forked)]
    before = job(code, "before", python=python)
    assert before.summaries == 1 and parent(before) in writers(before)
    assert before.result.out.startswith("parent")
    both = job(code, "before", "child", python=python)
    assert both.summaries == 1 and both.result.out.startswith("parent")


COMPILED = WORKERS.replace("import torch\n", "import torch\ntorch.compiler.TRACING = True\n")


@every_python
@pytest.mark.parametrize(
    "arguments",
    [
        ("fork", "train"),
        ("spawn", "train"),
        ("forkserver", "train"),
        ("forkserver", "preload", "train"),
        ("fork", "train_here", "work"),
    ],
)
def test_a_compiled_step_counts_as_training(job, python: str, arguments: tuple[str, ...]) -> None:
    found = job(COMPILED, *arguments, python=python)
    assert found.result.status == 0 and found.result.err == ""
    assert found.rows == {"probe_update": True}
    assert len(writers(found)) == 1


def test_a_child_forked_after_a_compiled_step_has_not_trained(job) -> None:
    code = """
import os, sys, torch
torch.compiler.TRACING = True
torch.optim.SGD().step()
if os.fork() == 0:
    sys.exit(0)
os.wait()
print("parent", os.getpid(), flush=True)
"""
    found = job(code)
    assert found.summaries == 1 and found.result.out.startswith("parent")


RANKS = """
import torch
torch.distributed.RANK = {group}
torch.optim.SGD().step()
torch.distributed.RANK = None       # the group is destroyed before the end
"""


@pytest.mark.parametrize(
    ("group", "launcher", "rank"),
    [
        (None, {}, 0),
        (0, {}, 0),
        (3, {}, 3),
        (None, {"RANK": "0"}, 0),
        (None, {"RANK": "1", "SLURM_PROCID": "0"}, 1),
        (None, {"SLURM_PROCID": "2"}, 2),
        (None, {"OMPI_COMM_WORLD_RANK": "5"}, 5),
        (None, {"RANK": "banana"}, 0),
        # mp.spawn below a launcher that counts nodes or knows one task only.
        (1, {"RANK": "0"}, 1),
        (1, {"SLURM_PROCID": "0"}, 1),
        # Each process is a group of its own: the launcher knows better.
        (0, {"RANK": "1"}, 1),
    ],
)
def test_rank_0_prints_the_others_write_to_their_log(
    job, group: int | None, launcher: dict[str, str], rank: int
) -> None:
    found = job(RANKS.format(group=group), **launcher)
    assert f"this process trains, as rank {rank}" in found.log
    assert found.summaries == (1 if rank == 0 else 0)
    assert found.log.count(jobs.TITLE) == 1


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_other_ranks_leave_a_log_on_a_stream_alone(job, stream: str) -> None:
    found = job(STEP, RANK="1", LOONGKIT_LOGDIR=stream)
    assert "this process trains, as rank 1" in found.result.out + found.result.err
    assert jobs.TITLE not in found.result.out + found.result.err


@every_python
@pytest.mark.parametrize("where", ["top", "function", "fork"])
def test_import_loongkit_all_after_the_optimiser(
    package: jobs.Package, tmp_path: Path, python: str, where: str
) -> None:
    code = {
        "top": "import torch\nimport loongkit.all\ntorch.optim.SGD().step()",
        "function": "import torch\nstep = torch.optim.SGD().step\nimport loongkit.all\nstep()",
        "fork": """
import multiprocessing, torch
def train():
    import loongkit.all
    torch.optim.SGD().step()
process = multiprocessing.get_context("fork").Process(target=train)
process.start()
process.join()
""",
    }[where]
    script = tmp_path / "script.py"
    script.write_text(code)
    path = f"{package.site}:{jobs.STUB_TORCH}"
    log = {"LOONGKIT_LOGDIR": str(tmp_path / "log"), "LOONGKIT_PROBE_UPDATE": "1"}
    result = children.run(script, env=children.clean_env(PYTHONPATH=path, **log), python=python)
    found = jobs.Job(result, tmp_path / "log")
    assert result.status == 0 and result.err == ""
    assert found.rows == {"probe_update": True}


def test_a_nested_job_prints_its_own_and_lights_no_star_outside(job, tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(STEP)
    code = """
import subprocess, sys, torch
torch.optim.Optimizer().step()
subprocess.run([sys.executable, "inner.py"], check=True)
print("outer", flush=True)
"""
    found = job(code)
    inner, outer = found.result.out.split("outer\n")
    assert jobs.rows(inner) == {"probe_update": True}
    assert jobs.rows(outer) == {"probe_update": False}


def test_a_shell_script_with_two_trainings_prints_two(job, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STEP + "print('trained', flush=True)\n")
    found = job(
        'set -e\n"$PYTHON" train.py\n"$PYTHON" train.py\n', launcher=["bash"], PYTHON=sys.executable
    )
    assert found.result.out.count("trained\n" + "=" * 28) == 2
    assert found.summaries == 2


def test_a_step_that_fails_is_no_training(job) -> None:
    code = """
import torch
class Broken(torch.optim.Optimizer):
    def update(self):
        raise ValueError("no step")
Broken().step()
"""
    found = job(code)
    assert found.result.status == 1 and found.summaries == 0


def test_the_summary_stands_after_all_that_the_program_prints(job) -> None:
    code = """
import atexit, sys, torch
atexit.register(print, "an exit handler")
torch.optim.SGD().step()
sys.stdout.write("unflushed ")
"""
    found = job(code)
    assert found.result.out.startswith("unflushed an exit handler\n" + "=" * 28)
    assert found.result.out.endswith("=" * 82 + "\n")


def test_interrupted_by_the_keyboard(package: jobs.Package, tmp_path: Path) -> None:
    """SIGINT from outside, as Ctrl-C: the status is the signal's, the summary is printed."""
    script = tmp_path / "script.py"
    script.write_text(STEP + "import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    settings = {"LOONGKIT_PROBE_UPDATE": "1", "PYTHONPATH": str(jobs.STUB_TORCH)}
    env = jobs.environment(tmp_path, package, settings)
    process = subprocess.Popen(
        [sys.executable, str(script)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert jobs.TITLE.encode() in out and err.rstrip().endswith(b"KeyboardInterrupt")
