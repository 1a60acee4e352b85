"""Loads the images of several cameras without interleaving them.

The known loaders stack the images along a last axis, cast the stack, and hand out its views: two
passes over memory, and images whose pixels lie six apart for everything behind. Here the loader's
own code runs with another ``np``, whose ``stack`` keeps the images apart.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any


class _Cameras:
    """Stands for the stack: what the loaders ask of it, and no more."""

    def __init__(self, images: list[Any]) -> None:
        self._images = images

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self._images[0].shape, len(self._images))

    def astype(self, dtype: Any) -> _Cameras:
        return _Cameras([image.astype(dtype) for image in self._images])

    def __getitem__(self, place: tuple[Any, int]) -> Any:
        return self._images[place[1]]


class _Numpy:
    """NumPy with another ``stack``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def stack(arrays: Any, axis: int = 0) -> Any:
        """Keep plain colour images of one shape and type apart; stack all others."""
        if axis == -1 and _are_cameras(arrays):
            return _Cameras(arrays)
        return np.stack(arrays, axis=axis)


def _are_cameras(arrays: Any) -> bool:
    return (
        type(arrays) is list
        and len(arrays) > 0
        and all(type(array) is np.ndarray and array.ndim == 3 for array in arrays)
        and len({(array.shape, array.dtype) for array in arrays}) == 1
        # One array twice would be one image: its two copies in a stack can be edited apart.
        and len({id(array) for array in arrays}) == len(arrays)
    )


def load(function: types.FunctionType, transform: Any, results: Any) -> Any:
    """Run a known loader; its ``results["img"]`` is a list of arrays that are each contiguous.

    Raises:
        Exception: what the loader raises.
    """
    names = {**function.__globals__, "np": _Numpy()}
    apart = types.FunctionType(function.__code__, names, function.__name__, closure=None)
    apart.__defaults__, apart.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return apart(transform, results)
