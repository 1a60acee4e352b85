"""Writes the record of a machine: what the readers look at, and nothing that names anybody.

Host and user names, cgroup paths, serial numbers and the GPUs' real uuids stay out of it. Reading
the record gives the same machine as reading the files themselves did.
"""

from __future__ import annotations

import os

from loongkit import __version__
from loongkit.activation import cpulists, files, hardware, pci, record_text
from loongkit.activation.files import Record, Tree
from loongkit.numa import details, nccl_topology, topology

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loongkit.numa.records import Machine

# Not kept: they hold the names of users, containers and pods, or of all that is in the machine.
# What they say of the CPUs is kept in other words.
_LEFT_OUT = ("proc/self/", "proc/bus/", "sys/fs/cgroup")

# Ends of paths -> the fields that are kept of such a file.
_FIELDS = {
    "proc/cpuinfo": hardware.CPUINFO_FIELDS,
    "/uevent": ("PCI_CLASS", "PCI_ID"),
    "/information": ("Model", "GPU UUID"),
    "/meminfo": ("MemTotal",),
}
_PERIOD = 100_000


class _Noting(Tree):
    """A tree that notes what is read of another."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.files: dict[str, str] = {}
        self.links: dict[str, str] = {}

    @property
    def live(self) -> bool:
        return self.tree.live

    def read(self, path: str, limit: int = 4096) -> str:
        text = self.tree.read(path, limit)
        if text:
            self.files[path] = text
        return text

    def names(self, path: str) -> list[str]:
        return self.tree.names(path)

    def exists(self, path: str) -> bool:
        return self.tree.exists(path)

    def target(self, path: str) -> str:
        target = self.tree.target(path)
        if target:
            self.links[path] = target
        return target


def capture(root: str | Tree = "/") -> str:
    """Return the text of a record of this machine, or of that below another root.

    Raises:
        NotAMachine: no machine is to be found there.

    """
    noting = _Noting(files.open_tree(root))
    machine = topology.read(noting)
    found = details.read(noting, machine)
    kept = {
        path: _only_fields(path, text)
        for path, text in noting.files.items()
        if not path.startswith(_LEFT_OUT)
    }
    if noting.live:
        nccl_topology.fill_in(machine, os.environ)
        for card in machine.accelerators:
            if card.numa_node >= 0:  # wherever it is known from
                kept[f"{pci.DEVICES}/{card.pci}/numa_node"] = str(card.numa_node)
        kept["proc/sys/kernel/arch"] = found.cpu.architecture  # kernels before 6.1 lack the file
    kept.update(_container(machine, found.quota))
    _replace_uuids(kept, machine)
    return record_text.render(Record(kept, noting.links), (f"written by loongkit {__version__}",))


def _only_fields(path: str, text: str) -> str:
    fields = next((kept for end, kept in _FIELDS.items() if path.endswith(end)), None)
    if fields is None:
        return text
    wanted = {field.lower() for field in fields}
    lines: dict[str, str] = {}
    for line in text.splitlines():
        name = line.replace("=", ":").partition(":")[0].strip()
        if name.rpartition(" ")[2].lower() in wanted or name.lower() in wanted:
            lines.setdefault(name, line)  # of many CPUs the first
    return "\n".join(lines.values())


def _container(machine: Machine, quota: float | None) -> dict[str, str]:
    """Return the files of a control group that leaves to its processes what the real ones do."""
    kept = {
        "proc/self/status": f"Cpus_allowed_list:\t{cpulists.format(machine.allowed)}",
        "proc/self/cgroup": "0::/",
        "proc/self/mountinfo": "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
    }
    if machine.cpuset:
        kept["sys/fs/cgroup/cpuset.cpus.effective"] = cpulists.format(machine.cpuset)
    if quota is not None:
        kept["sys/fs/cgroup/cpu.max"] = f"{round(quota * _PERIOD)} {_PERIOD}"
    return kept


def _replace_uuids(kept: dict[str, str], machine: Machine) -> None:
    """Number the GPUs in place of their uuids, which identify the very card."""
    for number, uuid in enumerate(sorted(set(machine.uuids.values()))):
        for path in [path for path in kept if path.endswith("/information")]:
            kept[path] = kept[path].replace(uuid, f"GPU-{number:08x}-0000-0000-0000-000000000000")
