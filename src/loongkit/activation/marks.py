"""Effect marks: one byte a feature, in memory that the processes of one job share.

A replacement often runs in a data worker only, and its star belongs in the parent's summary. The
bytes lie in an anonymous file (memfd) mapped before any fork, so forked children write into the
same page. A child started by ``spawn`` or ``forkserver`` finds its parent's file among the open
files of that process in /proc: nothing lies in the file system, only the same user can open it,
and it goes away with the job. A nested job that the user starts is no multiprocessing child and
never looks there.
"""

from __future__ import annotations

import os

from loongkit import __version__
from loongkit.activation import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIZE = 4096
# Four bytes for the number of the process that is to print the summary (0: none yet), or PRINTED.
_SPEAKER = slice(SIZE - 4, SIZE)
_PRINTED = 0xFFFFFFFF
# Processes of two versions number the features differently, hence the version in the name.
FILE_NAME = f"loongkit-marks-{__version__}"


class Marks:
    """The shared bytes. ``shared`` tells whether children can write into them."""

    __slots__ = ("_bytes", "shared")

    def __init__(self) -> None:
        self._bytes: Any = bytearray(SIZE)  # any writable sequence of byte values
        self.shared = False

    def open(self) -> None:
        """Map the parent's bytes in a multiprocessing child, new ones in any other process.

        Without memfd or /proc the marks of this process alone count. Never raises OSError.
        """
        if self.shared:
            return
        try:
            import mmap  # an extension module: loaded only once a framework is being imported

            descriptor = _parents_file()
            if descriptor is None:
                descriptor = os.memfd_create(FILE_NAME, os.MFD_CLOEXEC)
            try:
                if os.fstat(descriptor).st_size < SIZE:
                    os.ftruncate(descriptor, SIZE)
                # It keeps a descriptor of its own open, which spawned children look for.
                self._bytes = mmap.mmap(descriptor, SIZE)
            finally:
                os.close(descriptor)
            self.shared = True
        except (OSError, ValueError, ImportError, AttributeError):
            pass

    def set(self, position: int) -> None:
        """Mark the feature at this position of the index as effective."""
        self._bytes[position] = 1

    def is_set(self, position: int) -> bool:
        """Tell whether any process of the job marked the feature at this position."""
        return bool(self._bytes[position])

    def claim_summary(self) -> bool:
        """Tell whether this process is the one of the job that is to print the summary.

        The first that asks is, unless it ends without having printed one.
        """
        speaker = int.from_bytes(self._bytes[_SPEAKER], "little")
        if speaker == os.getpid():
            return True
        if speaker == _PRINTED or (speaker and process.is_running(speaker)):
            return False
        self._bytes[_SPEAKER] = os.getpid().to_bytes(4, "little")
        return True

    def note_printed(self) -> None:
        """Record that the summary was printed: nobody is to print it again."""
        self._bytes[_SPEAKER] = _PRINTED.to_bytes(4, "little")


def parent_is_armed() -> bool:
    """Tell, in a child by ``spawn`` or ``forkserver``, whether its parent runs this version too."""
    descriptor = _parents_file()
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def _parents_file() -> int | None:
    """Open the marks of the process that started this one by multiprocessing, if there is one."""
    if process.kind() not in (process.SPAWNED, process.FORKSERVER):
        return None
    parent = os.getppid()
    found = _marks_of(parent)
    if found is None and process.kind() == process.FORKSERVER:
        # This may be a worker, forked by the server, whose own parent is the job.
        found = _marks_of(process.parent_of(parent))
    return found


def _marks_of(pid: int) -> int | None:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    for name in names:
        try:
            if os.readlink(f"{folder}/{name}") == f"/memfd:{FILE_NAME} (deleted)":
                return os.open(f"{folder}/{name}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # closed in the meantime
    return None
