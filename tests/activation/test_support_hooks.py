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


TWO_GATES = """
from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="probe", level=1, group="data", position=999, summary="test",
    requires=("mainframe>=2.0", "loaderlib>=1.0"),
)

@FEATURE.when_imported("mainframe.core")
def core(module, patcher):
    patcher.set(module, "patched", True)
    patcher.set(module, "late", patcher.late)
"""


@pytest.fixture
def two_gates(tmp_path):
    def make(loader_version: str, main_version: str = "2.0", **variables: str):
        files = {
            "mainframe/__init__.py": f"__version__ = '{main_version}'\n",
            "mainframe/core.py": "def function(): pass\n",
            "loaderlib.py": f"__version__ = '{loader_version}'\n",
        }
        folder = write(tmp_path / "frameworks", files)
        package = copy_with_feature(tmp_path / "copied", TWO_GATES)
        return with_copy(package, folder, **(variables or {"LOONGKIT_ALL": "1"}))

    return make


@pytest.mark.parametrize(
    ("imports", "loader_version", "expected"),
    [
        ("import loaderlib, mainframe.core", "1.0", "True False patched"),
        ("import mainframe.core, loaderlib", "1.0", "True False patched"),
        ("import mainframe.core, json, loaderlib", "0.9", "False False skipped"),
        ("import loaderlib, mainframe.core", "0.9", "False False skipped"),
        ("import mainframe.core", "1.0", "False False armed"),
        (
            "import mainframe.core, loaderlib, importlib; import loongkit.all",
            "1.0",
            "True False patched",
        ),
        ("import mainframe.core, loongkit.all, loaderlib", "1.0", "True False patched"),
    ],
)
def test_a_gate_waits_for_a_package_that_comes_later(two_gates, imports, loader_version, expected):
    result = run("-c", imports + "\n" + SHOW, env=two_gates(loader_version))
    assert result.out.strip() == expected, result


def test_what_is_there_and_too_old_is_refused_at_once(two_gates):
    result = run("-c", "import mainframe.core\n" + SHOW, env=two_gates("1.0", "1.9"))
    assert result.out.strip() == "False False skipped", result


def test_a_package_that_never_comes_is_the_reason_in_the_summary(two_gates):
    script = """
import mainframe.core
from loongkit.activation import summary
from loongkit.activation.session import SESSION
SESSION.settle()
print(summary.remarks_of(SESSION), [row.name for row in summary.rows_of(SESSION)])
"""
    result = run("-c", script, env=two_gates("1.0", LOONGKIT_PROBE="1", LOONGKIT_STRICT="1"))
    assert result.out.strip() == (
        "['probe: skipped: loaderlib is not imported; wanted loaderlib>=1.0'] ['probe']"
    ), result
