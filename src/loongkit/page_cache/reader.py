"""Keeps the page cache of the files that one process reads in the bounds of the shared ledger.

The process notes the files it opens; a thread of ours records them, looks for large files that C
libraries hold open, and releases the oldest files once there are too many.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import stat
import time
from collections import deque
from typing import TYPE_CHECKING

from loongkit.page_cache import pages, syscalls
from loongkit.page_cache.keeper import Keeper
from loongkit.page_cache.ledger import Cached, key_of
from loongkit.page_cache.release import SMALL, Releaser

if TYPE_CHECKING:
    from collections.abc import Callable

    from loongkit.page_cache.ledger import Ledger

#: A pass after each 1/16 of the limit at this speed of the disk, in bytes a second.
_DISK_SPEED = 2 << 30
_SHORTEST, _LONGEST = 0.002, 0.1
#: Open descriptors are looked through after each half of the limit, and this often in seconds.
_SCAN_SHARE, _SCAN_EVERY = 2, 1.0
#: What large files grow by is recorded in steps of 1/64 of the limit.
_GROWTH_SHARE = 64
#: So many unused numbers in a row mean that there are no more open descriptors.
_GAP = 64
_MOST_PENDING = 1 << 16
_BLOCK = 512  # bytes, the unit of getrusage
#: The code of the program itself; it stays.
_CODE = (b".py", b".pyc", b".so")


class _Large:
    """A large file that is read here, or was a moment ago."""

    __slots__ = ("absences", "path", "size", "written")

    def __init__(self, path: bytes, size: int, written: bool) -> None:
        self.path = path
        self.size = size
        self.written = written
        self.absences = 0  # looks at the open files, one after another, that did not find it


class Reader:
    """The files that this process reads. ``released`` is called when pages were given back."""

    def __init__(self, ledger: Ledger, sync: bool, released: Callable[[], None]) -> None:
        self.ledger = ledger
        self._sync = sync
        self._file_systems = pages.FileSystems()
        self._releaser = Releaser(self._file_systems, sync)
        self._keeper = Keeper(ledger, self._releaser, released)
        self._pending: deque[tuple[str | bytes, bool]] = deque(maxlen=_MOST_PENDING)
        self._growing: dict[int, _Large] = {}
        self._disk_bytes = self._count_disk_bytes()
        self._growth = 0
        self._since_scan = 0
        self._scan_at = 0.0
        self._unmapped = ledger.unmapping

    @property
    def interval(self) -> float:
        """Seconds between two passes: a pass is to come before the limit is far exceeded."""
        return min(max(self.ledger.limit / 16 / _DISK_SPEED, _SHORTEST), _LONGEST)

    def note(self, path: str | bytes, written: bool = False) -> None:
        """Note that a file is being opened. Any thread; costs next to nothing."""
        if self._sync or not written:  # else dirty pages are none of our business
            self._pending.append((path, written))

    def step(self) -> None:
        """Record what was noted and read since the last pass, and release what is too much.

        Raises:
            OSError: the ledger can't be locked, or there is no /proc.

        """
        if self.ledger.unmapping != self._unmapped:
            self._unmapped = self.ledger.unmapping
            for large in self._growing.values():
                self._releaser.unmap(large.path)
        growth = self._disk_growth()
        small, found = self._noted()
        self._since_scan += growth
        self._growth += growth
        now = time.monotonic()
        gone: list[int] = []
        if found or self._since_scan > self.ledger.limit // _SCAN_SHARE or now > self._scan_at:
            self._since_scan, self._scan_at = 0, now + _SCAN_EVERY
            gone = self._scan(found)
        if small or found or gone or self._growth > self.ledger.limit // _GROWTH_SHARE:
            self._record(small + found, gone)
            self._keeper.keep()

    def _record(self, files: list[Cached], gone: list[int]) -> None:
        growth, self._growth = self._growth - sum(file.size for file in files), 0
        measured = {key: self._releaser.measured(self._growing[key].path) for key in gone}
        crowded: list[Cached] = []
        with self.ledger.locked():
            for file in files:
                crowded += self.ledger.add(file)
            for key, large in reversed(self._growing.items()):
                if growth <= 0:
                    break
                if not self.ledger.holds(key):  # it was released as a whole since
                    crowded += self.ledger.add(Cached(key, large.path, 0, written=large.written))
                growth = self.ledger.grow(key, growth, large.size)
            for key, size in measured.items():
                if size >= 0:
                    self.ledger.correct(key, size)
        for key in gone:
            del self._growing[key]
        self._keeper.release_all(crowded)

    def _noted(self) -> tuple[list[Cached], list[Cached]]:
        """Return the small and the large files among those noted, each once."""
        small: dict[int, Cached] = {}
        large: list[Cached] = []
        while self._pending:
            noted, written = self._pending.popleft()
            path = os.fsencode(noted)
            if path.endswith(_CODE):
                continue
            try:
                found = syscalls.status(path)
            except (OSError, ValueError):
                continue
            if not stat.S_ISREG(found.mode) or not found.size or not self._counts(path, found):
                continue
            key = key_of(found)
            if found.size <= SMALL:
                size = -(-found.size // syscalls.PAGE) * syscalls.PAGE
                small[key] = Cached(key, path, size, written=written)
            elif key not in self._growing:
                large.append(self._begin(key, path, found.size, written))
        return list(small.values()), large

    def _begin(self, key: int, path: bytes, size: int, written: bool) -> Cached:
        """Begin to follow a large file, of which a part may be in the cache already."""
        self._growing[key] = _Large(path, size, written)
        return Cached(key, path, max(self._releaser.measured(path), 0), written=written)

    def _counts(self, path: bytes, found: syscalls.Status) -> bool:
        if self._file_systems.knows(found.device):
            return self._file_systems.counts(found.device, -1)
        try:
            descriptor = syscalls.open_file(path)
        except OSError:
            return False
        try:
            return self._file_systems.counts(found.device, descriptor)
        finally:
            syscalls.close(descriptor)

    def _scan(self, found: list[Cached]) -> list[int]:
        """Look for large files among the open descriptors; return those no longer open.

        HDF5, LMDB and other C libraries open their files past Python.
        """
        for large in self._growing.values():
            large.absences += 1
        descriptor, unused = 0, 0
        while unused < _GAP:  # the kernel gives the lowest number that is free
            if syscalls.is_open(descriptor):
                unused = 0
                with contextlib.suppress(OSError):  # closed in the meantime
                    self._look_at(descriptor, found)
            else:
                unused += 1
            descriptor += 1
        return [key for key, large in self._growing.items() if large.absences > 1]

    def _look_at(self, descriptor: int, found: list[Cached]) -> None:
        about = syscalls.status_of(descriptor)
        if not stat.S_ISREG(about.mode) or about.size <= SMALL:
            return
        key = key_of(about)
        known = self._growing.get(key)
        if known is not None:
            known.absences, known.size = 0, about.size
            return
        written = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        if (written and not self._sync) or not self._file_systems.counts(about.device, descriptor):
            return
        path = os.readlink(f"/proc/self/fd/{descriptor}".encode())
        if path.startswith(b"/") and not path.endswith(b" (deleted)"):
            found.append(self._begin(key, path, about.size, written))

    def _disk_growth(self) -> int:
        before, self._disk_bytes = self._disk_bytes, self._count_disk_bytes()
        return self._disk_bytes - before

    def _count_disk_bytes(self) -> int:
        """Return the bytes this process had read from disks so far, and written where they count.

        The kernel counts what it fetches into the page cache, read ahead and by page faults too.
        """
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return (usage.ru_inblock + (usage.ru_oublock if self._sync else 0)) * _BLOCK
