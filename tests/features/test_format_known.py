"""Which transforms the format stage knows: by all the code of their classes, not by their names."""

from __future__ import annotations

import importlib
import importlib.util
import inspect

import legacy
import pytest

pytestmark = pytest.mark.legacy
legacy.need_mmcv_1()
pytest.importorskip("mmdet.datasets.pipelines")
pytest.importorskip("mmseg.datasets.pipelines")

import formatting as own  # noqa: E402
import numpy as np  # noqa: E402

from loongkit.images import format_known, format_runs  # noqa: E402
from loongkit.images.fingerprint import class_fingerprint  # noqa: E402

MMDET, MMSEG = "mmdet.datasets.pipelines", "mmseg.datasets.pipelines"
INSTALLED = {
    (f"{MMDET}.transforms", "Normalize"): "normalize",
    (f"{MMDET}.transforms", "Pad"): "pad",
    (f"{MMDET}.formatting", "DefaultFormatBundle"): "format",
    (f"{MMDET}.formatting", "ImageToTensor"): "format",
    (f"{MMDET}.formatting", "Collect"): None,
    (f"{MMDET}.transforms", "Resize"): None,
    (f"{MMSEG}.transforms", "Normalize"): "normalize",
    (f"{MMSEG}.transforms", "Pad"): "pad",
    (f"{MMSEG}.formatting", "DefaultFormatBundle"): "format",
    (f"{MMSEG}.formatting", "ImageToTensor"): None,
}


def role_of(cls: type) -> str | None:
    known = format_known.recognise(cls)
    return known and known.role


@pytest.mark.parametrize(("module", "name"), INSTALLED)
def test_classes_of_the_installed_packages(module, name):
    cls = getattr(importlib.import_module(module), name)
    assert role_of(cls) == INSTALLED[module, name]


@pytest.mark.parametrize("module", [MMDET, MMSEG])
def test_the_composes_of_the_installed_packages(module):
    assert format_known.is_compose(importlib.import_module(module).Compose)
    assert not format_known.is_compose(importlib.import_module(f"{MMDET}.transforms").Pad)


HEADER = """
import mmcv, numbers, numpy as np, torch, warnings
from collections.abc import Sequence
from mmcv.parallel import DataContainer as DC
"""
TO_TENSOR = "from mmdet.datasets.pipelines import to_tensor\n"
COPIES = {"Pad": "transforms", "Normalize": "transforms", "DefaultFormatBundle": "formatting"}


def plugin(folder, name: str, *changes: tuple[str, str], header: str = HEADER + TO_TENSOR) -> type:
    """A copy of mmdet's class in a module of a user, with parts of it replaced."""
    cls = getattr(importlib.import_module(f"{MMDET}.{COPIES[name]}"), name)
    text = inspect.getsource(cls)
    text = text[text.index("class ") :]
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path = folder / f"plugin_{len(list(folder.iterdir()))}.py"
    path.write_text(header + text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


LOOKS = [
    (
        "Pad",
        ('"""Pad the image', '"""Another text'),
        ("self.size = size\n", "self.size = size  #\n"),
    ),
    ("Pad", ("def __repr__(self):", "def __repr__(self, more=None):")),
    ("Pad", ("def _pad_img(self, results):", "def _pad_img(self, results: dict) -> None:")),
    ("Normalize", ("np.array(mean, dtype=np.float32)", "np.asarray(mean, dtype=np.float32)")),
    ("DefaultFormatBundle", ("'img'", '"img"')),
]


@pytest.mark.parametrize("change", LOOKS, ids=range(len(LOOKS)))
def test_copies_that_look_different_are_known(tmp_path, change):
    assert role_of(plugin(tmp_path, *change)) is not None


EDITS = [
    ("Pad", ("self._pad_seg(results)\n        return", "return")),
    ("Pad", ("'pad_shape'] = padded", "'pad_shape'] = results['seen'] = padded")),
    ("Normalize", ("mmcv.imnormalize(", "self.seen(results) or mmcv.imnormalize(")),
    ("Normalize", ("    def __repr__", "    size = property(lambda self: 1)\n\n    def __repr__")),
    ("Normalize", ("    def __repr__", "    def more(self): pass\n\n    def __repr__")),
    ("Normalize", ("    def __repr__", "    more = [1]\n\n    def __repr__")),
    ("Normalize", ("class Normalize", "class Normalise")),
    ("DefaultFormatBundle", ("(2, 0, 1)", "(2, 1, 0)")),
]


@pytest.mark.parametrize("change", EDITS, ids=range(len(EDITS)))
def test_edited_copies_are_not(tmp_path, change):
    name, (old, new) = change
    if "Normalise" in new:
        cls = plugin(tmp_path, name)
        cls.__name__ = "Normalise"
    else:
        cls = plugin(tmp_path, name, (old, new))
    assert role_of(cls) is None


GLOBALS = {
    "mmcv": ("Pad", "class mmcv: imnormalize = impad = None"),
    "np": ("Normalize", "class np: float32 = array = None"),
    "DC": ("DefaultFormatBundle", "class DC: pass"),
    "to_tensor": ("DefaultFormatBundle", "def to_tensor(data): return torch.tensor(data)"),
}


@pytest.mark.parametrize("name", GLOBALS)
def test_global_names_that_mean_something_else(tmp_path, name):
    of_class, line = GLOBALS[name]
    cls = plugin(tmp_path, of_class)
    assert role_of(cls) is not None
    exec(line, cls.__call__.__globals__)
    assert role_of(cls) is None


def test_a_base_that_is_not_known_makes_a_class_unknown():
    with own.knowing(own.DefaultFormatBundle3D):
        assert role_of(own.DefaultFormatBundle3D) is None
    with own.knowing(own.DefaultFormatBundle3D, own.DefaultFormatBundle):
        assert role_of(own.DefaultFormatBundle3D) == "format"


def test_a_class_that_can_not_be_read():
    names: dict = {}
    exec("class Pad:\n    def __call__(self, results): return results", names)
    assert class_fingerprint(names["Pad"]) is None and role_of(names["Pad"]) is None
    assert role_of(int) is None and role_of(type) is None


def test_a_body_is_its_methods_and_constants():
    class First:
        number = 1

    class Second:
        """A docstring."""

        number = 1

        def __init__(self):
            self.other = 1

    class Third:
        number = 2

    class Fourth:
        number = True

    prints = [class_fingerprint(cls) for cls in (First, Second, Third, Fourth)]
    assert prints[0] == prints[1] and len(set(prints)) == 3 and None not in prints


class Pads:
    def __init__(self, **attributes):
        vars(self).update(attributes)


ROOMS = [
    ({"size": None, "size_divisor": 32}, (64, 96)),
    ({"size": None, "size_divisor": 1}, (37, 70)),
    ({"size": None, "size_divisor": 0}, None),
    ({"size": None, "size_divisor": 32.0}, None),
    ({"size": None, "size_divisor": True}, None),
    ({"size": None, "size_divisor": None}, None),
    ({"size": (40, 60), "size_divisor": None}, (40, 70)),
    ({"size": [30, 99]}, (37, 99)),
    ({"size": (40, 60, 3)}, None),
    ({"size": (40, np.int64(60))}, None),
    ({"size": 60}, None),
    ({"size": (1, 1), "size_divisor": None, "pad_to_square": True}, (70, 70)),
    ({}, None),
]


@pytest.mark.parametrize(("attributes", "room"), ROOMS, ids=str)
def test_the_room_that_a_padding_needs(attributes, room):
    assert format_runs.room_for(Pads(**attributes), 37, 70) == room


def test_no_padding_needs_no_room():
    assert format_runs.room_for(None, 37, 70) == (37, 70)
