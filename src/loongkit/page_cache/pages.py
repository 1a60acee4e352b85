"""Pages of files in memory: which there are, and giving them back (system calls by ctypes)."""

from __future__ import annotations

import ctypes
import mmap
import os

#: Bytes of a page.
PAGE = mmap.PAGESIZE

#: The same on every architecture (Linux 6.5).
_CACHESTAT = 451
_DONTNEED = 4
_MAP_FAILED = ctypes.c_void_p(-1).value

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

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.fstatfs.argtypes = (ctypes.c_int, ctypes.c_char_p)
_libc.syncfs.argtypes = (ctypes.c_int,)
_libc.syscall.restype = ctypes.c_long


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Statistics(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    ]


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
            buffer = ctypes.create_string_buffer(256)
            failed = _libc.fstatfs(descriptor, buffer)
            found = 0 if failed else ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF
            self._kinds[device] = found
        return found

    def counts(self, device: int, descriptor: int) -> bool:
        """Tell whether files on it are to be bounded."""
        return self.kind(device, descriptor) in _LOCAL


class Measure:
    """Tells how much of an open file is in the page cache, where the kernel lets us know."""

    def __init__(self, file_systems: FileSystems) -> None:
        self._file_systems = file_systems
        self._has_cachestat = True

    def resident(self, descriptor: int, found: os.stat_result, offset: int, length: int) -> int:
        """Return the bytes in memory of a range of an open file; -1: not to be told.

        The kernel tells only who may write the file or owns it (against spying on other users).
        """
        length = min(length, found.st_size - offset)
        if length <= 0:
            return 0
        # An overlay's files have their pages with the file below, where mincore finds them.
        if self._file_systems.kind(found.st_dev, descriptor) != _OVERLAY:
            statistics = self._cachestat(descriptor, offset, length)
            if statistics is not None:
                return min(int(statistics.cached) * PAGE, _whole_pages(length))
        if not _may_ask(descriptor, found):
            return -1
        return _mincore(descriptor, offset, length)

    def has_dirty_pages(self, descriptor: int, found: os.stat_result) -> bool:
        """Tell whether the file is known to hold what is not yet written back."""
        statistics = self._cachestat(descriptor, 0, found.st_size)
        return statistics is not None and bool(statistics.dirty)

    def _cachestat(self, descriptor: int, offset: int, length: int) -> _Statistics | None:
        if not self._has_cachestat:
            return None
        statistics = _Statistics()
        wanted = _Range(offset, length)
        failed = _libc.syscall(
            ctypes.c_long(_CACHESTAT),
            ctypes.c_uint(descriptor),
            ctypes.byref(wanted),
            ctypes.byref(statistics),
            ctypes.c_uint(0),
        )
        if failed:
            # A container's filter answers EPERM for what it does not know, as newer kernels do
            # for files of others: try again with the next file.
            self._has_cachestat = ctypes.get_errno() in (1, 9, 13)
            return None
        return statistics


def _may_ask(descriptor: int, found: os.stat_result) -> bool:
    if found.st_uid == os.geteuid():
        return True
    return os.access(f"/proc/self/fd/{descriptor}", os.W_OK)


def _mincore(descriptor: int, offset: int, length: int) -> int:
    address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, offset)
    if address == _MAP_FAILED:
        return -1
    try:
        states = ctypes.create_string_buffer(_whole_pages(length) // PAGE)
        if _libc.mincore(address, length, states):
            return -1
        return states.raw.count(1) * PAGE
    finally:
        _libc.munmap(address, length)


def _whole_pages(length: int) -> int:
    return -(-length // PAGE) * PAGE


def drop(descriptor: int, offset: int = 0, length: int = 0) -> None:
    """Give clean pages of an open file back; length 0: up to its end.

    Pages that a process has mapped and touched stay.

    Raises:
        OSError: the file takes no advice.

    """
    os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)


def sync_file_system(descriptor: int) -> None:
    """Write back what is dirty on the file system of an open file.

    Raises:
        OSError: writing has failed.

    """
    if _libc.syncfs(descriptor):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def unmap_pages(path: str, found: os.stat_result) -> bool:
    """Take a file's pages out of this process's page tables; they are found again when touched.

    Only mappings that are read-only, and only of files of which this process has no other kind of
    mapping: a private one that is, or was, writable may hold data that exist nowhere else.
    Returns whether there was any.
    """
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}".encode()
    inode, name = str(found.st_ino).encode(), os.fsencode(path)
    ranges = []
    with open("/proc/self/maps", "rb") as file:
        for line in file:
            span, access, _offset, on, number, *rest = line.rstrip(b"\n").split(None, 5)
            # On btrfs and overlay the numbers here are not those of stat.
            if (on, number) != (device, inode) and rest != [name]:
                continue
            if access[:3] != b"r--":
                return False
            first, _, end = span.partition(b"-")
            ranges.append((int(first, 16), int(end, 16)))
    for start, stop in ranges:
        _libc.madvise(start, stop - start, _DONTNEED)
    return bool(ranges)
