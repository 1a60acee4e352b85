"""How much memory there is, how much of it is page cache, and the cgroup that is charged for it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loongkit.page_cache.system import System

MIB = 1 << 20
#: Bounds of the computed limit: these shares of the memory, and not less than this.
_SHARE, _LARGEST_SHARE, _LEAST = 0.3, 0.5, 512 * MIB
#: What cgroup v1 reports where no limit is set is near this, whatever the page size.
_UNLIMITED = 1 << 60


class MemoryCgroup(NamedTuple):
    """The memory cgroup of this process: its version, its folder, and the top of what we see."""

    version: int
    folder: str
    top: str
    is_root: bool


def own_cgroup(system: System) -> MemoryCgroup | None:
    """Find the memory cgroup that this process is charged to; None: there is none, or unreadable.

    A hybrid host has the memory controller in v1 beside a v2 tree without it, so v1 comes first.
    """
    try:
        membership = system.read("/proc/self/cgroup").splitlines()
        mounts = system.read("/proc/self/mountinfo").splitlines()
    except OSError:
        return None
    paths = {}
    for line in membership:
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path
    for version, controller in ((1, "memory"), (2, "")):
        if controller in paths:
            found = _mounted(system, mounts, version, paths[controller])
            if found is not None:
                return found
    return None


def _mounted(system: System, mounts: list[str], version: int, path: str) -> MemoryCgroup | None:
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields, options = before.split(), after.split()
        if len(fields) < 5 or len(options) < 3:
            continue
        kind, parameters = options[0], options[2].split(",")
        if version == 2 and kind != "cgroup2":
            continue
        if version == 1 and (kind != "cgroup" or "memory" not in parameters):
            continue
        root, point = _unescaped(fields[3]), _unescaped(fields[4])
        inside = os.path.relpath(path, root)
        # Below another root, as in a container that sees its host's paths: the mount is our own.
        folder = point if inside.startswith("..") else os.path.normpath(f"{point}/{inside}")
        if system.exists(f"{folder}/memory.stat"):
            return MemoryCgroup(version, folder, point, _is_root(system, version, folder, path))
    return None


def _is_root(system: System, version: int, folder: str, path: str) -> bool:
    if version == 2:  # the root alone has no limit
        return not system.exists(f"{folder}/memory.max")
    return path == "/"


def _unescaped(text: str) -> str:
    """Undo the escapes of mountinfo: blanks and the like as three octal digits."""
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text


def total_memory(system: System, cgroup: MemoryCgroup | None) -> int | None:
    """Return the bytes this process can have: the machine's, or the smallest limit up the tree."""
    found = []
    machine = _meminfo(system).get("MemTotal")
    if machine:
        found.append(machine)
    if cgroup is not None:
        name = "memory.max" if cgroup.version == 2 else "memory.limit_in_bytes"
        for folder in _up_the_tree(cgroup):
            limit = _number_in(system, f"{folder}/{name}")
            if limit is not None and 0 < limit < _UNLIMITED:
                found.append(limit)
        if cgroup.version == 1:  # ancestors that a container does not see
            limit = _statistics(system, cgroup).get("hierarchical_memory_limit", 0)
            if 0 < limit < _UNLIMITED:
                found.append(limit)
    return min(found, default=None)


def _up_the_tree(cgroup: MemoryCgroup) -> Iterator[str]:
    folder = cgroup.folder
    yield folder
    while folder != cgroup.top and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        yield folder


def automatic_limit(memory: int) -> int:
    """Return the limit in bytes for a machine or container of that many bytes."""
    return int(min(max(_SHARE * memory, _LEAST), _LARGEST_SHARE * memory))


def page_cache(system: System, cgroup: MemoryCgroup | None) -> int | None:
    """Return the bytes of files in the page cache that can be reclaimed; None: not to be told.

    Without shared memory, which ``file`` and ``Cached`` would count as well.
    """
    if cgroup is not None and not cgroup.is_root:
        numbers = _statistics(system, cgroup)
        prefix = "total_" if "total_inactive_file" in numbers else ""  # v1: with its children
        names = [prefix + name for name in ("inactive_file", "active_file")]
    else:
        numbers = _meminfo(system)
        names = ["Inactive(file)", "Active(file)"]
    found = [numbers[name] for name in names if name in numbers]
    return sum(found) if found else None


def dirty_files(system: System, cgroup: MemoryCgroup | None) -> int:
    """Return the bytes of files that are not yet written back; 0 where that can't be told."""
    if cgroup is None or cgroup.is_root:
        return _meminfo(system).get("Dirty", 0)
    numbers = _statistics(system, cgroup)
    return numbers.get("file_dirty", numbers.get("total_dirty", 0))


def has_swap(system: System) -> bool:
    """Tell whether anonymous memory could be swapped out."""
    return _meminfo(system).get("SwapTotal", 0) > 0


def _statistics(system: System, cgroup: MemoryCgroup) -> dict[str, int]:
    try:
        lines = system.read(f"{cgroup.folder}/memory.stat").splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _meminfo(system: System) -> dict[str, int]:
    """Return /proc/meminfo in bytes."""
    try:
        lines = system.read("/proc/meminfo").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def _number_in(system: System, path: str) -> int | None:
    try:
        text = system.read(path).strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
