"""Random photometric distortion of a float image: one pass over the pixels, or row by row exactly.

The chain is that of the float variants of PhotoMetricDistortion: brightness, contrast, BGR to HSV,
saturation, hue, HSV to BGR, contrast, order of the channels. ``distort`` does all of it for a pixel
at a time, with the roundings of OpenCV's own vector code, which makes most results equal to the
last bit; but OpenCV's builds differ from each other, and so a bound is promised, not equality.
``distort_exactly`` leaves the two conversions to OpenCV, on a few rows at a time that stay in the
processor's cache, and is equal by construction: OpenCV converts each row by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import cv2
import numpy as np

from loongkit.kernels.photometric_loops import kernels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_F32 = np.float32

#: Largest difference of ``distort`` from the original on a scale of 0 to 255.
BOUND = 1e-3

#: Largest contrast, saturation and hue for which the bound holds. More of the first two scales the
#: differences up, and a hue of more than a turn would have to be wrapped more than once.
_MOST = (2.0, 2.0, 360.0)

#: Pixels that are worked on together: two such buffers lie about in a core's own cache.
_TILE = 50_000

#: Element types that are covered; images of any other type go through the original.
DTYPES = (np.dtype(np.uint8), np.dtype(np.float32))

#: For b, g and r: the sign and the two ends of the ramps by which a hue takes the channel away.
_RAMPS = ((1.0, 3.0, 5.0), (1.0, 1.0, 3.0), (-1.0, 1.0, 5.0))


class Steps(NamedTuple):
    """What is to be done to an image, as it was drawn; None leaves a step out.

    ``contrast_last`` puts the contrast behind the colour conversions instead of before them;
    ``clip`` bounds the saturation by 1 after it was scaled; ``hue`` is in degrees; ``order`` holds
    the channels that become the first, second and third.
    """

    brightness: float | None = None
    contrast: float | None = None
    contrast_last: bool = False
    saturation: float | None = None
    clip: bool = False
    hue: float | None = None
    order: tuple[int, int, int] | None = None


def covers(image: Any) -> bool:
    """Tell whether an image is one that the kernels take.

    A plain array of shape (height, width, 3) with at least one pixel, uint8 or float32 in native
    byte order, of any strides.
    """
    return (
        type(image) is np.ndarray
        and image.ndim == 3
        and image.shape[2] == 3
        and image.size > 0
        and image.dtype in DTYPES
        and bool(image.flags.aligned)
    )


def distort(image: Any, steps: Steps) -> Any:
    """Return the distorted image as a new C-contiguous float32 array of the same shape.

    ``image``, see ``covers``, is left as it is. The result is within ``BOUND`` of the original
    chain's on a scale of 0 to 255; images of a much wider scale or with infinities and NaN, and
    steps beyond ``_MOST``, take the exact route.
    """
    if not _is_measured(steps):
        return distort_exactly(image, steps)
    out = np.empty(image.shape, _F32)
    if _distort_into(out, image, steps):
        return distort_exactly(image, steps)
    return out


def _is_measured(steps: Steps) -> bool:
    """Tell whether the bound was measured for steps of this size; a NaN is of no size."""
    return all(
        value is None or abs(value) <= most
        for value, most in zip((steps.contrast, steps.saturation, steps.hue), _MOST, strict=True)
    )


def _distort_into(out: Any, image: Any, steps: Steps) -> bool:
    """Write the distorted image; return whether a pixel was outside the measured scale."""
    fused = kernels().fused_same_hue if steps.hue is None else kernels().fused
    settings = _settings(steps)
    if image.dtype == _F32 and image.flags.c_contiguous:
        return bool(fused(image.reshape(-1), settings, out.reshape(-1)))
    # Bytes and interleaved camera views do not make vector code: gathered first, in tiles.
    buffer = np.empty((tile_rows(image), *image.shape[1:]), _F32)
    for rows, written in tiles(image, out):
        gathered = buffer[: len(rows)]
        np.copyto(gathered, rows)
        if fused(gathered.reshape(-1), settings, written.reshape(-1)):
            return True
    return False


def tile_rows(image: Any) -> int:
    """Return how many whole rows make a tile."""
    height, width, _ = image.shape
    return min(int(height), max(1, _TILE // int(width)))


def tiles(image: Any, out: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the tiles of two images of one shape, from the top down."""
    rows = tile_rows(image)
    for top in range(0, len(image), rows):
        yield image[top : top + rows], out[top : top + rows]


def _settings(steps: Steps) -> Any:
    """Return the steps as the kernel's float32 parameters; what is left out changes nothing."""
    contrast = 1.0 if steps.contrast is None else steps.contrast
    ramps = [value for channel in steps.order or (0, 1, 2) for value in _RAMPS[channel]]
    return np.array(
        [
            0.0 if steps.brightness is None else steps.brightness,
            1.0 if steps.contrast_last else contrast,
            1.0 if steps.saturation is None else steps.saturation,
            1.0 if steps.clip else np.inf,
            0.0 if steps.hue is None else steps.hue,
            contrast if steps.contrast_last else 1.0,
            *ramps,
        ],
        _F32,
    )


def distort_exactly(image: Any, steps: Steps) -> Any:
    """Return what the original chain gives, to the last bit; like ``distort`` otherwise."""
    compiled = kernels()
    out = np.empty(image.shape, _F32)
    # Each operation goes from one buffer to the other: OpenCV copies what it converts in place,
    # and pixels that are written whole are written in whole vectors.
    here, there = np.empty((2, tile_rows(image), *image.shape[1:]), _F32)
    last = steps.contrast if steps.contrast_last else None
    for rows, written in tiles(image, out):
        used, other = here[: len(rows)], there[: len(rows)]
        tile = cv2.cvtColor(_prepared(rows, used, steps), cv2.COLOR_BGR2HSV, other)
        if steps.saturation is not None or steps.hue is not None:
            compiled.adjust(tile.reshape(-1), *_adjustment(steps), used.reshape(-1))
            tile, other = used, tile
        else:
            other = used
        if last is None and steps.order is None:
            cv2.cvtColor(tile, cv2.COLOR_HSV2BGR, written)
            continue
        tile = cv2.cvtColor(tile, cv2.COLOR_HSV2BGR, other)
        contrast = _F32(1.0 if last is None else last)
        compiled.finish(
            tile.reshape(-1), contrast, *(steps.order or (0, 1, 2)), written.reshape(-1)
        )
    return out


def _prepared(rows: Any, buffer: Any, steps: Steps) -> Any:
    """Return the rows with brightness and an early contrast applied, in float32."""
    contrast = None if steps.contrast_last else steps.contrast
    if steps.brightness is None and contrast is None and rows.dtype == _F32:
        return rows
    if steps.brightness is not None:
        rows = np.add(rows, _F32(steps.brightness), out=buffer, dtype=_F32)
    if contrast is not None:
        rows = np.multiply(rows, _F32(contrast), out=buffer, dtype=_F32)
    if rows is not buffer:
        np.copyto(buffer, rows)
    return buffer


def _adjustment(steps: Steps) -> tuple[Any, ...]:
    return (
        _F32(1.0 if steps.saturation is None else steps.saturation),
        steps.clip,
        _F32(0.0 if steps.hue is None else steps.hue),
    )
