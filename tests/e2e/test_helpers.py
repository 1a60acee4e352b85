"""Processes that Python and the frameworks start for themselves: who is armed, and who is not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import children
import copies
import pytest

from loongkit.activation import process

ANY = children.interpreters()

HELPERS = [
    ["python", "-c", "from multiprocessing.resource_tracker import main;main(5)"],
    [
        "python",
        "-X",
        "dev",
        "-W",
        "error",
        "-c",
        "from multiprocessing.resource_tracker import main",
    ],
    ["python", "-Xdev", "-sEc", "from multiprocess.resource_tracker import main;main(5)"],
    ["python", "-c", "import pydevd; from multiprocessing.resource_tracker import main;main(5)"],
    ["python", "-c", "from joblib.externals.loky.backend.resource_tracker import main; main(6, 0)"],
    ["python", "/x/torch/_inductor/compile_worker/__main__.py", "--pickler=a.b", "--workers=2"],
    ["python", "-u", "/x/torch/_inductor/__autotune_main__.py", "--parent=1"],
]
WORKERS = [
    [
        "python",
        "-c",
        "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)",
        "-f",
    ],
    ["python", "-X", "utf8", "-c", "from multiprocess.spawn import spawn_main; spawn_main()"],
    ["python", "-m", "joblib.externals.loky.backend.popen_loky_posix", "--pipe", "9"],
]
JOBS = [
    [],
    ["python"],
    ["python", "-"],
    ["python", "-i"],
    [
        "python",
        "-X",
        "importtime",
        "train.py",
        "-c",
        "from multiprocessing.spawn import spawn_main",
    ],
    ["python", "-m", "torch.distributed.run", "train.py"],
    ["python", "-c", "import multiprocessing.spawn"],
    ["python", "-W", "-c", "train.py"],
    ["python", "--check-hash-based-pycs", "default", "train.py"],
    ["python", "--", "-c"],
    ["python", "-m", "multiprocessing.resource_tracker"],
    ["python", "compile_worker/__main__.py"],
]


@pytest.mark.parametrize(
    ("lines", "kind"),
    [(HELPERS, process.HELPER), (WORKERS, process.SPAWNED), (JOBS, process.MAIN)],
    ids=["helpers", "workers", "jobs"],
)
def test_kinds_by_command_line(lines: list[list[str]], kind: str) -> None:
    assert [process.kind(line) for line in lines] == [kind] * len(lines)
    server = ["python", "-c", "from multiprocessing.forkserver import main; main(1, 2, [], **{})"]
    assert process.kind(server) == process.FORKSERVER


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["python", "-uIX", "dev", "-S", "a.py", "-E"], ("uIS", "script", "a.py")),
        (["python", "-Wignore", "-c", "code", "-E"], ("", "c", "code")),
        (["python", "-Bsm", "module", "-E"], ("Bs", "m", "module")),
        (["python", "-ccode"], ("", "c", "code")),
        (["python", "-"], ("", "script", "-")),
        (["python", "-c"], ("", "c", "")),
        ([], ("", "", "")),
    ],
)
def test_command_lines_are_read_as_the_interpreter_reads_them(
    line: list[str], expected: tuple[str, str, str]
) -> None:
    assert process.command_line(line) == expected


#: What a worker reports: is Loongkit armed in it, did its hook run, and under which kind.
WORKER = """
import sys

def report(queue):
    from framework import work
    process = sys.modules.get("loongkit.activation.process")
    queue.put((process and process.kind(), work()))
"""

JOB = """
import multiprocessing, sys
from worker import report

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    workers = [context.Process(target=report, args=(queue,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    print(sorted(queue.get() for _ in workers))
    for worker in workers:
        worker.join()
    print([worker.exitcode for worker in workers])
"""


@pytest.mark.parametrize("python", ANY)
@pytest.mark.parametrize(
    ("method", "armed", "kind"),
    [("fork", 1, "main"), ("spawn", 3, "spawned"), ("forkserver", 2, "forkserver")],
)
def test_workers_are_armed_and_helpers_are_not(
    python: str, method: str, armed: int, kind: str, probe_package: Path, tmp_path: Path
) -> None:
    """A fork inherits, a spawned worker and the fork server arm themselves, a tracker does not."""
    copies.write(tmp_path, {**copies.FRAMEWORK, "worker.py": WORKER, "job.py": JOB})
    log = copies.Log(tmp_path / "log")
    env = copies.with_copy(probe_package, LOONGKIT_ALL="1", **log.settings)
    # The options are handed on to the children: the kind must be seen past them.
    result = children.run(
        "-X", "dev", "-W", "error", "job.py", method, python=python, env=env, cwd=tmp_path
    )
    assert result.seen_by_user == (
        f"{[(kind, 'patched work')] * 2}\n[0, 0]\n".encode(),
        b"",
        0,
    )
    assert len(log.armed) == armed


@pytest.mark.parametrize("python", ANY)
def test_the_fork_server_s_workers_write_logs_of_their_own(
    python: str, probe_package: Path, tmp_path: Path
) -> None:
    """Nothing of one process is frozen into the server: each worker writes its own log file."""
    worker = (
        f"{WORKER}    import os; from loongkit.activation import logs\n"
        "    logs.info('from ' + str(os.getpid()))\n"
    )
    copies.write(tmp_path, {**copies.FRAMEWORK, "worker.py": worker, "job.py": JOB})
    log = copies.Log(tmp_path / "log")
    env = copies.with_copy(probe_package, LOONGKIT_ALL="1", **log.settings)
    result = children.run("job.py", "forkserver", python=python, env=env, cwd=tmp_path)
    assert result.status == 0, result
    lines = log.lines(" from ")
    assert len(lines) == 2
    for line in lines:
        assert f"pid={line.rsplit(' ', 1)[1]} " in line
        assert (
            log.folder / Path(f"loongkit-{_host()}-rank0-{line.rsplit(' ', 1)[1]}.log")
        ).exists()


def _host() -> str:
    import os

    return os.uname().nodename


#: Prints what of Loongkit is in the process.
REPORT = "import sys; print(*sorted(m for m in sys.modules if m.startswith('loongkit')))\n"


@pytest.mark.parametrize("python", ANY)
@pytest.mark.parametrize("helper", ["tracker", "compile-worker", "job"])
def test_helpers_load_what_tells_them_apart_and_no_more(
    python: str, helper: str, tmp_path: Path
) -> None:
    """With stand-ins of loky's tracker and torch's compile worker, started as they are."""
    backend = "joblib/externals/loky/backend"
    copies.write(
        tmp_path,
        {
            f"{backend}/resource_tracker.py": f"def main(*_):\n    {REPORT}",
            "torch/_inductor/compile_worker/__main__.py": REPORT,
        },
    )
    words = {
        "tracker": HELPERS[4][1:],
        "compile-worker": [str(tmp_path / "torch/_inductor/compile_worker/__main__.py")],
        "job": ["-c", REPORT],
    }
    log = copies.Log(tmp_path / "log")
    env = children.with_prelude(PYTHONPATH=str(tmp_path), LOONGKIT_ALL="3", **log.settings)
    result = children.run(*words[helper], python=python, env=env)
    assert (result.stderr, result.status) == (b"", 0)
    activation = "loongkit.activation"
    told_apart = ["loongkit", activation, f"{activation}.guard", f"{activation}.process"]
    assert (result.out.split() == told_apart) == (helper != "job")
    assert bool(log.text) == (helper == "job")


def test_torch_s_own_worker_command_lines() -> None:
    """The files that torch starts for itself lie where we look for them."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("torch is not installed here")
    inductor = Path(torch.origin).parent / "_inductor"
    for path in (inductor / "compile_worker" / "__main__.py", inductor / "__autotune_main__.py"):
        assert path.is_file()
        assert process.kind(["python", str(path)]) == process.HELPER


def test_our_own_command_runs_where_strict_stops_a_job(tmp_path: Path) -> None:
    settings = {"LOONGKIT_STRICT": "1", "LOONGKIT_DAG": "1", "LOONGKIT_LOGDIR": str(tmp_path)}
    env = children.with_prelude(PYTHONPATH=str(children.SOURCE), **settings)
    stopped = children.run("-c", "print(1)", env=env)
    assert stopped.status != 0 and "dag" in stopped.err
    explained = children.run("-m", "loongkit", "plan", env=env)
    assert explained.status == 0 and "dag" in explained.out, explained
