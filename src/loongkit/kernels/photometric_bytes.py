"""Random photometric distortion of an 8-bit image, tile by tile and to the last bit.

The steps are those of mmseg's PhotoMetricDistortion. Brightness and contrast are one multiplication
and addition in float32, clipped and cut to a byte, over all channels. What happens to saturation
and hue is a function of one byte, of which a table holds all 256 results. The conversions between
BGR and HSV are OpenCV's, whose 8-bit code nothing here can beat; between them a loop walks the one
channel that changes, in place.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import cv2
import numba
import numpy as np
from numba import types

from loongkit.kernels.photometric import tile_rows, tiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Kernel = Callable[..., Any]
    Operation = Callable[[Any, Any], Any]

_F32 = np.float32
_BLACK, _WHITE = _F32(0), _F32(255)
_HUE, _SATURATION = 0, 1


class Scale(NamedTuple):
    """Multiplies each byte by ``factor`` and adds ``summand``."""

    factor: float
    summand: float


class Steps(NamedTuple):
    """What is to be done to an image, as it was drawn.

    ``first`` and ``last`` apply to all channels, one after the other, before and after the colour
    conversions. ``saturation`` and ``hue`` are tables of 256 bytes; None leaves the step out.
    """

    first: tuple[Scale, ...] = ()
    saturation: Any = None
    hue: Any = None
    last: tuple[Scale, ...] = ()


def covers(image: Any) -> bool:
    """Tell whether an image is one that the kernels take.

    A plain uint8 array of shape (height, width, 3) with at least one pixel, of any strides.
    """
    return (
        type(image) is np.ndarray
        and image.ndim == 3
        and image.shape[2] == 3
        and image.size > 0
        and image.dtype == np.uint8
    )


def distort(image: Any, steps: Steps) -> Any:
    """Return the distorted image as a new C-contiguous array of the same shape.

    ``image``, see ``covers``, is left as it is; where there is nothing to do it is itself returned.
    """
    operations = _operations(steps)
    if not operations:
        return image
    out = np.empty(image.shape, np.uint8)
    buffers = np.empty((2, tile_rows(image), *image.shape[1:]), np.uint8)
    for rows, written in tiles(image, out):
        for number, operation in enumerate(operations, 1):
            # From one buffer to the other: OpenCV copies what it is to convert in place.
            target = buffers[number % 2, : len(rows)] if number < len(operations) else written
            rows = operation(rows, target)
    return out


def _operations(steps: Steps) -> list[Operation]:
    """Return functions of a source and a destination, which return the destination."""
    compiled = kernels()

    def scale(change: Scale) -> Operation:
        factor, summand = _F32(change.factor), _F32(change.summand)

        def convert(source: Any, out: Any) -> Any:
            flat = np.ascontiguousarray(source).reshape(-1)
            compiled.scale(flat, factor, summand, out.reshape(-1))
            return out

        return convert

    def to_hsv(channel: int, table: Any) -> Operation:
        def convert(source: Any, out: Any) -> Any:
            hsv = cv2.cvtColor(source, cv2.COLOR_BGR2HSV, out)
            compiled.walk(hsv.reshape(-1, 3), channel, table)
            return hsv

        return convert

    def to_bgr(source: Any, out: Any) -> Any:
        return cv2.cvtColor(source, cv2.COLOR_HSV2BGR, out)

    operations = [scale(change) for change in steps.first]
    for channel, table in ((_SATURATION, steps.saturation), (_HUE, steps.hue)):
        if table is not None:
            operations += [to_hsv(channel, table), to_bgr]
    return operations + [scale(change) for change in steps.last]


class Kernels(NamedTuple):
    """The compiled loops: over a flat image, and over an array of shape (pixels, 3)."""

    scale: Kernel
    walk: Kernel


@functools.cache
def kernels() -> Kernels:
    """Compile the loops, once a process; forked children inherit them.

    Raises:
        Exception: whatever numba raises where it can't compile here.
    """
    byte, f32 = types.uint8, types.float32
    source, table = (types.Array(byte, 1, "C", readonly=True) for _ in range(2))
    flat, pixels = types.Array(byte, 1, "C"), types.Array(byte, 2, "C")

    def compiled(function: Kernel, signature: Any) -> Kernel:
        kernel: Kernel = numba.njit([signature], nogil=True, error_model="numpy")(function)
        return kernel

    return Kernels(
        scale=compiled(_scale, types.void(source, f32, f32, flat)),
        walk=compiled(_walk, types.void(pixels, types.uintp, table)),
    )


def _scale(source: Any, factor: Any, summand: Any, out: Any) -> None:
    for index in range(source.size):
        value = _F32(source[index]) * factor + summand
        value = value if value > _BLACK else _BLACK
        value = value if value < _WHITE else _WHITE
        out[index] = np.uint8(np.int32(value))


def _walk(pixels: Any, channel: Any, table: Any) -> None:
    for pixel in range(len(pixels)):
        pixels[pixel, channel] = table[pixels[pixel, channel]]
