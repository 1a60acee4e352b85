"""System calls on files that keep Python's lock, for the thread that runs beside a reader.

Python's own functions let go of the lock around each call, and where the reader is busy each return
from one costs a switch interval, 5 ms by default: at four calls a file the thread would fall behind
for good. These take microseconds, so that holding the lock is the lesser evil. What may wait for a
disk (fdatasync) or for another process (a taken lock) is done by Python's own functions.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from typing import NamedTuple

#: Bytes of a page.
PAGE = mmap.PAGESIZE

_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_STATX_BASIC = 0x7FF
_STATX_SIZE = 256
# mode, inode, size; seconds of ctime; major and minor number of the device; owner
_MODE, _INODE, _CTIME, _DEVICE, _OWNER = 28, 32, 96, 136, 20
#: The same number on every architecture (Linux 6.5).
_CACHESTAT = 451
_MADV_DONTNEED = 4
_MAP_FAILED = ctypes.c_void_p(-1).value
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

if ctypes.sizeof(ctypes.c_long) != 8:
    raise ImportError("needs a 64-bit system")

_libc = ctypes.PyDLL(None, use_errno=True)
_pointer, _size, _int, _long = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_long
_libc.open.argtypes = (ctypes.c_char_p, _int)
_libc.read.argtypes = (_int, ctypes.c_char_p, _size)
_libc.read.restype = ctypes.c_ssize_t
_libc.posix_fadvise.argtypes = (_int, _long, _long, _int)
_libc.statx.argtypes = (_int, ctypes.c_char_p, _int, ctypes.c_uint, ctypes.c_char_p)
_libc.fstatfs.argtypes = (_int, ctypes.c_char_p)
_libc.mmap.argtypes = (_pointer, _size, _int, _int, _int, _long)
_libc.mmap.restype = _pointer
_libc.munmap.argtypes = (_pointer, _size)
_libc.mincore.argtypes = (_pointer, _size, ctypes.c_char_p)
_libc.madvise.argtypes = (_pointer, _size, _int)
_libc.syscall.restype = _long


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class CacheStatistics(ctypes.Structure):
    """What cachestat tells of a range of a file, in pages."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    ]


class Status(NamedTuple):
    """What there is to know of a file. ``device`` is as in ``os.stat``; times in seconds."""

    mode: int
    owner: int
    device: int
    inode: int
    size: int
    changed: int


def _failure() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def open_file(path: bytes) -> int:
    """Open a file for reading, not through a symbolic link at the end of its path.

    Raises:
        OSError: it is gone, or not ours to read.

    """
    descriptor: int = _libc.open(path, _OPEN)
    if descriptor < 0:
        raise _failure()
    return descriptor


def close(descriptor: int) -> None:
    """Close a descriptor."""
    _libc.close(descriptor)


def status(path: bytes) -> Status:
    """Return what there is to know of the file that a path leads to.

    Raises:
        OSError: there is none.

    """
    return _statx(_AT_FDCWD, path, 0)


def status_of(descriptor: int) -> Status:
    """Return what there is to know of an open file.

    Raises:
        OSError: no file is open under that number.

    """
    return _statx(descriptor, b"", _AT_EMPTY_PATH)


def is_open(descriptor: int) -> bool:
    """Tell whether a number stands for an open file."""
    return bool(_libc.fcntl(descriptor, fcntl.F_GETFD) >= 0)


def _statx(folder: int, path: bytes, flags: int) -> Status:
    buffer = ctypes.create_string_buffer(_STATX_SIZE)
    if _libc.statx(folder, path, flags, _STATX_BASIC, buffer):
        raise _failure()
    (owner,) = struct.unpack_from("=I", buffer, _OWNER)
    (mode,) = struct.unpack_from("=H", buffer, _MODE)
    inode, size = struct.unpack_from("=QQ", buffer, _INODE)
    (changed,) = struct.unpack_from("=q", buffer, _CTIME)
    device = os.makedev(*struct.unpack_from("=II", buffer, _DEVICE))
    return Status(mode, owner, device, inode, size, changed)


def drop(descriptor: int, offset: int = 0, length: int = 0) -> None:
    """Give clean pages of an open file back; length 0: up to its end.

    Pages that a process has mapped and touched stay.

    Raises:
        OSError: the file takes no advice.

    """
    number = _libc.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
    if number:
        raise OSError(number, os.strerror(number))


def file_system(descriptor: int) -> int:
    """Return the kernel's number of the kind of file system an open file lies on; 0: unknown."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.fstatfs(descriptor, buffer):
        return 0
    (kind,) = struct.unpack_from("@l", buffer)
    return int(kind) & 0xFFFFFFFF


def cache_statistics(descriptor: int, offset: int, length: int) -> CacheStatistics:
    """Return what cachestat tells of a range of an open file.

    Raises:
        OSError: ENOSYS before Linux 6.5; EPERM for files that we may neither write nor own.

    """
    statistics = CacheStatistics()
    wanted = _Range(offset, length)
    failed = _libc.syscall(
        _long(_CACHESTAT),
        ctypes.c_uint(descriptor),
        ctypes.byref(wanted),
        ctypes.byref(statistics),
        ctypes.c_uint(0),
    )
    if failed:
        raise _failure()
    return statistics


def mapped_residency(descriptor: int, offset: int, length: int) -> int:
    """Return the bytes in memory of a range of an open file, by mincore.

    Meaningful only for files that we may write or own: the kernel says "all" of others.

    Raises:
        OSError: the file can't be mapped.

    """
    address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, offset)
    if address == _MAP_FAILED:
        raise _failure()
    try:
        states = ctypes.create_string_buffer(-(-length // PAGE))
        if _libc.mincore(address, length, states):
            raise _failure()
        return states.raw[: -(-length // PAGE)].count(1) * PAGE
    finally:
        _libc.munmap(address, length)


def forget_pages(start: int, end: int) -> None:
    """Take the pages between two addresses out of the page tables of this process.

    Raises:
        OSError: nothing is mapped there, or it is locked.

    """
    if _libc.madvise(start, end - start, _MADV_DONTNEED):
        raise _failure()


def contents(path: bytes) -> bytes:
    """Return all of a file of /proc.

    Raises:
        OSError: it can't be read.

    """
    descriptor = open_file(path)
    try:
        parts: list[bytes] = []
        buffer = ctypes.create_string_buffer(1 << 16)
        while True:
            length = _libc.read(descriptor, buffer, len(buffer))
            if length < 0:
                raise _failure()
            if not length:
                return b"".join(parts)
            parts.append(buffer.raw[:length])
    finally:
        close(descriptor)


def lock(descriptor: int) -> None:
    """Lock a file for this process alone; unlocked by ``unlock`` or with its last descriptor.

    Raises:
        OSError: it can't be locked.

    """
    if _libc.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
        if ctypes.get_errno() not in (errno.EWOULDBLOCK, errno.EINTR):
            raise _failure()
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def unlock(descriptor: int) -> None:
    """Unlock a file."""
    _libc.flock(descriptor, fcntl.LOCK_UN)
