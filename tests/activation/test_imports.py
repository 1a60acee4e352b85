"""What Loongkit loads at the start of every interpreter of a job: next to nothing."""

from __future__ import annotations

from pathlib import Path

import children
import pytest

pytestmark = pytest.mark.parametrize("python", children.interpreters())

#: Beside our own modules, what a start may load that a bare interpreter has not.
ALLOWED = {"__future__", "atexit", "time"}

PROBE = "import sys; print(*sorted(sys.modules))"
FOLDERS = [children.SOURCE / "loongkit" / name for name in ("activation", "features")]
FILES = sorted(path for folder in FOLDERS for path in folder.glob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(children.SOURCE).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def modules_of(python: str, **environ: str) -> set[str]:
    result = children.run("-c", PROBE, python=python, env=children.with_prelude(**environ))
    assert result.status == 0 and not result.stderr, result
    return set(result.out.split())


def bare_modules(python: str) -> set[str]:
    """The modules of an interpreter that runs an empty sitecustomize; conda's, say, loads more."""
    result = children.run("-c", PROBE, python=python, env=children.clean_env())
    return set(result.out.split())


IMPORT_EACH = """
import os, sys  # the rest of what every start has comes with os
names, allowed = {names!r}, {allowed!r}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "loongkit" and name not in allowed:
            raise ImportError(name + " must not be imported here")
sys.meta_path.insert(0, Blocker())
sys.path.insert(0, {source!r})
for name in names:
    for other in [other for other in sys.modules if other.partition(".")[0] == "loongkit"]:
        del sys.modules[other]
    try:
        __import__(name)
    except ImportError as error:
        sys.exit(name + ": " + str(error))
"""


def test_each_module_can_be_imported_where_nothing_else_can(python: str) -> None:
    """No torch, numpy, numba, mmcv, yaml; no logging, re, typing, dataclasses, inspect either."""
    names = [module_name(path) for path in FILES]
    assert "loongkit.activation.session" in names and "loongkit.features.fused_adamw" in names
    code = IMPORT_EACH.format(names=names, allowed=ALLOWED, source=str(children.SOURCE))
    result = children.run("-S", "-c", code, python=python)
    assert result.status == 0, result


@pytest.mark.parametrize("level", ["1", "2", "3"])
def test_a_start_with_a_level_loads_our_start_and_nothing_else(python: str, level: str) -> None:
    more = modules_of(python, LOONGKIT_ALL=level) - bare_modules(python)
    ours = {name for name in more if name.partition(".")[0] == "loongkit"}
    assert more - ours - {"sitecustomize"} <= ALLOWED
    assert "loongkit.activation.session" in ours
    assert {name for name in ours if name.startswith("loongkit.features")} == set()
    # Loaded when a framework is imported, or never in a job.
    for late in (
        "catalog",
        "feature",
        "patching",
        "seams",
        "rebind",
        "marks",
        "training",
        "summary",
    ):
        assert f"loongkit.activation.{late}" not in ours
    for tool in ("versions", "config", "hardware"):
        assert f"loongkit.activation.{tool}" not in ours
    assert not any(name.startswith(("loongkit.cli", "loongkit.launcher")) for name in ours)


def test_a_start_without_any_setting_loads_nothing(python: str) -> None:
    assert modules_of(python) - bare_modules(python) <= {"sitecustomize"}


def test_a_start_with_every_feature_off_arms_nothing(python: str) -> None:
    more = modules_of(python, LOONGKIT_ALL="0") - bare_modules(python) - {"sitecustomize"}
    assert {name for name in more if name.partition(".")[0] != "loongkit"} <= ALLOWED
    code = (
        "import sys; print([f for f in sys.meta_path if type(f).__module__.startswith('loongkit')])"
    )
    result = children.run("-c", code, python=python, env=children.with_prelude(LOONGKIT_ALL="0"))
    assert result.out == "[]\n"


def test_an_import_of_another_module_loads_no_more_of_ours(python: str) -> None:
    code = "import json, logging, typing; " + PROBE
    env = children.with_prelude(LOONGKIT_ALL="3")
    result = children.run("-c", code, python=python, env=env)
    ours = {name for name in result.out.split() if name.startswith("loongkit")}
    assert ours == {name for name in modules_of(python, LOONGKIT_ALL="3") if "loongkit" in name}
