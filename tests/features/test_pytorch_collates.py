"""PYTORCH: default_collate straight into a data worker's slots."""

from __future__ import annotations

import collections
import functools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
import torch.utils.data._utils.collate as torch_collate  # noqa: E402
from slot_stand_in import StandIn, in_worker  # noqa: E402
from torch.utils.data import default_collate  # noqa: E402

from loongkit.activation import plan, states  # noqa: E402
from loongkit.activation.patching import Patcher  # noqa: E402
from loongkit.data import collates  # noqa: E402

ORIGINAL = torch_collate.collate_tensor_fn
Point = collections.namedtuple("Point", ["x", "y"])


class Work:
    """The collate at work on a stand-in for slots."""

    def __init__(self, late: bool = False) -> None:
        entry = plan.Entry("pytorch", 1, "data", True, None, None, (), (), ())
        record = states.Record(plan.Decision(entry, True, plan.OWN, "a test"), strict=False)
        self.stand_in = StandIn()
        self.slots: StandIn | None = self.stand_in
        self.patcher = Patcher(record, lambda: None)
        self.patcher.late = late
        collates.install(torch_collate, self.patcher, lambda: self.slots)

    @property
    def used(self) -> int:
        """How many batches lie in slots."""
        return len(self.stand_in.made) + self.stand_in.joins


@pytest.fixture
def work() -> Iterator[Work]:
    made = Work()
    with in_worker():
        yield made
    made.patcher.undo()
    assert torch_collate.collate_tensor_fn is ORIGINAL
    assert torch_collate.default_collate_fn_map[torch.Tensor] is ORIGINAL


def outcome(collate: Any, batch: Any) -> Any:
    """What collating gives, as values that can be compared."""
    try:
        return look(collate(batch))
    except Exception as error:
        return type(error), str(error)


def look(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_meta:
            return type(value), str(value)
        kind = type(value), value.dtype, tuple(value.shape), value.stride(), value.requires_grad
        return *kind, value.is_conj(), value.is_contiguous(), str(value.resolve_conj().tolist())
    if isinstance(value, dict):
        return type(value), {key: look(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [look(item) for item in value]
    return type(value), value


def stock(batch: Any) -> Any:
    """torch's own default_collate, whatever is in place."""
    functions = {**torch_collate.default_collate_fn_map, torch.Tensor: ORIGINAL}
    return torch_collate.collate(batch, collate_fn_map=functions)


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape)


class Sub(torch.Tensor):
    pass


FAST = {
    "one shape": [torch.arange(12.0).reshape(3, 4) + i for i in range(3)],
    "a single sample": [torch.arange(4)],
    "bytes": [torch.arange(4, dtype=torch.uint8) for _ in range(2)],
    "bools": [torch.tensor([True, False])] * 2,
    "half": [torch.ones(3, dtype=torch.float16)] * 2,
    "bfloat16": [torch.ones(3, dtype=torch.bfloat16)] * 2,
    "complex": [torch.ones(3, dtype=torch.complex64) * 1j] * 2,
    "transposed": [torch.arange(6.0).reshape(2, 3).t()] * 2,
    "permuted image": [torch.arange(24).reshape(2, 4, 3).permute(2, 0, 1)] * 2,
    "expanded": [torch.ones(1, 3).expand(4, 3)] * 2,
    "a part of a larger one": [torch.arange(10)[2:5], torch.arange(10)[5:8]],
    "arrays": [np.arange(6, dtype=np.int16).reshape(2, 3)] * 2,
    "nested": [{"a": torch.ones(2), "b": [torch.zeros(3), "text"], "c": Point(1, torch.ones(1))}]
    * 2,
    "a tuple of samples": (torch.ones(2), torch.zeros(2)),
    "scalars": [torch.tensor(1.0), torch.tensor(2.0)],
}

SLOW = {
    "unequal shapes": [torch.ones(2), torch.ones(3)],
    "unequal dimensions": [torch.ones(2), torch.ones(1, 2)],
    "unequal dtypes": [torch.ones(2), torch.ones(2, dtype=torch.int32)],
    "gradients": [torch.ones(2, requires_grad=True)] * 2,
    "one gradient": [torch.ones(2), torch.ones(2, requires_grad=True)],
    "parameters": [torch.nn.Parameter(torch.ones(2), requires_grad=False)] * 2,
    "a subclass": [torch.ones(2).as_subclass(Sub)] * 2,
    "a subclass after a tensor": [torch.ones(2), torch.ones(2).as_subclass(Sub)],
    "sparse": [torch.eye(2).to_sparse()] * 2,
    "sparse after dense": [torch.eye(2), torch.eye(2).to_sparse()],
    "conjugates": [torch.ones(2, dtype=torch.complex64).conj()] * 2,
    "meta": [torch.ones(2, device="meta")] * 2,
    "float8": [torch.ones(2).to(torch.float8_e4m3fn)] * 2,
    "numbers": [1, 2],
    "floats": [1.0, 2.0],
    "strings": ["a", "b"],
    "numpy scalars": [np.float32(1), np.float32(2)],
    "text arrays": [np.array(["a"])] * 2,
    "a mixture": [torch.ones(2), 1],
    "nothing": [],
}


@pytest.mark.parametrize("name", FAST)
def test_a_batch_is_stacked_into_a_slot(work, name):
    batch = FAST[name]
    assert outcome(default_collate, batch) == outcome(stock, batch)
    assert work.used


@pytest.mark.parametrize("name", SLOW)
def test_everything_else_is_torchs(work, name):
    batch = SLOW[name]
    assert outcome(default_collate, batch) == outcome(stock, batch)
    assert not work.used


def test_nested_tensors_are_refused_as_by_torch(work):
    batch = [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])] * 2
    assert outcome(default_collate, batch) == outcome(stock, batch)
    assert "nested tensors are not currently supported" in outcome(default_collate, batch)[1]


def test_the_batch_is_the_slots_own_tensor(work):
    found = default_collate([rand(3, 4), rand(3, 4)])
    assert work.slots.has_made(found)
    assert work.used == 1


def test_a_batch_is_a_copy_of_its_samples(work):
    sample = torch.ones(3)
    found = default_collate([sample, sample])
    sample.zero_()
    assert found.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_places_of_one_reservation_are_the_batch(work):
    samples = work.slots.places(3, 2, 4)
    found = default_collate([{"img": sample} for sample in samples])["img"]
    assert found is work.slots.reservation and not work.slots.made
    assert work.used == 1


def test_the_same_samples_under_two_keys_are_two_batches(work):
    samples = work.slots.places(3, 2, 4)
    found = default_collate([{"one": sample, "two": sample} for sample in samples])
    assert found["one"] is work.slots.reservation and work.slots.has_made(found["two"])
    found["one"].zero_()
    assert found["two"].any()


def test_places_are_joined_again_once_their_batch_is_gone(work):
    samples = work.slots.places(3, 2, 4)
    assert default_collate(samples) is work.slots.reservation
    again = work.slots.places(3, 2, 4)
    assert default_collate(again) is work.slots.reservation


def test_places_in_another_order_are_stacked(work):
    samples = work.slots.places(3, 2, 4)
    assert torch.equal(default_collate(samples[::-1]), stock(samples[::-1]))
    assert len(work.slots.made) == 1


def test_where_slots_are_full_or_tensors_small_torch_stacks(work):
    work.slots.full = True
    batch = FAST["one shape"]
    assert outcome(default_collate, batch) == outcome(stock, batch)
    work.slots.full, work.slots.least = False, 1000
    assert outcome(default_collate, batch) == outcome(stock, batch)
    assert not work.used


def test_a_failure_of_the_slots_is_not_the_users(work):
    work.slots.failure = RuntimeError("no more memory")
    batch = FAST["one shape"]
    assert outcome(default_collate, batch) == outcome(stock, batch)
    assert not work.used


def test_outside_of_data_workers_nothing_changes(work):
    work.slots = None
    batch = FAST["one shape"]
    assert outcome(default_collate, batch) == outcome(stock, batch)
    assert not work.used


def test_an_inference_tensor_is_stacked_as_before(work):
    with torch.inference_mode():
        batch = [torch.ones(2), torch.zeros(2)]
    assert outcome(default_collate, batch) == outcome(stock, batch)


def test_a_users_own_function_for_tensors_is_kept(work, monkeypatch):
    def own(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return "own"

    monkeypatch.setitem(torch_collate.default_collate_fn_map, torch.Tensor, own)
    assert default_collate([torch.ones(2)]) == "own"
    work.patcher.undo()
    assert torch_collate.default_collate_fn_map[torch.Tensor] is own
    monkeypatch.undo()
    torch_collate.default_collate_fn_map[torch.Tensor] = ORIGINAL


def test_an_earlier_function_of_the_users_is_left_in_place(monkeypatch):
    monkeypatch.setitem(torch_collate.default_collate_fn_map, torch.Tensor, len)
    made = Work()
    assert torch_collate.collate_tensor_fn is ORIGINAL
    assert torch_collate.default_collate_fn_map[torch.Tensor] is len
    made.patcher.undo()
    assert torch_collate.default_collate_fn_map[torch.Tensor] is len


def test_other_parameters_are_left_alone(monkeypatch):
    def other(batch: Any) -> Any:
        return "other"

    monkeypatch.setattr(torch_collate, "collate_tensor_fn", other)
    monkeypatch.setitem(torch_collate.default_collate_fn_map, torch.Tensor, other)
    made = Work()
    assert torch_collate.collate_tensor_fn is other
    assert not made.patcher.record.out


def test_an_extended_map_takes_part_and_can_be_pickled(work):
    functions = {**torch_collate.default_collate_fn_map, Point: len}
    collate = functools.partial(torch_collate.collate, collate_fn_map=functions)
    again = pickle.loads(pickle.dumps(collate))
    assert outcome(again, FAST["one shape"]) == outcome(stock, FAST["one shape"])
    assert work.used == 1
    work.patcher.undo()
    assert outcome(collate, FAST["one shape"]) == outcome(stock, FAST["one shape"])
    assert work.used == 1
