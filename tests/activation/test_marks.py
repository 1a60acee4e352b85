"""Effect marks across the processes of one job, and never beyond it."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import children
import pytest

from loongkit.activation import marks, process
from loongkit.activation.marks import Marks

ON_EVERY_PYTHON = pytest.mark.parametrize("python", children.interpreters())

#: A program whose children, made in several ways, mark the places that they are told.
PROGRAM = """
import multiprocessing, os, subprocess, sys
from loongkit.activation import marks
from loongkit.activation.marks import Marks

MARKS = Marks()


def work(*positions):
    MARKS.open()
    for position in positions:
        MARKS.set(position)


def work_deeper(method, position):
    MARKS.open()
    start(method, work, position)


def work_as_another_version(position):
    marks.FILE_NAME = "loongkit-marks-another"
    work(position)
    assert found(position) == [position] and not MARKS.is_set(1)


def work_without_proc(position):
    def listdir(path):
        raise PermissionError(13, "hidden")

    os.listdir = listdir
    work(position)
    assert MARKS.shared and found(position) == [position]


def claim(expected):
    MARKS.open()
    assert MARKS.claim_summary() is expected


def claim_and_print():
    claim(True)
    MARKS.note_printed()


def check(position):
    MARKS.open()
    assert MARKS.is_set(position)


def count_files():
    MARKS.open()
    MARKS.open()
    assert len(files_of(os.getpid())) == 1


def files_of(pid):
    paths = [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    return [path for path in paths if os.path.islink(path) and marks.FILE_NAME in os.readlink(path)]


def start(method, function, *arguments):
    child = multiprocessing.get_context(method).Process(target=function, args=arguments)
    child.start()
    child.join()
    assert child.exitcode == 0, child.exitcode


def found(*positions):
    return [position for position in positions if MARKS.is_set(position)]


if __name__ == "__main__":
"""


def run(folder: Path, body: str, python: str = sys.executable) -> None:
    program = folder / "program.py"
    program.write_text(PROGRAM + textwrap.indent(textwrap.dedent(body), "    "))
    env = children.clean_env(PYTHONPATH=str(children.SOURCE))
    result = children.run(program, python=python, env=env, cwd=folder)
    assert result.seen_by_user == (b"", b"", 0), result


@ON_EVERY_PYTHON
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_s_marks_reach_its_parent(tmp_path: Path, python: str, method: str) -> None:
    body = f"""
    MARKS.open()
    assert MARKS.shared
    MARKS.set(1)
    start({method!r}, work, 2, 40)
    start({method!r}, check, 1)
    assert found(1, 2, 3, 40) == [1, 2, 40]
    """
    run(tmp_path, body, python)


@pytest.mark.parametrize("outer", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("inner", ["fork", "spawn"])
def test_so_do_those_of_a_grandchild(tmp_path: Path, outer: str, inner: str) -> None:
    body = f"""
    MARKS.open()
    start({outer!r}, work_deeper, {inner!r}, 3)
    assert found(2, 3) == [3]
    """
    run(tmp_path, body)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_whose_parent_has_no_marks_makes_its_own(tmp_path: Path, method: str) -> None:
    body = f"""
    start({method!r}, work, 2)
    MARKS.open()
    assert MARKS.shared and found(2) == []
    """
    run(tmp_path, body)


def test_a_fork_server_that_has_opened_the_marks_itself(tmp_path: Path) -> None:
    (tmp_path / "opener.py").write_text("import program\nprogram.MARKS.open()\n")
    body = """
    work(1)
    sys.path.insert(0, os.getcwd())
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["opener"])
    start("forkserver", work, 2)
    start("forkserver", check, 1)
    assert found(1, 2) == [1, 2]
    """
    run(tmp_path, body)


def test_a_process_of_another_version_makes_its_own(tmp_path: Path) -> None:
    body = """
    work(1)
    start("spawn", work_as_another_version, 2)
    assert found(1, 2) == [1]
    """
    run(tmp_path, body)


def test_a_job_started_inside_the_job_lights_nothing_here(tmp_path: Path) -> None:
    body = """
    work(1)
    code = (
        "from program import MARKS, work, start\\n"
        "work(2)\\n"
        "assert MARKS.shared and not MARKS.is_set(1)\\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    # Nor do the children of one that has no marks itself.
    quiet = "import program; program.start('spawn', program.work, 4)"
    subprocess.run([sys.executable, "-c", quiet], check=True)
    nested = "import program; program.work(2); program.start('spawn', program.work, 3); " \\
        "assert program.found(1, 2, 3) == [2, 3]"
    subprocess.run([sys.executable, "-c", nested], check=True)
    pid = os.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", code])
    assert os.waitpid(pid, 0)[1] == 0
    assert found(1, 2, 3, 4) == [1]
    """
    run(tmp_path, body)


@ON_EVERY_PYTHON
def test_there_is_one_file_which_no_program_inherits(tmp_path: Path, python: str) -> None:
    body = """
    before = len(os.listdir("/proc/self/fd"))
    count_files()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    (path,) = files_of(os.getpid())
    assert not os.get_inheritable(int(os.path.basename(path)))
    assert os.stat(path).st_size == marks.SIZE
    for method in ("fork", "spawn", "forkserver"):
        start(method, count_files)
    # Passed to everything that a careless program starts, but for close-on-exec.
    look = "import os, program; assert program.files_of(os.getpid()) == []"
    subprocess.run([sys.executable, "-c", look], close_fds=False, check=True)
    """
    run(tmp_path, body, python)


@pytest.mark.parametrize(
    "loss",
    [
        "del os.memfd_create",
        "os.memfd_create = lambda *a: (_ for _ in ()).throw(OSError(38, 'not implemented'))",
        "os.ftruncate = lambda *a: (_ for _ in ()).throw(OSError(28, 'no space'))",
        "sys.modules['mmap'] = None",
    ],
)
def test_without_shared_memory_the_process_keeps_its_own(tmp_path: Path, loss: str) -> None:
    body = f"""
    {loss}
    before = os.listdir("/proc/self/fd")
    MARKS.open()
    assert not MARKS.shared and os.listdir("/proc/self/fd") == before
    work(1)
    start("fork", work, 2)
    assert found(1, 2) == [1]
    assert MARKS.claim_summary()
    """
    run(tmp_path, body)


def test_without_proc_a_spawned_child_keeps_its_own(tmp_path: Path) -> None:
    body = """
    work(1)
    start("spawn", work_without_proc, 2)
    assert found(1, 2) == [1]
    """
    run(tmp_path, body)


# In this process ------------------------------------------------------------------------------


def test_marks_work_before_they_are_shared() -> None:
    made = Marks()
    assert not made.shared and not made.is_set(3)
    made.set(3)
    assert made.is_set(3) and not made.is_set(4)


def test_all_features_have_a_place() -> None:
    from loongkit.activation import _index

    assert len(_index.ROWS) < marks.SIZE // 2


def test_the_file_carries_the_version() -> None:
    from loongkit import __version__

    assert marks.FILE_NAME.endswith(__version__)


@pytest.mark.parametrize("kind", [process.MAIN, process.HELPER])
def test_only_children_of_multiprocessing_look_for_a_parent_s_marks(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def never(pid: int) -> int:
        raise AssertionError

    monkeypatch.setattr(process, "kind", lambda: kind)
    monkeypatch.setattr(marks, "_marks_of", never)
    assert marks._parents_file() is None


# Who prints the summary -----------------------------------------------------------------------


def test_the_first_that_claims_the_summary_has_it(tmp_path: Path) -> None:
    body = """
    MARKS.open()
    assert MARKS.claim_summary() and MARKS.claim_summary()
    start("spawn", claim, False)
    MARKS.note_printed()
    assert not MARKS.claim_summary()
    """
    run(tmp_path, body)


def test_a_claim_ends_with_its_process_unless_it_has_printed(tmp_path: Path) -> None:
    body = """
    MARKS.open()
    start("spawn", claim, True)
    start("fork", claim, True)
    assert MARKS.claim_summary()
    start("spawn", claim, False)
    """
    run(tmp_path, body)
    body = """
    MARKS.open()
    start("fork", claim_and_print)
    assert not MARKS.claim_summary()
    start("spawn", claim, False)
    """
    run(tmp_path, body)
