"""The format stage of IMNORMALIZE: pipelines of mmcv 1.x give what they give without it."""

from __future__ import annotations

import legacy
import pytest

pytestmark = pytest.mark.legacy
legacy.need_mmcv_1()
pytest.importorskip("numba")
pytest.importorskip("mmdet.datasets.pipelines")
pytest.importorskip("mmseg.datasets.pipelines")

import applied as applying  # noqa: E402
import formatting as own  # noqa: E402
import mmcv  # noqa: E402
import numpy as np  # noqa: E402
from mmdet.core import BitmapMasks  # noqa: E402
from mmdet.datasets import pipelines as mmdet  # noqa: E402
from mmdet.datasets.pipelines import Compose  # noqa: E402
from mmseg.datasets import pipelines as mmseg  # noqa: E402
from mmseg.datasets.pipelines import formatting  # noqa: E402

from loongkit.features import imnormalize  # noqa: E402


def masked():
    masks = BitmapMasks(np.ones((2, 37, 53), np.uint8), 37, 53)
    fields = {"img_fields": ["img"], "mask_fields": ["gt_masks"], "seg_fields": ["gt_semantic_seg"]}
    seg = np.full((37, 53), 3, np.uint8)
    return own.single(**fields, gt_masks=masks, gt_semantic_seg=seg, gt_labels=np.array([1, 2]))


def with_gray():
    return {"img": own.image(37, 53)[..., 0]}


class Divided:
    """A user's own way to normalise."""

    def __call__(self, results):
        if "raw" not in results:
            results["img"] = mmcv.imnormalize(results["img"], np.zeros(3), np.ones(3) * 255)
        return results


#: The pipeline, the results that it is given, and how many images get into planes.
SINGLE = {
    "mmdet": (
        lambda: [
            mmdet.Normalize(**own.NORM),
            mmdet.Pad(size_divisor=32),
            mmdet.DefaultFormatBundle(),
        ],
        {
            "bytes": (own.single, 1),
            "floats": (lambda: own.single("float32"), 1),
            "doubles": (lambda: own.single("float64"), 0),
            "16 bits": (lambda: own.single("int16"), 0),
            "gray": (with_gray, 0),
            "four channels": (lambda: {"img": np.dstack([own.image(9, 9)] * 2)[..., :4]}, 0),
            "flipped": (lambda: {"img": own.image(37, 53)[:, ::-1]}, 1),
            "read-only": (lambda: {"img": np.broadcast_to(own.image(1, 53), (37, 53, 3))}, 1),
            "one pixel": (lambda: own.single(shape=(1, 1)), 1),
            "one row": (lambda: own.single(shape=(1, 96)), 1),
            "no padding needed": (lambda: own.single(shape=(32, 64)), 1),
            "empty": (lambda: {"img": own.image(4, 4)[:0]}, 0),
            "no image": (lambda: {"other": 1}, 0),
            "no dict": (lambda: [1], 0),
            "masks and maps": (masked, 1),
            "one field": (lambda: own.single(img_fields=["img"]), 1),
            "two fields": (
                lambda: own.single(img_fields=["img", "two"], two=own.image(37, 53, seed=5)),
                0,
            ),
        },
    ),
    "no swap": (
        lambda: [
            mmdet.Normalize(**own.NORM, to_rgb=False),
            mmdet.Pad(size_divisor=32),
            mmdet.DefaultFormatBundle(),
        ],
        {"bytes": (own.single, 1), "floats": (lambda: own.single("float32"), 1)},
    ),
    "a fixed size and a colour": (
        lambda: [
            mmdet.Normalize([1, 2, 3], [4, -5, 6.5]),
            mmdet.Pad(size=(50, 60), pad_val={"img": (1.5, 2, 3.3)}),
            mmdet.DefaultFormatBundle(),
        ],
        {
            "smaller": (own.single, 1),
            "larger": (lambda: own.single(shape=(70, 61)), 1),
            "larger one way": (lambda: own.single(shape=(40, 80)), 1),
        },
    ),
    "one number for the colour": (
        lambda: [
            mmdet.Normalize(**own.NORM),
            mmdet.Pad(size=(50, 60), pad_val={"img": 114.0}),
            mmdet.DefaultFormatBundle(),
        ],
        {"bytes": (own.single, 1)},
    ),
    "no colour at all": (
        lambda: [
            mmdet.Normalize(**own.NORM),
            mmdet.Pad(size=(50, 60), pad_val={"img": "red"}),
            mmdet.DefaultFormatBundle(),
        ],
        {"bytes": (own.single, 1)},
    ),
    "too few colours": (
        lambda: [
            mmdet.Normalize(**own.NORM),
            mmdet.Pad(size=(50, 60), pad_val={"img": (1, 2)}),
            mmdet.DefaultFormatBundle(),
        ],
        {"bytes": (own.single, 1)},
    ),
    "a square": (
        lambda: [
            mmdet.Normalize(**own.NORM),
            mmdet.Pad(pad_to_square=True),
            mmdet.DefaultFormatBundle(),
        ],
        {"bytes": (own.single, 1), "upright": (lambda: own.single(shape=(60, 41)), 1)},
    ),
    "a size that is no size": (
        lambda: [
            mmdet.Normalize(**own.NORM),
            mmdet.Pad(size=(50.5, 60)),
            mmdet.DefaultFormatBundle(),
        ],
        {"bytes": (own.single, 0)},
    ),
    "no padding": (
        lambda: [mmdet.Normalize(**own.NORM), mmdet.DefaultFormatBundle()],
        {"bytes": (own.single, 1)},
    ),
    "no normalising": (
        lambda: [mmdet.Pad(size_divisor=32), mmdet.DefaultFormatBundle()],
        {"bytes": (own.single, 0), "floats": (lambda: own.single("float32"), 0)},
    ),
    "normalised by a user's transform": (
        lambda: [Divided(), mmdet.Pad(size_divisor=32), mmdet.DefaultFormatBundle()],
        {"bytes": (own.single, 1), "floats": (lambda: own.single("float32"), 1)},
    ),
    "formatting alone": (
        lambda: [Divided(), mmdet.DefaultFormatBundle()],
        {
            "floats": (lambda: own.single("float32"), 1),
            "flipped": (lambda: {"img": own.image(37, 53, "float32")[::-1, ::-1]}, 1),
            "doubles": (lambda: {"img": own.image(37, 53, "float64"), "raw": True}, 0),
            "flipped and raw": (
                lambda: {"img": own.image(37, 53, "float32")[::-1, ::-1], "raw": True},
                1,
            ),
        },
    ),
    "two paddings": (
        lambda: [
            mmdet.Normalize(**own.NORM),
            mmdet.Pad(size_divisor=32),
            mmdet.Pad(size=(99, 99)),
            mmdet.DefaultFormatBundle(),
        ],
        {"bytes": (own.single, 1)},
    ),
    "for testing": (
        lambda: [
            mmdet.Normalize(**own.NORM),
            mmdet.Pad(size_divisor=32),
            mmdet.ImageToTensor(keys=["img"]),
            mmdet.Collect(keys=["img"], meta_keys=["pad_shape", "img_norm_cfg"]),
        ],
        {"bytes": (own.single, 1), "gray": (with_gray, 0)},
    ),
    "a tensor of something else": (
        lambda: [
            mmdet.Normalize(**own.NORM),
            mmdet.Pad(size_divisor=32),
            mmdet.ImageToTensor(keys=["two"]),
        ],
        {"bytes": (lambda: own.single(two=own.image(5, 5)), 1)},
    ),
    "a tensor of something that is missing": (
        lambda: [mmdet.Normalize(**own.NORM), mmdet.ImageToTensor(keys=["two"])],
        {"bytes": (own.single, 1)},
    ),
    "mmseg": (
        lambda: [
            mmseg.Normalize(**own.NORM),
            mmseg.Pad(size=(64, 64), pad_val=7),
            formatting.DefaultFormatBundle(),
        ],
        {"bytes": (masked, 1), "floats": (lambda: own.single("float32"), 1)},
    ),
}


def multi(*middle, fmt=own.DefaultFormatBundle3D, **norm):
    return lambda: [
        own.NormalizeMultiviewImage(**own.NORM, **norm),
        *(make() for make in middle),
        fmt(),
        own.Collect3D(),
    ]


def pad_32():
    return own.PadMultiViewImage(size_divisor=32)


SEVERAL = {
    "cameras": (
        multi(pad_32),
        {
            "bytes": (own.several, 3),
            "floats": (lambda: own.several("float32"), 3),
            "interleaved": (lambda: own.several("float32", 6, interleaved=True), 6),
            "one camera": (lambda: own.several(count=1), 1),
            "other sizes": (
                lambda: {"img": [own.image(9, 9), own.image(9, 10)], "labels": [1]},
                0,
            ),
            "no camera": (lambda: {"img": [], "labels": [1]}, 0),
            "one of them gray": (
                lambda: {"img": [own.image(9, 9), own.image(9, 9)[..., 0]], "labels": [1]},
                0,
            ),
            "other types": (
                lambda: {"img": [own.image(9, 9), own.image(9, 9, "float32")], "labels": [1]},
                2,
            ),
            "the same one twice": (lambda: {"img": [own.image(9, 9)] * 2, "labels": [1]}, 2),
            "a tuple": (lambda: {"img": tuple(own.cameras(2, 9, 9)), "labels": [1]}, 0),
        },
    ),
    "without padding": (multi(), {"bytes": (own.several, 3)}),
    "a filter between": (multi(own.InstanceNameFilter, pad_32), {"bytes": (own.several, 3)}),
    "the base formats": (multi(pad_32, fmt=own.DefaultFormatBundle), {"bytes": (own.several, 3)}),
    "scaled": (
        multi(own.RandomScaleImageMultiViewImage, pad_32),
        {"bytes": (own.several, 3), "floats": (lambda: own.several("float32"), 3)},
    ),
    "a filter that fails": (
        multi(lambda: own.InstanceNameFilter(fails=True), pad_32),
        {"bytes": (own.several, 3)},
    ),
    "a filter that drops the sample": (
        multi(lambda: own.InstanceNameFilter(drops=True), pad_32),
        {"bytes": (own.several, 3)},
    ),
    "a filter that drops it after the padding": (
        multi(pad_32, lambda: own.InstanceNameFilter(drops=True)),
        {"bytes": (own.several, 3)},
    ),
}

ALL = {**SINGLE, **SEVERAL}
CASES = [(name, images) for name, (_, inputs) in ALL.items() for images in inputs]


@pytest.fixture(scope="module")
def stock():
    """The outcome of each case before the feature is applied."""
    found = {}
    for name, images in CASES:
        make, inputs = ALL[name]
        found[name, images] = own.outcome(Compose(make()), inputs[images][0]())
    return found


@pytest.fixture(scope="module")
def at_work(stock):
    with own.knowing(), applying.applied(imnormalize, late=True) as feature:
        yield feature


views = own.views


@pytest.mark.parametrize(("name", "images"), CASES)
def test_a_pipeline_has_the_results_that_it_has_without(name, images, stock, at_work, views):
    make, inputs = ALL[name]
    make_results, in_planes = inputs[images]
    pipeline, before = Compose(make()), at_work.marks
    for _ in range(2):
        views.clear()
        assert own.outcome(pipeline, make_results()) == stock[name, images]
        assert len(views) == in_planes
    assert (at_work.marks > before) >= bool(in_planes)
    assert at_work.record.state == "patched"


def test_nothing_is_copied_behind_the_planes(views):
    found = Compose(ALL["mmdet"][0]())(own.single())["img"].data
    assert found.data_ptr() == views[0].ctypes.data
    found = Compose(ALL["cameras"][0]())(own.several())["img"].data
    assert found.data_ptr() == views[1].ctypes.data


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", ["mmdet", "cameras"])
def test_a_transform_of_the_users_sees_what_it_sees_without(name, place, at_work, views):
    """It ends the run before it; what comes behind is still laid out once."""
    seen = []
    for run in (Compose.__call__.__wrapped__, Compose.__call__):
        kept, transforms = own.Kept(), ALL[name][0]()
        transforms.insert(place, kept)
        make = own.single if name == "mmdet" else own.several
        seen.append((kept.seen, own.described(run(Compose(transforms), make()))))
    assert seen[0] == seen[1]
    kinds = {(kind, contiguous) for kind, contiguous, _ in seen[0][0]}
    assert kinds == {(np.ndarray, True)}
    assert len(views) == (1 if name == "mmdet" else 3)
