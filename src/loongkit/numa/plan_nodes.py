"""The nodes of a plan: where an accelerator is at home, and who owns the nodes without one.

Pure functions on a machine's record; start-up code of the ranks of a job.
"""

from __future__ import annotations

from loongkit.activation import cpulists, hardware

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from loongkit.numa.records import Machine

#: Stands for a distance that the kernel does not give; its own numbers end at 254.
_FAR = 255


class Reasons:
    """What was decided, in order, and which of it the user should hear of."""

    __slots__ = ("pairs", "warnings")

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []
        self.warnings: list[str] = []

    def say(self, code: str, text: str, *, warn: bool = False) -> None:
        """Add a decision."""
        self.pairs.append((code, text))
        if warn:
            self.warnings.append(text)


def with_cpus(machine: Machine) -> list[int]:
    """Return the ids of the nodes that have CPUs, in order."""
    return sorted(id for id, node in machine.nodes.items() if node.cpus)


def homes(machine: Machine) -> dict[str, int]:
    """Return the CPU-bearing node of each accelerator whose node can be known, by PCI address.

    That is the node it hangs on; of a node of memory alone (GPU memory that the kernel manages),
    the nearest with CPUs. A host with a single CPU-bearing node is home to all. A node that
    the firmware does not name (-1) stays unknown: it is not node 0.
    """
    nodes = with_cpus(machine)
    found: dict[str, int] = {}
    for accelerator in machine.accelerators:
        node = machine.nodes.get(accelerator.numa_node)
        if len(nodes) == 1:
            found[accelerator.pci] = nodes[0]
        elif node is not None and node.cpus:
            found[accelerator.pci] = node.id
        elif node is not None and any(id in node.distances for id in nodes):
            found[accelerator.pci] = _nearest(machine, node.id, nodes)
    return found


def _nearest(machine: Machine, id: int, candidates: Iterable[int]) -> int:
    """Return the candidate next to a node; at a tie that of its package, then the lower id."""
    package = machine.nodes[id].package

    def order(candidate: int) -> tuple[int, bool, int]:
        node = machine.nodes[candidate]
        distance = node.distances.get(id, machine.nodes[id].distances.get(candidate, _FAR))
        return distance, package < 0 or node.package != package, candidate

    return min(candidates, key=order)


def neighbours(machine: Machine, node: int, gpu_nodes: Collection[int]) -> list[int]:
    """Return the nodes without an accelerator that belong to a node with one: it is the nearest."""
    return [
        id
        for id in with_cpus(machine)
        if id not in gpu_nodes and gpu_nodes and _nearest(machine, id, gpu_nodes) == node
    ]


def job_accelerators(machine: Machine, devices: Iterable[str]) -> list[str]:
    """Return the PCI addresses of all physical accelerators of the kinds that the job trains on.

    Those that this process may not see count as well: a container with two of a host's eight
    GPUs is on a symmetric host. A display card of another vendor does not count.
    """
    kinds = {each.kind for each in machine.accelerators}
    if len(kinds) > 1:
        used = set(devices)
        kinds = {each.kind for each in machine.accelerators if each.pci in used}
        kinds = kinds or {hardware.summary_kind(machine.accelerators)}
    return [each.pci for each in machine.accelerators if each.kind in kinds]


def counts(machine: Machine, addresses: Iterable[str], home: Mapping[str, int]) -> dict[int, int]:
    """Return how many of some accelerators are at home on each node that has CPUs."""
    found = dict.fromkeys(with_cpus(machine), 0)
    for address in addresses:
        if address in home:
            found[home[address]] += 1
    return found


def cpus_of(machine: Machine, nodes: Iterable[int]) -> frozenset[int]:
    """Return the CPUs of some nodes on which this process may run."""
    return frozenset().union(*(machine.nodes[id].cpus & machine.allowed for id in nodes))


def names(nodes: Iterable[int]) -> str:
    """Return "node 2" or "nodes 2,3"."""
    ids = frozenset(nodes)
    return f"node{'s' if len(ids) > 1 else ''} {cpulists.format(ids)}"
