"""Applies DISTORTION in this process to the classes of ``distortions``."""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import types
from collections.abc import Iterator
from typing import Any

import applied as applying
import pytest

pytest.importorskip("numba")
pytest.importorskip("mmcv.image.colorspace")

import distortions
import numpy as np

from loongkit.features import distortion
from loongkit.images import variants

#: A test for each kind of class.
EACH = pytest.mark.parametrize("origin", distortions.CLASSES)


def registry_module() -> types.ModuleType:
    """The module of the registries that this environment has."""
    for name in ("mmengine.registry.registry", "mmcv.utils.registry"):
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            with contextlib.suppress(ModuleNotFoundError):
                return importlib.import_module(name)
    raise ModuleNotFoundError("neither mmengine's nor mmcv's registry is installed")


def register(*classes: type) -> Any:
    """Register the classes in a new registry, and return it: only what lives is found later."""
    registry: Any = registry_module().Registry("transforms", scope="tests")
    for cls in classes:
        registry.register_module(name=cls.__qualname__, module=cls)
    return registry


@contextlib.contextmanager
def applied(*classes: type, exact: bool = False, late: bool = False) -> Iterator[applying.Applied]:
    """Apply the feature and register the classes, by default all; before it if ``late``."""
    classes = classes or tuple(distortions.CLASSES.values())
    feature = copy.copy(distortion.FEATURE)
    name = registry_module().__name__
    feature.hooks = [pair for pair in distortion.FEATURE.hooks if pair[0] == name]
    feature.support_hooks = []
    kept, variants.VARIANTS = variants.VARIANTS, distortions.known()
    try:
        registry = register(*classes) if late else None
        with applying.applied(types.SimpleNamespace(FEATURE=feature), late=late) as at_work:
            at_work.patcher.options["exact"] = exact
            registry = registry or register(*classes)
            yield at_work
    finally:
        variants.VARIANTS = kept


class Counted:
    """A feature that many tests share: ``marks`` counts from when the test began."""

    def __init__(self, feature: applying.Applied) -> None:
        self._feature = feature
        self._before = feature.marks

    @property
    def marks(self) -> int:
        return self._feature.marks - self._before


@pytest.fixture(scope="module")
def applied_once() -> Iterator[applying.Applied]:
    """The feature, for all tests of a module that call it ``applied``."""
    with applied() as feature:
        yield feature


@pytest.fixture
def feature(applied: applying.Applied) -> Counted:
    return Counted(applied)


def image(seed: int, dtype: str):
    rng = np.random.default_rng(seed)
    height, width = rng.integers(1, 40, 2)
    pixels = rng.integers(0, 256, (height, width, 3))
    return (pixels + (rng.random(pixels.shape) if dtype == "float32" else 0)).astype(dtype)


def results_for(origin: str, seed: int = 0) -> dict:
    """What a pipeline hands to the transform; made anew at each call."""
    dtype = "float32" if origin == "BEVFormer" or (origin[:5] == "mmdet" and seed % 2) else "uint8"
    pixels = image(seed, dtype)
    if origin != "BEVFormer":
        return {"img": pixels, "other": seed}
    cameras = np.stack([pixels] * 6, axis=-1)
    return {"img": [pixels[::-1].copy(), *(cameras[..., number] for number in range(4))]}


def images(results: dict) -> list:
    return results["img"] if isinstance(results["img"], list) else [results["img"]]


def outcome(function, transform, results, seed: int = 0):
    """What came out, or was raised, and the state of the random numbers afterwards."""
    np.random.seed(seed)
    try:
        found = function(transform, results)
        pixels = [(one.dtype, one.shape, one.tobytes()) for one in images(found)]
        rest = {key: repr(value) for key, value in found.items() if key != "img"}
        result = (pixels, rest, found is results)
    except Exception as error:
        result = (type(error), str(error), repr(results))
    state = np.random.get_state()
    return result, state[1].tobytes(), state[2:]


def same_as_original(feature, origin: str, transform, make_results, marks: int) -> None:
    """The replaced method does what the original does, by the kernels ``marks`` times."""
    method, before = distortions.method_of(origin), feature.marks
    for seed in range(8):
        wanted = outcome(method.__wrapped__, transform, make_results(), seed)
        assert outcome(method, transform, make_results(), seed) == wanted
    assert feature.marks - before == 8 * marks
