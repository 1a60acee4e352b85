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
from loongkit.cli import topology, topology_text
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
        *("allowed", "cpuset", "quota", "notes", "visible", "numa_affinity", "subcgroups"),
        *("ranks", "problems"),
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


@pytest.mark.parametrize(
    ("chosen", "cards", "visible"),
    [
        ({"CUDA_VISIBLE_DEVICES": "6,1"}, ["0000:c6:00.0", "0000:26:00.0"], 2),
        ({"CUDA_VISIBLE_DEVICES": "7"}, ["0000:e5:00.0"], 1),
        ({"CUDA_VISIBLE_DEVICES": ""}, [""], 0),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, [""], 0),
        ({"CUDA_VISIBLE_DEVICES": "0,1,9,2"}, ["0000:05:00.0", "0000:26:00.0"], 2),
        # Instances whose devices no file names: torch shows one for each.
        ({"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2,MIG-3"}, ["", "", ""], 3),
        ({"HIP_VISIBLE_DEVICES": "0"}, None, 8),
        ({"CUDA_VISIBLE_DEVICES": "1", "LOCAL_WORLD_SIZE": "2"}, ["0000:26:00.0"] * 2, 1),
    ],
    ids=lambda value: ",".join(value.values()) if isinstance(value, dict) else "",
)
def test_one_process_for_each_accelerator_that_torch_would_show(
    recorded: Callable[[str], str],
    document: Callable[..., dict[str, Any]],
    chosen: dict[str, str],
    cards: list[str] | None,
    visible: int,
) -> None:
    found = document("--sysfs", recorded("epyc-9654"), **chosen)
    of_ranks = [rank["accelerator"] for rank in found["ranks"]]
    assert found["visible"] == visible
    assert of_ranks == (cards or [card["pci"] for card in found["accelerators"]])


def test_the_text_says_what_hides_accelerators(
    recorded: Callable[[str], str], loongkit: Loongkit
) -> None:
    words = ("topology", "--sysfs", recorded("epyc-9654"))
    assert "visible" not in loongkit(*words).out
    text = loongkit(*words, CUDA_VISIBLE_DEVICES="5").out
    assert "A job of 1 process here, under NUMA_AFFINITY (off" in text
    assert "CUDA_VISIBLE_DEVICES leaves 1 of 8 accelerators visible.\n" in text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("many", True),
        ("0", True),
        ("-2", True),
        ("2.5", True),
        ("99999", True),
        ("1" * 50, True),
        ("", False),
        (" 8 ", False),
        ("08", False),
    ],
    ids=lambda value: str(value)[:8],
)
def test_nonsense_of_a_launcher_is_told(
    recorded: Callable[[str], str],
    document: Callable[..., dict[str, Any]],
    given: str,
    told: bool,
) -> None:
    words = ("--sysfs", recorded("ndv4"))
    found = document(*words, LOCAL_WORLD_SIZE=given)
    assert len(found["ranks"]) == 8
    assert len(found["problems"]) == told
    if told:
        assert found["problems"][0].startswith(f"LOCAL_WORLD_SIZE='{given[:5]}")
        assert found["problems"][0].endswith(
            " is no number of processes; accepted: 1 to 1024. Shown is a job of 8 processes"
        )
    # Said by the user: what the launcher says doesn't count.
    assert document(*words, "--ranks", "2", LOCAL_WORLD_SIZE=given)["problems"] == []


@pytest.mark.parametrize(
    ("environ", "heading"),
    [
        ({}, "NUMA_AFFINITY (off with these settings; this is what it would do):"),
        ({"LOONGKIT_ALL": "1"}, "NUMA_AFFINITY (on):"),
        ({"LOONGKIT_ALL": "2"}, "NUMA_AFFINITY and SUBCGROUPS (on):"),
        ({"LOONGKIT_SUBCGROUPS": "1"}, "SUBCGROUPS (on):"),
    ],
    ids=["neither", "affinity", "both", "groups"],
)
def test_what_would_place_the_processes(
    recorded: Callable[[str], str],
    loongkit: Loongkit,
    document: Callable[..., dict[str, Any]],
    environ: dict[str, str],
    heading: str,
) -> None:
    words = ("--sysfs", recorded("ndv4"))
    text = loongkit("topology", *words, **environ).out
    assert f"A job of 8 processes here, under {heading}\n" in text
    found = document(*words, **environ)
    assert found["numa_affinity"]["on"] == ("NUMA_AFFINITY (on" in heading or "and" in heading)
    assert found["subcgroups"] == {"on": "SUBCGROUPS" in heading}


def test_a_cause_is_told_once(
    recorded: Callable[[str], str], document: Callable[..., dict[str, Any]]
) -> None:
    (rank, *_) = document("--sysfs", recorded("kunpeng-920"))["ranks"]
    assert rank["reasons"] == [
        {
            "code": "no-device-identity",
            "text": "the order in which the driver counts these devices is not known",
        }
    ]
    (rank, *_) = document("--sysfs", recorded("ndv4"), CUDA_VISIBLE_DEVICES="9")["ranks"]
    assert rank["reasons"] == [
        {"code": "no-gpu", "text": "CUDA_VISIBLE_DEVICES leaves no accelerator visible"}
    ]


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
@pytest.mark.parametrize("kind", ["svg", "png", "record"])
def test_a_file_on_standard_output_is_alone_there(
    recorded: Callable[[str], str], loongkit: Loongkit, tmp_path: Path, kind: str, name: str
) -> None:
    words = ("topology", "--sysfs", recorded("hygon-32"))
    path = tmp_path / "file"
    assert loongkit(*words, f"--{kind}", path).status == 0
    streamed = loongkit(*words, f"--{kind}", name)
    assert streamed.seen_by_user == (path.read_bytes(), b"", 0)
    other = "svg" if kind == "record" else "record"
    beside = loongkit(*words, f"--{kind}", name, f"--{other}", tmp_path / "other")
    told = f"{other} written to {tmp_path / 'other'}\n".encode()
    assert beside.seen_by_user == (path.read_bytes(), told, 0)
    assert not (tmp_path / "empty" / "-").exists()


@pytest.mark.parametrize(
    ("words", "mixed"),
    [
        (("--svg", "-", "--png", "-"), "--svg and --png"),
        (("--svg", "-", "--json"), "--svg and --json"),
        (("--record", "/dev/stdout", "--png", "-"), "--record and --png"),
    ],
    ids=["pictures", "picture and JSON", "record and picture"],
)
def test_outputs_are_not_mixed(loongkit: Loongkit, words: tuple[str, ...], mixed: str) -> None:
    result = loongkit("topology", *words)
    assert (result.status, result.out) == (2, "")
    assert f"error: {mixed} would mix on standard output: keep one of them\n" in result.err


@pytest.mark.parametrize("option", ["--sysfs", "--record", "--svg", "--png"])
def test_an_empty_path_is_an_error(loongkit: Loongkit, option: str) -> None:
    result = loongkit("topology", option, "")
    assert (result.status, result.out) == (2, "")
    assert f"error: argument {option}: found '', wanted a path\n" in result.err


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
    assert power.startswith("CPU:            POWER9, altivec supported, ppc64le\n")
    riscv = loongkit("topology", "--sysfs", recorded("sg2042"), "--ranks", "1").out
    assert "The kernel does not show which CPUs share a cache." in riscv
    assert "No accelerator found." in riscv
    assert "0     -            -       not bound  not bound" in riscv
    assert "A job of 1 process here" in riscv
    assert "  rank 0: this host has no accelerator (no-gpu)" in riscv


@pytest.mark.parametrize(
    ("quota", "text"),
    [(None, "none"), (1.0, "the time of 1 CPU"), (0.5, "the time of 0.5 CPUs")],
)
def test_the_quota(quota: float | None, text: str) -> None:
    view = topology.gather({}, machines.record("ndv4"), None)
    view.details.quota = quota
    assert topology_text.quota(view) == text


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
