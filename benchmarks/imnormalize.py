"""mmcv.imnormalize with and without Loongkit: thread CPU time, results compared bit by bit.

One thread, as in a data worker. The baseline is mmcv's own function on the installed OpenCV. With
OpenCV 4.12 and 4.13 that function is about 90 times slower than with the others, so nothing is
measured there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from _pairs import Outcome, arguments, compare, cpu_seconds, in_forked_worker, report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

SLOW_OPENCV = ("4.12.", "4.13.")
MEAN = np.array([123.675, 116.28, 103.53], np.float32)
STD = np.array([58.395, 57.12, 57.375], np.float32)
SIZES = {"1600x900": (900, 1600), "1333x800": (800, 1333), "416x416": (416, 416)}
FOUR_K = (2160, 3840)


def image(shape: tuple[int, ...], dtype: str) -> Any:
    """An image of random pixels, 0 to 255."""
    return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)


def cases() -> dict[str, tuple[list[Any], bool]]:
    """Images and channel swap of each comparison, by its name."""
    found: dict[str, tuple[list[Any], bool]] = {}
    for dtype in ("uint8", "float32"):
        for name, size in SIZES.items():
            found[f"imnormalize_{name}_{dtype}_rgb"] = ([image((*size, 3), dtype)], True)
        found[f"imnormalize_1600x900_{dtype}_no_swap"] = ([image((900, 1600, 3), dtype)], False)
        found[f"imnormalize_4k_{dtype}_no_swap"] = ([image((*FOUR_K, 3), dtype)], False)
    cameras = image((900, 1600, 3, 6), "float32")
    found["imnormalize_six_interleaved_views"] = ([cameras[..., i] for i in range(6)], True)
    return found


def measure(name: str, images: list[Any], to_rgb: bool, pairs: int) -> Outcome:
    """Compare stock with ours on some images."""
    from mmcv.image.photometric import imnormalize, imnormalize_

    def stock(one: Any, mean: Any, std: Any, to_rgb: bool) -> Any:
        # mmcv's imnormalize, statement for statement; by itself it would call our imnormalize_.
        return imnormalize_.__wrapped__(one.copy().astype(np.float32), mean, std, to_rgb)

    for one in images:
        assert np.array_equal(imnormalize(one, MEAN, STD, to_rgb), stock(one, MEAN, STD, to_rgb))

    def run(function: Callable[..., Any]) -> Callable[[], float]:
        return lambda: cpu_seconds(lambda: [function(one, MEAN, STD, to_rgb) for one in images])

    return compare(name, run(stock), run(imnormalize), pairs=pairs)


def first_image_in_a_worker(pairs: int) -> Outcome:
    """Cost of a forked worker's first image over stock's: the parent has compiled the kernels."""
    from mmcv.image.photometric import imnormalize, imnormalize_

    one = image((900, 1600, 3), "uint8")
    return compare(
        "imnormalize_first_image_in_forked_worker_cost",
        lambda: in_forked_worker(lambda: imnormalize(one, MEAN, STD)),
        lambda: in_forked_worker(
            lambda: imnormalize_.__wrapped__(one.copy().astype(np.float32), MEAN, STD)
        ),
        pairs=pairs,
    )


def main() -> None:
    """Activate the feature in this process and compare."""
    options = arguments(__doc__)
    if cv2.__version__.startswith(SLOW_OPENCV):
        sys.exit(f"OpenCV {cv2.__version__} makes a false baseline: use 4.11, 4.14 or later")
    cv2.setNumThreads(0)
    os.environ["LOONGKIT_IMNORMALIZE"] = "1"
    import loongkit.all  # noqa: F401

    pairs = 20 if options.quick else 50
    outcomes = [measure(name, *case, pairs) for name, case in cases().items()]
    report([*outcomes, first_image_in_a_worker(pairs)], options)


if __name__ == "__main__":
    main()
