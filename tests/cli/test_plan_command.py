"""`loongkit plan` in real interpreters."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import children
import pytest

Plan = Callable[..., dict[str, Any]]
Distributions = Callable[[Mapping[str, str]], Path]

#: The 24 features of the product, and the row fused_adam.
NAMES = [
    "data_container",
    "data_prefetch",
    "mmengine_data_prefetch",
    "imnormalize",
    "distortion",
    "pytorch",
    "page_cache_limit",
    "allow_tf32",
    "compile_resnet",
    "fused_adam",
    "fused_adamw",
    "openvla",
    "mmdet_modules",
    "dice_loss",
    "dag",
    "voxelization",
    "bevformer",
    "uniad",
    "bevfusion",
    "hf_acc_compile",
    "dynamic_shape_fix",
    "compile_pi0pytorch",
    "numa_affinity",
    "subcgroups",
    "config_guards",
]


def test_every_feature_is_listed_in_order(loongkit: Callable[..., children.Result]) -> None:
    result = loongkit("plan")
    assert (result.status, result.err) == (0, "")
    rows = [line.split()[0] for line in result.out.splitlines() if line[:1].isalpha()]
    assert [name for name in rows if name in NAMES] == NAMES
    assert "Provisional" in result.out
    assert max(map(len, result.out.splitlines())) <= 100


def test_document(plan: Plan) -> None:
    document = plan("--all", "1")
    assert set(document) - {"by_name"} == {
        "loongkit",
        "python",
        "provisional",
        "level",
        "level_source",
        "hardware",
        "features",
        "by_level",
        "problems",
    }
    assert document["provisional"] is True
    assert set(document["hardware"]) == {"cpu", "accelerators", "kind"}
    assert list(document["by_name"]) == NAMES
    guards = document["by_name"]["mmengine_data_prefetch"]
    assert guards["variable"] == "LOONGKIT_MMENGINE_DATA_PREFETCH"
    assert (guards["level"], guards["group"]) == (1, "data")
    assert guards["requires"] == ["mmcv>=2.0", "mmengine>=0.8.0"]
    assert set(guards["found"]) == {"mmcv", "mmengine"}
    assert not any(f["on"] for f in document["features"] if not f["implemented"])


@pytest.mark.parametrize(
    ("version", "state"),
    [("2.3.1", "skipped"), ("2.4.0", "enabled"), ("2.4.0a0+git12", "enabled")],
)
def test_versions_come_from_metadata(
    plan: Plan, distributions: Distributions, version: str, state: str
) -> None:
    site = distributions({"torch": version})
    # Asked for by name: on whatever hardware this runs.
    row = plan(PYTHONPATH=str(site), LOONGKIT_FUSED_ADAMW="1")["by_name"]["fused_adamw"]
    assert (row["state"], row["on"], row["asked"]) == (state, state == "enabled", "own")
    assert row["found"] == {"torch": version}
    if state == "skipped":
        assert row["reason"] == "found torch 2.3.1, wanted >=2.4.0"


def test_mmcv_has_three_names(plan: Plan, distributions: Distributions) -> None:
    site = distributions({"mmcv-full": "1.7.2", "mmsegmentation": "0.30.0"})
    bare = getattr(sys, "_base_executable", sys.executable)  # has no mmcv of its own
    rows = plan(PYTHONPATH=str(site), python=bare)["by_name"]
    assert rows["data_container"]["found"] == {"mmcv": "1.7.2"}
    assert rows["dice_loss"]["found"] == {"mmseg": "0.30.0"}


def test_two_distributions_of_one_package(
    plan: Plan, distributions: Distributions, tmp_path: Path
) -> None:
    site = distributions({"mmcv": "2.1.0", "mmcv-full": "1.7.2"})
    package = site / "mmcv"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "version.py").write_text("__version__ = '1.7.2'\n")
    bare = getattr(sys, "_base_executable", sys.executable)  # has no mmcv of its own
    rows = plan(PYTHONPATH=str(site), python=bare)["by_name"]
    assert rows["data_container"]["found"] == {"mmcv": "1.7.2"}


def test_a_checkout_that_is_not_installed(plan: Plan, tmp_path: Path) -> None:
    package = tmp_path / "checkout" / "mmseg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "version.py").write_text("__version__ = '0.29.1'\n")
    rows = plan(PYTHONPATH=str(tmp_path / "checkout"))["by_name"]
    assert rows["dice_loss"]["found"] == {"mmseg": "0.29.1"}


def test_frameworks_are_never_imported(plan: Plan, distributions: Distributions) -> None:
    site = distributions({"torch": "2.4.0"})
    for name in ("torch", "mmcv", "mmengine", "mmdet", "numpy"):
        package = site / name
        package.mkdir()
        (package / "__init__.py").write_text("raise OSError('libcudart.so.12: no such file')\n")
    row = plan("--all", "3", PYTHONPATH=str(site))["by_name"]["fused_adamw"]
    assert row["found"] == {"torch": "2.4.0"}


def test_torch_absent() -> None:
    older = [python for python in children.interpreters() if python != sys.executable]
    if not older:
        pytest.skip("no second interpreter on this machine")
    env = children.clean_env(PYTHONPATH=str(children.SOURCE), LOONGKIT_ALL="3")
    result = children.run("-m", "loongkit", "plan", env=env, python=older[0])
    assert result.status == 0, result
    assert "torch is not installed; wanted >=2.4.0" in result.out


def test_config_file_counts(plan: Plan, distributions: Distributions, tmp_path: Path) -> None:
    config = tmp_path / "loongkit.yaml"
    config.write_text("all: 2\nfused_adamw: no\nLOONGKIT_FUSED_ADAM: on\n")
    site = distributions({"torch": "2.8.0"})
    document = plan(PYTHONPATH=str(site), LOONGKIT_CONFIG=str(config))
    assert (document["level"], document["level_source"]) == (2, "config file")
    rows = document["by_name"]
    assert rows["fused_adamw"]["reason"] == "LOONGKIT_FUSED_ADAMW (config file) is off"
    assert rows["fused_adam"]["on"] is True
    other = plan(PYTHONPATH=str(site), LOONGKIT_CONFIG=str(config), LOONGKIT_FUSED_ADAM="off")
    assert other["by_name"]["fused_adam"]["on"] is False


@pytest.mark.parametrize("text", ["{", "- a\n- b\n", None])
def test_broken_config_file_is_one_problem(plan: Plan, tmp_path: Path, text: str | None) -> None:
    config = tmp_path / "loongkit.yaml"
    if text is not None:
        config.write_text(text)
    document = plan(LOONGKIT_CONFIG=str(config), LOONGKIT_ALL="1")
    assert len(document["problems"]) == 1
    assert document["problems"][0].startswith("LOONGKIT_CONFIG=")
    assert document["level"] == 1


def test_all_plays_another_level_through(plan: Plan) -> None:
    for level in (0, 3):
        document = plan("--all", str(level), LOONGKIT_ALL="1")
        assert document["level"] == level
        assert not any(f["asked"] for f in document["features"] if f["level"] > level)


@pytest.mark.parametrize(("given", "level"), [("7", 3), ("-2", 0)])
def test_all_acts_as_its_variable_does(plan: Plan, given: str, level: int) -> None:
    by_option, by_variable = plan("--all", given), plan(LOONGKIT_ALL=given)
    assert by_option["level"] == level
    assert by_option["problems"] == [
        f"LOONGKIT_ALL={given} acts as {level}; accepted: 0, 1, 2, 3",
    ]
    assert by_option == by_variable


def test_strict_stops_the_job(
    plan: Plan, loongkit: Callable[..., children.Result], stopped: tuple[str, dict[str, str]]
) -> None:
    name, settings = stopped
    assert plan(**settings)["problems"] == []
    (problem,) = plan(LOONGKIT_STRICT="1", **settings)["problems"]
    assert problem.startswith(f"LOONGKIT_STRICT=1 stops the job as it starts, because of {name} (")
    text = " ".join(loongkit("plan", LOONGKIT_STRICT="1", **settings).out.split())
    assert problem in text
    # A level asks for nothing by name: nothing is stopped.
    assert plan(LOONGKIT_STRICT="1", LOONGKIT_ALL="3")["problems"] == []


@pytest.mark.parametrize("words", [("plan", "--all", "x"), ("plan", "--banana"), ("banana",), ()])
def test_wrong_usage(loongkit: Callable[..., children.Result], words: tuple[str, ...]) -> None:
    result = loongkit(*words)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("usage: loongkit")


def test_a_reader_that_goes_away_is_no_error() -> None:
    env = children.clean_env(PYTHONPATH=str(children.SOURCE))
    command = [sys.executable, "-m", "loongkit", "plan", "--json"]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_full_disk_is_one_line() -> None:
    env = children.clean_env(PYTHONPATH=str(children.SOURCE))
    command = f"{sys.executable} -m loongkit plan --json > /dev/full"
    result = children.run_command("sh", "-c", command, env=env)
    assert result.status == 1
    assert result.err == "loongkit: the output can't be written: No space left on device\n"


def test_output_in_an_ascii_locale(loongkit: Callable[..., children.Result]) -> None:
    result = loongkit("plan", PYTHONIOENCODING="ascii", LOONGKIT_ALL="eins\N{MULTIPLICATION SIGN}")
    assert (result.status, result.err) == (0, "")
    assert "eins\\xd7" in result.out


def test_small_tasks(loongkit: Callable[..., children.Result]) -> None:
    assert loongkit("prelude-path").seen_by_user == (f"{children.PRELUDE}\n".encode(), b"", 0)
    assert loongkit("--version").out == "loongkit 0.1.0\n"
    assert "prelude-path" in loongkit("--help").out
