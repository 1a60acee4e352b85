"""The pipeline of a BEV model, on transforms that do what those of the BEV repositories do.

Needs mmcv 1.x and mmdet 2. The classes are those of the tests; where Loongkit is to be measured,
``enter_classes`` tells it that it knows them, as it knows those of the repositories.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).resolve().parent.parent / "tests" / "support"
SIZE = (900, 1600)
NORM = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]}


def can_run() -> bool:
    """Tell whether mmcv 1.x and mmdet 2 are installed; say on standard error where not."""
    found = all(importlib.util.find_spec(name) for name in ("mmcv", "mmdet"))
    found = found and importlib.util.find_spec("mmcv.parallel") is not None
    if not found:
        print("nothing to compare here: mmcv 1.x and mmdet 2 are needed", file=sys.stderr)
    return found


def _classes() -> tuple[Any, Any]:
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(SUPPORT))
    import distortions
    import formatting

    return formatting, distortions


def enter_classes() -> None:
    """Enter the classes into Loongkit's tables, and register them where DISTORTION sees it."""
    formatting, distortions = _classes()
    from mmcv.utils import Registry

    from loongkit.images import format_known, variants
    from loongkit.images.fingerprint import class_fingerprint

    roles = {**formatting.CLASSES, distortions.MultiView: format_known.REPLACE}
    for cls, role in roles.items():
        format_known.BODIES[cls.__name__, class_fingerprint(cls) or ""] = role
    variants.VARIANTS = distortions.known()
    Registry("cameras").register_module(module=distortions.MultiView)


def format_stage(divisor: int = 32) -> Any:
    """The end of the pipeline: normalise, pad, format, collect."""
    formatting, _ = _classes()
    from mmdet.datasets.pipelines import Compose

    return Compose(
        [
            formatting.NormalizeMultiviewImage(**NORM),
            formatting.PadMultiViewImage(size_divisor=divisor),
            formatting.DefaultFormatBundle3D(),
            formatting.Collect3D(),
        ]
    )


def whole_pipeline() -> Any:
    """Load six files as float32, distort, and the format stage."""
    formatting, distortions = _classes()
    pipeline = format_stage()
    pipeline.transforms[:0] = [
        formatting.LoadMultiViewImageFromFiles(to_float32=True),
        distortions.MultiView(),
    ]
    return pipeline


def photos(dtype: str) -> list[Any]:
    """Six images of random pixels, 0 to 255."""
    import numpy as np

    return [
        np.random.default_rng(seed).integers(0, 256, (*SIZE, 3)).astype(dtype) for seed in range(6)
    ]


def write_photos(folder: Path) -> list[str]:
    """Write six JPEG files with smooth contents and some noise, and return their names."""
    import cv2
    import numpy as np

    names = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        coarse = rng.integers(0, 256, (30, 50, 3), dtype=np.uint8)
        smooth = cv2.resize(coarse, SIZE[::-1], interpolation=cv2.INTER_CUBIC).astype(int)
        pixels = (smooth + rng.integers(-12, 12, smooth.shape)).clip(0, 255).astype(np.uint8)
        names.append(str(folder / f"{seed}.jpg"))
        cv2.imwrite(names[-1], pixels, [cv2.IMWRITE_JPEG_QUALITY, 90])
    return names
