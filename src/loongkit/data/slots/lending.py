"""Batches that a forked child of the training process has as well.

A child sees the same shared memory under the same addresses, and may go on reading a batch after
its parent has dropped it. So what is held at the time of a fork is lent to the child, until it and
all that it forks have ended: they keep the writing end of a pipe open, and the parent finds the
reading end at its end.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loongkit.data.slots.arrivals import Hold, Mapping


class Loan:
    """What one child has, and the reading end of the pipe that tells of its end."""

    def __init__(self, reader: int, holds: list[Hold]) -> None:
        self.reader = reader
        self.holds = holds


_watched: tuple[dict[str, Mapping], ...] = ()
_loans: list[Loan] = []
#: The pipe of the fork that is under way, if anything is lent.
_pipe: tuple[int, int] | None = None
_lent: list[Hold] = []


def watch_forks(*mappings: dict[str, Mapping]) -> None:
    """Lend what these mappings hold whenever this process forks. Once a process."""
    global _watched
    if not _watched:
        _watched = mappings
        os.register_at_fork(
            before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
        )


def collect() -> None:
    """Take back what was lent to children that have ended."""
    if not _loans:
        return
    poll = select.poll()
    for loan in _loans:
        poll.register(loan.reader, 0)  # the end of the pipe is told unasked
    ended = {descriptor for descriptor, _event in poll.poll(0)}
    for loan in [loan for loan in _loans if loan.reader in ended]:
        _loans.remove(loan)
        os.close(loan.reader)
        for hold in loan.holds:
            hold.release()


def _before() -> None:
    global _pipe
    for mappings in _watched:
        for mapping in list(mappings.values()):
            _lent.extend(mapping.lend())
    if _lent:
        try:
            _pipe = os.pipe2(os.O_CLOEXEC)
        except OSError:
            _pipe = None  # lent for good then


def _after_in_parent() -> None:
    global _pipe
    if _pipe is not None:
        reader, writer = _pipe
        os.close(writer)
        _loans.append(Loan(reader, list(_lent)))
    _pipe = None
    _lent.clear()


def _after_in_child() -> None:
    """Keep the writing end open, and let go of whatever is the parent's alone."""
    global _pipe
    if _pipe is not None:
        os.close(_pipe[0])
    for loan in _loans:
        os.close(loan.reader)
    _pipe = None
    _loans.clear()
    _lent.clear()
    for mappings in _watched:
        mappings.clear()
