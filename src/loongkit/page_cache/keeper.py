"""Keeps what the ledger records within its limit: the oldest files are released first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from loongkit.page_cache.ledger import Cached, Ledger
    from loongkit.page_cache.release import Releaser

#: Shares of the limit: releasing begins at the one and ends at the other.
HIGH, LOW = 0.9, 0.8
#: Where releasing gives nothing back (others have the pages mapped, or all are dirty), the next
#: attempt waits this many seconds.
PAUSE = 0.1
#: So many files are taken out of the ledger at once.
_BATCH = 128


class Keeper:
    """Releases files; ``released`` is called when pages were given back."""

    def __init__(self, ledger: Ledger, releaser: Releaser, released: Callable[[], None]) -> None:
        self._ledger = ledger
        self._releaser = releaser
        self._released = released
        self._pause_until = 0.0

    def keep(self) -> None:
        """Release the oldest files where there are too many.

        The ledger is locked only while files are taken out or put back, not while they are
        released, so that nobody waits for a disk.

        Raises:
            OSError: the ledger can't be locked.

        """
        limit = self._ledger.limit
        if self._ledger.cached <= limit * HIGH or time.monotonic() < self._pause_until:
            return
        low = int(limit * LOW)
        attempts, freed = self._ledger.count, 0
        while attempts > 0 and self._ledger.cached > low:
            with self._ledger.locked():
                files = self._take(self._ledger.cached - low)
            if not files:
                return
            attempts -= len(files)
            freed += self._release_some(files, low)
        if not freed:
            self._pause_until = time.monotonic() + PAUSE

    def release_all(self, files: list[Cached]) -> None:
        """Release files for which the ledger has no room."""
        for file in files:
            if self._releaser.release(file, file.size).freed:
                self._released()

    def _take(self, wanted: int) -> list[Cached]:
        files: list[Cached] = []
        while wanted > 0 and len(files) < _BATCH:
            file = self._ledger.oldest()
            if file is None:
                break
            files.append(file)
            wanted -= file.size
        return files

    def _release_some(self, files: list[Cached], low: int) -> int:
        """Release files taken out of the ledger, and put back what they still have."""
        kept: list[Cached] = []
        freed, mapped = 0, False
        # What the ledger has left is below the mark, unless others have added to it meanwhile.
        wanted = self._ledger.cached + sum(file.size for file in files) - low
        for file in files:
            outcome = self._releaser.release(file, max(wanted, 0))
            freed += outcome.freed
            wanted -= outcome.freed
            mapped |= outcome.mapped
            if outcome.left:
                kept.append(file._replace(size=outcome.left, hand=outcome.hand))
        if freed:
            self._released()
        if kept:
            with self._ledger.locked():
                for file in kept:
                    self._ledger.add(file)
                if mapped:
                    self._ledger.ask_for_unmapping()
        if mapped:
            self._pause_until = time.monotonic() + PAUSE
        return freed
