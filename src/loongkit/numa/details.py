"""What a picture of a machine shows beyond what a job needs: cores, sizes, the CPU quota."""

from __future__ import annotations

from loongkit.activation import cgroups, cpulists, files, hardware
from loongkit.numa import topology
from loongkit.numa.caches import Caches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loongkit.activation.files import Tree
    from loongkit.activation.hardware import Cpu
    from loongkit.numa.records import Machine

_MOST_KB = 1 << 50  # more than can be addressed


class Details:
    """The rest of a machine.

    ``cores`` are the CPUs of each core (SMT siblings), by their smallest; ``cache_bytes`` has one
    size for each of the machine's last-level caches, ``memory_bytes`` one for each node by id, 0
    where unknown; ``quota`` is the CPU time a second, in CPUs, that the container grants.
    """

    __slots__ = ("cache_bytes", "cores", "cpu", "memory_bytes", "quota")

    def __init__(
        self,
        cpu: Cpu,
        cores: tuple[frozenset[int], ...],
        cache_bytes: tuple[int, ...],
        memory_bytes: dict[int, int],
        quota: float | None,
    ) -> None:
        self.cpu = cpu
        self.cores = cores
        self.cache_bytes = cache_bytes
        self.memory_bytes = memory_bytes
        self.quota = quota


def read(tree: Tree, machine: Machine) -> Details:
    """Return the details of a machine that was read from a tree.

    The machine's notes get those on files that only the details come from.
    """
    notes: list[str] = []
    caches = Caches(tree, notes)
    details = Details(
        hardware.read_cpu(tree, notes),
        _cores(tree, machine, notes),
        tuple(caches.size(min(cpus)) for cpus in machine.llcs),
        {id: _memory(tree, id, notes) for id in machine.nodes},
        cgroups.cpu_quota(cgroups.Groups(tree), notes),
    )
    topology.tell(machine, notes)
    return details


def _cores(tree: Tree, machine: Machine, notes: list[str]) -> tuple[frozenset[int], ...]:
    """Return the cores; a CPU whose siblings the kernel doesn't tell is a core of its own."""
    found: list[frozenset[int]] = []
    for node in machine.nodes.values():
        left = set(node.cpus)
        for cpu in sorted(left):
            if cpu in left:
                path = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
                siblings = cpulists.read(tree, path, notes)
                if siblings is not None and cpu not in siblings:
                    listed, wanted = cpulists.format(siblings), f"CPU {cpu} among them"
                    files.note(notes, path, listed, wanted, "the CPU counts as a core of its own")
                    siblings = None
                core = frozenset((siblings or frozenset()) & left) | {cpu}
                found.append(core)
                left -= core
    return tuple(sorted(found, key=min))


def _memory(tree: Tree, node: int, notes: list[str]) -> int:
    path = f"sys/devices/system/node/node{node}/meminfo"
    text = tree.read(path, 1 << 14)
    for line in text.splitlines():
        words = line.split()  # Node 0 MemTotal:  263729256 kB
        if words[2:3] == ["MemTotal:"] and len(words) > 3:
            size = files.number(words[3], _MOST_KB)
            if size >= 0:
                return size << 10
            text = line
    if text:
        files.note(notes, path, text, "the size MemTotal", "it counts as unknown")
    return 0
