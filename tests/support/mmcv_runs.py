"""Trainings by the runners of mmcv 1.x on a made-up device."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from fake_device import FakeDevice
from mmcv.parallel import DataContainer, MMDataParallel, collate
from mmcv.runner import EpochBasedRunner, Hook, IterBasedRunner, IterTimerHook
from prefetching import Notes, Outcome, Training, loader_of, plain, seed

LOGGER = logging.getLogger("mmcv_runs")
LOGGER.setLevel(logging.CRITICAL)


def make_sample(index: int, image: torch.Tensor) -> dict[str, Any]:
    """What a pipeline of mmdet 2 ends with, and a tensor outside of containers."""
    return {
        "img": DataContainer(image, stack=True),
        "gt_bboxes": DataContainer(torch.ones(index % 3, 4)),
        "points": DataContainer([torch.ones(2, 3) * index, torch.ones(1, 3)]),
        "img_metas": DataContainer({"index": index}, cpu_only=True),
        "weight": torch.tensor([float(index)]),
        "number": index,
    }


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 1, 1)
        self.seen: list[Any] = []

    def forward(self, img: Any, gt_bboxes: Any, points: Any, weight: Any) -> torch.Tensor:
        extra = sum(box.sum() for box in gt_bboxes) + weight.sum()
        extra = extra + sum(item.sum() for sample in points for item in sample)
        noise = torch.rand(1).item()  # as dropout would: the main process's random numbers
        return (self.layer(img) ** 2).mean() * (1 + noise) + extra * 1e-3

    def train_step(self, data: Any, optimizer: Any, **_: Any) -> dict[str, Any]:
        self.seen.append((data["img_metas"], data["number"].tolist()))
        loss = self(data["img"], data["gt_bboxes"], data["points"], data["weight"])
        return {"loss": loss, "num_samples": len(data["img"])}

    def val_step(self, data: Any, optimizer: Any = None, **_: Any) -> dict[str, Any]:
        return self.train_step(data, optimizer)


class Clock(Notes, Hook):  # type: ignore[misc]
    """Takes the optimiser's step, lets the device compute, and notes what hooks see."""

    def before_train_iter(self, runner: Any) -> None:
        self.batches.append(plain(runner.data_batch))

    def after_train_iter(self, runner: Any) -> None:
        runner.optimizer.zero_grad()
        runner.outputs["loss"].backward()
        runner.optimizer.step()
        self.step(runner.outputs["loss"])


@plain.register
def _(value: DataContainer) -> Any:
    return type(value).__name__, value.stack, value.cpu_only, plain(value.data)


def on_a_gpu(model: Any) -> Any:
    """A model as on one GPU; its parameters, of course, stay where they are."""
    with mock.patch("torch.nn.parallel.data_parallel._get_available_device_type", lambda: None):
        parallel = MMDataParallel(model, device_ids=[])
    parallel.device_ids = [0]
    parallel.src_device_obj = torch.device("cpu")
    return parallel


def train(
    device: FakeDevice,
    folder: Path,
    *,
    wrap: Any = on_a_gpu,
    runner_class: Any = None,
    workflow: Any = None,
    batch_processor: Any = None,
    **arguments: Any,
) -> Outcome:
    """Train as ``Training`` says; what it does not know are arguments of the loader."""
    seed()
    asked, loader = Training.of(arguments)
    model, clock = Model(), Clock(device)
    samples = asked.samples(make_sample)
    made = loader_of(samples, functools.partial(collate, samples_per_gpu=2), **loader)
    kind = runner_class or (IterBasedRunner if asked.iters else EpochBasedRunner)
    runner = kind(
        wrap(model),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        work_dir=str(folder),
        logger=LOGGER,
        batch_processor=batch_processor,
        **asked.limits,
    )
    for hook in (IterTimerHook(), clock, *asked.hooks):
        runner.register_hook(hook)
    if asked.resume_at:
        runner._epoch, runner._iter = asked.resume_at, asked.resume_at * len(made)
    flows = workflow or [("train", 1)]
    return Outcome(clock, model, runner, lambda: runner.run([made] * len(flows), flows))
