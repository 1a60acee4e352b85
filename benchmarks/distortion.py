"""PhotoMetricDistortion with and without Loongkit: thread CPU time, results compared.

One thread, as in a data worker. Both sides are the installed package's own method, with and without
the replacement: mmdet's (2.x or 3.x) on float32, and mmseg's 0.x on bytes where that is installed.
Random numbers are seeded so that every step fires, or none.

Each side runs once untimed before it is timed, as in a worker that runs nothing else: the stock
method leaves so much garbage that the C library gives memory back to the system, and whoever comes
next pays for getting it anew.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from _pairs import Outcome, arguments, compare, cpu_seconds, in_forked_worker, report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

SIZES = {"1600x900": (900, 1600), "1333x800": (800, 1333), "416x416": (416, 416)}
#: Module of the class and its method, of both generations.
FLOATS = (
    ("mmdet.datasets.transforms.transforms", "transform"),
    ("mmdet.datasets.pipelines.transforms", "__call__"),
)
BYTES = (("mmseg.datasets.pipelines.transforms", "__call__"),)


class Method:
    """The replaced method of an installed class, on an object of it."""

    def __init__(self, module: str, name: str) -> None:
        cls = importlib.import_module(module).PhotoMetricDistortion
        self._transform = cls()
        self.ours = vars(cls)[name]
        self.stock = self.ours.__wrapped__

    def call(self, function: Callable[..., Any], image: Any, seed: int) -> Any:
        """Return the distorted image."""
        np.random.seed(seed)
        return function(self._transform, {"img": image})["img"]

    def seed_that(self, fires: bool) -> int:
        """Return a seed that makes every step fire, or none of them."""
        image = np.full((1, 1, 3), 99, np.uint8)
        for seed in range(100_000):
            np.random.seed(seed)
            recorded = Recorded(np.random)
            names = self.stock.__globals__
            names["random"] = recorded
            try:
                self.stock(self._transform, {"img": image.copy()})
            finally:
                names["random"] = np.random
            if recorded.all_are(fires):
                return seed
        raise RuntimeError("no seed was found")


class Recorded:
    """numpy.random, with a record of the flags that came up."""

    def __init__(self, random: Any) -> None:
        self._random = random
        self._flags: list[int] = []
        self.uniform, self.permutation = random.uniform, random.permutation

    def randint(self, low: int, high: int | None = None) -> int:
        """Draw a flag, or a number between two bounds."""
        value: int = self._random.randint(low, high)
        if high is None:
            self._flags.append(value)
        return value

    def all_are(self, fire: bool) -> bool:
        """Tell whether all flags came up, or none did; the place of the contrast is one of them."""
        return set(self._flags) == {int(fire)}


def available(places: tuple[tuple[str, str], ...]) -> Method | None:
    """Return the first of these methods whose package and module are installed."""
    for module, name in places:
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            try:
                return Method(module, name)
            except ModuleNotFoundError:
                continue
    return None


def photo(size: tuple[int, int], dtype: str) -> Any:
    """An image of random pixels, 0 to 255."""
    return np.random.default_rng(0).integers(0, 256, (*size, 3)).astype(dtype)


def measure(
    name: str, method: Method, ours: Callable[..., Any], image: Any, seed: int, pairs: int
) -> Outcome:
    """Compare the stock method with ours; their results must agree within the promised bound."""
    difference = np.abs(
        method.call(method.stock, image, seed).astype(float) - method.call(ours, image, seed)
    ).max()
    assert difference <= (0 if image.dtype == np.uint8 and "uint8" in name else 1e-3), difference

    def timed(function: Callable[..., Any]) -> Callable[[], float]:
        def run() -> float:
            method.call(function, image, seed)
            return cpu_seconds(lambda: method.call(function, image, seed))

        return run

    return compare(name, timed(method.stock), timed(ours), pairs=pairs)


def floats(method: Method, pairs: int) -> list[Outcome]:
    """Compare the float variant: sizes, all steps and none, the exact route, the first image."""
    from loongkit.images import recipes
    from loongkit.kernels import photometric

    fires, rests = method.seed_that(True), method.seed_that(False)
    outcomes = []
    for name, size in SIZES.items():
        image = photo(size, "float32")
        for case, seed in (("all_steps", fires), ("all_off", rests)):
            title = f"distortion_{name}_float32_{case}"
            outcomes.append(measure(title, method, method.ours, image, seed, pairs))
    image = photo(SIZES["1600x900"], "float32")
    outcomes.append(
        compare(
            "distortion_first_image_in_forked_worker_cost",
            lambda: in_forked_worker(lambda: method.call(method.ours, image, fires)),
            lambda: in_forked_worker(lambda: method.call(method.stock, image, fires)),
            pairs=pairs,
        )
    )
    byte_image = photo(SIZES["1600x900"], "uint8")
    title = "distortion_1600x900_from_bytes_all_steps"
    outcomes.append(measure(title, method, method.ours, byte_image, fires, pairs))

    def exactly(transform: Any, results: dict[str, Any]) -> dict[str, Any]:
        recipe = recipes.RECIPES["mmdet 3" if hasattr(transform, "_random_flags") else "mmdet 2"]
        call = recipes.Call(
            method.stock, transform, results, np.random, photometric.distort_exactly, lambda: None
        )
        found: dict[str, Any] = recipe.run(call)
        return found

    for case, seed in (("all_steps", fires), ("all_off", rests)):
        title = f"distortion_1600x900_float32_exact_{case}"
        outcomes.append(measure(title, method, exactly, image, seed, pairs))
    return outcomes


def main() -> None:
    """Activate the feature in this process and compare."""
    options = arguments(__doc__)
    cv2.setNumThreads(0)
    os.environ["LOONGKIT_DISTORTION"] = "1"
    import loongkit.all  # noqa: F401

    pairs = 20 if options.quick else 50
    outcomes = []
    method = available(FLOATS)
    if method is not None:
        outcomes += floats(method, pairs)
    method = available(BYTES)
    if method is not None:
        image, seed = photo(SIZES["1600x900"], "uint8"), method.seed_that(True)
        title = "distortion_1600x900_uint8_all_steps"
        outcomes.append(measure(title, method, method.ours, image, seed, pairs))
    if not outcomes:
        sys.exit("nothing to compare: wanted mmdet 2.x or 3.x, or mmseg 0.x, found none of them")
    report(outcomes, options)


if __name__ == "__main__":
    main()
