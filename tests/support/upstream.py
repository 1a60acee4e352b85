"""Classes of installed packages, as text: for plug-ins that hold copies of them."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import NamedTuple

import pytest

_MMCV_1 = """
import mmcv, numpy as np
from mmcv.utils import Registry
from numpy import random
PIPELINES = Registry("{name}")
"""

_MMCV_2 = """
from typing import *
import mmcv, numpy as np
from mmcv.transforms import BaseTransform
from mmcv.transforms.utils import cache_randomness
from mmengine.registry import Registry
from numpy import random
Number = float
PIPELINES = Registry("{name}")
"""


class Source(NamedTuple):
    """Where a class stands, and what its module needs besides it."""

    package: str
    file: str
    name: str
    header: str


SOURCES = {
    "mmdet 2": Source(
        "mmdet", "datasets/pipelines/transforms.py", "PhotoMetricDistortion", _MMCV_1
    ),
    "mmseg 0": Source(
        "mmseg", "datasets/pipelines/transforms.py", "PhotoMetricDistortion", _MMCV_1
    ),
    "mmdet 3": Source(
        "mmdet", "datasets/transforms/transforms.py", "PhotoMetricDistortion", _MMCV_2
    ),
}

#: For parametrize: every origin, marked where the legacy environment alone has it.
EACH = [
    pytest.param(origin, marks=() if origin == "mmdet 3" else pytest.mark.legacy)
    for origin in SOURCES
]


def origin_of(module: str) -> str:
    """The origin whose class stands in the module."""
    for origin, source in SOURCES.items():
        if module == f"{source.package}.{source.file}"[:-3].replace("/", "."):
            return origin
    raise AssertionError(f"nothing known of {module}")


def text(origin: str) -> str:
    """The text of the class, without its decorators; skips the test where it is not installed."""
    source = SOURCES[origin]
    spec = importlib.util.find_spec(source.package)
    folders = list(spec.submodule_search_locations or []) if spec else []
    path = Path(folders[0], source.file) if folders else Path("nowhere")
    if not path.is_file():
        pytest.skip(f"needs {origin}")
    lines = path.read_text("utf-8").splitlines()
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.ClassDef) and node.name == source.name:
            return "\n".join(lines[node.lineno - 1 : node.end_lineno]) + "\n"
    raise AssertionError(f"{path} holds no class {source.name}")


def plugin(folder: Path, name: str, origin: str, *changes: tuple[str, str]) -> Path:
    """Write a plug-in module with a registered copy of the class, with parts of it replaced."""
    body = text(origin)
    for old, new in changes:
        assert old in body, f"{old!r} is not in the text of {origin}"
        body = body.replace(old, new, 1)
    path = folder / f"{name}.py"
    header = SOURCES[origin].header.format(name=name)
    path.write_text(f"{header}\n\n@PIPELINES.register_module()\n{body}", encoding="utf-8")
    return path
