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
from prefetching import STEP, Samples, loader_of, random_state, seed


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


class Clock(Hook):  # type: ignore[misc]
    """Lets the device compute, and notes what hooks see."""

    priority = "VERY_LOW"

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.losses: list[float] = []
        self.batches: list[Any] = []
        self.peaks: list[int] = []

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        self.batches.append(plain(data_batch))

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self.device.step(STEP)
        self.losses.append(outputs["loss"].item())
        self.peaks.append(self.device.alive)


def plain(value: Any) -> Any:
    """A batch as values that can be compared, its types and devices included."""
    if isinstance(value, torch.Tensor):
        return type(value).__name__, value.device.type, tuple(value.shape), value.sum().item()
    if isinstance(value, BaseDataElement):
        fields = {key: plain(item) for key, item in sorted(value.items())}
        return type(value).__name__, fields, sorted(map(repr, value.metainfo_items()))
    if isinstance(value, Boxes):
        return "Boxes", plain(value.tensor)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [plain(item) for item in value]
    return value


class Outcome:
    """What a training did: compared between a run with the feature and one without."""

    def __init__(self, clock: Clock, model: Model, error: BaseException | None) -> None:
        self.losses = clock.losses
        self.batches = clock.batches
        self.seen = model.seen
        self.peaks = clock.peaks
        self.error = error
        self.random_state = random_state()

    @property
    def visible(self) -> tuple[Any, ...]:
        """All that a user can see."""
        error = None if self.error is None else (type(self.error), str(self.error))
        return self.losses, self.batches, self.seen, error, self.random_state


def train(
    device: FakeDevice,
    folder: Path,
    *,
    length: int = 12,
    epochs: int = 2,
    iters: int = 0,
    resume_at: int = 0,
    hooks: tuple[Any, ...] = (),
    model_class: Any = None,
    on: Any = CUDA,
    broken: int = -1,
    loop: Any = None,
    **loader: Any,
) -> Outcome:
    """Train by epochs, or by iterations where their number is given."""
    seed()
    model = (model_class or Model)(on)
    clock = Clock(device)
    samples = Samples(length, make_sample, broken)
    cfg: dict[str, Any] = {"by_epoch": not iters}
    cfg.update({"max_iters": iters} if iters else {"max_epochs": epochs})
    with mock.patch("mmengine.runner.runner.collect_env", dict):  # it asks the device for its name
        runner = _runner(model, clock, samples, folder, loop or cfg, hooks, loader)
    model.data_preprocessor._device = torch.device(on)  # the runner moves it to what is available
    if resume_at:
        runner.train_loop._iter = resume_at
    error = None
    try:
        runner.train()
    except (Exception, KeyboardInterrupt) as caught:
        error = caught
    return Outcome(clock, model, error)


def _runner(
    model: Model,
    clock: Clock,
    samples: Samples,
    folder: Path,
    loop: Any,
    hooks: tuple[Any, ...],
    loader: dict[str, Any],
) -> Any:
    return Runner(
        model=model,
        work_dir=str(folder),
        train_dataloader=loader_of(samples, pseudo_collate, **loader),
        train_cfg=loop,
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.01}},
        default_hooks={"checkpoint": None, "logger": None},
        custom_hooks=[clock, *hooks],
        log_level="ERROR",
        experiment_name=f"run{id(clock)}",
    )
