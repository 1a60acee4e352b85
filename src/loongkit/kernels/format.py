"""Images written as planes: normalised or copied from (height, width, 3) into (3, height, width).

The last steps of a pipeline swap, normalise and pad each image and then turn it from interleaved
channels to planes. The loops below do all of it but the padding while they write the planes, which
may be larger than the image: it comes to lie in their upper left corner. The arithmetic is that of
``loongkit.kernels.normalize``, to the same bits.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numba
import numpy as np
from numba import types

from loongkit.kernels.normalize import DTYPES, parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Kernel = Callable[..., None]

_F32, _F64 = np.float32, np.float64

#: Pixels are walked in runs of this many. LLVM turns a loop of known length into whole vectors that
#: are read in order and shuffled, three to four times as fast as one over the width.
_RUN = 32

#: Pixels of a strided image that are gathered together: they stay in a core's own cache.
_TILE = 50_000

#: Stands for the parameters of a kernel that has no use for them.
_UNUSED = 0


def _normalized(row: Any, at: Any, means: Any, scales: Any) -> Any:
    m0, m1, m2 = means
    s0, s1, s2 = scales
    return (
        _F32(_F64(_F32(row[at]) - m0) * s0),
        _F32(_F64(_F32(row[at + 1]) - m1) * s1),
        _F32(_F64(_F32(row[at + 2]) - m2) * s2),
    )


def _same(row: Any, at: Any, _means: Any, _scales: Any) -> Any:
    return row[at], row[at + 1], row[at + 2]


def _loop(pixel: Callable[..., Any]) -> Kernel:
    """Return the loop that writes planes; what it writes for a pixel is compiled into it."""
    values = numba.njit(pixel, error_model="numpy")

    def loop(
        source: Any,
        size: Any,
        means: Any,
        scales: Any,
        start: Any,
        pitch: Any,
        first: Any,
        second: Any,
        third: Any,
    ) -> None:
        height, width = size
        runs = width // _RUN
        for y in range(height):
            row, left = source[3 * width * y : 3 * width * (y + 1)], start + pitch * y
            one, two, three = (
                first[left : left + width],
                second[left : left + width],
                third[left : left + width],
            )
            for run in range(runs):
                for step in range(_RUN):
                    x = run * _RUN + step
                    one[x], two[x], three[x] = values(row, 3 * x, means, scales)
            for x in range(runs * _RUN, width):
                one[x], two[x], three[x] = values(row, 3 * x, means, scales)

    return loop


class Kernels(NamedTuple):
    """The compiled loops: ``normalize`` of bytes and of float32, ``copy`` of float32."""

    normalize: Kernel
    copy: Kernel


@functools.cache
def kernels() -> Kernels:
    """Compile both loops, less than a second once a process; forked children inherit them.

    Raises:
        Exception: whatever numba raises where it can't compile here.
    """
    f32, index = types.float32, types.intp
    plane = types.Array(f32, 1, "C")
    size = types.UniTuple(index, 2)
    means, scales = types.UniTuple(f32, 3), types.UniTuple(types.float64, 3)
    target = (index, index, plane, plane, plane)
    bytes_, floats = (types.Array(kind, 1, "C", readonly=True) for kind in (types.uint8, f32))

    def compiled(function: Kernel, *signatures: Any) -> Kernel:
        jit = numba.njit(list(signatures), nogil=True, error_model="numpy")
        kernel: Kernel = jit(function)
        return kernel

    return Kernels(
        normalize=compiled(
            _loop(_normalized),
            *(types.void(source, size, means, scales, *target) for source in (bytes_, floats)),
        ),
        copy=compiled(_loop(_same), types.void(floats, size, index, index, *target)),
    )


def covers(image: Any) -> bool:
    """Tell whether ``normalize`` takes an image.

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


def normalize(planes: Any, image: Any, mean: Any, std: Any, to_rgb: bool) -> None:
    """Write a normalised image into the upper left corner of three planes.

    ``planes`` is (3, rows, columns), float32, C-contiguous, at least as large as the image; see
    ``covers`` for ``image``, and ``loongkit.kernels.normalize`` for the rest. ``mean`` and ``std``
    are of the planes in their order: after the swap, if ``to_rgb``.
    """
    means, scales = parameters(mean, std)
    order = (2, 1, 0) if to_rgb else (0, 1, 2)  # the plane of each channel of the image
    by_channel = (
        tuple(means[place] for place in order),
        tuple(scales[place] for place in order),
    )
    _write(kernels().normalize, [planes[place] for place in order], image, *by_channel)


def copy(planes: Any, image: Any) -> None:
    """Write a float32 image into the upper left corner of three planes, as ``normalize`` does."""
    _write(kernels().copy, planes, image, _UNUSED, _UNUSED)


def _write(kernel: Kernel, planes: Any, image: Any, means: Any, scales: Any) -> None:
    """Run a kernel; the planes and the parameters are those of the image's channels in turn."""
    pitch = planes[0].shape[1]
    targets = [plane.reshape(-1) for plane in planes]
    for top, rows in _contiguous(image):
        kernel(rows.reshape(-1), rows.shape[:2], means, scales, top * pitch, pitch, *targets)


def _contiguous(image: Any) -> Iterator[tuple[int, Any]]:
    """Yield the image in C-contiguous pieces of whole rows, each with the number of its first."""
    if image.flags.c_contiguous:
        yield 0, image
        return
    height, width, _ = image.shape
    rows = max(1, _TILE // int(width))
    buffer = np.empty((min(height, rows), width, 3), image.dtype)
    for top in range(0, height, rows):
        piece = image[top : top + rows]
        gathered = buffer[: len(piece)]
        np.copyto(gathered, piece)
        yield top, gathered
