"""Where /sys shows an accelerator on no node, NCCL's topology file may know it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from numa_hosts import address, host, request

from loongkit.numa import nccl_topology
from loongkit.numa.plan import plan

TOPOLOGY = f"""<?xml version="1.0"?>
<system version="1">
  <cpu numaid="0" affinity="00f" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="{address(1).upper()}" class="0x030200" link_speed="16 GT/s" link_width="16"/>
    </pci>
  </cpu>
  <!-- <cpu numaid="0"><pci busid="{address(0)}"/></cpu> -->
  <cpu numaid="1" affinity="0f0">
    <pci busid="{address(0)}" class="0x030200"/>
  </cpu>
  <cpu numaid="-1"><pci busid="{address(2)}"/></cpu>
  <pci busid="{address(3)}"/>
</system>
"""


def nodes_after(tmp_path: Path, text: str, gpus: list[int]) -> tuple[list[int], tuple[str, ...]]:
    path = tmp_path / "topology.xml"
    path.write_text(text)
    machine = host(["0-3", "4-7"], gpus)
    nccl_topology.fill_in(machine, {"NCCL_TOPO_FILE": str(path)})
    return [each.numa_node for each in machine.accelerators], machine.notes


def test_accelerators_without_a_node_get_one(tmp_path: Path) -> None:
    found, notes = nodes_after(tmp_path, TOPOLOGY, [-1, -1, -1, -1])
    assert found == [1, 0, -1, -1]
    assert len(notes) == 2 and "node 1" in notes[0]


def test_what_the_kernel_says_wins(tmp_path: Path) -> None:
    assert nodes_after(tmp_path, TOPOLOGY, [0, 1]) == ([0, 1], ())
    assert nodes_after(tmp_path, TOPOLOGY, [0, -1])[0] == [0, 0]


def test_a_node_that_is_not_here_is_none(tmp_path: Path) -> None:
    text = TOPOLOGY.replace('numaid="1"', 'numaid="7"')
    assert nodes_after(tmp_path, text, [-1, -1])[0] == [-1, 0]


@pytest.mark.parametrize("text", ["", "no XML", "<system><cpu>", "<cpu numaid='x'/>", "\0"])
def test_garbage_changes_nothing(tmp_path: Path, text: str) -> None:
    found, notes = nodes_after(tmp_path, text, [-1, -1])
    assert found == [-1, -1]
    assert all("NCCL_TOPO_FILE" in note for note in notes)


@pytest.mark.parametrize("number", ["99999999999", "1" * 5000, "²", "1x", ""])
def test_numbers_that_are_none(tmp_path: Path, number: str) -> None:
    text = TOPOLOGY.replace('numaid="1"', f'numaid="{number}"')
    assert nodes_after(tmp_path, text, [-1, -1])[0] == [-1, 0]


def test_a_missing_file_is_noted_where_the_user_named_it(tmp_path: Path, monkeypatch) -> None:
    machine = host(["0-3", "4-7"], [-1])
    nccl_topology.fill_in(machine, {"NCCL_TOPO_FILE": str(tmp_path / "none.xml")})
    assert "No such file" in machine.notes[0]
    machine = host(["0-3", "4-7"], [-1])
    monkeypatch.setattr(nccl_topology, "DEFAULT", str(tmp_path / "none.xml"))
    nccl_topology.fill_in(machine, {})
    assert machine.notes == ()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    machine = host(["0-3", "4-7"], [-1])
    nccl_topology.fill_in(machine, {"NCCL_TOPO_FILE": str(tmp_path / "pipe")})
    assert "no file" in machine.notes[0]


def test_the_default_file_is_read(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "virtualTopology.xml"
    path.write_text(TOPOLOGY)
    monkeypatch.setattr(nccl_topology, "DEFAULT", str(path))
    machine = host(["0-3", "4-7"], [-1, -1])
    nccl_topology.fill_in(machine, {})
    assert plan(machine, request(0, 2)).memory == 1
