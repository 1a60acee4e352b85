"""PYTORCH: data workers keep the memory they free, where that is seen to help."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import children
import pytest

from loongkit.data import allocator
from loongkit.data.allocator import LOOK_EVERY, MEASURED, SETTLING, WARM_UP, Usage

MIB = 1 << 20
#: Batches until the switch is made, and until it has been judged.
SWITCHED = SETTLING + MEASURED
JUDGED = SWITCHED + SETTLING + MEASURED


class Worker:
    """A made-up worker: what its batches cost before and after the switch, and what it occupies."""

    def __init__(self, before: Usage, after: Usage, accepts: bool = True) -> None:
        self.costs = {False: before, True: after}
        self.accepts = accepts
        self.raised = False
        self.calls: list[str] = []
        self.used = Usage(10_000, 5.0)
        self.private = 300 * MIB
        self.keeper = allocator.MemoryKeeper(
            self, lambda: self.calls.append("mark"), lambda: self.used, lambda: self.private
        )

    def keep(self) -> bool:
        self.calls.append("keep")
        self.raised = self.accepts
        return self.accepts

    def restore(self) -> None:
        self.calls.append("restore")
        self.raised = False

    def fetch(self, batches: int) -> None:
        for _ in range(batches):
            cost = self.costs[self.raised]
            self.used = Usage(self.used.faults + cost.faults, self.used.cpu + cost.cpu)
            self.keeper.batch_done()


MANY, FEW = Usage(17_000, 0.5), Usage(30, 0.3)


def test_a_worker_that_faults_much_keeps_its_memory():
    worker = Worker(MANY, FEW)
    worker.fetch(SWITCHED - 1)
    assert worker.calls == []
    worker.fetch(1)
    assert worker.calls == ["keep", "mark"]
    worker.fetch(JUDGED + 3 * WARM_UP)
    assert worker.calls == ["keep", "mark"]


def test_a_worker_that_hardly_faults_is_left_alone():
    worker = Worker(Usage(allocator.WORTHWHILE_FAULTS - 1, 0.5), FEW)
    worker.fetch(JUDGED + WARM_UP)
    assert worker.calls == []


def test_single_bursts_do_not_count():
    worker = Worker(FEW, FEW)
    for batch in range(JUDGED):
        worker.costs[False] = MANY if batch % 3 == 0 else FEW
        worker.fetch(1)
    assert worker.calls == []


@pytest.mark.parametrize(
    ("after", "kept"),
    [
        (Usage(15_300, 0.5), True),
        (Usage(15_400, 0.5), False),
        (Usage(30, 0.625), True),
        (Usage(30, 0.63), False),
    ],
)
def test_what_does_not_pay_is_taken_back(after, kept):
    worker = Worker(MANY, after)
    worker.fetch(JUDGED)
    assert worker.calls == ["keep", "mark", *([] if kept else ["restore"])]
    worker.fetch(3 * WARM_UP)
    assert worker.calls.count("keep") == 1


def test_where_malloc_is_not_ours_nothing_is_marked():
    worker = Worker(MANY, FEW, accepts=False)
    worker.fetch(JUDGED + WARM_UP)
    assert worker.calls == ["keep"]


def test_a_worker_that_hoards_gives_its_memory_back():
    worker = Worker(MANY, FEW)
    worker.fetch(JUDGED)
    worker.private = 400 * MIB
    worker.fetch(WARM_UP)
    worker.private = 600 * MIB
    worker.fetch(LOOK_EVERY)
    assert worker.raised
    worker.private += 1
    worker.fetch(LOOK_EVERY)
    assert worker.calls == ["keep", "mark", "restore"]
    worker.fetch(10 * LOOK_EVERY)
    assert worker.calls.count("restore") == 1


def test_growing_in_the_first_batches_is_warming_up():
    worker = Worker(MANY, FEW)
    worker.fetch(JUDGED)
    worker.private *= 3
    worker.fetch(WARM_UP + 3 * LOOK_EVERY)
    assert worker.raised


def test_a_failure_is_no_failure_of_the_workers():
    worker = Worker(MANY, FEW)
    worker.keep = lambda: 1 // 0  # type: ignore[method-assign,assignment,return-value]
    worker.fetch(JUDGED)
    assert worker.calls == []


class Queue:
    def __init__(self) -> None:
        self.items: list[Any] = []
        self.closed = False

    def put(self, item: Any, block: bool = True) -> None:
        self.items.append((item, block))

    def close(self) -> None:
        self.closed = True


def test_the_queue_is_the_workers_own():
    worker, queue = Worker(MANY, FEW), Queue()
    counted = allocator.CountedQueue(queue, worker.keeper)
    counted.put((0, "batch"))
    counted.put((1, "batch"), block=False)
    counted.close()
    assert queue.items == [((0, "batch"), True), ((1, "batch"), False)] and queue.closed
    worker.costs[False] = MANY
    for _ in range(JUDGED):
        worker.used = Usage(worker.used.faults + 1000, worker.used.cpu + 1)
        counted.put(None)
    assert worker.calls[:2] == ["keep", "mark"]


LIBC = "7f00 r-xp /usr/lib/x86_64-linux-gnu/libc.so.6\n"


@pytest.mark.parametrize(
    ("environment", "mapped", "reason"),
    [
        ({}, LIBC, None),
        ({"LD_PRELOAD": "libfaketime.so", "GLIBC_TUNABLES": "glibc.pthread.rseq=0"}, LIBC, None),
        ({"MALLOC_ARENA_MAX": "2"}, LIBC, "MALLOC_ARENA_MAX is set"),
        ({"MALLOC_TRIM_THRESHOLD_": "1"}, LIBC, "MALLOC_TRIM_THRESHOLD_ is set"),
        ({"MALLOC_CONF": "x"}, LIBC, "MALLOC_CONF is set"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, LIBC, "GLIBC_TUNABLES sets malloc"),
        ({"LD_PRELOAD": "/opt/libjemalloc.so.2"}, LIBC, "jemalloc is loaded"),
        ({}, LIBC + "7e r-xp /usr/lib/libtcmalloc_minimal.so.4\n", "tcmalloc is loaded"),
        ({}, LIBC + "7e r-xp /usr/lib/libmimalloc.so.2\n", "mimalloc is loaded"),
        ({}, LIBC + "7e r-xp /env/lib/libtbbmalloc.so.2\n", None),
        ({}, LIBC + "7e r-xp /env/lib/libtbbmalloc_proxy.so.2\n", "tbbmalloc_proxy is loaded"),
    ],
)
def test_another_allocator_or_the_users_tuning_is_left_alone(environment, mapped, reason):
    assert allocator.reason_against(environment, lambda: mapped) == reason


class Library:
    """A made-up C library: what mallopt was asked for."""

    def __init__(self, refused: tuple[tuple[int, int], ...] = (), glibc: bool = True) -> None:
        self.refused = refused
        self.calls: list[tuple[int, int]] = []
        if glibc:
            self.gnu_get_libc_version = b"2.36"

    def mallopt(self, parameter: int, value: int) -> int:
        self.calls.append((parameter, value))
        return int((parameter, value) not in self.refused)

    def malloc_trim(self, pad: int) -> int:
        self.calls.append((0, pad))
        return 1


@pytest.fixture
def library(monkeypatch) -> Iterator[Any]:
    def use(made: Library) -> Library:
        monkeypatch.setattr(allocator, "_c_library", lambda: made)
        monkeypatch.setattr(allocator, "reason_against", lambda *_: None)
        return made

    return use


BIG, SMALL, TRIM, PAD = (-3, 1 << 30), (-3, 32 << 20), (-1, 2**31 - 1), (-2, 64 << 20)


def test_the_mmap_threshold_comes_first(library):
    made = library(Library())
    assert allocator.Glibc().keep()
    assert made.calls == [BIG, TRIM, PAD]


def test_an_older_glibc_takes_less(library):
    made = library(Library(refused=(BIG,)))
    assert allocator.Glibc().keep()
    assert made.calls == [BIG, SMALL, TRIM, PAD]


def test_never_the_trim_threshold_alone(library):
    made = library(Library(refused=(BIG, SMALL)))
    assert not allocator.Glibc().keep()
    assert made.calls == [BIG, SMALL]


def test_another_c_library_is_left_alone(library):
    made = library(Library(glibc=False))
    assert not allocator.Glibc().keep()
    assert made.calls == []


def test_restoring_ends_with_a_trim(library):
    made = library(Library())
    allocator.Glibc().restore()
    assert made.calls == [(-3, 32 << 20), (-1, 64 << 20), (-2, 128 << 10), (0, 0)]


CHILD = """
import sys
import numpy as np
from loongkit.data.allocator import Glibc, private_bytes_of_this_process, usage_of_this_process

def step():
    arrays = [np.ones(6_000_000, np.float32) for _ in range(4)]
    return sum(float(array[-1]) for array in arrays)

def faults():
    for _ in range(3):
        step()
    before = usage_of_this_process().faults
    for _ in range(5):
        step()
    return (usage_of_this_process().faults - before) / 5

found = [faults()]
glibc = Glibc()
assert glibc.keep() is (sys.argv[1] == "kept")
found.append(faults())
kept = private_bytes_of_this_process()
glibc.restore()
given_back = kept - private_bytes_of_this_process()
print(*found, given_back)
"""


def of_child(expected: str, **settings: str) -> list[float]:
    # numpy's huge pages make fewer faults of the same cost: without them they can be counted.
    env = children.clean_env(
        PYTHONPATH=str(children.SOURCE), NUMPY_MADVISE_HUGEPAGE="0", **settings
    )
    result = children.run("-c", CHILD, expected, env=env)
    assert result.status == 0, result
    return [float(word) for word in result.out.split()]


def is_glibc() -> bool:
    done = subprocess.run(["getconf", "GNU_LIBC_VERSION"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.skipif(not is_glibc(), reason="the C library is not glibc")
def test_on_the_real_thing_the_faults_end_and_memory_can_be_given_back():
    pytest.importorskip("numpy")
    before, after, given_back = of_child("kept")
    assert before > 10_000 and after < 100
    assert given_back > 50 * MIB


@pytest.mark.skipif(not is_glibc(), reason="the C library is not glibc")
def test_on_the_real_thing_the_users_tuning_stays():
    pytest.importorskip("numpy")
    before, after, _given_back = of_child("left", MALLOC_TOP_PAD_="4096")
    assert before > 10_000 and after > 10_000
