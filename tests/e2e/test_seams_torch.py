"""Two features on one seam of the real DataLoader, a third party's wrapper on top of both."""

from __future__ import annotations

import json
from pathlib import Path

import children
import jobs
import pytest

pytestmark = jobs.needs_torch

FEATURE = """
from loongkit.activation.feature import Feature

FEATURE = Feature(name="{name}", level=1, group="data", summary="for tests", position={position})
PATCHER = NOTE = None

@FEATURE.when_imported("torch.utils.data.dataloader")
def patch(module, patcher):
    global PATCHER
    PATCHER = patcher

    def through(original, self):
        patcher.mark()
        NOTE()
        return original(self)

    patcher.wrap(module.DataLoader, "__iter__", through, like=lambda self: None)
    patcher.wrap(module.DataLoader, "__len__", through, like=lambda self: None)
"""

BATCHES = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> jobs.Package:
    sources = {
        name: FEATURE.format(name=name, position=position)
        for position, name in enumerate(("first", "second"), 1000)
    }
    return jobs.Package(tmp_path_factory.mktemp("package"), **sources)


@pytest.mark.parametrize(("gone", "left"), [("first", "second"), ("second", "first")])
def test_a_feature_works_on_when_the_other_is_rolled_back(
    package: jobs.Package, tmp_path: Path, gone: str, left: str
) -> None:
    env = jobs.environment(tmp_path, package, {"LOONGKIT_FIRST": "1", "LOONGKIT_SECOND": "1"})
    result = children.run(jobs.SCRIPTS / "seams.py", gone, env=env, cwd=tmp_path)
    found = jobs.Job(result, tmp_path / "log")
    assert result.status == 0 and result.err == "", found
    report = json.loads(result.out.partition("=" * 28)[0])
    callers = {
        "both": ["third party", "second", "first"],
        "one": ["third party", left],
        "none": ["third party"],
        "bare": [],
    }
    for stage, names in callers.items():
        assert report[stage] == {
            "iter": [*names, BATCHES],
            "len": [*names, 3],
            "batches": [*names, 3],
        }, stage
    assert found.rows == {"first": True, "second": True}
