"""What hwloc's lstopo finds in the files of a machine: an opinion other than our reader's."""

from __future__ import annotations

import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Facts:
    """The CPUs of nodes by id, the sets that share a last-level cache, and those of cores.

    ``cards`` maps the PCI address of each NVIDIA display function to the CPUs near to it.
    """

    nodes: dict[int, frozenset[int]] = field(default_factory=dict)
    llcs: set[frozenset[int]] = field(default_factory=set)
    cores: set[frozenset[int]] = field(default_factory=set)
    cards: dict[str, frozenset[int]] = field(default_factory=dict)


def command() -> str | None:
    """Return the program, of the Debian packages hwloc or hwloc-nox."""
    return shutil.which("lstopo-no-graphics") or shutil.which("lstopo")


def read(root: Path | None = None) -> Facts:
    """Return what lstopo finds below a folder; by default on this machine, whatever is allowed."""
    program = command()
    assert program is not None
    words = [program, "--of", "xml", "--whole-io", "--disallowed", "--no-factorize"]
    words += ["-i", str(root), "--if", "fsroot"] if root else []
    found = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    facts = Facts()
    machine = ET.fromstring(found.stdout).find("object")
    assert machine is not None
    _visit(machine, frozenset(), frozenset(), facts)
    return facts


def _visit(thing: ET.Element, cpus: frozenset[int], cache: frozenset[int], facts: Facts) -> None:
    """Note an object and what is below it; ``cpus`` and ``cache`` are those above it."""
    kind = thing.get("type", "")
    if "cpuset" in thing.attrib:
        cpus = _bits(thing.get("cpuset", ""))
    if kind in ("L2Cache", "L3Cache", "L4Cache") and not cache:
        cache = cpus
        facts.llcs.add(cpus)
    if kind == "NUMANode":
        facts.nodes[int(thing.get("os_index", "-1"))] = cpus
    elif kind == "Core":
        facts.cores.add(cpus)
    elif kind == "PCIDev" and thing.get("pci_type", "").startswith(("0300 [10de", "0302 [10de")):
        facts.cards[thing.get("pci_busid", "")] = cpus
    for below in thing.findall("object"):
        _visit(below, cpus, cache, facts)


def _bits(mask: str) -> frozenset[int]:
    """Return the CPUs of a mask such as 0x0000000f,,0x1: 32-bit words, an empty one being 0."""
    value = 0
    for word in mask.split(","):
        value = value << 32 | int(word or "0", 16)
    return frozenset(bit for bit in range(value.bit_length()) if value >> bit & 1)
