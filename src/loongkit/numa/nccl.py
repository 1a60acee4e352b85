"""Reads the topology file that clouds give to NCCL where a guest's kernel knows no nodes."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loongkit.activation.files import Tree

#: Where NCCL itself looks when NCCL_TOPO_FILE is not set.
DEFAULT = "var/run/nvidia-topologyd/virtualTopology.xml"

_BYTES = 1 << 20


def read(tree: Tree) -> dict[str, int]:
    """Return the node of each PCI function that NCCL's file of this machine lists.

    NCCL_TOPO_FILE says where it is, on the machine that this process runs on.
    """
    path = os.environ.get("NCCL_TOPO_FILE", "") if tree.live else ""
    return nodes(tree.read(os.path.abspath(path)[1:] if path else DEFAULT, _BYTES))


def nodes(text: str) -> dict[str, int]:
    """Return the ``numaid`` of the ``cpu`` around each ``pci``, by its ``busid`` in lower case.

    The text is XML, of which only these tags and their attributes are looked at.
    """
    found: dict[str, int] = {}
    node = -1
    for part in _without_comments(text).split("<"):
        tag = part.partition(">")[0]
        name = tag.split(maxsplit=1)[0] if tag.split() else ""
        if name == "cpu":
            digits = _attribute(tag, "numaid")
            known = digits.isascii() and digits.isdigit() and len(digits) < 5
            node = int(digits) if known and not tag.endswith("/") else -1
        elif name == "/cpu":
            node = -1
        elif name == "pci" and node >= 0:
            found.setdefault(_attribute(tag, "busid").lower(), node)
    return found


def render(found: dict[str, int]) -> str:
    """Return a file that tells these nodes, in one line; the opposite of ``nodes``."""
    cpus = (f'<cpu numaid="{id}"><pci busid="{pci}"/></cpu>' for pci, id in found.items())
    return f"<system>{''.join(cpus)}</system>"


def _without_comments(text: str) -> str:
    first, *others = text.split("<!--")
    return first + "".join(other.partition("-->")[2] for other in others)


def _attribute(tag: str, name: str) -> str:
    return tag.partition(f' {name}="')[2].partition('"')[0].strip()
