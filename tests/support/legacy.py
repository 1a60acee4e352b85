"""Which framework environment this is: tests of mmcv 1.x run in the legacy one alone."""

from __future__ import annotations

import warnings

import pytest


def need_mmcv_1() -> None:
    """Skip the calling test module where mmcv 1.x and torch are not installed."""
    pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it announces mmcv 2 at each import
        mmcv = pytest.importorskip("mmcv")
    if not mmcv.__version__.startswith("1."):
        pytest.skip(f"needs mmcv 1.x, found {mmcv.__version__}", allow_module_level=True)
