"""Trainings on a made-up device, by the frameworks' own runners: what the prefetch tests run.

A training is described by what a user would vary; it returns what hooks and model saw, what the
device was asked to do and how much time of its copies was exposed.
"""

from __future__ import annotations

import random
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fake_device import FakeDevice, wait_for_next
from torch.utils.data import DataLoader, Dataset

from loongkit.data import prefetch_iterator

#: Bytes of the image of one batch; what else is in a batch is small beside it.
IMAGE_SHAPE = (3, 128, 128)
BATCH_SIZE = 2
IMAGE_BYTES = BATCH_SIZE * 3 * 128 * 128 * 4
#: The made-up device copies one batch in about one second, and computes for as long.
STEP = 1.0


def device_of(step: float = STEP) -> FakeDevice:
    return FakeDevice(bytes_per_second=IMAGE_BYTES / step)


class Samples(Dataset):  # type: ignore[type-arg]
    """Samples that depend on their index and on the worker's random numbers."""

    def __init__(self, length: int, make: Any, broken: int = -1) -> None:
        self.length = length
        self.make = make
        self.broken = broken

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index == self.broken:
            raise LookupError(f"no image {index}")
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(IMAGE_SHAPE, generator=generator) + random.random() + torch.rand(1)
        return self.make(index, image + float(np.random.rand()))


class LazySampler(torch.utils.data.Sampler):  # type: ignore[type-arg]
    """Draws each index from the main process's global random numbers, when it is asked for it."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.epoch = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.length):
            yield int(torch.randint(self.length, ()).item() + self.epoch) % self.length

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def loader_of(samples: Any, collate: Any, **arguments: Any) -> Any:
    values = {
        "batch_size": BATCH_SIZE,
        "num_workers": 2,
        "sampler": LazySampler(len(samples)),
        "collate_fn": collate,
    }
    return DataLoader(samples, **{**values, **arguments})


def make_patient(patch: pytest.MonkeyPatch) -> None:
    """Let loaders be faster than the model, however busy the machine: the next batch is there."""
    look = prefetch_iterator.batch_waiting

    def wait_and_look(iterator: Any) -> Any:
        wait_for_next(iterator)
        return look(iterator)

    patch.setattr(prefetch_iterator, "batch_waiting", wait_and_look)


def without_sleep(patch: pytest.MonkeyPatch, *modules: Any) -> None:
    """Spare the seconds that runners wait between epochs."""
    import time

    quick = types.SimpleNamespace(time=time.time, sleep=lambda seconds: None)
    for module in modules:
        patch.setattr(module, "time", quick)


def seed(number: int = 0) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def random_state() -> tuple[Any, ...]:
    """Where the random numbers of this process stand."""
    return torch.rand(1).item(), random.random(), float(np.random.rand())


def exposed(device: FakeDevice, step: float = STEP) -> float:
    """Seconds of the run beyond its steps: copies that the model waited for."""
    return device.now - device.steps * step
