"""Nodes of accelerators from the topology file that cloud images give NCCL.

Virtual machines often show passed-through devices on no node at all (-1), while their images
describe the real machine to NCCL. What /sys says wins: the file of one well-known machine type
puts all eight devices on node 0.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from loongkit.numa.records import Machine

VARIABLE = "NCCL_TOPO_FILE"

#: Read by NCCL where the variable is not set.
DEFAULT = "/var/run/nvidia-topologyd/virtualTopology.xml"

_BYTES = 1 << 20  # the largest published ones have 10 KB


def fill_in(machine: Machine, environ: Mapping[str, str]) -> None:
    """Give the accelerators without a node the one that NCCL's topology file gives them.

    A file that is missing or no such topology changes nothing, and ``machine.notes`` says so where
    the user named it.
    """
    unknown = [each for each in machine.accelerators if each.numa_node not in machine.nodes]
    if not unknown or len(machine.nodes) < 2:
        return
    named = environ.get(VARIABLE, "")
    path = named or DEFAULT
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise ValueError("no file")  # reading from a pipe could wait for ever
        with open(path, "rb") as file:
            found = read(file.read(_BYTES))
    except (OSError, ValueError) as error:
        if named:
            machine.notes += (f"{VARIABLE}={path}: {error}; it names no accelerator's node",)
        return
    for each in unknown:
        node = found.get(each.pci, -1)
        if node in machine.nodes:
            each.numa_node = node
            machine.notes += (f"{each.pci}: node {node}, by {path}",)


def read(text: bytes) -> dict[str, int]:
    """Return the node of each PCI function in a topology file, by its address in lower case.

    That is the ``numaid`` of the ``<cpu>`` element in which its ``<pci busid="…">`` lies.

    Raises:
        ValueError: the text is no XML.
    """
    from xml.parsers import expat  # needed on few machines

    nodes: dict[str, int] = {}
    around: list[int] = []

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        if tag == "cpu":
            number = attributes.get("numaid", "").strip()
            around.append(int(number) if number.isdecimal() and len(number) < 10 else -1)
        elif tag == "pci" and around and around[-1] >= 0:
            nodes[attributes.get("busid", "").strip().lower()] = around[-1]

    def end(tag: str) -> None:
        if tag == "cpu":
            around.pop()

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise ValueError(f"no XML: {error}") from error
    return nodes
