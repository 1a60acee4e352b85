"""The generated reference shows defaults as they are, also those that depend on the hardware."""

from __future__ import annotations

import sys
from types import ModuleType

import children
import pytest

from loongkit.activation.feature import Feature, Option, by_device


@pytest.fixture
def build_docs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(children.ROOT / "tools"))
    import build_docs

    monkeypatch.delitem(sys.modules, "build_docs")
    return build_docs


PLACES = Feature(
    "places",
    1,
    "resource",
    "places processes",
    position=1,
    options=(
        Option("split", "bool", False, "split caches", on_with=("amd", "hygon"), unless="loose"),
        Option("loose", "bool", False, "bind anyway"),
        Option("memory", "bool", True, "prefer memory"),
    ),
)
FUSES = Feature(
    *("fuses", 2, "operators", "fuses"),
    position=2,
    default_on=by_device({"cpu": True, "nvidia": "it can lose"}, otherwise="never measured"),
)
TAIL = Feature("tail", 2, "operators", "goes along", position=3, follows="fuses")
LATER = Feature("later", 1, "operators", "comes later", position=4, implemented=False)
FAST = Feature("fast", 3, "data", "is fast", position=5, requires=("torch>=2.4.0",), compiled=True)
ALL = (PLACES, FUSES, TAIL, LATER, FAST)
BELOW = "(#defaults-that-depend-on-the-hardware)"


def rows(page: str, heading: str) -> list[str]:
    """The rows of the tables below a heading."""
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")]


def test_what_a_level_does(build_docs: ModuleType) -> None:
    table = rows(build_docs.settings_page(ALL), "Switches of the features")
    assert table[0] == "| variable | level | under its level | in this release | what |"
    assert table[2:] == [
        "| `LOONGKIT_PLACES` | 1 | on | yes | places processes |",
        f"| `LOONGKIT_FUSES` | 2 | [by device]{BELOW} | yes | fuses |",
        "| `LOONGKIT_TAIL` | 2 | as `fuses` | yes | goes along |",
        "| `LOONGKIT_LATER` | 1 | off | no | comes later |",
        "| `LOONGKIT_FAST` | 3 | on | yes | is fast |",
    ]


def test_defaults_of_options(build_docs: ModuleType) -> None:
    table = rows(build_docs.settings_page(ALL), "Options of the features")
    assert [row.split(" | ")[2] for row in table[2:]] == [f"off; [by CPU]{BELOW}", "off", "on"]


def test_defaults_that_depend_on_the_hardware(build_docs: ModuleType) -> None:
    page = build_docs.settings_page(ALL)
    assert rows(page, "Defaults that depend on the hardware") == [
        "| device | a level switches it | why not |",
        "| --- | --- | --- |",
        "| cpu | on |  |",
        "| nvidia | off | it can lose |",
        "| any other | off | never measured |",
        "| CPU | default |",
        "| --- | --- |",
        "| amd, hygon | on, unless `LOONGKIT_PLACES_LOOSE` is on |",
        "| any other | off |",
    ]
    assert (
        "`LOONGKIT_PLACES_SPLIT`, where it is not set and `LOONGKIT_PLACES` is on, by a level or "
        "by its own variable:"
    ) in page
    none = build_docs.settings_page((TAIL,)).partition("depend on the hardware\n\n")[2]
    assert none.startswith("None in this release.\n")


def test_what_is_compiled_needs_numba(build_docs: ModuleType) -> None:
    assert "Needs `torch>=2.4.0`, `numba>=0.59`." in build_docs.features_page(ALL)
    assert "| is fast | `torch>=2.4.0`, `numba>=0.59` | yes |" in build_docs.feature_table(ALL)
