"""torch's own warning about the number of data workers, in a process that was placed."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch.utils.data.dataloader as module

from loongkit.activation import plan, settings, states
from loongkit.activation.patching import Patcher
from loongkit.numa import loader_check


@pytest.fixture
def patcher() -> Any:
    entry = next(entry for entry in plan.entries() if entry.name == "numa_affinity")
    decision = plan.Decision(entry, True, plan.OWN, "asked for by a test")
    made = Patcher(states.Record(decision, strict=False), lambda: None)
    yield made
    made.undo()


def warned(workers: int, recwarn: pytest.WarningsRecorder) -> bool:
    recwarn.clear()
    module.DataLoader([1, 2], num_workers=workers)
    return any("suggested max number of worker" in str(found.message) for found in recwarn)


@pytest.mark.parametrize(
    ("left", "mask", "wanted"),
    [
        ("", {0}, [1, 2, 3, 4, 5]),  # nobody has placed it: confined to one CPU
        ("7/0/1/0-3/0/0", {0}, [1, 1, 1, 1, 5]),
        ("7/0/1/0-3/0/1-2", {0}, [1, 1, 1, 1, 5]),  # workers have CPUs of their own
        ("7/0/1/0-3/0/1-2", {3}, [1, 2, 3, 4, 5]),  # the user has moved it since
    ],
    ids=["not placed", "placed", "roles apart", "moved since"],
)
def test_the_placement_alone_brings_about_no_warning(
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
    patcher: Patcher,
    left: str,
    mask: set[int],
    wanted: list[int],
) -> None:
    """``wanted``: the numbers of workers, of 1 to 5, at which torch warns; 1 stands for none."""
    loader_check.keep(module, patcher)
    monkeypatch.setenv(settings.JOB_PLACEMENT, left)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: mask)
    found = [workers if warned(workers, recwarn) else 1 for workers in range(1, 6)]
    assert found == wanted


def test_a_torch_without_that_check_is_left_alone(patcher: Patcher) -> None:
    loader_check.keep(SimpleNamespace(DataLoader=type("DataLoader", (), {})), patcher)


def test_taken_out_torch_warns_as_ever(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, patcher: Patcher
) -> None:
    loader_check.keep(module, patcher)
    patcher.undo()
    monkeypatch.setenv(settings.JOB_PLACEMENT, "7/0/1/0-3/0/0")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    assert warned(2, recwarn)
