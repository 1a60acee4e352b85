"""What each known PhotoMetricDistortion does: which calls are covered, the draws, the result.

Nothing is drawn for a call that is not covered: the original then does all of it. The draws do not
depend on the pixels, so they can be made first, by the same functions in the same order with the
same arguments; where one raises, the same exception has come after the same draws.
"""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loongkit.kernels import photometric, photometric_bytes, photometric_loops
from loongkit.kernels.photometric import Steps
from loongkit.kernels.photometric_bytes import Scale

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    #: The two float kernels have this form.
    Distort = Callable[[Any, Steps], Any]

#: Attributes that are passed to the draws.
_RANGES = (
    "brightness_delta",
    "contrast_lower",
    "contrast_upper",
    "saturation_lower",
    "saturation_upper",
    "hue_delta",
)
#: Far beyond any use, and far from where float32 would overflow.
_LARGEST_PARAMETER = 1e6

_BYTES = np.arange(256, dtype=np.uint8)
_BYTES.setflags(write=False)


class Call(NamedTuple):
    """One covered call of the method.

    ``random`` is numpy.random, or a generator with the same functions; ``mark`` is called where
    the kernels have run.
    """

    original: Callable[..., Any]
    transform: Any
    results: dict[str, Any]
    random: Any
    distort: Distort
    mark: Callable[[], None]

    def finished(self, images: Any) -> Any:
        """Put the distorted image or images into the results and return them."""
        self.results["img"] = images
        self.mark()
        return self.results


class Recipe(NamedTuple):
    """How one variant is done: ``covers(transform, results)``, then ``run(call)``.

    ``exact`` tells that the result is bit-identical in any case.
    """

    covers: Callable[[Any, Any], bool]
    run: Callable[[Call], Any]
    compile: Callable[[], object]
    exact: bool = False


def _is_image(results: Any) -> bool:
    return isinstance(results, dict) and "img" in results and photometric.covers(results["img"])


def _has_plain_ranges(transform: Any) -> bool:
    """Tell whether all attributes that are drawn by are Python's own numbers, of usual size."""
    own = getattr(transform, "__dict__", {})
    return all(
        type(own.get(name)) in (int, float) and abs(own[name]) <= _LARGEST_PARAMETER
        for name in _RANGES
    )


def _covers_mmdet_2(transform: Any, results: Any) -> bool:
    return (
        _is_image(results)
        and ("img_fields" not in results or _is_single_image(results["img_fields"]))
        and _has_plain_ranges(transform)
    )


def _is_single_image(fields: Any) -> bool:
    return type(fields) is list and fields == ["img"]


def _run_mmdet_2(call: Call) -> Any:
    steps = _draw_as_needed(call.transform, call.random)
    return call.finished(call.distort(call.results["img"], steps))


#: Candidates that numpy may try out when it looks for a common element of two strided arrays.
_OVERLAP_EFFORT = 10_000


def _covers_multi_view(transform: Any, results: Any) -> bool:
    if not isinstance(results, dict) or type(results.get("img")) not in (list, tuple):
        return False
    images = results["img"]
    return (
        len(images) > 0
        and all(photometric.covers(image) and _is_editable(image) for image in images)
        # The original edits its input: an image that shares pixels with another would see that.
        and not any(_share_pixels(one, other) for one, other in combinations(images, 2))
        and _has_plain_ranges(transform)
    )


def _share_pixels(one: Any, other: Any) -> bool:
    """Tell whether two images overlap; camera views interleaved in one array do not."""
    if not np.may_share_memory(one, other):  # compares the bounds alone
        return False
    try:
        return np.shares_memory(one, other, max_work=_OVERLAP_EFFORT)
    except Exception:  # numpy's TooHardError, whose home has moved between releases
        return True


def _is_editable(image: Any) -> bool:
    return image.dtype == np.float32 and image.flags.writeable and 0 not in image.strides


def _run_multi_view(call: Call) -> Any:
    images = call.results["img"]
    return call.finished(
        [call.distort(image, _draw_as_needed(call.transform, call.random)) for image in images]
    )


def _draw_as_needed(transform: Any, random: Any) -> Steps:
    """Draw as mmdet 2 and the BEV repositories do: a value only where its flag came up."""

    def contrast() -> float | None:
        if random.randint(2):
            value: float = random.uniform(transform.contrast_lower, transform.contrast_upper)
            return value
        return None

    brightness = saturation = hue = order = None
    if random.randint(2):
        brightness = random.uniform(-transform.brightness_delta, transform.brightness_delta)
    mode = random.randint(2)
    early = contrast() if mode == 1 else None
    if random.randint(2):
        saturation = random.uniform(transform.saturation_lower, transform.saturation_upper)
    if random.randint(2):
        hue = random.uniform(-transform.hue_delta, transform.hue_delta)
    late = contrast() if mode == 0 else None
    if random.randint(2):
        order = tuple(random.permutation(3).tolist())
    return Steps(
        brightness=brightness,
        contrast=early if mode == 1 else late,
        contrast_last=mode == 0,
        saturation=saturation,
        hue=hue,
        order=order,
    )


def _covers_flags(_transform: Any, results: Any) -> bool:
    return _is_image(results)


def _run_mmdet_3(call: Call) -> Any:
    # Through the instance, as the original: it may be cached, counted or overridden.
    flags = call.transform._random_flags()
    steps = _steps_of(flags, clips=True)
    if steps is None:
        return call.original(SimpleNamespace(_random_flags=lambda: flags), call.results)
    return call.finished(call.distort(call.results["img"], steps))


def _run_mmdet3d(call: Call) -> Any:
    results = call.results
    if "photometric_param" not in results:
        results["photometric_param"] = call.transform._random_flags()
    steps = _steps_of(results["photometric_param"], clips=False)
    if steps is None:
        return call.original(call.transform, results)
    return call.finished(call.distort(results["img"], steps))


def _steps_of(flags: Any, clips: bool) -> Steps | None:
    """Return the steps in a tuple of ``_random_flags``; None for values that it does not draw."""
    if type(flags) is not tuple or len(flags) != 11:
        return None
    mode, *switches, brightness, contrast, saturation, hue, order = flags
    if any(type(switch) is not int for switch in (mode, *switches)) or any(
        type(value) is not float or not abs(value) <= _LARGEST_PARAMETER
        for value in (brightness, contrast, saturation, hue)
    ):
        return None
    if type(order) is not np.ndarray or sorted(order.tolist()) != [0, 1, 2]:
        return None
    brightens, contrasts, saturates, shifts, swaps = switches
    return Steps(
        brightness=brightness if brightens else None,
        contrast=contrast if contrasts and mode in (0, 1) else None,
        contrast_last=mode == 0,
        saturation=saturation if saturates else None,
        clip=bool(clips and saturates and saturation > 1),
        hue=hue if shifts else None,
        order=tuple(order.tolist()) if swaps else None,
    )


def _covers_mmseg(transform: Any, results: Any) -> bool:
    return (
        isinstance(results, dict)
        and "img" in results
        and photometric_bytes.covers(results["img"])
        and _has_plain_ranges(transform)
        and type(transform.hue_delta) is int
    )


def _run_mmseg(call: Call) -> Any:
    steps = _draw_for_bytes(call.transform, call.random)
    return call.finished(photometric_bytes.distort(call.results["img"], steps))


def _draw_for_bytes(transform: Any, random: Any) -> photometric_bytes.Steps:
    """Draw as mmseg does, and ask its own ``convert`` what becomes of each saturation."""

    def contrast() -> tuple[Scale, ...]:
        if random.randint(2):
            factor = random.uniform(transform.contrast_lower, transform.contrast_upper)
            return (Scale(factor, 0.0),)
        return ()

    first: tuple[Scale, ...] = ()
    last: tuple[Scale, ...] = ()
    saturation = hue = None
    if random.randint(2):
        summand = random.uniform(-transform.brightness_delta, transform.brightness_delta)
        first = (Scale(1.0, summand),)
    mode = random.randint(2)
    if mode == 1:
        first += contrast()
    if random.randint(2):
        alpha = random.uniform(transform.saturation_lower, transform.saturation_upper)
        saturation = transform.convert(_BYTES, alpha=alpha)
    if random.randint(2):
        shift = random.randint(-transform.hue_delta, transform.hue_delta)
        hue = ((_BYTES.astype(int) + shift) % 180).astype(np.uint8)
    if mode == 0:
        last = contrast()
    return photometric_bytes.Steps(first, saturation, hue, last)


_MMSEG = Recipe(_covers_mmseg, _run_mmseg, photometric_bytes.kernels, exact=True)

#: By the origin of the variant.
RECIPES = {
    "mmdet 2": Recipe(_covers_mmdet_2, _run_mmdet_2, photometric_loops.kernels),
    "mmdet 3": Recipe(_covers_flags, _run_mmdet_3, photometric_loops.kernels),
    "mmdet3d 1": Recipe(_covers_flags, _run_mmdet3d, photometric_loops.kernels),
    "BEVFormer": Recipe(_covers_multi_view, _run_multi_view, photometric_loops.kernels),
    "mmseg 0": _MMSEG,
    "mmseg 1": _MMSEG,
}
