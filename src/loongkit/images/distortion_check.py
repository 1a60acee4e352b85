"""Compares the kernels with the original code, on this machine's OpenCV and NumPy.

The original methods run on a small image with their global ``random`` replaced by a generator of
our own, so that the job's random numbers stay as they are. Our code then draws from an equal one.
"""

from __future__ import annotations

import types
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from loongkit.images.recipes import RECIPES, Call
from loongkit.kernels import photometric

if TYPE_CHECKING:
    from typing import Any

    from loongkit.images.recipes import Distort
    from loongkit.images.variants import Recognised

#: Between them these draws take every step, and leave every step out.
SEEDS = (0, 1, 2, 3, 4, 5, 6, 7)

#: As wide as several vectors and some pixels more, in more than one tile.
_SHAPE = (40, 61, 3)


def difference(known: Recognised, distort: Distort, exact: bool) -> str | None:
    """Return how our results or draws differ from those of the original, or None.

    ``distort`` is the float kernel in use; ``exact`` asks for equal bits instead of the bound.
    """
    recipe = RECIPES[known.variant.origin]
    bound = 0.0 if exact or recipe.exact else photometric.BOUND
    for seed in SEEDS:
        theirs, ours = np.random.RandomState(seed), np.random.RandomState(seed)
        original = _with_random(known.function, theirs)
        expected = original(_stand_in(known, theirs), _results(known))
        transform = _stand_in(known, ours)
        call = Call(original, transform, _results(known), ours, distort, mark=lambda: None)
        found = recipe.run(call)
        for wanted, got in zip(_images(expected), _images(found), strict=True):
            if wanted.shape != got.shape or wanted.dtype != got.dtype:
                return f"the result is {got.dtype}{got.shape}, not {wanted.dtype}{wanted.shape}"
            largest = float(np.abs(wanted.astype(float) - got).max())
            if not largest <= bound:
                return f"the result differs by {largest:g} on this OpenCV, accepted is {bound:g}"
        if theirs.randint(2**31) != ours.randint(2**31):
            return "other random numbers were drawn"
    return None


def _with_random(function: types.FunctionType, random: Any) -> types.FunctionType:
    """Return the function with another global ``random``."""
    names = {**function.__globals__, "random": random}
    copy = types.FunctionType(function.__code__, names, closure=function.__closure__)
    copy.__defaults__, copy.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return copy


def _stand_in(known: Recognised, random: Any) -> SimpleNamespace:
    """Return an object with the attributes and methods that the original method uses."""
    transform = SimpleNamespace(
        brightness_delta=32,
        contrast_lower=0.5,
        contrast_upper=1.5,
        saturation_lower=0.5,
        saturation_upper=1.5,
        hue_delta=18,
        _random_flags=lambda: _flags(random),
    )
    for name, helper in known.helpers.items():
        setattr(transform, name, types.MethodType(_with_random(helper, random), transform))
    return transform


def _flags(random: Any) -> tuple[Any, ...]:
    switches = [random.randint(2) for _ in range(6)]
    ranges = ((-32, 32), (0.5, 1.5), (0.5, 1.5), (-18, 18))
    values = [random.uniform(low, high) for low, high in ranges]
    return (*switches, *values, random.permutation(3))


def _results(known: Recognised) -> dict[str, Any]:
    ramp = np.arange(np.prod(_SHAPE), dtype=np.uint64).reshape(_SHAPE) * 7919 % 65537 % 256
    ramp[:8] = ramp[:8, :, :1]  # grey
    if known.variant.helpers:
        return {"img": ramp.astype(np.uint8)}
    image = ramp.astype(np.float32)
    return {"img": [image] if known.variant.origin == "BEVFormer" else image}


def _images(results: dict[str, Any]) -> list[Any]:
    images = results["img"]
    return images if isinstance(images, list) else [images]
