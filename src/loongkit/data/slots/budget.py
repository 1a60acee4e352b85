"""How much memory the slots of one data worker may take at most."""

from __future__ import annotations

#: The share of the memory that is still to be had which all slots of a loader may take together.
_SHARE = 0.25
#: A range of addresses is no memory, but a mapping of this size should be possible anywhere.
_MOST = 64 << 30

_PROC = "/proc"
_CGROUP = "/sys/fs/cgroup"


def worker_limit(workers: int, proc: str = _PROC, cgroup: str = _CGROUP) -> int:
    """Return the bytes that one of so many workers may take; 0 where memory can't be read.

    The least of what the machine has left and what each memory cgroup of this process, up to the
    root, has left.
    """
    left = [room for room in (_available(proc), *_headrooms(proc, cgroup)) if room is not None]
    if not left:
        return 0
    return min(int(max(min(left), 0) * _SHARE) // max(workers, 1), _MOST)


def _available(proc: str) -> int | None:
    fields = _fields(f"{proc}/meminfo")
    kilobytes = fields.get("MemAvailable:")
    return None if kilobytes is None else kilobytes * 1024


def _headrooms(proc: str, cgroup: str) -> list[int | None]:
    """Return what each memory cgroup of this process has left: version 2, then version 1."""
    rooms: list[int | None] = []
    for line in _text(f"{proc}/self/cgroup").splitlines():
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            rooms += [
                _headroom(folder, "memory.max", "memory.current", "inactive_file")
                for folder in _up(cgroup, path)
            ]
        elif "memory" in controllers.split(","):
            rooms += [
                _headroom(
                    folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
                )
                for folder in _up(f"{cgroup}/memory", path)
            ]
    return rooms


def _up(root: str, path: str) -> list[str]:
    """Return the folders of a cgroup and of those above it.

    In a container the path may be that of the host, whose folders are not there: they count for
    nothing, and the root, which is the container's own group then, is always among them.
    """
    names = [name for name in path.split("/") if name and name != ".."]
    return ["/".join([root, *names[:depth]]) for depth in range(len(names), -1, -1)]


def _headroom(folder: str, limit_file: str, usage_file: str, reclaimable: str) -> int | None:
    """Return limit minus usage, page cache that can be dropped not counted; None: no limit."""
    limit, usage = _text(f"{folder}/{limit_file}"), _text(f"{folder}/{usage_file}")
    if not limit.strip().isdecimal() or not usage.strip().isdecimal():
        return None
    cache = _fields(f"{folder}/memory.stat").get(reclaimable, 0)
    return int(limit) - int(usage) + cache


def _fields(path: str) -> dict[str, int]:
    """Read the lines ``name number …`` of a file."""
    words = [line.split() for line in _text(path).splitlines()]
    return {row[0]: int(row[1]) for row in words if len(row) > 1 and row[1].isdecimal()}


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
