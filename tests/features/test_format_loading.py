"""IMNORMALIZE loads the images of several cameras apart, not interleaved: the same images."""

from __future__ import annotations

import legacy
import pytest

pytestmark = pytest.mark.legacy
legacy.need_mmcv_1()
pytest.importorskip("numba")
pytest.importorskip("mmdet.datasets.pipelines")

import applied as applying  # noqa: E402
import cv2  # noqa: E402
import formatting as own  # noqa: E402
import numpy as np  # noqa: E402
from mmdet.datasets.pipelines import Compose  # noqa: E402

from loongkit.features import imnormalize  # noqa: E402

KEEP = own.Kept


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Names of image files by what they hold."""
    folder = tmp_path_factory.mktemp("cameras")

    def written(name, pixels):
        path = str(folder / f"{name}.png")
        assert cv2.imwrite(path, pixels)
        return path

    first, second, third = (written(seed, own.image(37, 53, seed=seed)) for seed in range(3))
    wide = written("wide", own.image(37, 54))
    gray = written("gray", own.image(37, 53)[..., 0])
    deep = written("deep", own.image(37, 53, "uint16") * 100)
    alpha = written("alpha", np.dstack([own.image(37, 53), own.image(37, 53)[..., :1]]))
    return {
        "three cameras": [first, second, third],
        "one camera": [first],
        "one camera twice": [first, first],
        "no camera": [],
        "other sizes": [first, wide],
        "gray": [gray, gray],
        "gray among others": [first, gray],
        "16 bits": [deep, deep],
        "with transparency": [alpha, alpha],
        "a missing file": [first, str(folder / "missing.png")],
        "a number for a name": [first, 5],
    }


WHAT = [
    "three cameras",
    "one camera",
    "one camera twice",
    "no camera",
    "other sizes",
    "gray",
    "gray among others",
    "16 bits",
    "with transparency",
    "a missing file",
    "a number for a name",
]
#: What follows the loader, and whether that lets the images be loaded apart.
BEHIND = {
    "distorted": (lambda: [own.PhotoMetricDistortionMultiViewImage(), *rest()], True),
    "normalised": (lambda: rest(), True),
    "scaled": (lambda: [own.RandomScaleImageMultiViewImage()], True),
    "filtered first": (lambda: [own.InstanceNameFilter(), *rest()], True),
    "seen first": (lambda: [KEEP(), *rest()], False),
    "formatted": (lambda: [own.DefaultFormatBundle3D()], False),
    "nothing": (list, False),
}


def rest():
    return own.cameras_pipeline()


def pipeline(behind: str, **options) -> Compose:
    return Compose([own.LoadMultiViewImageFromFiles(**options), *BEHIND[behind][0]()])


def results(files, what: str) -> dict:
    return {"img_filename": files[what], "labels": [0, 1, 2]}


def outcomes(files) -> dict:
    return {
        (what, behind, as_float): own.outcome(
            pipeline(behind, to_float32=as_float), results(files, what)
        )
        for what in WHAT
        for behind in BEHIND
        for as_float in (True, False)
    }


def test_every_pipeline_has_the_results_that_it_has_without(files):
    stock = outcomes(files)
    with own.knowing(), applying.applied(imnormalize, late=True) as feature:
        found = outcomes(files)
        assert feature.record.state == "patched"
    for (what, behind, as_float), wanted in stock.items():
        ours = found[what, behind, as_float]
        if BEHIND[behind][1]:
            ours, wanted = without_order(ours), without_order(wanted)
        assert ours == wanted, (what, behind, as_float)
    assert without_order(stock["three cameras", "distorted", True])[0][0] == "dict"


def without_order(value):
    """The description without whether arrays are contiguous: that of images left by a failure."""
    if isinstance(value, tuple) and value[:1] == ("array",):
        return "array", value[1][:3], *value[2:]
    if isinstance(value, (tuple, list)):
        return type(value)(without_order(part) for part in value)
    return value


class Watched(own.PhotoMetricDistortionMultiViewImage):
    """Notes the strides that the known class is given; its own body is not known."""

    def __call__(self, results):
        self.contiguous = [one.flags.c_contiguous for one in results["img"]]
        return super().__call__(results)


@pytest.fixture
def at_work():
    with own.knowing(), applying.applied(imnormalize, late=True) as feature:
        yield feature


def strides_behind(loader, files, monkeypatch) -> list[bool]:
    """Whether the images are contiguous that a known transform gets from the loader."""
    seen = []
    names = own.NormalizeMultiviewImage.__call__.__globals__
    real = names["mmcv"].imnormalize.__wrapped__

    from loongkit.images import planar

    def normalized(self, image, *rest):
        seen.append(image.flags.c_contiguous)
        return real(image, *rest)

    monkeypatch.setattr(planar.Stage, "normalized", normalized)
    Compose([loader, *rest()])(results(files, "three cameras"))
    return seen


@pytest.mark.parametrize("as_float", [True, False])
def test_the_images_are_apart(as_float, at_work, files, monkeypatch):
    loader = own.LoadMultiViewImageFromFiles(to_float32=as_float)
    assert strides_behind(loader, files, monkeypatch) == [True] * 3


class Loader(own.LoadMultiViewImageFromFiles):
    """Has a body of its own."""

    def __call__(self, results):
        return super().__call__(results)


def test_an_unknown_loader_is_left_alone(at_work, files, monkeypatch):
    assert strides_behind(Loader(True), files, monkeypatch) == [False] * 3


def test_a_loader_that_another_feature_wraps_is_called_through_the_wrapper(
    at_work, files, monkeypatch
):
    called = []

    def wrapper(original, *args):
        called.append(True)
        return original(*args)

    at_work.patcher.wrap(own.LoadMultiViewImageFromFiles, "__call__", wrapper)
    loader = own.LoadMultiViewImageFromFiles(True)
    assert strides_behind(loader, files, monkeypatch) == [False] * 3
    assert called == [True]


def test_whoever_is_not_known_sees_interleaved_images_as_ever(at_work, files):
    kept, watched = KEEP(), Watched()
    Compose([own.LoadMultiViewImageFromFiles(True), kept])(results(files, "three cameras"))
    assert [contiguous for _, contiguous, _ in kept.seen] == [False] * 3
    Compose([own.LoadMultiViewImageFromFiles(True), watched])(results(files, "three cameras"))
    assert watched.contiguous == [False] * 3


def test_editing_one_image_leaves_the_others_alone(at_work, files):
    """The distortion edits in place what the loader gave it."""
    found = pipeline("distorted", to_float32=True)(results(files, "one camera twice"))
    assert found["img"].data.shape[0] == 2
