"""A machine in one file: read back as it was, and without a name in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import children
import machines
import pytest

from loongkit.activation import cgroups, cpulists, files, hardware, record_text
from loongkit.activation.files import Record
from loongkit.numa import details, record, topology
from loongkit.numa.records import Machine

SECRET = "dorothea"


def facts(machine: Machine) -> object:
    """Everything but uuids, which a record numbers anew."""
    return (
        {id: (n.cpus, dict(n.distances), n.package) for id, n in machine.nodes.items()},
        machine.llcs,
        machine.llcs_known,
        [(c.pci, c.numa_node, c.name, c.kind, c.vendor) for c in machine.accelerators],
        set(machine.uuids),
        machine.vendor,
        machine.allowed,
        machine.cpuset,
        len(machine.notes),
    )


def extras(found: details.Details) -> object:
    cpu = found.cpu
    return (
        *(found.cores, found.cache_bytes, found.memory_bytes, found.quota),
        *(cpu.vendor, cpu.model, cpu.architecture),
    )


@pytest.mark.parametrize("name", machines.NAMES)
def test_a_record_holds_the_machine(tmp_path: Path, name: str) -> None:
    original = machines.record(name)
    path = tmp_path / "machine"
    path.write_text(record.capture(original), "utf-8")
    tree = files.open_tree(str(path))
    machine = topology.read(original)
    assert facts(topology.read(str(path))) == facts(machine)
    assert extras(details.read(tree, machine)) == extras(details.read(original, machine))
    assert record.capture(tree) == path.read_text("utf-8"), "a record of a record is the same"
    assert path.stat().st_size < 40_000


def test_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "machine"
    path.write_text(record.capture(), "utf-8")
    machine, again = topology.read(), topology.read(str(path))
    assert facts(again) == facts(machine)
    tree, here = files.open_tree(str(path)), files.open_tree("/")
    assert extras(details.read(tree, again)) == extras(details.read(here, machine))
    assert hardware.read_cpu(str(path)).architecture == os.uname().machine


def test_the_container_is_kept_in_other_words() -> None:
    texts = {
        "proc/self/cgroup": f"0::/user.slice/{SECRET}\n",
        "proc/self/mountinfo": "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        f"sys/fs/cgroup/user.slice/{SECRET}/cpuset.cpus.effective": "0-15\n",
        "sys/fs/cgroup/user.slice/cpu.max": "350000 100000\n",
        "proc/self/status": f"Name:\t{SECRET}\nCpus_allowed_list:\t0-7\n",
    }
    original = machines.record("hygon-32")
    tree = Record({**original.files, **texts}, original.links)
    text = record.capture(tree)
    assert SECRET not in text
    again = record_text.parse(text)
    machine = topology.read(again)
    assert (cpulists.format(machine.allowed), cpulists.format(machine.cpuset)) == ("0-7", "0-15")
    assert cgroups.cpu_quota(cgroups.Groups(again)) == 3.5


def test_no_name_no_serial_number_and_no_uuid() -> None:
    original = machines.record("dgx-2")
    planted = {
        path: text.replace("\n", f"\nSerial\t\t: {SECRET}\nOwner={SECRET}\n", 1)
        for path, text in original.files.items()
        if path in ("proc/cpuinfo", "proc/bus/pci/devices")
        or path.endswith(("/uevent", "/information", "/meminfo"))
    }
    assert len(planted) > 30
    text = record.capture(Record({**original.files, **planted}, original.links))
    assert SECRET not in text
    for uuid in topology.read(original).uuids.values():
        assert uuid not in text
    assert len(set(topology.read(record_text.parse(text)).uuids.values())) == 16
    assert set(text.splitlines()[:2]) == {files.HEADING, text.splitlines()[1]}


def test_a_record_of_this_machine_names_neither_it_nor_its_user() -> None:
    words = [sys.executable, "-c", "from loongkit.numa import record; print(record.capture())"]
    env = children.clean_env(PYTHONPATH=str(children.SOURCE), USER=SECRET, HOSTNAME=SECRET)
    text = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60).stdout
    assert text.startswith(files.HEADING)
    assert SECRET not in text
    host = os.uname().nodename
    assert host not in text or len(host) < 4
    assert os.path.expanduser("~").strip("/") not in text or os.path.expanduser("~") == "/"


@pytest.mark.parametrize(
    "text",
    ["plain", "", "two\nlines", "\ttab\\n", "back\\slash\\\\", "\\", "\\n\n\\\n", " = ", " -> x"],
)
def test_texts_come_back(text: str) -> None:
    written = record_text.render(Record({"sys/a/b": text + "\n"}, {"sys/l": "../a"}))
    again = record_text.parse(written)
    assert again.files == {"sys/a/b": text + "\n"}
    assert again.links == {"sys/l": "../a"}
    assert (again.names("sys"), again.names("sys/a")) == (["a", "l"], ["b"])


def test_what_cannot_be_printed_becomes_a_question_mark() -> None:
    written = record_text.render(Record({"sys/a": "x\0\x1b[31m\u2028\r\n"}, {}))
    assert record_text.parse(written).files == {"sys/a": "x??[31m??\n"}


def test_names_that_break_lines_are_left_out() -> None:
    written = record_text.render(
        Record({"sys/a\nb": "x\n", "sys/c": "y\n"}, {"sys/l": "z\nproc/x = 1"})
    )
    again = record_text.parse(written)
    assert (again.files, again.links) == ({"sys/c": "y\n"}, {})


def test_a_record_answers_as_a_folder_does(tmp_path: Path) -> None:
    (tmp_path / "sys/a").mkdir(parents=True)
    (tmp_path / "sys/a/b").write_text("12345\n")
    (tmp_path / "sys/l").symlink_to("a")
    for tree in (
        files.Folder(str(tmp_path)),
        files.Record({"sys/a/b": "12345\n"}, {"sys/l": "a"}),
    ):
        assert tree.read("sys/a/b") == "12345\n"
        assert tree.read("sys/a/b", 3) == "123"
        assert tree.read("sys/a") == tree.read("sys/missing") == tree.read("\0") == ""
        assert tree.names("sys") == ["a", "l"]
        assert tree.names("sys/a/b") == tree.names("sys/missing") == []
        assert tree.target("sys/l") == "a"
        assert tree.target("sys/a") == ""
        assert [tree.exists(f"sys/{name}") for name in ("a", "a/b", "l", "x")] == [1, 1, 1, 0]
        assert not tree.live
    assert all(files.Folder(root).live for root in ("/", "//", "/proc/../."))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "no such folder or file"),
        (b"", "nothing that can be read"),
        (b"PK\x03\x04", "a file that doesn't begin with"),
        (files.HEADING.encode("utf-16"), "a file that doesn't begin with"),
        (files.HEADING.encode() + b"\n# end of the record, lines above: 1.\n", "no CPU"),
    ],
)
def test_what_is_no_machine(tmp_path: Path, content: bytes | None, found: str) -> None:
    path = tmp_path / "record"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(files.NotAMachine) as caught:
        topology.read(str(path))
    text = str(caught.value)
    assert text.startswith(f"{path}: found {found}")
    assert "wanted a folder that holds the machine's sys and proc folders, or a file" in text
    assert "\n" not in text


def test_reading_a_record_imports_nothing_heavy(tmp_path: Path) -> None:
    path = tmp_path / "machine"
    path.write_text(record.capture(machines.record("epyc-9654")), "utf-8")
    program = (
        "import os, sys, __future__; before = set(sys.modules); "
        "from loongkit.numa import topology; "
        f"topology.read({str(path)!r}); topology.read(); "
        "print([m for m in set(sys.modules) - before if not m.startswith('loongkit')])"
    )
    env = children.clean_env(PYTHONPATH=str(children.SOURCE))
    words = [sys.executable, "-S", "-c", program]
    result = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


def test_a_node_that_only_nccl_knows_is_kept_and_its_file_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The file may lie in somebody's home, and hold names of a whole cluster."""
    original = machines.record("p4d")
    for address in machines.Facts("p4d").cards:
        original.files[f"sys/bus/pci/devices/{address}/numa_node"] = "-1\n"
        original.files[f"sys/bus/pci/devices/{address}/local_cpulist"] = "0-95\n"
    monkeypatch.setattr(Record, "live", True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: frozenset(range(96)))
    folder = tmp_path / SECRET
    folder.mkdir()
    cards = "".join(
        f'<cpu numaid="{node}"><pci busid="{address}"/></cpu>'
        for address, node in machines.Facts("p4d").cards.items()
    )
    (folder / "topo.xml").write_text(f'<system host="{SECRET}">{cards}</system>')
    monkeypatch.setenv("NCCL_TOPO_FILE", str(folder / "topo.xml"))
    text = record.capture(original)
    assert SECRET not in text
    monkeypatch.undo()
    machine = topology.read(record_text.parse(text))
    assert {card.pci: card.numa_node for card in machine.accelerators} == machines.Facts(
        "p4d"
    ).cards
