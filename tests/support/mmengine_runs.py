"""Trainings by mmengine's Runner on a made-up device."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import torch
from fake_device import CUDA, FakeDevice
from mmengine.dataset import pseudo_collate
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement, InstanceData
from prefetching import Notes, Outcome, Training, loader_of, plain, seed


class Boxes:
    """Holds a tensor and hands ``to`` on to it, as the boxes of mmdet and mmdet3d do."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return len(self.tensor)

    def to(self, *args: Any, **kwargs: Any) -> Boxes:
        return type(self)(self.tensor.to(*args, **kwargs))


class Element(BaseDataElement):
    """A subclass with a property for its field, as mmdet's DetDataSample."""

    @property
    def gt(self) -> InstanceData:
        return self._gt  # type: ignore[no-any-return]

    @gt.setter
    def gt(self, value: InstanceData) -> None:
        self.set_field(value, "_gt", dtype=InstanceData)


def make_sample(index: int, image: torch.Tensor) -> dict[str, Any]:
    element = Element(metainfo={"index": index, "scale": [1.0, 2.0]})
    element.gt = InstanceData(
        boxes=Boxes(torch.arange(4.0).reshape(1, 4) + index), labels=torch.tensor([index])
    )
    element.set_data({"mask": torch.ones(4, 4) * index, "note": "text"})
    return {"inputs": image, "data_samples": element}


class Model(BaseModel):  # type: ignore[misc]
    def __init__(self, device: Any = CUDA) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 1, 1)
        self.data_preprocessor._device = torch.device(device)
        self.seen: list[Any] = []

    def forward(self, inputs: Any, data_samples: Any, mode: str = "tensor") -> Any:
        image = torch.stack(list(inputs))
        labels = torch.cat([sample.gt.labels for sample in data_samples])
        boxes = torch.cat([sample.gt.boxes.tensor for sample in data_samples])
        masks = torch.stack([sample.mask for sample in data_samples])
        self.seen.append([sample.metainfo["index"] for sample in data_samples])
        noise = torch.rand(1).item()  # as dropout would: the main process's random numbers
        extra = labels.sum() + boxes.sum() + masks.sum()
        return {"loss": (self.layer(image) ** 2).mean() * (1 + noise) + extra * 1e-3}


class Clock(Notes, Hook):  # type: ignore[misc]
    """Lets the device compute, and notes what hooks see."""

    priority = "VERY_LOW"

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        self.batches.append(plain(data_batch))

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self.step(outputs["loss"])


@plain.register
def _(value: BaseDataElement) -> Any:
    fields = {key: plain(item) for key, item in sorted(value.items())}
    return type(value).__name__, fields, sorted(map(repr, value.metainfo_items()))


@plain.register
def _(value: Boxes) -> Any:
    return "Boxes", plain(value.tensor)


def train(
    device: FakeDevice,
    folder: Path,
    *,
    model_class: Any = None,
    on: Any = CUDA,
    loop: Any = None,
    **arguments: Any,
) -> Outcome:
    """Train as ``Training`` says; what it does not know are arguments of the loader."""
    seed()
    asked, loader = Training.of(arguments)
    model, clock = (model_class or Model)(on), Clock(device)
    loaded = loader_of(asked.samples(make_sample), pseudo_collate, **loader)
    with mock.patch("mmengine.runner.runner.collect_env", dict):  # it asks the device for its name
        runner = Runner(
            model=model,
            work_dir=str(folder),
            train_dataloader=loaded,
            train_cfg=loop or {"by_epoch": not asked.iters, **asked.limits},
            optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.01}},
            default_hooks={"checkpoint": None, "logger": None},
            custom_hooks=[clock, *asked.hooks],
            log_level="ERROR",
            experiment_name=f"run{id(clock)}",
        )
    model.data_preprocessor._device = torch.device(on)  # the runner moves it to what is available
    if asked.resume_at:
        runner.train_loop._iter = asked.resume_at
    return Outcome(clock, model, runner, runner.train)
