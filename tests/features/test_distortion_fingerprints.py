"""Fingerprints tell what a function does from what it looks like, under every Python."""

from __future__ import annotations

import functools
import importlib.util
import sys
import textwrap

import children
import pytest
import upstream

from loongkit.images import variants
from loongkit.images.fingerprint import fingerprint

CODE = '''
class PhotoMetricDistortion:
    """What it is for."""

    def __call__(self, results, scale=2):
        """What it does.

Also text that is not indented.
        """
        if "img" in results:
            image = results["img"] + [1, 2.5, None, -3]
            image[..., 0][image[..., 0] > 360] -= 360
        return results
'''

SAME = [
    ('"""What it does.\n\nAlso text that is not indented.\n        """', "# a comment"),
    (
        "(self, results, scale=2)",
        "(\n        self, results: dict,\n        scale: int = 2) -> dict",
    ),
    ("    def __call__", "    @staticmethod\n    def __call__"),
    ('"img"', "'img'"),
    ("+ [1, 2.5, None, -3]", "+ [1, 2.50,\n                None, -3]  # a comment"),
    ("return results", "return (results)"),
    ("360] -= 360", "360] -= 0x168"),
]

DIFFERENT = [
    ("> 360", ">= 360"),
    ("-= 360", "+= 360"),
    ("-= 360", "-= 360.0"),
    ("scale=2", "scale=3"),
    ("scale=2", "scale"),
    ("scale=2", "*, scale=2"),
    ("2.5", "2.6"),
    ("-3]", "3]"),
    ("None", "False"),
    ('"img"', '"image"'),
    ("image =", "img ="),
    ("return results", "return None"),
    ("return results", "return"),
    ("return results", "pass"),
    ("[..., 0][", "[..., 1]["),
    ("if ", "if not "),
    ("        return results", "            return results"),
]


def load(folder, text: str):
    """Import a module with this text and return the method of its class."""
    path = folder / f"module_{len(list(folder.iterdir()))}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = vars(module.PhotoMetricDistortion)["__call__"]
    return getattr(found, "__func__", found)


def changed(old: str, new: str) -> str:
    assert CODE.count(old) >= 1
    return CODE.replace(old, new, 1)


@pytest.mark.parametrize("change", SAME, ids=range(len(SAME)))
def test_the_looks_do_not_matter(tmp_path, change):
    assert fingerprint(load(tmp_path, changed(*change))) == fingerprint(load(tmp_path, CODE))


@pytest.mark.parametrize("change", DIFFERENT, ids=str)
def test_every_other_change_matters(tmp_path, change):
    first, second = load(tmp_path, CODE), load(tmp_path, changed(*change))
    assert fingerprint(first) is not None and fingerprint(second) is not None
    assert fingerprint(first) != fingerprint(second)


def test_nesting_does_not_matter(tmp_path):
    nested = "if True:\n" + textwrap.indent(CODE.replace("Also text", "        Also text"), "    ")
    assert fingerprint(load(tmp_path, nested)) == fingerprint(load(tmp_path, CODE))


def test_a_wrapper_has_its_own(tmp_path):
    method = load(tmp_path, CODE)

    @functools.wraps(method)
    def wrapper(*args):
        return None

    assert fingerprint(wrapper) not in (None, fingerprint(method))


def test_without_readable_source_there_is_none(tmp_path):
    names: dict = {}
    exec(CODE, names)
    assert fingerprint(names["PhotoMetricDistortion"].__call__) is None
    assert fingerprint(eval("lambda self, results: results")) is None

    method = load(tmp_path, CODE)
    (tmp_path / "module_0.py").write_text("# another file by now\n", encoding="utf-8")
    assert fingerprint(method) is None


def test_a_file_that_was_edited_and_loaded_again(tmp_path):
    first = fingerprint(load(tmp_path, CODE))
    path = tmp_path / "module_0.py"
    spec = importlib.util.spec_from_file_location("module_0", path)
    path.write_text(changed("> 360", ">= 3600"), encoding="utf-8")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert fingerprint(module.PhotoMetricDistortion.__call__) not in (None, first)


def test_every_python_finds_the_same(tmp_path):
    (tmp_path / "plug_in.py").write_text(CODE, encoding="utf-8")
    code = (
        "import plug_in\nfrom loongkit.images.fingerprint import fingerprint\n"
        "print(fingerprint(plug_in.PhotoMetricDistortion.__call__))"
    )
    found = set()
    for python in {*children.interpreters(), sys.executable}:
        env = children.clean_env(PYTHONPATH=f"{children.SOURCE}:{tmp_path}")
        result = children.run("-c", code, python=python, env=env)
        assert result.status == 0, result
        found.add(result.out.strip())
    assert len(found) == 1 and found != {"None"}, found


@pytest.mark.legacy
def test_mmseg_1_is_mmseg_0_under_another_name(tmp_path):
    text = upstream.text("mmseg 0").replace("def __call__", "def transform")
    (tmp_path / "plug_in.py").write_text(
        f"import mmcv, numpy as np\nfrom numpy import random\n{text}", encoding="utf-8"
    )
    code = (
        "import plug_in\nfrom loongkit.images.variants import recognise\n"
        "print(recognise(plug_in.PhotoMetricDistortion).variant.origin)"
    )
    env = children.clean_env(PYTHONPATH=f"{children.SOURCE}:{tmp_path}")
    result = children.run("-W", "ignore", "-c", code, env=env)
    assert result.out.strip() == "mmseg 1", result


def test_the_table_holds_one_row_for_each_class_and_method():
    rows = {(row.origin, row.class_name, row.method) for row in variants.VARIANTS}
    prints = {row.fingerprint for row in variants.VARIANTS}
    assert len(rows) == len(variants.VARIANTS) == len(prints)
