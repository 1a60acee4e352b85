"""Renders a machine and the places of its ranks: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from loongkit import __version__
from loongkit.activation.cpulists import format as cpu_list
from loongkit.activation.hardware import Cpu
from loongkit.cli.output import counted, hanging
from loongkit.cli.topology import Rank, View
from loongkit.numa.records import Node

_HEAD = 16


def as_text(view: View) -> str:
    """Return the machine as text, about 100 columns wide; longer where a table has to be."""
    lines = [*_summary(view), "", *_nodes(view), "", *_caches(view)]
    if len(view.machine.nodes) > 1:
        lines += ["", *_distances(view)]
    lines += ["", *_accelerators(view), "", *_ranks(view)]
    for title, texts in (
        ("Problems with the settings:", view.problems),
        ("What could not be read of the machine:", view.machine.notes),
    ):
        if texts:
            lines += ["", title, *(hanging("  ", text) for text in texts)]
    return "\n".join(lines) + "\n"


def _line(title: str, text: str) -> str:
    return hanging(f"{title + ':':<{_HEAD}}", text)


def _summary(view: View) -> list[str]:
    return [
        _line("CPU", cpu_text(view.details.cpu)),
        _line("machine", parts(view)),
        _line("allowed CPUs", allowed(view)),
        _line("CPU quota", quota(view)),
    ]


def cpu_text(cpu: Cpu) -> str:
    """Return vendor, model and architecture of a processor."""
    vendor = "" if cpu.vendor == "other" else cpu.vendor
    return ", ".join(filter(None, (vendor, cpu.model, cpu.architecture)))


def parts(view: View) -> str:
    """Return how many there are of each kind of part."""
    machine = view.machine
    packages = len({node.package for node in machine.nodes.values() if node.cpus})
    counts = [
        (packages, "package"),
        (len(machine.nodes), "NUMA node"),
        (len(machine.llcs) if machine.llcs_known else 0, "L3 group"),
        (len(view.details.cores), "core"),
        (sum(map(len, machine.llcs)), "CPU"),
        (len(machine.accelerators), "accelerator"),
    ]
    return ", ".join(counted(number, name) for number, name in counts if number)


def allowed(view: View) -> str:
    """Return which CPUs this process may use."""
    count, everything = len(view.machine.allowed), sum(map(len, view.machine.llcs))
    if count == everything:
        return f"all {count}"
    return f"{cpu_list(view.machine.allowed)} ({count} of {everything})"


def quota(view: View) -> str:
    """Return the CPU time that the container grants."""
    bound = view.details.quota
    return "none" if bound is None else f"the time of {counted(bound, 'CPU')}"


def bytes_text(size: int) -> str:
    """Return a size in the largest unit that leaves it above 1."""
    for power, unit in ((40, "TB"), (30, "GB"), (20, "MB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.3g} {unit}" if power == 40 else f"{size >> power} {unit}"
    return f"{size >> 10} KB" if size else ""


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _or_dash(text: str) -> str:
    return text or "-"


def _nodes(view: View) -> list[str]:
    rows = [("NODE", "PACKAGE", "MEMORY", "CORES", "L3 GROUPS", "CPUS")]
    for node in view.machine.nodes.values():
        rows.append(
            (
                str(node.id),
                str(node.package) if node.package >= 0 else "-",
                _or_dash(bytes_text(view.details.memory_bytes[node.id])),
                str(len(view.cores_of(node.cpus))),
                str(len(view.llcs_of(node))) if view.machine.llcs_known else "unknown",
                cpu_list(node.cpus) or "none: memory alone",
            )
        )
    return _table(rows)


def _caches(view: View) -> list[str]:
    if not view.machine.llcs_known:
        return ["The kernel does not show which CPUs share a cache."]
    lines = ["L3 groups (the CPUs that share a last-level cache), by node:"]
    for node in view.machine.nodes.values():
        groups = view.llcs_of(node)
        if groups:
            sizes = {bytes_text(size) for _, size in groups} - {""}
            size = f" of {', '.join(sorted(sizes))}" if sizes else ""
            texts = [cpu_list(cpus) for cpus, _ in groups]
            lines.append(
                hanging(f"  node {node.id:<4}", f"{len(groups)}{size}: " + "  ".join(texts))
            )
    return lines


def _distances(view: View) -> list[str]:
    ids = sorted(view.machine.nodes)
    rows = [("distance", *map(str, ids))]
    for id in ids:
        node = view.machine.nodes[id]
        rows.append((f"node {id}", *(str(node.distances.get(other, "-")) for other in ids)))
    return _table(rows)


def _accelerators(view: View) -> list[str]:
    if not view.machine.accelerators:
        return ["No accelerator found."]
    rows = [("ACCELERATOR", "NODE", "NAME")]
    for card in view.machine.accelerators:
        node = str(card.numa_node) if card.numa_node >= 0 else "unknown"
        rows.append((card.pci, node, card.name))
    return _table(rows)


def heading(view: View) -> str:
    """Return how many processes are shown, and what would place them."""
    both = (("NUMA_AFFINITY", view.on), ("SUBCGROUPS", view.groups_on))
    names = [name for name, on in both if on]
    state = " and ".join(names) + " (on)"
    if not names:
        state = "NUMA_AFFINITY (off with these settings; this is what it would do)"
    return f"{counted(len(view.ranks), 'process', 'processes')} here, under {state}"


def chosen(view: View) -> str:
    """Return what leaves to a process only some of the accelerators, "" where nothing does."""
    if not view.chosen_by:
        return ""
    everything = counted(len(view.machine.accelerators), "accelerator")
    return f"{view.chosen_by} leaves {view.visible} of {everything} visible."


def ranks_text(numbers: Iterable[int]) -> str:
    """Return "rank 0" or "ranks 0-3"."""
    found = frozenset(numbers)
    return f"rank{'s' * (len(found) > 1)} {cpu_list(found)}"


def _ranks(view: View) -> list[str]:
    lines = [hanging("", f"A job of {heading(view)}:")]
    if view.options:
        lines.append(hanging("options: ", str(view.options)))
    lines += filter(None, [chosen(view)])
    rows = [("RANK", "ACCELERATOR", "MEMORY", "TRAINING", "DATA WORKERS")]
    for rank in view.ranks:
        plan = rank.plan
        train, data = ("not bound", "not bound")
        if plan.active:
            train, data = cpu_list(plan.train), cpu_list(plan.data)
        memory = f"node {plan.memory}" if plan.memory is not None else "-"
        rows.append((str(rank.number), _or_dash(rank.device), memory, train, data))
    lines += _table(rows)
    for text, numbers in _reasons(view.ranks).items():
        everybody = 1 < len(numbers) == len(view.ranks)
        lines.append(hanging(f"  {'all ranks' if everybody else ranks_text(numbers)}: ", text))
    return lines


def _reasons(ranks: Iterable[Rank]) -> dict[str, list[int]]:
    """Return each reason with the ranks that have it, warnings marked."""
    found: dict[str, list[int]] = {}
    for rank in ranks:
        for code, text in dict.fromkeys(rank.reasons):
            mark = "warning: " if text in rank.warnings else ""
            found.setdefault(f"{mark}{text} ({code})", []).append(rank.number)
    return found


def as_json(view: View) -> str:
    """Return the machine as one JSON object. Keys are only ever added, not renamed or removed.

    loongkit, cpu {vendor, model, architecture}, nodes [id, package (-1: unknown), cpus,
    memory_bytes (0: unknown), distances {id: distance}], caches_known, caches [cpus, node, bytes],
    cores [cpus], accelerators [pci, node (-1: unknown), name, vendor, kind], allowed, cpuset ("":
    not known), quota (CPUs; null: none), notes, visible (accelerators that a process may use),
    numa_affinity {on, options}, subcgroups {on}, ranks [rank, accelerator, bound, training,
    data_workers, memory_node, reasons [{code, text}], warnings], problems. Sets of CPUs are texts
    in the kernel's form, such as "0-3,8".
    """
    return json.dumps(_document(view), indent=2) + "\n"


def _document(view: View) -> dict[str, Any]:
    machine, found = view.machine, view.details
    cpu = found.cpu
    return {
        "loongkit": __version__,
        "cpu": {"vendor": cpu.vendor, "model": cpu.model, "architecture": cpu.architecture},
        "nodes": [_node(view, node) for node in machine.nodes.values()],
        "caches_known": machine.llcs_known,
        "caches": [
            {"cpus": cpu_list(cpus), "node": view.node_of(cpus).id, "bytes": size}
            for cpus, size in zip(machine.llcs, found.cache_bytes, strict=True)
        ],
        "cores": [cpu_list(core) for core in found.cores],
        "accelerators": [
            {
                "pci": card.pci,
                "node": card.numa_node,
                "name": card.name,
                "vendor": card.vendor,
                "kind": card.kind,
            }
            for card in machine.accelerators
        ],
        "allowed": cpu_list(machine.allowed),
        "cpuset": cpu_list(machine.cpuset),
        "quota": found.quota,
        "notes": list(machine.notes),
        "visible": view.visible,
        "numa_affinity": {"on": view.on, "options": view.options},
        "subcgroups": {"on": view.groups_on},
        "ranks": [_rank(rank) for rank in view.ranks],
        "problems": list(view.problems),
    }


def _node(view: View, node: Node) -> dict[str, Any]:
    return {
        "id": node.id,
        "package": node.package,
        "cpus": cpu_list(node.cpus),
        "memory_bytes": view.details.memory_bytes[node.id],
        "distances": {str(id): distance for id, distance in node.distances.items()},
    }


def _rank(rank: Rank) -> dict[str, Any]:
    return {
        "rank": rank.number,
        "accelerator": rank.device,
        "bound": rank.plan.active,
        "training": cpu_list(rank.plan.train),
        "data_workers": cpu_list(rank.plan.data),
        "memory_node": rank.plan.memory,
        "reasons": [{"code": code, "text": text} for code, text in rank.reasons],
        "warnings": list(rank.warnings),
    }
