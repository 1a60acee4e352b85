"""Trainings on a made-up device, by the frameworks' own runners: what the prefetch tests run.

A training is described by what a user would vary; it returns what hooks and model saw, what the
device was asked to do and how much time of its copies was exposed.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import types
from collections.abc import Callable, Iterator
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


@dataclasses.dataclass(frozen=True)
class Training:
    """What a user would vary with any framework; by iterations where their number is given."""

    length: int = 12
    epochs: int = 2
    iters: int = 0
    resume_at: int = 0
    hooks: tuple[Any, ...] = ()
    broken: int = -1

    @classmethod
    def of(cls, arguments: dict[str, Any]) -> tuple[Training, dict[str, Any]]:
        """Take what is meant for a training; what is left is the loader's."""
        names = {field.name for field in dataclasses.fields(cls)}
        own = {name: value for name, value in arguments.items() if name in names}
        return cls(**own), {name: arguments[name] for name in arguments if name not in own}

    @property
    def limits(self) -> dict[str, int]:
        return {"max_iters": self.iters} if self.iters else {"max_epochs": self.epochs}

    def samples(self, make: Any) -> Samples:
        return Samples(self.length, make, self.broken)


@functools.singledispatch
def plain(value: Any) -> Any:
    """A batch as values that can be compared, its types and devices included."""
    return value


@plain.register
def _(value: torch.Tensor) -> Any:
    return type(value).__name__, value.device.type, tuple(value.shape), value.sum().item()


@plain.register
def _(value: dict) -> Any:  # type: ignore[type-arg]
    return {key: plain(item) for key, item in value.items()}


@plain.register(list)
@plain.register(tuple)
def _(value: Any) -> Any:
    return type(value).__name__, [plain(item) for item in value]


class Notes:
    """What a hook of either framework sees: a mix-in of the hooks called Clock."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.losses: list[float] = []
        self.batches: list[Any] = []
        self.peaks: list[int] = []

    def step(self, loss: torch.Tensor) -> None:
        """Let the device compute for one step, and note what came of it."""
        self.device.step(STEP)
        self.losses.append(loss.item())
        self.peaks.append(self.device.alive)


class Outcome:
    """What a training did: compared between a run with the feature and one without."""

    def __init__(self, notes: Notes, model: Any, runner: Any, run: Callable[[], Any]) -> None:
        self.error = _error_of(run)
        self.losses = notes.losses
        self.batches = notes.batches
        self.peaks = notes.peaks
        self.seen = model.seen
        self.counters = runner.epoch, runner.iter
        self.random_state = random_state()

    @property
    def visible(self) -> tuple[Any, ...]:
        """All that a user can see."""
        error = None if self.error is None else (type(self.error), str(self.error))
        return self.losses, self.batches, self.seen, self.counters, error, self.random_state


def _error_of(run: Callable[[], Any]) -> BaseException | None:
    try:
        run()
    except (Exception, KeyboardInterrupt) as caught:
        return caught
    return None
