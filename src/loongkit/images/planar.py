"""Images that look like (height, width, 3) and lie in memory as planes.

A stage holds the memory for the images of one sample, in the layout that the model gets: planes of
the padded size. While it is active in a thread, ``imnormalize`` writes its result there and hands
out a view of it, with room for the padding. What comes behind finds its work done: ``impad`` takes
the view with the room, and a transpose, a stack and a cast to contiguous planes have nothing to
copy. Only code that is known sees such views; ``withdraw`` replaces those that are left.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from loongkit.activation.patching import Patcher

#: How the reason begins for which the feature is given up.
FAILED = "the format stage has failed"

_HERE = threading.local()


class Planar(np.ndarray):  # type: ignore[type-arg]
    """A view (height, width, 3) of float32 planes.

    ``room`` is the view of the whole planes, for an image that has not been padded yet. ``sample``
    is the array (images, 3, height, width) that it is a part of, where the pipeline has a list.
    """

    room: Planar | None
    sample: Any

    def __array_finalize__(self, origin: Any) -> None:
        self.room = None
        self.sample = getattr(origin, "sample", None)

    def __array_function__(self, func: Any, kinds: Any, args: Any, kwargs: Any) -> Any:
        """Return the sample for a stack of all its images in their order, as planes."""
        if func is np.stack and len(args) == 1 and not kwargs.get("axis") and set(kwargs) <= _AXIS:
            sample = self.sample
            if sample is not None and _are_the_planes_of(sample, args[0]):
                return sample
        return super().__array_function__(func, kinds, args, kwargs)


_AXIS = frozenset({"axis"})


def _are_the_planes_of(sample: Any, arrays: Any) -> bool:
    return (
        type(arrays) is list
        and len(arrays) == len(sample)
        and all(
            type(array) is Planar
            and array.shape == planes.shape
            and array.strides == planes.strides
            and array.dtype == planes.dtype
            and array.ctypes.data == planes.ctypes.data
            for array, planes in zip(arrays, sample, strict=True)
        )
    )


class Stage:
    """The planes of one sample's images, which are all of one size.

    ``images`` are the sources, a list or a single one; ``room`` is the (height, width) of the
    planes, at least that of the images; ``kernels`` is ``loongkit.kernels.format``; ``patcher`` is
    told where they have written an image, or failed; ``memory`` returns an empty float32 array of
    a shape.
    """

    def __init__(
        self,
        images: Any,
        room: tuple[int, int],
        kernels: Any,
        patcher: Patcher,
        memory: Callable[[tuple[int, ...]], Any],
    ) -> None:
        single = not isinstance(images, list)
        self._images = [images] if single else list(images)
        self._shape = self._images[0].shape
        self._room = room
        self._kernels = kernels
        self._patcher = patcher
        self._memory = memory
        self._single = single
        self._planes: Any = None
        self._written = 0

    def normalized(self, image: Any, mean: Any, std: Any, to_rgb: bool) -> Any:
        """Return the view of the image, normalised into the next planes; None: there are none."""
        if not self._expects(image):
            return None
        try:
            planes = self._next()
            self._kernels.normalize(planes, image, mean, std, to_rgb)
            return self._view(planes)
        except Exception as error:
            self._patcher.give_up(f"{FAILED}: {type(error).__name__}: {error}")
            return None

    def lay_out(self) -> Any:
        """Return the views of all images, copied into the planes: a list, or a single one.

        Raises:
            Exception: there is no memory for them.
        """
        views = []
        for image in list(self._images):
            planes = self._next()
            self._kernels.copy(planes, image)
            views.append(self._view(planes))
        return views[0] if self._single else views

    def _expects(self, image: Any) -> bool:
        """Tell whether this is the next of the images."""
        return self._written < len(self._images) and image is self._images[self._written]

    def _next(self) -> Any:
        if self._planes is None:
            count = () if self._single else (len(self._images),)
            planes = self._memory((*count, 3, *self._room))
            self._planes = planes[None] if self._single else planes
        planes = self._planes[self._written]
        self._images[self._written] = None  # the source is needed no more
        self._written += 1
        return planes

    def _view(self, planes: Any) -> Any:
        whole = planes.transpose(1, 2, 0).view(Planar)
        whole.sample = None if self._single else self._planes
        image = whole[: self._shape[0], : self._shape[1]]
        image.room = whole
        self._patcher.mark()
        return image


def active() -> Stage | None:
    """Return the stage that is active in this thread."""
    return getattr(_HERE, "stage", None)


@contextlib.contextmanager
def activated(stage: Stage) -> Iterator[None]:
    """Have ``imnormalize`` write into the stage, in this thread, within the block."""
    outer = active()
    _HERE.stage = stage
    try:
        yield
    finally:
        _HERE.stage = outer


def padded(impad: Callable[..., Any], image: Any, options: dict[str, Any]) -> Any:
    """Return what ``impad(image, **options)`` does, without a copy; None where there is no room.

    ``impad`` is mmcv's own, which is asked for the colour of the border.

    Raises:
        Exception: what mmcv's raises for the options.
    """
    whole, shape = image.room, options.get("shape")
    if (
        whole is None
        or not set(options) <= {"shape", "pad_val"}
        or not isinstance(shape, (tuple, list))
        or len(shape) != 2
    ):
        return None
    height, width, _ = image.shape
    if (max(shape[0], height), max(shape[1], width)) != whole.shape[:2]:
        return None
    colour = impad(np.zeros((1, 1, 3), np.float32), **{**options, "shape": (1, 2)})[0, 1]
    np.asarray(whole)[height:] = colour
    np.asarray(whole)[:height, width:] = colour
    image.room = None
    return whole


def withdraw(results: Any) -> None:
    """Put ordinary arrays of the same values in the place of all views in a pipeline's results."""
    if not isinstance(results, dict):
        return
    images = results.get("img")
    if isinstance(images, Planar):
        results["img"] = np.array(images, order="C", subok=False)
    elif isinstance(images, list) and any(isinstance(image, Planar) for image in images):
        results["img"] = [
            np.array(image, order="C", subok=False) if isinstance(image, Planar) else image
            for image in images
        ]


class Memory:
    """Memory for the planes of samples: a data worker's slots where there are some, else new.

    Slots are reserved for a whole batch of one shape, and so only asked for where a sample has the
    shape of the one before it.
    """

    def __init__(self) -> None:
        self._last: tuple[int, ...] = ()

    def __call__(self, shape: tuple[int, ...]) -> Any:
        """Return an empty C-contiguous float32 array."""
        same, self._last = shape == self._last, shape
        planes = _in_slot(shape) if same else None
        return np.empty(shape, np.float32) if planes is None else planes


def _in_slot(shape: tuple[int, ...]) -> Any:
    slots = sys.modules.get("loongkit.data.slots")  # loaded where a feature has put slots to use
    worker = None if slots is None else slots.current()
    return None if worker is None else worker.item(shape, np.float32)
