"""Pages of files in memory: on which file systems they count, how many there are, who maps them."""

from __future__ import annotations

import ctypes
import errno
import os

from loongkit.page_cache import syscalls
from loongkit.page_cache.syscalls import PAGE, Status

#: Kernel's numbers (statfs) of file systems that keep what is read in the page cache, from a disk
#: of this machine. Network file systems keep coherence by rules of their own; those in memory have
#: nothing else but the page cache.
_OVERLAY = 0x794C7630
_LOCAL = {
    0xEF53,  # ext2, ext3, ext4
    0x58465342,  # xfs
    0x9123683E,  # btrfs
    0xF2F52010,  # f2fs
    _OVERLAY,
    0xCA451A4E,  # bcachefs
    0xE0F5E1E2,  # erofs
    0x73717368,  # squashfs
    0x3153464A,  # jfs
    0x52654973,  # reiserfs
    0x7366746E,  # ntfs3
    0x2011BAB0,  # exfat
    0x4D44,  # vfat
    0x9660,  # iso9660
}


class FileSystems:
    """Which file systems count, by device number, each asked once."""

    def __init__(self) -> None:
        self._kinds: dict[int, int] = {}

    def knows(self, device: int) -> bool:
        """Tell whether a file on it was asked about before: any descriptor will do then."""
        return device in self._kinds

    def kind(self, device: int, descriptor: int) -> int:
        """Return the kernel's number of the file system that an open file lies on; 0: unknown."""
        found = self._kinds.get(device)
        if found is None:
            found = self._kinds[device] = syscalls.file_system(descriptor)
        return found

    def counts(self, device: int, descriptor: int) -> bool:
        """Tell whether files on it are to be bounded."""
        return self.kind(device, descriptor) in _LOCAL


class Measure:
    """Tells how much of an open file is in the page cache, where the kernel lets us know."""

    def __init__(self, file_systems: FileSystems) -> None:
        self._file_systems = file_systems
        self._has_cachestat = True

    def resident(self, descriptor: int, found: Status, offset: int, length: int) -> int:
        """Return the bytes in memory of a range of an open file; -1: not to be told.

        The kernel tells only who may write the file or owns it (against spying on other users).
        """
        length = min(length, found.size - offset)
        if length <= 0:
            return 0
        # An overlay's files have their pages with the file below, where mincore finds them.
        if self._file_systems.kind(found.device, descriptor) != _OVERLAY:
            statistics = self._statistics(descriptor, offset, length)
            if statistics is not None:
                return int(statistics.cached) * PAGE
        if not _may_ask(descriptor, found):
            return -1
        try:
            return syscalls.mapped_residency(descriptor, offset, length)
        except OSError:
            return -1

    def has_dirty_pages(self, descriptor: int, found: Status) -> bool:
        """Tell whether the file is known to hold what is not yet written back."""
        statistics = self._statistics(descriptor, 0, found.size)
        return statistics is not None and bool(statistics.dirty)

    def _statistics(
        self, descriptor: int, offset: int, length: int
    ) -> syscalls.CacheStatistics | None:
        if self._has_cachestat:
            try:
                return syscalls.cache_statistics(descriptor, offset, length)
            except OSError as error:
                # A container's filter answers EPERM to what it does not know, as new kernels do
                # for the files of others: ask again with the next file.
                self._has_cachestat = error.errno == errno.EPERM
        return None


def _may_ask(descriptor: int, found: Status) -> bool:
    if found.owner == os.geteuid():
        return True
    return os.access(f"/proc/self/fd/{descriptor}", os.W_OK)


def unmap_pages(path: bytes, found: Status) -> bool:
    """Take a file's pages out of this process's page tables; they are found again when touched.

    Only mappings that are shared and read-only, and only of files of which this process has no
    other kind of mapping. A private one may hold data that exist nowhere else, also when it can't
    be written any more: such are the parts of a shared library that the loader has relocated.
    Returns whether there was any.

    Raises:
        OSError: there is no /proc.

    """
    device = f"{os.major(found.device):02x}:{os.minor(found.device):02x}".encode()
    inode = str(found.inode).encode()
    ranges = []
    for line in syscalls.contents(b"/proc/self/maps").splitlines():
        span, access, _offset, on, number, *rest = line.split(None, 5)
        # On btrfs and overlay the numbers here are not those of stat.
        if (on, number) != (device, inode) and rest != [path]:
            continue
        if access != b"r--s":
            return False
        start, _, end = span.partition(b"-")
        ranges.append((int(start, 16), int(end, 16)))
    for first, last in ranges:
        syscalls.forget_pages(first, last)
    return bool(ranges)


def sync_file_system(descriptor: int) -> None:
    """Write back what is dirty on the file system of an open file.

    Raises:
        OSError: writing has failed.

    """
    libc = ctypes.CDLL(None, use_errno=True)  # lets go of Python's lock: this may take long
    if libc.syncfs(ctypes.c_int(descriptor)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
