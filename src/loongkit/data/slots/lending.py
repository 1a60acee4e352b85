"""Batches that a forked child of the training process has as well.

A child sees the same shared memory under the same addresses, and may go on reading a batch after
its parent has dropped it. So what is held at the time of a fork is lent to the child, until it and
all that it forks have ended: they keep the writing end of a pipe open, and the parent finds the
reading end at its end. A daemon closes that, and lives on: so each of them also writes its number
into a register, and is looked up there once the pipe is at its end.

Threads may fork and collect at the same time: one lock is held from before a fork until after it.
"""

from __future__ import annotations

import mmap
import os
import select
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loongkit.data.slots.mappings import Hold, Mapping

#: How long, in seconds, one who has closed the pipe and is still alive is not looked up again.
_PATIENCE = 1.0


class Register:
    """The numbers of a forked child and of all that it forks, in memory that they share.

    They write without a lock, each into the first place from its own on that is free or another's
    who has ended.
    """

    _PLACES = 1023
    #: The last number says that there was no place for one.
    _OVERFLOW = 1023

    def __init__(self) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 4096)).cast("I")

    def enter(self) -> None:
        """Note this process."""
        process = os.getpid()
        for step in range(self._PLACES):
            place = (process + step) % self._PLACES
            found = self._numbers[place]
            if not found or not os.path.exists(f"/proc/{found}"):
                self._numbers[place] = process
                return
        self._numbers[self._OVERFLOW] = 1

    def any_maps(self, inodes: set[str]) -> bool:
        """Tell whether one of them, as far as is known, still maps one of these files."""
        if self._numbers[self._OVERFLOW]:
            return True
        return any(number and _maps(number, inodes) for number in self._numbers[: self._PLACES])


class Loan:
    """What one child has, and what tells of its end: the reading end of a pipe, and a register."""

    def __init__(self, holds: list[Hold]) -> None:
        self.holds = holds
        self.register = Register()
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        self._ask_at = 0.0

    def has_ended(self) -> bool:
        """Tell whether nobody has the batches any more, of a loan whose pipe is at its end."""
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1
        now = time.monotonic()
        if now < self._ask_at:
            return False
        self._ask_at = now + _PATIENCE
        return not self.register.any_maps({str(hold.mapping.inode) for hold in self.holds})

    def end(self) -> None:
        """Take back what was lent."""
        for hold in self.holds:
            hold.release()


class _Thread(threading.local):
    """What the fork lends that is under way in this thread; one may begin within another."""

    def __init__(self) -> None:
        self.forks: list[Loan | None] = []


_watched: tuple[dict[str, Mapping], ...] = ()
_loans: list[Loan] = []
_lock = threading.RLock()
_thread = _Thread()
#: Where the lenders of this process, from its parent up, look for it and for what it forks.
_registers: list[Register] = []


def watch_forks(*mappings: dict[str, Mapping]) -> None:
    """Lend what these mappings hold whenever this process forks. Once a process."""
    global _watched
    with _lock:
        if _watched:
            return
        _watched = mappings
        os.register_at_fork(
            before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
        )


def collect() -> None:
    """Take back what was lent to children that have ended."""
    if not _loans:
        return
    # Another time, where a thread forks: it may be waiting for something that this one has.
    if not _lock.acquire(blocking=False):
        return
    try:
        at_end = _at_end()
        ended = [loan for loan in _loans if loan.reader in at_end and loan.has_ended()]
        for loan in ended:
            _loans.remove(loan)
    finally:
        _lock.release()
    for loan in ended:
        loan.end()


def _at_end() -> set[int]:
    """Return the descriptors of loans whose pipes are at their end; -1 stands for those closed."""
    poll = select.poll()
    for loan in _loans:
        if loan.reader >= 0:
            poll.register(loan.reader, 0)  # the end of the pipe is told unasked
    return {descriptor for descriptor, _event in poll.poll(0)} | {-1}


def _maps(process: int, inodes: set[str]) -> bool:
    """Tell whether a process maps one of these files; True where that is not to be seen."""
    try:
        with open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as file:
            return any(line.split(None, 5)[4] in inodes for line in file)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True


def _before() -> None:
    _lock.acquire()
    _thread.forks.append(None)
    held = [
        hold
        for mappings in _watched
        for mapping in list(mappings.values())
        for hold in mapping.lend()
    ]
    if held:
        try:
            _thread.forks[-1] = Loan(held)
        except (OSError, ValueError):
            pass  # lent for good then


def _after_in_parent() -> None:
    if not _thread.forks:  # it was under way when forks began to be watched
        return
    loan = _thread.forks.pop()
    if loan is not None:
        os.close(loan.writer)
        _loans.append(loan)
    _lock.release()


def _after_in_child() -> None:
    """Keep the writing end open, and let go of whatever is the parent's alone."""
    global _lock
    _lock = threading.RLock()
    for loan in filter(None, _thread.forks):
        os.close(loan.reader)
        _registers.append(loan.register)
    _thread.forks.clear()
    for register in _registers:
        register.enter()
    for parents in _loans:
        if parents.reader >= 0:
            os.close(parents.reader)
    _loans.clear()
    for mappings in _watched:
        mappings.clear()
