"""Trainings with a prefetch feature and without it, compared.

What the tests of both features ask of their framework's trainings stands here once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from applied import Applied, applied
from fake_device import FakeDevice
from prefetching import IMAGE_BYTES, Outcome, device_of, exposed

from loongkit.activation import logs

#: A batch with what lies beside its image, in bytes.
BATCH = IMAGE_BYTES * 1.01

#: Trainings of either framework.
ROWS: dict[str, dict[str, Any]] = {
    "epochs": {"epochs": 2},
    "epochs, persistent workers": {"epochs": 2, "persistent_workers": True},
    "epochs, four workers": {"epochs": 2, "num_workers": 4},
    "epochs, one worker": {"epochs": 2, "num_workers": 1},
    "epochs, pinned by the user": {"epochs": 2, "pin_memory": True},
    "epochs, an uneven last batch": {"length": 13},
    "iterations over the end of the data": {"iters": 9},
    "iterations, persistent workers": {"iters": 9, "persistent_workers": True},
    "iterations that end within the data": {"iters": 4},
}


class Run:
    """One training, and what its device did."""

    def __init__(self, device: FakeDevice, outcome: Outcome, marks: int) -> None:
        self.device = device
        self.outcome = outcome
        self.marks = marks
        self.exposed = exposed(device)


class Trainings:
    """Trains by one framework; calling it compares a training with the feature and one without.

    ``needed`` are features that are on in either. ``hooks`` is among the arguments as a function
    that makes them anew for each training.
    """

    def __init__(
        self,
        train: Callable[..., Outcome],
        folder: Path,
        feature: ModuleType,
        *needed: ModuleType,
    ) -> None:
        self.folder = folder
        self._train = train
        self._feature = feature
        self._needed = needed

    @contextlib.contextmanager
    def applied(self) -> Iterator[Applied]:
        """Apply the feature, and what it needs."""
        with self._ready(), applied(self._feature) as feature:
            yield feature

    @contextlib.contextmanager
    def _ready(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for module in self._needed:
                stack.enter_context(applied(module))
            yield

    def train(self, device: FakeDevice, **arguments: Any) -> Outcome:
        """Train with what is applied now."""
        return self._train(device, self.folder, **arguments)

    def stock(self, **arguments: Any) -> Run:
        """Train without the feature."""
        device, hooks = device_of(), arguments.pop("hooks", tuple)
        with device, self._ready():
            outcome = self.train(device, hooks=hooks(), **arguments)
        return Run(device, outcome, 0)

    def ours(self, **arguments: Any) -> Run:
        """Train with the feature."""
        device, hooks = device_of(), arguments.pop("hooks", tuple)
        with device, self.applied() as feature:
            outcome = self.train(device, hooks=hooks(), **arguments)
            return Run(device, outcome, feature.marks)

    def __call__(self, **arguments: Any) -> tuple[Run, Run]:
        """Train without the feature and with it; nothing that a user can see may differ."""
        stock, ours = self.stock(**arguments), self.ours(**arguments)
        for one, other in zip(stock.outcome.visible, ours.outcome.visible, strict=True):
            assert one == other
        assert stock.device.copies_ahead == 0
        return stock, ours


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged in the test, each line with its level in front."""
    found: list[str] = []
    for level in ("info", "warning", "error"):
        monkeypatch.setattr(logs, level, lambda text, level=level: found.append(f"{level} {text}"))
    return found


def check_that_copies_hide(stock: Run, ours: Run) -> None:
    """Copies lie behind the steps, and there is one batch more on the device."""
    steps = ours.device.steps
    assert steps == stock.device.steps > 3
    # Stock waits in each step. Ours: for the first two batches, and the first of each epoch.
    assert stock.exposed > 0.9 * steps
    assert ours.exposed < 3.5
    assert ours.marks > 0
    assert ours.device.peak <= 2 * BATCH, "one batch more than stock"
    assert max(ours.outcome.peaks) <= 2 * BATCH
    assert ours.device.alive == 0, "freed when the training ends"


def check_that_short_memory_costs_no_job(both: Trainings, said: list[str]) -> None:
    """A device without memory for a second batch costs the prefetch, with one warning."""
    device = device_of()
    device.failure = RuntimeError("CUDA out of memory")
    with device, both.applied() as feature:
        outcome = both.train(device)
    assert outcome.error is None and len(outcome.losses) == 12
    assert not feature.marks
    assert len([line for line in said if line.startswith("warning")]) == 1


def check_that_it_can_be_taken_out(both: Trainings, hook: type) -> None:
    """A training during which the feature is undone ends as one without it."""

    class Undo(hook):  # type: ignore[misc, valid-type]
        def after_train_iter(self, *_: Any, **__: Any) -> None:
            if feature.marks and not marks:
                marks.append(feature.marks)
                feature.patcher.undo()

    marks: list[int] = []
    stock = both.stock()
    device = device_of()
    with device, both.applied() as feature:
        outcome = both.train(device, hooks=(Undo(),))
        assert marks == [feature.marks]
    assert outcome.visible == stock.outcome.visible
    assert device.alive == 0
