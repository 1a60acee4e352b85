"""Machines whose files contradict each other, or lack what the others have."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import machines
import pytest

from loongkit.activation import files, record_text
from loongkit.activation.files import Record
from loongkit.numa import details, record, topology
from loongkit.numa.records import Machine

CPU, NODE, PCI = "sys/devices/system/cpu", "sys/devices/system/node", "sys/bus/pci/devices"
SCRAPS = ["", "\n", "\0", "-1", "0", "1", "0-3", "3-0", "9" * 5000, "\ufffd", "x,,"]


def changed(name: str, texts: Mapping[str, str], without: tuple[str, ...] = ()) -> Record:
    """Return the files of a machine with other texts, and without those that begin so."""
    found = machines.record(name)
    kept = {
        path: text for path, text in found.files.items() if not path.startswith(without or "\0")
    }
    return Record({**kept, **texts}, found.links)


def check(machine: Machine) -> None:
    """What holds for every machine, whatever it was read from."""
    everywhere = [cpu for node in machine.nodes.values() for cpu in node.cpus]
    assert len(everywhere) == len(set(everywhere)) > 0, "a CPU in two nodes, or none at all"
    assert sorted(cpu for llc in machine.llcs for cpu in llc) == sorted(everywhere)
    for llc in machine.llcs:
        assert any(llc <= node.cpus for node in machine.nodes.values())
    for node in machine.nodes.values():
        assert node.distances[node.id] >= 0
        assert node.package >= -1
    for card in machine.accelerators:
        assert card.numa_node == -1 or card.numa_node in machine.nodes


def read(name: str, texts: Mapping[str, str], without: tuple[str, ...] = ()) -> Machine:
    machine = topology.read(changed(name, texts, without))
    check(machine)
    return machine


def notes_on(machine: Machine, path: str) -> list[str]:
    return [note for note in machine.notes if note.startswith(path)]


def cards(machine: Machine) -> dict[str, int]:
    return {card.pci: card.numa_node for card in machine.accelerators}


def test_a_node_whose_cpus_are_unknown_is_left_out_with_its_cpus() -> None:
    nonsense = {f"{NODE}/node1/{name}": "nonsense\n" for name in ("cpulist", "cpumap")}
    machine = read("kunpeng-920", nonsense)
    assert set(machine.nodes) == {0, 2, 3}
    assert any("the node is left out" in note for note in notes_on(machine, f"{NODE}/node1"))
    assert any("32-63 are in no node" in note for note in machine.notes)
    assert cards(machine)["0000:c2:00.0"] == -1  # it hung on that node


def test_the_mask_stands_in_for_a_list_that_is_broken() -> None:
    machine = read("kunpeng-920", {f"{NODE}/node1/cpulist": "3-\n"})
    assert machine.nodes[1].cpus == machines.cpus("32-63")
    (note,) = notes_on(machine, f"{NODE}/node1/cpulist")
    assert "found '3-', no numbers" in note
    assert f"{NODE}/node1/cpumap is taken instead" in note


def test_two_nodes_that_claim_the_same_cpus() -> None:
    machine = read("kunpeng-920", {f"{NODE}/node1/cpulist": "16-47\n"})
    assert machine.nodes[0].cpus == machines.cpus("0-31")
    assert machine.nodes[1].cpus == machines.cpus("32-47")
    (note,) = notes_on(machine, f"{NODE}/node1/cpulist")
    assert "found CPUs 16-31 in it, which a node before it has; they are left out" in note


def test_a_node_that_claims_cpus_that_are_not_there() -> None:
    machine = read("kunpeng-920", {f"{NODE}/node3/cpulist": "96-8191\n"})
    assert machine.nodes[3].cpus == machines.cpus("96-127")
    (note,) = notes_on(machine, f"{NODE}/node3/cpulist")
    assert "found CPUs 128-8191 in it, which are not online; they are left out" in note


def test_nodes_none_of_which_has_a_cpu() -> None:
    machine = read("kunpeng-920", {f"{NODE}/node{id}/cpulist": "\n" for id in range(4)})
    assert {id: node.cpus for id, node in machine.nodes.items()} == {0: machines.cpus("0-127")}
    assert any("one node is taken to have them all" in note for note in notes_on(machine, NODE))


@pytest.mark.parametrize("number", ["1024", "999999999", "9" * 5000, "01", "\u00b2"])
def test_folders_that_are_no_nodes(number: str) -> None:
    machine = read("kunpeng-920", {f"{NODE}/node{number}/cpulist": "0-127\n"})
    assert set(machine.nodes) == {0, 1, 2, 3}
    (note,) = notes_on(machine, f"{NODE}/node*")
    assert "wanted a number from 0 to 1023 after 'node'; the folder is passed over" in note


@pytest.mark.parametrize(
    ("listed", "allowed", "told"),
    [
        ("0-95", "0-63", True),
        ("60-99", "60-63", True),
        ("64-95", "0-63", True),
        ("0-999999999", "0-63", True),
        ("0-63", "0-63", False),
        ("8-15", "8-15", False),
    ],
)
def test_allowed_cpus_lie_within_the_machine(listed: str, allowed: str, told: bool) -> None:
    machine = read("hygon-32", {"proc/self/status": f"Cpus_allowed_list:\t{listed}\n"})
    assert machine.allowed == machines.cpus(allowed)
    notes = notes_on(machine, "proc/self/status: Cpus_allowed_list: found ")
    assert bool(notes) == told
    if told:
        assert f"found '{listed}'; wanted a set of the CPUs 0-63; " in notes[0]
        assert (
            f"{'all CPUs' if allowed == '0-63' and listed != '0-95' else allowed} are" in notes[0]
        )


def test_allowed_cpus_are_found_behind_a_long_list_of_groups() -> None:
    status = f"Groups:\t{'1000 ' * 3000}\nCpus_allowed_list:\t8-15\n"
    assert read("hygon-32", {"proc/self/status": status}).allowed == machines.cpus("8-15")


@pytest.mark.parametrize(("mask", "everywhere"), [("0-3", "0-63"), ("60-63", "0-63")])
def test_cpus_on_which_this_process_runs_are_there(
    monkeypatch: pytest.MonkeyPatch, mask: str, everywhere: str
) -> None:
    """Some containers are shown as many CPUs as they may use, always from 0 on."""
    monkeypatch.setattr(Record, "live", True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(machines.cpus(mask)))
    machine = read("hygon-32", {f"{CPU}/online": "0-3\n"})
    assert machine.allowed == machines.cpus(mask)
    assert machine.nodes[0].cpus == machines.cpus("0-3") | machines.cpus(mask)
    assert bool(notes_on(machine, f"{CPU}/online")) == (mask != "0-3")


def test_a_node_without_the_cpus_on_which_this_process_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Record, "live", True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {70, 71})
    machine = topology.read(changed("hygon-32", {}))
    assert machine.allowed == frozenset()
    assert machine.nodes[0].cpus == machines.cpus("0-63")


def test_no_list_of_cpus_and_no_call_that_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: int) -> set[int]:
        raise PermissionError

    monkeypatch.setattr(Record, "live", True)
    monkeypatch.setattr(os, "sched_getaffinity", refused)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    machine = topology.read(Record({}, {}))
    assert machine.allowed == machine.nodes[0].cpus == machines.cpus("0-2")


def test_of_a_great_many_notes_some_are_kept() -> None:
    texts = {
        f"{CPU}/cpu{cpu}/cache/index3/{name}": "nonsense\n"
        for cpu in range(384)
        for name in ("shared_cpu_list", "shared_cpu_map")
    }
    tree = changed("epyc-9654", texts)
    machine = topology.read(tree)
    details.read(tree, machine)
    assert len(machine.notes) < 50
    assert any("more notes of this kind" in note for note in machine.notes)


def test_no_node_at_all() -> None:
    machine = read("hygon-32", {}, without=(NODE,))
    assert {id: node.cpus for id, node in machine.nodes.items()} == {0: machines.cpus("0-63")}
    assert machine.nodes[0].package == 0
    assert machine.nodes[0].distances == {0: 10}
    assert len(machine.llcs) == 8
    assert set(cards(machine).values()) == {0}


def test_offline_cpus_are_nowhere() -> None:
    machine = read("hygon-32", {f"{CPU}/online": "1-3,5,32-60\n"})
    assert machine.nodes[0].cpus == machine.allowed == machines.cpus("1-3,5,32-60")
    assert machine.llcs[0] == machines.cpus("1-3,32-35")


@pytest.mark.parametrize("without", [(f"{CPU}/online",), (f"{CPU}/online", NODE)])
def test_nodes_or_folders_tell_which_cpus_there_are_where_no_list_does(
    without: tuple[str, ...],
) -> None:
    strange = {f"{CPU}/cpu{name}/x": "1" for name in ("9999", "9" * 5000, "0200", "\u00b2", "freq")}
    machine = read("epyc-7451", strange, without)
    assert machine.allowed == machines.cpus("0-95")
    assert "found no CPU in it" in notes_on(machine, f"{CPU}/online")[0]


def test_in_a_record_the_nodes_tell_it_where_the_list_is_broken() -> None:
    """It holds the folders of few CPUs."""
    whole = record_text.parse(record.capture(machines.record("epyc-9654")))
    whole.files[f"{CPU}/online"] = "nonsense\n"
    assert topology.read(whole).allowed == machines.cpus("0-383")


def test_no_cpu_at_all() -> None:
    with pytest.raises(files.NotAMachine, match=f"found no CPU in {CPU}; wanted a folder that"):
        read("sg2042", {}, without=(CPU, NODE))


@pytest.mark.parametrize("text", ["", "x", "0", "-3", "9" * 50])
def test_a_cache_of_an_unknown_level(text: str) -> None:
    """The level below is the last that makes sense, for that CPU alone."""
    machine = read("hygon-32", {f"{CPU}/cpu0/cache/index3/level": text})
    assert bool(notes_on(machine, f"{CPU}/cpu0/cache/index3/level")) == bool(text)
    assert machine.llcs[:2] == (machines.cpus("0,32"), machines.cpus("1-3,33-35"))
    assert machine.llcs[-1] == machines.cpus("28-31,60-63")


def test_instruction_caches_do_not_count() -> None:
    texts = {f"{CPU}/cpu{cpu}/cache/index3/type": "Instruction\n" for cpu in range(64)}
    assert read("hygon-32", texts).llcs[0] == machines.cpus("0,32")


def test_a_first_level_alone_is_no_last_one() -> None:
    caches = tuple(f"{CPU}/cpu{cpu}/cache/index{n}" for cpu in range(64) for n in (2, 3))
    machine = read("hygon-32", {}, without=caches)
    assert machine.llcs == (machines.cpus("0-63"),)
    assert not machine.llcs_known


@pytest.mark.parametrize("text", ["4-7\n", "\n", "nonsense"])
def test_a_cache_whose_cpus_make_no_sense(text: str) -> None:
    """CPUs whose last level can't be read share one set in their node; the others keep theirs."""
    names = ("shared_cpu_list", "shared_cpu_map")
    texts = {f"{CPU}/cpu{cpu}/cache/index3/{names[0]}": text for cpu in (*range(4), *range(32, 36))}
    texts |= {path.replace(*names): "f0\n" for path in texts}
    machine = read("hygon-32", texts)
    assert not machine.llcs_known
    assert machine.llcs[0] == machines.cpus("0-3,32-35")
    assert machine.llcs[1] == machines.cpus("4-7,36-39")
    assert any("found no set of CPUs with CPU 0" in note for note in machine.notes)


def test_a_note_is_made_once_of_a_cache_that_is_looked_at_twice() -> None:
    paths = [f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_list" for cpu in (4, 5, 6, 7)]
    machine = read("hygon-32", dict.fromkeys(paths, "0,0,x\n"))
    (note,) = notes_on(machine, paths[0])
    assert note.endswith("/shared_cpu_map is taken instead")
    nowhere = dict.fromkeys((path.replace("list", "map") for path in paths), "0\n")
    machine = read("hygon-32", dict.fromkeys(paths, "0,0,x\n") | nowhere)
    assert len(notes_on(machine, paths[0])) == len(set(notes_on(machine, paths[0]))) == 2


def test_siblings_without_the_cpu_itself() -> None:
    path = f"{CPU}/cpu0/topology/thread_siblings_list"
    tree = changed("hygon-32", {path: "1,33\n"})
    machine = topology.read(tree)
    assert details.read(tree, machine).cores[:2] == (machines.cpus("0"), machines.cpus("1,33"))
    (note,) = notes_on(machine, path)
    assert "found '1,33'; wanted CPU 0 among them; the CPU counts as a core of its own" in note


def test_a_list_that_is_longer_than_any_kernel_makes_them() -> None:
    machine = read("kunpeng-920", {f"{NODE}/node1/cpulist": "32" + " " * 70_000 + "-63\n"})
    assert machine.nodes[1].cpus == machines.cpus("32-63")
    (note,) = notes_on(machine, f"{NODE}/node1/cpulist")
    assert "found more than 65536 bytes" in note


def test_cores_of_two_kinds() -> None:
    """Some CPUs have a further level: what was learned of their neighbours does not mislead."""
    texts = {f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_list": "0-15\n" for cpu in range(16)}
    for cpu in range(16, 32):
        texts[f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_list"] = f"{cpu}\n"
        texts[f"{CPU}/cpu{cpu}/cache/index4/level"] = "4\n"
        texts[f"{CPU}/cpu{cpu}/cache/index4/type"] = "Unified\n"
        texts[f"{CPU}/cpu{cpu}/cache/index4/shared_cpu_list"] = "16-31\n"
    machine = read("loongson-3c6000", texts)
    assert machine.llcs == (machines.cpus("0-15"), machines.cpus("16-31"))


def test_cores_without_the_level_that_others_have() -> None:
    machine = read(
        "loongson-3c6000", {}, without=tuple(f"{CPU}/cpu{cpu}/cache/index3" for cpu in (30, 31))
    )
    assert machine.llcs == (machines.cpus("0-31"),), "CPU 0 says that they share its cache"
    texts = {f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_list": "0-29\n" for cpu in range(30)}
    found = changed("loongson-3c6000", texts)
    kept = {p: t for p, t in found.files.items() if not p.startswith(f"{CPU}/cpu3")}
    kept |= {p: t for p, t in found.files.items() if p.startswith(f"{CPU}/cpu3/")}
    machine = topology.read(Record(kept, {}))
    assert machine.llcs == (machines.cpus("0-29"), machines.cpus("30-31"))
    assert not machine.llcs_known


@pytest.mark.parametrize(
    "text",
    [
        *("10 16", "a b c d", "10 16 32 -1", "", "9" * 50),
        *("9 16 25 32", "16 10 25 32", "11 16 25 32", "10 16 25 256", "10 0 25 32"),
    ],
)
def test_distances_of_nonsense(text: str) -> None:
    machine = read("kunpeng-920", {f"{NODE}/node0/distance": text})
    assert machine.nodes[0].distances == {0: 10, 1: 20, 2: 20, 3: 20}
    assert machine.nodes[1].distances == {0: 16, 1: 10, 2: 25, 3: 32}
    assert bool(notes_on(machine, f"{NODE}/node0/distance")) == bool(text)


@pytest.mark.parametrize("text", ["-1", "", "x", "9" * 30])
def test_an_unknown_package(text: str) -> None:
    machine = read("sg2042", {f"{CPU}/cpu8/topology/physical_package_id": text})
    assert [node.package for node in machine.nodes.values()] == [0, -1, 0, 0]


def test_a_card_that_does_not_tell_its_node_is_never_on_node_0() -> None:
    texts = {
        f"{PCI}/0000:90:1c.0/numa_node": "-1\n",
        f"{PCI}/0000:90:1c.0/local_cpulist": "0-95\n",
        f"{PCI}/0000:a0:1c.0/numa_node": "-1\n",
        f"{PCI}/0000:a0:1c.0/local_cpulist": "24-47,72-95\n",
        f"{PCI}/0000:a0:1d.0/numa_node": "7\n",
        f"{PCI}/0000:a0:1d.0/local_cpulist": "nonsense\n",
    }
    machine = read("p4d", texts)
    assert cards(machine)["0000:90:1c.0"] == -1
    assert cards(machine)["0000:a0:1c.0"] == 1
    assert cards(machine)["0000:a0:1d.0"] == 1, "the mask beside the list"
    (note,) = notes_on(machine, f"{PCI}/0000:90:1c.0")
    assert "found '-1'; wanted one of the nodes 0-1; its node is unknown" in note


def test_the_bridge_above_a_card_tells_its_node() -> None:
    address, bridge = "0000:10:1c.0", "0000:0f:01.0"
    found = changed(
        "p4d",
        {
            f"{PCI}/{address}/numa_node": "-1\n",
            f"{PCI}/{address}/local_cpulist": "0-95\n",
            f"{PCI}/{bridge}/numa_node": "1\n",
        },
    )
    found.links[f"{PCI}/{address}"] = f"../../../devices/pci0000:0f/{bridge}/{address}"
    assert cards(topology.read(found))[address] == 1
    assert cards(topology.read(record_text.parse(record.capture(found))))[address] == 1


def test_a_machine_of_one_node_has_its_cards_there() -> None:
    names = list(machines.Facts("hygon-32").cards)
    machine = read("hygon-32", {f"{PCI}/{name}/numa_node": "-1\n" for name in names})
    assert cards(machine) == dict.fromkeys(names, 0)
    assert machine.notes == ()


def test_nonsense_in_any_file() -> None:
    noise = random.Random(2042)
    whole = machines.record("intel-snc")
    paths = sorted(path for path in whole.files if "core_" not in path)
    for _ in range(60):
        texts = {}
        for path in noise.sample(paths, len(paths) // 20):
            letters = "".join(chr(noise.randrange(300)) for _ in range(noise.randrange(40)))
            texts[path] = noise.choice([*SCRAPS, letters, whole.files[path][::-1]])
        tree = Record({**whole.files, **texts}, whole.links)
        try:
            machine = topology.read(tree)
        except files.NotAMachine:
            assert f"{CPU}/online" in texts
            continue
        check(machine)
        details.read(tree, machine)
        check(topology.read(record_text.parse(record.capture(tree))))


def test_folders_and_pipes_in_place_of_files(
    tree_of: Callable[[str], Path], tmp_path: Path
) -> None:
    for number, name in enumerate(("online", "cpu0/cache/index3/level", "cpu0/cache")):
        root = machines.tree("loongson-3c6000", tmp_path / str(number))
        target = root / CPU / name
        target.rename(tmp_path / f"old{number}")
        os.mkfifo(target)
        check(topology.read(str(root)))
    machine = topology.read(str(tree_of("loongson-3c6000")))
    assert machine.llcs == (machines.cpus("0-31"),)
