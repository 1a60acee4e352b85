"""The compiled loops of the float distortion, over flat float32 images.

The loop for the whole chain has neither branches nor tables, so that LLVM makes vector code of it.
Its roundings are those of OpenCV's own vector code, fused multiply-add included.
"""

from __future__ import annotations

import functools
import platform
from typing import TYPE_CHECKING, NamedTuple

import llvmlite.binding  # type: ignore[import-untyped]
import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Kernel = Callable[..., Any]

_F32 = np.float32

# One literal of Python's in an expression would make all of it float64, hence these.
_ZERO, _ONE, _SIXTY = _F32(0), _F32(1), _F32(60)
_GREEN, _BLUE, _TURN = _F32(120), _F32(240), _F32(360)
_SECTORS = _F32(6 / 360)
_EPSILON = _F32(np.finfo(np.float32).eps)

#: Where a pixel's |b| + |g| + |r| is larger after brightness and contrast, or NaN, the promised
#: bound was not measured: the loops for the whole chain report such an image.
LARGEST = _F32(1536)


class Kernels(NamedTuple):
    """What is compiled.

    ``fused(source, settings, out)`` does the whole chain and tells whether a pixel was outside the
    measured scale; ``fused_same_hue`` is the same for images that keep their hues.
    ``adjust(hsv, saturation, clip, shift, out)`` changes an HSV image between the conversions, and
    ``finish(source, contrast, first, second, third, out)`` a BGR image behind them.
    """

    fused: Kernel
    fused_same_hue: Kernel
    adjust: Kernel
    finish: Kernel


@functools.cache
def kernels() -> Kernels:
    """Compile all loops, about a second once a process; forked children inherit them.

    Sources are declared read-only, which accepts writable arrays too: no image met later makes
    numba compile again. Never ``parallel``: a worker forked after a parallel kernel has run is
    killed by GNU OpenMP.

    Raises:
        Exception: whatever numba raises where it can't compile here.
    """
    f32, index = types.float32, types.intp
    source, written = types.Array(f32, 1, "C", readonly=True), types.Array(f32, 1, "C")

    def compiled(function: Kernel, *signatures: Any) -> Kernel:
        kernel: Kernel = numba.njit(list(signatures), nogil=True, error_model="numpy")(function)
        return kernel

    return Kernels(
        fused=compiled(_fused_loop(True), types.boolean(source, source, written)),
        fused_same_hue=compiled(_fused_loop(False), types.boolean(source, source, written)),
        adjust=compiled(_adjust, types.void(source, f32, types.boolean, f32, written)),
        finish=compiled(_finish, types.void(source, f32, index, index, index, written)),
    )


def _fused_loop(shifts: bool) -> Kernel:
    """Return the loop that does the whole chain for a pixel at a time.

    Half of all images keep their hues; ``shifts`` is False in the loop for them.
    """
    multiply_add = _multiply_add() if _has_multiply_add() else numba.njit(_rounded_multiply_add)
    taken = numba.njit(_taken)

    def fused(source: Any, settings: Any, out: Any) -> Any:
        brightness, contrast, saturation, clip = settings[0], settings[1], settings[2], settings[3]
        shift, last = settings[4], settings[5]
        sign0, from0, to0 = settings[6], settings[7], settings[8]
        sign1, from1, to1 = settings[9], settings[10], settings[11]
        sign2, from2, to2 = settings[12], settings[13], settings[14]
        # A hue leaves the circle where the shift points: past 360 or below 0.
        way, edge = (_ONE, _TURN) if shift >= _ZERO else (-_ONE, _ZERO)
        turn = way * _TURN
        outside = False
        for pixel in range(source.size // 3):
            at = 3 * pixel
            b = (source[at] + brightness) * contrast
            g = (source[at + 1] + brightness) * contrast
            r = (source[at + 2] + brightness) * contrast
            outside |= not (abs(b) + abs(g) + abs(r) <= LARGEST)
            value = g if g > b else b
            value = r if r > value else value
            low = g if g < b else b
            low = r if r < low else low
            chroma = value - low
            # Hue in degrees: by the distance of the two lower channels from the highest one.
            distance, offset = r - g, _BLUE
            if value == g:
                distance, offset = b - r, _GREEN
            if value == r:
                distance, offset = g - b, (_TURN if g < b else _ZERO)
            hue = multiply_add(distance, _SIXTY / (chroma + _EPSILON), offset)
            if shifts:
                hue = hue + shift
                hue = hue - turn if hue * way > edge else hue
            hue = hue * _SECTORS
            amount = chroma / (abs(value) + _EPSILON) * saturation
            amount = -(amount if amount < clip else clip)
            out0 = multiply_add(amount, taken(hue, sign0, from0, to0), _ONE)
            out1 = multiply_add(amount, taken(hue, sign1, from1, to1), _ONE)
            out2 = multiply_add(amount, taken(hue, sign2, from2, to2), _ONE)
            out[at] = value * out0 * last
            out[at + 1] = value * out1 * last
            out[at + 2] = value * out2 * last
        return outside

    return fused


def _taken(hue: Any, sign: Any, start: Any, end: Any) -> Any:
    """Return how much of the saturation a hue (0 to 6) takes from a channel, from 0 to 1."""
    falling, rising = start - hue, hue - end
    part = (falling if falling > rising else rising) * sign
    part = part if part < _ONE else _ONE
    return part if part > _ZERO else _ZERO


def _adjust(hsv: Any, saturation: Any, clip: Any, shift: Any, out: Any) -> None:
    for pixel in range(hsv.size // 3):
        at = 3 * pixel
        scaled = hsv[at + 1] * saturation
        if clip:  # written so that NaN stays NaN
            scaled = _ZERO if scaled < _ZERO else scaled
            scaled = _ONE if scaled > _ONE else scaled
        out[at + 1] = scaled
        hue = hsv[at] + shift
        hue = hue - _TURN if hue > _TURN else hue
        out[at] = hue + _TURN if hue < _ZERO else hue
        out[at + 2] = hsv[at + 2]


def _finish(source: Any, contrast: Any, first: Any, second: Any, third: Any, out: Any) -> None:
    for pixel in range(source.size // 3):
        at = 3 * pixel
        b, g, r = source[at] * contrast, source[at + 1] * contrast, source[at + 2] * contrast
        out[at] = b if first == 0 else (g if first == 1 else r)
        out[at + 1] = b if second == 0 else (g if second == 1 else r)
        out[at + 2] = b if third == 0 else (g if third == 1 else r)


def _has_multiply_add() -> bool:
    """Tell whether the processor multiplies and adds in one instruction, as OpenCV then does."""
    if platform.machine() in ("aarch64", "arm64"):
        return True
    return bool(llvmlite.binding.get_host_cpu_features().get("fma"))


def _rounded_multiply_add(factor: Any, other: Any, summand: Any) -> Any:
    return factor * other + summand


def _multiply_add() -> Any:
    """Return a function for kernels: factor * other + summand in float32, rounded once."""

    def declare(_typing: Any, _factor: Any, _other: Any, _summand: Any) -> tuple[Any, Any]:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.fma(*arguments)

        f32 = types.float32
        return f32(f32, f32, f32), generate

    return intrinsic(declare)
