"""Transforms of multi-camera pipelines, written for the tests from what they are to do.

They have the names under which such transforms are registered; their code is not that of any known
class, so a test that wants them known enters their fingerprints (``knowing``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import mmcv
import numpy as np
import pytest
import torch
from mmcv.parallel import DataContainer as DC
from mmdet.datasets import pipelines
from mmdet.datasets.pipelines import to_tensor
from numpy import random

from loongkit.images import format_known, planar
from loongkit.images.fingerprint import class_fingerprint


class LoadMultiViewImageFromFiles:
    """Hands out views of all cameras' images, stacked along a last axis."""

    def __init__(self, to_float32=False, color_type="unchanged"):
        self.to_float32 = to_float32
        self.color_type = color_type

    def __call__(self, results):
        names = results["img_filename"]
        stacked = np.stack([mmcv.imread(name, self.color_type) for name in names], axis=-1)
        if self.to_float32:
            stacked = stacked.astype(np.float32)
        results.update(filename=names, img=[stacked[..., i] for i in range(stacked.shape[-1])])
        for key in ("img_shape", "ori_shape", "pad_shape"):
            results[key] = stacked.shape
        return results


class PhotoMetricDistortionMultiViewImage:
    """Brightens at random, in place, and swaps channels."""

    def __call__(self, results):
        changed = []
        for image in results["img"]:
            assert image.dtype == np.float32, "float32 is needed"
            image += random.uniform(-32, 32)
            changed.append(image[..., random.permutation(3)] if random.randint(2) else image * 1)
        results["img"] = changed
        return results


class NormalizeMultiviewImage:
    """Normalises a list of images."""

    def __init__(self, mean, std, to_rgb=True):
        self.mean = np.array(mean, np.float32)
        self.std = np.array(std, np.float32)
        self.to_rgb = to_rgb

    def __call__(self, results):
        done = [mmcv.imnormalize(one, self.mean, self.std, self.to_rgb) for one in results["img"]]
        results["img"] = done
        results["img_norm_cfg"] = {"mean": self.mean, "std": self.std, "to_rgb": self.to_rgb}
        return results


class RandomScaleImageMultiViewImage:
    """Resizes a list of images to half their size."""

    def __call__(self, results):
        results["img"] = [
            mmcv.imresize(one, (one.shape[1] // 2, one.shape[0] // 2)) for one in results["img"]
        ]
        return results


class InstanceNameFilter:
    """Keeps the boxes of some classes, and looks at no image."""

    def __init__(self, keep=2, fails=False, drops=False):
        self.keep, self.fails, self.drops = keep, fails, drops

    def __call__(self, results):
        if self.fails:
            raise LookupError("no such class")
        results["labels"] = [label for label in results["labels"] if label < self.keep]
        return None if self.drops else results


class PadMultiViewImage:
    """Pads a list of images to a size, or to a multiple of some number."""

    def __init__(self, size=None, size_divisor=None, pad_val=0):
        self.size, self.size_divisor, self.pad_val = size, size_divisor, pad_val

    def __call__(self, results):
        if self.size is not None:
            done = [
                mmcv.impad(one, shape=self.size, pad_val=self.pad_val) for one in results["img"]
            ]
        else:
            done = [
                mmcv.impad_to_multiple(one, self.size_divisor, pad_val=self.pad_val)
                for one in results["img"]
            ]
        results["ori_shape"] = [one.shape for one in results["img"]]
        results["img"] = done
        results["pad_shape"] = [one.shape for one in done]
        return results


class DefaultFormatBundle:
    """Makes one tensor of a list of images, or of a single one."""

    def __call__(self, results):
        if "img" in results:
            images = results["img"]
            if isinstance(images, list):
                planes = np.stack([one.transpose(2, 0, 1) for one in images], axis=0)
            else:
                planes = images.transpose(2, 0, 1)
            results["img"] = DC(to_tensor(np.ascontiguousarray(planes)), stack=True)
        results["labels"] = DC(to_tensor(results["labels"]))
        return results


class DefaultFormatBundle3D(DefaultFormatBundle):
    """Counts the boxes before it does what its base does."""

    def __call__(self, results):
        results["boxes"] = len(results["labels"])
        return super().__call__(results)


class Collect3D:
    """Returns what the model gets."""

    def __call__(self, results):
        return {"img": results["img"], "meta": DC(sorted(results), cpu_only=True)}


#: The known ones, with their roles.
CLASSES = {
    LoadMultiViewImageFromFiles: format_known.LOAD,
    PhotoMetricDistortionMultiViewImage: format_known.REPLACE,
    NormalizeMultiviewImage: format_known.NORMALIZE,
    RandomScaleImageMultiViewImage: format_known.REPLACE,
    InstanceNameFilter: format_known.ASIDE,
    PadMultiViewImage: format_known.PAD,
    DefaultFormatBundle: format_known.FORMAT,
    DefaultFormatBundle3D: format_known.FORMAT,
}


@contextlib.contextmanager
def knowing(*classes: type) -> Iterator[None]:
    """Enter the classes, by default all, into the table of known ones, within the block."""
    kept = dict(format_known.BODIES)
    for cls in classes or CLASSES:
        body = class_fingerprint(cls)
        assert body
        format_known.BODIES[cls.__name__, body] = CLASSES[cls]
    try:
        yield
    finally:
        format_known.BODIES.clear()
        format_known.BODIES.update(kept)


def described(value: Any) -> Any:
    """Return all that tells a value of a pipeline's results from another."""
    if isinstance(value, DC):
        flags = (value.stack, value.padding_value, value.cpu_only, value.pad_dims)
        return "container", flags, described(value.data)
    if isinstance(value, torch.Tensor):
        kind = (type(value), str(value.dtype), tuple(value.shape), value.stride())
        offset = value.storage_offset()
        return "tensor", kind, offset, value.contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        kind = (type(value), str(value.dtype), value.shape, value.flags.c_contiguous)
        return "array", kind, value.flags.writeable, value.tobytes()
    if isinstance(value, dict):
        return "dict", [(key, described(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [described(one) for one in value]
    return type(value), repr(value)


def outcome(pipeline: Any, results: Any, seed: int = 0) -> Any:
    """What a pipeline returns or raises, what it left in the results, and the random state."""
    np.random.seed(seed)
    try:
        found = described(pipeline(results))
    except Exception as error:
        found = type(error), str(error)
    state = np.random.get_state()
    return found, described(results), state[1].tobytes(), state[2:]


def image(height: int, width: int, dtype: str = "uint8", seed: int = 0) -> Any:
    """An image of random pixels, 0 to 255."""
    pixels = np.random.default_rng(seed).uniform(0, 255, (height, width, 3))
    return pixels.astype(dtype)


def cameras(count: int, height: int, width: int, dtype: str = "uint8") -> list[Any]:
    """Images of several cameras, each of its own memory."""
    return [image(height, width, dtype, seed) for seed in range(count)]


def as_views(images: Sequence[Any]) -> list[Any]:
    """The same images as views of a stack."""
    stacked = np.stack(images, axis=-1)
    return [stacked[..., number] for number in range(len(images))]


#: What the pipelines of the tests normalise by.
NORM = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]}


class Kept:
    """A user's transform that keeps what it was given."""

    def __init__(self):
        self.seen = []

    def __call__(self, results):
        images = results["img"]
        for one in images if isinstance(images, list) else [images]:
            self.seen.append((type(one), one.flags.c_contiguous, described(one)))
        return results


def single(dtype="uint8", shape=(37, 53), **more):
    return {"img": image(*shape, dtype), **more}


def several(dtype="uint8", count=3, shape=(37, 53), interleaved=False, **more):
    images = cameras(count, *shape, dtype)
    images = as_views(images) if interleaved else images
    return {"img": images, "labels": [0, 1, 2], **more}


def mmdet_pipeline() -> list[Any]:
    """The end of the pipelines of mmdet 2: one image."""
    return [
        pipelines.Normalize(**NORM),
        pipelines.Pad(size_divisor=32),
        pipelines.DefaultFormatBundle(),
    ]


def cameras_pipeline() -> list[Any]:
    """The end of the pipelines of BEV models: a list of images."""
    return [
        NormalizeMultiviewImage(**NORM),
        PadMultiViewImage(size_divisor=32),
        DefaultFormatBundle3D(),
        Collect3D(),
    ]


@pytest.fixture
def views(at_work: Any) -> Iterator[list[Any]]:
    """The views that were handed out in the test."""
    with counting() as handed_out:
        yield handed_out


@contextlib.contextmanager
def counting() -> Iterator[list[Any]]:
    """Collect the views that stages hand out within the block."""
    handed_out: list[Any] = []
    view = planar.Stage._view

    def counted(self: Any, planes: Any) -> Any:
        handed_out.append(view(self, planes))
        return handed_out[-1]

    planar.Stage._view = counted
    try:
        yield handed_out
    finally:
        planar.Stage._view = view
