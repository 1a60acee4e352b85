"""What the control groups of a process leave to it: CPUs, CPU time and memory.

Both generations are read, alone and side by side, also from inside a container that sees a part of
the hierarchy only. Reading is all that is done here, and nothing raises.
"""

from __future__ import annotations

from loongkit.activation import cpulists, files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loongkit.activation.files import Tree

_TABLE_BYTES = 1 << 20  # mountinfo grows with the number of mounts
_FILE_BYTES = 1 << 16
_OWN, _TABLE = "proc/self/cgroup", "proc/self/mountinfo"
#: How the two generations say that there is no quota.
_NO_QUOTA = ("max", "-1")
#: No count of bytes or of events is larger.
_MOST = (1 << 64) - 1
#: The first generation says "no limit" by the largest multiple of a page, near 2**63.
_NO_LIMIT = 1 << 60
#: Names by generation: a group's memory limit, what it takes, and the page cache in that which is
#: reclaimed first, its children's included.
_MEMORY = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


class Groups:
    """The control groups of this process: for a controller its folder, then those above it."""

    __slots__ = ("_mounts", "_paths", "tree")

    def __init__(self, tree: Tree, notes: list[str] | None = None) -> None:
        self.tree = tree
        own = tree.read(_OWN, _FILE_BYTES)
        table = tree.read(_TABLE, _TABLE_BYTES)
        # Hierarchies by what they control ("": the second generation, which has one for all).
        self._paths = _paths(own)
        self._mounts = _mounts(table)
        unknown = "the container's CPUs and quota count as not known"
        if own and not self._paths:
            files.note(notes, _OWN, own, "lines such as 0::/", unknown)
        if table and not any(" - " in line for line in table.splitlines()):
            files.note(notes, _TABLE, table, "a table of mounts", unknown)

    def generation(self, controller: str) -> int:
        """Return 1 where the first generation has a controller, and otherwise 2."""
        return 1 if controller in self._mounts and controller in self._paths else 2

    def folders(self, controller: str) -> list[str]:
        """Return the folders that hold a controller's files, the own group's first.

        None where that can't be told. A folder need not exist: a container may hide the groups
        that it is in. Where a hierarchy is mounted more than once, that mount counts which shows
        the own group, or else the first.
        """
        key = controller if self.generation(controller) == 1 else ""
        own = self._paths.get(key)
        if own is None:
            return []
        places = [_place(own, root, point) for root, point in self._mounts.get(key, ())]
        if len(places) > 1:
            places.sort(key=lambda place: not (place[1] and self.tree.exists(place[0][0])))
        return places[0][0] if places else []


class Headroom:
    """Bytes that processes may still take, and the limit in bytes that stops them, by name."""

    __slots__ = ("free", "limit", "source")

    def __init__(self, free: int, limit: int, source: str) -> None:
        self.free = free
        self.limit = limit
        self.source = source


def cpuset(groups: Groups, notes: list[str] | None = None) -> frozenset[int]:
    """Return the CPUs that the control groups leave to this process; none: not known.

    ``notes`` gets what could not be understood, without the paths of groups, which may name people.
    """
    for folder in groups.folders("cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            text = groups.tree.read(f"{folder}/{name}", cpulists.BYTES)
            try:
                cpus = cpulists.parse(text)
            except ValueError:
                files.note(notes, name, text, "a set of CPUs", "it counts as missing")
                continue
            if cpus:
                return cpus
    return frozenset()


def cpu_quota(groups: Groups, notes: list[str] | None = None) -> float | None:
    """Return the CPU time a second that the control groups leave to all of their processes.

    In CPUs, the smallest up the tree: a quota bounds CPU time, not the number of threads that run
    at once. None where there is no bound.
    """
    names = ["cpu.max"]
    if groups.generation("cpu") == 1:
        names = ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
    bounds = []
    for folder in groups.folders("cpu"):
        text = " ".join(groups.tree.read(f"{folder}/{name}") for name in names)
        words = text.split()
        numbers = [files.number(word, _NO_LIMIT) for word in words]
        if len(numbers) == 2 and min(numbers) > 0:
            bounds.append(numbers[0] / numbers[1])
        elif text.strip(" ") and not (len(words) == 2 and words[0] in _NO_QUOTA and numbers[1] > 0):
            wanted = "two numbers of microseconds"
            files.note(notes, " and ".join(names), text, wanted, "it counts as no bound")
    return min(bounds, default=None)


def memory_size(groups: Groups) -> int | None:
    """Return the bytes this process can have: the machine's, or the smallest limit up the tree.

    None where neither can be read.
    """
    tree, folders = groups.tree, groups.folders("memory")
    generation = groups.generation("memory")
    found = [_number(tree.read(f"{folder}/{_MEMORY[generation][0]}")) for folder in folders]
    if generation == 1 and folders:
        found.append(_hierarchical(memory_stat(tree, folders[0])))
    found.append(machine_memory(tree).get("MemTotal"))
    return min((size for size in found if size and size < _NO_LIMIT), default=None)


def memory_headroom(groups: Groups) -> Headroom | None:
    """Return the tightest of the groups' memory limits and the machine's; None: unreadable.

    What the kernel would reclaim first (inactive page cache) counts as free, as Kubernetes does.
    """
    tree = groups.tree
    memory = machine_memory(tree)
    found = []
    if memory.get("MemTotal") and "MemAvailable" in memory:
        source = "the machine's memory"
        found.append(Headroom(memory["MemAvailable"], memory["MemTotal"], source))
    generation = groups.generation("memory")
    for folder in groups.folders("memory"):
        headroom = _headroom(tree, folder, generation)
        if headroom is not None:
            found.append(headroom)
    return min(found, key=lambda headroom: (headroom.free, headroom.limit), default=None)


def _headroom(tree: Tree, folder: str, generation: int) -> Headroom | None:
    limit_name, usage_name, cache_name = _MEMORY[generation]
    stat: dict[str, int] | None = None
    limits = [_number(tree.read(f"{folder}/{limit_name}"))]
    if generation == 1:
        # What a container does not see above takes at least what is taken here.
        stat = memory_stat(tree, folder)
        limits.append(_hierarchical(stat))
    limit = min((size for size in limits if size is not None), default=_NO_LIMIT)
    used = _number(tree.read(f"{folder}/{usage_name}")) if limit < _NO_LIMIT else None
    if used is None:
        return None
    cache = (memory_stat(tree, folder) if stat is None else stat).get(cache_name, 0)
    return Headroom(max(0, limit - max(0, used - cache)), limit, f"the container's {limit_name}")


def _hierarchical(stat: dict[str, int]) -> int | None:
    """Return the smallest limit up the tree of the first generation, also of groups not seen."""
    return stat.get("hierarchical_memory_limit")


def memory_stat(tree: Tree, folder: str) -> dict[str, int]:
    """Return the numbers in a group's memory.stat: most in bytes, some are counts of events."""
    pairs = (line.split() for line in tree.read(f"{folder}/memory.stat", _FILE_BYTES).splitlines())
    found = {pair[0]: files.number(pair[1], _MOST) for pair in pairs if len(pair) == 2}
    return {name: size for name, size in found.items() if size >= 0}


def machine_memory(tree: Tree) -> dict[str, int]:
    """Return the sizes in /proc/meminfo, in bytes."""
    found = {}
    for line in tree.read("proc/meminfo", _FILE_BYTES).splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        size = files.number(words[0], _MOST) if words else -1
        if size >= 0:
            found[name] = size << (10 if words[1:] == ["kB"] else 0)
    return found


def _number(text: str) -> int | None:
    size = files.number(text, _MOST)
    return size if size >= 0 else None


def _paths(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            for controller in fields[1].split(","):
                found[controller] = fields[2]
    return found


def _mounts(text: str) -> dict[str, list[tuple[str, str]]]:
    """Return for each controller ("": the second generation) root and place of its mounts.

    See proc_pid_mountinfo(5).
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        mount = _unescaped(fields[3]), _unescaped(fields[4]).strip("/")
        for controller in [""] if kind[0] == "cgroup2" else kind[2].split(","):
            found.setdefault(controller, []).append(mount)
    return found


def _unescaped(text: str) -> str:
    """Undo the escapes of mountinfo: blanks and the like as three octal digits."""
    for code in ("040", "011", "012", "134"):  # the backslash last
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text


def _place(path: str, root: str, point: str) -> tuple[list[str], bool]:
    """Return a group's folder and those above it in a mount; False: it is not within.

    Inside a container the mount may begin at the container's own group, while the path counts from
    the host's: a path outside of the mount is seen as the mount itself. ".." stands for what lies
    outside of a control group namespace.
    """
    names, above = ([name for name in text.split("/") if name] for text in (path, root))
    if ".." in (*names, *above) or names[: len(above)] != above:
        return [point], False
    names = [point, *names[len(above) :]]
    return ["/".join(names[:depth]) for depth in range(len(names), 0, -1)], True
