"""CPU quota and memory limit of this process's control groups, cgroup v1 and v2, up the tree."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loongkit.activation.files import Tree

#: Files of /proc that grow with the number of mounts; read to this many bytes.
_TABLE_BYTES = 1 << 20
#: cgroup v1 says "no limit" by the largest multiple of a page, near 2**63.
_NO_LIMIT = 1 << 60


class Headroom(NamedTuple):
    """Bytes that processes may still take, and the limit in bytes that stops them."""

    free: int
    limit: int
    source: str


def cpu_quota(tree: Tree) -> float | None:
    """Return how many CPUs' worth of time the groups grant together; None: as much as there is."""
    found = [_quota_v2(tree.read(f"{group}/cpu.max")) for group in groups(tree, "")]
    for group in groups(tree, "cpu"):
        texts = (tree.read(f"{group}/cpu.cfs_{name}_us") for name in ("quota", "period"))
        found.append(_quota_v2(" ".join(text.strip() for text in texts)))
    return min(filter(None, found), default=None)


def memory_headroom(tree: Tree) -> Headroom | None:
    """Return the tightest of the groups' memory limits and the machine's; None: unreadable.

    What the kernel would reclaim first (inactive page cache) counts as free, as Kubernetes does.
    """
    found = [*_headrooms_v2(tree), *_headrooms_v1(tree)]
    memory = _numbers(tree.read("proc/meminfo", _TABLE_BYTES).replace(":", ""))
    if memory.get("MemTotal") and "MemAvailable" in memory:
        found.append(
            Headroom(memory["MemAvailable"] << 10, memory["MemTotal"] << 10, "the machine's memory")
        )
    return min(found, default=None)


def groups(tree: Tree, controller: str) -> list[str]:
    """Return the folders of this process's group and its ancestors, the innermost first.

    ``controller`` names one of cgroup v1; "" means the tree of cgroup v2. A container may show its
    host's path of the group while it has only that group mounted: the mount is then all there is.
    """
    path = _membership(tree, controller)
    if path is None:
        return []
    for root, mount in _mounts(tree, controller):
        inside = os.path.relpath(path, root)
        top = mount.strip("/")
        folder = top if inside.startswith("..") else os.path.normpath(f"{top}/{inside}")
        return list(_upwards(folder, top))
    return []


def _upwards(folder: str, top: str) -> Iterator[str]:
    yield folder
    while folder != top and "/" in folder:
        folder = os.path.dirname(folder)
        yield folder


def _membership(tree: Tree, controller: str) -> str | None:
    for line in tree.read("proc/self/cgroup", _TABLE_BYTES).splitlines():
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return path
    return None


def _mounts(tree: Tree, controller: str) -> Iterator[tuple[str, str]]:
    """Give the root and the mount point of each mount of a hierarchy (see proc_pid_mountinfo)."""
    for line in tree.read("proc/self/mountinfo", _TABLE_BYTES).splitlines():
        before, _, after = line.partition(" - ")
        fields, options = before.split(), after.split()
        if len(fields) < 5 or len(options) < 3:
            continue
        if options[0] == ("cgroup" if controller else "cgroup2"):
            if controller and controller not in options[2].split(","):
                continue
            yield _unescaped(fields[3]), _unescaped(fields[4])


def _unescaped(text: str) -> str:
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text


def _quota_v2(text: str) -> float | None:
    """Read "quota period" in microseconds; "max" or -1 is no quota."""
    words = text.split()
    if len(words) != 2 or not all(word.isdecimal() for word in words) or int(words[1]) == 0:
        return None
    quota = int(words[0]) / int(words[1])
    return quota if quota > 0 and math.isfinite(quota) else None


def _headrooms_v2(tree: Tree) -> Iterator[Headroom]:
    for group in groups(tree, ""):
        limit, used = (tree.read(f"{group}/memory.{name}").strip() for name in ("max", "current"))
        stat = _numbers(tree.read(f"{group}/memory.stat", _TABLE_BYTES))
        yield from _headroom(limit, used, stat.get("inactive_file", 0), "memory.max")


def _headrooms_v1(tree: Tree) -> Iterator[Headroom]:
    for group in groups(tree, "memory"):
        names = ("limit_in_bytes", "usage_in_bytes")
        limit, used = (tree.read(f"{group}/memory.{name}").strip() for name in names)
        stat = _numbers(tree.read(f"{group}/memory.stat", _TABLE_BYTES))
        cache = stat.get("total_inactive_file", 0)
        yield from _headroom(limit, used, cache, "memory.limit_in_bytes")


def _headroom(limit: str, used: str, cache: int, source: str) -> Iterator[Headroom]:
    if not limit.isdecimal() or not used.isdecimal() or int(limit) >= _NO_LIMIT:
        return
    free = int(limit) - max(0, int(used) - cache)
    yield Headroom(max(0, free), int(limit), f"the container's {source}")


def _numbers(text: str) -> dict[str, int]:
    """Read lines of a name and a number; a unit behind it is left out."""
    pairs = (line.split()[:2] for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
