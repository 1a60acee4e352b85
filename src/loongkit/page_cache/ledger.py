"""The record of the files that a job has in the page cache, shared by its processes.

An anonymous file (memfd), mapped by the process that makes the data workers and by each worker. It
holds a ring of records, the file read last at its end, and an index from a file to its newest
record. A worker that ends, or is killed, leaves its part of the record to the others; nothing lies
in the file system, and it all goes away with the job.

What a file holds in the cache is an estimate: the whole of a small file, and of a large one as much
as was read from the disk. It is put right when the file is released.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from typing import TYPE_CHECKING, NamedTuple

from loongkit import __version__
from loongkit.page_cache import syscalls

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_NAME = f"loongkit-page-cache-{__version__}"

#: The ring takes this share of the limit: files of 28 KB and more with a path of 90 characters all
#: have room. Only what was written to takes memory. The index needs half as much again.
_SHARE = 256
_LEAST, _MOST = 1 << 20, 256 << 20

# Numbers at the beginning of the file.
_SIZE, _LIMIT, _HEAD, _TAIL, _CACHED, _BUSY, _UNMAPPING, _COUNT, _SAID = range(9)
_HEADER = 4096
_RECORD = struct.Struct("<QQQHH")  # key, bytes in the cache, hand, flags, length of the path
_WRITTEN, _FILLER = 1, 2
_ALIGNMENT = 8
_SLOT = 2  # numbers in a slot of the index: key, position of the record + 1


class Cached(NamedTuple):
    """A file and the bytes it is thought to have in the cache.

    ``hand`` is where in a large file releasing goes on; ``written`` files are to be written back
    before.
    """

    key: int
    path: bytes
    size: int
    hand: int = 0
    written: bool = False


class Ledger:
    """The shared record. All changes are made in a ``with ledger.locked()``."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pid = os.getpid()
        self._map = mmap.mmap(descriptor, 0)
        self._numbers = memoryview(self._map)[:_HEADER].cast("Q")
        self._ring_size = self._numbers[_SIZE]
        ring_end = _HEADER + self._ring_size
        self._ring = memoryview(self._map)[_HEADER:ring_end]
        self._index = memoryview(self._map)[ring_end:].cast("Q")
        self._slots = len(self._index) // _SLOT

    @classmethod
    def new(cls, limit: int) -> Ledger:
        """Make one for a limit in bytes.

        Raises:
            OSError: the kernel gives no memory for it.

        """
        ring = min(max(limit // _SHARE, _LEAST), _MOST)
        ring = 1 << (ring - 1).bit_length()
        descriptor = os.memfd_create(FILE_NAME, os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _HEADER + ring + ring // 2)
        os.pwrite(descriptor, struct.pack("<QQ", ring, limit), 0)
        return cls(descriptor)

    @classmethod
    def of_process(cls, pid: int) -> Ledger | None:
        """Return the one that another process of this user has; None: it has none."""
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):  # closed in the meantime
                    if os.readlink(f"{folder}/{name}") == f"/memfd:{FILE_NAME} (deleted)":
                        return cls(os.open(f"{folder}/{name}", os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            pass
        return None

    def close(self) -> None:
        """Let go of it in this process."""
        for view in (self._numbers, self._ring, self._index):
            view.release()
        self._map.close()
        os.close(self._descriptor)

    @property
    def limit(self) -> int:
        """The limit in bytes for all processes that share the record."""
        return self._numbers[_LIMIT]

    @property
    def cached(self) -> int:
        """The bytes that the recorded files are thought to have in the cache."""
        return self._numbers[_CACHED]

    @property
    def count(self) -> int:
        """How many files are recorded."""
        return self._numbers[_COUNT]

    @property
    def unmapping(self) -> int:
        """How often it was asked that everybody take large files out of their page tables."""
        return self._numbers[_UNMAPPING]

    def ask_for_unmapping(self) -> None:
        """Have all processes take large files out of their page tables."""
        self._numbers[_UNMAPPING] += 1

    def to_be_said(self) -> bool:
        """Tell whether nobody has asked this before: what befalls all is said once a job."""
        self._numbers[_SAID] += 1
        return self._numbers[_SAID] == 1

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the other processes out. The kernel lets go of it where the holder dies.

        Raises:
            OSError: it can't be locked, without /proc for instance.

        """
        if self._pid != os.getpid():
            # A forked child shares its parent's descriptor, and would share the lock with it.
            self._descriptor = os.open(
                f"/proc/self/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC
            )
            self._pid = os.getpid()
        syscalls.lock(self._descriptor)
        try:
            if self._numbers[_BUSY]:  # whoever was at it has died
                self._clear()
            self._numbers[_BUSY] = 1
            yield
            self._numbers[_BUSY] = 0
        finally:
            syscalls.unlock(self._descriptor)

    def add(self, file: Cached) -> list[Cached]:
        """Record that a file was read: it is now the newest.

        A file that is still among the newer half stays where it is, so that hot files cost nothing.
        Returns files that must be released because there is no room for their record.
        """
        length = _RECORD.size + len(file.path)
        length += -length % _ALIGNMENT
        if length > self._ring_size // 4:
            return [file]
        position = self._position(file.key)
        if position is not None:
            if position >= (self._numbers[_HEAD] + self._numbers[_TAIL]) // 2:
                return []
            before = self._read(position)
            file = file._replace(
                size=max(file.size, before.size),
                hand=before.hand,
                written=file.written or before.written,
            )
            self._forget(before)
        dropped = self._make_room(length)
        self._write(file, length)
        return dropped

    def holds(self, key: int) -> bool:
        """Tell whether a file is recorded."""
        return self._position(key) is not None

    def grow(self, key: int, growth: int, most: int) -> int:
        """Add to the bytes that a file is thought to have; return what does not fit into it."""
        position = self._position(key)
        if position is None:
            return growth
        size = self._size_at(position)
        taken = max(min(growth, most - size), 0)
        self._set_size(position, size + taken)
        return growth - taken

    def correct(self, key: int, size: int) -> None:
        """Put right what a file is known to have."""
        position = self._position(key)
        if position is not None:
            self._set_size(position, size)

    def oldest(self) -> Cached | None:
        """Take the file out that was read the longest time ago."""
        while self._numbers[_HEAD] < self._numbers[_TAIL]:
            found = self._take_head()
            if found is not None:
                return found
        return None

    def _take_head(self) -> Cached | None:
        """Take the first record out; None: a newer one of the same file, or none, was there."""
        head = self._numbers[_HEAD]
        offset = head % self._ring_size
        until_end = self._ring_size - offset
        flags, length = _FILLER, 0
        if until_end >= _RECORD.size:
            key, _size, _hand, flags, length = _RECORD.unpack_from(self._ring, offset)
        if flags & _FILLER:
            self._numbers[_HEAD] = head + until_end
            return None
        found = self._read(head) if self._position(key) == head else None
        if found is not None:
            self._forget(found)
        length += _RECORD.size
        self._numbers[_HEAD] = head + length + -length % _ALIGNMENT
        return found

    def _make_room(self, length: int) -> list[Cached]:
        """Take the oldest records out until one of this length fits in one piece."""
        numbers, dropped = self._numbers, []
        until_end = self._ring_size - numbers[_TAIL] % self._ring_size
        needed = length if until_end >= length else until_end + length
        while (
            numbers[_TAIL] + needed - numbers[_HEAD] > self._ring_size
            or numbers[_COUNT] >= self._slots // 2
        ):
            found = self._take_head()
            if found is not None:
                dropped.append(found)
        if until_end < length:
            if until_end >= _RECORD.size:
                _RECORD.pack_into(self._ring, numbers[_TAIL] % self._ring_size, 0, 0, 0, _FILLER, 0)
            numbers[_TAIL] += until_end
        return dropped

    def _write(self, file: Cached, length: int) -> None:
        tail = self._numbers[_TAIL]
        offset = tail % self._ring_size
        flags = _WRITTEN if file.written else 0
        _RECORD.pack_into(self._ring, offset, file.key, file.size, file.hand, flags, len(file.path))
        offset += _RECORD.size
        self._ring[offset : offset + len(file.path)] = file.path
        self._numbers[_TAIL] = tail + length
        self._numbers[_CACHED] += file.size
        self._numbers[_COUNT] += 1
        slot = self._slot(file.key)
        self._index[slot] = file.key
        self._index[slot + 1] = tail + 1

    def _read(self, position: int) -> Cached:
        offset = position % self._ring_size
        key, size, hand, flags, length = _RECORD.unpack_from(self._ring, offset)
        offset += _RECORD.size
        path = bytes(self._ring[offset : offset + length])
        return Cached(key, path, size, hand, bool(flags & _WRITTEN))

    def _size_at(self, position: int) -> int:
        size: int = struct.unpack_from("<Q", self._ring, position % self._ring_size + 8)[0]
        return size

    def _set_size(self, position: int, size: int) -> None:
        self._numbers[_CACHED] += size - self._size_at(position)
        struct.pack_into("<Q", self._ring, position % self._ring_size + 8, size)

    def _position(self, key: int) -> int | None:
        slot = self._slot(key)
        return self._index[slot + 1] - 1 if self._index[slot + 1] else None

    def _slot(self, key: int) -> int:
        """Return where the key's slot is, or the free one where it would be (linear probing)."""
        index, slot = self._index, key % self._slots * _SLOT
        while index[slot + 1] and index[slot] != key:
            slot = (slot + _SLOT) % (self._slots * _SLOT)
        return slot

    def _forget(self, file: Cached) -> None:
        """Take a file out of the index, closing the gap in the run of slots behind it."""
        self._numbers[_CACHED] -= file.size
        self._numbers[_COUNT] -= 1
        index, end = self._index, self._slots * _SLOT
        gap = self._slot(file.key)
        slot = gap
        while True:
            slot = (slot + _SLOT) % end
            if not index[slot + 1]:
                break
            home = index[slot] % self._slots * _SLOT
            if (slot - home) % end >= (slot - gap) % end:
                index[gap], index[gap + 1] = index[slot], index[slot + 1]
                gap = slot
        index[gap] = index[gap + 1] = 0

    def _clear(self) -> None:
        for number in (_HEAD, _TAIL, _CACHED, _COUNT):
            self._numbers[number] = 0
        start = _HEADER + self._ring_size
        self._map[start:] = bytes(len(self._map) - start)


def key_of(found: syscalls.Status) -> int:
    """Return the number by which a file is known: 64 bits of its device and inode."""
    mixed = (found.inode * 0x9E3779B97F4A7C15) ^ (found.device * 0xC2B2AE3D27D4EB4F)
    return (mixed ^ mixed >> 29) & 0xFFFFFFFFFFFFFFFF
