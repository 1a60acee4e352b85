"""The page on `loongkit topology` shows what it prints and draws."""

from __future__ import annotations

import re

import children
import machines
import pytest

from loongkit.cli import topology, topology_picture, topology_svg, topology_text

PAGE = children.ROOT / "docs" / "topology.md"
PICTURES = {
    "epyc-9654": {
        "LOONGKIT_NUMA_AFFINITY": "1",
        "LOONGKIT_NUMA_AFFINITY_SEPARATE_BY_ROLES": "1",
    },
    "ndv4": {"LOONGKIT_NUMA_AFFINITY": "1"},
}
SAMPLE = "ndv4"


def picture(name: str) -> str:
    view = topology.gather(PICTURES[name], machines.record(name), None)
    return topology_svg.render(topology_picture.draw(view), topology_text.parts(view))


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_current(name: str) -> None:
    path = PAGE.parent / "pictures" / f"{name}.svg"
    assert path.read_text("utf-8") == picture(name)
    assert f"(pictures/{name}.svg)" in PAGE.read_text("utf-8")


def test_the_sample_is_what_is_printed() -> None:
    text = topology_text.as_text(topology.gather(PICTURES[SAMPLE], machines.record(SAMPLE), None))
    (sample,) = re.findall(r"```\n(CPU:.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert sample == text


def test_every_key_of_the_document_is_explained() -> None:
    view = topology.gather({}, machines.record(SAMPLE), None)
    explained = set(re.findall(r"`(\w+)`", PAGE.read_text("utf-8").partition("JSON object\n")[2]))
    document = topology_text._document(view)
    assert set(document) <= explained
    for key in ("nodes", "caches", "accelerators", "ranks"):
        assert set(document[key][0]) <= explained
