"""What the control groups of a process leave to it: the CPUs of its cpuset, and its CPU quota.

Both generations of control groups are read, alone and side by side, also from inside a container
that sees a part of the hierarchy only.
"""

from __future__ import annotations

from loongkit.numa import cpulists

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loongkit.activation.files import Tree

_MOUNTS_BYTES = 1 << 20


class Groups:
    """The control groups of this process: for a controller its folder, then those above it."""

    __slots__ = ("_mounts", "_paths", "_tree")

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        # Hierarchies by what they control ("": the second generation, which has one for all).
        self._paths = _paths(tree.read("proc/self/cgroup", 1 << 16))
        self._mounts = _mounts(tree.read("proc/self/mountinfo", _MOUNTS_BYTES))

    def folders(self, controller: str) -> list[str]:
        """Return the folders that hold a controller's files, the own group's first."""
        key = controller if controller in self._mounts else ""
        if key not in self._mounts:
            return []
        root, point = self._mounts[key]
        own = self._paths.get(key, "/")
        # Inside a container the mount may begin at the container's own group, while the path
        # counts from the host's; a path outside of the mount is seen as the mount itself.
        below = own[len(root.rstrip("/")) :] if _within(own, root) else ""
        folder = f"{point}/{below}".replace("//", "/").rstrip("/")
        found = []
        while _within(folder, point):
            found.append(folder)
            folder = folder.rpartition("/")[0]
        return [folder for folder in found if folder == point or self._tree.exists(folder)]


def cpuset(groups: Groups, tree: Tree) -> frozenset[int]:
    """Return the CPUs that the control groups leave to this process; none: not known."""
    for folder in groups.folders("cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            try:
                cpus = cpulists.parse(tree.read(f"{folder}/{name}", 1 << 16))
            except ValueError:
                continue
            if cpus:
                return cpus
    return frozenset()


def quota(groups: Groups, tree: Tree) -> float | None:
    """Return the CPU time a second that the control groups leave to all of their processes.

    In CPUs, the smallest up the tree: a quota bounds CPU time, not the number of threads that run
    at once. None where there is no bound.
    """
    bounds = []
    for folder in groups.folders("cpu"):
        amount, _, period = tree.read(f"{folder}/cpu.max").strip().partition(" ")
        if not amount:
            amount = tree.read(f"{folder}/cpu.cfs_quota_us").strip()
            period = tree.read(f"{folder}/cpu.cfs_period_us").strip()
        numbers = [int(text) for text in (amount, period) if text.isdecimal() and len(text) < 16]
        if len(numbers) == 2 and all(numbers):
            bounds.append(numbers[0] / numbers[1])
    return min(bounds, default=None)


def _paths(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            for controller in fields[1].split(","):
                found[controller] = fields[2]
    return found


def _mounts(text: str) -> dict[str, tuple[str, str]]:
    """Return for each controller ("": the second generation) root and place of its first mount."""
    found: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        for controller in [""] if kind[0] == "cgroup2" else kind[2].split(","):
            found.setdefault(controller, (fields[3], fields[4].strip("/")))
    return found


def _within(path: str, folder: str) -> bool:
    folder = folder.rstrip("/")
    return path == folder or path.startswith(folder + "/")
