"""What torch's loop of a data worker looks like, in the versions that we know."""

from __future__ import annotations

import inspect
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch.utils.data._utils.worker as real

from loongkit.activation.patching import parameter_difference
from loongkit.data import worker_loop

BEFORE = (
    "dataset_kind, dataset, index_queue, data_queue, done_event, auto_collation, collate_fn, "
    "drop_last, base_seed, init_fn, worker_id, num_workers, persistent_workers, shared_seed"
)
SINCE_2_14 = BEFORE.replace("dataset,", "dataset_holder,")


def module_of(parameters: str) -> Any:
    """A module of torch's whose loop has these parameters."""
    made = ModuleType("worker")
    exec(f"def _worker_loop({parameters}): ...", vars(made))
    return made


@pytest.mark.parametrize("parameters", [BEFORE, SINCE_2_14], ids=["before 2.14", "since"])
def test_both_are_known(parameters: str) -> None:
    made = module_of(parameters)
    like = worker_loop.like_of(made)
    assert parameter_difference(made._worker_loop, like) is None
    assert list(inspect.signature(like).parameters) == parameters.split(", ")
    names = parameters.split(", ")
    assert names[worker_loop.INIT_FN] == "init_fn"
    assert names[worker_loop.NUM_WORKERS] == "num_workers"


@pytest.mark.parametrize(
    "parameters", ["dataset, " + BEFORE.replace("dataset,", ""), SINCE_2_14 + ", more", "*args"]
)
def test_others_are_not(parameters: str) -> None:
    made = module_of(parameters)
    assert parameter_difference(made._worker_loop, worker_loop.like_of(made))


def test_the_installed_one_is_known() -> None:
    assert parameter_difference(real._worker_loop, worker_loop.like_of(real)) is None


def test_a_torch_without_one_is_told_by_the_patcher() -> None:
    missing: Any = SimpleNamespace()
    assert worker_loop.like_of(missing) is worker_loop._like
