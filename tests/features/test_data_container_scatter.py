"""DATA_CONTAINER on the real mmcv 1.x: what lets its models train on a GPU with torch >= 2.4."""

from __future__ import annotations

import functools

import legacy
import pytest

pytestmark = pytest.mark.legacy
legacy.need_mmcv_1()

import torch  # noqa: E402
from applied import applied  # noqa: E402
from fake_gpu import FakeGpu  # noqa: E402
from mmcv.parallel import (  # noqa: E402
    DataContainer,
    MMDataParallel,
    MMDistributedDataParallel,
    collate,
)
from mmcv.parallel import _functions as scattering  # noqa: E402

from loongkit.features import data_container  # noqa: E402


@pytest.fixture
def gpu(monkeypatch):
    return FakeGpu(monkeypatch.setattr)


def batch_of_two():
    samples = [
        {
            "img": DataContainer(torch.arange(6.0).reshape(1, 2, 3) + number, stack=True),
            "img_metas": DataContainer({"name": str(number)}, cpu_only=True),
        }
        for number in range(2)
    ]
    return collate(samples, samples_per_gpu=2)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, img, scale=1.0):
        return (img * self.weight * scale).sum()

    def train_step(self, data, optimizer):
        return {"loss": self(data["img"]), "metas": data["img_metas"]}


def test_training_on_the_cpu_scatters_as_before():
    batch = batch_of_two()
    model = MMDataParallel(Model(), device_ids=[])
    wanted = model.train_step(batch, None)
    with applied(data_container):
        found = model.train_step(batch, None)
    assert torch.equal(found["loss"], wanted["loss"]) and found["metas"] == wanted["metas"]


@pytest.fixture
def on_a_gpu():
    """A model as on one GPU; its parameters, of course, stay where they are."""
    parallel = MMDataParallel(Model(), device_ids=[])
    parallel.device_ids = [0]
    parallel.src_device_obj = torch.device("cpu")
    return parallel


def test_training_on_a_gpu_scatters(on_a_gpu, gpu):
    batch = batch_of_two()
    with pytest.raises(AttributeError, match="'int' object has no attribute 'type'"):
        on_a_gpu.train_step(batch, None)
    with applied(data_container):
        found = on_a_gpu.train_step(batch, None)
    assert torch.allclose(found["loss"], batch["img"].data[0].sum())
    assert any(tensor is batch["img"].data[0] for tensor in gpu.copied)
    (stream,) = {stream for stream in gpu.streams if stream is not None}
    assert stream.index == 0


def test_a_stream_asked_for_by_device_is_torchs(gpu):
    wanted = torch.nn.parallel._functions._get_stream(torch.device("cuda", 0))
    with applied(data_container):
        assert scattering._get_stream(torch.device("cuda", 0)) is wanted
        assert scattering._get_stream(0) is wanted
        assert scattering._get_stream(torch.device("cpu")) is None


@pytest.mark.parametrize("late", [False, True])
def test_torchs_own_stream_function_is_left_alone(late):
    original = torch.nn.parallel._functions._get_stream
    with applied(data_container, late=late):
        assert torch.nn.parallel._functions._get_stream is original
        assert scattering._get_stream is not original
    assert scattering._get_stream is original


def test_what_others_put_in_its_place_stays():
    original = scattering._get_stream
    try:
        with applied(data_container):
            theirs = scattering._get_stream = functools.partial(original)
        assert scattering._get_stream is theirs
    finally:
        scattering._get_stream = original


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_a_distributed_model_evaluates_and_trains(process_group):
    image = torch.arange(6.0)
    with pytest.raises(AttributeError, match="_use_replicated_tensor_module"):
        MMDistributedDataParallel(Model())(image)
    with applied(data_container):
        model = MMDistributedDataParallel(Model())
        assert model(image).item() == model(image, scale=2.0).item() / 2 == 15.0
        loss = model.train_step({"img": image, "img_metas": None}, None)["loss"]
        loss.backward()
        assert model.module.weight.grad.item() == 15.0
    assert not hasattr(MMDistributedDataParallel, "_use_replicated_tensor_module")
