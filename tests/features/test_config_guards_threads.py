"""What CONFIG_GUARDS sees of native threads: who has worked, and whose they are. Real libraries."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import types

import children
import pytest

from loongkit.guards import pools, threads

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

#: Has pools work in a process of its own, and says what is seen of them.
SCRIPT = """
import os, sys, time, threading
import numpy as np, torch
from loongkit.guards import pools, threads
torch.set_num_threads(1)
watch = pools.Watch()
threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
busy = lambda: time.process_time() - time.thread_time()

def work_until(done, work):
    end = time.monotonic() + 5
    while not done() and time.monotonic() < end:
        work()

def openblas():
    matrix = np.ones((500, 500))
    matrix @ matrix

def opencv():
    import cv2
    cv2.bilateralFilter(np.zeros((300, 300, 3), np.uint8), 15, 80, 80)

def openmp():
    torch.set_num_threads(2)
    matrix = torch.ones(400, 400)
    matrix @ matrix

def python():
    own = threading.Thread(target=lambda: sum(range(3_000_000)))
    own.start()
    own.join()

def said():
    found = watch.at_work()
    return found and (found.names, found.threads, [remedy.call for remedy in found.remedies])

print(said())
work = globals()[sys.argv[1]]
limit = busy() + 0.3 * max(1, len(os.sched_getaffinity(0)) - 1)
work_until(lambda: busy() > limit, work)
found = watch.at_work()
print(said())
for remedy in found.remedies if found else ():
    remedy.do()
again = pools.Watch()
for _ in range(4):
    work() if sys.argv[1] != "openmp" else torch.ones(400, 400) @ torch.ones(400, 400)
print(threads.at_work(again._before))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU")
@pytest.mark.parametrize(
    ("work", "name", "call"),
    [
        ("openblas", "OpenBLAS", "threadpoolctl.threadpool_limits(1)"),
        ("opencv", "OpenCV", "cv2.setNumThreads(0)"),
        ("openmp", "OpenMP", "torch.set_num_threads(1)"),
        ("python", None, None),
    ],
)
def test_whose_threads_have_worked(work: str, name: str | None, call: str | None) -> None:
    if work == "opencv":
        pytest.importorskip("cv2")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, work],
        env=children.clean_env(PYTHONPATH=str(children.SOURCE)),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    cpus = min(2, len(os.sched_getaffinity(0))) if work == "openmp" else None
    before, found, afterwards = done.stdout.splitlines()
    assert before == "None" and afterwards == "[]"
    if name is None:
        assert found == "None"
        return
    names, count, calls = eval(found)
    assert (names, calls) == ((name,), [call])
    assert count >= 1 and (cpus is None or count == cpus - 1)


def test_a_thread_that_runs_is_asked_again_until_patience_ends(monkeypatch) -> None:
    asked: list[int] = []

    def owner(thread, code):
        asked.append(thread)
        return "/usr/lib/libgomp.so.1" if len(asked) > 3 and thread == 7 else ""

    monkeypatch.setattr(threads, "_owner", owner)
    begun = time.monotonic()
    assert threads.owners([7], ("libgomp",), 5.0) == ["/usr/lib/libgomp.so.1"]
    assert time.monotonic() - begun < 4 and len(asked) == 4
    assert threads.owners([8], ("libgomp",), 0.0) == []
    assert asked.count(8) == 1


def test_patience_is_spent_once(monkeypatch) -> None:
    given: list[float] = []

    def owners(busy, beginnings, patience):
        given.append(patience)
        time.sleep(0.02)
        return []

    monkeypatch.setattr(threads, "at_work", lambda before: [7])
    monkeypatch.setattr(threads, "owners", owners)
    watch = pools.Watch()
    assert watch.at_work() is None and watch.at_work() is None
    assert given[0] == pools._PATIENCE and given[1] <= pools._PATIENCE - 0.02


def test_a_thread_of_pythons_and_one_that_has_ended_are_nobodys() -> None:
    stop = threading.Event()
    own = threading.Thread(target=stop.wait)
    own.start()
    try:
        assert own.native_id not in threads.cpu_times()
    finally:
        stop.set()
        own.join()
    assert threads.owners([own.native_id], ("lib",), 0.0) == []


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/a/site-packages/numpy.libs/libscipy_openblas64_-5.so", "OpenBLAS"),
        ("/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0", "OpenBLAS"),
        ("/a/site-packages/cv2/cv2.abi3.so", "OpenCV"),
        ("/usr/lib/libopencv_core.so.406", "OpenCV"),
        ("/a/site-packages/numexpr/interpreter.so", "numexpr"),
        ("/a/site-packages/numba/np/ufunc/workqueue.so", "numba"),
        ("/a/site-packages/scikit_learn.libs/libgomp-e985.so.1", "OpenMP"),
        ("/opt/lib/libiomp5.so", "OpenMP"),
    ],
)
def test_libraries_by_their_files(path: str, name: str) -> None:
    assert threads._counts(path, pools._ALL_FILES)
    assert pools._name(path) == name
    assert not threads._counts("/lib/x86_64-linux-gnu/libc.so.6", pools._ALL_FILES)


def calls(name: str) -> list[str]:
    return [remedy.call for remedy in pools._remedies(name)]


def test_remedies_for_openmp_are_those_of_who_uses_it(monkeypatch) -> None:
    """To ask numba for its number starts its threads: it is asked only where they run."""
    numba = types.SimpleNamespace(get_num_threads=lambda: pytest.fail("asked"))
    parallel = types.SimpleNamespace(_is_initialized=False)
    monkeypatch.setitem(sys.modules, "numba", numba)
    monkeypatch.setitem(sys.modules, "numba.np.ufunc.parallel", parallel)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert calls("OpenMP") == ["threadpoolctl.threadpool_limits(1)"]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert calls("OpenMP") == ["torch.set_num_threads(1)"]
    parallel._is_initialized = True
    numba.get_num_threads = lambda: 2
    assert calls("OpenMP") == ["numba.set_num_threads(1)", "torch.set_num_threads(1)"]
    numba.get_num_threads = lambda: 1
    assert calls("OpenMP") == ["torch.set_num_threads(1)"]
    assert calls("numexpr") == ["numexpr.set_num_threads(1)"]


def test_what_is_to_be_expected_is_asked_of_opencv_and_torch(monkeypatch) -> None:
    cv2 = types.SimpleNamespace(getNumThreads=lambda: 8)
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    found = pools.to_be_expected()
    assert (found.names, found.threads) == (("OpenCV",), 7)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    found = pools.to_be_expected()
    assert (found.names, found.threads, len(found.remedies)) == (("OpenCV", "torch"), 15, 2)
    cv2.getNumThreads = lambda: 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert pools.to_be_expected() is None
