"""MMENGINE_DATA_PREFETCH: how data samples are pinned, and which of their tensors are copied."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

pytestmark = pytest.mark.modern
pytest.importorskip("torch")
pytest.importorskip("mmengine")

import torch  # noqa: E402
from applied import applied  # noqa: E402
from fake_gpu import RecordingAccelerator  # noqa: E402
from mmengine.structures import BaseDataElement, InstanceData, PixelData  # noqa: E402
from mmengine_runs import Boxes, make_sample, plain  # noqa: E402

from loongkit.activation import logs  # noqa: E402
from loongkit.data.prefetch_cast import CastLeaves  # noqa: E402
from loongkit.features import mmengine_data_prefetch  # noqa: E402


@pytest.fixture
def device(monkeypatch):
    return RecordingAccelerator.installed(monkeypatch)


@pytest.fixture
def feature(device):
    with applied(mmengine_data_prefetch) as made:
        yield made


def sample() -> Any:
    return make_sample(3, torch.rand(1))["data_samples"]


def test_the_tensors_of_a_sample_are_pinned(device, feature):
    element = sample()
    found = element.pin_memory()
    assert found is not element and type(found) is type(element)
    assert all(map(device.has_pinned, [found.mask, found.gt.labels, found.gt.boxes.tensor]))
    assert plain(found) == plain(element)
    assert found.keys() == element.keys() and found.metainfo == element.metainfo
    assert found.note is element.note
    assert not feature.marks, "the star is for copies that were used"


def test_the_sample_that_was_given_stays_as_it_was(device, feature):
    element = sample()
    before = {name: vars(element)[name] for name in vars(element)}
    boxes, labels = element.gt.boxes, element.gt.labels
    found = element.pin_memory()
    assert vars(element) == before
    assert element.gt.boxes is boxes and element.gt.labels is labels
    found.more = torch.ones(1)
    found.set_metainfo({"other": 1})
    assert "more" not in element and "other" not in element


@pytest.mark.parametrize(
    "element",
    [
        PixelData(sem_seg=torch.ones(1, 4, 4)),
        InstanceData(labels=torch.ones(3), names=["a", "b", "c"]),
        BaseDataElement(inner=BaseDataElement(deep=torch.ones(2))),
    ],
    ids=["pixels", "instances", "nested"],
)
def test_the_kinds_of_elements(device, feature, element):
    found = element.pin_memory()
    assert plain(found) == plain(element) and type(found) is type(element)
    assert len(device.sources) == 1


def test_pinned_samples_are_samples(device, feature):
    found = sample().pin_memory()
    for one in (
        copy.deepcopy(found),
        pickle.loads(pickle.dumps(found)),
        found.to("cpu"),
        found.new(),
    ):
        assert plain(one) == plain(found)
    assert found.to(torch.float64).mask.dtype is torch.float64


def test_a_sample_without_tensors_comes_back_itself(device, feature):
    element = BaseDataElement(metainfo={"a": 1}, text="b")
    assert element.pin_memory() is element


def test_without_an_accelerator_nothing_is_done(device, feature):
    device.available = False
    element = sample()
    assert element.pin_memory() is element


def test_a_failure_costs_the_pinning_and_not_the_job(device, feature, monkeypatch):
    warned: list[str] = []
    monkeypatch.setattr(logs, "warning", warned.append)
    device.failure = RuntimeError("CUDA error: out of memory")
    elements = [BaseDataElement(a=torch.ones(2)) for _ in range(3)]
    assert all(element.pin_memory() is element for element in elements)
    assert len(warned) == 1 and "LOONGKIT_MMENGINE_DATA_PREFETCH=0" in warned[0]


def test_a_pin_memory_that_is_there_already_stays(device, monkeypatch):
    monkeypatch.setattr(BaseDataElement, "pin_memory", lambda self: "theirs", raising=False)
    with applied(mmengine_data_prefetch):
        assert sample().pin_memory() == "theirs"
    assert sample().pin_memory() == "theirs"


def test_taken_out_the_method_is_gone(device):
    with applied(mmengine_data_prefetch):
        assert callable(BaseDataElement.pin_memory)
    assert not hasattr(BaseDataElement, "pin_memory")


def test_the_tensors_that_casting_copies():
    element = sample()
    image = torch.rand(2)
    batch = {
        "inputs": [image, (image,)],
        "data_samples": [element],
        "text": "words",
        "none": None,
        "foreign": Boxes(torch.rand(1)),  # outside of an element cast_data leaves it where it is
    }
    found = list(CastLeaves(BaseDataElement)(batch))
    wanted = [image, image, element.mask, element.gt.labels, element.gt.boxes.tensor]
    assert sorted(map(id, found)) == sorted(map(id, wanted))


def test_a_batch_in_torchs_own_pin_thread(device, feature):
    from torch.utils.data._utils.pin_memory import pin_memory

    batch = {"data_samples": [sample()]}
    found = pin_memory(batch)
    assert device.has_pinned(found["data_samples"][0].mask)
