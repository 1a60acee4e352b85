"""The pictures: everything of the machine is in them, in place, and nothing overlaps."""

from __future__ import annotations

import io
import os
from xml.etree import ElementTree

import machines
import pytest
from PIL import Image, ImageFont

from loongkit.activation import cpulists
from loongkit.cli import topology, topology_picture, topology_png, topology_svg
from loongkit.cli.topology_shapes import Picture, Rectangle, Text, text_width
from loongkit.numa import details as reading

PLAIN = {"LOONGKIT_NUMA_AFFINITY": "1"}


def view_of(name: str, **environ: str) -> topology.View:
    return topology.gather({**PLAIN, **environ}, machines.record(name), None)


@pytest.fixture
def view(request: pytest.FixtureRequest) -> topology.View:
    return view_of(request.param)


def texts(picture: Picture) -> list[str]:
    return [shape.text for shape in picture.shapes if isinstance(shape, Text)]


every_machine = pytest.mark.parametrize("view", machines.NAMES, indirect=True)


@every_machine
def test_everything_is_in_it(view: topology.View) -> None:
    found = texts(topology_picture.draw(view))
    for core in view.details.cores:
        assert found.count(cpulists.format(core)) >= 1
    for node in view.machine.nodes:
        assert f"NUMA node {node}" in found
    for card in view.machine.accelerators:
        assert card.pci in found
    for rank in view.ranks:
        assert any(text.startswith(f"rank {rank.number} ") for text in found)
    heading = "L3 " if view.machine.llcs_known else "caches unknown"
    assert sum(text.startswith(heading) for text in found) == len(view.machine.llcs)


@every_machine
def test_nothing_sticks_out_and_boxes_are_apart_or_nested(view: topology.View) -> None:
    picture = topology_picture.draw(view)
    boxes = []
    for shape in picture.shapes:
        if isinstance(shape, Text):
            assert shape.x >= 0 and shape.x + text_width(shape.text, shape.size) <= picture.width
            assert shape.y >= 0 and shape.y + shape.size <= picture.height
        else:
            assert shape.width > 0 and shape.height > 0
            boxes.append((shape.x, shape.y, shape.x + shape.width, shape.y + shape.height))
    boxes.sort()
    slack = 0.11  # strips of colour are rounded to a tenth
    for number, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[number + 1 :]:
            if other[0] >= right - slack:
                break
            apart = other[1] >= bottom - slack or other[3] <= top + slack
            within = (
                other[2] <= right + slack and top - slack <= other[1] and other[3] <= bottom + slack
            )
            around = other[0] <= left + slack and other[1] <= top and bottom <= other[3]
            assert apart or within or around, (boxes[number], other)


@pytest.mark.parametrize("name", ["epyc-9654", "dgx-2"])
def test_large_machines_fit_a_screen(name: str) -> None:
    picture = topology_picture.draw(view_of(name))
    assert picture.width <= 1600 and picture.height <= 1000
    assert min(shape.size for shape in picture.shapes if isinstance(shape, Text)) >= 8


def colours_of(picture: Picture, cell: str) -> list[str]:
    """The colours under the text of a core, without that of the cell and the box below them."""
    place = next(s for s in picture.shapes if isinstance(s, Text) and s.text == cell)
    under = [
        shape
        for shape in picture.shapes
        if isinstance(shape, Rectangle)
        and shape.height < 20
        and shape.y <= place.y <= shape.y + shape.height
        and shape.x <= place.x + 40
        and place.x <= shape.x + shape.width
    ]
    return [shape.fill for shape in under if shape.edge == shape.fill]


def test_colours_tell_rank_and_role() -> None:
    roles = view_of("epyc-9654", LOONGKIT_NUMA_AFFINITY_SEPARATE_BY_ROLES="1")
    picture = topology_picture.draw(roles)
    train, data, other = (colours_of(picture, cell)[0] for cell in ("0,192", "16,208", "24,216"))
    assert len({train, data, other}) == 3
    card = next(
        shape
        for number, shape in enumerate(picture.shapes)
        if isinstance(shape, Rectangle)
        and isinstance(picture.shapes[number + 1], Text)
        and picture.shapes[number + 1].text == "0000:05:00.0"
    )
    assert card.fill == train
    found = texts(picture)
    assert "training rank 0" in found and "workers rank 0" in found
    assert any(text.startswith("full colour: training process") for text in found)


def test_cores_of_several_ranks_have_the_colours_of_all() -> None:
    picture = topology_picture.draw(view_of("power9"))
    assert len(set(colours_of(picture, "0-3"))) == 3
    assert "ranks 0-2" in texts(picture)


def test_what_is_not_allowed_is_grey() -> None:
    original = machines.record("hygon-32")
    original.files["proc/self/status"] = "Cpus_allowed_list:\t4-63\n"
    picture = topology_picture.draw(topology.gather(PLAIN, original, None))
    assert "grey: CPUs that this process may not use" in texts(picture)
    fills = [shape.fill for shape in picture.shapes if isinstance(shape, Rectangle)]
    assert "#c8c8c8" not in fills, "siblings 32-35 of those cores may be used"
    original.files["proc/self/status"] = "Cpus_allowed_list:\t4-31,36-63\n"
    picture = topology_picture.draw(topology.gather(PLAIN, original, None))
    fills = [shape.fill for shape in picture.shapes if isinstance(shape, Rectangle)]
    assert fills.count("#c8c8c8") == 4


def test_why_a_rank_is_not_bound() -> None:
    found = texts(topology_picture.draw(view_of("loongson-3c6000")))
    assert any("not bound: this host has no accelerator" in text for text in found)


def test_cards_of_an_unknown_node() -> None:
    original = machines.record("p4d")
    folder = "sys/bus/pci/devices/0000:10:1c.0"
    original.files[f"{folder}/numa_node"] = "-1\n"
    original.files[f"{folder}/local_cpulist"] = "0-95\n"
    found = texts(topology_picture.draw(topology.gather(PLAIN, original, None)))
    assert "Accelerators on an unknown node" in found
    assert found.count("0000:10:1c.0") == 1


@every_machine
def test_svg_is_xml_with_every_text(view: topology.View) -> None:
    picture = topology_picture.draw(view)
    root = ElementTree.fromstring(topology_svg.render(picture, "a <title> & more"))
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("{http://www.w3.org/XML/1998/namespace}space") == "preserve"
    assert root.findtext(f"{space}title") == "a <title> & more"
    assert [each.text for each in root.findall(f"{space}text")] == texts(picture)
    assert len(root.findall(f"{space}rect")) == 1 + len(picture.shapes) - len(texts(picture))


def test_texts_of_svg_are_escaped() -> None:
    picture = Picture(10, 10, [Text(0, 0, "</text><script>&", 8)])
    root = ElementTree.fromstring(topology_svg.render(picture, ""))
    assert [each.text for each in root if each.tag.endswith("text")] == ["</text><script>&"]


@pytest.mark.parametrize("fonts", ["of the system", "of Pillow"])
def test_png_shows_the_same(fonts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fonts == "of Pillow":
        monkeypatch.setattr(topology_png, "_FONTS", (("missing.ttf", "missing.ttf"),))
    picture = topology_picture.draw(view_of("hygon-32"))
    image = Image.open(io.BytesIO(topology_png.render(picture)))
    scale = topology_png.SCALE
    assert image.size == (round(picture.width * scale), round(picture.height * scale))
    shape = next(s for s in picture.shapes if isinstance(s, Rectangle) and s.fill == "#f0a35e")
    corner = round((shape.x + 2) * scale), round((shape.y + 2) * scale)
    assert image.convert("RGB").getpixel(corner) == (0xF0, 0xA3, 0x5E)


def test_an_old_pillow_is_told_from_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_default() -> None:
        raise AssertionError("without a size")

    monkeypatch.setattr(topology_png, "_FONTS", ())
    monkeypatch.setattr(ImageFont, "load_default", load_default)
    with pytest.raises(topology_png.PillowMissing, match=r"needs Pillow 10\.1 or later, found \d+"):
        topology_png.render(Picture(10, 10, [Text(0, 0, "x", 8)]))


def test_sizes_that_are_unknown_are_left_out() -> None:
    original = machines.record("hygon-32")
    kept = {p: t for p, t in original.files.items() if not p.endswith(("/size", "/meminfo"))}
    tree = type(original)(kept, original.links)
    view = topology.gather(PLAIN, tree, None)
    assert set(view.details.cache_bytes) == {0}
    assert reading.read(tree, view.machine).memory_bytes == {0: 0}
    found = texts(topology_picture.draw(view))
    assert "L3" in found and not any(os.linesep in text for text in found)
