"""The native threads of this process: which have worked, and which library they belong to.

Nothing says that outright. A thread that waits for work stands in a function of its pool, and the
return address of that lies on its stack, next to where the kernel says that the stack ends.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: CPU time in seconds from which on a thread has worked. One of OpenBLAS's that waits for work
#: spins for 2**26 cycles before it sleeps.
_WORKED = 0.1
_STACK = 8192
#: Addresses above may hold a signature on aarch64.
_ADDRESS = (1 << 48) - 1
#: A thread that runs, or spins, says nothing about itself: the pause before it is asked again.
_PAUSE = 0.01


def cpu_times() -> dict[int, float]:
    """Return the seconds of CPU time of each thread that is not one of Python's."""
    python = {thread.native_id for thread in threading.enumerate()} | {os.getpid()}
    second = os.sysconf("SC_CLK_TCK")
    found = {}
    for thread in os.listdir("/proc/self/task"):
        # The name, in brackets, may hold blanks: count from its end (proc_pid_stat).
        fields = _read(thread, "stat").rpartition(b")")[2].split()
        if fields and int(thread) not in python:
            found[int(thread)] = (int(fields[11]) + int(fields[12])) / second
    return found


def at_work(before: dict[int, float]) -> list[int]:
    """Return the threads that have worked since their CPU times were ``before``."""
    times = cpu_times().items()
    return [thread for thread, spent in times if spent - before.get(thread, 0.0) >= _WORKED]


def owners(threads: list[int], beginnings: tuple[str, ...], patience: float) -> list[str]:
    """Return the paths of the libraries that threads wait in, one for each that could be told.

    ``beginnings`` are those of the names of the libraries, or of their folders, that count;
    ``patience`` is for how many seconds threads that run are asked again.
    """
    code = [found for found in _code() if _counts(found[2], beginnings)]
    found: dict[int, str] = {}
    end = time.monotonic() + patience
    while True:
        for thread in set(threads) - found.keys():
            owner = _owner(thread, code)
            if owner:
                found[thread] = owner
        if len(found) == len(threads) or time.monotonic() >= end:
            return sorted(found.values())
        time.sleep(_PAUSE)


def _owner(thread: int, code: list[tuple[int, int, str]]) -> str:
    words = _read(thread, "syscall").split()
    if len(words) < 3:
        return ""  # it runs, or has ended
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            stack = os.pread(memory.fileno(), _STACK, int(words[-2], 16))
    except (OSError, OverflowError):
        return ""
    whole = len(stack) - len(stack) % 8
    for (word,) in struct.iter_unpack("=Q", stack[:whole]):
        for first, last, path in code:
            if first <= word & _ADDRESS < last:
                return path
    return ""


def _code() -> Iterator[tuple[int, int, str]]:
    """Give the addresses of the libraries' code: first, behind the last, path."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and "x" in fields[1]:
                first, _, last = fields[0].partition("-")
                yield int(first, 16), int(last, 16), fields[5].strip()


def _counts(path: str, beginnings: tuple[str, ...]) -> bool:
    return any(part.startswith(beginnings) for part in path.split("/")[-4:])


def _read(thread: int | str, name: str) -> bytes:
    try:
        with open(f"/proc/self/task/{thread}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""  # it has ended
