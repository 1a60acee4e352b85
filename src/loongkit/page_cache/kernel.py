"""The back ends that have the kernel hold a limit: Alibaba Cloud Linux's files, memory.reclaim."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Protocol

from loongkit.activation import logs
from loongkit.page_cache import memory, syscalls

if TYPE_CHECKING:
    from loongkit.activation.controls import Controls
    from loongkit.page_cache.memory import MemoryCgroup

#: The host-wide switch of Alibaba Cloud Linux; a limit of a cgroup has no effect while it is 0.
_SWITCH = "sys/kernel/mm/pagecache_limit/enabled"
#: Reclaiming begins this far above the limit, and asks for so much at a time.
_TOLERANCE, _MOST_AT_ONCE = 1.05, 256 << 20


class Unavailable(Exception):
    """This back end can't be used here, with the reason."""


def reason_of(error: OSError) -> str:
    """Return the name and the text of a system error: "EROFS, Read-only file system"."""
    number = error.errno or 0
    return f"{errno.errorcode.get(number, number)}, {os.strerror(number)}"


class Backend(Protocol):
    """What holds the limit for the whole job."""

    name: str

    def keep(self) -> bool:
        """Do what is to be done from time to time; tell whether the back end has had an effect.

        Raises:
            OSError: it can't be used any longer.

        """

    def undo(self) -> None:
        """Put back what was set up."""


class PageCacheLimit:
    """Alibaba Cloud Linux: ``memory.pagecache_limit.*`` of our own cgroup."""

    name = "the page-cache limit of Alibaba Cloud Linux"

    def __init__(self, controls: Controls, cgroup: MemoryCgroup | None, limit: int) -> None:
        """Set the limit, in bytes.

        Raises:
            Unavailable: this kernel has none, or does not let us.

        """
        if cgroup is None:
            raise Unavailable("no memory cgroup was found")
        if not controls.tree.exists(f"{cgroup.folder}/memory.pagecache_limit.size"):
            raise Unavailable("this kernel does not have it")
        if cgroup.is_root:
            raise Unavailable("the root cgroup can't be limited")
        self._controls = controls
        self._folder = cgroup.folder
        self._before: dict[str, int] = {}
        self._is_ours = False
        try:
            self._set(limit)
        except OSError as error:
            self.undo()
            raise Unavailable(f"its files can't be written ({reason_of(error)})")
        except ValueError as error:
            self.undo()
            raise Unavailable(str(error))

    def _set(self, limit: int) -> None:
        found = {name: self._read(name) for name in ("size", "sync", "enable")}
        if not found["enable"] or not 0 < found["size"] <= limit:
            self._is_ours = True
            # Its "sync" is about who reclaims, not about writing back: 0 leaves that to the kernel.
            for name, value in (("size", limit), ("sync", 0), ("enable", 1)):
                self._before[name] = found[name]
                self._write(name, value)
        if self._controls.read(_SWITCH) == "0":
            self._controls.write(_SWITCH, "1")

    def _read(self, name: str) -> int:
        return int(self._controls.read(f"{self._folder}/memory.pagecache_limit.{name}"))

    def _write(self, name: str, value: int) -> None:
        self._controls.write(f"{self._folder}/memory.pagecache_limit.{name}", str(value))
        found = self._read(name)
        # A size is rounded to whole pages.
        if abs(found - value) >= syscalls.PAGE or (name == "enable" and found != value):
            raise ValueError(f"{name} reads {found} after {value} was written")

    def keep(self) -> bool:
        """Leave it to the kernel; tell whether it was us who set the limit.

        An administrator's, or that of another process of the job, may be as tight.
        """
        return self._is_ours

    def undo(self) -> None:
        """Put our cgroup's values back. The host-wide switch stays: others may rely on it."""
        for name in ("enable", "size", "sync"):
            if name in self._before:
                try:
                    self._write(name, self._before.pop(name))
                except (OSError, ValueError) as error:
                    logs.debug(f"page_cache_limit: {name} could not be put back: {error}")


class Reclaim:
    """Cgroup v2: asks ``memory.reclaim`` of our own cgroup for what is above the limit."""

    name = "memory.reclaim"

    def __init__(self, controls: Controls, cgroup: MemoryCgroup | None, limit: int) -> None:
        """Find out whether it works, by asking for one page.

        Raises:
            Unavailable: this kernel has none, does not let us, or could swap the training out.

        """
        if cgroup is None or cgroup.generation != 2:
            raise Unavailable("there is no cgroup v2 with the memory controller")
        if cgroup.is_root:
            raise Unavailable("the root cgroup has none")
        self._controls = controls
        self._cgroup = cgroup
        self._limit = limit
        self._file = f"{cgroup.folder}/memory.reclaim"
        if not controls.tree.exists(self._file):
            raise Unavailable("this kernel does not have it")
        if memory.page_cache(controls.tree, cgroup) is None:
            raise Unavailable("memory.stat does not tell how much page cache there is")
        self._arguments = ""
        if memory.has_swap(controls.tree):
            self._arguments = " swappiness=0"  # files only; what is anonymous belongs to the job
        try:
            self._ask(syscalls.PAGE)
        except OSError as error:
            if error.errno == errno.EINVAL and self._arguments:
                raise Unavailable("there is swap, and this kernel can't be told to spare it")
            raise Unavailable(f"it can't be written ({reason_of(error)})")

    def keep(self) -> bool:
        """Have the kernel give back what is above the limit; tell whether it has.

        Raises:
            OSError: the file can no longer be written.

        """
        used = self._used()
        if used <= self._limit * _TOLERANCE:
            return False
        before = used
        while used > self._limit:
            if not self._ask(min(used - self._limit, _MOST_AT_ONCE)):
                break  # the rest can't be reclaimed now
            left = self._used()
            if left >= used:
                break
            used = left
        return self._used() < before

    def undo(self) -> None:
        """Nothing was set up."""

    def _used(self) -> int:
        return memory.page_cache(self._controls.tree, self._cgroup) or 0

    def _ask(self, size: int) -> bool:
        """Ask for so many bytes; False: the kernel found less to give back."""
        try:
            self._controls.write(self._file, f"{size}{self._arguments}")
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return False
            raise
        return True
