"""Where the format stage steps back: unknown code, replaced functions, and its own faults."""

from __future__ import annotations

import importlib

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
from mmdet.datasets import pipelines as mmdet  # noqa: E402
from mmdet.datasets.pipelines import Compose  # noqa: E402
from mmseg.datasets import pipelines as mmseg  # noqa: E402

from loongkit.features import imnormalize  # noqa: E402


@pytest.fixture
def at_work():
    with own.knowing(), applying.applied(imnormalize, late=True) as feature:
        yield feature


views = own.views


class MyPad(mmdet.Pad):
    """Has another method than the known class."""

    def _pad_img(self, results):
        self.contiguous = results["img"].flags.c_contiguous
        super()._pad_img(results)


class Renamed(mmdet.Pad):
    """Adds nothing to the known class but its name and a docstring."""


def same_as_stock(transforms) -> None:
    compose = Compose(transforms)
    wanted = own.outcome(
        lambda results: Compose.__call__.__wrapped__(compose, results), own.single()
    )
    assert own.outcome(compose, own.single()) == wanted


def test_an_edited_subclass_is_not_known(views):
    pad = MyPad(size_divisor=32)
    same_as_stock([mmdet.Normalize(**own.NORM), pad, mmdet.DefaultFormatBundle()])
    assert pad.contiguous and [view.room for view in views] != []


def test_a_subclass_without_code_of_its_own_is_known(views):
    pads = [Renamed(size_divisor=32), mmdet.Pad(size_divisor=32)]
    for pad in pads:
        Compose([mmdet.Normalize(**own.NORM), pad, mmdet.DefaultFormatBundle()])(own.single())
    assert len(views) == 2 and all(view.shape == (37, 53, 3) for view in views)


def test_a_method_that_was_replaced_on_the_object(views):
    pad = mmdet.Pad(size_divisor=32)
    seen = []
    pad._pad_seg = lambda results: seen.append(results["img"].flags.c_contiguous)
    same_as_stock([mmdet.Normalize(**own.NORM), pad, mmdet.DefaultFormatBundle()])
    assert seen == [True, True]


def test_a_method_that_is_replaced_on_the_class_later(views, monkeypatch):
    pipeline = Compose(own.mmdet_pipeline())
    pipeline(own.single())
    seen = []
    original = mmdet.Pad._pad_masks
    monkeypatch.setattr(
        mmdet.Pad,
        "_pad_masks",
        lambda self, results: (
            seen.append(results["img"].flags.c_contiguous) or original(self, results)
        ),
    )
    pipeline(own.single())
    assert seen == [True]
    monkeypatch.undo()
    views_before = len(views)
    pipeline(own.single())
    assert seen == [True] and views_before >= 1


def test_a_pipeline_that_is_changed_later(views):
    pipeline, kept = Compose(own.mmdet_pipeline()), own.Kept()
    pipeline(own.single())
    pipeline.transforms.insert(1, kept)
    pipeline(own.single())
    assert [(kind, contiguous) for kind, contiguous, _ in kept.seen] == [(np.ndarray, True)]


REPLACED = ["imnormalize", "impad", "impad_to_multiple"]


@pytest.mark.parametrize("name", REPLACED)
def test_a_function_of_mmcv_that_the_user_replaced(name, views, monkeypatch):
    seen = []
    original = getattr(mmcv, name)

    def users(image, *args, **kwargs):
        found = original(image, *args, **kwargs)
        seen.extend([type(image), type(found), found.flags.c_contiguous])
        return found

    monkeypatch.setattr(mmcv, name, users)
    transforms = [
        mmdet.Normalize(**own.NORM),
        mmdet.Pad(size_divisor=32),
        mmdet.DefaultFormatBundle(),
    ]
    if name == "impad":
        transforms[1] = mmdet.Pad(size=(64, 64))
    same_as_stock(transforms)
    assert seen == [np.ndarray, np.ndarray, True] * 2 and not views


def test_the_source_of_an_unknown_class_decides_and_not_its_name(views):
    names = {"mmdet": mmdet}
    exec("class Pad(mmdet.Pad):\n    def __call__(self, results): return results", names)
    same_as_stock([mmdet.Normalize(**own.NORM), names["Pad"](size_divisor=32), own.Kept()])
    assert not views


def test_nested_pipelines(views):
    inner = Compose(own.mmdet_pipeline())
    same_as_stock([inner, mmdet.Collect(keys=["img"], meta_keys=["pad_shape"])])
    assert len(views) == 2  # the outer one is called in both ways, the inner one is ours


def test_composes_with_other_calls(at_work, views):
    pipeline = Compose(own.mmdet_pipeline())
    assert own.described(pipeline(data=own.single())) == own.described(pipeline(own.single()))
    with pytest.raises(TypeError):
        pipeline()
    pipeline.transforms = tuple(pipeline.transforms)
    assert own.described(pipeline(own.single())) == own.described(
        Compose(own.mmdet_pipeline())(own.single())
    )


class Picky(Compose):
    """A Compose that can't be a key."""

    __hash__ = None


def test_a_compose_that_is_not_hashable(views):
    found = own.outcome(Picky(own.mmdet_pipeline()), own.single())
    assert found == own.outcome(Compose(own.mmdet_pipeline()), own.single())
    assert len(views) == 1


def test_the_random_numbers_are_left_alone(at_work):
    np.random.seed(3)
    wanted = np.random.get_state()[1].tobytes()
    Compose(own.mmdet_pipeline())(own.single())
    assert np.random.get_state()[1].tobytes() == wanted


FAULTS = {
    "the kernels give other bits": (
        "kernels.format.normalize",
        lambda real: lambda planes, *rest: (real(planes, *rest), planes.__iadd__(1)),
    ),
    "the kernels can't be compiled": ("kernels.format.kernels", lambda real: lambda: 1 / 0),
    "the images can't be judged": ("images.format_stage._are_alike", lambda real: failing),
    "memory can't be had": ("images.planar._in_slot", lambda real: failing),
    "the images can't be copied": ("kernels.format.copy", lambda real: failing),
}
#: Images that are normalised into planes, and such that are normalised first and then copied.
PIPELINES = {"normalises": (), "copies": (own.Kept(),)}


def failing(*args):
    raise MemoryError("there is none")


@pytest.mark.parametrize("kind", PIPELINES)
@pytest.mark.parametrize("fault", FAULTS)
def test_it_steps_aside_where_it_fails_and_the_original_runs(fault, kind, monkeypatch):
    place, change = FAULTS[fault]
    transforms = own.mmdet_pipeline()
    transforms[1:1] = PIPELINES[kind]  # behind the normalising
    pipeline = Compose(transforms)
    stock = own.outcome(pipeline, own.single())
    home, _, name = f"loongkit.{place}".rpartition(".")
    module = importlib.import_module(home)
    with own.knowing(), applying.applied(imnormalize, late=True) as feature:
        monkeypatch.setattr(module, name, change(getattr(module, name)))
        for _ in range(2):
            assert own.outcome(pipeline, own.single()) == stock
        if (kind, name) != ("normalises", "copy"):
            assert feature.record.state == "failed"
            assert "format stage has failed" in feature.record.reason
            assert_nothing_is_left()
        assert own.outcome(pipeline, own.single()) == stock
    assert_nothing_is_left()


def assert_nothing_is_left():
    for function in (Compose.__call__, mmseg.Compose.__call__, mmcv.impad, mmcv.imnormalize):
        assert not hasattr(function, "__wrapped__")
