"""Random photometric distortion of an 8-bit image, through tables and to the last bit.

On bytes each step of mmseg's PhotoMetricDistortion is a function of one byte, so that 256 results
of the original's own code hold all of it: steps that follow each other become one table. The
conversions between BGR and HSV are OpenCV's, whose 8-bit code nothing here can beat; between them
a loop walks the one channel that changes, in place.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import cv2
import numba
import numpy as np
from numba import types

from loongkit.kernels.photometric import tile_rows, tiles
from loongkit.kernels.photometric_loops import check_compiler

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Kernel = Callable[..., Any]
    Operation = Callable[[Any, Any], Any]

_HUE, _SATURATION = 0, 1


class Tables(NamedTuple):
    """Tables of 256 bytes for each part of the chain; None leaves a part out.

    ``first`` and ``last`` apply to all channels, before and after the colour conversions.
    """

    first: Any = None
    saturation: Any = None
    hue: Any = None
    last: Any = None


def covers(image: Any) -> bool:
    """Tell whether an image is one that the tables serve.

    A plain uint8 array of shape (height, width, 3) with at least one pixel, of any strides.
    """
    return (
        type(image) is np.ndarray
        and image.ndim == 3
        and image.shape[2] == 3
        and image.size > 0
        and image.dtype == np.uint8
    )


def composed(first: Any, second: Any) -> Any:
    """Return the table that does what ``first`` and then ``second`` do; None changes nothing."""
    if first is None or second is None:
        return first if second is None else second
    return second[first]


def distort(image: Any, tables: Tables) -> Any:
    """Return the distorted image as a new C-contiguous array of the same shape.

    ``image``, see ``covers``, is left as it is; where no table is given it is itself returned.
    """
    if tables.saturation is None and tables.hue is None:
        tables = Tables(first=composed(tables.first, tables.last))
    operations = _operations(tables)
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


def _operations(tables: Tables) -> list[Operation]:
    """Return functions of a source and a destination, which return the destination."""
    compiled = kernels()

    def look_up(table: Any) -> Operation:
        def convert(source: Any, out: Any) -> Any:
            compiled.look_up(np.ascontiguousarray(source).reshape(-1), table, out.reshape(-1))
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

    operations = []
    if tables.first is not None:
        operations.append(look_up(tables.first))
    for channel, table in ((_SATURATION, tables.saturation), (_HUE, tables.hue)):
        if table is not None:
            operations += [to_hsv(channel, table), to_bgr]
    if tables.last is not None:
        operations.append(look_up(tables.last))
    return operations


class Kernels(NamedTuple):
    """The compiled loops: over a flat image, and over an array of shape (pixels, 3)."""

    look_up: Kernel
    walk: Kernel


@functools.cache
def kernels() -> Kernels:
    """Compile the loops, once a process; forked children inherit them.

    Raises:
        RuntimeError: numba's compiler is switched off.
        Exception: whatever numba raises where it can't compile here.
    """
    check_compiler()
    byte = types.uint8
    source, table = (types.Array(byte, 1, "C", readonly=True) for _ in range(2))
    flat, pixels = types.Array(byte, 1, "C"), types.Array(byte, 2, "C")

    def compiled(function: Kernel, signature: Any) -> Kernel:
        kernel: Kernel = numba.njit([signature], nogil=True, error_model="numpy")(function)
        return kernel

    return Kernels(
        look_up=compiled(_look_up, types.void(source, table, flat)),
        walk=compiled(_walk, types.void(pixels, types.uintp, table)),
    )


def _look_up(source: Any, table: Any, out: Any) -> None:
    for index in range(source.size):
        out[index] = table[source[index]]


def _walk(pixels: Any, channel: Any, table: Any) -> None:
    for pixel in range(len(pixels)):
        pixels[pixel, channel] = table[pixels[pixel, channel]]
