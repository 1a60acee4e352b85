"""NCCL's topology file tells the nodes of accelerators where the kernel doesn't."""

from __future__ import annotations

from pathlib import Path

import machines
import pytest

from loongkit.activation import files
from loongkit.activation.files import Folder, Record
from loongkit.numa import nccl, record, topology

XML = """<!-- a guest of <cpu numaid="1"> two nodes -->
<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64">
    <pci busid="ffff:ff:01.0" class="0x060400">
      <pci busid="0001:00:00.0" class="0x030200"/> <!-- <pci busid="0009:00:00.0"/> -->
      <pci busid="000A:00:00.0" class="0x030200"/>
    </pci>
  </cpu>
  <pci busid="0005:00:00.0"/>
  <cpu
    affinity="ffff" numaid="1"><pci class="0x030200" busid="0002:00:00.0"/></cpu>
  <cpu numaid="2"/>
  <pci busid="0006:00:00.0"/>
</system>
"""


def test_nodes_of_functions() -> None:
    assert nccl.nodes(XML) == {
        "ffff:ff:01.0": 0,
        "0001:00:00.0": 0,
        "000a:00:00.0": 0,
        "0002:00:00.0": 1,
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<",
        "<<<>>>",
        "<!--",
        '<cpu numaid="-1"><pci busid="0001:00:00.0"/></cpu>',
        '<cpu numaid="x"><pci busid="0001:00:00.0"/></cpu>',
        '<cpu numaid="99999"><pci busid="0001:00:00.0"/></cpu>',
        '<cpus numaid="1"><pci busid="0001:00:00.0"/></cpus>',
        "\0\ufffd",
    ],
)
def test_nonsense(text: str) -> None:
    assert nccl.nodes(text) == {}


def guest(xml: str) -> Record:
    """An NDv4 whose kernel tells no node of any GPU."""
    found = machines.record("ndv4")
    texts = {nccl.DEFAULT: xml}
    for address in machines.Facts("ndv4").cards:
        texts[f"sys/bus/pci/devices/{address}/numa_node"] = "-1\n"
        texts[f"sys/bus/pci/devices/{address}/local_cpulist"] = "0-95\n"
    return Record({**found.files, **texts}, found.links)


def test_it_counts_where_the_kernel_does_not_tell() -> None:
    facts = machines.Facts("ndv4")
    machine = topology.read(guest(nccl.render(facts.cards)))
    assert {card.pci: card.numa_node for card in machine.accelerators} == facts.cards
    assert machine.notes == ()


def test_of_the_file_a_record_keeps_the_nodes_alone() -> None:
    facts = machines.Facts("ndv4")
    secret = '<system host="dorothea">' + nccl.render(facts.cards)
    text = record.capture(guest(secret))
    assert "dorothea" not in text
    machine = topology.read(files.parse(text))
    assert {card.pci: card.numa_node for card in machine.accelerators} == facts.cards


def test_a_node_that_is_not_there_is_unknown() -> None:
    machine = topology.read(guest(nccl.render(dict.fromkeys(machines.Facts("ndv4").cards, 7))))
    assert {card.numa_node for card in machine.accelerators} == {-1}
    assert len(machine.notes) == 8


def test_the_kernel_wins() -> None:
    """AWS' file for p5 puts all GPUs on node 0."""
    facts = machines.Facts("p4d")
    original = machines.record("p4d")
    original.files[nccl.DEFAULT] = nccl.render(dict.fromkeys(facts.cards, 0))
    machine = topology.read(original)
    assert {card.pci: card.numa_node for card in machine.accelerators} == facts.cards


def test_the_variable_names_a_file_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "topo.xml").write_text(XML)
    monkeypatch.setenv("NCCL_TOPO_FILE", str(tmp_path / "topo.xml"))
    assert nccl.read(Folder("/"))["0002:00:00.0"] == 1
    assert nccl.read(Folder(str(tmp_path))) == {}, "it is not a file of the recorded machine"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCCL_TOPO_FILE", "topo.xml")
    assert nccl.read(Folder("/"))["0002:00:00.0"] == 1
