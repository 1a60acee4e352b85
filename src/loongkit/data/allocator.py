"""Lets a data worker keep the memory that it frees, instead of having the kernel zero it again.

By default glibc gives big freed blocks back to the kernel, which hands them out again page by page,
each page zeroed at a fault. A pipeline that makes the same arrays for sample after sample spends up
to half of its time there. Raising the thresholds with ``mallopt`` ends that.

Only in data workers, and only where it is seen to help: a worker's first batches are measured under
glibc's own thresholds, and where the raised ones don't pay they are taken back.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from loongkit.activation import logs

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from typing import Any

# Parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3

_MIB = 1 << 20
#: What glibc before 2.35 takes at most, and what its moving threshold goes up to by itself.
_MOST_BY_ITSELF = 32 * _MIB

#: Batches that a worker begins with and that tell nothing: imports, caches, first touches.
SETTLING = 2
#: Batches measured before and after the switch.
MEASURED = 6
#: Fewer page faults a batch (1 MiB of fresh pages) are not worth a change.
WORTHWHILE_FAULTS = 256
#: To be kept, the switch must save a tenth of the faults and cost no CPU time beyond noise.
MOST_FAULTS_LEFT, MOST_CPU_LEFT = 0.9, 1.25
#: The memory after so many batches is what a worker needs ...
WARM_UP = 200
#: ... and beyond so many times that, looked at every so many batches, it is hoarding.
MOST_GROWTH, LOOK_EVERY = 1.5, 50

#: Parts of the file names of allocators that take malloc over.
_OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc", "tbbmalloc_proxy", "snmalloc", "rpmalloc")


class Usage(NamedTuple):
    """What a worker has used so far, or between two moments: minor faults, CPU seconds."""

    faults: float
    cpu: float


class MemoryKeeper:
    """Raises the thresholds of the worker that it counts the batches of, and watches the result.

    ``allocator`` is called upon to ``keep`` (returns whether it does) and to ``restore``, ``usage``
    and ``private_bytes`` return what this process has used and occupies, ``mark`` notes the switch.
    """

    def __init__(
        self,
        allocator: Any,
        mark: Callable[[], None],
        usage: Callable[[], Usage] | None = None,
        private_bytes: Callable[[], int] | None = None,
    ) -> None:
        self._allocator = allocator
        self._mark = mark
        self._usage = usage or usage_of_this_process
        self._private_bytes = private_bytes or private_bytes_of_this_process
        self._course: Iterator[None] | None = self._make_course()
        next(self._course)

    def batch_done(self) -> None:
        """Count one more batch; never raises."""
        if self._course is None:
            return
        try:
            next(self._course)
        except StopIteration:
            self._course = None
        except Exception as error:
            self._course = None
            logs.debug(f"pytorch: a data worker's memory is left to glibc: {error!r}")

    def _make_course(self) -> Iterator[None]:
        """Go through a worker's life: each ``yield`` waits for the end of a batch."""
        for _ in range(SETTLING):
            yield
        before = yield from self._measure()
        if before.faults < WORTHWHILE_FAULTS or not self._allocator.keep():
            return
        self._mark()
        for _ in range(SETTLING):
            yield
        after = yield from self._measure()
        change = f"{before.faults:.0f} page faults a batch before, {after.faults:.0f} after"
        if not _pays(before, after):
            self._allocator.restore()
            logs.debug(f"pytorch: raised allocator thresholds did not pay: {change}")
            return
        logs.debug(f"pytorch: allocator thresholds raised in a data worker: {change}")
        yield from self._watch_memory()

    def _measure(self) -> Generator[None, None, Usage]:
        """Return the medians over some batches: the first touch of shared pages comes in bursts."""
        spent = []
        last = self._usage()
        for _ in range(MEASURED):
            yield
            now = self._usage()
            spent.append(Usage(now.faults - last.faults, now.cpu - last.cpu))
            last = now
        return Usage(median(one.faults for one in spent), median(one.cpu for one in spent))

    def _watch_memory(self) -> Iterator[None]:
        for _ in range(WARM_UP):
            yield
        needed = self._private_bytes()
        while (found := self._private_bytes()) <= MOST_GROWTH * needed:
            for _ in range(LOOK_EVERY):
                yield
        self._allocator.restore()
        logs.info(
            f"pytorch: a data worker has grown from {needed / _MIB:.0f} MB after {WARM_UP} batches "
            f"to {found / _MIB:.0f} MB: freed memory goes back to the system again"
        )


class CountedQueue:
    """Stands for a worker's queue of results: all is the queue's, and batches are counted."""

    def __init__(self, queue: Any, keeper: MemoryKeeper) -> None:
        self._queue = queue
        self._keeper = keeper

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def put(self, *args: Any, **kwargs: Any) -> None:
        """Put a batch."""
        self._queue.put(*args, **kwargs)
        self._keeper.batch_done()


class WorkerMemory:
    """Lets each data worker keep its memory; ``mark`` is called where the thresholds are raised."""

    def __init__(self, mark: Callable[[], None]) -> None:
        self._mark = mark

    def run(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Stand in for torch's ``_worker_loop``, whose fourth parameter is the queue of results."""
        if len(args) > 3 and multiprocessing.parent_process() is not None:
            queue = CountedQueue(args[3], MemoryKeeper(Glibc(), self._mark))
            args = (*args[:3], queue, *args[4:])
        original(*args, **kwargs)


def _pays(before: Usage, after: Usage) -> bool:
    return (
        after.faults <= MOST_FAULTS_LEFT * before.faults and after.cpu <= MOST_CPU_LEFT * before.cpu
    )


class Glibc:
    """The thresholds of glibc's malloc in this process."""

    def keep(self) -> bool:
        """Raise them, so that freed memory stays with the process; tell whether that was done."""
        reason = reason_against(os.environ, _mapped_files)
        if reason is None:
            reason = self._raise()
        if reason is not None:
            logs.debug(f"pytorch: allocator thresholds are left alone: {reason}")
        return reason is None

    def restore(self) -> None:
        """Give free memory back to the system, and go on doing so.

        mallopt can't switch glibc's moving threshold on again; these are the values at which that
        comes to rest.
        """
        libc = _c_library()
        libc.mallopt(_MMAP_THRESHOLD, _MOST_BY_ITSELF)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _MOST_BY_ITSELF)
        libc.mallopt(_TOP_PAD, 128 * 1024)
        libc.malloc_trim(0)

    def _raise(self) -> str | None:
        """Raise the thresholds; return why not, or None."""
        libc = _c_library()
        if not hasattr(libc, "gnu_get_libc_version"):
            return "the C library is not glibc"
        # The order counts: the trim threshold alone would stop the moving mmap threshold at
        # 128 KiB, which is slower than no change at all.
        if not any(libc.mallopt(_MMAP_THRESHOLD, size) for size in (1024 * _MIB, _MOST_BY_ITSELF)):
            return "mallopt refused the mmap threshold"
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_TOP_PAD, 64 * _MIB)
        return None


def reason_against(environment: Mapping[str, str], mapped_files: Callable[[], str]) -> str | None:
    """Return why this process's malloc is not ours to tune, or None.

    Either the user has tuned it, or it is not glibc's: ``mapped_files`` returns the text of
    /proc/self/maps.
    """
    for name in environment:
        if name.startswith("MALLOC_"):
            return f"{name} is set"
    if "glibc.malloc" in environment.get("GLIBC_TUNABLES", ""):
        return "GLIBC_TUNABLES sets malloc"
    mapped = environment.get("LD_PRELOAD", "") + mapped_files()
    return next((f"{name} is loaded" for name in _OTHER_ALLOCATORS if name in mapped), None)


def _mapped_files() -> str:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        return file.read()


def _c_library() -> Any:
    import ctypes

    return ctypes.CDLL(None)


def usage_of_this_process() -> Usage:
    """Return the minor faults and the CPU seconds of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(used.ru_minflt, used.ru_utime + used.ru_stime)


def private_bytes_of_this_process() -> int:
    """Return the resident bytes that are not of files or shared memory (statm of proc(5))."""
    with open("/proc/self/statm", encoding="ascii") as file:
        _size, resident, shared = map(int, file.read().split()[:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
