"""Which PCI functions are looked into."""

from __future__ import annotations

import machines
import pytest

from loongkit.activation import hardware, pci
from loongkit.activation.files import Record

PCI, LIST = pci.DEVICES, "proc/bus/pci/devices"
INTEL_CARD = "0380\t80860bd5\t0\t" + "\t".join(["0"] * 7 + ["1000000"] + ["0"] * 6) + "\txe"


class Watched(Record):
    """A record that notes which folders of PCI functions were looked into."""

    def __init__(self, original: Record) -> None:
        super().__init__(original.files, original.links)
        self.seen: set[str] = set()

    def read(self, path: str, limit: int = 4096) -> str:
        if path.startswith(PCI):
            self.seen.add(path.removeprefix(PCI).split("/")[1])
        return super().read(path, limit)


@pytest.mark.parametrize("name", ["epyc-9654", "intel-snc"])
def test_functions_that_can_be_none_are_passed_over(name: str) -> None:
    tree = Watched(machines.record(name))
    assert len(tree.names(PCI)) > 250
    found = hardware.read_accelerators(tree)
    assert {card.pci for card in found} == tree.seen == set(machines.Facts(name).cards)


def test_of_nvidias_functions_each_is_looked_into() -> None:
    tree = Watched(machines.record("dgx-2"))
    assert len(hardware.read_accelerators(tree)) == 16
    assert len(tree.seen) == 16 + 12, "the switches tell by their class that they are none"


@pytest.mark.parametrize(
    "text", ["", "nonsense\n", "0008\n", "xx\t10de2335\t0\n", "0008\t10de2335"]
)
def test_all_are_looked_into_where_the_list_is_missing_or_strange(text: str) -> None:
    tree = machines.record("p4d")
    tree.files[LIST] = tree.files[LIST] + text if text else ""
    cards = {card.pci: card.numa_node for card in hardware.read_accelerators(tree)}
    assert cards == machines.Facts("p4d").cards


def test_what_the_list_lacks_is_none() -> None:
    tree = machines.record("p4d")
    lines = tree.files[LIST].splitlines()
    tree.files[LIST] = "\n".join(lines[1:]) + "\n"
    assert len(hardware.read_accelerators(tree)) == 7


def test_functions_of_one_place_in_several_domains() -> None:
    assert len(hardware.read_accelerators(machines.record("ndv4"))) == 8


def intel(size: str) -> Record:
    line = INTEL_CARD.replace("1000000", size)
    texts = {"class": "0x038000", "vendor": "0x8086", "device": "0x0bd5", "numa_node": "0"}
    found = {f"{PCI}/0000:03:10.0/{name}": text + "\n" for name, text in texts.items()}
    return Record({**found, LIST: line + "\n"}, {})


def test_cards_of_intel_are_told_from_its_processors_by_their_registers() -> None:
    assert [card.kind for card in hardware.read_accelerators(intel("1000000"))] == ["intel"]
    assert hardware.read_accelerators(intel("fff000")) == ()


def test_a_line_with_and_without_a_driver() -> None:
    tree = intel("1000000")
    tree.files[LIST] = INTEL_CARD.removesuffix("\txe") + "\n"
    assert len(hardware.read_accelerators(tree)) == 1


def test_identity_from_one_file_or_from_three() -> None:
    folder = f"{PCI}/0000:3b:00.0"
    one = {f"{folder}/uevent": "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2335\n"}
    three = {
        f"{folder}/{n}": f"0x{t}\n"
        for n, t in zip(("class", "vendor", "device"), ("030200", "10de", "2335"), strict=True)
    }
    wanted = ("0x030200", 0x10DE, 0x2335)
    assert pci.identity(Record(one, {}), folder) == wanted
    assert pci.identity(Record(three, {}), folder) == wanted
    broken = {**three, f"{folder}/uevent": "PCI_CLASS=\nPCI_ID=10DE\n"}
    assert pci.identity(Record(broken, {}), folder) == wanted
    assert pci.identity(Record({}, {}), folder) == ("", -1, -1)


def test_order_is_by_number() -> None:
    addresses = [
        "10000:01:00.0",
        "x",
        "ffff:01:00.0",
        "0000:0a:00.1",
        "0000:0a:00.0",
        "::",
        "0:2:0.0",
    ]
    wanted = ["0:2:0.0", "0000:0a:00.0", "0000:0a:00.1", "ffff:01:00.0", "10000:01:00.0", "::", "x"]
    assert sorted(addresses, key=pci.order) == wanted


def test_uuids_that_the_driver_does_not_know_yet() -> None:
    tree = machines.record("p4d")
    for path in [path for path in tree.files if path.endswith("/information")]:
        tree.files[path] = "Model: \t X\nGPU UUID: \t GPU-????????-????-????-????-????????????\n"
    assert {card.uuid for card in hardware.read_accelerators(tree)} == {""}


@pytest.mark.parametrize("name", ["README", "x:01:00.0", "+1:01:00.0", "0000:1_0:00.0", "0:1", ""])
def test_folders_that_are_no_addresses_are_passed_over(name: str) -> None:
    texts = {"class": "0x030200", "vendor": "0x10de", "device": "0x2335"}
    found = {f"{PCI}/{at}/{n}": t for n, t in texts.items() for at in (name, "0000:3b:00.0")}
    cards = hardware.read_accelerators(Record(found, {}))
    assert [card.pci for card in cards] == ["0000:3b:00.0"]


@pytest.mark.parametrize(
    ("column", "text"),
    [(0, "10000"), (0, "-1"), (1, "1ffffffff"), (1, "-1"), (10, "size"), (11, "-1")],
)
def test_a_line_with_a_number_out_of_bounds_spoils_the_list(column: int, text: str) -> None:
    tree = machines.record("p4d")
    columns = tree.files[LIST].splitlines()[0].split("\t")
    columns[column] = text
    if text == "-1" and column == 11:
        columns[10:17] = ["-1"] * 7
    tree.files[LIST] = "\t".join(columns) + "\n"
    notes: list[str] = []
    assert len(hardware.read_accelerators(tree, notes)) == 8
    (note,) = notes
    assert note.startswith(f"{LIST}: found ")
    assert note.endswith(
        "; wanted a line of numbers for each function; all functions are looked into instead"
    )
