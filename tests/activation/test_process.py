"""What launchers say of a process, and who started whom."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from loongkit.activation import process

#: Prints the process id of a child of its own, and lives until its input ends.
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
print(child.pid, flush=True)
sys.stdin.read()
child.wait()
"""


def test_parents_and_life_are_read_from_proc() -> None:
    assert process.parent_of(os.getpid()) == os.getppid()
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert process.parent_of(child.pid) == os.getpid()
        assert process.is_running(child.pid)
    finally:
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not process.is_running(child.pid)  # a zombie now
        child.wait()
    assert not process.is_running(child.pid)
    assert process.parent_of(child.pid) == 0


def test_a_grandchild_is_below_but_nobody_is_below_a_child_or_himself() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        assert process.is_below(grandchild, parent.pid)
        assert process.is_below(grandchild, os.getpid())
        assert not process.is_below(parent.pid, grandchild)
        assert not process.is_below(os.getpid(), os.getpid())
        assert not process.is_below(grandchild, 0)
        parent.stdin.close()


@pytest.mark.parametrize(("top", "is_below"), [(1, True), (2, False)])
def test_the_first_process_of_a_container_is_an_ancestor_too(
    monkeypatch: pytest.MonkeyPatch, top: int, is_below: bool
) -> None:
    parents = {30: 20, 20: 1, 1: 0}
    monkeypatch.setattr(process, "parent_of", parents.__getitem__)
    assert process.is_below(30, top) is is_below


def test_a_circle_of_reused_numbers_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "parent_of", {30: 20, 20: 30}.__getitem__)
    assert not process.is_below(30, 7)


@pytest.mark.parametrize(
    ("environ", "rank", "ranks"),
    [
        ({}, None, 0),
        ({"LOCAL_RANK": " 3 ", "LOCAL_WORLD_SIZE": "8"}, 3, 8),
        ({"LOCAL_RANK": "0"}, 0, 0),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "1"}, 0, 1),
        ({"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, 1, 4),
        ({"LOCAL_RANK": "x", "SLURM_LOCALID": "2", "LOCAL_WORLD_SIZE": "-1"}, 2, 0),
        ({"LOCAL_RANK": "9" * 5000, "LOCAL_WORLD_SIZE": "9" * 5000}, None, 0),
        ({"LOCAL_RANK": "1.5", "SLURM_NTASKS_PER_NODE": "x(x2)"}, None, 0),
    ],
)
def test_what_launchers_say(environ: dict[str, str], rank: int | None, ranks: int) -> None:
    assert process.has_local_rank(environ) is (rank is not None)
    assert process.local_rank(environ) == (rank or 0)
    assert process.said_local_ranks(environ) == ranks
    assert process.local_ranks(environ) == (ranks or 1)


@pytest.mark.parametrize(
    ("environ", "rank"),
    [({}, None), ({"RANK": "12"}, 12), ({"RANK": "9" * 5000}, None), ({"RANK": "a"}, None)],
)
def test_the_rank_in_the_whole_job(environ: dict[str, str], rank: int | None) -> None:
    assert process.global_rank(environ) == rank
