"""DATA_CONTAINER on the real mmcv 1.x: its containers, and torch's loaders with its collate."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings
from typing import Any

import legacy
import pytest

pytestmark = pytest.mark.legacy
legacy.need_mmcv_1()

import torch  # noqa: E402
from applied import applied  # noqa: E402
from fake_gpu import FakeGpu, RecordingAccelerator  # noqa: E402
from mmcv.parallel import DataContainer, collate  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from loongkit.features import data_container  # noqa: E402


@pytest.fixture
def device(monkeypatch):
    return RecordingAccelerator.installed(monkeypatch)


@pytest.fixture
def gpu(monkeypatch):
    return FakeGpu(monkeypatch.setattr)


def sample(number: int) -> dict[str, Any]:
    """What a pipeline of mmdet 2 ends with: stacked images, loose boxes, metas, a plain number."""
    generator = torch.Generator().manual_seed(number)
    height = 4 + number % 3
    return {
        "img": DataContainer(torch.rand(3, height, 5, generator=generator), stack=True),
        "gt_bboxes": DataContainer(torch.rand(number % 3, 4, generator=generator)),
        "img_metas": DataContainer({"name": str(number), "mean": torch.ones(3)}, cpu_only=True),
        "index": number,
    }


class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return sample(index)


def loader_of(**arguments: Any) -> Any:
    values = {
        "batch_size": 4,
        "num_workers": 2,
        "collate_fn": functools.partial(collate, samples_per_gpu=2),
        "pin_memory": False,
    }
    return DataLoader(Samples(), **{**values, **arguments})


def plain(value: Any) -> Any:
    """A batch as values that can be compared."""
    if isinstance(value, DataContainer):
        flags = (value.stack, value.padding_value, value.cpu_only, value.pad_dims)
        return type(value).__name__, flags, plain(value.data)
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.stride(), value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [plain(item) for item in value]
    return value


def test_a_collated_batch_is_pinned_leaf_by_leaf(device):
    batch = collate([sample(number) for number in range(4)], samples_per_gpu=2)
    before = plain(batch)
    with applied(data_container) as feature:
        found = {key: batch[key].pin_memory() for key in ("img", "gt_bboxes", "img_metas")}
        assert feature.marks
    assert all(map(device.has_pinned, found["img"].data))
    boxes = [box for group in found["gt_bboxes"].data for box in group]
    # The first and the fourth image have no boxes: nothing to pin.
    assert [device.has_pinned(box) for box in boxes] == [False, True, True, False]
    assert found["img_metas"] is batch["img_metas"]
    assert plain({**batch, **found}) == before == plain(batch)


def test_a_subclass_and_what_was_bound_early_have_the_method(device):
    class Own(DataContainer):
        def __init__(self, value: float) -> None:
            super().__init__([torch.tensor([value])], pad_dims=None)

    with applied(data_container):
        found = Own(2.0).pin_memory()
    assert type(found) is Own and found.pad_dims is None
    assert device.has_pinned(found.data[0])


def test_containers_are_what_they_were_otherwise(device):
    container = DataContainer(torch.arange(4.0), stack=True, padding_value=3, pad_dims=1)
    before = plain(container), repr(container), len(container), sorted(vars(container))
    with applied(data_container):
        copies = [copy.copy(container), copy.deepcopy(container)]
        copies += [pickle.loads(pickle.dumps(container)), container]
        for found in copies:
            assert (plain(found), repr(found), len(found), sorted(vars(found))) == before
        pickled = pickle.dumps(container)
    assert not hasattr(DataContainer, "pin_memory")
    assert plain(pickle.loads(pickled)) == before[0]


def test_another_pin_memory_of_the_class_is_left_alone(monkeypatch):
    monkeypatch.setattr(DataContainer, "pin_memory", "theirs", raising=False)
    with pytest.raises(Exception, match="pin_memory of its own"), applied(data_container):
        pass
    assert DataContainer.pin_memory == "theirs"
    assert DataLoader._get_iterator.__module__ == "torch.utils.data.dataloader"


def batches(loader: Any) -> list[Any]:
    return [plain(batch) for batch in loader]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_come_pinned_and_are_the_same(gpu, workers, persistent):
    wanted = batches(loader_of(num_workers=workers))
    assert not gpu.pinned
    with applied(data_container) as feature:
        loader = loader_of(num_workers=workers, persistent_workers=persistent)
        for _epoch in range(2):
            for batch, expected in zip(loader, wanted, strict=True):
                assert all(map(gpu.has_pinned, batch["img"].data))
                assert gpu.has_pinned(batch["index"])
                assert plain(batch) == expected
        assert loader.pin_memory is True
        assert feature.marks
    assert loader.pin_memory is False
    assert batches(loader_of()) == wanted


def test_a_loader_made_before_the_feature_came(gpu):
    loader = loader_of()
    with applied(data_container, late=True):
        assert all(gpu.has_pinned(batch["img"].data[0]) for batch in loader)


def test_without_a_device_in_use_nothing_changes(gpu):
    wanted = batches(loader_of())
    gpu.in_use = False
    with applied(data_container) as feature:
        loader = loader_of()
        assert batches(loader) == wanted
        assert loader.pin_memory is False
        assert not gpu.pinned and not feature.marks


def test_a_pin_memory_that_the_user_asked_for_reaches_containers(gpu):
    with applied(data_container) as feature:
        for workers in (0, 1):
            for batch in loader_of(num_workers=workers, pin_memory=True):
                assert all(map(gpu.has_pinned, batch["img"].data))
        assert feature.marks


def test_a_failure_in_the_pin_thread_does_not_end_the_training(device, gpu):
    wanted = batches(loader_of())
    device.failure = RuntimeError("CUDA error: out of memory")
    with applied(data_container) as feature:
        assert batches(loader_of()) == wanted
        assert not feature.marks


def test_an_error_of_the_users_dataset_comes_as_it_did(gpu):
    class Broken(Samples):
        def __getitem__(self, index):
            raise LookupError("no such image")

    with applied(data_container), pytest.raises(LookupError, match="no such image"):
        next(iter(DataLoader(Broken(), num_workers=1, collate_fn=collate)))


def test_torchs_warnings_keep_their_place():
    """A filter by module must still match them."""

    def warned() -> list[tuple[str, str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            next(iter(loader_of(pin_memory=True, num_workers=1)))
        return [(str(one.message), one.filename) for one in caught]

    wanted = warned()
    if not wanted:
        pytest.skip("there is a GPU, or this is a torch that does not warn without one")
    assert all("dataloader.py" in place for _, place in wanted)
    with applied(data_container):
        assert warned() == wanted


def test_undoing_in_the_middle_of_an_epoch(gpu):
    wanted = batches(loader_of())
    with applied(data_container) as feature:
        found = []
        for batch in loader_of():
            found.append(plain(batch))
            feature.patcher.undo()
    assert found == wanted
