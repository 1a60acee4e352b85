"""Garbage in each file that the reader reads, one after the other: a machine, and a note of it."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from loongkit.activation import cpulists, record_text
from loongkit.activation.files import Folder
from loongkit.numa import details, record, topology
from loongkit.numa.details import Details
from loongkit.numa.records import Machine

CPU, NODE, PCI = "sys/devices/system/cpu", "sys/devices/system/node", "sys/bus/pci/devices"
GROUP = "sys/fs/cgroup"
GPUS, AMD, BRIDGE = ("0000:10:00.0", "0000:20:00.0"), "0000:30:00.0", "0000:2f:00.0"

#: What nobody would expect. None of it is right in any file, but where the table says so.
GARBAGE = {
    "empty": b"",
    "blank": b"\n",
    "words": b"out of order\n",
    "negative": b"-7\n",
    "huge": b"0-999999999\n",
    "reversed": b"5-2\n",
    "commas": b",,\n",
    "nul": b"\0\0\0\n",
    "not-utf-8": b"\xff\xfe\x80\n",
    "control": b"\x1b[31m\x07\n",
    "digits-of-others": "\u00b2\u0663\n".encode(),
    "long-number": b"9" * 5000 + b"\n",
    "long-list": b"0-8191," * 9000 + b"0\n",
    "long": b"x" * 200_000,
}

Taken = Callable[[Machine, Details], object]


class Row:
    """A file, what else must be so that it is read, and what is taken where it holds garbage.

    ``around`` holds texts of other files (None: removed); ``wrap`` is put around the garbage;
    ``told`` is how notes call the file; ``quiet`` names the garbage that is none there, or counts
    as a missing file, of which there need not be a note.
    """

    def __init__(
        self,
        path: str,
        taken: Taken,
        value: object,
        *,
        around: Mapping[str, str | None] | None = None,
        wrap: str = "%s",
        told: str = "",
        quiet: tuple[str, ...] = ("empty",),
    ) -> None:
        self.path = path
        self.taken = taken
        self.value = value
        self.around = around or {}
        self.wrap = wrap.encode()
        self.told = told or path
        self.quiet = quiet


def every_cpu(machine: Machine, _: Details) -> str:
    return cpulists.format(frozenset().union(*(node.cpus for node in machine.nodes.values())))


def nodes(machine: Machine, _: Details) -> dict[int, str]:
    return {id: cpulists.format(node.cpus) for id, node in machine.nodes.items()}


def distances(machine: Machine, _: Details) -> Mapping[int, int]:
    return machine.nodes[0].distances


def package(machine: Machine, _: Details) -> int:
    return machine.nodes[0].package


def llcs(machine: Machine, _: Details) -> list[str]:
    return [cpulists.format(cpus) for cpus in machine.llcs]


def cards(machine: Machine, _: Details) -> dict[str, int]:
    return {card.pci: card.numa_node for card in machine.accelerators}


def first_name(machine: Machine, _: Details) -> str:
    return machine.accelerators[0].name


def vendor(machine: Machine, found: Details) -> tuple[str, str]:
    return machine.vendor, found.cpu.vendor


def arch_is_a_name(_: Machine, found: Details) -> bool:
    return found.cpu.architecture.replace("_", "").isalnum()


def allowed(machine: Machine, _: Details) -> str:
    return cpulists.format(machine.allowed)


def cpuset(machine: Machine, _: Details) -> str:
    return cpulists.format(machine.cpuset)


def quota(_: Machine, found: Details) -> float | None:
    return found.quota


def cores(_: Machine, found: Details) -> list[str]:
    return [cpulists.format(core) for core in found.cores]


def cache_size(_: Machine, found: Details) -> int:
    return found.cache_bytes[0]


def memory(_: Machine, found: Details) -> int:
    return found.memory_bytes[0]


def function(address: str, identity: str, device_class: str, node: int) -> dict[str, str]:
    vendor_id, device_id = identity.split(":")
    return {
        f"{PCI}/{address}/class": f"0x{device_class}",
        f"{PCI}/{address}/vendor": f"0x{vendor_id}",
        f"{PCI}/{address}/device": f"0x{device_id}",
        f"{PCI}/{address}/uevent": f"PCI_CLASS={device_class}\nPCI_ID={identity.upper()}",
        f"{PCI}/{address}/numa_node": str(node),
        f"{PCI}/{address}/local_cpulist": "4-7" if node else "0-3",
        f"{PCI}/{address}/local_cpus": "f0" if node else "0f",
    }


def listed(address: str, identity: str) -> str:
    place = f"{address[5:7]}00\t{identity.replace(':', '')}\t0"
    return "\t".join([place, *["0"] * 7, "1000000", *["0"] * 6, "driver"])


def small_machine() -> dict[str, str]:
    """Two nodes with two caches of two cores each, two cards of NVIDIA's and one of AMD's."""
    found = {
        f"{CPU}/online": "0-7",
        "proc/cpuinfo": "vendor_id : GenuineIntel\ncpu family : 6\nmodel name : X",
        "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-6",
        "proc/self/cgroup": "0::/",
        "proc/self/mountinfo": f"1 0 0:1 / /{GROUP} rw - cgroup2 cgroup2 rw",
        f"{GROUP}/cpuset.cpus.effective": "0-6",
        f"{GROUP}/cpu.max": "400000 100000",
    }
    for node in (0, 1):
        found |= {
            f"{NODE}/node{node}/cpulist": "4-7" if node else "0-3",
            f"{NODE}/node{node}/cpumap": "f0" if node else "0f",
            f"{NODE}/node{node}/distance": "31 10" if node else "10 31",
            f"{NODE}/node{node}/meminfo": f"Node {node} MemTotal: 1024 kB",
        }
    for cpu in range(8):
        pair = cpu & ~1
        at = f"{CPU}/cpu{cpu}"
        found |= {
            f"{at}/topology/physical_package_id": str(cpu // 4),
            f"{at}/topology/thread_siblings_list": f"{pair}-{pair + 1}",
            f"{at}/topology/thread_siblings": f"{3 << pair:x}",
        }
        for index, level, kind in ((0, 1, "Data"), (1, 1, "Instruction"), (2, 2, "Unified")):
            found[f"{at}/cache/index{index}/level"] = str(level)
            found[f"{at}/cache/index{index}/type"] = kind
            found[f"{at}/cache/index{index}/size"] = "512K"
            found[f"{at}/cache/index{index}/shared_cpu_list"] = f"{pair}-{pair + 1}"
            found[f"{at}/cache/index{index}/shared_cpu_map"] = f"{3 << pair:x}"
    for address, identity, device_class, node in (
        (GPUS[0], "10de:2330", "030200", 0),
        (GPUS[1], "10de:2330", "030200", 1),
        (AMD, "1002:740f", "038000", 1),
    ):
        found |= function(address, identity, device_class, node)
        found["proc/bus/pci/devices"] = "\n".join(
            [*filter(None, [found.get("proc/bus/pci/devices")]), listed(address, identity)]
        )
        if address in GPUS:
            path = f"proc/driver/nvidia/gpus/{address}/information"
            found[path] = f"Model: \t\t H200\nGPU UUID: \t GPU-{node}"
    found[f"{PCI}/{AMD}/mem_info_vram_total"] = str(64 << 30)
    found[f"{PCI}/{BRIDGE}/numa_node"] = "1"
    return found


CPU0, CARD, LAST = f"{CPU}/cpu0", f"{PCI}/{GPUS[0]}", f"{CPU}/cpu0/cache/index2"
WHOLE = {GPUS[0]: 0, GPUS[1]: 1, AMD: 1}
WITHOUT = {GPUS[1]: 1, AMD: 1}
PAIRS = ["0-1", "2-3", "4-5", "6-7"]
APART = ["0", "1", "2-3", "4-5", "6-7"]
FIRST_GENERATION = {
    "proc/self/cgroup": "3:cpu:/\n2:cpuset:/",
    "proc/self/mountinfo": "\n".join(
        f"{number} 0 0:{number} / /{GROUP} rw - cgroup cgroup rw,{name}"
        for number, name in ((1, "cpu"), (2, "cpuset"))
    ),
    f"{GROUP}/cpu.cfs_quota_us": "400000",
    f"{GROUP}/cpu.cfs_period_us": "100000",
}
QUOTA_FILES = "cpu.cfs_quota_us and cpu.cfs_period_us"
UNKNOWN_NODE = {f"{CARD}/numa_node": "-1"}
BY_BRIDGE = {**UNKNOWN_NODE, f"{CARD}/local_cpulist": "0-7"}
NO_UEVENT = {f"{CARD}/uevent": None}
RISCV = {"proc/cpuinfo": "processor : 0\nuarch : sifive,u74-mc"}

TABLE = [
    Row(f"{CPU}/online", every_cpu, "0-7", quiet=()),
    Row(f"{CPU}/online_map", every_cpu, "0-7", around={f"{CPU}/online": None}),
    Row(f"{NODE}/node0/cpulist", nodes, {0: "0-3", 1: "4-7"}, quiet=("empty", "blank")),
    Row(f"{NODE}/node0/cpumap", nodes, {1: "4-7"}, around={f"{NODE}/node0/cpulist": None}),
    Row(f"{NODE}/node0/distance", distances, {0: 10, 1: 20}),
    Row(f"{NODE}/node0/meminfo", memory, 0),
    Row(f"{NODE}/node0/meminfo", memory, 0, wrap="Node 0 MemTotal: %s kB"),
    Row(f"{CPU0}/topology/physical_package_id", package, -1),
    Row(f"{CPU0}/topology/thread_siblings_list", cores, PAIRS, quiet=("empty", "blank")),
    Row(
        *(f"{CPU0}/topology/thread_siblings", cores, APART),
        around={f"{CPU0}/topology/thread_siblings_list": None},
    ),
    # The other CPU of the pair says whom it shares the cache with.
    Row(f"{LAST}/level", llcs, PAIRS),
    Row(f"{LAST}/type", llcs, PAIRS),
    Row(f"{LAST}/size", cache_size, 0),
    Row(f"{LAST}/size", cache_size, 0, wrap="512K%s", quiet=("empty", "blank")),
    Row(f"{LAST}/shared_cpu_list", llcs, PAIRS, quiet=("empty", "blank")),
    Row(f"{LAST}/shared_cpu_map", llcs, PAIRS, around={f"{LAST}/shared_cpu_list": None}),
    Row("proc/bus/pci/devices", cards, WHOLE),
    Row(f"{CARD}/uevent", cards, WHOLE),
    Row(f"{CARD}/class", cards, WITHOUT, around=NO_UEVENT),
    Row(f"{CARD}/vendor", cards, WITHOUT, around=NO_UEVENT),
    Row(f"{CARD}/device", cards, WITHOUT, around=NO_UEVENT),
    Row(f"{PCI}/{AMD}/mem_info_vram_total", cards, {GPUS[0]: 0, GPUS[1]: 1}),
    Row(f"{CARD}/numa_node", cards, WHOLE),
    Row(f"{CARD}/local_cpulist", cards, WHOLE, around=UNKNOWN_NODE, quiet=("empty", "blank")),
    Row(
        *(f"{CARD}/local_cpus", cards, {**WHOLE, GPUS[0]: -1}),
        around={**UNKNOWN_NODE, f"{CARD}/local_cpulist": None, f"{PCI}/{BRIDGE}/numa_node": None},
    ),
    Row(f"{PCI}/{BRIDGE}/numa_node", cards, {**WHOLE, GPUS[0]: -1}, around=BY_BRIDGE),
    Row(
        *(f"{PCI}/{BRIDGE}/local_cpulist", cards, {**WHOLE, GPUS[0]: -1}),
        around={**BY_BRIDGE, f"{PCI}/{BRIDGE}/numa_node": "-1"},
        quiet=("empty", "blank"),
    ),
    Row(
        *(f"{PCI}/{BRIDGE}/local_cpus", cards, {**WHOLE, GPUS[0]: -1}),
        around={**BY_BRIDGE, f"{PCI}/{BRIDGE}/numa_node": "-1"},
    ),
    Row(f"proc/driver/nvidia/gpus/{GPUS[0]}/information", first_name, "NVIDIA [10de:2330]"),
    Row(
        *(f"proc/driver/nvidia/gpus/{GPUS[0]}/information", first_name, "NVIDIA [10de:2330]"),
        wrap="Model: %s",
        quiet=("words", "negative", "huge", "reversed", "commas", "digits-of-others", "not-utf-8"),
    ),
    Row("proc/cpuinfo", vendor, ("other", "other")),
    Row("proc/sys/kernel/arch", arch_is_a_name, True, around=RISCV),
    Row("proc/self/status", allowed, "0-7"),
    Row("proc/self/status", allowed, "0-7", wrap="Cpus_allowed_list:\t%s", quiet=()),
    Row("proc/self/cgroup", cpuset, ""),
    Row("proc/self/mountinfo", cpuset, ""),
    Row("proc/self/cgroup", quota, None),
    *(
        Row(f"{GROUP}/{name}", cpuset, "", around=around, told=name, quiet=("empty", "blank"))
        for name, around in (
            ("cpuset.cpus.effective", {}),
            ("cpuset.effective_cpus", {f"{GROUP}/cpuset.cpus.effective": None}),
            ("cpuset.cpus", {f"{GROUP}/cpuset.cpus.effective": None}),
        )
    ),
    Row(f"{GROUP}/cpu.max", quota, None, told="cpu.max"),
    Row(f"{GROUP}/cpu.cfs_quota_us", quota, None, around=FIRST_GENERATION, told=QUOTA_FILES),
    Row(f"{GROUP}/cpu.cfs_period_us", quota, None, around=FIRST_GENERATION, told=QUOTA_FILES),
]


class Watched(Folder):
    """A folder that notes which of its files were read."""

    __slots__ = ("seen",)

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.seen: set[str] = set()

    def read(self, path: str, limit: int = 4096) -> str:
        self.seen.add(path)
        return super().read(path, limit)


class Disk:
    """The small machine's files in a folder, of which some can be changed for a while."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.texts = {path: f"{text}\n".encode() for path, text in small_machine().items()}
        for path, text in self.texts.items():
            self.write(path, text)
        real = f"sys/devices/pci0000:2f/{BRIDGE}/{GPUS[0]}"
        (root / real).parent.mkdir(parents=True)
        shutil.move(root / CARD, root / real)
        (root / CARD).symlink_to(f"../../../devices/pci0000:2f/{BRIDGE}/{GPUS[0]}")

    def write(self, path: str, text: bytes | None) -> None:
        place = self.root / path
        if text is None:
            place.unlink(missing_ok=True)
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text)

    def read(self, changes: Mapping[str, bytes | None]) -> tuple[Machine, Details, set[str]]:
        """Read the machine with some files changed; fail where it takes long."""
        for path, text in changes.items():
            self.write(path, text)
        try:
            started = time.process_time()
            tree = Watched(str(self.root))
            machine = topology.read(tree)
            found = details.read(tree, machine)
            assert time.process_time() - started < 1, "a file took up the time"
            check(machine, found)
            again = record_text.parse(record.capture(Folder(str(self.root))))
            machine_again = topology.read(again)
            check(machine_again, details.read(again, machine_again))
        finally:
            for path in changes:
                self.write(path, self.texts.get(path))
        return machine, found, tree.seen


def check(machine: Machine, found: Details) -> None:
    """What holds for every machine, whatever it was read from."""
    cpus = [cpu for node in machine.nodes.values() for cpu in node.cpus]
    assert len(cpus) == len(set(cpus)) > 0, "a CPU in two nodes, or none at all"
    assert sorted(cpu for llc in machine.llcs for cpu in llc) == sorted(cpus)
    assert sorted(cpu for core in found.cores for cpu in core) == sorted(cpus)
    assert machine.allowed
    assert machine.allowed | machine.cpuset <= set(cpus)
    assert len(machine.notes) < 50
    for node in machine.nodes.values():
        assert min(node.distances.values()) == node.distances[node.id] == 10
        assert max(node.distances.values()) <= 255
        assert node.package >= -1
    for card in machine.accelerators:
        assert card.numa_node == -1 or card.numa_node in machine.nodes
        assert card.name.isprintable() and card.uuid.isprintable()
    for note in machine.notes:
        assert note.isprintable() and len(note) < 400
    assert (found.cpu.model + found.cpu.architecture).isprintable()
    assert len(found.cpu.architecture) < 100


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    return Disk(tmp_path_factory.mktemp("small"))


def cases() -> Iterator[Any]:
    for number, row in enumerate(TABLE):
        name = row.path.rpartition("/")[2]
        for kind in GARBAGE:
            yield pytest.param(row, kind, id=f"{number}-{name}-{kind}")


def of(row: Row, garbage: bytes) -> dict[str, bytes | None]:
    around = {
        path: text if text is None else f"{text}\n".encode() for path, text in row.around.items()
    }
    return {**around, row.path: row.wrap.replace(b"%s", garbage)}


@pytest.mark.parametrize(("row", "kind"), cases())
def test_garbage_gives_a_machine_and_a_note(disk: Disk, row: Row, kind: str) -> None:
    machine, found, seen = disk.read(of(row, GARBAGE[kind]))
    assert row.path in seen
    about = [note for note in machine.notes if note.startswith(row.told)]
    if kind in row.quiet:
        return
    assert row.taken(machine, found) == row.value
    assert about, machine.notes
    assert all(": found " in note and "; " in note for note in about), "and what holds instead"


def test_the_small_machine_itself_is_as_it_should_be(disk: Disk) -> None:
    machine, found, _ = disk.read({})
    assert machine.notes == ()
    assert nodes(machine, found) == {0: "0-3", 1: "4-7"}
    assert distances(machine, found) == {0: 10, 1: 31}
    assert (llcs(machine, found), cores(machine, found)) == (PAIRS, PAIRS)
    assert cards(machine, found) == WHOLE
    assert first_name(machine, found) == "H200"
    assert (allowed(machine, found), cpuset(machine, found)) == ("0-6", "0-6")
    assert (quota(machine, found), cache_size(machine, found)) == (4.0, 512 << 10)
    assert (memory(machine, found), package(machine, found)) == (1 << 20, 0)
    assert vendor(machine, found) == ("intel", "intel")


def kind_of(path: str) -> str:
    """Return a path without the numbers of CPUs, nodes, caches and PCI functions."""
    path = re.sub(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", "*", path)
    return re.sub(r"(cpu|node|index)\d+", r"\1*", path)


def test_the_table_has_every_file_that_is_read(disk: Disk) -> None:
    read = {path for row in TABLE for path in disk.read(of(row, b"nonsense\n"))[2]}
    assert {kind_of(path) for path in read} == {kind_of(row.path) for row in TABLE}
