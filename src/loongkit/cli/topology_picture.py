"""Draws a machine: packages, NUMA nodes, L3 groups, cores and accelerators, and whose they are."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from loongkit.activation.cpulists import format as cpu_list
from loongkit.activation.hardware import Accelerator
from loongkit.cli.topology import Rank, View
from loongkit.cli.topology_blocks import (
    Block,
    box,
    column,
    fitting,
    grid,
    heading_width,
    lines,
    put,
)
from loongkit.cli.topology_shapes import Picture, Rectangle, Text, text_width
from loongkit.cli.topology_text import (
    allowed,
    bytes_text,
    chosen,
    heading,
    parts,
    quota,
    ranks_text,
)
from loongkit.numa.records import Node

_SMALL, _SIZE, _TITLE = 8.0, 10.0, 12.0
_MARGIN = 12.0

# Wide enough for a node of 12 L3 groups, and for two of those side by side.
_NODE_WIDTH, _PACKAGE_WIDTH, _MACHINE_WIDTH = 560.0, 780.0, 1560.0

# Space for two accelerators side by side, also where the caches of their node take less.
_CARDS_WIDTH = 360.0

_NAME_LETTERS, _REASON_LETTERS = 28, 150

_PACKAGE, _NODE, _CACHE = "#f3f3f3", "#e4ebe0", "#f4f0e2"
_EDGE, _IDLE, _FORBIDDEN = "#909090", "#ffffff", "#c8c8c8"

#: Colours of ranks, far apart in hue for neighbours and light enough for dark print.
_COLOURS = (
    *("#f0a35e", "#7fb2e5", "#8fca6b", "#e38fbe", "#dcc447", "#a996de", "#5fcabf", "#ea8379"),
    *("#bfa077", "#93aecb", "#b8da62", "#cc9bdc", "#ecbf8b", "#79bf91", "#dd86a0", "#9dbfc0"),
)


def draw(view: View) -> Picture:
    """Return the picture of a machine and of the ranks on it."""
    packages = _packages(view)
    blocks = [lines(_titles(view), _TITLE), fitting(packages, _MACHINE_WIDTH)]
    width = blocks[1].width
    memory = [_memory_node(view, node) for node in view.machine.nodes.values() if not node.cpus]
    if memory:
        blocks.append(fitting(memory, width))
    homeless = view.cards_of(-1)
    if homeless:
        cards = fitting([_card(view, card) for card in homeless], width)
        blocks.append(box("Accelerators on an unknown node", cards, _PACKAGE, _EDGE))
    blocks.append(_legend(view))
    picture = Picture(0, 0)
    put(picture, column(blocks), _MARGIN, _MARGIN)
    picture.width += _MARGIN
    picture.height += _MARGIN
    return picture


def _titles(view: View) -> list[str]:
    cpu = view.details.cpu
    limits = [f"allowed CPUs: {allowed(view)}", f"CPU quota: {quota(view)}"]
    return [f"{cpu.model or cpu.vendor} ({cpu.architecture})", parts(view), "; ".join(limits)]


def _packages(view: View) -> list[Block]:
    found: dict[int, list[Node]] = {}
    for node in view.machine.nodes.values():
        if node.cpus:
            found.setdefault(node.package, []).append(node)
    width = max(text_width(cpu_list(core), _SMALL) for core in view.details.cores) + 6
    return [
        box(
            f"Package {id}" if id >= 0 else "Package unknown",
            fitting([_node(view, node, width) for node in nodes], _PACKAGE_WIDTH),
            _PACKAGE,
            _EDGE,
        )
        for id, nodes in found.items()
    ]


def _node(view: View, node: Node, cell_width: float) -> Block:
    caches = [_cache(view, cpus, size, cell_width) for cpus, size in view.llcs_of(node)]
    blocks = [fitting(caches, _NODE_WIDTH)]
    cards = view.cards_of(node.id)
    if cards:
        width = max(blocks[0].width, _CARDS_WIDTH)
        blocks.append(fitting([_card(view, card) for card in cards], width))
    memory = bytes_text(view.details.memory_bytes[node.id])
    return box(f"NUMA node {node.id}", column(blocks), _NODE, _EDGE, memory)


def _memory_node(view: View, node: Node) -> Block:
    memory = bytes_text(view.details.memory_bytes[node.id])
    return box(f"NUMA node {node.id}", lines(["memory alone"], _SIZE), _NODE, _EDGE, memory)


def _cache(view: View, cpus: frozenset[int], size: int, cell_width: float) -> Block:
    cores = view.cores_of(cpus)
    columns = min(4, len(cores)) if len(cores) <= 8 else 8
    name = "L3" if view.machine.llcs_known else "caches unknown"
    heading = " ".join(filter(None, (name, bytes_text(size))))
    owners = _owners(view, cpus)
    cell_width = max(cell_width, heading_width(heading, owners) / columns)
    cells = Block(0, 0)
    for number, core in enumerate(cores):
        cell = _core(view, core, cell_width)
        put(cells, cell, number % columns * cell.width, number // columns * cell.height)
    return box(heading, cells, _CACHE, _EDGE, owners)


def _core(view: View, core: frozenset[int], width: float) -> Block:
    """Return the cell of one core: its CPUs, on the colours of the ranks that it belongs to."""
    height = _SMALL + 6
    usable = core & view.machine.allowed
    cell = Block(width, height)
    background = _IDLE if usable else _FORBIDDEN
    cell.shapes.append(Rectangle(0, 0, width, height, background, _EDGE))
    users = [rank for rank in view.bound if core & (rank.plan.train | rank.plan.data)]
    for number, rank in enumerate(users):
        colour = _colour(rank) if core & rank.plan.train else _tint(_colour(rank))
        left, right = (round(1 + (width - 2) * n / len(users), 1) for n in (number, number + 1))
        cell.shapes.append(Rectangle(left, 1, right - left, height - 2, colour, colour))
    text = cpu_list(core)
    cell.shapes.append(Text((width - text_width(text, _SMALL)) / 2, 3, text, _SMALL))
    return cell


def _owners(view: View, cpus: frozenset[int]) -> str:
    """Return whose a cache is: the same for readers who don't see the colours."""
    found: dict[str, list[int]] = {"": [], "training ": [], "workers ": []}
    for rank in view.bound:
        trains, works = bool(cpus & rank.plan.train), bool(cpus & rank.plan.data)
        if trains or works:
            role = "" if trains and works else "training " if trains else "workers "
            found[role].append(rank.number)
    return ", ".join(f"{role}{ranks_text(numbers)}" for role, numbers in found.items() if numbers)


def _card(view: View, card: Accelerator) -> Block:
    users = [rank for rank in view.ranks if rank.device == card.pci]
    fill = _colour(users[0]) if users and users[0].plan.active else _IDLE
    name = textwrap.shorten(card.name, _NAME_LETTERS, placeholder="…")
    whose = ranks_text(rank.number for rank in users) if users else "no rank"
    content = lines([name, whose], _SIZE)
    return box(card.pci, content, fill, _EDGE)


def _legend(view: View) -> Block:
    below = [*filter(None, [chosen(view)])]
    for reason in dict.fromkeys(rank.cause[1] for rank in view.ranks if not rank.plan.active):
        below += textwrap.wrap(f"not bound: {reason}", _REASON_LETTERS, subsequent_indent="    ")
    if view.options:
        below.append(f"options: {view.options}")
    if any(rank.plan.train != rank.plan.data for rank in view.bound):
        below.append("full colour: training process; light colour: its data workers alone")
    if len(view.machine.allowed) < sum(map(len, view.machine.llcs)):
        below.append("grey: CPUs that this process may not use")
    blocks = [grid([_legend_row(rank) for rank in view.ranks], 1)]
    if below:
        blocks.append(lines(below, _SIZE))
    return box(heading(view), column(blocks), "#ffffff", _EDGE)


def _legend_row(rank: Rank) -> Block:
    found = Block(0, 0)
    fill = _colour(rank) if rank.plan.active else _IDLE
    found.shapes.append(Rectangle(0, 0, 2 * _SIZE, _SIZE, fill, _EDGE))
    put(found, lines(["  ".join(_legend_texts(rank))], _SIZE), 3 * _SIZE, 0)
    return found


def _legend_texts(rank: Rank) -> Iterable[str]:
    plan = rank.plan
    yield f"rank {rank.number:<3}"
    yield rank.device or "no accelerator known"
    if not plan.active:
        yield "not bound"
        return
    if plan.train == plan.data:
        yield f"training and data workers {cpu_list(plan.train)}"
    else:
        yield f"training {cpu_list(plan.train)}  data workers {cpu_list(plan.data)}"
    if plan.memory is not None:
        yield f"memory of node {plan.memory}"


def _colour(rank: Rank) -> str:
    return _COLOURS[rank.number % len(_COLOURS)]


def _tint(colour: str) -> str:
    """Return a colour mixed with white."""
    parts = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    return "#" + "".join(f"{255 - (255 - part) * 2 // 5:02x}" for part in parts)
