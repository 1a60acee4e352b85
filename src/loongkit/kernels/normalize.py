"""Image normalisation in one pass over the pixels, bit-identical to mmcv's chain of OpenCV calls.

mmcv.imnormalize computes, per channel and after the optional swap of BGR and RGB,

    y = f32( f64( f32(x) - f32(mean) ) * (1 / f64(std)) )

OpenCV subtracts in float32, with the mean rounded to float32, and multiplies in float64 with one
rounding at the end (checked on OpenCV 4.5 to 5.0). The loops below do the same per pixel; LLVM
turns the stride-3 access into vector shuffles. Never ``parallel=True``: a worker forked after a
parallel kernel has run is killed by GNU OpenMP, and ``fastmath`` would change the bits.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numba
import numpy as np
from numba import types

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Kernel = Callable[..., None]

_F32, _F64 = np.float32, np.float64

#: Without a swap the pixels are walked in runs of this many values: whole pixels, whole vectors.
_RUN = 48

#: Element types that have kernels; images of any other type go through the original.
DTYPES = (np.dtype(np.uint8), np.dtype(np.float32))


def _swap(source: Any, m0: Any, m1: Any, m2: Any, s0: Any, s1: Any, s2: Any, out: Any) -> None:
    for pixel in range(source.size // 3):
        at = 3 * pixel
        out[at] = _F32(_F64(_F32(source[at + 2]) - m0) * s0)
        out[at + 1] = _F32(_F64(_F32(source[at + 1]) - m1) * s1)
        out[at + 2] = _F32(_F64(_F32(source[at]) - m2) * s2)


def _keep(source: Any, means: Any, scales: Any, out: Any) -> None:
    runs = source.size // _RUN
    for run in range(runs):
        at = run * _RUN
        for step in range(_RUN):
            out[at + step] = _F32(_F64(_F32(source[at + step]) - means[step]) * scales[step])
    for at in range(runs * _RUN, source.size):
        out[at] = _F32(_F64(_F32(source[at]) - means[at % 3]) * scales[at % 3])


def _strided(source: Any, first: Any, means: Any, scales: Any, out: Any) -> None:
    m0, m1, m2 = means[0], means[1], means[2]
    s0, s1, s2 = scales[0], scales[1], scales[2]
    height, width, _ = source.shape
    for y in range(height):
        for x in range(width):
            out[y, x, 0] = _F32(_F64(_F32(source[y, x, first]) - m0) * s0)
            out[y, x, 1] = _F32(_F64(_F32(source[y, x, 1]) - m1) * s1)
            out[y, x, 2] = _F32(_F64(_F32(source[y, x, 2 - first]) - m2) * s2)


def _swap_in_place(image: Any, m0: Any, m1: Any, m2: Any, s0: Any, s1: Any, s2: Any) -> None:
    for pixel in range(image.size // 3):
        at = 3 * pixel
        first, second, third = image[at + 2], image[at + 1], image[at]
        image[at] = _F32(_F64(first - m0) * s0)
        image[at + 1] = _F32(_F64(second - m1) * s1)
        image[at + 2] = _F32(_F64(third - m2) * s2)


def _keep_in_place(image: Any, means: Any, scales: Any) -> None:
    runs = image.size // _RUN
    for run in range(runs):
        at = run * _RUN
        for step in range(_RUN):
            image[at + step] = _F32(_F64(image[at + step] - means[step]) * scales[step])
    for at in range(runs * _RUN, image.size):
        image[at] = _F32(_F64(image[at] - means[at % 3]) * scales[at % 3])


class Kernels(NamedTuple):
    """The compiled loops, each for every element type that it takes."""

    swap: Kernel
    keep: Kernel
    strided: Kernel
    swap_in_place: Kernel
    keep_in_place: Kernel


@functools.cache
def kernels() -> Kernels:
    """Compile all loops, about a second once a process; forked children inherit them.

    Sources are declared read-only, which accepts writable arrays too, and the strided one in any
    layout: so no image met later makes numba compile again.

    Raises:
        Exception: whatever numba raises where it can't compile here.
    """
    f32, f64 = types.float32, types.float64
    means, scales = types.Array(f32, 1, "C"), types.Array(f64, 1, "C")
    flat, image = types.Array(f32, 1, "C"), types.Array(f32, 3, "C")
    scalars = (f32, f32, f32, f64, f64, f64)
    sources = [
        (types.Array(kind, 1, "C", readonly=True), types.Array(kind, 3, "A", readonly=True))
        for kind in (types.uint8, f32)
    ]

    def compiled(function: Kernel, *signatures: Any) -> Kernel:
        jit = numba.njit(list(signatures), nogil=True, error_model="numpy")
        kernel: Kernel = jit(function)
        return kernel

    return Kernels(
        swap=compiled(_swap, *(types.void(source, *scalars, flat) for source, _ in sources)),
        keep=compiled(_keep, *(types.void(source, means, scales, flat) for source, _ in sources)),
        strided=compiled(
            _strided,
            *(types.void(any_, types.intp, means, scales, image) for _, any_ in sources),
        ),
        swap_in_place=compiled(_swap_in_place, types.void(flat, *scalars)),
        keep_in_place=compiled(_keep_in_place, types.void(flat, means, scales)),
    )


def covers(image: Any, mean: Any, std: Any) -> bool:
    """Tell whether ``normalize`` computes what mmcv does for these arguments.

    A plain array of shape (height, width, 3) with at least one pixel, uint8 or float32 in native
    byte order, with three real means and three standard deviations in arrays. Gray images, other
    channel counts, one mean for all channels, lists and wrong sizes are the original's business.
    """
    return (
        type(image) is np.ndarray
        and image.ndim == 3
        and image.shape[2] == 3
        and image.size > 0
        and image.dtype in DTYPES
        and image.flags.aligned
        and all(
            type(part) is np.ndarray and part.size == 3 and part.dtype.kind in "fiu"
            for part in (mean, std)
        )
    )


def normalize(image: Any, mean: Any, std: Any, to_rgb: bool) -> Any:
    """Return the normalised image as a new C-contiguous float32 array of the same shape.

    ``image`` is (height, width, 3), uint8 or float32, of any strides, and is left as it is; see
    ``covers``. ``mean`` and ``std`` apply to the channels after the swap. A zero in ``std`` gives
    numpy's warning and infinities, as in mmcv.
    """
    means, scales = parameters(mean, std)
    out = np.empty(image.shape, _F32)
    compiled = kernels()
    if not image.flags.c_contiguous:
        compiled.strided(image, 2 if to_rgb else 0, means, scales, out)
    elif to_rgb:
        compiled.swap(image.reshape(-1), *means, *scales, out.reshape(-1))
    else:
        compiled.keep(image.reshape(-1), *_runs(means, scales), out.reshape(-1))
    return out


def covers_in_place(image: Any, mean: Any, std: Any) -> bool:
    """Tell whether ``normalize_in_place`` takes this image: float32, C-contiguous, writable."""
    return (
        covers(image, mean, std)
        and image.dtype == _F32
        and image.flags.c_contiguous
        and image.flags.writeable
    )


def normalize_in_place(image: Any, mean: Any, std: Any, to_rgb: bool) -> Any:
    """Normalise a C-contiguous float32 image in its own memory and return it."""
    means, scales = parameters(mean, std)
    flat = image.reshape(-1)
    if to_rgb:
        kernels().swap_in_place(flat, *means, *scales)
    else:
        kernels().keep_in_place(flat, *_runs(means, scales))
    return image


def parameters(mean: Any, std: Any) -> tuple[Any, Any]:
    """Return the means as OpenCV rounds them, and the factors as mmcv computes them."""
    return mean.reshape(-1).astype(_F64).astype(_F32), 1 / np.float64(std.reshape(-1))


def _runs(means: Any, scales: Any) -> tuple[Any, Any]:
    return np.tile(means, _RUN // 3), np.tile(scales, _RUN // 3)
