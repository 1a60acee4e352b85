"""Puts the one-pass kernels behind mmcv.imnormalize and mmcv.imnormalize_."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loongkit.images import jit, planar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from loongkit.activation.patching import Patcher

#: What a transform's code calls when it normalises on the CPU.
FUNCTIONS = frozenset({"imnormalize", "imnormalize_"})


def _like(img, mean, std, to_rgb=True): ...  # type: ignore[no-untyped-def]


class Normalization:
    """The feature at work on one ``mmcv.image.photometric``."""

    def __init__(self, module: ModuleType, patcher: Patcher) -> None:
        self._module = module
        self._patcher = patcher
        self._original: Callable[..., Any] = module.imnormalize
        self._kernels: Any = None
        #: True while the originals are asked what they compute, and once we have stepped aside.
        self._stand_back = False

    def install(self) -> None:
        """Wrap both functions.

        Raises:
            Skip: numba is missing, or the functions have other parameters.
        """
        reason = jit.missing()
        if reason is not None:
            self._patcher.skip(reason)
        self._patcher.wrap(self._module, "imnormalize", self._imnormalize, like=_like)
        self._patcher.wrap(self._module, "imnormalize_", self._imnormalize_in_place, like=_like)

    def _imnormalize(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call = _arguments(*args, **kwargs)
        if call is None or not self._ready(original) or not self._kernels.covers(*call[:3]):
            return original(*args, **kwargs)
        stage = planar.active()
        result = None if stage is None else stage.normalized(*call)
        if result is None:
            result = self._kernels.normalize(*call)
        self._patcher.mark()
        return result

    def _imnormalize_in_place(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call = _arguments(*args, **kwargs)
        if (
            call is None
            or not self._ready(self._original)
            or not self._kernels.covers_in_place(*call[:3])
        ):
            return original(*args, **kwargs)
        result = self._kernels.normalize_in_place(*call)
        self._patcher.mark()
        return result

    def _ready(self, original: Callable[..., Any]) -> bool:
        """Load, compile and check the kernels at the first call; step aside where that fails."""
        if self._kernels is None and not self._stand_back:
            self._stand_back = True  # mmcv's imnormalize calls imnormalize_, which must be mmcv's
            failure = self._load(original)
            if failure:
                self._patcher.give_up(failure)
            else:
                self._stand_back = False
        return not self._stand_back

    def _load(self, original: Callable[..., Any]) -> str:
        try:
            kernels = jit.kernels_of("normalize")
            kernels.kernels()
            for image, to_rgb in _check_images():
                expected = original(image, _MEAN, _STD, to_rgb)
                found = kernels.normalize(image, _MEAN, _STD, to_rgb)
                if not np.array_equal(expected, found):
                    return "the kernels do not give the same bits as the installed OpenCV"
        except Exception as error:
            return f"the kernels can't be used: {type(error).__name__}: {error}"
        self._kernels = kernels
        return ""


#: The ImageNet statistics, in the units of 8-bit pixels, that nearly every pipeline uses.
_MEAN = np.array([123.675, 116.28, 103.53], np.float32)
_STD = np.array([58.395, 57.12, 57.375], np.float32)


def _check_images() -> list[tuple[Any, bool]]:
    """Return small images that hold every 8-bit value in every channel, and fractions of them."""
    ramp = np.arange(16 * 48 * 3, dtype=np.uint32).reshape(16, 48, 3) * 7 % 256
    bytes_, fractions = ramp.astype(np.uint8), (ramp * np.float32(1.37) - 40).astype(np.float32)
    return [(image, to_rgb) for image in (bytes_, fractions) for to_rgb in (True, False)]


def _arguments(*args: Any, **kwargs: Any) -> tuple[Any, Any, Any, bool] | None:
    """Return (img, mean, std, to_rgb), or None for a call that the original has to refuse."""

    def bind(img: Any, mean: Any, std: Any, to_rgb: Any = True) -> tuple[Any, Any, Any, bool]:
        return img, mean, std, bool(to_rgb)

    try:
        return bind(*args, **kwargs)
    except (TypeError, ValueError):  # wrong arguments; a to_rgb without a truth value
        return None
