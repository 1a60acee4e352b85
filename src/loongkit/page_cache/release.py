"""Gives back the pages of files that the ledger names."""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, NamedTuple

from loongkit.activation import logs
from loongkit.page_cache import pages, syscalls

if TYPE_CHECKING:
    from loongkit.page_cache.ledger import Cached

#: Up to here a file is taken to be read as a whole, and released as a whole.
SMALL = 8 << 20
#: A large file is released in pieces of at least this size, in at most so many.
_PIECE, _MOST_PIECES = 4 << 20, 1024
#: A file that was changed this many seconds ago may hold pages the kernel has not written back.
_WRITTEN_BACK_AFTER = 60


class Outcome(NamedTuple):
    """What became of a file: bytes given back, those still there, where to go on, and why not."""

    freed: int
    left: int = 0
    hand: int = 0
    #: Pages stayed because some process has them in its page tables.
    mapped: bool = False


class Releaser:
    """Releases files; ``sync`` has what is dirty written back before, else it is left alone."""

    def __init__(self, file_systems: pages.FileSystems, sync: bool) -> None:
        self._measure = pages.Measure(file_systems)
        self._sync = sync
        self._sync_failed = False

    def release(self, file: Cached, wanted: int) -> Outcome:
        """Give back ``wanted`` bytes of a file, or all it has if that is less.

        A file that is gone, or no longer open to us, is forgotten.
        """
        try:
            descriptor = syscalls.open_file(file.path)
        except OSError:
            return Outcome(0)
        try:
            found = syscalls.status_of(descriptor)
            if not stat.S_ISREG(found.mode):
                return Outcome(0)
            if not self._made_clean(descriptor, found, file):
                return Outcome(0, file.size, file.hand)
            if found.size <= SMALL:
                syscalls.drop(descriptor)
                return Outcome(file.size)
            return self._release_part(descriptor, found, file, wanted)
        except OSError:
            return Outcome(0)
        finally:
            syscalls.close(descriptor)

    def measured(self, path: bytes) -> int:
        """Return the bytes of a file that are in the cache; -1: not to be told."""
        try:
            descriptor = syscalls.open_file(path)
        except OSError:
            return -1
        try:
            found = syscalls.status_of(descriptor)
            return self._measure.resident(descriptor, found, 0, found.size)
        except OSError:
            return -1
        finally:
            syscalls.close(descriptor)

    def unmap(self, path: bytes) -> None:
        """Take a file's pages out of this process's page tables, and give back what then can be."""
        try:
            descriptor = syscalls.open_file(path)
        except OSError:
            return
        try:
            if pages.unmap_pages(path, syscalls.status_of(descriptor)):
                syscalls.drop(descriptor)
        except OSError:
            pass
        finally:
            syscalls.close(descriptor)

    def _made_clean(self, descriptor: int, found: syscalls.Status, file: Cached) -> bool:
        """Write back what is to be written back; tell whether the file may then be released.

        The advice itself would start to write dirty pages, which is not asked for without SYNC.
        """
        if self._sync:
            if file.written:
                try:
                    os.fdatasync(descriptor)
                except OSError as error:
                    self._complain(error)
            return True
        if time.time() - found.changed > _WRITTEN_BACK_AFTER:
            return True
        return not self._measure.has_dirty_pages(descriptor, found)

    def _complain(self, error: OSError) -> None:
        if not self._sync_failed:
            self._sync_failed = True
            logs.warning(
                "page_cache_limit: a file could not be written back before its release "
                f"({error.strerror}); what is dirty stays with the kernel (said once)"
            )

    def _release_part(
        self, descriptor: int, found: syscalls.Status, file: Cached, wanted: int
    ) -> Outcome:
        """Go round a large file from its hand on, until enough is given back."""
        piece = max(_PIECE, -(-found.size // _MOST_PIECES) // _PIECE * _PIECE)
        pieces = -(-found.size // piece)
        start, freed = min(file.hand // piece, pieces - 1), 0
        for number in range(pieces):
            offset = (start + number) % pieces * piece
            before = self._measure.resident(descriptor, found, offset, piece)
            if before < 0:
                return self._release_unmeasured(descriptor, found, file)
            if not before:
                continue
            syscalls.drop(descriptor, offset, piece)
            after = self._measure.resident(descriptor, found, offset, piece)
            if after > before // 2:
                return self._release_mapped(descriptor, found, file)
            freed += before - after
            if freed >= wanted:
                left = max(file.size - freed, 0)
                return Outcome(freed, left, (offset + piece) % (pieces * piece))
        return Outcome(freed)

    def _release_mapped(self, descriptor: int, found: syscalls.Status, file: Cached) -> Outcome:
        before = self._measure.resident(descriptor, found, 0, found.size)
        pages.unmap_pages(file.path, found)
        syscalls.drop(descriptor)
        after = self._measure.resident(descriptor, found, 0, found.size)
        return Outcome(max(before - after, 0), max(after, 0), mapped=after > before // 4 * 3)

    def _release_unmeasured(self, descriptor: int, found: syscalls.Status, file: Cached) -> Outcome:
        pages.unmap_pages(file.path, found)
        syscalls.drop(descriptor)
        return Outcome(file.size)
