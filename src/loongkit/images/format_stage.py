"""Runs the last transforms of a pipeline in one memory layout, that of the model's input.

The transforms are the framework's own, and their code runs as ever. What changes is what the
functions that they call find: see ``loongkit.images.planar``. A pipeline's ``Compose`` is looked
at once; where a transform in a run is not known, whatever it is, everything runs as without us.
"""

from __future__ import annotations

import sys
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from loongkit.activation import logs, seams, states
from loongkit.images import format_known, format_loading, jit, planar, registries
from loongkit.images.format_runs import Planner, room_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from loongkit.activation.patching import Patcher
    from loongkit.images.format_runs import Plan, Run


def _like(self, data): ...  # type: ignore[no-untyped-def]


class FormatStage:
    """The stage at work in one process."""

    def __init__(self, patcher: Patcher) -> None:
        self._patcher = patcher
        self._composes: set[type] = set()
        self._planner = Planner()
        self._plans: weakref.WeakKeyDictionary[Any, Plan] = weakref.WeakKeyDictionary()
        self._memory = planar.Memory()
        self._kernels: Any = None

    def watch(self, module: ModuleType) -> None:
        """Look at each Compose that a registry is given; ``module`` is ``mmcv.utils.registry``.

        Raises:
            Skip: numba is missing, or registering works in another way.
        """
        reason = jit.missing()
        if reason is not None:
            self._patcher.skip(reason)
        registries.watch(module, self._patcher, self._consider)

    def wrap_padding(self, module: ModuleType) -> None:
        """Let ``mmcv.impad`` take images with room; ``module`` is ``mmcv.image.geometric``.

        Raises:
            Skip: the function is missing.
        """
        self._patcher.wrap(module, "impad", _impad)

    def compile(self) -> None:
        """Compile the kernels where there is a Compose that may need them.

        Raises:
            Exception: whatever numba raises where it can't compile here.
        """
        if self._composes:
            jit.kernels_of("format").kernels()

    def _consider(self, cls: type) -> None:
        try:
            if cls not in self._composes and format_known.is_compose(cls):
                self._composes.add(cls)
                self._patcher.on_undo(lambda: self._composes.discard(cls))
                self._patcher.wrap(cls, "__call__", self._compose, like=_like)
        except states.StrictError:
            raise
        except Exception as error:
            logs.debug(f"imnormalize: {cls!r} is left alone, it can't be judged: {error!r}")

    def _compose(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the transforms of a pipeline in turn, as its own method does."""
        plan = self._plan(args[0]) if len(args) == 2 and not kwargs else None
        if plan is None:
            return original(*args, **kwargs)
        data, index = args[1], 0
        while index < len(plan.transforms):
            run = plan.runs.get(index)
            if run is not None:
                data = self._run(run, plan, data)
                index = run.last
            elif index in plan.loads:
                data = self._load(plan.transforms[index], data)
            else:
                data = plan.transforms[index](data)
            if data is None:
                return None
            index += 1
        return data

    def _plan(self, compose: Any) -> Plan | None:
        """Return the plan of a pipeline, or None where the original is to run it."""
        try:
            transforms = compose.transforms
            plan = self._plans.get(compose)
            if plan is None or not plan.fits(transforms):
                if type(transforms) is not list:
                    return None
                plan = self._plans[compose] = self._planner.plan(transforms)
            return plan if plan.runs or plan.loads else None
        except Exception as error:  # what a user's own Compose or transforms may come up with
            logs.debug(f"imnormalize: a pipeline is left alone, it can't be judged: {error!r}")
            return None

    def _load(self, transform: Any, data: Any) -> Any:
        found = self._planner.known(transform)
        if found is None or seams.live_seam(type(transform), "__call__") is not None:
            return transform(data)
        return format_loading.load(found.call, transform, data)

    def _run(self, run: Run, plan: Plan, data: Any) -> Any:
        """Call the transforms of a run; whoever gets the results sees ordinary arrays."""
        stage = self._stage(run, data)
        results, done = data, False
        try:
            for index in range(run.first, run.last + 1):
                writes = stage is not None and run.normalizes and index == run.first
                with planar.activated(stage) if stage and writes else nullcontext():
                    results = plan.transforms[index](results)
                if results is None:
                    break
            done = True
            return results
        finally:
            if stage is not None:
                planar.withdraw(results if done and results is not None else data)

    def _stage(self, run: Run, data: Any) -> planar.Stage | None:
        """Return the stage for a sample, or None where the run is not to have one; never raises."""
        try:
            if not _has_own_images(data) or not _are_mmcvs():
                return None
            images = data["img"]
            kernels = self._ready()
            if kernels is None or not _are_alike(images, kernels, run.normalizes):
                return None
            height, width, _ = _first(images).shape
            room = room_for(run.pad, height, width)
            if room is None:
                return None
            stage = planar.Stage(images, room, kernels, self._patcher, self._memory)
            if not run.normalizes:
                data["img"] = stage.lay_out()
            return stage
        except Exception as error:
            self._patcher.give_up(f"{planar.FAILED}: {type(error).__name__}: {error}")
            return None

    def _ready(self) -> Any:
        """Load, compile and check the kernels at the first call.

        Raises:
            RuntimeError: they don't compute what the kernel of the whole image does.
            Exception: whatever numba raises where it can't compile here.
        """
        if self._kernels is None:
            kernels, whole = jit.kernels_of("format"), jit.kernels_of("normalize")
            kernels.kernels()
            _check(kernels, whole)
            self._kernels = kernels
        return self._kernels


def _impad(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if len(args) == 1 and isinstance(args[0], planar.Planar):
        found = planar.padded(original, args[0], kwargs)
        if found is not None:
            return found
    return original(*args, **kwargs)


def _has_own_images(data: Any) -> bool:
    """Tell whether the images under "img" are all that a transform would normalise and pad."""
    return type(data) is dict and "img" in data and data.get("img_fields", ["img"]) == ["img"]


def _first(images: Any) -> Any:
    return images[0] if isinstance(images, list) else images


def _are_alike(images: Any, kernels: Any, normalizes: bool) -> bool:
    """Tell whether the kernels take the images, and all have one shape."""
    if type(images) is not list:
        images = [images]
    return (
        len(images) > 0
        and all(kernels.covers(image) for image in images)
        and len({image.shape for image in images}) == 1
        and (normalizes or all(image.dtype == np.float32 for image in images))
    )


def _are_mmcvs() -> bool:
    """Tell whether nobody else stands between the transforms and mmcv's functions."""
    mmcv = sys.modules.get("mmcv")
    for home, name in (("photometric", "imnormalize"), ("geometric", "impad")):
        module = sys.modules.get(f"mmcv.image.{home}")
        seam = None if module is None else seams.live_seam(module, name)
        if seam is None or not seam.in_place or getattr(mmcv, name, None) is not seam.dispatcher:
            return False
    geometric = sys.modules.get("mmcv.image.geometric")
    to_multiple = getattr(mmcv, "impad_to_multiple", None)
    return getattr(to_multiple, "__globals__", None) is vars(geometric)


def _check(kernels: Any, whole: Any) -> None:
    mean = np.array([123.675, 116.28, 103.53], np.float32)
    std = np.array([58.395, 57.12, 57.375], np.float32)
    ramp = np.arange(16 * 49 * 3, dtype=np.uint32).reshape(16, 49, 3) * 7 % 256
    for image in (ramp.astype(np.uint8), (ramp * np.float32(1.37) - 40).astype(np.float32)):
        planes = np.zeros((3, 17, 64), np.float32)
        for to_rgb in (True, False):
            expected = whole.normalize(image, mean, std, to_rgb).transpose(2, 0, 1)
            kernels.normalize(planes, image, mean, std, to_rgb)
            if not np.array_equal(planes[:, :16, :49], expected):
                raise RuntimeError("the kernels for planes do not give the same bits")
