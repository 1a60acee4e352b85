"""Reads what a plan has to know of a machine: nodes, last-level caches, accelerators, allowed CPUs.

Reads sparingly, since a rank does it at interpreter start: of all CPUs that share a cache one is
looked at, and of the PCI functions only those that may be accelerators. Whatever is missing or
full of nonsense is left out, with a note of it, and never raises.
"""

from __future__ import annotations

import os

from loongkit.activation import cgroups, cpulists, files, hardware, pci
from loongkit.numa.caches import Caches
from loongkit.numa.records import Machine, Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from loongkit.activation.files import Tree
    from loongkit.activation.hardware import Accelerator

_NODES = "sys/devices/system/node"
_CPUS = "sys/devices/system/cpu"
_STATUS, _MASK = "proc/self/status", "Cpus_allowed_list:"
# What the kernel itself says where firmware gives no distances, and the largest that it takes.
_NEAR, _FAR, _FARTHEST = 10, 20, 255
_MOST_NODES = 1024  # no kernel is built for more
_MOST_NOTES = 40


def read(root: str | Tree = "/") -> Machine:
    """Return the machine whose files lie below a folder, or in a record.

    Raises:
        NotAMachine: ``root`` is neither, or no CPU is to be found in it.

    """
    tree = files.open_tree(root)
    notes: list[str] = []
    claims = _claims(tree, notes)
    online = _online(tree, claims, notes)
    if not online:
        raise files.NotAMachine(f"{root}: found no CPU in {_CPUS}; wanted {files.WANTED}")
    nodes = _nodes(tree, claims, online, notes)
    everywhere = frozenset().union(*(node.cpus for node in nodes.values()))
    llcs, known = Caches(tree, notes).last_levels([nodes[id].cpus for id in sorted(nodes)])
    accelerators = _placed(tree, hardware.read_accelerators(tree, notes), nodes, notes)
    machine = Machine(
        nodes=nodes,
        llcs=llcs,
        llcs_known=known,
        accelerators=accelerators,
        uuids={card.pci: card.uuid for card in accelerators if card.uuid},
        vendor=hardware.read_cpu(tree, notes).vendor,
        allowed=_allowed(tree, everywhere, notes),
        cpuset=cgroups.cpuset(cgroups.Groups(tree, notes), notes) & everywhere,
    )
    tell(machine, notes)
    return machine


def tell(machine: Machine, notes: list[str]) -> None:
    """Add notes to those of a machine, each once; of a great many the first, and their number."""
    more = [note for note in dict.fromkeys(notes) if note not in machine.notes]
    room = max(_MOST_NOTES - len(machine.notes), 0)
    machine.notes += tuple(more[:room])
    if more[room:]:
        machine.notes += (f"{len(more) - room} more notes of this kind",)


def bring_here(machine: Machine, mask: frozenset[int]) -> None:
    """Leave to a recorded machine what there is of its CPUs here.

    ``mask`` holds those that this process may use; the cpuset is that of this machine, by which a
    mask that somebody narrowed shows.
    """
    recorded = frozenset().union(*(node.cpus for node in machine.nodes.values()))
    tree = files.open_tree("/")
    online = _online(tree, {}, [])
    cpuset = cgroups.cpuset(cgroups.Groups(tree)) & online
    machine.allowed = mask & recorded
    machine.cpuset = (cpuset or online) & recorded


def _claims(tree: Tree, notes: list[str]) -> dict[int, frozenset[int] | None]:
    """Return the CPUs that each node names as its own, by id; None: that can't be read."""
    found: dict[int, frozenset[int] | None] = {}
    for name in tree.names(_NODES):
        digits = name.removeprefix("node")
        id = files.number(digits, _MOST_NODES - 1)
        if name == f"node{id}":
            found[id] = cpulists.read(tree, f"{_NODES}/{name}/cpulist", notes)
        elif name != digits and digits.isdigit():
            wanted = f"a number from 0 to {_MOST_NODES - 1} after 'node'"
            files.note(notes, f"{_NODES}/node*", digits, wanted, "the folder is passed over")
    return {id: found[id] for id in sorted(found)}


def _online(
    tree: Tree, claims: Mapping[int, frozenset[int] | None], notes: list[str]
) -> frozenset[int]:
    path = f"{_CPUS}/online"
    online = cpulists.read(tree, path, notes, f"{_CPUS}/online_map")
    mask = _mask(tree)
    if online:
        lacking = mask - online  # containers may be shown CPUs that are not theirs
        if lacking:
            wanted = f"also {cpulists.format(lacking)}, on which this process may run"
            files.note(notes, path, cpulists.format(online), wanted, "those are taken as well")
        return online | mask
    choices = (
        (frozenset().union(*(cpus for cpus in claims.values() if cpus)), "those of the nodes"),
        (_folders(tree), f"those that have a folder in {_CPUS}"),
        (mask, "those on which this process may run"),
        (frozenset(range(os.cpu_count() or 1) if tree.live else ()), "as many as Python counts"),
    )
    for cpus, whose in choices:
        if cpus:
            notes.append(f"{path}: found no CPU in it; {whose} are taken instead")
            return cpus | mask
    return frozenset()


def _folders(tree: Tree) -> frozenset[int]:
    names = tree.names(_CPUS)
    found = {name: files.number(name.removeprefix("cpu"), cpulists.MOST - 1) for name in names}
    return frozenset(cpu for name, cpu in found.items() if name == f"cpu{cpu}")


def _mask(tree: Tree) -> frozenset[int]:
    """Return the CPUs on which this process may run; none where the files are not those here."""
    if not tree.live:
        return frozenset()
    try:
        return frozenset(os.sched_getaffinity(0))
    except OSError:  # a sandbox
        return frozenset()


def _allowed(tree: Tree, everywhere: frozenset[int], notes: list[str]) -> frozenset[int]:
    """Return the CPUs that the process may use, of those that the machine has."""
    if tree.live:
        return (_mask(tree) or everywhere) & everywhere
    text = tree.read(_STATUS, cpulists.BYTES)
    lines = [line for line in text.splitlines() if line.startswith(_MASK)]
    if not lines:
        if text:
            files.note(notes, _STATUS, text, f"a line with {_MASK}", "all CPUs are taken instead")
        return everywhere
    listed = lines[0].removeprefix(_MASK)
    try:
        named = cpulists.parse(listed)
    except ValueError:
        named = frozenset()
    allowed = named & everywhere
    if not allowed or named != allowed:
        wanted = f"a set of the CPUs {cpulists.format(everywhere)}"
        instead = f"{cpulists.format(allowed) or 'all CPUs'} are taken instead"
        files.note(notes, f"{_STATUS}: {_MASK[:-1]}", listed, wanted, instead)
    return allowed or everywhere


def _nodes(
    tree: Tree,
    claims: Mapping[int, frozenset[int] | None],
    online: frozenset[int],
    notes: list[str],
) -> dict[int, Node]:
    """Return the nodes by id; one node of all CPUs where the kernel shows none."""
    cpus: dict[int, frozenset[int]] = {}
    left = online
    for id, claimed in claims.items():
        path = f"{_NODES}/node{id}"
        if claimed is None:
            notes.append(f"{path}: its CPUs are unknown; the node is left out")
            continue
        cpus[id] = claimed & left
        for others, what in (
            (claimed - online, "which are not online"),
            (claimed & online - left, "which a node before it has"),
        ):
            if others:
                found = f"{cpulists.format(others)} in it, {what}"
                notes.append(f"{path}/cpulist: found CPUs {found}; they are left out")
        left -= claimed
    if not any(cpus.values()):
        if claims:
            notes.append(f"{_NODES}: found no node with CPUs; one node is taken to have them all")
        return {0: Node(0, online, {0: _NEAR}, _package(tree, online, notes))}
    if left:
        notes.append(f"{_NODES}: CPUs {cpulists.format(left)} are in no node and are left out")
    return {
        id: Node(id, own, _distances(tree, id, list(claims), notes), _package(tree, own, notes))
        for id, own in cpus.items()
    }


def _distances(tree: Tree, id: int, ids: list[int], notes: list[str]) -> dict[int, int]:
    """Return the distances from a node; the file has one for each online node, not for each id."""
    if len(ids) > 1:
        path = f"{_NODES}/node{id}/distance"
        text = tree.read(path, cpulists.BYTES)
        words = text.split()
        found = dict(zip(ids, (files.number(word, _FARTHEST) for word in words), strict=False))
        if len(words) == len(ids) and min(found.values()) == found[id] == _NEAR:
            return found
        if text:
            wanted = f"{len(ids)} numbers from {_NEAR} to {_FARTHEST}, {_NEAR} for itself"
            instead = f"{_NEAR} and {_FAR} are taken instead"
            found_words = f"{len(words)} words, {files.shown(text)}"
            notes.append(f"{path}: found {found_words}; wanted {wanted}; {instead}")
    return {other: _NEAR if other == id else _FAR for other in ids}


def _package(tree: Tree, cpus: frozenset[int], notes: list[str]) -> int:
    if not cpus:
        return -1
    path = f"{_CPUS}/cpu{min(cpus)}/topology/physical_package_id"
    return _number_in(tree, path, "the number of a package", notes)


def _number_in(tree: Tree, path: str, wanted: str, notes: list[str]) -> int:
    """Return the number in a file, or -1: the kernel's word for what it doesn't know."""
    text = tree.read(path)
    found = files.number(text)
    if found < 0 and text and text.strip() != "-1":
        files.note(notes, path, text, wanted, "it counts as unknown")
    return found


def _placed(
    tree: Tree,
    cards: tuple[Accelerator, ...],
    nodes: Mapping[int, Node],
    notes: list[str],
) -> tuple[Accelerator, ...]:
    """Return the accelerators with the nodes they hang on, as far as these can be told."""
    for card in cards:
        if card.numa_node not in nodes:
            card.numa_node = _node_of(tree, card.pci, nodes, notes)
            path = f"{pci.DEVICES}/{card.pci}/numa_node"
            text = tree.read(path)
            instead = f"node {card.numa_node} is taken, by what lies around it"
            if card.numa_node < 0:
                instead = "its node is unknown"
            elif not text or text.strip() == "-1":
                continue
            files.note(notes, path, text, f"one of the nodes {cpulists.format(nodes)}", instead)
    return cards


def _node_of(tree: Tree, address: str, nodes: Mapping[int, Node], notes: list[str]) -> int:
    """Return the node of a function that doesn't tell it itself, or -1.

    Never node 0 for want of a better: that would put every process of a job on one node.
    """
    with_cpus = [node for node in nodes.values() if node.cpus]
    if len(with_cpus) == 1:
        return with_cpus[0].id
    for place in (address, *pci.bridges(tree, address)):
        folder = f"{pci.DEVICES}/{place}"
        if place != address:
            id = _number_in(tree, f"{folder}/numa_node", "the number of a node", notes)
            if id in nodes:
                return id
        near = cpulists.read(tree, f"{folder}/local_cpulist", notes, f"{folder}/local_cpus")
        for node in with_cpus:
            if near and near <= node.cpus:
                return node.id
    return -1
