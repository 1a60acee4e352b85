"""Release numbers of versions as they are found in the field, and how requirements compare them."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from loongkit.activation import versions


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.9.0", (2, 9, 0)),
        ("2.9", (2, 9)),
        ("2.9.0a0+git1234567", (2, 9, 0)),
        ("2.1.0a0+29c30b1", (2, 1, 0)),
        ("2.6.0+cu124", (2, 6, 0)),
        ("2.6.0+ppu1.5.0", (2, 6, 0)),
        ("2.10.0rc1", (2, 10, 0)),
        ("2.10.0.dev20260101+cpu", (2, 10, 0)),
        ("1.8.0.post1", (1, 8, 0)),
        ("1.0rc1", (1, 0)),
        ("1.0.0-rc.2", (1, 0, 0)),
        ("v2.4.1", (2, 4, 1)),
        (" 2.4 ", (2, 4)),
        ("2.4.1.8", (2, 4, 1, 8)),
        ("20240101", (20240101,)),
        ("unknown", None),
        ("", None),
        ("+cu118", None),
        ("٢.٤", None),
        ("9" * 5000, (int("9" * 18),)),
    ],
)
def test_the_release_numbers_of_a_version(text: str, numbers: tuple[int, ...] | None) -> None:
    assert versions.release(text) == numbers


@pytest.mark.parametrize(
    ("requirement", "met", "unmet"),
    [
        (
            "x>=2.4.0",
            "2.4.0 2.4 2.4.0a0+git1 2.4.0rc1 2.10.0 3 2.4.0.1",
            "2.3.9 2.3.1+cu118 2 1.13.1",
        ),
        ("x>=2.0", "2.0.0 2 2.0.0rc4 2.1", "1.7.2 1.99.99"),
        (
            "x>=1.7.0,<=1.8.0",
            "1.7.0 1.7.2 1.8.0 1.8.0.post1 1.8",
            "1.6.9 1.8.1 1.8.0.1 2.0.0 1.10.0",
        ),
        ("x==2.9.*", "2.9.0 2.9.1 2.9 2.9.0a0+git 2.9.1.post2", "2.8.9 2.10.0 2.90.0 29.0 2 3"),
        ("x==2.0.*", "2 2.0 2.0.3", "2.1 1"),
        ("x==1.2", "1.2 1.2.0 1.2.0+x", "1.2.1 1.20 1"),
        ("x>1.2", "1.2.1 2", "1.2 1.2.0 1.1"),
        ("x<1.2", "1.1.9 1 0", "1.2 1.2.0rc1 2"),
        ("x", "0 99.1", ""),
    ],
)
def test_a_requirement(requirement: str, met: str, unmet: str) -> None:
    for found in met.split():
        assert versions.mismatch(requirement, found) is None, found
    for found in unmet.split():
        wanted = requirement[1:]
        assert versions.mismatch(requirement, found) == f"found x {found}, wanted {wanted}"


def test_a_version_that_cannot_be_judged_is_a_reason() -> None:
    assert versions.mismatch("x>=1", None) == "the version of x cannot be read; wanted x>=1"
    assert versions.mismatch("x>=1", "main") == (
        "x calls its version 'main', which has no number; wanted x>=1"
    )


@pytest.mark.parametrize("requirement", ["x~=1.2", "x!=1.2", ">=1", "", "x>=1,2", "my-x>=1"])
def test_a_requirement_in_another_grammar_is_an_error_of_ours(requirement: str) -> None:
    with pytest.raises(ValueError, match="requirement"):
        versions.mismatch(requirement, "1.2")


def test_the_package_of_a_requirement() -> None:
    assert versions.package("torch>=2.4.0") == "torch"
    assert versions.package("mmcv >= 1.7.0, <= 1.8.0") == "mmcv"


class Text(str):
    """As torch's TorchVersion, a str that compares in its own way."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = str.__hash__


@pytest.mark.parametrize("version", ["2.9.0+cpu", Text("2.9.0+cpu")])
def test_the_version_of_an_imported_module(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("framework")
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "framework", module)
    found = versions.module_version("framework")
    assert type(found) is str and str.__eq__(found, "2.9.0+cpu")


@pytest.mark.parametrize("value", [None, (2, 9, 0), types.ModuleType("framework.__version__"), 2.9])
def test_anything_but_text_is_no_version(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("framework")
    module.__version__ = value  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "framework", module)
    assert versions.module_version("framework") is None


def test_a_module_that_is_not_imported_has_no_version() -> None:
    assert versions.module_version("framework") is None
    assert versions.unmet(("framework>=1",)) == "framework is not imported; wanted framework>=1"


def test_the_first_unmet_requirement_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in (("one", "1.0"), ("two", "2.0")):
        module = types.ModuleType(name)
        module.__version__ = version  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    assert versions.unmet(()) is None
    assert versions.unmet(("one>=1", "two>=2")) is None
    assert versions.unmet(("one>=1", "two>=3")) == "found two 2.0, wanted >=3"
    assert versions.unmet(("one>=2", "two>=3")) == "found one 1.0, wanted >=2"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("__version__ = '1.7.2'\n", "1.7.2"),
        ('# v\n__version__: str = "1.7.2"  # the newest\n', "1.7.2"),
        ("__version__='1.7.2'\n__version__ = '9'\n", "1.7.2"),
        ("version = '1.7.2'\n", None),
        ("__version__ = read()\n", None),
        ("__version__ = '1.7.2\n", None),
        ("__version__ = ''\n", None),
        ("__version__\n", None),
        ("__version__ = a.a\n", None),
        ("my__version__ = '1'\n", None),
    ],
)
def test_a_version_file_is_read_as_text(tmp_path: Path, text: str, version: str | None) -> None:
    (tmp_path / "version.py").write_text(text)
    assert versions.version_in_file(["/nowhere", str(tmp_path)]) == version


def test_a_version_file_that_is_no_text_is_none(tmp_path: Path) -> None:
    (tmp_path / "version.py").write_bytes(b"__version__ = '\xff'\n")
    assert versions.version_in_file([str(tmp_path)]) is None


def test_a_package_that_sets_its_version_on_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As mmcv does: its submodules, where the hooks are, are imported before it has a version."""
    package = tmp_path / "late"
    package.mkdir()
    (package / "__init__.py").write_text("from . import leaf\nfrom .version import *\n")
    (package / "version.py").write_text(
        "import sys\n__version__ = '1.7.2'\n__all__ = ['__version__']\n"
        "seen = getattr(sys.modules['late'], '__version__', None)\n"
    )
    (package / "leaf.py").write_text(
        "import sys\n"
        "from loongkit.activation import versions\n"
        "has_attribute = hasattr(sys.modules['late'], '__version__')\n"
        "version = versions.module_version('late')\n"
        "ran_version_file = 'late.version' in sys.modules\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    late = __import__("late.leaf")
    try:
        assert not late.leaf.has_attribute
        assert late.leaf.version == "1.7.2"
        assert not late.leaf.ran_version_file
        assert versions.module_version("late") == "1.7.2"
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "late"]:
            del sys.modules[name]


def test_a_version_module_that_has_run_is_asked_before_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text("__version__ = '1.0'\n")
    package = types.ModuleType("late")
    package.__path__ = [str(tmp_path)]
    submodule = types.ModuleType("late.version")
    submodule.__version__ = "1.7.2"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "late", package)
    assert versions.module_version("late") == "1.0"
    monkeypatch.setitem(sys.modules, "late.version", submodule)
    assert versions.module_version("late") == "1.7.2"
