"""Reads what a plan has to know of a machine: nodes, last-level caches, accelerators, allowed CPUs.

Reads sparingly, since a rank does it at interpreter start: of all CPUs that share a cache one is
looked at, and of the PCI functions only those that may be accelerators. Whatever is missing or
full of nonsense is left out, with a note of it, and never raises.
"""

from __future__ import annotations

import os

from loongkit.activation import cgroups, files, hardware, pci
from loongkit.numa import cpulists
from loongkit.numa.caches import Caches
from loongkit.numa.records import Machine, Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from loongkit.activation.files import Tree
    from loongkit.activation.hardware import Accelerator

_NODES = "sys/devices/system/node"
_CPUS = "sys/devices/system/cpu"
# What the kernel itself says where firmware gives no distances.
_NEAR, _FAR = 10, 20


def read(root: str | Tree = "/") -> Machine:
    """Return the machine whose files lie below a folder, or in a record.

    Raises:
        NotAMachine: ``root`` is neither, or no CPU is to be found in it.

    """
    tree = files.open_tree(root)
    notes: list[str] = []
    online = _online(tree)
    if not online:
        raise files.NotAMachine(f"{root}: found no CPU in {_CPUS}; wanted {files.WANTED}")
    nodes = _nodes(tree, online, notes)
    caches = Caches(tree, notes)
    llcs, known = caches.last_levels([nodes[id].cpus for id in sorted(nodes)])
    accelerators = _placed(tree, hardware.read_accelerators(tree), nodes, notes)
    return Machine(
        nodes=nodes,
        llcs=llcs,
        llcs_known=known,
        accelerators=accelerators,
        uuids={card.pci: card.uuid for card in accelerators if card.uuid},
        vendor=hardware.read_cpu(tree).vendor,
        allowed=_allowed(tree, online),
        cpuset=cgroups.cpuset(cgroups.Groups(tree)) & online,
        notes=tuple(notes),
    )


def bring_here(machine: Machine, mask: frozenset[int]) -> None:
    """Leave to a recorded machine what there is of its CPUs here.

    ``mask`` holds those that this process may use; the cpuset is that of this machine, by which a
    mask that somebody narrowed shows.
    """
    recorded = frozenset().union(*(node.cpus for node in machine.nodes.values()))
    tree = files.open_tree("/")
    online = _online(tree)
    cpuset = cgroups.cpuset(cgroups.Groups(tree)) & online
    machine.allowed = mask & recorded
    machine.cpuset = (cpuset or online) & recorded


def _online(tree: Tree) -> frozenset[int]:
    online = cpulists.read(tree, f"{_CPUS}/online", [], f"{_CPUS}/online_map")
    if not online:
        folders = (name[3:] for name in tree.names(_CPUS) if name.startswith("cpu"))
        online = frozenset(
            int(digits) for digits in folders if digits.isascii() and digits.isdigit()
        )
    if not online and tree.live:  # a sandbox that shows no /sys
        return _allowed(tree, frozenset(range(os.cpu_count() or 1)))
    return online


def _allowed(tree: Tree, online: frozenset[int]) -> frozenset[int]:
    if tree.live:
        try:
            return frozenset(os.sched_getaffinity(0))
        except OSError:  # a sandbox
            return online
    for line in tree.read("proc/self/status").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            try:
                return (cpulists.parse(line.partition(":")[2]) & online) or online
            except ValueError:
                break
    return online


def _nodes(tree: Tree, online: frozenset[int], notes: list[str]) -> dict[int, Node]:
    """Return the nodes by id; one node of all CPUs where the kernel shows none."""
    ids = sorted(
        int(name[4:])
        for name in tree.names(_NODES)
        if name.startswith("node") and name[4:].isascii() and name[4:].isdigit()
    )
    cpus: dict[int, frozenset[int]] = {}
    left = online
    for id in ids:
        found = cpulists.read(tree, f"{_NODES}/node{id}/cpulist", notes)
        if found is None:
            notes.append(f"{_NODES}/node{id}: its CPUs are unknown; the node is left out")
            continue
        cpus[id] = found & left
        left -= found
    if not any(cpus.values()):
        return {0: Node(0, online, {0: _NEAR}, _package(tree, online))}
    if left:
        notes.append(f"{_NODES}: CPUs {cpulists.format(left)} are in no node and are left out")
    return {
        id: Node(id, cpus[id], _distances(tree, id, ids, notes), _package(tree, cpus[id]))
        for id in cpus
    }


def _distances(tree: Tree, id: int, ids: list[int], notes: list[str]) -> dict[int, int]:
    """Return the distances from a node; the file has one for each online node, not for each id."""
    if len(ids) > 1:
        path = f"{_NODES}/node{id}/distance"
        words = tree.read(path, cpulists.BYTES).split()
        if len(words) == len(ids) and min(map(_number, words)) >= 0:
            return {other: int(word) for other, word in zip(ids, words, strict=True)}
        if words:
            wanted = f"wanted {len(ids)} numbers; {_NEAR} and {_FAR} are taken instead"
            notes.append(f"{path}: found {len(words)} words; {wanted}")
    return {other: _NEAR if other == id else _FAR for other in ids}


def _package(tree: Tree, cpus: frozenset[int]) -> int:
    if not cpus:
        return -1
    return _number(tree.read(f"{_CPUS}/cpu{min(cpus)}/topology/physical_package_id"))


def _number(text: str) -> int:
    """Return a number of some digits, or -1."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


def _placed(
    tree: Tree,
    cards: tuple[Accelerator, ...],
    nodes: Mapping[int, Node],
    notes: list[str],
) -> tuple[Accelerator, ...]:
    """Return the accelerators with the nodes they hang on, as far as these can be told."""
    for card in cards:
        if card.numa_node not in nodes:
            found = card.numa_node
            card.numa_node = _node_of(tree, card.pci, nodes)
            if card.numa_node < 0:
                notes.append(
                    f"{pci.DEVICES}/{card.pci}/numa_node: found {found}; wanted one of the nodes "
                    f"{cpulists.format(nodes)}; its node is unknown"
                )
    return cards


def _node_of(tree: Tree, address: str, nodes: Mapping[int, Node]) -> int:
    """Return the node of a function that doesn't tell it itself, or -1.

    Never node 0 for want of a better: that would put every process of a job on one node.
    """
    with_cpus = [node for node in nodes.values() if node.cpus]
    if len(with_cpus) == 1:
        return with_cpus[0].id
    for place in (address, *pci.bridges(tree, address)):
        folder = f"{pci.DEVICES}/{place}"
        id = _number(tree.read(f"{folder}/numa_node"))
        if id in nodes:
            return id
        near = cpulists.read(tree, f"{folder}/local_cpulist", [], f"{folder}/local_cpus")
        for node in with_cpus:
            if near and near <= node.cpus:
                return node.id
    return -1
