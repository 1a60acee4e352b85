"""The files that docs/clusters.md shows are read by Loongkit, and its manifest fits together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import children
import pytest
import yaml

from loongkit.activation import settings

PAGE = (children.ROOT / "docs" / "clusters.md").read_text("utf-8")
FILE, MANIFESTS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
CONFIG_MAP, JOB = yaml.safe_load_all(MANIFESTS)
(MOUNTED,) = CONFIG_MAP["data"].items()


def containers() -> list[dict[str, Any]]:
    replicas = JOB["spec"]["pytorchReplicaSpecs"].values()
    return [replica["template"]["spec"] for replica in replicas]


@pytest.mark.parametrize("text", [FILE, MOUNTED[1]], ids=["file", "ConfigMap"])
def test_each_setting_is_understood(tmp_path: Path, text: str) -> None:
    path = tmp_path / "loongkit.yaml"
    path.write_text(text, "utf-8")
    found = settings.read({"LOONGKIT_CONFIG": str(path)})
    assert found.problems == []
    assert len(found.values) == len(yaml.safe_load(text)) + 1  # the variable that names the file


def test_the_pods_see_the_file() -> None:
    assert len(containers()) == 2, "a master and a worker"
    for pod in containers():
        (container,) = pod["containers"]
        assert container["name"] == "pytorch", "the operator looks for this name"
        env = {each["name"]: each["value"] for each in container["env"]}
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert mounts.keys() == volumes.keys()
        assert volumes["settings"]["configMap"]["name"] == CONFIG_MAP["metadata"]["name"]
        assert env["LOONGKIT_CONFIG"] == f"{mounts['settings']}/{MOUNTED[0]}"


def test_the_command_fits_the_resources() -> None:
    for pod in containers():
        (container,) = pod["containers"]
        (line,) = container["args"]
        gpus = container["resources"]["limits"]["nvidia.com/gpu"]
        assert line.startswith("exec loongkit-run torchrun ") and "\n" not in line.strip()
        assert f"--nproc-per-node={gpus} " in line
