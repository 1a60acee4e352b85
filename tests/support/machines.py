"""Real machines, as facts in tests/numa/machines, and the files that their kernels would show.

Enough of them for our reader and for hwloc's lstopo.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from loongkit.activation.files import Record

MACHINES = Path(__file__).parents[1] / "numa" / "machines"
NAMES = sorted(path.stem for path in MACHINES.glob("*.json"))

Cpus = frozenset[int]


def cpus(text: str) -> Cpus:
    """Return the CPUs of a list such as "0-3,8"."""
    found: set[int] = set()
    for item in text.split(",") if text else ():
        first, _, last = item.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def sets(spec: Any) -> list[Cpus]:
    """Return sets of CPUs: a list of them, or the first and how often it comes back, shifted."""
    if isinstance(spec, list):
        return [cpus(text) for text in spec]
    first = cpus(spec["first"])
    return [
        frozenset(cpu + number * spec["step"] for cpu in first) for number in range(spec["times"])
    ]


class Facts:
    """What is known of one machine."""

    def __init__(self, name: str) -> None:
        self.spec: dict[str, Any] = json.loads((MACHINES / f"{name}.json").read_text("utf-8"))
        self.ids: list[int] = self.spec["nodes"]["ids"]
        self.nodes = dict(zip(self.ids, sets(self.spec["nodes"]["cpus"]), strict=True))
        self.online: Cpus = frozenset().union(*self.nodes.values())
        self.packages = sets(self.spec["packages"])
        self.package_ids: list[int] = self.spec.get("package_ids", [*range(len(self.packages))])
        self.cores = sets(self.spec["cores"])
        #: Level, type, size in KiB, and the CPUs that share each.
        self.caches: list[tuple[int, str, int, list[Cpus]]] = [
            (level, kind, size, self.cores if shared == "cores" else sets(shared))
            for level, kind, size, shared in self.spec["caches"]
        ]
        cards = self.spec.get("accelerators", {})
        #: PCI addresses of accelerators with their nodes.
        self.cards: dict[str, int] = cards.get("nodes", {})

    def last_level(self) -> set[Cpus]:
        """Return the sets that share a last-level cache, as they are cut by the nodes."""
        outer = self.caches[-1][3] if self.caches else list(self.nodes.values())
        return {piece & node for piece in outer for node in self.nodes.values() if piece & node}


def record(name: str) -> Record:
    """Return all files that a machine's kernel would show, in memory: quick, and free to change."""
    files = _written(name)
    found = dict(files.texts)
    below: dict[str, list[str]] = {}
    for path in files.texts:
        below.setdefault(os.path.dirname(path), []).append(path)
    for link, target in files.links.items():
        real = os.path.normpath(f"{os.path.dirname(link)}/{target}")
        for path in below[real]:
            found[f"{link}/{os.path.basename(path)}"] = files.texts[path]
    return Record(found, dict(files.links))


def tree(name: str, root: Path) -> Path:
    """Write the same files below a folder, and return it."""
    files = _written(name)
    made: set[str] = set()
    for path, text in files.texts.items():
        folder = os.path.dirname(path)
        if folder not in made:
            os.makedirs(root / folder, exist_ok=True)
            made.add(folder)
        with open(f"{root}/{path}", "wb", buffering=0) as file:
            file.write(text.encode())
    for link, target in files.links.items():
        os.makedirs(root / os.path.dirname(link), exist_ok=True)
        os.symlink(target, root / link)
    return root


@cache
def _written(name: str) -> _Writer:
    facts = Facts(name)
    writer = _Writer(masks_only=facts.spec.get("masks_only", False))
    _write_cpus(writer, facts)
    _write_nodes(writer, facts)
    _write_cards(writer, facts)
    return writer


class _Writer:
    def __init__(self, masks_only: bool) -> None:
        self.masks_only = masks_only
        self.width = 0
        self.texts: dict[str, str] = {}
        self.links: dict[str, str] = {}

    def file(self, path: str, text: object) -> None:
        self.texts[path] = f"{text}\n"

    def same(self, name: str, members: Cpus) -> None:
        """Let a folder of the first of some CPUs serve for the others."""
        first = min(members)
        for cpu in members - {first}:
            target = "../" * (name.count("/") + 1) + f"cpu{first}/{name}"
            self.links[f"sys/devices/system/cpu/cpu{cpu}/{name}"] = target

    def cpus(self, listed: str, masked: str, found: Cpus) -> None:
        """Write a set as list (unless the kernel is too old for it) and as mask."""
        if not self.masks_only:
            self.file(listed, list_of(found))
        self.file(masked, mask_of(found, self.width))


@cache
def list_of(found: Iterable[int]) -> str:
    """Return a set as the kernel lists it."""
    parts: list[list[int]] = []
    for cpu in sorted(found):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in parts)


@cache
def mask_of(found: Iterable[int], width: int) -> str:
    """Return a set as a mask of 32-bit words that has room for ``width`` CPUs."""
    value = sum(1 << cpu for cpu in found)
    words = [f"{value >> shift & 0xFFFFFFFF:08x}" for shift in range(0, max(32, width), 32)]
    return ",".join(reversed(words))


def _write_cpus(writer: _Writer, facts: Facts) -> None:
    writer.width = max(facts.online) + 1
    for name in ("online", "possible", "present"):
        writer.file(f"sys/devices/system/cpu/{name}", list_of(facts.online))
    block = "\n".join(f"{key}\t: {value}" for key, value in facts.spec["cpuinfo"].items())
    listed = "\n".join(f"processor\t: {cpu}\n{block}\n" for cpu in sorted(facts.online))
    writer.file("proc/cpuinfo", listed)
    if "arch" in facts.spec:
        writer.file("proc/sys/kernel/arch", facts.spec["arch"])
    package_of = {
        cpu: (id, members)
        for id, members in zip(facts.package_ids, facts.packages, strict=True)
        for cpu in members
    }
    for number, core in enumerate(facts.cores):
        folder = f"sys/devices/system/cpu/cpu{min(core)}/topology"
        package, members = package_of[min(core)]
        writer.file(f"{folder}/core_id", number)
        writer.file(f"{folder}/physical_package_id", package)
        writer.file(f"{folder}/core_siblings", mask_of(members, writer.width))
        writer.cpus(f"{folder}/thread_siblings_list", f"{folder}/thread_siblings", core)
        writer.same("topology", core)
    for index, found in enumerate(facts.caches):
        _write_cache(writer, index, *found, last=index + 1 == len(facts.caches))


def _write_cache(
    writer: _Writer, index: int, level: int, kind: str, size: int, shared: list[Cpus], last: bool
) -> None:
    for number, members in enumerate(shared):
        folder = f"sys/devices/system/cpu/cpu{min(members)}/cache/index{index}"
        writer.file(f"{folder}/level", level)
        writer.file(f"{folder}/type", kind)
        if last:
            writer.file(f"{folder}/size", f"{size}K")
            writer.file(f"{folder}/id", number % 4)  # not to be relied on
            writer.cpus(f"{folder}/shared_cpu_list", f"{folder}/shared_cpu_map", members)
        elif not writer.masks_only:  # what nobody asks for is left out: files cost time
            writer.file(f"{folder}/shared_cpu_list", list_of(members))
        writer.same(f"cache/index{index}", members)


def _write_nodes(writer: _Writer, facts: Facts) -> None:
    memory = facts.spec["nodes"]["memory_mb"]
    writer.file("proc/meminfo", f"MemTotal: {sum(memory) << 10} kB")
    writer.file("sys/devices/system/node/online", list_of(tuple(facts.ids)))
    for position, id in enumerate(facts.ids):
        folder = f"sys/devices/system/node/node{id}"
        writer.cpus(f"{folder}/cpulist", f"{folder}/cpumap", facts.nodes[id])
        writer.file(f"{folder}/meminfo", f"Node {id} MemTotal: {memory[position] << 10} kB")
        if "distances" in facts.spec:
            row = facts.spec["distances"][position]
            writer.file(f"{folder}/distance", " ".join(map(str, row)))


def _write_cards(writer: _Writer, facts: Facts) -> None:
    cards = facts.spec.get("accelerators", {})
    lines = []
    for number, (address, node) in enumerate(facts.cards.items()):
        lines.append(_function(writer, facts, address, cards["id"], cards["class"], node))
        if "model" in cards:
            text = f"Model: \t\t {cards['model']}\nIRQ:   \t\t {200 + number}\n"
            text += f"GPU UUID: \t GPU-{number:08x}-1111-2222-3333-444444444444\n"
            text += f"Bus Location: \t {address}"
            writer.file(f"proc/driver/nvidia/gpus/{address}/information", text)
    for address in facts.spec.get("switches", ()):
        lines.append(_function(writer, facts, address, "10de:1ac2", "0x068000", -1))
    identity, count = facts.spec.get("other_functions", ("", 0))
    for number in range(count):
        address = f"0000:{number // 128 * 0x70:02x}:{number // 8 % 16:02x}.{number % 8}"
        lines.append(_function(writer, facts, address, identity, "0x060000", -1))
    if lines:
        writer.file("proc/bus/pci/devices", "\n".join(lines))


def _function(
    writer: _Writer, facts: Facts, address: str, identity: str, device_class: str, node: int
) -> str:
    """Write the folder of a PCI function, and return its line in the list of all."""
    vendor, device = identity.split(":")
    domain, bus, rest = address.split(":")
    real = f"sys/devices/pci{domain}:{bus}/{address}"
    near = facts.nodes.get(node) or facts.online
    writer.file(f"{real}/class", device_class)
    writer.file(f"{real}/vendor", f"0x{vendor}")
    writer.file(f"{real}/device", f"0x{device}")
    writer.file(f"{real}/numa_node", node)
    writer.cpus(f"{real}/local_cpulist", f"{real}/local_cpus", near)
    code = f"{int(device_class, 16):04X}"
    uevent = f"PCI_CLASS={code}\nPCI_ID={identity.upper()}\nPCI_SLOT_NAME={address}"
    writer.file(f"{real}/uevent", uevent)
    target = f"../../../devices/pci{domain}:{bus}/{address}"
    writer.links[f"sys/bus/pci/devices/{address}"] = target
    slot, _, function = rest.partition(".")
    place = int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)
    regions = [0x1000000 if device_class != "0x060000" else 0] + [0] * 6
    columns = [f"{place:04x}", vendor + device, "0", *["0"] * 7, *(f"{r:x}" for r in regions)]
    return "\t".join(columns)
