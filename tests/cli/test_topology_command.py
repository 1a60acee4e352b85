"""`loongkit topology` in real interpreters."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import children
import machines
import pytest

from loongkit.activation import files
from loongkit.numa import record

Loongkit = Callable[..., children.Result]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], str]:
    """Writes the record of a machine and returns its path."""

    def write(name: str) -> str:
        path = tmp_path / f"{name}.machine"
        path.write_text(record.capture(machines.record(name)), "utf-8")
        return str(path)

    return write


@pytest.fixture
def document(loongkit: Loongkit) -> Callable[..., dict[str, Any]]:
    def run(*words: str, **changes: str) -> dict[str, Any]:
        result = loongkit("topology", "--json", *words, **changes)
        assert (result.status, result.err) == (0, ""), result
        found: dict[str, Any] = json.loads(result.out)
        return found

    return run


def test_this_machine(loongkit: Loongkit, document: Callable[..., dict[str, Any]]) -> None:
    found = document()
    assert set(found) == {
        *("loongkit", "cpu", "nodes", "caches_known", "caches", "cores", "accelerators"),
        *("allowed", "cpuset", "quota", "notes", "numa_affinity", "ranks", "problems"),
    }
    assert machines.cpus(found["allowed"]) == os.sched_getaffinity(0)
    result = loongkit("topology")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("CPU:")
    assert os.uname().nodename not in result.out


def test_nothing_is_imported_and_nothing_is_bound(loongkit: Loongkit, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('imported')")
    result = loongkit("topology", PYTHONPATH=str(tmp_path), LOONGKIT_NUMA_AFFINITY="1")
    assert (result.status, result.err) == (0, "")


def test_document(recorded: Callable[[str], str], document: Callable[..., dict[str, Any]]) -> None:
    found = document("--sysfs", recorded("ndv4"))
    facts = machines.Facts("ndv4")
    assert {node["id"]: machines.cpus(node["cpus"]) for node in found["nodes"]} == facts.nodes
    assert {machines.cpus(cache["cpus"]) for cache in found["caches"]} == facts.last_level()
    assert {cache["bytes"] for cache in found["caches"]} == {16 << 20}
    assert {machines.cpus(core) for core in found["cores"]} == set(facts.cores)
    assert {card["pci"]: card["node"] for card in found["accelerators"]} == facts.cards
    assert found["numa_affinity"]["on"] is False
    ranks = found["ranks"]
    assert [rank["accelerator"] for rank in ranks] == list(facts.cards)
    assert [rank["memory_node"] for rank in ranks] == [1, 1, 0, 0, 3, 3, 2, 2]
    assert [rank["training"] for rank in ranks][:3] == ["24-35", "36-47", "0-11"]
    assert ranks[0]["reasons"][-1]["code"] == "llc-split"
    assert [cache["node"] for cache in found["caches"]] == [0] * 6 + [1] * 6 + [2] * 6 + [3] * 6


def test_settings_and_number_of_ranks(
    recorded: Callable[[str], str], document: Callable[..., dict[str, Any]]
) -> None:
    words = ("--sysfs", recorded("epyc-9654"))
    found = document(
        *words,
        *("--ranks", "4"),
        LOONGKIT_ALL="1",
        LOONGKIT_NUMA_AFFINITY_SEPARATE_BY_ROLES="1",
        CUDA_VISIBLE_DEVICES="4,5,6,7",
        LOCAL_WORLD_SIZE="7",
    )
    assert found["numa_affinity"]["options"]["separate_by_roles"] is True
    assert [rank["training"] for rank in found["ranks"]][:1] == ["96-111,288-303"]
    assert [rank["data_workers"] for rank in found["ranks"]][:1] == ["112-119,304-311"]
    assert len(document(*words, LOCAL_WORLD_SIZE="3")["ranks"]) == 3
    assert len(document(*words, LOCAL_WORLD_SIZE="many")["ranks"]) == 8


def test_the_machine_that_a_job_here_would_plan_for(
    recorded: Callable[[str], str], document: Callable[..., dict[str, Any]]
) -> None:
    setting = {"LOONGKIT_NUMA_AFFINITY_SYSFS": recorded("epyc-9654")}
    found = document(**setting)
    assert len(found["cores"]) == 192
    here = os.sched_getaffinity(0)
    assert machines.cpus(found["allowed"]) == here & set(range(384))
    assert f"recorded in {setting['LOONGKIT_NUMA_AFFINITY_SYSFS']}" in found["problems"][0]
    assert document("--sysfs", "/", **setting) == {
        **document(),
        "numa_affinity": document("--sysfs", "/", **setting)["numa_affinity"],
    }


def test_text(recorded: Callable[[str], str], loongkit: Loongkit) -> None:
    result = loongkit("topology", "--sysfs", recorded("epyc-9654"))
    for text in (
        "CPU:            amd, AMD EPYC 9654 96-Core Processor, x86_64",
        "2 packages, 2 NUMA nodes, 24 L3 groups, 192 cores, 384 CPUs, 8 accelerators",
        "allowed CPUs:   all 384",
        "  node 0   12 of 32 MB: 0-7,192-199  8-15,200-207",
        "node 1    32  10",
        "0000:85:00.0  1     NVIDIA H200",
        "A job of 8 processes here, under NUMA_AFFINITY (off with these settings; ",
        "4     0000:85:00.0  node 1  96-119,288-311   96-119,288-311",
        "  ranks 0-3: 3 of the 12 last-level caches of node 0 (llc-split)",
    ):
        assert text in result.out
    assert max(map(len, result.out.splitlines())) <= 100


def test_text_of_less_usual_machines(recorded: Callable[[str], str], loongkit: Loongkit) -> None:
    power = loongkit("topology", "--sysfs", recorded("power9")).out
    assert "none: memory alone" in power
    riscv = loongkit("topology", "--sysfs", recorded("sg2042"), "--ranks", "1").out
    assert "The kernel does not show which CPUs share a cache." in riscv
    assert "No accelerator found." in riscv
    assert "0     -            -       not bound  not bound" in riscv
    assert "A job of 1 process here" in riscv
    assert "  rank 0: this host has no accelerator (no-gpu)" in riscv


def test_problems_are_told(
    recorded: Callable[[str], str], loongkit: Loongkit, tmp_path: Path
) -> None:
    original = machines.record("kunpeng-920")
    original.files["sys/devices/system/node/node0/distance"] = "near far\n"
    path = tmp_path / "strange"
    path.write_text(record.capture(original), "utf-8")
    result = loongkit("topology", "--sysfs", str(path), LOONGKIT_NUMA_AFFINITY="true")
    problems = result.out.partition("Problems with the settings:")[2]
    assert "LOONGKIT_NUMA_AFFINITY" in problems
    assert "node0/distance: found 2 words" in problems.replace("\n ", "")


def test_pictures_and_record(
    recorded: Callable[[str], str], loongkit: Loongkit, tmp_path: Path
) -> None:
    source = recorded("epyc-9654")
    svg, png, again = (tmp_path / name for name in ("m.svg", "m.png", "m.machine"))
    words = ("--svg", svg, "--png", png, "--record", again)
    result = loongkit("topology", "--sysfs", source, *words)
    assert (result.status, result.err) == (0, "")
    assert result.out.splitlines() == [
        f"record written to {again}",
        f"svg written to {svg}",
        f"png written to {png}",
    ]
    assert again.read_text() == Path(source).read_text()
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert png.read_bytes().startswith(PNG)


def test_json_beside_a_picture(
    recorded: Callable[[str], str], document: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    svg = tmp_path / "m.svg"
    assert document("--sysfs", recorded("ndv4"), "--svg", str(svg))["ranks"]
    assert svg.exists()


@pytest.mark.parametrize("pillow", ["raise ImportError", "import nothing_of_this_name"])
def test_png_without_pillow(
    recorded: Callable[[str], str], loongkit: Loongkit, tmp_path: Path, pillow: str
) -> None:
    (tmp_path / "stubs/PIL").mkdir(parents=True)
    (tmp_path / "stubs/PIL/__init__.py").write_text(pillow)
    result = loongkit(
        *("topology", "--sysfs", recorded("ndv4"), "--png", str(tmp_path / "m.png")),
        PYTHONPATH=str(tmp_path / "stubs"),
    )
    assert (result.status, result.out) == (1, "")
    assert result.err == (
        "loongkit topology: --png needs Pillow 10.1 or later, found none: "
        "run `pip install 'loongkit[pictures]'`, or use --svg\n"
    )
    assert not (tmp_path / "m.png").exists()


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--sysfs", "nowhere"), 1, "nowhere: found no such folder or file; wanted a folder"),
        (("--sysfs", "."), 1, ".: found no CPU in sys/devices/system/cpu; wanted a folder"),
        (("--svg", "no/such/folder"), 1, "No such file or directory: 'no/such/folder'"),
        (("--ranks", "0"), 2, "found '0', wanted a number from 1 to 1024"),
        (("--ranks", "x"), 2, "found 'x', wanted a number from 1 to 1024"),
    ],
)
def test_wrong_usage(loongkit: Loongkit, words: tuple[str, ...], status: int, message: str) -> None:
    result = loongkit("topology", *words)
    assert (result.status, result.out) == (status, "")
    assert message in result.err
    assert "Traceback" not in result.err


def test_record_of_this_machine_reads_back(
    loongkit: Loongkit, document: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "here"
    result = loongkit("topology", "--record", path)
    assert (result.status, result.out) == (0, f"record written to {path}\n")
    assert path.read_text().startswith(files.HEADING)
    assert document("--sysfs", str(path)) == document()
