"""Support hooks: another framework is prepared for a feature, without counting as its target."""

from __future__ import annotations

import pytest
from children import run
from copies import copy_with_feature, with_copy, write

FEATURE = """
from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="probe", level=1, group="data", position=999, summary="test",
    requires=("mainframe>=2.0",),
)

@FEATURE.when_imported("mainframe.core")
def core(module, patcher):
    patcher.set(module, "patched", True)

@FEATURE.when_imported("loaderlib", support=True)
def loader(module, patcher):
    patcher.set(module, "patched", True)
    patcher.set(module, "late", patcher.late)
"""

SHOW = """
import sys
def show(name):
    module = sys.modules.get(name)
    return getattr(module, "patched", False)
from loongkit.activation.session import SESSION
print(show("mainframe.core"), show("loaderlib"), SESSION.records["probe"].state)
"""


@pytest.fixture
def frameworks(tmp_path):
    def make(version: str):
        files = {
            "mainframe/__init__.py": f"__version__ = '{version}'\n",
            "mainframe/core.py": "x = 1\n",
            "loaderlib.py": "x = 1\n",
        }
        folder = write(tmp_path / "frameworks", files)
        package = copy_with_feature(tmp_path / "copied", FEATURE)
        return with_copy(package, folder, LOONGKIT_ALL="1")

    return make


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ("import mainframe.core, loaderlib", "True True patched"),
        ("import loaderlib, mainframe.core", "True True patched"),
        ("import loaderlib", "False False armed"),
        ("import mainframe.core", "True False patched"),
    ],
)
def test_a_support_hook_runs_once_the_gate_is_passed(frameworks, imports, expected):
    result = run("-c", imports + "\n" + SHOW, env=frameworks("2.0"))
    assert result.out.strip() == expected, result


@pytest.mark.parametrize(
    "imports", ["import loaderlib, mainframe.core", "import mainframe.core, loaderlib"]
)
def test_a_refused_gate_leaves_the_other_framework_alone(frameworks, imports):
    result = run("-c", imports + "\n" + SHOW, env=frameworks("1.9"))
    assert result.out.strip() == "False False skipped", result
